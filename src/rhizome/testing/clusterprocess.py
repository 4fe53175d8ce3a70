"""A real cluster for tests: brokers as processes on loopback.

`ClusterProcess` looks to a test like one broker, and each time it is asked for a port it names a
broker by chance, so that tests of a lone broker run against a cluster as they are. A test that
wants to say which broker it talks to uses ``brokers``.
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from base64 import b64encode
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final

from rhizome.testing.processes import BrokerProcess, wait_until

AGREE_SECONDS_MAX: Final = 60.0
HTTP_SECONDS_MAX: Final = 5.0


class ClusterProcess:
    """Primaries b1.. and secondaries s1.., each a `rhizome serve`.

    Invariant: names, ports and directories stay the same over restarts.
    """

    host: Final = "127.0.0.1"
    user: Final = "guest"
    password: Final = "guest"

    def __init__(
        self, directory: Path, primaries: int = 3, secondaries: int = 0, seed: int = 0
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._chance = Random(seed)
        self._key = directory / "cluster.key"
        self._key.write_text(secrets.token_urlsafe(32))
        self._key.chmod(0o600)
        self.brokers: dict[str, BrokerProcess] = {}
        names = [f"b{number + 1}" for number in range(primaries)]
        others = [f"s{number + 1}" for number in range(secondaries)]
        for name in [*names, *others]:
            self.brokers[name] = BrokerProcess(directory / name)
        listed = [f"{name}={self.host}:{self.brokers[name].port}" for name in names]
        for name, broker in self.brokers.items():
            role = "primary" if name in names else "secondary"
            broker.add_arguments(self._arguments(name, role, listed))

    def _arguments(self, name: str, role: str, primaries: Iterable[str]) -> list[str]:
        arguments = ["--name", name, "--role", role, "--machine", f"machine-{name}"]
        arguments += ["--cluster-key-file", str(self._key)]
        for primary in primaries:
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

    # --- life

    def start(self) -> None:
        """Start all brokers and return once they agree on a root and are linked."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(BrokerProcess.start, self.brokers.values()))
        self.wait_until_whole()

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
        running = [name for name, broker in self.brokers.items() if broker.is_running()]
        seen = {self._root_seen_by(name) for name in running}
        return seen.pop() if len(seen) == 1 else ""

    def _root_seen_by(self, name: str) -> str:
        cluster = self.status(name).get("cluster", {})
        return str(cluster.get("root") or "")

    def wait_for_root(self, but: str = "") -> str:
        """Wait until all running brokers name the same root, and not ``but``."""

        def agreed() -> str:
            root = self.root()
            return root if root != but else ""

        return wait_until(agreed, f"a root other than {but!r}", AGREE_SECONDS_MAX)

    def wait_until_whole(self) -> None:
        """Wait until all running brokers have the same root and see each other serve."""
        wait_until(self._is_whole, "all brokers to be linked", AGREE_SECONDS_MAX)

    def _is_whole(self) -> bool:
        running = [name for name, broker in self.brokers.items() if broker.is_running()]
        for name in running:
            seen = {each["name"]: each for each in self.status(name).get("brokers", [])}
            for other in running:
                apart = name.startswith("s") and other.startswith("s")
                status = seen.get(other, {}).get("status")
                if not apart and status not in ("active", "ready"):
                    return False
        return self.root() != ""
