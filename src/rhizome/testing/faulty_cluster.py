"""A real cluster on loopback whose brokers can be killed, paused and cut off, without root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import AGREE_SECONDS_MAX, ClusterProcess
from rhizome.testing.link_proxies import LinkProxies


class FaultyCluster(ClusterProcess):
    """A cluster whose links go through proxies, so that they can be cut.

    ``environment`` is for all brokers. Faults last until `heal`, `resume`, `start_broker` or
    `make_whole`, which undoes them all.
    """

    def __init__(
        self,
        directory: Path,
        primaries: int = 3,
        secondaries: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._proxies = LinkProxies(self._pids)
        self._environment = dict(environment or {})
        super().__init__(directory, primaries, secondaries, make=self._make)

    def _make(self, name: str, directory: Path) -> BrokerProcess:
        return BrokerProcess(directory, environment=self._environment)

    def _pids(self) -> dict[str, int]:
        return {name: each.pid for name, each in self.brokers.items() if each.is_running()}

    def link_address(self, name: str) -> str:
        broker = self.brokers[name]
        return f"127.0.0.1:{self._proxies.open(name, broker.host, broker.port)}"

    # --- faults

    def kill_broker(self, name: str) -> None:
        """End a broker at once, as a crash would."""
        if name in self._paused:
            self.resume(name)
        self.brokers[name].kill()

    def start_broker(self, name: str) -> None:
        """Start a broker that was killed; returns when it is ready."""
        self.brokers[name].start()

    def cut_off(self, *names: str) -> None:
        """Part these brokers from all others. Applications still reach all of them."""
        self._known(names)
        self._proxies.part(names, [each for each in self.brokers if each not in names])

    def part(self, one: list[str], other: list[str]) -> None:
        """Let nothing pass between these brokers and those."""
        self._known([*one, *other])
        self._proxies.part(one, other)

    def heal(self) -> None:
        """End all partitions."""
        self._proxies.heal()

    def is_whole(self) -> bool:
        """Whether no fault is in effect."""
        return (
            not self._proxies.parted()
            and not self._paused
            and all(each.is_running() for each in self.brokers.values())
        )

    def wait_for_copies(self) -> None:
        """Wait until each group with queues has a copy in sync, which can take over. A queue that
        was just declared has none yet, and is gone for a time if its home dies."""
        wait_until(self._has_copies, "copies in sync", AGREE_SECONDS_MAX)

    def _has_copies(self) -> bool:
        names = self.names()
        groups: list[dict[str, object]] = self.status(names[0]).get("groups", [])
        used = [each for each in groups if each["queues"]]
        return bool(groups) and all(each["home"] in names and each["in_sync"] for each in used)

    def make_whole(self) -> None:
        """Undo all faults and wait until all brokers are linked."""
        self.heal()
        super().make_whole()

    def close(self) -> None:
        """Leave no process and no thread behind."""
        self.kill()
        self._proxies.close()

    def _known(self, names: list[str] | tuple[str, ...]) -> None:
        for name in names:
            if name not in self.brokers:
                raise ValueError(f"no broker {name!r}; there are {', '.join(self.brokers)}")

    def __enter__(self) -> FaultyCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
