"""`rhizome edge`: its applications see no error while each primary dies and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from rhizome.testing.broker_process import CHEAP_PASSWORDS, start_guard, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from rhizome.testing.free_ports import free_port

SECONDS_MAX = 180.0
QUEUE = "orders"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
PREFETCH = 20
BETWEEN = 30
"""Messages that come through before the next thing is done to the cluster."""


class Edge:
    """An edge as a process."""

    def __init__(self, directory: Path, cluster: ClusterProcess, addresses: list[str]) -> None:
        self.port = free_port()
        self.output = directory / "edge.txt"
        command = [sys.executable, "-m", "rhizome", "edge", "--cluster", ",".join(addresses)]
        command += ["--cluster-key-file", str(cluster.directory / "cluster.key")]
        command += ["--listen", f"127.0.0.1:{self.port}", "--name", "edge-1"]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=directory, env=_environment()
            )
        self._guard = start_guard(self.process.pid)

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return "\nready edge-1 amqp://" in "\n" + self.output.read_text()

        wait_until(ready, "the edge", SECONDS_MAX)

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", self.port, heartbeat=0, blocked_connection_timeout=None
            )
        )

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(SECONDS_MAX)
        self._guard.communicate()
        return code

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self._guard.communicate()


def _environment() -> dict[str, str]:
    return {**os.environ, **CHEAP_PASSWORDS}


class Application:
    """A publisher that waits for each confirm, and a consumer that acks: unmodified clients with
    one connection each, for their whole life."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.confirmed = 0
        self.taken: list[bytes] = []
        self.redelivered = 0
        self.errors: list[BaseException] = []
        self._published = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,)) for work in (self._publish, self._take)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: object) -> None:
        try:
            assert callable(work)
            work()
        except BaseException as error:
            self.errors.append(error)

    def _publish(self) -> None:
        connection = self.edge.connect()
        channel = connection.channel()
        channel.confirm_delivery()
        while not self._published.is_set():
            body = b"%d" % self.confirmed
            channel.basic_publish("", QUEUE, body, PERSISTENT, mandatory=True)
            self.confirmed += 1
        connection.close()

    def _take(self) -> None:
        connection = self.edge.connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.5):
            if method is not None:
                self.taken.append(body)
                self.redelivered += method.redelivered
                channel.basic_ack(method.delivery_tag)
            elif self._published.is_set() and len(self.taken) >= self.confirmed:
                break
        channel.cancel()
        connection.close()

    def wait_for(self, count: int) -> None:
        """Until so many more messages have come through."""
        wanted = len(self.taken) + count

        def came() -> bool:
            assert not self.errors, self.errors
            return len(self.taken) >= wanted

        wait_until(came, f"message {wanted}", SECONDS_MAX)

    def finish(self) -> None:
        self._published.set()
        for thread in self._threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive(), "an application waits for ever"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=4)
    cluster.start()
    yield cluster
    cluster.kill()


def is_copied(cluster: ClusterProcess) -> bool:
    groups = [each for each in cluster.status(cluster.names()[0])["groups"] if each["queues"]]
    return bool(groups) and all(each["home"] and each["in_sync"] for each in groups)


@pytest.mark.timeout(900)
def test_pika_on_an_edge_sees_no_error_while_each_primary_is_killed(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    """Nothing is lost, nothing comes twice, everything comes in order."""
    addresses = [f"127.0.0.1:{broker.port}" for broker in cluster.brokers.values()]
    edge = Edge(tmp_path, cluster, [*addresses[:2], f"127.0.0.1:{free_port()}"])
    try:
        edge.wait_until_ready()
        connection = edge.connect()
        connection.channel().queue_declare(QUEUE, durable=True)
        connection.close()
        wait_until(lambda: is_copied(cluster), "a copy", SECONDS_MAX)
        application = Application(edge)
        for broker in cluster.brokers.values():
            application.wait_for(BETWEEN)
            broker.kill()
            application.wait_for(BETWEEN)
            cluster.make_whole()
            wait_until(lambda: is_copied(cluster), "a copy", SECONDS_MAX)
        application.wait_for(BETWEEN)
        application.finish()
        assert application.errors == []
        assert application.taken == [b"%d" % number for number in range(application.confirmed)]
        assert application.redelivered == 0
        assert edge.stop() == 0
        assert not list(tmp_path.glob("data*")), "an edge keeps nothing"
    finally:
        edge.end()
