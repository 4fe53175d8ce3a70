"""What survives a broker that is killed at any instant, and what a store says of damage."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from rhizome.client import Channel, ConnectionLost, Properties, connect
from rhizome.journal.inspect import open_offline, records
from rhizome.testing.processes import BrokerProcess, wait_until

from .kit import (
    PERSISTENT,
    TRANSIENT,
    broker_with,
    call_api,
    contents,
    inspected,
    refusal,
    run,
    segment_files,
    take,
)
from .workload import KEPT, QUEUES, Ledger, declare, forget, load_until_killed

pytestmark = pytest.mark.rhizome_only

End = Callable[[BrokerProcess], None]
ENDS = pytest.mark.parametrize(
    "end", [BrokerProcess.kill, BrokerProcess.stop_cleanly], ids=["killed", "stopped"]
)


@pytest.fixture
def small_segments(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker whose journal files hold 1 MiB."""
    broker = broker_with(tmp_path / "small", journal_segment_size="1MiB")
    broker.start()
    yield broker
    if broker.is_running():
        broker.stop_cleanly()


# --- kill -9 under load


def kill_again_and_again(broker: BrokerProcess, kills: int, seed: int) -> Ledger:
    """Load, kill, restart, compare; now and then forget a part of what is kept."""
    ledger = Ledger()
    chance = random.Random(seed)
    run(declare(broker))
    for _ in range(kills):
        run(load_until_killed(broker, ledger, chance))
        broker.start()
        found = {queue: run(contents(broker, queue)) for queue in QUEUES}
        for queue in QUEUES:
            ledger.settle(queue, found[queue])
        ledger.adopt(found[KEPT])
        count = chance.randint(1, len(found[KEPT]))
        run(forget(broker, ledger.queues[KEPT], KEPT, count))
    return ledger


def test_what_was_confirmed_survives_kills_at_random_instants_in_order_and_once(
    small_segments: BrokerProcess,
) -> None:
    ledger = kill_again_and_again(small_segments, kills=4, seed=random.randrange(1 << 32))
    assert len(ledger.confirmed) > 80
    assert ledger.queues[QUEUES[0]].gone, "nothing was consumed: the test shows nothing"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_what_was_confirmed_survives_sixty_kills(small_segments: BrokerProcess) -> None:
    ledger = kill_again_and_again(small_segments, kills=60, seed=random.randrange(1 << 32))
    print(f"acks lost {ledger.acks_lost}, unconfirmed and kept {ledger.unconfirmed_kept}")


@pytest.mark.parametrize("flush", ["interval", "never"])
def test_without_a_sync_per_confirm_a_crash_of_the_process_still_loses_nothing(
    tmp_path: Path, flush: str
) -> None:
    settings = {"journal_flush": flush, "journal_flush_interval": "20ms"}
    with broker_with(tmp_path / flush, journal_segment_size="1MiB", **settings) as broker:
        kill_again_and_again(broker, kills=2, seed=random.randrange(1 << 32))
        kept = run(contents(broker, KEPT))
        broker.restart()
        assert "0 records replayed, stopped cleanly" in broker.printed()
        assert run(contents(broker, KEPT)) == kept


# --- definitions


async def define(channel: Channel) -> None:
    await channel.declare_exchange("durable.x", "topic", durable=True)
    await channel.declare_exchange("durable.y", "fanout", durable=True)
    await channel.declare_exchange("transient.x", "fanout")
    await channel.declare_queue("durable.q", durable=True, arguments={"x-max-length": 3})
    await channel.declare_queue("transient.q")
    await channel.bind_exchange("durable.y", "durable.x", "a.*")
    await channel.bind_queue("durable.q", "durable.y", "")
    await channel.bind_queue("durable.q", "durable.x", "b", arguments={"note": "kept"})
    await channel.bind_queue("durable.q", "transient.x", "")
    await channel.bind_queue("transient.q", "durable.x", "#")


