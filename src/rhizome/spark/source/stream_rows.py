"""Chunks of a stream as rows of a table. No Python object per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rhizome.journal.record_walk import walk_chunks
from rhizome.journal.streams.stream_format import (
    ENTRY_HEADER_BYTES,
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    FLAG_TABLE,
    ORIGIN_BYTES,
)
from rhizome.spark.columns.content_decoder import COLUMNS, Contents
from rhizome.spark.columns.vectorized_bytes import (
    INSTANT,
    Numbers,
    Window,
    constant,
    of_type,
    texts,
)

STAMP_BYTES: Final = 25
"""The header x-stream-offset, which the broker puts before all others."""


@dataclass(frozen=True)
class StreamPlace:
    """Which stream rows come from: its name, and its number among those that are read."""

    queue: str
    partition: int


class StreamRows:
    """Makes record batches of a given Arrow schema."""

    def __init__(self, place: StreamPlace, schema: Any) -> None:
        self.place = place
        self.schema = schema

    def batch(self, chunks: bytes, start: int, end: int) -> Any:
        """The messages of some chunks from offset `start` up to `end`."""
        window = Window(chunks)
        packed_entries, packed_chunks = walk_chunks(chunks)
        entries = np.frombuffer(packed_entries, ">i8").astype(np.int64)
        counts, firsts, times = (
            np.frombuffer(packed_chunks, ">i8").astype(np.int64).reshape(-1, 3).T
        )
        within = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = np.repeat(firsts, counts) + within
        keep = (offsets >= start) & (offsets < end)
        rows = _Rows(
            self.place, window, entries[keep], offsets[keep], np.repeat(times, counts)[keep]
        )
        return rows.batch(self.schema)


class _Rows:
    def __init__(
        self, place: StreamPlace, window: Window, entries: Numbers, offsets: Numbers, times: Numbers
    ) -> None:
        self.place = place
        self.window = window
        self.entries = entries
        self.offsets = offsets
        self.times = times

    def batch(self, schema: Any) -> Any:
        wanted = set(schema.names)
        flags = self.window.u8(self.entries + 6)
        tails = self.entries + ENTRY_HEADER_BYTES + ORIGIN_BYTES * (flags & FLAG_ORIGIN != 0)
        known = np.flatnonzero(flags & FLAG_IDENTITY)
        tails[known] += 2 + self.window.u16(tails[known])
        found = own_columns(self.place, wanted, self.offsets, self.times)
        if wanted & {"exchange", "key"}:
            found.update(route_columns(self.window, tails))
        if any(name in COLUMNS for name in wanted):
            starts = tails + self.window.u16(self.entries + 4)
            ends = self.entries + 4 + self.window.u32(self.entries)
            contents = Contents(self.window, starts, ends, STAMP_BYTES, flags & FLAG_TABLE != 0)
            found.update(contents.columns(wanted))
        return in_order(schema, found)


def own_columns(
    place: StreamPlace, wanted: set[str], offsets: Numbers, times_ms: Numbers
) -> dict[str, Any]:
    """Columns that are of the stream or queue rather than of its messages."""
    count = len(offsets)
    found: dict[str, Any] = {}
    if "queue" in wanted:
        found["queue"] = constant(place.queue, count, pa.string())
    if "partition" in wanted:
        found["partition"] = constant(place.partition, count, pa.int32())
    if "offset" in wanted:
        found["offset"] = pa.array(offsets)
    if "timestamp" in wanted:
        found["timestamp"] = pa.array(times_ms * 1000, INSTANT)
    return found


def in_order(schema: Any, found: dict[str, Any]) -> Any:
    """A batch of the columns that a schema asks for."""
    columns = [of_type(found[each.name], each.type) for each in schema]
    return pa.record_batch(columns, schema=schema)


def route_columns(window: Window, at: Numbers) -> dict[str, Any]:
    """Exchange and routing key: two short strings at each offset."""
    key_at = at + 1 + window.u8(at)
    return {
        "exchange": texts(window.slices(at + 1, key_at)),
        "key": texts(window.slices(key_at + 1, key_at + 1 + window.u8(key_at))),
    }
