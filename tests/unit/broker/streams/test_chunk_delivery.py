"""Consumers that get a stream in chunks."""

from __future__ import annotations

import pytest

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
)
from rhizome.journal.streams.stream_format import ChunkHead, StreamEntry, check_chunk, entries_of
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core


@pytest.fixture
def core() -> Core:
    return make_core()


def declare(client: CoreClient) -> None:
    arguments: dict[str, object] = {"x-queue-type": "stream"}
    client.call(QueueDeclare("s", durable=True, arguments=arguments), QueueDeclareOk)


def consume(client: CoreClient, offset: object, prefetch: int = 10, **others: object) -> None:
    client.prefetch(prefetch)
    given = {"x-stream-offset": offset, "x-stream-chunks": True, **others}
    client.send(BasicConsume("s", "", arguments=given))


def publish(client: CoreClient, *bodies: bytes) -> None:
    """In one turn, so in one chunk."""
    client.send_bytes(b"".join(client.published("", "s", body) for body in bodies))


def entries(delivery: Content) -> list[StreamEntry]:
    head = ChunkHead(delivery.body, 0)
    assert head.size == len(delivery.body)
    check_chunk(delivery.body, 0, head.size)
    assert delivery.headers["x-stream-count"] == head.count
    assert delivery.headers["x-stream-offset"] == head.first
    return entries_of(delivery.body, 0, head)


def test_first_delivery_tells_the_bounds_even_of_an_empty_stream(core: Core) -> None:
    client = core.connect()
    declare(client)
    consume(client, "next")
    client.pick(BasicConsumeOk)
    (told,) = client.deliveries()
    assert told.body == b""
    size = told.headers.pop("x-stream-bytes")
    assert isinstance(size, int)
    assert told.headers == {
        "x-stream-offset": 0,
        "x-stream-count": 0,
        "x-stream-first": 0,
        "x-stream-next": 0,
    }


def test_chunks_come_whole_and_as_they_were_written(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, b"a", b"b", b"c")
    publish(client, b"d")
    reader = core.connect()
    consume(reader, 1)
    reader.pick(BasicConsumeOk)
    told, first, second = reader.deliveries()
    assert (told.headers["x-stream-offset"], told.headers["x-stream-next"]) == (1, 4)
    assert [entry.offset for entry in entries(first)] == [0, 1, 2]
    assert [entry.offset for entry in entries(second)] == [3]
    assert all(entry.tail == b"\0\x01s" for entry in entries(first))
    publish(client, b"e")
    (third,) = reader.deliveries()
    assert [entry.offset for entry in entries(third)] == [4]


def test_start_by_time_is_told_as_an_offset(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, b"a", b"b")
    core.advance(10_000)
    publish(client, b"c")
    second_ms = core.now_ms
    core.advance(1)
    publish(client, b"d")
    for asked, offset in (
        ({"x-stream-offset": Timestamp(second_ms // 1000 - 1)}, 2),
        ({"x-stream-time-ms": second_ms}, 2),
        ({"x-stream-time-ms": second_ms + 1}, 3),
        ({"x-stream-time-ms": second_ms + 2}, 4),
    ):
        reader = core.connect()
        consume(reader, "next", **asked)
        reader.pick(BasicConsumeOk)
        assert reader.deliveries()[0].headers["x-stream-offset"] == offset


def test_acks_are_credit_for_further_chunks(core: Core) -> None:
    client = core.connect()
    declare(client)
    for number in range(5):
        publish(client, b"%d" % number)
    reader = core.connect()
    consume(reader, "first", prefetch=2)
    reader.pick(BasicConsumeOk)
    told, first = reader.deliveries()
    assert told.body == b""
    reader.send(BasicAck(first.tag, True))
    second, third = reader.deliveries()
    assert [entries(each)[0].offset for each in (first, second, third)] == [0, 1, 2]
    queue = core.queue("s")
    assert queue.unacked == 2
    reader.close_socket()
    assert queue.unacked == 0


def test_large_chunks_fit_the_frames_of_the_connection(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, b"x" * 300_000)
    reader = core.connect(frame_max=4096)
    consume(reader, "first")
    reader.pick(BasicConsumeOk)
    (entry,) = entries(reader.deliveries()[1])
    assert len(entry.content) > 300_000


def test_names_and_other_values_are_refused(core: Core) -> None:
    for others in ({"x-stream-consumer-name": "n"}, {"x-stream-chunks": 1}):
        client = core.connect()
        declare(client)
        consume(client, "first", **others)
        assert "x-stream-chunks" in client.pick(ChannelClose).reply_text
