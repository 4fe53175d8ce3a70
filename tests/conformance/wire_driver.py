"""A small AMQP driver over a blocking socket, that lets a test send anything and see everything.

`Wire` moves frames. `Connection` does the handshake and sorts frames by channel. `Channel` sends
methods and hands out what comes back, in order: methods, and `Content` for those that carry a body.
A close by the broker is raised as `ChannelClosed` or `ConnectionClosed` from whatever call was
waiting, after it has been answered with close-ok.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeVar

from rhizome.amqp import methods as m
from rhizome.amqp.frames import content_frames, frame, method_frame
from rhizome.amqp.properties import Properties, body_size_of, decode_properties, encode_header
from rhizome.testing.broker_process import Broker

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
ANSWER_SECONDS_MAX = 10.0
QUIET_SECONDS = 0.15
CONTENT_METHODS = (m.BasicDeliver, m.BasicGetOk, m.BasicReturn)

CLIENT_PROPERTIES: dict[str, object] = {
    "product": "conformance",
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "exchange_exchange_bindings": True,
        "publisher_confirms": True,
    },
}

T = TypeVar("T", bound=m.Method)


class Closed(Exception):
    """The broker closed something; equal by what it said."""

    def __init__(self, method: m.ConnectionClose | m.ChannelClose) -> None:
        self.code = int(method.reply_code)
        self.text = method.reply_text
        self.cause = f"{method.class_id}.{method.method_id}"
        super().__init__(f"{self.code} {self.text} ({self.cause})")

    def __str__(self) -> str:
        return f"{self.code} {self.text} ({self.cause})"


class ChannelClosed(Closed):
    """channel.close came."""


class ConnectionClosed(Closed):
    """connection.close came."""


class EndOfStream(Exception):
    """The broker closed the socket."""


@dataclass(frozen=True)
class Frame:
    kind: int
    channel: int
    payload: bytes

    def method(self) -> m.Method:
        assert self.kind == FRAME_METHOD, f"expected a method, got {self}"
        return m.decode_method(self.payload)


@dataclass(frozen=True)
class Content:
    """A deliver, get-ok or return with what followed it."""

    method: Any
    header: bytes
    body: bytes

    @property
    def properties(self) -> Properties:
        return decode_properties(self.header)

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)


class Wire:
    """Frames over a socket."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), ANSWER_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.settimeout(ANSWER_SECONDS_MAX)
        self.socket.sendall(data)

    def send_method(self, channel: int, method: m.Method) -> None:
        self.send(method_frame(channel, method))

    def read(self, size: int, seconds: float = ANSWER_SECONDS_MAX) -> bytes:
        """Exactly `size` bytes, or EndOfStream, or TimeoutError."""
        deadline = time.monotonic() + seconds
        while len(self._buffer) < size:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EndOfStream(f"the broker closed the socket after {self._buffer!r}")
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def read_frame(self, seconds: float = ANSWER_SECONDS_MAX) -> Frame:
        head = self.read(7, seconds)
        size = int.from_bytes(head[3:7], "big")
        rest = self.read(size + 1, ANSWER_SECONDS_MAX)
        assert rest[-1] == FRAME_END, f"frame {head!r} does not end with 0xCE"
        return Frame(head[0], int.from_bytes(head[1:3], "big"), rest[:-1])

    def expect(self, kind: type[T], channel: int = 0, seconds: float = ANSWER_SECONDS_MAX) -> T:
        """The next frame that isn't a heartbeat must be this method."""
        while True:
            got = self.read_frame(seconds)
            if got.kind != FRAME_HEARTBEAT:
                break
        method = got.method()
        if isinstance(method, m.ConnectionClose) and kind is not m.ConnectionClose:
            raise ConnectionClosed(method)
        assert isinstance(method, kind), f"expected {kind.__name__}, got {method.name()}"
        assert got.channel == channel
        return method

    def rest(self, seconds: float = ANSWER_SECONDS_MAX) -> bytes:
        """Everything up to the end of the stream, which must come within `seconds`."""
        taken = b""
        try:
            while True:
                taken += self.read(1, seconds)
        except EndOfStream:
            return taken

    def close(self) -> None:
        self.socket.close()


def plain(user: str, password: str) -> bytes:
    """The response of the mechanism PLAIN."""
    return f"\0{user}\0{password}".encode()


