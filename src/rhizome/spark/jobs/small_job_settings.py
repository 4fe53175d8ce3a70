"""Settings of Spark for jobs over little data, and small tables made of values.

Spark compiles a query to bytecode, plans each stage anew once it knows the sizes, and splits
shuffles into many tasks. For the queries of an audit that takes a minute of CPU time, however few
rows there are. A query over little data is quicker when Spark interprets it as it was planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from rhizome.spark import schema as schemas
from rhizome.spark.journal.broker_stores import OpenStore
from rhizome.spark.session import LITTLE_DATA_SETTINGS

JOURNAL_BYTES_MAX: Final = 64 << 20
"""Journals with more than these bytes together, in their full segments, are no little data."""
ROWS_MAX: Final = 250_000
"""The same in rows, where these are known."""


def are_small(found: Iterable[OpenStore]) -> bool:
    """Whether the journals of some stores are little data.

    The last segments don't count: a running broker has them on disk in full length before it
    writes to them.
    """
    total = 0
    for store in found:
        for directory in store.segments(history=True):
            total += sum(size for _, size in directory.listed().segments[:-1])
    return total <= JOURNAL_BYTES_MAX


@contextmanager
def interpreted(spark: SparkSession, is_small: bool) -> Iterator[None]:
    """Have Spark interpret what is asked meanwhile, if it is small; afterwards all is as it was."""
    settings = LITTLE_DATA_SETTINGS if is_small else {}
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, known in before.items():
            if known is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, known)


def table_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    """A table of a few rows that is part of the plan: Spark has no job to run for it."""
    schema = StructType.fromDDL(columns)
    arrow = schemas.arrow_schema(schema)
    values = [pa.array([row[place] for row in rows], each.type) for place, each in enumerate(arrow)]
    return spark.createDataFrame(pa.table(values, schema=arrow), schema)
