"""A damaged message is set aside, and its queue goes on."""

from __future__ import annotations

from typing import Final

import pytest

from rhizome.amqp.methods import QueuePurge, QueuePurgeOk
from rhizome.amqp.properties import Properties
from rhizome.broker.queue.damaged_messages import is_placeholder
from rhizome.broker.queue.queue import Queue, claim
from rhizome.server.alarms_and_compaction import Maintenance
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

BUDGET_BYTES: Final = 64 * 1024
FILLER: Final = bytes(2 * BUDGET_BYTES)
BODIES: Final = [b"body of message %03d" % number for number in range(10)]


def backlog(**arguments: object) -> tuple[Core, CoreClient, str]:
    """A core that has ten messages of a durable queue on disk only."""
    core = make_core(resident_budget_bytes=BUDGET_BYTES)
    client = core.connect()
    client.publish("", client.declare("filler"), FILLER)
    queue = client.declare("work", durable=True, **arguments)
    for body in BODIES:
        client.publish("", queue, body, Properties(delivery_mode=2))
    assert core.queue(queue).lane.paged_count == len(BODIES)
    return core, client, queue


def flip(core: Core, body: bytes, bit: int = 1) -> None:
    """Change a bit of a body at rest."""
    for content in core.files.contents.values():
        at = content.find(body)
        if at >= 0:
            content[at] ^= bit
            return
    raise AssertionError(f"{body!r} is not on disk")


def flip_record(core: Core, queue: Queue, number: int, offset: int, bit: int) -> None:
    """Change a bit in the record of a paged message."""
    _, position = queue.lane.paged.peek(number + 1)[number]
    core.files.contents[position >> 32][(position & 0xFFFFFFFF) + offset] ^= bit


def indexes(core: Core, queue: str) -> list[int]:
    return [int(each.index) for each in core.broker.damage.of(core.queue(queue))]


@pytest.mark.parametrize("number", [0, 4, 9])
def test_consumers_get_everything_but_the_damaged_message(number: int) -> None:
    core, client, queue = backlog()
    flip(core, BODIES[number])
    client.consume(queue, no_ack=True)
    assert client.bodies() == BODIES[:number] + BODIES[number + 1 :]
    assert len(indexes(core, queue)) == 1
    assert core.queue(queue).ready == 0
    assert core.queue(queue).ready_bytes == 0


def test_a_pull_gets_the_next_message() -> None:
    core, client, queue = backlog()
    flip(core, BODIES[0])
    found = client.get(queue)
    assert found is not None
    assert found.body == BODIES[1]


def test_a_queue_whose_only_message_is_damaged_is_empty() -> None:
    core, client, queue = backlog()
    for body in BODIES:
        flip(core, body)
    assert client.get(queue) is None
    assert len(indexes(core, queue)) == len(BODIES)


@pytest.mark.parametrize(
    ("offset", "bit"), [(0, 0x40), (2, 0x10), (3, 1), (8, 2), (19, 1), (43, 0x80), (45, 0x80)]
)
def test_a_record_whose_header_or_lengths_are_damaged_is_set_aside(offset: int, bit: int) -> None:
    core, client, queue = backlog()
    flip_record(core, core.queue(queue), 3, offset, bit)
    client.consume(queue, no_ack=True)
    assert client.bodies() == BODIES[:3] + BODIES[4:]
    assert core.queue(queue).ready == 0
    assert len(indexes(core, queue)) == 1


def test_a_sector_that_cannot_be_read_costs_only_the_message_in_it() -> None:
    core, client, queue = backlog()
    _, position = core.queue(queue).lane.paged.peek(3)[2]
    segment, bad = position >> 32, position & 0xFFFFFFFF
    read = core.store._writer.read

    def failing(wanted: int, offset: int, length: int) -> bytes:
        if wanted == segment and offset <= bad < offset + length:
            raise OSError(5, "Input/output error")
        return read(wanted, offset, length)

    core.store._writer.read = failing  # type: ignore[method-assign]
    client.consume(queue, no_ack=True)
    assert client.bodies() == BODIES[:2] + BODIES[3:]
    assert "Input/output error" in core.broker.damage.everything()[0].reason


def test_expiry_is_not_held_up_by_a_damaged_head() -> None:
    core, client, queue = backlog(**{"x-message-ttl": 1000})
    flip(core, BODIES[0])
    core.advance(5000)
    assert core.queue(queue).ready == 0
    assert len(indexes(core, queue)) == 1
    assert client.get(queue) is None


