"""Exactly once, with real processes: drivers and homes are killed -9 while queries run.

Numbers go through a stream into an archive, from Parquet files into a queue, and from a work queue
into Parquet. At the end each is there once, in all three.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rhizome.client.blocking import Connection, Message
from rhizome.spark.jobs import archive
from rhizome.testing.broker_process import wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import call_api
from tests.spark.driver import LOOK_SECONDS, Driver, DriverSettings
from tests.spark.tables import FORMATS, readers

QUEUE = "results"
STREAMS = ("events-0", "events-1", "events-2")
WORK = ("work-0", "work-1", "work-2")
SECONDS_MAX = 600.0
SEED = int(os.environ.get("RHIZOME_TEST_SEED", "11"))


class Work:
    """A cluster with a stream and two queues that have the same home, and a driver for them, which
    `launcher` starts. Without `leases` there is no work queue.
    """

    def __init__(
        self,
        cluster: ClusterProcess,
        directory: Path,
        launcher: Sequence[str] = (),
        leases: bool = True,
        **settings: Any,
    ) -> None:
        self.cluster = cluster
        brokers = cluster.brokers.values()
        ports = ",".join(f"{each.host}:{each.port}" for each in brokers)
        self.uri = f"amqp://guest:guest@{ports}/"
        self.stream, self.work = self._declare()
        if not leases:
            self.work = ""
        directory.mkdir(parents=True)
        self.settings = DriverSettings(
            self.uri, self.stream, QUEUE, self.work, str(directory), **settings
        )
        self.driver = Driver(self.settings, launcher)
        self.published = 0
        self.filed = 0
        self._files = 0

    def _declare(self) -> tuple[str, str]:
        with Connection(self.uri) as connection:
            channel = connection.channel()
            channel.declare_queue(QUEUE, durable=True)
            for name in STREAMS:
                channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
            for name in WORK:
                channel.declare_queue(name, durable=True)
        # They are spread over the brokers, so one of each is where the queue is.
        home = self.home_of(QUEUE)
        stream, work = (
            next(name for name in names if self.home_of(name) == home) for names in (STREAMS, WORK)
        )
        return stream, work

    def home_of(self, queue: str) -> str:
        document = call_api(self.cluster.running()[0], "GET", "queues", "/", queue)
        return str(document["node"])

    # --- input

    def publish(self, count: int) -> None:
        """More numbers into the stream and the work queue, each once: what is sent again has the
        same sequence."""
        import pyarrow as pa

        from rhizome.spark.amqp_socket import addresses_of
        from rhizome.spark.sink.confirmed_publisher import Publisher
        from rhizome.spark.sink.publish_frames import Addressing, Framer, Producer

        bodies = [b"%d" % number for number in range(self.published, self.published + count)]
        batch = pa.record_batch({"value": pa.array(bodies, pa.binary())})
        for name in filter(None, (self.stream, self.work)):
            publisher = Publisher(addresses_of(self.uri), "numbers", SECONDS_MAX)
            framer = Framer(Addressing("", name, True, True), publisher.frame_bytes_max)
            publisher.publish(framer.frames(batch, Producer("numbers", self.published)))
            assert publisher.finish() == count
        self.published += count

    def file(self, files: int, rows: int) -> None:
        """More numbers into files, each of which appears at once."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        directory = Path(self.settings.files)
        directory.mkdir(exist_ok=True)
        for _ in range(files):
            numbers = [str(number) for number in range(self.filed, self.filed + rows)]
            path = directory / f"_{self._files:04d}.parquet"
            pq.write_table(pa.table({"value": numbers}), path)
            path.rename(directory / f"{self._files:04d}.parquet")
            self._files += 1
            self.filed += rows

    def feed(self, times: int, messages: int, rows: int) -> None:
        """Input in small helpings, for another life of the driver."""
        for _ in range(times):
            self.publish(messages)
            self.file(1, rows)

    # --- how far it is

    def batches(self) -> list[int]:
        """How many batches are for good in the archive, and in what was leased."""
        found = []
        if self.settings.archive_format == "parquet":
            archived = Path(self.settings.archive) / archive.METADATA
        else:
            archived = Path(self.settings.archive) / archive.CHECKPOINT / "commits"
        leased = Path(self.settings.leased) / archive.METADATA
        for metadata in (archived, leased)[: 2 if self.work else 1]:
            names = [path.name.split(".")[0] for path in metadata.glob("[0-9]*")]
            found.append(max((int(name) + 1 for name in names), default=0))
        return found

    def sent(self) -> int:
        """How many messages are in the queue."""
        with Connection(self.uri) as connection:
            found = connection.channel().declare_queue(QUEUE, passive=True)
            return int(found.message_count)

    def wait_for_progress(self, batches: int, messages: int) -> None:
        """Wait until all queries have done so much more."""
        wanted = [done + batches for done in self.batches()]
        messages += self.sent()
        pause = threading.Event()  # never set

        def is_further() -> bool:
            pause.wait(LOOK_SECONDS)  # asking costs a connection
            assert not self.driver.has_ended(), self.driver.said()
            far = all(map(operator.ge, self.batches(), wanted))
            return far and self.sent() >= messages

        wait_until(is_further, f"progress\n{self.driver.said()}", SECONDS_MAX)

    def kill_home(self) -> str:
        name = self.home_of(QUEUE)
        self.cluster.brokers[name].kill()
        return name

    def finish(self) -> None:
        assert self.driver.finish(SECONDS_MAX) == 0, self.driver.said()

    # --- what came of it

    def check_archive(self, spark: Any) -> None:
        rows = archive.read(spark, self.settings.archive).select("offset", "value").collect()
        assert_once((int(row.value) for row in rows), self.published)
        assert_once((row.offset for row in rows), self.published)
        if self.settings.archive_format in FORMATS:
            self.check_table()

    def check_table(self) -> None:
        """Everybody who reads tables of its format finds each message once."""
        for ask in readers(self.settings.archive_format).values():
            found = ask(self.settings.archive, 'SELECT "offset", decode(value) FROM messages')
            assert_once((offset for offset, _ in found), self.published)
            assert_once((int(body) for _, body in found), self.published)

    def check_leased(self, spark: Any) -> None:
        rows = spark.read.parquet(self.settings.leased).collect()
        assert_once((int(row.value) for row in rows), self.published)
        with Connection(self.uri) as connection:
            found = connection.channel().declare_queue(self.work, passive=True)
            assert found.message_count == 0

    def check_queue(self) -> None:
        messages = drain(self.uri)
        assert_once((int(each.body) for each in messages), self.filed)
        order: dict[object, int] = {}
        for each in messages:
            headers = each.properties.headers or {}
            producer, sequence = headers["x-producer"], headers["x-sequence"]
            assert isinstance(sequence, int)
            assert sequence > order.get(producer, -1)
            order[producer] = sequence


