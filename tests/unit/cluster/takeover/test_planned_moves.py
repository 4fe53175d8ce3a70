"""Homes that move though nothing failed (G11): drain, and the home that follows the root."""

from __future__ import annotations

from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.cluster.state.cluster_commands import (
    DISK,
    ROOT,
    WHOLE,
    PlanMove,
    PutSettings,
    SetAway,
    SetDraining,
    TransferHome,
)
from rhizome.cluster.takeover.planned_moves import HAND_OVER_EVERY_MS
from rhizome.cluster.takeover.settings import OFF, RootSettings
from tests.unit.cluster.takeover.root_stage import Stage


def four(me: str = "b1", rebalance: str = OFF) -> Stage:
    """Group N at bN, with the next broker as its standby."""
    names = ("b1", "b2", "b3", "b4")
    stage = Stage(*names, me=me, settings=RootSettings(rebalance=rebalance))
    stage.elect(*(name for name in names if name != me))
    for number, standby in ((1, "b2"), (2, "b3"), (3, "b4"), (4, "b1")):
        stage.sync(number, standby)
    return stage


def hand_over(stage: Stage, number: int) -> None:
    """The home does what was planned."""
    group = stage.group(number)
    target = stage.state.registry.get(group.moving_to)
    if not group.is_whole(target.name, target.incarnation):
        names = [each.broker for each in group.in_sync]
        stage.sync(number, *names, target.name)
        group = stage.group(number)
    stage.do(TransferHome(number, target.name, target.incarnation, group.epoch, group.version))


def plans(stage: Stage) -> dict[int, str]:
    groups = stage.state.groups.groups.values()
    return {group.id: group.moving_to for group in groups if group.moving_to}


# --- drain


def test_homes_of_a_draining_broker_go_to_whole_members() -> None:
    stage = four()
    stage.do(SetDraining("b2", True))
    assert plans(stage) == {2: "b3"}
    hand_over(stage, 2)
    assert stage.home(2) == ("b3", "b3.1", 2)
    assert plans(stage) == {}


def test_without_a_whole_member_somebody_gets_a_copy_first() -> None:
    stage = four()
    stage.sync(2)
    stage.do(SetDraining("b2", True))
    assert plans(stage) == {2: "b3"}


def test_with_one_copy_a_draining_home_still_finds_somebody() -> None:
    stage = Stage("b1", "b2", "b3").elect("b2", "b3")
    stage.do(PutSettings("spread", 1, "ring", 1 << 20))
    stage.do(SetDraining("b2", True))
    assert plans(stage) == {2: "b1"}


def test_draining_broker_is_let_go_as_a_member_when_others_are_whole() -> None:
    stage = four()
    stage.do(SetDraining("b2", True))
    assert stage.names(1) == [("b2", WHOLE)]
    assert stage.group(1).failover == ("b3",)
    stage.sync(1, "b2", "b3")
    assert stage.names(1) == [("b3", WHOLE)]


def test_member_is_not_let_go_before_another_is_whole() -> None:
    stage = four()
    stage.do(SetDraining("b2", True))
    stage.sync(1, "b2", "b3", copy=DISK)
    assert stage.names(1) == [("b2", DISK), ("b3", DISK)]


def test_old_home_is_let_go_when_the_new_one_has_its_standby() -> None:
    stage = four()
    stage.do(SetDraining("b2", True))
    hand_over(stage, 2)
    assert stage.names(2) == [("b2", WHOLE)]
    stage.sync(2, "b2", "b4")
    assert stage.names(2) == [("b4", WHOLE)]


def test_member_is_not_let_go_if_too_few_would_be_left() -> None:
    """G10: publishers would be blocked by a drain."""
    stage = Stage("b1", "b2", "b3").elect("b2", "b3")
    stage.do(PutSettings("spread", 3, "ring", 1 << 20, 3))
    stage.sync(1, "b2", "b3")
    stage.do(SetDraining("b2", True))
    stage.wait(500)
    assert len(stage.names(1)) == 2


