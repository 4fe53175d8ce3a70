"""Named readers of streams: their positions, who of them is left behind, and finding streams."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
)
from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams import stream_directory_queue
from rhizome.broker.streams.reader_positions import EXPIRY_GRACE_MS, PASSING_MS, ReaderPosition
from rhizome.broker.streams.stream import Stream
from rhizome.testing.in_memory_broker import BugReports, Core, CoreClient, make_core

DAY_MS = 86_400_000


class Warnings(BugReports):
    """Keeps what the log would be told of readers."""

    def __init__(self) -> None:
        super().__init__()
        self.left_behind: list[tuple[str, dict[bytes, int], bool]] = []
        self.expired: list[bytes] = []

    def readers_left_behind(self, queue: Queue, unread: dict[bytes, int], dropped: bool) -> None:
        self.left_behind.append((queue.name, dict(unread), dropped))

    def reader_expired(self, queue: Queue, name: bytes) -> None:
        self.expired.append(name)


@pytest.fixture
def core() -> Core:
    return make_core()


def declare(client: CoreClient, name: str = "s", **arguments: object) -> None:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    given["x-queue-type"] = "stream"
    client.call(QueueDeclare(name, durable=True, arguments=given), QueueDeclareOk)


def publish(client: CoreClient, count: int, padding: int = 0) -> None:
    for number in range(count):
        client.publish("", "s", b"%d" % number + b"." * padding)


def tell(core: Core, name: str, after: int, keep: bool = True, queue: str = "s") -> None:
    """What Spark's source does: ask for the bounds, and say how far it is."""
    client = core.connect()
    client.prefetch(1)
    arguments: dict[str, object] = {
        "x-stream-chunks": True,
        "x-stream-reader": name,
        "x-stream-reader-next": after,
        "x-stream-reader-keep": keep,
    }
    client.call(BasicConsume(queue, "t", arguments=arguments), BasicConsumeOk)
    client.close_socket()


def stream_of(core: Core, name: str = "s") -> Stream:
    stream = core.queue(name).stream
    assert stream is not None
    return stream


def positions(core: Core) -> dict[bytes, int]:
    return {each.name: int(each.next) for each in stream_of(core).positions.all()}


def position(core: Core, name: bytes) -> ReaderPosition:
    (found,) = [each for each in stream_of(core).positions.all() if each.name == name]
    return found


def test_a_told_position_is_kept_over_restarts(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 10)
    tell(core, "archive", 4)
    assert positions(core) == {b"archive": 4}
    core.advance(1_500)
    assert stream_of(core).log.offsets == {b"archive": 3}
    again = core.restarted()
    assert positions(again) == {b"archive": 4}
    assert position(again, b"archive").used_ms > 0
    tell(again, "archive", 2)
    again.advance(1_500)
    assert positions(again) == {b"archive": 2}


def test_a_reader_that_begins_anew_has_read_nothing(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 10)
    tell(core, "archive", 4)
    core.advance(1_500)
    tell(core, "archive", 0)
    core.advance(1_500)
    assert positions(core) == {b"archive": 0}
    assert stream_of(core).log.offsets == {}


def test_positions_are_written_once_a_second_and_not_for_nothing(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 10)
    log = stream_of(core).log
    tell(core, "archive", 1)
    core.advance(1_500)
    chunks = log.number
    for after in range(2, 9):
        tell(core, "archive", after)
    core.advance(1_500)
    assert log.number == chunks + 1
    tell(core, "archive", 8)
    core.advance(1_500)
    assert log.number == chunks + 1
    assert positions(core) == {b"archive": 8}


def test_a_position_is_never_ahead_of_what_may_be_shown(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 3)
    tell(core, "eager", 99)
    assert positions(core) == {b"eager": 3}


def test_a_position_that_is_not_kept_lives_while_it_is_told(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 3)
    tell(core, "passing", 2, keep=False)
    core.advance(PASSING_MS - 1_000)
    assert positions(core) == {b"passing": 2}
    assert not position(core, b"passing").kept
    assert stream_of(core).log.offsets == {}
    core.advance(3_000)
    assert positions(core) == {}


def test_consumers_with_a_name_are_readers_too(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 5)
    reader = core.connect()
    reader.prefetch(10)
    arguments: dict[str, object] = {
        "x-stream-offset": "first",
        "x-stream-consumer-name": "app",
    }
    reader.call(BasicConsume("s", "t", arguments=arguments), BasicConsumeOk)
    assert positions(core) == {b"app": 0}
    reader.send(BasicAck(3, True))
    found = position(core, b"app")
    assert (found.next, found.connected, found.kept) == (3, True, True)
    reader.close_socket()
    assert not position(core, b"app").connected