def define_by_http(broker: BrokerProcess) -> None:
    call_api(broker, "PUT", "vhosts", "side")
    call_api(broker, "PUT", "users", "ann", password="secret", tags="monitoring")
    everything = {"configure": "^ann", "write": ".*", "read": ".*"}
    call_api(broker, "PUT", "permissions", "side", "ann", **everything)
    policy: dict[str, Any] = {"pattern": "^durable", "definition": {"message-ttl": 3_600_000}}
    call_api(broker, "PUT", "policies", "/", "slow", **policy)


def binding_names(broker: BrokerProcess) -> set[tuple[str, str, str]]:
    rows = call_api(broker, "GET", "bindings", "/")
    return {(r["source"], r["destination"], r["routing_key"]) for r in rows if r["source"]}


@ENDS
def test_durable_definitions_survive_and_transient_ones_do_not(
    own_broker: BrokerProcess, end: End
) -> None:
    async def prepare() -> None:
        async with connect(own_broker.url) as connection, connection.channel() as channel:
            await define(channel)

    run(prepare())
    define_by_http(own_broker)
    end(own_broker)
    own_broker.start()
    assert binding_names(own_broker) == {
        ("durable.x", "durable.y", "a.*"),
        ("durable.y", "durable.q", ""),
        ("durable.x", "durable.q", "b"),
    }
    assert call_api(own_broker, "GET", "exchanges", "/", "transient.x") is None
    assert call_api(own_broker, "GET", "queues", "/", "transient.q") is None
    queue = call_api(own_broker, "GET", "queues", "/", "durable.q")
    assert queue["arguments"] == {"x-max-length": 3}
    assert queue["policy"] == "slow"
    assert call_api(own_broker, "GET", "users", "ann")["tags"] == ["monitoring"]
    assert call_api(own_broker, "GET", "permissions", "side", "ann")["configure"] == "^ann"


@ENDS
def test_a_user_that_survived_can_log_in_and_a_deleted_one_cannot(
    own_broker: BrokerProcess, end: End
) -> None:
    define_by_http(own_broker)
    call_api(own_broker, "PUT", "users", "bob", password="x", tags="")
    call_api(own_broker, "DELETE", "users", "bob")
    end(own_broker)
    own_broker.start()

    async def log_in() -> None:
        where = f"ann:secret@{own_broker.host}:{own_broker.port}/side"
        async with connect(f"amqp://{where}") as connection, connection.channel() as channel:
            await channel.declare_queue("ann.q", durable=True)

    run(log_in())
    assert call_api(own_broker, "GET", "users", "bob") is None


@ENDS
def test_transient_messages_and_queues_are_gone_after_a_restart(
    own_broker: BrokerProcess, end: End
) -> None:
    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            await channel.declare_queue("q", durable=True)
            for number in range(10):
                properties = PERSISTENT if number % 2 else TRANSIENT
                await channel.publish(b"%d" % number, routing_key="q", properties=properties)

    run(prepare())
    end(own_broker)
    own_broker.start()
    assert run(contents(own_broker, "q")) == [b"1", b"3", b"5", b"7", b"9"]


def test_deleted_and_purged_queues_stay_so(own_broker: BrokerProcess) -> None:
    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            for queue in ("deleted", "purged", "again"):
                await channel.declare_queue(queue, durable=True)
                await channel.publish(b"old", routing_key=queue, properties=PERSISTENT)
            await channel.delete_queue("deleted")
            await channel.purge_queue("purged")
            await channel.delete_queue("again")
            await channel.declare_queue("again", durable=True)
            await channel.publish(b"new", routing_key="again", properties=PERSISTENT)

    run(prepare())
    own_broker.kill()
    own_broker.start()
    assert call_api(own_broker, "GET", "queues", "/", "deleted") is None
    assert run(contents(own_broker, "purged")) == []
    assert run(contents(own_broker, "again")) == [b"new"]


# --- transactions


MOVED_TOGETHER = 5
ITEMS = 400


