"""What survives a broker that is killed at any instant, and what a store says of damage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rhizome.client import Channel, ConnectionLost, Properties, connect
from rhizome.journal.store_inspection import open_offline, records
from rhizome.testing.broker_process import BrokerProcess, BrokerProcessError, wait_until
from tests.process.helpers import (
    PERSISTENT,
    TRANSIENT,
    RawClient,
    broker_with,
    call_api,
    contents,
    inspected,
    refusal,
    run,
    segment_files,
    take,
)
from tests.process.kill_workload import KEPT, QUEUES, Ledger, declare, forget, load_until_killed

pytestmark = pytest.mark.rhizome_only


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
        ledger.adopt(KEPT, found[KEPT])
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
        kill_again_and_again(broker, kills=1, seed=random.randrange(1 << 32))
        kept = run(contents(broker, KEPT))
        broker.restart()
        broker.wait_until_printed("0 records replayed, stopped cleanly")
        assert run(contents(broker, KEPT)) == kept


# --- definitions, and what messages carry with them


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
    call_api(broker, "PUT", "users", "bob", password="x", tags="")
    call_api(broker, "DELETE", "users", "bob")


async def publish_mixed(channel: Channel) -> None:
    """Persistent and transient messages in turn."""
    await channel.declare_queue("mixed", durable=True)
    for number in range(10):
        properties = PERSISTENT if number % 2 else TRANSIENT
        await channel.publish(b"%d" % number, routing_key="mixed", properties=properties)


async def publish_priorities(channel: Channel) -> None:
    await channel.declare_queue("urgent", durable=True, arguments={"x-max-priority": 9})
    for number, priority in enumerate([1, 5, 0, 9, 5, 1]):
        properties = Properties(delivery_mode=2, priority=priority)
        await channel.publish(b"%d" % number, routing_key="urgent", properties=properties)


async def publish_requeued(channel: Channel) -> None:
    """A message that was given back three times, and one that was never delivered."""
    arguments: dict[str, object] = {"x-queue-type": "quorum", "x-delivery-limit": 4}
    await channel.declare_queue("counted", durable=True, arguments=arguments)
    await channel.publish(b"m", routing_key="counted", properties=PERSISTENT)
    for _ in range(3):
        message = await channel.get("counted")
        assert message is not None
        await message.nack(requeue=True)
    await channel.publish(b"n", routing_key="counted", properties=PERSISTENT)


PROPERTIES = Properties(
    content_type="text/plain",
    headers={"number": 7, "nested": {"list": [1, True, None]}},
    delivery_mode=2,
    correlation_id="c",
    expiration="3600000",
    message_id="m",
    timestamp=1_700_000_000,
)
LARGE_BODY = bytes(range(256)) * 1200


async def publish_large(channel: Channel) -> None:
    await channel.declare_queue("large", durable=True)
    await channel.publish(LARGE_BODY, routing_key="large", properties=PROPERTIES)


async def delete_and_purge(channel: Channel) -> None:
    for queue in ("deleted", "purged", "again"):
        await channel.declare_queue(queue, durable=True)
        await channel.publish(b"old", routing_key=queue, properties=PERSISTENT)
    await channel.delete_queue("deleted")
    await channel.purge_queue("purged")
    await channel.delete_queue("again")
    await channel.declare_queue("again", durable=True)
    await channel.publish(b"new", routing_key="again", properties=PERSISTENT)


@pytest.fixture(scope="module", params=["killed", "stopped"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker that ended, one way or the other, with something of everything, and runs again."""
    broker = BrokerProcess(tmp_path_factory.mktemp("restarted"))
    parts = (
        define,
        publish_mixed,
        publish_priorities,
        publish_requeued,
        publish_large,
        delete_and_purge,
    )

    async def prepare() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            for part in parts:
                await part(channel)

    with broker:
        run(prepare())
        define_by_http(broker)
        if request.param == "killed":
            broker.kill()
        else:
            broker.stop_cleanly()
        broker.start()
        yield broker


