"""Sessions against scripted peers: what survives the loss of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.client import (
    ConnectFailed,
    ConnectionLost,
    Failover,
    FailoverFailed,
    MessageReturned,
    NotOpen,
    PublishNacked,
    SendBufferFull,
    Session,
    open_session,
)
from rhizome.client.session.session_channel import UNCONFIRMED_MAX
from rhizome.errors import LoginRefused, NotFound

PeerContext = Callable[[], AbstractAsyncContextManager[Any]]
HASTY = Failover(tries_max=8, delay_ms=5, delay_ms_max=20, patience_ms=300)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario; one that hangs fails."""

    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


@asynccontextmanager
async def pair(
    peer_context: PeerContext, failover: Failover = HASTY, **options: Any
) -> AsyncIterator[tuple[Any, Any, Session]]:
    """A session at the first of two peers that knows both."""
    async with peer_context() as first, peer_context() as second:
        uri = f"amqp://guest:guest@127.0.0.1:{first.port},127.0.0.1:{second.port}/"
        async with open_session(uri, failover=failover, **options) as session:
            yield first, second, session


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def end(peer: Any) -> None:
    """A peer dies, and with it its port."""
    await peer.stop()


def sequences(peer: Any) -> list[object]:
    return [(properties.headers or {}).get("x-sequence") for properties in peer.properties]


# --- going elsewhere