def test_last_other_broker_that_drains_is_let_go() -> None:
    stage = Stage("b1", "b2").elect("b2")
    stage.sync(1, "b2")
    stage.do(SetDraining("b2", True))
    assert stage.names(1) == []


def test_more_members_than_wanted_are_let_go() -> None:
    stage = four()
    stage.sync(1, "b2", "b3", "b4")
    assert stage.names(1) == [("b2", WHOLE)]


def test_undrained_broker_stays_home_of_what_it_still_has() -> None:
    stage = four()
    stage.do(SetDraining("b2", True), SetDraining("b2", False))
    stage.do(PlanMove(2, "", 1))
    assert plans(stage) == {}


def test_plan_is_dropped_when_its_target_is_lost() -> None:
    stage = four()
    stage.do(PlanMove(1, "b4", 1))
    assert plans(stage) == {1: "b4"}
    stage.over("b4")
    assert plans(stage) == {}


def test_plan_is_dropped_when_its_target_drains() -> None:
    stage = four()
    stage.do(PlanMove(1, "b4", 1), SetDraining("b4", True))
    assert 1 not in plans(stage)


def test_drain_goes_on_under_a_new_root() -> None:
    stage = four()
    stage.port.has_room = False
    stage.do(SetDraining("b2", True))
    stage.port.has_room = True
    assert plans(stage) == {}
    stage.root.resigned()
    stage.elect("b2", "b3", "b4")
    assert plans(stage) == {2: "b3"}


def test_local_group_stays_with_a_draining_broker() -> None:
    stage = four()
    queue = DeclareQueue("/", "q", arguments={"x-replicate": "none", "x-group": "b2"})
    number = stage.machine.declared_group(queue)
    stage.do(SetDraining("b2", True))
    stage.wait(500)
    assert plans(stage) == {2: "b3"}
    assert stage.home(number) == ("b2", "b2.1", 1)


# --- the office


def test_draining_root_hands_over_its_office_last() -> None:
    stage = four()
    stage.do(SetDraining("b1", True))
    assert plans(stage) == {1: "b2"}
    assert stage.port.heirs == []
    hand_over(stage, 1)
    assert stage.port.heirs == ["b2"]
    stage.wait(HAND_OVER_EVERY_MS)
    assert stage.port.heirs == ["b2", "b2"]


def test_office_goes_to_nobody_who_drains_or_is_away() -> None:
    stage = four()
    stage.do(SetDraining("b2", True))
    hand_over(stage, 2)
    stage.do(SetAway("b3", "b3.1", True))
    stage.over("b3")
    stage.live("b3")
    stage.do(SetDraining("b1", True))
    hand_over(stage, 1)
    assert stage.port.heirs == ["b3"]


def test_root_that_stays_keeps_its_office() -> None:
    stage = four()
    stage.wait(500)
    assert stage.port.heirs == []


# --- the home follows the root (R14)


def rooted(me: str) -> Stage:
    """One group; its home is b1, and b2 is its standby."""
    stage = Stage("b1", "b2", "b3", me=me)
    stage.do(PutSettings(ROOT, 2, "ring", 1 << 20))
    stage.sync(1, "b2")
    stage.elect(*(name for name in ("b1", "b2", "b3") if name != me))
    return stage


def test_group_moves_to_a_root_that_is_in_sync() -> None:
    stage = rooted("b2")
    assert plans(stage) == {1: "b2"}
    assert stage.port.heirs == []


def test_root_that_is_not_in_sync_hands_its_office_to_the_home() -> None:
    stage = rooted("b3")
    assert plans(stage) == {}
    assert stage.port.heirs == ["b1"]


def test_root_at_home_stays() -> None:
    stage = rooted("b1")
    assert plans(stage) == {}
    assert stage.port.heirs == []


def test_draining_root_hands_over_first_and_its_heir_takes_the_group_along() -> None:
    stage = rooted("b1")
    stage.do(SetDraining("b1", True))
    assert plans(stage) == {}
    assert stage.port.heirs == ["b2"]
    heir = rooted("b2")
    heir.do(SetDraining("b1", True))
    assert plans(heir) == {1: "b2"}
