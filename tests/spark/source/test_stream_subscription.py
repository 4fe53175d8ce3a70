"""Which streams a source reads and from where, how far it tells the broker it is, and filters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithDefaultRealm, build_opener

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.regex import escape
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.data_source import RhizomeSource
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.jobs import archive
from rhizome.spark.jobs.job_progress import JobError
from rhizome.spark.source import stream_discovery, stream_source
from rhizome.spark.source.filter_pushdown import PushedFilters
from rhizome.spark.source.read_boundaries import Boundary, Resolver, boundary
from rhizome.spark.source.retry_client import DataLossError
from rhizome.spark.source.stream_client import Bounds, RangeReader, StreamClient, Wanted
from rhizome.spark.source.stream_discovery import Subscription
from rhizome.spark.source.stream_source import StreamStreamReader, source_settings
from rhizome.testing.broker_process import Broker, BrokerProcess, wait_until
from tests.spark.streams import declare_partitioned, declare_stream, fill, numbered

Unique = Callable[[str], str]
ALL = ReadAllAvailable()


def reader_of(broker: Broker, **options: str) -> StreamStreamReader:
    source = RhizomeSource({"uri": broker.url, "startingOffsets": "earliest", **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamStreamReader)
    return reader


def rows_between(reader: StreamStreamReader, start: Any, end: Any) -> list[tuple[str, int, int]]:
    """Stream, partition and offset of each row of a batch."""
    return [
        (row["queue"], row["partition"], row["offset"])
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are looked for, and bounds asked for, each time."""
    monkeypatch.setattr(stream_discovery, "DISCOVERY_SECONDS", 0.0)
    monkeypatch.setattr(stream_source, "BOUNDS_SECONDS", 0.0)


# ---- which streams


def test_pattern_matches_whole_names_and_finds_streams_that_appear(
    broker: Broker, unique: Unique, at_once: None
) -> None:
    stem = unique("p")
    for name in (f"{stem}.b", f"{stem}.a", f"x{stem}.a"):
        declare_stream(broker.url, name)
        fill(broker.url, name, numbered(3))
    reader = reader_of(broker, subscribePattern=escape(stem) + r"\.[a-z]+")
    start = reader.initialOffset()
    assert start["next"] == {f"{stem}.a": 0, f"{stem}.b": 0}
    first = reader.latestOffset(start, ALL)
    assert first["next"] == {f"{stem}.a": 3, f"{stem}.b": 3}
    declare_stream(broker.url, f"{stem}.0")
    declare_stream(broker.url, f"{stem}.A")
    new = f"{stem}.c"
    declare_stream(broker.url, new)
    fill(broker.url, new, numbered(2))
    second = reader.latestOffset(first, ALL)
    assert list(second["next"].items()) == [(f"{stem}.a", 3), (f"{stem}.b", 3), (new, 2)]
    assert rows_between(reader, first, second) == [(new, 2, 0), (new, 2, 1)]
    # A query that is started again numbers them as before.
    declare_stream(broker.url, f"{stem}.aa")
    again = reader_of(broker, subscribePattern=escape(stem) + r"\.[a-z]+")
    assert rows_between(again, first, second) == rows_between(reader, first, second)
    assert list(again.latestOffset(second, ALL)["next"]) == [*second["next"], f"{stem}.aa"]
    for each in (reader, again):
        each.stop()


def test_a_stream_that_appears_is_read_from_what_it_has(
    broker: Broker, unique: Unique, at_once: None
) -> None:
    stem = unique("late")
    declare_stream(broker.url, f"{stem}.a")
    reader = reader_of(broker, subscribePattern=escape(stem) + ".*", startingOffsets="latest")
    start = reader.initialOffset()
    limits = {"x_max_length_bytes": 20_000, "x_stream_max_segment_size_bytes": 5_000}
    declare_stream(broker.url, f"{stem}.b", **limits)
    with StreamClientOf(broker) as client:
        while client.bounds(f"{stem}.b").first == 0:
            fill(broker.url, f"{stem}.b", [b"." * 1000] * 50)
        bounds = client.bounds(f"{stem}.b")
    end = reader.latestOffset(start, ALL)
    assert end["since"] == {f"{stem}.b": bounds.first}
    rows = rows_between(reader, start, end)
    assert [offset for _, _, offset in rows] == list(range(bounds.first, bounds.next))
    # Nothing has come since: Spark must not run a batch for the sake of other words.
    assert reader.latestOffset(end, ALL) == end
    reader.stop()