async def move_until_killed(broker: BrokerProcess, committed: set[bytes]) -> None:
    """Move items from `source` to `left` and `right`, some of them in each transaction."""
    async with connect(broker.url) as connection:
        channel = await connection.channel(prefetch=MOVED_TOGETHER)
        await channel.tx_select()
        consumer = channel.consume("source")
        while len(committed) < ITEMS:
            taken: list[bytes] = []
            while len(taken) < MOVED_TOGETHER:
                for message in await consumer.batch(MOVED_TOGETHER - len(taken)):
                    taken.append(message.body)
                    for queue in ("left", "right"):
                        channel.publish_soon(
                            message.body, routing_key=queue, properties=PERSISTENT
                        )
                    await message.ack()
            await channel.tx_commit()
            committed.update(taken)


def test_a_transaction_survives_a_kill_whole_or_not_at_all(own_broker: BrokerProcess) -> None:
    items = [b"%03d" % number for number in range(ITEMS)]
    committed: set[bytes] = set()

    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            for queue in ("source", "left", "right"):
                await channel.declare_queue(queue, durable=True)
            for item in items:
                channel.publish_soon(item, routing_key="source", properties=PERSISTENT)
            await channel.confirmed()

    async def kill_while_moving(enough: int) -> None:
        moving = asyncio.create_task(move_until_killed(own_broker, committed))
        while len(committed) < enough and not moving.done():
            await asyncio.sleep(0.001)
        await asyncio.to_thread(own_broker.kill)
        with pytest.raises(ConnectionLost):
            await moving

    run(prepare())
    for enough in (50, 150, 250):
        run(kill_while_moving(enough))
        own_broker.start()
        source, left, right = (
            run(contents(own_broker, queue)) for queue in ("source", "left", "right")
        )
        assert left == right
        assert sorted(source + left) == items, "an item was lost, or is in both places"
        assert source == sorted(source)
        assert len(left) % MOVED_TOGETHER == 0
        assert committed <= set(left)
        committed.update(left)


# --- torn tails and damage


def fill(broker: BrokerProcess, count: int, size: int) -> list[bytes]:
    """Publish `count` persistent messages of `size` bytes to "q", all confirmed."""
    bodies = [(b"%06d" % number).ljust(size, b".") for number in range(count)]

    async def publish() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            await channel.declare_queue("q", durable=True)
            for body in bodies:
                channel.publish_soon(body, routing_key="q", properties=PERSISTENT)
                await channel.confirmed(unconfirmed_max=20)
            await channel.confirmed()

    run(publish())
    return bodies


def extents(data: Path) -> list[tuple[int, int, int]]:
    """Segment, start and end of the record of each message, in the order of the journal."""
    files, _ = open_offline(data)
    rows = list(records(files, kinds={"enqueue"}))
    return [(int(str(r["segment"])), int(str(r["offset"])), int(str(r["end"]))) for r in rows]


def truncate(path: Path, at: int, end: int) -> None:
    with path.open("r+b") as file:
        file.truncate(at)


def scribble(path: Path, at: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(random.Random(at).randbytes(end - at))


def blank(path: Path, at: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(end - at))


@pytest.fixture
def crashed(small_segments: BrokerProcess) -> tuple[BrokerProcess, list[bytes]]:
    """A broker that was killed with 2.5 segments of confirmed messages, and their bodies."""
    bodies = fill(small_segments, 250, 10_000)
    small_segments.kill()
    return small_segments, bodies


@pytest.mark.parametrize("damage", [truncate, scribble, blank])
def test_a_torn_tail_is_cut_off_and_nothing_before_it_is_lost(
    crashed: tuple[BrokerProcess, list[bytes]], damage: Callable[[Path, int, int], None]
) -> None:
    broker, bodies = crashed
    pristine = broker.directory / "pristine"
    shutil.copytree(broker.data, pristine)
    found = extents(broker.data)
    assert len(found) == len(bodies)
    last = found[-1][0]
    end = max(int(str(row["end"])) for row in records(open_offline(broker.data)[0]))
    in_last = [number for number, extent in enumerate(found) if extent[0] == last]
    assert last >= 2, "the last segment must not be the only one"
    assert len(in_last) > 10
    # The header, the middle, the very last byte of records near the end of the segment.
    cuts = [(in_last[-1], -1), (in_last[-3], 1), (in_last[-8], 5000), (in_last[1], 0)]
    for number, shift in cuts:
        shutil.rmtree(broker.data)
        shutil.copytree(pristine, broker.data)
        at = found[number][2] - 1 if shift < 0 else found[number][1] + shift
        damage(segment_files(broker)[-1], at, end)
        broker.start()
        assert run(contents(broker, "q")) == bodies[:number], (number, shift)
        broker.kill()
        broker.start()
        assert run(contents(broker, "q")) == bodies[:number], "the second start finds less"
        broker.kill()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 0x10]))


