"""Who becomes the home of a group whose home is gone (G3), at the root."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.cluster.consensus.settings import EXCUSES_MAX
from rhizome.cluster.state.cluster_commands import (
    DISK,
    ROOT,
    WHOLE,
    AppointHome,
    Member,
    PutSettings,
    RetireBroker,
    SetAway,
    SetDraining,
    SetInSync,
)
from rhizome.cluster.takeover.copy_progress import NO_COPY, CopyProgress
from rhizome.cluster.takeover.home_balance import WATCH_MS
from rhizome.cluster.takeover.settings import RootSettings
from rhizome.cluster.takeover.takeover import (
    ANSWER_PATIENCE_MS,
    ORDER_PATIENCE_MS,
    RETURN_PATIENCE_MS,
    preference,
)
from tests.unit.cluster.takeover.root_stage import Stage

PATIENCE_MS = RootSettings().whole_patience_ms


def three(me: str = "b1") -> Stage:
    """Three brokers; group 2, at b2, has b3 as its standby. The root is ``me``."""
    stage = Stage("b1", "b2", "b3", me=me)
    stage.elect(*(name for name in ("b1", "b2", "b3") if name != me))
    stage.sync(2, "b3")
    return stage


def appointments(stage: Stage) -> list[tuple[int, str]]:
    return [(each.group, each.broker) for each in stage.applied if isinstance(each, AppointHome)]


# --- whole members


def test_whole_member_takes_over_at_once_when_the_lease_is_over() -> None:
    stage = three()
    stage.over("b2")
    assert stage.home(2) == ("b3", "b3.1", 2)
    assert appointments(stage) == [(2, "b3")]


def test_nobody_takes_over_while_the_lease_may_be_held() -> None:
    """R9: a new root doesn't know yet; the home may be confirming at this moment."""
    stage = Stage("b1", "b2", "b3")
    stage.sync(2, "b3")
    stage.elect("b3")
    stage.wait(10 * PATIENCE_MS)
    assert stage.home(2) == ("b2", "b2.1", 1)


def test_homes_of_the_last_root_are_replaced_at_once() -> None:
    """Consensus says so when the office begins, before the first entry is committed."""
    stage = Stage("b1", "b2", "b3", me="b3")
    stage.sync(2, "b3")
    stage.root.lease_over("b2", "b2.1")
    stage.settle()
    assert stage.home(2) == ("b2", "b2.1", 1)
    stage.elect("b1")
    assert stage.home(2) == ("b3", "b3.1", 2)


def test_lease_of_an_earlier_incarnation_says_nothing() -> None:
    stage = three()
    stage.root.lease_over("b2", "b2.0")
    stage.settle()
    assert stage.home(2) == ("b2", "b2.1", 1)


def test_restarted_home_is_replaced_by_its_whole_standby() -> None:
    """G1: its epoch belongs to the incarnation that is gone."""
    stage = three()
    stage.restart("b2", 2)
    assert stage.home(2) == ("b3", "b3.1", 2)


def test_whole_members_take_over_in_the_order_of_the_failover_list() -> None:
    stage = Stage("b1", "b2", "b3", "b4")
    stage.do(PutSettings("spread", 3, "ring", 1 << 20))
    stage.elect("b2", "b3", "b4")
    stage.sync(2, "b4", "b3")
    assert stage.group(2).failover == ("b3", "b4")
    stage.over("b2")
    assert stage.home(2)[0] == "b3"
    assert stage.names(2) == [("b4", WHOLE)]


def test_member_that_is_to_stop_takes_over_only_if_there_is_no_other() -> None:
    stage = Stage("b1", "b2", "b3", "b4")
    stage.do(PutSettings("spread", 3, "ring", 1 << 20))
    stage.elect("b2", "b3", "b4")
    stage.sync(2, "b3", "b4")
    stage.port.has_room = False  # or the root would let b3 go first
    stage.do(SetDraining("b3", True))
    stage.port.has_room = True
    stage.over("b2")
    assert stage.home(2)[0] == "b4"


def test_first_of_the_list_is_waited_for_a_moment_by_a_new_root() -> None:
    stage = Stage("b1", "b2", "b3", "b4", me="b1")
    stage.do(PutSettings("spread", 3, "ring", 1 << 20))
    stage.sync(2, "b3", "b4")
    stage.root.lease_over("b2", "b2.1")
    stage.elect("b4")
    assert stage.home(2)[0] == "b2"
    stage.live("b3")
    assert stage.home(2)[0] == "b3"