def test_a_name_that_nobody_uses_expires(core: Core) -> None:
    core.observer = Warnings()
    core.broker.observer = core.observer
    client = core.connect()
    declare(client)
    publish(client, 5)
    tell(core, "gone", 2)
    tell(core, "alive", 2)
    core.broker.limits.stream_reader_expires_ms = DAY_MS
    for _ in range(10):
        core.advance(DAY_MS // 8)
        tell(core, "alive", 2)
    core.advance(61_000)
    assert positions(core) == {b"alive": 2}
    assert core.observer.expired == [b"gone"]
    assert positions(core.restarted()) == {b"alive": 2}


def test_a_consumer_that_is_there_does_not_expire_though_nothing_comes(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 5)
    reader = core.connect(heartbeat=0)
    reader.prefetch(10)
    arguments: dict[str, object] = {"x-stream-offset": "first", "x-stream-consumer-name": "app"}
    reader.call(BasicConsume("s", "t", arguments=arguments), BasicConsumeOk)
    reader.send(BasicAck(5, True))
    core.broker.limits.stream_reader_expires_ms = DAY_MS
    for _ in range(5):
        core.advance(DAY_MS)
    assert stream_of(core).log.offsets == {b"app": 4}


def test_a_new_home_waits_before_a_name_expires(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 5)
    tell(core, "spark", 2)
    core.advance(2_000)
    core.now_ms += 3 * DAY_MS
    again = core.restarted()
    again.broker.limits.stream_reader_expires_ms = DAY_MS
    again.advance(120_000)
    assert positions(again) == {b"spark": 2}
    again.advance(EXPIRY_GRACE_MS)
    again.advance(61_000)
    assert positions(again) == {}


def test_a_vhost_has_a_limit_of_names(core: Core) -> None:
    client = core.connect()
    declare(client)
    declare(client, "other")
    publish(client, 5)
    core.broker.limits.stream_readers_max = 2
    for name in ("a", "b", "c"):
        tell(core, name, 1)
    tell(core, "d", 0, queue="other")
    core.advance(1_500)
    assert positions(core) == {b"a": 1, b"b": 1}
    assert core.broker.streams.readers_refused == 2
    assert not stream_of(core).note_offset(b"e", 1)
    tell(core, "b", 3)
    core.advance(1_500)
    assert positions(core) == {b"a": 1, b"b": 3}


def test_retention_warns_before_it_drops_what_a_reader_has_not_read(core: Core) -> None:
    core.observer = Warnings()
    core.broker.observer = core.observer
    client = core.connect()
    declare(client, x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=4_096)
    publish(client, 10, 500)
    tell(core, "slow", 2)
    tell(core, "quick", 10)
    core.advance(1_500)
    stream = stream_of(core)
    assert stream.positions.at_risk == {}
    publish(client, 18, 500)
    core.advance(1_500)
    assert stream.log.first == 0
    assert stream.positions.at_risk == {b"slow": int(stream.log.segments[0].next) - 2}
    assert core.observer.left_behind == [("s", dict(stream.positions.at_risk), False)]
    core.advance(1_500)
    assert len(core.observer.left_behind) == 1
    publish(client, 40, 500)
    core.advance(1_500)
    first = int(stream.log.first)
    assert first > 10
    assert stream.positions.unread_dropped == first - 2 + (first - 10)
    assert core.observer.left_behind[1:] == [
        ("s", {b"slow": first - 2, b"quick": first - 10}, True)
    ]


def test_retention_by_age_warns_too(core: Core) -> None:
    core.observer = Warnings()
    core.broker.observer = core.observer
    client = core.connect()
    declare(client, x_max_age="1h", x_stream_max_segment_size_bytes=4_096)
    publish(client, 10, 1_000)
    tell(core, "slow", 1)
    core.advance(40 * 60_000)
    assert core.observer.left_behind == []
    core.advance(10 * 60_000)
    assert core.observer.left_behind == [("s", {b"slow": 3}, False)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"x-stream-reader": 5},
        {"x-stream-reader": ""},
        {"x-stream-reader-next": -1},
        {"x-stream-reader-next": "5"},
        {"x-stream-reader-next": True},
        {"x-stream-reader-keep": 1},
    ],
)
def test_wrong_arguments_are_refused(core: Core, wrong: dict[str, object]) -> None:
    client = core.connect()
    declare(client)
    client.prefetch(1)
    client.send(BasicConsume("s", "t", arguments=wrong))
    assert f"invalid arg '{next(iter(wrong))}'" in client.pick(ChannelClose).reply_text


# ---- the directory


def listed(core: Core, start: int = 0) -> tuple[list[str], int]:
    client = core.connect()
    arguments: dict[str, object] = {"x-stream-from": start}
    client.call(
        BasicConsume(stream_directory_queue.DIRECTORY_QUEUE, "t", no_ack=True, arguments=arguments),
        BasicConsumeOk,
    )
    (delivery,) = client.deliveries()
    names, at = [], 0
    while at < len(delivery.body):
        length = delivery.body[at]
        names.append(delivery.body[at + 1 : at + 1 + length].decode())
        at += 1 + length
    after = delivery.headers["x-stream-next"]
    assert isinstance(after, int)
    assert delivery.headers["x-stream-count"] == len(names)
    return names, after


def test_the_directory_names_the_streams_of_the_vhost(core: Core) -> None:
    client = core.connect()
    client.declare("work")
    for name in ("a", "b"):
        declare(client, name)
    assert listed(core) == (["a", "b"], -1)
    assert listed(core, 2) == (["b"], -1)
    assert listed(core, 1 << 60) == ([], -1)


def test_the_directory_tells_a_part_at_a_time(core: Core) -> None:
    client = core.connect()
    count = stream_directory_queue.QUEUES_LOOKED_AT_MAX + 3
    declare(client, "first")
    for number in range(count - 2):
        client.send(QueueDeclare(f"q{number}", no_wait=True))
    declare(client, "last")
    names, after = listed(core)
    assert names == ["first"]
    assert listed(core, after) == (["last"], -1)


@pytest.mark.parametrize(("no_ack", "start"), [(False, 0), (True, -1), (True, "0"), (True, True)])
def test_wrong_questions_to_the_directory_are_refused(
    core: Core, no_ack: bool, start: object
) -> None:
    client = core.connect()
    arguments: dict[str, object] = {"x-stream-from": start}
    client.send(
        BasicConsume(
            stream_directory_queue.DIRECTORY_QUEUE, "t", no_ack=no_ack, arguments=arguments
        )
    )
    assert "amq.rhizome.streams" in client.pick(ChannelClose).reply_text
