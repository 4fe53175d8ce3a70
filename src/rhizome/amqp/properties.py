"""Content headers: class, weight, body size, property flags, properties.

Two ways to read them. decode_properties makes Python values of all fourteen, for clients and
management. scan only walks over them by offset and remembers where those lie that a broker may
need; it makes no strings, so it is cheap enough for every message.

Both raise SyntaxErrorFault (60, 40), and nothing else, on bytes that are no properties. Bytes after
the last property are ignored.
"""

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_reader import FieldReader
from rhizome.amqp.field_table import put_table, signed_64, unsigned_64
from rhizome.amqp.primitives import put_shortstr, put_u8, put_u16, put_u64, u16_at, u32_at
from rhizome.amqp.spec import BASIC, BASIC_PUBLISH
from rhizome.errors import SyntaxErrorFault

FLAG_CONTENT_TYPE: Final = 0x8000
FLAG_CONTENT_ENCODING: Final = 0x4000
FLAG_HEADERS: Final = 0x2000
FLAG_DELIVERY_MODE: Final = 0x1000
FLAG_PRIORITY: Final = 0x0800
FLAG_CORRELATION_ID: Final = 0x0400
FLAG_REPLY_TO: Final = 0x0200
FLAG_EXPIRATION: Final = 0x0100
FLAG_MESSAGE_ID: Final = 0x0080
FLAG_TIMESTAMP: Final = 0x0040
FLAG_TYPE: Final = 0x0020
FLAG_USER_ID: Final = 0x0010
FLAG_APP_ID: Final = 0x0008
FLAG_CLUSTER_ID: Final = 0x0004
# The flag that announces another word of flags (section 2.3.5.2). Class basic never needs one.
FLAG_MORE_FLAGS: Final = 0x0001

# Offsets in a header payload.
BODY_SIZE_OFFSET: Final = 4
FLAGS_OFFSET: Final = 12
PROPERTIES_OFFSET: Final = 14

DELIVERY_MODE_PERSISTENT: Final = 2


@final
class Properties:
    """The fourteen properties of class basic; None where absent."""

    content_type: str | None
    content_encoding: str | None
    headers: dict[str, object] | None
    delivery_mode: int | None
    priority: int | None
    correlation_id: str | None
    reply_to: str | None
    expiration: str | None
    message_id: str | None
    timestamp: int | None
    type: str | None
    user_id: str | None
    app_id: str | None
    cluster_id: str | None

    def __init__(
        self,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, object] | None = None,
        delivery_mode: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: int | None = None,
        type: str | None = None,  # noqa: A002
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers = headers
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type = type
        self.user_id = user_id
        self.app_id = app_id
        self.cluster_id = cluster_id

    def with_headers(self, headers: dict[str, object] | None) -> "Properties":
        """The same properties with other headers."""
        return Properties(
            self.content_type,
            self.content_encoding,
            headers,
            self.delivery_mode,
            self.priority,
            self.correlation_id,
            self.reply_to,
            self.expiration,
            self.message_id,
            self.timestamp,
            self.type,
            self.user_id,
            self.app_id,
            self.cluster_id,
        )

    def flags(self) -> i64:
        """Return the flags of the properties that are present."""
        flags: i64 = 0
        if self.content_type is not None:
            flags |= FLAG_CONTENT_TYPE
        if self.content_encoding is not None:
            flags |= FLAG_CONTENT_ENCODING
        if self.headers is not None:
            flags |= FLAG_HEADERS
        if self.delivery_mode is not None:
            flags |= FLAG_DELIVERY_MODE
        if self.priority is not None:
            flags |= FLAG_PRIORITY
        if self.correlation_id is not None:
            flags |= FLAG_CORRELATION_ID
        if self.reply_to is not None:
            flags |= FLAG_REPLY_TO
        if self.expiration is not None:
            flags |= FLAG_EXPIRATION
        if self.message_id is not None:
            flags |= FLAG_MESSAGE_ID
        if self.timestamp is not None:
            flags |= FLAG_TIMESTAMP
        if self.type is not None:
            flags |= FLAG_TYPE
        if self.user_id is not None:
            flags |= FLAG_USER_ID
        if self.app_id is not None:
            flags |= FLAG_APP_ID
        if self.cluster_id is not None:
            flags |= FLAG_CLUSTER_ID
        return flags


