"""A cluster in which anything may happen between any two turns of any two brokers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rhizome.testing.in_memory_cluster import TICK_MS, CoreCluster, Member


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

    def cut(self, name: str, others: list[str]) -> None:
        """Cut a broker off from others between two turns; what was written still arrives."""
        member = self.cluster[name]
        for other in others:
            self.cluster.part(name, other)
        for end in list(member.ends):
            if end.other is not None and end.other.owner.name in others:
                end.close()
                end.ended = False
                member.busy = True

    def rounds(self, condition: Callable[[], bool], count: int = 1_000) -> None:
        """Let turns happen in order until something is so, and stop right then."""
        for _ in range(count):
            for member in self.cluster.running():
                member.turn()
                if condition():
                    return
        raise AssertionError("still not so")

    def until(self, condition: Callable[[], bool], ticks_max: int = 1_200) -> None:
        """Let turns happen and time pass until something is so."""
        for _ in range(ticks_max):
            if condition():
                return
            self.pass_time()
            self.steps(self.random.randrange(4, 24))
        raise AssertionError("still not so")
