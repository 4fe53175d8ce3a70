"""Three brokers of each kind as one cluster, on loopback with throw-away stores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from brokers import BrokerUnderTest
from rabbitmq import RabbitMQNode

from rhizome.cli.http_api.api_client import Api, endpoint, path
from rhizome.testing.broker_process import BrokerProcess
from rhizome.testing.cluster_process import ClusterProcess

BROKERS = 3


class RhizomeCluster(BrokerUnderTest):
    """Three primaries at default settings: each shared queue has its home and one standby.

    ``at`` chooses the broker that the generator talks to: the home of the queue that it declares
    first, or another.
    """

    name = "rhizome"

    def __init__(self, directory: Path, environment: dict[str, str] | None = None) -> None:
        self._directory = directory

        def make(name: str, at: Path) -> BrokerProcess:
            return BrokerProcess(at, environment=environment)

        self._cluster = ClusterProcess(directory, primaries=BROKERS, make=make)
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


class RabbitMQCluster(BrokerUnderTest):
    """Three nodes at default settings; quorum queues have a copy on each."""

    name = "rabbitmq"

    def __init__(self, version: str) -> None:
        names = [f"bench{number}@localhost" for number in range(1, BROKERS + 1)]
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        for number, name in enumerate(names, 1):
            lines.append(f"cluster_formation.classic_config.nodes.{number} = {name}")
        shared: dict[str, Any] = {"plugins": (), "settings": "\n".join(lines)}
        first = RabbitMQNode(version, name=names[0], **shared)
        shared |= {"cookie": first.cookie, "epmd_port": first.epmd_port}
        self.nodes = [first, *(RabbitMQNode(version, name=name, **shared) for name in names[1:])]
        self.port = first.port

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def close(self) -> None:
        for node in reversed(self.nodes):  # the first has the epmd
            node.close()

    def root_pids(self) -> list[int]:
        return [pid for node in self.nodes for pid in node.server_pids[:1]]

    def wipe(self) -> None:
        for node in self.nodes:
            node.wipe()

    def last_words(self) -> str:
        return "\n".join(node.last_words() for node in self.nodes)
