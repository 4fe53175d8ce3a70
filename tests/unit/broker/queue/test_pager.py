"""Pager: what comes back from disk is what went there, however its records lie."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.frames import body_of
from rhizome.amqp.methods import BasicDeliver, QueueBind, QueueBindOk
from rhizome.amqp.properties import Properties
from rhizome.broker.queue.pager import READ_AHEAD_BYTES, RUN_BYTES_MAX
from rhizome.journal.journal import SEGMENT_BYTES_MIN
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

BUDGET_BYTES: Final = 64 * 1024
FILLER: Final = bytes(2 * BUDGET_BYTES)
LONG: Final = 2 * READ_AHEAD_BYTES
LONGER_THAN_A_RUN: Final = 2 * RUN_BYTES_MAX


def full_core() -> tuple[Core, CoreClient]:
    """A core whose budget is used up, also what each queue may have beyond it."""
    core = make_core(resident_budget_bytes=BUDGET_BYTES)
    client = core.connect()
    client.publish("", client.declare("filler"), FILLER)
    return core, client


def page(core: Core, client: CoreClient, bodies: list[bytes], durable: bool = False) -> str:
    """A queue that has these bodies on disk only."""
    queue = client.declare("paged", durable=durable)
    for body in bodies:
        client.publish("", queue, body, Properties(delivery_mode=2 if durable else 1))
    assert core.queue(queue).lane.paged_count == len(bodies)
    return queue


def drained(client: CoreClient, queue: str) -> list[bytes]:
    client.consume(queue, no_ack=True)
    return client.bodies()


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        [10] * 50,
        [10] * 50 + [LONG],
        [LONG] + [10] * 50,
        [10] * 20 + [LONG] + [10] * 20,
        [LONG] * 5,
        [LONGER_THAN_A_RUN],
        [10, LONGER_THAN_A_RUN, 10],
        [RUN_BYTES_MAX // 3] * 10,
    ],
    ids=[
        "even",
        "long last",
        "long first",
        "long between",
        "long",
        "longest",
        "mixed",
        "many runs",
    ],
)
def test_a_backlog_comes_back_whole_and_in_order(sizes: list[int], durable: bool) -> None:
    core, client = full_core()
    bodies = [b"%06d" % number + bytes(size) for number, size in enumerate(sizes)]
    queue = page(core, client, bodies, durable)
    assert drained(client, queue) == bodies
    assert core.queue(queue).resident_bytes == 0


@given(st.lists(st.integers(0, 3000) | st.sampled_from([LONG, RUN_BYTES_MAX]), max_size=40))
def test_records_of_any_sizes_come_back(sizes: list[int]) -> None:
    core, client = full_core()
    bodies = [b"%06d" % number + bytes(size) for number, size in enumerate(sizes)]
    assert drained(client, page(core, client, bodies)) == bodies


def test_each_message_comes_back_with_its_own_route_and_properties() -> None:
    core, client = full_core()
    queue = page(core, client, [])
    keys = ["a", "a", "b", "a", "c" * 200, "c" * 200, ""]
    exchange = "amq.fanout"
    client.call(QueueBind(queue, exchange), QueueBindOk)
    for number, key in enumerate(keys):
        client.publish(exchange, key, b"x", Properties(message_id=str(number), priority=number))
    assert core.queue(queue).lane.paged_count == len(keys)
    client.consume(queue, no_ack=True)
    found = client.deliveries()
    assert [content.properties.message_id for content in found] == [str(n) for n in range(7)]
    assert [content.properties.priority for content in found] == list(range(7))
    for content, key in zip(found, keys, strict=True):
        assert isinstance(content.method, BasicDeliver)
        assert (content.method.exchange, content.method.routing_key) == (exchange, key)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("sizes", [[10] * 5, [10, LONG, 10], [LONGER_THAN_A_RUN, 10]])
def test_what_was_paged_in_this_very_turn_is_read_from_its_batch(
    sizes: list[int], durable: bool
) -> None:
    """A home that sends it to a standby, or to who held it, can't wait for the writer."""
    core, client = full_core()
    queue = page(core, client, [], durable)
    properties = Properties(delivery_mode=2 if durable else 1)
    bodies = [b"%06d" % number + bytes(size) for number, size in enumerate(sizes)]
    frames = [client.published("", queue, body, properties) for body in bodies]
    client.connection.receive(b"".join(frames))
    places = core.queue(queue).lane.paged.peek(len(bodies))
    assert core.store.pending()
    for body, (_, position) in zip(bodies, places, strict=True):
        assert body_of(core.broker.pager.read_one(position).content) == body
    core.settle()
    assert drained(client, queue) == bodies


def test_a_message_is_spilled_again_when_its_first_place_is_gone() -> None:
    """A home becomes a copy, home again, and a copy again, with the message in memory all along."""
    core = make_core()
    core.broker.pager.spill.segment_bytes_max = SEGMENT_BYTES_MIN
    client = core.connect()
    queue = core.queue(client.declare("q"))
    client.publish("", "q", b"kept", Properties(delivery_mode=1))
    client.publish("", "q", bytes(SEGMENT_BYTES_MIN), Properties(delivery_mode=1))
    pager = core.broker.pager
    kept, filler = queue.lane.resident()
    first = pager.keep(queue, kept)
    core.settle()
    pager.spill.release(first)
    pager.keep(queue, filler)
    core.settle()
    assert not pager.spill.keeps(first)
    again = pager.keep(queue, kept)
    core.settle()
    assert again != first
    assert body_of(pager.read_one(again).content) == b"kept"
