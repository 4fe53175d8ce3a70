"""Applications on hosts of their own: the product's client core on a simulated connection.

An application connects to some broker, and to another one some time after its connection was lost.
What it does there depends on its kind (`publishers.py`, `consumers.py`). It reports everything that
it does and is told to the checkers.
"""

from __future__ import annotations

import random
from typing import Final

from rhizome.amqp.methods import ExchangeDeclare, QueueBind, QueueBindOk, QueueDeclare
from rhizome.amqp.properties import decode_properties
from rhizome.client.errors import NotOpen
from rhizome.client.handshake_settings import Settings
from rhizome.client.protocol import ClientConnection, Phase
from rhizome.client.protocol_events import (
    ChannelEnded,
    ConnectionBlocked,
    ConnectionEnded,
    ConnectionOpened,
    ConnectionUnblocked,
    ContentReceived,
    Event,
    MethodReceived,
    MoveAsked,
)
from rhizome.testing.sim.apps.app_topology import Topology
from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.checkers.fault_timeline import pair
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.events.broker_events import Observation
from rhizome.testing.sim.world.event_scheduler import SECOND
from rhizome.testing.sim.world.sim_host import Host, Program
from rhizome.testing.sim.world.sim_network import Connection

HEARTBEAT_S: Final = 4
CHECK_MS: Final = 1_000
"""How often an application looks at its connection."""
OPEN_PATIENCE_MS: Final = 8_000
"""How long a broker may take to open an application's connection."""
AWAY_MS_MEAN: Final = 700
"""The pause between a lost connection and the next attempt."""
TRAFFIC_AFTER_US: Final = 2 * SECOND
"""How long applications continue after the brokers have recovered, before they finish their
work."""


class Workload:
    """What the applications of a run share."""

    def __init__(self, watch: Watch, topology: Topology, brokers: list[str]) -> None:
        self.watch = watch
        self.topology = topology
        self.brokers = brokers
        self.is_declared = False
        """Whether everything that they use has been declared, which is done before they start."""
        self.is_calm = False
        """Whether all faults are over: applications no longer requeue messages."""
        self.recovered_us = -1
        self._sessions = 0
        self._transactions = 0
        self._ids: dict[str, int] = {}

    def is_ending(self) -> bool:
        """Whether applications begin nothing new."""
        now_us = self.watch.world.now_us
        return self.recovered_us >= 0 and now_us >= self.recovered_us + TRAFFIC_AFTER_US

    def see(self, observation: Observation) -> None:
        self.watch.see(observation)

    def next_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def next_transaction(self) -> int:
        self._transactions += 1
        return self._transactions

    def next_id(self, application: str) -> str:
        self._ids[application] = self._ids.get(application, 0) + 1
        return f"{application}/{self._ids[application]}"


