"""A broker in the event loop of the test: `async with rhizome.embedded()`."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import threading
import urllib.request
from base64 import b64encode

import pytest

import rhizome
from rhizome.errors import PreconditionFailed
from rhizome.server.config.config_fields import ConfigError
from rhizome.testing.broker_process import wait_until
from rhizome.testing.free_ports import free_port


async def say(url: str, body: bytes) -> bytes:
    async with rhizome.connect(url) as connection, connection.channel(confirms=True) as channel:
        await channel.declare_queue("greetings")
        await channel.publish(body, routing_key="greetings", mandatory=True)
        message = await channel.get("greetings", no_ack=True)
        assert message is not None
        return bytes(message.body)


def test_a_message_passes_and_the_process_is_left_alone() -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    frozen = gc.get_freeze_count()

    async def scenario() -> None:
        async with rhizome.embedded() as broker:
            assert await say(broker.url, b"hello") == b"hello"
            assert len(broker.core.state.vhosts["/"].destinations) >= 1
            assert broker.http_url == ""

    threads = set(threading.enumerate())
    asyncio.run(scenario())
    after = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert after == handlers
    assert gc.get_freeze_count() == frozen
    wait_until(
        lambda: {each for each in threading.enumerate() if not each.daemon} <= threads,
        "the broker's threads to end",
    )


def test_two_in_one_loop_know_nothing_of_each_other() -> None:
    async def scenario() -> None:
        async with rhizome.embedded() as one, rhizome.embedded() as other:
            assert one.port != other.port
            assert await say(one.url, b"1") == b"1"
            assert await say(other.url, b"2") == b"2"

    asyncio.run(scenario())


def test_with_http() -> None:
    def ask(url: str) -> object:
        request = urllib.request.Request(f"{url}/api/overview")
        request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["product_name"]

    async def scenario() -> None:
        async with rhizome.embedded(http=True) as broker:
            assert await asyncio.to_thread(ask, broker.http_url) == "Rhizome"

    asyncio.run(scenario())


def test_settings_and_their_errors() -> None:
    async def scenario() -> None:
        async with (
            rhizome.embedded({"limits.queues_max": 1}) as broker,
            rhizome.connect(broker.url) as connection,
            connection.channel() as channel,
        ):
            await channel.declare_queue("one")
            with pytest.raises(PreconditionFailed, match="queue"):
                await channel.declare_queue("two")
        with pytest.raises(ConfigError, match="unknown key"):
            async with rhizome.embedded({"limits.queue_max": 1}):
                pass

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_an_error() -> None:
    port = free_port()

    async def scenario() -> None:
        async with rhizome.embedded({"listen.amqp": [f"127.0.0.1:{port}"]}):
            with pytest.raises(OSError, match=str(port)):
                async with rhizome.embedded({"listen.amqp": [f"127.0.0.1:{port}"]}):
                    pass

    asyncio.run(scenario())


def test_an_error_in_the_block_comes_out_and_the_broker_ends() -> None:
    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            async with rhizome.embedded() as broker:
                _ = 1 // 0
        with pytest.raises(OSError):
            await asyncio.open_connection(broker.host, broker.port)

    asyncio.run(scenario())


def test_there_is_nothing_else_of_that_kind() -> None:
    with pytest.raises(AttributeError, match="no attribute 'embed'"):
        _ = rhizome.embed  # type: ignore[attr-defined]
