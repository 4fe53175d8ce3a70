"""Shell: drives the broker core from the event loop, one turn per wake-up. Compiled.

All sockets that are readable in one iteration of the loop feed the core; then ``_end_turn`` runs
once: dispatch, one batch to the journal, one write per connection. The numbered duties are in
``rhizome.broker.broker``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.access.auth_interface import Peer
from rhizome.broker.broker import Broker
from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.connection_states import CLOSED, RUNNING
from rhizome.broker.fault_log import FAULT_TIMER, FAULT_TURN
from rhizome.broker.queue.due_heap import NEVER_DUE_MS
from rhizome.server.event_loop.busy_poll import BusyPoll
from rhizome.server.event_loop.stopwatch import Stopwatch

TURN_INPUT_BYTES_MAX: Final = 512 * 1024
"""How many bytes one connection may feed into one turn. The event loop would read up to 32 times
its buffer from a busy socket before others get a turn, and queues would swell before they are
dispatched."""

TURN_PARTS: Final = (
    "the end of a turn",
    "the end of a turn of the cluster",
    "the hand-over to the disk",
    "the writing to clients",
    "the writing to links",
    "the reading from busy clients",
)
"""The parts of the end of a turn, in this order."""
SUBMIT_PART: Final = 2

CONNECTIONS_MAX: Final = 1 << 30
"""Open sockets, if the limit of open files is not known."""

WAKE_AHEAD_MS: Final = 100
"""What is due later than this is looked at again in a later turn; there is one per tick."""

WRITTEN_BYTES_MAX: Final = 32 << 20
"""How much is handed to sockets in one turn, which takes about 20 ms; other connections wait for
the next turn."""
WRITE_BUFFER_HIGH_BYTES: Final = 1 << 20
WRITE_BUFFER_LOW_BYTES: Final = 1 << 18


@mypyc_attr(allow_interpreted_subclasses=True)
class TurnPart:
    """A part besides the broker core that takes part in every turn; this base class does
    nothing."""

    def turn_began(self) -> None:
        """A wake-up has begun."""

    def turn_ending(self) -> None:
        """The broker is done with the turn; nothing of it is written yet."""

    def turn_ended(self) -> None:
        """The broker is done with the turn: write what it has handed to others."""

    def ticked(self) -> None:
        """Time has passed."""


@final
class Shell:
    """Invariant: ``scheduled`` is set exactly while ``_end_turn`` waits in the loop."""

    broker: Broker
    cluster: Any
    store: Any
    loop: Any
    clock_ms: Callable[[], int]
    busy_poll: BusyPoll
    stopwatch: Stopwatch
    scheduled: bool
    turns: i64
    congested: bool
    alarm: str
    satiated: list[ClientProtocol]
    links: TurnPart
    wakes_ms: i64
    """When the loop wakes up for a delayed message; `NEVER_DUE_MS` if it need not."""
    connections_max: i64
    turned_away: i64

    def __init__(
        self,
        broker: Broker,
        cluster: Any,
        store: Any,
        loop: Any,
        clock_ms: Callable[[], int],
        busy_poll: BusyPoll,
    ) -> None:
        self.broker = broker
        self.cluster = cluster
        self.store = store
        self.loop = loop
        self.clock_ms = clock_ms
        self.busy_poll = busy_poll
        self.stopwatch = Stopwatch(broker.turn, time.monotonic_ns, time.thread_time_ns)
        self.scheduled = False
        self.turns = 0
        self.congested = False
        self.alarm = ""
        self.satiated = []
        self.links = TurnPart()
        self.wakes_ms = NEVER_DUE_MS
        self.connections_max = CONNECTIONS_MAX
        self.turned_away = 0

    def begin_turn(self) -> None:
        """Something happened: read the clock once and schedule the end of the turn."""
        if self.scheduled:
            return
        self.scheduled = True
        self.stopwatch.begin()
        now_ms: i64 = self.clock_ms()
        turn = self.broker.turn
        # Never backwards: expiry and waiting times are differences of these times.
        if now_ms > turn.now_ms:
            turn.now_ms = now_ms
        self.links.turn_began()
        self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Do everything that ends a turn, whatever one part of it raises."""
        self.scheduled = False
        self.turns += 1
        broker = self.broker
        part: i64 = 0
        while part < len(TURN_PARTS):
            try:
                self._end_part(part)
            except Exception as error:
                self._fault(part, error)
            part += 1
        self.stopwatch.end()
        if broker.delayed.next_ms < self.wakes_ms:
            self._wake_when_due()
        if broker.turn.pending():
            self.begin_turn()

    def _wake_when_due(self) -> None:
        """A delayed message comes when it is due, and not at the next tick. What was due in this
        turn and had to stay waits for a tick."""
        due_ms: i64 = self.broker.delayed.next_ms
        left_ms: i64 = due_ms - self.clock_ms()
        if due_ms > self.broker.turn.now_ms and left_ms <= WAKE_AHEAD_MS:
            self.wakes_ms = due_ms
            self.loop.call_later(max(left_ms, 0) / 1000, self._due)

    def _due(self) -> None:
        self.wakes_ms = NEVER_DUE_MS
        self.begin_turn()
        try:
            self.broker.delayed.release_due(self.broker.turn.now_ms)
        except Exception as error:
            self.broker.report_bug(error, "delayed messages", FAULT_TIMER)

    def _end_part(self, part: i64) -> None:
        turn = self.broker.turn
        if part == 0:
            self.stopwatch.input_taken()
            turn.doing = None
            self.broker.end_turn()
            turn.doing = "output"
        elif part == 1:
            self.links.turn_ending()
        elif part == SUBMIT_PART:
            self.submit()
        elif part == 3:
            self._write_outboxes()
        elif part == 4:
            self.links.turn_ended()
        elif len(self.satiated) > 0:
            satiated = self.satiated
            self.satiated = []
            for protocol in satiated:
                protocol.resume_input()

    def _fault(self, part: i64, error: Exception) -> None:
        where = TURN_PARTS[part]
        if part == SUBMIT_PART:
            # A batch may be lost, and later syncs would count as if it were not.
            self.broker.disable(error, where)
        else:
            self.broker.report_bug(error, where, FAULT_TURN)

    def make_room(self) -> bool:
        """Whether one more connection may be open. If there are too many, the oldest that has not
        logged in makes room: files are needed for the journal, too."""
        connections = self.broker.connections
        if len(connections) < self.connections_max:
            return True
        self.turned_away += 1
        for connection in connections.values():
            if connection.stage < RUNNING:
                connection.stop()
                return True
        return False

    def submit(self) -> None:
        """Hand what was appended in this turn to the disk."""
        store = self.store
        if store.pending():
            token: i64 = store.submit(self.broker.turn.now_ms)
            self.broker.handed_over(token)
            if store.congested() and not self.congested:
                self.congested = True
                self._apply_block()
            self.broker.submitted()

    def _write_outboxes(self) -> None:
        connections = self.broker.turn.connections
        if len(connections) == 0:
            return
        self.broker.turn.connections = []
        written: i64 = 0
        for at, connection in enumerate(connections):
            if written >= WRITTEN_BYTES_MAX:
                # They are marked, so what they are sent meanwhile goes with the rest.
                self.broker.turn.connections = connections[at:] + self.broker.turn.connections
                return
            protocol = connection.port
            if isinstance(protocol, ClientProtocol):
                try:
                    written += protocol.flush()
                except Exception as error:
                    self.broker.report_bug(error, connection.name)
                    protocol.transport.abort()

    def durable(self, token: i64) -> None:
        """The store has synced everything below ``token``."""
        self.begin_turn()
        self.broker.synced(token)
        self._check_congestion()

    def set_alarm(self, reason: str) -> None:
        """Memory or disk ran short (or, with an empty reason, is fine again)."""
        if reason != self.alarm:
            self.alarm = reason
            self.begin_turn()
            self._apply_block()

    def _check_congestion(self) -> None:
        """Check whether the writers have caught up; those of spill segments don't report it."""
        if self.congested and not self.store.congested():
            self.congested = False
            self._apply_block()

    def _apply_block(self) -> None:
        if self.alarm or self.congested:
            self.broker.block(self.alarm)
        else:
            self.broker.unblock()

    def step_began(self, doing: str) -> None:
        """A task of the loop, such as an HTTP request, continues; it need not touch the core."""
        self.stopwatch.begin()
        self.broker.turn.doing = doing

    def step_ended(self) -> None:
        """The task waits, or is over. A turn that it began is timed to the turn's own end."""
        if self.scheduled:
            self.broker.turn.doing = None
        else:
            self.stopwatch.end()

    def tick(self) -> None:
        """Time has passed."""
        self.stopwatch.ticked()
        if not self.scheduled:
            self.stopwatch.abandon()
        self.begin_turn()
        self._check_congestion()
        self.broker.tick(self.broker.turn.now_ms)
        try:
            self.links.ticked()
        except Exception as error:
            self.broker.report_bug(error, "the timers of links", FAULT_TIMER)


