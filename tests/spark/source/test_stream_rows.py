"""Rows of chunks: only what is asked for is looked for. Without Spark and without a broker."""

from __future__ import annotations

from itertools import accumulate
from struct import pack

import numpy as np
import pyarrow as pa
import pytest

from rhizome.amqp import frames
from rhizome.amqp.properties import FLAG_HEADERS
from rhizome.journal.streams.stream_format import FLAG_IDENTITY, FLAG_ORIGIN, FLAG_TABLE
from rhizome.spark.columns.vectorized_bytes import MalformedError, Window
from rhizome.spark.source.stream_rows import StreamPlace, _Rows

OWN = pa.schema(
    [
        ("queue", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


@pytest.mark.parametrize("column", ["key", "exchange", "value", "message_id", "raw_properties"])
def test_messages_are_looked_at_for_their_columns_only(column: str) -> None:
    numbers = np.arange(100)
    nothing = Window(b"")  # whoever looks at a message fails
    rows = _Rows(StreamPlace("events", 3), nothing, numbers, numbers, numbers)
    batch = rows.batch(OWN)
    assert batch.column("offset").to_pylist() == list(range(100))
    assert set(batch.column("queue").to_pylist()) == {"events"}
    with pytest.raises((IndexError, MalformedError)):
        rows.batch(pa.schema([(column, pa.binary())]))


def entry(offset: int, key: bytes, flags: int, identity: bytes = b"") -> bytes:
    """A message of a stream as a chunk holds it; its publisher gave it no headers."""
    stamp = b"\x0fx-stream-offsetl" + offset.to_bytes(8, "big")
    body = b"body %d" % offset
    header = pack(">HHQHI", 60, 0, len(body), FLAG_HEADERS, len(stamp)) + stamp
    tail = bytes([6]) + b"events" + bytes([len(key)]) + key
    rest = pack(">HBB", len(tail), flags, 0)
    rest += pack(">QQ", 7, offset) if flags & FLAG_ORIGIN else b""
    rest += pack(">H", len(identity)) + identity if flags & FLAG_IDENTITY else b""
    rest += tail + frames.frame(2, 1, header) + frames.frame(3, 1, body)
    return pack(">I", len(rest)) + rest


def rows_of(entries: list[bytes]) -> list[dict[str, object]]:
    at = np.array([0, *accumulate(map(len, entries))], np.int64)[:-1]
    numbers = np.arange(len(entries))
    rows = _Rows(StreamPlace("events", 0), Window(b"".join(entries)), at, numbers, numbers)
    columns = [("key", pa.string()), ("exchange", pa.string()), ("value", pa.binary())]
    found: list[dict[str, object]] = rows.batch(pa.schema(columns)).to_pylist()
    return found


@pytest.mark.parametrize("more", [0, FLAG_ORIGIN, FLAG_IDENTITY])
@pytest.mark.parametrize("other", [b"key", b"yek", b"longer", b""])
@pytest.mark.parametrize("place", [0, 20, 39])
def test_many_messages_have_the_rows_of_each_by_itself(more: int, other: bytes, place: int) -> None:
    known = [b"x" * (row % 3) for row in range(40)]
    keys = [other if row == place else b"key" for row in range(40)]
    entries = [entry(row, keys[row], FLAG_TABLE | more, known[row]) for row in range(40)]
    expected = [row for each in entries for row in rows_of([each])]
    assert rows_of(entries) == expected
    assert [row["key"] for row in expected] == [key.decode() for key in keys]
