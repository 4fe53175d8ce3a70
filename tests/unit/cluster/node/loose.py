"""A cluster in which anything may happen between any two turns of any two brokers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rhizome.testing.cluster import TICK_MS, CoreCluster, Member


class Loose:
    """Runs turns of brokers in an order that a seed decides, so that a fault can fall in between.

    What the cluster offers (`settle`, `advance_until`) still works, and ends the chaos.
    """

    def __init__(self, cluster: CoreCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)

    def steps(self, count: int) -> None:
        """Let so many turns happen, each of any broker."""
        for _ in range(count):
            self.random.choice(self.cluster.running()).turn()

    def pass_time(self) -> None:
        """A tick of every broker, and nothing else yet."""
        self.cluster.elapsed_ms += TICK_MS
        for member in self.cluster.running():
            member.tick()

    def kill(self, name: str) -> None:
        """End a broker between two turns; the others have yet to notice."""
        member: Member = self.cluster[name]
        member.running = False
        member.image = member.cluster_store.image
        for end in member.ends:
            end.close()
        member.ends = []

    def until(self, condition: Callable[[], bool], ticks_max: int = 1_200) -> None:
        """Let turns happen and time pass until something is so."""
        for _ in range(ticks_max):
            if condition():
                return
            self.pass_time()
            self.steps(self.random.randrange(4, 24))
        raise AssertionError("still not so")
