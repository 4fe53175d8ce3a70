"""The client's side of an AMQP 0-9-1 connection, without any input or output.

Theory of operation
-------------------
A driver owns the socket and the clock; the core owns the protocol:

    core = ClientConnection(Settings(user="guest", password="guest"))
    socket.send(core.data_to_send())               # the protocol header
    for event in core.receive_data(socket.recv()): # bytes in, events out
        ...
    socket.send(core.data_to_send())               # whatever the core has to say to that

The driver's duties:
  1. after every call into the core, send what `data_to_send` returns;
  2. call `tick(now_ms)` at least four times per heartbeat interval;
  3. after `ConnectionEnded`, send what is left, close the socket, and call nothing but
     `data_to_send` again;
  4. call `connection_lost()` when the socket ends first.

Phases of the connection (anything not listed is a violation by the peer):

    START    connection.start      -> start-ok sent,           SECURED
    SECURED  connection.secure     -> secure-ok sent,          SECURED
    SECURED  connection.tune       -> tune-ok and open sent,   TUNED
    TUNED    connection.open-ok    -> ConnectionOpened,        OPEN
    OPEN     anything on channels  -> MethodReceived, ContentReceived, ChannelEnded
    OPEN     close() called        -> close sent,              CLOSING
    CLOSING  connection.close-ok   -> ConnectionEnded(None),   ENDED
    any      connection.close      -> close-ok sent, ConnectionEnded(error), ENDED

Phases of a channel: OPENING until open-ok (commands may already be sent: they are pipelined), OPEN,
CLOSING after `close_channel` until close-ok; a channel.close from the broker ends it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Final

from rhizome.amqp import frames, methods
from rhizome.amqp.methods import Method
from rhizome.amqp.primitives import SHORTSTR_BYTES_MAX
from rhizome.amqp.properties import (
    BODY_SIZE_OFFSET,
    PROPERTIES_OFFSET,
    Properties,
    encode_header,
)
from rhizome.amqp.spec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    PROTOCOL_HEADER,
    REPLY_FRAME_ERROR,
    REPLY_SUCCESS,
)
from rhizome.client import errors
from rhizome.client.errors import ConnectionLost, NotOpen, ProtocolViolation, Redirected
from rhizome.client.handshake_settings import CAPABILITIES, Settings, lower, response
from rhizome.client.protocol_events import (
    ChannelEnded,
    ConnectionBlocked,
    ConnectionEnded,
    ConnectionOpened,
    ConnectionUnblocked,
    ContentReceived,
    Event,
    FailoverMapTold,
    MethodReceived,
    MoveAsked,
)
from rhizome.errors import AmqpError

FRAME_PREFIX: Final = Struct(">BHI")
CONTENT_SIZE: Final = Struct(">Q")
HEARTBEAT_FRAME: Final = frames.frame(FRAME_HEARTBEAT, 0, b"")
# The first octet of "AMQP": a broker that wants another protocol version answers with a header.
PROTOCOL_HEADER_OCTET: Final = PROTOCOL_HEADER[0]
PUBLISH_FRAMES_CACHED_MAX: Final = 1024


class Phase(Enum):
    """Where the connection is; the module docstring lists the transitions."""

    START = "start"
    SECURED = "secured"
    TUNED = "tuned"
    OPEN = "open"
    CLOSING = "closing"
    ENDED = "ended"


class ChannelPhase(Enum):
    """Where one channel is."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"


class _ChannelState:
    """One channel number in use, with the content that is being assembled on it.

    Invariant: `header` is None until a content header came for `method`; `missing` counts the body
    bytes that are still to come.
    """

    __slots__ = ("header", "method", "missing", "parts", "phase")

    def __init__(self) -> None:
        self.phase = ChannelPhase.OPENING
        self.method: Method | None = None
        self.header: bytes | None = None
        self.parts: list[bytes] = []
        self.missing = 0

    def end_content(self) -> None:
        """The content is complete, or the rest of it is to be ignored."""
        self.method = None
        self.header = None
        if self.parts:
            self.parts = []


