"""The jobs, as functions and as commands, against a real broker."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.properties import Properties, encode_header
from rhizome.cli.pipeline import pipeline_command
from rhizome.client.blocking import Connection
from rhizome.spark.jobs import archive, deadletters, replay, timetravel, traffic
from rhizome.spark.jobs.job_progress import JobError
from rhizome.spark.jobs.small_job_settings import interpreted, table_of
from rhizome.spark.journal.broker_stores import StorePlace
from rhizome.testing.broker_process import Broker, BrokerProcess, wait_until
from tests.spark.cli import command
from tests.spark.journals import START_MS, JournalFiles
from tests.spark.streams import declare_partitioned, declare_stream, fill, numbered

Unique = Callable[[str], str]
RAW_PROPERTIES_AT = 12  # in a content header: behind class, weight and body size


def drained(uri: str, queue: str) -> list[Any]:
    with Connection(uri) as connection:
        channel = connection.channel()
        size = channel.declare_queue(queue, passive=True).message_count
        consumer = channel.consume(queue, no_ack=True, timeout_s=30)
        return [next(consumer) for _ in range(size)]


def declare(uri: str, *queues: str, **arguments: object) -> None:
    with Connection(uri) as connection:
        for queue in queues:
            connection.channel().declare_queue(queue, durable=True, arguments=arguments)


PUBLISHED: Sequence[tuple[bytes, Properties]] = [
    (b"", Properties()),
    (b"one", Properties(headers={})),
    (b"two", Properties(content_type="text/plain", delivery_mode=2, message_id="m", priority=3)),
    (b"\x00\xff" * 5000, Properties(headers={"n": 1, "deep": {"list": [1, None, "x"]}})),
    (b"last", Properties(headers={"x-producer": "somebody", "x-sequence": 7}, timestamp=99)),
]


def test_replay_of_an_archive_is_what_was_published(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    stream, exact, again = unique("published"), unique("exact"), unique("again")
    declare_stream(broker.url, stream)
    declare(broker.url, exact, again)
    for body, properties in PUBLISHED:
        fill(broker.url, stream, [body], properties)
    path = str(tmp_path / "archive")
    done = archive.run(spark, archive.ArchiveOptions(broker.url, (stream,), path))
    assert (done.messages, done.next) == (len(PUBLISHED), {stream: len(PUBLISHED)})
    options = replay.ReplayOptions(broker.url, "x", archive=path, queue=exact, exact=True)
    assert replay.run(spark, options).messages == len(PUBLISHED)
    got = drained(broker.url, exact)
    assert [(m.body, encode_header(0, m.properties)) for m in got] == [
        (body, encode_header(0, properties)) for body, properties in PUBLISHED
    ]
    named = replay.ReplayOptions(
        broker.url, unique("name"), archive=path, queue=again, where="length(value) > 3"
    )
    for _ in range(2):
        assert replay.run(spark, named).messages == 2
    first, second = drained(broker.url, again)
    assert (first.body, second.body) == (PUBLISHED[3][0], b"last")
    assert second.properties.headers["x-producer"].startswith("spark:replay:")


KINDS: Sequence[dict[str, Any]] = [
    {},
    {"headers": {}},
    {"content_type": "text/plain", "delivery_mode": 2, "message_id": "m", "priority": 3},
    {"headers": {"n": 1, "deep": {"list": [1, None, "x"]}}, "timestamp": 99},
]


@pytest.mark.soak
def test_replay_of_a_partitioned_stream_has_the_same_bytes_in_the_same_order(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    source, target = unique("partitioned"), unique("target")
    declare_partitioned(broker.url, source, 3)
    declare_stream(broker.url, target)
    published = {}
    with Connection(broker.url) as connection:
        channel = connection.channel(confirms=True)
        for number in range(600):
            body = b"%d" % number
            kind = KINDS[number % len(KINDS)]
            properties = Properties(correlation_id=f"c{number}", **kind)
            key = f"key {number % 50}"
            channel.publish(body, exchange=source, routing_key=key, properties=properties)
            published[body] = encode_header(0, properties)[RAW_PROPERTIES_AT:]
    path = str(tmp_path / "archive")
    archived = archive.ArchiveOptions(broker.url, (source,), path, rows_per_batch=250)
    assert archive.run(spark, archived).messages == 600
    options = replay.ReplayOptions(broker.url, "x", archive=path, queue=target, exact=True)
    assert replay.run(spark, options).messages == 600

    def read(stream: str) -> list[tuple[int, bytes, bytes]]:
        messages = (
            spark.read.format("rhizome").option("uri", broker.url).option("subscribe", stream)
        )
        rows = messages.load().orderBy("partition", "offset").collect()
        return [(row.partition, bytes(row.value), bytes(row.raw_properties)) for row in rows]

    before, after = read(source), read(target)
    assert {body: raw for _, body, raw in before} == published
    assert {body: raw for _, body, raw in after} == published
    partition_of = {body: partition for partition, body, _ in before}
    assert set(partition_of.values()) == {0, 1, 2}
    for partition in range(3):
        order = [body for number, body, _ in before if number == partition]
        assert [body for _, body, _ in after if partition_of[body] == partition] == order


def test_traffic_of_a_stream_becomes_a_page(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = unique("traffic")
    declare_stream(broker.url, stream)
    fill(broker.url, stream, [b"x" * 100] * 90, Properties(app_id="web & co"))
    fill(broker.url, stream, [b"x" * 5000] * 10, Properties(app_id="batch"))
    page = tmp_path / "traffic.html"
    options = ("--stream", stream, "--uri", broker.url, "--html", str(page), "--json")
    assert command("pipeline", "traffic", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["messages"], found["bytes"]) == (100, 59_000)
    assert found["top"]["app_id"] == [["web & co", 90, 9000], ["batch", 10, 50_000]]
    assert sum(each["messages"] for each in found["bins"]) == 100
    assert found["sizes"] == [[128, 90], [8192, 10]]
    text = page.read_text()
    assert "web &amp; co" in text
    assert text.count("<svg") >= 3
    assert "http" not in text.replace("http://www.w3.org", "")


def test_traffic_of_a_journal_knows_how_long_messages_waited(spark: Any, tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    for number in range(100):
        store.message([1])
        if number >= 10:
            store.journal.dequeue(0, 1, 1, [number - 9])
    store.flush()
    found = traffic.run(spark, traffic.TrafficOptions(journal=str(tmp_path)))
    assert found.messages == 100
    (waited,) = found.latencies
    assert (waited.of, waited.percentiles["p50"]) == (traffic.IN_QUEUES, 10)
    assert len(waited.p50) == len(waited.p99) == len(found.bins)


def test_traffic_tells_a_latency_from_stamps_in_milliseconds_only(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    stream = unique("stamped")
    declare_stream(broker.url, stream)
    now_s = int(time.time())
    fill(broker.url, stream, [b"whole seconds"] * 20, Properties(timestamp=now_s - 30))
    seen = traffic.TrafficOptions(broker.url, stream)
    assert traffic.run(spark, seen).latencies == []
    headers: dict[str, object] = {"timestamp_in_ms": (now_s - 5) * 1000}
    fill(broker.url, stream, [b"milliseconds"] * 20, Properties(headers=headers))
    fill(broker.url, stream, [b"no time"], Properties(headers={"timestamp_in_ms": "soon"}))
    journal = JournalFiles(tmp_path)
    for _ in range(10):
        journal.message([1])
    journal.flush()
    page = tmp_path / "page.html"
    beside = replace(seen, journal=str(tmp_path), html=str(page), title="Mine & yours")
    found = traffic.run(spark, beside)
    (on_its_way,) = found.latencies
    assert on_its_way.of == traffic.ON_ITS_WAY
    assert 5_000 <= on_its_way.percentiles["p50"] < 60_000
    assert "<title>Mine &amp; yours</title>" in page.read_text()
    assert "kms" not in page.read_text()


def test_time_in_queues_stands_beside_a_stream(spark: Any, own_broker: BrokerProcess) -> None:
    uri = own_broker.url
    declare_stream(uri, "both")
    declare(uri, "worked")
    fill(uri, "both", [b"x"] * 10)
    with Connection(uri) as connection:
        channel = connection.channel(confirms=True)
        channel.publish(b"x", routing_key="worked", properties=Properties(delivery_mode=2))
        message = channel.get("worked")
        assert message is not None
        message.ack()
    fill(uri, "both", [b"x"] * 10)
    options = traffic.TrafficOptions(uri, "both", journal=str(own_broker.data))

    def found() -> list[traffic.Latency]:
        return traffic.run(spark, options).latencies

    wait_until(lambda: [each.of for each in found()] == [traffic.IN_QUEUES], "the ack on disk", 60)


def test_many_keys_can_be_searched_in_the_page() -> None:
    keys = [(f"key.{number}", 1, 10) for number in range(40)]
    few = [(f"app.{number}", 1, 10) for number in range(3)]
    found = traffic.Traffic(
        "a test", 40, 400, "2026-11-17T08:00:00+00:00", "2026-11-17T08:00:01+00:00"
    )
    found.bins = [{"begin": found.first, "messages": 40, "bytes": 400}]
    found.size_percentiles = {"p50": 10}
    found.top = {"key": keys, "app_id": few}
    found.latencies = [traffic.Latency(traffic.IN_QUEUES, {"p50": 1_500.0}, [1_500.0], [2_000.0])]
    text = traffic.html(found, "Keys")
    assert text.count('type="search"') == 1
    assert "key.39" in text
    assert "1.5 s" in text


def test_commands_of_a_script_share_a_session(
    spark: Any,
    broker: Broker,
    unique: Unique,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = unique("scripted")
    declare_stream(broker.url, stream)
    fill(broker.url, stream, [b"x"] * 10)
    commands = tmp_path / "commands"
    commands.write_text(
        f"# first the archive\narchive {stream} --to {tmp_path}/a --uri {broker.url} --json\n\n"
        f"traffic --archive '{tmp_path}/a' --html {tmp_path}/t.html --json\n"
        "traffic --archive /nowhere\n"
        f"archive {stream} --to {tmp_path}/never --uri {broker.url}\n"
    )
    assert command("pipeline", "script", str(commands)) == 1
    told = capsys.readouterr()
    first, second = (json.loads(each) for each in parts(told.out))
    assert (first["messages"], second["messages"]) == (10, 10)
    assert "line 5 ended with exit code 1" in told.err
    assert not (tmp_path / "never").exists()


def parts(text: str) -> list[str]:
    """Documents that stand behind each other, one by one."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        _, end = decoder.raw_decode(text)
        found.append(text[:end])
        text = text[end:]
    return found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("walk --far", "line 2: 'walk' is no command for a script"),
        ("script other", "line 2: 'script' is no command for a script"),
        ("archive 'events", "line 2: No closing quotation"),
    ],
)
def test_script_is_checked_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    commands = tmp_path / "commands"
    commands.write_text(f"# a comment\n{line}\n")
    assert command("pipeline", "script", str(commands)) == 1
    assert said in capsys.readouterr().err


