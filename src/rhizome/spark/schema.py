"""Schemas of the sources, and how a user's choice of columns becomes Arrow's types."""

from __future__ import annotations

from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rhizome.spark.source.read_limit_compat import HAS_LIMITS


def _struct(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


def properties() -> list[tuple[str, DataType]]:
    """The properties one by one, and all of them as they came: flags and values of the content
    header."""
    return [
        ("content_type", StringType()),
        ("content_encoding", StringType()),
        ("headers", MapType(StringType(), StringType())),
        ("delivery_mode", IntegerType()),
        ("priority", IntegerType()),
        ("correlation_id", StringType()),
        ("reply_to", StringType()),
        ("expiration", StringType()),
        ("message_id", StringType()),
        ("message_timestamp", LongType()),
        ("type", StringType()),
        ("user_id", StringType()),
        ("app_id", StringType()),
        ("cluster_id", StringType()),
        ("raw_properties", BinaryType()),
    ]


def message() -> StructType:
    """What a publisher says: routing key, exchange, body, properties."""
    return _struct(
        ("key", StringType()),
        ("exchange", StringType()),
        ("value", BinaryType()),
        *properties(),
    )


def journal(with_sums: bool = False) -> StructType:
    """A row per event: see the class docstring of the source for what the columns mean.

    `with_sums` adds those that nobody gets who doesn't ask for them.
    """
    sums = [("checksum", LongType()), ("digest", LongType())] if with_sums else []
    return _struct(
        ("store", StringType()),
        ("segment", LongType()),
        ("offset", LongType()),
        ("time", TimestampType()),
        ("group", IntegerType()),
        ("epoch", LongType()),
        ("record", LongType()),
        ("event", StringType()),
        ("vhost", StringType()),
        ("queue", StringType()),
        ("queue_id", LongType()),
        ("index", LongType()),
        ("level", StringType()),
        ("delivery_count", IntegerType()),
        ("expires", TimestampType()),
        ("origin", StringType()),
        ("number", LongType()),
        ("producer", StringType()),
        ("sequence", LongType()),
        ("detail", StringType()),
        ("message", message()),
        *sums,
    )


def stream(with_headers: bool = True) -> StructType:
    """A row per message of a stream or queue."""
    left_out = () if with_headers else ("headers", "raw_properties")
    return _struct(
        ("key", StringType()),
        ("value", BinaryType()),
        ("exchange", StringType()),
        ("queue", StringType()),
        ("partition", IntegerType()),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        *(each for each in properties() if each[0] not in left_out),
    )


def arrow_schema(schema: StructType) -> Any:
    """Arrow's schema for rows of `schema`, exactly as Spark wants it."""
    if HAS_LIMITS:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # Spark 4.1: in UTC unless told otherwise


class UnknownColumnError(ValueError):
    """The text names the column and says which there are."""


def check_columns(asked: StructType, offered: StructType, source: str) -> None:
    """Make sure that what `.schema(...)` asks for is there, with its type."""
    types = {each.name: each.dataType for each in offered}
    for column in asked:
        if column.name not in types:
            known = ", ".join(types)
            raise UnknownColumnError(f"{source} has no column '{column.name}'; it has {known}")
        _check_type(column.name, column.dataType, types[column.name], source)


def _check_type(name: str, asked: Any, offered: Any, source: str) -> None:
    if isinstance(asked, StructType) and isinstance(offered, StructType):
        check_columns(asked, offered, f"{name} of {source}")
    elif asked.simpleString() != offered.simpleString():
        raise UnknownColumnError(
            f"column '{name}' of {source} is {offered.simpleString()}, not {asked.simpleString()}"
        )
