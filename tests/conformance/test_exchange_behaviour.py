"""Exchanges: every type, bindings between them, alternates, auto-delete, equivalence."""

from __future__ import annotations

import os

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from rhizome.testing.broker_process import wait_until
from tests.conformance.wire_driver import Channel, Closed, Connection

from . import differences
from .conftest import Connect, Unique

IN_CLUSTER = bool(os.environ.get("RHIZOME_TEST_CLUSTER"))


def routed(
    channel: Channel, exchange: str, key: str, headers: dict[str, object] | None = None
) -> bool:
    """Whether a message that is published so is kept by some queue."""
    properties = Properties(headers=headers) if headers is not None else Properties()
    channel.publish(exchange, key, b"?", properties, mandatory=True)
    got = channel.next()
    if isinstance(got, m.BasicAck):
        return True
    assert isinstance(got.method, m.BasicReturn)
    channel.expect(m.BasicAck)
    return False


def drained(channel: Channel, queue: str) -> list[str]:
    """The routing keys of what is in the queue, sorted."""
    keys = []
    while (got := channel.get(queue)) is not None:
        keys.append(got.method.routing_key)
    return sorted(keys)


def exists(channel: Channel, exchange: str) -> bool:
    code = 0
    probe = channel.connection.channel()
    try:
        probe.call(m.ExchangeDeclare(exchange, "direct", passive=True), m.ExchangeDeclareOk)
        probe.close()
    except Closed as closed:
        code = closed.code
    assert code in (0, 404)
    return code == 0


def goes(channel: Channel, exchange: str) -> bool:
    """Whether an auto-delete exchange is gone. One broker deletes it at once; a cluster when it has
    heard from all that none of them has private queues bound to it."""
    if IN_CLUSTER:
        wait_until(lambda: not exists(channel, exchange), f"exchange {exchange} to go")
    return not exists(channel, exchange)


# --- built-in exchanges


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_built_in_exchanges_exist_and_are_durable(channel: Channel, name: str, kind: str) -> None:
    channel.call(m.ExchangeDeclare(name, kind, durable=True), m.ExchangeDeclareOk)


def test_the_default_exchange_routes_by_queue_name(channel: Channel) -> None:
    queue = channel.declare()
    channel.publish("", queue, b"x")
    got = channel.get(queue)
    assert got is not None
    assert (got.method.exchange, got.method.routing_key) == ("", queue)


# --- types


def test_direct_routes_by_equal_keys(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("direct"))
    queue = channel.declare()
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    channel.bind(queue, exchange, "")
    for key in ("a", "b", "c", "", "A", "a.b"):
        channel.publish(exchange, key)
    assert drained(channel, queue) == ["", "a", "b"]


def test_two_bindings_of_one_queue_deliver_one_copy(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("topic"), "topic")
    queue = channel.declare()
    for pattern in ("a.*", "a.#", "#", "*.b"):
        channel.bind(queue, exchange, pattern)
    channel.publish(exchange, "a.b")
    assert drained(channel, queue) == ["a.b"]