class ClientConnection:
    """Protocol state of one connection: bytes in, events out; methods in, bytes out."""

    def __init__(self, settings: Settings, now_ms: int = 0) -> None:
        self.settings = settings
        self.phase = Phase.START
        self.server_properties: dict[str, object] = {}
        self.channel_max = settings.channel_max
        self.frame_bytes_max = settings.frame_bytes_max
        self.heartbeat_s = 0
        self.pending_bytes = 0
        self._channels: dict[int, _ChannelState] = {}
        self._channel_last = 0
        self._takes_deliveries = False
        self._incoming = b""
        self._outgoing: list[bytes] = []
        self._publish_frames: dict[tuple[int, str, str, bool], bytes] = {}
        self._received_ms = now_ms
        self._sent_ms = now_ms
        self._tick_ms = now_ms
        self._append(PROTOCOL_HEADER)

    # --- what the driver sends

    def data_to_send(self) -> bytes:
        """Everything to write to the socket now; the core forgets it."""
        if not self._outgoing:
            return b""
        data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
        self._outgoing.clear()
        self.pending_bytes = 0
        self._sent_ms = self._tick_ms
        return data

    def open_channel(self) -> int:
        """Take the next free channel number and ask the broker to open it."""
        self._require_open()
        number = self._free_channel()
        self._channels[number] = _ChannelState()
        self._append(frames.method_frame(number, methods.ChannelOpen()))
        return number

    def close_channel(self, channel: int, code: int = REPLY_SUCCESS, text: str = "Goodbye") -> None:
        """Ask the broker to close the channel; `ChannelEnded` reports that it did."""
        state = self._channels.get(channel)
        if state is None or state.phase is ChannelPhase.CLOSING:
            return
        self.send(channel, methods.ChannelClose(code, text, 0, 0))
        state.phase = ChannelPhase.CLOSING

    def close(
        self, code: int = REPLY_SUCCESS, text: str = "Goodbye", *, deliveries: bool = False
    ) -> None:
        """Ask the broker to close the connection; `ConnectionEnded` reports that it did.

        With `deliveries`, those that come before its answer are reported: the broker sent them
        before it got the close, and a session that resumes elsewhere can use them.
        """
        if self.phase in (Phase.CLOSING, Phase.ENDED):
            return
        self._takes_deliveries = deliveries
        for state in self._channels.values():
            if not isinstance(state.method, methods.BasicDeliver):
                state.end_content()
        self._append(frames.method_frame(0, methods.ConnectionClose(code, text, 0, 0)))
        self.phase = Phase.CLOSING

    def send(self, channel: int, method: Method) -> None:
        """Send a method without content on an open channel."""
        self._require_channel(channel)
        self._append(frames.method_frame(channel, method))

    def publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        properties: Properties,
        body: bytes,
    ) -> None:
        """Send basic.publish with its content.

        Raises ValueError, and sends nothing, if a name or property doesn't fit its field.
        """
        self._require_channel(channel)
        key = (channel, exchange, routing_key, mandatory)
        frame = self._publish_frames.get(key) or self._new_publish_frame(key)
        header = encode_header(len(body), properties)
        content = frames.content_frames(channel, header, body, self.frame_bytes_max)
        self._append(frame)
        self._append(content)

    def say(self, method: Method) -> None:
        """Send a method that concerns the connection."""
        self._require_open()
        self._append(frames.method_frame(0, method))

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Hand the broker a new credential; it answers with update-secret-ok on channel 0."""
        self._require_open()
        self._append(frames.method_frame(0, methods.ConnectionUpdateSecret(secret, reason)))

    # --- what the driver reports

    def receive_data(self, data: bytes) -> list[Event]:
        """Take bytes off the socket, in pieces of any size; returns what they mean, in order."""
        events: list[Event] = []
        if self.phase is Phase.ENDED:
            return events
        self._received_ms = self._tick_ms
        try:
            offset = self._complete_frame(data, events) if self._incoming else 0
            if not self._incoming:
                self._receive_frames(data, offset, events)
        except ProtocolViolation as violation:
            events += self.refuse(violation, REPLY_FRAME_ERROR)
        except AmqpError as fault:
            events += self.refuse(ProtocolViolation(f"the broker sent {fault}"), fault.code)
        return events

    def refuse(self, violation: ProtocolViolation, code: int) -> list[Event]:
        """The peer broke the protocol: send a close and expect nothing more."""
        if self.phase is not Phase.START:
            text = str(violation).encode()[:SHORTSTR_BYTES_MAX].decode(errors="ignore")
            self._append(frames.method_frame(0, methods.ConnectionClose(code, text, 0, 0)))
        self.phase = Phase.ENDED
        self._incoming = b""
        return [ConnectionEnded(violation)]

    def connection_lost(self, why: str) -> list[Event]:
        """The socket ended. Nothing is reported if the connection had ended before."""
        if self.phase is Phase.ENDED:
            return []
        error = None if self.phase is Phase.CLOSING else ConnectionLost(why)
        self.phase = Phase.ENDED
        return [ConnectionEnded(error)]

    def tick(self, now_ms: int) -> list[Event]:
        """Note the time: sends a heartbeat when due, and gives up on a silent peer.

        A peer that was silent for two intervals is gone (4.2.7 of the specification).
        """
        self._tick_ms = now_ms
        interval_ms = self.heartbeat_s * 1000
        if interval_ms == 0 or self.phase is not Phase.OPEN:
            return []
        if now_ms - self._received_ms > 2 * interval_ms:
            silence_s = (now_ms - self._received_ms) / 1000
            return self.connection_lost(f"the broker was silent for {silence_s:.1f} s")
        if now_ms - self._sent_ms >= interval_ms // 2:
            self._append(HEARTBEAT_FRAME)
        return []

    def forgive_silence(self) -> None:
        """Count the peer as heard now: the driver was not reading for a reason of its own."""
        self._received_ms = self._tick_ms

    # --- frames

    def _complete_frame(self, data: bytes, events: list[Event]) -> int:
        """Handle the frame that an earlier call has begun, or keep what there is of it; returns
        how much of `data` was handled. Only this frame is joined, not everything behind it: a busy
        driver reads a megabyte at a time.
        """
        before = len(self._incoming)
        begun = self._incoming + data[: max(0, FRAME_OVERHEAD - before)]
        if len(begun) >= FRAME_OVERHEAD:
            size = FRAME_OVERHEAD + FRAME_PREFIX.unpack_from(begun)[2]
            begun = self._incoming + data[: max(0, size - before)]
        self._receive_frames(begun, 0, events)
        return len(data) if self.phase is Phase.ENDED else len(begun) - before

    def _receive_frames(self, data: bytes, offset: int, events: list[Event]) -> None:
        """Handle all complete frames of `data`; keep the rest for the next call."""
        end = len(data)
        unpack = FRAME_PREFIX.unpack_from
        largest = self.frame_bytes_max or 0xFFFFFFFF
        while end - offset >= FRAME_OVERHEAD:
            kind, channel, size = unpack(data, offset)
            if kind == PROTOCOL_HEADER_OCTET and self.phase is Phase.START:
                raise ProtocolViolation("the peer does not speak AMQP 0-9-1; check host and port")
            if size > largest - FRAME_OVERHEAD:
                raise ProtocolViolation(f"the broker sent a frame of {size} bytes, over frame-max")
            following = offset + FRAME_OVERHEAD + size
            if following > end:
                break
            if data[following - 1] != FRAME_END:
                raise ProtocolViolation("the broker sent a frame without its end octet")
            state = self._receive_frame(kind, channel, data[offset + 7 : following - 1], events)
            offset = following
            if state is not None and state.phase is ChannelPhase.OPEN:
                offset = self._receive_content(channel, state, data, offset, events)
            if self.phase is Phase.ENDED:
                break
        self._incoming = data[offset:] if offset < end else b""

    def _receive_content(
        self, channel: int, state: _ChannelState, data: bytes, offset: int, events: list[Event]
    ) -> int:
        """The usual case: a header and the only body frame lie right behind their method.

        Returns the offset after them; or `offset` itself in any other case, which the general
        way then handles or refuses.
        """
        end = len(data)
        if end - offset < FRAME_OVERHEAD + PROPERTIES_OFFSET:
            return offset
        kind, number, size = FRAME_PREFIX.unpack_from(data, offset)
        body_at = offset + FRAME_OVERHEAD + size
        if kind != FRAME_HEADER or number != channel or size < PROPERTIES_OFFSET:
            return offset
        if end - body_at < FRAME_OVERHEAD or data[body_at - 1] != FRAME_END:
            return offset
        kind, number, size = FRAME_PREFIX.unpack_from(data, body_at)
        following: int = body_at + FRAME_OVERHEAD + size
        if kind != FRAME_BODY or number != channel or following > end:
            return offset
        body_bytes = CONTENT_SIZE.unpack_from(data, offset + 7 + BODY_SIZE_OFFSET)[0]
        if size != body_bytes or data[following - 1] != FRAME_END:
            return offset
        header, body = data[offset + 7 : body_at - 1], data[body_at + 7 : following - 1]
        assert state.method is not None
        events.append(ContentReceived(channel, state.method, header, body))
        state.method = None
        return following

    def _receive_frame(
        self, kind: int, channel: int, payload: bytes, events: list[Event]
    ) -> _ChannelState | None:
        """Handle one frame; returns its channel's state if a content has to follow."""
        if kind == FRAME_HEARTBEAT:
            return None
        if channel == 0:
            if kind != FRAME_METHOD:
                raise ProtocolViolation(f"the broker sent a frame of type {kind} on channel 0")
            self._connection_method(methods.decode_method(payload), events)
            return None
        state = self._channels.get(channel)
        if self.phase is Phase.CLOSING and not self._is_of_delivery(kind, state, payload):
            return None
        if state is None:
            raise ProtocolViolation(
                f"the broker sent a frame on channel {channel}, which is closed"
            )
        if kind == FRAME_METHOD:
            self._channel_method(channel, state, payload, events)
            return None if state.method is None else state
        if kind == FRAME_HEADER:
            self._content_header(channel, state, payload, events)
        elif kind == FRAME_BODY:
            self._content_body(channel, state, payload, events)
        else:
            raise ProtocolViolation(f"the broker sent a frame of unknown type {kind}")
        return None

    def _is_of_delivery(self, kind: int, state: _ChannelState | None, payload: bytes) -> bool:
        """Whether a frame that comes while closing belongs to a delivery that is wanted."""
        if state is None or not self._takes_deliveries:
            return False
        if kind != FRAME_METHOD:
            return isinstance(state.method, methods.BasicDeliver)
        return isinstance(methods.decode_method(payload), _OF_DELIVERIES)

    # --- channels

    def _channel_method(
        self, channel: int, state: _ChannelState, payload: bytes, events: list[Event]
    ) -> None:
        if state.method is not None:
            raise ProtocolViolation("the broker sent a method in the middle of a content")
        method = methods.decode_method(payload)
        if isinstance(method, _WITH_CONTENT):
            state.method = method
        elif isinstance(method, methods.ChannelClose):
            self._channel_closed_by_broker(channel, state, method, events)
        elif isinstance(method, methods.ChannelCloseOk):
            self._channels.pop(channel)
            events.append(ChannelEnded(channel, None))
        elif state.phase is not ChannelPhase.CLOSING:
            if isinstance(method, methods.ChannelOpenOk):
                state.phase = ChannelPhase.OPEN
            events.append(MethodReceived(channel, method))

    def _channel_closed_by_broker(
        self, channel: int, state: _ChannelState, method: methods.ChannelClose, events: list[Event]
    ) -> None:
        """Answer close-ok. If our own close crossed it, the broker's close-ok is still to come."""
        self._append(frames.method_frame(channel, methods.ChannelCloseOk()))
        if state.phase is ChannelPhase.CLOSING:
            return
        del self._channels[channel]
        error = errors.channel_error(
            method.reply_code, method.reply_text, method.class_id, method.method_id
        )
        events.append(ChannelEnded(channel, error))

    def _content_header(
        self, channel: int, state: _ChannelState, payload: bytes, events: list[Event]
    ) -> None:
        if state.method is None or state.header is not None:
            raise ProtocolViolation("the broker sent a content header without its method")
        if len(payload) < PROPERTIES_OFFSET:
            raise ProtocolViolation("the broker sent a content header that is too short")
        state.header = payload
        state.missing = CONTENT_SIZE.unpack_from(payload, BODY_SIZE_OFFSET)[0]
        if state.missing == 0:
            self._content_complete(channel, state, b"", events)

    def _content_body(
        self, channel: int, state: _ChannelState, payload: bytes, events: list[Event]
    ) -> None:
        if state.header is None or len(payload) > state.missing:
            raise ProtocolViolation("the broker sent more body than its content header said")
        state.missing -= len(payload)
        if state.missing > 0:
            state.parts.append(payload)
        elif state.parts:
            state.parts.append(payload)
            self._content_complete(channel, state, b"".join(state.parts), events)
        else:
            self._content_complete(channel, state, payload, events)

    def _content_complete(
        self, channel: int, state: _ChannelState, body: bytes, events: list[Event]
    ) -> None:
        assert state.method is not None
        assert state.header is not None
        if state.phase is not ChannelPhase.CLOSING:
            events.append(ContentReceived(channel, state.method, state.header, body))
        state.end_content()

    def _free_channel(self) -> int:
        """The next number, in turn, so that one is reused as late as possible."""
        limit = self.channel_max or 0xFFFF
        for step in range(limit):
            number = (self._channel_last + step) % limit + 1
            if number not in self._channels:
                self._channel_last = number
                return number
        raise NotOpen(
            f"all {limit} channels of the connection are open; close some, or connect again"
        )

    # --- the connection

    def _connection_method(self, method: Method, events: list[Event]) -> None:
        if isinstance(method, methods.ConnectionClose):
            self._closed_by_broker(method, events)
            return
        if self.phase is Phase.CLOSING:
            if isinstance(method, methods.ConnectionCloseOk):
                self.phase = Phase.ENDED
                events.append(ConnectionEnded(None))
            return
        handler = _CONNECTION_METHODS.get((self.phase, type(method)))
        if handler is None:
            name = type(method).__name__
            raise ProtocolViolation(f"the broker sent {name} while {self.phase.value}")
        handler(self, method, events)

    def _start(self, method: Method, events: list[Event]) -> None:
        assert isinstance(method, methods.ConnectionStart)
        self.server_properties = method.server_properties
        offered = method.mechanisms.decode("utf-8", "replace").split()
        if self.settings.mechanism not in offered:
            raise ProtocolViolation(
                f"the broker has no mechanism {self.settings.mechanism}; it offers"
                f" {' '.join(offered)}"
            )
        capabilities = {**CAPABILITIES, **dict.fromkeys(self.settings.capabilities, True)}
        properties = {**self.settings.client_properties, "capabilities": capabilities}
        self._append(
            frames.method_frame(
                0,
                methods.ConnectionStartOk(
                    properties, self.settings.mechanism, response(self.settings), "en_US"
                ),
            )
        )
        self.phase = Phase.SECURED

    def _secure(self, method: Method, events: list[Event]) -> None:
        reply = methods.ConnectionSecureOk(response(self.settings))
        self._append(frames.method_frame(0, reply))

    def _tune(self, method: Method, events: list[Event]) -> None:
        """Answer with the lower of both values; 0 means "no limit" (heartbeat: "none")."""
        assert isinstance(method, methods.ConnectionTune)
        self.channel_max = lower(method.channel_max, self.settings.channel_max)
        self.frame_bytes_max = lower(method.frame_max, self.settings.frame_bytes_max)
        self.heartbeat_s = self.settings.heartbeat_s
        if method.heartbeat and self.heartbeat_s:
            self.heartbeat_s = min(method.heartbeat, self.heartbeat_s)
        tuned = methods.ConnectionTuneOk(self.channel_max, self.frame_bytes_max, self.heartbeat_s)
        self._append(frames.method_frame(0, tuned))
        self._append(frames.method_frame(0, methods.ConnectionOpen(self.settings.vhost)))
        self.phase = Phase.TUNED

    def _open_ok(self, method: Method, events: list[Event]) -> None:
        assert isinstance(method, methods.ConnectionOpenOk)
        self.phase = Phase.OPEN
        self._received_ms = self._tick_ms
        events.append(ConnectionOpened(self.server_properties, method.known_hosts))

    def _redirected(self, method: Method, events: list[Event]) -> None:
        assert isinstance(method, methods.ConnectionRedirect)
        self.phase = Phase.ENDED
        events.append(ConnectionEnded(Redirected(method.host, method.known_hosts)))

    def _blocked(self, method: Method, events: list[Event]) -> None:
        assert isinstance(method, methods.ConnectionBlocked)
        events.append(ConnectionBlocked(method.reason))

    def _unblocked(self, method: Method, events: list[Event]) -> None:
        events.append(ConnectionUnblocked())

    def _map_told(self, method: Method, events: list[Event]) -> None:
        assert isinstance(method, methods.SessionFailoverMap)
        events.append(FailoverMapTold(method.version, method.entries))

    def _move_asked(self, method: Method, events: list[Event]) -> None:
        assert isinstance(method, methods.SessionMove)
        events.append(MoveAsked(method.host, method.known_hosts))

    def _secret_updated(self, method: Method, events: list[Event]) -> None:
        events.append(MethodReceived(0, method))

    def _closed_by_broker(self, method: methods.ConnectionClose, events: list[Event]) -> None:
        self._append(frames.method_frame(0, methods.ConnectionCloseOk()))
        crossed = self.phase is Phase.CLOSING
        self.phase = Phase.ENDED
        error = errors.connection_error(
            method.reply_code, method.reply_text, method.class_id, method.method_id
        )
        events.append(ConnectionEnded(None if crossed else error))

    # --- small things

    def _append(self, data: bytes) -> None:
        self._outgoing.append(data)
        self.pending_bytes += len(data)

    def _require_open(self) -> None:
        if self.phase is not Phase.OPEN:
            raise NotOpen(f"the connection is {self.phase.value}, not open; connect again")

    def _require_channel(self, channel: int) -> None:
        if self.phase is not Phase.OPEN:
            self._require_open()
        state = self._channels.get(channel)
        if state is None or state.phase is ChannelPhase.CLOSING:
            raise NotOpen(f"channel {channel} is closed; open another")

    def _new_publish_frame(self, key: tuple[int, str, str, bool]) -> bytes:
        channel, exchange, routing_key, mandatory = key
        method = methods.BasicPublish(
            exchange=exchange, routing_key=routing_key, mandatory=mandatory
        )
        frame = frames.method_frame(channel, method)
        if len(self._publish_frames) >= PUBLISH_FRAMES_CACHED_MAX:
            self._publish_frames.clear()
        self._publish_frames[key] = frame
        return frame


