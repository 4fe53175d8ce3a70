"""Streams of a lone broker core: what clients see of them."""

from __future__ import annotations

import pytest

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ConnectionClose,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import DeletePolicy, PutPolicy
from rhizome.broker.routing.super_stream_exchange import murmur3
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def core() -> Core:
    return make_core()


def declare(client: CoreClient, name: str = "s", **arguments: object) -> None:
    given = {**STREAM, **{key.replace("_", "-"): value for key, value in arguments.items()}}
    client.call(QueueDeclare(name, durable=True, arguments=given), QueueDeclareOk)


def consume(
    client: CoreClient,
    offset: object = "first",
    prefetch: int = 1000,
    queue: str = "s",
    channel: int = 1,
    **arguments: object,
) -> str:
    client.prefetch(prefetch, channel)
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    if offset is not None:
        given["x-stream-offset"] = offset
    client.send(BasicConsume(queue, "", arguments=given), channel=channel)
    return client.pick(BasicConsumeOk, channel).consumer_tag


def publish(client: CoreClient, count: int, start: int = 0, queue: str = "s") -> None:
    for number in range(start, start + count):
        client.publish("", queue, f"m{number}".encode())


def offsets(deliveries: list[Content]) -> list[object]:
    return [delivery.headers["x-stream-offset"] for delivery in deliveries]


def test_a_stream_is_read_by_many_and_by_each_from_its_own_place(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 5)
    readers = [core.connect() for _ in range(3)]
    for reader, offset in zip(readers, ("first", 3, "last"), strict=True):
        consume(reader, offset)
    assert readers[0].bodies() == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert offsets(readers[1].deliveries()) == [3, 4]
    assert readers[2].bodies() == [b"m4"]
    publish(client, 1, 5)
    for reader in readers:
        assert reader.bodies() == [b"m5"]
    assert core.queue("s").ready == 6


def test_next_shows_only_what_is_published_from_then_on(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 3)
    reader = core.connect()
    consume(reader, "next")
    default = core.connect()
    consume(default, None)
    publish(client, 2, 3)
    assert reader.bodies() == [b"m3", b"m4"]
    assert default.bodies() == [b"m3", b"m4"]


@pytest.mark.parametrize(("asked", "first"), [(-5, 0), (2, 2), (99, 10)])
def test_an_offset_that_is_not_there_is_the_nearest_that_is(
    core: Core, asked: int, first: int
) -> None:
    client = core.connect()
    declare(client)
    publish(client, 10)
    consume(client, asked)
    publish(client, 1, 10)
    assert offsets(client.deliveries()) == list(range(first, 11))