def test_spark_starts_while_a_script_is_still_being_written_to_stdin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    class Written(io.BytesIO):
        name = "<stdin>"

        def read(self, size: int | None = -1) -> bytes:
            order.append("read")
            return super().read(size)

    @contextmanager
    def running(*_: object) -> Iterator[tuple[None, None]]:
        order.append("started")
        yield None, None

    monkeypatch.setattr(pipeline_command, "running", running)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Written(b"# nothing\n"), "utf-8"))
    assert command("pipeline", "script") == 0
    assert order[:2] == ["started", "read"]


def test_little_data_is_interpreted_and_settings_come_back(spark: Any) -> None:
    keys = ("spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled")
    before = [spark.conf.get(key) for key in keys]
    try:
        for key in keys:
            spark.conf.set(key, "true")
        with interpreted(spark, True):
            assert [spark.conf.get(key) for key in keys] == ["false", "false"]
            rows = table_of(spark, [(1, "a"), (2, None)], "`group` INT, store STRING")
            assert [tuple(row) for row in rows.collect()] == [(1, "a"), (2, None)]
            assert table_of(spark, [], "store STRING").collect() == []
        assert [spark.conf.get(key) for key in keys] == ["true", "true"]
        with interpreted(spark, False):
            assert [spark.conf.get(key) for key in keys] == ["true", "true"]
    finally:
        for key, value in zip(keys, before, strict=True):
            spark.conf.set(key, value)


