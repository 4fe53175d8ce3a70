"""Channels: numbers, reuse, limits, pipelining, close from either side."""

from __future__ import annotations

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.frames import method_frame
from tests.conformance.wire_driver import Channel, ChannelClosed, Connection

from .conftest import Connect, Unique


def test_a_number_can_be_used_again_after_close(connection: Connection) -> None:
    for _ in range(50):
        channel = connection.channel(7)
        channel.close()


def test_a_number_can_be_used_again_after_an_error(connection: Connection, unique: Unique) -> None:
    for _ in range(20):
        channel = connection.channel(7)
        assert channel.fails(m.QueueDeclare(unique("missing"), passive=True)).code == 404


def test_a_reopened_channel_starts_afresh(connection: Connection) -> None:
    channel = connection.channel(3)
    queue = channel.declare()
    channel.confirm()
    channel.publish_confirmed("", queue, b"1")
    assert channel.get(queue, no_ack=False) is not None
    channel.close()
    again = connection.channel(3)
    got = again.get_wait(queue, no_ack=False)
    assert (got.tag, got.method.redelivered) == (1, True)
    again.publish("", queue, b"2")
    again.call(m.TxSelect(), m.TxSelectOk)  # it is not in confirm mode any more
    assert again.fails(m.BasicGet("")).code == 404  # and has no last queue


def test_all_agreed_channels_can_be_open_and_not_one_more(connect: Connect) -> None:
    connection = connect(channel_max=100)
    channels = [connection.channel(number) for number in range(1, 101)]
    assert len({channel.declare() for channel in channels}) == 100
    channels[0].close()
    connection.channel(1)


def test_all_2047_channels_can_be_open(connect: Connect) -> None:
    connection = connect()
    numbers = range(1, 2048)
    connection.send(b"".join(method_frame(number, m.ChannelOpen()) for number in numbers))
    for number in numbers:
        got = connection.next_frame(number)
        assert isinstance(got.method(), m.ChannelOpenOk)
    assert Channel(connection, 2047).declare()


def test_a_number_above_the_agreed_maximum_works_while_fewer_are_open(connect: Connect) -> None:
    connection = connect(channel_max=2)
    assert connection.channel(500).declare()


def test_commands_can_be_pipelined_without_waiting(connection: Connection, unique: Unique) -> None:
    queue, exchange = unique("queue"), unique("exchange")
    channel = Channel(connection, 5)
    connection.send(
        method_frame(5, m.ChannelOpen())
        + method_frame(5, m.QueueDeclare(queue, exclusive=True))
        + method_frame(5, m.ExchangeDeclare(exchange, "fanout", auto_delete=True))
        + method_frame(5, m.QueueBind(queue, exchange, ""))
        + method_frame(5, m.ConfirmSelect())
        + channel.publish_frames(exchange, "", b"one")
        + channel.publish_frames(exchange, "", b"two")
        + method_frame(5, m.BasicQos(0, 10))
    )
    channel.expect(m.ChannelOpenOk)
    channel.expect(m.QueueDeclareOk)
    channel.expect(m.ExchangeDeclareOk)
    channel.expect(m.QueueBindOk)
    channel.expect(m.ConfirmSelectOk)
    others = [channel.next() for _ in range(2)]
    while not any(isinstance(other, m.BasicQosOk) for other in others):
        others.append(channel.next())
    assert {type(other) for other in others} == {m.BasicAck, m.BasicQosOk}


def test_answers_come_in_the_order_of_the_questions(connection: Connection) -> None:
    channel = connection.channel()
    queues = [channel.declare() for _ in range(3)]
    for queue in queues:
        channel.publish("", queue, queue.encode())
    channel.send(*(m.BasicGet(queue, True) for queue in queues * 10))
    answers = [channel.next() for _ in range(30)]
    assert [answer.body.decode() for answer in answers[:3]] == queues
    assert all(isinstance(answer, m.BasicGetEmpty) for answer in answers[3:])


def test_what_follows_an_error_is_ignored_until_close_ok(
    connection: Connection, unique: Unique
) -> None:
    channel = connection.channel(4)
    ignored = unique("ignored")
    channel.send(m.QueueDeclare(unique("missing"), passive=True), m.QueueDeclare(ignored))
    channel.publish("", ignored, b"x")
    with pytest.raises(ChannelClosed):
        channel.next()
    again = connection.channel(4)
    assert again.fails(m.QueueDeclare(ignored, passive=True)).code == 404


def test_close_crossing_an_error_is_settled(connection: Connection, unique: Unique) -> None:
    connection.channel(6)
    connection.send(
        method_frame(6, m.QueueDeclare(unique("missing"), passive=True))
        + method_frame(6, m.ChannelClose(200, "bye"))
    )
    close = connection.next_frame(6).method()
    assert isinstance(close, m.ChannelClose)
    assert close.reply_code == 404
    answer = connection.next_frame(6).method()
    assert isinstance(answer, m.ChannelCloseOk)
    connection.send_method(6, m.ChannelCloseOk())
    assert connection.channel(6).declare()


def test_an_error_on_one_channel_leaves_the_others_alone(
    connection: Connection, unique: Unique
) -> None:
    first, second = connection.channel(), connection.channel()
    queue = second.declare()
    tag = second.consume(queue)
    assert first.fails(m.QueueDeclare(unique("missing"), passive=True)).code == 404
    second.publish("", queue, b"still")
    assert second.delivery().method.consumer_tag == tag


def test_closing_a_channel_cancels_its_consumers_and_requeues_what_they_held(
    connection: Connection,
) -> None:
    first, second = connection.channel(), connection.channel()
    queue = first.declare()
    first.consume(queue)
    for body in (b"a", b"b", b"c"):
        first.publish("", queue, body)
    first.deliveries(3)
    first.close()
    got = [second.get_wait(queue) for _ in range(3)]
    assert [(one.body, one.method.redelivered) for one in got] == [
        (b"a", True),
        (b"b", True),
        (b"c", True),
    ]
    declared = second.call(m.QueueDeclare(queue, passive=True), m.QueueDeclareOk)
    assert declared.consumer_count == 0


def test_flow_on_is_answered(channel: Channel) -> None:
    assert channel.call(m.ChannelFlow(True), m.ChannelFlowOk).active is True


def test_channel_close_carries_on_with_frames_of_other_channels_in_between(
    connection: Connection,
) -> None:
    first, second = connection.channel(), connection.channel()
    queue = second.declare()
    connection.send(
        method_frame(first.number, m.ChannelClose(200, "bye"))
        + second.publish_frames("", queue, b"x")
        + method_frame(second.number, m.BasicGet(queue, True))
    )
    first.expect(m.ChannelCloseOk)
    assert second.next().body == b"x"


def test_content_of_two_channels_may_interleave(connection: Connection) -> None:
    first, second = connection.channel(), connection.channel()
    queue = first.declare()
    body = b"x" * 200_000

    def frames_of(data: bytes) -> list[bytes]:
        frames = []
        while data:
            end = 8 + int.from_bytes(data[3:7], "big")
            frames.append(data[:end])
            data = data[end:]
        return frames

    ours = frames_of(first.publish_frames("", queue, b"1" + body))
    theirs = frames_of(second.publish_frames("", queue, b"2" + body))
    for pair in zip(ours, theirs, strict=True):
        connection.send(b"".join(pair))
    got = {first.get_wait(queue).body for _ in range(2)}
    assert got == {b"1" + body, b"2" + body}