def test_current_broker_is_tried_first(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            first.drop()
            await until(lambda: session.statistics().failovers == 1)
            assert (first.connections, second.connections) == (2, 0)

    run(scenario)


def test_next_broker_is_tried_when_the_current_one_is_gone(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        changes: list[str] = []

        def changed(state: str, address: str) -> None:
            changes.append(state)

        async with pair(peer_context, on_change=changed) as (first, second, _):
            await end(first)
            await until(lambda: len(changes) == 3 and second.connections == 1)
            assert changes == ["open", "recovering", "open"]
        await asyncio.sleep(0)
        assert changes[-1] == "closed"

    run(scenario)


def test_map_says_who_takes_over(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as heir, pair(peer_context) as (first, second, session):
            entries: dict[str, object] = {
                "brokers": [
                    {"name": "Scripted", "addresses": [f"127.0.0.1:{first.port}"]},
                    {"name": "heir", "addresses": [f"127.0.0.1:{heir.port}"], "machine": "m"},
                ],
                "failover": {f"127.0.0.1:{first.port}": [], "": ["heir"]},
            }
            first.send(0, methods.SessionFailoverMap(7, entries))
            await until(lambda: session.failover_map.version == 7)
            assert session.failover_map.brokers["heir"].machine == "m"
            await end(first)
            await until(lambda: heir.connections == 1)
            assert second.connections == 0

    run(scenario)


def test_known_hosts_and_redirects_are_followed(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as first, peer_context() as second, peer_context() as third:
            hosts = f"127.0.0.1:{second.port}"
            first.answer(methods.ConnectionOpen, methods.ConnectionOpenOk(hosts))
            redirect = methods.ConnectionRedirect(f"127.0.0.1:{third.port}", hosts)
            second.answer(methods.ConnectionOpen, redirect)
            async with open_session(first.uri, failover=HASTY):
                await end(first)
                (started,) = await third.until(methods.ConnectionStartOk)
                assert started.client_properties["redirected"] is True

    run(scenario)


def test_session_ends_after_so_many_tries(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            async with session.channel() as channel:
                publishing = asyncio.create_task(channel.publish(b"x", routing_key="q"))
                await first.until_bodies(1)
                await end(second)
                await end(first)
                with pytest.raises(FailoverFailed) as failed:
                    await publishing
                assert len(failed.value.attempts) == HASTY.tries_max
                assert isinstance(failed.value.lost, ConnectionLost)
                with pytest.raises(FailoverFailed):
                    await channel.declare_queue("q")
            assert session.state == "closed"

    run(scenario)


def test_a_refused_login_ends_the_session(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            refusal = methods.ConnectionClose(403, "ACCESS_REFUSED - no", 0, 0)
            second.answer(methods.ConnectionStartOk, refusal)
            await end(first)
            await until(lambda: session.state == "closed")
            with pytest.raises(LoginRefused):
                await session.channel()

    run(scenario)


def test_nobody_there_at_the_start(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as first:
            pass
        with pytest.raises(ConnectFailed) as failed:
            await open_session(first.uri, failover=HASTY)
        assert len(failed.value.attempts) == 1

    run(scenario)


def test_a_broker_that_asks_is_left_for_the_one_it_names(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, second, session),
            session.channel() as channel,
        ):
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            first.send_content(1, methods.BasicDeliver("c", 1, False, "", "q"), b"held")
            message = await anext(consumer)
            first.send(0, methods.SessionMove(f"127.0.0.1:{second.port}", ""))
            await asyncio.sleep(0.05)
            assert first.of(methods.ConnectionClose) == [], "it holds a message"
            await message.ack()
            await first.until(methods.ConnectionClose)
            await second.until(methods.BasicConsume)
            assert first.of(methods.BasicAck), "what was settled is told before"

    run(scenario)


def test_what_is_asked_while_it_moves_waits_for_the_next_broker(peer_context: PeerContext) -> None:
    """The broker takes its time to agree that the connection ends."""

    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, second, session),
            session.channel(confirms=True) as channel,
        ):
            first.answer(methods.ConnectionClose)
            first.send(0, methods.SessionMove(f"127.0.0.1:{second.port}", ""))
            await first.until(methods.ConnectionClose)
            channel.publish_soon(b"meanwhile", routing_key="q")
            declaring = asyncio.create_task(channel.declare_queue("new"))
            await asyncio.sleep(0)
            first.send(0, methods.ConnectionCloseOk())
            assert await second.until_bodies(1) == [b"meanwhile"]
            await declaring
            assert [each.queue for each in second.of(methods.QueueDeclare)] == ["new"]

    run(scenario)


# --- what comes back


def test_channels_and_consumers_come_back(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, second, session),
            session.channel(prefetch=7) as channel,
        ):
            consumer = channel.consume("q", tag="c", arguments={"x-priority": 3})
            await consumer.subscribe()
            await end(first)
            (consume,) = await second.until(methods.BasicConsume)
            assert (consume.queue, consume.consumer_tag) == ("q", "c")
            assert consume.arguments == {"x-priority": 3}
            (qos,) = second.of(methods.BasicQos)
            assert qos.prefetch_count == 7
            await until(lambda: not channel.is_suspended)
            second.send_content(1, methods.BasicDeliver("c", 1, False, "", "q"), b"again")
            assert (await anext(consumer)).body == b"again"

    run(scenario)


def test_what_was_not_taken_is_left_to_the_next_broker(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, second, session),
            session.channel() as channel,
        ):
            consumer = channel.consume("q", tag="c")
            await consumer.subscribe()
            for tag in (1, 2):
                first.send_content(1, methods.BasicDeliver("c", tag, False, "", "q"), b"old")
            taken = await anext(consumer)
            await until(lambda: consumer.buffered == 1)
            await end(first)
            await second.until(methods.BasicConsume)
            await until(lambda: not channel.is_suspended)
            assert consumer.buffered == 0
            await taken.ack()
            second.send_content(1, methods.BasicDeliver("c", 1, True, "", "q"), b"new")
            again = await anext(consumer)
            assert (again.body, again.redelivered) == (b"new", True)
            await again.ack()
            (ack,) = await second.until(methods.BasicAck)
            assert ack.delivery_tag == 1, "the other tag meant nothing here"

    run(scenario)


def test_what_needed_no_ack_is_kept(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, second, session),
            session.channel() as channel,
        ):
            consumer = channel.consume("q", tag="c", no_ack=True)
            await consumer.subscribe()
            first.send_content(1, methods.BasicDeliver("c", 1, False, "", "q"), b"mine")
            await until(lambda: consumer.buffered == 1)
            await end(first)
            await second.until(methods.BasicConsume)
            assert (await anext(consumer)).body == b"mine"

    run(scenario)


def test_unconfirmed_publishes_are_sent_again_under_their_numbers(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, second, session),
            session.channel() as channel,
        ):
            for number in range(1, 6):
                assert channel.publish_soon(b"%d" % number, routing_key="q") == number
            await first.until_bodies(5)
            first.send(1, methods.BasicAck(2, True))
            await channel.confirmed(3)
            await end(first)
            assert await second.until_bodies(3) == [b"3", b"4", b"5"]
            assert sequences(second) == [3, 4, 5]
            producers = {str((p.headers or {})["x-producer"]) for p in second.properties}
            assert producers == {str((first.properties[0].headers or {})["x-producer"])}
            late = asyncio.create_task(channel.publish(b"6", routing_key="q"))
            await second.until_bodies(4)
            second.send(1, methods.BasicAck(4, True))
            await late
            await channel.confirmed()
            assert sequences(second)[-1] == 6

    run(scenario)