def test_fanout_ignores_keys(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("fanout"), "fanout")
    queues = [channel.declare() for _ in range(5)]
    for number, queue in enumerate(queues):
        channel.bind(queue, exchange, str(number))
    channel.publish(exchange, "anything")
    assert [drained(channel, queue) for queue in queues] == [["anything"]] * 5


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "b.a", "", "A.b"]),
        ("*", ["a", "*"], ["a.b", ".", "a.", ""]),
        ("#", ["", "a", "a.b", "a.b.c.d", ".", ".."], []),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["b", "ab", ""]),
        ("#.a", ["a", "b.a", "c.b.a", ".a"], ["a.b", ""]),
        ("*.b.*", ["a.b.c", ".b."], ["b", "a.b", "a.b.c.d"]),
        ("#.b.#", ["b", "a.b", "b.c", "a.b.c", "x.a.b.c.y"], ["a", "", "ab"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "b", "a.bb", "a.b.c"]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#", ["a", "a.b", "."], [""]),
        ("#.*", ["a", "a.b", "."], [""]),
        ("*.*", ["a.b", "."], ["a", "", "a.b.c"]),
        ("", [""], ["a", "."]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
        ("a.*.b", ["a..b", "a.x.b"], ["a.b"]),
        ("a*", ["a*"], ["ab", "a"]),
        ("a#.b", ["a#.b"], ["a.b", "ax.b"]),
    ],
)
def test_topic_patterns_match_words(
    channel: Channel, unique: Unique, pattern: str, yes: list[str], no: list[str]
) -> None:
    exchange = channel.declare_exchange(unique("topic"), "topic")
    queue = channel.declare()
    channel.bind(queue, exchange, pattern)
    for key in yes + no:
        channel.publish(exchange, key)
    assert drained(channel, queue) == sorted(yes)


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x"}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": True}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "y"}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "all"}, None, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ({}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 1}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "y"}, False),
        ({"x-match": "any", "a": 1}, {}, False),
        ({"x-match": "any", "a": 1}, None, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "a": None}, {"a": 1}, True),
        ({"x-match": "all", "a": None}, {"a": "anything"}, True),
        ({"x-match": "all", "a": None}, {"b": 1}, False),
        ({"x-match": "any", "a": None}, {"a": 1}, True),
        ({"x-match": "all", "a": 1}, {"a": "1"}, False),
        ({"x-match": "all", "a": True}, {"a": True}, True),
        ({"x-match": "all", "a": 2**40}, {"a": 2**40}, True),
        ({"x-match": "all", "x-a": 1, "b": 1}, {"b": 1}, True),
        ({"x-match": "all-with-x", "x-a": 1, "b": 1}, {"b": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 1}, {"b": 1, "x-a": 1}, True),
        ({"x-match": "any", "x-a": 1, "b": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1, "b": 1}, {"x-a": 1}, True),
        ({"x-match": "all", "a": [1, 2]}, {"a": [1, 2]}, True),
        ({"x-match": "all", "a": [1, 2]}, {"a": [2, 1]}, False),
        ({"x-match": "all", "a": {"b": 1}}, {"a": {"b": 1}}, True),
    ],
)
def test_headers_exchanges_match_arguments(
    channel: Channel,
    unique: Unique,
    arguments: dict[str, object],
    headers: dict[str, object] | None,
    matches: bool,
) -> None:
    exchange = channel.declare_exchange(unique("headers"), "headers")
    channel.bind(channel.declare(), exchange, "ignored", arguments)
    channel.confirm()
    assert routed(channel, exchange, "whatever", headers) is matches


# --- bindings


def test_unbinding_stops_routing_and_leaves_other_bindings(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("direct"), auto_delete=False)
    queue = channel.declare()
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    channel.call(m.QueueUnbind(queue, exchange, "a"), m.QueueUnbindOk)
    for key in ("a", "b"):
        channel.publish(exchange, key)
    assert drained(channel, queue) == ["b"]
    channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)


def test_binding_twice_is_one_binding(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("direct"))
    queue = channel.declare()
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "a")
    channel.publish(exchange, "a")
    assert drained(channel, queue) == ["a"]
    channel.call(m.QueueUnbind(queue, exchange, "a"), m.QueueUnbindOk)
    assert goes(channel, exchange)