class StreamClientOf:
    def __init__(self, broker: Broker) -> None:
        self.client = StreamClient(addresses_of(broker.url), 30)

    def __enter__(self) -> StreamClient:
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()


def test_partitions_that_are_added_are_read_without_a_restart(
    broker: Broker, unique: Unique, at_once: None
) -> None:
    name, other = unique("parts"), unique("other")
    declare_partitioned(broker.url, name, 2)
    declare_stream(broker.url, other)
    reader = reader_of(broker, subscribe=f"{name},{other}")
    start = reader.initialOffset()
    assert list(start["next"]) == [f"{name}-0", f"{name}-1", other]
    declare_partitioned(broker.url, name, 3)
    fill(broker.url, f"{name}-2", numbered(2))
    end = reader.latestOffset(start, ALL)
    assert list(end["next"].items()) == [
        (f"{name}-0", 0), (f"{name}-1", 0), (other, 0), (f"{name}-2", 2),
    ]  # fmt: skip
    assert rows_between(reader, start, end) == [(f"{name}-2", 3, 0), (f"{name}-2", 3, 1)]
    reader.stop()


def test_what_appears_during_a_run_that_has_an_end_waits_for_the_next(
    broker: Broker, unique: Unique, at_once: None
) -> None:
    stem = unique("now")
    declare_stream(broker.url, f"{stem}.a")
    fill(broker.url, f"{stem}.a", numbered(3))
    reader = reader_of(broker, subscribePattern=escape(stem) + ".*")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    declare_stream(broker.url, f"{stem}.b")
    fill(broker.url, f"{stem}.b", numbered(3))
    assert reader.latestOffset(start, ALL)["next"] == {f"{stem}.a": 3}
    reader.stop()


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_that_is_deleted_fails_the_query_or_is_left_out(
    broker: Broker, unique: Unique, at_once: None, again: bool
) -> None:
    stem = unique("gone")
    for name in ("a", "b"):
        declare_stream(broker.url, f"{stem}.{name}")
        fill(broker.url, f"{stem}.{name}", numbered(3))
    pattern = escape(stem) + ".*"
    reader = reader_of(broker, subscribePattern=pattern)
    careless = reader_of(broker, subscribePattern=pattern, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    with Connection(broker.url) as connection:
        connection.channel().delete_queue(f"{stem}.a")
    if again:
        reader.stop()
        reader = reader_of(broker, subscribePattern=pattern)
    with pytest.raises(DataLossError, match="was deleted"):
        reader.latestOffset(end, ALL)
    assert careless.latestOffset(end, ALL)["next"] == {f"{stem}.b": 3}
    reader.stop()
    careless.stop()


def test_no_stream_fits_yet(broker: Broker, unique: Unique, at_once: None) -> None:
    stem = unique("none")
    pattern = escape(stem) + ".*"
    reader = reader_of(broker, subscribePattern=pattern, maxBytesPerTrigger="1m")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    assert reader.partitions(start, start) == []
    declare_stream(broker.url, stem)
    fill(broker.url, stem, numbered(1))
    assert reader.latestOffset(start, ALL)["next"] == {stem: 1}
    reader.stop()


class OldBrokers(StreamClient):
    """Brokers that don't tell which streams there are."""

    def directory(self) -> list[str] | None:
        return None

    def exists(self, queue: str) -> bool:
        return queue in ("plain", "many-0", "many-1")


def test_older_brokers_are_read_by_names(at_once: None) -> None:
    client = OldBrokers([], 1)
    with pytest.raises(OptionError, match="too old: name the streams"):
        Subscription(client, (), "a.*")
    found = Subscription(client, ("plain", "many"), "")
    assert found.is_growing()
    found.discover()
    assert found.all() == ["plain", "many-0", "many-1"]
    assert not found.is_growing()
    assert not Subscription(client, ("plain",), "").is_growing()


# ---- from where


def options(**given: str) -> Options:
    return Options({"uri": "amqp://h/", **given}, stream_source.OPTIONS, "rhizome")


def test_boundaries_are_by_words_offsets_or_times_for_each() -> None:
    streams = {"events": ["events"], "orders": ["orders-0", "orders-1"], "late": ["late"]}
    bounds = {name: Bounds(10, 90, 90, 1) for found in streams.values() for name in found}
    resolver = Resolver(streams, lambda name, time_ms: time_ms // 1000, True)

    def offsets(side: str = "starting", word: str = "latest", **given: str) -> list[int]:
        return list(resolver.offsets(boundary(options(**given), side, word), bounds).values())

    assert offsets() == [90, 90, 90, 90]
    assert offsets(startingOffsets="earliest") == [10, 10, 10, 10]
    by_name = json.dumps({"events": 20, "orders": "earliest", "orders-1": 30})
    assert offsets(startingOffsets=by_name) == [20, 10, 30, 90]
    assert offsets(word="earliest", startingOffsets=by_name) == [20, 10, 30, 10]
    assert offsets(startingTimestamp="55000") == [55, 55, 55, 55]
    times = json.dumps({"orders": 44_000, "events": "1970-01-01T00:00:50Z"})
    assert offsets(startingOffsetsByTimestamp=times) == [50, 44, 44, 90]
    assert offsets("ending", endingOffsetsByTimestamp=times) == [50, 44, 44, 90]
    with pytest.raises(OptionError, match="'others', which is not subscribed to"):
        offsets(startingOffsetsByTimestamp='{"others": 1}')
    with pytest.raises(DataLossError, match="offset 5 of stream 'late' is not there"):
        offsets(startingOffsets='{"late": 5}')
    careless = Resolver(streams, lambda name, time_ms: 0, False)
    assert careless.offsets(Boundary("latest", {"late": 5}), bounds)["late"] == 10


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOffsetsByTimestamp": '{"s": "yesterday"}'}, "must be JSON like"),
        ({"startingOffsetsByTimestamp": "5"}, "must be JSON like"),
        ({"startingOffsets": '{"s": true}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": "{}"}, "must be earliest, latest, or JSON"),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"s": 5}'},
            "either 'startingTimestamp' or 'startingOffsetsByTimestamp'",
        ),
        ({"subscribePattern": "a.*"}, "either 'subscribe' or 'subscribePattern'"),
        ({"subscribe": "", "subscribePattern": "(a"}, "a pattern for names of streams"),
        ({"subscribe": "", "subscribePattern": r"(a)\1"}, "a pattern for names of streams"),
        ({"maxTriggerDelay": "soon"}, "a time, like 30s or 15m"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "no batch can have both"),
        ({"readerName": "a", "groupId": "b"}, "they mean the same"),
        ({"groupId": "b" * 300}, "option 'groupId' .* at most 255 characters"),
        ({"pushdown": "perhaps"}, "true or false"),
    ],
)
def test_wrong_options_are_told(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        source_settings(options(**{"subscribe": "s", **given}), True)


@pytest.mark.parametrize("name", ["minOffsetsPerTrigger", "readerName", "groupId"])
def test_options_of_streaming_queries_are_not_for_batches(name: str) -> None:
    with pytest.raises(OptionError, match="is for streaming queries"):
        source_settings(options(subscribe="s", **{name: "5"}), False)


def test_a_batch_that_would_end_before_it_starts_is_empty(broker: Broker, unique: Unique) -> None:
    name = unique("upside-down")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(9))
    source = RhizomeSource(
        {
            "uri": broker.url,
            "subscribe": name,
            "startingOffsets": json.dumps({name: 6}),
            "endingOffsets": json.dumps({name: 3}),
        }
    )
    assert source.reader(source.schema()).partitions() == []