def test_what_is_published_while_there_is_no_broker_waits(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        numbers: list[int] = []

        def changed(state: str, address: str) -> None:
            if state == "recovering":
                assert channel.is_suspended
                numbers.append(channel.publish_soon(b"now", routing_key="q"))
                with pytest.raises(ValueError, match="255"):
                    channel.publish_soon(b"bad", routing_key="q" * 256)

        async with (
            pair(peer_context, on_change=changed) as (first, second, session),
            session.channel() as channel,
        ):
            await end(first)
            assert await second.until_bodies(1) == [b"now"]
            second.send(1, methods.BasicNack(1, False, False))
            with pytest.raises(PublishNacked) as refused:
                await channel.confirmed()
            assert refused.value.sequences == numbers == [1]

    run(scenario)


def test_unconfirmed_publishes_have_a_maximum(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, _, session), session.channel() as channel:
            for _ in range(UNCONFIRMED_MAX):
                channel.publish_soon(b"", routing_key="q")
            with pytest.raises(SendBufferFull):
                channel.publish_soon(b"", routing_key="q")
            waiting = asyncio.create_task(channel.publish(b"last", routing_key="q"))
            await asyncio.sleep(0.02)
            first.send(1, methods.BasicAck(UNCONFIRMED_MAX, True))
            await first.until_bodies(1)
            first.send(1, methods.BasicAck(UNCONFIRMED_MAX + 1, True))
            await waiting

    run(scenario)


def test_a_call_is_made_again(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, second, session),
            session.channel() as channel,
        ):
            del first.answers[methods.QueueDeclare]
            asking = asyncio.create_task(channel.declare_queue("q"))
            await first.until(methods.QueueDeclare)
            await end(first)
            assert (await asking).message_count == 3
            assert len(second.of(methods.QueueDeclare)) == 1

    run(scenario)