def test_bindings_that_differ_in_arguments_are_two(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("direct"), auto_delete=False)
    queue = channel.declare()
    channel.bind(queue, exchange, "a", {"n": 1})
    channel.bind(queue, exchange, "a", {"n": 2})
    channel.call(m.QueueUnbind(queue, exchange, "a", arguments={"n": 1}), m.QueueUnbindOk)
    channel.publish(exchange, "a")
    assert drained(channel, queue) == ["a"]
    channel.call(m.QueueUnbind(queue, exchange, "a"), m.QueueUnbindOk)
    channel.publish(exchange, "a")
    assert drained(channel, queue) == ["a"]
    channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (m.QueueUnbind("no-such-queue", "amq.direct", "k"), m.QueueUnbindOk),
        (m.QueueUnbind("no-such-queue", "no-such-exchange", "k"), m.QueueUnbindOk),
        (m.ExchangeUnbind("amq.direct", "amq.topic", "no-such-key"), m.ExchangeUnbindOk),
        (m.ExchangeUnbind("no-such-exchange", "amq.topic", "k"), m.ExchangeUnbindOk),
        (m.ExchangeDelete("no-such-exchange"), m.ExchangeDeleteOk),
        (m.QueueDelete("no-such-queue"), m.QueueDeleteOk),
        (m.BasicCancel("no-such-tag"), m.BasicCancelOk),
    ],
    ids=lambda value: value.name() if isinstance(value, m.Method) else value.__name__,
)
def test_removing_what_is_not_there_succeeds(
    channel: Channel, method: m.Method, answer: type[m.Method]
) -> None:
    channel.call(method, answer)


def test_an_empty_queue_name_in_bind_means_the_last_declared_one(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("direct"))
    queue = channel.declare()
    channel.bind("", exchange, "key")
    channel.publish(exchange, "key")
    assert drained(channel, queue) == ["key"]


def test_an_empty_queue_name_and_key_in_bind_mean_the_queue_and_its_name(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("direct"))
    queue = channel.declare()
    channel.bind("", exchange, "")
    channel.publish(exchange, queue)
    assert drained(channel, queue) == [queue]


def test_nowait_forms_do_their_work_without_an_answer(channel: Channel, unique: Unique) -> None:
    exchange, queue = unique("exchange"), unique("queue")
    channel.send(
        m.ExchangeDeclare(exchange, "direct", no_wait=True),
        m.QueueDeclare(queue, exclusive=True, no_wait=True),
        m.QueueBind(queue, exchange, "k", no_wait=True),
        m.BasicConsume(queue, "t", no_wait=True),
    )
    channel.publish(exchange, "k", b"x")
    assert channel.delivery().body == b"x"
    channel.send(
        m.BasicCancel("t", no_wait=True),
        m.ExchangeDelete(exchange, no_wait=True),
        m.QueuePurge(queue, no_wait=True),
        m.QueueDelete(queue, no_wait=True),
    )
    channel.qos(1)  # its answer shows that the others are done
    assert not exists(channel, exchange)
    assert channel.fails(m.QueueDeclare(queue, passive=True)).code == 404


# --- exchange to exchange


def test_messages_pass_through_bound_exchanges(channel: Channel, unique: Unique) -> None:
    source = channel.declare_exchange(unique("source"), "topic")
    middle = channel.declare_exchange(unique("middle"), "direct")
    sink = channel.declare_exchange(unique("sink"), "fanout")
    queue = channel.declare()
    channel.bind(queue, sink)
    channel.bind_exchange(sink, middle, "a.b")
    channel.bind_exchange(middle, source, "a.*")
    for key in ("a.b", "a.c", "b.b"):
        channel.publish(source, key)
    got = channel.get(queue)
    assert got is not None
    assert (got.method.exchange, got.method.routing_key) == (source, "a.b")
    assert channel.get(queue) is None


def test_loops_between_exchanges_deliver_once(channel: Channel, unique: Unique) -> None:
    first = channel.declare_exchange(unique("first"), "fanout", auto_delete=False)
    second = channel.declare_exchange(unique("second"), "fanout", auto_delete=False)
    queue = channel.declare()
    channel.bind(queue, first)
    channel.bind(queue, second)
    channel.bind_exchange(first, second)
    channel.bind_exchange(second, first)
    channel.bind_exchange(first, first)
    channel.publish(first, "once")
    assert drained(channel, queue) == ["once"]
    for exchange in (first, second):
        channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)


