"""Bounds of memory, disk, connections and channels under loads that break a careless broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from rhizome.amqp import methods
from rhizome.build_info import is_compiled
from rhizome.client import Channel, Properties, connect
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.process.helpers import (
    PERSISTENT,
    TRANSIENT,
    RawClient,
    broker_with,
    contents,
    log_in_many,
    resident_bytes,
    run,
    segment_files,
)

pytestmark = pytest.mark.rhizome_only

MIB: Final = 1 << 20


# --- backlogs


BACKLOG_BYTES: Final = 100 * MIB
BODY_BYTES: Final = 16 * 1024


def body_of(number: int) -> bytes:
    """A body that nobody can mistake for another: number, padding, checksum."""
    head = b"%012d" % number
    padded = (head * (BODY_BYTES // len(head)))[: BODY_BYTES - 4]
    return padded + zlib.crc32(padded).to_bytes(4, "big")


async def fill(broker: BrokerProcess, queue: str, properties: Properties, count: int) -> None:
    async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
        await channel.declare_queue(queue, durable=True)
        for number in range(count):
            await channel.ready()
            channel.publish_soon(body_of(number), routing_key=queue, properties=properties)
            await channel.confirmed(unconfirmed_max=200)
        await channel.confirmed()


async def drain(broker: BrokerProcess, queue: str, count: int) -> None:
    """Take `count` messages, which must be those of `fill` in their order, and leave none."""
    async with connect(broker.url) as connection, connection.channel(prefetch=200) as channel:
        async with channel.consume(queue) as consumer:
            number = 0
            while number < count:
                batch = await consumer.batch(count - number)
                for message in batch:
                    assert message.body == body_of(number), f"not message {number}"
                    number += 1
                await batch[-1].ack(multiple=True)
        assert (await channel.declare_queue(queue, passive=True)).message_count == 0


def test_a_backlog_beyond_the_budget_lives_on_disk_and_comes_back_whole_and_in_order(
    tmp_path: Path,
) -> None:
    count = BACKLOG_BYTES // BODY_BYTES
    with broker_with(tmp_path / "backlog", memory_resident_budget="4MiB") as broker:
        before = resident_bytes(broker.pid)
        run(fill(broker, "transient", TRANSIENT, count))
        run(fill(broker, "persistent", PERSISTENT, count))
        growth = resident_bytes(broker.pid) - before
        run(drain(broker, "transient", count))
        run(drain(broker, "persistent", count))
        growth_drained = resident_bytes(broker.pid) - before
    print(f"growth {growth / MIB:.1f} MiB, after the drain {growth_drained / MIB:.1f} MiB")
    # 200 MiB wait. What the first login and batches on their way to the disk take is included.
    assert growth < 80 * MIB, f"a backlog took {growth / MIB:.1f} MiB"
    assert growth_drained < 80 * MIB, f"draining it took {growth_drained / MIB:.1f} MiB"


def test_an_old_unacknowledged_message_does_not_pin_the_journal(tmp_path: Path) -> None:
    batch, rounds = 100, 16
    with broker_with(tmp_path / "pinned", journal_segment_size="1MiB") as broker:

        async def churn() -> None:
            """Move 25 segments' worth through a queue beside the message that nobody acks."""
            async with connect(broker.url) as connection:
                channel = await connection.channel(confirms=True)
                await channel.declare_queue("stuck", durable=True)
                await channel.declare_queue("busy", durable=True)
                await channel.publish(b"old", routing_key="stuck", properties=PERSISTENT)
                stuck = await channel.get("stuck")
                assert stuck is not None
                for _ in range(rounds):
                    for number in range(batch):
                        channel.publish_soon(
                            body_of(number), routing_key="busy", properties=PERSISTENT
                        )
                    await channel.confirmed()
                    await drain(broker, "busy", batch)
                await asyncio.to_thread(
                    wait_until,
                    lambda: len(segment_files(broker)) <= 4,
                    "old segments to be removed",
                    20,
                )

        run(churn())
        assert segment_files(broker)[0].name > "0000000001.seg"
        broker.kill()
        broker.start()
        assert run(contents(broker, "stuck")) == [b"old"]
        assert run(contents(broker, "busy")) == []


# --- alarms


SENT_TOGETHER: Final = 50
BLOCKED_SECONDS_MAX: Final = 15.0


