"""Sessions at brokers that let them go on with what they hold (J12)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from rhizome.amqp import methods
from rhizome.client import Failover, Session, open_session
from rhizome.client.consumer import BUFFERED_MESSAGES_MAX
from rhizome.client.session.held_deliveries import ACKED, HELD, REJECTED, REQUEUED, SYNC_EVERY

PeerContext = Callable[[], AbstractAsyncContextManager[Any]]
HASTY = Failover(tries_max=8, delay_ms=5, delay_ms_max=20, patience_ms=300)
FIRST_TAG = 1


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


@asynccontextmanager
async def pair(peer_context: PeerContext) -> AsyncIterator[tuple[Any, Any, Session]]:
    """A session at the first of two peers that can resume."""
    async with peer_context() as first, peer_context() as second:
        for peer in (first, second):
            peer.server_properties = {"capabilities": {"session.resume": True}}
            peer.answer(methods.SessionResume, methods.SessionResumeOk(FIRST_TAG))
        uri = f"amqp://guest:guest@127.0.0.1:{first.port},127.0.0.1:{second.port}/"
        async with open_session(uri, failover=HASTY) as session:
            yield first, second, session


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def deliver(peer: Any, tag: int, index: int, channel: int = 1) -> None:
    peer.send(channel, methods.SessionMessage(7, 3, index))
    method = methods.BasicDeliver("c", tag, False, "", "q")
    peer.send_content(channel, method, b"%d" % index)


def presented(peer: Any) -> list[tuple[int, int]]:
    """(index, kind) of what the client said."""
    (resume,) = peer.of(methods.SessionResume)
    found = list(struct.iter_unpack(">QIQB", resume.entries))
    assert all(entry[:2] == (7, 3) for entry in found)
    return [(entry[2], entry[3]) for entry in found]


def test_what_is_held_is_presented_and_settled_at_the_next_broker(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            (started,) = first.of(methods.ConnectionStartOk)
            assert started.client_properties["session"] == session.id
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in range(1, 6):
                deliver(first, tag, 100 + tag)
            one, two, three = [await anext(consumer) for _ in range(3)]
            await two.ack()
            await until(lambda: consumer.buffered == 2)
            await first.stop()
            await second.until(methods.BasicConsume)
            await second.until(methods.SessionResumed)
            held = [(101, HELD), (103, HELD), (104, HELD), (105, HELD)]
            assert presented(second) == [*held, (102, ACKED)]
            order = [type(method) for _, method in second.received]
            assert order.index(methods.SessionResume) < order.index(methods.SessionResumed)
            assert order.index(methods.SessionResumed) < order.index(methods.BasicConsume)
            await three.ack()
            await one.reject()
            (ack,) = await second.until(methods.BasicAck)
            (nack,) = await second.until(methods.BasicNack)
            assert (ack.delivery_tag, nack.delivery_tag, nack.requeue) == (2, 1, False)
            rest = [await anext(consumer) for _ in range(2)]
            assert [message.body for message in rest] == [b"104", b"105"]
            deliver(second, 5, 106)
            assert (await anext(consumer)).body == b"106"

    run(scenario)


def test_what_is_under_way_when_it_moves_is_held_like_the_rest(peer_context: PeerContext) -> None:
    """The broker sent it before it heard that the session goes."""

    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            hearing = channel.consume("q", tag="hears", no_ack=True)
            await hearing.subscribe()
            deliver(first, 1, 101)
            held = await anext(consumer)
            first.answer(methods.ConnectionClose)
            first.send(0, methods.SessionMove(f"127.0.0.1:{second.port}", ""))
            await first.until(methods.ConnectionClose)
            deliver(first, 2, 102)
            first.send_content(1, methods.BasicDeliver("hears", 3, False, "", "q"), b"heard")
            first.send(0, methods.ConnectionCloseOk())
            await second.until(methods.BasicConsume)
            assert presented(second) == [(101, HELD), (102, HELD)]
            assert (await anext(hearing)).body == b"heard"
            under_way = await anext(consumer)
            assert (under_way.body, under_way.redelivered) == (b"102", False)
            await under_way.ack()
            await held.ack()
            await until(lambda: len(second.of(methods.BasicAck)) == 2)
            assert [each.delivery_tag for each in second.of(methods.BasicAck)] == [2, 1]

    run(scenario)


def test_what_is_under_way_to_nobody_when_it_moves_is_given_back(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            first.answer(methods.ConnectionClose)
            first.send(0, methods.SessionMove(f"127.0.0.1:{second.port}", ""))
            await first.until(methods.ConnectionClose)
            consumer.end(None)
            deliver(first, 1, 101)
            first.send(0, methods.ConnectionCloseOk())
            await second.until(methods.SessionResumed)
            assert presented(second) == [(101, REQUEUED)]

    run(scenario)


def test_more_is_under_way_when_it_moves_than_anybody_reads(peer_context: PeerContext) -> None:
    """A full consumer stops no connection that closes: the broker's agreement comes last."""
    count = 2 * BUFFERED_MESSAGES_MAX

    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            first.answer(methods.ConnectionClose)
            first.send(0, methods.SessionMove(f"127.0.0.1:{second.port}", ""))
            await first.until(methods.ConnectionClose)
            for tag in range(1, count + 1):
                deliver(first, tag, tag)
            first.send(0, methods.ConnectionCloseOk())
            await second.until(methods.SessionResumed)
            entries = b"".join(each.entries for each in second.of(methods.SessionResume))
            found = [entry[2:] for entry in struct.iter_unpack(">QIQB", entries)]
            assert found == [(index, HELD) for index in range(1, count + 1)]

    run(scenario)