class Connection(Wire):
    """An opened connection. `tune` is what the broker offered, `channel_max` what was agreed."""

    def __init__(
        self,
        broker: Broker,
        *,
        vhost: str = "/",
        user: str = "",
        password: str = "",
        frame_max: int = 131072,
        channel_max: int = 2047,
        heartbeat: int = 0,
        client_properties: dict[str, object] | None = None,
    ) -> None:
        super().__init__(broker.host, broker.port)
        self.frame_max = frame_max
        self._arrived: dict[int, deque[Frame]] = {}
        self._free_number = 1
        self.heartbeats = 0
        self.events: list[m.Method] = []
        try:
            self._shake_hands(broker, user, password, client_properties)
            self.send_method(0, m.ConnectionTuneOk(channel_max, frame_max, heartbeat))
            self.send_method(0, m.ConnectionOpen(vhost))
            self.open_ok = self.expect(m.ConnectionOpenOk)
        except BaseException:
            self.close()
            raise

    def _shake_hands(
        self,
        broker: Broker,
        user: str,
        password: str,
        client_properties: dict[str, object] | None,
    ) -> None:
        self.send(PROTOCOL_HEADER)
        self.start = self.expect(m.ConnectionStart)
        properties = CLIENT_PROPERTIES if client_properties is None else client_properties
        response = plain(user or broker.user, password or broker.password)
        self.send_method(0, m.ConnectionStartOk(properties, "PLAIN", response, "en_US"))
        self.tune = self.expect(m.ConnectionTune)

    def channel(self, number: int = 0) -> Channel:
        """Open a channel, the next free number by default."""
        if number == 0:
            number = self._free_number
            self._free_number += 1
        channel = Channel(self, number)
        channel.call(m.ChannelOpen(), m.ChannelOpenOk)
        return channel

    def next_frame(self, channel: int, seconds: float = ANSWER_SECONDS_MAX) -> Frame:
        """The next frame of one channel; frames of others are kept for them."""
        deadline = time.monotonic() + seconds
        waiting = self._arrived.setdefault(channel, deque())
        while not waiting:
            got = self.read_frame(max(deadline - time.monotonic(), 0.001))
            if got.kind == FRAME_HEARTBEAT:
                self.heartbeats += 1
            elif got.channel == 0:
                self._connection_method(got.method())
            else:
                self._arrived.setdefault(got.channel, deque()).append(got)
        return waiting.popleft()

    def _connection_method(self, method: m.Method) -> None:
        if isinstance(method, m.ConnectionClose):
            with contextlib.suppress(ConnectionError):  # it may be gone already
                self.send_method(0, m.ConnectionCloseOk())
            raise ConnectionClosed(method)
        self.events.append(method)

    def call(self, method: m.Method, answer: type[T]) -> T:
        """A method of class connection and its answer."""
        self.send_method(0, method)
        return self.expect(answer)

    def closed_by_broker(self) -> ConnectionClosed:
        """Wait for connection.close, answer it, and see the socket closed after that."""
        try:
            while True:
                self.next_frame(0)
        except ConnectionClosed as closed:
            assert self.rest() == b""
            return closed

    def close_politely(self) -> None:
        """connection.close and its close-ok, with whatever comes before that dropped."""
        self.send_method(0, m.ConnectionClose(200, "bye"))
        while True:
            got = self.read_frame()
            if got.channel == 0 and got.kind == FRAME_METHOD:
                if isinstance(got.method(), m.ConnectionCloseOk):
                    return


