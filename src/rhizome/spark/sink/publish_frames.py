"""Rows as the frames that publish them, a batch at a time.

Of each row come a method frame (basic.publish), a content header frame and, unless the body is
empty, a body frame. They are joined column by column: pieces of fixed width are filled by numpy,
texts are the Arrow columns themselves, and Arrow joins the pieces of all rows in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rhizome.amqp import frames
from rhizome.amqp.field_table import raw_entries
from rhizome.amqp.properties import FLAG_DELIVERY_MODE, FLAG_HEADERS, FLAG_USER_ID, scan
from rhizome.amqp.spec import CODE_BASIC_PUBLISH, FRAME_END, FRAME_OVERHEAD
from rhizome.errors import RhizomeError
from rhizome.spark.arrow_compute import compute as pc
from rhizome.spark.columns.content_decoder import HEADERS, PROPERTIES, RAW_PROPERTIES, spliced
from rhizome.spark.columns.vectorized_bytes import (
    Numbers,
    as_binary,
    joined,
    lengths_of,
    repeated_bytes,
    structures,
    wire_numbers,
)

SHORTSTR_BYTES_MAX: Final = 255
PERSISTENT: Final = 2
USER_ID: Final = "user_id"
_CHANNEL: Final = 1
_MANDATORY: Final = 1
_BASIC: Final = CODE_BASIC_PUBLISH >> 16
_HEADER_BYTES: Final = 14
"""Class, weight, body size and flags of a content header."""
_OCTETS: Final = ("delivery_mode", "priority")


class RowError(RhizomeError):
    """A row can't be published as it is; the text names the column."""


@dataclass(frozen=True)
class Producer:
    """Under which name and number the broker knows a row again (L5). Row n of a batch has the
    sequence ``first`` + n.
    """

    name: str
    first: int


COPY_HEADERS: Final = ("CC", "BCC")
"""Further routing keys of a message, which its publisher chooses. They are arrays; a map of headers
has only texts, which a broker refuses there."""


@dataclass(frozen=True)
class Addressing:
    """Where rows go that don't say so themselves, and how. With a ``key`` all go under that one,
    whatever their publishers once wanted."""

    exchange: str
    key: str | None
    mandatory: bool
    persistent: bool
    user: str | None = None
    """Who publishes. A broker refuses the user id of anybody else, so rows lose it; None: they keep
    it."""


@dataclass(frozen=True)
class FrameBatch:
    """The frames of some rows: `data` from `bounds[n]` to `bounds[n + 1]` are those of row n."""

    data: memoryview
    bounds: Numbers

    def __len__(self) -> int:
        return len(self.bounds) - 1