class Blockade:
    """What a publisher is told: `reason` while it is blocked, None otherwise."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.changed = asyncio.Event()

    def __call__(self, reason: str | None) -> None:
        self.reason = reason
        self.changed.set()

    async def lifted(self, broker: BrokerProcess) -> None:
        """Wait until the publisher may go on."""
        try:
            async with asyncio.timeout(BLOCKED_SECONDS_MAX):
                while self.reason is not None:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            # The broker doesn't read from a publisher that it blocks: no close would be answered.
            broker.kill()
            raise AssertionError(f"still blocked: {self.reason}") from None


@asynccontextmanager
async def publisher(broker: BrokerProcess, blockade: Blockade) -> AsyncIterator[Channel]:
    async with (
        connect(broker.url, on_blocked=blockade) as connection,
        connection.channel(confirms=True) as channel,
    ):
        yield channel


async def publish_until_blocked(
    channel: Channel, queue: str, blockade: Blockade, body: bytes, properties: Properties
) -> int:
    """How many were sent before the broker blocked the connection."""
    sent = 0
    while blockade.reason is None:
        for _ in range(SENT_TOGETHER):
            channel.publish_soon(body, routing_key=queue, properties=properties)
        sent += SENT_TOGETHER
        try:
            async with asyncio.timeout(0.5):
                await channel.confirmed()
        except TimeoutError:
            # Blocked, or just about to be.
            continue
    return sent


async def take_and_ack(channel: Channel, queue: str, count: int) -> None:
    consumer = channel.consume(queue)
    taken = 0
    while taken < count:
        for message in await consumer.batch(count - taken):
            await message.ack()
            taken += 1
    await consumer.cancel()


def memory_at_work(directory: Path) -> int:
    """What a broker of this build takes when it has served a little."""
    with broker_with(directory) as broker:
        run(fill(broker, "q", TRANSIENT, 100))
        return resident_bytes(broker.pid)


def test_the_memory_alarm_blocks_publishers_with_a_reason_and_ends_by_itself(
    tmp_path: Path,
) -> None:
    limit = memory_at_work(tmp_path / "first") + 40 * MIB
    # Small bodies: the allocator gives large blocks back by itself, and hoards small ones.
    body = bytes(2048)

    async def scenario(broker: BrokerProcess) -> None:
        blockade = Blockade()
        async with publisher(broker, blockade) as channel:
            await channel.declare_queue("q")
            sent = await publish_until_blocked(channel, "q", blockade, body, TRANSIENT)
            assert "memory" in str(blockade.reason)
            async with connect(broker.url) as other:
                consumers = await other.channel(prefetch=1000)
                # The broker has stopped reading from the publisher: this is what it took before.
                taken = (await consumers.declare_queue("q", passive=True)).message_count
                await take_and_ack(consumers, "q", taken)
                await blockade.lifted(broker)
                await channel.confirmed()
                await take_and_ack(consumers, "q", sent - taken)
            await channel.publish(b"last", routing_key="q")

    settings = {"memory_resident_budget": "2GiB", "memory_high_watermark": f"{limit}B"}
    with broker_with(tmp_path / "memory", **settings) as broker:
        run(scenario(broker))
        assert run(contents(broker, "q")) == [b"last"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 96 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"can't mount a small disk: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=20)


def occupy(path: Path, free_bytes: int) -> None:
    """Leave only so much space on the disk of `path`."""
    status = os.statvfs(path.parent)
    with path.open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, status.f_bavail * status.f_frsize - free_bytes)


def test_the_disk_alarm_blocks_publishers_with_a_reason_and_ends_when_space_returns(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"

    async def scenario(broker: BrokerProcess) -> None:
        blockade = Blockade()
        async with publisher(broker, blockade) as channel:
            await channel.declare_queue("q", durable=True)
            for number in range(100):
                await channel.publish(b"%d" % number, routing_key="q", properties=PERSISTENT)
            occupy(ballast, free_bytes=20 * MIB)
            sent = await publish_until_blocked(channel, "q", blockade, b"more", PERSISTENT)
            assert "disk" in str(blockade.reason)
            async with connect(broker.url) as other:
                consumers = await other.channel(prefetch=10)
                await take_and_ack(consumers, "q", 100)
            ballast.unlink()
            await blockade.lifted(broker)
            await channel.confirmed()
            left = (await channel.declare_queue("q", passive=True)).message_count
            assert left == sent

    settings = {"disk_free_min": "32MiB", "journal_segment_size": "1MiB"}
    with broker_with(small_disk / "broker", **settings) as broker:
        run(scenario(broker))


def test_a_queue_that_is_purged_while_publishers_wait_for_the_disk_makes_room(
    small_disk: Path,
) -> None:
    """Nothing is published meanwhile, so nothing else makes the store look for what can go."""
    directory = small_disk / "broker"

    async def scenario(broker: BrokerProcess) -> None:
        blockade = Blockade()
        async with publisher(broker, blockade) as channel:
            await channel.declare_queue("q", durable=True)
            for _ in range(160):
                channel.publish_soon(bytes(MIB // 4), routing_key="q", properties=PERSISTENT)
            await channel.confirmed()
            await asyncio.to_thread(
                wait_until, lambda: any(directory.rglob("checkpoint-*")), "a checkpoint with it all"
            )
            occupy(small_disk / "ballast", free_bytes=20 * MIB)
            await publish_until_blocked(channel, "q", blockade, b"more", PERSISTENT)
            async with connect(broker.url) as other:
                await (await other.channel()).purge_queue("q")
            await blockade.lifted(broker)
            await channel.confirmed()

    settings = {"disk_free_min": "32MiB", "journal_segment_size": "1MiB"}
    with broker_with(directory, **settings) as broker:
        run(scenario(broker))


def test_a_full_disk_holds_confirms_back_until_there_is_space_and_loses_nothing(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    body = bytes(64 * 1024)

    async def scenario(broker: BrokerProcess) -> int:
        blockade = Blockade()
        async with publisher(broker, blockade) as channel:
            await channel.declare_queue("q", durable=True)
            await channel.publish(body, routing_key="q", properties=PERSISTENT)
            occupy(ballast, free_bytes=3 * MIB)
            sent = 1 + await publish_until_blocked(channel, "q", blockade, body, PERSISTENT)
            assert "disk" in str(blockade.reason)
            ballast.unlink()
            await blockade.lifted(broker)
            await channel.confirmed()
            await channel.publish(body, routing_key="q", properties=PERSISTENT)
            return sent + 1

    settings = {"disk_free_min": "0B", "journal_segment_size": "1MiB"}
    with broker_with(small_disk / "broker", **settings) as broker:
        sent = run(scenario(broker))
        broker.kill()
        broker.start()
        assert run(contents(broker, "q")) == [body] * sent


# --- many clients, slow clients, hostile clients


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for the tests with many clients."""
    with broker_with(tmp_path_factory.mktemp("crowded")) as broker:
        yield broker


