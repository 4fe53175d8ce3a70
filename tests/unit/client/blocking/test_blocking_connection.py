"""The blocking facade, against a scripted peer that runs in a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rhizome.amqp import methods
from rhizome.client import Channel, ConnectFailed, NotOpen, blocking, connect
from rhizome.client.blocking import Connection
from rhizome.errors import NotFound


@pytest.fixture
def peer(peer_context: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[Any]:
    """A scripted peer in a loop of its own."""
    started: list[Any] = []
    ready, leave = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with peer_context() as made:
            started.append(made)
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(5)
    yield started[0]
    loop.call_soon_threadsafe(leave.set)
    thread.join(5)
    loop.close()


def test_calls_wait_for_their_answers(peer: Any) -> None:
    with Connection(peer.uri) as connection, connection.channel(prefetch=5) as channel:
        assert channel.declare_queue("q") == ("q", 3, 1)
        assert connection.server_properties["product"] == "Scripted"


def test_errors_of_the_broker_are_raised_in_the_calling_thread(peer: Any) -> None:
    peer.answer(methods.QueueDeclare, methods.ChannelClose(404, "NOT_FOUND - no", 50, 10))
    with Connection(peer.uri) as connection, connection.channel() as channel:
        with pytest.raises(NotFound):
            channel.declare_queue("q", passive=True)
        assert not channel.is_open


def test_publish_waits_for_its_confirm(peer: Any) -> None:
    peer.answer(methods.BasicPublish, methods.BasicAck(1, False))
    with Connection(peer.uri) as connection, connection.channel(confirms=True) as channel:
        channel.publish(b"x", routing_key="q")
    assert len(peer.of(methods.BasicPublish)) == 1


def test_iteration_stops_when_nothing_comes_for_a_while(peer: Any) -> None:
    with (
        Connection(peer.uri) as connection,
        connection.channel() as channel,
        channel.consume("q", timeout_s=0.05) as messages,
    ):
        assert list(messages) == []


def test_facades_have_the_signatures_of_the_asyncio_client() -> None:
    ours, theirs = inspect.signature(Connection), inspect.signature(connect)
    assert list(ours.parameters.values()) == list(theirs.parameters.values())
    assert inspect.signature(blocking.Channel.publish) == inspect.signature(Channel.publish)


def test_a_closed_connection_refuses_further_calls(peer: Any) -> None:
    connection = Connection(peer.uri)
    connection.close()
    connection.close()
    with pytest.raises(NotOpen):
        connection.channel()


def test_a_failed_connect_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with pytest.raises(ConnectFailed):
        Connection("amqp://127.0.0.1:1/")
    assert threading.active_count() == before
