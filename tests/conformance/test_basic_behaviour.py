"""Publishing, getting, consuming, acknowledging, prefetch, returns, copies, direct reply-to."""

from __future__ import annotations

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.frames import frame, method_frame
from rhizome.amqp.properties import Properties, encode_header
from rhizome.testing.broker_process import wait_until
from tests.conformance.wire_driver import Channel, Content

from . import differences
from .conftest import Connect, Unique


def filled(channel: Channel, count: int, **options: object) -> str:
    """A queue with messages 0, 1, 2 ..."""
    queue = channel.declare(**options)
    publish_numbers(channel, queue, count)
    return queue


def publish_numbers(channel: Channel, queue: str, count: int) -> None:
    for number in range(count):
        channel.publish("", queue, str(number).encode())


def numbers(contents: list[Content]) -> list[int]:
    return [int(content.body) for content in contents]


# --- get


def test_get_takes_from_the_head_and_counts_the_rest(channel: Channel) -> None:
    queue = filled(channel, 3)
    got = [channel.get(queue, no_ack=False) for _ in range(3)]
    assert [(int(one.body), one.tag, one.method.message_count) for one in got if one] == [
        (0, 1, 2),
        (1, 2, 1),
        (2, 3, 0),
    ]
    assert channel.get(queue) is None


def test_get_with_no_ack_settles_at_once(channel: Channel) -> None:
    queue = filled(channel, 1)
    got = channel.get(queue, no_ack=True)
    assert got is not None
    assert got.tag == 1
    assert channel.fails(m.BasicAck(1)).code == 406


# --- consume


def test_a_consumer_gets_what_is_there_and_what_comes(channel: Channel) -> None:
    queue = filled(channel, 2)
    tag = channel.consume(queue)
    channel.publish("", queue, b"2")
    got = channel.deliveries(3)
    assert numbers(got) == [0, 1, 2]
    assert [one.tag for one in got] == [1, 2, 3]
    assert {(one.method.consumer_tag, one.method.redelivered) for one in got} == {(tag, False)}
    assert {(one.method.exchange, one.method.routing_key) for one in got} == {("", queue)}


def test_a_server_named_consumer_tag_begins_with_amq_ctag(channel: Channel) -> None:
    assert channel.consume(channel.declare()).startswith("amq.ctag-")


def test_a_tag_can_be_used_on_several_channels(channel: Channel) -> None:
    queue = channel.declare()
    second = channel.connection.channel()
    assert channel.consume(queue, "same") == second.consume(queue, "same") == "same"


def test_no_ack_deliveries_are_settled_at_once(channel: Channel) -> None:
    queue = filled(channel, 5)
    channel.consume(queue, no_ack=True)
    assert numbers(channel.deliveries(5)) == [0, 1, 2, 3, 4]
    channel.close()
    again = channel.connection.channel()
    assert again.get(queue) is None


def test_consumers_share_a_queue_in_turns(channel: Channel) -> None:
    queue = channel.declare()
    tags = [channel.consume(queue, str(number), no_ack=True) for number in range(3)]
    for _ in range(30):
        channel.publish("", queue, b"x")
    taken = [one.method.consumer_tag for one in channel.deliveries(30)]
    assert {tag: taken.count(tag) for tag in tags} == dict.fromkeys(tags, 10)


def test_cancel_ends_deliveries_and_keeps_what_was_delivered(channel: Channel) -> None:
    queue = filled(channel, 1)
    tag = channel.consume(queue)
    got = channel.delivery()
    assert channel.call(m.BasicCancel(tag), m.BasicCancelOk).consumer_tag == tag
    channel.publish("", queue, b"1")
    assert channel.is_quiet()
    channel.send(m.BasicAck(got.tag))
    left = channel.get(queue)
    assert left is not None
    assert left.body == b"1"


def test_a_cancelled_tag_can_be_used_again(channel: Channel) -> None:
    queue = channel.declare()
    for _ in range(3):
        channel.consume(queue, "mine")
        channel.call(m.BasicCancel("mine"), m.BasicCancelOk)


