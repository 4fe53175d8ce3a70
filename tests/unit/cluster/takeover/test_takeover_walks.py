"""Any sequence of crashes, restarts, leases and changes: nobody takes over who lacks something, and
somebody does who can. Each rule broken on purpose is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from rhizome.cluster.state.broker_registry import BrokerRecord, Registry
from rhizome.cluster.state.cluster_commands import WHOLE, AppointHome, TransferHome
from rhizome.cluster.state.groups_and_placement import Group, Groups
from rhizome.cluster.state.state_changes import ClusterFact
from rhizome.cluster.takeover.takeover import HomelessGroup, Takeover
from tests.unit.cluster.state.state_machines import Machine
from tests.unit.cluster.takeover.takeover_walk import GROUP, NAMES, Broker, TakeoverWalk

ENOUGH = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def run(walk: type[TakeoverWalk], how: settings) -> None:
    run_state_machine_as_test(walk, settings=how)  # type: ignore[no-untyped-call]


@pytest.mark.timeout(1200)
def test_whatever_happens_nobody_takes_over_who_lacks_something() -> None:
    run(TakeoverWalk, ENOUGH)


def stroll(seed: int, steps: int) -> None:
    """The same, without shrinking: a hundred times faster."""
    chance = Random(seed)
    walk = TakeoverWalk()
    walk.begin()
    named = [walk.learn, walk.confirm, walk.add_member, walk.remove_member, walk.lease_live]
    named += [walk.confirm_transient, walk.crash, walk.restart, walk.lease_over, walk.elect]
    others = [walk.commit_one, walk.publish_unconfirmed, walk.transfer, walk.answer, walk.quiet]
    for _ in range(steps):
        kind = chance.random()
        if kind < 0.6:
            chance.choice(named)(chance.choice(NAMES))
        elif kind < 0.9:
            chance.choice(others)()
        elif kind < 0.95:
            walk.wait(chance.choice((100, 600, 1_500)))
        else:
            walk.drain(chance.choice(NAMES), chance.random() < 0.5)
        check(walk)


def test_many_short_strolls() -> None:
    for seed in range(150):
        stroll(seed, 80)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_very_many_strolls() -> None:
    for seed in range(1_000, 4_000):
        stroll(seed, 150)


# --- each rule broken


class WithoutVersion(Groups):
    """G5 broken: changes are applied whatever happened to the set since."""

    def _unchanged(self, group_id: int, epoch: int, version: int) -> Group:
        group = self._get(group_id)
        return super()._unchanged(group_id, epoch, group.version)


class WithoutEpoch(Groups):
    """G5 broken: changes of an earlier epoch are applied."""

    def _unchanged(self, group_id: int, epoch: int, version: int) -> Group:
        group = self._get(group_id)
        return super()._unchanged(group_id, group.epoch, version)


class ForAnybody(Groups):
    """G3 broken: whoever is proposed becomes home."""

    def appoint(self, command: AppointHome, registry: Registry, facts: list[ClusterFact]) -> None:
        group = self._get(command.group)
        if group.member(command.broker) is None and group.home != command.broker:
            broker = registry.check_current(command.broker, command.incarnation)
            self._restart_at(group, broker, facts)
        else:
            super().appoint(command, registry, facts)

    def _restart_at(self, group: Group, broker: BrokerRecord, facts: list[ClusterFact]) -> None:
        self._put(
            Group(
                group.id,
                group.origin,
                broker.name,
                broker.incarnation,
                group.epoch + 1,
                group.version + 1,
                copies=group.copies,
                parent=group.epoch,
            ),
            facts,
        )


class Forgetful(Groups):
    """G2 broken: a restarted member counts as whole."""

    def restarted(self, broker: BrokerRecord, facts: list[ClusterFact]) -> None:
        super().restarted(broker, facts)
        for group in list(self.groups.values()):
            members = tuple(replace(each, copy=WHOLE) for each in group.in_sync)
            self._put(replace(group, in_sync=members), facts)


class Careless(Groups):
    """G11 broken: a group is handed to a member that has only what was on disk."""

    def transfer(self, command: TransferHome, registry: Registry, facts: list[ClusterFact]) -> None:
        group = self._get(command.group)
        members = tuple(replace(each, copy=WHOLE) for each in group.in_sync)
        self._put(replace(group, in_sync=members), facts)
        super().transfer(command, registry, facts)


class Reckless(Takeover):
    """Appoints whoever is there."""

    def _choose_whole(self, group: Group, homeless: HomelessGroup) -> BrokerRecord | None:
        here = [each for each in self.state.registry.view() if self.lease_holders.is_here(each)]
        return here[-1] if here else None


class Lazy(Takeover):
    """G3 broken the other way: nobody takes over with what is on disk."""

    def _choose_disk(self, group: Group, homeless: HomelessGroup) -> BrokerRecord | None:
        return None


def broken_state(kind: type[Groups]) -> Machine:
    machine = TakeoverWalk.make_machine()
    groups = kind()
    groups.take_in(machine.state.groups.groups.values())
    groups.next_id = machine.state.groups.next_id
    machine.state.groups = groups
    return machine


def begun(walk: TakeoverWalk) -> TakeoverWalk:
    """b1 is root, b2 the home, b3 in sync; one message is confirmed."""
    walk.begin()
    for name in ("b2", "b3", "b4"):
        walk.lease_live(name)
    walk.add_member("b3")
    settle(walk)
    walk.confirm("b2")
    assert walk.confirmed
    return walk


def settle(walk: TakeoverWalk) -> None:
    while walk.log:
        walk.commit_one()
    for name in NAMES:
        walk.learn(name)
    check(walk)


def check(walk: TakeoverWalk) -> None:
    walk.members_have_what_was_confirmed()
    walk.copies_are_whole_or_disk()


def set_changes_twice(walk: TakeoverWalk) -> None:
    """The home asks for two changes at once; b3 leaves, and the other one would bring it back."""
    begun(walk)
    walk.remove_member("b3")
    walk.add_member("b4")
    walk.commit_one()
    walk.learn("b2")
    walk.confirm("b2")
    settle(walk)


def set_changes_after_a_restart(walk: TakeoverWalk) -> None:
    """What the home asked for before its crash comes into the log after it is home again."""
    walk.begin()
    walk.add_member("b3")
    walk.crash("b2")
    walk.restart("b2")
    walk.log.reverse()
    walk.commit_one()
    walk.learn("b2")
    walk.confirm("b2")
    settle(walk)


def home_is_lost(walk: TakeoverWalk) -> None:
    begun(walk)
    walk.crash("b2")
    walk.lease_over("b2")
    settle(walk)
    walk.quiet()


def member_is_added_while_messages_come(walk: TakeoverWalk) -> None:
    begun(walk)
    walk.add_member("b4")
    walk.confirm("b2")
    settle(walk)


def all_restart(walk: TakeoverWalk) -> None:
    begun(walk)
    for name in NAMES:
        walk.crash(name)
        walk.restart(name)
    settle(walk)
    walk.elect("b4")
    walk.quiet()


def standby_restarts(walk: TakeoverWalk) -> None:
    begun(walk)
    walk.confirm_transient("b2")
    assert walk.transient
    walk.crash("b3")
    walk.restart("b3")
    settle(walk)
    walk.crash("b2")
    walk.quiet()
    assert walk.group().home == "b3"


def group_moves_to_a_copy_on_disk(walk: TakeoverWalk) -> None:
    begun(walk)
    walk.confirm_transient("b2")
    walk.crash("b3")
    walk.restart("b3")
    settle(walk)
    group = walk.group()
    walk.log.append(TransferHome(GROUP, "b3", "b3.2", group.epoch, group.version))
    settle(walk)


class WalkThatForgets(TakeoverWalk):
    make_machine = staticmethod(lambda: broken_state(Forgetful))


class WalkWithoutCare(TakeoverWalk):
    make_machine = staticmethod(lambda: broken_state(Careless))


class WalkWithoutVersion(TakeoverWalk):
    make_machine = staticmethod(lambda: broken_state(WithoutVersion))


class WalkWithoutEpoch(TakeoverWalk):
    make_machine = staticmethod(lambda: broken_state(WithoutEpoch))


class WalkForAnybody(TakeoverWalk):
    make_machine = staticmethod(lambda: broken_state(ForAnybody))
    root_kind = Reckless


class WalkWithoutDisks(TakeoverWalk):
    root_kind = Lazy


class WalkWithoutWaiting(TakeoverWalk):
    """G4 broken: a home asks to add a member, and goes on without waiting for it."""

    def _waits_for(self, home: Broker) -> list[Broker]:
        assert home.view is not None
        home.joining = None
        return [self.brokers[member.broker] for member in home.view.in_sync]


Story = Callable[[TakeoverWalk], None]


@pytest.mark.parametrize(
    ("story", "broken", "said"),
    [
        (set_changes_twice, WalkWithoutVersion, "b3 is in sync and lacks"),
        (set_changes_after_a_restart, WalkWithoutEpoch, "b3 is in sync and lacks"),
        (home_is_lost, WalkForAnybody, "b4 is home in epoch 2 and lacks"),
        (member_is_added_while_messages_come, WalkWithoutWaiting, "b4 is in sync and lacks"),
        (all_restart, WalkWithoutDisks, "Group"),
        (standby_restarts, WalkThatForgets, "b3 lacks the transient"),
        (
            group_moves_to_a_copy_on_disk,
            WalkWithoutCare,
            "b3 lacks the transient",
        ),
    ],
)
def test_broken_rule_is_caught(story: Story, broken: type[TakeoverWalk], said: str) -> None:
    story(TakeoverWalk())
    with pytest.raises(AssertionError, match=said):
        story(broken())
