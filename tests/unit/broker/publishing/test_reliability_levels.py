"""Publishers that ask are told which level each confirm has reached (rules.md, Levels)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck, ConfirmLevel, QueueBind, QueueBindOk
from rhizome.amqp.properties import Properties
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.reliability_levels import (
    COPIED,
    EVERYWHERE,
    ON_DISK,
    SEVERAL,
    STORED,
    Levels,
    ceiling,
)
from rhizome.testing.in_memory_broker import CoreClient, make_core

ASKS: dict[str, object] = {"capabilities": {"confirm.level": True, "basic.nack": True}}
PERSISTENT = Properties(delivery_mode=2)
TRANSIENT = Properties(delivery_mode=1)


def told(client: CoreClient) -> list[tuple[int, int]]:
    """(tag, level) of each confirm.level, which comes behind the ack of all that it is about."""
    acked = 0
    found: list[tuple[int, int]] = []
    for event in client.take():
        if isinstance(event, BasicAck):
            acked = int(event.delivery_tag)
        elif isinstance(event, ConfirmLevel):
            assert event.delivery_tag <= acked
            found.append((int(event.delivery_tag), int(event.level)))
    return found


def publish(client: CoreClient, *what: tuple[str, Properties], exchange: str = "") -> None:
    """All of it in one turn."""
    client.send_bytes(b"".join(client.published(exchange, key, b"x", how) for key, how in what))


def test_of_a_lone_broker_it_is_the_disk_or_nothing() -> None:
    core = make_core()
    client = core.connect(properties=ASKS)
    client.declare("durable", durable=True)
    client.declare("passing")
    client.confirm()
    publish(client, ("durable", PERSISTENT), ("durable", PERSISTENT), ("durable", TRANSIENT))
    publish(client, ("passing", PERSISTENT), ("nowhere", PERSISTENT))
    core.settle()
    assert told(client) == [(2, ON_DISK), (3, 0), (5, 0)]
    assert core.broker.levels_told == [3, 0, 2, 0]


def test_who_does_not_ask_is_told_nothing() -> None:
    core = make_core()
    client = core.connect()
    client.declare("durable", durable=True)
    client.confirm()
    publish(client, ("durable", PERSISTENT))
    core.settle()
    assert [type(event) for event in client.take()] == [BasicAck]
    assert core.broker.levels_told == [0, 0, 0, 0]


def test_a_stream_puts_transient_messages_on_disk_too() -> None:
    core = make_core()
    client = core.connect(properties=ASKS)
    client.declare("s", durable=True, x_queue_type="stream")
    client.confirm()
    publish(client, ("s", TRANSIENT))
    core.settle()
    assert told(client) == [(1, ON_DISK)]


def test_the_lowest_of_several_queues_counts() -> None:
    core = make_core()
    client = core.connect(properties=ASKS)
    for name in ("durable", "passing"):
        client.declare(name, durable=name == "durable")
        client.call(QueueBind(name, "amq.fanout"), QueueBindOk)
    client.confirm()
    publish(client, ("", PERSISTENT), exchange="amq.fanout")
    core.settle()
    assert told(client) == [(1, 0)]


def test_what_a_queue_refuses_has_no_level() -> None:
    core = make_core()
    client = core.connect(properties=ASKS)
    client.declare("narrow", durable=True, x_max_length=1, x_overflow="reject-publish")
    client.confirm()
    publish(client, *[("narrow", PERSISTENT)] * 3)
    core.settle()
    assert told(client) == [(1, ON_DISK)]


@pytest.mark.parametrize(
    ("place", "persistent", "reached"),
    [
        (EVERYWHERE, False, COPIED | ON_DISK),
        (COPIED | ON_DISK, True, COPIED | ON_DISK),
        (COPIED | ON_DISK, False, COPIED),
        (ON_DISK, True, ON_DISK),
        (COPIED, True, COPIED),
        (STORED & COPIED, True, 0),
    ],
)
def test_what_may_be_reached(place: int, persistent: bool, reached: int) -> None:
    assert ceiling(place, persistent, 1) == reached
    assert ceiling(place, persistent, 2) == reached | SEVERAL


class Bench:
    """A channel's confirms, and what they wait for."""

    def __init__(self) -> None:
        self.confirms = Confirms()
        self.confirms.levels = Levels()
        self.log = GroupLog(1, 1, 1)
        self.other = GroupLog(2, 1, 1)
        self.way = Forward("b2", 3)

    def published(self, level: int = COPIED | ON_DISK) -> Confirms:
        self.confirms.published += 1
        self.confirms.at_most(level)
        return self.confirms

    def told(self) -> list[tuple[int, int]]:
        confirms = self.confirms
        confirms.close_turn()
        for log in (self.log, self.other):
            log.committed_disk = log.committed_memory = 1 << 40
        self.way.confirmed = 1 << 40
        confirms.sent = max(confirms.sent, confirms.ready())
        levels = confirms.levels
        assert levels is not None
        found = list(zip(levels.told_tags, levels.told_levels, strict=True))
        levels.clear()
        return found


def test_copies_count_up_to_where_they_were() -> None:
    bench = Bench()
    bench.log.reliable_disk = 11
    bench.published().need(bench.log, 10, True)
    bench.published().need(bench.log, 11, True)
    assert bench.told() == [(2, 3)]
    bench.published().need(bench.log, 12, True)
    assert bench.told() == [(3, ON_DISK)]
    bench.log.reliable_disk = 13
    bench.published().need(bench.log, 13, True)
    assert bench.told() == [(4, 3)]


def test_a_way_says_what_of_it_has_no_copy() -> None:
    bench = Bench()
    bench.published().wait_for(bench.way, 5)
    bench.published().wait_for(bench.way, 6)
    bench.way.thin = 4
    assert bench.told() == [(2, 3)]
    bench.published().wait_for(bench.way, 7)
    bench.published().wait_for(bench.way, 8)
    bench.way.thin = 7
    assert bench.told() == [(4, ON_DISK)]
    bench.published().wait_for(bench.way, 9)
    assert bench.told() == [(5, 3)]


def test_a_way_counts_for_what_went_on_it_before_another_log_was_needed() -> None:
    bench = Bench()
    bench.log.reliable_disk = bench.other.reliable_disk = 100
    bench.published().need(bench.log, 10, True)
    confirms = bench.published()
    confirms.wait_for(bench.way, 5)
    confirms.need(bench.other, 1, True)
    bench.way.thin = 5
    assert bench.told() == [(2, ON_DISK)]
    bench.published().need(bench.other, 2, True)
    assert bench.told() == [(3, 3)]


def test_of_two_logs_both_count() -> None:
    bench = Bench()
    bench.log.reliable_disk = 100
    bench.published().need(bench.log, 10, True)
    both = COPIED | ON_DISK | SEVERAL
    confirms = bench.published(both)
    confirms.need(bench.log, 11, True)
    confirms.need(bench.other, 1, True)
    confirms = bench.published(both)
    confirms.need(bench.other, 2, True)
    confirms.need(bench.log, 12, True)
    bench.published().need(bench.log, 13, True)
    assert bench.told() == [(1, 3), (3, ON_DISK), (4, 3)]


def test_what_moved_to_another_home_is_judged_by_that_one() -> None:
    bench = Bench()
    bench.log.reliable_disk = 100
    bench.published().need(bench.log, 10, True)
    bench.confirms.wait_elsewhere(bench.log, bench.way, [10], [4])
    bench.way.thin = 4
    assert bench.told() == [(1, ON_DISK)]
