"""pika's BlockingConnection."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika import exceptions
from pika.adapters.blocking_connection import BlockingChannel

from rhizome.testing.broker_process import wait_until

from .conftest import PATIENCE_SECONDS, Connect, patterned_body, wait_for_events

Unique = Callable[[str], str]
FULL_PROPERTIES = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "headers": {
        "text": "grüße",
        "number": 2**40,
        "negative": -5,
        "flag": True,
        "nothing": None,
        "list": [1, "two", {"three": 3}],
        "table": {"a": {"b": {"c": "deep"}}},
    },
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "600000",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "greeting",
    "user_id": "guest",
    "app_id": "interop",
    "cluster_id": "k",
}


def get_one(channel: BlockingChannel, queue: str) -> tuple:
    """The next message of a queue, waiting for it; acknowledged."""
    for method, properties, body in channel.consume(queue, inactivity_timeout=PATIENCE_SECONDS):
        assert method is not None, f"nothing came from {queue} within {PATIENCE_SECONDS} s"
        channel.basic_ack(method.delivery_tag)
        channel.cancel()
        return method, properties, body
    raise AssertionError("the consumer was cancelled")


def exclusive_queue(channel: BlockingChannel, **options: object) -> str:
    return channel.queue_declare("", exclusive=True, **options).method.queue


def test_all_properties_and_headers_come_back_as_they_were_sent(channel: BlockingChannel) -> None:
    queue = exclusive_queue(channel)
    channel.basic_publish("", queue, b"hello", pika.BasicProperties(**FULL_PROPERTIES))
    method, properties, body = get_one(channel, queue)
    assert body == b"hello"
    assert (method.exchange, method.routing_key, method.redelivered) == ("", queue, False)
    assert {name: getattr(properties, name) for name in FULL_PROPERTIES} == FULL_PROPERTIES


def test_server_names_begin_with_amq_gen_and_tags_with_amq_ctag(channel: BlockingChannel) -> None:
    queue = exclusive_queue(channel)
    assert queue.startswith("amq.gen-")
    tag = channel.basic_consume(queue, lambda *_: None, consumer_tag="")
    assert tag.startswith(("ctag1.", "amq.ctag-"))


@pytest.mark.parametrize("frame_max", [4096, 8192, 70000, 131072])
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 131063, 131064, 131065, 1_000_000])
def test_bodies_around_the_frame_size_come_back(
    pika_connect: Connect, frame_max: int, size: int
) -> None:
    channel = pika_connect(frame_max=frame_max).channel()
    queue = exclusive_queue(channel)
    body = patterned_body(size)
    channel.basic_publish("", queue, body)
    assert get_one(channel, queue)[2] == body


def test_a_body_of_ten_megabytes_crosses_connections_of_different_frame_sizes(
    pika_connect: Connect, unique: Unique
) -> None:
    queue = unique("large")
    sender = pika_connect(frame_max=131072).channel()
    sender.queue_declare(queue, auto_delete=True)
    receiver = pika_connect(frame_max=4096).channel()
    body = patterned_body(10_000_000)
    sender.confirm_delivery()
    sender.basic_publish("", queue, body)
    assert get_one(receiver, queue)[2] == body


def test_a_confirmed_publish_returns_and_the_message_is_there(channel: BlockingChannel) -> None:
    queue = exclusive_queue(channel)
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", queue, str(number).encode(), mandatory=True)
    got = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(100)]
    assert got == [str(number).encode() for number in range(100)]


def test_mandatory_and_unroutable_raises(channel: BlockingChannel, unique: Unique) -> None:
    channel.confirm_delivery()
    with pytest.raises(exceptions.UnroutableError) as raised:
        channel.basic_publish("", unique("nowhere"), b"lost", mandatory=True)
    returned = raised.value.messages[0]
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert returned.body == b"lost"


def test_a_full_queue_that_rejects_nacks_the_publish(channel: BlockingChannel) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = exclusive_queue(channel, arguments=full)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"first")
    with pytest.raises(exceptions.NackError):
        channel.basic_publish("", queue, b"second")


def test_transactions_commit_and_roll_back(channel: BlockingChannel) -> None:
    queue = exclusive_queue(channel)
    channel.tx_select()
    channel.basic_publish("", queue, b"undone")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"done")
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    channel.tx_commit()
    assert channel.basic_get(queue)[2] == b"done"
    assert channel.basic_get(queue)[0] is None


def test_a_missing_queue_closes_the_channel_and_not_the_connection(
    pika_connect: Connect, unique: Unique
) -> None:
    connection = pika_connect()
    name = unique("missing")
    with pytest.raises(exceptions.ChannelClosedByBroker) as raised:
        connection.channel().queue_declare(name, passive=True)
    expected = f"NOT_FOUND - no queue '{name}' in vhost '/'"
    assert (raised.value.reply_code, raised.value.reply_text) == (404, expected)
    assert exclusive_queue(connection.channel())


def test_publishing_to_a_missing_exchange_is_reported(
    channel: BlockingChannel, unique: Unique
) -> None:
    channel.confirm_delivery()
    with pytest.raises(exceptions.ChannelClosedByBroker) as raised:
        channel.basic_publish(unique("missing"), "k", b"x")
    assert raised.value.reply_code == 404


def test_a_wrong_password_is_refused(pika_connect: Connect) -> None:
    with pytest.raises(exceptions.ProbableAuthenticationError, match="Login was refused"):
        pika_connect(password="wrong")


def test_an_unknown_vhost_is_refused(pika_connect: Connect) -> None:
    with pytest.raises(exceptions.AMQPConnectionError) as raised:
        pika_connect(virtual_host="no-such-vhost")
    assert "vhost no-such-vhost not found" in repr(raised.value)


def test_rpc_over_direct_reply_to(pika_connect: Connect) -> None:
    server = pika_connect().channel()
    requests = exclusive_queue(server)
    caller = pika_connect().channel()
    answers: list[bytes] = []
    caller.basic_consume(
        "amq.rabbitmq.reply-to",
        lambda _channel, _method, _properties, body: answers.append(body),
        auto_ack=True,
    )
    # An exclusive queue can be published to, though not consumed, by other connections.
    reply_to = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    caller.basic_publish("", requests, b"21", reply_to)
    _, asked, body = get_one(server, requests)
    assert asked.reply_to.startswith("amq.rabbitmq.reply-to.")
    server.basic_publish("", asked.reply_to, str(int(body) * 2).encode())
    wait_for_events(caller.connection, lambda: bool(answers))
    assert answers == [b"42"]


def test_rpc_over_a_private_reply_queue(pika_connect: Connect, unique: Unique) -> None:
    server, caller = pika_connect().channel(), pika_connect().channel()
    requests = unique("requests")
    server.queue_declare(requests, auto_delete=True)
    replies = exclusive_queue(caller)
    caller.basic_publish("", requests, b"5", pika.BasicProperties(reply_to=replies))
    _, asked, body = get_one(server, requests)
    server.basic_publish("", asked.reply_to, body * 2)
    assert get_one(caller, replies)[2] == b"55"


def test_two_hundred_channels_work_side_by_side(pika_connect: Connect) -> None:
    connection = pika_connect()
    channels = [connection.channel() for _ in range(200)]
    queues = [exclusive_queue(channel) for channel in channels]
    for number, channel in enumerate(channels):
        channel.basic_publish("", queues[-1 - number], str(number).encode())
    got = [get_one(channel, queue)[2] for channel, queue in zip(channels, queues, strict=True)]
    assert got == [str(199 - number).encode() for number in range(200)]


def test_more_channels_than_negotiated_are_refused(pika_connect: Connect) -> None:
    connection = pika_connect(channel_max=4)
    for _ in range(4):
        connection.channel()
    with pytest.raises(exceptions.ConnectionClosed):
        connection.channel(5)


def test_heartbeats_keep_an_idle_connection_open(pika_connect: Connect) -> None:
    connection = pika_connect(heartbeat=2)
    channel = connection.channel()
    # Longer than the broker puts up with silence.
    connection.process_data_events(time_limit=6)
    assert exclusive_queue(channel)


def test_unacked_messages_come_back_redelivered_after_the_channel_closes(
    pika_connect: Connect,
) -> None:
    connection = pika_connect()
    first = connection.channel()
    queue = exclusive_queue(first)
    for body in (b"a", b"b", b"c"):
        first.basic_publish("", queue, body)
    assert [first.basic_get(queue)[2] for _ in range(2)] == [b"a", b"b"]
    first.close()
    second = connection.channel()
    got = [second.basic_get(queue) for _ in range(3)]
    assert [body for _, _, body in got] == [b"a", b"b", b"c"]
    assert [method.redelivered for method, _, _ in got] == [True, True, False]


def test_prefetch_limits_what_a_consumer_holds(pika_connect: Connect) -> None:
    connection = pika_connect()
    channel = connection.channel()
    queue = exclusive_queue(channel)
    for number in range(10):
        channel.basic_publish("", queue, str(number).encode())
    channel.basic_qos(prefetch_count=3)
    held: list[int] = []
    channel.basic_consume(queue, lambda _c, method, _p, _b: held.append(method.delivery_tag))
    wait_for_events(connection, lambda: len(held) == 3)
    assert channel.queue_declare(queue, passive=True).method.message_count == 7
    channel.basic_ack(held[1], multiple=True)
    wait_for_events(connection, lambda: len(held) == 5)


def test_the_consumer_is_told_when_its_queue_is_deleted(
    pika_connect: Connect, unique: Unique
) -> None:
    queue = unique("doomed")
    connection = pika_connect()
    channel = connection.channel()
    channel.queue_declare(queue)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    pika_connect().channel().queue_delete(queue)
    wait_for_events(connection, lambda: bool(cancelled))
    assert cancelled == [tag]


def test_topic_headers_and_fanout_exchanges_route(channel: BlockingChannel, unique: Unique) -> None:
    queue = exclusive_queue(channel)
    for kind, key, arguments in (
        ("topic", "stock.*.nyse.#", None),
        ("fanout", "", None),
        ("direct", "k", None),
        ("headers", "", {"x-match": "all", "colour": "red", "size": 3}),
    ):
        exchange = unique(kind)
        channel.exchange_declare(exchange, kind, auto_delete=True)
        channel.queue_bind(queue, exchange, key, arguments)
        headers = pika.BasicProperties(headers={"colour": "red", "size": 3, "more": 1})
        routing_key = "stock.ibm.nyse.today.now" if kind == "topic" else key
        channel.basic_publish(exchange, routing_key, kind.encode(), headers)
        assert get_one(channel, queue)[2] == kind.encode()
        channel.basic_publish(exchange, "other", b"stray", pika.BasicProperties(headers={}))
        expected = b"stray" if kind == "fanout" else None
        assert channel.basic_get(queue, auto_ack=True)[2] == expected


def test_a_dropped_connection_gives_its_exclusive_queue_up(
    pika_connect: Connect, unique: Unique
) -> None:
    queue = unique("mine")
    first, second = pika_connect(), pika_connect()
    first.channel().queue_declare(queue, exclusive=True)

    def refusal() -> int:
        with pytest.raises(exceptions.ChannelClosedByBroker) as raised:
            second.channel().queue_declare(queue, passive=True)
        return raised.value.reply_code

    assert refusal() == 405
    first.close()
    # Other brokers of a cluster are told of it, and nobody waits until they know.
    wait_until(lambda: refusal() != 405, f"{queue} to be given up")
    assert refusal() == 404