# ---- how much


def test_a_batch_waits_for_enough_or_long_enough(
    broker: Broker, unique: Unique, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("few")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(1))
    limits = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "5m"}
    reader = reader_of(broker, subscribe=name, **limits)
    # The first batch of a run waits for nothing, as Kafka's does.
    first = reader.latestOffset(reader.initialOffset(), ALL)
    assert first["next"] == {name: 1}
    fill(broker.url, name, numbered(5))
    assert reader.latestOffset(first, ALL) == first
    fill(broker.url, name, numbered(5))
    second = reader.latestOffset(first, ALL)
    assert second["next"] == {name: 11}
    fill(broker.url, name, numbered(2))
    assert reader.latestOffset(second, ALL) == second
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 301)
    assert reader.latestOffset(second, ALL)["next"] == {name: 13}
    reader.stop()
    run = reader_of(broker, subscribe=name, **limits)
    run._batch_s = time.monotonic()
    run.prepareForTriggerAvailableNow()
    assert run.latestOffset(second, ALL)["next"] == {name: 13}
    run.stop()


# ---- how far


def readers(broker: BrokerProcess) -> list[dict[str, Any]]:
    passwords = HTTPPasswordMgrWithDefaultRealm()
    url = f"http://{broker.host}:{broker.http_port}"
    passwords.add_password(None, url, "guest", "guest")
    opener = build_opener(HTTPBasicAuthHandler(passwords))
    with opener.open(f"{url}/api/rhizome/stream-readers") as answer:
        found = json.load(answer)
    assert isinstance(found, list)
    return found