def test_a_bounded_queue_restores_and_drops_around_a_damaged_message() -> None:
    core, client, queue = backlog(**{"x-max-length-bytes": 10_000})
    flip(core, BODIES[0])
    for number in range(10):
        client.publish("", queue, b"x" * 1000, Properties(message_id=str(number)))
    client.consume(queue, no_ack=True)
    assert client.bodies()[-1] == b"x" * 1000
    assert core.queue(queue).ready == 0


def checkpointed(core: Core) -> Core:
    """The broker after a clean stop, started again."""
    maintenance = Maintenance.__new__(Maintenance)
    maintenance.broker, maintenance.store = core.broker, core.store
    core.store.checkpoint(maintenance.build_checkpoint())
    core.settle()
    return core.restarted()


def test_what_is_set_aside_is_set_aside_again_after_a_restart() -> None:
    core, client, queue = backlog()
    core = checkpointed(core)
    flip(core, BODIES[0])
    client = core.connect()
    assert client.get(queue) is not None
    known = indexes(core, queue)
    core = checkpointed(core)
    client = core.connect()
    client.consume(queue, no_ack=True)
    assert client.bodies() == BODIES[2:]
    assert indexes(core, queue) == known


def test_a_whole_record_is_served_once_it_is_whole_again() -> None:
    """Nothing is recorded about damage: a backup of the segment, or a better cable, is enough."""
    core, client, queue = backlog()
    flip(core, BODIES[0])
    assert client.get(queue) is not None
    core = checkpointed(core)
    for content in core.files.contents.values():
        at = content.find(b"cody of message 000")
        if at >= 0:
            content[at] ^= 1
    client = core.connect()
    found = client.get(queue)
    assert found is not None
    assert found.body == BODIES[0]


def test_a_message_that_is_dropped_is_gone_for_good() -> None:
    core, client, queue = backlog()
    flip(core, BODIES[0])
    client.get(queue)
    index = indexes(core, queue)[0]
    assert core.broker.damage.drop(core.queue(queue), index)
    assert not core.broker.damage.drop(core.queue(queue), index)
    core.settle()
    core = checkpointed(core)
    assert core.queue(queue).ready == len(BODIES) - 2
    client = core.connect()
    client.consume(queue, no_ack=True)
    assert client.bodies() == BODIES[2:]
    assert indexes(core, queue) == []


def test_a_purge_drops_what_is_set_aside() -> None:
    core, client, queue = backlog()
    for body in BODIES:
        flip(core, body)
    assert client.get(queue) is None
    client.call(QueuePurge(queue), QueuePurgeOk)
    assert indexes(core, queue) == []
    core = checkpointed(core)
    assert core.queue(queue).ready == 0


def test_the_segment_of_a_damaged_message_stays() -> None:
    core, client, queue = backlog()
    flip(core, BODIES[0])
    client.consume(queue, no_ack=True)
    core.settle()
    damaged = core.broker.damage.everything()[0]
    counts = {each.segment: each.live for each in core.store.journal.segments()}
    assert counts[damaged.position >> 32] == 1
    assert core.broker.damage.segments() == {int(damaged.position >> 32)}


def test_a_client_may_settle_a_message_that_is_damaged_meanwhile() -> None:
    """After a restart or a takeover a client says that it has it."""
    core, _, name = backlog()
    flip(core, BODIES[3])
    queue = core.queue(name)
    index = queue.lane.paged.peek(4)[3][0]
    message = claim(queue, index)
    assert message is not None
    assert is_placeholder(message)
    queue.ack(message)
    core.settle()
    assert queue.ready == len(BODIES) - 1
    assert indexes(core, name) == []
    core = checkpointed(core)
    assert core.queue(name).ready == len(BODIES) - 1


@pytest.mark.parametrize("letters", [False, True])
def test_a_damaged_message_that_a_client_gives_back_is_set_aside(letters: bool) -> None:
    arguments: dict[str, object] = {"x-dead-letter-exchange": "amq.fanout"} if letters else {}
    core, _, name = backlog(**arguments)
    flip(core, BODIES[3])
    queue = core.queue(name)
    index = queue.lane.paged.peek(4)[3][0]
    message = claim(queue, index)
    assert message is not None
    if letters:
        queue.reject(message)
    else:
        queue.requeue(message)
    core.settle()
    assert indexes(core, name) == [index]
    assert queue.unacked == 0
    client = core.connect()
    client.consume(name, no_ack=True)
    assert client.bodies() == BODIES[:3] + BODIES[4:]
