"""What one publish may cost: keys in CC and BCC, steps of a route, steps of a turn."""

from __future__ import annotations

import random

import pytest

from rhizome.amqp.frames import frame_end
from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    ChannelClose,
    ChannelCloseOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.access.auth_interface import KIND_APPLICATION, READ, WRITE, Identity
from rhizome.broker.routing import Destination, Exchange, Router, make_exchange
from rhizome.broker.routing.bindings_and_destinations import ROUTE_QUEUES_MAX, ROUTE_STEPS_MAX
from rhizome.broker.turn import STEPS_PER_WORK, TURN_WORK_MAX
from rhizome.errors import PreconditionFailed
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

LONGEST = ".".join("a" * 128)
"""A key of 255 bytes with as many words as match something."""


def cc(*keys: str, blind: bool = False) -> Properties:
    return Properties(headers={"BCC" if blind else "CC": list(keys)})


def topic(client: CoreClient, name: str, **bindings: str) -> None:
    """A topic exchange, and queues bound to it by these keys."""
    client.call(ExchangeDeclare(name, "topic"), ExchangeDeclareOk)
    for queue, key in bindings.items():
        client.declare(queue)
        client.call(QueueBind(queue, name, key), QueueBindOk)


def wild_patterns(count: int) -> list[str]:
    """Patterns that are all in the middle of matching, at every word of LONGEST."""
    chance = random.Random(1)
    return ["#." + ".".join(chance.choice("a*") for _ in range(126)) for _ in range(count)]


def wild_exchange(count: int) -> tuple[Router, Exchange]:
    router = Router("/")
    exchange = make_exchange("/", "wild", "topic")
    router.add_exchange(exchange)
    queue = Destination("/", "q")
    router.add_queue(queue)
    for pattern in wild_patterns(count):
        router.bind(exchange, queue, pattern, {})
    return router, exchange


# ---- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("blind", [False, True])
def test_a_key_in_cc_is_no_longer_than_a_routing_key(blind: bool) -> None:
    client = make_core().connect()
    client.publish("", "q", b"", cc("x" * 255, blind=blind))
    assert client.take() == []
    client.publish("", "q", b"", cc("x" * 256, blind=blind))
    closed = client.expect(ChannelClose)
    assert closed.reply_code == 406
    assert "a key of 256 bytes, the maximum is 255" in closed.reply_text


def test_keys_in_cc_and_bcc_have_a_number_together() -> None:
    client = make_core().connect()
    headers: dict[str, object] = {"CC": ["a"] * 128, "BCC": ["b"] * 128}
    client.publish("", "q", b"", Properties(headers=headers))
    assert client.take() == []
    headers["BCC"] = ["b"] * 129
    client.publish("", "q", b"", Properties(headers=headers))
    closed = client.expect(ChannelClose)
    assert closed.reply_code == 406
    assert "257 keys, the maximum is 256" in closed.reply_text


def test_a_dead_letter_of_an_older_release_goes_by_the_keys_that_fit() -> None:
    core = make_core()
    client = core.connect()
    client.declare("source", x_dead_letter_exchange="")
    client.declare("letter")
    client.publish("", "source", b"m")
    message = core.queue("source").lane.peek()
    assert message is not None
    # As a release without limits would have accepted it.
    published = client.published("", "source", b"m", cc("y" * 300, "letter", *["n"] * 400))
    message.content = published[frame_end(published, 0) :]
    client.send(ack_reject(client, "source"))
    taken = client.get("letter")
    assert taken is not None
    assert taken.body == b"m"


def ack_reject(client: CoreClient, queue: str) -> BasicNack:
    taken = client.get(queue, no_ack=False)
    assert taken is not None
    return BasicNack(taken.tag, False, False)


def test_the_key_of_dead_letters_is_no_longer_than_a_routing_key() -> None:
    core = make_core()
    client = core.connect()
    arguments: dict[str, object] = {"x-dead-letter-exchange": ""}
    arguments["x-dead-letter-routing-key"] = "k" * 256
    client.send(QueueDeclare("q", arguments=arguments))
    closed = client.expect(ChannelClose)
    assert closed.reply_code == 406
    assert "more than 255 bytes" in closed.reply_text


