"""Exactly once on a Spark cluster: executors, workers' hosts, drivers and homes are lost while
queries run, and each message counts once.

Numbers go through a stream into an archive (Parquet, Delta or Iceberg, in a directory that all
hosts share), and from Parquet files into a queue. Executors have pyspark and pyarrow, and are sent
the rest; only the driver has deltalake and pyiceberg. What came of it is read without Spark.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.spark.connect_server import ConnectServer
from tests.spark.tables import FORMATS
from tests.spark.test_exactly_once import Work, assert_once

from .bare_python import bare_python
from .kit import DRIVER, NEEDS_NETWORK, QUICK_CONF, SparkCluster, archived_rows

SEED = int(os.environ.get("RHIZOME_TEST_SEED", "19"))
CONNECT_PORT = 15002
QUICK_TO_NOTICE = {
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.task.maxFailures": "8",
}
"""A host that is cut off is given up after 30 s rather than 120."""

pytestmark = NEEDS_NETWORK


def work_on(cluster: SparkCluster, directory: Path, **settings: Any) -> Work:
    """Queries whose driver is on a host of its own."""
    assert cluster.brokers is not None
    return Work(
        cluster.brokers,
        directory,
        launcher=cluster.launcher(),
        leases=False,
        master=cluster.master,
        conf={**QUICK_CONF, **QUICK_TO_NOTICE},
        **settings,
    )


def check(work: Work) -> None:
    """Everybody reads each message once, without Spark."""
    if work.settings.archive_format in FORMATS:
        work.check_table()
    else:
        rows = archived_rows(Path(work.settings.archive))
        assert_once((int(row["value"]) for row in rows), work.published)
        assert_once((row["offset"] for row in rows), work.published)
    work.check_queue()


@pytest.mark.timeout(1200)
def test_each_message_counts_once_though_an_executor_is_killed(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    work = work_on(cluster, tmp_path / "work", rows_per_batch=2000, rows_per_second=1000)
    work.publish(4000)
    work.file(4, 1000)
    try:
        work.driver.start()
        work.wait_for_progress(1, 500)
        where = cluster.kill_executor()
        print(f"an executor on {where} is killed with {work.sent()} of {work.filed} sent")
        work.publish(2000)
        work.finish()
    finally:
        work.driver.kill()
    check(work)
    assert len(cluster.executors()) == 0


class Misfortunes:
    """Misfortunes that come one after the other while queries run; `driver` is where they are
    planned, and is started again.
    """

    def __init__(self, cluster: SparkCluster, work: Work) -> None:
        self.cluster = cluster
        self.work = work
        self._chance = Random(SEED)
        self._pause = threading.Event()  # never set: it waits for as long as chance says

    def go_on(self) -> None:
        """More input, and some of it done."""
        self.work.feed(2, 5000, 2000)
        self.work.wait_for_progress(1, 1000)
        self._pause.wait(self._chance.uniform(0, 3))

    def strike_executors(self) -> None:
        """An executor is killed, and a worker's host cut off; it stays cut off."""
        print(f"an executor on {self.cluster.kill_executor()} is killed")
        self.go_on()
        host = self._chance.choice(self.cluster.worker_names)
        print(f"{host} is cut off")
        self.cluster.cut(host)
        self.go_on()

    def strike_home(self) -> None:
        """The home of stream and queue is killed, and started again after a while."""
        home = self.work.kill_home()
        print(f"the home {home} is killed")
        self.go_on()
        assert self.cluster.brokers is not None
        self.cluster.brokers.brokers[home].start()
        self.go_on()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("archived", ["parquet", *FORMATS])
def test_each_message_counts_once_through_all_misfortunes(
    cluster: SparkCluster, tmp_path: Path, archived: str
) -> None:
    """An executor is killed, a worker's host cut off, the driver killed, and a home killed."""
    limits = {"rows_per_batch": 5000, "rows_per_second": 2000}
    work = work_on(cluster, tmp_path / "work", archive_format=archived, **limits)
    misfortunes = Misfortunes(cluster, work)
    work.publish(20_000)
    work.file(8, 2000)
    try:
        work.driver.start()
        work.wait_for_progress(1, 1000)
        misfortunes.strike_executors()
        cluster.heal()
        print("the driver is killed")
        work.driver.kill()
        work.driver.start()
        misfortunes.go_on()
        misfortunes.strike_home()
        work.finish()
    finally:
        work.driver.kill()
        cluster.reset()
    check(work)
    print(f"{work.published} messages in {archived}, {work.filed} in the queue")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_message_counts_once_through_all_misfortunes_over_spark_connect(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    """The server is on the driver's host, its executors on the workers', and the client elsewhere.
    An executor is killed, a worker's host cut off, the client killed, then the server, and a home.
    """
    server = connect_server(cluster, tmp_path / "server")
    try:
        server.start()
        assert cluster.brokers is not None
        limits = {"rows_per_batch": 5000, "rows_per_second": 2000}
        work = Work(
            cluster.brokers,
            tmp_path / "work",
            leases=False,
            master=server.remote,
            archive_format="delta",
            **limits,
        )
        misfortunes = Misfortunes(cluster, work)
        work.publish(20_000)
        work.file(8, 2000)
        try:
            work.driver.start()
            work.wait_for_progress(1, 1000)
            misfortunes.strike_executors()
            cluster.heal()
            print("the client is killed")
            work.driver.kill()
            work.driver.start()
            misfortunes.go_on()
            print("the server is killed")
            server.kill()
            work.driver.kill()
            server.start()
            work.driver.start()
            misfortunes.go_on()
            misfortunes.strike_home()
            work.finish()
        finally:
            work.driver.kill()
    finally:
        server.kill()
        cluster.reset()
    check(work)
    print(f"{work.published} messages in delta, {work.filed} in the queue")


def connect_server(cluster: SparkCluster, directory: Path) -> ConnectServer:
    """A server on the driver's host. Its Python has pyspark, pyarrow and deltalake, and that of its
    executors has not even that.
    """
    python = bare_python("deltalake", "arro3", "deprecated", "wrapt", "typing_extensions.py")
    return ConnectServer(
        directory,
        str(python / "bin/python"),
        cluster.launcher(),
        cluster.network.address(DRIVER),
        cluster.master,
        **QUICK_CONF,
        **QUICK_TO_NOTICE,
        **{"spark.connect.grpc.binding.port": str(CONNECT_PORT)},
    )
