"""The load of a benchmark: what one worker process does.

Publishers put the time into the first eight bytes of each body; on one machine all processes share
the monotonic clock, so consumers read the latency off it. Bodies of less than eight bytes give no
latencies.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from struct import Struct
from typing import Final

from rhizome.cli import coroutine_runner
from rhizome.cli.bench.bench_statistics import Counts, Histogram
from rhizome.cli.errors import describe_failure
from rhizome.client import Channel, Connection, Message, Properties, connect

STAMP: Final = Struct(">q")
BATCH_MAX: Final = 100
PROGRESS_INTERVAL_S: Final = 0.25
PACE_INTERVAL_S: Final = 0.001
PREFETCH_MIN: Final = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, as every worker gets it. `rate` is per publisher, 0 for as fast as possible."""

    uri: str = field(repr=False)
    queues: tuple[str, ...]
    body_bytes: int
    confirm_window: int
    ack_every: int
    persistent: bool
    rate: float
    seconds: float
    prefetch: int


@dataclass(frozen=True, slots=True)
class Share:
    """The publishers and consumers of one worker, by number."""

    publishers: tuple[int, ...]
    consumers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker reports while it runs."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker reports at the end."""

    counts: Counts
    seconds: float
    latency_us: Histogram


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a worker gave up."""

    reason: str


def share_out(publishers: int, consumers: int, processes: int) -> list[Share]:
    """Distribute publishers and consumers over processes in turn; no process gets none.

    Consumers are distributed from the other end, so that two processes, one publisher and one
    consumer end up as one of each.
    """
    shares = [
        Share(
            publishers=tuple(range(number, publishers, processes)),
            consumers=tuple(range(processes - 1 - number, consumers, processes)),
        )
        for number in range(processes)
    ]
    return [share for share in shares if share.publishers or share.consumers]


def work(plan: Plan, share: Share, pipe: Pipe) -> None:
    """A worker process: connect, say `ready`, wait for the start, run, report.

    Ctrl-C reaches all processes of a terminal; the parent alone decides what it means.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        coroutine_runner.run(_Worker(plan, share, pipe).run())
    except Exception as error:
        with contextlib.suppress(OSError):  # the parent may have gone
            pipe.send(Failed(describe_failure(error)))


class _Worker:
    """All publishers and consumers of one process."""

    def __init__(self, plan: Plan, share: Share, pipe: Pipe) -> None:
        self._plan = plan
        self._share = share
        self._pipe = pipe
        self._published = 0
        self._consumed = 0
        self._latency_us = Histogram()
        self._properties = Properties(delivery_mode=2 if plan.persistent else 1)
        self._padding = bytes(max(plan.body_bytes - STAMP.size, 0))

    async def run(self) -> None:
        plan = self._plan
        publishers = [await self._publisher(number) for number in self._share.publishers]
        consumers = [await self._consumer(number) for number in self._share.consumers]
        self._pipe.send("ready")
        await asyncio.to_thread(self._pipe.recv)
        began = time.monotonic()
        tasks = [
            *(asyncio.create_task(self._publish(*each[1:])) for each in publishers),
            *(asyncio.create_task(self._consume(*each[1:])) for each in consumers),
        ]
        failure = await self._watch(tasks, began + plan.seconds)
        seconds = time.monotonic() - began
        counts = self._counts()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in {connection for connection, _, _ in (*publishers, *consumers)}:
            await connection.close()
        if failure is not None:
            raise failure
        self._pipe.send(Done(counts, seconds, self._latency_us))

    async def _watch(
        self, tasks: Sequence[asyncio.Task[None]], deadline: float
    ) -> BaseException | None:
        """Report progress until the time is up; returns the error of a task that failed."""
        while (left_s := deadline - time.monotonic()) > 0:
            done, _ = await asyncio.wait(tasks, timeout=min(left_s, PROGRESS_INTERVAL_S))
            for task in done:
                if not task.cancelled() and task.exception() is not None:
                    return task.exception()
            self._pipe.send(Progress(self._counts()))
            if self._pipe.poll():
                break  # the parent asks for an early end
        return None

    def _counts(self) -> Counts:
        return Counts(self._published, self._consumed)

    async def _publisher(self, number: int) -> tuple[Connection, Channel, str]:
        connection = await connect(self._plan.uri, name=f"rhizome bench publisher {number}")
        channel = await connection.channel(confirms=self._plan.confirm_window > 0)
        return connection, channel, self._plan.queues[number % len(self._plan.queues)]

    async def _consumer(self, number: int) -> tuple[Connection, Channel, str]:
        connection = await connect(self._plan.uri, name=f"rhizome bench consumer {number}")
        prefetch = 0
        if self._plan.ack_every:
            prefetch = self._plan.prefetch or max(PREFETCH_MIN, 2 * self._plan.ack_every)
        channel = await connection.channel(prefetch=prefetch)
        return connection, channel, self._plan.queues[number % len(self._plan.queues)]

    # --- publishing

    async def _publish(self, channel: Channel, queue: str) -> None:
        if self._plan.rate:
            await self._publish_paced(channel, queue)
        else:
            await self._publish_freely(channel, queue)

    async def _publish_freely(self, channel: Channel, queue: str) -> None:
        window = self._plan.confirm_window
        batch = min(BATCH_MAX, window) if window else BATCH_MAX
        while True:
            await channel.ready()
            self._publish_batch(channel, queue, batch)
            if window:
                await channel.confirmed(window - batch)
            else:
                await asyncio.sleep(0)

    async def _publish_paced(self, channel: Channel, queue: str) -> None:
        """Send what is due every millisecond or so."""
        window = self._plan.confirm_window
        began = time.monotonic()
        sent = 0
        while True:
            due = int((time.monotonic() - began) * self._plan.rate) - sent
            if due > 0:
                await channel.ready()
                self._publish_batch(channel, queue, due)
                sent += due
                if window:
                    await channel.confirmed(window)
            await asyncio.sleep(max(PACE_INTERVAL_S, 1 / self._plan.rate))

    def _publish_batch(self, channel: Channel, queue: str, count: int) -> None:
        publish = channel.publish_soon
        for _ in range(count):
            publish(self._body(), routing_key=queue, properties=self._properties)
        self._published += count

    def _body(self) -> bytes:
        if self._plan.body_bytes < STAMP.size:
            return bytes(self._plan.body_bytes)
        return STAMP.pack(time.monotonic_ns()) + self._padding

    # --- consuming

    async def _consume(self, channel: Channel, queue: str) -> None:
        ack_every = self._plan.ack_every
        unacked = 0
        messages = channel.consume(queue, no_ack=ack_every == 0)
        while True:
            batch = await messages.batch()
            self._received(batch)
            if ack_every == 1:
                for message in batch:
                    await message.ack()
            elif ack_every:
                unacked = await _ack_some(batch, unacked, ack_every)
            await asyncio.sleep(0)

    def _received(self, batch: list[Message]) -> None:
        self._consumed += len(batch)
        if self._plan.body_bytes < STAMP.size:
            return
        now_ns = time.monotonic_ns()
        record = self._latency_us.record
        for message in batch:
            record((now_ns - STAMP.unpack_from(message.body)[0]) // 1000)


async def _ack_some(batch: list[Message], unacked: int, every: int) -> int:
    """Ack each time `every` messages have come; returns how many are left unacknowledged."""
    for message in batch:
        unacked += 1
        if unacked == every:
            await message.ack(multiple=True)
            unacked = 0
    return unacked