def test_a_diamond_of_exchanges_delivers_once(channel: Channel, unique: Unique) -> None:
    top = channel.declare_exchange(unique("top"), "fanout")
    sides = [channel.declare_exchange(unique("side"), "fanout") for _ in range(2)]
    queue = channel.declare()
    for side in sides:
        channel.bind_exchange(side, top)
        channel.bind(queue, side)
    channel.publish(top, "once")
    assert drained(channel, queue) == ["once"]


def test_deleting_an_exchange_removes_its_bindings_on_both_sides(
    channel: Channel, unique: Unique
) -> None:
    source = channel.declare_exchange(unique("source"), "fanout", auto_delete=False)
    sink = unique("sink")
    queue = channel.declare()
    for _ in range(2):
        channel.declare_exchange(sink, "fanout", auto_delete=False)
        channel.bind(queue, sink)
        channel.bind_exchange(sink, source)
        channel.call(m.ExchangeDelete(sink), m.ExchangeDeleteOk)
        channel.declare_exchange(sink, "fanout", auto_delete=False)
        channel.bind(queue, sink)
        channel.publish(source, "gone")
        assert drained(channel, queue) == []
        channel.call(m.ExchangeDelete(sink), m.ExchangeDeleteOk)
    channel.call(m.ExchangeDelete(source), m.ExchangeDeleteOk)


def test_internal_exchanges_take_messages_from_other_exchanges(
    channel: Channel, unique: Unique
) -> None:
    source = channel.declare_exchange(unique("source"), "fanout")
    inner = channel.declare_exchange(unique("inner"), "fanout", internal=True)
    queue = channel.declare()
    channel.bind_exchange(inner, source)
    channel.bind(queue, inner)
    channel.publish(source, "k")
    assert drained(channel, queue) == ["k"]


# --- alternates


def test_unroutable_messages_go_to_the_alternate(channel: Channel, unique: Unique) -> None:
    alternate = channel.declare_exchange(unique("alternate"), "fanout", auto_delete=False)
    arguments = {"alternate-exchange": alternate}
    exchange = channel.declare_exchange(unique("main"), "direct", arguments=arguments)
    taken, rest = channel.declare(), channel.declare()
    channel.bind(taken, exchange, "k")
    channel.bind(rest, alternate)
    for key in ("k", "other"):
        channel.publish(exchange, key)
    assert drained(channel, taken) == ["k"]
    got = channel.get(rest)
    assert got is not None
    assert (got.method.exchange, got.method.routing_key) == (exchange, "other")
    channel.call(m.ExchangeDelete(alternate), m.ExchangeDeleteOk)


def test_alternates_chain_and_a_mandatory_message_is_returned_only_at_the_end(
    channel: Channel, unique: Unique
) -> None:
    last = channel.declare_exchange(unique("last"), "direct", auto_delete=False)
    arguments = {"alternate-exchange": last}
    middle = channel.declare_exchange(
        unique("middle"), "direct", auto_delete=False, arguments=arguments
    )
    first = channel.declare_exchange(
        unique("first"), "direct", auto_delete=False, arguments={"alternate-exchange": middle}
    )
    channel.confirm()
    assert not routed(channel, first, "k")
    channel.bind(channel.declare(), last, "k")
    assert routed(channel, first, "k")
    for exchange in (first, middle, last):
        channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)


def test_alternates_in_a_circle_are_harmless(channel: Channel, unique: Unique) -> None:
    names = unique("a"), unique("b")
    for name, alternate in (names, names[::-1]):
        arguments = {"alternate-exchange": alternate}
        channel.declare_exchange(name, "direct", auto_delete=False, arguments=arguments)
    channel.confirm()
    assert not routed(channel, names[0], "k")
    for name in names:
        channel.call(m.ExchangeDelete(name), m.ExchangeDeleteOk)


def test_an_alternate_that_does_not_exist_is_ignored(channel: Channel, unique: Unique) -> None:
    arguments = {"alternate-exchange": unique("missing")}
    exchange = channel.declare_exchange(
        unique("main"), "direct", auto_delete=False, arguments=arguments
    )
    channel.confirm()
    assert not routed(channel, exchange, "k")
    channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)


