"""Stories told to the checkers of messages: histories that never happened.

A story begins with the brokers b1 and b2, where b1 is the home of every queue, a publisher p at b2
and workers w and v at b2. Each step takes a second.
"""

from __future__ import annotations

from dataclasses import replace

from rhizome.client.confirm_level import Level
from rhizome.testing.sim.apps.app_topology import ALWAYS, SOMETIMES, Topology, drawn_topology
from rhizome.testing.sim.checkers.checker import Violation, Watch
from rhizome.testing.sim.checkers.fault_timeline import Timeline
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import Promises
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.events.broker_events import Healed, Observation
from rhizome.testing.sim.scenarios.messages_scenario import checkers_of
from rhizome.testing.sim.world.event_scheduler import SECOND, World

GROUP = 1
HOME = "b1"
EDGE = "b2"
PUBLISHER, WORKER, OTHER = 1, 2, 3
APPLICATIONS = {PUBLISHER: "p", WORKER: "w", OTHER: "v"}


def whole_topology() -> Topology:
    """Every queue that there is."""
    topology = drawn_topology(World(0).chance("topology"))
    topology.queues = {plan.name: plan for plan in (*ALWAYS, *SOMETIMES)}
    topology.bindings += [("work", plan.name, plan.name) for plan in SOMETIMES]
    return topology


class FakeBroker:
    """A broker of a story: what the queues hold that it serves, as their home in an epoch."""

    def __init__(self, contents: dict[str, list[str]], epoch: int = 1) -> None:
        self._contents = contents
        self._epoch = epoch

    def contents(self) -> dict[str, list[str]]:
        return self._contents

    def contents_of(self, queue: str, epoch: int) -> list[str] | None:
        return self._contents.get(queue) if epoch == self._epoch else None

    def depths(self) -> dict[str, str]:
        return {queue: f"{len(held)} ready" for queue, held in self._contents.items() if held}

    def explain(self) -> str:
        return "a fake"


class Story:
    """Tells checkers what did not happen, second by second."""

    def __init__(self, **promises: object) -> None:
        self.world = World(0)
        promised: Promises = replace(Promises(), **promises)  # type: ignore[arg-type]
        self.watch = Watch(self.world, checkers_of(whole_topology(), promised))
        self.tag = 0
        self.see(told.GroupAt(GROUP, HOME, "1", 1, 1, ""))
        for queue in whole_topology().queues:
            self.see(told.QueueIn(queue, GROUP))
        for session, name in APPLICATIONS.items():
            self.see(told.SessionOpened(name, session, EDGE, session))

    def see(self, observation: Observation) -> None:
        self.watch.see(observation)

    def wait(self, seconds: float = 1) -> Story:
        self.world.now_us += int(seconds * SECOND)
        return self

    def then(self, observation: Observation) -> Story:
        self.wait()
        self.see(observation)
        return self

    def sends(
        self,
        message: str,
        key: str = "orders",
        persistent: bool = True,
        priority: int = 0,
        message_id: str = "",
        transaction: int = 0,
        exchange: str = "",
    ) -> Story:
        return self.then(
            told.Sent(
                "p",
                PUBLISHER,
                1,
                message,
                exchange,
                key,
                int(persistent),
                0,
                priority,
                message_id,
                transaction,
                20,
            )
        )

    def confirmed(self, message: str) -> Story:
        return self.then(told.Confirmed(message))

    def levelled(self, message: str, level: Level) -> Story:
        return self.confirmed(message).then(told.LevelTold(message, level))

    def comes(
        self,
        message: str,
        queue: str = "orders",
        to: int = WORKER,
        again: bool = False,
        automatic: bool = False,
        intact: bool = True,
        consumer: str = "c",
    ) -> Story:
        self.tag += 1
        return self.then(
            told.Delivered(
                APPLICATIONS[to],
                to,
                1,
                consumer,
                self.tag,
                queue,
                message,
                int(again),
                int(automatic),
                int(intact),
            )
        )

    def settles(
        self, verdict: str = told.ACK, by: int = WORKER, tag: int = 0, transaction: int = 0
    ) -> Story:
        return self.then(told.SettledBy(by, 1, tag or self.tag, verdict, transaction))

    def strikes(self, place: str) -> Story:
        return self.then(told.Struck("link", place))

    def dies(self, broker: str) -> Story:
        return self.then(told.ProgramEnded(broker))

    def loses_power(self, broker: str) -> Story:
        timeline = self.watch.checkers[1]
        assert isinstance(timeline, Timeline)
        self.dies(broker)
        timeline.cuts.setdefault(broker, []).append(self.world.now_us)
        return self

    def taken_over(self, home: str, epoch: int) -> Story:
        return self.then(told.GroupAt(GROUP, home, "1", epoch, 1, ""))

    def serves(self, broker: str, epoch: int, **contents: list[str]) -> Story:
        """From now on a broker serves these queues, as their home in an epoch."""
        self.wait()
        self.watch.brokers[broker] = FakeBroker(contents, epoch)  # type: ignore[assignment]
        for checker in self.watch.checkers:
            checker.glance()
        return self

    def ends(self, **contents: list[str]) -> Story:
        """The end of a run, a minute later; `contents` is what queues hold."""
        self.then(Healed()).wait(60)
        self.watch.brokers[HOME] = FakeBroker(contents)  # type: ignore[assignment]
        self.watch.final()
        return self


def seen_by(tell: object) -> str:
    """Who sees a violation in a story; nobody is the empty text."""
    assert callable(tell)
    try:
        tell()
    except Violation as violation:
        return violation.checker
    return ""