def test_the_broker_knows_how_far_a_query_is(own_broker: BrokerProcess) -> None:
    declare_stream(own_broker.url, "s")
    fill(own_broker.url, "s", numbered(10))
    reader = reader_of(own_broker, subscribe="s", readerName="archive")
    start = reader.initialOffset()
    end = {**reader.latestOffset(start, ALL), "next": {"s": 7}}
    # Nothing is committed before Spark starts the next batch behind it.
    assert [(each["name"], each["next"]) for each in readers(own_broker)] == [("archive", 0)]
    with StreamClientOf(own_broker) as client:
        size = client.bounds("s").size_bytes
    reader.latestOffset(end, ALL)
    (row,) = readers(own_broker)
    assert (row["name"], row["next"], row["lag"], row["kept"]) == ("archive", 7, 3, True)
    reader.stop()
    with StreamClientOf(own_broker) as client:
        wait_until(lambda: client.bounds("s").size_bytes > size, "the note in the log")
    # A confirm says that all before it is on disk.
    fill(own_broker.url, "s", numbered(1))
    own_broker.kill()
    own_broker.start()
    (row,) = readers(own_broker)
    assert (row["name"], row["next"], row["lag"]) == ("archive", 7, 4)


def test_a_query_without_a_name_is_shown_while_it_runs(own_broker: BrokerProcess) -> None:
    declare_stream(own_broker.url, "s")
    fill(own_broker.url, "s", numbered(10))
    reader = reader_of(own_broker, subscribe="s")
    end = {**reader.latestOffset(reader.initialOffset(), ALL), "next": {"s": 4}}
    reader.latestOffset(end, ALL)
    (row,) = readers(own_broker)
    assert row["name"].startswith("spark-")
    assert (row["next"], row["lag"], row["kept"]) == (4, 6, False)
    reader.stop()


def test_an_idle_query_says_that_it_lives(
    broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("idle")
    declare_stream(broker.url, name)
    reader = reader_of(broker, subscribe=name, readerName="idle")
    start = reader.initialOffset()
    told = []
    bounds = reader._streams.bounds
    monkeypatch.setattr(
        reader._streams, "bounds", lambda positions=None: told.append(positions) or bounds()
    )
    reader.latestOffset(start, ALL)
    monkeypatch.setattr(stream_source, "BOUNDS_SECONDS", 0.0)
    reader.latestOffset(start, ALL)
    assert [bool(each) for each in told] == [True, False]
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + stream_source.TELL_SECONDS + 1)
    reader.latestOffset(start, ALL)
    assert [bool(each) for each in told] == [True, False, True]
    reader.stop()


