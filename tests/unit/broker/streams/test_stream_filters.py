"""Filters of streams: consumers that get only messages with some filter values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.streams.stream import Stream
from rhizome.broker.streams.stream_reader import PASSED_WORK_MAX
from rhizome.journal.streams.bloom_filter import BloomBuilder, BloomView
from rhizome.journal.streams.stream_format import (
    KIND_FILTER,
    KIND_MESSAGES,
    STREAM_HEADER_BYTES,
    ChunkHead,
    chunk_bytes,
)
from rhizome.journal.streams.stream_segment import StreamFilesReader
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core


@pytest.fixture
def core() -> Core:
    return make_core()


def declare(client: CoreClient, **arguments: object) -> None:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    given["x-queue-type"] = "stream"
    client.call(QueueDeclare("s", durable=True, arguments=given), QueueDeclareOk)


def publish(client: CoreClient, *values: object) -> None:
    """A chunk with a message for each value, which is its body too; None: no value."""
    client.send_bytes(
        b"".join(
            client.published(
                "",
                "s",
                b"%d" % number if value is None else str(value).encode(),
                Properties(
                    content_type="text/plain",
                    headers=None if value is None else {"a": 1, "x-stream-filter-value": value},
                ),
            )
            for number, value in enumerate(values)
        )
    )


def consume(client: CoreClient, prefetch: int = 1000, **arguments: object) -> None:
    client.prefetch(prefetch)
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.send(BasicConsume("s", "t", arguments={"x-stream-offset": "first", **given}))
    client.pick(BasicConsumeOk)


def offsets(deliveries: list[Content]) -> list[object]:
    return [delivery.headers["x-stream-offset"] for delivery in deliveries]


def stream_of(core: Core) -> Stream:
    stream = core.queue("s").stream
    assert stream is not None
    return stream


def kinds(core: Core) -> list[int]:
    """The kinds of the chunks of a stream's first segment."""
    stream = stream_of(core)
    directory = core.files.inside("streams").inside(str(core.queue("s").id))
    data = directory.read(1, 0, int(stream.log.segments[0].size))
    found, at = [], STREAM_HEADER_BYTES
    while at < len(data):
        head = ChunkHead(data, at)
        found.append(int(head.kind))
        at += int(head.size)
    return found


def test_consumers_get_what_they_ask_for(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, "a", "b", None, "a")
    publish(client, "c", "c")
    publish(client, None, None)
    publish(client, "b", "a")
    for asked, found in (
        ({"x-stream-filter": "a"}, [0, 3, 9]),
        ({"x-stream-filter": ["a", "c"]}, [0, 3, 4, 5, 9]),
        ({"x-stream-filter": "b", "x-stream-match-unfiltered": True}, [1, 2, 6, 7, 8]),
        ({"x-stream-filter": "none"}, []),
        ({"x-stream-filter": ["none"], "x-stream-match-unfiltered": True}, [2, 6, 7]),
        ({"x-stream-match-unfiltered": True}, list(range(10))),
    ):
        reader = core.connect()
        consume(reader, **asked)
        assert offsets(reader.deliveries()) == found, asked
        reader.close_socket()
    reader = core.connect()
    consume(reader, x_stream_filter="live")
    publish(client, "dead")
    publish(client, "live", "dead")
    assert [each.body for each in reader.deliveries()] == [b"live"]


def test_a_stream_without_filter_values_has_the_bytes_that_it_had(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, None, None)
    client.publish("", "s", b"", Properties(headers={"x-stream-filter": "a", "b": "c"}))
    client.publish("", "s", b"", Properties(headers={"x-stream-filter-value": 5}))
    assert KIND_FILTER not in kinds(core)
    publish(client, "a")
    assert kinds(core)[-2:] == [KIND_FILTER, KIND_MESSAGES]


class CountingFiles(StreamFilesReader):
    """Counts what is read."""

    def __init__(self, files: StreamFilesReader) -> None:
        super().__init__()
        self.files = files
        self.bytes = 0

    def read(self, stream: int, segment: int, position: int, length: int) -> bytes:
        data = self.files.read(stream, segment, position, length)
        self.bytes += len(data)
        return data

    def size(self, stream: int, segment: int) -> int:
        return int(self.files.size(stream, segment))


