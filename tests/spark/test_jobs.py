"""The jobs, as functions and as commands, against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.properties import Properties, encode_header
from rhizome.client.blocking import Connection
from rhizome.spark.jobs import archive, deadletters, replay, timetravel, traffic
from rhizome.testing.processes import Broker, BrokerProcess, wait_until
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
    assert found.latency_percentiles["p50"] == 10


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
    options = deadletters.RedriveOptions(uri, "dead", where="shape = '{id, total}' AND deaths = 1")
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
    wait_until(lambda: count(uri, "dead") == 4, "dead letters")
    sent = deadletters.redrive(spark, deadletters.RedriveOptions(uri, "dead"))
    assert (sent.seen, sent.sent, sent.left) == (4, 4, 0)
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
    from rhizome.broker.commands import DeclareQueue, PutVhost, encode

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
    events = timetravel.queue_events(spark, str(tmp_path), "q", "/")
    before = timetravel.contents_at(events, START_MS + kept).collect()
    assert len(before) == kept
    taken = {row["index"] for row in events.where("segment = 2").collect()}
    segments[1].unlink()
    events = timetravel.queue_events(spark, str(tmp_path), "q", "/")
    after = timetravel.contents_at(events, START_MS + kept).collect()
    unkept = [row["index"] for row in after if row["message"] is None]
    assert unkept == ([kept] if kept in taken else [])
    assert len(after) == kept - len(taken) + len(unkept)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["traffic"], "one of a stream, an archive and a journal"),
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
