"""Work that would hold everybody up for long is done over several turns; clients see one step."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.channel.channel import SETTLED_AT_ONCE_MAX
from rhizome.broker.channel.consume_methods import CONSUMER_BYTES, CONSUMERS_BYTES_MAX
from rhizome.broker.metadata.metadata_commands import DeleteVhost, PutPolicy
from rhizome.broker.metadata.vhost import REFRESH_WORK
from rhizome.broker.queue.pager import READ_BYTES_PER_WORK
from rhizome.broker.queue.queue import Queue
from rhizome.broker.turn import (
    COMMAND_WORK,
    COUNTED_PER_WORK,
    LETTER_WORK,
    METHOD_WORK,
    SEARCHED_PER_WORK,
    SETTLED_PER_WORK,
    STEPS_PER_WORK,
    TURN_WORK_MAX,
)
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

QUEUES_OF_POLICY = 3 * TURN_WORK_MAX // REFRESH_WORK
DECLARES = 3 * TURN_WORK_MAX // COMMAND_WORK
MESSAGES = 3 * TURN_WORK_MAX // LETTER_WORK
CONSUMERS = 5_000
ENQUEUES_IN_A_TURN = 20_000
TURNS_MAX = 1000


@pytest.fixture
def core() -> Core:
    return make_core()


def declares(prefix: str, count: int) -> bytes:
    return b"".join(
        method_frame(1, QueueDeclare(f"{prefix}{number}", no_wait=True)) for number in range(count)
    )


def test_a_policy_of_many_queues_takes_several_turns(core: Core) -> None:
    client = core.connect()
    client.send_bytes(declares("q", QUEUES_OF_POLICY))
    run_turns(core)
    core.broker.cluster.propose(PutPolicy("/", "p", ".*", {"max-length": 5}, "queues"), None)
    most = []
    while core.broker.turn.pending():
        before = bounded_queues(core)
        core.one_turn()
        most.append(bounded_queues(core) - before)
    assert max(most) <= 2 * TURN_WORK_MAX // REFRESH_WORK
    assert len(most) >= 2
    assert bounded_queues(core) == QUEUES_OF_POLICY


def bounded_queues(core: Core) -> int:
    queues = core.broker.state.vhosts["/"].queues.values()
    return sum(each.options.length_max == 5 for each in queues)


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


# ---- deliveries ---------------------------------------------------------------------------------


def sated_consumers(core: Core, client: CoreClient, count: int) -> None:
    """A queue whose first consumers hold all that they may."""
    client.declare("q")
    client.prefetch(1)
    numbers = range(count)
    consume = [BasicConsume("q", f"c{number}", no_wait=True) for number in numbers]
    client.send_bytes(b"".join(method_frame(1, method) for method in consume))
    core.settle()
    fill(client, "q", count)
    core.settle()
    assert len(client.deliveries()) == count


@pytest.mark.parametrize("priorities", [False, True])
def test_a_search_for_a_consumer_that_can_take_more_is_spread_over_turns(
    core: Core, priorities: bool
) -> None:
    """Each message passes all consumers that hold as much as they may."""
    client = CoreClient(core)
    sated_consumers(core, client, 2_000)
    other = CoreClient(core)
    arguments: dict[str, object] = {"x-priority": -1} if priorities else {}
    other.send(BasicConsume("q", "free", no_ack=True, no_wait=True, arguments=arguments))
    core.settle()
    count = 2 * TURN_WORK_MAX * SEARCHED_PER_WORK // 2_000
    data = b"".join(client.published("", "q", b"%d" % at) for at in range(count))
    client.connection.receive(data)
    core.one_turn()
    assert 0 < queue_of(core, "q").ready < count
    run_turns(core)
    assert other.bodies() == [b"%d" % at for at in range(count)]


def test_long_messages_that_are_read_again_for_each_queue_take_several_turns() -> None:
    """One of 6 MB to 5,000 queues held the loop for two seconds."""
    core = make_core(resident_budget_bytes=1)
    client = core.connect()
    queues = 40
    client.send_bytes(declares("q", queues))
    client.send_bytes(
        b"".join(
            method_frame(1, QueueBind(f"q{at}", "amq.fanout", "", no_wait=True))
            for at in range(queues)
        )
    )
    body = b"x" * (2 << 20)
    client.publish("amq.fanout", "", body)
    core.settle()
    assert all(queue_of(core, f"q{at}").lane.paged_count == 1 for at in range(1, queues))
    others = [core.connect() for _ in range(queues)]
    for at, other in enumerate(others):
        other.connection.receive(method_frame(1, BasicConsume(f"q{at}", "c", no_ack=True)))
    left = [sum(queue_of(core, f"q{at}").ready for at in range(queues))]
    while left[-1] > 0:
        core.one_turn()
        left.append(sum(queue_of(core, f"q{at}").ready for at in range(queues)))
    per_turn = TURN_WORK_MAX * READ_BYTES_PER_WORK // len(body) + 1
    assert max(before - after for before, after in pairwise(left)) <= per_turn + 1


def test_another_prefetch_for_many_consumers_fills_a_turn(core: Core) -> None:
    client = CoreClient(core)
    client.declare("q")
    for first in range(0, CONSUMERS, 500):
        consume = [BasicConsume("q", f"c{first + at}", no_wait=True) for at in range(500)]
        client.send_bytes(b"".join(method_frame(1, method) for method in consume))
    core.settle()
    per_turn = TURN_WORK_MAX * COUNTED_PER_WORK // CONSUMERS
    client.connection.receive(method_frame(1, BasicQos(0, 1)) * (3 * per_turn))
    assert run_turns(core) >= 3


def test_publishes_to_many_queues_fill_a_turn(core: Core) -> None:
    client = CoreClient(core)
    queues = 500
    for at in range(queues):
        client.declare(f"q{at}")
        client.call(QueueBind(f"q{at}", "amq.fanout"), QueueBindOk)
    count = 2 * ENQUEUES_IN_A_TURN // queues
    client.connection.receive(client.published("amq.fanout", "", b"x") * count)
    assert run_turns(core) == 2
    assert queue_of(core, "q0").ready == count


# ---- consumers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_many_consumers_that_time_out_take_time_in_proportion(core: Core, own: bool) -> None:
    """Each of them, and each timeout, was a pass over all deliveries of the channel: 4,000 held a
    broker up for 200 ms, ten times as many for 20 s. Four times as many take four times as long,
    and took sixteen times."""
    few = min(timed_out_s(core, 400, own) for _ in range(3))
    many = min(timed_out_s(core, 1_600, own) for _ in range(3))
    assert many < 9 * few


def test_consumers_with_many_priorities_go_in_time_in_proportion(core: Core) -> None:
    """Each that left was searched in all priorities before its own."""
    few = min(left_s(core, 500) for _ in range(3))
    many = min(left_s(core, 4_000) for _ in range(3))
    assert many < 24 * few  # eight times as many; it was 64


def left_s(core: Core, count: int) -> float:
    """The processor time that it takes to remove so many consumers, each of its own priority."""
    client = core.connect()
    queue = client.declare("")
    for at in range(count):
        arguments: dict[str, object] = {"x-priority": -at}
        client.send(BasicConsume(queue, f"{at}", no_wait=True, arguments=arguments))
    core.settle()
    consumers = core.queue(queue).consumers()
    assert [each.priority for each in consumers] == [-at for at in range(count)]
    began = time.thread_time()
    for consumer in reversed(consumers):
        core.broker.remove_consumer(consumer)
    lasted = time.thread_time() - began
    assert core.queue(queue).consumer_count == 0
    assert core.queue(queue).levels == []
    client.close_socket()
    return lasted


def timed_out_s(core: Core, count: int, own: bool) -> float:
    """The processor time that it takes to cancel so many consumers, each with one delivery."""
    client = core.connect()
    queue = client.declare("", x_consumer_timeout=60_000)
    client.prefetch(1)
    for at in range(count):
        arguments: dict[str, object] = {"x-consumer-timeout": 60_000 + at} if own else {}
        client.send(BasicConsume(queue, f"{at}", no_wait=True, arguments=arguments))
    client.send_bytes(client.published("", queue, b"x") * count)
    core.settle()
    assert len(client.bodies()) == count
    core.advance(1000)
    core.broker.turn.now_ms += 80_000
    core.now_ms += 80_000
    began = time.thread_time()
    core.broker.timers.tick(core.now_ms)
    lasted = time.thread_time() - began
    core.settle()
    assert len([each for each in client.take() if isinstance(each, BasicCancel)]) == count
    client.close_socket()
    return lasted


def test_consumers_of_a_connection_have_a_largest_number(core: Core) -> None:
    """They take memory, and a queue takes all of its own with it in one turn."""
    client = core.connect()
    client.declare("q")
    count = CONSUMERS_BYTES_MAX // CONSUMER_BYTES
    numbers = range(count)
    consume = [BasicConsume("q", f"{number}", no_wait=True) for number in numbers]
    client.send_bytes(b"".join(method_frame(1, method) for method in consume))
    core.settle()
    assert core.queue("q").consumer_count == count
    client.call(BasicCancel("0"), BasicCancelOk)
    client.consume("q", "another")
    core.broker.turn.work = 0
    client.connection.receive(method_frame(1, BasicConsume("q", "one more", no_wait=True)))
    assert core.broker.turn.work >= count // COUNTED_PER_WORK, "all were counted again"
    core.settle()
    assert "of this connection's consumers" in client.expect(ChannelClose).reply_text


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


WILD = [".".join("a" if at >> bit & 1 else "*" for bit in range(8)) for at in range(200)]


def wild_letters(core: Core, count: int, **arguments: object) -> CoreClient:
    """A queue with so many messages, whose dead letters have long routes."""
    client = CoreClient(core)
    for at, words in enumerate(WILD):
        name = f"t{at}"
        client.declare(name)
        client.call(QueueBind(name, "amq.topic", f"#.{words}.{words}.#"), QueueBindOk)
    client.declare(
        "dying",
        x_dead_letter_exchange="amq.topic",
        x_dead_letter_routing_key=".".join("a" * 40),
        **arguments,
    )
    fill(client, "dying", count)
    return client


@pytest.mark.parametrize("cause", ["nack", "limit", "expiry", "length"])
def test_dead_letters_with_long_routes_are_spread_over_turns(core: Core, cause: str) -> None:
    count = 100
    arguments: dict[str, object] = {"x_message_ttl": 50} if cause == "expiry" else {}
    if cause == "limit":
        policy = PutPolicy("/", "never", "dying", {"delivery-limit": 0})
        core.broker.cluster.propose(policy, None)
    client = wild_letters(core, count, **arguments)
    dead = queue_of(core, "t0")
    if cause in ("nack", "limit"):
        hold_all(client, "dying", count)
        requeues = cause == "limit"
        client.connection.receive(method_frame(1, BasicNack(0, True, requeues)))
        core.one_turn()
    elif cause == "expiry":
        core.now_ms += 100
        core.broker.turn.now_ms = core.now_ms
        core.broker.tick(core.now_ms)
        core.one_turn()
    else:
        policy = PutPolicy("/", "short", "dying", {"max-length": 0})
        core.broker.cluster.propose(policy, None)
        core.one_turn()
    assert 0 < int(dead.ready) < count // 2
    core.advance(2_000)
    run_turns(core)
    assert int(dead.ready) == count
    assert queue_of(core, "dying").ready == 0


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


def test_channels_opened_beside_many_connections_are_spread_over_turns(core: Core) -> None:
    """Each open counts the channels of all connections."""
    client = CoreClient(core)
    for _ in range(10 * COUNTED_PER_WORK):
        CoreClient(core)
    count = 3 * TURN_WORK_MAX // (METHOD_WORK + 10)
    opens = b"".join(method_frame(number, ChannelOpen()) for number in range(2, 2 + count))
    client.connection.receive(opens)
    assert len(client.connection.channels) < count
    assert run_turns(core) >= 3
    assert len(client.connection.channels) == 1 + count


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


# ---- transactions


@pytest.mark.parametrize("parts", ["publishes", "acks", "both"])
def test_a_transaction_has_no_more_parts_than_one_turn_may_do(core: Core, parts: str) -> None:
    core.broker.limits.transaction_parts_max = 10
    client = CoreClient(core)
    client.declare("q")
    fill(client, "q", 20)
    hold_all(client, "q", 20)
    client.call(TxSelect(), TxSelectOk)
    publishes, acks = {"publishes": (10, 0), "acks": (0, 10), "both": (4, 6)}[parts]
    for commit in (1, 2):
        fill(client, "q", publishes)
        if acks:
            client.send(BasicAck(acks * commit, True))
        client.call(TxCommit(), TxCommitOk)
    fill(client, "q", publishes)
    if acks:
        fill(client, "q", acks)
    assert not client.take()
    fill(client, "q", 1)
    close = client.expect(ChannelClose)
    assert close.reply_code == 406
    assert "limits.transaction_parts_max" in close.reply_text


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


HELD = 50_000
"""More than a turn has time for, and no more than a prefetch count can say."""
assert HELD > TURN_WORK_MAX * SETTLED_PER_WORK


def hold_many(core: Core) -> CoreClient:
    """A client that holds all messages of q but the last ten."""
    client = CoreClient(core)
    client.declare("q")
    fill(client, "q", HELD + 10)
    client.call(BasicQos(0, HELD), BasicQosOk)
    client.send(BasicConsume("q", "holder"))
    run_turns(core)
    assert queue_of(core, "q").unacked == HELD
    client.take()
    return client


@pytest.mark.parametrize("ending", ["channel", "connection", "error", "lost"])
def test_what_a_closed_channel_held_goes_back_over_several_turns_in_order(
    core: Core, ending: str
) -> None:
    client = hold_many(core)
    other = CoreClient(core)
    if ending == "lost":
        client.connection.lost()
    elif ending == "channel":
        client.connection.receive(method_frame(1, ChannelClose(200, "", 0, 0)))
    elif ending == "connection":
        client.connection.receive(method_frame(0, ConnectionClose(200, "", 0, 0)))
    else:
        client.connection.receive(method_frame(1, BasicAck(HELD * 2)))
    queue = queue_of(core, "q")
    assert 0 < queue.unacked < HELD
    assert not client.take(0)
    assert not client.take(1)
    assert len(queue.broker.unacked_messages(queue)) == queue.unacked, (
        "whoever looks for them finds them"
    )
    other.connection.receive(method_frame(1, BasicConsume("q", "other", no_ack=True)))
    core.one_turn()
    assert queue.unacked > 0
    assert not other.deliveries(), "later messages don't overtake"
    assert run_turns(core) >= 2
    assert (queue.ready, queue.unacked) == (0, 0)
    assert [int(each.body) for each in other.deliveries()] == [*range(HELD + 10)]
    assert not core.broker.carriers
    if ending == "channel":
        client.expect(ChannelCloseOk)
    elif ending == "connection":
        (answer,) = client.take(0)
        assert isinstance(answer, ConnectionCloseOk)
    elif ending == "error":
        client.expect(ChannelClose)


def test_a_consumer_that_waits_gets_what_goes_back_in_the_order_of_the_queue(core: Core) -> None:
    """The oldest messages were given back and delivered again: their tags are the latest."""
    client = hold_many(core)
    client.send(BasicNack(10, multiple=True, requeue=True))
    run_turns(core)
    other = CoreClient(core)
    other.send(BasicConsume("q", "other", no_ack=True))
    run_turns(core)
    assert [int(each.body) for each in other.deliveries()] == [*range(HELD, HELD + 10)]
    client.connection.lost()
    assert run_turns(core) >= 2
    assert [int(each.body) for each in other.deliveries()] == [*range(HELD)]


def test_a_channel_number_may_be_used_again_when_its_close_is_answered(core: Core) -> None:
    client = hold_many(core)
    client.connection.receive(method_frame(1, ChannelClose(200, "", 0, 0)))
    client.connection.receive(method_frame(1, ChannelOpen()))
    run_turns(core)
    answers = client.take(1)
    assert [type(each) for each in answers] == [ChannelCloseOk, ChannelOpenOk]
    assert queue_of(core, "q").ready == HELD + 10


def test_what_was_rejected_is_rejected_before_the_rest_goes_back(core: Core) -> None:
    client = hold_many(core)
    client.connection.receive(method_frame(1, BasicNack(HELD // 2, multiple=True, requeue=False)))
    client.connection.lost()
    run_turns(core)
    queue = queue_of(core, "q")
    assert (queue.ready, queue.unacked) == (HELD - HELD // 2 + 10, 0)


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


# ---- what goes with a connection ----------------------------------------------------------------

BINDINGS = 3 * TURN_WORK_MAX // COMMAND_WORK * 10


def bind_many(client: CoreClient, queue: str, count: int) -> None:
    binds = [QueueBind(queue, "amq.topic", f"{queue}.{at}", no_wait=True) for at in range(count)]
    client.send_bytes(b"".join(method_frame(1, each) for each in binds))
    client.core.settle()


def bound(core: Core) -> int:
    return len(core.broker.state.vhosts["/"].router.exchanges["amq.topic"].bindings())


def test_a_private_queue_with_many_bindings_goes_over_several_turns(core: Core) -> None:
    client, other = CoreClient(core), CoreClient(core)
    client.call(QueueDeclare("private", exclusive=True), QueueDeclareOk)
    bind_many(client, "private", BINDINGS)
    client.connection.lost()
    assert bound(core) > BINDINGS // 2, "not all at once"
    assert run_turns(core) >= 3
    assert bound(core) == 0
    assert "private" not in core.broker.state.vhosts["/"].destinations
    other.call(QueueDeclare("private", exclusive=True), QueueDeclareOk)


def test_private_queues_of_many_connections_go_over_several_turns(core: Core) -> None:
    clients = [CoreClient(core) for _ in range(30)]
    for number, client in enumerate(clients):
        client.call(QueueDeclare(f"private{number}", exclusive=True), QueueDeclareOk)
        bind_many(client, f"private{number}", 500)
    for client in clients:
        client.connection.lost()
    assert bound(core) > 5_000
    assert run_turns(core) >= 3
    assert bound(core) == names(core) == 0


def test_an_ordinary_private_queue_is_gone_before_its_owner_is_told(core: Core) -> None:
    client = CoreClient(core)
    client.call(QueueDeclare("private", exclusive=True), QueueDeclareOk)
    bind_many(client, "private", 100)
    core.broker.turn.work = TURN_WORK_MAX  # others have filled the turn
    client.connection.lost()
    assert bound(core) == names(core) == 0


def test_a_vhost_that_is_deleted_meanwhile_takes_its_private_queues_along(core: Core) -> None:
    client = CoreClient(core)
    client.call(QueueDeclare("private", exclusive=True), QueueDeclareOk)
    bind_many(client, "private", BINDINGS)
    client.connection.lost()
    core.broker.cluster.propose(DeleteVhost("/"), None)
    run_turns(core)
    assert "/" not in core.broker.state.vhosts


def test_what_many_closed_channels_held_goes_back_over_several_turns_in_order(core: Core) -> None:
    """Each of them holds too little for steps of its own."""
    publisher, client = core.connect(), core.connect()
    publisher.declare("q")
    each = SETTLED_AT_ONCE_MAX - 100
    channels = 2 * TURN_WORK_MAX * SETTLED_PER_WORK // each
    count = channels * each
    for begin in range(0, count, each):
        publisher.send_bytes(
            b"".join(publisher.published("", "q", b"%d" % at) for at in range(begin, begin + each))
        )
    for number in range(1, channels + 1):
        if number > 1:
            client.open_channel(number)
        client.send(BasicQos(0, each), BasicConsume("q", f"c{number}"), channel=number)
    queue = core.queue("q")
    assert queue.ready == 0
    core.broker.turn.now_ms = core.now_ms
    client.connection.receive(method_frame(0, ConnectionClose(200, "", 0, 0)))
    assert 0 < queue.ready < 0.8 * count, "the rest is left to the next turns"
    assert run_turns(core) > 1
    assert queue.ready == count
    client.expect(ConnectionCloseOk, 0)
    reader = core.connect()
    reader.consume("q", no_ack=True)
    assert reader.bodies() == [b"%d" % at for at in range(count)]