def drain(uri: str) -> list[Message]:
    with Connection(uri) as connection:
        channel = connection.channel()
        size = channel.declare_queue(QUEUE, passive=True).message_count
        consumer = channel.consume(QUEUE, no_ack=True, timeout_s=SECONDS_MAX)
        return [next(consumer) for _ in range(size)]


def assert_once(numbers: Iterator[int], count: int) -> None:
    """All numbers from 0 to count - 1, each once."""
    found = Counter(numbers)
    lost = [number for number in range(count) if number not in found]
    twice = [number for number, times in found.items() if times > 1]
    strange = [number for number in found if not 0 <= number < count]
    wrong = f"{len(lost)} lost {lost[:5]}, {len(twice)} twice {twice[:5]}, strange {strange[:5]}"
    assert not [*lost, *twice, *strange], wrong


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path / "cluster", primaries=3, seed=SEED)
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "archived",
    ["parquet", *(pytest.param(kind, marks=pytest.mark.soak) for kind in FORMATS)],
)
def test_each_message_counts_once_though_driver_and_home_are_killed(
    spark: Any, cluster: ClusterProcess, tmp_path: Path, archived: str
) -> None:
    work = Work(
        cluster,
        tmp_path / "work",
        rows_per_batch=1000,
        rows_per_second=2000,
        archive_format=archived,
    )
    work.publish(4000)
    work.file(4, 1000)
    try:
        work.driver.start()
        work.wait_for_progress(1, 2200)  # one batch, and a tenth of the next
        work.driver.kill()
        work.publish(2000)  # the first life may have done all that there was
        work.file(4, 1000)
        work.driver.start()
        work.wait_for_progress(1, 200)
        home = work.kill_home()
        cluster.brokers[home].start()
        work.publish(2000)
        work.finish()
    finally:
        work.driver.kill()
    work.check_archive(spark)
    work.check_leased(spark)
    work.check_queue()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_message_counts_once_through_five_kills_of_the_driver_and_two_of_homes(
    spark: Any, cluster: ClusterProcess, tmp_path: Path
) -> None:
    chance = Random(SEED)
    pause = threading.Event()  # never set: it waits for as long as chance says
    work = Work(cluster, tmp_path / "work", rows_per_batch=5000, rows_per_second=2000)
    work.publish(20_000)
    work.file(8, 2000)
    try:
        for life in range(5):
            work.feed(4, 5000, 2000)
            work.driver.start()
            work.wait_for_progress(1, 1000)
            pause.wait(chance.uniform(0, 3))
            if life in (1, 3):
                home = work.kill_home()
                pause.wait(chance.uniform(0, 3))
                cluster.brokers[home].start()
                pause.wait(chance.uniform(0, 3))
            work.driver.kill()
        work.driver.start()
        work.finish()
    finally:
        work.driver.kill()
    assert work.published == 120_000
    work.check_archive(spark)
    work.check_leased(spark)
    work.check_queue()


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_without_sequences_a_killed_driver_leaves_duplicates(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    """What the tests above would find if the queue did not know the rows again."""
    work = Work(
        cluster, tmp_path / "work", rows_per_batch=1000, rows_per_second=500, deduplicate="none"
    )
    work.publish(1000)
    work.file(2, 2000)
    try:
        work.driver.start()
        work.wait_for_progress(0, 500)
        work.driver.kill()
        work.driver.start()
        work.finish()
    finally:
        work.driver.kill()
    with pytest.raises(AssertionError, match=r"0 lost .* [1-9][0-9]* twice"):
        work.check_queue()