# ---- filters


def test_filters_narrow_what_is_read() -> None:
    narrowing = PushedFilters()
    at = datetime(2026, 11, 16, 8, 0, 0, 1500, tzinfo=UTC)
    at_ms = int(at.timestamp() * 1000)
    narrowing.take(
        [
            GreaterThan(("offset",), 5),
            LessThan(("offset",), 90),
            GreaterThanOrEqual(("timestamp",), at),
            LessThan(("timestamp",), at + timedelta(seconds=1)),
            In(("queue",), ("a", "b", None)),
            EqualTo(("queue",), "b"),
            EqualTo(("key",), "k"),
            EqualTo(("headers", "offset"), 7),
            EqualTo(("value",), b"x"),
        ]
    )
    assert (narrowing.first, narrowing.end) == (6, 90)
    assert (narrowing.first_ms, narrowing.end_ms) == (at_ms, at_ms + 1001)
    assert (narrowing.queues, narrowing.keys) == (frozenset("b"), frozenset("k"))


def test_pushed_filters_read_less_and_find_the_same(
    spark: Any, broker: Broker, unique: Unique
) -> None:
    names = [unique("push"), unique("push")]
    for name in names:
        declare_stream(broker.url, name)
        fill(broker.url, name, numbered(5_000))
        wait_until(_another_ms(), "another millisecond")
        fill(broker.url, name, numbered(5_000, 5_000))

    def read(pushdown: str) -> Any:
        return (
            spark.read.format("rhizome")
            .options(uri=broker.url, subscribe=",".join(names), pushdown=pushdown)
            .load()
        )

    middle = read("false").where("offset = 5000").agg({"timestamp": "min"}).collect()[0][0]
    stamp = f"timestamp '{middle.astimezone(UTC).isoformat()}'"
    conditions = [
        "offset >= 4990 AND offset < 5010",
        f"timestamp >= {stamp} AND queue = '{names[0]}'",
        f"timestamp < {stamp}",
        f"key = '{names[1]}' AND offset < 10",
        f"queue IN ('{names[0]}', 'none') AND offset = 17",
        "key = 'none'",
    ]
    plain = [sorted(read("false").where(each).select("queue", "offset").collect())
             for each in conditions]  # fmt: skip
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for each, found in zip(conditions, plain, strict=True):
            pushed = read("true").where(each).select("queue", "offset")
            assert sorted(pushed.collect()) == found, each
        assert len(plain[0]) == 40
        assert read("true").where("offset = 17").rdd.getNumPartitions() == 2
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def _another_ms() -> Callable[[], bool]:
    begun = datetime.now(UTC)
    return lambda: datetime.now(UTC) > begun + timedelta(milliseconds=2)


# ---- in Spark


def test_a_query_reads_streams_that_appear_and_is_seen_by_its_name(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path, own_broker: BrokerProcess
) -> None:
    stem = unique("live")
    declare_stream(own_broker.url, f"{stem}.a")
    fill(own_broker.url, f"{stem}.a", numbered(10))
    query = (
        spark.readStream.format("rhizome")
        .options(uri=own_broker.url, subscribePattern=escape(stem) + ".*", readerName="live")
        .option("startingOffsets", "earliest")
        .load()
        .select("queue", "offset", "partition")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="300 milliseconds")
        .start()
    )
    try:

        def rows() -> int:
            return sum(batch["numInputRows"] for batch in query.recentProgress)

        wait_until(lambda: rows() == 10, "the first stream", 120)
        declare_stream(own_broker.url, f"{stem}.b")
        fill(own_broker.url, f"{stem}.b", numbered(5))
        wait_until(lambda: rows() == 15, "the second stream", 120)

        def lags() -> dict[str, int]:
            return {each["stream"]: each["lag"] for each in readers(own_broker)}

        wait_until(lambda: lags() == {f"{stem}.a": 0, f"{stem}.b": 0}, "no lag", 60)
        assert {each["name"] for each in readers(own_broker)} == {"live"}
    finally:
        query.stop()
    assert query.exception() is None