def test_chunks_that_have_nothing_of_it_are_not_read(core: Core) -> None:
    client = core.connect()
    declare(client)
    for number in range(20):
        value = "rare" if number == 11 else "often"
        headers: dict[str, object] = {"x-stream-filter-value": value}
        client.publish("", "s", b"." * 50_000, Properties(headers=headers))
    log = stream_of(core).log
    files = CountingFiles(log.files)
    log.files = files
    reader = core.connect()
    consume(reader, x_stream_filter="rare")
    assert offsets(reader.deliveries()) == [11]
    assert files.bytes < 200_000 < log.size


def test_consumers_of_chunks_are_told_how_far_was_searched(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, "a", "b")
    for _ in range(3):
        publish(client, "b")
    reader = core.connect()
    consume(reader, prefetch=2, x_stream_chunks=True, x_stream_filter="a")
    told, chunk = reader.deliveries()
    assert (told.body, offsets([told, chunk])) == (b"", [0, 0])
    assert chunk.headers["x-stream-count"] == 2
    reader.send(BasicAck(chunk.tag, True))
    (passed,) = reader.deliveries()
    assert (passed.body, passed.headers["x-stream-count"]) == (b"", 0)
    assert passed.headers["x-stream-offset"] == 5
    publish(client, "b")
    (again,) = reader.deliveries()
    assert offsets([again]) == [6]
    publish(client, "b")
    publish(client, "b", "a")
    assert reader.deliveries() == []
    reader.send(BasicAck(again.tag, True))
    (last,) = reader.deliveries()
    assert (offsets([last]), last.headers["x-stream-count"]) == ([7], 2)


def test_what_is_passed_over_counts_as_done_with_for_a_name(core: Core) -> None:
    client = core.connect()
    declare(client)
    for _ in range(3):
        publish(client, "b", "a", "b", "b")
        publish(client, "b", None)
    reader = core.connect()
    consume(reader, prefetch=2, x_stream_filter="a", x_stream_consumer_name="app")
    first, second = reader.deliveries()
    assert offsets([first, second]) == [1, 7]
    reader.send(BasicAck(second.tag, False))
    (third,) = reader.deliveries()
    assert offsets([third]) == [13]
    (position,) = stream_of(core).positions.all()
    assert position.next == 1
    reader.send(BasicAck(third.tag, True))
    (position,) = stream_of(core).positions.all()
    assert position.next == 18
    assert core.queue("s").unacked == 0
    assert core.queue("s").delivered == 3


def test_a_long_search_leaves_turns_to_others(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, "a")
    reader = core.connect()
    consume(reader, prefetch=1, x_stream_filter="a")
    assert offsets(reader.deliveries()) == [0]
    publish(client, *([None] * (PASSED_WORK_MAX + 500)), "a")
    (search,) = stream_of(core).readers.values()
    search.consumer.prefetch = 2
    search.pump()
    assert 1 < search.next <= PASSED_WORK_MAX + 1
    assert core.queue("s").marked
    core.advance(1)
    assert offsets(reader.deliveries()) == [PASSED_WORK_MAX + 501]
    assert core.queue("s").unacked == 2


def test_filters_work_after_a_restart_and_for_what_came_before_them(core: Core) -> None:
    client = core.connect()
    declare(client, x_stream_filter_size_bytes=64)
    publish(client, "a", "b")
    again = core.restarted()
    client = again.connect()
    publish(client, "b", "b")
    publish(client, "a")
    reader = again.connect()
    consume(reader, x_stream_filter="a")
    assert offsets(reader.deliveries()) == [0, 4]
    assert stream_of(again).log.bloom.size == 64