def decode_properties(header_payload: bytes) -> Properties:
    """Decode the properties of a content header."""
    if len(header_payload) < PROPERTIES_OFFSET:
        raise _fault("content header is too short for its property flags")
    flags = u16_at(header_payload, FLAGS_OFFSET)
    _check_flags(flags)
    try:
        return _read_properties(flags, FieldReader(header_payload, PROPERTIES_OFFSET))
    except SyntaxErrorFault as fault:
        raise _fault(fault.text) from None


def _read_properties(flags: i64, reader: FieldReader) -> Properties:
    properties = Properties()
    properties.content_type = _shortstr(flags & FLAG_CONTENT_TYPE, reader)
    properties.content_encoding = _shortstr(flags & FLAG_CONTENT_ENCODING, reader)
    if flags & FLAG_HEADERS:
        properties.headers = reader.table()
    if flags & FLAG_DELIVERY_MODE:
        properties.delivery_mode = int(reader.octet())
    if flags & FLAG_PRIORITY:
        properties.priority = int(reader.octet())
    properties.correlation_id = _shortstr(flags & FLAG_CORRELATION_ID, reader)
    properties.reply_to = _shortstr(flags & FLAG_REPLY_TO, reader)
    properties.expiration = _shortstr(flags & FLAG_EXPIRATION, reader)
    properties.message_id = _shortstr(flags & FLAG_MESSAGE_ID, reader)
    if flags & FLAG_TIMESTAMP:
        properties.timestamp = unsigned_64(reader.longlong())
    properties.type = _shortstr(flags & FLAG_TYPE, reader)
    properties.user_id = _shortstr(flags & FLAG_USER_ID, reader)
    properties.app_id = _shortstr(flags & FLAG_APP_ID, reader)
    properties.cluster_id = _shortstr(flags & FLAG_CLUSTER_ID, reader)
    return properties


def _shortstr(present: i64, reader: FieldReader) -> str | None:
    return reader.shortstr() if present else None


def encode_header(body_size: i64, properties: Properties) -> bytes:
    """Return the payload of a content header. Raises ValueError if a property doesn't fit."""
    writer = BytesWriter()
    put_u16(writer, BASIC)
    put_u16(writer, 0)
    put_u64(writer, body_size)
    put_u16(writer, properties.flags())
    _put_text(writer, properties.content_type)
    _put_text(writer, properties.content_encoding)
    if properties.headers is not None:
        put_table(writer, properties.headers)
    if properties.delivery_mode is not None:
        put_u8(writer, properties.delivery_mode)
    if properties.priority is not None:
        put_u8(writer, properties.priority)
    _put_text(writer, properties.correlation_id)
    _put_text(writer, properties.reply_to)
    _put_text(writer, properties.expiration)
    _put_text(writer, properties.message_id)
    if properties.timestamp is not None:
        put_u64(writer, signed_64(properties.timestamp))
    _put_text(writer, properties.type)
    _put_text(writer, properties.user_id)
    _put_text(writer, properties.app_id)
    _put_text(writer, properties.cluster_id)
    return writer.getvalue()


def _put_text(writer: BytesWriter, text: str | None) -> None:
    if text is not None:
        put_shortstr(writer, text)


def body_size_of(header_payload: bytes) -> i64:
    """Return the body size that a content header announces; 2**63 and above come out negative."""
    if len(header_payload) < FLAGS_OFFSET:
        raise _fault("content header is too short for its body size")
    return read_i64_be(header_payload, BODY_SIZE_OFFSET)


