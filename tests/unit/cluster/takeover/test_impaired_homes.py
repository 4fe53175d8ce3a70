"""Homes that live and can't serve everybody: two brokers without a link, a full disk."""

from __future__ import annotations

import pytest

from rhizome.cluster.link.broker_hello import SECONDARY
from rhizome.cluster.state.cluster_commands import ROOT, PutSettings, SetDraining, TransferHome
from rhizome.cluster.takeover.home_balance import CALM_MS
from rhizome.cluster.takeover.impaired_homes import (
    COPY_PATIENCE_TIMES,
    LOOK_EVERY_MS,
    OFFICE_PATIENCE_TIMES,
)
from rhizome.cluster.takeover.planned_moves import HAND_OVER_EVERY_MS
from rhizome.cluster.takeover.settings import EAGER, OFF, RootSettings
from tests.unit.cluster.state.state_machines import register
from tests.unit.cluster.takeover.root_stage import Stage

PATIENCE_MS = RootSettings().unlinked_patience_ms
DISK_PATIENCE_MS = RootSettings().full_disk_patience_ms
SOON_MS = 2 * LOOK_EVERY_MS


def four(me: str = "b1", **settings: object) -> Stage:
    """Group N at bN, with the next broker as its standby."""
    names = ("b1", "b2", "b3", "b4")
    chosen = RootSettings(**{"rebalance": OFF, **settings})  # type: ignore[arg-type]
    stage = Stage(*names, me=me, settings=chosen)
    stage.elect(*(name for name in names if name != me))
    for number, standby in ((1, "b2"), (2, "b3"), (3, "b4"), (4, "b1")):
        stage.sync(number, standby)
    stage.wait(SOON_MS)
    return stage


def hand_over(stage: Stage, number: int) -> None:
    group = stage.group(number)
    target = stage.state.registry.get(group.moving_to)
    if not group.is_whole(target.name, target.incarnation):
        stage.sync(number, target.name)
        group = stage.group(number)
    stage.do(TransferHome(number, target.name, target.incarnation, group.epoch, group.version))


def plans(stage: Stage) -> dict[int, str]:
    groups = stage.state.groups.groups.values()
    return {group.id: group.moving_to for group in groups if group.moving_to}


# --- links


def test_groups_of_two_brokers_that_cannot_reach_each_other_move_to_whole_members() -> None:
    stage = four()
    stage.port.cuts = [("b2", "b4")]
    stage.wait(PATIENCE_MS - SOON_MS)
    assert plans(stage) == {}
    stage.wait(2 * SOON_MS)
    assert plans(stage) == {2: "b3", 4: "b1"}
    hand_over(stage, 2)
    hand_over(stage, 4)
    stage.wait(10_000)
    assert plans(stage) == {}
    assert (stage.home(2)[0], stage.home(4)[0]) == ("b3", "b1")


def test_log_says_why_a_group_moves() -> None:
    stage = four()
    stage.port.cuts = [("b2", "b4")]
    stage.wait(PATIENCE_MS + SOON_MS)
    assert stage.port.reports == [
        "b2 and b4 can't reach each other",
        "b2 and b4 can't reach each other: group 2 moves to b3",
        "b2 and b4 can't reach each other: group 4 moves to b1",
    ]
    assert stage.root.moves.impaired_homes.notices(stage.now_ms) == [
        "b2 and b4 can't reach each other: group 2 moves to b3",
        "b2 and b4 can't reach each other: group 4 moves to b1",
    ]


def test_link_that_is_down_for_a_moment_again_and_again_moves_nothing() -> None:
    stage = four()
    for _ in range(10):
        stage.port.cuts = [("b2", "b4")]
        stage.wait(PATIENCE_MS - SOON_MS)
        stage.port.cuts = []
        stage.wait(SOON_MS)
    assert not any(
        group.epoch > 1 or group.moving_to for group in stage.state.groups.groups.values()
    )


def test_move_is_called_off_when_the_link_is_back_before_it_was_made() -> None:
    stage = four()
    stage.port.cuts = [("b2", "b4")]
    stage.wait(PATIENCE_MS + SOON_MS)
    assert plans(stage) == {2: "b3", 4: "b1"}
    stage.port.cuts = []
    stage.wait(SOON_MS)
    assert plans(stage) == {}