def test_dead_letters_are_grouped_and_sent_back_once(spark: Any, own_broker: BrokerProcess) -> None:
    uri = own_broker.url
    declare(uri, "dead")
    declare(uri, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    with Connection(uri) as connection:
        channel = connection.channel(confirms=True)
        for number in range(30):
            body = b'{"id": %d, "total": 5}' % number if number % 3 else b"plain %d" % number
            channel.publish(body, routing_key="work", properties=Properties(delivery_mode=2))
        for _ in range(30):
            message = channel.get("work")
            assert message is not None
            message.reject()
    wait_until(lambda: count(uri, "dead") == 30, "dead letters")
    found = deadletters.run(
        spark, deadletters.DeadletterOptions(journal=str(own_broker.data), queue="dead")
    )
    assert found.messages == 30
    assert [(g["died_in"], g["reason"], g["shape"], g["messages"]) for g in found.groups] == [
        ("work", "rejected", "{id, total}", 20),
        ("work", "rejected", "bytes", 10),
    ]
    chosen = "shape = '{id, total}' AND deaths = 1"
    options = deadletters.RedriveOptions(uri, "dead", chosen, died_in=("work",))
    sent = deadletters.redrive(spark, options)
    assert (sent.seen, sent.sent, sent.left) == (30, 20, 10)
    wait_until(lambda: count(uri, "dead") == 10, "the rest to go back")
    assert count(uri, "work") == 20
    assert all(m.body.startswith(b"{") for m in drained(uri, "work"))


def count(uri: str, queue: str) -> int:
    with Connection(uri) as connection:
        return connection.channel().declare_queue(queue, passive=True).message_count


def test_redrive_that_was_killed_before_its_acks_doubles_nothing(
    spark: Any, broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, work = unique("dead"), unique("work")
    declare(broker.url, dead, work)
    fill(broker.url, dead, numbered(10))
    options = deadletters.RedriveOptions(broker.url, dead, exchange="", key=work)
    publish = deadletters._publish

    def publish_and_die(*arguments: Any) -> None:
        publish(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(deadletters, "_publish", publish_and_die)
    with pytest.raises(KeyboardInterrupt):
        deadletters.redrive(spark, options)
    monkeypatch.undo()
    wait_until(lambda: count(broker.url, dead) == 10, "the letters to go back")
    assert deadletters.redrive(spark, options).sent == 10
    assert sorted(int(m.body) for m in drained(broker.url, work)) == list(range(10))
    assert count(broker.url, dead) == 0


@pytest.mark.parametrize("given", [{}, {"where": "deaths = 1"}, {"key": "k"}, {"exchange": ""}])
def test_redrive_does_not_let_messages_choose_their_target(given: dict[str, str]) -> None:
    """Whoever may publish to a queue of dead letters writes x-death as they like."""
    options = deadletters.RedriveOptions("amqp://nowhere", "dead", **given)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="--died-in"):
        deadletters.check_target(options)


def test_redrive_goes_to_the_queue_alone_whatever_messages_say(
    spark: Any, own_broker: BrokerProcess
) -> None:
    """Equal ones are all there, other keys lead nowhere, and a user doesn't stop the others."""
    uri = own_broker.url
    declare(uri, "dead", "payroll", "beside")
    declare(uri, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    with Connection(uri) as connection:
        channel = connection.channel(confirms=True)
        channel.declare_exchange("in", "fanout", durable=True)
        channel.bind_queue("work", "in", "")
        channel.bind_queue("beside", "in", "")
        headers = {"CC": ["payroll"], "x-producer": "p", "x-sequence": 1}
        for properties in (
            Properties(delivery_mode=2, headers=headers),
            Properties(delivery_mode=2, user_id="guest"),
            Properties(delivery_mode=2),
            Properties(delivery_mode=2),
        ):
            channel.publish(b"equal", exchange="in", properties=properties)
        for _ in range(4):
            message = channel.get("work")
            assert message is not None
            message.reject()
        for deaths in ([{"queue": "payroll", "reason": "rejected"}], [{"exchange": "in"}], []):
            forged = Properties(headers={"x-death": deaths})
            channel.publish(b"forged", routing_key="dead", properties=forged)
    wait_until(lambda: count(uri, "dead") == 7, "dead letters")
    options = deadletters.RedriveOptions(uri, "dead", died_in=("work",))
    sent = deadletters.redrive(spark, options)
    assert (sent.seen, sent.sent, sent.left) == (7, 4, 3)
    found = drained(uri, "work")
    assert len(found) == 4
    users = [(m.properties.headers or {}).get("x-original-user-id") for m in found]
    assert users == [None, "guest", None, None]
    assert count(uri, "payroll") == 0
    assert count(uri, "beside") == 4


def test_queue_is_seen_as_it_was(spark: Any, own_broker: BrokerProcess) -> None:
    uri = own_broker.url
    declare(uri, "orders")
    fill(uri, "orders", numbered(10), Properties(delivery_mode=2))
    then = now_ms()
    with Connection(uri) as connection:
        channel = connection.channel()
        for _ in range(4):
            message = channel.get("orders")
            assert message is not None
            message.ack()
    fill(uri, "orders", numbered(3, 10), Properties(delivery_mode=2))
    options = timetravel.TimetravelOptions(str(own_broker.data), "orders", then, now_ms() + 60_000)
    found = timetravel.run(spark, options)
    assert found.first.messages == 10
    assert [each["body"] for each in found.first.listed] == [str(n) for n in range(10)]
    assert found.second is not None
    assert [each["body"] for each in found.second.listed] == [str(n) for n in range(4, 13)]
    assert (found.came, found.went, found.stayed) == (3, 4, 6)
    assert found.reach is None


def now_ms() -> int:
    """The time, which is over when this returns: what comes later is after it."""
    started = int(time.time() * 1000)
    wait_until(lambda: int(time.time() * 1000) > started, "the next millisecond")
    return started


def test_message_whose_record_is_gone_is_known_by_its_index(spark: Any, tmp_path: Path) -> None:
    store = JournalFiles(tmp_path, segment_bytes=4096)
    from rhizome.broker.metadata.metadata_commands import DeclareQueue, PutVhost, encode

    store.journal.state(1, encode(PutVhost("/")))
    store.journal.state(2, encode(DeclareQueue("/", "q", True)))
    while int(store.journal.end_position()) >> 32 < 3:
        store.message([1])
    kept = store.index
    store.flush(START_MS + kept)
    store.journal.dequeue(0, 1, 1, [1, 2])
    store.journal.dequeue(0, 1, 1, [kept])
    store.flush(START_MS + kept + 1000)
    segments = sorted((tmp_path / "journal").glob("*.seg"))
    place = StorePlace(str(tmp_path))
    with timetravel.stores_of_queue(place, "q", "/") as found:
        events = timetravel.queue_events(spark, found)
    before = timetravel.contents_at(events, START_MS + kept).collect()
    assert len(before) == kept
    taken = {row["index"] for row in events.where("segment = 2").collect()}
    segments[1].unlink()
    with timetravel.stores_of_queue(place, "q", "/") as found:
        events = timetravel.queue_events(spark, found)
    after = timetravel.contents_at(events, START_MS + kept).collect()
    unkept = [row["index"] for row in after if row["message"] is None]
    assert unkept == ([kept] if kept in taken else [])
    assert len(after) == kept - len(taken) + len(unkept)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["traffic", "--stream", "s", "--archive", "a"], "only one of the first two"),
        (
            ["traffic", "--uri", "http://u:geheim@127.0.0.1:1"],
            "read through 127.0.0.1:1, tried for",
        ),
        (["traffic", "--archive", "/nowhere"], "'/nowhere' is no archive"),
        (["audit", "/nowhere"], "'/nowhere' is no directory"),
        (["timetravel", "q", "--at", "noon", "--journal", "."], "'noon' is no time"),
        (["replay", "--name", "x"], "one of an archive, a stream and a journal"),
    ],
)
def test_failures_are_told_in_one_line(
    spark: Any, arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("pipeline", *arguments) == 1
    told = capfd.readouterr().err
    assert "error: " in told
    assert text in told
    assert "Traceback" not in told
    assert "geheim" not in told
