"""Steering: the properties of a message that tell the broker what to do with it.

Looked at only when a property flag says that there is one: delivery mode, priority, expiration,
user-id, reply-to, message-id, and in the headers CC, BCC, x-delay, x-producer with x-sequence, and
whatever an exchange asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

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
from rhizome.amqp.values import Timestamp, check_table, find_entry, value_at
from rhizome.broker.arguments import parse_expiration
from rhizome.broker.deadletters import cc_keys, strip_bcc
from rhizome.broker.message import HEADER_FLAGS_OFFSET, Message, largest_frame
from rhizome.broker.replies import REPLY_QUEUE
from rhizome.broker.routing.consistent_hash import PROPERTY_PREFIX
from rhizome.broker.turn import DECODED_BYTES_PER_WORK
from rhizome.errors import PreconditionFailed, SyntaxErrorFault
from rhizome.journal.seen import Identity

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel

NO_KEYS: Final[list[str]] = []
SEQUENCE_HEADER: Final = b"\x0ax-sequence"
"""The name as a table has it, with its length."""
PRODUCER_BYTES_MAX: Final = 255
SEQUENCE_MAX: Final = (1 << 63) - 1


@final
class Steering:
    """What the properties of one message ask for."""

    keys: list[str]
    headers: dict[str, object] | None
    delay_ms: i64

    def __init__(self) -> None:
        self.keys = NO_KEYS
        self.headers = None
        self.delay_ms = 0


def steer(channel: Channel, message: Message, flags: i64) -> Steering:
    """Read the steering properties of a message into it and into a ``Steering``.

    Raises what closes the channel or the connection of whoever published it. After that the
    content is known to be sound: nothing that is done with it later can find it garbled.
    """
    steering = Steering()
    if flags == 0:
        return steering
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
        _read_headers(channel, message, spans, steering)
    elif spans.message_id_end > 0:
        message.identity = Identity(b"", 0, _message_id(content, spans))
    if message.route.by_headers:
        decoded: i64 = spans.headers_end - spans.headers_start
        channel.connection.broker.turn.work += decoded // DECODED_BYTES_PER_WORK
        steering.headers = routing_headers(decode_properties(header_payload_of(content)))
    if spans.reply_to_end > 0:
        _read_reply_to(channel, message)
    return steering


def _is_persistent(delivery_mode: i64) -> bool:
    if delivery_mode != 1 and delivery_mode != DELIVERY_MODE_PERSISTENT:
        text = f"invalid message: {{delivery_mode_unknown,{delivery_mode}}}"
        raise PreconditionFailed(text, BASIC, BASIC_PUBLISH)
    return delivery_mode == DELIVERY_MODE_PERSISTENT


def routing_headers(properties: Properties) -> dict[str, object]:
    """The headers that exchanges look at, with the properties that one may hash beside them."""
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
    channel: Channel, message: Message, spans: PropertySpans, steering: Steering
) -> None:
    content = message.content
    start = spans.headers_start
    end = spans.headers_end
    try:
        check_table(content, start, end)
    except SyntaxErrorFault as fault:
        raise SyntaxErrorFault(fault.text, BASIC, BASIC_PUBLISH) from None
    if message.route.delayed:
        steering.delay_ms = _delay_ms(content, start, end)
    table = content[start:end]
    connection = channel.connection
    # Brokers of older releases, who may be home next, look for the name alone.
    owner = connection.identity.producers if len(connection.broker.older_peers) == 0 else b""
    message.identity = _identity(content, spans, SEQUENCE_HEADER in table, owner)
    if b"\x02CC" in table or b"\x03BCC" in table:
        steering.keys = cc_keys(content)
        # A delayed message keeps its blind copies until it is routed.
        if steering.delay_ms <= 0:
            message.content = strip_bcc(content)
            message.frame_bytes_max = largest_frame(message.content)


def identity_of(content: bytes, with_sequence: bool) -> Identity | None:
    """By what queues know a sound content again; ``with_sequence``: its publisher numbered it, and
    has sent it through a broker of an older release, which doesn't say who that was."""
    spans = scan(content, HEADER_FLAGS_OFFSET, frame_end(content, 0) - 1)
    return _identity(content, spans, with_sequence, b"")


def _identity(
    content: bytes, spans: PropertySpans, with_sequence: bool, owner: bytes
) -> Identity | None:
    """``owner``: what the producers of its publisher begin with."""
    message_id = _message_id(content, spans)
    if with_sequence:
        start = spans.headers_start
        end = spans.headers_end
        at, after = find_entry(content, start, end, b"x-producer")
        sequence_at, sequence_end = find_entry(content, start, end, b"x-sequence")
        if after > 0 and sequence_end > 0:
            producer = value_at(content, at, after)
            sequence = value_at(content, sequence_at, sequence_end)
            return Identity(owner + _producer(producer), _sequence(sequence), message_id)
    return Identity(b"", 0, message_id) if len(message_id) > 0 else None


def _message_id(content: bytes, spans: PropertySpans) -> bytes:
    return content[spans.message_id_start : spans.message_id_end] if spans.message_id_end else b""


def _producer(value: object) -> bytes:
    name = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else b""
    # Names that begin with NUL are those of groups (`post.py`).
    if not 0 < len(name) <= PRODUCER_BYTES_MAX or name[0] == 0:
        raise PreconditionFailed(
            f"invalid header x-producer: expected a string of 1 to {PRODUCER_BYTES_MAX} bytes"
            " that does not begin with NUL",
            BASIC,
            BASIC_PUBLISH,
        )
    return name


def _sequence(value: object) -> i64:
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