def test_a_transaction_is_not_made_again(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            first.answer(methods.TxSelect, methods.TxSelectOk())
            async with session.channel(confirms=False) as channel:
                await channel.tx_select()
                committing = asyncio.create_task(channel.tx_commit())
                await first.until(methods.TxCommit)
                await end(first)
                with pytest.raises(ConnectionLost):
                    await committing
                await second.until(methods.ChannelOpen)

    run(scenario)


def test_exclusive_queues_are_declared_again_with_their_bindings(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            for peer, name in ((first, "name-1"), (second, "name-2")):
                peer.answer(methods.QueueDeclare, methods.QueueDeclareOk(name, 0, 0))
                peer.answer(methods.QueueBind, methods.QueueBindOk())
                peer.answer(methods.QueuePurge, methods.QueuePurgeOk(0))
            async with session.channel() as channel:
                info = await channel.declare_queue(exclusive=True)
                await channel.bind_queue(info.name, "amq.topic", "a.#")
                await channel.bind_queue("shared", "amq.topic", "b.#")
                await channel.consume(info.name, tag="c").subscribe()
                await end(first)
                (consume,) = await second.until(methods.BasicConsume)
                assert consume.queue == "name-2"
                (bind,) = second.of(methods.QueueBind)
                assert (bind.queue, bind.routing_key) == ("name-2", "a.#")
                await channel.purge_queue(info.name)
                assert second.of(methods.QueuePurge)[0].queue == "name-2"

    run(scenario)


def test_everything_is_declared_again_if_wanted(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context, recreate=True) as (first, second, session):
            for peer in (first, second):
                peer.answer(methods.QueueBind, methods.QueueBindOk())
                peer.answer(methods.QueueUnbind, methods.QueueUnbindOk())
                peer.answer(methods.ExchangeDeclare, methods.ExchangeDeclareOk())
                peer.answer(methods.QueueDelete, methods.QueueDeleteOk(0))
                peer.answers[methods.QueueDeclare] = lambda _, m: [
                    methods.QueueDeclareOk(m.queue, 0, 0)
                ]
            async with session.channel() as channel:
                await channel.declare_exchange("x", "topic")
                for name in ("a", "b"):
                    await channel.declare_queue(name, durable=True)
                    await channel.bind_queue(name, "x", "1")
                await channel.bind_queue("a", "x", "2")
                await channel.unbind_queue("a", "x", "2")
                await channel.delete_queue("b")
                await end(first)
                await second.until(methods.QueueBind)
                assert [each.exchange for each in second.of(methods.ExchangeDeclare)] == ["x"]
                assert [each.queue for each in second.of(methods.QueueDeclare)] == ["a"]
                assert [each.routing_key for each in second.of(methods.QueueBind)] == ["1"]

    run(scenario)


def test_a_queue_that_is_being_taken_over_is_waited_for(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            tries = 0

            def answer(channel: int, method: object) -> list[methods.Method]:
                nonlocal tries
                tries += 1
                if tries < 3:
                    return [methods.ChannelClose(404, "NOT_FOUND - home is down", 60, 20)]
                return [methods.BasicConsumeOk("c")]

            second.answers[methods.BasicConsume] = answer
            async with session.channel() as channel:
                await channel.consume("q", tag="c").subscribe()
                await end(first)
                await until(lambda: tries == 3 and not channel.is_suspended)
                assert channel.is_open

    run(scenario)


def test_a_queue_that_stays_away_ends_its_channel_only(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            closed = methods.ChannelClose(404, "NOT_FOUND - no queue 'q'", 60, 20)
            second.answer(methods.BasicConsume, closed)
            async with session.channel() as other:
                channel = await session.channel()
                consumer = channel.consume("q", tag="c")
                await consumer.subscribe()
                await end(first)
                with pytest.raises(NotFound):
                    await anext(consumer)
                assert not channel.is_open
                assert (await other.declare_queue("q")).name == "q"

    run(scenario)


# --- conveniences


def test_a_queue_is_declared_and_iterated(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (first, _, session):
            queue = session.queue("q", durable=True, prefetch=3)
            async with queue:
                (declare,) = first.of(methods.QueueDeclare)
                assert (declare.queue, declare.durable) == ("q", True)
                (consume,) = first.of(methods.BasicConsume)
                deliver = methods.BasicDeliver(consume.consumer_tag, 1, False, "", "q")
                first.send_content(1, deliver, b"one")
                async for message in queue:
                    assert message.body == b"one"
                    await message.ack()
                    break
                await first.until(methods.BasicAck)
            await first.until(methods.BasicCancel)

    run(scenario)


def test_a_browser_goes_on_behind_what_it_has_shown(peer_context: PeerContext) -> None:
    def serve(peer: Any, bodies: list[bytes]) -> None:
        left = list(bodies)

        def answer(channel: int, method: object) -> list[methods.Method]:
            if not left:
                return [methods.BasicGetEmpty()]
            tag = len(bodies) - len(left) + 1
            peer.send_content(channel, methods.BasicGetOk(tag, False, "", "q", 0), left.pop(0))
            return []

        peer.answers[methods.BasicGet] = answer

    async def scenario() -> None:
        async with pair(peer_context) as (first, second, session):
            serve(first, [b"1", b"2", b"3"])
            serve(second, [b"1", b"2", b"3", b"4"])
            shown = []
            async with session.browse("q") as browser:
                async for message in browser:
                    shown.append(message.body)
                    if len(shown) == 2:
                        await end(first)
            assert shown == [b"1", b"2", b"3", b"4"]

    run(scenario)


def test_what_a_producer_sends_to_nowhere_raises_unless_told_otherwise(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, _, session),
            session.producer(routing_key="q") as producer,
        ):
            await producer.send(b"1")
            await producer.send(b"2", mandatory=False)
            one, two = await first.until(methods.BasicPublish, 2)
            assert (one.mandatory, two.mandatory) == (True, False)
            first.send_content(1, methods.BasicReturn(312, "NO_ROUTE", "", "q"), b"1")
            first.send(1, methods.BasicAck(2, True))
            with pytest.raises(MessageReturned, match=r"bind a queue for it, or publish with mand"):
                await producer.flush()

    run(scenario)


def test_a_producer_sends_within_its_window(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with (
            pair(peer_context) as (first, _, session),
            session.producer(routing_key="q", window=2, name="importer", sequence=10) as producer,
        ):
            assert [await producer.send(b"%d" % n) for n in (1, 2)] == [11, 12]
            third = asyncio.create_task(producer.send(b"3"))
            await first.until_bodies(3)
            assert not third.done()
            first.send(1, methods.BasicAck(1, False))
            assert await third == 13
            assert sequences(first) == [11, 12, 13]
            headers = first.properties[0].headers or {}
            assert headers["x-producer"] == "importer"
            assert first.properties[0].delivery_mode == 2
            first.send(1, methods.BasicAck(3, True))

    run(scenario)


def test_an_error_does_not_wait_for_what_a_producer_has_unconfirmed(
    peer_context: PeerContext,
) -> None:
    async def publish_in_vain(session: Session, peer: Any) -> None:
        async with session.producer(routing_key="q") as producer:
            await producer.send(b"x")
            await end(peer)
            async with asyncio.timeout(0.05):
                await producer.flush()

    async def scenario() -> None:
        async with peer_context() as first:
            session = await open_session(first.uri, failover=Failover(tries_max=0, delay_ms=10))
            with pytest.raises(TimeoutError):
                await publish_in_vain(session, first)
            await session.close()

    run(scenario)


def test_a_closed_session_says_so(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with pair(peer_context) as (_, _, session):
            channel = await session.channel()
            await session.close()
            with pytest.raises(NotOpen):
                await channel.publish(b"x", routing_key="q")
            with pytest.raises(NotOpen):
                await session.channel()

    run(scenario)


def test_closing_while_there_is_no_broker_does_not_wait_for_one(
    peer_context: PeerContext,
) -> None:
    async def scenario() -> None:
        async with peer_context() as first:
            session = await open_session(first.uri, failover=Failover(tries_max=0, delay_ms=10))
            channel = await session.channel()
            await end(first)
            waiting = asyncio.create_task(channel.declare_queue("q"))
            await until(lambda: session.state == "recovering")
            await session.close()
            with pytest.raises(NotOpen):
                await waiting

    run(scenario)