def test_move_that_a_person_has_ordered_is_not_called_off() -> None:
    stage = four()
    stage.do(SetDraining("b2", True))
    stage.port.cuts = [("b2", "b4")]
    stage.wait(PATIENCE_MS + SOON_MS)
    stage.port.cuts = []
    stage.wait(SOON_MS)
    assert plans(stage) == {2: "b3"}


def test_group_is_copied_only_if_the_link_stays_down_for_longer() -> None:
    stage = four()
    stage.port.cuts = [("b2", "b3")]
    stage.sync(2)
    stage.wait(PATIENCE_MS + SOON_MS)
    assert plans(stage) == {3: "b4"}
    hand_over(stage, 3)
    stage.wait((COPY_PATIENCE_TIMES - 1) * PATIENCE_MS + SOON_MS)
    assert plans(stage) == {2: "b1"}


def test_secondary_that_cannot_reach_a_home_counts() -> None:
    stage = four()
    stage.do(register("s1", "s1.1", role=SECONDARY))
    stage.live("s1")
    stage.port.cuts = [("b2", "s1")]
    stage.wait(PATIENCE_MS + SOON_MS)
    assert plans(stage) == {2: "b3"}


def test_secondaries_need_no_links_with_each_other() -> None:
    stage = four()
    for name in ("s1", "s2"):
        stage.do(register(name, f"{name}.1", role=SECONDARY))
        stage.live(name)
    stage.port.cuts = [("s1", "s2")]
    stage.wait(PATIENCE_MS + SOON_MS)
    assert plans(stage) == {}
    assert stage.root.moves.impaired_homes.notices(stage.now_ms) == []


def test_edge_that_lacks_most_links_moves_nobody_but_its_own_group() -> None:
    """Else every group would go to the root, the only broker that it reaches."""
    stage = four()
    stage.port.cuts = [("b2", "b4"), ("b3", "b4")]
    stage.wait(COPY_PATIENCE_TIMES * PATIENCE_MS + SOON_MS)
    assert plans(stage) == {4: "b1"}
    told = stage.root.moves.impaired_homes.notices(stage.now_ms)
    assert told[-1].startswith("b4 can't reach b2, b3: its clients wait for queues there")


def test_where_nobody_reaches_everybody_groups_stay_and_people_are_told() -> None:
    stage = Stage("b1", "b2", "b3", "b4", "b5", me="b1", settings=RootSettings(rebalance=OFF))
    stage.elect("b2", "b3", "b4", "b5")
    for number in range(2, 6):
        stage.sync(number, f"b{number % 5 + 1}")
    stage.do(SetDraining("b1", True))
    for number in plans(stage):
        hand_over(stage, number)
    stage.port.cuts = [("b2", "b4"), ("b3", "b5")]
    before = [stage.home(number)[0] for number in range(1, 6)]
    stage.wait(5 * PATIENCE_MS)
    assert [stage.home(number)[0] for number in range(1, 6)] == before
    assert plans(stage) == {}
    told = stage.root.moves.impaired_homes.notices(stage.now_ms)
    assert any("b2 and b4 can't reach each other" in each and "stay" in each for each in told)


def test_nothing_moves_while_a_group_has_no_home() -> None:
    stage = four()
    stage.sync(3)
    stage.over("b3")
    stage.port.cuts = [("b2", "b4")]
    stage.wait(5 * PATIENCE_MS)
    assert plans(stage) == {}


def test_brokers_that_do_not_tell_of_links_are_left_alone() -> None:
    stage = four()
    stage.port.silent = ["b2", "b4"]
    stage.port.cuts = [("b2", "b4")]
    stage.wait(5 * PATIENCE_MS)
    assert plans(stage) == {}


def test_patience_of_none_switches_it_off() -> None:
    stage = four(unlinked_patience_ms=0, full_disk_patience_ms=0)
    stage.port.cuts = [("b2", "b4")]
    stage.port.full = ["b3"]
    stage.wait(20_000)
    assert plans(stage) == {}


def test_group_goes_back_only_when_the_link_has_been_there_for_a_while() -> None:
    stage = four(rebalance=EAGER)
    stage.port.cuts = [("b2", "b4")]
    stage.wait(PATIENCE_MS + SOON_MS)
    hand_over(stage, 2)
    stage.sync(2, "b2")
    stage.wait(30_000)
    assert stage.group(2).home == "b3"
    assert not stage.group(2).moving_to
    stage.port.cuts = []
    stage.wait(2 * CALM_MS[EAGER] - SOON_MS)
    assert not stage.group(2).moving_to, "one lapse doubles the time"
    stage.wait(2 * SOON_MS)
    assert stage.group(2).moving_to == "b2"