def test_a_dead_letter_whose_key_is_too_long_is_dropped_and_told_of() -> None:
    core = make_core()
    client = core.connect()
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="k")
    client.publish("", "q", b"m")
    core.queue("q").options.dead_letter_key = "k" * 256
    client.send(ack_reject(client, "q"))
    assert len(core.observer.dropped) == 1
    assert core.observer.dropped[0].startswith("q: dead letter routing key")


# ---- permissions --------------------------------------------------------------------------------


class Clerk(Identity):
    """May write topics that begin with `orders`, and everything else that isn't a topic."""

    def __init__(self, core: Core) -> None:
        super().__init__("clerk", KIND_APPLICATION, (), core.broker.access_epoch)

    def decide(self, operation: str, vhost: str, name: str) -> bool:
        return operation in (READ, WRITE)

    def decide_topic(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        return key.startswith("orders")

    def decide_topic_rules(self, vhost: str) -> bool:
        return True


@pytest.mark.parametrize("blind", [False, True])
def test_topic_rules_count_for_each_key(blind: bool) -> None:
    core = make_core()
    client = core.connect()
    topic(client, "events", pay="payments.#", buy="orders.#")
    client.connection.identity = Clerk(core)
    client.publish("events", "orders.1", b"fine", cc("orders.2", blind=blind))
    client.publish("events", "orders.1", b"sneaky", cc("orders.2", "payments.1", blind=blind))
    closed = client.expect(ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (403, 60, 40)
    assert "access to topic 'payments.1' in exchange 'events'" in closed.reply_text
    assert core.queue("pay").ready == 0
    assert core.queue("buy").ready == 1


# ---- bindings between exchanges -----------------------------------------------------------------


def test_all_keys_are_routed_through_bindings_between_exchanges() -> None:
    client = make_core().connect()
    topic(client, "second", carbon="carbon")
    topic(client, "first")
    client.call(ExchangeBind("second", "first", "key"), ExchangeBindOk)
    # Only the routing key leads to the second exchange, where only the other one matches.
    client.publish("first", "key", b"m", cc("carbon"))
    taken = client.get("carbon")
    assert taken is not None
    assert taken.body == b"m"


def test_an_alternate_gets_what_no_key_matches() -> None:
    client = make_core().connect()
    topic(client, "other", spare="#")
    client.call(
        ExchangeDeclare("main", "direct", arguments={"alternate-exchange": "other"}),
        ExchangeDeclareOk,
    )
    client.declare("q")
    client.call(QueueBind("q", "main", "k"), QueueBindOk)
    client.publish("main", "nothing", b"1", cc("k"))
    assert client.get("spare") is None
    client.publish("main", "nothing", b"2", cc("neither"))
    assert client.get("spare") is not None


# ---- steps of a route ---------------------------------------------------------------------------


def test_a_topic_match_visits_each_node_at_most_once_for_each_word() -> None:
    router, exchange = wild_exchange(5)
    router.route(exchange, LONGEST, None)
    nodes = 1 + 5 * 127
    assert 10_000 < router.take_steps() <= nodes * 128


def test_a_route_that_takes_too_many_steps_is_refused_when_it_has_taken_them() -> None:
    router, exchange = wild_exchange(200)
    with pytest.raises(PreconditionFailed, match="takes more than 100000 steps"):
        router.route(exchange, LONGEST, None)
    # No more than those of one word beyond the maximum: nodes of 200 patterns.
    assert router.take_steps() <= ROUTE_STEPS_MAX + 200 * 127


def test_the_same_exchange_routes_other_keys_as_ever() -> None:
    router, exchange = wild_exchange(200)
    with pytest.raises(PreconditionFailed):
        router.route(exchange, LONGEST, None)
    assert router.route(exchange, "a.b.c", None) == []
    router.bind(exchange, router.queues["q"], "a.#", {})
    assert [each.name for each in router.route(exchange, "a.b.c", None)] == ["q"]


def test_all_keys_of_a_message_share_one_budget() -> None:
    router, exchange = wild_exchange(3)
    router.route_all(exchange, [LONGEST], None)
    assert router.take_steps() < ROUTE_STEPS_MAX
    with pytest.raises(PreconditionFailed):
        router.route_all(exchange, [LONGEST] * 256, None)


def test_a_queue_that_is_met_again_costs_steps_and_a_fan_is_gone_through_once() -> None:
    router = Router("/")
    exchange = make_exchange("/", "x", "topic")
    router.add_exchange(exchange)
    for number in range(1000):
        queue = Destination("/", f"q{number}")
        router.add_queue(queue)
        router.bind(exchange, queue, "#", {})
    assert len(router.route_all(exchange, ["a"] * 256, None)) == 1000
    assert router.take_steps() < 2000


def test_a_headers_exchange_counts_what_it_compares() -> None:
    router = Router("/")
    exchange = make_exchange("/", "x", "headers")
    router.add_exchange(exchange)
    queue = Destination("/", "q")
    router.add_queue(queue)
    table: dict[str, object] = {f"k{number}": number for number in range(1000)}
    for number in range(50):
        router.bind(exchange, queue, "", {"big": table, "n": number})
    router.route(exchange, "", {"big": 1})
    assert router.take_steps() > 50 * 1000
    for number in range(50, 100):
        router.bind(exchange, queue, "", {"big": table, "n": number})
    with pytest.raises(PreconditionFailed, match="too many bindings"):
        router.route(exchange, "", {"big": 1})


def test_a_long_chain_of_exchanges_costs_a_step_for_each_key_and_exchange() -> None:
    router = Router("/")
    before = make_exchange("/", "x0", "fanout")
    router.add_exchange(before)
    first = before
    for number in range(1, 500):
        exchange = make_exchange("/", f"x{number}", "fanout")
        router.add_exchange(exchange)
        router.bind(before, exchange, "", {})
        before = exchange
    router.route_all(first, ["a", "b"], None)
    assert 998 <= router.take_steps() <= 1100
    with pytest.raises(PreconditionFailed):
        router.route_all(first, ["a"] * 256, None)


def test_a_publish_that_is_too_hard_to_route_closes_its_channel_only() -> None:
    core = make_core()
    client, other = core.connect(), core.connect()
    topic(client, "wild")
    client.declare("q")
    for pattern in wild_patterns(200):
        client.call(QueueBind("q", "wild", pattern), QueueBindOk)
    client.publish("wild", LONGEST, b"m")
    closed = client.expect(ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 60, 40)
    assert "exchange 'wild'" in closed.reply_text
    client.send(ChannelCloseOk())
    client.open_channel(1)
    client.publish("", "q", b"still")
    assert other.get("q") is not None


# ---- steps of a turn ----------------------------------------------------------------------------


def test_who_publishes_what_is_hard_to_route_waits_for_the_next_turn() -> None:
    core = make_core()
    client, other = core.connect(), core.connect()
    topic(client, "wild")
    client.declare("side")
    client.declare("q")
    for pattern in wild_patterns(3):
        client.call(QueueBind("q", "wild", pattern), QueueBindOk)
    client.confirm()
    # Different keys: no route is known yet. Each takes some 25,000 steps.
    keys = [f"{LONGEST[:-2]}.{letter}"[-255:] for letter in "abcdefghijklmnop"]
    client.connection.receive(b"".join(client.published("wild", key) for key in keys))
    taken_in_turn = client.connection.channels[1].published
    assert 1 < taken_in_turn < len(keys)
    # Others come first in the next turn.
    other.connection.receive(other.published("", "side", b"other"))
    assert core.queue("side").ready == 0
    core.broker.end_turn()
    assert client.connection.channels[1].published == taken_in_turn
    core.broker.end_turn()
    assert core.queue("side").ready == 1
    assert client.connection.channels[1].published < len(keys)
    core.settle()
    assert client.connection.channels[1].published == len(keys)
    assert client.pick(BasicAck).delivery_tag > 0


def test_many_who_publish_what_is_hard_to_route_are_deferred_together() -> None:
    core = make_core()
    clients = [core.connect() for _ in range(20)]
    topic(clients[0], "wild")
    clients[0].declare("q")
    for pattern in wild_patterns(8):
        clients[0].call(QueueBind("q", "wild", pattern), QueueBindOk)
    for number, client in enumerate(clients):
        client.connection.receive(client.published("wild", f"{LONGEST[:-3]}.{number}"))
    published = sum(int(client.connection.channels[1].published) for client in clients)
    assert 1 < published < 6
    assert core.broker.turn.work < TURN_WORK_MAX + ROUTE_STEPS_MAX // STEPS_PER_WORK
    core.settle()
    assert [int(client.connection.channels[1].published) for client in clients] == [1] * 20


def test_nobody_starves_behind_others_who_are_deferred() -> None:
    core = make_core()
    clients = [core.connect() for _ in range(3)]
    topic(clients[0], "wild")
    clients[0].declare("q")
    for pattern in wild_patterns(8):
        clients[0].call(QueueBind("q", "wild", pattern), QueueBindOk)
    for number, client in enumerate(clients):
        keys = [f"{LONGEST[:-4]}.{number}{letter}" for letter in "abcdef"]
        client.connection.receive(b"".join(client.published("wild", key) for key in keys))
    core.broker.end_turn()
    counts: list[list[int]] = []
    for _ in range(40):
        core.broker.end_turn()
        counts.append([int(client.connection.channels[1].published) for client in clients])
    assert counts[0] != [6, 6, 6]
    assert min(counts[3]) > 0
    assert counts[-1] == [6, 6, 6]


def test_delayed_messages_that_are_hard_to_route_follow_tick_by_tick() -> None:
    core = make_core()
    client = core.connect()
    delayed: dict[str, object] = {"x-delayed-type": "topic"}
    client.call(ExchangeDeclare("later", "x-delayed-message", arguments=delayed), ExchangeDeclareOk)
    client.declare("q")
    for pattern in wild_patterns(8):
        client.call(QueueBind("q", "later", pattern), QueueBindOk)
    for number in range(40):
        properties = Properties(headers={"x-delay": 1000, "n": number})
        client.publish("later", f"{LONGEST[:-2]}.{number % 10}", b"m", properties)
    core.now_ms += 1000
    core.broker.turn.now_ms = core.now_ms
    core.broker.tick(core.now_ms)
    waiting = core.broker.delayed.queues.values()
    assert 30 <= sum(held.count() for held in waiting) < 40
    core.settle()
    for _ in range(40):
        core.broker.tick(core.now_ms)
        core.settle()
    assert sum(held.count() for held in waiting) == 0


def test_what_another_broker_has_routed_is_not_counted_again() -> None:
    router, exchange = wild_exchange(200)
    assert router.bound(exchange, LONGEST, None) != []
    assert router.take_steps() == 0


def test_a_message_reaches_no_more_queues_than_one_turn_may_fill() -> None:
    router = Router("/")
    exchange = make_exchange("/", "fan", "fanout")
    router.add_exchange(exchange)
    for number in range(ROUTE_QUEUES_MAX):
        queue = Destination("/", f"q{number}")
        router.add_queue(queue)
        router.bind(exchange, queue, "", {})
    assert len(router.route(exchange, "", None)) == ROUTE_QUEUES_MAX
    one_more = Destination("/", "more")
    router.add_queue(one_more)
    router.bind(exchange, one_more, "", {})
    for routed in (
        lambda: router.route(exchange, "", None),
        lambda: router.route_all(exchange, ["", "b"], None),
    ):
        with pytest.raises(PreconditionFailed, match=f"more than {ROUTE_QUEUES_MAX} queues"):
            routed()
