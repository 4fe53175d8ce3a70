"""The core tests of the lone broker, told again in a cluster.

What these tests say about a broker must hold of a cluster too, whichever broker a client is on and
wherever a queue has its home. `as_in_cluster` takes them from their module; `ClusterAsCore` is the
core that they are given.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from rhizome.broker.queue.queue import Queue
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, Member, make_cluster

PLACES = ("home", "primary", "secondary", "anywhere")
"""Where clients are: at the home of the first queue, at another primary, at a secondary, or each at
the next broker."""

LONE_TESTS = Path(__file__).parents[2] / "broker"


class ClusterAsCore:
    """A cluster that looks like one broker to a test."""

    def __init__(self, place: str) -> None:
        self.cluster: CoreCluster = make_cluster(3, 1)
        self.place = place
        self._next = 0
        self.broker = self.cluster["b1"].broker

    def member(self) -> Member:
        """The broker that the next client is on. The first queue's home is b1."""
        names = {"home": ["b1"], "primary": ["b2"], "secondary": ["s1"]}
        among = names.get(self.place, ["s1", "b2", "b1", "b3"])
        self._next += 1
        return self.cluster[among[(self._next - 1) % len(among)]]

    def connect(self, **options: int) -> CoreClient:
        member = self.member()
        self.broker = member.broker
        return member.connect(**options)

    def queue(self, name: str, vhost: str = "/") -> Queue:
        """The queue where it is active."""
        for member in self.cluster.running():
            if member.has_queue(name, vhost) and member.queue(name, vhost).away is None:
                return member.queue(name, vhost)
        raise AssertionError(f"no broker is the home of queue {name!r}")

    def has_queue(self, name: str, vhost: str = "/") -> bool:
        return any(member.has_queue(name, vhost) for member in self.cluster.running())

    def advance(self, ms: int) -> None:
        self.cluster.advance(ms)

    def settle(self) -> None:
        self.cluster.settle()


def as_in_cluster(name: str, leave_out: Iterable[str] = ()) -> dict[str, Callable[..., None]]:
    """The tests of a module about the lone broker, but those that look inside one core."""
    left_out = set(leave_out)
    module = _load(name)
    tests = {
        test: function
        for test, function in vars(module).items()
        if test.startswith("test_") and callable(function)
    }
    assert left_out <= set(tests), left_out - set(tests)
    return {test: function for test, function in tests.items() if test not in left_out}


def _load(name: str) -> ModuleType:
    path = LONE_TESTS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"anywhere_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
