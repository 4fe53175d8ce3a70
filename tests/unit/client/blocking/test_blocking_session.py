"""The blocking facade of sessions, against scripted peers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.client import ConnectFailed, Failover, NotOpen
from rhizome.client.blocking import Session
from rhizome.errors import NotFound

PeerContext = Callable[[], AbstractAsyncContextManager[Any]]
HASTY = Failover(tries_max=20, delay_ms=5, delay_ms_max=20)


class PeerThread:
    """Scripted peers on a loop of their own: the test blocks."""

    def __init__(self, context: PeerContext, count: int) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._contexts: list[AbstractAsyncContextManager[Any]] = []
        self.peers: list[Any] = [self._do(self._start()) for _ in range(count)]

    async def _start(self) -> Any:
        self._contexts.append(self._context())
        return await self._contexts[-1].__aenter__()

    def stop(self, peer: Any) -> None:
        self._do(peer.stop())

    def call(self, work: Callable[[], object]) -> None:
        async def later() -> None:
            work()

        self._do(later())

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        for context in self._contexts:
            self._do(context.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def pair(context: PeerContext) -> Iterator[tuple[PeerThread, Any, Any, Session]]:
    thread = PeerThread(context, 2)
    first, second = thread.peers
    uri = f"amqp://127.0.0.1:{first.port},127.0.0.1:{second.port}/"
    try:
        with Session(uri, failover=HASTY) as session:
            yield thread, first, second, session
    finally:
        thread.close()


def confirming(peer: Any) -> None:
    """Confirm each publish."""
    count = 0

    def answer(channel: int, method: object) -> list[methods.Method]:
        nonlocal count
        count += 1
        return [methods.BasicAck(count, False)]

    peer.answers[methods.BasicPublish] = answer


def test_a_producer_goes_on_at_the_next_broker(peer_context: PeerContext) -> None:
    with pair(peer_context) as (thread, first, second, session):
        confirming(first)
        confirming(second)
        with session.producer(routing_key="q") as producer:
            producer.publish(b"1")
            thread.stop(first)
            producer.publish(b"2")
            assert producer.send(b"3") == 3
            producer.flush()
            assert producer.sequence == 3
            assert producer.name
        assert session.statistics().failovers == 1
        assert second.bodies[-1] == b"3"


def test_a_queue_iterates_until_nothing_comes(peer_context: PeerContext) -> None:
    with pair(peer_context) as (thread, first, _, session):
        with session.queue("q", durable=True, timeout_s=0.2) as queue:
            assert queue.info().name == "q"
            (consume,) = first.of(methods.BasicConsume)
            deliver = methods.BasicDeliver(consume.consumer_tag, 1, False, "", "q")
            thread.call(lambda: first.send_content(1, deliver, b"one"))
            taken = []
            for message in queue:
                taken.append(message.body)
                message.ack()
        assert taken == [b"one"]
        assert first.of(methods.BasicAck)


def deliver_two(thread: PeerThread, peer: Any) -> None:
    (consume,) = peer.of(methods.BasicConsume)

    def work() -> None:
        for tag in (1, 2):
            deliver = methods.BasicDeliver(consume.consumer_tag, tag, False, "", "q")
            peer.send_content(1, deliver, b"%d" % tag)

    thread.call(work)


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_was_not_taken_goes_back_unless_the_broker_has_forgotten_it(
    peer_context: PeerContext, no_ack: bool
) -> None:
    with pair(peer_context) as (thread, first, _, session):
        with session.queue("q", no_ack=no_ack) as queue:
            deliver_two(thread, first)
            assert next(queue).body == b"1"
        given_back = [nack.delivery_tag for nack in first.of(methods.BasicNack)]
        assert given_back == ([] if no_ack else [2])


def test_a_consumer_can_be_left_after_its_channel_was_closed(
    peer_context: PeerContext,
) -> None:
    with pair(peer_context) as (thread, first, _, session), session.channel() as channel:
        first.answer(methods.QueueDeclare, methods.ChannelClose(404, "NOT_FOUND - no", 50, 10))
        with channel.consume("q") as messages:
            deliver_two(thread, first)
            assert next(messages).body == b"1"
            with pytest.raises(NotFound):
                channel.declare_queue("q", passive=True)


def test_a_browser_ends_where_the_queue_does(peer_context: PeerContext) -> None:
    with pair(peer_context) as (_, first, _, session):
        first.answer(methods.BasicGet, methods.BasicGetEmpty())
        with session.browse("q") as browser:
            assert list(browser) == []


def test_channels_have_all_their_calls(peer_context: PeerContext) -> None:
    with pair(peer_context) as (_, _, _, session):
        with session.channel(prefetch=5) as channel:
            assert channel.declare_queue("q").message_count == 3
        assert session.state == "open"
        assert session.broker
        assert session.failover_map.brokers == {}


def test_nobody_there(peer_context: PeerContext) -> None:
    thread = PeerThread(peer_context, 1)
    uri = thread.peers[0].uri
    thread.close()
    with pytest.raises(ConnectFailed):
        Session(uri, failover=HASTY)


def test_a_closed_session_says_so(peer_context: PeerContext) -> None:
    with pair(peer_context) as (_, _, _, session):
        session.close()
        session.close()
        with pytest.raises(NotOpen):
            session.channel()
