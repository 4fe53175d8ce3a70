"""Brokers that confirm, crash, restart and lose leases, around a real cluster state and root.

What a broker knows of the state may be old, and what is proposed is applied later, or after what
somebody else proposed: that is where takeovers go wrong. Ghosts keep what each disk has and what
was confirmed:

- nobody becomes home who lacks a confirmed persistent message (G1 to G5);
- a whole member that becomes home has the confirmed transient ones too (G2);
- when all is quiet, a group has a home if anybody eligible is there (G3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rhizome.cluster.state.cluster_commands import (
    DISK,
    WHOLE,
    ClusterCommand,
    Member,
    PutSettings,
    SetDraining,
    SetInSync,
    TransferHome,
)
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.cluster.takeover.copy_progress import CopyProgress
from rhizome.cluster.takeover.root_port import UNKNOWN
from rhizome.cluster.takeover.settings import EAGER, RootSettings
from rhizome.cluster.takeover.takeover import Takeover
from tests.unit.cluster.state.state_machines import Machine, make_machine, register

NAMES = ("b1", "b2", "b3", "b4")
GROUP = 2
BROKERS = st.sampled_from(NAMES)


@dataclass
class Broker:
    """A process, and its disk. ``view``: the group as it knows it. ``joining``: a member that it
    waits for because it has asked to add it, and the version at which it asked (G4)."""

    name: str
    start: int = 1
    up: bool = True
    disk: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    view: Group | None = None
    joining: tuple[str, int, int] | None = None

    @property
    def incarnation(self) -> str:
        return f"{self.name}.{self.start}"


class TakeoverWalk(RuleBasedStateMachine):
    """One group of four brokers. The root may be any of them, and may change."""

    root_kind = Takeover

    def __init__(self) -> None:
        super().__init__()
        self.machine = self.make_machine()
        self.machine.done(PutSettings("spread", 3, "ring", 1 << 20))
        self.brokers = {name: Broker(name) for name in NAMES}
        self.log: list[ClusterCommand] = []
        self.now_ms = 0
        self.message = 0
        self.confirmed: list[int] = []
        self.transient: list[int] = []
        """Confirmed transient messages; those that a copy on disk lacked when it took over are
        lost, and that is excused."""
        self.appointed = (1, "b2.1")
        self.asked: list[tuple[str, list[int]]] = []
        self.cut: set[str] = set()
        """Two brokers that have no link with each other, though the root reaches both."""
        self.full = ""
        self.root = self.make_root("b1")

    @staticmethod
    def make_machine() -> Machine:
        return make_machine(*NAMES)

    def make_root(self, name: str) -> Takeover:
        incarnation = self.brokers[name].incarnation
        settings = RootSettings(1_000, rebalance=EAGER)
        return self.root_kind(name, incarnation, self.machine.state, self, settings, self.now_ms)

    # --- the root's port

    def propose(self, command: ClusterCommand) -> int:
        self.log.append(command)
        return self.machine.state.index + len(self.log)

    def ask_copy_progress(self, broker: str, groups: list[int]) -> None:
        self.asked.append((broker, groups))

    def hears(self, broker: str) -> bool:
        """As it happens: whoever is waited for is waited for in vain, or not."""
        return self.brokers[broker].up

    def hand_over(self, broker: str) -> None:
        pass

    def records_of(self, group: int) -> int:
        return UNKNOWN

    def links_of(self, broker: str) -> list[str] | None:
        return [name for name in NAMES if {broker, name} != self.cut]

    def failed_homes(self) -> dict[int, int]:
        return {}

    def has_full_disk(self, broker: str) -> bool:
        return broker == self.full

    def report(self, text: str) -> None:
        pass

    # --- helpers

    def group(self) -> Group:
        return self.machine.state.groups.groups[GROUP]

    def home(self) -> Broker | None:
        """Who serves the group as far as it knows itself."""
        found = [b for b in self.brokers.values() if self._is_home(b)]
        return max(found, key=lambda b: b.view.epoch if b.view else 0, default=None)

    def _is_home(self, broker: Broker) -> bool:
        view = broker.view
        if not broker.up or view is None:
            return False
        return (view.home, view.incarnation) == (broker.name, broker.incarnation)

    def _answers(self, standby: Broker, home: Broker) -> bool:
        """Whether a copy answers this home: it knows no later epoch (G1)."""
        assert home.view is not None
        return standby.up and (standby.view is None or standby.view.epoch <= home.view.epoch)

    def _waits_for(self, home: Broker) -> list[Broker]:
        view = home.view
        assert view is not None
        names = [member.broker for member in view.in_sync]
        if home.joining is not None:
            name, epoch, version = home.joining
            if (epoch, version) != (view.epoch, view.version):
                home.joining = None
            elif name not in names:
                names.append(name)
        return [self.brokers[name] for name in names]

    def _attach(self, standby: Broker, home: Broker) -> None:
        """The copy becomes what the home's is; it knows the epoch."""
        standby.disk = list(home.disk)
        standby.memory = list(home.memory)
        standby.view = home.view

    def _commit(self) -> None:
        command = self.log.pop(0)
        before = self.group()
        self.machine.feed(command)
        self._check_appointment(before, isinstance(command, TransferHome))
        self.root.state_changed()

    def _check_appointment(self, before: Group, handed_over: bool) -> None:
        group = self.group()
        if (group.epoch, group.incarnation) == self.appointed or not group.home:
            return
        self.appointed = (group.epoch, group.incarnation)
        has = self.brokers[group.home].disk
        lost = [each for each in self.confirmed if each not in has]
        assert not lost, f"{group.home} is home in epoch {group.epoch} and lacks {lost}"
        member = before.member(group.home)
        kept = [each for each in self.transient if each in self.brokers[group.home].memory]
        whole = handed_over or (member is not None and member.copy == WHOLE)
        if whole and self._is_registered(self.brokers[group.home]):
            lost = [each for each in self.transient if each not in kept]
            assert not lost, f"{group.home} lacks the transient {lost}"
        self.transient = kept

    # --- what happens

    @initialize()
    def begin(self) -> None:
        for broker in self.brokers.values():
            broker.view = self.group()
        self.root.became_root()

    @rule(name=BROKERS)
    def learn(self, name: str) -> None:
        if self.brokers[name].up:
            self.brokers[name].view = self.group()

    @rule()
    def commit_one(self) -> None:
        if self.log:
            self._commit()

    @rule()
    def publish_unconfirmed(self) -> None:
        home = self.home()
        if home is not None:
            self.message += 1
            home.disk.append(self.message)

    @rule(name=BROKERS)
    def confirm(self, name: str) -> None:
        """Any broker that thinks that it is home tries, leases or not."""
        home = self.brokers[name]
        if not self._is_home(home):
            return
        standbys = self._waits_for(home)
        if all(self._answers(each, home) for each in standbys):
            self.message += 1
            home.disk.append(self.message)
            for each in standbys:
                self._attach(each, home)
            self.confirmed += [each for each in home.disk if each not in self.confirmed]

    @rule(name=BROKERS)
    def confirm_transient(self, name: str) -> None:
        """Only with members that are whole, in the incarnations that answer (G2)."""
        home = self.brokers[name]
        if not self._is_home(home):
            return
        standbys = self._waits_for(home)
        view = home.view
        assert view is not None
        for each in standbys:
            whole = view.member(each.name) is None or view.is_whole(each.name, each.incarnation)
            if not whole or not self._answers(each, home):
                return
        self.message += 1
        home.memory.append(self.message)
        for each in standbys:
            self._attach(each, home)
        self.transient += [each for each in home.memory if each not in self.transient]

    @rule(name=BROKERS)
    def add_member(self, name: str) -> None:
        """A home brings a copy up to date, waits for it from now on, and asks (G4)."""
        home = self.home()
        standby = self.brokers[name]
        if home is None or standby is home or not self._answers(standby, home):
            return
        self._waits_for(home)
        view = home.view
        assert view is not None
        if home.joining is not None:
            return
        self._attach(standby, home)
        home.joining = (name, view.epoch, view.version)
        member = Member(name, standby.incarnation, WHOLE)
        others = tuple(each for each in view.in_sync if each.broker != name)
        self.log.append(SetInSync(GROUP, (*others, member), view.epoch, view.version))

    @rule(name=BROKERS)
    def remove_member(self, name: str) -> None:
        home = self.home()
        if home is None or home.view is None or home.view.member(name) is None:
            return
        view = home.view
        members = tuple(each for each in view.in_sync if each.broker != name)
        self.log.append(SetInSync(GROUP, members, view.epoch, view.version))

    @rule(name=BROKERS, other=BROKERS)
    def cut_a_link(self, name: str, other: str) -> None:
        """For long enough to move groups; or, of a broker with itself, mend what was cut."""
        self.cut = {name, other} if name != other else set()

    @rule(name=st.sampled_from(("", *NAMES)))
    def fill_a_disk(self, name: str) -> None:
        self.full = name

    @rule()
    def transfer(self) -> None:
        """A home hands over to whom the state names, once that one has everything (G11)."""
        home = self.home()
        if home is None or home.view is None or not home.view.moving_to:
            return
        successor = self.brokers[home.view.moving_to]
        member = home.view.member(successor.name)
        if not self._answers(successor, home):
            return
        if member is None or member.copy != WHOLE:
            self.add_member(successor.name)
            return
        self._attach(successor, home)
        view = home.view
        self.log.append(
            TransferHome(GROUP, successor.name, member.incarnation, view.epoch, view.version)
        )

    @rule(name=BROKERS)
    def crash(self, name: str) -> None:
        if name == self.root.lease_holders.me:
            self.root.resigned()
        self.brokers[name].up = False
        self.brokers[name].memory = []
        self.brokers[name].view = None
        self.brokers[name].joining = None

    @rule(name=BROKERS)
    def restart(self, name: str) -> None:
        broker = self.brokers[name]
        if not broker.up:
            broker.up = True
            broker.start += 1
            self.log.append(register(name, broker.incarnation))

    @rule(name=BROKERS)
    def lease_over(self, name: str) -> None:
        """Even of a home that goes on: what is safe doesn't depend on leases."""
        registered = self.machine.state.registry.get(name).incarnation
        if name != self.root.lease_holders.me:
            self.root.lease_over(name, registered)

    @rule(name=BROKERS)
    def lease_live(self, name: str) -> None:
        broker = self.brokers[name]
        registered = self.machine.state.registry.get(name).incarnation
        if name != self.root.lease_holders.me and broker.up and registered == broker.incarnation:
            self.root.lease_live(name, registered)

    @rule(name=BROKERS)
    def elect(self, name: str) -> None:
        """Another root; what the last one proposed stays in the log."""
        if self.brokers[name].up:
            self.root.resigned()
            self.root = self.make_root(name)
            self.root.became_root()

    @rule(name=BROKERS, draining=st.booleans())
    def drain(self, name: str, draining: bool) -> None:
        self.log.append(SetDraining(name, draining))

    @rule(ms=st.sampled_from([100, 600, 1_500]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.root.tick(self.now_ms)

    @precondition(lambda self: bool(self.asked))
    @rule()
    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for name, groups in asked:
            broker = self.brokers[name]
            if broker.up:
                for group in groups:
                    last = max(broker.disk, default=0)
                    self.root.copy_progresses(name, {group: CopyProgress(1, last)})

    # --- in the end

    @rule()
    def quiet(self) -> None:
        """All that is known becomes true, and what is under way happens."""
        if not self.root.is_root:
            return
        for _ in range(12):
            while self.log:
                self._commit()
            self._tell_leases()
            self.answer()
            for name in NAMES:
                self.learn(name)
            self.transfer()
            self.wait(600)
        while self.log:
            self._commit()
        if self._eligible():
            assert self._serves(), (self.group(), self._eligible())

    def _tell_leases(self) -> None:
        for broker in self.brokers.values():
            registered = self.machine.state.registry.get(broker.name).incarnation
            if broker.name == self.root.lease_holders.me:
                continue
            if broker.up and registered == broker.incarnation:
                self.root.lease_live(broker.name, registered)
            else:
                self.root.lease_over(broker.name, registered)

    def _is_registered(self, broker: Broker) -> bool:
        registered = self.machine.state.registry.get(broker.name).incarnation
        return broker.up and registered == broker.incarnation

    def _eligible(self) -> list[str]:
        group = self.group()
        names = [member.broker for member in group.in_sync] + [group.home]
        return [name for name in names if self._is_registered(self.brokers[name])]

    def _serves(self) -> bool:
        group = self.group()
        home = self.brokers[group.home]
        return self._is_registered(home) and home.incarnation == group.incarnation

    @invariant()
    def members_have_what_was_confirmed(self) -> None:
        """Whoever could be appointed has everything (G4): else it is a matter of luck."""
        for member in self.group().in_sync:
            disk = self.brokers[member.broker].disk
            lost = [each for each in self.confirmed if each not in disk]
            assert not lost, f"{member.broker} is in sync and lacks {lost}"

    @invariant()
    def copies_are_whole_or_disk(self) -> None:
        for member in self.group().in_sync:
            assert member.copy in (WHOLE, DISK)
            record = self.machine.state.registry.get(member.broker)
            assert member.incarnation == record.incarnation
