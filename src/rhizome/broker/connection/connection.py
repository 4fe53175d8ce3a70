"""Connection: the AMQP connection of one client, as a sans-IO core.

The shell feeds ``receive`` with bytes as they come and writes what it finds in ``outbox`` at the
end of the turn. Here is what a connection has and what is done to it as a whole. Its states are in
``connection_states.py``; its input is read by ``frame_reader.py``, and the frames off the hot path
by ``control_frames.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
)
from rhizome.broker.access.auth_interface import Identity, Peer
from rhizome.broker.channel.channel import Channel
from rhizome.broker.connection.connection_states import CLOSED, CLOSING, HEADER, RUNNING
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.message import Route
from rhizome.broker.routing.router import Router
from rhizome.broker.turn import MarkedConnection
from rhizome.errors import (
    AmqpError,
    ChannelError,
    ConnectionForced,
)

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
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

HANDSHAKE_FRAME_MAX: Final = 16 * 1024
"""The frame limit before tune: room for large credentials, not for a flood."""

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class InputReader:
    """Reads what came for a connection."""

    def consume(self, connection: Connection, data: bytes) -> None:
        """Run all whole units of the input, and keep the rest in the connection's ``tail``."""
        raise NotImplementedError


class OpeningHandshake:
    """The part of a connection's life before it runs; dropped once it does."""

    def start(self, connection: Connection) -> None:
        """The protocol header was right: send connection.start."""
        raise NotImplementedError

    def handle(self, connection: Connection, method: Method) -> None:
        """A method on channel 0 before the connection runs."""
        raise NotImplementedError


@final
class Connection(MarkedConnection):
    """Invariant: at most one of ``tail`` and ``held`` is in use: an incomplete unit waits in
    ``tail`` while the connection runs, whole reads wait in ``held`` while it is suspended."""

    broker: BrokerContext
    reader: InputReader
    id: i64
    peer: Peer
    stage: i64
    outbox: Outbox
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
    routes: dict[bytes, Route]
    owner: str
    unit_body_max: i64
    current_code: i64
    identity: Identity
    handshake: OpeningHandshake | None
    client_properties: dict[str, object]
    cancel_notify: bool
    blocked_notify: bool
    blocked_reason: str
    received_bytes: i64
    sent_bytes: i64
    unfinished_bytes: i64
    private_queues: dict[str, None]

    def __init__(
        self,
        broker: BrokerContext,
        reader: InputReader,
        number: i64,
        name: str,
        peer: Peer,
        handshake: OpeningHandshake,
        vhost: VHost,
        identity: Identity,
    ) -> None:
        self.broker = broker
        self.reader = reader
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
        self.received_bytes = self.sent_bytes = self.unfinished_bytes = 0
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

    def hold(self, data: bytes, at: i64, worked: bool) -> None:
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
            self.reader.consume(self, b"".join(held))

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
        self.reader.consume(self, data)

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

    def fail_channel(self, error: AmqpError) -> None:
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
            self.broker.sessions.keep(self)
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
