"""Wire: one AMQP connection over a plain blocking socket, for tasks that move whole batches.

Tasks of Spark are ordinary threads of control without an event loop, and per-message calls of a
client would cost more than the messages. The protocol core is the client's; what is sent and
received in bulk goes around it, as bytes.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from rhizome.amqp import methods
from rhizome.amqp.methods import Method
from rhizome.client.connection_uri import Address, parse_uris
from rhizome.client.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidUri,
    Redirected,
)
from rhizome.client.handshake_settings import settings_for
from rhizome.client.protocol import ClientConnection, Phase
from rhizome.client.protocol_events import (
    ChannelEnded,
    ConnectionEnded,
    ConnectionOpened,
    Event,
    MethodReceived,
)
from rhizome.client.session.failover_addresses import UNREACHABLE, Search
from rhizome.errors import AmqpError, ConnectionForced, RhizomeError
from rhizome.spark.data_source_options import OptionError

CHANNEL: Final = 1
ANSWER_SECONDS_MAX: Final = 30.0
RECEIVE_BYTES: Final = 1 << 20
SOCKET_BYTES: Final = 4 << 20
RETRY_SECONDS_FIRST: Final = 0.1
RETRY_SECONDS_MAX: Final = 2.0
TICK_SECONDS: Final = 1.0
CLOSE_SECONDS_MAX: Final = 5.0

M = TypeVar("M", bound=Method)


def addresses_of(uri: str) -> list[Address]:
    """The brokers of a URI; the error never shows the password."""
    try:
        return parse_uris(uri)
    except InvalidUri as error:
        raise OptionError(str(error)) from None


class AmqpSocket:
    """Invariant: the handshake is done and channel 1 is open. What is to be sent waits in `_out`,
    in order, and only whole frames get in there.
    """

    def __init__(
        self, address: Address, name: str, properties: Mapping[str, object] | None = None
    ) -> None:
        """Connect and shake hands; raises what went wrong."""
        self.address = address
        told = {"product": "rhizome.spark", **(properties or {})}
        self._core = ClientConnection(settings_for(address, name, told), _now_ms())
        self._events: deque[Event] = deque()
        self._out: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self._socket = _dial(address)
        try:
            self._await_opening()
            self._core.open_channel()
            self.wait_for(methods.ChannelOpenOk)
        except BaseException:
            self._socket.close()
            raise

    @property
    def frame_bytes_max(self) -> int:
        return self._core.frame_bytes_max or 131_072

    @property
    def server_properties(self) -> dict[str, object]:
        """What the broker says about itself."""
        return self._core.server_properties

    # --- methods

    def call(self, method: Method, answer: type[M]) -> M:
        """Send a method on the channel and wait for its answer."""
        self._core.send(CHANNEL, method)
        return self.wait_for(answer)

    def send(self, method: Method) -> None:
        """Send a method that has no answer."""
        self._core.send(CHANNEL, method)
        self._collect()

    def wait_for(self, answer: type[M]) -> M:
        """The next method of this type; other events stay for `poll`."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        others: list[Event] = []
        while time.monotonic() < deadline:
            for event in self.poll(deadline - time.monotonic(), events_max=1):
                if isinstance(event, MethodReceived) and isinstance(event.method, answer):
                    self._events.extendleft(reversed(others))
                    return event.method
                others.append(event)
        raise ConnectionLost(f"{self.address.label} did not answer with {answer.__name__}")

    def poll(self, seconds: float, events_max: int = 1 << 30) -> list[Event]:
        """What the broker has said, waiting for it if nothing has come yet; sends meanwhile. Raises
        what ended the channel or the connection.
        """
        deadline = time.monotonic() + seconds
        self.exchange(0 if self._events else seconds)
        while not self._events and time.monotonic() < deadline:
            self.exchange(deadline - time.monotonic())
        count = min(events_max, len(self._events))
        return [self._events.popleft() for _ in range(count)]

    # --- bulk

    def write(self, data: memoryview) -> None:
        """Whole frames to be sent; `unsent_bytes` tells how much of what was written waits."""
        self._out.append(data)
        self.unsent_bytes += len(data)

    def exchange(self, seconds: float) -> None:
        """Send and receive what the socket takes and has; wait for one of both at most so long."""
        self._collect()
        if not self._ready(seconds):
            self._tick()
            return
        self._send_some()
        data = self._receive_some()
        if data:
            self._events.extend(self._core.receive_data(data))
            self._collect()
        self._raise_if_ended()
        self._tick()

    # --- inside

    def _await_opening(self) -> None:
        timeout_s = self.address.connect_timeout_ms / 1000 or ANSWER_SECONDS_MAX
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for event in self.poll(deadline - time.monotonic(), events_max=1):
                if isinstance(event, ConnectionOpened):
                    return
        raise TimeoutError(f"no answer within {self.address.connect_timeout_ms} ms")

    def _ready(self, seconds: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        limit = min(max(seconds, 0), TICK_SECONDS)
        sending = [self._socket] if self._out else []
        readable, writable, _ = select.select([self._socket], sending, [], limit)
        return bool(readable or writable)

    def _collect(self) -> None:
        """What the core has to say goes behind what was written: never into the middle of it."""
        data = self._core.data_to_send()
        if data:
            self.write(memoryview(data))

    def _send_some(self) -> None:
        while self._out:
            data = self._out[0]
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self.unsent_bytes -= sent
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = data[sent:]

    def _receive_some(self) -> bytes:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        if not data:
            raise ConnectionLost(f"{self.address.label} closed the connection")
        return data

    def _raise_if_ended(self) -> None:
        for event in self._events:
            if isinstance(event, (ConnectionEnded, ChannelEnded)):
                raise event.error or ConnectionLost(f"{self.address.label} closed the connection")

    def _tick(self) -> None:
        for event in self._core.tick(_now_ms()):
            if isinstance(event, ConnectionEnded):
                raise event.error or ConnectionLost(f"{self.address.label} is silent")
        self._collect()

    def close(self) -> None:
        """Say goodbye, without insisting on an answer."""
        try:
            if self._core.phase is Phase.OPEN:
                self._core.close()
                self.poll(CLOSE_SECONDS_MAX)
        except (RhizomeError, OSError):
            pass
        finally:
            self._socket.close()

    def drop(self) -> None:
        """Close the socket at once."""
        self._socket.close()

    def __enter__(self) -> AmqpSocket:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.drop()


def connect(addresses: Sequence[Address], name: str, first: int = 0) -> AmqpSocket:
    """A connection to the first broker that takes us, beginning with number `first`."""
    start = first % len(addresses)
    search = Search([*addresses[start:], *addresses[:start]])
    for address in search:
        try:
            return AmqpSocket(address, name, search.properties)
        except (Redirected, *UNREACHABLE) as error:
            search.failed(address, error)
    raise search.failure()


def connect_patiently(
    addresses: Sequence[Address], name: str, patience_s: float, first: int = 0
) -> AmqpSocket:
    """The same, trying again for a while: brokers restart, and homes move."""
    deadline = time.monotonic() + patience_s
    pause_s = RETRY_SECONDS_FIRST
    while True:
        try:
            return connect(addresses, name, first)
        except ConnectFailed:
            if time.monotonic() + pause_s > deadline:
                raise
        wait_s(pause_s)
        pause_s = min(2 * pause_s, RETRY_SECONDS_MAX)
        first += 1


def wait_s(seconds: float) -> None:
    threading.Event().wait(seconds)


def is_passing(error: BaseException) -> bool:
    """Whether it may go well with a new connection: nothing is wrong with what was asked."""
    return isinstance(error, (*UNREACHABLE, ConnectFailed)) and not (
        isinstance(error, AmqpError) and not isinstance(error, ConnectionForced)
    )


def _dial(address: Address) -> socket.socket:
    timeout_s = address.connect_timeout_ms / 1000 or None
    plain = socket.create_connection((address.host, address.port), timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    found = plain
    if address.tls is not None:
        name = address.tls.server_name or address.host
        found = address.tls.context().wrap_socket(plain, server_hostname=name)
    found.setblocking(False)
    return found


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