def test_durable_exchanges_queues_and_bindings_survive_and_transient_ones_do_not(
    restarted: BrokerProcess,
) -> None:
    rows = call_api(restarted, "GET", "bindings", "/")
    assert {(r["source"], r["destination"], r["routing_key"]) for r in rows if r["source"]} == {
        ("durable.x", "durable.y", "a.*"),
        ("durable.y", "durable.q", ""),
        ("durable.x", "durable.q", "b"),
    }
    assert call_api(restarted, "GET", "exchanges", "/", "transient.x") is None
    assert call_api(restarted, "GET", "queues", "/", "transient.q") is None
    queue = call_api(restarted, "GET", "queues", "/", "durable.q")
    assert queue["arguments"] == {"x-max-length": 3}


def test_policies_vhosts_users_and_permissions_survive(restarted: BrokerProcess) -> None:
    assert call_api(restarted, "GET", "queues", "/", "durable.q")["policy"] == "slow"
    assert call_api(restarted, "GET", "users", "ann")["tags"] == ["monitoring"]
    assert call_api(restarted, "GET", "permissions", "side", "ann")["configure"] == "^ann"
    assert call_api(restarted, "GET", "users", "bob") is None, "bob was deleted"

    async def log_in() -> None:
        where = f"ann:secret@{restarted.host}:{restarted.port}/side"
        async with connect(f"amqp://{where}") as connection, connection.channel() as channel:
            await channel.declare_queue("ann.q", exclusive=True)

    run(log_in())


def test_transient_messages_are_gone_after_a_restart(restarted: BrokerProcess) -> None:
    assert run(contents(restarted, "mixed")) == [b"1", b"3", b"5", b"7", b"9"]


def test_priorities_survive(restarted: BrokerProcess) -> None:
    assert run(contents(restarted, "urgent")) == [b"3", b"1", b"4", b"0", b"5", b"2"]


def test_delivery_counts_survive(restarted: BrokerProcess) -> None:
    async def counts() -> list[tuple[bytes, object]]:
        async with connect(restarted.url) as connection, connection.channel() as channel:
            return [
                (message.body, (message.properties.headers or {}).get("x-delivery-count"))
                for message in await take(channel, "counted", 2)
            ]

    assert run(counts()) == [(b"m", 3), (b"n", None)]


def test_every_property_and_large_bodies_survive(restarted: BrokerProcess) -> None:
    async def check() -> None:
        async with connect(restarted.url) as connection, connection.channel() as channel:
            message = await channel.get("large")
            assert message is not None
            assert message.body == LARGE_BODY
            for name in ("content_type", "headers", "correlation_id", "expiration", "message_id"):
                assert getattr(message.properties, name) == getattr(PROPERTIES, name)

    run(check())


def test_deleted_and_purged_queues_stay_so(restarted: BrokerProcess) -> None:
    assert call_api(restarted, "GET", "queues", "/", "deleted") is None
    assert run(contents(restarted, "purged")) == []
    assert run(contents(restarted, "again")) == [b"new"]


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
                        channel.publish_soon(message.body, routing_key=queue, properties=PERSISTENT)
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


@dataclass(frozen=True)
class Crash:
    """A store as a kill left it: 2.5 segments of confirmed messages, all of them in "q"."""

    data: Path
    bodies: list[bytes]
    extents: list[tuple[int, int, int]]

    def copy(self, broker: BrokerProcess) -> None:
        """Give the store to a broker that is not running."""
        shutil.rmtree(broker.data, ignore_errors=True)
        shutil.copytree(self.data, broker.data)


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Crash:
    broker = broker_with(tmp_path_factory.mktemp("crash"), journal_segment_size="1MiB")
    broker.start()
    bodies = fill(broker, 250, 10_000)
    broker.kill()
    found = extents(broker.data)
    assert len(found) == len(bodies)
    assert found[-1][0] == 3, "the messages must fill two segments and a half"
    return Crash(broker.data, bodies, found)


@pytest.fixture
def victim(tmp_path: Path, crash: Crash) -> Iterator[BrokerProcess]:
    """A broker that is not running, with a copy of the crashed store."""
    broker = broker_with(tmp_path / "victim")
    crash.copy(broker)
    yield broker
    with contextlib.suppress(BrokerProcessError):
        broker.kill()