def test_time_for_which_the_root_stood_still_is_no_trouble_of_others() -> None:
    stage = four()
    stage.port.cuts = [("b2", "b4")]
    stage.wait(SOON_MS)
    stage.now_ms += 5_000
    stage.root.begin(stage.now_ms)
    stage.root.stood_still(5_000)
    stage.wait(50)
    assert plans(stage) == {}


# --- the root itself


def test_root_that_a_live_broker_cannot_reach_hands_over_to_one_that_reaches_all() -> None:
    stage = four()
    stage.port.cuts = [("b1", "b3")]
    stage.over("b3")
    stage.wait(OFFICE_PATIENCE_TIMES * PATIENCE_MS - SOON_MS)
    assert stage.port.heirs == []
    stage.wait(2 * SOON_MS)
    assert stage.port.heirs == ["b2"]


def test_office_goes_to_nobody_who_lacks_a_link_too() -> None:
    stage = four()
    stage.port.cuts = [("b1", "b3"), ("b2", "b4")]
    stage.over("b3")
    stage.wait(OFFICE_PATIENCE_TIMES * PATIENCE_MS + HAND_OVER_EVERY_MS)
    assert stage.port.heirs == []


def test_dead_broker_is_no_reason_to_hand_over() -> None:
    stage = four()
    stage.port.cuts = [("b1", "b3"), ("b2", "b3"), ("b4", "b3")]
    stage.over("b3")
    stage.wait(OFFICE_PATIENCE_TIMES * PATIENCE_MS + HAND_OVER_EVERY_MS)
    assert stage.port.heirs == []


def test_broker_that_is_linked_and_has_no_lease_is_no_reason_to_hand_over() -> None:
    stage = four()
    stage.over("b3")
    stage.wait(OFFICE_PATIENCE_TIMES * PATIENCE_MS + HAND_OVER_EVERY_MS)
    assert stage.port.heirs == []


# --- disks


def test_groups_of_a_full_disk_move_to_a_whole_member_with_room() -> None:
    stage = four()
    stage.port.full = ["b2"]
    stage.wait(DISK_PATIENCE_MS - SOON_MS)
    assert plans(stage) == {}
    stage.wait(2 * SOON_MS)
    assert plans(stage) == {2: "b3"}
    assert stage.port.reports[-1] == "the disk of b2 is full: group 2 moves to b3"


@pytest.mark.parametrize("others", [["b3"], ["b1", "b3", "b4"]])
def test_group_stays_where_no_whole_member_has_room(others: list[str]) -> None:
    stage = four()
    stage.port.full = ["b2", *others]
    stage.wait(20_000)
    assert 2 not in plans(stage)
    told = stage.root.moves.impaired_homes.notices(stage.now_ms)
    assert any(each.startswith("the disk of b2 is full: group 2 stays on b2") for each in told)


def test_group_without_a_copy_stays_on_a_full_disk() -> None:
    stage = four()
    stage.sync(2)
    stage.port.full = ["b2"]
    stage.wait(20_000)
    assert plans(stage) == {}


def test_group_goes_back_when_there_has_been_room_for_a_while() -> None:
    stage = four(rebalance=EAGER)
    stage.port.full = ["b2"]
    stage.wait(DISK_PATIENCE_MS + SOON_MS)
    hand_over(stage, 2)
    stage.sync(2, "b2")
    stage.wait(30_000)
    assert plans(stage) == {}
    stage.port.full = []
    stage.wait(SOON_MS)
    assert plans(stage) == {}
    stage.wait(2 * CALM_MS[EAGER])
    assert plans(stage) == {2: "b2"}


def test_where_homes_follow_the_root_a_full_root_hands_over_its_office() -> None:
    stage = Stage("b1", "b2", "b3").elect("b2", "b3")
    stage.do(PutSettings(ROOT, 2, "ring", 1 << 20))
    stage.sync(1, "b2")
    stage.port.full = ["b1"]
    stage.wait(DISK_PATIENCE_MS - SOON_MS)
    assert stage.port.heirs == []
    stage.wait(2 * SOON_MS)
    assert stage.port.heirs == ["b2"]
