"""Message options: the properties of a message that tell the broker what to do with it.

They are read only if a property flag says that there is one: delivery mode, priority, expiration,
user-id, reply-to, message-id, and in the headers CC, BCC, x-delay, x-producer with x-sequence, and
whatever an exchange asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import (
    TYPE_I64,
    TYPE_TEXT,
    Timestamp,
    check_table,
    find_entry,
    name_end,
    skip_value,
    value_at,
)
from rhizome.amqp.frames import frame, frame_end, header_payload_of
from rhizome.amqp.properties import (
    DELIVERY_MODE_PERSISTENT,
    FLAG_DELIVERY_MODE,
    Properties,
    PropertySpans,
    decode_properties,
    scan,
)
from rhizome.amqp.spec import BASIC, BASIC_PUBLISH, FRAME_HEADER, FRAME_HEADER_SIZE
from rhizome.broker.channel.direct_reply_to import REPLY_QUEUE
from rhizome.broker.dead_letters.dead_letter_headers import (
    X_DEATH,
    cc_keys,
    claimed_deaths,
    strip_bcc,
)
from rhizome.broker.message import HEADER_FLAGS_OFFSET, Message, largest_frame
from rhizome.broker.metadata.declare_and_consume_arguments import parse_expiration
from rhizome.broker.publishing.publication import MessageOptions
from rhizome.broker.publishing.schedule_headers import is_schedule, signed
from rhizome.broker.publishing.sequenced_header_cache import NumberedHeader, is_repeatable
from rhizome.broker.routing.consistent_hash_exchange import PROPERTY_PREFIX
from rhizome.broker.turn import DECODED_BYTES_PER_WORK
from rhizome.errors import PreconditionFailed, SyntaxErrorFault
from rhizome.journal.dedup_state import DedupIdentity

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.connection.connection import Connection

_PRODUCER: Final = b"x-producer"
_SEQUENCE: Final = b"x-sequence"
_LETTER_B: Final = 0x42
_LETTER_C: Final = 0x43
PRODUCER_BYTES_MAX: Final = 255
SEQUENCE_MAX: Final = (1 << 63) - 1


def read_message_options(channel: Channel, message: Message, flags: i64) -> MessageOptions:
    """Read the options of a message into the message and into a ``MessageOptions``.

    Raises what closes the publisher's channel or connection. Afterwards the content is known to be
    well-formed: nothing that is done with it later can find it malformed.
    """
    options = MessageOptions()
    if flags == 0:
        return options
    content = message.content
    spans = scan(content, HEADER_FLAGS_OFFSET, frame_end(content, 0) - 1)
    if flags & FLAG_DELIVERY_MODE != 0:
        message.persistent = _is_persistent(spans.delivery_mode)
    if spans.priority > 0:
        message.priority = spans.priority
    if spans.expiration_end > 0:
        message.expiration_ms = parse_expiration(
            content[spans.expiration_start : spans.expiration_end].decode("utf-8", "replace")
        )
    if spans.user_id_end > 0:
        _check_user_id(channel, content, spans)
    if spans.headers_end > 0:
        _read_headers(channel, message, spans, options, flags)
    elif spans.message_id_end > 0:
        message.identity = DedupIdentity(b"", 0, _message_id(content, spans))
    if message.route.by_headers:
        decoded: i64 = spans.headers_end - spans.headers_start
        channel.connection.broker.turn.work += decoded // DECODED_BYTES_PER_WORK
        options.headers = routing_headers(decode_properties(header_payload_of(content)))
    if spans.reply_to_end > 0:
        _read_reply_to(channel, message)
    return options


def _is_persistent(delivery_mode: i64) -> bool:
    if delivery_mode != 1 and delivery_mode != DELIVERY_MODE_PERSISTENT:
        text = f"invalid message: {{delivery_mode_unknown,{delivery_mode}}}"
        raise PreconditionFailed(text, BASIC, BASIC_PUBLISH)
    return delivery_mode == DELIVERY_MODE_PERSISTENT


def routing_headers(properties: Properties) -> dict[str, object]:
    """The headers that exchanges look at, together with the properties that an exchange may
    hash."""
    headers: dict[str, object] = {}
    if properties.headers is not None:
        headers.update(properties.headers)
    if properties.message_id is not None:
        headers[f"{PROPERTY_PREFIX}message_id"] = properties.message_id
    if properties.correlation_id is not None:
        headers[f"{PROPERTY_PREFIX}correlation_id"] = properties.correlation_id
    if properties.timestamp is not None:
        headers[f"{PROPERTY_PREFIX}timestamp"] = Timestamp(properties.timestamp)
    return headers


def _check_user_id(channel: Channel, content: bytes, spans: PropertySpans) -> None:
    user = content[spans.user_id_start : spans.user_id_end].decode("utf-8", "surrogateescape")
    identity = channel.connection.identity
    if user != identity.user and "impersonator" not in identity.tags:
        raise PreconditionFailed(
            f"user_id property set to '{user}' but authenticated user was '{identity.user}'",
            BASIC,
            BASIC_PUBLISH,
        )


def _read_headers(
    channel: Channel, message: Message, spans: PropertySpans, options: MessageOptions, flags: i64
) -> None:
    content = message.content
    start = spans.headers_start
    end = spans.headers_end
    try:
        check_table(content, start, end)
    except SyntaxErrorFault as fault:
        raise SyntaxErrorFault(fault.text, BASIC, BASIC_PUBLISH) from None
    if message.route.delayed:
        options.delay_ms = _delay_ms(content, start, end)
        options.held = options.delay_ms > 0 or is_schedule(content, start, end)
    entries = _entries(content, start, end)
    owner = producers_of(channel.connection)
    identity = _identity(content, spans, entries, owner)
    message.identity = identity
    is_plain = not entries.has_copies and not entries.has_deaths
    if identity is not None and is_plain and is_repeatable(flags):
        if content[entries.sequence_at] == TYPE_I64:
            at = entries.sequence_at + 1
            channel.numbered = NumberedHeader(
                content, at, message.persistent, owner, identity.producer
            )
    kept = claimed_deaths(content) if entries.has_deaths else content
    if entries.has_copies:
        options.keys = cc_keys(content)
        # A delayed message keeps its blind copies until it is routed.
        if not options.held:
            kept = strip_bcc(kept)
    if options.held and is_schedule(content, start, end):
        kept = signed(kept, channel.connection.identity.user)
    if kept is not content:
        message.content = kept
        message.frame_bytes_max = largest_frame(kept)


def producers_of(connection: Connection) -> bytes:
    """The prefix of the names of a connection's producers. Brokers of older releases, which may be
    home next, look for the name alone."""
    return connection.identity.producers if len(connection.broker.older_peers) == 0 else b""


def identity_of(content: bytes, with_sequence: bool) -> DedupIdentity | None:
    """The identity by which queues know a well-formed content. ``with_sequence``: its publisher
    numbered it and sent it through a broker of an older release, which doesn't say who the
    publisher was."""
    spans = scan(content, HEADER_FLAGS_OFFSET, frame_end(content, 0) - 1)
    end = spans.headers_end if with_sequence else spans.headers_start
    return _identity(content, spans, _entries(content, spans.headers_start, end), b"")


@final
class _Entries:
    """The headers of a message that are options. A value has the offsets of its type octet and of
    its end, which is 0 if there is none."""

    producer_at: i64
    producer_end: i64
    sequence_at: i64
    sequence_end: i64
    has_copies: bool
    has_deaths: bool

    def __init__(self) -> None:
        self.producer_at = 0
        self.producer_end = 0
        self.sequence_at = 0
        self.sequence_end = 0
        self.has_copies = False
        self.has_deaths = False


def _entries(data: bytes, offset: i64, end: i64) -> _Entries:
    """The option headers of a well-formed table; of two with one name, the first. This is one walk,
    without an object per entry."""
    found = _Entries()
    while offset < end:
        at: i64 = offset + 1
        kind_at = name_end(data, offset, end)
        offset = skip_value(data, kind_at, end)
        size: i64 = kind_at - at
        if size == 10:
            if found.producer_end == 0 and _is_name(data, at, _PRODUCER):
                found.producer_at = kind_at
                found.producer_end = offset
            elif found.sequence_end == 0 and _is_name(data, at, _SEQUENCE):
                found.sequence_at = kind_at
                found.sequence_end = offset
        elif size == 7:
            if _is_name(data, at, X_DEATH):
                found.has_deaths = True
        elif size == 2 or size == 3:
            is_copies = data[kind_at - 1] == _LETTER_C and data[kind_at - 2] == _LETTER_C
            if is_copies and (size == 2 or data[at] == _LETTER_B):
                found.has_copies = True
    return found


def _is_name(data: bytes, at: i64, name: bytes) -> bool:
    """Whether a name of this length, at this place, is ``name``."""
    size: i64 = len(name)
    place: i64 = 0
    while place < size:
        if data[at + place] != name[place]:
            return False
        place += 1
    return True


def _identity(
    content: bytes, spans: PropertySpans, entries: _Entries, owner: bytes
) -> DedupIdentity | None:
    """``owner``: the prefix of the names of its publisher's producers."""
    message_id = _message_id(content, spans)
    if entries.producer_end > 0 and entries.sequence_end > 0:
        producer = _producer(content, entries.producer_at, entries.producer_end)
        sequence = _sequence(content, entries.sequence_at, entries.sequence_end)
        return DedupIdentity(owner + producer, sequence, message_id)
    return DedupIdentity(b"", 0, message_id) if len(message_id) > 0 else None


