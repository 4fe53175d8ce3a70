"""The content of a delivery that carries many messages, for readers such as Spark's: numbers in the
headers, and one body. Compiled."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.amqp.frames import content_frames
from rhizome.amqp.primitives import put_shortstr, put_u16, put_u32, put_u64
from rhizome.amqp.properties import FLAG_HEADERS
from rhizome.amqp.spec import BASIC
from rhizome.journal.streams.stream_format import CONTENT_CHANNEL

FRAME_BYTES_MAX: Final = 131_072
_TYPE_I64: Final = 0x6C  # l


def put_number(table: BytesWriter, name: str, number: i64) -> None:
    """Add a header."""
    put_shortstr(table, name)
    table.append(_TYPE_I64)
    write_i64_be(table, number)


def bulk_content(table: BytesWriter, body: bytes) -> bytes:
    """The content of a delivery with these headers."""
    header = BytesWriter()
    put_u16(header, BASIC)
    put_u16(header, 0)
    put_u64(header, len(body))
    put_u16(header, FLAG_HEADERS)
    put_u32(header, len(table))
    header.write(table.getvalue())
    return content_frames(CONTENT_CHANNEL, header.getvalue(), body, FRAME_BYTES_MAX)
