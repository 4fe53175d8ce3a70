"""Sessions: an application's work, whichever broker serves it.

A `Session` has one connection at a time. When that is lost it tries the same broker again, then the
brokers that take over from it, then the others it knows, and goes on there: its channels come back
with their consumers, what was published and not confirmed is sent again under the same producer
sequence. The application sees a pause.

    async with open_session("amqp://app:secret@b1,b2,b3/orders") as orders:
        async with orders.queue("parcels", durable=True) as queue:  # declares it
            async with orders.producer(routing_key="parcels") as producer:
                await producer.publish(b"one")  # taken exactly once, whatever happens
            async for message in queue:
                await message.ack()
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rhizome.amqp import methods
from rhizome.amqp.properties import Properties
from rhizome.client.awaitable_context import AwaitableContext
from rhizome.client.channel import ReturnCallback
from rhizome.client.confirm_level import CAPABILITY as CONFIRM_LEVEL
from rhizome.client.connection import BlockedCallback, Connection
from rhizome.client.connection_uri import Address, parse_uris
from rhizome.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    FailoverFailed,
    InvalidUri,
    NotOpen,
    Redirected,
    renewed,
)
from rhizome.client.protocol_events import FailoverMapTold, MoveAsked
from rhizome.client.session.balancing_policies import Policy, policy_of
from rhizome.client.session.failover_addresses import (
    UNREACHABLE,
    AddressBook,
    Failover,
    FailoverMap,
    Search,
    decode_map,
)
from rhizome.client.session.producer import Producer
from rhizome.client.session.queue import Queue
from rhizome.client.session.queue_browser import Browser
from rhizome.client.session.session_channel import (
    ChannelOptions,
    ResumeBarrier,
    SessionChannel,
    is_lost,
)
from rhizome.client.session.topology_recovery import RecordedTopology
from rhizome.client.topology_calls import Arguments
from rhizome.errors import AmqpError, LoginRefused

CAPABILITIES: Final = ("failover.map", "session.move", "session.resume")
MOVING: Final = 320
"""The reply code of a close after which the session resumes elsewhere."""
RETURN_DELAY_S: Final = 0.1
RETURN_DELAY_S_MAX: Final = 2.0

_UNREACHABLE: Final = (*UNREACHABLE, ConnectFailed)

OPEN: Final = "open"
RECOVERING: Final = "recovering"
CLOSED: Final = "closed"

ChangeCallback = Callable[[str, str], None]
"""Gets the state (open, recovering, closed) and the address of the broker, if there is one."""


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """A snapshot of the counters of a session."""

    state: str
    broker: str
    failovers: int
    tries: int
    channels: int


def open_session(
    uri: str | Sequence[str] = "amqp://guest:guest@127.0.0.1:5672/",
    *,
    name: str = "",
    client_properties: dict[str, object] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    failover: Failover | None = None,
    policy: str | Policy = "in-order",
    recreate: bool = False,
    on_change: ChangeCallback | None = None,
    on_blocked: BlockedCallback | None = None,
    confirm_levels: bool = False,
) -> AwaitableContext[Session]:
    """Open a session with one of several brokers.

    `uri` is one URI, whose host part may list several `host:port` separated by commas, or a list
    of URIs; more brokers are learned from the cluster. `policy` is the order in which they are
    tried: in-order, random, round-robin, or a callable
    (`rhizome.client.session.balancing_policies`). `failover` says how hard to try. With
    `recreate` the queues, exchanges and bindings that the session has
    declared are declared again at every broker; its exclusive queues are in any case.

    `on_change` is called with the state and the broker's address whenever they change. With
    `confirm_levels` brokers tell which `Level` each confirmed publish has reached.

    Example:
        async with open_session("amqp://b1,b2,b3/", failover=Failover(tries_max=0)) as mine:
            async with mine.channel(prefetch=100) as channel:
                async for message in channel.consume("orders"):
                    await message.ack()
    """
    book = AddressBook(parse_uris(uri), policy_of(policy))

    async def opener() -> Session:
        made = Session(
            book,
            name,
            dict(client_properties or {}),
            ssl_context,
            failover or Failover(),
            recreate,
            on_change,
            on_blocked,
            confirm_levels,
        )
        await made._begin()
        return made

    return AwaitableContext(opener)


class Session:
    """A session, as the module docstring tells; made by `open_session`.

    Invariant: `_connection` is None exactly while the session looks for a broker or is over;
    `_ended` is None until it is over.
    """

    def __init__(
        self,
        book: AddressBook,
        name: str,
        client_properties: dict[str, object],
        ssl_context: ssl.SSLContext | None,
        failover: Failover,
        recreate: bool,
        on_change: ChangeCallback | None,
        on_blocked: BlockedCallback | None,
        confirm_levels: bool,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.failover = failover
        self.on_change = on_change
        self._book = book
        self._name = name
        self._client_properties = client_properties
        self._ssl_context = ssl_context
        self._on_blocked = on_blocked
        self._capabilities = (*CAPABILITIES, CONFIRM_LEVEL) if confirm_levels else CAPABILITIES
        self._topology = RecordedTopology(recreate)
        self._connection: Connection | None = None
        self._latest: Connection | None = None
        self._channels: dict[SessionChannel, str] = {}
        self._producers = itertools.count(1)
        self._ended: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._move_to: Address | None = None
        self._failovers = 0
        self._tries = 0

    # --- for applications

    @property
    def state(self) -> str:
        """open, recovering or closed."""
        if self._ended is not None:
            return CLOSED
        return RECOVERING if self._connection is None else OPEN

    @property
    def broker(self) -> str:
        """The name of the broker that serves the session at present, or did last."""
        if self._latest is None:
            return ""
        return str(self._latest.server_properties.get("broker", self._latest.address.label))

    @property
    def failover_map(self) -> FailoverMap:
        """What the cluster has said of its brokers."""
        return self._book.map

    def channel(
        self,
        *,
        prefetch: int = 0,
        confirms: bool = True,
        on_return: ReturnCallback | None = None,
    ) -> AwaitableContext[SessionChannel]:
        """Open a channel that survives failovers; await it, or use it with `async with`."""

        async def opener() -> SessionChannel:
            return await self._open_channel(ChannelOptions(prefetch, confirms), on_return)

        return AwaitableContext(opener)

    def producer(
        self,
        *,
        exchange: str = "",
        routing_key: str = "",
        persistent: bool = True,
        window: int = 1000,
        name: str = "",
        sequence: int = 0,
    ) -> AwaitableContext[Producer]:
        """A producer, whose publishes are accepted exactly once; see `Producer`.

        Its name is made up unless the application has one of its own, which it must not use for
        two producers at a time. The first publish gets the number after `sequence`: an
        application that knows how far it got with an earlier producer of that name can go on.
        """

        async def opener() -> Producer:
            channel = await self._open_channel(ChannelOptions(0, True), None, name)
            channel._sequence = sequence
            return Producer(channel, exchange, routing_key, persistent, window)

        return AwaitableContext(opener, Producer.abandon)

    def queue(
        self,
        name: str = "",
        *,
        declare: bool = True,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        prefetch: int = 100,
        no_ack: bool = False,
    ) -> Queue:
        """A queue to iterate over; declared first, unless `declare` is False. See `Queue`."""
        return Queue(
            self, name, declare, durable, exclusive, auto_delete, arguments, prefetch, no_ack
        )

    def browse(self, queue: str) -> Browser:
        """Look at the ready messages of a queue, and leave them there. See `Browser`."""
        return Browser(self, queue)

    async def close(self) -> None:
        """Close the session with all its channels."""
        connection = self._connection
        if self._ended is None:
            self._finish(NotOpen("the session was closed; open another"))
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if connection is not None:
            await connection.close()

    def statistics(self) -> SessionStatistics:
        """What the session has been through so far."""
        return SessionStatistics(
            self.state, self.broker, self._failovers, self._tries, len(self._channels)
        )

    # --- finding a broker

    async def _begin(self) -> None:
        """Connect for the first time: try each address once; a refusal ends it."""
        attempts: list[tuple[str, BaseException]] = []
        for address in self._book.first_round():
            try:
                connection = await self._dial(address)
            except _UNREACHABLE as error:
                attempts.append((address.label, error))
            else:
                self._arrived(connection)
                return
        raise ConnectFailed(attempts)

    async def _dial(self, address: Address) -> Connection:
        """Connect to a broker, or to where it sends us."""
        search = Search([address])
        for each in search:
            self._tries += 1
            visit = {"session": self.id, "session-visit": self._tries, **search.properties}
            connection = Connection(
                self._hurried(each),
                self._name,
                {**self._client_properties, **visit},
                self._on_blocked,
                self._capabilities,
            )
            connection.on_told = self._told
            try:
                await connection._open(self._ssl_context)
            except Redirected as elsewhere:
                self._book.learn_hosts(elsewhere.known_hosts)
                search.failed(each, elsewhere, self._book.at)
            else:
                self._book.learn_hosts(connection.known_hosts)
                return connection
        raise search.failure()

    def _hurried(self, address: Address) -> Address:
        """With the timeouts of a session, unless the URI's are shorter."""
        return replace(
            address,
            heartbeat_s=min(address.heartbeat_s, self.failover.heartbeat_s),
            connect_timeout_ms=min(address.connect_timeout_ms, self.failover.connect_timeout_ms),
        )

    def _arrived(self, connection: Connection) -> None:
        self._connection = connection
        self._latest = connection
        self._spawn(self._guard(connection))
        self._spawn(self._bring_all_back(connection))
        self._changed()

    async def _guard(self, connection: Connection) -> None:
        """Wait for the end of a connection, then fail over."""
        lost = await connection.wait_closed()
        if self._ended is not None:
            return
        self._connection = None
        self._changed()
        try:
            await self._go_on(connection, lost)
        except Exception as error:
            self._finish(error)

    async def _go_on(self, before: Connection, lost: Exception | None) -> None:
        """Find a broker and resume there."""
        attempts: list[tuple[str, BaseException]] = []
        delay_ms = 0
        for addresses in self._rounds(before):
            for address in addresses:
                if self.failover.tries_max and len(attempts) >= self.failover.tries_max:
                    raise FailoverFailed(attempts, lost)
                try:
                    connection = await self._dial(address)
                    await self._prepare(connection)
                except LoginRefused:
                    raise
                except (OSError, ClientError, AmqpError) as error:
                    attempts.append((address.label, error))
                else:
                    self._failovers += 1
                    self._arrived(connection)
                    return
            delay_ms = min(max(2 * delay_ms, self.failover.delay_ms), self.failover.delay_ms_max)
            await asyncio.sleep(delay_ms / 1000)

    def _rounds(self, before: Connection) -> Iterator[list[Address]]:
        """The addresses to try, round by round, without an end."""
        first: list[Address] = []
        if self._move_to is not None:
            first, self._move_to = [self._move_to], None
        elif not self._book.is_useless(before.address):
            # Perhaps only the network was gone; but others must not wait for long.
            again = replace(before.address, connect_timeout_ms=self.failover.current_timeout_ms)
            first = [again] * self.failover.current_tries
        name = str(before.server_properties.get("broker", ""))
        yield [*first, *self._book.after(before.address, name)]
        while True:
            yield self._book.next_round()

    async def _prepare(self, connection: Connection) -> None:
        """Declare again what has to be, before it is used."""
        if self._topology.is_empty:
            return
        try:
            async with connection.channel() as channel:
                await self._topology.make_again(channel)
        except BaseException:
            await connection.close()
            raise

    async def _bring_all_back(self, connection: Connection) -> None:
        """Reopen all channels on this connection; then the broker knows what is still held."""

        def say() -> None:
            if self._failovers > 0 and connection.is_open:
                connection._say(methods.SessionResumed())

        channels = list(self._channels)
        presenting = ResumeBarrier(channels, say)
        coming = [self._bring_back(channel, connection, presenting) for channel in channels]
        await asyncio.gather(*coming)

    async def _bring_back(
        self, channel: SessionChannel, connection: Connection, presenting: ResumeBarrier
    ) -> None:
        """Reopen a channel on this connection; its queues may be unavailable for a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.failover.patience_ms / 1000
        delay_s = RETURN_DELAY_S
        while channel.is_suspended and self._connection is connection and not channel._returning:
            try:
                await channel._come_back(connection, presenting)
            except AmqpError as error:
                presenting.leave(channel)
                if self._connection is not connection:
                    return
                if loop.time() > deadline:
                    channel._finish(error)
                    return
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETURN_DELAY_S_MAX)
            except Exception as error:
                presenting.leave(channel)
                if not is_lost(error):
                    channel._finish(error)
                return
        presenting.leave(channel)

    # --- what brokers say

    def _told(self, event: FailoverMapTold | MoveAsked) -> None:
        if isinstance(event, FailoverMapTold):
            try:
                self._book.learn_map(decode_map(event.version, event.entries))
            except InvalidUri:
                return
        else:
            self._book.learn_hosts(event.known_hosts)
            self._move_to = self._book.at(event.host)
            self._at_rest()

    def _at_rest(self) -> None:
        """If the broker has asked for it, go where it said, once nothing is held any more that
        couldn't be taken along."""
        connection = self._connection
        if self._move_to is None or connection is None:
            return
        if all(channel.holds == 0 or channel.can_move for channel in self._channels):
            self._connection = None
            self._changed()
            # From here on nothing may be said on it, though the broker hasn't agreed yet.
            for channel in list(self._channels):
                channel._suspend(ConnectionLost("the session moves to another broker"))
            closing = connection.close(MOVING, "moving to another broker", deliveries=True)
            self._spawn(closing)

    # --- called by channels

    def _last_connection(self) -> Connection:
        assert self._latest is not None
        return self._latest

    def _survives(self, connection: Connection) -> bool:
        """Whether the end of a channel is only that of its connection."""
        return self._ended is None and connection._error is not None

    def _forget(self, channel: SessionChannel) -> None:
        self._channels.pop(channel, None)

    def _numbered(
        self, properties: Properties, channel: SessionChannel, sequence: int
    ) -> Properties:
        """The properties of a publish, with what its queues know it by (L5)."""
        headers = dict(properties.headers or {})
        headers["x-producer"] = self._channels[channel]
        headers["x-sequence"] = sequence
        return properties.with_headers(headers)

    # --- inside

    async def _open_channel(
        self, options: ChannelOptions, on_return: ReturnCallback | None, producer: str = ""
    ) -> SessionChannel:
        self._require_open()
        channel = SessionChannel(self, options, on_return)
        self._channels[channel] = producer or f"{self.id}.{next(self._producers)}"
        if self._connection is not None:
            self._spawn(self._bring_back(channel, self._connection, ResumeBarrier(())))
        try:
            await channel._alive()
        except asyncio.CancelledError:
            self._forget(channel)
            raise
        return channel

    def _require_open(self) -> None:
        if self._ended is not None:
            raise renewed(self._ended)

    def _finish(self, error: Exception) -> None:
        self._ended = error
        self._connection = None
        for channel in list(self._channels):
            channel._finish(renewed(error))
        self._changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _changed(self) -> None:
        if self.on_change is not None:
            label = self._connection.address.label if self._connection is not None else ""
            asyncio.get_running_loop().call_soon(self.on_change, self.state, label)