def _message_id(content: bytes, spans: PropertySpans) -> bytes:
    return content[spans.message_id_start : spans.message_id_end] if spans.message_id_end else b""


def _producer(content: bytes, at: i64, end: i64) -> bytes:
    name = content[at + 5 : end] if content[at] == TYPE_TEXT else b""
    # Names that begin with NUL are those of groups (`group_outbox.py`).
    if not 0 < len(name) <= PRODUCER_BYTES_MAX or name[0] == 0:
        raise PreconditionFailed(
            f"invalid header x-producer: expected a string of 1 to {PRODUCER_BYTES_MAX} bytes"
            " that does not begin with NUL",
            BASIC,
            BASIC_PUBLISH,
        )
    return name


def _sequence(content: bytes, at: i64, end: i64) -> i64:
    if content[at] == TYPE_I64:
        number: i64 = read_i64_be(content, at + 1)
        if number >= 0:
            return number
    value = value_at(content, at, end)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SEQUENCE_MAX:
        return value
    raise PreconditionFailed(
        f"invalid header x-sequence: expected a number from 0 to {SEQUENCE_MAX}",
        BASIC,
        BASIC_PUBLISH,
    )


def _delay_ms(content: bytes, start: i64, end: i64) -> i64:
    at, after = find_entry(content, start, end, b"x-delay")
    if after == 0:
        return 0
    delay = value_at(content, at, after)
    if not isinstance(delay, int) or isinstance(delay, bool):
        return 0
    return delay


def _read_reply_to(channel: Channel, message: Message) -> None:
    """Replace the name of direct reply-to by the one that leads back to this channel."""
    content = message.content
    end = frame_end(content, 0)
    spans = scan(content, HEADER_FLAGS_OFFSET, end - 1)
    if content[spans.reply_to_start : spans.reply_to_end] != REPLY_QUEUE.encode():
        return
    if channel.reply_consumer is None:
        raise PreconditionFailed("fast reply consumer does not exist", BASIC, BASIC_PUBLISH)
    name = f"{REPLY_QUEUE}.{channel.reply_token}".encode()
    header = BytesWriter()
    header.write(content[FRAME_HEADER_SIZE : spans.reply_to_start - 1])
    header.append(len(name))
    header.write(name)
    header.write(content[spans.reply_to_end : end - 1])
    message.content = frame(FRAME_HEADER, message.channel, header.getvalue()) + content[end:]
    message.frame_bytes_max = largest_frame(message.content)
