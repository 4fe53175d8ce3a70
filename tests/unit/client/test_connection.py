"""The asyncio layer against a scripted peer on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.amqp.properties import Properties
from rhizome.client import (
    Channel,
    ConnectFailed,
    Connection,
    ConnectionLost,
    ConsumerCancelled,
    MessageReturned,
    NotOpen,
    ProtocolViolation,
    PublishNacked,
    ReturnedMessage,
    connect,
)
from rhizome.errors import ConnectionForced, LoginRefused, NotFound, PreconditionFailed

PeerContext = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture
def session(peer_context: PeerContext) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """A peer, a connection to it and a channel, closed in order."""

    @asynccontextmanager
    async def make(
        confirms: bool = False,
        on_return: Callable[[ReturnedMessage], None] | None = None,
        on_blocked: Callable[[str | None], None] | None = None,
    ) -> AsyncIterator[tuple[Any, Connection, Channel]]:
        async with (
            peer_context() as peer,
            connect(peer.uri, on_blocked=on_blocked) as connection,
            connection.channel(confirms=confirms, on_return=on_return) as channel,
        ):
            yield peer, connection, channel

    return make


Session = Callable[..., AbstractAsyncContextManager[Any]]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario; one that hangs fails."""

    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def deliver(number: int, tag: str = "ctag1.1") -> methods.BasicDeliver:
    return methods.BasicDeliver(tag, number, False, "x", f"key{number}")


# --- connecting