@final
class PropertySpans:
    """Where the properties lie that a broker may need, as offsets in the scanned bytes.

    A text's span leaves out its length octet, the headers' span the table's 32-bit length. Both
    ends are 0 if the property is absent; an empty one that is present has start == end > 0.
    `end` is the offset after the last property.
    """

    flags: i64
    delivery_mode: i64  # -1: absent
    priority: i64  # -1: absent
    headers_at: i64  # of the table's length, or where it would be
    headers_start: i64
    headers_end: i64
    reply_to_start: i64
    reply_to_end: i64
    expiration_start: i64
    expiration_end: i64
    message_id_start: i64
    message_id_end: i64
    user_id_start: i64
    user_id_end: i64
    end: i64

    def __init__(self, flags: i64) -> None:
        self.flags = flags
        self.delivery_mode = -1
        self.priority = -1
        self.headers_at = 0
        self.headers_start = 0
        self.headers_end = 0
        self.reply_to_start = 0
        self.reply_to_end = 0
        self.expiration_start = 0
        self.expiration_end = 0
        self.message_id_start = 0
        self.message_id_end = 0
        self.user_id_start = 0
        self.user_id_end = 0
        self.end = 0


def scan(data: bytes, offset_of_flags: i64, end: i64) -> PropertySpans:
    """Find the properties whose flags are at `offset_of_flags` and that end at or before `end`."""
    if offset_of_flags < 0 or end > len(data) or end - offset_of_flags < 2:
        raise _fault("content header is too short for its property flags")
    flags = u16_at(data, offset_of_flags)
    _check_flags(flags)
    spans = PropertySpans(flags)
    at = _scan_upto_priority(data, offset_of_flags + 2, end, flags, spans)
    spans.end = _scan_rest(data, at, end, flags, spans)
    return spans


def _scan_upto_priority(data: bytes, at: i64, end: i64, flags: i64, spans: PropertySpans) -> i64:
    if flags & FLAG_CONTENT_TYPE:
        at = _after_shortstr(data, at, end)
    if flags & FLAG_CONTENT_ENCODING:
        at = _after_shortstr(data, at, end)
    spans.headers_at = at
    if flags & FLAG_HEADERS:
        spans.headers_start = _after(at, 4, end)
        at = _after(at + 4, u32_at(data, at), end)
        spans.headers_end = at
    if flags & FLAG_DELIVERY_MODE:
        at = _after(at, 1, end)
        spans.delivery_mode = data[at - 1]
    if flags & FLAG_PRIORITY:
        at = _after(at, 1, end)
        spans.priority = data[at - 1]
    return at


def _scan_rest(data: bytes, at: i64, end: i64, flags: i64, spans: PropertySpans) -> i64:
    if flags & FLAG_CORRELATION_ID:
        at = _after_shortstr(data, at, end)
    if flags & FLAG_REPLY_TO:
        spans.reply_to_start = at + 1
        at = _after_shortstr(data, at, end)
        spans.reply_to_end = at
    if flags & FLAG_EXPIRATION:
        spans.expiration_start = at + 1
        at = _after_shortstr(data, at, end)
        spans.expiration_end = at
    if flags & FLAG_MESSAGE_ID:
        spans.message_id_start = at + 1
        at = _after_shortstr(data, at, end)
        spans.message_id_end = at
    if flags & FLAG_TIMESTAMP:
        at = _after(at, 8, end)
    if flags & FLAG_TYPE:
        at = _after_shortstr(data, at, end)
    if flags & FLAG_USER_ID:
        spans.user_id_start = at + 1
        at = _after_shortstr(data, at, end)
        spans.user_id_end = at
    if flags & FLAG_APP_ID:
        at = _after_shortstr(data, at, end)
    if flags & FLAG_CLUSTER_ID:
        at = _after_shortstr(data, at, end)
    return at


def _after(at: i64, width: i64, end: i64) -> i64:
    if width > end - at:
        raise _fault("content header ends in the middle of its properties")
    return at + width


def _after_shortstr(data: bytes, at: i64, end: i64) -> i64:
    after = _after(at, 1, end)
    return _after(after, data[at], end)


def _check_flags(flags: i64) -> None:
    if flags & FLAG_MORE_FLAGS:
        raise _fault("content header announces property flags that class basic doesn't have")


def _fault(text: str) -> SyntaxErrorFault:
    return SyntaxErrorFault(text, BASIC, BASIC_PUBLISH)
