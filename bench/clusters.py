"""Three brokers of each kind as one cluster, on loopback with throw-away stores."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from brokers import (
    RABBITMQ_SCRIPT,
    START_SECONDS_MAX,
    STOP_SECONDS_MAX,
    BrokerUnderTest,
    RabbitMQ,
    accepts,
    answers_amqp,
    command_name,
    with_descendants,
)

from rhizome.cli.http_api.api_client import Api, endpoint, path
from rhizome.testing.broker_process import wait_until
from rhizome.testing.cluster_process import ClusterProcess
from rhizome.testing.free_ports import free_port

BROKERS = 3


class RhizomeCluster(BrokerUnderTest):
    """Three primaries at default settings: each shared queue has its home and one standby.

    ``at`` chooses the broker that the generator talks to: the home of the queue that it declares
    first, or another.
    """

    name = "rhizome"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cluster = ClusterProcess(directory, primaries=BROKERS)
        self.port = self._cluster.brokers["b1"].port

    def talk_to(self, name: str) -> None:
        self.port = self._cluster.brokers[name].port

    def home_of_next_queue(self) -> str:
        """The home of the group with the fewest queues, where the next one goes."""
        groups = self._cluster.status("b1")["groups"]
        least = min(groups, key=lambda each: (each["queues"], each["id"]))
        return str(least["home"])

    def status(self, name: str) -> dict[str, Any]:
        return self._cluster.status(name)

    def api(self, name: str) -> Api:
        return Api(endpoint(self._cluster.brokers[name].http_url, "guest", "guest"))

    def settings(self, **settings: int) -> None:
        """As `rhizome cluster settings`."""
        api = self.api("b1")
        target = path("rhizome", "cluster", "settings")
        preview = api.post(target, {**settings, "preview": True})
        api.post(target, {**settings, "basis": preview["basis"]})

    def kill_one(self, name: str) -> None:
        self._cluster.brokers[name].kill()

    def start_one(self, name: str) -> None:
        self._cluster.brokers[name].start()

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()

    def kill(self) -> None:
        self._cluster.kill()

    def root_pids(self) -> list[int]:
        return [broker.pid for broker in self._cluster.running()]

    def wipe(self) -> None:
        for name in self._cluster.brokers:
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def last_words(self) -> str:
        return self._cluster.printed()


class RabbitMQNode(RabbitMQ):
    """One of several; they find each other by their names, and share cookie and epmd."""

    def __init__(self, directory: Path, number: int, home: Path, epmd_port: int) -> None:
        super().__init__(directory)
        self._number = number
        self._home = home
        self._epmd_port = epmd_port
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        for each in range(1, BROKERS + 1):
            lines.append(f"cluster_formation.classic_config.nodes.{each} = bench{each}@localhost")
        (directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "HOME": str(self._home),
            "RABBITMQ_NODENAME": f"bench{self._number}@localhost",
        }

    def launch(self) -> None:
        with (self._directory / "output.txt").open("ab") as output:
            self._server = subprocess.Popen(
                [str(RABBITMQ_SCRIPT)],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
            )


class RabbitMQCluster(BrokerUnderTest):
    """Three nodes at default settings; quorum queues have a copy on each."""

    name = "rabbitmq"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self.nodes = [
            RabbitMQNode(directory / f"n{number}", number, directory, self._epmd_port)
            for number in range(1, BROKERS + 1)
        ]
        self.port = self.nodes[0].port

    def start(self) -> None:
        cookie = self._directory / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text("rhizome-bench-cookie")
            cookie.chmod(0o400)
        null = subprocess.DEVNULL
        if self._epmd is None:
            command = ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)]
            self._epmd = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
            wait_until(lambda: accepts(self._epmd_port), "epmd", START_SECONDS_MAX)
        for node in self.nodes:
            node.launch()
            wait_until(partial(answers_amqp, node.port), "RabbitMQ", START_SECONDS_MAX)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        for pid in self.pids():
            if command_name(pid).startswith("beam"):
                os.kill(pid, how)
        for node in self.nodes:
            if node._server is not None:
                node._server.wait(STOP_SECONDS_MAX)
                node._server = None

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()

    def root_pids(self) -> list[int]:
        return [node._server.pid for node in self.nodes if node._server is not None]

    def pids(self) -> list[int]:
        return with_descendants(self.root_pids())

    def wipe(self) -> None:
        for node in self.nodes:
            shutil.rmtree(node._store, ignore_errors=True)

    def last_words(self) -> str:
        return "\n".join(node.last_words() for node in self.nodes)
