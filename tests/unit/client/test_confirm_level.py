"""Clients that ask are told which level a confirm has reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.client import Level, PublishNacked, connect, open_session

PeerContext = Callable[[], AbstractAsyncContextManager[Any]]
TELLS = {"capabilities": {"confirm.level": True}}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def asked(peer: Any) -> object:
    (started,) = peer.of(methods.ConnectionStartOk)
    return started.client_properties["capabilities"].get("confirm.level")


def test_publish_returns_the_level_that_follows_its_ack(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as peer:
            peer.server_properties = TELLS
            async with connect(peer.uri, confirm_levels=True) as connection:
                assert connection.tells_levels
                assert asked(peer) is True
                channel = await connection.channel(confirms=True)
                told: list[tuple[int, Level]] = []
                channel.on_level = lambda number, level: told.append((number, level))
                first = asyncio.ensure_future(channel.publish(b"1", routing_key="q"))
                await peer.until_bodies(1)
                assert channel.publish_soon(b"2") == 2
                third = asyncio.ensure_future(channel.publish(b"3", routing_key="q"))
                fourth = asyncio.ensure_future(channel.publish(b"4", routing_key="q"))
                await peer.until_bodies(4)
                peer.send(1, methods.BasicNack(4, False, False))
                peer.send(1, methods.BasicAck(3, True))
                peer.send(1, methods.ConfirmLevel(2, 3))
                peer.send(1, methods.ConfirmLevel(3, 0))
                assert await first is Level.RELIABLE_PERSISTENT
                assert await third is Level.FULLY_TRANSIENT
                with pytest.raises(PublishNacked):
                    await fourth
                await channel.confirmed()
                assert told == [
                    (1, Level.RELIABLE_PERSISTENT),
                    (2, Level.RELIABLE_PERSISTENT),
                    (3, Level.FULLY_TRANSIENT),
                ]

    run(scenario)


@pytest.mark.parametrize("asks", [True, False])
def test_without_them_acks_count(peer_context: PeerContext, asks: bool) -> None:
    """A broker that doesn't tell is asked in vain; who doesn't ask one that would isn't told."""

    async def scenario() -> None:
        async with peer_context() as peer:
            if not asks:
                peer.server_properties = TELLS
            async with connect(peer.uri, confirm_levels=asks) as connection:
                assert not connection.tells_levels
                assert asked(peer) is (True if asks else None)
                channel = await connection.channel(confirms=True)
                waiting = asyncio.ensure_future(channel.publish(b"1", routing_key="q"))
                await peer.until_bodies(1)
                peer.send(1, methods.BasicAck(1, False))
                assert await waiting is None

    run(scenario)


def test_a_session_tells_them_too(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as peer:
            peer.server_properties = TELLS
            async with open_session(peer.uri, confirm_levels=True) as session:
                producer = session.producer(routing_key="q")
                async with producer as sending:
                    waiting = asyncio.ensure_future(sending.publish(b"1"))
                    await peer.until_bodies(1)
                    peer.send(1, methods.BasicAck(1, False))
                    peer.send(1, methods.ConfirmLevel(1, 2))
                    level = await waiting
                    assert level is Level.PERSISTENT
                    assert level.is_on_disk
                    assert not level.is_copied

    run(scenario)
