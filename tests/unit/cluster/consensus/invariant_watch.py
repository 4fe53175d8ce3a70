"""What must be true whatever happens: watches every broker of a stage after each of its turns."""

from __future__ import annotations

from rhizome.cluster.consensus.consensus_events import (
    BecameRoot,
    BrokerLeaseOver,
    ClusterNamed,
    Event,
)
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.link.broker_hello import SECONDARY
from tests.interaction.consensus_stage import Actor, Stage


class Violation(AssertionError):
    """A rule didn't hold; the text names it."""


class Audience:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.roots: dict[tuple[str, int], str] = {}
        self.committed: dict[tuple[str, int], Entry] = {}
        self.seen: dict[str, int] = {}
        self.founded: dict[tuple[str, ...], str] = {}
        self.settled = 0
        stage.on_event = self.event
        stage.on_turn = self.turn

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            raise Violation(f"{text}\n{self.stage.play()[-6000:]}")

    def event(self, actor: Actor, event: Event) -> None:
        assert actor.core is not None
        if isinstance(event, BecameRoot):
            self.became_root(actor, event.term)
        elif isinstance(event, ClusterNamed):
            self.named(actor, event)
        elif isinstance(event, BrokerLeaseOver):
            self.lease_over(actor, event.name, event.incarnation)

    def named(self, actor: Actor, event: ClusterNamed) -> None:
        if not event.parent_uuid and actor.bootstrap is not None:
            known = self.founded.setdefault(actor.bootstrap, event.cluster_uuid)
            self.check(known == event.cluster_uuid, "OneClusterFromOneList: there are two")

    def became_root(self, actor: Actor, term: int) -> None:
        core = actor.core
        assert core is not None
        cluster = core.state.founding_uuid()
        known = self.roots.setdefault((cluster, term), actor.name)
        self.check(known == actor.name, f"OneRootPerTerm: {known} and {actor.name} in {term}")
        self.check(actor.role != SECONDARY, f"SecondariesNeverVote: {actor.name} is root")
        log = core.state.persistent.log
        for (uuid, index), entry in self.committed.items():
            if uuid != cluster or index <= log.start.index:
                continue
            has = index <= log.last_index and log.entry(index) == entry
            self.check(has, f"CommittedStateNeverLost: root {actor.name} lacks entry {index}")

    def lease_over(self, root: Actor, name: str, incarnation: str) -> None:
        holder = self.stage.actors[name]
        if holder.core is None or holder.hello().incarnation != incarnation:
            return
        if holder.core.cluster_uuid != root.hello().cluster_uuid:
            return
        holds = holder.core.holds_lease(self.stage.clock(name))
        self.check(not holds, f"TakeoverOnlyAfterLease: {root.name} thinks {name} has none")

    def turn(self, actor: Actor) -> None:
        core = actor.core
        assert core is not None
        uuid = core.cluster_uuid
        seen = self.seen.get(f"{actor.name} {actor.starts}", 0)
        for entry in actor.entries[seen:]:
            known = self.committed.setdefault((uuid, entry.index), entry)
            self.check(
                known == entry,
                f"StateAgreesOnAllBrokers: {actor.name} has {entry} where others have {known}",
            )
        self.seen[f"{actor.name} {actor.starts}"] = len(actor.entries)
        self.settling(actor)
        self.leases()

    def settling(self, actor: Actor) -> None:
        core = actor.core
        assert core is not None
        if core.settled_index <= self.settled:
            return
        self.settled = core.settled_index
        self.known_to_holders()

    def known_to_holders(self) -> None:
        for name in self.stage.holders():
            applied = self.stage.core(name).applied_index
            self.check(
                applied >= self.settled,
                f"SettledMeansKnown: {name} has a lease and applied {applied} of {self.settled}",
            )

    def leases(self) -> None:
        self.known_to_holders()
        roots = [n for n in self.stage.holders() if self.stage.core(n).is_root]
        clusters = {self.stage.core(name).cluster_uuid for name in roots}
        self.check(len(roots) == len(clusters), f"OneRootWithLease: {roots}")
