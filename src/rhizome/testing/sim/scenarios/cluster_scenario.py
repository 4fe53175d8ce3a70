"""The scenario "cluster": whole brokers with applications on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rhizome.cluster.consensus import Rules
from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY
from rhizome.testing.sim.brokers.broker_program import BrokerProgram, bodies
from rhizome.testing.sim.checkers.checker import (
    Checker,
    CommittedStateNeverLost,
    OneRootPerTerm,
    OneRootServes,
    StateAgreesOnAllBrokers,
)
from rhizome.testing.sim.events.broker_events import (
    Confirmed,
    Consumed,
    Declared,
    Healed,
    NewsHeard,
    NewsTold,
    Subscribed,
    SubscriberGone,
)
from rhizome.testing.sim.seed_run import RunOptions, Simulation, drawn
from rhizome.testing.sim.world.event_scheduler import SECOND, World
from rhizome.testing.sim.world.sim_host import Process

ARRIVE_US = 10 * SECOND


def programs(checker: Checker) -> list[BrokerProgram]:
    return [each for each in checker.watch.brokers.values() if isinstance(each, BrokerProgram)]


class DeclareOkMeansKnown(Checker):
    """R10: after declare-ok every broker with a lease knows the queue; no broker forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self._declared: dict[str, str] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Declared: self._note}

    def _note(self, seen: Declared) -> None:
        self._declared[seen.queue] = seen.broker
        for program in programs(self):
            if program.has_lease() and not _knows(program, seen.queue):
                self.fail(
                    f"{seen.broker} has its declare-ok for {seen.queue}, and {program.name} holds "
                    f"a lease and doesn't know it: {program.explain()}"
                )

    def final(self) -> None:
        for program in programs(self):
            for queue, broker in self._declared.items():
                if not _knows(program, queue):
                    self.fail(f"{program.name} lacks {queue}, which {broker} declared")


def _knows(program: BrokerProgram, queue: str) -> bool:
    vhost = program.broker.state.vhosts.get("/")
    return vhost is not None and queue in vhost.queues


class NoBounceNoDoubleDelivery(Checker):
    """O33, A3: a subscriber gets no news twice, and those of one publisher in order. Once the
    faults are over, every subscriber gets all."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: dict[str, dict[str, int]] = {}
        self._subscribed: dict[str, int] = {}
        self._told: list[tuple[int, str]] = []
        self._healed_us = -1

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            NewsHeard: self._note_heard,
            NewsTold: self._note_told,
            Subscribed: self._note_subscribed,
            SubscriberGone: self._note_gone,
            Healed: self._note_healed,
        }

    def _note_healed(self, _: Healed) -> None:
        self._healed_us = self.watch.world.now_us

    def _note_subscribed(self, seen: Subscribed) -> None:
        self._subscribed[seen.application] = self.watch.world.now_us

    def _note_gone(self, seen: SubscriberGone) -> None:
        self._subscribed.pop(seen.application, None)

    def _note_told(self, seen: NewsTold) -> None:
        self._told.append((self.watch.world.now_us, seen.body))

    def _note_heard(self, seen: NewsHeard) -> None:
        heard = self._heard.setdefault(seen.application, {})
        teller, _, number = seen.body.rpartition("/")
        last = heard.get(teller, 0)
        if int(number) <= last:
            self.fail(f"{seen.application} heard {seen.body} after {teller}/{last}")
        heard[teller] = int(number)

    def final(self) -> None:
        end_us = self.watch.world.now_us
        due = [
            body
            for told_us, body in self._told
            if self._healed_us + 2 * ARRIVE_US <= told_us <= end_us - ARRIVE_US
        ]
        for application, since_us in self._subscribed.items():
            heard = self._heard.get(application, {})
            for body in due:
                teller, _, number = body.rpartition("/")
                if since_us < self._healed_us + ARRIVE_US and heard.get(teller, 0) < int(number):
                    self.fail(f"{application} never heard {body}, told after all faults were over")


class NoConfirmedMessageLost(Checker):
    """What was confirmed was consumed, or is still in its queue."""

    def __init__(self) -> None:
        super().__init__()
        self._confirmed: dict[str, str] = {}
        self._consumed: dict[str, None] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Confirmed: self._note_confirmed, Consumed: self._note_consumed}

    def _note_confirmed(self, seen: Confirmed) -> None:
        self._confirmed[seen.body] = seen.application

    def _note_consumed(self, seen: Consumed) -> None:
        self._consumed[seen.body] = None

    def final(self) -> None:
        kept = self._kept()
        for body, application in self._confirmed.items():
            if body not in self._consumed and body not in kept:
                self.fail(f"{body} was confirmed to {application}, and is nowhere")

    def _kept(self) -> set[str]:
        kept: set[str] = set()
        for program in programs(self):
            for queue in program.broker.shared.values():
                if queue.away is None and queue.worker is None:
                    kept.update(body.decode() for body in bodies(queue))
        return kept


class AllJoined(Checker):
    """Once the faults are over every broker serves again."""

    def __init__(self, expected: list[str]) -> None:
        super().__init__()
        self._expected = expected

    def has_recovered(self) -> bool:
        return not self._missing()

    def is_done(self) -> bool:
        return self.has_recovered()

    def final(self) -> None:
        for text in self._missing():
            self.fail(text)

    def _missing(self) -> list[str]:
        running = {program.name: program for program in programs(self)}
        found = [f"{name} doesn't run at the end" for name in self._expected if name not in running]
        for name, program in running.items():
            if not program.node.ready or program.node.isolated:
                found.append(f"{name} has not joined: {program.explain()}")
        return found


class ClusterScenario:
    """Hosts b1, ... for primaries and s1, ... for secondaries."""

    name = "cluster"

    def build(self, world: World, options: RunOptions) -> Simulation:
        primaries = [f"b{n + 1}" for n in range(drawn(world, "brokers", options.brokers))]
        secondaries = [f"s{n + 1}" for n in range(drawn(world, "secondaries", options.secondaries))]
        names = [*primaries, *secondaries]
        simulation = Simulation(
            world,
            [
                OneRootPerTerm(),
                CommittedStateNeverLost(),
                StateAgreesOnAllBrokers(),
                OneRootServes(),
                DeclareOkMeansKnown(),
                NoBounceNoDoubleDelivery(),
                NoConfirmedMessageLost(),
                AllJoined(names),
            ],
        )
        rules = Rules(**dict.fromkeys(options.broken, False))
        simulation.processes = [
            _process(
                simulation, name, PRIMARY if name in primaries else SECONDARY, primaries, rules
            )
            for name in names
        ]
        simulation.plan.may_lose_disk = _never
        return simulation


def _never(name: str) -> bool:
    """No disk may be lost: without copies its messages would be lost."""
    return False


def _process(
    simulation: Simulation, name: str, role: str, primaries: list[str], rules: Rules
) -> Process:
    return Process(
        simulation.world,
        simulation.network,
        name,
        lambda host: BrokerProgram(host, name, role, primaries, simulation.watch, rules),
    )