def test_first_of_the_list_is_not_waited_for_longer() -> None:
    stage = Stage("b1", "b2", "b3", "b4", me="b1")
    stage.do(PutSettings("spread", 3, "ring", 1 << 20))
    stage.sync(2, "b3", "b4")
    stage.root.lease_over("b2", "b2.1")
    stage.elect("b4")
    stage.wait(ORDER_PATIENCE_MS)
    assert stage.home(2)[0] == "b4"


def test_member_without_a_lease_is_not_appointed() -> None:
    stage = three()
    stage.over("b3")
    stage.over("b2")
    stage.wait(2 * PATIENCE_MS)
    assert stage.home(2) == ("b2", "b2.1", 1)
    assert stage.root.reason(2) == (
        "its home b2 is down, and so are its copies: start b3 (whole) or b2"
    )
    stage.live("b3")
    assert stage.home(2) == ("b3", "b3.1", 2)


def test_home_that_gets_its_lease_again_goes_on() -> None:
    stage = three()
    stage.over("b3")
    stage.over("b2")
    stage.live("b2")
    stage.live("b3")
    assert stage.home(2) == ("b2", "b2.1", 1)
    assert appointments(stage) == []


def test_home_that_answers_has_time_to_get_its_lease_again() -> None:
    """It was root until now and did not die, or it was late: it need not begin another epoch."""
    stage = three()
    stage.port.heard = ["b2"]
    stage.over("b2")
    stage.wait(RETURN_PATIENCE_MS - 100)
    assert stage.home(2) == ("b2", "b2.1", 1)
    stage.live("b2")
    stage.wait(RETURN_PATIENCE_MS)
    assert appointments(stage) == []


def test_home_that_answers_and_gets_no_lease_is_replaced() -> None:
    stage = three()
    stage.wait(ORDER_PATIENCE_MS)
    stage.port.heard = ["b2"]
    stage.over("b2")
    assert stage.root.deadline_ms() == stage.now_ms + RETURN_PATIENCE_MS
    stage.wait(RETURN_PATIENCE_MS)
    assert stage.home(2) == ("b3", "b3.1", 2)


def test_home_that_is_no_longer_heard_is_replaced_at_once() -> None:
    stage = three()
    stage.port.heard = ["b2"]
    stage.over("b2")
    stage.port.heard = []
    stage.wait(50)
    assert stage.home(2) == ("b3", "b3.1", 2)


def test_home_that_answers_in_another_incarnation_is_replaced_at_once() -> None:
    stage = three()
    stage.port.heard = ["b2"]
    stage.restart("b2", 2)
    assert stage.home(2) == ("b3", "b3.1", 2)


def test_home_that_was_removed_is_replaced() -> None:
    stage = three()
    stage.do(DeclareQueue("/", "q", arguments={"x-group": "b2"}), RetireBroker("b2"))
    assert stage.home(2)[0] == "b3"


def uncommitted(**answers: int) -> Stage:
    """b2 is lost; its whole members b3 and b4, in that order, answer with these indexes."""
    stage = Stage("b1", "b2", "b3", "b4")
    stage.do(PutSettings("spread", 3, "ring", 1 << 20))
    stage.elect("b2", "b3", "b4")
    stage.sync(2, "b3", "b4")
    stage.answers = False
    stage.over("b2")
    stage.answer_all({name: CopyProgress(1, index) for name, index in answers.items()})
    return stage


def test_whole_member_says_first_that_its_copy_is_usable() -> None:
    """L2: while it is being installed it may have holes."""
    assert uncommitted(b3=10, b4=10).home(2)[0] == "b3"
    assert uncommitted(b3=NO_COPY, b4=10).home(2)[0] == "b4"
    assert uncommitted(b4=10).home(2)[0] == "b2"


def test_whole_member_that_does_not_answer_is_passed_over() -> None:
    stage = uncommitted(b4=10)
    stage.wait(ANSWER_PATIENCE_MS)
    assert stage.home(2)[0] == "b4"


def test_whole_member_is_asked_again_until_its_copy_is_usable() -> None:
    stage = uncommitted(b3=NO_COPY, b4=NO_COPY)
    stage.wait(ANSWER_PATIENCE_MS)
    assert stage.port.asked == [("b3", [2]), ("b4", [2])]
    stage.answer_all({"b3": CopyProgress(1, 3)})
    assert stage.home(2)[0] == "b3"


