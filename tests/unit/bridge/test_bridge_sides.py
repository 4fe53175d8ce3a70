"""Both sides of a bridge against scripted peers that do what real brokers seldom do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.bridge import Bridge, BridgeEvent, BridgeFailed, BridgeSettings
from tests.unit.client.conftest import ScriptedPeer, scripted_peer

SECONDS_MAX = 10


class Watched:
    """A running bridge with its events."""

    def __init__(self, source: str, destination: str, **settings: Any) -> None:
        self.events: list[BridgeEvent] = []
        self.stop = asyncio.Event()
        self._told = asyncio.Event()
        settings.setdefault("queue", "q")
        made = BridgeSettings("id", source, destination, retry_s_max=0.1, drain_s=0.5, **settings)
        self.bridge = Bridge(made, self._tell, Random(1))

    def _tell(self, event: BridgeEvent) -> None:
        self.events.append(event)
        self._told.set()

    async def until(self, name: str, count: int = 1) -> BridgeEvent:
        async with asyncio.timeout(SECONDS_MAX):
            while len(found := [event for event in self.events if event.name == name]) < count:
                self._told.clear()
                await self._told.wait()
        return found[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.bridge.run(self.stop))
        try:
            yield
            self.stop.set()
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def deliver(peer: ScriptedPeer, tag: int, body: bytes) -> None:
    consume = peer.of(methods.BasicConsume)[-1]
    peer.send_content(1, methods.BasicDeliver(consume.consumer_tag, tag, False, "", "q"), body)


def acked(peer: ScriptedPeer) -> list[int]:
    return [ack.delivery_tag for ack in peer.of(methods.BasicAck)]


def run(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS_MAX * 3):
            await scenario

    asyncio.run(limited())


def test_a_delivery_is_acknowledged_after_the_confirm_and_not_before() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as destination:
            watched = Watched(source.uri, destination.uri)
            async with watched.running():
                await watched.until("running")
                for tag in (1, 2, 3):
                    deliver(source, tag, b"%d" % tag)
                await destination.until(methods.BasicPublish, 3)
                destination.send(1, methods.BasicAck(2, False))
                destination.send(1, methods.BasicAck(1, False))
                await source.until(methods.BasicAck)
                assert acked(source) == [2]
                assert watched.bridge.reporter.counters.settled == 2
                destination.send(1, methods.BasicAck(3, True))
                await source.until(methods.BasicAck, 2)
                assert acked(source) == [2, 3]
            assert [p.mandatory for p in destination.of(methods.BasicPublish)] == [True] * 3

    run(scenario())


def test_an_overdue_confirm_leads_to_the_next_address() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as mute, scripted_peer() as other:
            uri = f"amqp://127.0.0.1:{mute.port},127.0.0.1:{other.port}/"
            watched = Watched(source.uri, uri, confirm_timeout_s=0.5)
            async with watched.running():
                await watched.until("running")
                deliver(source, 1, b"one")
                await mute.until(methods.BasicPublish)
                assert "no confirm" in (await watched.until("lost")).text
                await other.until(methods.BasicPublish)
                other.send(1, methods.BasicAck(1, False))
                await source.until(methods.BasicAck)
            assert watched.bridge.reporter.counters.sent_again == 1

    run(scenario())


def test_a_blocked_destination_is_told_and_waited_for() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as destination:
            watched = Watched(source.uri, destination.uri, confirm_timeout_s=0.5)
            async with watched.running():
                await watched.until("running")
                deliver(source, 1, b"one")
                await destination.until(methods.BasicPublish)
                destination.send(0, methods.ConnectionBlocked("disk is full"))
                assert "disk is full" in (await watched.until("blocked")).text
                # Longer than confirms may take, and than the pause between two looks.
                await asyncio.sleep(1.6)
                assert not [event for event in watched.events if event.name == "lost"]
                destination.send(0, methods.ConnectionUnblocked())
                await watched.until("running", 2)
                destination.send(1, methods.BasicAck(1, False))
                await source.until(methods.BasicAck)

    run(scenario())


def test_a_lost_source_does_not_make_the_destination_get_it_twice() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as destination:
            watched = Watched(source.uri, destination.uri)
            async with watched.running():
                await watched.until("running")
                deliver(source, 1, b"one")
                deliver(source, 2, b"two")
                await destination.until(methods.BasicPublish, 2)
                source.drop()
                await watched.until("running", 2)
                deliver(source, 1, b"one")
                deliver(source, 2, b"two")
                deliver(source, 3, b"three")
                await destination.until(methods.BasicPublish, 3)
                destination.send(1, methods.BasicAck(3, True))
                await source.until(methods.BasicAck)
                assert acked(source) == [3]
            assert len(destination.of(methods.BasicPublish)) == 3
            assert watched.bridge.reporter.counters.recognised == 2

    run(scenario())


def test_an_idle_destination_that_goes_away_is_noticed() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as destination:
            watched = Watched(source.uri, destination.uri)
            async with watched.running():
                await watched.until("running")
                destination.drop()
                lost = await watched.until("lost")
                assert lost.details["side"] == "destination"
                await watched.until("running", 2)

    run(scenario())


def test_a_stop_is_bounded_when_no_confirm_comes() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as destination:
            watched = Watched(source.uri, destination.uri)
            async with watched.running():
                await watched.until("running")
                deliver(source, 1, b"one")
                await destination.until(methods.BasicPublish)
            stopped = await watched.until("stopped")
            assert stopped.details["left"] == 1
            assert acked(source) == []

    run(scenario())


def test_a_refused_login_ends_the_bridge() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as destination:
            source.answer(
                methods.ConnectionStartOk, methods.ConnectionClose(403, "ACCESS_REFUSED", 0, 0)
            )
            watched = Watched(source.uri, destination.uri)
            with pytest.raises(BridgeFailed, match="403"):
                await watched.bridge.run(watched.stop)
            assert watched.events[-1].name == "failed"

    run(scenario())


def test_the_consumer_has_the_tag_and_the_priority_that_it_is_given() -> None:
    async def scenario() -> None:
        async with scripted_peer() as source, scripted_peer() as destination:
            watched = Watched(source.uri, destination.uri, consumer_tag="mine", priority=-7)
            async with watched.running():
                await watched.until("running")
            (consume,) = source.of(methods.BasicConsume)
            assert (consume.consumer_tag, consume.arguments) == ("mine", {"x-priority": -7})

    run(scenario())