def body_of(message: str, size: int) -> bytes:
    """The body of a message: its id, repeated."""
    head = f"{message} ".encode()
    return (head * (size // len(head) + 1))[: max(size, len(head))]


def id_of(body: bytes) -> str:
    return body[: body.index(b" ")].decode()


def died_in(header: bytes) -> str:
    """The queue that a message died in first; empty if it has not died."""
    headers = decode_properties(header).headers or {}
    return str(headers.get("x-first-death-queue", ""))


class AppProgram(Program):
    """One application with one connection at a time.

    Invariant: `core` is there from dialling to the end of the connection; `session` is above 0
    while it is open.
    """

    def __init__(self, host: Host, name: str, workload: Workload) -> None:
        self.host = host
        self.name = name
        self.workload = workload
        self.chance: random.Random = host.chance("application")
        self.core: ClientConnection | None = None
        self.session = 0
        self.blocked = False
        self.capabilities: tuple[str, ...] = ()
        self.client_properties: dict[str, object] = {}
        self._asking: list[int] = []
        self._connection: Connection | None = None
        self._connected = False
        self._broker = ""
        self._dial_ms = host.now_ms() + int(self.chance.random() * AWAY_MS_MEAN)
        self._give_up_ms = 0
        self._check_ms = 0
        self._act_ms = 0

    # --- for kinds of application

    def opened(self) -> None:
        """The connection is open."""

    def lost(self) -> None:
        """The connection is over; `session` is still its number."""

    def act(self) -> int:
        """Do something; returns the milliseconds until the next call."""
        raise NotImplementedError

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        """An event came on a channel."""

    def see(self, observation: Observation) -> None:
        self.workload.see(observation)

    def asked_to_move(self, host: str) -> None:
        """Its broker asks it to connect to another one."""

    def choose_broker(self) -> str:
        """Where to connect next; mostly not where it was."""
        others = [name for name in self.workload.brokers if name != self._broker]
        brokers = others if others and self.chance.random() < 0.8 else self.workload.brokers
        return brokers[self.pick(len(brokers))]

    def asks(self, channel: int) -> None:
        """It sends a request on a channel. Its broker may read nothing more from the connection
        before it has the answer, which may come from a home that is away."""
        if channel not in self._asking:
            self._asking.append(channel)
            places = pair(self.name, self._broker)
            self.see(told.Disturbed(f"asks {self.session}/{channel}", places))

    def was_answered(self, channel: int) -> None:
        if channel in self._asking:
            self._asking.remove(channel)
            self.see(told.Undisturbed(f"asks {self.session}/{channel}"))

    def pause_ms(self, mean_ms: int) -> int:
        return 1 + int(self.chance.expovariate(1 / mean_ms))

    def pick(self, count: int) -> int:
        """A random number below `count`."""
        return int(self.chance.random() * count)

    # --- the program

    def tick(self, now_ms: int) -> None:
        core = self.core
        if core is None:
            if now_ms >= self._dial_ms:
                self._dial(now_ms)
            return
        if now_ms >= self._check_ms:
            self._check_ms = now_ms + CHECK_MS
            self._hear(core.tick(now_ms))
            if self.core is None:
                return
            if not self.session and now_ms >= self._give_up_ms:
                self._leave()
                return
        if self.session and now_ms >= self._act_ms:
            self._act_ms = now_ms + self.act()

    def next_deadline_ms(self) -> int:
        if self.core is None:
            return self._dial_ms
        return min(self._check_ms, self._act_ms) if self.session else self._check_ms

    def turn(self) -> None:
        if self.core is not None and self._connection is not None and self._connected:
            data = self.core.data_to_send()
            if data:
                self._connection.send(data)

    def gone(self) -> None:
        if self.session:
            self.see(told.SessionOver(self.name, self.session))

    def properties(self) -> dict[str, object]:
        """What the client says of itself on its next connection."""
        return self.client_properties

    # --- the connection

    def _dial(self, now_ms: int) -> None:
        self._broker = self.choose_broker()
        self._connection = self.host.dial(self._broker)
        self._connected = False
        settings = Settings(
            heartbeat_s=HEARTBEAT_S,
            client_properties=self.properties(),
            capabilities=self.capabilities,
        )
        self.core = ClientConnection(settings, now_ms)
        self._give_up_ms = now_ms + OPEN_PATIENCE_MS
        self._check_ms = now_ms + CHECK_MS

    def connected(self, connection: Connection) -> None:
        """The core has something to send from the start."""
        self._connected = connection is self._connection

    def received(self, connection: Connection, data: bytes) -> None:
        if self.core is not None and connection is self._connection:
            self._hear(self.core.receive_data(data))

    def disconnected(self, connection: Connection, reason: str) -> None:
        if self.core is not None and connection is self._connection:
            self._connection = None
            self._leave()

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, (MethodReceived, ContentReceived, ChannelEnded)):
                self._hear_one(event)
            elif isinstance(event, ConnectionOpened):
                self.session = self.workload.next_session()
                self.blocked = False
                self._act_ms = self.host.now_ms()
                number = 0 if self._connection is None else self._connection.number
                self.see(told.SessionOpened(self.name, self.session, self._broker, number))
                self.opened()
            elif isinstance(event, ConnectionBlocked):
                self.blocked = True
            elif isinstance(event, ConnectionUnblocked):
                self.blocked = False
            elif isinstance(event, MoveAsked):
                self.asked_to_move(event.host)
            elif isinstance(event, ConnectionEnded):
                self._leave()
                return

    def _hear_one(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        try:
            self.heard(event)
        except NotOpen:
            # The end of the connection was read together with it: nothing more can be sent.
            if self.is_open():
                raise

    def is_open(self) -> bool:
        return self.core is not None and self.core.phase is Phase.OPEN

    def _leave(self) -> None:
        """The connection is over, or nothing is expected of it any more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self.core = None
        if self.session:
            for channel in list(self._asking):
                self.was_answered(channel)
            self.lost()
            self.see(told.SessionOver(self.name, self.session))
            self.session = 0
        self._dial_ms = self.host.now_ms() + self.pause_ms(AWAY_MS_MEAN)


class TopologyDeclarer(AppProgram):
    """Declares everything, once, and then has nothing to do."""

    def opened(self) -> None:
        core, topology = self.core, self.workload.topology
        assert core is not None
        if self.workload.is_declared:
            return
        channel = core.open_channel()
        for name, kind in topology.exchanges.items():
            arguments = topology.exchange_arguments(name)
            core.send(channel, ExchangeDeclare(name, kind, durable=True, arguments=arguments))
        for plan in topology.queues.values():
            arguments = plan.arguments()
            core.send(channel, QueueDeclare(plan.name, durable=plan.durable, arguments=arguments))
        for stream in topology.streams.values():
            arguments = stream.arguments()
            core.send(channel, QueueDeclare(stream.name, durable=True, arguments=arguments))
        for exchange, key, queue in topology.bindings:
            core.send(channel, QueueBind(queue, exchange, key))
        self._left = len(topology.bindings)

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if isinstance(event, MethodReceived) and isinstance(event.method, QueueBindOk):
            self._left -= 1
            if self._left == 0:
                self.workload.is_declared = True
                self._leave()
        elif isinstance(event, ChannelEnded):
            self._leave()

    def act(self) -> int:
        return CHECK_MS

    def next_deadline_ms(self) -> int:
        return 1 << 60 if self.workload.is_declared else super().next_deadline_ms()
