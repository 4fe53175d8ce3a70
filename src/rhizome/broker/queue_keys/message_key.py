"""MessageKey: what a keyed queue sorts its messages by, found in each message. Compiled.

The key comes from the message alone, so every broker that reads it finds the same: a standby that
takes over, and a restart.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, final

from librt.strings import read_i16_be
from mypy_extensions import i64

from rhizome.amqp.field_table import TYPE_TEXT, find_entry, value_at
from rhizome.amqp.primitives import u32_at
from rhizome.amqp.properties import (
    FLAG_CONTENT_ENCODING,
    FLAG_CONTENT_TYPE,
    FLAG_HEADERS,
    FLAGS_OFFSET,
)
from rhizome.amqp.spec import FRAME_HEADER_SIZE
from rhizome.errors import SyntaxErrorFault

ROUTING_KEY: Final = "routing-key"
"""The name that stands for the routing key; no header can have it."""

KEY_BYTES_MAX: Final = 64
"""Longer keys are kept as their digests: a queue remembers each live key, and a header may have
a hundred kilobytes."""

NO_KEY: Final = b""
_FLAGS: Final = FRAME_HEADER_SIZE + FLAGS_OFFSET
"""Where the flags of the properties are in a content, which begins with its header frame."""


@final
class MessageKey:
    """Finds the key of a message: a header of this name, or the routing key.

    A text is its bytes, and any other value is itself and its type. A header that is absent, void
    or empty is no key.
    """

    header: bytes

    def __init__(self, name: str) -> None:
        self.header = b"" if name == ROUTING_KEY else name.encode("utf-8", "surrogateescape")

    def of(self, content: bytes, routing_key: str) -> bytes:
        if len(self.header) > 0:
            key = _header(content, self.header)
        else:
            key = routing_key.encode("utf-8", "surrogateescape")
        if len(key) > KEY_BYTES_MAX:
            return b"\x00" + blake2b(key, digest_size=16).digest()
        return key


def _header(content: bytes, name: bytes) -> bytes:
    """The value of a header of a content as a key; NO_KEY if there is none."""
    flags: i64 = i64(read_i16_be(content, _FLAGS)) & 0xFFFF
    if flags & FLAG_HEADERS == 0:
        return NO_KEY
    at: i64 = _FLAGS + 2
    if flags & FLAG_CONTENT_TYPE != 0:
        at += 1 + content[at]
    if flags & FLAG_CONTENT_ENCODING != 0:
        at += 1 + content[at]
    try:
        start, end = find_entry(content, at + 4, at + 4 + u32_at(content, at), name)
        if start == 0:
            return NO_KEY
        if content[start] == TYPE_TEXT:
            return content[start + 5 : end]
        value = value_at(content, start, end)
    except SyntaxErrorFault:
        return NO_KEY  # a table that nobody can read
    if value is None:
        return NO_KEY
    return f"{type(value).__name__}:{value}".encode("utf-8", "surrogateescape")