def test_addresses_are_tried_in_order_until_one_answers(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as peer:
            uri = f"amqp://guest:guest@127.0.0.1:1,127.0.0.1:{peer.port},127.0.0.1:2/"
            async with connect(uri, name="me") as connection:
                assert connection.address.port == peer.port
                assert connection.server_properties["product"] == "Scripted"
            start_ok = peer.of(methods.ConnectionStartOk)[0]
            assert start_ok.client_properties["connection_name"] == "me"

    run(scenario)


def test_when_no_address_answers_each_failure_is_named() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "):
            await connect("amqp://127.0.0.1:1,127.0.0.1:2/")

    run(scenario)


def test_a_refused_login_ends_the_search(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as peer, peer_context() as other:
            peer.answer(
                methods.ConnectionStartOk,
                methods.ConnectionClose(403, "ACCESS_REFUSED - Login was refused", 10, 11),
            )
            with pytest.raises(LoginRefused, match="Login was refused"):
                await connect([peer.uri, other.uri])
            assert other.connections == 0

    run(scenario)


def test_a_broker_that_sends_us_away_is_passed_over(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as peer, peer_context() as other:
            peer.answer(
                methods.ConnectionOpen, methods.ConnectionClose(320, "CONNECTION_FORCED - no", 0, 0)
            )
            async with connect([peer.uri, other.uri]) as connection:
                assert connection.address.port == other.port

    run(scenario)


def test_a_peer_that_says_nothing_is_given_up(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as peer:
            peer.answer(methods.ConnectionStartOk)
            with pytest.raises(ConnectFailed, match="no answer within 50 ms"):
                await connect(f"{peer.uri}?connection_timeout=50")

    run(scenario)


def test_a_closed_connection_says_so(peer_context: PeerContext) -> None:
    async def scenario() -> None:
        async with peer_context() as peer:
            connection = await connect(peer.uri)
            await connection.close()
            await connection.close()
            assert not connection.is_open
            with pytest.raises(NotOpen, match="was closed"):
                await connection.channel()

    run(scenario)


# --- publishing


def test_publishes_of_one_turn_leave_in_one_write(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, connection, channel):
            writes = connection.statistics().writes
            for _ in range(100):
                channel.publish_soon(b"x", routing_key="q")
            await peer.until(methods.BasicPublish, 100)
            assert connection.statistics().writes == writes + 1

    run(scenario)


def test_publish_returns_when_its_own_confirm_has_come(session: Session) -> None:
    async def scenario() -> None:
        async with session(confirms=True) as (peer, _, channel):
            first = asyncio.create_task(channel.publish(b"1", routing_key="q"))
            second = asyncio.create_task(channel.publish(b"2", routing_key="q"))
            await peer.until(methods.BasicPublish, 2)
            peer.send(1, methods.BasicAck(2, False))
            await second
            assert not first.done()
            peer.send(1, methods.BasicAck(1, False))
            await first

    run(scenario)


def test_a_nacked_publish_raises(session: Session) -> None:
    async def scenario() -> None:
        async with session(confirms=True) as (peer, _, channel):
            peer.answer(methods.BasicPublish, methods.BasicNack(1, False, False))
            with pytest.raises(PublishNacked, match="publish 1 was refused"):
                await channel.publish(b"x", routing_key="q")

    run(scenario)


def test_confirmed_waits_for_the_window_and_reports_what_was_refused(session: Session) -> None:
    async def scenario() -> None:
        async with session(confirms=True) as (peer, _, channel):
            for _ in range(5):
                channel.publish_soon(b"x", routing_key="q")
            await peer.until(methods.BasicPublish, 5)
            waiting = asyncio.create_task(channel.confirmed(unconfirmed_max=2))
            peer.send(1, methods.BasicAck(2, True))
            peer.send(1, methods.BasicNack(3, False, False))
            with pytest.raises(PublishNacked) as refused:
                await waiting
            assert refused.value.sequences == [3]
            peer.send(1, methods.BasicAck(5, True))
            await channel.confirmed()
            assert channel.statistics().unconfirmed == 0

    run(scenario)


def test_a_mandatory_message_that_comes_back_raises_for_its_own_publish(session: Session) -> None:
    async def scenario() -> None:
        seen: list[ReturnedMessage] = []
        async with session(confirms=True, on_return=seen.append) as (peer, _, channel):
            lost = asyncio.create_task(channel.publish(b"b", routing_key="k"))
            kept = asyncio.create_task(channel.publish(b"a", routing_key="k", mandatory=True))
            await peer.until(methods.BasicPublish, 2)
            peer.send_content(1, methods.BasicReturn(312, "NO_ROUTE", "", "k"), b"b")
            peer.send(1, methods.BasicAck(2, True))
            await kept
            with pytest.raises(MessageReturned, match="312 NO_ROUTE"):
                await lost
            assert [message.body for message in seen] == [b"b"]
            assert seen[0].properties.message_id == "m"

    run(scenario)


@pytest.mark.parametrize(
    ("confirms", "mandatory", "sent"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_publishes_are_mandatory_if_they_are_confirmed_unless_told_otherwise(
    session: Session, confirms: bool, mandatory: bool | None, sent: bool
) -> None:
    async def scenario() -> None:
        async with session(confirms=confirms) as (peer, _, channel):
            channel.publish_soon(b"a", routing_key="k", mandatory=mandatory)
            [publish] = await peer.until(methods.BasicPublish)
            assert publish.mandatory is sent
            peer.send(1, methods.BasicAck(1, False))

    run(scenario)


def test_publish_waits_while_the_broker_blocks(session: Session) -> None:
    async def scenario() -> None:
        told: asyncio.Queue[str | None] = asyncio.Queue()
        async with session(on_blocked=told.put_nowait) as (peer, connection, channel):
            peer.send(0, methods.ConnectionBlocked("low on memory"))
            assert await told.get() == "low on memory"
            assert connection.blocked_reason == "low on memory"
            publishing = asyncio.create_task(channel.publish(b"x", routing_key="q"))
            await channel.declare_queue("q")
            assert not publishing.done()
            assert peer.of(methods.BasicPublish) == []
            peer.send(0, methods.ConnectionUnblocked())
            assert await told.get() is None
            await publishing
            await peer.until(methods.BasicPublish)

    run(scenario)


def test_what_does_not_fit_a_field_harms_nothing(session: Session) -> None:
    async def scenario() -> None:
        async with session(confirms=True) as (peer, _, channel):
            with pytest.raises(ValueError, match="255"):
                await channel.publish(b"x", properties=Properties(message_id="m" * 300))
            assert channel.statistics().unconfirmed == 0
            assert (await channel.declare_queue("q")).message_count == 3
            assert peer.of(methods.BasicPublish) == []

    run(scenario)


# --- consuming


def test_messages_come_in_order_and_are_settled_by_tag(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel):
            taken = []
            async with channel.consume("q") as messages:
                for number in (1, 2, 3):
                    peer.send_content(1, deliver(number), b"body%d" % number)
                async for message in messages:
                    taken.append((message.delivery_tag, message.body, message.routing_key))
                    if len(taken) == 3:
                        await message.ack(multiple=True)
                        break
            assert taken == [(1, b"body1", "key1"), (2, b"body2", "key2"), (3, b"body3", "key3")]
            ack = (await peer.until(methods.BasicAck))[0]
            assert (ack.delivery_tag, ack.multiple) == (3, True)

    run(scenario)


def test_leaving_a_consumer_gives_back_what_was_not_taken(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel):
            async with channel.consume("q") as messages:
                peer.send_content(1, deliver(1), b"taken")
                peer.send_content(1, deliver(2), b"not taken")
                await (await anext(messages)).ack()
                await channel.declare_queue("q")
                assert messages.buffered == 1
            nack = (await peer.until(methods.BasicNack))[0]
            assert (nack.delivery_tag, nack.requeue) == (2, True)
            assert len(peer.of(methods.BasicCancel)) == 1

    run(scenario)


def test_a_consumer_that_the_broker_cancels_raises_after_its_last_message(
    session: Session,
) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel):
            messages = channel.consume("q")
            await messages.subscribe()
            peer.send_content(1, deliver(1), b"last")
            peer.send(1, methods.BasicCancel("ctag1.1", True))
            assert (await anext(messages)).body == b"last"
            with pytest.raises(ConsumerCancelled, match="'q' was cancelled"):
                await anext(messages)

    run(scenario)


def test_several_tasks_share_a_consumer(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel), channel.consume("q") as messages:
            takers = [asyncio.create_task(anext(messages)) for _ in range(3)]
            for number in (1, 2, 3):
                peer.send_content(1, deliver(number), b"")
            taken = await asyncio.gather(*takers)
            assert sorted(message.delivery_tag for message in taken) == [1, 2, 3]

    run(scenario)


def test_a_get_that_is_cancelled_gives_its_message_back(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel):
            getting = asyncio.create_task(channel.get("q"))
            await peer.until(methods.BasicGet)
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
            peer.send_content(1, methods.BasicGetOk(9, False, "", "q", 0), b"orphan")
            nack = (await peer.until(methods.BasicNack))[0]
            assert (nack.delivery_tag, nack.requeue) == (9, True)
            assert (await channel.declare_queue("q")).message_count == 3

    run(scenario)


def test_get_gives_a_message_or_none(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel):
            peer.answer(methods.BasicGet, methods.BasicGetEmpty())
            assert await channel.get("q") is None
            peer.answer(methods.BasicGet)
            getting = asyncio.create_task(channel.get("q"))
            await peer.until(methods.BasicGet, 2)
            peer.send_content(1, methods.BasicGetOk(1, True, "x", "k", 7), b"body")
            message = await getting
            assert message is not None
            assert (message.body, message.redelivered, message.exchange) == (b"body", True, "x")
            assert message.properties.message_id == "m"

    run(scenario)


def test_an_untaken_flood_stops_the_reading_but_not_the_calls(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel), channel.consume("q", no_ack=True) as messages:
            flood = 30_000
            for number in range(flood):
                peer.send_content(1, deliver(number + 1), b"")
            while messages.buffered < 10_000:
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert messages.buffered < 20_000
            await channel.qos(5)
            taken = 0
            while taken < flood:
                taken += len(await messages.batch())
            assert taken == flood

    run(scenario)


# --- failures


def test_a_channel_error_reaches_the_call_that_caused_it_and_all_later_ones(
    session: Session,
) -> None:
    async def scenario() -> None:
        async with session() as (peer, connection, channel):
            text = "NOT_FOUND - no queue 'q' in vhost '/'"
            peer.answer(methods.QueueDeclare, methods.ChannelClose(404, text, 50, 10))
            with pytest.raises(NotFound, match="no queue 'q'"):
                await channel.declare_queue("q", passive=True)
            assert not channel.is_open
            with pytest.raises(NotFound):
                await channel.publish(b"x")
            async with connection.channel() as other:
                await other.qos(1)

    run(scenario)


def test_a_channel_error_fails_waiting_publishes_and_consumers(session: Session) -> None:
    async def scenario() -> None:
        async with session(confirms=True) as (peer, _, channel):
            messages = channel.consume("q")
            await messages.subscribe()
            waiting = [
                asyncio.ensure_future(each)
                for each in (channel.publish(b"x"), channel.confirmed(), anext(messages))
            ]
            await peer.until(methods.BasicPublish)
            peer.send(1, methods.ChannelClose(406, "PRECONDITION_FAILED - bad", 60, 80))
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(outcome, PreconditionFailed)

    run(scenario)


def test_a_lost_socket_fails_everything_that_waits(session: Session) -> None:
    async def scenario() -> None:
        async with session(confirms=True) as (peer, connection, channel):
            messages = channel.consume("q")
            await messages.subscribe()
            waiting = [
                asyncio.ensure_future(each)
                for each in (channel.publish(b"x"), channel.purge_queue("q"), anext(messages))
            ]
            await peer.until(methods.QueuePurge)
            peer.drop()
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(outcome, ConnectionLost)
            with pytest.raises(ConnectionLost):
                await connection.channel()

    run(scenario)


def test_a_close_by_the_broker_gives_the_class_of_its_code(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, connection, channel):
            purging = asyncio.create_task(channel.purge_queue("q"))
            await peer.until(methods.QueuePurge)
            peer.send(0, methods.ConnectionClose(320, "CONNECTION_FORCED - by operator", 0, 0))
            with pytest.raises(ConnectionForced, match="by operator"):
                await purging
            await peer.until(methods.ConnectionCloseOk)
            assert not connection.is_open

    run(scenario)


def test_an_answer_to_no_request_ends_the_connection(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, connection, _channel):
            peer.send(1, methods.QueuePurgeOk(1))
            await peer.until(methods.ConnectionClose)
            with pytest.raises(ProtocolViolation, match="answers no open"):
                await connection.channel()

    run(scenario)


def test_channel_flow_stops_publishing_and_is_answered(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, _, channel):
            peer.send(1, methods.ChannelFlow(False))
            await peer.until(methods.ChannelFlowOk)
            publishing = asyncio.create_task(channel.publish(b"x"))
            await channel.declare_queue("q")
            assert not publishing.done()
            peer.send(1, methods.ChannelFlow(True))
            await publishing

    run(scenario)


def test_a_get_ok_that_nobody_asked_for_ends_the_connection(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, connection, _):
            peer.send_content(1, methods.BasicGetOk(1, False, "", "q", 0), b"")
            await peer.until(methods.ConnectionClose)
            with pytest.raises(ProtocolViolation, match="answers no open"):
                await connection.channel()

    run(scenario)


def test_update_secret_waits_for_the_answer(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (peer, connection, _):
            updating = asyncio.create_task(connection.update_secret("new", "expires"))
            sent = (await peer.until(methods.ConnectionUpdateSecret))[0]
            assert (sent.new_secret, sent.reason) == (b"new", "expires")
            assert not updating.done()
            peer.send(0, methods.ConnectionUpdateSecretOk())
            await updating

    run(scenario)


def test_consuming_on_a_closed_channel_raises_each_time(session: Session) -> None:
    async def scenario() -> None:
        async with session() as (_, _, channel):
            await channel.close()
            messages = channel.consume("q")
            for _ in range(2):
                with pytest.raises(NotOpen):
                    await anext(messages)

    run(scenario)
