"""The two brokers under measurement, each a private process on loopback with a throw-away store."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.free_ports import free_port

RABBITMQ_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
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
    """Debian's RabbitMQ at its default settings, with a name, a cookie and an epmd of its own."""

    name = "rabbitmq"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store = directory / "mnesia"
        self.port = free_port()
        self._epmd_port = free_port()
        self._dist_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        # As the package's unit file does: no plugins, the default configuration.
        (directory / "enabled_plugins").write_text("[].\n")
        (directory / "rabbitmq.conf").write_text("")

    @staticmethod
    def is_installed() -> bool:
        return RABBITMQ_SCRIPT.exists() and shutil.which("epmd") is not None

    def environment(self) -> dict[str, str]:
        own = {
            "HOME": str(self._directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self._store),
            "RABBITMQ_LOG_BASE": str(self._directory / "log"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self._directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
        }
        return {**os.environ, **own}

    def start(self) -> None:
        environment = self.environment()
        epmd = ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)]
        null = subprocess.DEVNULL
        if self._epmd is None:
            self._epmd = subprocess.Popen(
                epmd, env=environment, stdin=null, stdout=null, stderr=null
            )
            wait_until(lambda: accepts(self._epmd_port), "epmd", START_SECONDS_MAX)
        with (self._directory / "output.txt").open("ab") as output:
            self._server = subprocess.Popen(
                [str(RABBITMQ_SCRIPT)], env=environment, stdin=null, stdout=null, stderr=output
            )
        wait_until(self._is_ready, "AMQP on RabbitMQ", START_SECONDS_MAX)

    def _is_ready(self) -> bool:
        if self._server is not None and self._server.poll() is not None:
            raise RuntimeError(
                f"RabbitMQ exited with {self._server.returncode}\n{self.last_words()}"
            )
        return answers_amqp(self.port)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        """End the node (the Erlang machine below the start script), and only then the script."""
        server = self._server
        if server is None:
            return
        for pid in with_descendants([server.pid]):
            if command_name(pid).startswith("beam"):
                os.kill(pid, how)
        server.wait(STOP_SECONDS_MAX)
        self._server = None

    def close(self) -> None:
        self.stop()
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait(STOP_SECONDS_MAX)
            self._epmd = None

    def root_pids(self) -> list[int]:
        return [] if self._server is None else [self._server.pid]

    def last_words(self) -> str:
        return (self._directory / "output.txt").read_text()[-2000:]

    def wipe(self) -> None:
        shutil.rmtree(self._store, ignore_errors=True)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def answers_amqp(port: int) -> bool:
    """Whether a broker greets on this port; a listener may exist before it serves."""
    return bool(greeting(port))


def greeting(port: int) -> bytes:
    """The payload of connection.start, or nothing."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as stream:
            stream.sendall(b"AMQP\0\0\x09\x01")
            return stream.recv(4096)
    except OSError:
        return b""


def version_of(port: int) -> str:
    """The version in the server properties: shortstr key, 'S', length, text."""
    _, found, rest = greeting(port).partition(b"\x07versionS")
    length = int.from_bytes(rest[:4], "big")
    return rest[4 : 4 + length].decode(errors="replace") if found else "unknown"


def with_descendants(roots: list[int]) -> list[int]:
    """These processes and all below them that exist now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return sorted(found)


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on, which stands behind the parenthesised name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


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
