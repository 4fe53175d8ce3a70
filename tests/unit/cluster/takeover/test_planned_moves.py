"""Homes that move though nothing failed (G11): drain, fail-back, the home that follows the root."""

from __future__ import annotations

import pytest

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
from rhizome.cluster.takeover.lease_holders import LAPSES_FORGOTTEN_MS
from rhizome.cluster.takeover.planned_moves import (
    CALM_DOUBLINGS_MAX,
    CALM_MS,
    HAND_OVER_EVERY_MS,
    IDLE_RECORDS_PER_S_MAX,
    WATCH_MS,
)
from rhizome.cluster.takeover.settings import EAGER, IDLE, OFF, RootSettings
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


# --- fail-back


def displaced(rebalance: str) -> Stage:
    """b2 was away and is back; its group is at b3, with b4 as standby."""
    stage = four(rebalance=rebalance)
    stage.over("b2")
    stage.sync(2, "b4")
    stage.restart("b2", 2)
    stage.sync(1, "b2")
    return stage


def pass_time(stage: Stage, ms: int, records_per_s: int = 0) -> None:
    index = stage.port.records.get(2, 0)
    began_ms = stage.now_ms
    for _ in range(0, ms, 500):
        stage.port.records[2] = index + (stage.now_ms - began_ms) * records_per_s // 1000
        stage.wait(500)


def test_group_goes_back_when_its_broker_is_back_and_it_is_idle() -> None:
    stage = displaced(IDLE)
    pass_time(stage, CALM_MS[IDLE] - 1_000)
    assert plans(stage) == {}
    pass_time(stage, 2 * WATCH_MS)
    assert plans(stage) == {2: "b2"}
    hand_over(stage, 2)
    assert stage.home(2) == ("b2", "b2.2", 3)
    stage.wait(500)
    assert [name for name, _ in stage.names(2)] == ["b3"]


def lapse(stage: Stage) -> None:
    """b2 is away for a moment, and comes back as it was."""
    stage.over("b2")
    stage.live("b2")


def test_group_goes_back_later_to_a_broker_that_was_away_and_lived_on() -> None:
    stage = displaced(EAGER)
    lapse(stage)
    lapse(stage)
    pass_time(stage, 4 * CALM_MS[EAGER] - 500)
    assert plans(stage) == {}
    pass_time(stage, 1_000)
    assert plans(stage) == {2: "b2"}


def test_lapses_are_known_to_the_next_root_and_forgotten_in_time() -> None:
    stage = displaced(EAGER)
    for _ in range(2 * CALM_DOUBLINGS_MAX):
        lapse(stage)
    stage.root.resigned()
    stage.elect("b2", "b3", "b4")
    pass_time(stage, (CALM_MS[EAGER] << CALM_DOUBLINGS_MAX) - 500)
    assert plans(stage) == {}
    pass_time(stage, 1_000)
    assert plans(stage) == {2: "b2"}
    assert stage.root.lease_holders.lapses("b2", stage.now_ms) == 2 * CALM_DOUBLINGS_MAX
    assert stage.root.lease_holders.lapses("b2", stage.now_ms + LAPSES_FORGOTTEN_MS) == 0


def test_restarts_are_no_lapses() -> None:
    stage = displaced(EAGER)
    stage.restart("b2", 3)
    stage.restart("b2", 4)
    pass_time(stage, CALM_MS[EAGER])
    assert plans(stage) == {2: "b2"}


def test_busy_group_stays_where_it_is() -> None:
    stage = displaced(IDLE)
    pass_time(stage, 3 * CALM_MS[IDLE], records_per_s=2 * IDLE_RECORDS_PER_S_MAX)
    assert plans(stage) == {}


def test_group_of_which_nothing_is_heard_stays_where_it_is() -> None:
    stage = displaced(IDLE)
    stage.wait(3 * CALM_MS[IDLE])
    assert plans(stage) == {}


def test_eager_group_goes_back_though_it_is_busy() -> None:
    stage = displaced(EAGER)
    pass_time(stage, CALM_MS[EAGER], records_per_s=10_000)
    assert plans(stage) == {2: "b2"}


def test_groups_stay_where_they_are_if_told_so() -> None:
    stage = displaced(OFF)
    pass_time(stage, 60_000)
    assert plans(stage) == {}
    assert stage.root.deadline_ms() > stage.now_ms + 60_000


@pytest.mark.parametrize("trouble", ["draining", "no copy", "another group without a home"])
def test_group_does_not_go_back_while_that_would_be_unwise(trouble: str) -> None:
    stage = displaced(EAGER)
    if trouble == "draining":
        stage.do(SetDraining("b2", True))
    elif trouble == "no copy":
        stage.sync(2)
    else:
        stage.sync(4)
        stage.over("b4")
        stage.sync(2, "b1")
    pass_time(stage, 2 * CALM_MS[EAGER])
    assert 2 not in plans(stage)


def test_one_group_goes_back_at_a_time() -> None:
    stage = four(rebalance=EAGER)
    stage.over("b2")
    stage.sync(2, "b4")
    stage.over("b3")
    stage.sync(3, "b1")
    assert (stage.home(2)[0], stage.home(3)[0]) == ("b4", "b4")
    stage.sync(2, "b1")
    stage.restart("b2", 2)
    stage.restart("b3", 2)
    stage.sync(1, "b2")
    pass_time(stage, 2 * CALM_MS[EAGER])
    assert len(plans(stage)) == 1
