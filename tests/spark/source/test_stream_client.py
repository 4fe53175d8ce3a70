"""Reading ranges of streams from real brokers, without a Spark session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rhizome.amqp.properties import Properties, encode_header
from rhizome.client.blocking import Connection
from rhizome.errors import NotFound
from rhizome.spark import schema
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.source.retry_client import DataLossError, StreamTimeoutError
from rhizome.spark.source.stream_client import NoStreamError, RangeReader, StreamClient
from rhizome.spark.source.stream_rows import StreamPlace, StreamRows
from rhizome.testing.broker_process import Broker, BrokerProcess, wait_until
from tests.spark.streams import declare_partitioned, declare_stream, fill, numbered

Unique = Callable[[str], str]


def rows_of(
    uri: str, stream: str, start: int, end: int, fail: bool = True, patience_s: float = 30
) -> list[dict[str, Any]]:
    reader = RangeReader(addresses_of(uri), stream, start, end, patience_s, fail)
    rows = StreamRows(StreamPlace(stream, 3), schema.arrow_schema(schema.stream()))
    return [row for chunks in reader.chunks() for row in rows.batch(chunks, start, end).to_pylist()]


def client(broker: Broker) -> StreamClient:
    return StreamClient(addresses_of(broker.url), 30)


def test_ranges_are_read_exactly(broker: Broker, unique: Unique) -> None:
    name = unique("ranges")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(5000))
    for start, end in ((0, 5000), (0, 1), (4999, 5000), (1234, 4321), (7, 7)):
        found = rows_of(broker.url, name, start, end)
        assert [row["offset"] for row in found] == list(range(start, end))
        assert [row["value"] for row in found] == numbered(end - start, start)
    assert {(row["queue"], row["partition"]) for row in rows_of(broker.url, name, 0, 9)} == {
        (name, 3)
    }


def test_messages_are_as_they_were_published(broker: Broker, unique: Unique) -> None:
    name = unique("exact")
    declare_stream(broker.url, name)
    sent = [
        Properties(),
        Properties(headers={}),
        Properties(headers={"a": "b", "n": 12, "deep": {"x": [1, None, True]}}, message_id="m"),
        Properties(content_type="text/plain", content_encoding="gzip", delivery_mode=2, app_id="a"),
    ]
    bodies = [b"", b"one", b"x" * 300_000, b"last"]
    for body, properties in zip(bodies, sent, strict=True):
        fill(broker.url, name, [body], properties)
    found = rows_of(broker.url, name, 0, 4)
    assert [row["value"] for row in found] == bodies
    assert [row["raw_properties"] for row in found] == [encode_header(0, p)[12:] for p in sent]
    assert [row["headers"] for row in found] == [
        None,
        [],
        [("a", "b"), ("n", "12"), ("deep", '{"x": [1, null, true]}')],
        None,
    ]
    assert [row["app_id"] for row in found] == [None, None, None, "a"]
    assert {(row["exchange"], row["key"]) for row in found} == {("", name)}
    times = [row["timestamp"] for row in found]
    assert times == sorted(times)


def test_bounds_are_told_also_of_empty_streams(broker: Broker, unique: Unique) -> None:
    name = unique("bounds")
    declare_stream(broker.url, name)
    asking = client(broker)
    assert (asking.bounds(name).first, asking.bounds(name).next) == (0, 0)
    fill(broker.url, name, numbered(10))
    assert (asking.bounds(name).first, asking.bounds(name).next) == (0, 10)
    assert asking.bounds(name, "first").start == 0
    assert asking.bounds_at(name, 0).start == 0
    assert asking.bounds_at(name, 1 << 50).start == 10
    # Asking reads nothing, and leaves no consumer behind.
    assert asking.bounds(name).next == 10
    asking.close()
    with Connection(broker.url) as connection:
        assert connection.channel().declare_queue(name, passive=True).consumer_count == 0


def test_partitions_are_found_under_their_one_name(broker: Broker, unique: Unique) -> None:
    name, plain = unique("many"), unique("plain")
    declare_partitioned(broker.url, name, 3)
    declare_stream(broker.url, plain)
    asking = client(broker)
    assert asking.streams_of(name) == [f"{name}-{number}" for number in range(3)]
    assert asking.streams_of(plain) == [plain]
    with pytest.raises(NotFound, match="there is no stream"):
        asking.streams_of("nothing")
    asking.close()


def test_queue_is_no_stream(broker: Broker, unique: Unique) -> None:
    name = unique("queue")
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(name)
    asking = client(broker)
    with pytest.raises(NoStreamError, match="is no stream"):
        asking.bounds(name)
    asking.close()


def test_reading_goes_on_when_the_broker_is_killed(own_broker: BrokerProcess) -> None:
    declare_stream(own_broker.url, "killed")
    fill(own_broker.url, "killed", [b"%d " % n + b"x" * 2000 for n in range(5000)])
    reader = RangeReader(addresses_of(own_broker.url), "killed", 0, 5000, 60, True)
    rows = StreamRows(StreamPlace("killed", 0), schema.arrow_schema(schema.stream()))
    found: list[int] = []
    kills = 0
    for chunks in reader.chunks():
        start = found[-1] + 1 if found else 0
        found += [row["offset"] for row in rows.batch(chunks, start, 5000).to_pylist()]
        if kills < 2:
            own_broker.kill()
            own_broker.start()
            kills += 1
    assert kills == 2
    assert found == list(range(5000))


def test_offsets_that_retention_took_are_told_or_passed_over(
    broker: Broker, unique: Unique
) -> None:
    name = unique("retention")
    declare_stream(
        broker.url, name, x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=5000
    )
    fill(broker.url, name, [b"x" * 1000] * 200)
    asking = client(broker)
    wait_until(lambda: asking.bounds(name).first > 0, "retention")
    bounds = asking.bounds(name)
    asking.close()
    with pytest.raises(DataLossError, match=f"offsets 0 to {bounds.first - 1} of stream"):
        rows_of(broker.url, name, 0, 200)
    found = rows_of(broker.url, name, 0, 200, fail=False)
    assert [row["offset"] for row in found] == list(range(bounds.first, 200))
    with pytest.raises(DataLossError, match="offsets 200 to 299"):
        rows_of(broker.url, name, 190, 300)
    assert len(rows_of(broker.url, name, 190, 300, fail=False)) == 10


def test_silence_ends_the_patience(own_broker: BrokerProcess) -> None:
    declare_stream(own_broker.url, "silent")
    fill(own_broker.url, "silent", numbered(10))
    uri = own_broker.url
    own_broker.stop_cleanly()
    with pytest.raises((StreamTimeoutError, Exception), match="could not connect"):
        rows_of(uri, "silent", 0, 10, patience_s=1)
    own_broker.start()