def test_a_torn_tail_is_cut_off_and_nothing_before_it_is_lost(
    crash: Crash, victim: BrokerProcess
) -> None:
    end = max(int(str(row["end"])) for row in records(open_offline(crash.data)[0], segments=[3]))
    last = len(crash.bodies) - 1
    cuts: list[tuple[Callable[[Path, int, int], None], int, int]] = [
        (truncate, last, crash.extents[last][2] - 1),
        (truncate, last - 7, crash.extents[last - 7][1] + 5000),
        (scribble, last - 9, crash.extents[last - 9][1] + 21),
        (blank, last - 12, crash.extents[last - 12][1]),
    ]
    for damage, number, at in cuts:
        assert crash.extents[number][0] == 3, "the cut must be in the last segment"
        crash.copy(victim)
        damage(segment_files(victim)[-1], at, end)
        victim.start()
        assert run(contents(victim, "q")) == crash.bodies[:number], (damage, number, at)
        victim.kill()
    victim.start()
    assert run(contents(victim, "q")) == crash.bodies[: cuts[-1][1]], "the second start finds less"


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 0x10]))


def test_a_flipped_bit_in_an_earlier_segment_is_refused_by_segment_and_offset(
    crash: Crash, victim: BrokerProcess
) -> None:
    segment, start, _ = crash.extents[40]
    path = segment_files(victim)[segment - 1]
    assert segment < 3
    for place in (20, 5000):
        flip(path, start + place)
        text = refusal(victim)
        assert f"segment {segment} at {start}" in text
        assert "damaged" in text
        report = inspected(victim.data)
        assert [(c["segment"], c["offset"]) for c in report["corruptions"]] == [(segment, start)]
        flip(path, start + place)
    victim.start()
    assert run(contents(victim, "q")) == crash.bodies, "a refusal must not change the store"


def test_a_flipped_bit_in_the_last_segment_with_synced_records_after_it_is_refused(
    crash: Crash, victim: BrokerProcess
) -> None:
    start = next(extent[1] for extent in crash.extents if extent[0] == 3)
    flip(segment_files(victim)[-1], start + 5000)
    assert f"segment 3 at {start}" in refusal(victim)


def test_a_message_that_rots_on_disk_is_set_aside_and_told(
    crash: Crash, victim: BrokerProcess
) -> None:
    """Behind a checkpoint nothing is read again before it is delivered."""
    rotten = 40
    segment, start, _ = crash.extents[rotten]
    victim.start()
    victim.stop_cleanly()
    flip(segment_files(victim)[segment - 1], start + 5000)
    got: list[bytes] = []

    async def consume() -> None:
        async with connect(victim.url) as connection:
            channel = await connection.channel()
            consumer = channel.consume("q")
            while len(got) < len(crash.bodies) - 1:
                got.extend(message.body for message in await consumer.batch())

    victim.start()
    run(consume(), 60)
    assert got == crash.bodies[:rotten] + crash.bodies[rotten + 1 :]
    victim.wait_until_printed("is damaged on disk and set aside")


def checkpoint_files(broker: BrokerProcess) -> list[Path]:
    """The checkpoints, one that is being written included."""
    return sorted((broker.data / "journal").glob("checkpoint-*"))


def test_a_kill_while_a_checkpoint_is_written_loses_nothing(
    small_segments: BrokerProcess,
) -> None:
    # As much as makes a broker use its next quiet moment for a checkpoint.
    bodies = fill(small_segments, 300, 64 * 1024)
    deadline = time.monotonic() + 20
    while not checkpoint_files(small_segments):
        assert time.monotonic() < deadline, "no checkpoint was begun"
        time.sleep(0.0005)
    small_segments.kill()
    small_segments.start()
    assert run(contents(small_segments, "q")) == bodies