# --- conditions


def test_takeover_is_conditional_on_epoch_and_set() -> None:
    """G5: b3 leaves the set while the takeover is on its way into the log."""
    stage = three()
    stage.root.lease_over("b2", "b2.1")
    stage.answer_all({"b3": CopyProgress(1, 1)})
    assert stage.port.log[-1] == AppointHome(2, "b3", "b3.1", 1, 2)
    stage.machine.done(SetInSync(2, (), 1, 2))
    stage.settle()
    assert stage.home(2) == ("b2", "b2.1", 1)


def test_one_takeover_of_a_group_is_under_way_at_a_time() -> None:
    stage = three()
    stage.root.lease_over("b2", "b2.1")
    stage.answer_all({"b3": CopyProgress(1, 1)})
    stage.root.tick(stage.now_ms)
    stage.root.lease_live("b1", "b1.1")
    assert sum(isinstance(each, AppointHome) for each in stage.port.log) == 1


def test_takeover_that_found_no_room_is_tried_again() -> None:
    stage = three()
    stage.port.has_room = False
    stage.over("b2")
    stage.port.has_room = True
    stage.wait(50)
    assert stage.home(2)[0] == "b3"


def test_broker_that_isn_t_root_decides_nothing() -> None:
    stage = Stage("b1", "b2", "b3")
    stage.sync(2, "b3")
    stage.root.lease_live("b3", "b3.1")
    stage.root.lease_over("b2", "b2.1")
    stage.wait(PATIENCE_MS)
    assert stage.port.log == []
    assert stage.applied == []


def test_root_that_resigned_forgets_what_it_knew_of_leases() -> None:
    stage = three()
    stage.root.resigned()
    stage.root.lease_over("b2", "b2.1")
    stage.root.resigned()
    stage.root.became_root()
    stage.wait(PATIENCE_MS)
    assert stage.home(2) == ("b2", "b2.1", 1)
    assert stage.root.deadline_ms() == stage.now_ms + WATCH_MS, "nothing but traffic to look at"


# --- members with what is on disk


def disk(*, answers: dict[str, CopyProgress], live: tuple[str, ...]) -> Stage:
    """A total power cut: everybody restarts. The home of group 2 was b2, b3 and b4 its standbys."""
    stage = Stage("b1", "b2", "b3", "b4", me="b1")
    stage.answers = False
    stage.do(PutSettings("spread", 3, "ring", 1 << 20))
    stage.sync(2, "b3", "b4")
    stage.elect()
    for name in live:
        stage.restart(name, 2)
    stage.answer_all(answers)
    return stage


def test_best_copy_takes_over_when_all_are_back() -> None:
    answers = {"b2": CopyProgress(1, 90), "b3": CopyProgress(1, 95), "b4": CopyProgress(1, 80)}
    stage = disk(answers=answers, live=("b3", "b4", "b2"))
    assert stage.home(2) == ("b3", "b3.2", 2)
    assert stage.names(2) == [("b4", DISK), ("b2", DISK)]


def test_epoch_counts_before_the_index() -> None:
    answers = {"b2": CopyProgress(1, 900), "b3": CopyProgress(2, 5), "b4": CopyProgress(1, 80)}
    stage = disk(answers=answers, live=("b3", "b4", "b2"))
    assert stage.home(2)[0] == "b3"


def test_restarted_home_may_be_the_best() -> None:
    answers = {"b2": CopyProgress(1, 97), "b3": CopyProgress(1, 95), "b4": CopyProgress(1, 80)}
    stage = disk(answers=answers, live=("b3", "b4", "b2"))
    assert stage.home(2) == ("b2", "b2.2", 2)
    assert stage.names(2) == [("b3", DISK), ("b4", DISK)]


def test_copy_on_disk_waits_for_a_whole_one() -> None:
    """G3: b4 may have transient messages that nobody else has."""
    stage = disk(answers={}, live=("b3", "b2"))
    stage.wait(PATIENCE_MS - 100)
    assert stage.port.asked == []
    stage.live("b4", "b4.1")
    stage.answer_all({"b4": CopyProgress(1, 1)})
    assert stage.home(2) == ("b4", "b4.1", 2)