@final
class ClientProtocol:
    """The protocol of one client's transport (duck-typed as an asyncio protocol). ``local`` names
    its listener if connections have no address of their own (Unix sockets)."""

    shell: Shell
    local: str
    tls: bool
    make_peer: Callable[[Any, bool], Peer]
    transport: Any
    connection: Connection | None
    reading: bool
    turn: i64
    turn_bytes: i64

    def __init__(
        self, shell: Shell, local: str, tls: bool, make_peer: Callable[[Any, bool], Peer]
    ) -> None:
        self.shell = shell
        self.local = local
        self.tls = tls
        self.make_peer = make_peer
        self.transport = None
        self.connection = None
        self.reading = True
        self.turn = -1
        self.turn_bytes = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
        self.shell.begin_turn()
        if not self.shell.make_room():
            transport.abort()
            return
        peer = self.make_peer(transport, self.tls)
        name = f"{_end(peer.address, peer.port)} -> {self._local_of(transport)}"
        connection = self.shell.broker.connect(name, peer)
        connection.port = self
        self.connection = connection

    def _local_of(self, transport: Any) -> str:
        """The local address that the peer reached: its listener may be on all of them."""
        name = transport.get_extra_info("sockname")
        if not isinstance(name, tuple):
            return self.local
        return _end(str(name[0]), int(name[1]))

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if connection is None:
            return
        shell = self.shell
        if not shell.scheduled:
            shell.begin_turn()
            shell.busy_poll.input_came()
        shell.broker.turn.doing = connection
        connection.receive(data)
        if self.turn != shell.turns:
            self.turn = shell.turns
            self.turn_bytes = 0
        self.turn_bytes += len(data)
        if not self.reading or self.connection is None:
            return
        if not connection.wants_input():
            self.reading = False
            self.transport.pause_reading()
        elif self.turn_bytes >= TURN_INPUT_BYTES_MAX:
            self.reading = False
            self.transport.pause_reading()
            shell.satiated.append(self)

    def release(self) -> Any:
        """Release the transport: a link drives it from now on."""
        self.connection = None
        if not self.reading:
            self.reading = True
            self.transport.resume_reading()
        return self.transport

    def resume_input(self) -> None:
        """A new turn begins: read on, unless the core doesn't want input."""
        connection = self.connection
        if connection is not None and not self.reading and connection.wants_input():
            self.reading = True
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: BaseException | None) -> None:
        connection = self.connection
        if connection is not None:
            self.connection = None
            self.shell.begin_turn()
            self.shell.broker.turn.doing = connection
            connection.lost()
            connection.port = None

    def pause_writing(self) -> None:
        if self.connection is not None:
            self.connection.set_writable(False)

    def resume_writing(self) -> None:
        if self.connection is not None:
            self.shell.begin_turn()
            self.connection.set_writable(True)
            self.connection.touch()

    def flush(self) -> i64:
        """Write the outbox; then close, or go on reading, as the core wants. Return how many bytes
        it had."""
        connection = self.connection
        if connection is None:
            return 0
        if not connection.writable and connection.stage != CLOSED:
            # The socket is full: output waits in the core's outbox, where it is counted.
            connection.flushed()
            self._set_reading(connection.wants_input())
            return 0
        chunks = connection.outbox.take()
        count: i64 = len(chunks)
        size: i64 = 0
        if count > 0:
            for chunk in chunks:
                size += len(chunk)
            connection.sent_bytes += size
            connection.last_sent_ms = self.shell.broker.turn.now_ms
            if count == 1:
                self.transport.write(chunks[0])
            else:
                self.transport.writelines(chunks)
        connection.flushed()
        if connection.stage == CLOSED:
            self.transport.close()
        else:
            self._set_reading(connection.wants_input())
        return size

    def _set_reading(self, wants_input: bool) -> None:
        if wants_input and not self.reading:
            self.reading = True
            self.transport.resume_reading()
        elif not wants_input and self.reading:
            self.reading = False
            self.transport.pause_reading()


def _end(host: str, port: i64) -> str:
    """One end of a connection, as RabbitMQ spells it in the connection's name."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
