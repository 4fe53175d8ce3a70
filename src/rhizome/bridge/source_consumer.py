"""The side that messages are taken from: consumes, and settles what has arrived."""

from __future__ import annotations

import asyncio

from rhizome.bridge.bridge_sides import Flow, ensure_queue, together, unbind
from rhizome.bridge.errors import LINK_ERRORS, advising
from rhizome.bridge.in_flight_window import Window
from rhizome.client import Channel, Connection, Consumer, connect


class Source:
    """Fills the window and empties it, session after session."""

    def __init__(self, flow: Flow, stop: asyncio.Event) -> None:
        self._flow = flow
        self._side = flow.source
        self._stop = stop
        self._is_draining = False

    async def run(self) -> None:
        """Consume until told to stop and all that was delivered has been settled."""
        while not self._stop.is_set():
            try:
                await self._session()
            except LINK_ERRORS as error:
                wait_s = self._side.went_down(error, self._flow.reporter)
                await self._stopped_within(wait_s)

    async def _stopped_within(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._stop.wait()
        except TimeoutError:
            pass

    async def _session(self) -> None:
        settings = self._flow.settings
        name = f"rhizome bridge {settings.id}"
        async with connect(self._side.addresses.uris, name=name) as connection:
            self._side.connected(connection)
            channel = await connection.channel(prefetch=settings.prefetch)
            await self._prepare(connection, channel)
            # The own queue has one bridge: a second one of the same id waits for the end of this.
            exclusive = settings.exclusive or not settings.queue
            consumer = channel.consume(
                settings.source_queue,
                exclusive=exclusive,
                tag=settings.consumer_tag,
                arguments=settings.consumer_arguments,
            )
            await consumer.subscribe()
            self._opened()
            try:
                await self._work(channel, consumer)
            finally:
                self._flow.window.close()

    async def _prepare(self, connection: Connection, channel: Channel) -> None:
        """See that there is a queue to consume, and that it gets what it should."""
        settings = self._flow.settings
        queue = settings.source_queue
        if settings.queue and settings.makes_queue:
            await ensure_queue(connection, queue, settings.arguments)
            return
        if settings.queue:
            with advising(f"declare it first: rhizome queue declare {queue}"):
                await channel.declare_queue(queue, passive=True)
            return
        with advising("give --argument as the queue has it, or delete the queue"):
            await channel.declare_queue(queue, durable=True, arguments=settings.arguments or None)
        with advising("declare it first"):
            for key in settings.binding_keys:
                await channel.bind_queue(queue, settings.exchange, key)
        await unbind(connection, queue, settings.unbinds)

    def _opened(self) -> None:
        flow, side = self._flow, self._side
        flow.window = Window(flow.recall)
        flow.reporter.counters.source_sessions += 1
        side.backoff.reset()
        flow.came_up(side, f"consuming from {flow.settings.source_label} at {side.address}")

    async def _work(self, channel: Channel, consumer: Consumer) -> None:
        self._is_draining = False
        await together(self._receive(consumer), self._drain(consumer), self._settle(channel))

    async def _receive(self, consumer: Consumer) -> None:
        flow = self._flow
        while batch := await consumer.batch():
            for message in batch:
                if flow.window.add(message).sends:
                    flow.reporter.counters.recognised += 1
            flow.count_window()
            flow.wake.set()
            flow.done.set()

    async def _drain(self, consumer: Consumer) -> None:
        """When told to stop: no more deliveries; those that nobody has looked at go back."""
        await self._stop.wait()
        await consumer.cancel()
        self._is_draining = True
        self._flow.done.set()

    async def _settle(self, channel: Channel) -> None:
        """Acknowledge what has arrived. After a stop: give back the rest, and end."""
        flow = self._flow
        while not (self._is_draining and not len(flow.window)):
            await flow.done.wait()
            flow.done.clear()
            before = len(flow.window)
            settlements = flow.window.settle()
            flow.reporter.counters.settled += before - len(flow.window)
            for tag, is_ack in settlements:
                if is_ack:
                    await channel.ack(tag, multiple=True)
                else:
                    await channel.reject(tag)
            if self._is_draining:
                for tag in flow.window.give_up_waiting():
                    await channel.nack(tag, requeue=True)
            flow.count_window()