def test_an_archive_is_seen_by_its_path_and_has_no_lag_when_its_run_has_ended(
    spark: Any, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    declare_stream(own_broker.url, "s")
    fill(own_broker.url, "s", numbered(10))
    to = str(tmp_path / "archive")
    options = archive.ArchiveOptions(own_broker.url, ("s",), to, rows_per_batch=4)

    def shown() -> list[tuple[str, int, int, bool]]:
        fields = itemgetter("name", "next", "lag", "kept")
        return [fields(each) for each in readers(own_broker)]

    assert archive.run(spark, options).messages == 10
    assert shown() == [(f"archive:{to}", 10, 0, True)]
    fill(own_broker.url, "s", numbered(3))
    assert shown() == [(f"archive:{to}", 10, 3, True)]
    named = replace(options, reader="lake")
    assert archive.run(spark, named).messages == 3
    assert ("lake", 13, 0, True) in shown()


def test_the_name_of_an_archives_reader_fits() -> None:
    long = archive.checked(archive.ArchiveOptions("amqp://x", ("s",), "/" + "x" * 300))
    assert len(str(long.reader)) == 255
    assert str(long.reader).startswith("archive:x")
    secret = archive.checked(archive.ArchiveOptions("amqp://x", ("s",), "s3://me:secret@lake/a"))
    assert "secret" not in str(secret.reader)
    nobody = archive.checked(archive.ArchiveOptions("amqp://x", ("s",), "/a", reader=""))
    assert nobody.reader == ""
    with pytest.raises(JobError, match="has 256 characters; at most 255"):
        archive.checked(archive.ArchiveOptions("amqp://x", ("s",), "/a", reader="x" * 256))


# ---- filter values


def fill_filtered(broker: Broker, name: str, values: list[str | None]) -> None:
    """A chunk for each message: they come in turns of their own."""
    with Connection(broker.url) as connection:
        channel = connection.channel(confirms=True)
        for number, value in enumerate(values):
            headers: dict[str, object] = {"x-stream-filter-value": value} if value else {}
            properties = Properties(headers=headers) if value else None
            channel.publish(b"%d" % number, routing_key=name, properties=properties)


@pytest.mark.parametrize("columns", [("value", "offset"), ()])
def test_only_messages_with_a_filter_value_that_is_wanted_are_read(
    broker: Broker, unique: Unique, columns: tuple[str, ...]
) -> None:
    name = unique("filtered")
    declare_stream(broker.url, name)
    values = ["a", "b", None, "c", "a", "b", "b", "b"]
    fill_filtered(broker, name, values)

    def offsets(**options: str) -> list[int]:
        source = RhizomeSource({"uri": broker.url, "subscribe": name, **options})
        schema = source.schema()
        if columns:
            schema = StructType([schema[column] for column in columns])
        reader = source.reader(schema)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert all(batch.schema.names == schema.names for batch in batches)
        return [row["offset"] for batch in batches for row in batch.to_pylist()]

    assert offsets(filterValues="a") == [0, 4]
    assert offsets(filterValues="a,c") == [0, 3, 4]
    assert offsets(filterValues="a", matchUnfiltered="true") == [0, 2, 4]
    assert offsets(filterValues="none", readTimeout="20") == []
    assert offsets(filterValues="b", endingOffsets=json.dumps({name: 5})) == [1]


def test_a_range_that_has_nothing_ends_through_a_long_search(
    broker: Broker, unique: Unique
) -> None:
    name = unique("searched")
    declare_stream(broker.url, name)
    fill_filtered(broker, name, ["often"] * 600)
    wanted = Wanted(("rare",), False)
    reader = RangeReader(addresses_of(broker.url), name, 0, 600, 30, True, wanted=wanted)
    assert list(reader.chunks()) == []
    assert reader.next == 600


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"matchUnfiltered": "true"}, "goes with 'filterValues'"),
        ({"filterValues": ",".join(map(str, range(300)))}, "at most 256 values"),
    ],
)
def test_wrong_filters_are_told(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        source_settings(options(**{"subscribe": "s", **given}), True)
