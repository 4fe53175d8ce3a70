"""The two brokers under measurement, each a private process on loopback with a throw-away store."""

from __future__ import annotations

import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from rhizome.testing.broker_process import BrokerProcess, wait_until

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))

from rabbitmq import RabbitMQNode, greeting, with_descendants

START_SECONDS_MAX = 60.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BrokerUnderTest(ABC):
    """A broker that can be started on an empty or on its own store, and looked at through /proc."""

    name: str
    port: int

    @abstractmethod
    def start(self) -> None:
        """Start on whatever the store holds; return when it answers AMQP."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def root_pids(self) -> list[int]: ...

    @abstractmethod
    def wipe(self) -> None:
        """Empty the store; only while stopped."""

    @abstractmethod
    def last_words(self) -> str:
        """The end of what it printed, to go with a failure."""

    def close(self) -> None:
        """Stop for good."""
        self.stop()

    def pids(self) -> list[int]:
        return with_descendants(self.root_pids())

    def rss_bytes(self) -> int:
        return sum(rss_bytes(pid) for pid in self.pids())

    def restart_empty(self) -> None:
        self.stop()
        self.wipe()
        self.start()


class Rhizome(BrokerUnderTest):
    name = "rhizome"

    def __init__(self, directory: Path, environment: dict[str, str] | None = None) -> None:
        self._process = BrokerProcess(directory, environment=environment)
        self.port = self._process.port

    def start(self) -> None:
        self._process.start()
        wait_until(lambda: answers_amqp(self.port), "AMQP on Rhizome", START_SECONDS_MAX)

    def stop(self) -> None:
        if self._process.is_running():
            self._process.stop_cleanly()

    def kill(self) -> None:
        self._process.kill()

    def root_pids(self) -> list[int]:
        return [self._process.pid]

    def last_words(self) -> str:
        return self._process.printed()

    def wipe(self) -> None:
        shutil.rmtree(self._process.data, ignore_errors=True)


class RabbitMQ(BrokerUnderTest):
    """RabbitMQ of a version at its default settings and without plugins (tools/rabbitmq.py)."""

    name = "rabbitmq"

    def __init__(self, version: str) -> None:
        self._node = RabbitMQNode(version, plugins=())
        self.port = self._node.port

    def start(self) -> None:
        self._node.start()

    def stop(self) -> None:
        self._node.stop()

    def kill(self) -> None:
        self._node.kill()

    def close(self) -> None:
        self._node.close()

    def root_pids(self) -> list[int]:
        return self._node.server_pids[:1]

    def last_words(self) -> str:
        return self._node.last_words()

    def wipe(self) -> None:
        self._node.wipe()


def answers_amqp(port: int) -> bool:
    """Whether a broker greets on this port; a listener may exist before it serves."""
    return bool(greeting(port))


def version_of(port: int) -> str:
    """The version in the server properties: shortstr key, 'S', length, text."""
    _, found, rest = greeting(port).partition(b"\x07versionS")
    length = int.from_bytes(rest[:4], "big")
    return rest[4 : 4 + length].decode(errors="replace") if found else "unknown"


def rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def settled_rss_bytes(broker: BrokerUnderTest, seconds_max: float = 20.0) -> int:
    """RSS once it has stopped moving by more than 1% a second: collectors and writers lag."""
    deadline = time.monotonic() + seconds_max
    before = broker.rss_bytes()
    while True:
        time.sleep(1.0)
        now = broker.rss_bytes()
        if abs(now - before) <= before // 100 or time.monotonic() > deadline:
            return now
        before = now