def test_deleting_a_queue_cancels_its_consumers(channel: Channel, unique: Unique) -> None:
    queue = channel.declare(unique("doomed"))
    tag = channel.consume(queue)
    channel.connection.channel().call(m.QueueDelete(queue), m.QueueDeleteOk)
    cancel = channel.expect(m.BasicCancel)
    assert (cancel.consumer_tag, cancel.no_wait) == (tag, True)


def test_delete_ok_comes_before_the_cancellation_on_the_same_channel(
    channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("doomed"))
    tag = channel.consume(queue)
    # py-amqp raises on a cancellation that it meets while it waits for delete-ok.
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)
    assert channel.expect(m.BasicCancel).consumer_tag == tag


def test_clients_without_the_capability_are_not_told_of_cancellation(
    connect: Connect, unique: Unique
) -> None:
    connection = connect(client_properties={"capabilities": {}})
    channel = connection.channel()
    queue = channel.declare(unique("doomed"))
    channel.consume(queue)
    connection.channel().call(m.QueueDelete(queue), m.QueueDeleteOk)
    assert channel.is_quiet()


def test_an_exclusive_consumer_gives_the_queue_up_when_cancelled(channel: Channel) -> None:
    queue = channel.declare()
    tag = channel.consume(queue, exclusive=True)
    second = channel.connection.channel()
    assert second.fails(m.BasicConsume(queue)).code == 403
    channel.call(m.BasicCancel(tag), m.BasicCancelOk)
    assert channel.connection.channel().consume(queue)


def test_higher_consumer_priorities_are_served_while_they_can_take(channel: Channel) -> None:
    queue = channel.declare()
    low, high = channel.connection.channel(), channel.connection.channel()
    low.consume(queue, "low", arguments={"x-priority": -1})
    high.qos(2)
    high.consume(queue, "high", arguments={"x-priority": 10})
    for number in range(4):
        channel.publish("", queue, str(number).encode())
    assert numbers(high.deliveries(2)) == [0, 1]
    assert numbers(low.deliveries(2)) == [2, 3]
    high.send(m.BasicAck(2, True))
    high.qos(2)
    channel.publish("", queue, b"4")
    assert numbers(high.deliveries(1)) == [4]
    assert low.is_quiet()


# --- acknowledgements


def test_ack_multiple_covers_all_up_to_its_tag(channel: Channel) -> None:
    queue = filled(channel, 5)
    channel.consume(queue)
    got = channel.deliveries(5)
    channel.send(m.BasicAck(got[2].tag, True))
    channel.close()
    again = channel.connection.channel()
    assert [int(again.get_wait(queue).body) for _ in range(2)] == [3, 4]


def test_ack_zero_multiple_covers_everything(channel: Channel) -> None:
    queue = filled(channel, 5)
    channel.consume(queue)
    channel.deliveries(5)
    channel.send(m.BasicAck(0, True), m.BasicAck(0, True))
    channel.close()
    assert channel.connection.channel().get(queue) is None


def test_acks_may_come_in_any_order(channel: Channel) -> None:
    queue = filled(channel, 5)
    channel.consume(queue)
    tags = [one.tag for one in channel.deliveries(5)]
    for tag in (tags[3], tags[0], tags[4]):
        channel.send(m.BasicAck(tag))
    channel.close()
    again = channel.connection.channel()
    assert [int(again.get_wait(queue).body) for _ in range(2)] == [1, 2]


def test_tags_are_counted_per_channel_over_all_consumers(channel: Channel) -> None:
    first, second = filled(channel, 1), filled(channel, 1)
    channel.consume(first)
    assert channel.delivery().tag == 1
    channel.consume(second)
    assert channel.delivery().tag == 2
    assert channel.connection.channel().fails(m.BasicAck(1)).code == 406


@pytest.mark.parametrize("count", [1, 3, 10])
def test_nack_multiple_requeues_all_in_their_old_order(channel: Channel, count: int) -> None:
    queue = filled(channel, 12)
    got = [channel.get(queue, no_ack=False) for _ in range(count)]
    last = got[-1]
    assert last is not None
    channel.send(m.BasicNack(last.tag, True, True))
    channel.qos(0)
    assert [int(channel.get_wait(queue).body) for _ in range(12)] == list(range(12))