def test_retention_may_take_what_is_searched(core: Core) -> None:
    client = core.connect()
    declare(client, x_max_length_bytes=10_000, x_stream_max_segment_size_bytes=4_096)
    reader = core.connect()
    consume(reader, prefetch=1, x_stream_filter="a")
    for number in range(60):
        value = "a" if number % 10 == 0 else "b"
        headers: dict[str, object] = {"x-stream-filter-value": value}
        client.publish("", "s", b"." * 500, Properties(headers=headers))
        if number == 50:
            core.advance(2_000)
    (first,) = reader.deliveries()
    assert offsets([first]) == [0]
    reader.send(BasicAck(first.tag, True))
    (second,) = reader.deliveries()
    assert offsets([second])[0] in (40, 50)


@pytest.mark.parametrize(
    "wrong",
    [
        {"x-stream-filter": 5},
        {"x-stream-filter": ""},
        {"x-stream-filter": []},
        {"x-stream-filter": ["a", 5]},
        {"x-stream-filter": ["a"] * 257},
        {"x-stream-match-unfiltered": "yes"},
    ],
)
def test_wrong_arguments_are_refused(core: Core, wrong: dict[str, object]) -> None:
    client = core.connect()
    declare(client)
    client.prefetch(1)
    client.send(BasicConsume("s", "t", arguments=wrong))
    assert f"invalid arg '{next(iter(wrong))}'" in client.pick(ChannelClose).reply_text


@pytest.mark.parametrize(
    ("kind", "size", "text"),
    [
        ("stream", 15, "Invalid value for x-stream-filter-size-bytes"),
        ("stream", 256, "Invalid value for x-stream-filter-size-bytes"),
        ("stream", "32", "expected integer, got longstr"),
        ("quorum", 32, "of queue type rabbit_quorum_queue"),
        ("classic", 32, "of queue type rabbit_classic_queue"),
    ],
)
def test_a_wrong_size_of_filters_is_refused(core: Core, kind: str, size: object, text: str) -> None:
    client = core.connect()
    arguments = {"x-queue-type": kind, "x-stream-filter-size-bytes": size}
    client.send(QueueDeclare("s", durable=True, arguments=arguments))
    assert text in client.pick(ChannelClose).reply_text
    assert not core.has_queue("s")


# ---- Bloom filters


def filter_chunk(values: list[bytes], size: int, messages: int, number: int = 7) -> bytes:
    builder = BloomBuilder()
    builder.size = size
    for value in values:
        builder.add(value)
    return chunk_bytes(KIND_FILTER, 3, 0, 100, number, 1, 0, 0, builder.payload(messages))


def viewed(chunk: bytes) -> BloomView:
    return BloomView(ChunkHead(chunk, 0), chunk, 0)


@given(st.lists(st.binary(min_size=1), min_size=1, max_size=50), st.integers(16, 255))
def test_a_value_that_is_there_is_never_missed(values: list[bytes], size: int) -> None:
    view = viewed(filter_chunk(values, size, len(values)))
    assert all(view.may_have(value) for value in values)
    assert not view.unfiltered
    assert viewed(filter_chunk(values, size, len(values) + 1)).unfiltered


def test_most_values_that_are_not_there_are_told_apart() -> None:
    view = viewed(filter_chunk([b"value-%d" % number for number in range(8)], 16, 8))
    taken = sum(view.may_have(b"other-%d" % number) for number in range(1000))
    assert taken < 60


def test_a_filter_speaks_of_the_next_chunk_of_its_epoch_only() -> None:
    view = viewed(filter_chunk([b"a"], 16, 1, number=7))
    for epoch, number, spoken_of in ((3, 8, True), (4, 8, False), (3, 9, False), (3, 7, False)):
        chunk = chunk_bytes(KIND_MESSAGES, epoch, 1, 100, number, 1, 0, 0, b"")
        assert view.speaks_of(ChunkHead(chunk, 0)) is spoken_of


def test_filters_have_the_bytes_of_the_golden_file() -> None:
    golden = Path(__file__).with_name("golden") / "stream_filter.txt"
    lines = [filter_chunk([b"invoices", b"orders"], size, 3).hex() for size in (16, 40)]
    assert lines == golden.read_text().splitlines()
