"""What clients of other projects could still tell Rhizome from RabbitMQ by. All of it holds there.

The order of deliveries between basic.get, consumers and prefetches; what an open transaction has
settled; names with line ends in them; names that brokers make; messages in their last instant.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from tests.conformance.wire_driver import Channel, ChannelClosed

from . import differences
from .conftest import Connect, Unique

# ---- basic.get beside consumers -----------------------------------------------------------------


def test_a_consumer_that_waits_gets_messages_before_basic_get(
    channel: Channel, other: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("q"), exclusive=False, auto_delete=True)
    other.consume(queue, no_ack=True)
    for number in range(50):
        channel.publish("", queue, b"%d" % number)
        channel.send(m.BasicGet(queue, True))
    for _ in range(50):
        assert isinstance(channel.next(), m.BasicGetEmpty)
    assert [got.body for got in other.deliveries(50)] == [b"%d" % number for number in range(50)]


# ---- global prefetch ----------------------------------------------------------------------------


def test_what_basic_get_holds_is_not_in_the_global_prefetch(
    channel: Channel, unique: Unique
) -> None:
    pulled = channel.declare(unique("pulled"))
    queue = channel.declare(unique("q"))
    channel.confirm()
    for _ in range(5):
        channel.publish_confirmed("", pulled, b"pulled")
        channel.publish_confirmed("", queue, b"consumed")
    channel.qos(2, global_=True)
    held = [channel.get_wait(pulled, no_ack=False) for _ in range(5)]
    channel.consume(queue)
    first = channel.deliveries(2)
    assert [got.body for got in first] == [b"consumed"] * 2
    assert channel.is_quiet()
    channel.send(m.BasicAck(held[0].tag))
    assert channel.is_quiet()
    channel.send(m.BasicAck(first[0].tag))
    assert channel.delivery().body == b"consumed"


@pytest.mark.lone_only("homes race for the room in a prefetch of the whole channel")
def test_queues_of_a_channel_share_a_global_prefetch(
    channel: Channel, other: Channel, unique: Unique
) -> None:
    queues = [other.declare(unique("q"), exclusive=False, auto_delete=True) for _ in range(3)]
    channel.qos(3, global_=True)
    for queue in queues:
        channel.consume(queue)
    other.connection.send(
        b"".join(other.publish_frames("", queue, queue.encode()) for queue in queues * 99)
    )
    seen: Counter[bytes] = Counter()
    for _ in range(99):
        got = channel.delivery()
        seen[got.body] += 1
        channel.send(m.BasicAck(got.tag))
    assert len(seen) == 3
    assert min(seen.values()) >= 15, seen


# ---- transactions -------------------------------------------------------------------------------


def test_recover_leaves_what_an_open_transaction_has_acked(
    channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("q"))
    channel.call(m.TxSelect(), m.TxSelectOk)
    for body in (b"acked", b"held"):
        channel.publish("", queue, body)
    channel.call(m.TxCommit(), m.TxCommitOk)
    acked = channel.get_wait(queue, no_ack=False)
    assert channel.get_wait(queue, no_ack=False).body == b"held"
    channel.send(m.BasicAck(acked.tag))
    channel.call(m.BasicRecover(True), m.BasicRecoverOk)
    assert channel.get_wait(queue, no_ack=False).body == b"held"
    assert channel.get(queue) is None
    channel.call(m.TxCommit(), m.TxCommitOk)
    channel.call(m.BasicRecover(True), m.BasicRecoverOk)
    assert channel.get_wait(queue).body == b"held"
    assert channel.get(queue) is None


def test_what_was_acked_comes_back_by_a_rollback_after_a_recover(
    channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("q"))
    channel.call(m.TxSelect(), m.TxSelectOk)
    channel.publish("", queue, b"one")
    channel.call(m.TxCommit(), m.TxCommitOk)
    channel.send(m.BasicAck(channel.get_wait(queue, no_ack=False).tag))
    channel.call(m.BasicRecover(True), m.BasicRecoverOk)
    assert channel.get(queue) is None
    channel.call(m.TxRollback(), m.TxRollbackOk)
    channel.call(m.BasicRecover(True), m.BasicRecoverOk)
    assert channel.get_wait(queue).body == b"one"


# ---- names --------------------------------------------------------------------------------------


def test_line_ends_are_left_out_of_names_that_are_declared(
    channel: Channel, unique: Unique
) -> None:
    plain = unique("q")
    assert channel.declare(f"\r\n{plain[:1]}\n{plain[1:]}\r") == plain
    exchange = unique("e")
    channel.declare_exchange(f"{exchange[:1]}\r\n{exchange[1:]}")
    channel.bind(plain, exchange, "key")
    channel.publish(exchange, "key", b"through")
    assert channel.get_wait(plain).body == b"through"


def test_line_ends_are_left_out_of_names_that_are_bound_and_deleted(
    channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("q"))
    exchange = channel.declare_exchange(unique("e"), auto_delete=False)
    channel.bind(f"{queue}\n", f"\r{exchange}", "key")
    channel.call(m.QueueUnbind(f"{queue}\r\n", f"{exchange}\n", "key"), m.QueueUnbindOk)
    channel.bind_exchange(f"{exchange}\n", "amq.\ndirect", exchange)
    channel.call(m.ExchangeUnbind(f"\n{exchange}", "\ramq.direct", exchange), m.ExchangeUnbindOk)
    channel.call(m.ExchangeDelete(f"{exchange}\r"), m.ExchangeDeleteOk)
    channel.call(m.QueueDelete(f"{queue}\n"), m.QueueDeleteOk)
    assert "no queue" in channel.fails(m.QueueDeclare(queue, passive=True)).text


@pytest.mark.parametrize("kind", ["consume", "get", "purge"])
def test_line_ends_stay_in_names_of_queues_that_are_used(
    channel: Channel, unique: Unique, kind: str
) -> None:
    name = f"{channel.declare(unique('q'))}\n"
    methods = {
        "consume": m.BasicConsume(name, "tag"),
        "get": m.BasicGet(name, True),
        "purge": m.QueuePurge(name),
    }
    closed = channel.fails(methods[kind])
    assert isinstance(closed, ChannelClosed)
    assert closed.code == 404


def test_names_that_the_broker_makes_have_letters_digits_and_dashes_only(connect: Connect) -> None:
    for _ in range(10):
        channel = connect().channel()
        name = channel.declare()
        assert re.fullmatch(r"amq\.gen-[\w_\-]+", name)
        assert re.fullmatch(r"amq\.ctag-[\w_\-]+", channel.consume(name))


def test_a_queue_with_a_made_name_is_reached_from_other_connections(connect: Connect) -> None:
    channel = connect().channel()
    name = channel.declare()
    for number in range(8):
        sender = connect().channel()
        sender.confirm()
        sender.publish_confirmed("", name, b"%d" % number)
        assert channel.get_wait(name).body == b"%d" % number
        assert sender.fails(m.QueueDeclare(name, passive=True)).code == 405


# ---- dead letters -------------------------------------------------------------------------------


@differences.DEATHS_FROM_CLIENTS
def test_entries_of_x_death_without_a_count_are_merged(channel: Channel, unique: Unique) -> None:
    dead = channel.declare(unique("dead"))
    arguments: dict[str, object] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    queue = channel.declare(unique("q"), arguments=arguments)
    told: list[object] = [
        {"queue": name, "reason": reason, "exchange": "e", "routing-keys": ["k"]}
        for name, reason in [("a", "expired"), (queue, "rejected"), ("a", "expired")] * 4
        + [("b", "rejected")]
    ]
    channel.publish("", queue, b"", Properties(headers={"x-death": told}))
    got = channel.get_wait(queue, no_ack=False)
    channel.send(m.BasicReject(got.tag, False))
    deaths = channel.get_wait(dead).headers["x-death"]
    assert deaths[0]["count"] == 5
    counts = {(death["queue"], death["reason"]): death["count"] for death in deaths[:1]}
    counts |= {(each["queue"], each["reason"]): each.get("count", 1) for each in deaths}
    assert counts == {(queue, "rejected"): 5, ("a", "expired"): 8, ("b", "rejected"): 1}
    assert len(deaths) == 3


# ---- the last instant ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reject", "nack", "recover"])
def test_a_message_without_time_to_live_is_not_delivered_again(
    channel: Channel, other: Channel, unique: Unique, how: str
) -> None:
    arguments: dict[str, object] = {"x-message-ttl": 0}
    queue = channel.declare(unique("q"), arguments=arguments)
    channel.consume(queue)
    for number in range(30):
        other.publish("", queue, b"%d" % number)
        got = channel.delivery()
        assert (got.body, got.method.redelivered) == (b"%d" % number, False)
        if how == "reject":
            channel.send(m.BasicReject(got.tag, True))
        elif how == "nack":
            channel.send(m.BasicNack(got.tag, False, True))
        else:
            channel.call(m.BasicRecover(True), m.BasicRecoverOk)
    assert channel.is_quiet()


# ---- queues that end with their last consumer ---------------------------------------------------


def test_an_auto_delete_queue_is_gone_when_its_last_consumer_is_cancelled(
    connect: Connect, unique: Unique
) -> None:
    for _ in range(10):
        channel, other = connect().channel(), connect().channel()
        queue = channel.declare(unique("q"), exclusive=False, auto_delete=True)
        channel.consume(queue, "tag")
        channel.call(m.BasicCancel("tag"), m.BasicCancelOk)
        for each in (channel, other):
            closed = each.fails(m.QueueDeclare(queue, passive=True))
            assert (type(closed), closed.code) == (ChannelClosed, 404)


def test_a_queue_may_be_deleted_while_it_ends_with_its_last_consumer(
    connect: Connect, unique: Unique
) -> None:
    channel, other = connect().channel(), connect().channel()
    for _ in range(30):
        queue = channel.declare(unique("q"), exclusive=False, auto_delete=True)
        channel.consume(queue, "tag")
        channel.send(m.BasicCancel("tag"))
        other.call(m.QueueDelete(queue), m.QueueDeleteOk)
        channel.expect(m.BasicCancelOk)


def test_a_queue_with_another_consumer_outlives_a_cancel(
    channel: Channel, other: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("q"), exclusive=False, auto_delete=True)
    other.consume(queue, no_ack=True)
    channel.consume(queue, "tag")
    channel.call(m.BasicCancel("tag"), m.BasicCancelOk)
    channel.publish("", queue, b"still there")
    assert other.delivery().body == b"still there"


# ---- CC and BCC ---------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_go_through_exchanges_bound_to_exchanges(
    channel: Channel, unique: Unique, header: str
) -> None:
    source = channel.declare_exchange(unique("source"), "direct", auto_delete=False)
    middle = channel.declare_exchange(unique("middle"), "direct", auto_delete=False)
    first, copy = channel.declare(unique("first")), channel.declare(unique("copy"))
    channel.bind_exchange(middle, source, "main")
    channel.bind_exchange(middle, source, "copy")
    channel.bind(first, middle, "main")
    channel.bind(copy, middle, "copy")
    channel.publish(source, "main", b"both", Properties(headers={header: ["copy"]}))
    assert channel.get_wait(first).body == b"both"
    assert channel.get_wait(copy).body == b"both"
    for exchange in (source, middle):
        channel.call(m.ExchangeDelete(exchange), m.ExchangeDeleteOk)


@differences.EXCLUSIVE_BINDINGS
def test_the_name_of_an_exclusive_queue_is_free_when_its_connection_is_closed(
    connect: Connect, unique: Unique
) -> None:
    name = unique("q")
    for _ in range(30):
        mine = connect()
        assert mine.channel().declare(name) == name
        mine.close_politely()
