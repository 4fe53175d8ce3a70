"""Lanes of a queue with priorities: made when something comes for them."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicNack, QueuePurge, QueuePurgeOk
from rhizome.amqp.properties import Properties
from rhizome.broker.queue.priority_lane import UNUSED_LANE
from rhizome.broker.queue.queue import Queue
from rhizome.testing.in_memory_broker import make_core


def made(queue: Queue) -> list[int]:
    """The priorities that have a lane of their own."""
    return [at for at, lane in enumerate(queue.lanes) if lane.is_made()]


def test_an_empty_queue_with_many_priorities_has_one_lane() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q", x_max_priority=255)
    queue = core.queue("q")
    assert len(queue.lanes) == 256
    assert len({id(lane) for lane in queue.lanes}) == 2
    assert made(queue) == [0]


def test_a_message_makes_the_lane_of_its_priority() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q", x_max_priority=255)
    client.declare("other", x_max_priority=255)
    for priority in (7, 200, 7):
        client.publish("", "q", b"%d" % priority, Properties(priority=priority))
    assert made(core.queue("q")) == [0, 7, 200]
    assert made(core.queue("other")) == [0]
    taken = client.get("q", no_ack=False)
    assert taken is not None
    assert taken.body == b"200"
    client.send(BasicNack(taken.tag, False, True))
    assert [message.body for message in (client.get("q"), client.get("q")) if message] == [
        b"200",
        b"7",
    ]
    client.call(QueuePurge("q"), QueuePurgeOk)
    assert core.queue("q").ready == 0


@pytest.mark.parametrize("persistent", [1, 2])
def test_lanes_are_those_of_the_messages_after_a_restart(persistent: int) -> None:
    core = make_core()
    client = core.connect()
    client.declare("q", durable=True, x_max_priority=255)
    for priority in (3, 250):
        properties = Properties(priority=priority, delivery_mode=persistent)
        client.publish("", "q", b"%d" % priority, properties)
    held = client.get("q", no_ack=False)
    assert held is not None
    core.advance(1000)
    again = core.restarted()
    queue = again.queue("q")
    if persistent == 2:
        client = again.connect()
        bodies = [message.body for message in (client.get("q"), client.get("q")) if message]
        assert bodies == [b"250", b"3"]
    assert len(made(queue)) <= 3


def test_the_lane_that_stands_for_unused_ones_stays_empty() -> None:
    assert UNUSED_LANE.ready() == 0
    assert len(UNUSED_LANE.paged) == 0
    assert UNUSED_LANE.shown == UNUSED_LANE.before == UNUSED_LANE.noted == -1