def test_a_time_leads_to_the_first_message_that_is_not_older(core: Core) -> None:
    client = core.connect()
    declare(client)
    for number in range(6):
        publish(client, 1, number)
        core.advance(60_000)
    reader = core.connect()
    consume(reader, "150s")
    assert offsets(reader.deliveries()) == [4, 5]
    reader = core.connect()
    consume(reader, Timestamp(core.now_ms // 1000 - 200))
    assert offsets(reader.deliveries()) == [3, 4, 5]
    reader = core.connect()
    consume(reader, Timestamp(core.now_ms // 1000 + 200))
    assert reader.bodies() == []


def test_acks_are_credit(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 10)
    consume(client, "first", prefetch=3)
    assert offsets(client.deliveries()) == [0, 1, 2]
    client.send(BasicAck(2, False))
    assert offsets(client.deliveries()) == [3]
    client.send(BasicAck(4, True))
    assert offsets(client.deliveries()) == [4, 5, 6]
    queue = core.queue("s")
    assert (queue.unacked, queue.ready) == (3, 10)
    client.close_socket()
    assert core.queue("s").unacked == 0


def test_properties_and_body_come_back_as_they_were(core: Core) -> None:
    client = core.connect()
    declare(client)
    given = Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"a": 1, "nested": {"b": [1, "two"]}},
        delivery_mode=2,
        priority=3,
        message_id="id",
        timestamp=17,
    )
    client.publish("", "s", b"x" * 300_000, given)
    client.publish("", "s", b"", Properties(headers={"x-stream-offset": "mine", "z": None}))
    client.publish("", "s", b"plain")
    other = core.connect(frame_max=4096)
    other.open_channel(9)
    consume(other, "first", channel=9)
    found = other.deliveries(9)
    assert [delivery.body for delivery in found] == [b"x" * 300_000, b"", b"plain"]
    first = found[0].properties
    assert first.headers == {"x-stream-offset": 0, **(given.headers or {})}
    assert (first.content_type, first.content_encoding) == ("text/plain", "utf-8")
    assert (first.priority, first.message_id, first.timestamp) == (3, "id", 17)
    assert found[1].headers == {"x-stream-offset": 1, "z": None}
    assert found[2].headers == {"x-stream-offset": 2}


def test_confirms_wait_for_the_disk_and_readers_for_the_confirm(core: Core) -> None:
    client = core.connect()
    declare(client)
    reader = core.connect()
    consume(reader, "first")
    client.confirm()
    core.hold_syncs = True
    publish(client, 3)
    assert client.take() == []
    assert reader.deliveries() == []
    core.hold_syncs = False
    core.sync()
    assert client.expect(BasicAck).delivery_tag == 1
    assert offsets(reader.deliveries()) == [0, 1, 2]


def test_a_restart_finds_everything_and_goes_on_with_the_next_offset(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 4)
    again = core.restarted()
    client = again.connect()
    publish(client, 2, 4)
    consume(client, "first")
    found = client.deliveries()
    assert offsets(found) == [0, 1, 2, 3, 4, 5]
    assert [delivery.body for delivery in found] == [f"m{n}".encode() for n in range(6)]


def test_retention_by_size_drops_whole_segments(core: Core) -> None:
    client = core.connect()
    declare(client, x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=5_000)
    for number in range(100):
        client.publish("", "s", b"%d" % number + b"." * 500)
    core.advance(2_000)
    queue = core.queue("s")
    assert queue.stream is not None
    log = queue.stream.log
    assert 10_000 < log.size <= 25_000
    assert 0 < log.first < 90
    reader = core.connect()
    consume(reader, "first")
    assert offsets(reader.deliveries()) == list(range(int(log.first), 100))
    directory = core.files.inside("streams").inside(str(queue.id))
    assert len(directory.segments()) == len(log.segments)


def test_retention_by_age_drops_what_is_older(core: Core) -> None:
    client = core.connect()
    declare(client, x_max_age="1h", x_stream_max_segment_size_bytes=4_096)
    for number in range(30):
        client.publish("", "s", b"%d" % number + b"." * 1000)
        core.advance(360_000)
    reader = core.connect()
    consume(reader, "first")
    found = offsets(reader.deliveries())
    assert found[-1] == 29
    assert 8 <= len(found) <= 16


def test_a_reader_that_retention_overtakes_goes_on_with_what_is_left(core: Core) -> None:
    client = core.connect()
    declare(client, x_max_length_bytes=10_000, x_stream_max_segment_size_bytes=4_096)
    reader = core.connect()
    consume(reader, "first", prefetch=1)
    for number in range(50):
        client.publish("", "s", b"%d" % number + b"." * 500)
    core.advance(2_000)
    assert offsets(reader.deliveries()) == [0]
    reader.send(BasicAck(1, False))
    queue = core.queue("s")
    assert queue.stream is not None
    (second,) = offsets(reader.deliveries())
    assert isinstance(second, int)
    assert second <= queue.stream.log.first + 8
    got = [second]
    for tag in range(2, 100):
        reader.send(BasicAck(tag, False))
        found = offsets(reader.deliveries())
        if not found:
            break
        got += found
    assert got[-1] == 49
    assert got == sorted(got)


def test_progress_is_remembered_by_name(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 10)
    reader = core.connect()
    tag = consume(reader, "first", prefetch=5, x_stream_consumer_name="app")
    assert offsets(reader.deliveries()) == [0, 1, 2, 3, 4]
    for number in (1, 2, 4):
        reader.send(BasicAck(number, False))
    assert offsets(reader.deliveries()) == [5, 6, 7]
    reader.call(BasicCancel(tag), BasicCancelOk)
    queue = core.queue("s")
    assert queue.stream is not None
    assert queue.stream.log.offsets == {b"app": 1}
    again = core.restarted()
    reader = again.connect()
    consume(reader, "first", prefetch=3, x_stream_consumer_name="app")
    assert offsets(reader.deliveries()) == [2, 3, 4]
    reader.send(BasicAck(3, True))
    again.advance(1_500)
    assert again.queue("s").stream.log.offsets == {b"app": 4}  # type: ignore[union-attr]
    other = again.connect()
    consume(other, "last", prefetch=3, x_stream_consumer_name="other")
    assert offsets(other.deliveries()) == [9]


def test_a_transaction_is_one_chunk(core: Core) -> None:
    client = core.connect()
    declare(client)
    client.call(TxSelect(), TxSelectOk)
    for number in range(400):
        client.publish("", "s", b"%d" % number + b"." * 1000)
    assert core.queue("s").ready == 0
    core.hold_syncs = True
    client.send(TxCommit())
    assert client.take() == []
    core.hold_syncs = False
    core.sync()
    client.expect(TxCommitOk)
    assert core.queue("s").ready == 400
    assert core.queue("s").stream.log.number == 3  # type: ignore[union-attr]


def test_a_deleted_stream_leaves_nothing_behind(core: Core) -> None:
    client = core.connect()
    declare(client)
    publish(client, 3)
    consume(client, "first")
    assert len(client.bodies()) == 3
    root = core.files.inside("streams")
    assert len(root.directories()) == 1
    client.send(QueueDelete("s"))
    assert client.pick(QueueDeleteOk).message_count == 3
    client.pick(BasicCancel)
    assert root.directories() == []
    declare(client)
    assert core.queue("s").ready == 0


def closed_with(client: CoreClient, *methods: object) -> tuple[int, str]:
    client.send(*methods)  # type: ignore[arg-type]
    for channel in (0, 1):
        for event in client.events.get(channel, []):
            if isinstance(event, (ChannelClose, ConnectionClose)):
                return event.reply_code, event.reply_text
    raise AssertionError("nothing was closed")


WHERE = "queue 's' in vhost '/'"


def test_what_streams_cannot_do_is_refused_as_rabbitmq_does(core: Core) -> None:
    declare(core.connect())
    assert closed_with(core.connect(), BasicGet("s")) == (
        540,
        f"NOT_IMPLEMENTED - basic.get not supported by stream queues {WHERE}",
    )
    assert closed_with(core.connect(), QueuePurge("s")) == (
        540,
        f"NOT_IMPLEMENTED - queue.purge not supported by stream queues {WHERE}",
    )
    assert closed_with(core.connect(), BasicConsume("s", "")) == (
        406,
        f"PRECONDITION_FAILED - consumer prefetch count is not set for '{WHERE}'",
    )
    client = core.connect()
    client.prefetch(10)
    assert closed_with(client, BasicConsume("s", "", no_ack=True)) == (
        540,
        f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {WHERE}",
    )
    client = core.connect()
    publish(client, 1)
    consume(client)
    assert closed_with(client, BasicNack(1, False, True)) == (
        540,
        "NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues " + WHERE,
    )


def test_segments_of_more_than_three_gigabytes_are_refused(core: Core) -> None:
    arguments: dict[str, object] = {**STREAM, "x-stream-max-segment-size-bytes": 3_000_000_001}
    assert closed_with(core.connect(), QueueDeclare("s", durable=True, arguments=arguments)) == (
        406,
        "PRECONDITION_FAILED - Exceeded max value for x-stream-max-segment-size-bytes",
    )


def test_a_numbered_message_is_taken_once_even_after_a_restart(core: Core) -> None:
    client = core.connect()
    declare(client)
    client.confirm()
    numbered = Properties(headers={"x-producer": "p", "x-sequence": 7})
    for _ in range(2):
        client.publish("", "s", b"once", numbered)
    assert core.queue("s").ready == 1
    core = core.restarted()
    client = core.connect()
    client.confirm()
    client.publish("", "s", b"once", numbered)
    client.publish("", "s", b"next", Properties(headers={"x-producer": "p", "x-sequence": 8}))
    assert client.take() != []
    assert core.queue("s").ready == 2
    consume(client, "first")
    assert client.bodies() == [b"once", b"next"]


# ---- taps


def tap(core: Core, exchange: str, stream: str) -> None:
    pattern = f"^{exchange}$"
    command = PutPolicy("/", "tap", pattern, {"tap": stream}, "exchanges")
    core.broker.cluster.propose(command, None)
    core.settle()


@pytest.fixture
def tapped(core: Core) -> CoreClient:
    client = core.connect()
    declare(client)
    client.call(ExchangeDeclare("x", "direct", durable=True), ExchangeDeclareOk)
    client.declare("q")
    client.call(QueueBind("q", "x", "key"), QueueBindOk)
    tap(core, "x", "s")
    return client


def test_a_tap_copies_everything_that_comes_to_an_exchange(core: Core, tapped: CoreClient) -> None:
    for key in ("key", "other", "key"):
        tapped.publish("x", key, key.encode(), Properties(headers={"CC": ["key"]}))
    tapped.publish("", "q", b"not through the exchange")
    consume(tapped)
    found = tapped.deliveries()
    assert [each.body for each in found] == [b"key", b"other", b"key"]
    assert found[1].method.routing_key == "other"  # type: ignore[attr-defined]
    assert core.queue("q").ready == 4


def test_publishers_do_not_notice_a_tap(tapped: CoreClient) -> None:
    tapped.confirm()
    tapped.publish("x", "nowhere", b"lost", mandatory=True)
    returned, confirmed = tapped.take()
    assert isinstance(returned, Content)
    assert isinstance(returned.method, BasicReturn)
    assert isinstance(confirmed, BasicAck)
    tapped.publish("x", "key", b"taken", mandatory=True)
    assert [type(event) for event in tapped.take()] == [BasicAck]
    consume(tapped)
    assert tapped.bodies() == [b"lost", b"taken"]


def test_a_tap_sees_what_comes_through_other_exchanges(core: Core, tapped: CoreClient) -> None:
    tapped.call(ExchangeDeclare("front", "fanout"), ExchangeDeclareOk)
    tapped.call(ExchangeBind("x", "front", ""), ExchangeBindOk)
    tapped.publish("front", "key", b"through")
    assert core.queue("s").ready == 1
    assert core.queue("q").ready == 1


def test_a_stream_that_is_bound_and_taps_has_a_message_once(core: Core, tapped: CoreClient) -> None:
    tapped.call(QueueBind("s", "x", "key"), QueueBindOk)
    tapped.publish("x", "key", b"once")
    assert core.queue("s").ready == 1


def test_a_tap_ends_with_its_policy_or_its_stream(core: Core, tapped: CoreClient) -> None:
    tapped.publish("x", "a")
    core.broker.cluster.propose(DeletePolicy("/", "tap"), None)
    core.settle()
    tapped.publish("x", "b")
    assert core.queue("s").ready == 1
    tap(core, "x", "s")
    tapped.call(QueueDelete("s"), QueueDeleteOk)
    tapped.publish("x", "key")
    assert core.queue("q").ready == 1


def test_only_a_stream_can_tap(core: Core, tapped: CoreClient) -> None:
    tap(core, "x", "q")
    tapped.publish("x", "other")
    assert core.queue("q").ready == 0


# ---- partitions


@pytest.mark.parametrize(
    ("data", "seed", "found"),
    [
        (b"", 1, 0x514E28B7),
        (b"hello", 0, 0x248BFA47),
        (b"hello, world", 0, 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"!Ce\x87", 0x5082EDEE, 0x2362F9DE),
    ],
)
def test_partitions_are_chosen_with_murmur3(data: bytes, seed: int, found: int) -> None:
    assert murmur3(data, seed) == found


def test_a_key_always_goes_to_the_same_partition(core: Core) -> None:
    client = core.connect()
    client.call(ExchangeDeclare("p", "x-super-stream", durable=True), ExchangeDeclareOk)
    for number in range(3):
        declare(client, f"p-{number}")
        client.call(QueueBind(f"p-{number}", "p", str(number)), QueueBindOk)
    for _ in range(3):
        for number in range(20):
            client.publish("p", f"key {number}", b"%d" % number)
    assert sum(core.queue(f"p-{number}").ready for number in range(3)) == 60
    for number in range(3):
        consume(client, queue=f"p-{number}")
        bodies = client.bodies()
        assert len(bodies) > 3
        assert sorted(bodies) == sorted(bodies[: len(bodies) // 3] * 3)


def test_a_partition_must_have_a_number(core: Core) -> None:
    client = core.connect()
    client.call(ExchangeDeclare("p", "x-super-stream"), ExchangeDeclareOk)
    declare(client)
    assert closed_with(client, QueueBind("s", "p", "first")) == (
        406,
        "PRECONDITION_FAILED - The binding key must be an integer: 'first'",
    )


def test_nobody_waits_for_a_stream_that_is_deleted(core: Core) -> None:
    client = core.connect()
    declare(client)
    client.confirm()
    core.hold_syncs = True
    publish(client, 1)
    other = core.connect()
    other.send(QueueDelete("s"))
    core.hold_syncs = False
    core.sync()
    client.pick(BasicAck)