CONNECTIONS: Final = 2000


def test_idle_connections_cost_little_memory(crowded: BrokerProcess) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < CONNECTIONS + 500:
        pytest.skip(f"the limit of open files is too low for {CONNECTIONS} connections")

    async def scenario() -> float:
        # Nobody has logged in yet: what the hash of a password takes, and leaves to be used again,
        # counts against the connections.
        before = resident_bytes(crowded.pid)
        clients = await log_in_many(crowded, CONNECTIONS)
        each = (resident_bytes(crowded.pid) - before) / CONNECTIONS
        for client in clients:
            await client.close()
        return each

    each = run(scenario())
    print(f"{each / 1024:.1f} KiB per connection")
    assert each < (64 if is_compiled() else 128) * 1024


def test_a_consumer_that_stops_reading_holds_nobody_up(crowded: BrokerProcess) -> None:
    count = 1500

    async def scenario() -> None:
        async with connect(crowded.url) as connection:
            channel = await connection.channel(confirms=True)
            await channel.declare_queue("shared")
            stuck = await RawClient.logged_in(crowded, receive_bytes=4096)
            stuck.send(1, methods.ChannelOpen(), methods.BasicConsume(queue="shared"))
            await stuck.read_frame()
            await stuck.read_frame()
            seen: set[bytes] = set()
            consumers = await connection.channel(prefetch=100)
            consumer = consumers.consume("shared")
            await consumer.subscribe()
            for number in range(count):
                channel.publish_soon(body_of(number), routing_key="shared")
                await channel.confirmed(unconfirmed_max=100)
            await channel.confirmed()
            while not await is_idle(channel, "shared"):
                for message in await consumer.batch():
                    seen.add(message.body[:12])
                    await message.ack()
            assert len(seen) >= count // 2, "the stuck consumer got more than its buffers hold"
            assert len(seen) < count, "the stuck consumer got nothing: the test shows nothing"
            await stuck.close()
            while len(seen) < count:
                for message in await consumer.batch():
                    assert message.body[:12] not in seen
                    seen.add(message.body[:12])
                    await message.ack()

    async def is_idle(channel: Channel, queue: str) -> bool:
        return (await channel.declare_queue(queue, passive=True)).message_count == 0

    run(scenario())


