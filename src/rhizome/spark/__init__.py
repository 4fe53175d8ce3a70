"""Rhizome on Apache Spark: sources, sink and jobs (DESIGN: the data pipeline).

    import rhizome.spark
    rhizome.spark.register(spark)      # not needed where `pyspark_rhizome` is on Spark's path
    spark.read.format("rhizome.journal").load("/var/lib/rhizome")

The classes here stay interpreted: Spark pickles them, and compiled ones can't be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


_REDACTED: Final = "spark.sql.redaction.options.regex"


def register(spark: SparkSession) -> None:
    """Make the formats `rhizome` and `rhizome.journal` known to a session, and have it hide the
    option `uri`, which holds a password, wherever it shows options.
    """
    from rhizome.spark.journalsource import JournalSource
    from rhizome.spark.source import RhizomeSource

    spark.dataSource.register(JournalSource)
    spark.dataSource.register(RhizomeSource)
    hidden = spark.conf.get(_REDACTED) or "(?i)url"
    if "ur[il]" not in hidden:
        spark.conf.set(_REDACTED, f"{hidden}|(?i)ur[il]")
