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
from rhizome.spark.columns.content_decoder import ALIKE_ROWS_MIN, BODY, COLUMNS, Contents
from rhizome.spark.columns.vectorized_bytes import (
    INSTANT,
    Numbers,
    Window,
    constant,
    like_the_first,
    of_type,
    texts,
)

ROUTE: Final = frozenset(("exchange", "key"))
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
        times = np.repeat(times, counts)
        if len(offsets) and (offsets[0] < start or offsets[-1] >= end):
            keep = (offsets >= start) & (offsets < end)
            entries, offsets, times = entries[keep], offsets[keep], times[keep]
        return _Rows(self.place, window, entries, offsets, times).batch(self.schema)


@dataclass(frozen=True)
class _Places:
    """Of each entry: where its route and its content begin, and whether it had no headers."""

    tails: Numbers
    contents: Numbers
    bare: Numbers


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
        found = own_columns(self.place, wanted, self.offsets, self.times)
        asked = wanted & {*ROUTE, *COLUMNS}
        if asked:
            found.update(self._of_messages(asked))
        return in_order(schema, found)

    def _of_messages(self, asked: set[str]) -> dict[str, Any]:
        """Columns of what publishers have sent. Bodies alone are read without a look at anything
        else."""
        found: dict[str, Any] = {}
        heads = self._heads_alike() if asked - {BODY} else None
        places = self._places_various() if heads is None else self._places_alike(heads)
        if heads is not None and asked & ROUTE:
            route = route_columns(self.window, places.tails[:1])
            found.update(
                {name: like_the_first(each, len(self.entries)) for name, each in route.items()}
            )
        elif asked & ROUTE:
            found.update(route_columns(self.window, places.tails))
        if asked - ROUTE:
            ends = self.entries + 4 + self.window.u32(self.entries)
            contents = Contents(self.window, places.contents, ends, STAMP_BYTES, places.bare)
            found.update(contents.columns(asked - ROUTE))
        return found

    def _heads_alike(self) -> tuple[int, int] | None:
        """Flags and tail length of all entries, if those and their routes are the same and no
        publisher has numbered them."""
        if len(self.entries) < ALIKE_ROWS_MIN:
            return None
        one = self.entries[:1]
        tail_bytes, flags = int(self.window.u16(one + 4)[0]), int(self.window.u8(one + 6)[0])
        if flags & FLAG_IDENTITY:
            return None
        origin = ORIGIN_BYTES if flags & FLAG_ORIGIN else 0
        # The head without the size of the entry, the origin, which may differ, and the tail.
        width = ENTRY_HEADER_BYTES - 4 + origin + tail_bytes
        if self.window.alike(self.entries + 4, width, (4, 4 + origin)):
            return flags, tail_bytes
        return None

    def _places_alike(self, heads: tuple[int, int]) -> _Places:
        flags, tail_bytes = heads
        tails = self.entries + ENTRY_HEADER_BYTES + (ORIGIN_BYTES if flags & FLAG_ORIGIN else 0)
        return _Places(tails, tails + tail_bytes, np.full(len(tails), flags & FLAG_TABLE != 0))

    def _places_various(self) -> _Places:
        flags = self.window.u8(self.entries + 6)
        tails = self.entries + ENTRY_HEADER_BYTES + ORIGIN_BYTES * (flags & FLAG_ORIGIN != 0)
        known = np.flatnonzero(flags & FLAG_IDENTITY)
        tails[known] += 2 + self.window.u16(tails[known])
        contents = tails + self.window.u16(self.entries + 4)
        return _Places(tails, contents, flags & FLAG_TABLE != 0)


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
    if len(at) >= ALIKE_ROWS_MIN:
        first = at[:1]
        exchange_bytes = 1 + window.u8(first)
        width = int((exchange_bytes + 1 + window.u8(first + exchange_bytes))[0])
        if window.alike(at, width):
            found = route_columns(window, first)
            return {name: like_the_first(each, len(at)) for name, each in found.items()}
    key_at = at + 1 + window.u8(at)
    return {
        "exchange": texts(window.slices(at + 1, key_at)),
        "key": texts(window.slices(key_at + 1, key_at + 1 + window.u8(key_at))),
    }