CHANNELS: Final = 5000
HALF_OPEN: Final = 200


async def work_until(channel: Channel, queue: str, done: asyncio.Event) -> int:
    """Publish and get, again and again; how often that went well."""
    rounds = 0
    while not done.is_set():
        await channel.publish(b"%d" % rounds, routing_key=queue)
        message = await channel.get(queue, no_ack=True)
        assert message is not None
        assert message.body == b"%d" % rounds
        rounds += 1
    return rounds


async def beside_honest_work(broker: BrokerProcess, flood: Coroutine[None, None, None]) -> int:
    """Rounds that another client, who was there before, finished while the flood went on."""
    async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
        queue = (await channel.declare_queue(exclusive=True)).name
        done = asyncio.Event()
        flooding = asyncio.create_task(flood)
        flooding.add_done_callback(lambda _: done.set())
        rounds = await work_until(channel, queue, done)
        await flooding
        return rounds


def test_a_flood_of_channels_is_served_beside_other_clients(crowded: BrokerProcess) -> None:
    async def flood() -> None:
        client = await RawClient.logged_in(crowded)
        for first in range(0, CHANNELS, 1000):
            for number in range(first, first + 1000):
                client.send(
                    number % 2000 + 1, methods.ChannelOpen(), methods.ChannelClose(200, "", 0, 0)
                )
            for _ in range(2 * 1000):
                await client.read_frame()
        await client.close()

    async def scenario() -> int:
        return await beside_honest_work(crowded, flood())

    assert run(scenario()) > 0
    before = resident_bytes(crowded.pid)
    run(scenario())
    assert resident_bytes(crowded.pid) - before < 16 * MIB, "closed channels stay in memory"


def test_half_open_handshakes_end_in_time_beside_other_clients(tmp_path: Path) -> None:
    beginnings = [b"", b"AMQ", b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x00\x09\x01\x01\x00\x00"]

    async def hang(broker: BrokerProcess, beginning: bytes) -> None:
        client = await RawClient.connected(broker)
        client.write(beginning)
        await client.read_to_end()
        await client.close()

    async def hang_all(broker: BrokerProcess) -> None:
        chosen = (beginnings[number % len(beginnings)] for number in range(HALF_OPEN))
        await asyncio.gather(*(hang(broker, beginning) for beginning in chosen))

    async def scenario(broker: BrokerProcess) -> int:
        return await beside_honest_work(broker, hang_all(broker))

    with broker_with(tmp_path / "slow", limits_handshake_timeout="2s") as broker:
        assert run(scenario(broker)) > 0


# ---- open files ---------------------------------------------------------------------------------

FILES_MAX: Final = 300
FEW_FILES: Final = ("sh", "-c", f'ulimit -n {FILES_MAX}; exec "$@"', "sh")


def test_strangers_cannot_use_up_the_open_files_of_the_broker(tmp_path: Path) -> None:
    """The journal needs files, too; without any the broker stops."""
    environment = {"RHIZOME_JOURNAL_SEGMENT_SIZE": "4MiB"}
    broker = BrokerProcess(tmp_path / "b1", environment=environment, launcher=FEW_FILES)
    strangers: list[socket.socket] = []

    async def publish() -> None:
        async with (
            connect(broker.url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            await channel.declare_queue("q", durable=True)
            for _ in range(2 * FILES_MAX):
                stranger = socket.create_connection((broker.host, broker.port))
                strangers.append(stranger)
            for _ in range(12):
                await channel.publish(b"x" * (1 << 20), routing_key="q", properties=PERSISTENT)
        async with connect(broker.url) as connection, connection.channel() as channel:
            assert (await channel.declare_queue("q", passive=True)).message_count == 12

    with contextlib.closing(broker):
        broker.start()
        run(publish(), 200)
        assert broker.is_running()
        wait_until(lambda: "with the limit of open files" in broker.printed(), "a warning")
    for stranger in strangers:
        stranger.close()