def stand_still(stage: Stage, ms: int) -> None:
    """The root does; nothing is read before it looks around."""
    stage.now_ms += ms
    stage.root.begin(stage.now_ms)
    stage.root.stood_still(ms)
    stage.root.tick(stage.now_ms)
    stage.settle()


def test_copy_on_disk_waits_for_a_whole_one_though_the_root_stood_still() -> None:
    """b4 may have shown itself meanwhile."""
    stage = disk(answers={}, live=("b3", "b2"))
    stand_still(stage, 2 * PATIENCE_MS)
    assert stage.port.asked == []
    stage.live("b4", "b4.1")
    stand_still(stage, 2 * ANSWER_PATIENCE_MS)
    assert stage.port.asked == [("b4", [2])]
    stage.answer_all({"b4": CopyProgress(1, 1)})
    assert stage.home(2) == ("b4", "b4.1", 2)


def test_root_that_stands_still_all_the_time_decides_in_the_end() -> None:
    stage = disk(answers={}, live=("b3", "b2"))
    for _ in range(EXCUSES_MAX):
        stand_still(stage, PATIENCE_MS)
        assert stage.port.asked == []
    stand_still(stage, PATIENCE_MS)
    assert stage.port.asked == [("b3", [2]), ("b2", [2])]


def test_copy_on_disk_takes_over_when_no_whole_one_comes() -> None:
    stage = disk(answers={}, live=("b3", "b2"))
    stage.wait(PATIENCE_MS)
    assert stage.port.asked == [("b3", [2]), ("b2", [2])]
    stage.answer_all({"b3": CopyProgress(1, 7), "b2": CopyProgress(1, 6)})
    assert stage.home(2) == ("b3", "b3.2", 2)
    assert stage.names(2) == [("b4", WHOLE), ("b2", DISK)]


def test_restarted_home_takes_over_when_no_member_comes() -> None:
    stage = disk(answers={}, live=("b2",))
    stage.wait(PATIENCE_MS)
    stage.answer_all({"b2": CopyProgress(1, 6)})
    assert stage.home(2) == ("b2", "b2.2", 2)


def test_copy_that_does_not_answer_is_left_out() -> None:
    stage = disk(
        answers={"b2": CopyProgress(1, 90), "b4": CopyProgress(1, 80)}, live=("b3", "b4", "b2")
    )
    assert stage.home(2)[0] == "b2"
    assert stage.home(2)[2] == 1
    stage.wait(ANSWER_PATIENCE_MS)
    assert stage.home(2) == ("b2", "b2.2", 2)


def test_copy_that_is_being_installed_is_not_chosen() -> None:
    answers = {
        "b2": CopyProgress(1, 9),
        "b3": CopyProgress(1, NO_COPY),
        "b4": CopyProgress(0, NO_COPY),
    }
    stage = disk(answers=answers, live=("b3", "b4", "b2"))
    assert stage.home(2)[0] == "b2"


def test_copies_are_asked_again_if_none_is_usable() -> None:
    nothing = CopyProgress(1, NO_COPY)
    stage = disk(answers={"b2": nothing, "b3": nothing, "b4": nothing}, live=("b3", "b4", "b2"))
    assert stage.port.asked == []
    stage.wait(ANSWER_PATIENCE_MS + 50)
    assert [name for name, _ in stage.port.asked] == ["b3", "b4", "b2"]
    stage.answer_all({"b2": nothing, "b3": nothing, "b4": CopyProgress(1, 3)})
    stage.wait(ANSWER_PATIENCE_MS)
    assert stage.home(2)[0] == "b4"


def test_answer_that_nobody_asked_for_is_ignored() -> None:
    stage = three()
    stage.answer("b3", 2, 9, 9)
    stage.answer("b3", 99, 9, 9)
    assert appointments(stage) == []


def test_copy_that_restarts_again_is_asked_again() -> None:
    stage = disk(answers={}, live=("b3", "b2"))
    stage.wait(PATIENCE_MS)
    stage.answer("b3", 2, 1, 99)
    stage.restart("b3", 3)
    stage.answer("b2", 2, 1, 6)
    assert stage.home(2)[2] == 1
    assert stage.port.asked[-1] == ("b3", [2])
    stage.answer("b3", 2, 1, 5)
    assert stage.home(2) == ("b2", "b2.2", 2)


# --- nobody in sync