def test_a_missing_segment_is_refused(victim: BrokerProcess) -> None:
    segment_files(victim)[1].unlink()
    assert "segment 2 at 0: the segment is missing" in refusal(victim)


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
    own_broker.wait_until_printed("100 messages, 0 records replayed, stopped cleanly")
    assert run(contents(own_broker, "q")) == bodies
    own_broker.kill()
    assert inspected(own_broker.data)["clean"] is False


def exit_code(broker: BrokerProcess) -> int:
    """The exit code of a broker that is about to end by itself."""
    wait_until(lambda: not broker.is_running(), "the broker to end", 20)
    return broker.stop()


def test_sigint_closes_cleanly_too(own_broker: BrokerProcess) -> None:
    fill(own_broker, 10, 100)
    assert own_broker.stop(signal.SIGINT) == 0
    assert inspected(own_broker.data)["clean"] is True


def test_a_second_signal_ends_the_broker_at_once(own_broker: BrokerProcess) -> None:
    bodies = fill(own_broker, 10, 100)

    async def stop_twice() -> None:
        silent = await RawClient.logged_in(own_broker)
        os.kill(own_broker.pid, signal.SIGTERM)
        wait_until(lambda: "stopping on SIGTERM" in own_broker.printed(), "the first signal's line")
        assert own_broker.is_running(), "the broker must wait for its client"
        os.kill(own_broker.pid, signal.SIGTERM)
        assert exit_code(own_broker) == 128 + signal.SIGTERM
        await silent.close()

    run(stop_twice())
    assert inspected(own_broker.data)["clean"] is False
    own_broker.start()
    assert run(contents(own_broker, "q")) == bodies


# --- held messages


def test_delayed_messages_survive_a_kill_and_arrive_in_the_order_of_their_time(
    own_broker: BrokerProcess,
) -> None:
    async def prepare() -> None:
        async with (
            connect(own_broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            kind: dict[str, object] = {"x-delayed-type": "direct"}
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
            for headers in (
                {"x-delay": 1000, "x-schedule-id": "a"},
                {"x-delay": 1100, "x-schedule-id": "b"},
                {"x-schedule-cancel": "a"},
                {"x-delay": 2500, "x-schedule-id": "b"},
            ):
                body = b"%d" % headers.get("x-delay", 0)
                properties = Properties(delivery_mode=2, headers=dict(headers))
                await channel.publish(body, exchange="late", routing_key="k", properties=properties)
            assert (await channel.declare_queue("q", passive=True)).message_count == 0

    async def arrivals() -> list[bytes]:
        async with connect(own_broker.url) as connection, connection.channel() as channel:
            return [message.body for message in await take(channel, "q", 4)]

    run(prepare())
    own_broker.kill()
    own_broker.start()
    assert run(arrivals()) == [b"1500", b"2000", b"2500", b"3000"]
    assert call_api(own_broker, "GET", "queues", "/", "amq.delayed")["messages"] == 1


def test_two_brokers_cannot_share_a_store(own_broker: BrokerProcess) -> None:
    other = broker_with(own_broker.directory.parent / "other")
    other.data = own_broker.data
    text = refusal(other)
    assert re.search(rf"in use by process {own_broker.pid}", text)


# --- acks, for which nobody waits


def test_an_ack_reaches_the_disk_though_nobody_waits_for_it(own_broker: BrokerProcess) -> None:
    def is_written() -> bool:
        store = call_api(own_broker, "GET", "rhizome", "status")["broker"]["store"]
        return bool(store["backlog_bytes"] == 0)

    async def publish_and_ack() -> None:
        async with connect(own_broker.url) as connection, connection.channel() as channel:
            await channel.declare_queue("acked", durable=True)
            await channel.select_confirms()
            await channel.publish(b"x", routing_key="acked", properties=PERSISTENT)
            for message in await take(channel, "acked", 1):
                await message.ack()
            # The answer comes after the ack was taken, and nothing is written after that.
            await channel.declare_queue("acked", passive=True)
            await asyncio.to_thread(wait_until, is_written, "the ack to be written")

    run(publish_and_ack())
    own_broker.kill()
    own_broker.start()
    assert run(contents(own_broker, "acked")) == []
