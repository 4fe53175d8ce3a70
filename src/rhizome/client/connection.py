"""Connections: the asyncio driver of the protocol core.

One object per socket. Bytes that arrive go into the core, the events that come out go to channels;
what channels send is collected in the core and written once per turn of the loop.

Whatever ends a connection (a close of either side, a lost socket, a silent peer, a violation)
comes through `Connection._ended` and nowhere else: the one place to change for failover.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVarTuple, cast

from rhizome.amqp.methods import Method
from rhizome.amqp.properties import Properties
from rhizome.client.awaitable_context import AwaitableContext
from rhizome.client.channel import Channel, ReturnCallback
from rhizome.client.confirm_level import CAPABILITY, tells_levels
from rhizome.client.connection_uri import Address, parse_uris
from rhizome.client.consumer import Consumer
from rhizome.client.errors import (
    NotOpen,
    ProtocolViolation,
    Redirected,
    renewed,
)
from rhizome.client.handshake_settings import settings_for
from rhizome.client.protocol import ClientConnection, Phase
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
from rhizome.client.session.failover_addresses import UNREACHABLE, Search
from rhizome.errors import CommandInvalid

Ts = TypeVarTuple("Ts")

# What is pending beyond this is written at once instead of at the end of the loop's turn.
WRITE_BYTES_PENDING_MAX: Final = 128 * 1024
SOCKET_BUFFER_BYTES_HIGH: Final = 1024 * 1024
COMMAND_INVALID: Final = CommandInvalid.code
CLOSE_TIMEOUT_S: Final = 5.0
"""A broker that has not agreed to a close after this time, and has sent nothing else, is gone."""
CLOSE_TIMEOUTS_MAX: Final = 12
SOCKET_CLOSE_TIMEOUT_S: Final = 1.0
TICK_S_DEFAULT: Final = 1.0

BlockedCallback = Callable[[str | None], None]


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """A snapshot of what a connection has done."""

    channels: int
    received_bytes: int
    sent_bytes: int
    writes: int
    unsent_bytes: int
    blocked_reason: str | None


def connect(
    uri: str | Sequence[str] = "amqp://guest:guest@127.0.0.1:5672/",
    *,
    name: str = "",
    client_properties: dict[str, object] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    on_blocked: BlockedCallback | None = None,
    confirm_levels: bool = False,
) -> AwaitableContext[Connection]:
    """Connect to the first broker of the list that accepts the connection.

    `uri` is one URI, whose host part may list several `host:port` separated by commas, or a list
    of URIs. Addresses are tried in order; ConnectFailed tells why each of them failed. A broker
    that refuses the login or the vhost ends the search: the others would, too. A broker that sends
    us to another one is followed, a few times at most.

    `name` is shown to operators. `on_blocked` is called with the reason when the broker stops
    taking publishes, and with None when it takes them again. With amqps and no `ssl_context` the
    URI's options (cacertfile, certfile, keyfile, verify) make one. With `confirm_levels` Rhizome
    tells which `Level` each confirmed publish has reached.

    Example:
        async with connect("amqp://app:secret@b1:5672,b2:5672/orders?heartbeat=10") as connection:
            async with connection.channel(confirms=True) as channel:
                await channel.declare_queue("greetings", durable=True)
                await channel.publish(b"hello", routing_key="greetings")
    """
    addresses = parse_uris(uri)

    async def opener() -> Connection:
        asked = (CAPABILITY,) if confirm_levels else ()
        search = Search(addresses)
        for address in search:
            properties = {**(client_properties or {}), **search.properties}
            connection = Connection(address, name, properties, on_blocked, asked)
            try:
                await connection._open(ssl_context)
            except (Redirected, *UNREACHABLE) as error:
                search.failed(address, error)
            else:
                return connection
        raise search.failure()

    return AwaitableContext(opener)


class _Wire(asyncio.Protocol):
    """Hands what the socket says to the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, but do the same.
        self._connection._connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._connection._received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection._socket_lost(error)

    def pause_writing(self) -> None:
        self._connection._socket_full(True)

    def resume_writing(self) -> None:
        self._connection._socket_full(False)


