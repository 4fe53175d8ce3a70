"""Applications that use a cluster while its brokers are killed, and remember what they were told.

Each application stays with one broker and comes back when that does. A `Publisher` and a
`Subscriber` have a new life with each connection; what one life has told the other is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from random import Random

from rhizome.client import Channel, Properties, connect
from rhizome.client.errors import ClientError, ConnectFailed, MessageReturned, PublishNacked
from rhizome.errors import AmqpError
from rhizome.testing.cluster_process import ClusterProcess

REPLIES = "amq.rabbitmq.reply-to"
PACE_SECONDS = 0.02
CALL_SECONDS_MAX = 60.0
GONE = (ClientError, OSError, TimeoutError)


class Life:
    """One connection of an application. ``ended``: its broker is gone."""

    def __init__(self, name: str, at: str) -> None:
        self.name = name
        self.at = at
        self.ended = False


class Sending(Life):
    """Numbers 0 to ``begun`` - 1 were sent, those below ``confirmed`` are confirmed, but for those
    ``refused``, which may have arrived or not."""

    def __init__(self, name: str, at: str) -> None:
        super().__init__(name, at)
        self.begun = 0
        self.confirmed = 0
        self.refused: dict[int, None] = {}


class Hearing(Life):
    """``heard``: the numbers that came from each sending. ``since``: where each sending was when
    this one was told that its queue is bound."""

    def __init__(self, name: str, at: str) -> None:
        super().__init__(name, at)
        self.heard: dict[str, list[int]] = {}
        self.since: dict[str, int] = {}


class Applications:
    """All applications of a test, and what they know."""

    def __init__(self, cluster: ClusterProcess, seed: int) -> None:
        self.cluster = cluster
        self.chance = Random(seed)
        self.stopping = False
        self.exchange = "news"
        self.sendings: dict[str, Sending] = {}
        self.hearings: list[Hearing] = []
        self.declared: list[str] = []
        self.calls = 0
        self.failures: list[str] = []
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        async with self._channel(next(iter(self.cluster.brokers))) as channel:
            await channel.declare_exchange(self.exchange, "fanout", durable=True)
            await channel.declare_exchange("declared", "direct", durable=True)
        for at in self.cluster.brokers:
            for work in (self._publish, self._subscribe, self._serve_calls):
                self._tasks.append(asyncio.create_task(self._stay(at, work)))
        self._tasks.append(asyncio.create_task(self._wander(self._declare)))
        self._tasks.append(asyncio.create_task(self._wander(self._call)))

    async def stop(self) -> None:
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _channel(self, at: str) -> AsyncIterator[Channel]:
        async with (
            connect(self.cluster.brokers[at].url, name=f"application at {at}") as connection,
            connection.channel(confirms=True, prefetch=1000) as channel,
        ):
            yield channel

    # --- lives

    async def _stay(self, at: str, work: Callable[..., object]) -> None:
        while not self.stopping:
            with contextlib.suppress(*GONE):
                async with self._channel(at) as channel:
                    await work(at, channel)  # type: ignore[misc]
            await asyncio.sleep(PACE_SECONDS)

    async def _wander(self, work: Callable[..., object]) -> None:
        """Do one piece of work after another through brokers chosen by chance. What fails though
        its broker lives is noted."""
        while not self.stopping:
            at = self.chance.choice(self.cluster.names())
            pid = self.cluster.brokers[at].pid
            try:
                async with self._channel(at) as channel:
                    await work(at, channel)  # type: ignore[misc]
            except (ConnectFailed, MessageReturned, PublishNacked):
                pass  # a broker or service that is only starting, or a relay lost with its root
            except (*GONE, AmqpError) as error:
                broker = self.cluster.brokers[at]
                if broker.is_running() and broker.pid == pid and not self.stopping:
                    self.failures.append(f"{work.__name__} at {at}: {error!r}")
            await asyncio.sleep(PACE_SECONDS)

    async def _publish(self, at: str, channel: Channel) -> None:
        life = Sending(f"{at}/{next(self._numbers)}", at)
        self.sendings[life.name] = life
        try:
            while not self.stopping:
                life.begun += 1
                body = f"{life.name} {life.begun - 1}".encode()
                try:
                    await channel.publish(body, exchange=self.exchange)
                except PublishNacked:
                    life.refused[life.begun - 1] = None
                life.confirmed = life.begun
                await asyncio.sleep(PACE_SECONDS)
        finally:
            life.ended = True

    async def _subscribe(self, at: str, channel: Channel) -> None:
        life = Hearing(f"{at}/{next(self._numbers)}", at)
        queue = (await channel.declare_queue("", exclusive=True)).name
        await channel.bind_queue(queue, self.exchange)
        life.since = {name: sending.begun for name, sending in self.sendings.items()}
        self.hearings.append(life)
        try:
            async with channel.consume(queue, no_ack=True) as consumer:
                async for message in consumer:
                    name, number = message.body.decode().split()
                    life.heard.setdefault(name, []).append(int(number))
        finally:
            life.ended = True

    async def _serve_calls(self, at: str, channel: Channel) -> None:
        await channel.declare_queue(f"service.{at}", exclusive=True)
        async with channel.consume(f"service.{at}", no_ack=True) as consumer:
            async for message in consumer:
                properties = Properties(correlation_id=message.properties.correlation_id)
                key = message.properties.reply_to or ""
                await channel.publish(message.body, routing_key=key, properties=properties)

    async def _declare(self, at: str, channel: Channel) -> None:
        name = f"declared.{next(self._numbers)}"
        async with asyncio.timeout(CALL_SECONDS_MAX):
            await channel.declare_queue(name, durable=True)
            await channel.bind_queue(name, "declared", name)
        self.declared.append(name)

    async def _call(self, at: str, channel: Channel) -> None:
        """Ask a service on any broker; a question to a broker that dies is nobody's fault, nor
        is one between secondaries that goes with its root (A3)."""
        other = self.chance.choice(
            [name for name in self.cluster.names() if name[0] + at[0] != "ss"]
        )
        server = self.cluster.brokers[other]
        pid = server.pid
        number = str(next(self._numbers))
        properties = Properties(reply_to=REPLIES, correlation_id=number)
        async with channel.consume(REPLIES, no_ack=True) as replies:
            await channel.publish(
                b"question",
                routing_key=f"service.{other}",
                properties=properties,
                mandatory=True,
            )
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    async for reply in replies:
                        if reply.properties.correlation_id == number:
                            self.calls += 1
                            return
            except TimeoutError:
                if server.is_running() and server.pid == pid:
                    raise

    # --- what they know

    def pairs(self) -> list[tuple[Hearing, Sending]]:
        """Of the lives that go on."""
        return [
            (hearing, sending)
            for hearing in self.hearings
            if not hearing.ended
            for sending in self.sendings.values()
            if not sending.ended
        ]

    async def all_heard(self, seconds: float) -> list[str]:
        """Wait until every living subscriber has what living publishers have had confirmed until
        now; what is missing after that time."""
        marks = {name: sending.confirmed for name, sending in self.sendings.items()}

        def missing() -> list[str]:
            found = []
            for hearing, sending in self.pairs():
                last = hearing.heard.get(sending.name, [-1])[-1]
                due = marks.get(sending.name, 0) - 1
                if last < due and due >= hearing.since.get(sending.name, 0):
                    found.append(f"{hearing.name} has {last} of {sending.name}, and lacks to {due}")
            return found

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while missing():
                    await asyncio.sleep(PACE_SECONDS)
        return missing()

    def gaps(self) -> list[str]:
        """Everything that a subscriber did not hear in order, once and without a hole.

        Between lives of which one has ended, only the end may be missing. What goes from secondary
        to secondary is relayed by the root, at most once (A3), and refused if it may be lost.
        """
        found = []
        for hearing in self.hearings:
            for name, heard in hearing.heard.items():
                refused = self.sendings[name].refused
                first = hearing.since.get(name, 0)
                if any(number not in refused for number in range(first, heard[0])):
                    found.append(f"{hearing.name} begins with {heard[0]} of {name}, not {first}")
                for before, after in itertools.pairwise(heard):
                    missed = any(number not in refused for number in range(before + 1, after))
                    if missed or after <= before:
                        found.append(f"{hearing.name} has {after} of {name} after {before}")
        return found

    def refusals(self) -> int:
        """How many messages from secondary to secondary were under way with a root."""
        return sum(len(each.refused) for each in self.sendings.values())
