"""Rhizome on Apache Spark: sources, a sink, tables and jobs.

    import rhizome.spark
    rhizome.spark.register(spark)      # not needed where `pyspark_rhizome` is on Spark's path
    spark.read.format("rhizome.journal").load("/var/lib/rhizome")

data_source is the format `rhizome` (source and sink), journal the format `rhizome.journal`,
lakehouse the format `rhizome.table`. jobs run once, service for ever; shipment sends this package
to executors. It may not import server, management or security. Spark pickles these classes: they
stay interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


_REDACTED: Final = "spark.sql.redaction.options.regex"
_SECRETS: Final = "(?i)ur[il]|^catalog|^storage"


def register(spark: SparkSession, ship: bool = False) -> None:
    """Make the formats `rhizome`, `rhizome.journal` and `rhizome.table` known to a session, and
    have it hide options that hold a password (`uri`, `catalog`, `storage.secret_access_key`),
    wherever it shows options.

    `ship`: send executors what they need of this package, where it isn't installed on them. Raises
    WorkerPythonError if the Python that Spark runs for this session can't work for it.
    """
    from rhizome.spark.data_source import RhizomeSource
    from rhizome.spark.journal.journal_source import JournalSource
    from rhizome.spark.lakehouse.table_source import TableSource
    from rhizome.spark.python_workers import prepare_workers

    shipped = None
    if ship:
        from rhizome.spark.shipment import ship as send

        shipped = send(spark)
    prepare_workers(spark, shipped)
    spark.dataSource.register(JournalSource)
    spark.dataSource.register(RhizomeSource)
    spark.dataSource.register(TableSource)
    _hide_secrets(spark)


def _hide_secrets(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    hidden = spark.conf.get(_REDACTED) or "(?i)url"
    if _SECRETS in hidden:
        return
    try:
        spark.conf.set(_REDACTED, f"{hidden}|{_SECRETS}")
    except PySparkException as error:
        # Definitions of a declarative pipeline may not set anything: its spec does.
        if "SESSION_MUTATION" not in str(error.getCondition() or error):
            raise
