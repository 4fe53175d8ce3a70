"""A broker core without sockets, threads or clock, and clients that talk to it in frames.

`Core` does what the server's event loop does, turn by turn, on a store in memory and a clock that
only `advance` moves. `CoreClient` is the other end of a connection: it speaks the handshake, sends
methods and publishes, and decodes what the core wants written. After every call of a client the
core runs until it has nothing left to do, so a test reads what has come and never waits.

    core = make_core()
    client = core.connect()
    queue = client.declare("q")
    client.publish("", queue, b"hello")
    assert client.get(queue).body == b"hello"

The same calls get the same bytes in every process: all randomness comes from a core's seed.

With `hold_syncs` set nothing that is written counts as durable until `sync` is called: the disk is
as slow as the test wants it to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from rhizome.amqp.frames import content_frames, frame_end, method_frame
from rhizome.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicReturn,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    decode_method,
)
from rhizome.amqp.properties import Properties, body_size_of, decode_properties, encode_header
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from rhizome.broker.access.auth_interface import AccessEpoch, OpenAuthenticator, Peer
from rhizome.broker.broker import Broker
from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.connection_states import CLOSED
from rhizome.broker.observer import Observer
from rhizome.broker.queue.queue import Queue
from rhizome.errors import AmqpError
from rhizome.journal.files import MemoryFiles
from rhizome.journal.store import MemoryStore
from rhizome.server.broker_bootstrap import make_broker, make_log
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import MemorySection

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
SEED: Final = bytes(range(32))
START_MS: Final = 1_700_000_000_000
TICK_MS: Final = 25
TICKS_MAX: Final = 64
"""The most ticks of one `advance`: a test that needs more time calls it several times."""

STORE_UUID: Final = bytes(range(16))
CAPABILITIES: Final[dict[str, object]] = {
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "basic.nack": True,
    "publisher_confirms": True,
}

_Answer = TypeVar("_Answer", bound=Method)


@dataclass(frozen=True)
class Content:
    """A delivery, a pulled message or a return, with what it carries."""

    method: Method
    properties: Properties
    body: bytes

    @property
    def tag(self) -> int:
        assert isinstance(self.method, (BasicDeliver, BasicGetOk)), self.method.name()
        return int(self.method.delivery_tag)

    @property
    def redelivered(self) -> bool:
        assert isinstance(self.method, (BasicDeliver, BasicGetOk)), self.method.name()
        return self.method.redelivered

    @property
    def headers(self) -> dict[str, object]:
        return self.properties.headers or {}


Event = Method | Content


class BugReports(Observer):
    """Keeps the bugs that the core reports of itself, and which messages it had to drop."""

    bugs: list[BaseException]
    dropped: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.bugs = []
        self.dropped = []

    def letter_dropped(self, vhost: str, queue: str, error: AmqpError) -> None:
        self.dropped.append(f"{queue}: {error.text}")

    def bug(self, error: BaseException, where: str) -> None:
        self.bugs.append(error)


class Core:
    """A broker core and all that it needs of the world.

    Invariant: outside of its methods no turn is under way, and a bug that the core reported in
    one (`BugReports`) has been raised.
    """

    def __init__(
        self, files: MemoryFiles, config: Config, now_ms: int = START_MS, seed: bytes = SEED
    ) -> None:
        self.files = files
        self.config = config
        self.now_ms = now_ms
        self.seed = seed
        self.hold_syncs = False
        self.observer = BugReports()
        self._synced: list[Callable[[], None]] = []
        self._lost: list[Connection] = []
        self.store = MemoryStore(files, STORE_UUID, self, self._synced.append)
        self.log = make_log(self.store)
        self.broker: Broker = make_broker(
            config,
            self.store,
            self.log,
            OpenAuthenticator(),
            AccessEpoch(),
            self.observer,
            now_ms,
            seed,
        )
        self.settle()

    def connect(self, **options: Any) -> CoreClient:
        """A client whose connection runs; `options` are those of `CoreClient`."""
        return CoreClient(self, **options)

    def restarted(self) -> Core:
        """A new core on what this one has written, as after a crash; it gives other names."""
        seed = hashlib.sha256(self.seed).digest()
        return Core(self.files, self.config, self.now_ms, seed)

    def queue(self, name: str, vhost: str = "/") -> Queue:
        found = self.broker.state.vhosts[vhost].destinations[name]
        assert isinstance(found, Queue)
        return found

    def has_queue(self, name: str, vhost: str = "/") -> bool:
        return name in self.broker.state.vhosts[vhost].destinations

    # --- time

    def advance(self, ms: int) -> None:
        """Let time pass, in ticks."""
        end_ms = self.now_ms + ms
        step_ms = max(TICK_MS, ms // TICKS_MAX)
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + step_ms, end_ms)
            self.broker.turn.now_ms = self.now_ms
            self.broker.tick(self.now_ms)
            self.settle()

    # --- turns

    def settle(self) -> None:
        """Run turns until nothing is left to do."""
        self.one_turn()
        while self.broker.turn.pending() or self._lost or self._is_synced_waiting():
            self.one_turn()
        if self.observer.bugs:
            raise self.observer.bugs.pop()

    def sync(self, batches: int | None = None) -> None:
        """Make everything that was written so far durable, or only the oldest `batches`."""
        self._run_synced(batches)
        self.settle()

    def _is_synced_waiting(self) -> bool:
        return bool(self._synced) and not self.hold_syncs

    def one_turn(self) -> None:
        """One wake-up, which may leave something for the next."""
        if not self.hold_syncs:
            self._run_synced()
        lost, self._lost = self._lost, []
        for connection in lost:
            connection.lost()
        broker = self.broker
        broker.end_turn()
        if self.store.pending():
            self.broker.handed_over(self.store.submit())
            broker.submitted()
        touched = broker.turn.connections
        broker.turn.connections = []
        for each in touched:
            if isinstance(each.port, CoreClient):
                each.port.flush()

    def _run_synced(self, batches: int | None = None) -> None:
        synced = self._synced[:batches]
        del self._synced[:batches]
        for event in synced:
            event()

    def socket_closed(self, connection: Connection) -> None:
        self._lost.append(connection)

    # --- events of the store

    def durable(self, token: int) -> None:
        self.broker.synced(token)

    def alarm(self, text: str) -> None:
        raise AssertionError(f"a store in memory raised an alarm: {text}")

    def failed(self, error: BaseException) -> None:
        raise error


def make_core(resident_budget_bytes: int = 0) -> Core:
    """A new broker with the vhost "/", in which every user may do everything."""
    config = Config(users={})
    if resident_budget_bytes:
        memory = replace(MemorySection(), resident_budget_bytes=resident_budget_bytes)
        config = replace(config, memory=memory)
    return Core(MemoryFiles(), config)


class CoreClient:
    """A client on one connection. Channel 1 is open from the start.

    `events` holds what has come on each channel and was not taken yet, oldest first.
    """

    def __init__(
        self,
        core: Core,
        frame_max: int = 131072,
        channel_max: int = 2047,
        heartbeat: int = 0,
        properties: dict[str, object] | None = None,
        opens: bool = True,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
    ) -> None:
        """``properties`` are added to those that it shows; without ``opens`` it sends
        connection.open and leaves the answer in ``events``."""
        self.core = core
        self.frame_max = frame_max
        self.events: dict[int, list[Event]] = {}
        self.heartbeats = 0
        self.closed = False
        self.reading = True
        self._input = b""
        self._contents: dict[int, _Arriving] = {}
        self.connection = core.broker.connect("client", Peer("127.0.0.1", 1, loopback=True))
        self.connection.port = self
        self.send_bytes(PROTOCOL_HEADER)
        self.expect(ConnectionStart, 0)
        self.send(
            ConnectionStartOk(
                {"capabilities": dict(CAPABILITIES), **(properties or {})},
                "PLAIN",
                f"\0{user}\0{password}".encode(),
            ),
            channel=0,
        )
        self.expect(ConnectionTune, 0)
        self.send(ConnectionTuneOk(channel_max, frame_max, heartbeat), channel=0)
        self.send(ConnectionOpen(vhost), channel=0)
        if opens:
            self.expect(ConnectionOpenOk, 0)
            self.open_channel(1)

    # --- sending

    def send_bytes(self, data: bytes) -> None:
        """Bytes from the socket, and all that the core does about them."""
        self.core.broker.turn.now_ms = self.core.now_ms
        self.connection.receive(data)
        self.core.settle()

    def send(self, *methods: Method, channel: int = 1) -> None:
        self.send_bytes(b"".join([method_frame(channel, method) for method in methods]))

    def call(self, method: Method, answer: type[_Answer], channel: int = 1) -> _Answer:
        """Send a method; what it is answered with comes next on its channel."""
        self.send(method, channel=channel)
        return self.expect(answer, channel)

    def open_channel(self, channel: int) -> None:
        self.call(ChannelOpen(), ChannelOpenOk, channel)

    def declare(self, queue: str = "", durable: bool = False, **arguments: object) -> str:
        """Declare a queue; arguments are written `x_message_ttl=5`."""
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        method = QueueDeclare(queue, durable=durable, arguments=given)
        return self.call(method, QueueDeclareOk).queue

    def consume(
        self,
        queue: str,
        tag: str = "",
        channel: int = 1,
        no_ack: bool = False,
        exclusive: bool = False,
        priority: int = 0,
    ) -> str:
        """Start a consumer; deliveries may be there already when this returns."""
        arguments: dict[str, object] = {"x-priority": priority} if priority else {}
        method = BasicConsume(queue, tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments)
        self.send(method, channel=channel)
        return self.pick(BasicConsumeOk, channel).consumer_tag

    def prefetch(self, count: int, channel: int = 1, whole_channel: bool = False) -> None:
        self.call(BasicQos(0, count, whole_channel), BasicQosOk, channel)

    def get(self, queue: str, no_ack: bool = True) -> Content | None:
        self.send(BasicGet(queue, no_ack))
        event = self.events[1].pop(0)
        if isinstance(event, BasicGetEmpty):
            return None
        assert isinstance(event, Content), event
        return event

    def confirm(self, channel: int = 1) -> None:
        self.call(ConfirmSelect(), ConfirmSelectOk, channel)

    def published(
        self,
        exchange: str,
        key: str,
        body: bytes = b"",
        properties: Properties | None = None,
        channel: int = 1,
        mandatory: bool = False,
    ) -> bytes:
        """The frames of a publish."""
        header = encode_header(len(body), properties or Properties())
        method = method_frame(channel, BasicPublish(exchange, key, mandatory))
        return method + content_frames(channel, header, body, self.frame_max)

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"",
        properties: Properties | None = None,
        channel: int = 1,
        mandatory: bool = False,
    ) -> None:
        self.send_bytes(self.published(exchange, key, body, properties, channel, mandatory))

    def close_socket(self) -> None:
        """Close the socket without a connection.close."""
        self.closed = True
        self.core.socket_closed(self.connection)
        self.core.settle()

    def stop_reading(self) -> None:
        """Take nothing from the socket any more: the shell's buffer is full at once."""
        self.reading = False
        self.connection.set_writable(False)
        self.core.settle()

    def go_on_reading(self) -> None:
        self.reading = True
        self._parse()
        self.connection.set_writable(True)
        self.core.settle()

    # --- receiving

    def take(self, channel: int = 1) -> list[Event]:
        """Everything that has come on a channel."""
        events = self.events.get(channel, [])
        self.events[channel] = []
        return events

    def expect(self, kind: type[_Answer], channel: int = 1) -> _Answer:
        """The oldest event of a channel, which must be this method."""
        events = self.events.get(channel, [])
        assert events, f"nothing has come on channel {channel}, {kind.__name__} was expected"
        event = events.pop(0)
        assert isinstance(event, kind), f"{event!r} has come, {kind.__name__} was expected"
        return event

    def pick(self, kind: type[_Answer], channel: int = 1) -> _Answer:
        """The oldest event of this kind on a channel, whatever came before it."""
        events = self.events.get(channel, [])
        for at, event in enumerate(events):
            if isinstance(event, kind):
                del events[at]
                return event
        raise AssertionError(f"no {kind.__name__} has come on channel {channel}: {events!r}")

    def deliveries(self, channel: int = 1) -> list[Content]:
        """The deliveries that have come on a channel; other events stay."""
        events = self.take(channel)
        found = [event for event in events if _is_delivery(event)]
        self.events[channel] = [event for event in events if not _is_delivery(event)]
        return [event for event in found if isinstance(event, Content)]

    def bodies(self, channel: int = 1) -> list[bytes]:
        """The bodies of `deliveries`."""
        return [delivery.body for delivery in self.deliveries(channel)]

    def flush(self) -> None:
        """Called by the core's turn: take the outbox as the shell would."""
        if self.closed:
            return
        data = b"".join(self.connection.outbox.take())
        if data:
            self.connection.sent_bytes += len(data)
            self.connection.last_sent_ms = self.core.now_ms
            self._input += data
        self.connection.flushed()
        if self.reading:
            self._parse()
        if self.connection.stage == CLOSED:
            self.closed = True
            self.core.socket_closed(self.connection)

    def _parse(self) -> None:
        data, self._input = self._input, b""
        at = 0
        while at < len(data):
            end = int(frame_end(data, at))
            channel = int.from_bytes(data[at + 1 : at + 3], "big")
            self._frame(data[at], channel, data[at + 7 : end - 1])
            at = end

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        events = self.events.setdefault(channel, [])
        if kind == FRAME_HEARTBEAT:
            self.heartbeats += 1
        elif kind == FRAME_METHOD:
            assert channel not in self._contents, "a method came in the middle of a content"
            method = decode_method(payload)
            if isinstance(method, (BasicDeliver, BasicGetOk, BasicReturn)):
                self._contents[channel] = _Arriving(method)
            else:
                events.append(method)
        else:
            arriving = self._contents[channel]
            arriving.add(kind, payload)
            if arriving.is_whole():
                del self._contents[channel]
                events.append(arriving.content())


class _Arriving:
    """A content whose frames are still coming."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.header: bytes | None = None
        self.body = b""

    def add(self, kind: int, payload: bytes) -> None:
        if self.header is None:
            assert kind == FRAME_HEADER, kind
            self.header = payload
        else:
            assert kind == FRAME_BODY, kind
            self.body += payload

    def is_whole(self) -> bool:
        return self.header is not None and len(self.body) >= body_size_of(self.header)

    def content(self) -> Content:
        assert self.header is not None
        return Content(self.method, decode_properties(self.header), self.body)


def _is_delivery(event: Event) -> bool:
    return isinstance(event, Content) and isinstance(event.method, BasicDeliver)
