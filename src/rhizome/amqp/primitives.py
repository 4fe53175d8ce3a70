"""Numbers and short strings as AMQP writes them: unsigned, big-endian.

librt reads and writes signed numbers; the helpers here turn them into the unsigned ones of the
protocol. A 64-bit number is kept as an i64 with the same bits, so values of 2**63 and above show
as negative. put_* refuse values that don't fit with ValueError: those are faults of the caller.
The readers don't check bounds; whoever calls them has.
"""

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

SHORTSTR_BYTES_MAX: Final = 255


def u16_at(data: bytes, offset: i64) -> i64:
    """Return the unsigned 16-bit number at `offset`."""
    return i64(read_i16_be(data, offset)) & 0xFFFF


def u32_at(data: bytes, offset: i64) -> i64:
    """Return the unsigned 32-bit number at `offset`."""
    return i64(read_i32_be(data, offset)) & 0xFFFFFFFF


def put_u8(writer: BytesWriter, number: i64) -> None:
    """Append one octet."""
    if number < 0 or number > 0xFF:
        raise ValueError(f"{number} doesn't fit in an octet")
    writer.append(int(number))


def put_u16(writer: BytesWriter, number: i64) -> None:
    """Append an unsigned 16-bit number."""
    if number < 0 or number > 0xFFFF:
        raise ValueError(f"{number} doesn't fit in 16 bits")
    if number > 0x7FFF:
        number -= 0x10000
    write_i16_be(writer, i16(number))


def put_u32(writer: BytesWriter, number: i64) -> None:
    """Append an unsigned 32-bit number."""
    if number < 0 or number > 0xFFFFFFFF:
        raise ValueError(f"{number} doesn't fit in 32 bits")
    if number > 0x7FFFFFFF:
        number -= 0x100000000
    write_i32_be(writer, i32(number))


def put_u64(writer: BytesWriter, number: i64) -> None:
    """Append a 64-bit number; a negative one stands for the unsigned one with the same bits."""
    write_i64_be(writer, number)


def put_shortstr(writer: BytesWriter, text: str) -> None:
    """Append a string of at most 255 bytes with its length octet."""
    data = text.encode("utf-8", "surrogateescape")
    size = len(data)
    if size > SHORTSTR_BYTES_MAX:
        raise ValueError(f"a short string holds at most 255 bytes, not {size}: {text[:40]!r}...")
    writer.append(size)
    writer.write(data)


def put_longstr(writer: BytesWriter, data: bytes) -> None:
    """Append bytes with their 32-bit length."""
    put_u32(writer, len(data))
    writer.write(data)
