"""Contents of many messages at once: the frames that a publisher sent, as Arrow columns.

A content is a header frame (class, weight, body size, property flags, properties) and the frames of
the body. Messages with the same flags have the same properties in the same order, so the properties
are read per set of flags, for all its messages together; few sets are in use at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rhizome.amqp import properties as amqp
from rhizome.spark.arrow_compute import compute as pc
from rhizome.spark.columns.header_columns import MAP_TYPE, maps
from rhizome.spark.columns.vectorized_bytes import (
    MalformedError,
    Numbers,
    Window,
    distinct,
    like_the_first,
    nulls,
    scattered,
    texts,
)

BODY: Final = "value"
HEADERS: Final = "headers"
RAW_PROPERTIES: Final = "raw_properties"

FRAME_HEADER_BYTES: Final = 7
_FRAME_OVERHEAD_BYTES: Final = 8
_BODY_SIZE_AT: Final = FRAME_HEADER_BYTES + amqp.BODY_SIZE_OFFSET
_FLAGS_AT: Final = FRAME_HEADER_BYTES + amqp.FLAGS_OFFSET
_PROPERTIES_AT: Final = FRAME_HEADER_BYTES + amqp.PROPERTIES_OFFSET

_SHORTSTR: Final = "shortstr"
_TABLE: Final = "table"
_OCTET: Final = "octet"
_LONGLONG: Final = "longlong"

# In the order in which they follow each other: flag, column, form.
PROPERTIES: Final = (
    (amqp.FLAG_CONTENT_TYPE, "content_type", _SHORTSTR),
    (amqp.FLAG_CONTENT_ENCODING, "content_encoding", _SHORTSTR),
    (amqp.FLAG_HEADERS, HEADERS, _TABLE),
    (amqp.FLAG_DELIVERY_MODE, "delivery_mode", _OCTET),
    (amqp.FLAG_PRIORITY, "priority", _OCTET),
    (amqp.FLAG_CORRELATION_ID, "correlation_id", _SHORTSTR),
    (amqp.FLAG_REPLY_TO, "reply_to", _SHORTSTR),
    (amqp.FLAG_EXPIRATION, "expiration", _SHORTSTR),
    (amqp.FLAG_MESSAGE_ID, "message_id", _SHORTSTR),
    (amqp.FLAG_TIMESTAMP, "message_timestamp", _LONGLONG),
    (amqp.FLAG_TYPE, "type", _SHORTSTR),
    (amqp.FLAG_USER_ID, "user_id", _SHORTSTR),
    (amqp.FLAG_APP_ID, "app_id", _SHORTSTR),
    (amqp.FLAG_CLUSTER_ID, "cluster_id", _SHORTSTR),
)
ALIKE_ROWS_MIN: Final = 16
"""Fewer contents are read one by one at once."""
_STAMP_VALUE_BYTES: Final = 8
COLUMNS: Final = (BODY, RAW_PROPERTIES, *(name for _, name, _ in PROPERTIES))

_ARROW: Final = {
    _SHORTSTR: pa.string(),
    _TABLE: MAP_TYPE,
    _OCTET: pa.int32(),
    _LONGLONG: pa.int64(),
}


@dataclass
class _Spans:
    """Where one property lies, in those rows that have it."""

    rows: list[Numbers] = field(default_factory=list)
    starts: list[Numbers] = field(default_factory=list)
    ends: list[Numbers] = field(default_factory=list)

    def add(self, rows: Numbers, starts: Numbers, ends: Numbers) -> None:
        if len(rows):
            self.rows.append(rows)
            self.starts.append(starts)
            self.ends.append(ends)

    def in_order(self) -> tuple[Numbers, Numbers, Numbers]:
        if len(self.rows) == 1:
            return self.rows[0], self.starts[0], self.ends[0]
        rows = np.concatenate(self.rows)
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate(self.starts)[order], np.concatenate(self.ends)[order]


@dataclass
class Contents:
    """Where the contents of some messages begin and end in a window.

    Those of a stream have a header before all others that their publishers did not send, of
    ``stamp_bytes``; ``bare`` says which of them had no headers at all.
    """

    window: Window
    starts: Numbers
    ends: Numbers
    stamp_bytes: int = 0
    bare: Numbers | None = None

    def columns(self, wanted: set[str]) -> dict[str, Any]:
        """The wanted ones of `COLUMNS`, a row per content."""
        header_bytes = 0 if wanted == {BODY} else self._header_bytes_of_all()
        if not header_bytes:
            return self._various(wanted)
        found: dict[str, Any] = {}
        if BODY in wanted:
            found[BODY] = self._bodies(self.starts + header_bytes)
        bare = None if self.bare is None else self.bare[:1]
        first = Contents(self.window, self.starts[:1], self.ends[:1], self.stamp_bytes, bare)
        for name, values in first._various(wanted - {BODY}).items():
            found[name] = like_the_first(values, len(self.starts))
        return found

    def _header_bytes_of_all(self) -> int:
        """How long the header frames are if they say the same in all contents, but for the size of
        the body and the stamp; else 0.

        Publishers mostly send one kind of message. To find that out takes one look at all headers,
        and reading one of them is then enough.
        """
        starts, window = self.starts, self.window
        if len(starts) < ALIKE_ROWS_MIN:
            return 0
        one = starts[:1]
        head = int(window.u32(one + FRAME_HEADER_BYTES - 4)[0]) + _FRAME_OVERHEAD_BYTES
        but = [(_BODY_SIZE_AT, _FLAGS_AT)]
        if self.bare is not None:
            if self.bare.any() and not self.bare.all():
                return 0
            at = _before_headers(window, one + _FLAGS_AT, window.u16(one + _FLAGS_AT))
            stamp_end = int(at[0] - starts[0]) + 4 + self.stamp_bytes
            but.append((stamp_end - _STAMP_VALUE_BYTES, stamp_end))
        return head if window.alike(starts, head, *but) else 0

    def _various(self, wanted: set[str]) -> dict[str, Any]:
        header_ends = (
            self.starts
            + _FRAME_OVERHEAD_BYTES
            + self.window.u32(self.starts + FRAME_HEADER_BYTES - 4)
        )
        found: dict[str, Any] = {}
        if BODY in wanted:
            found[BODY] = self._bodies(header_ends)
        if RAW_PROPERTIES in wanted:
            raw = self.window.slices(self.starts + _FLAGS_AT, header_ends - 1)
            found[RAW_PROPERTIES] = raw if self.bare is None else self._unstamped(raw, self.bare)
        names = [name for _, name, _ in PROPERTIES if name in wanted]
        if names:
            found.update(self._properties(set(names)))
        return found

    def _bodies(self, header_ends: Numbers) -> Any:
        sizes = self.window.i64(self.starts + _BODY_SIZE_AT)
        single = self.ends - header_ends == sizes + _FRAME_OVERHEAD_BYTES
        single |= sizes == 0
        starts = header_ends + FRAME_HEADER_BYTES * (sizes > 0)
        if single.all():
            return self.window.slices(starts, starts + sizes)
        rows = np.flatnonzero(single)
        found = scattered(
            self.window.slices(starts[rows], (starts + sizes)[rows]), rows, len(sizes)
        ).to_pylist()
        for row in np.flatnonzero(~single):
            found[row] = self._joined(int(header_ends[row]), int(self.ends[row]))
        return pa.array(found, pa.binary())

    def _joined(self, at: int, end: int) -> bytes:
        """A body of several frames."""
        data = memoryview(self.window.data)
        parts = []
        while at < end:
            size = int.from_bytes(data[at + 3 : at + FRAME_HEADER_BYTES], "big")
            parts.append(data[at + FRAME_HEADER_BYTES : at + FRAME_HEADER_BYTES + size])
            at += size + _FRAME_OVERHEAD_BYTES
        return b"".join(parts)

    # --- properties

    def _unstamped(self, raw: Any, bare: Numbers) -> Any:
        """Raw properties without the header that their publishers did not send.

        What comes before the stamp is moved up to what comes behind it, in a copy of the bytes,
        over the stamp: so each is one slice again.
        """
        starts, ends, window = _spans_of(raw)
        words = window.u16(starts)
        if not (words & amqp.FLAG_HEADERS).all():
            raise MalformedError("a message of a stream lacks the header with its offset")
        before_ends = _before_headers(window, starts, words)
        # Of those without headers of their own the table goes, with its length.
        moved = self.stamp_bytes + np.where(bare, 4, 0)
        octets = window.octets.copy()
        own = before_ends[~bare]
        _put(octets, own + self.stamp_bytes, window.u32(own) - self.stamp_bytes, 4)
        lengths = before_ends - starts
        for length in distinct(lengths):
            rows = np.flatnonzero(lengths == length)
            for place in range(2, length):
                octets[starts[rows] + moved[rows] + place] = window.octets[starts[rows] + place]
        _put(octets, starts + moved, np.where(bare, words & ~amqp.FLAG_HEADERS, words), 2)
        return Window(memoryview(octets)).slices(starts + moved, ends)

    def _properties(self, wanted: set[str]) -> dict[str, Any]:
        spans = {name: _Spans() for name in wanted}
        words = self.window.u16(self.starts + _FLAGS_AT)
        for word in distinct(words):
            self._walk(word, np.flatnonzero(words == word), spans)
        return {
            name: self._column(spans[name], form) for _, name, form in PROPERTIES if name in wanted
        }

    def _walk(self, word: int, rows: Numbers, spans: dict[str, _Spans]) -> None:
        """Note where the properties of the messages are that have these flags."""
        at = self.starts[rows] + _PROPERTIES_AT
        for flag, name, form in PROPERTIES:
            if not word & flag:
                continue
            start, end = self._extent(form, at)
            if name == HEADERS and self.bare is not None and name in spans:
                own = ~self.bare[rows]
                spans[name].add(rows[own], start[own] + self.stamp_bytes, end[own])
            elif name in spans:
                spans[name].add(rows, start, end)
            at = end

    def _extent(self, form: str, at: Numbers) -> tuple[Numbers, Numbers]:
        """Where the value is, without its length, that begins at `at`."""
        if form == _SHORTSTR:
            return at + 1, at + 1 + self.window.u8(at)
        if form == _TABLE:
            return at + 4, at + 4 + self.window.u32(at)
        return at, at + (1 if form == _OCTET else 8)

    def _column(self, spans: _Spans, form: str) -> Any:
        count = len(self.starts)
        if not spans.rows:
            return nulls(count, _ARROW[form])
        rows, starts, ends = spans.in_order()
        if form == _SHORTSTR:
            values = texts(self.window.slices(starts, ends))
        elif form == _TABLE:
            values = maps(self.window, starts, ends)
        elif form == _OCTET:
            values = pa.array(self.window.u8(starts).astype(np.int32))
        else:
            values = pa.array(self.window.i64(starts))
        return scattered(values, rows, count)


def _spans_of(binary: Any) -> tuple[Numbers, Numbers, Window]:
    """Where each element of an Arrow array of binary begins and ends, and their bytes."""
    bounds = np.frombuffer(binary.buffers()[1], np.int32)
    bounds = bounds[binary.offset : binary.offset + len(binary) + 1].astype(np.int64)
    return bounds[:-1], bounds[1:], Window(memoryview(binary.buffers()[2] or b""))


def _before_headers(window: Window, starts: Numbers, words: Numbers) -> Numbers:
    """Where the headers of raw properties are, or would be: behind the flags and two properties."""
    found = starts + 2
    for flag in (amqp.FLAG_CONTENT_TYPE, amqp.FLAG_CONTENT_ENCODING):
        rows = np.flatnonzero(words & flag)
        found[rows] += 1 + window.u8(found[rows])
    return found


def _put(octets: Any, at: Numbers, numbers: Numbers, width: int) -> None:
    """Write numbers of `width` bytes, in the order of the wire."""
    for place in range(width):
        octets[at + place] = numbers >> 8 * (width - 1 - place) & 0xFF


def spliced(raw: Any) -> tuple[Numbers, Any, Any, Any]:
    """Raw properties (an Arrow array of binary) cut at their headers.

    Returns the flags, what comes before the headers, the entries of the headers without their
    length, and what comes after.
    """
    starts, ends, window = _spans_of(pc.fill_null(raw, b"\0\0"))
    words = window.u16(starts)
    before_ends = _before_headers(window, starts, words)
    entry_starts, entry_ends = before_ends.copy(), before_ends.copy()
    rows = np.flatnonzero(words & amqp.FLAG_HEADERS)
    entry_starts[rows] += 4
    entry_ends[rows] += 4 + window.u32(before_ends[rows])
    return (
        words,
        window.slices(starts + 2, before_ends),
        window.slices(entry_starts, entry_ends),
        window.slices(entry_ends, ends),
    )