def test_rejected_messages_return_to_their_old_place(channel: Channel) -> None:
    queue = filled(channel, 5)
    got = [channel.get(queue, no_ack=False) for _ in range(4)]
    tags = [one.tag for one in got if one]
    for tag in (tags[2], tags[0]):
        channel.send(m.BasicReject(tag, True))
    channel.qos(0)
    taken = [channel.get_wait(queue) for _ in range(3)]
    assert [(int(one.body), one.method.redelivered) for one in taken] == [
        (0, True),
        (2, True),
        (4, False),
    ]


def test_reject_without_requeue_drops(channel: Channel) -> None:
    queue = filled(channel, 2)
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.send(m.BasicReject(got.tag, False))
    assert channel.bodies(queue) == [b"1"]


def test_nack_zero_multiple_covers_everything(channel: Channel) -> None:
    queue = filled(channel, 3)
    channel.consume(queue, "t")
    channel.deliveries(3)
    channel.call(m.BasicCancel("t"), m.BasicCancelOk)
    channel.send(m.BasicNack(0, True, True))
    assert [int(channel.get_wait(queue).body) for _ in range(3)] == [0, 1, 2]


def test_a_requeued_message_goes_to_another_consumer_or_back(channel: Channel) -> None:
    queue = filled(channel, 1)
    channel.consume(queue)
    for expected in (False, True, True):
        got = channel.delivery()
        assert got.method.redelivered is expected
        channel.send(m.BasicReject(got.tag, True))


def test_recover_requeues_and_redelivers(channel: Channel) -> None:
    queue = filled(channel, 3)
    channel.consume(queue)
    assert numbers(channel.deliveries(3)) == [0, 1, 2]
    channel.send(m.BasicRecover(True))
    got = [channel.next() for _ in range(4)]
    assert sum(isinstance(one, m.BasicRecoverOk) for one in got) == 1
    again = [one for one in got if isinstance(one, Content)]
    assert numbers(again) == [0, 1, 2]
    assert [one.tag for one in again] == [4, 5, 6]
    assert all(one.method.redelivered for one in again)


def test_recover_async_has_no_answer(channel: Channel) -> None:
    queue = filled(channel, 1)
    channel.consume(queue)
    channel.delivery()
    channel.send(m.BasicRecoverAsync(True))
    got = channel.delivery()
    assert (got.tag, got.method.redelivered) == (2, True)
    assert channel.is_quiet()


# --- prefetch


def test_prefetch_limits_unacked_deliveries_of_each_consumer(channel: Channel) -> None:
    queue = channel.declare()
    channel.qos(2)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish_numbers(channel, queue, 10)
    got = channel.deliveries(4)
    assert sorted(one.method.consumer_tag for one in got) == ["a", "a", "b", "b"]
    assert channel.is_quiet()
    mine = [one for one in got if one.method.consumer_tag == "a"]
    channel.send(m.BasicAck(mine[0].tag))
    assert channel.delivery().method.consumer_tag == "a"
    assert channel.is_quiet()


