"""Exchanges that choose one destination, as RabbitMQ 4.3 has them."""

from __future__ import annotations

import pytest

from tests.conformance.wire_driver import Channel

from .conftest import Unique

pytestmark = pytest.mark.rhizome_only  # and 4.3 with its plugins, not 3.10


def bound(channel: Channel, unique: Unique, kind: str) -> tuple[str, list[str]]:
    exchange = channel.declare_exchange(unique(kind), kind)
    queues = [channel.declare() for _ in range(3)]
    for queue in queues:
        channel.bind(queue, exchange, "")
    return exchange, queues


def publish(channel: Channel, exchange: str, keys: list[str]) -> None:
    channel.confirm()
    for key in keys:
        channel.publish_confirmed(exchange, key, key.encode())


@pytest.mark.parametrize("kind", ["x-random", "x-local-random", "x-modulus-hash"])
def test_each_message_goes_to_one_queue_and_each_queue_gets_some(
    channel: Channel, unique: Unique, kind: str
) -> None:
    exchange, queues = bound(channel, unique, kind)
    publish(channel, exchange, [f"key-{number}" for number in range(60)])
    counts = [channel.count(queue) for queue in queues]
    assert sum(counts) == 60
    assert min(counts) > 0, counts


def test_a_key_goes_to_the_same_queue_by_modulus(channel: Channel, unique: Unique) -> None:
    exchange, queues = bound(channel, unique, "x-modulus-hash")
    publish(channel, exchange, ["same"] * 20)
    assert sorted(channel.count(queue) for queue in queues) == [0, 0, 20]


def test_a_random_exchange_does_not_look_at_keys(channel: Channel, unique: Unique) -> None:
    exchange, queues = bound(channel, unique, "x-random")
    publish(channel, exchange, ["same"] * 60)
    assert min(channel.count(queue) for queue in queues) > 0