class Framer:
    """Makes frames of at most ``frame_bytes_max`` bytes."""

    def __init__(self, addressing: Addressing, frame_bytes_max: int) -> None:
        self.addressing = addressing
        self.body_bytes_max = frame_bytes_max - FRAME_OVERHEAD

    def frames(self, batch: Any, producer: Producer | None) -> FrameBatch:
        """The frames of a record batch whose columns are named as the source names them."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        bodies = pc.fill_null(_binary(columns["value"], "value"), b"")
        sizes = lengths_of(bodies)
        exchanges = _shortstrs(columns, "exchange", self.addressing.exchange, len(batch))
        if self.addressing.key is None:
            keys = _shortstrs(columns, "key", "", len(batch))
        else:
            keys = repeated_bytes(self.addressing.key.encode(), len(batch))
        flags, properties = self._properties(columns, len(batch), producer)
        pieces = [
            *_method_pieces(exchanges, keys, self.addressing.mandatory),
            *_header_pieces(flags, properties, sizes),
        ]
        if len(sizes) and (sizes > 0).all() and int(sizes.max()) <= self.body_bytes_max:
            pieces += [
                _frame_heads(3, sizes),
                bodies,
                repeated_bytes(bytes([FRAME_END]), len(batch)),
            ]
        else:
            pieces.append(self._unusual(bodies))
        return _joined(pieces)

    def _unusual(self, bodies: Any) -> Any:
        """Body frames where some body is empty or takes several frames."""
        found = []
        for body in bodies.to_pylist():
            parts = [
                frames.frame(3, _CHANNEL, body[start : start + self.body_bytes_max])
                for start in range(0, len(body), self.body_bytes_max)
            ]
            found.append(b"".join(parts))
        return pa.array(found, pa.binary())

    def _properties(
        self, columns: dict[str, Any], count: int, producer: Producer | None
    ) -> tuple[Numbers, list[Any]]:
        """The flags of each row, and the pieces that its properties consist of."""
        marks = [] if producer is None else _producer_entries(producer, count)
        user = self.addressing.user
        if RAW_PROPERTIES in columns:
            dropped = () if self.addressing.key is None else COPY_HEADERS
            raw = _binary(columns[RAW_PROPERTIES], RAW_PROPERTIES)
            return _raw(raw if user is None else _own_user_ids(raw, user), marks, count, dropped)
        if user is not None and USER_ID in columns:
            ids = _binary(columns[USER_ID], USER_ID)
            columns[USER_ID] = pc.if_else(pc.equal(ids, user.encode()), ids, None)
        flags = np.zeros(count, np.int64)
        pieces: list[Any] = []
        for flag, name, _ in PROPERTIES:
            column = columns.get(name)
            if name == HEADERS:
                pieces += _headers(flags, column, marks, count)
            elif flag == FLAG_DELIVERY_MODE and column is None:
                if self.addressing.persistent:
                    flags |= flag
                    pieces.append(repeated_bytes(bytes([PERSISTENT]), count))
            elif column is not None:
                flags += flag * _valid(column)
                pieces += _property(name, column)
        return flags, pieces


# --- properties


def _raw(
    raw: Any, marks: list[Any], count: int, dropped: tuple[str, ...]
) -> tuple[Numbers, list[Any]]:
    """Properties as they once were but for the headers ``dropped``, with the producer's marks among
    their headers."""
    flags, before, entries, after = spliced(raw)
    entries = _without(entries, dropped)
    if not marks:
        has_headers = flags & FLAG_HEADERS != 0
        lengths = wire_numbers(lengths_of(entries), ">u4", mask=~has_headers)
        return flags, [before, lengths, entries, after]
    # Without those of an earlier producer: of two with one name the first one counts.
    whole = joined([_without(entries, ("x-producer", "x-sequence")), *marks])
    return flags | FLAG_HEADERS, [before, wire_numbers(lengths_of(whole), ">u4"), whole, after]


def _own_user_ids(raw: Any, user: str) -> Any:
    """Properties without the user ids of others."""
    flags, _, _, _ = spliced(raw)
    marked = np.flatnonzero(flags & FLAG_USER_ID)
    if len(marked) == 0:
        return raw
    kept = raw.to_pylist()
    for row in marked:
        kept[row] = _own_user_id(kept[row], user.encode())
    return pa.array(kept, pa.binary())


def _own_user_id(raw: bytes, user: bytes) -> bytes:
    spans = scan(raw, 0, len(raw))
    if raw[spans.user_id_start : spans.user_id_end] == user:
        return raw
    flags = int(spans.flags & ~FLAG_USER_ID).to_bytes(2, "big")
    return bytes(flags + raw[2 : spans.user_id_start - 1] + raw[spans.user_id_end :])


def _without(entries: Any, names: tuple[str, ...]) -> Any:
    """Entries without those of these names."""
    if not names:
        return entries
    marked: Any = None
    for name in names:
        found = pc.match_substring(entries, bytes([len(name)]) + name.encode())
        marked = found if marked is None else pc.or_(marked, found)
    if not pc.any(marked).as_py():
        return entries
    kept = entries.to_pylist()
    for row in np.flatnonzero(marked.to_numpy(zero_copy_only=False)):
        kept[row] = _table_without(kept[row], names)
    return pa.array(kept, pa.binary())


def _table_without(table: bytes, names: tuple[str, ...]) -> bytes:
    kept = []
    begin = 0
    for name, _, end in raw_entries(table, 0, len(table)):
        if name not in names:
            kept.append(table[begin:end])
        begin = end
    return b"".join(kept)


def _headers(flags: Numbers, column: Any, marks: list[Any], count: int) -> list[Any]:
    if column is None and not marks:
        return []
    if column is None:
        flags |= FLAG_HEADERS
        whole = joined(marks)
        return [wire_numbers(lengths_of(whole), ">u4"), whole]
    entries = _entries(column)
    if marks:
        flags |= FLAG_HEADERS
        whole = joined([entries, *marks])
        return [wire_numbers(lengths_of(whole), ">u4"), whole]
    valid = _valid(column)
    flags += FLAG_HEADERS * valid
    return [wire_numbers(lengths_of(entries), ">u4", mask=valid == 0), entries]


def _entries(column: Any) -> Any:
    """Header maps as the entries of tables: each value is a text."""
    column = _without_copies(_plain(column))
    keys = _binary(column.keys, HEADERS)
    items = column.items
    texts = items.cast(pa.binary())
    _check_lengths(keys, HEADERS)
    kinds = pa.array(np.where(_valid(items) > 0, b"S", b"V")).cast(pa.binary())
    sizes = wire_numbers(lengths_of(texts), ">u4", mask=_valid(items) == 0)
    whole = as_binary(joined([wire_numbers(lengths_of(keys), ">u1"), keys, kinds, sizes, texts]))
    lists = pa.ListArray.from_arrays(column.offsets, whole)
    return pc.binary_join(lists, pa.scalar(b"", pa.binary()))


def _without_copies(column: Any) -> Any:
    """Header maps without those that no text can be."""
    if not pc.any(pc.is_in(column.keys, pa.array(COPY_HEADERS, column.keys.type))).as_py():
        return column
    rows = [
        None if row is None else [each for each in row if each[0] not in COPY_HEADERS]
        for row in column.to_pylist()
    ]
    return pa.array(rows, column.type)


def _producer_entries(producer: Producer, count: int) -> list[Any]:
    name = producer.name.encode()
    constant = b"\x0ax-producerS" + len(name).to_bytes(4, "big") + name + b"\x0ax-sequencel"
    sequences = np.arange(producer.first, producer.first + count, dtype=np.int64)
    return [repeated_bytes(constant, count), wire_numbers(sequences, ">i8")]


def _property(name: str, column: Any) -> list[Any]:
    if name in _OCTETS:
        return [_numbers(name, column, ">u1", 255)]
    if name == "message_timestamp":
        return [_numbers(name, column, ">i8", (1 << 63) - 1)]
    values = _binary(column, name)
    _check_lengths(values, name)
    return [wire_numbers(lengths_of(values), ">u1", mask=_valid(column) == 0), values]


def _numbers(name: str, column: Any, form: str, largest: int) -> Any:
    valid = _valid(column)
    values = pc.fill_null(_plain(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(values) and (values.min() < 0 or values.max() > largest):
        raise RowError(f"column '{name}' has a number below 0 or above {largest}")
    return wire_numbers(values, form, mask=valid == 0)


# --- frames


def _method_pieces(exchanges: Any, keys: Any, mandatory: bool) -> list[Any]:
    _check_lengths(exchanges, "exchange")
    _check_lengths(keys, "key")
    exchange_sizes, key_sizes = lengths_of(exchanges), lengths_of(keys)
    start = CODE_BASIC_PUBLISH.to_bytes(4, "big") + b"\0\0"
    end = bytes([_MANDATORY if mandatory else 0, FRAME_END])
    count = len(keys)
    return [
        _frame_heads(1, exchange_sizes + key_sizes + len(start) + 3),
        repeated_bytes(start, count),
        wire_numbers(exchange_sizes, ">u1"),
        exchanges,
        wire_numbers(key_sizes, ">u1"),
        keys,
        repeated_bytes(end, count),
    ]


def _header_pieces(flags: Numbers, properties: list[Any], sizes: Numbers) -> list[Any]:
    count = len(sizes)
    whole = joined(properties) if properties else repeated_bytes(b"", count)
    head = np.zeros(count, [("class", ">u2"), ("weight", ">u2"), ("size", ">u8"), ("flags", ">u2")])
    head["class"] = _BASIC
    head["size"] = sizes
    head["flags"] = flags
    return [
        _frame_heads(2, lengths_of(whole) + _HEADER_BYTES),
        structures(head),
        whole,
        repeated_bytes(bytes([FRAME_END]), count),
    ]


def _frame_heads(kind: int, sizes: Numbers) -> Any:
    head = np.zeros(len(sizes), [("kind", ">u1"), ("channel", ">u2"), ("size", ">u4")])
    head["kind"] = kind
    head["channel"] = _CHANNEL
    head["size"] = sizes
    return structures(head)


def _joined(pieces: list[Any]) -> FrameBatch:
    whole = as_binary(joined(pieces))
    offsets = np.frombuffer(whole.buffers()[1], np.int32)[
        whole.offset : whole.offset + len(whole) + 1
    ]
    data = whole.buffers()[2]
    return FrameBatch(memoryview(data) if data is not None else memoryview(b""), offsets)


# --- columns


def _plain(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _binary(column: Any, name: str) -> Any:
    column = _plain(column)
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return column.cast(pa.binary())
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.binary())
    raise RowError(f"column '{name}' is {kind}; it must be a text or binary")


def _shortstrs(columns: dict[str, Any], name: str, default: str, count: int) -> Any:
    if name not in columns:
        return repeated_bytes(default.encode(), count)
    return pc.fill_null(_binary(columns[name], name), default.encode())


def _valid(column: Any) -> Numbers:
    """1 where a row has a value, 0 where it is null."""
    column = _plain(column)
    if column.null_count == 0:
        return np.ones(len(column), np.int64)
    return pc.is_valid(column).to_numpy(zero_copy_only=False).astype(np.int64)


def _check_lengths(values: Any, name: str) -> None:
    lengths = lengths_of(values)
    if len(lengths) and int(lengths.max()) > SHORTSTR_BYTES_MAX:
        raise RowError(f"column '{name}' has a text of more than {SHORTSTR_BYTES_MAX} bytes")