@differences.GLOBAL_PREFETCH
def test_global_prefetch_is_shared_by_the_channel(channel: Channel) -> None:
    queue = channel.declare()
    channel.qos(3, global_=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish_numbers(channel, queue, 10)
    got = channel.deliveries(3)
    assert channel.is_quiet()
    channel.send(m.BasicAck(got[0].tag))
    channel.delivery()
    assert channel.is_quiet()


@differences.GLOBAL_PREFETCH
def test_both_prefetch_limits_hold_together(channel: Channel) -> None:
    queue = channel.declare()
    channel.qos(2)
    channel.qos(3, global_=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    publish_numbers(channel, queue, 10)
    tags = sorted(one.method.consumer_tag for one in channel.deliveries(3))
    assert tags in (["a", "a", "b"], ["a", "b", "b"])
    assert channel.is_quiet()


def test_a_prefetch_for_consumers_lifts_the_global_one(channel: Channel) -> None:
    queue = filled(channel, 5)
    channel.qos(1, global_=True)
    channel.qos(4)
    channel.consume(queue)
    channel.deliveries(4)
    assert channel.is_quiet()


def test_a_new_prefetch_applies_to_new_consumers_only(channel: Channel) -> None:
    queue = filled(channel, 10)
    channel.qos(1)
    channel.consume(queue, "a")
    channel.delivery()
    channel.qos(3)
    assert channel.is_quiet()
    channel.consume(queue, "b")
    assert {one.method.consumer_tag for one in channel.deliveries(3)} == {"b"}
    assert channel.is_quiet()


@differences.GLOBAL_PREFETCH
def test_raising_the_global_prefetch_lets_more_through(channel: Channel) -> None:
    queue = filled(channel, 5)
    channel.qos(1, global_=True)
    channel.consume(queue)
    channel.delivery()
    assert channel.is_quiet()
    channel.send(m.BasicQos(0, 3, True))
    got = [channel.next() for _ in range(3)]
    assert sum(isinstance(one, m.BasicQosOk) for one in got) == 1
    assert channel.is_quiet()


def test_prefetch_zero_means_no_limit(channel: Channel) -> None:
    queue = filled(channel, 100)
    channel.qos(0)
    channel.consume(queue)
    assert len(channel.deliveries(100)) == 100


def test_prefetch_does_not_limit_get_or_no_ack(channel: Channel) -> None:
    queue = filled(channel, 10)
    channel.qos(1)
    assert all(channel.get(queue, no_ack=False) for _ in range(5))
    channel.consume(queue, no_ack=True)
    assert len(channel.deliveries(5)) == 5


def test_ack_multiple_frees_prefetch_for_all_it_covers(channel: Channel) -> None:
    queue = filled(channel, 9)
    channel.qos(3)
    channel.consume(queue)
    for _ in range(3):
        got = channel.deliveries(3)
        channel.send(m.BasicAck(got[-1].tag, True))
    assert channel.is_quiet()


def test_a_slow_consumer_leaves_messages_to_the_fast_one(channel: Channel) -> None:
    queue = filled(channel, 20)
    slow, fast = channel.connection.channel(), channel.connection.channel()
    for one in (slow, fast):
        one.qos(1)
        one.consume(queue)
    held = slow.delivery()
    taken = []
    for _ in range(19):
        got = fast.delivery()
        taken.append(int(got.body))
        fast.send(m.BasicAck(got.tag))
    assert sorted([*taken, int(held.body)]) == list(range(20))


# --- mandatory


def test_an_unroutable_mandatory_message_is_returned_whole(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("nowhere"))
    properties = Properties(headers={"a": [1, None]}, message_id="m", delivery_mode=2)
    channel.publish(exchange, "key", b"body", properties, mandatory=True)
    got = channel.content(m.BasicReturn)
    method = got.method
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key, got.body) == (exchange, "key", b"body")
    assert (got.headers, got.properties.message_id) == ({"a": [1, None]}, "m")


def test_an_unroutable_message_that_is_not_mandatory_is_dropped(
    channel: Channel, unique: Unique
) -> None:
    channel.publish(channel.declare_exchange(unique("nowhere")), "key", b"body")
    assert channel.is_quiet()


def test_a_routed_mandatory_message_is_not_returned(channel: Channel) -> None:
    queue = channel.declare()
    channel.publish("", queue, b"x", mandatory=True)
    assert channel.get(queue) is not None


def test_a_large_returned_message_comes_in_frames(channel: Channel) -> None:
    body = b"0123456789" * 50_000
    channel.publish("", "no-such-queue", body, mandatory=True)
    assert channel.content(m.BasicReturn).body == body


# --- copies


def test_cc_and_bcc_are_further_routing_keys_and_bcc_is_removed(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("copies"))
    queues = {key: channel.declare() for key in ("to", "copy", "blind")}
    for key, queue in queues.items():
        channel.bind(queue, exchange, key)
    headers: dict[str, object] = {"CC": ["copy"], "BCC": ["blind"], "other": 1}
    channel.publish(exchange, "to", b"x", Properties(headers=headers))
    for queue in queues.values():
        got = channel.get_wait(queue)
        assert got.headers == {"CC": ["copy"], "other": 1}
        assert got.method.routing_key == "to"


def test_a_queue_reached_by_key_and_copy_gets_one_message(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(unique("copies"))
    queue = channel.declare()
    for key in ("a", "b"):
        channel.bind(queue, exchange, key)
    channel.publish(exchange, "a", b"x", Properties(headers={"CC": ["b", "a"]}))
    assert channel.bodies(queue) == [b"x"]


def test_copies_reach_queues_of_the_default_exchange(channel: Channel) -> None:
    first, second = channel.declare(), channel.declare()
    channel.publish("", first, b"x", Properties(headers={"CC": [second]}))
    assert channel.get_wait(second).method.routing_key == first


def test_copies_are_routed_through_bindings_between_exchanges(
    channel: Channel, unique: Unique
) -> None:
    first, second = (channel.declare_exchange(unique(name)) for name in ("first", "second"))
    queue = channel.declare()
    channel.call(m.ExchangeBind(second, first, "to"), m.ExchangeBindOk)
    channel.bind(queue, second, "copy")
    # The key leads to the second exchange, and only the copy's key leads on from there.
    channel.publish(first, "to", b"x", Properties(headers={"CC": ["copy"]}))
    assert channel.get_wait(queue).method.routing_key == "to"


def test_an_alternate_exchange_gets_what_neither_key_nor_copies_match(
    channel: Channel, unique: Unique
) -> None:
    spare = channel.declare_exchange(unique("spare"), "fanout")
    arguments: dict[str, object] = {"alternate-exchange": spare}
    exchange = channel.declare_exchange(unique("main"), arguments=arguments)
    matched, rest = channel.declare(), channel.declare()
    channel.bind(matched, exchange, "copy")
    channel.bind(rest, spare, "")
    channel.publish(exchange, "to", b"copied", Properties(headers={"CC": ["copy"]}))
    channel.publish(exchange, "to", b"spare", Properties(headers={"CC": ["neither"]}))
    assert channel.get_wait(rest).body == b"spare"
    assert channel.bodies(matched) == [b"copied"]


# --- user id


def test_the_senders_own_user_id_is_accepted(channel: Channel) -> None:
    queue = channel.declare()
    channel.publish("", queue, b"x", Properties(user_id="guest"))
    got = channel.get(queue)
    assert got is not None
    assert got.properties.user_id == "guest"


# --- direct reply-to

REPLY_TO = "amq.rabbitmq.reply-to"


def test_direct_replies_come_back_to_the_asker_only(channel: Channel, other: Channel) -> None:
    requests = other.declare()
    tag = channel.consume(REPLY_TO, no_ack=True)
    channel.publish("", requests, b"ask", Properties(reply_to=REPLY_TO, correlation_id="1"))
    request = other.get_wait(requests)
    address = request.properties.reply_to
    assert address is not None
    assert address.startswith(f"{REPLY_TO}.")
    other.publish("", address, b"answer", Properties(correlation_id="1"))
    answer = channel.delivery()
    assert (answer.body, answer.method.consumer_tag) == (b"answer", tag)
    assert (answer.method.exchange, answer.method.routing_key) == ("", address)
    assert other.is_quiet()


@differences.REPLY_ADDRESS
def test_a_reply_address_looks_like_a_queue_until_its_consumer_goes(
    channel: Channel, other: Channel
) -> None:
    requests = other.declare()
    channel.consume(REPLY_TO, "replies", no_ack=True)
    channel.publish("", requests, b"ask", Properties(reply_to=REPLY_TO))
    address = other.get_wait(requests).properties.reply_to
    assert address is not None
    declared = other.call(m.QueueDeclare(address, passive=True), m.QueueDeclareOk)
    assert (declared.queue, declared.message_count, declared.consumer_count) == (address, 0, 1)
    channel.close()
    other.publish("", address, b"late", mandatory=True)
    assert other.content(m.BasicReturn).method.reply_code == 312


def test_the_reply_queue_itself_can_be_declared_at_any_time(channel: Channel) -> None:
    for passive in (False, True):
        declared = channel.call(m.QueueDeclare(REPLY_TO, passive=passive), m.QueueDeclareOk)
        assert declared.queue == REPLY_TO


def test_a_reply_consumer_can_be_cancelled_and_set_again(channel: Channel, other: Channel) -> None:
    requests = other.declare()
    for number in range(3):
        tag = channel.consume(REPLY_TO, no_ack=True)
        channel.publish("", requests, b"ask", Properties(reply_to=REPLY_TO))
        address = other.get_wait(requests).properties.reply_to
        assert address is not None
        other.publish("", address, str(number).encode())
        assert channel.delivery().body == str(number).encode()
        channel.call(m.BasicCancel(tag), m.BasicCancelOk)


def test_any_other_reply_to_is_left_as_it_is(channel: Channel) -> None:
    queue = channel.declare()
    channel.publish("", queue, b"x", Properties(reply_to="somewhere"))
    got = channel.get(queue)
    assert got is not None
    assert got.properties.reply_to == "somewhere"


# --- sizes and order


@pytest.mark.parametrize("frame_max", [pytest.param(4096, marks=differences.SMALL_FRAMES), 131072])
@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 131_064, 131_065, 3_000_000])
def test_bodies_of_any_size_come_back(connect: Connect, frame_max: int, size: int) -> None:
    channel = connect(frame_max=frame_max).channel()
    queue = channel.declare()
    body = (b"%07d," % size) * (size // 8 + 1)
    channel.publish("", queue, body[:size])
    assert channel.get_wait(queue).body == body[:size]


@differences.SMALL_FRAMES
def test_a_frame_whose_payload_alone_is_as_large_as_frame_max_is_taken(connect: Connect) -> None:
    """Some clients, amqpstorm for one, forget the eight bytes around it."""
    connection = connect(frame_max=4096)
    channel = connection.channel()
    queue = channel.declare()
    number = channel.number
    connection.send(
        method_frame(number, m.BasicPublish("", queue))
        + frame(2, number, encode_header(5000, Properties()))
        + frame(3, number, b"x" * 4096)
        + frame(3, number, b"x" * 904)
    )
    assert channel.get_wait(queue).body == b"x" * 5000


def test_a_body_may_come_in_frames_of_any_size(channel: Channel) -> None:
    queue = channel.declare()
    number = channel.number
    parts = [b"", b"a", b"bc", b"", b"d" * 1000, b"e"]
    body = b"".join(parts)
    data = method_frame(number, m.BasicPublish("", queue))
    data += frame(2, number, encode_header(len(body), Properties()))
    data += b"".join(frame(3, number, part) for part in parts)
    for offset in range(0, len(data), 7):
        channel.connection.send(data[offset : offset + 7])
    assert channel.get_wait(queue).body == body


def test_order_holds_from_one_publisher_to_one_consumer(channel: Channel, other: Channel) -> None:
    queue = channel.declare()
    channel.qos(50)
    channel.consume(queue)
    other.connection.send(
        b"".join(other.publish_frames("", queue, str(number).encode()) for number in range(2000))
    )
    seen = []
    for _ in range(2000):
        got = channel.delivery()
        seen.append(int(got.body))
        if len(seen) % 25 == 0:
            channel.send(m.BasicAck(got.tag, True))
    assert seen == list(range(2000))


def test_messages_held_by_a_dropped_connection_are_redelivered_in_order(
    connect: Connect, channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("shared"), exclusive=False)
    for number in range(10):
        channel.publish("", queue, str(number).encode())
    holder = connect()
    taker = holder.channel()
    taker.consume(queue)
    taker.deliveries(10)
    holder.close()
    wait_until(lambda: channel.count(queue) == 10, "all to be requeued")
    got = [channel.get_wait(queue) for _ in range(10)]
    assert numbers(got) == list(range(10))
    assert all(one.method.redelivered for one in got)
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)