class Channel:
    """One channel of a connection, opened or about to be."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number

    # --- sending

    def send(self, *methods: m.Method) -> None:
        self.connection.send(b"".join(method_frame(self.number, method) for method in methods))

    def publish_frames(
        self,
        exchange: str,
        key: str,
        body: bytes = b"",
        properties: Properties | None = None,
        *,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> bytes:
        header = encode_header(len(body), properties or Properties())
        publish = m.BasicPublish(exchange, key, mandatory, immediate)
        return method_frame(self.number, publish) + content_frames(
            self.number, header, body, self.connection.frame_max
        )

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"",
        properties: Properties | None = None,
        *,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        self.connection.send(
            self.publish_frames(
                exchange, key, body, properties, mandatory=mandatory, immediate=immediate
            )
        )

    def send_raw(self, kind: int, payload: bytes) -> None:
        self.connection.send(frame(kind, self.number, payload))

    # --- receiving

    def next(self, seconds: float = ANSWER_SECONDS_MAX) -> Any:
        """The next method, or Content, of this channel."""
        got = self.connection.next_frame(self.number, seconds)
        method = got.method()
        if isinstance(method, m.ChannelClose):
            self.send(m.ChannelCloseOk())
            raise ChannelClosed(method)
        if not isinstance(method, CONTENT_METHODS):
            return method
        header = self.connection.next_frame(self.number)
        assert header.kind == FRAME_HEADER
        size, body = body_size_of(header.payload), b""
        while len(body) < size:
            part = self.connection.next_frame(self.number)
            assert part.kind == FRAME_BODY
            assert len(part.payload) + 8 <= self.connection.frame_max or not part.payload
            body += part.payload
        return Content(method, header.payload, body)

    def expect(self, kind: type[T], seconds: float = ANSWER_SECONDS_MAX) -> T:
        got = self.next(seconds)
        assert isinstance(got, kind), f"expected {kind.__name__}, got {got!r} {described(got)}"
        return got

    def content(self, kind: type[m.Method], seconds: float = ANSWER_SECONDS_MAX) -> Content:
        got = self.next(seconds)
        assert isinstance(got, Content), f"expected content, got {described(got)}"
        assert isinstance(got.method, kind), f"expected {kind.__name__}, got {described(got)}"
        return got

    def delivery(self, seconds: float = ANSWER_SECONDS_MAX) -> Content:
        return self.content(m.BasicDeliver, seconds)

    def deliveries(self, count: int) -> list[Content]:
        return [self.delivery() for _ in range(count)]

    def is_quiet(self, seconds: float = QUIET_SECONDS) -> bool:
        """Whether nothing comes for a while. Only for what must not happen."""
        try:
            got = self.connection.next_frame(self.number, seconds)
        except TimeoutError:
            return True
        raise AssertionError(f"expected nothing, got {described(got.method())}")

    # --- both

    def call(self, method: m.Method, answer: type[T]) -> T:
        self.send(method)
        return self.expect(answer)

    def fails(self, *methods: m.Method) -> Closed:
        """Send these and return the close that follows, of the channel or the connection."""
        self.send(*methods)
        return self.closed()

    def closed(self) -> Closed:
        """The close that comes, with whatever comes before it dropped."""
        try:
            while True:
                self.next()
        except Closed as closed:
            return closed

    def declare(self, queue: str = "", **options: Any) -> str:
        """Declare a queue, exclusive unless said otherwise, and return its name."""
        options.setdefault("exclusive", True)
        return self.call(m.QueueDeclare(queue, **options), m.QueueDeclareOk).queue

    def declare_exchange(self, exchange: str, kind: str = "direct", **options: Any) -> str:
        """Declare an exchange, auto-deleted unless said otherwise, and return its name."""
        options.setdefault("auto_delete", True)
        self.call(m.ExchangeDeclare(exchange, kind, **options), m.ExchangeDeclareOk)
        return exchange

    def bind(
        self, queue: str, exchange: str, key: str = "", arguments: dict[str, object] | None = None
    ) -> None:
        self.call(m.QueueBind(queue, exchange, key, arguments=arguments), m.QueueBindOk)

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None:
        self.call(m.ExchangeBind(destination, source, key), m.ExchangeBindOk)

    def consume(self, queue: str, tag: str = "", **options: Any) -> str:
        return self.call(m.BasicConsume(queue, tag, **options), m.BasicConsumeOk).consumer_tag

    def confirm(self) -> None:
        self.call(m.ConfirmSelect(), m.ConfirmSelectOk)

    def qos(self, count: int, *, global_: bool = False) -> None:
        self.call(m.BasicQos(0, count, global_), m.BasicQosOk)

    def get(self, queue: str, *, no_ack: bool = True) -> Content | None:
        """basic.get; None if the queue is empty."""
        self.send(m.BasicGet(queue, no_ack))
        got = self.next()
        if isinstance(got, m.BasicGetEmpty):
            return None
        assert isinstance(got, Content), described(got)
        return got

    def get_wait(self, queue: str, *, no_ack: bool = True, seconds: float = 10.0) -> Content:
        """basic.get again and again until there is a message."""
        deadline = time.monotonic() + seconds
        while True:
            got = self.get(queue, no_ack=no_ack)
            if got is not None:
                return got
            assert time.monotonic() < deadline, f"{queue} stayed empty"
            time.sleep(0.005)

    def bodies(self, queue: str) -> list[bytes]:
        """All messages that are in a queue, taken out of it."""
        taken = []
        while (got := self.get(queue)) is not None:
            taken.append(got.body)
        return taken

    def count(self, queue: str) -> int:
        """How many messages are ready."""
        return int(self.call(m.QueueDeclare(queue, passive=True), m.QueueDeclareOk).message_count)

    def publish_confirmed(
        self, exchange: str, key: str, body: bytes = b"", properties: Properties | None = None
    ) -> None:
        """Publish on a channel in confirm mode and wait for the ack."""
        self.publish(exchange, key, body, properties)
        self.expect(m.BasicAck)

    def close(self) -> None:
        self.call(m.ChannelClose(200, "bye"), m.ChannelCloseOk)


def described(got: Any) -> str:
    """What came, for the text of an assertion."""
    if isinstance(got, Content):
        return f"{described(got.method)} with {got.body[:60]!r}"
    # A compiled class has no annotations, but a descriptor for each attribute.
    kind = type(got)
    names = getattr(kind, "__annotations__", {}) or [name for name in dir(kind) if name[0] != "_"]
    fields = {name: getattr(got, name) for name in names}
    shown = {name: value for name, value in fields.items() if not callable(value)}
    return f"{kind.__name__}{shown}"
