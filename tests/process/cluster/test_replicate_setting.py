"""What of a queue is replicated, with real brokers that are killed and come back (H2, G9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rhizome.client import Level, Properties, blocking
from rhizome.testing.broker_process import wait_until
from rhizome.testing.cluster_process import ClusterProcess

SECONDS_MAX = 180.0
PERSISTENT = Properties(delivery_mode=2)
HOW = ("none", "configuration", "messages")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=9)
    cluster.start()
    yield cluster
    cluster.kill()


def group_of_b1(cluster: ClusterProcess) -> dict[str, object]:
    """The replicated group that b1 brought, as b2 knows it; empty while that says nothing."""
    found: list[dict[str, object]] = cluster.status("b2").get("groups", [])
    return next((each for each in found if each["origin"] == "b1" and not each["local"]), {})


def is_safe(cluster: ClusterProcess) -> bool:
    group = group_of_b1(cluster)
    return group.get("home") == "b1" and bool(group["in_sync"])


def waits(channel: blocking.Channel, queue: str) -> int:
    return channel.declare_queue(queue, passive=True).message_count


def drained(channel: blocking.Channel, queue: str) -> list[bytes]:
    bodies: list[bytes] = []
    while (message := channel.get(queue, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


def test_a_queue_is_taken_over_as_it_asked_for(cluster: ClusterProcess) -> None:
    """A home dies: `messages` goes on, `configuration` goes on empty, `none` waits for it. When it
    is back, everything is there once."""
    with blocking.Connection(cluster.brokers["b2"].url, confirm_levels=True) as connection:
        channel = connection.channel(confirms=True)
        for how in HOW:
            arguments: dict[str, object] = {"x-replicate": how, "x-group": "b1"}
            channel.declare_queue(how, durable=True, arguments=arguments)
        wait_until(lambda: is_safe(cluster), "a copy", SECONDS_MAX)
        levels = {
            how: {
                channel.publish(b"%d" % number, routing_key=how, properties=PERSISTENT)
                for number in range(5)
            }
            for how in HOW
        }
        assert levels == {
            "none": {Level.PERSISTENT},
            "configuration": {Level.PERSISTENT},
            "messages": {Level.RELIABLE_PERSISTENT},
        }
        cluster.brokers["b1"].kill()
        homes = ("b2", "b3")
        wait_until(lambda: group_of_b1(cluster).get("home") in homes, "a takeover", SECONDS_MAX)
        wait_until(lambda: waits(channel, "messages") == 5, "the copy", SECONDS_MAX)
        assert waits(channel, "configuration") == 0
        channel.publish(b"new", routing_key="configuration", properties=PERSISTENT)
        cluster.brokers["b1"].start()
        wait_until(lambda: waits(channel, "configuration") == 6, "what b1 kept", SECONDS_MAX)
        wait_until(lambda: waits(channel, "none") == 5, "b1", SECONDS_MAX)
        expected = [b"%d" % number for number in range(5)]
        assert drained(channel, "configuration") == [b"new", *expected]
        assert drained(channel, "none") == expected
        assert drained(channel, "messages") == expected
