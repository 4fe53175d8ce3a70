"""Control frames: every frame of a connection that isn't a publish or an ack on the fast path.

These are methods on channel 0, opening and closing of channels, contents that come frame by frame,
and the answers to frames that make no sense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.amqp.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    decode_method,
)
from rhizome.amqp.spec import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
)
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.content_frames import content_frame
from rhizome.broker.channel.method_dispatch import handle
from rhizome.broker.connection.connection_states import CLOSING, RUNNING
from rhizome.broker.connection.session_resume import MOVING, handle_on_connection
from rhizome.broker.turn import COUNTED_PER_WORK, METHOD_WORK, RENEWAL_WORK
from rhizome.errors import (
    ChannelFault,
    CommandInvalid,
    FrameError,
    NotAllowed,
    UnexpectedFrame,
)

if TYPE_CHECKING:
    from rhizome.broker.connection.connection import Connection


def protocol_header(connection: Connection, data: bytes, at: i64, end: i64) -> i64:
    """Check the protocol header; return the offset behind it, 0 if the connection does not
    continue."""
    if end - at < 8:
        wanted = b"AMQP\x00\x00\x09\x01"[: end - at]
        connection.tail = data[at:]
        if data[at:end] != wanted and end - at >= 4:
            _refuse_protocol(connection)
        return 0
    if data[at : at + 8] != b"AMQP\x00\x00\x09\x01":
        _refuse_protocol(connection)
        return 0
    assert connection.handshake is not None
    connection.handshake.start(connection)
    return at + 8


def _refuse_protocol(connection: Connection) -> None:
    connection.outbox.put(b"AMQP\x00\x00\x09\x01")
    connection.tail = b""
    connection.stop()


def slow_frame(
    connection: Connection, kind: i64, number: i64, data: bytes, at: i64, after: i64
) -> None:
    payload = data[at + 7 : after - 1]
    if connection.stage == CLOSING:
        _closing_frame(connection, kind, number, payload)
    elif kind == FRAME_HEARTBEAT:
        if len(payload) > 0:
            raise FrameError(f"type 8, {octets(payload)}: unknown_frame")
        if number != 0:
            raise UnexpectedFrame(f"type 8, {octets(payload)}")
    elif kind == FRAME_METHOD:
        if len(payload) < 4:
            raise FrameError(f"type 1, {octets(payload)}: unknown_frame")
        _method(connection, number, payload)
    elif kind in (FRAME_HEADER, FRAME_BODY):
        channel = connection.channels.get(number)
        if number == 0:
            raise UnexpectedFrame(f"type {kind}, {octets(payload)}")
        if channel is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        if not channel.closing:
            content_frame(channel, kind, data[at:after])
    else:
        raise FrameError(f"type {kind}, {octets(payload)}: unknown_frame")


def _closing_frame(connection: Connection, kind: i64, number: i64, payload: bytes) -> None:
    """After our close only close-ok counts; a close from the client is answered."""
    if kind != FRAME_METHOD or number != 0:
        return
    method = decode_method(payload)
    if isinstance(method, ConnectionCloseOk):
        connection.stop()
    elif isinstance(method, ConnectionClose):
        connection.send(0, ConnectionCloseOk())


def _method(connection: Connection, number: i64, payload: bytes) -> None:
    method = decode_method(payload)
    connection.current_code = method.code()
    connection.broker.turn.work += METHOD_WORK
    if number == 0:
        _connection_method(connection, method)
        return
    if connection.stage != RUNNING:
        raise CommandInvalid("unexpected method before connection.open")
    if isinstance(method, ChannelOpen):
        _open_channel(connection, number)
        return
    channel = connection.channels.get(number)
    if channel is None:
        if isinstance(method, (ChannelCloseOk, ChannelClose)):
            # Two closes have crossed.
            if isinstance(method, ChannelClose):
                connection.send(number, ChannelCloseOk())
            return
        code = method.code()
        raise ChannelFault("expected 'channel.open'", code >> 16, code & 0xFFFF)
    if channel.closing:
        _closing_channel_method(connection, channel, method)
    else:
        handle(channel, method)


def _closing_channel_method(connection: Connection, channel: Channel, method: Method) -> None:
    if isinstance(method, ChannelCloseOk):
        connection.forget_channel(channel)
    elif isinstance(method, ChannelClose):
        connection.send(channel.number, ChannelCloseOk())
        connection.forget_channel(channel)


def _connection_method(connection: Connection, method: Method) -> None:
    if isinstance(method, ConnectionClose):
        if method.reply_code != MOVING:
            connection.broker.sessions.closed(connection)
            connection.resume_id = ""
        # The client closes the socket when it has read our answer; a timer does if it doesn't.
        connection.close_channels()
        connection.answer_close(ConnectionCloseOk())
        connection.stage = CLOSING
    elif connection.handshake is not None and connection.stage < RUNNING:
        connection.handshake.handle(connection, method)
    elif isinstance(method, ConnectionUpdateSecret):
        _update_secret(connection, method)
    elif not handle_on_connection(connection, method):
        code = method.code()
        raise ChannelFault(
            "unexpected method in connection state running", code >> 16, code & 0xFFFF
        )


def _update_secret(connection: Connection, method: ConnectionUpdateSecret) -> None:
    connection.broker.turn.work += RENEWAL_WORK
    reason = connection.identity.renew(method.new_secret)
    if reason:
        connection.broker.login_refused(connection, f"new secret: {reason}")
        raise NotAllowed("New secret was refused by one of the backends", 10, 70)
    connection.send(0, ConnectionUpdateSecretOk())
    if connection.identity.renews_rights:
        connection.broker.revocation.renewed(connection)


def _open_channel(connection: Connection, number: i64) -> None:
    if number in connection.channels:
        raise ChannelFault("second 'channel.open' seen", 20, 10)
    if len(connection.channels) >= connection.channel_max:
        raise NotAllowed(
            f"number of channels opened ({len(connection.channels)}) has reached the negotiated "
            f"channel_max ({connection.channel_max})"
        )
    broker = connection.broker
    broker.limits.check_channel(connection)
    broker.turn.work += len(broker.connections) // COUNTED_PER_WORK
    channel = Channel(connection, number)
    connection.channels[number] = channel
    channel.opened()
    broker.events.channel_opened(channel)


def bad_frame(connection: Connection, data: bytes, at: i64, size: i64, end: i64) -> None:
    """A frame of an unknown type or beyond the size that was agreed."""
    kind = data[at]
    connection.at = end
    if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT):
        raise FrameError(f"type {kind}, {octets(data[at + 7 : end])}: unknown_frame")
    limit = connection.frame_max - 8
    raise FrameError(f"type {kind}, all octets = <<>>: {{frame_too_large,{size},{limit}}}")


def bad_frame_end(connection: Connection, data: bytes, at: i64, size: i64) -> None:
    connection.at = at + size + 8
    raise FrameError(
        f"type {data[at]}, {octets(data[at + 7 : at + 7 + size])}: "
        f"{{invalid_frame_end_marker,{data[at + size + 7]}}}"
    )


def octets(data: bytes) -> str:
    """A frame's payload as RabbitMQ prints it in errors."""
    shown = data[:16]
    label = "all octets" if len(data) <= 16 else "first 16 octets"
    if len(shown) > 0 and all(32 <= octet < 127 for octet in shown):
        return f'{label} = <<"{shown.decode("ascii")}">>'
    return f"{label} = <<{','.join(str(octet) for octet in shown)}>>"
