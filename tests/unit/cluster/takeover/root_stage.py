"""A root without a cluster around it: a cluster state, leases that come and go, and a log that
applies what is proposed when it is told to."""

from __future__ import annotations

from rhizome.cluster.state.cluster_commands import WHOLE, ClusterCommand, Member, SetInSync
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.cluster.takeover.copy_progress import CopyProgress
from rhizome.cluster.takeover.root_port import UNKNOWN
from rhizome.cluster.takeover.settings import RootSettings
from rhizome.cluster.takeover.takeover import Takeover
from tests.unit.cluster.state.state_machines import Machine, make_machine, register

START_MS = 1_000


class Port:
    """Keeps what is proposed and asked for."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.log: list[ClusterCommand] = []
        self.asked: list[tuple[str, list[int]]] = []
        self.heirs: list[str] = []
        self.records: dict[int, int] = {}
        self.has_room = True
        self.heard: list[str] = []
        self.cuts: list[tuple[str, str]] = []
        """Pairs of brokers without a link; the root hears of it from both."""
        self.full: list[str] = []
        self.failed: dict[int, int] = {}
        self.silent: list[str] = []
        """Brokers of an earlier release, which don't tell of links and disks."""
        self.reports: list[str] = []

    def propose(self, command: ClusterCommand) -> int:
        if not self.has_room:
            return 0
        self.log.append(command)
        return self.machine.state.index + len(self.log)

    def ask_copy_progress(self, broker: str, groups: list[int]) -> None:
        self.asked.append((broker, groups))

    def hears(self, broker: str) -> bool:
        return broker in self.heard

    def hand_over(self, broker: str) -> None:
        self.heirs.append(broker)

    def records_of(self, group: int) -> int:
        return self.records.get(group, UNKNOWN)

    def links_of(self, broker: str) -> list[str] | None:
        if broker in self.silent:
            return None
        cut = [pair[0] if pair[1] == broker else pair[1] for pair in self.cuts if broker in pair]
        brokers = self.machine.state.registry.brokers
        return [name for name in brokers if name != broker and name not in cut]

    def failed_homes(self) -> dict[int, int]:
        return self.failed

    def has_full_disk(self, broker: str) -> bool:
        return broker in self.full

    def report(self, text: str) -> None:
        self.reports.append(text)


class Stage:
    """``me`` is the root; brokers are b1, b2, ...; the home of group N is bN to begin with."""

    def __init__(self, *brokers: str, me: str = "b1", settings: RootSettings | None = None) -> None:
        self.machine = make_machine(*brokers)
        self.state = self.machine.state
        self.port = Port(self.machine)
        self.now_ms = START_MS
        self.root = Takeover(
            me, f"{me}.1", self.state, self.port, settings or RootSettings(), self.now_ms
        )
        self.applied: list[ClusterCommand] = []
        self.answers = True
        """Whether brokers that are asked answer at once, all with equal copies."""

    # --- what happens

    def elect(self, *live: str) -> Stage:
        """The root takes office; these brokers, in their first incarnations, have leases."""
        self.root.became_root()
        for name in live:
            self.live(name)
        self.settle()
        return self

    def live(self, name: str, incarnation: str = "") -> None:
        self.root.lease_live(name, incarnation or self.incarnation(name))
        self.settle()

    def over(self, name: str, incarnation: str = "") -> None:
        self.root.lease_over(name, incarnation or self.incarnation(name))
        self.settle()

    def restart(self, name: str, start: int, live: bool = True) -> None:
        """A broker registers a new incarnation, and gets a lease."""
        old = self.incarnation(name)
        self.root.lease_over(name, old)
        self.do(register(name, f"{name}.{start}"))
        if live:
            self.live(name)

    def do(self, *commands: ClusterCommand) -> None:
        """Somebody else's commands are committed."""
        self.settle()
        for command in commands:
            self.machine.done(command)
            self.root.state_changed()
        self.settle()

    def settle(self) -> None:
        """Commit and apply whatever is in the log, and answer what was asked."""
        while self.port.log or (self.answers and self.port.asked):
            if self.answers:
                self.answer_all(
                    {name: CopyProgress(1, 100) for name in self.state.registry.brokers}
                )
            if not self.port.log:
                continue
            command = self.port.log.pop(0)
            self.machine.feed(command)
            self.applied.append(command)
            self.root.state_changed()

    def wait(self, ms: int) -> None:
        """Time passes in small steps."""
        for _ in range(0, ms, 50):
            self.now_ms += 50
            self.root.tick(self.now_ms)
            self.settle()

    def answer(self, name: str, group: int, epoch: int, index: int) -> None:
        self.root.copy_progresses(name, {group: CopyProgress(epoch, index)})
        self.settle()

    def answer_all(self, copy_progresses: dict[str, CopyProgress]) -> None:
        """Answer what was asked so far."""
        asked, self.port.asked = self.port.asked, []
        for name, groups in asked:
            for group in groups:
                if name in copy_progresses:
                    copy_progress = copy_progresses[name]
                    self.root.copy_progresses(name, {group: copy_progress})
        if not self.answers:
            self.settle()

    # --- what is so

    def incarnation(self, name: str) -> str:
        return self.state.registry.get(name).incarnation

    def group(self, number: int = 1) -> Group:
        return self.state.groups.groups[number]

    def home(self, number: int = 1) -> tuple[str, str, int]:
        group = self.group(number)
        return (group.home, group.incarnation, group.epoch)

    def sync(self, number: int, *names: str, copy: str = WHOLE) -> None:
        """Set the in-sync members of a group, in their present incarnations."""
        group = self.group(number)
        members = tuple(Member(name, self.incarnation(name), copy) for name in names)
        self.do(SetInSync(number, members, group.epoch, group.version))

    def names(self, number: int = 1) -> list[tuple[str, str]]:
        return [(each.broker, each.copy) for each in self.group(number).in_sync]