def test_without_members_only_the_last_home_is_eligible() -> None:
    stage = Stage("b1", "b2", "b3").elect("b2", "b3")
    stage.over("b2")
    stage.wait(10 * PATIENCE_MS)
    assert stage.home(2) == ("b2", "b2.1", 1)
    assert stage.port.asked == []
    assert stage.root.reason(2) == (
        "its home b2 is down, and nobody else has all of its messages: start b2"
    )
    stage.restart("b2", 2)
    assert stage.home(2) == ("b2", "b2.2", 2)
    assert stage.root.reason(2) == ""


def test_local_group_waits_for_its_broker() -> None:
    """G9: others may be in sync with whatever they like, it is never taken over."""
    stage = three()
    queue = DeclareQueue("/", "q", arguments={"x-replicate": "none", "x-group": "b2"})
    number = stage.machine.declared_group(queue)
    stage.over("b2")
    stage.wait(2 * PATIENCE_MS)
    assert stage.home(number) == ("b2", "b2.1", 1)
    assert "not replicated: start b2" in stage.root.reason(number)
    stage.restart("b2", 2)
    assert stage.home(number) == ("b2", "b2.2", 2)


# --- who is away


def test_state_is_told_who_is_away_and_who_is_back() -> None:
    stage = three()
    stage.over("b2")
    assert stage.state.registry.get("b2").away
    stage.live("b2")
    assert not stage.state.registry.get("b2").away
    assert [each for each in stage.applied if isinstance(each, SetAway)] == [
        SetAway("b2", "b2.1", True),
        SetAway("b2", "b2.1", False),
    ]


def test_broker_that_stays_away_is_lost_and_found_again() -> None:
    stage = three()
    stage.over("b2")
    patience_ms = RootSettings().replace_patience_ms
    stage.now_ms += patience_ms - 100
    stage.wait(50)
    assert not stage.state.registry.get("b2").lost
    stage.wait(100)
    assert stage.state.registry.get("b2").lost
    assert "b2" not in stage.group(1).failover
    stage.live("b2")
    assert stage.group(1).failover == ("b2",)


def test_new_root_corrects_what_the_last_one_thought() -> None:
    stage = Stage("b1", "b2", "b3")
    stage.do(SetAway("b3", "b3.1", True), SetAway("b1", "b1.1", True))
    stage.elect("b2")
    assert not stage.state.registry.get("b1").away
    assert stage.state.registry.get("b3").away
    stage.live("b3")
    assert not stage.state.registry.get("b3").away


# --- the home follows the root (R14)


def rooted(me: str, *members: str) -> Stage:
    """One group, at b1, whose members are these; b1 was root and is lost; ``me`` is root now."""
    stage = Stage("b1", "b2", "b3", me=me)
    stage.do(PutSettings(ROOT, 3, "ring", 1 << 20))
    stage.sync(1, *members)
    stage.root.lease_over("b1", "b1.1")
    return stage


def test_root_that_is_in_sync_takes_the_group_whatever_the_list_says() -> None:
    stage = rooted("b3", "b2", "b3").elect("b2")
    assert stage.home(1)[0] == "b3"
    assert stage.port.heirs == []


def test_root_that_is_not_in_sync_hands_its_office_to_the_home() -> None:
    stage = rooted("b3", "b2").elect("b2")
    assert stage.home(1)[0] == "b2"
    assert stage.port.heirs == ["b2"]


def test_office_is_not_handed_over_before_the_group_has_a_home() -> None:
    stage = rooted("b3", "b2").elect()
    assert stage.home(1)[0] == "b1"
    assert stage.port.heirs == []


# --- elections


@pytest.mark.parametrize(("me", "wanted"), [("b1", 0), ("b2", 0), ("b3", 1)])
def test_broker_counts_the_groups_of_the_root_that_it_could_take(me: str, wanted: int) -> None:
    stage = three("b1")
    assert preference(stage.state, me, f"{me}.1", "b2") == wanted


def test_copy_on_disk_is_no_reason_to_be_elected() -> None:
    stage = three("b1")
    stage.restart("b3", 2)
    assert stage.group(2).in_sync == (Member("b3", "b3.2", DISK),)
    assert preference(stage.state, "b3", "b3.2", "b2") == 0


# --- time


def test_deadline_is_when_patience_ends() -> None:
    stage = disk(answers={}, live=("b3", "b2"))
    since_ms = stage.root.homeless_groups[2].since_ms
    stage.wait(1_000)
    assert stage.root.deadline_ms() == since_ms + PATIENCE_MS
