"""Keyed queues: the messages of a key go to one consumer at a time, in order."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicNack,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    QueueDeclare,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.queue.message_cursor import first_place
from rhizome.broker.queue.priority_lane import LATE_MAX, KeyedLane
from rhizome.broker.queue_keys.keyed_dispatch import FREED_PER_WORK, KeyedDispatch
from rhizome.broker.turn import TURN_WORK_MAX
from rhizome.build_info import is_compiled
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core

BUDGET_BYTES = 64 * 1024
HEADER = "customer"


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def keyed(client: CoreClient, kind: str = "classic", **arguments: object) -> str:
    given: dict[str, object] = {"x_queue_type": kind, "x_group_key": HEADER}
    return client.declare("q", durable=True, **{**given, **arguments})


def publish(client: CoreClient, *keys: object, header: str = HEADER) -> None:
    """Messages of these keys, numbered within their key: a0, a1, b0."""
    numbers: dict[object, int] = {}
    for key in keys:
        number = numbers.get(key, 0)
        numbers[key] = number + 1
        headers = {} if key is None else {header: key}
        properties = Properties(delivery_mode=2, headers=headers)
        client.publish("", "q", f"{key}{number}".encode(), properties)


def channels(client: CoreClient, count: int, prefetch: int = 1) -> None:
    """That many channels with a consumer each, which take up to ``prefetch`` messages."""
    for number in range(1, count + 1):
        if number > 1:
            client.open_channel(number)
        client.prefetch(prefetch, number)
        client.consume("q", f"c{number}", number)


def settle(client: CoreClient, delivery: Content, channel: int = 1) -> None:
    client.send(BasicAck(delivery.tag), channel=channel)


def discipline(core: Core) -> KeyedDispatch:
    keys = core.queue("q").keys
    assert keys is not None
    return keys


# --- who gets what


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_key_goes_to_one_consumer_until_nothing_of_it_is_unacked(
    client: CoreClient, kind: str
) -> None:
    keyed(client, kind)
    channels(client, 2)
    publish(client, "a", "a", "b", "a")
    (first,) = client.deliveries(1)
    (other,) = client.deliveries(2)
    assert (first.body, other.body) == (b"a0", b"b0")
    settle(client, other, 2)
    assert client.bodies(2) == []
    settle(client, first)
    assert sorted(client.bodies(1) + client.bodies(2)) == [b"a1"]


def test_its_holder_gets_more_of_a_key_up_to_its_prefetch(client: CoreClient) -> None:
    keyed(client)
    channels(client, 2, prefetch=3)
    publish(client, "a", "a", "a", "a", "a")
    held = client.deliveries(1)
    assert [each.body for each in held] == [b"a0", b"a1", b"a2"]
    assert client.bodies(2) == []
    settle(client, held[1])
    assert client.bodies(1) == [b"a3"]


def test_messages_without_a_key_go_to_anybody(client: CoreClient) -> None:
    keyed(client)
    channels(client, 3)
    publish(client, None, "", None)
    assert [len(client.deliveries(number)) for number in (1, 2, 3)] == [1, 1, 1]


def test_the_routing_key_may_be_the_key(client: CoreClient) -> None:
    keyed(client, x_group_key="routing-key")
    channels(client, 2)
    publish(client, None, None)
    assert client.bodies(1) == [b"None0"]
    assert client.bodies(2) == []


def test_qpids_arguments_mean_the_same(client: CoreClient) -> None:
    arguments = {"qpid.group_header_key": HEADER, "qpid.shared_msg_group": 1}
    client.send(QueueDeclare("q", durable=True, arguments=dict(arguments)))
    client.take()
    channels(client, 2)
    publish(client, "a", "a")
    assert client.bodies(1) == [b"a0"]
    assert client.bodies(2) == []


@pytest.mark.parametrize("key", [5, True, 2.5, "x" * 500])
def test_any_value_may_be_a_key(core: Core, client: CoreClient, key: object) -> None:
    keyed(client)
    publish(client, key, key, "other")
    assert len(discipline(core).keys) == 2
    assert max(len(name) for name in discipline(core).keys) <= 64


def test_what_its_holder_gives_back_comes_before_anything_newer(client: CoreClient) -> None:
    keyed(client)
    channels(client, 2, prefetch=2)
    publish(client, "a", "a", "a", "a")
    held = client.deliveries(1)
    client.send(BasicNack(held[1].tag, True, True))
    again = client.deliveries(1) + client.deliveries(2)
    assert [each.body for each in again] == [b"a0", b"a1"]
    assert all(each.redelivered for each in again)


@pytest.mark.parametrize("end", ["channel", "socket"])
def test_a_consumers_end_hands_its_keys_over(core: Core, client: CoreClient, end: str) -> None:
    keyed(client)
    channels(client, 1, prefetch=2)
    publish(client, "a", "a", "a")
    other = core.connect()
    other.prefetch(5)
    other.consume("q")
    assert client.bodies() == [b"a0", b"a1"]
    assert other.bodies() == []
    if end == "socket":
        client.close_socket()
    else:
        client.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    assert other.bodies() == [b"a0", b"a1", b"a2"]


def test_a_cancelled_consumer_keeps_a_key_until_it_has_settled_it(
    core: Core, client: CoreClient
) -> None:
    keyed(client)
    channels(client, 2)
    publish(client, "a", "a")
    (held,) = client.deliveries(1)
    client.call(BasicCancel("c1"), BasicCancelOk)
    assert client.bodies(2) == []
    settle(client, held)
    assert client.bodies(2) == [b"a1"]
    assert not discipline(core).holders.keys() - set(core.queue("q").consumers())


def test_basic_get_holds_a_key_too(client: CoreClient) -> None:
    keyed(client)
    publish(client, "a", "a", "b")
    first = client.get("q", no_ack=False)
    second = client.get("q", no_ack=False)
    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (b"a0", b"b0")
    assert client.get("q", no_ack=False) is None
    settle(client, first)
    third = client.get("q", no_ack=False)
    assert third is not None
    assert third.body == b"a1"


def test_first_in_first_out_but_for_held_keys(client: CoreClient) -> None:
    keyed(client)
    publish(client, "a", "b", "a", "c", "b")
    client.consume("q")
    assert client.bodies() == [b"a0", b"b0", b"a1", b"c0", b"b1"]


def test_fair_keys_take_turns(client: CoreClient) -> None:
    keyed(client, x_group_fair=True)
    publish(client, *["a"] * 5, "b", "b", "c")
    client.consume("q")
    assert client.bodies() == [b"a0", b"b0", b"c0", b"a1", b"b1", b"a2", b"a3", b"a4"]


def test_a_new_key_of_a_fair_queue_waits_for_one_message_of_each_other(client: CoreClient) -> None:
    keyed(client, x_group_fair=True)
    publish(client, *["a"] * 100, *["b"] * 100)
    channels(client, 1)
    held = client.deliveries()
    publish(client, "new")
    bodies = []
    for _ in range(3):
        settle(client, held[0])
        held = client.deliveries()
        bodies.append(held[0].body)
    assert b"new0" in bodies


def test_a_single_active_consumer_has_all_keys(client: CoreClient) -> None:
    keyed(client, x_single_active_consumer=True)
    channels(client, 2, prefetch=2)
    publish(client, "a", "b", "c")
    assert client.bodies(1) == [b"a0", b"b0"]
    assert client.bodies(2) == []


# --- what else a queue can do


def test_a_delayed_retry_holds_its_key_up_and_no_other(core: Core, client: CoreClient) -> None:
    keyed(client, "quorum", x_delayed_retry_type="all", x_delayed_retry_min=1_000)
    channels(client, 1, prefetch=2)
    publish(client, "a", "a", "b")
    held = client.deliveries()
    client.send(BasicNack(held[1].tag, True, True))
    assert client.bodies() == [b"b0"]
    core.advance(1_500)
    again = client.deliveries()
    assert [each.body for each in again] == [b"a0"]
    settle(client, again[0])
    assert client.bodies() == [b"a1"]


def test_expired_messages_of_a_key_are_passed(core: Core, client: CoreClient) -> None:
    keyed(client, x_message_ttl=1_000)
    publish(client, "a", "a", "b")
    core.advance(5_000)
    assert core.queue("q").ready == 0
    assert not discipline(core).keys
    publish(client, "a")
    assert client.get("q") is not None


def test_the_oldest_message_of_all_keys_is_dropped(client: CoreClient) -> None:
    keyed(client, x_max_length=3)
    publish(client, "a", "b", "a", "a", "b")
    client.consume("q")
    assert client.bodies() == [b"a1", b"a2", b"b1"]


def test_a_purge_leaves_held_keys_held(core: Core, client: CoreClient) -> None:
    keyed(client)
    channels(client, 2)
    publish(client, "a", "a", "b")
    (held,) = client.deliveries(1)
    assert client.call(QueuePurge("q"), QueuePurgeOk).message_count == 1
    publish(client, "a")
    assert client.bodies(2) == [b"b0"]
    settle(client, held)
    assert client.bodies(1) == [b"a0"]


def test_rejected_messages_free_their_key(client: CoreClient) -> None:
    client.declare("dead")
    keyed(client, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channels(client, 2)
    publish(client, "a", "a")
    (held,) = client.deliveries(1)
    client.send(BasicReject(held.tag, False))
    assert sorted(client.bodies(1) + client.bodies(2)) == [b"a1"]
    letter = client.get("dead")
    assert letter is not None
    assert letter.body == b"a0"


@pytest.mark.parametrize("fair", [False, True])
def test_a_restart_learns_the_keys_from_the_messages(fair: bool) -> None:
    core = make_core(BUDGET_BYTES)
    client = core.connect()
    keyed(client, x_group_fair=fair)
    publish(client, *["a", "b"] * 1_000)
    core = core.restarted()
    client = core.connect()
    channels(client, 2, prefetch=3)
    assert client.bodies(1) == [b"a0", b"b0", b"a1"]
    assert client.bodies(2) == []
    client.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    expected = [b"b0", b"a0", b"b1"] if fair else [b"a0", b"b0", b"a1"]
    assert client.bodies(2) == expected
    assert discipline(core).known_below > 2_000


def test_messages_on_disk_come_key_by_key() -> None:
    core = make_core(BUDGET_BYTES)
    client = core.connect()
    client.publish("", client.declare("filler"), bytes(2 * BUDGET_BYTES))
    keyed(client, x_group_fair=True)
    publish(client, *["a"] * 700, *["b"] * 3)
    assert core.queue("q").lane.paged_count == 703
    channels(client, 1)
    seen = []
    for _ in range(703):
        (held,) = client.deliveries()
        seen.append(held.body)
        settle(client, held)
    assert seen[:6] == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert seen[6:] == [f"a{number}".encode() for number in range(3, 700)]
    assert core.queue("q").resident_bytes == 0
    assert not discipline(core).keys


def test_a_held_key_keeps_little_in_memory() -> None:
    core = make_core(BUDGET_BYTES)
    client = core.connect()
    client.publish("", client.declare("filler"), bytes(2 * BUDGET_BYTES))
    keyed(client)
    for _ in range(300):
        publish(client, "a", "b")
    channels(client, 2)
    size = core.queue("q").resident_bytes
    for _ in range(299):
        (held,) = client.deliveries(2)
        settle(client, held, 2)
    assert client.bodies(2) == [b"b0"]
    assert core.queue("q").resident_bytes <= size + 300 * 1024


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"x-group-key": 5}, "x-group-key"),
        ({"x-group-key": ""}, "x-group-key"),
        ({"x-group-key": "k" * 256}, "x-group-key"),
        ({"x-group-key": "k", "x-max-priority": 5}, "x-max-priority"),
        ({"x-group-key": "k", "x-last-value-key": "k"}, "x-group-key"),
        ({"x-group-key": "k", "x-queue-type": "stream"}, "x-group-key"),
        ({"x-group-fair": True}, "x-group-fair"),
        ({"x-group-key": "k", "x-group-fair": 1}, "x-group-fair"),
        ({"qpid.group_header_key": "k"}, "qpid.group_header_key"),
    ],
)
def test_what_can_not_be_is_refused(
    client: CoreClient, arguments: dict[str, object], culprit: str
) -> None:
    client.send(QueueDeclare("q", durable=True, arguments=arguments))
    close = client.expect(ChannelClose)
    assert close.reply_code == 406
    assert f"'{culprit}'" in close.reply_text


def test_another_key_is_another_queue(client: CoreClient) -> None:
    keyed(client)
    client.send(QueueDeclare("q", durable=True, arguments={"x-group-key": "other"}))
    assert client.expect(ChannelClose).reply_code == 406


def test_consumers_acknowledge(client: CoreClient) -> None:
    keyed(client)
    client.send(BasicConsume("q", no_ack=True))
    close = client.expect(ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 20)


def test_leases_are_refused(client: CoreClient) -> None:
    keyed(client)
    client.send(BasicConsume("q", no_ack=True, arguments={"x-lease": "l"}))
    close = client.expect(ChannelClose)
    assert close.reply_code == 406
    assert "lease" in close.reply_text


def test_priorities_of_messages_are_not_looked_at(client: CoreClient) -> None:
    keyed(client, "quorum")
    for priority in (0, 9):
        properties = Properties(headers={HEADER: "a"}, priority=priority, delivery_mode=2)
        client.publish("", "q", str(priority).encode(), properties)
    client.consume("q")
    assert client.bodies() == [b"0", b"9"]


# --- a model


@dataclass
class Model:
    """What a keyed queue should do, said in the simplest way."""

    fair: bool
    ready: dict[int, str] = field(default_factory=dict)
    held: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    """Number of a message: its consumer, its delivery tag and its key."""
    prefetches: dict[int, int] = field(default_factory=dict)
    published: int = 0

    def deliver(self, consumer: int, delivery: Content) -> None:
        number = int(delivery.body)
        key = self.ready.pop(number)
        if key:
            assert all(k != key or c == consumer for c, _, k in self.held.values())
            assert all(k != key or other > number for other, k in self.ready.items())
        self.held[number] = (consumer, delivery.tag, key)

    def check_nobody_waits(self) -> None:
        """Whoever can take a message, and may have one, has got it."""
        for consumer, prefetch in self.prefetches.items():
            if sum(c == consumer for c, _, _ in self.held.values()) >= prefetch:
                continue
            for key in self.ready.values():
                others = {c for c, _, k in self.held.values() if k == key}
                assert key, "nothing without a key waits"
                assert others - {consumer}, f"{key} is not delivered"

    def give_back(self, consumer: int) -> None:
        for number, (holder, _, key) in list(self.held.items()):
            if holder == consumer:
                del self.held[number]
                self.ready[number] = key


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(["a", "b", "c", "d", ""])),
        st.tuples(st.just("consume"), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 9)),
        st.tuples(st.just("requeue"), st.integers(0, 9)),
        st.tuples(st.just("reject"), st.integers(0, 9)),
        st.tuples(st.just("close"), st.integers(0, 9)),
        st.tuples(st.just("purge"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


class Machine:
    """A broker and the model beside it."""

    def __init__(self, fair: bool, budget: int) -> None:
        self.core = make_core(budget)
        self.client = self.core.connect()
        if budget:
            self.client.publish("", self.client.declare("filler"), bytes(2 * BUDGET_BYTES))
        keyed(self.client, "quorum", x_group_fair=fair, x_delivery_limit=-1)
        self.model = Model(fair)
        self.channel = 1

    def run(self, action: str, value: int | str) -> None:
        getattr(self, action)(value)
        for channel in self.model.prefetches:
            for delivery in self.client.deliveries(channel):
                self.model.deliver(channel, delivery)
        self.model.check_nobody_waits()
        queue = self.core.queue("q")
        assert (queue.ready, queue.unacked) == (len(self.model.ready), len(self.model.held))
        keys = discipline(self.core)
        assert keys.held == len({k for _, _, k in self.model.held.values() if k})

    def publish(self, key: str) -> None:
        self.model.published += 1
        self.model.ready[self.model.published] = key
        properties = Properties(headers={HEADER: key} if key else {}, delivery_mode=2)
        self.client.publish("", "q", str(self.model.published).encode(), properties)

    def consume(self, prefetch: int) -> None:
        if len(self.model.prefetches) < 4:
            self.channel += 1
            self.client.open_channel(self.channel)
            self.client.prefetch(prefetch, self.channel)
            self.client.consume("q", f"c{self.channel}", self.channel)
            self.model.prefetches[self.channel] = prefetch

    def _settle(self, which: int) -> tuple[int, int, int] | None:
        if not self.model.held:
            return None
        number = sorted(self.model.held)[which % len(self.model.held)]
        channel, tag, key = self.model.held.pop(number)
        self.model.ready[number] = key
        return number, channel, tag

    def ack(self, which: int) -> None:
        if found := self._settle(which):
            del self.model.ready[found[0]]
            self.client.send(BasicAck(found[2]), channel=found[1])

    def reject(self, which: int) -> None:
        if found := self._settle(which):
            del self.model.ready[found[0]]
            self.client.send(BasicReject(found[2], False), channel=found[1])

    def requeue(self, which: int) -> None:
        if found := self._settle(which):
            self.client.send(BasicReject(found[2], True), channel=found[1])

    def close(self, which: int) -> None:
        if self.model.prefetches:
            channel = sorted(self.model.prefetches)[which % len(self.model.prefetches)]
            del self.model.prefetches[channel]
            self.model.give_back(channel)
            self.client.call(ChannelClose(200, "", 0, 0), ChannelCloseOk, channel)

    def purge(self, _: int) -> None:
        self.model.ready.clear()
        self.client.call(QueuePurge("q"), QueuePurgeOk)

    def restart(self, _: int) -> None:
        self.core = self.core.restarted()
        self.client = self.core.connect()
        for channel in list(self.model.prefetches):
            self.model.give_back(channel)
        self.model.prefetches.clear()


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.sampled_from([0, BUDGET_BYTES]), ACTIONS)
def test_a_keyed_queue_does_what_the_model_says(
    fair: bool, budget: int, actions: list[tuple[str, int | str]]
) -> None:
    machine = Machine(fair, budget)
    for action, value in actions:
        machine.run(action, value)


# --- how long it takes, and what stays


def test_forgetting_many_keys_takes_several_turns(core: Core, client: CoreClient) -> None:
    keyed(client)
    count = 3 * TURN_WORK_MAX * FREED_PER_WORK
    publish(client, *range(count))
    held = [client.get("q", no_ack=False) for _ in range(2)]
    core.settle()
    keys = discipline(core).keys
    client.connection.receive(method_frame(1, QueuePurge("q")))
    assert set(discipline(core).keys) == {b"int:0", b"int:1"}
    assert len(keys) > count // 2, "all were freed at once"
    core.settle()
    assert len(keys) == 0
    client.expect(QueuePurgeOk)
    publish(client, 0, 2)
    found = client.get("q")
    assert found is not None
    assert found.body == b"20", "key 0 is held"
    settle(client, held[0])  # type: ignore[arg-type]
    found = client.get("q")
    assert found is not None
    assert found.body == b"00"


@pytest.mark.skipif(is_compiled(), reason="compiled objects have no weak references")
@pytest.mark.parametrize("how", ["purged", "deleted", "restarted"])
def test_nothing_of_the_keys_is_left_as_a_cycle(core: Core, client: CoreClient, how: str) -> None:
    """Garbage in cycles is practically never collected in a broker."""
    keyed(client)
    publish(client, *"aabbcc", *range(100))
    channels(client, 2)
    gc.collect()
    gc.disable()
    try:
        queue, keys = core.queue("q"), discipline(core)
        gone = [weakref.ref(each) for each in keys.keys.values() if each.unacked == 0]
        owner = weakref.ref(keys)
        if how == "purged":
            core.connect().call(QueuePurge("q"), QueuePurgeOk)
        elif how == "deleted":
            core.connect().call(QueueDelete("q"), QueueDeleteOk)
        else:
            keys.restart()
        del queue, keys
        core.settle()
        assert len(gone) > 90
        assert [each for each in gone if each() is not None] == []
        assert (owner() is None) == (how == "deleted")
    finally:
        gc.enable()


def test_a_search_goes_through_messages_that_came_back_once(core: Core, client: CoreClient) -> None:
    """Each step of a search went through all of them: 20 ms for every 64 of 200,000."""
    keyed(client)
    count = 2 * LATE_MAX
    publish(client, *range(count))
    other = core.connect()
    other.consume("q")
    core.settle()
    publish(client, *range(count, count + 10))
    other.connection.lost()
    core.settle()
    queue = core.queue("q")
    lane = queue.lane
    assert isinstance(lane, KeyedLane)
    assert len(lane.order.late) >= count
    cursor = first_place(queue)
    found = cursor.step(queue, core.broker.pager)
    assert len(lane.order.late) == 0
    while not cursor.is_ended():
        found += cursor.step(queue, core.broker.pager)
    assert [each.index for each in found] == sorted(lane.messages)
    assert len(found) == count + 10
