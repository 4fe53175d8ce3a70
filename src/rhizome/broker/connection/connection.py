"""Connection: the AMQP connection of one client, as a sans-IO core.

The shell feeds ``receive`` with bytes as they come and writes what it finds in ``outbox`` at the
end of the turn. The hot path is ``_run``: one pass over the receive buffer that takes a publish
(method, header, body) as one unit by offset and hands everything else to the channel or the
handshake.

The states of a connection are in ``connection_states.py``, the frames off the hot path in
``control_frames.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
)
from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.amqp.spec import (
    BASIC,
    CODE_BASIC_ACK,
    CODE_BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
)
from rhizome.broker.access.auth_interface import Identity, Peer
from rhizome.broker.channel.channel import Channel
from rhizome.broker.connection.connection_states import CLOSED, CLOSING, HEADER, RUNNING
from rhizome.broker.connection.control_frames import (
    bad_frame,
    bad_frame_end,
    protocol_header,
    slow_frame,
)
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.publishing.blocked_publishers import content_awaited, leave_unread
from rhizome.broker.publishing.publish_path import publish
from rhizome.broker.publishing.publish_route import PublishRoute
from rhizome.broker.routing.router import Router
from rhizome.broker.turn import TURN_WORK_MAX, MarkedConnection
from rhizome.errors import (
    AmqpError,
    ChannelError,
    ChannelFault,
    ConnectionForced,
    InternalFault,
)

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection.amqp_handshake import Handshake
    from rhizome.broker.metadata.vhost import VHost

OUTBOX_BYTES_MAX: Final = 1 << 20
"""Deliveries stop while this much waits to be written; control frames may pass it."""

UNIT_BODY_BYTES_MAX: Final = 128 * 1024
"""Larger bodies are collected frame by frame, so that a growing tail isn't copied again and
again."""

REPLIES_BYTES_MAX: Final = 8 << 20
"""The broker stops reading from a client that does not read its answers while this much waits for
it."""

HELD_BYTES_MAX: Final = 1 << 20
"""A suspended connection takes this much more input before the shell stops reading from it."""

UNIT_FRAME_BYTES_MIN: Final = 2048
"""A body whose frames, except the last, are smaller than this is also collected frame by frame: an
incomplete unit is scanned again with each frame that arrives."""

HANDSHAKE_FRAME_MAX: Final = 16 * 1024
"""The frame limit before tune: room for large credentials, not for a flood."""

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"


@final
class Connection(MarkedConnection):
    """Invariant: at most one of ``tail`` and ``held`` is in use: an incomplete unit waits in
    ``tail`` while the connection runs, whole reads wait in ``held`` while it is suspended."""

    broker: Broker
    id: i64
    name: str
    peer: Peer
    stage: i64
    outbox: Outbox
    marked: bool
    writable: bool
    output_held: bool
    consumer_bytes: i64
    shell_writable: bool
    full: bool
    suspensions: i64
    releases: i64
    """The closed channels of this connection that have not put everything back yet."""
    close_answer: Method | None
    """What is sent when they have."""
    stalled: bool
    paused: bool
    resting: bool
    waiting: bool
    """Whether input has to wait: for an answer (``suspensions``), for the end of an alarm
    (``stalled``), for consumers (``paused``) or for the next turn (``resting``). It is kept beside
    the four because every frame asks."""
    drained_ms: i64
    publishing: bool
    frame_max: i64
    channel_max: i64
    heartbeat_s: i64
    last_received_ms: i64
    last_sent_ms: i64
    connected_ms: i64
    resume_id: str
    visit: i64
    has_resumed: bool
    channels: dict[int, Channel]
    last_channel: Channel | None
    tail: bytes
    held: list[bytes]
    held_bytes: i64
    at: i64
    current: i64
    vhost: VHost
    router: Router
    routes: dict[bytes, PublishRoute]
    owner: str
    unit_body_max: i64
    current_code: i64
    identity: Identity
    handshake: Handshake | None
    client_properties: dict[str, object]
    cancel_notify: bool
    blocked_notify: bool
    blocked_reason: str
    received_bytes: i64
    sent_bytes: i64
    unfinished_bytes: i64
    private_queues: dict[str, None]
    port: object

    def __init__(
        self,
        broker: Broker,
        number: i64,
        name: str,
        peer: Peer,
        handshake: Handshake,
        vhost: VHost,
        identity: Identity,
    ) -> None:
        self.broker = broker
        self.id = number
        self.name = name
        self.peer = peer
        self.stage = HEADER
        self.outbox = Outbox()
        self.marked = False
        self.writable = self.shell_writable = True
        self.output_held = self.full = False
        self.suspensions = self.releases = self.consumer_bytes = 0
        self.stalled = False
        self.paused = self.resting = self.waiting = False
        self.drained_ms = 0
        self.publishing = False
        self.frame_max = HANDSHAKE_FRAME_MAX
        self.channel_max = 0
        self.heartbeat_s = 0
        self.last_received_ms = self.last_sent_ms = self.connected_ms = broker.turn.now_ms
        self.resume_id = ""
        self.visit = 0
        self.has_resumed = False
        self.channels = {}
        self.last_channel = None
        self.tail = b""
        self.held = []
        self.held_bytes = 0
        self.at = 0
        self.current = 0
        self.vhost = vhost
        self.router = vhost.router
        self.routes = vhost.routes
        self.owner = f"{broker.incarnation}.{number}"
        self.unit_body_max = min(UNIT_BODY_BYTES_MAX, broker.limits.message_bytes_max)
        self.current_code = 0
        self.identity = identity
        self.handshake = handshake
        self.client_properties = {}
        self.cancel_notify = False
        self.blocked_notify = False
        self.blocked_reason = ""
        self.received_bytes = self.sent_bytes = 0
        self.unfinished_bytes = 0
        self.private_queues = {}
        self.port = self.close_answer = None

    # ---- what the shell and the channels use ----------------------------------------------------

    def can_write(self) -> bool:
        if self.outbox.size() >= OUTBOX_BYTES_MAX:
            self.full = True
            return False
        return self.writable

    def flushed(self) -> None:
        """The shell has written the outbox: continue deliveries that had no room in it."""
        self.marked = False
        if self.writable:
            self.drained_ms = self.broker.turn.now_ms
        if self.full:
            self.full = False
            self.wake_consumers()

    def wants_input(self) -> bool:
        """Whether the shell should go on reading from the socket."""
        if self.stalled or self.paused or self.outbox.size() >= REPLIES_BYTES_MAX:
            return False
        return (self.suspensions == 0 and not self.resting) or self.held_bytes < HELD_BYTES_MAX

    def _update_waiting(self) -> None:
        self.waiting = self.suspensions > 0 or self.stalled or self.paused or self.resting

    def touch(self) -> None:
        """Ask for a flush of the outbox at the end of this turn."""
        if not self.marked:
            self.marked = True
            self.broker.turn.connections.append(self)

    def send(self, channel: i64, method: Method) -> None:
        self.outbox.put(method_frame(channel, method))
        self.touch()

    def hold_output(self) -> None:
        """Have nothing written until `let_output_go`, whatever the shell's write buffer does."""
        if not self.output_held:
            self.output_held = True
            self.shell_writable = self.writable
            self.writable = False

    def let_output_go(self) -> None:
        if self.output_held:
            self.output_held = False
            if self.stage == CLOSED:
                return
            self.set_writable(self.shell_writable)
            self.touch()

    def set_writable(self, writable: bool) -> None:
        """The shell's write buffer has passed its high or low mark."""
        if self.output_held:
            self.shell_writable = writable
            return
        if writable and not self.writable:
            self.writable = True
            self.drained_ms = self.broker.turn.now_ms
            self.wake_consumers()
        else:
            self.writable = writable

    def wake_consumers(self) -> None:
        """Have the queues of all consumers here dispatched again."""
        for channel in self.channels.values():
            channel.wake_consumers()

    def suspend(self) -> None:
        """Stop after the current frame until each ``suspend`` has had its ``resume``."""
        self.suspensions += 1
        self.waiting = True

    def resume(self) -> None:
        """The event that a ``suspend`` waited for has come."""
        self.suspensions -= 1
        self._update_waiting()
        self._go_on()

    def pause(self) -> None:
        """Take no input for a while, because consumers of what was published here are busy."""
        self.paused = self.waiting = True
        self.touch()

    def unpause(self) -> None:
        self.paused = False
        self._update_waiting()
        self._go_on()

    def _hold(self, data: bytes, at: i64, worked: bool) -> None:
        """Keep input from ``at`` on for later. If nothing else is waited for, that is the next
        turn, because this one is full. ``worked``: this connection has had a share of it."""
        if not self.waiting:
            self.resting = self.waiting = True
            turn = self.broker.turn
            waiting = turn.resting if worked else turn.deferred
            waiting.append(self)
        self.held.append(data[at:])
        self.held_bytes += len(data) - at
        self.at = len(data)

    def take_up(self) -> None:
        """The next turn has come: continue."""
        self.resting = False
        self._update_waiting()
        self._go_on()

    def _go_on(self) -> None:
        """Process what came in while the connection waited."""
        if self.stage == CLOSED:
            return
        self.touch()
        held = self.held
        if len(held) > 0 and not self.waiting:
            self.held = []
            self.held_bytes = 0
            self._consume(b"".join(held))

    # ---- input ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if self.stage == CLOSED:
            return
        self.received_bytes += len(data)
        turn = self.broker.turn
        self.last_received_ms = turn.now_ms
        if self.waiting:
            self.held.append(data)
            self.held_bytes += len(data)
            return
        self._consume(data)

    def _consume(self, data: bytes) -> None:
        self.at = 0
        if len(self.tail) > 0:
            data = self._complete_tail(data)
        if len(data) > 0:
            self._run_guarded(data)

    def _complete_tail(self, data: bytes) -> bytes:
        """Move bytes to the tail until its first unit is whole, and run that.

        So a message across two reads costs a copy of itself, not of the reads. Returns what is to
        be run next, from ``self.at`` on; nothing if everything has to wait.
        """
        used: i64 = 0
        tail = self.tail
        while True:
            missing = self._missing(tail)
            if missing == 0:
                break
            piece = data[used : used + missing]
            tail += piece
            used += len(piece)
            if len(piece) < missing:
                self.tail = tail
                return b""
        self.tail = b""
        self._run_guarded(tail)
        if self.stage == CLOSED:
            return b""
        if self.waiting:
            if used < len(data):
                self.held.append(data[used:])
                self.held_bytes += len(data) - used
            return b""
        if len(self.tail) > 0:
            # Only the beginning was a unit of its own (a publish without its content, say).
            data = self.tail + data[used:]
            self.tail = b""
            used = 0
        self.at = used
        return data if used < len(data) else b""

    def _missing(self, tail: bytes) -> i64:
        """The least number of bytes that the unit at the start of ``tail`` lacks; 0 if it can be
        run."""
        size: i64 = len(tail)
        if self.stage == HEADER:
            return 8 - size if size < 8 else 0
        if size < 7:
            return 7 - size
        frame = u32_at(tail, 3)
        if frame > self.frame_max or tail[0] > FRAME_HEARTBEAT:
            return 0
        end: i64 = frame + 8
        if size < end:
            return end - size
        number = u16_at(tail, 1)
        if tail[0] != FRAME_METHOD or frame < 4 or read_i32_be(tail, 7) != CODE_BASIC_PUBLISH:
            return 0
        channel = self.channels.get(number)
        if channel is None or channel.content_key is not None:
            return 0
        return self._missing_content(tail, end, number, size)

    def _missing_content(self, tail: bytes, at: i64, number: i64, size: i64) -> i64:
        left: i64 = -1
        while left != 0:
            if size < at + 7:
                return at + 7 - size
            kind = FRAME_HEADER if left < 0 else FRAME_BODY
            frame = u32_at(tail, at + 3)
            if tail[at] != kind or u16_at(tail, at + 1) != number or frame > self.frame_max:
                return 0
            if frame < left and frame < UNIT_FRAME_BYTES_MIN:
                return 0
            if size < at + frame + 8:
                return at + frame + 8 - size
            if left < 0:
                left = read_i64_be(tail, at + 11) if frame >= 14 else 0
                if left < 0 or left > self.unit_body_max:
                    return 0
            else:
                left = left - frame if frame < left else 0
            at += frame + 8
        return 0

    def _run_guarded(self, data: bytes) -> None:
        """Run frames; turn errors into closes."""
        while True:
            try:
                self._run(data)
                return
            # One name per clause: a variable of compiled code has one type.
            except ChannelError as soft:
                self._fail_channel(soft)
            except AmqpError as hard:
                self.fail(hard)
                if self.stage == CLOSED:
                    return
            except Exception as bug:
                self.broker.report_bug(bug, self.name)
                self.fail(InternalFault("the broker made a mistake; its log has the details"))
                return

    def _run(self, data: bytes) -> None:
        """Run all whole units from ``self.at`` on; keep the rest in ``tail``.

        ``self.at`` is behind the current frame before anything may raise: the next is taken then.
        """
        end: i64 = len(data)
        at: i64 = self.at
        if self.stage == HEADER:
            at = protocol_header(self, data, at, end)
            if at == 0:
                return
        turn = self.broker.turn
        began: i64 = at
        while end - at >= 7:
            if self.waiting or turn.work >= TURN_WORK_MAX:
                self._hold(data, at, at > began)
                return
            head: i64 = read_i64_be(data, at) if end - at > 7 else _short_head(data, at)
            size: i64 = head >> 8 & 0xFFFFFFFF
            after: i64 = at + size + 8
            kind: i64 = head >> 56 & 0xFF
            if size > self.frame_max or kind > FRAME_HEARTBEAT:
                bad_frame(self, data, at, size, end)
            if after > end:
                break
            if data[after - 1] != FRAME_END:
                bad_frame_end(self, data, at, size)
            self.current = number = head >> 40 & 0xFFFF
            self.at = after
            if kind == FRAME_METHOD and size >= 4 and self.stage == RUNNING:
                code: i64 = i64(read_i32_be(data, at + 7))
                if code == CODE_BASIC_PUBLISH:
                    if self.broker.suspended:
                        leave_unread(self.broker, self)
                        continue
                    channel = self._channel(number, code)
                    done = self._publish_unit(channel, data, at, after, end)
                    if done == 0:
                        content_awaited(self.broker, self)
                        break
                    at = done
                    continue
                if code == CODE_BASIC_ACK and size == 13:
                    channel = self._channel(number, code)
                    channel.ack(read_i64_be(data, at + 11), data[at + 19] & 1 == 1)
                    at = after
                    continue
            slow_frame(self, kind, number, data, at, after)
            if self.stage == CLOSED:
                return
            at = after
        self.at = end
        self.tail = data[at:] if at > 0 else data

    def _publish_unit(
        self, channel: Channel, data: bytes, at: i64, header_at: i64, end: i64
    ) -> i64:
        """Take method, header and body frames at once.

        Returns the offset behind the unit; 0 if bytes are missing. A content that is interleaved
        with frames of other channels, too large or broken goes frame by frame through the channel.
        """
        if channel.content_key is not None:
            return self._publish_by_frames(channel, data, at, header_at)
        if channel.closing:
            slow_frame(self, FRAME_METHOD, channel.number, data, at, header_at)
            return header_at
        if end - header_at < 8:
            return 0
        head: i64 = read_i64_be(data, header_at)
        size: i64 = head >> 8 & 0xFFFFFFFF
        body_at: i64 = header_at + size + 8
        if (
            head >> 40 & 0xFFFFFF != FRAME_HEADER << 16 | channel.number
            or size < 14
            or size > self.frame_max
        ):
            return self._publish_by_frames(channel, data, at, header_at)
        if body_at > end:
            return 0
        left = read_i64_be(data, header_at + 11)
        if (
            left < 0
            or left > self.unit_body_max
            or data[body_at - 1] != FRAME_END
            or u16_at(data, header_at + 7) != BASIC
        ):
            return self._publish_by_frames(channel, data, at, header_at)
        frame_bytes_max: i64 = size + 8
        next_at: i64 = body_at
        while left > 0:
            if end - next_at < 8:
                return 0
            head = read_i64_be(data, next_at)
            size = head >> 8 & 0xFFFFFFFF
            after: i64 = next_at + size + 8
            if (
                head >> 40 & 0xFFFFFF != FRAME_BODY << 16 | channel.number
                or size > left
                or (size < left and size < UNIT_FRAME_BYTES_MIN)
                or size > self.frame_max
            ):
                return self._publish_by_frames(channel, data, at, header_at)
            if after > end:
                return 0
            if data[after - 1] != FRAME_END:
                return self._publish_by_frames(channel, data, at, header_at)
            if size + 8 > frame_bytes_max:
                frame_bytes_max = size + 8
            left -= size
            next_at = after
        self.at = next_at
        publish(channel, data[at + 11 : header_at - 1], data[header_at:next_at], frame_bytes_max)
        return next_at

    def _publish_by_frames(self, channel: Channel, data: bytes, at: i64, after: i64) -> i64:
        self.at = after
        channel.begin_content(data[at + 11 : after - 1])
        return after

    def _channel(self, number: i64, code: i64) -> Channel:
        last = self.last_channel
        if last is not None and last.number == number:
            return last
        channel = self.channels.get(number)
        if channel is None:
            raise ChannelFault("expected 'channel.open'", code >> 16, code & 0xFFFF)
        self.last_channel = channel
        return channel

    def leave_behind(self, channel: Channel) -> None:
        """Another connection has taken a closed channel over: put an empty one in its place
        here."""
        self.last_channel = None
        if channel.number in self.channels:
            remains = Channel(self, channel.number)
            remains.closing = True
            self.channels[channel.number] = remains

    def forget_channel(self, channel: Channel) -> None:
        """Forget a channel; its number may be used again."""
        if self.last_channel is channel:
            self.last_channel = None
        self.channels.pop(channel.number, None)

    # ---- closing --------------------------------------------------------------------------------

    def _fail_channel(self, error: AmqpError) -> None:
        """Close the channel whose frame raised; the connection lives on."""
        channel = self.channels.get(self.current)
        if channel is None or self.stage != RUNNING:
            self.fail(error)
            return
        if error.class_id == 0:
            error.class_id = self.current_code >> 16
            error.method_id = self.current_code & 0xFFFF
        channel.fail(error)

    def fail_on(self, channel: Channel, error: AmqpError) -> None:
        """Report a late error, for a method that this channel has been waiting on."""
        if self.stage == CLOSED:
            return
        if isinstance(error, ChannelError):
            channel.fail(error)
        else:
            self.fail(error)

    def fail(self, error: AmqpError) -> None:
        """Close the connection with the error's code and wait for close-ok."""
        if self.stage >= CLOSING:
            return
        self.close_channels()
        self.broker.connection_failed(self, error)
        self.answer_close(
            ConnectionClose(error.code, error.reply_text(), error.class_id, error.method_id)
        )
        self.tail = b""
        if self.stage == RUNNING:
            self.stage = CLOSING
        else:
            # A client that hasn't finished the handshake is not waited for.
            self.stop()

    def force_close(self, reason: str) -> None:
        """Close on behalf of an operator or of a stopping broker."""
        if self.stage == RUNNING:
            self.fail(ConnectionForced(reason))
        else:
            self.stop()

    def close_channels(self) -> None:
        """Give back everything that clients have through this connection."""
        if len(self.resume_id) > 0:
            for channel in self.channels.values():
                if channel.settlement is not None:
                    channel.settlement.finish()
            self.broker.suspended_sessions.keep(self)
        for channel in list(self.channels.values()):
            channel.release()
        self.channels = {}
        self.last_channel = None
        self.broker.drop_private_queues(self)

    def answer_close(self, answer: Method) -> None:
        """Send what ends the connection, once its channels have put back what they held."""
        if self.releases == 0:
            self.send(0, answer)
        else:
            self.close_answer = answer

    def released(self) -> None:
        """One of its channels has put back what it held."""
        self.releases -= 1
        answer = self.close_answer
        if self.releases == 0 and answer is not None:
            self.close_answer = None
            if self.stage != CLOSED:
                self.send(0, answer)

    def stop(self) -> None:
        """Nothing more is read; the shell closes the socket once the outbox is written."""
        self.stage = CLOSED
        self.tail = b""
        self.held = []
        self.touch()

    def lost(self) -> None:
        """The socket is gone."""
        self.close_channels()
        self.stage = CLOSED
        self.tail = b""
        self.held = []
        self.writable = False
        self.broker.connection_gone(self)

    # ---- alarms ---------------------------------------------------------------------------------

    def set_blocked(self, reason: str) -> None:
        """Block publishers, or (with an empty reason) unblock them."""
        if self.blocked_notify and (reason == "") != (self.blocked_reason == ""):
            self.send(0, ConnectionBlocked(reason) if reason else ConnectionUnblocked())
        self.blocked_reason = reason

    def set_stalled(self, stalled: bool) -> None:
        """Stop taking input from a publisher until the broker can keep up again."""
        if stalled == self.stalled:
            return
        self.stalled = stalled
        self._update_waiting()
        self.touch()
        if not stalled:
            self._go_on()


def _short_head(data: bytes, at: i64) -> i64:
    """Type, channel and size of a frame, where its first eight bytes would have them as one number,
    when only these seven have come."""
    return read_i64_be(data[at : at + 7] + b"\0", 0)