# --- life


def test_an_auto_deleted_exchange_goes_with_its_last_binding(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("auto"))
    assert exists(channel, exchange)
    queue = channel.declare()
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    channel.call(m.QueueUnbind(queue, exchange, "a"), m.QueueUnbindOk)
    assert exists(channel, exchange)
    channel.call(m.QueueUnbind(queue, exchange, "b"), m.QueueUnbindOk)
    assert goes(channel, exchange)


def test_an_auto_deleted_exchange_goes_with_its_last_queue(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("auto"))
    queue = channel.declare()
    channel.bind(queue, exchange, "a")
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)
    assert goes(channel, exchange)


def test_auto_deletion_cascades_along_bound_exchanges(channel: Channel, unique: Unique) -> None:
    source = channel.declare_exchange(unique("source"), "fanout")
    sink = channel.declare_exchange(unique("sink"), "fanout")
    queue = channel.declare()
    channel.bind_exchange(sink, source)
    channel.bind(queue, sink)
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)
    assert goes(channel, sink)
    assert goes(channel, source)


def test_delete_if_unused_removes_an_exchange_without_bindings(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("unused"), auto_delete=False)
    channel.call(m.ExchangeDelete(exchange, if_unused=True), m.ExchangeDeleteOk)
    assert not exists(channel, exchange)


def test_an_equal_declaration_succeeds_again(channel: Channel, unique: Unique) -> None:
    name = unique("same")
    options = {"durable": True, "auto_delete": True, "arguments": {"alternate-exchange": "a"}}
    for _ in range(2):
        channel.call(m.ExchangeDeclare(name, "topic", **options), m.ExchangeDeclareOk)
    channel.call(m.ExchangeDelete(name), m.ExchangeDeleteOk)


def test_a_passive_declaration_looks_at_nothing_but_the_name(
    channel: Channel, unique: Unique
) -> None:
    name = channel.declare_exchange(unique("passive"), "topic")
    wrong = m.ExchangeDeclare(name, "fanout", passive=True, durable=True, internal=True)
    channel.call(wrong, m.ExchangeDeclareOk)


def test_unknown_arguments_are_accepted_and_not_compared(channel: Channel, unique: Unique) -> None:
    name = unique("unknown")
    for value in (1, 2):
        channel.declare_exchange(name, arguments={"x-unknown": value})


def test_names_may_hold_any_utf8_up_to_255_bytes(channel: Channel) -> None:
    name = "ü€ \t" * 36 + "xyz"
    assert len(name.encode()) == 255
    channel.declare_exchange(name)
    queue = channel.declare(name)
    channel.bind(queue, name, name)
    channel.publish(name, name)
    assert drained(channel, queue) == [name]


def test_consistent_hash_spreads_keys_and_keeps_each_on_one_queue(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("hash"), "x-consistent-hash")
    queues = [channel.declare() for _ in range(3)]
    for queue in queues:
        channel.bind(queue, exchange, "10")
    for number in range(300):
        channel.publish(exchange, str(number % 100))
    taken = [drained(channel, queue) for queue in queues]
    assert sum(map(len, taken)) == 300
    assert all(taken)
    for keys in taken:
        assert all(keys.count(key) == 3 for key in keys)


@differences.EXCLUSIVE_BINDINGS
def test_bindings_of_an_exclusive_queue_go_with_its_connection(
    connect: Connect, connection: Connection, unique: Unique
) -> None:
    channel = connection.channel()
    exchange = channel.declare_exchange(unique("outlives"), "fanout", auto_delete=False)
    mine = connect()
    theirs = mine.channel()
    theirs.bind(theirs.declare(), exchange)
    channel.confirm()
    assert routed(channel, exchange, "k")
    mine.close_politely()
    assert not routed(channel, exchange, "k")
    channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)