def test_more_than_a_frame_takes_is_presented_in_parts(peer_context: PeerContext) -> None:
    """The first broker never says that what was settled is safe."""
    count = 7_000

    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in range(1, count + 1):
                deliver(first, tag, tag)
                message = await anext(consumer)
                if tag > 1:
                    await message.ack()
            await first.stop()
            await second.until(methods.SessionResumed)
            parts = [resume.entries for resume in second.of(methods.SessionResume)]
            assert len(parts) == 2
            assert max(map(len, parts)) < 131_072 - 8
            found = [entry[2:] for entry in struct.iter_unpack(">QIQB", b"".join(parts))]
            assert found == [(1, HELD), *((index, ACKED) for index in range(2, count + 1))]

    run(scenario)


def test_what_is_settled_while_there_is_no_broker_is_told_to_the_next(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in (1, 2, 3, 4):
                deliver(first, tag, tag)
            messages = [await anext(consumer) for _ in range(4)]

            def settle(state: str, address: str) -> None:
                async def work() -> None:
                    assert channel.is_suspended
                    await messages[1].ack(multiple=True)
                    await messages[2].reject()
                    await messages[3].nack()

                if state == "recovering":
                    tasks.append(asyncio.create_task(work()))

            tasks: list[asyncio.Task[None]] = []
            session.on_change = settle
            await first.stop()
            await second.until(methods.SessionResume)
            await asyncio.gather(*tasks)
            assert presented(second) == [(1, ACKED), (2, ACKED), (3, REJECTED), (4, REQUEUED)]

    run(scenario)


def test_what_is_settled_while_it_is_presented_is_settled_afterwards(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            del second.answers[methods.SessionResume]
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in (1, 2, 3):
                deliver(first, tag, 10 + tag)
            messages = [await anext(consumer) for _ in range(3)]
            await first.stop()
            await second.until(methods.SessionResume)
            await messages[0].ack()
            second.send(1, methods.SessionResumeOk(5))
            await second.until(methods.BasicConsume)
            await until(lambda: not channel.is_suspended)
            await messages[2].ack()
            acks = await second.until(methods.BasicAck, 2)
            assert [ack.delivery_tag for ack in acks] == [5, 7]

    run(scenario)


def test_what_is_settled_while_consumers_are_started_is_sent(peer_context: PeerContext) -> None:
    """The queue is being taken over: the broker knows what is held long before it consumes."""

    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            del second.answers[methods.BasicConsume]
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in (1, 2):
                deliver(first, tag, 10 + tag)
            messages = [await anext(consumer) for _ in range(2)]
            await first.stop()
            await second.until(methods.BasicConsume)
            assert channel.is_suspended
            await messages[1].ack()
            (ack,) = await second.until(methods.BasicAck)
            assert ack.delivery_tag == 2
            second.send(1, methods.ChannelClose(404, "NOT_FOUND - its home is down", 60, 20))
            await second.until(methods.SessionResume, 2)
            entries = second.of(methods.SessionResume)[1].entries
            again = [(each[2], each[3]) for each in struct.iter_unpack(">QIQB", entries)]
            assert again == [(11, HELD), (12, ACKED)]

    run(scenario)


def test_multiple_of_an_earlier_connection_names_what_was_there(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in (1, 2, 3):
                deliver(first, tag, tag)
            messages = [await anext(consumer) for _ in range(3)]
            await first.stop()
            await second.until(methods.BasicConsume)
            await until(lambda: not channel.is_suspended)
            await messages[1].ack(multiple=True)
            acks = await second.until(methods.BasicAck, 2)
            assert [(ack.delivery_tag, ack.multiple) for ack in acks] == [(1, False), (2, False)]
            assert channel.holds == 1

    run(scenario)


def test_settlements_are_forgotten_once_they_are_safe(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in range(1, SYNC_EVERY + 3):
                deliver(first, tag, tag)
            for _ in range(SYNC_EVERY + 1):
                await (await anext(consumer)).ack()
            await first.until(methods.SessionSync)
            first.send(1, methods.SessionSyncOk())
            await until(lambda: channel._holdings.syncing == 0)
            await first.stop()
            await second.until(methods.SessionResume)
            last = SYNC_EVERY + 2
            assert presented(second) == [(last, HELD), (last - 1, ACKED)]

    run(scenario)


def test_a_broker_that_cannot_resume_delivers_again(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            second.server_properties = {}
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            deliver(first, 1, 1)
            deliver(first, 2, 2)
            message = await anext(consumer)
            await until(lambda: consumer.buffered == 1)
            await first.stop()
            await second.until(methods.BasicConsume)
            await until(lambda: not channel.is_suspended)
            assert consumer.buffered == 0
            await message.ack()
            await asyncio.sleep(0.02)
            assert not second.of(methods.BasicAck)
            assert not second.of(methods.SessionResume)
            assert not second.of(methods.SessionResumed)

    run(scenario)


def test_a_session_that_can_resume_moves_with_what_it_holds(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            channel = await session.channel()
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            deliver(first, 1, 9)
            message = await anext(consumer)
            first.send(0, methods.SessionMove(f"127.0.0.1:{second.port}", ""))
            (close,) = await first.until(methods.ConnectionClose)
            assert close.reply_code == 320, "no goodbye: it comes back elsewhere"
            await second.until(methods.BasicConsume)
            assert presented(second) == [(9, HELD)]
            await until(lambda: not channel.is_suspended)
            await message.ack()
            await second.until(methods.BasicAck)

    run(scenario)
