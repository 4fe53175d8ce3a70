"""A random walk: everything that can happen to brokers, from one seed, and then peace."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from rhizome.cluster.consensus import (
    ALL_RULES,
    ChangeRefused,
    Consensus,
    ConsensusSettings,
    NotRoot,
    Rules,
)
from tests.interaction.consensus_stage import Actor, Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

SETTINGS = ConsensusSettings(
    log_entries_max=12, log_entries_kept=4, retire_ms=6000, append_entries_max=3
)


@dataclass
class Weather:
    """How often what happens, relative to each other."""

    propose: int = 10
    run: int = 12
    kill: int = 4
    start: int = 8
    cut: int = 3
    isolate: int = 2
    heal: int = 4
    hang: int = 1
    wipe: int = 1
    transfer: int = 1
    remove: int = 1
    add: int = 2


class Walk:
    def __init__(
        self, seed: int, primaries: int = 3, secondaries: int = 1, rules: Rules = ALL_RULES
    ) -> None:
        self.chance = Random(f"walk {seed}")
        self.names = tuple(f"b{n + 1}" for n in range(primaries))
        self.others = tuple(f"s{n + 1}" for n in range(secondaries))
        self.stage = Stage(self.names, self.others, SETTINGS, seed, rules)
        self.audience = Audience(self.stage)
        self.proposed = 0
        self.last = 0
        self.wiped: dict[str, None] = {}
        drift = [1000, 1000, 980, 1020]
        for actor in self.stage.actors.values():
            actor.clock_permille = self.chance.choice(drift)
        self.stage.delay = lambda: self.chance.choice((0, 1, 1, 2, 5, 30))
        self.stage.sync_delay = lambda: self.chance.choice((0, 1, 3, 20, 60))

    def go(self, steps: int, weather: Weather) -> None:
        self.stage.start(*self.names, *self.others)
        kinds = list(vars(weather))
        weights = [getattr(weather, kind) for kind in kinds]
        for _ in range(steps):
            kind = self.chance.choices(kinds, weights)[0]
            getattr(self, kind)()
            self.stage.run(self.chance.choice((0, 1, 5, 40)))

    def follow(self, kinds: list[str]) -> None:
        """Let these things happen, in this order."""
        self.stage.start(*self.names, *self.others)
        for kind in kinds:
            getattr(self, kind)()
            self.stage.run(self.chance.choice((0, 1, 5, 40)))

    def peace(self, patience_ms: int = 40_000) -> None:
        """All faults end; then everything must work again."""
        stage = self.stage
        for actor in stage.actors.values():
            if actor.core is not None and actor.hanging:
                stage.free_disk(actor.name)
            actor.hanging = False
        stage.start(*[a.name for a in stage.actors.values() if a.core is None])
        stage.heal()
        stage.delay = stage.sync_delay = lambda: 1
        everybody = [*self.names, *self.others]
        stage.run_until(lambda: self._restart_retired() or self._all_hold(everybody), patience_ms)
        stage.run_until(lambda: self._propose_peace() > 0)
        stage.run_until(lambda: all(stage.core(n).settled_index >= self.last for n in everybody))
        states = {tuple(actor.state) for actor in stage.actors.values()}
        self.audience.check(len(states) == 1, "StateAgreesOnAllBrokers: in the end")

    def _propose_peace(self) -> int:
        """Not while the office is being handed over."""
        for name in self.stage.roots():
            self.last = self.stage.propose(name, b"peace") or 0
        return self.last

    def _restart_retired(self) -> bool:
        for actor in self.up():
            if actor.core is not None and actor.core.retired:
                self.stage.kill(actor.name)
                self.stage.start(actor.name)
        return False

    def _all_hold(self, everybody: list[str]) -> bool:
        return sorted(self.stage.holders()) == sorted(everybody)

    def up(self) -> list[Actor]:
        return [a for a in self.stage.actors.values() if a.core is not None]

    def root(self) -> Consensus | None:
        roots = self.stage.roots()
        return self.stage.core(self.chance.choice(roots)) if roots else None

    # What happens.

    def run(self) -> None:
        self.stage.run(self.chance.choice((50, 200, 1000, 2500)))

    def propose(self) -> None:
        for name in self.stage.roots():
            for _ in range(self.chance.randrange(4)):
                self.proposed += 1
                self.stage.propose(name, b"%d" % self.proposed)

    def kill(self) -> None:
        if self.up():
            victim = self.chance.choice(self.up())
            roots = self.stage.roots()
            if roots and self.chance.random() < 0.4:
                victim = self.stage.actors[self.chance.choice(roots)]
            self.stage.kill(victim.name)

    def start(self) -> None:
        down = [a.name for a in self.stage.actors.values() if a.core is None]
        if down:
            self.stage.start(self.chance.choice(down))

    def cut(self) -> None:
        if self.stage.links:
            self.stage.cut(*self.chance.choice(list(self.stage.links)))

    def isolate(self) -> None:
        names = [a.name for a in self.up()]
        if len(names) > 1:
            self.stage.isolate(*self.chance.sample(names, self.chance.randrange(1, len(names))))

    def heal(self) -> None:
        self.stage.heal()

    def hang(self) -> None:
        hanging = [a for a in self.up() if a.hanging]
        if hanging:
            self.stage.free_disk(hanging[0].name)
        elif self.up():
            self.stage.hang_disk(self.chance.choice(self.up()).name)

    def wipe(self) -> None:
        """Wipe a store, if all the others are there: more than one loss can be too many."""
        root = self.root()
        if root is None or not root.holds_lease(self.stage.clock(root.root)):
            return
        status = root.status()
        if status.joint or status.quorum.defined < 3 or status.last_index > status.settled_index:
            return
        if any(not m.counts or not m.linked for m in status.members):
            return
        victim = self.chance.choice([n for n in self.names if n != root.root])
        self.stage.kill(victim)
        self.stage.actors[victim].wipe()

    def transfer(self) -> None:
        self._order(lambda core, now: core.transfer_root(self.chance.choice(self.names), now))

    def remove(self) -> None:
        self._order(lambda core, now: core.remove_primary(self.chance.choice(self.names), now))

    def add(self) -> None:
        self._order(lambda core, now: core.add_primary(self.chance.choice(self.names), now))

    def _order(self, what) -> None:  # type: ignore[no-untyped-def]
        for name in self.stage.roots():
            try:
                self.stage.order(name, what)
            except (ChangeRefused, NotRoot):
                pass