@pytest.mark.parametrize("place", ["head", "body"])
def test_a_flipped_bit_in_an_earlier_segment_is_refused_by_segment_and_offset(
    crashed: tuple[BrokerProcess, list[bytes]], place: str
) -> None:
    broker, _ = crashed
    segment, start, _ = extents(broker.data)[40]
    assert segment < len(segment_files(broker))
    path = broker.data / "journal" / f"{segment:010d}.seg"
    flip(path, start + (20 if place == "head" else 5000))
    text = refusal(broker)
    assert f"segment {segment} at {start}" in text
    assert "damaged" in text
    report = inspected(broker.data)
    assert [(c["segment"], c["offset"]) for c in report["corruptions"]] == [(segment, start)]
    flip(path, start + (20 if place == "head" else 5000))
    broker.start()
    assert len(run(contents(broker, "q"))) == 250, "a refusal must not change the store"


def test_a_flipped_bit_in_the_last_segment_with_synced_records_after_it_is_refused(
    crashed: tuple[BrokerProcess, list[bytes]],
) -> None:
    broker, _ = crashed
    found = extents(broker.data)
    segment = found[-1][0]
    start = next(extent[1] for extent in found if extent[0] == segment)
    flip(segment_files(broker)[-1], start + 5000)
    assert f"segment {segment} at {start}" in refusal(broker)


def test_a_missing_segment_is_refused(crashed: tuple[BrokerProcess, list[bytes]]) -> None:
    broker, _ = crashed
    segment_files(broker)[1].unlink()
    assert "segment 2 at 0: the segment is missing" in refusal(broker)


# --- stopping


def test_a_clean_stop_marks_the_store_and_the_next_start_replays_nothing(
    own_broker: BrokerProcess,
) -> None:
    bodies = fill(own_broker, 100, 100)
    own_broker.stop_cleanly()
    report = inspected(own_broker.data)
    assert report["clean"] is True
    assert [(q["name"], q["messages"]) for q in report["queues"]] == [("q", 100)]
    own_broker.start()
    assert "100 messages, 0 records replayed, stopped cleanly" in own_broker.printed()
    assert run(contents(own_broker, "q")) == bodies
    own_broker.kill()
    assert inspected(own_broker.data)["clean"] is False
    own_broker.start()
    assert "stopped without closing" in own_broker.printed()


def test_sigint_closes_cleanly_too(own_broker: BrokerProcess) -> None:
    fill(own_broker, 10, 100)
    process = own_broker._running()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert inspected(own_broker.data)["clean"] is True