_WITH_CONTENT: Final = (methods.BasicDeliver, methods.BasicGetOk, methods.BasicReturn)
_OF_DELIVERIES: Final = (methods.BasicDeliver, methods.SessionMessage)

_Handler = Callable[[ClientConnection, Method, list[Event]], None]
_CONNECTION_METHODS: Final[dict[tuple[Phase, type[Method]], _Handler]] = {
    (Phase.START, methods.ConnectionStart): ClientConnection._start,
    (Phase.SECURED, methods.ConnectionSecure): ClientConnection._secure,
    (Phase.SECURED, methods.ConnectionTune): ClientConnection._tune,
    (Phase.TUNED, methods.ConnectionOpenOk): ClientConnection._open_ok,
    (Phase.TUNED, methods.ConnectionRedirect): ClientConnection._redirected,
    (Phase.OPEN, methods.ConnectionBlocked): ClientConnection._blocked,
    (Phase.OPEN, methods.ConnectionUnblocked): ClientConnection._unblocked,
    (Phase.OPEN, methods.ConnectionUpdateSecretOk): ClientConnection._secret_updated,
    (Phase.OPEN, methods.SessionFailoverMap): ClientConnection._map_told,
    (Phase.OPEN, methods.SessionMove): ClientConnection._move_asked,
}
