"""aio-pika (and aiormq below it)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika.patterns import RPC, Master

from rhizome.testing.broker_process import Broker, BrokerProcess

from .conftest import patterned_body

Unique = Callable[[str], str]
RUN_SECONDS_MAX = 100
"""Of a whole scenario. aio-pika's own limit for a get is 5 s, which a busy machine may exceed."""


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, RUN_SECONDS_MAX))


@contextlib.asynccontextmanager
async def channel_of(broker: Broker, **options: Any) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    async with await aio_pika.connect(broker.url) as connection:
        yield await connection.channel(**options)


def test_messages_are_published_confirmed_and_consumed_in_order(broker: Broker) -> None:
    async def scenario() -> None:
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(exclusive=True)
            for number in range(50):
                message = aio_pika.Message(str(number).encode(), headers={"n": number})
                await channel.default_exchange.publish(message, queue.name)
            got = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        got.append((message.body, message.headers["n"]))
                    if len(got) == 50:
                        break
            assert got == [(str(number).encode(), number) for number in range(50)]

    run(scenario())


def test_two_thousand_publishes_at_once_are_all_confirmed(broker: Broker) -> None:
    async def scenario() -> None:
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(exclusive=True)
            exchange = channel.default_exchange
            publishes = (
                exchange.publish(aio_pika.Message(str(number).encode()), queue.name)
                for number in range(2000)
            )
            await asyncio.gather(*publishes)
            declared = await channel.declare_queue(queue.name, passive=True)
            assert declared.declaration_result.message_count == 2000

    run(scenario())


@pytest.mark.parametrize("size", [0, 131_065, 10_000_000])
def test_large_bodies_come_back(broker: Broker, size: int) -> None:
    async def scenario() -> None:
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(exclusive=True)
            body = patterned_body(size)
            await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
            message = await queue.get(no_ack=True, timeout=RUN_SECONDS_MAX)
            assert message.body == body

    run(scenario())


def test_an_unroutable_message_raises_the_returned_one(broker: Broker) -> None:
    async def scenario() -> None:
        async with channel_of(broker, on_return_raises=True) as channel:
            with pytest.raises(aio_pika.exceptions.DeliveryError) as raised:
                await channel.default_exchange.publish(aio_pika.Message(b"x"), "no-such-queue")
            assert raised.value.message.header.properties is not None

    run(scenario())


def test_a_channel_error_carries_the_brokers_text(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        async with channel_of(broker) as channel:
            with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match="no queue"):
                await channel.declare_queue(unique("missing"), passive=True)
            await channel.reopen()
            assert await channel.declare_queue(exclusive=True)

    run(scenario())


def test_an_inequivalent_redeclaration_is_a_precondition_error(
    broker: Broker, unique: Unique
) -> None:
    async def scenario() -> None:
        async with channel_of(broker) as channel:
            name = unique("exchange")
            await channel.declare_exchange(name, "direct", auto_delete=True)
            with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="inequivalent"):
                await channel.declare_exchange(name, "topic", auto_delete=True)

    run(scenario())


def test_transactions_commit_and_roll_back(broker: Broker) -> None:
    async def scenario() -> None:
        async with channel_of(broker, publisher_confirms=False) as channel:
            queue = await channel.declare_queue(exclusive=True)
            exchange = channel.default_exchange
            with contextlib.suppress(ValueError):
                async with channel.transaction():
                    await exchange.publish(aio_pika.Message(b"undone"), queue.name)
                    raise ValueError("roll back")
            async with channel.transaction():
                await exchange.publish(aio_pika.Message(b"done"), queue.name)
            message = await queue.get(no_ack=True, timeout=RUN_SECONDS_MAX)
            assert message.body == b"done"
            assert await queue.get(fail=False, timeout=RUN_SECONDS_MAX) is None

    run(scenario())


def test_the_rpc_pattern_returns_results_and_errors(broker: Broker, unique: Unique) -> None:
    async def double(*, x: int) -> int:
        return 2 * x

    async def fail() -> None:
        raise KeyError("no")

    async def scenario() -> None:
        async with channel_of(broker) as channel:
            rpc = await RPC.create(channel)
            names = unique("double"), unique("fail")
            await rpc.register(names[0], double, auto_delete=True)
            await rpc.register(names[1], fail, auto_delete=True)
            answers = await asyncio.gather(
                *(rpc.call(names[0], kwargs={"x": number}) for number in range(20))
            )
            assert answers == [2 * number for number in range(20)]
            with pytest.raises(KeyError):
                await rpc.call(names[1])
            await rpc.close()

    run(scenario())


def test_the_master_worker_pattern_hands_every_task_out_once(
    broker: Broker, unique: Unique
) -> None:
    async def scenario() -> None:
        done: list[int] = []
        finished = asyncio.Event()

        async def work(*, number: int) -> None:
            done.append(number)
            if len(done) == 30:
                finished.set()

        async with channel_of(broker) as channel:
            await channel.set_qos(prefetch_count=5)
            master = Master(channel)
            name = unique("task")
            worker = await master.create_worker(name, work, auto_delete=True)
            for number in range(30):
                await master.create_task(name, {"number": number})
            await finished.wait()
            await worker.close()
        assert sorted(done) == list(range(30))

    run(scenario())


def test_exchange_to_exchange_bindings_route(broker: Broker, unique: Unique) -> None:
    async def scenario() -> None:
        async with channel_of(broker) as channel:
            source = await channel.declare_exchange(unique("source"), "topic", auto_delete=True)
            sink = await channel.declare_exchange(unique("sink"), "fanout", auto_delete=True)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(sink)
            await sink.bind(source, "a.#")
            await source.publish(aio_pika.Message(b"through"), "a.b.c")
            message = await queue.get(timeout=RUN_SECONDS_MAX)
            assert (message.body, message.routing_key) == (b"through", "a.b.c")
            await message.ack()
            await sink.unbind(source, "a.#")

    run(scenario())


def test_a_hundred_channels_open_at_once(broker: Broker) -> None:
    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channels = await asyncio.gather(*(connection.channel() for _ in range(100)))
            queues = await asyncio.gather(
                *(channel.declare_queue(exclusive=True) for channel in channels)
            )
            assert len({queue.name for queue in queues}) == 100

    run(scenario())


def test_a_nacked_message_returns_redelivered(broker: Broker) -> None:
    async def scenario() -> None:
        async with channel_of(broker) as channel:
            queue = await channel.declare_queue(exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"again"), queue.name)
            first = await queue.get(timeout=RUN_SECONDS_MAX)
            assert not first.redelivered
            await first.nack(requeue=True)
            second = await queue.get(timeout=RUN_SECONDS_MAX)
            assert (second.body, second.redelivered) == (b"again", True)
            await second.reject(requeue=False)
            assert await queue.get(fail=False, timeout=RUN_SECONDS_MAX) is None

    run(scenario())


@pytest.mark.rhizome_only
def test_a_robust_connection_finds_its_durable_queue_after_a_restart(
    own_broker: BrokerProcess,
) -> None:
    async def scenario() -> None:
        connection = await aio_pika.connect_robust(own_broker.url, reconnect_interval=0.1)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("kept", durable=True)
            persistent = aio_pika.Message(b"kept", delivery_mode=2)
            await channel.default_exchange.publish(persistent, "kept")
            got: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                await got.put(message.body)
                if message.redelivered:
                    await message.ack()

            await queue.consume(take)
            assert await got.get() == b"kept"
            await asyncio.to_thread(own_broker.restart)
            assert await got.get() == b"kept"

    run(scenario())
