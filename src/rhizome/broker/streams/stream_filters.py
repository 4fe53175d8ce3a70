"""Stream filters: publishers give messages a value, consumers ask for some of the values. Compiled.

A message's value is its header ``x-stream-filter-value``, a string. A consumer with
``x-stream-filter`` (a string, or a list of them) gets the messages that have one of these values,
and with ``x-stream-match-unfiltered`` also those without a value. Chunks whose Bloom filter rules
out a match (journal/streams/bloom_filter.py) are neither read nor sent; in other chunks each
message is checked. Consumers of whole chunks get every chunk that may match, and filter themselves.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i16_be
from mypy_extensions import i64

from rhizome.amqp.field_table import raw_entries
from rhizome.amqp.primitives import u32_at
from rhizome.amqp.properties import FLAG_CONTENT_ENCODING, FLAG_CONTENT_TYPE, FLAG_HEADERS
from rhizome.broker.message import HEADER_FLAGS_OFFSET
from rhizome.broker.streams.stream_arguments import FILTER_ARGUMENT, UNFILTERED_ARGUMENT
from rhizome.journal.streams.bloom_filter import BLOOM_BYTES_MAX, BLOOM_BYTES_MIN, BloomView

VALUE_HEADER: Final = "x-stream-filter-value"
VALUE_MARK: Final = b"\x15x-stream-filter-value"
SIZE_ARGUMENT: Final = "x-stream-filter-size-bytes"
FILTER_VALUES_MAX: Final = 256
_LONG_STRING: Final = 0x53  # S


def bloom_bytes_of(arguments: dict[str, object]) -> i64:
    """The size of the filters of a stream with these arguments: 16 to 255 bytes."""
    given = arguments.get(SIZE_ARGUMENT)
    if isinstance(given, int) and BLOOM_BYTES_MIN <= given <= BLOOM_BYTES_MAX:
        return given
    return BLOOM_BYTES_MIN


def value_in(table: bytes) -> bytes:
    """The filter value in the body of a table of headers; empty if there is none."""
    # `in` would raise and catch a TypeError inside: a number is what it looks for first.
    if table.find(VALUE_MARK) < 0:
        return b""
    for name, start, end in raw_entries(table, 0, len(table)):
        if name == VALUE_HEADER and table[start] == _LONG_STRING:
            return table[start + 5 : end]
    return b""


def value_of(content: bytes) -> bytes:
    """The filter value of a content; empty if it has none."""
    flags: i64 = i64(read_i16_be(content, HEADER_FLAGS_OFFSET)) & 0xFFFF
    if flags & FLAG_HEADERS == 0:
        return b""
    at: i64 = HEADER_FLAGS_OFFSET + 2
    if flags & FLAG_CONTENT_TYPE != 0:
        at += 1 + content[at]
    if flags & FLAG_CONTENT_ENCODING != 0:
        at += 1 + content[at]
    return value_in(content[at + 4 : at + 4 + u32_at(content, at)])


@final
class StreamFilter:
    """What a consumer with a filter asks for."""

    values: dict[bytes, None]
    unfiltered: bool

    def __init__(self, values: dict[bytes, None], unfiltered: bool) -> None:
        self.values = values
        self.unfiltered = unfiltered

    def may_match(self, bloom: BloomView) -> bool:
        """Whether a chunk may have a message that matches."""
        if self.unfiltered and bloom.unfiltered:
            return True
        return any(bloom.may_have(value) for value in self.values)

    def matches(self, content: bytes) -> bool:
        """Whether a message matches."""
        value = value_of(content)
        return self.unfiltered if len(value) == 0 else value in self.values


def filter_of(arguments: dict[str, object]) -> StreamFilter | None:
    """The filter in the arguments of a consumer, which have been checked; None: everything."""
    given = arguments.get(FILTER_ARGUMENT)
    if given is None:
        return None
    wanted: list[object] = given if isinstance(given, list) else [given]
    values: dict[bytes, None] = {}
    for each in wanted:
        if isinstance(each, str):
            values[each.encode("utf-8", "surrogateescape")] = None
    return StreamFilter(values, arguments.get(UNFILTERED_ARGUMENT) is True)


def is_filter(given: object) -> bool:
    """Whether this is a valid ``x-stream-filter``: a string or a list of strings."""
    wanted: list[object] = given if isinstance(given, list) else [given]
    if not 0 < len(wanted) <= FILTER_VALUES_MAX:
        return False
    return all(isinstance(each, str) and each != "" for each in wanted)
