"""Quorum queues as RabbitMQ 4.3 has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from tests.conformance.wire_driver import Channel

from .conftest import Unique

pytestmark = pytest.mark.rhizome_only  # and 4.3, not 3.10

Declare = Callable[..., str]


@pytest.fixture
def declare(channel: Channel, unique: Unique) -> Iterator[Declare]:
    """Declares quorum queues: `declare(x_delivery_limit=3)`."""
    made: list[str] = []

    def declare_one(**arguments: object) -> str:
        name = unique("quorum")
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        channel.declare(
            name, exclusive=False, durable=True, arguments={"x-queue-type": "quorum", **given}
        )
        made.append(name)
        return name

    yield declare_one
    for name in made:
        channel.connection.channel().call(m.QueueDelete(name), m.QueueDeleteOk)


def publish(channel: Channel, queue: str, *priorities: int) -> None:
    for priority in priorities:
        body = b"%d" % priority
        channel.publish_confirmed("", queue, body, Properties(priority=priority))


def test_priorities_are_strict_and_need_no_argument(
    channel: Channel, other: Channel, declare: Declare
) -> None:
    queue = declare()
    channel.confirm()
    publish(channel, queue, 5, 0, 31, 9, 40, 5, 255)
    found = [other.get_wait(queue).body for _ in range(7)]
    assert found == [b"31", b"40", b"255", b"9", b"5", b"5", b"0"]


def test_fewer_priorities_by_argument(channel: Channel, other: Channel, declare: Declare) -> None:
    """Rhizome alone: RabbitMQ refuses the argument."""
    queue = declare(x_max_priority=3)
    channel.confirm()
    publish(channel, queue, 1, 9, 3, 0)
    assert [other.get_wait(queue).body for _ in range(4)] == [b"9", b"3", b"1", b"0"]


def test_a_consumer_that_holds_a_message_too_long_is_cancelled_and_its_channel_lives(
    channel: Channel, other: Channel, declare: Declare
) -> None:
    queue = declare(x_consumer_timeout=1000)
    channel.consume(queue, "slow")
    channel.publish("", queue, b"x")
    held = channel.delivery()
    assert channel.expect(m.BasicCancel, 60).consumer_tag == "slow"
    assert other.get_wait(queue).method.redelivered
    channel.send(m.BasicAck(held.tag))
    channel.declare()


def test_a_consumer_may_choose_its_timeout(
    channel: Channel, other: Channel, declare: Declare
) -> None:
    queue = declare()
    channel.consume(queue, "slow", arguments={"x-consumer-timeout": 1000})
    channel.publish("", queue, b"x")
    channel.delivery()
    assert channel.expect(m.BasicCancel, 60).consumer_tag == "slow"
    assert other.get_wait(queue).method.redelivered


def test_the_consumer_of_the_highest_priority_is_the_active_one(
    channel: Channel, other: Channel, declare: Declare
) -> None:
    queue = declare(x_single_active_consumer=True)
    channel.consume(queue, "low")
    other.publish("", queue, b"1")
    first = channel.delivery()
    assert first.method.consumer_tag == "low"
    channel.consume(queue, "high", arguments={"x-priority": 10})
    other.publish("", queue, b"2")
    assert channel.is_quiet()
    channel.send(m.BasicAck(first.tag))
    assert channel.delivery().method.consumer_tag == "high"


@pytest.mark.parametrize("retries", ["all", "failed"])
def test_what_is_rejected_comes_again_after_a_delay(
    channel: Channel, other: Channel, declare: Declare, retries: str
) -> None:
    queue = declare(
        x_delayed_retry_type=retries, x_delayed_retry_min=1000, x_delayed_retry_max=3000
    )
    channel.consume(queue)
    other.publish("", queue, b"failed")
    for count in range(2):
        failed = channel.delivery()
        assert (failed.body, failed.headers.get("x-delivery-count", 0)) == (b"failed", count)
        channel.send(m.BasicReject(failed.tag, True))
        other.publish("", queue, b"next")
        assert channel.delivery().body == b"next"
        assert channel.is_quiet()
    assert channel.delivery().body == b"failed"


def test_what_waits_for_its_retry_is_purged(
    channel: Channel, other: Channel, declare: Declare
) -> None:
    queue = declare(x_delayed_retry_type="all", x_delayed_retry_min=1000)
    other.confirm()
    other.publish_confirmed("", queue, b"failed")
    channel.send(m.BasicReject(channel.get_wait(queue, no_ack=False).tag, True))
    channel.qos(1)
    assert channel.call(m.QueuePurge(queue), m.QueuePurgeOk).message_count == 1
