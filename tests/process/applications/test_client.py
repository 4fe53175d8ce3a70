"""The client against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rhizome.cli.commands.messages.consume_command import PROPERTY_NAMES
from rhizome.client import (
    ConnectFailed,
    ConsumerCancelled,
    MessageReturned,
    Properties,
    PublishNacked,
    blocking,
    connect,
)
from rhizome.errors import LoginRefused, NotAllowed, NotFound, PreconditionFailed

Unique = Callable[[str], str]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(limited())


def test_what_was_published_comes_back_with_all_its_properties(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        sent = Properties(
            content_type="text/plain",
            headers={"text": "x", "number": 7, "nested": {"list": [1, True, None]}},
            delivery_mode=2,
            correlation_id="c",
            timestamp=1_700_000_000,
            app_id="tests",
        )
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            queue = (await channel.declare_queue(unique("q"), exclusive=True)).name
            await channel.publish(b"body", routing_key=queue, properties=sent)
            message = await channel.get(queue, no_ack=True)
            assert message is not None
            assert message.body == b"body"
            for name in PROPERTY_NAMES:
                assert getattr(message.properties, name) == getattr(sent, name)

    run(scenario)


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1_000_000])
def test_bodies_of_any_size_survive(broker: Any, unique: Unique, size: int) -> None:
    async def scenario() -> None:
        body = bytes(range(256)) * (size // 256 + 1)
        body = body[:size]
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            queue = (await channel.declare_queue(unique("q"), exclusive=True)).name
            await channel.publish(body, routing_key=queue)
            message = await channel.get(queue, no_ack=True)
            assert message is not None
            assert message.body == body

    run(scenario)


def test_thousands_of_messages_pass_in_order_and_confirmed(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        count = 5000
        async with connect(broker.url) as connection:
            async with connection.channel(confirms=True) as publisher:
                queue = (await publisher.declare_queue(unique("q"), exclusive=True)).name
                for number in range(count):
                    publisher.publish_soon(b"%d" % number, routing_key=queue)
                    if number % 100 == 0:
                        await publisher.confirmed(unconfirmed_max=500)
                await publisher.confirmed()
            async with (
                connection.channel(prefetch=200) as channel,
                channel.consume(queue) as messages,
            ):
                for number in range(count):
                    message = await anext(messages)
                    assert message.body == b"%d" % number
                    if number % 50 == 49:
                        await message.ack(multiple=True)
            async with connection.channel() as channel:
                info = await channel.declare_queue(queue, passive=True, exclusive=True)
                assert info.message_count == 0

    run(scenario)


def test_prefetch_limits_what_a_consumer_holds(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with (
            connect(broker.url) as connection,
            connection.channel(prefetch=3, confirms=True) as channel,
        ):
            queue = (await channel.declare_queue(unique("q"), exclusive=True)).name
            for _ in range(10):
                await channel.publish(b"x", routing_key=queue)
            async with channel.consume(queue) as messages:
                held = [await anext(messages) for _ in range(3)]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await anext(messages)
                await held[0].ack()
                await anext(messages)

    run(scenario)


def test_rejected_and_requeued_messages_go_where_they_should(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            dead = (await channel.declare_queue(unique("dead"), exclusive=True)).name
            arguments: dict[str, object] = {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead,
            }
            queue = await channel.declare_queue(unique("q"), exclusive=True, arguments=arguments)
            await channel.publish(b"x", routing_key=queue.name)
            first = await channel.get(queue.name)
            assert first is not None
            await first.nack(requeue=True)
            again = await channel.get(queue.name)
            assert again is not None
            assert again.redelivered
            await again.reject()
            async with channel.consume(dead, no_ack=True) as messages:
                buried = await anext(messages)
            assert buried.body == b"x"
            assert buried.properties.headers is not None
            assert "x-death" in buried.properties.headers

    run(scenario)


def test_a_mandatory_message_without_a_queue_comes_back(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            with pytest.raises(MessageReturned, match="NO_ROUTE"):
                await channel.publish(b"x", routing_key=unique("nowhere"), mandatory=True)

    run(scenario)


def test_a_full_queue_that_rejects_publishes_nacks(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            arguments: dict[str, object] = {"x-max-length": 1, "x-overflow": "reject-publish"}
            queue = await channel.declare_queue(unique("q"), exclusive=True, arguments=arguments)
            await channel.publish(b"fits", routing_key=queue.name)
            for _ in range(3):
                channel.publish_soon(b"too much", routing_key=queue.name)
            with pytest.raises(PublishNacked):
                await channel.confirmed()

    run(scenario)


def test_deleting_its_queue_cancels_a_consumer(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel() as channel:
            queue = (await channel.declare_queue(unique("q"))).name
            async with channel.consume(queue) as messages:
                await channel.delete_queue(queue)
                with pytest.raises(ConsumerCancelled):
                    await anext(messages)

    run(scenario)


def test_a_transaction_takes_effect_at_its_end_or_not_at_all(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel() as channel:
            queue = (await channel.declare_queue(unique("q"), exclusive=True)).name

            async def count() -> int:
                info = await channel.declare_queue(queue, passive=True, exclusive=True)
                return info.message_count

            async with channel.transaction():
                await channel.publish(b"1", routing_key=queue)
                await channel.publish(b"2", routing_key=queue)
                assert await count() == 0
            assert await count() == 2

            async def fail() -> None:
                async with channel.transaction():
                    await channel.publish(b"3", routing_key=queue)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            assert await count() == 2

    run(scenario)


def test_topology_can_be_built_and_taken_down(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            source, middle = unique("source"), unique("middle")
            queue = (await channel.declare_queue(unique("q"), exclusive=True)).name
            await channel.declare_exchange(source, "topic")
            await channel.declare_exchange(middle, "fanout", auto_delete=True)
            await channel.bind_exchange(middle, source, "a.#")
            await channel.bind_queue(queue, middle)
            await channel.publish(b"yes", exchange=source, routing_key="a.b.c")
            with pytest.raises(MessageReturned):
                await channel.publish(b"no", exchange=source, routing_key="b.c")
            assert await channel.purge_queue(queue) == 1
            await channel.unbind_exchange(middle, source, "a.#")
            await channel.publish(b"no", exchange=source, routing_key="a.b.c", mandatory=False)
            await channel.unbind_queue(queue, middle)
            await channel.delete_exchange(source)
            assert await channel.delete_queue(queue) == 0

    run(scenario)


def test_refusals_are_typed_and_leave_the_connection_open(broker: Any, unique: Unique) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection:
            async with connection.channel() as channel:
                with pytest.raises(NotFound):
                    await channel.declare_queue(unique("nope"), passive=True)
            name = unique("q")
            async with connection.channel() as channel:
                await channel.declare_queue(name, exclusive=True)
                with pytest.raises(PreconditionFailed, match="auto_delete"):
                    await channel.declare_queue(name, exclusive=True, auto_delete=True)
            assert connection.is_open

    run(scenario)


def test_a_wrong_password_or_vhost_is_told(broker: Any) -> None:
    async def scenario() -> None:
        where = f"{broker.host}:{broker.port}"
        with pytest.raises(LoginRefused):
            await connect(f"amqp://{broker.user}:wrong@{where}/")
        with pytest.raises(NotAllowed, match="vhost"):
            await connect(f"amqp://{broker.user}:{broker.password}@{where}/no-such-vhost")
        with pytest.raises(ConnectFailed):
            await connect("amqp://127.0.0.1:1/")

    run(scenario)


def test_the_blocking_facade_does_a_round_trip(broker: Any, unique: Unique) -> None:
    with (
        blocking.Connection(broker.url) as connection,
        connection.channel(prefetch=10, confirms=True) as channel,
    ):
        queue = channel.declare_queue(unique("q"), exclusive=True).name
        channel.publish_many([b"%d" % number for number in range(100)], routing_key=queue)
        taken = []
        with channel.consume(queue, timeout_s=1.0) as messages:
            for message in messages:
                taken.append(message.body)
                message.ack()
                if len(taken) == 100:
                    break
        assert taken == [b"%d" % number for number in range(100)]