class Connection:
    """One AMQP connection; made by `connect`.

    Invariant: `_error` is None exactly as long as methods can be sent; `_gate` is set when
    publishes can be: the broker doesn't block, the socket's buffer has room. It is also set once
    the connection has ended, so that no caller waits for ever.
    """

    def __init__(
        self,
        address: Address,
        name: str,
        client_properties: dict[str, object],
        on_blocked: BlockedCallback | None,
        capabilities: tuple[str, ...] = (),
    ) -> None:
        self.address = address
        self.on_blocked = on_blocked
        self._asks_levels = CAPABILITY in capabilities
        self.on_told: Callable[[FailoverMapTold | MoveAsked], None] | None = None
        self.blocked_reason: str | None = None
        self.known_hosts = ""
        self._loop = asyncio.get_running_loop()
        self._core = ClientConnection(
            settings_for(address, name, client_properties, capabilities), self._now_ms()
        )
        self._transport: asyncio.Transport | None = None
        self._channels: dict[int, Channel] = {}
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed = asyncio.Event()
        self._gone = asyncio.Event()
        self._error: Exception | None = None
        self._gate = asyncio.Event()
        self._gate.set()
        self._full = False
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._new_secrets: deque[asyncio.Future[None]] = deque()
        self._overfull: set[Consumer] = set()
        self._awaiting = 0
        self._reading = True
        self._received_bytes = 0
        self._sent_bytes = 0
        self._writes = 0

    # --- for applications

    @property
    def is_open(self) -> bool:
        """Whether channels can be opened and used."""
        return self._error is None and self._core.phase is Phase.OPEN

    @property
    def server_properties(self) -> dict[str, object]:
        """What the broker said of itself: product, version, capabilities, ..."""
        return self._core.server_properties

    @property
    def tells_levels(self) -> bool:
        """Whether the broker tells the levels of confirms, because we asked for them."""
        return self._asks_levels and tells_levels(self.server_properties)

    def channel(
        self,
        *,
        prefetch: int = 0,
        confirms: bool = False,
        on_return: ReturnCallback | None = None,
    ) -> AwaitableContext[Channel]:
        """Open a channel; await it, or use it with `async with`.

        `prefetch` limits the unacknowledged messages of each consumer (0: no limit). With
        `confirms`, `publish` returns only when the broker has confirmed the message. `on_return`
        gets every mandatory message that reached no queue.
        """

        async def opener() -> Channel:
            return await self._open_channel(prefetch, confirms, on_return)

        return AwaitableContext(opener)

    async def update_secret(self, secret: str, reason: str = "refresh") -> None:
        """Replace the credential of the connection (a token that is about to expire)."""
        self._require_open()
        self._core.update_secret(secret.encode(), reason)
        self._flush_soon()
        taken: asyncio.Future[None] = self._loop.create_future()
        self._new_secrets.append(taken)
        with self._awaiting_broker():
            await taken

    async def close(
        self, code: int = 200, text: str = "Goodbye", *, deliveries: bool = False
    ) -> None:
        """Close the connection and wait for the broker's agreement, a few seconds at most, or a
        minute if the broker still sends what it had under way.

        With `deliveries`, consumers get what the broker sent before it got the close.
        """
        if self._error is None:
            self._error = NotOpen("the connection was closed; connect again")
            self._core.close(code, text, deliveries=deliveries)
            self._flush()
            self._overfull.clear()
            self._update_reading()
        if not await self._agreed_to_close():
            self._handle(self._core.connection_lost("no close-ok came"))
        await self._socket_gone()

    async def _agreed_to_close(self) -> bool:
        for _ in range(CLOSE_TIMEOUTS_MAX):
            before = self._received_bytes
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._closed.wait()
                return True
            except TimeoutError:
                if self._received_bytes == before:
                    return False
        return False

    async def wait_closed(self) -> Exception | None:
        """Wait for the end of the connection; what ended it, or None if that was `close`."""
        await self._closed.wait()
        return None if isinstance(self._error, NotOpen) else self._error

    def statistics(self) -> ConnectionStatistics:
        """What the connection has done so far."""
        return ConnectionStatistics(
            channels=len(self._channels),
            received_bytes=self._received_bytes,
            sent_bytes=self._sent_bytes,
            writes=self._writes,
            unsent_bytes=self._unsent_bytes(),
            blocked_reason=self.blocked_reason,
        )

    # --- opening

    async def _open(self, ssl_context: ssl.SSLContext | None) -> None:
        """Dial and shake hands. Whatever goes wrong, the socket is closed afterwards."""
        tls = self.address.tls
        if tls is not None and ssl_context is None:
            ssl_context = tls.context()
        try:
            async with asyncio.timeout(self.address.connect_timeout_ms / 1000 or None):
                await self._loop.create_connection(
                    lambda: _Wire(self),
                    self.address.host,
                    self.address.port,
                    ssl=ssl_context if tls is not None else None,
                    server_hostname=tls.server_name if tls is not None else None,
                )
                await self._opened
        except BaseException as error:
            self._abort()
            if isinstance(error, Exception):
                await self._socket_gone()
            if isinstance(error, TimeoutError):
                waited_ms = self.address.connect_timeout_ms
                raise TimeoutError(f"no answer within {waited_ms} ms") from None
            raise

    async def _open_channel(
        self, prefetch: int, confirms: bool, on_return: ReturnCallback | None
    ) -> Channel:
        channel = Channel(self, 0, on_return)
        number = channel.number = self._enter(channel)
        try:
            await channel._opened()
            if prefetch:
                await channel.qos(prefetch)
            if confirms:
                await channel.select_confirms()
        except asyncio.CancelledError:
            self._close_channel(number)
            raise
        return channel

    # --- called by channels

    def _enter(self, channel: Channel) -> int:
        """Ask the broker to open a channel; its number."""
        self._require_open()
        number = self._core.open_channel()
        self._channels[number] = channel
        self._flush_soon()
        return number

    def _send(self, channel: int, method: Method) -> None:
        self._core.send(channel, method)
        self._flush_soon()

    def _say(self, method: Method) -> None:
        """Send a method on channel 0, if the broker knows what it means."""
        capabilities = self.server_properties.get("capabilities")
        if isinstance(capabilities, dict) and capabilities.get("session.resume") is True:
            self._core.say(method)
            self._flush_soon()

    def _publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        properties: Properties,
        body: bytes,
    ) -> None:
        self._core.publish(channel, exchange, routing_key, mandatory, properties, body)
        self._flush_soon()

    def _close_channel(self, number: int) -> None:
        if self._core.phase is Phase.OPEN:
            self._core.close_channel(number)
            self._flush_soon()

    @contextmanager
    def _awaiting_broker(self) -> Iterator[None]:
        """While a caller waits for the broker, keep reading, even if buffers are full."""
        self._awaiting += 1
        if not self._reading:
            self._update_reading()
        try:
            yield
        finally:
            self._awaiting -= 1

    def _update_reading(self) -> None:
        """Stop reading while a consumer has too many messages waiting, and continue afterwards.

        Never while a call waits for its reply: the application may be handling a message, and would
        wait for ever. Nor once it is closing: the broker's close-ok comes last.
        """
        wanted = not self._overfull or self._awaiting > 0 or self._error is not None
        wanted = wanted or any(channel._awaits_broker() for channel in self._channels.values())
        if wanted == self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._core.forgive_silence()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _unsent_bytes(self) -> int:
        in_socket = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._core.pending_bytes + in_socket

    def _call_back(self, callback: Callable[[*Ts], None], *arguments: *Ts) -> None:
        """Run application code from the loop, so that its errors are the application's alone."""
        self._loop.call_soon(callback, *arguments)

    # --- called by the socket

    def _connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=SOCKET_BUFFER_BYTES_HIGH)
        self._flush()

    def _received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        self._handle(self._core.receive_data(data))
        if self._overfull:
            self._update_reading()

    async def _socket_gone(self) -> None:
        """Wait until the transport has closed its socket, so that the loop doesn't end before."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(SOCKET_CLOSE_TIMEOUT_S):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    def _socket_lost(self, error: Exception | None) -> None:
        self._gone.set()
        why = f"the socket failed: {error}" if error else "the broker closed the socket"
        self._handle(self._core.connection_lost(f"{why} ({self.address.label})"))

    def _socket_full(self, full: bool) -> None:
        self._full = full
        self._update_gate()

    # --- events

    def _handle(self, events: list[Event]) -> None:
        try:
            for event in events:
                if isinstance(event, ContentReceived):
                    channel = self._channels.get(event.channel)
                    if channel is not None:
                        channel._content(event)
                else:
                    self._handle_rare(event)
        except ProtocolViolation as violation:
            self._handle(self._core.refuse(violation, COMMAND_INVALID))
        if self._core.pending_bytes:
            self._flush_soon()

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, MethodReceived):
            self._method(event)
        elif isinstance(event, ChannelEnded):
            channel = self._channels.pop(event.channel, None)
            if channel is not None:
                channel._end(event.error)
        elif isinstance(event, ConnectionOpened):
            self._handshake_done(event)
        elif isinstance(event, ConnectionBlocked):
            self._set_blocked(event.reason)
        elif isinstance(event, ConnectionUnblocked):
            self._set_blocked(None)
        elif isinstance(event, (FailoverMapTold, MoveAsked)):
            if self.on_told is not None:
                self.on_told(event)
        elif isinstance(event, ConnectionEnded):
            self._ended(event.error)

    def _method(self, event: MethodReceived) -> None:
        channel = self._channels.get(event.channel)
        if channel is not None:
            channel._method(event.method)
        elif event.channel == 0 and self._new_secrets:
            # The one method on channel 0 that the core passes on: update-secret-ok.
            _fulfil(self._new_secrets.popleft())

    def _handshake_done(self, event: ConnectionOpened) -> None:
        self.known_hosts = event.known_hosts
        self._tick()
        _fulfil(self._opened)

    def _set_blocked(self, reason: str | None) -> None:
        self.blocked_reason = reason
        self._update_gate()
        if self.on_blocked is not None:
            self._call_back(self.on_blocked, reason)

    def _ended(self, error: Exception | None) -> None:
        """The connection is over: send what is left, and tell all callers that wait."""
        self._error = self._error or error or NotOpen("the connection was closed; connect again")
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        if self._transport is not None:
            self._transport.close()
        for waiting in (self._opened, *self._new_secrets):
            if not waiting.done():
                waiting.set_exception(renewed(self._error))
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            channel._end(renewed(self._error))
        self._overfull.clear()
        self._gate.set()
        self._closed.set()

    # --- inside

    def _require_open(self) -> None:
        if self._error is not None:
            raise renewed(self._error)

    def _update_gate(self) -> None:
        if self._error is not None or (not self._full and self.blocked_reason is None):
            self._gate.set()
        else:
            self._gate.clear()

    def _flush_soon(self) -> None:
        """Write at the end of this turn of the loop, together with what else is sent in it."""
        if self._core.pending_bytes > WRITE_BYTES_PENDING_MAX:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data = self._core.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self._sent_bytes += len(data)
            self._writes += 1

    def _tick(self) -> None:
        """Tell the core the time, four times per heartbeat interval."""
        interval_s = self._core.heartbeat_s / 4 or TICK_S_DEFAULT
        self._timer = self._loop.call_later(interval_s, self._tick)
        if not self._reading:
            self._core.forgive_silence()
        self._handle(self._core.tick(self._now_ms()))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _abort(self) -> None:
        """Give up a connection that never opened."""
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()
        self._handle(self._core.connection_lost("given up before it was open"))
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()
        if self._transport is not None:
            self._transport.abort()


def _fulfil(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
