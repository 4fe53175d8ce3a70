"""Work that would hold everybody up for long is done over several turns; clients see one step."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.channel import SETTLED_AT_ONCE_MAX
from rhizome.broker.queue import Queue
from rhizome.broker.turn import COMMAND_WORK, LETTER_WORK, STEPS_PER_WORK, TURN_WORK_MAX
from rhizome.testing.core import Core, CoreClient, make_core

DECLARES = 3 * TURN_WORK_MAX // COMMAND_WORK
MESSAGES = 3 * TURN_WORK_MAX // LETTER_WORK
TURNS_MAX = 1000


@pytest.fixture
def core() -> Core:
    return make_core()


def declares(prefix: str, count: int) -> bytes:
    return b"".join(
        method_frame(1, QueueDeclare(f"{prefix}{number}", no_wait=True)) for number in range(count)
    )


def run_turns(core: Core) -> int:
    """Run turns until nothing is left; answers how many."""
    for count in range(1, TURNS_MAX):
        core.one_turn()
        if not core.broker.turn.pending():
            return count
    raise AssertionError("the turns never end")


def queue_of(core: Core, name: str) -> Queue:
    found = core.broker.state.vhosts["/"].destinations[name]
    assert isinstance(found, Queue)
    return found


def fill(client: CoreClient, queue: str, count: int) -> None:
    client.send_bytes(b"".join(client.published("", queue, b"%d" % at) for at in range(count)))


def names(core: Core) -> int:
    return len(core.broker.state.vhosts["/"].destinations)


# ---- input --------------------------------------------------------------------------------------


def test_headers_of_dead_letters_fill_a_turn(core: Core) -> None:
    client = CoreClient(core)
    client.declare("letters")
    client.declare(
        "dying", x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key="letters"
    )
    headers: dict[str, object] = {f"h{number}": True for number in range(10_000)}
    one = client.published("", "dying", b"", Properties(headers=headers))
    client.connection.receive(one * 12)
    assert run_turns(core) >= 3
    assert queue_of(core, "letters").ready == 12


def test_headers_that_a_queue_of_last_values_decodes_fill_a_turn(core: Core) -> None:
    client = CoreClient(core)
    client.declare("q", x_last_value_key="h1")
    headers: dict[str, object] = {f"h{number}": True for number in range(10_000)}
    one = client.published("", "q", b"", Properties(headers=headers))
    client.connection.receive(one * 12)
    assert run_turns(core) >= 3
    assert queue_of(core, "q").ready == 1


def test_headers_that_are_decoded_for_a_route_fill_a_turn(core: Core) -> None:
    client = CoreClient(core)
    client.declare("q")
    client.call(QueueBind("q", "amq.headers", "", arguments={"h1": True}), QueueBindOk)
    headers: dict[str, object] = {f"h{number}": True for number in range(10_000)}
    one = client.published("amq.headers", "", b"", Properties(headers=headers))
    client.connection.receive(one * 12)
    # A dozen would hold everybody up for tens of milliseconds, and other connections send as many.
    assert queue_of(core, "q").ready < 12
    assert run_turns(core) >= 3
    assert queue_of(core, "q").ready == 12


def test_a_read_full_of_declares_takes_several_turns(core: Core) -> None:
    client = CoreClient(core)
    client.connection.receive(declares("q", DECLARES))
    assert 0 < names(core) < DECLARES
    turns = run_turns(core)
    assert turns >= 3
    assert names(core) == DECLARES


def test_what_comes_behind_is_done_behind(core: Core) -> None:
    client = CoreClient(core)
    behind = method_frame(1, QueueDeclare(f"q{DECLARES - 1}", passive=True))
    client.connection.receive(declares("q", DECLARES))
    client.connection.receive(behind)
    run_turns(core)
    client.expect(QueueDeclareOk)


def test_others_are_served_before_who_had_the_turn_for_himself(core: Core) -> None:
    busy, other = CoreClient(core), CoreClient(core)
    busy.connection.receive(declares("q", DECLARES))
    other.connection.receive(method_frame(1, BasicQos(0, 1)))
    core.one_turn()
    core.one_turn()
    other.expect(BasicQosOk)
    assert names(core) < DECLARES


def test_who_waits_gets_on_though_others_fill_every_turn(core: Core) -> None:
    first, second = CoreClient(core), CoreClient(core)
    first.connection.receive(declares("a", DECLARES))
    for turn in range(TURNS_MAX):
        second.connection.receive(declares(f"b{turn}.", TURN_WORK_MAX // COMMAND_WORK))
        core.one_turn()
        if f"a{DECLARES - 1}" in core.broker.state.vhosts["/"].destinations:
            return
    raise AssertionError("the first client never got on")


def test_publishes_to_many_queues_are_spread_over_turns(core: Core) -> None:
    client = CoreClient(core)
    for number in range(200):
        client.declare(f"q{number}")
        client.send(QueueBind(f"q{number}", "amq.fanout", "", True))
    unit = client.published("amq.fanout", "", b"x")
    count = 3 * TURN_WORK_MAX // 50
    client.connection.receive(unit * count)
    assert int(queue_of(core, "q0").ready) < count
    turns = run_turns(core)
    assert turns >= 3
    assert {int(queue_of(core, f"q{number}").ready) for number in range(200)} == {count}


def test_publishes_that_are_compared_with_many_bindings_are_spread_over_turns(core: Core) -> None:
    client = CoreClient(core)
    client.declare("q")
    for number in range(200):
        client.send(QueueBind("q", "amq.headers", "", True, {"x-match": "any", "a": number}))
    unit = client.published("amq.headers", "", b"x", Properties(headers={"a": 7}))
    count = 3 * TURN_WORK_MAX // (200 // STEPS_PER_WORK)
    client.connection.receive(unit * count)
    assert int(queue_of(core, "q").ready) < count
    run_turns(core)
    assert int(queue_of(core, "q").ready) == count


def test_a_connection_that_is_lost_while_it_rests_is_gone(core: Core) -> None:
    client = CoreClient(core)
    client.connection.receive(declares("q", DECLARES))
    client.connection.lost()
    run_turns(core)
    assert names(core) < DECLARES
    assert client.connection.id not in core.broker.connections


# ---- messages that leave their queue ------------------------------------------------------------


def dead_letter_queue(client: CoreClient, queue: str, **arguments: object) -> None:
    client.declare("dead")
    client.declare(queue, x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **arguments)


def hold_all(client: CoreClient, queue: str, count: int) -> None:
    client.consume(queue, "c")
    client.send(BasicCancel("c", True))
    client.take()
    assert int(client.connection.channels[1].unacked.count) == count


def test_rejecting_many_dead_letters_them_over_several_turns(core: Core) -> None:
    client = CoreClient(core)
    dead_letter_queue(client, "q")
    fill(client, "q", MESSAGES)
    hold_all(client, "q", MESSAGES)
    client.connection.receive(
        method_frame(1, BasicNack(0, True, False)) + method_frame(1, BasicQos(0, 1))
    )
    core.one_turn()
    assert 0 < int(queue_of(core, "dead").ready) < MESSAGES
    assert not [event for event in client.events.get(1, []) if isinstance(event, BasicQosOk)]
    turns = run_turns(core)
    assert turns >= 2
    assert int(queue_of(core, "dead").ready) == MESSAGES
    client.expect(BasicQosOk)
    first = [client.get("dead") for _ in range(3)]
    assert [message and message.body for message in first] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["recover", "nack"])
def test_requeueing_many_is_answered_when_all_are_back(core: Core, kind: str) -> None:
    client = CoreClient(core)
    client.declare("q")
    count = 5 * SETTLED_AT_ONCE_MAX
    unit = client.published("", "q", b"x")
    client.send_bytes(unit * count)
    hold_all(client, "q", count)
    sent = BasicRecover(True) if kind == "recover" else BasicNack(0, True, True)
    core.broker.turn.work = TURN_WORK_MAX - 100
    client.connection.receive(method_frame(1, sent) + method_frame(1, BasicQos(0, 1)))
    assert 0 < int(queue_of(core, "q").ready) < count
    run_turns(core)
    if kind == "recover":
        client.expect(BasicRecoverOk)
    client.expect(BasicQosOk)
    assert int(queue_of(core, "q").ready) == count


def test_what_was_acked_stays_acked_when_the_connection_is_lost_meanwhile(core: Core) -> None:
    client = CoreClient(core)
    client.declare("q")
    count = 5 * SETTLED_AT_ONCE_MAX
    client.send_bytes(client.published("", "q", b"x") * count)
    hold_all(client, "q", count)
    core.broker.turn.work = TURN_WORK_MAX - 100
    client.connection.receive(method_frame(1, BasicAck(count, True)))
    assert int(client.connection.channels[1].unacked.count) > 0
    client.connection.lost()
    run_turns(core)
    assert int(queue_of(core, "q").ready) == 0


def test_many_messages_expire_over_several_ticks(core: Core) -> None:
    client = CoreClient(core)
    dead_letter_queue(client, "q", x_message_ttl=10)
    fill(client, "q", MESSAGES)
    core.now_ms += 100
    core.broker.turn.now_ms = core.now_ms
    core.broker.tick(core.now_ms)
    core.one_turn()
    assert 0 < int(queue_of(core, "dead").ready) < MESSAGES
    core.advance(1000)
    assert int(queue_of(core, "dead").ready) == MESSAGES


def test_a_lower_limit_drops_many_messages_over_several_turns(core: Core) -> None:
    client = CoreClient(core)
    dead_letter_queue(client, "q")
    fill(client, "q", MESSAGES)
    queue = queue_of(core, "q")
    queue.options.length_max = 1
    queue.apply_options(queue.options)
    core.one_turn()
    assert int(queue.ready) > 1
    run_turns(core)
    assert int(queue.ready) == 1
    assert int(queue_of(core, "dead").ready) == MESSAGES - 1


def test_a_publish_never_leaves_a_queue_above_its_limit(core: Core) -> None:
    client = CoreClient(core)
    client.declare("q", x_max_length=3)
    core.broker.turn.work = TURN_WORK_MAX - 1
    for number in range(10):
        core.broker.turn.work = TURN_WORK_MAX - 1
        client.connection.receive(client.published("", "q", b"%d" % number))
        assert int(queue_of(core, "q").ready) <= 3


# ---- consumers ----------------------------------------------------------------------------------


def test_consumers_take_turns_when_some_of_them_leave(core: Core) -> None:
    client = CoreClient(core)
    client.declare("q")
    for tag in "abcd":
        client.send(BasicConsume("q", tag, no_ack=True, no_wait=True))
    client.send(BasicCancel("b", True))
    fill(client, "q", 6)
    tags = [delivery.method.consumer_tag for delivery in client.deliveries()]
    assert sorted(tags) == ["a", "a", "c", "c", "d", "d"]
