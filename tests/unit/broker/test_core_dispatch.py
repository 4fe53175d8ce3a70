"""How a broker core hands messages to consumers: turns, prefetch, order, priorities, takeovers."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicNack,
    BasicRecover,
    BasicRecoverOk,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDelete,
    QueueDeleteOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def publish_all(client: CoreClient, queue: str, *bodies: bytes) -> None:
    client.send_bytes(b"".join([client.published("", queue, body) for body in bodies]))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- turns


def test_consumers_of_one_priority_take_turns(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    others = [core.connect(), core.connect(), core.connect()]
    for other in others:
        other.consume(queue)
    publish_all(client, queue, *numbered(7))
    assert [other.bodies() for other in others] == [
        [b"0", b"3", b"6"],
        [b"1", b"4"],
        [b"2", b"5"],
    ]


def test_turns_go_on_where_they_stopped(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    first, second = core.connect(), core.connect()
    first.consume(queue)
    second.consume(queue)
    publish_all(client, queue, b"a")
    publish_all(client, queue, b"b")
    publish_all(client, queue, b"c")
    assert (first.bodies(), second.bodies()) == ([b"a", b"c"], [b"b"])


def test_consumer_that_cannot_take_is_passed_over(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    slow, fast = core.connect(), core.connect()
    slow.prefetch(1)
    slow.consume(queue)
    fast.consume(queue)
    publish_all(client, queue, *numbered(5))
    assert slow.bodies() == [b"0"]
    assert fast.bodies() == [b"1", b"2", b"3", b"4"]


def test_higher_priority_takes_all_that_it_can(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    low, high = core.connect(), core.connect()
    high.prefetch(2)
    low.consume(queue)
    high.consume(queue, priority=5)
    publish_all(client, queue, *numbered(4))
    assert (high.bodies(), low.bodies()) == ([b"0", b"1"], [b"2", b"3"])


def test_consumer_gets_a_backlog_in_order(client: CoreClient) -> None:
    queue = client.declare("q")
    publish_all(client, queue, *numbered(100))
    client.consume(queue, no_ack=True)
    assert client.bodies() == numbered(100)


def test_consumer_whose_socket_is_full_gets_nothing_more(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    stuck = core.connect()
    stuck.consume(queue)
    stuck.stop_reading()
    publish_all(client, queue, b"waits")
    assert core.queue(queue).ready == 1
    stuck.go_on_reading()
    assert stuck.bodies() == [b"waits"]


# --- prefetch


def test_prefetch_bounds_what_a_consumer_holds(client: CoreClient) -> None:
    queue = client.declare("q")
    client.prefetch(2)
    client.consume(queue)
    publish_all(client, queue, *numbered(5))
    first, second = client.deliveries()
    assert (first.body, second.body) == (b"0", b"1")
    client.send(BasicAck(first.tag))
    assert client.bodies() == [b"2"]
    client.send(BasicAck(0, True))
    assert client.bodies() == [b"3", b"4"]


def test_prefetch_counts_for_each_consumer_alone(client: CoreClient) -> None:
    queue = client.declare("q")
    client.prefetch(1)
    client.consume(queue, "a")
    client.consume(queue, "b")
    publish_all(client, queue, *numbered(3))
    assert client.bodies() == [b"0", b"1"]


def test_prefetch_of_the_channel_counts_for_all_its_consumers(client: CoreClient) -> None:
    queue = client.declare("q")
    client.prefetch(1, whole_channel=True)
    client.consume(queue, "a")
    client.consume(queue, "b")
    publish_all(client, queue, *numbered(3))
    (only,) = client.deliveries()
    client.send(BasicAck(only.tag))
    assert client.bodies() == [b"1"]


def test_prefetch_for_consumers_lifts_the_one_of_the_channel(client: CoreClient) -> None:
    queue = client.declare("q")
    client.prefetch(1, whole_channel=True)
    client.consume(queue)
    publish_all(client, queue, *numbered(3))
    assert client.bodies() == [b"0"]
    client.prefetch(10)
    assert client.bodies() == [b"1", b"2"]


def test_prefetch_does_not_bound_consumers_without_acks(client: CoreClient) -> None:
    queue = client.declare("q")
    client.prefetch(1)
    client.consume(queue, no_ack=True)
    publish_all(client, queue, *numbered(3))
    assert client.bodies() == numbered(3)


# --- what comes back


def test_requeued_messages_come_back_in_their_old_order(client: CoreClient) -> None:
    queue = client.declare("q")
    publish_all(client, queue, *numbered(5))
    tag = client.consume(queue)
    held = client.deliveries()
    client.call(BasicCancel(tag), BasicCancelOk)
    for delivery in (held[3], held[0], held[4], held[1], held[2]):
        client.send(BasicReject(delivery.tag, True))
    client.consume(queue)
    assert client.bodies() == numbered(5)


def test_messages_requeued_in_one_turn_come_from_a_full_queue_in_their_old_order(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", **{"x-max-length": 1})
    tag = client.consume(queue)
    publish_all(client, queue, *numbered(5))
    held = client.deliveries()
    client.call(BasicCancel(tag), BasicCancelOk)
    other = core.connect()
    other.consume(queue)
    client.send(*[BasicReject(held[at].tag, True) for at in (3, 0, 4, 1, 2)])
    assert other.bodies() == numbered(5)


def test_messages_requeued_in_one_turn_crowd_each_other_out_of_a_full_queue(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", **{"x-max-length": 2})
    tag = client.consume(queue)
    publish_all(client, queue, *numbered(5))
    held = client.deliveries()
    client.call(BasicCancel(tag), BasicCancelOk)
    sated = core.connect()
    sated.prefetch(1)
    sated.consume(queue)
    client.send(*[BasicReject(held[at].tag, True) for at in (3, 0, 4, 1, 2)])
    assert sated.bodies() == [b"0"]
    assert core.queue(queue).ready == 2
    sated.close_socket()
    client.consume(queue)
    assert client.bodies() == [b"3", b"4"]


def test_requeued_message_goes_before_what_was_behind_it(client: CoreClient) -> None:
    queue = client.declare("q")
    publish_all(client, queue, b"first", b"second")
    pulled = client.get(queue, no_ack=False)
    assert pulled is not None
    client.send(BasicNack(pulled.tag, False, True))
    again = client.get(queue)
    assert again is not None
    assert (again.body, again.redelivered) == (b"first", True)
    after = client.get(queue)
    assert after is not None
    assert (after.body, after.redelivered) == (b"second", False)


def test_closed_channel_gives_back_what_it_held(client: CoreClient) -> None:
    queue = client.declare("q")
    client.open_channel(2)
    client.consume(queue, channel=2)
    publish_all(client, queue, *numbered(3))
    assert client.bodies(2) == numbered(3)
    client.call(ChannelClose(200, "bye", 0, 0), ChannelCloseOk, 2)
    client.consume(queue)
    again = client.deliveries()
    assert [delivery.body for delivery in again] == numbered(3)
    assert all(delivery.redelivered for delivery in again)


def test_lost_connection_gives_back_what_it_held(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    gone = core.connect()
    gone.consume(queue)
    publish_all(client, queue, *numbered(3))
    gone.close_socket()
    client.consume(queue)
    assert client.bodies() == numbered(3)


def test_recover_delivers_what_is_unacked_once_more(client: CoreClient) -> None:
    queue = client.declare("q")
    client.consume(queue)
    publish_all(client, queue, *numbered(3))
    first = client.deliveries()
    client.send(BasicAck(first[1].tag))
    client.send(BasicRecover(True))
    client.pick(BasicRecoverOk)
    assert client.bodies() == [b"0", b"2"]


def test_cancelled_consumer_keeps_what_it_holds(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    tag = client.consume(queue)
    publish_all(client, queue, b"held")
    (held,) = client.deliveries()
    client.call(BasicCancel(tag), BasicCancelOk)
    publish_all(client, queue, b"waits")
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (1, 1)
    client.send(BasicAck(held.tag))
    assert core.queue(queue).unacked == 0


# --- priorities of messages


def test_messages_of_higher_priority_go_first(client: CoreClient) -> None:
    queue = client.declare("q", x_max_priority=5)
    for body, priority in ((b"low", 1), (b"high", 5), (b"none", 0), (b"middle", 3)):
        client.publish("", queue, body, Properties(priority=priority))
    client.consume(queue)
    assert client.bodies() == [b"high", b"middle", b"low", b"none"]


def test_priority_beyond_the_highest_counts_as_the_highest(client: CoreClient) -> None:
    queue = client.declare("q", x_max_priority=2)
    client.publish("", queue, b"first", Properties(priority=2))
    client.publish("", queue, b"second", Properties(priority=200))
    client.consume(queue)
    assert client.bodies() == [b"first", b"second"]


def test_requeued_message_keeps_its_priority(client: CoreClient) -> None:
    queue = client.declare("q", x_max_priority=5)
    client.publish("", queue, b"high", Properties(priority=5))
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.publish("", queue, b"low", Properties(priority=1))
    client.send(BasicReject(held.tag, True))
    client.consume(queue)
    assert client.bodies() == [b"high", b"low"]


# --- one at a time


def test_single_active_consumer_gets_everything(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_single_active_consumer=True)
    first, second = core.connect(), core.connect()
    first.consume(queue)
    second.consume(queue)
    publish_all(client, queue, *numbered(3))
    assert (first.bodies(), second.bodies()) == (numbered(3), [])


def test_next_consumer_takes_over_from_the_single_active_one(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", x_single_active_consumer=True)
    first, second, third = core.connect(), core.connect(), core.connect()
    for each in (first, second, third):
        each.consume(queue)
    publish_all(client, queue, *numbered(2))
    assert first.bodies() == numbered(2)
    first.close_socket()
    assert (second.bodies(), third.bodies()) == (numbered(2), [])
    publish_all(client, queue, b"next")
    assert (second.bodies(), third.bodies()) == ([b"next"], [])


def test_sated_single_active_consumer_is_not_replaced(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_single_active_consumer=True)
    first, second = core.connect(), core.connect()
    first.prefetch(1)
    first.consume(queue)
    second.consume(queue)
    publish_all(client, queue, *numbered(2))
    assert (first.bodies(), second.bodies()) == ([b"0"], [])


def test_single_active_consumer_cannot_be_exclusive(client: CoreClient) -> None:
    queue = client.declare("q", x_single_active_consumer=True)
    client.send(BasicConsume(queue, exclusive=True))
    close = client.expect(ChannelClose)
    assert close.reply_code == 403
    assert close.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    assert (close.class_id, close.method_id) == (60, 20)


def test_exclusive_consumer_is_alone(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    tag = client.consume(queue, exclusive=True)
    other = core.connect()
    other.send(BasicConsume(queue))
    assert other.expect(ChannelClose).reply_code == 403
    client.call(BasicCancel(tag), BasicCancelOk)
    core.connect().consume(queue)


def test_consumers_of_a_deleted_queue_are_told(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    other = core.connect()
    other.consume(queue, "mine")
    client.call(QueueDelete(queue), QueueDeleteOk)
    assert other.expect(BasicCancel).consumer_tag == "mine"


# --- delivery limits


def test_message_is_dropped_after_its_last_delivery(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True, x_queue_type="quorum", x_delivery_limit=2)
    client.publish("", queue, b"poison")
    client.consume(queue)
    counts: list[object] = []
    for _ in range(3):
        (delivery,) = client.deliveries()
        counts.append(delivery.headers.get("x-delivery-count"))
        client.send(BasicNack(delivery.tag, False, True))
    assert counts == [None, 1, 2]
    assert client.deliveries() == []
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (0, 0)


def test_message_over_its_delivery_limit_is_dead_lettered(client: CoreClient) -> None:
    dead = client.declare("dead")
    queue = client.declare(
        "q",
        durable=True,
        x_queue_type="quorum",
        x_delivery_limit=0,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead,
    )
    client.publish("", queue, b"poison")
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.send(BasicReject(held.tag, True))
    letter = client.get(dead)
    assert letter is not None
    assert letter.headers["x-first-death-reason"] == "delivery_limit"


def test_a_large_message_for_many_connections_is_put_into_other_frames_once(core: Core) -> None:
    clients = [core.connect() for _ in range(3)]
    publisher = core.connect()
    publisher.open_channel(2)
    publisher.call(ExchangeDeclare("fan", "fanout"), ExchangeDeclareOk)
    for number, client in enumerate(clients):
        client.declare(f"q{number}")
        client.call(QueueBind(f"q{number}", "fan", ""), QueueBindOk)
        client.consume(f"q{number}")
    core.broker.turn.now_ms = core.now_ms
    publisher.connection.receive(publisher.published("fan", "", b"x" * 10_000, channel=2))
    core.broker.end_turn()
    large = [max(client.connection.outbox.chunks, key=len) for client in clients]
    assert large[0] is large[1] is large[2]
    assert core.broker.turn.framed == b"", "nothing is kept beyond the turn"
    core.settle()
    assert [client.bodies() for client in clients] == [[b"x" * 10_000]] * 3