def silent_client(broker: BrokerProcess) -> tuple[pika.BlockingConnection, socket.socket]:
    """A client that is logged in and then answers nothing any more."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    return connection, connection._impl._transport._sock  # type: ignore[attr-defined]


def test_a_second_signal_ends_the_broker_at_once(own_broker: BrokerProcess) -> None:
    bodies = fill(own_broker, 10, 100)
    connection, stream = silent_client(own_broker)
    process: subprocess.Popen[bytes] = own_broker._running()
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping on SIGTERM" in own_broker.printed(), "the first signal's line")
    assert process.poll() is None, "the broker must wait for its client"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    stream.close()
    del connection
    own_broker._process = None
    assert inspected(own_broker.data)["clean"] is False
    own_broker.start()
    assert run(contents(own_broker, "q")) == bodies


# --- what messages carry with them


def test_delayed_messages_survive_a_kill_and_arrive_in_the_order_of_their_time(
    own_broker: BrokerProcess,
) -> None:
    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            kind = {"x-delayed-type": "direct"}
            await channel.declare_exchange(
                "late", "x-delayed-message", durable=True, arguments=kind
            )
            await channel.declare_queue("q", durable=True)
            await channel.bind_queue("q", "late", "k")
            for delay in (3000, 1500, 600_000, 2000):
                properties = Properties(delivery_mode=2, headers={"x-delay": delay})
                await channel.publish(
                    b"%d" % delay, exchange="late", routing_key="k", properties=properties
                )
            assert (await channel.declare_queue("q", passive=True)).message_count == 0

    async def arrivals() -> list[bytes]:
        async with connect(own_broker.url) as connection, connection.channel() as channel:
            return [message.body for message in await take(channel, "q", 3)]

    run(prepare())
    own_broker.kill()
    own_broker.start()
    assert run(arrivals()) == [b"1500", b"2000", b"3000"]
    own_broker.kill()
    own_broker.start()
    assert sorted(run(contents(own_broker, "q"))) == [b"1500", b"2000", b"3000"]
    assert call_api(own_broker, "GET", "queues", "/", "amq.delayed")["messages"] == 1


@ENDS
def test_delivery_counts_survive(own_broker: BrokerProcess, end: End) -> None:
    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            await channel.declare_queue(
                "q", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 4}
            )
            await channel.publish(b"m", routing_key="q", properties=PERSISTENT)
            for _ in range(3):
                message = await channel.get("q")
                assert message is not None
                await message.nack(requeue=True)
            await channel.publish(b"n", routing_key="q", properties=PERSISTENT)

    async def counts() -> list[tuple[bytes, object]]:
        async with connect(own_broker.url) as connection, connection.channel() as channel:
            found = await take(channel, "q", 2)
            return [
                (message.body, (message.properties.headers or {}).get("x-delivery-count"))
                for message in found
            ]

    run(prepare())
    end(own_broker)
    own_broker.start()
    assert run(counts()) == [(b"m", 3), (b"n", None)]


@ENDS
def test_priorities_survive(own_broker: BrokerProcess, end: End) -> None:
    priorities = [1, 5, 0, 9, 5, 1]

    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            await channel.declare_queue("q", durable=True, arguments={"x-max-priority": 9})
            for number, priority in enumerate(priorities):
                properties = Properties(delivery_mode=2, priority=priority)
                await channel.publish(b"%d" % number, routing_key="q", properties=properties)

    run(prepare())
    end(own_broker)
    own_broker.start()
    assert run(contents(own_broker, "q")) == [b"3", b"1", b"4", b"0", b"5", b"2"]


@ENDS
def test_every_property_survives(own_broker: BrokerProcess, end: End) -> None:
    sent = Properties(
        content_type="text/plain",
        headers={"number": 7, "nested": {"list": [1, True, None]}},
        delivery_mode=2,
        correlation_id="c",
        expiration="3600000",
        message_id="m",
        timestamp=1_700_000_000,
    )

    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            await channel.declare_queue("q", durable=True)
            await channel.publish(b"x" * 300_000, routing_key="q", properties=sent)

    async def check() -> None:
        async with connect(own_broker.url) as connection, connection.channel() as channel:
            message = await channel.get("q")
            assert message is not None
            assert message.body == b"x" * 300_000
            for name in ("content_type", "headers", "correlation_id", "expiration", "message_id"):
                assert getattr(message.properties, name) == getattr(sent, name)

    run(prepare())
    end(own_broker)
    own_broker.start()
    run(check())


def test_two_brokers_cannot_share_a_store(own_broker: BrokerProcess) -> None:
    other = BrokerProcess(own_broker.directory.parent / "other")
    other.data = own_broker.data
    text = refusal(other)
    assert re.search(rf"in use by process {own_broker.pid}", text)
