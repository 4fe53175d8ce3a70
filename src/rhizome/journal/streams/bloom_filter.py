"""Bloom filters of a stream's chunks: which filter values its messages may have. Compiled.

A FILTER chunk precedes a chunk of messages of which at least one has a filter value. Its payload:

    u8 flags | u8 0 | u16 size | size bytes: the bits

FILTER_UNFILTERED says that the messages include some without a value. The filter applies to the
chunk behind it, if that has the next number and the same epoch: a crash may have come between the
two.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rhizome.journal.records import crc32c, put_u16, u16_at
from rhizome.journal.streams.stream_format import CHUNK_HEADER_BYTES, ChunkHead

BLOOM_BYTES_MIN: Final = 16
BLOOM_BYTES_MAX: Final = 255
HASHES: Final = 4
FILTER_UNFILTERED: Final = 1
_HEADER_BYTES: Final = 4


@final
class BloomBuilder:
    """The filter of the chunk that is being made. ``count`` of its messages have a value."""

    size: i64
    count: i64
    _bits: list[int]

    def __init__(self) -> None:
        self.size = BLOOM_BYTES_MIN
        self.count = 0
        self._bits = []

    def add(self, value: bytes) -> None:
        if self.count == 0:
            self._bits = [0] * int(self.size)
        self.count += 1
        for bit in bits_of(value, len(self._bits)):
            self._bits[bit >> 3] |= 1 << (bit & 7)

    def payload(self, messages: i64) -> bytes:
        """The payload for a chunk of ``count`` messages; the builder starts again."""
        writer = BytesWriter()
        writer.append(FILTER_UNFILTERED if self.count < messages else 0)
        writer.append(0)
        put_u16(writer, len(self._bits))
        writer.write(bytes(self._bits))
        self.count = 0
        self._bits = []
        return writer.getvalue()


def bits_of(value: bytes, size: i64) -> list[int]:
    """The bits that a value sets in a filter of ``size`` bytes."""
    digest: i64 = crc32c(value)
    at: i64 = digest & 0xFFFF
    step: i64 = (digest >> 16) | 1
    count: i64 = size * 8
    found: list[int] = []
    for number in range(HASHES):
        found.append(int((at + number * step) % count))
    return found


@final
class BloomView:
    """The filter of one chunk, as a reader finds it. ``number`` and ``epoch`` are its own."""

    number: i64
    epoch: i64
    unfiltered: bool
    _at: i64
    _size: i64
    _data: bytes

    def __init__(self, head: ChunkHead, data: bytes, at: i64) -> None:
        """The FILTER chunk at ``at``, which has been checked."""
        self.number = head.number
        self.epoch = head.epoch
        at += CHUNK_HEADER_BYTES
        self.unfiltered = data[at] & FILTER_UNFILTERED != 0
        self._size = u16_at(data, at + 2)
        self._at = at + _HEADER_BYTES
        self._data = data[self._at : self._at + self._size]

    def speaks_of(self, head: ChunkHead) -> bool:
        """Whether the filter applies to this chunk of messages."""
        return head.number == self.number + 1 and head.epoch == self.epoch

    def may_have(self, value: bytes) -> bool:
        """Whether a message may have this value; False is certain."""
        if self._size == 0 or len(self._data) < self._size:
            return True
        bits = bits_of(value, self._size)
        return all(self._data[bit >> 3] & (1 << (bit & 7)) != 0 for bit in bits)
