"""Homes that are spread over the brokers again after a failure (G11)."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.cluster.state.cluster_commands import PinHome, RetireBroker, SetAway, SetDraining
from rhizome.cluster.takeover.home_balance import (
    BUSY_RECORDS_PER_S,
    CALM_DOUBLINGS_MAX,
    CALM_MS,
    IDLE_RECORDS_PER_S_MAX,
    LOOK_EVERY_MS,
    PACE_MS,
    WATCH_MS,
)
from rhizome.cluster.takeover.lease_holders import LAPSES_FORGOTTEN_MS
from rhizome.cluster.takeover.settings import EAGER, IDLE, OFF, RootSettings
from tests.unit.cluster.takeover.root_stage import Stage
from tests.unit.cluster.takeover.test_planned_moves import four, hand_over, plans

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
    pass_time(stage, 500 + 2 * LOOK_EVERY_MS)
    assert plans(stage) == {2: "b2"}


def test_lapses_are_known_to_the_next_root_and_forgotten_in_time() -> None:
    stage = displaced(EAGER)
    for _ in range(2 * CALM_DOUBLINGS_MAX):
        lapse(stage)
    stage.root.resigned()
    stage.elect("b2", "b3", "b4")
    pass_time(stage, (CALM_MS[EAGER] << CALM_DOUBLINGS_MAX) - 500)
    assert plans(stage) == {}
    pass_time(stage, 500 + 2 * LOOK_EVERY_MS)
    assert plans(stage) == {2: "b2"}
    assert stage.root.lease_holders.lapses("b2", stage.now_ms) == 2 * CALM_DOUBLINGS_MAX
    assert stage.root.lease_holders.lapses("b2", stage.now_ms + LAPSES_FORGOTTEN_MS) == 0


def test_restarts_are_no_lapses() -> None:
    stage = displaced(EAGER)
    stage.restart("b2", 3)
    stage.restart("b2", 4)
    stage.sync(1, "b2")
    pass_time(stage, CALM_MS[EAGER] + LOOK_EVERY_MS)
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
    pass_time(stage, CALM_MS[EAGER] + LOOK_EVERY_MS, records_per_s=10_000)
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


def three(settings: RootSettings | None = None) -> Stage:
    """Group N at bN of three brokers; all have whole copies of everything."""
    stage = Stage("b1", "b2", "b3", settings=settings)
    stage.elect("b2", "b3")
    for number in (1, 2, 3):
        spread_copies(stage, number)
    return stage


def spread_copies(stage: Stage, number: int) -> None:
    """Whoever runs and is not home has a whole copy."""
    group, brokers = stage.group(number), stage.state.registry.brokers
    stage.sync(number, *(x for x in brokers if x != group.home and not brokers[x].away))


def lose(stage: Stage, *names: str) -> None:
    """Brokers die, and are back as standbys of everything."""
    for name in names:
        stage.over(name)
        for number in stage.state.groups.groups:
            spread_copies(stage, number)
    for name in names:
        stage.restart(name, 2)
    for number in stage.state.groups.groups:
        spread_copies(stage, number)


def homes(stage: Stage, streams: bool = False) -> list[int]:
    """How many homes each broker has, the broker with the fewest first."""
    names = [x.home for x in stage.state.groups.groups.values() if x.stream == streams]
    return sorted(names.count(each) for each in stage.state.registry.brokers)


def carry_out(stage: Stage, ms: int) -> list[int]:
    """Time passes, and homes do what is planned; when each move was planned."""
    planned = []
    for _ in range(0, ms, 100):
        stage.wait(100)
        for number in plans(stage):
            planned.append(stage.now_ms)
            hand_over(stage, number)
            spread_copies(stage, number)
    return planned


def test_homes_are_spread_again_by_default_though_all_groups_are_busy() -> None:
    stage = three()
    lose(stage, "b2", "b3")
    assert homes(stage) == [0, 0, 3]
    carry_out(stage, CALM_MS[EAGER] + 4 * PACE_MS)
    assert homes(stage) == [1, 1, 1]
    assert carry_out(stage, 60_000) == []


def test_one_group_goes_at_a_time_with_a_pause_after_each() -> None:
    stage = three()
    lose(stage, "b2", "b3")
    stage.wait(2 * CALM_MS[EAGER])
    assert len(plans(stage)) == 1
    first_ms = stage.now_ms
    for number in plans(stage):
        hand_over(stage, number)
        spread_copies(stage, number)
    (second_ms, *_) = carry_out(stage, 4 * PACE_MS)
    assert second_ms - first_ms >= PACE_MS


def test_nothing_moves_while_a_copy_of_another_group_is_catching_up() -> None:
    stage = three()
    lose(stage, "b2")
    stage.sync(3)
    assert carry_out(stage, 10 * CALM_MS[EAGER]) == []
    spread_copies(stage, 3)
    assert len(carry_out(stage, 2 * PACE_MS)) == 1


def test_nothing_moves_while_a_broker_is_drained() -> None:
    stage = three()
    lose(stage, "b2")
    assert stage.group(2).home == "b3"
    stage.do(SetDraining("b1", True))
    carry_out(stage, 10 * CALM_MS[EAGER])
    assert stage.group(2).home == "b3"
    stage.do(SetDraining("b1", False))
    carry_out(stage, 2 * CALM_MS[EAGER])
    assert homes(stage) == [1, 1, 1]


def test_copies_of_a_broker_that_is_down_are_not_waited_for() -> None:
    stage = three()
    lose(stage, "b2")
    stage.over("b3")
    stage.do(SetAway("b3", "b3.1", True))
    for number in (1, 2, 3):
        spread_copies(stage, number)
    carry_out(stage, 2 * CALM_MS[EAGER])
    assert stage.group(2).home == "b2"


# --- streams, and groups whose broker is gone: by number and by traffic


def with_streams(count: int, *at: str) -> Stage:
    """Streams at brokers in turn, copied everywhere."""
    stage = three()
    for each in range(count):
        arguments = {"x-queue-type": "stream", "x-group": at[each % len(at)]}
        stage.do(DeclareQueue("/", f"s{each}", durable=True, arguments=arguments))
    for number in stage.state.groups.groups:
        spread_copies(stage, number)
    return stage


def test_streams_are_spread_by_their_number() -> None:
    stage = with_streams(7, "b1")
    assert homes(stage, streams=True) == [0, 0, 7]
    carry_out(stage, CALM_MS[EAGER] + 10 * PACE_MS)
    assert homes(stage, streams=True) == [2, 2, 3]
    assert homes(stage) == [1, 1, 1]
    assert carry_out(stage, 60_000) == []


def test_stream_goes_to_a_whole_member_if_there_is_one_with_fewer() -> None:
    for member in ("b2", "b3"):
        stage = with_streams(4, "b1")
        for number in stage.state.groups.groups:
            if stage.group(number).stream:
                stage.sync(number, member)
        stage.wait(CALM_MS[EAGER] + PACE_MS)
        assert [*plans(stage).values()] == [member]


def traffic_of(stage: Stage, ms: int, rates: dict[int, int]) -> list[int]:
    planned = []
    for _ in range(0, ms, 500):
        for number, rate in rates.items():
            stage.port.records[number] = stage.now_ms * rate // 1000
        planned += carry_out(stage, 500)
    return planned


def test_of_several_streams_the_one_moves_that_evens_out_the_traffic() -> None:
    stage = with_streams(2, "b1")
    first, second = (x.id for x in stage.state.groups.groups.values() if x.stream)
    rates = {2: 0, 3: 0, 1: 0, first: 100, second: 9_000}
    traffic_of(stage, CALM_MS[EAGER] + 2 * PACE_MS, rates)
    assert homes(stage, streams=True) == [0, 1, 1]
    stage = with_streams(5, "b1", "b2")
    ids = [x.id for x in stage.state.groups.groups.values() if x.stream]
    at_b1 = [x for x in ids if stage.group(x).home == "b1"]
    assert (len(at_b1), homes(stage, streams=True)) == (3, [0, 2, 3])
    rates = dict.fromkeys(ids, 10)
    rates[at_b1[1]] = 9_000
    rates[at_b1[2]] = 8_000
    traffic_of(stage, CALM_MS[EAGER] + WATCH_MS, rates)
    assert stage.group(at_b1[0]).home == "b1", "the quiet one stays"


def test_the_busier_of_two_brokers_gives_a_stream_away_and_then_all_is_calm() -> None:
    stage = with_streams(4, "b1", "b2", "b3")
    ids = [x.id for x in stage.state.groups.groups.values() if x.stream]
    assert homes(stage, streams=True) == [1, 1, 2]
    rates = dict.fromkeys(ids, 0)
    for number in ids:
        rates[number] = 5 * BUSY_RECORDS_PER_S if stage.group(number).home == "b1" else 10
    assert len(traffic_of(stage, CALM_MS[EAGER] + 4 * PACE_MS, rates)) == 1
    busy = [stage.group(number).home for number in ids if rates[number] > 10]
    assert len(set(busy)) == 2
    assert traffic_of(stage, 60_000, rates) == []


def test_little_traffic_is_no_reason_to_move() -> None:
    stage = with_streams(4, "b1", "b2", "b3")
    ids = [x.id for x in stage.state.groups.groups.values() if x.stream]
    rates = {x: BUSY_RECORDS_PER_S // 3 * (stage.group(x).home == "b1") for x in ids}
    assert traffic_of(stage, 60_000, rates) == []


def test_group_of_a_broker_that_was_removed_counts_by_number() -> None:
    stage = Stage("b1", "b2", "b3", "b4")
    stage.elect("b2", "b3", "b4")
    stage.do(DeclareQueue("/", "q", arguments={"x-group": "4"}))
    stage.do(DeclareQueue("/", "r", arguments={"x-group": "3"}))
    for number in (1, 2, 3, 4):
        spread_copies(stage, number)
    for gone in ("b4", "b3"):
        stage.over(gone)
        stage.do(RetireBroker(gone))
        for number in (1, 2, 3, 4):
            spread_copies(stage, number)
    carry_out(stage, CALM_MS[EAGER] + 4 * PACE_MS)
    assert homes(stage) == [2, 2]


# --- pins


def test_group_that_a_person_moved_stays_there_until_it_is_unpinned() -> None:
    stage = three()
    stage.do(PinHome(2, "b3", 1))
    carry_out(stage, 5 * CALM_MS[EAGER])
    assert stage.group(2).home == "b3"
    group = stage.group(2)
    stage.do(PinHome(2, "", group.epoch))
    carry_out(stage, 2 * CALM_MS[EAGER])
    assert stage.group(2).home == "b2"


def test_pinned_group_goes_back_to_its_pin_after_a_takeover() -> None:
    stage = three()
    stage.do(PinHome(2, "b3", 1))
    carry_out(stage, PACE_MS)
    lose(stage, "b3")
    assert stage.group(2).home != "b3"
    carry_out(stage, CALM_MS[EAGER] + 4 * PACE_MS)
    assert [stage.group(number).home for number in (1, 2, 3)] == ["b1", "b3", "b3"]
    assert carry_out(stage, 60_000) == []


def test_pinned_stream_stays_though_its_broker_has_the_most() -> None:
    stage = with_streams(3, "b1")
    ids = [x.id for x in stage.state.groups.groups.values() if x.stream]
    for number in ids:
        stage.do(PinHome(number, "b1", stage.group(number).epoch))
    assert carry_out(stage, 60_000) == []
