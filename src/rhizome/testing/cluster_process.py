"""A real cluster for tests: brokers as processes on loopback.

`ClusterProcess` looks to a test like one broker. Each time it is asked for a port it picks a random
broker, so that tests of a single broker run against a cluster unchanged. A test that needs a
certain broker uses ``brokers``.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final

from rhizome.testing.broker_process import BrokerProcess, wait_until

AGREE_SECONDS_MAX: Final = 180.0
HTTP_SECONDS_MAX: Final = 15.0


def on_loopback(name: str, directory: Path) -> BrokerProcess:
    return BrokerProcess(directory)


class ClusterProcess:
    """Primaries b1.. and secondaries s1.., each a `rhizome serve`.

    Invariant: names, ports and directories stay the same over restarts. ``make`` makes the process
    of a broker from its name and directory; by default it listens on loopback.
    """

    host: Final = "127.0.0.1"
    user: Final = "guest"
    password: Final = "guest"

    def __init__(
        self,
        directory: Path,
        primaries: int = 3,
        secondaries: int = 0,
        seed: int = 0,
        make: Callable[[str, Path], BrokerProcess] = on_loopback,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._chance = Random(seed)
        self._key = directory / "cluster.key"
        self._key.write_text(secrets.token_urlsafe(32))
        self._key.chmod(0o600)
        self.brokers: dict[str, BrokerProcess] = {}
        self._paused: set[str] = set()
        names = [f"b{number + 1}" for number in range(primaries)]
        others = [f"s{number + 1}" for number in range(secondaries)]
        for name in [*names, *others]:
            self.brokers[name] = make(name, directory / name)
        self._listed = [f"{name}={self.link_address(name)}" for name in names]
        for name, broker in self.brokers.items():
            role = "primary" if name in names else "secondary"
            broker.add_arguments(self.arguments(name, role))

    def link_address(self, name: str) -> str:
        """Where the others are told to dial a primary."""
        broker = self.brokers[name]
        return f"{broker.host}:{broker.port}"

    def arguments(self, name: str, role: str) -> list[str]:
        """What makes a broker one of this cluster, on the command line."""
        arguments = ["--name", name, "--role", role, "--machine", f"machine-{name}"]
        arguments += ["--cluster-key-file", str(self._key)]
        for primary in self._listed:
            arguments += ["--primary", primary]
        return arguments

    # --- as one broker

    @property
    def port(self) -> int:
        return self._any().port

    @property
    def http_port(self) -> int:
        return self._any().http_port

    @property
    def url(self) -> str:
        return self._any().url

    @property
    def http_url(self) -> str:
        return self._any().http_url

    def _any(self) -> BrokerProcess:
        return self._chance.choice(self.running())

    def running(self) -> list[BrokerProcess]:
        return [broker for broker in self.brokers.values() if broker.is_running()]

    def names(self) -> list[str]:
        """The brokers that run and are not paused."""
        return [
            name
            for name, broker in self.brokers.items()
            if broker.is_running() and name not in self._paused
        ]

    def ended_by_themselves(self) -> list[str]:
        """The brokers that no longer run though nobody stopped or killed them; `make_whole` starts
        them again, and after that it can't be seen."""
        return [name for name, broker in self.brokers.items() if broker.ended_by_itself()]

    # --- life

    def start(self) -> None:
        """Start all brokers and return once they agree on a root and are linked."""
        try:
            self._start(list(self.brokers.values()))
            self.wait_until_whole()
        except BaseException:
            self.kill()
            raise

    def _start(self, brokers: list[BrokerProcess]) -> None:
        """Together: the first of them can't be ready alone."""
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_until_ready(AGREE_SECONDS_MAX)

    def stop(self) -> list[int]:
        """Stop all brokers that run; their exit codes."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            return list(pool.map(BrokerProcess.stop, self.running()))

    def restart(self) -> None:
        for broker in self.running():
            broker.stop_cleanly()
        self.start()

    def kill(self) -> None:
        for broker in self.running():
            broker.kill()
        self._paused.clear()

    def pause(self, name: str) -> None:
        """Pause a broker (SIGSTOP); its sockets stay open."""
        os.kill(self.brokers[name].pid, signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        os.kill(self.brokers[name].pid, signal.SIGCONT)
        self._paused.discard(name)

    def make_whole(self) -> None:
        """Resume or start all brokers that don't run, and wait until all are linked."""
        for name in list(self._paused):
            self.resume(name)
        self._start([each for each in self.brokers.values() if not each.is_running()])
        self.wait_until_whole()

    def printed(self) -> str:
        return "\n".join(f"--- {name}\n{each.printed()}" for name, each in self.brokers.items())

    # --- what it looks like

    def status(self, name: str) -> dict[str, Any]:
        """The cluster as one broker sees it; empty if it doesn't answer."""
        broker = self.brokers[name]
        request = urllib.request.Request(f"{broker.http_url}/api/rhizome/cluster")
        login = b64encode(f"{self.user}:{self.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        try:
            with urllib.request.urlopen(request, timeout=HTTP_SECONDS_MAX) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except OSError:
            return {}

    def root(self) -> str:
        """The root that all running brokers name; "" if they don't agree."""
        return self._root_among(self.names())

    def _root_among(self, names: Iterable[str]) -> str:
        seen = {self._root_seen_by(name) for name in names}
        return seen.pop() if len(seen) == 1 else ""

    def _root_seen_by(self, name: str) -> str:
        cluster = self.status(name).get("cluster", {})
        return str(cluster.get("root") or "")

    def wait_for_root(self, but: str = "") -> str:
        """Wait until all running brokers name the same root, and not ``but``."""
        return self.wait_for_new_root(but)[0]

    def wait_for_new_root(self, but: str) -> tuple[str, float]:
        """As `wait_for_root`, with the seconds that it took."""
        return self.wait_for_root_among(self.names(), but)

    def wait_for_root_among(self, names: Iterable[str], but: str) -> tuple[str, float]:
        """Wait until these brokers name the same root, and not ``but``; it, and the seconds."""
        among = list(names)
        begun = time.monotonic()

        def agreed() -> str:
            root = self._root_among(among)
            return root if root != but else ""

        root = wait_until(agreed, f"a root other than {but!r}", AGREE_SECONDS_MAX)
        return root, time.monotonic() - begun

    def broker_status(self, name: str) -> str:
        """What a broker says of itself: `ready`, `isolated`, ...; "" if it doesn't answer."""
        for broker in self.status(name).get("brokers", []):
            if broker["name"] == name:
                return str(broker["status"])
        return ""

    def wait_for_status(self, name: str, *wanted: str) -> str:
        """Wait until a broker says one of these of itself."""

        def said() -> str:
            status = self.broker_status(name)
            return status if status in wanted else ""

        return wait_until(said, f"{name} to be {' or '.join(wanted)}", AGREE_SECONDS_MAX)

    def wait_until_apart(self, name: str, other: str) -> None:
        """Wait until a broker has noticed that it has no link with another."""

        def noticed() -> bool:
            brokers = self.status(name).get("brokers", [])
            return any(each["name"] == other and not each["linked"] for each in brokers)

        wait_until(noticed, f"{name} to miss {other}", AGREE_SECONDS_MAX)

    def wait_until_whole(self) -> None:
        """Wait until all running brokers have the same root and see each other serve."""
        wait_until(self._is_whole, "all brokers to be linked", AGREE_SECONDS_MAX)

    def _is_whole(self) -> bool:
        running = self.names()
        for name in running:
            seen = {each["name"]: each for each in self.status(name).get("brokers", [])}
            for other in running:
                apart = name.startswith("s") and other.startswith("s")
                status = seen.get(other, {}).get("status")
                if not apart and status not in ("active", "ready", "draining"):
                    return False
        return self.root() != ""
