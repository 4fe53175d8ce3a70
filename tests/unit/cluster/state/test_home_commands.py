"""How a group gets another home: takeover, transfer, force; and queues that stay (G3 to G11)."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.metadata_commands import DeclareQueue, DeleteQueue, PutPolicy
from rhizome.cluster.state.cluster_commands import (
    DISK,
    WHOLE,
    AppointHome,
    ForceHome,
    Member,
    PinHome,
    PlanMove,
    PutSettings,
    RetireBroker,
    SetAway,
    SetDraining,
    SetInSync,
    TransferHome,
)
from rhizome.cluster.state.groups_and_placement import Group, unavailable, wanted_standbys
from rhizome.cluster.state.state_changes import GroupChanged
from tests.unit.cluster.state.state_machines import Machine, make_machine, register

B2_WHOLE = Member("b2", "b2.1", WHOLE)
B3_WHOLE = Member("b3", "b3.1", WHOLE)
LOCAL = {"x-replicate": "none"}


def group(machine: Machine, number: int = 1) -> Group:
    return machine.state.groups.groups[number]


def home(machine: Machine, number: int = 1) -> tuple[str, str, int]:
    found = group(machine, number)
    return (found.home, found.incarnation, found.epoch)


def replicated(*members: Member) -> Machine:
    """Group 1 has its home at b1, and these standbys, with version 2 of the set."""
    machine = make_machine("b1", "b2", "b3")
    machine.done(SetInSync(1, members, 1, 1))
    return machine


def why(machine: Machine, number: int = 1) -> str:
    return unavailable(group(machine, number), machine.state.registry)


# --- takeover


def test_nobody_is_appointed_who_may_lack_what_was_confirmed() -> None:
    """G3: b3 was never in sync."""
    machine = replicated(B2_WHOLE)
    text = machine.refused(AppointHome(1, "b3", "b3.1", 1, 2))
    assert "b3' is no in-sync member of group 1 and was not its home" in text


def test_last_home_may_be_appointed_again() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(register("b1", "b1.2"), AppointHome(1, "b1", "b1.2", 1, 2))
    assert home(machine) == ("b1", "b1.2", 2)
    assert group(machine).in_sync == (B2_WHOLE,)


def test_takeover_by_a_copy_on_disk_keeps_the_restarted_home_as_a_member() -> None:
    """Its disk has everything confirmed as well."""
    machine = replicated(B2_WHOLE, B3_WHOLE)
    machine.done(register("b1", "b1.2"), register("b2", "b2.2"))
    machine.done(AppointHome(1, "b2", "b2.2", 1, 3))
    assert group(machine).in_sync == (B3_WHOLE, Member("b1", "b1.2", DISK))


def test_takeover_by_a_whole_copy_needs_nobody_else() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(register("b1", "b1.2"), AppointHome(1, "b2", "b2.1", 1, 2))
    assert group(machine).in_sync == ()


def test_home_that_was_replaced_is_not_eligible_any_more() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(AppointHome(1, "b2", "b2.1", 1, 2))
    assert "no in-sync member" in machine.refused(AppointHome(1, "b1", "b1.1", 2, 3))


def test_new_epoch_knows_the_one_that_it_continues() -> None:
    machine = replicated(B2_WHOLE)
    assert group(machine).parent == 0
    machine.done(AppointHome(1, "b2", "b2.1", 1, 2))
    assert (group(machine).epoch, group(machine).parent) == (2, 1)


# --- transfer


def test_transfer_makes_the_old_home_a_whole_member() -> None:
    """G11: it has everything; no copy is lost by handing over."""
    machine = replicated(B2_WHOLE, B3_WHOLE)
    machine.done(PlanMove(1, "b2", 1), TransferHome(1, "b2", "b2.1", 1, 2))
    assert home(machine) == ("b2", "b2.1", 2)
    assert group(machine).in_sync == (B3_WHOLE, Member("b1", "b1.1", WHOLE))
    assert group(machine).moving_to == ""


def test_transfer_that_comes_late_counts_a_restarted_home_for_its_disk_only() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(register("b1", "b1.2"), TransferHome(1, "b2", "b2.1", 1, 2))
    assert group(machine).in_sync == (Member("b1", "b1.2", DISK),)


def test_only_a_whole_member_is_handed_a_group() -> None:
    machine = replicated(B2_WHOLE)
    assert "no whole copy" in machine.refused(TransferHome(1, "b3", "b3.1", 1, 2))
    machine.done(register("b2", "b2.2"))
    assert "no whole copy" in machine.refused(TransferHome(1, "b2", "b2.2", 1, 3))


@pytest.mark.parametrize(("epoch", "version"), [(1, 1), (2, 2), (1, 3)])
def test_transfer_is_conditional(epoch: int, version: int) -> None:
    """G5: the home asked for it when the group was otherwise."""
    machine = replicated(B2_WHOLE)
    assert "in epoch 1 with version 2" in machine.refused(
        TransferHome(1, "b2", "b2.1", epoch, version)
    )


def test_planned_move_invites_a_broker_that_has_no_copy_yet() -> None:
    machine = replicated(B2_WHOLE)
    assert wanted_standbys(group(machine), machine.state.registry) == ["b2"]
    facts = machine.done(PlanMove(1, "b3", 1)).facts
    assert facts == [GroupChanged(group(machine))]
    assert wanted_standbys(group(machine), machine.state.registry) == ["b3", "b2"]
    assert machine.done(PlanMove(1, "", 1)).facts == [GroupChanged(group(machine))]
    assert group(machine).moving_to == ""


def test_move_that_makes_no_sense_is_refused() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(register("w", role="witness"), SetDraining("b3", True))
    assert "is its home" in machine.refused(PlanMove(1, "b1", 1))
    assert "is being drained" in machine.refused(PlanMove(1, "b3", 1))
    assert "is a witness" in machine.refused(PlanMove(1, "w", 1))
    assert "in epoch 1, not 2" in machine.refused(PlanMove(1, "b2", 2))
    assert "no broker 'b9'" in machine.refused(PlanMove(1, "b9", 1))


def test_plan_lapses_with_the_epoch_and_with_its_target() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(PlanMove(1, "b3", 1), AppointHome(1, "b2", "b2.1", 1, 2))
    assert group(machine).moving_to == ""
    machine.done(PlanMove(1, "b3", 2), RetireBroker("b3"))
    assert group(machine).moving_to == ""


# --- pin


def test_pin_moves_a_group_and_outlives_the_move_takeovers_and_snapshots() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(PinHome(1, "b2", 1))
    assert (group(machine).pinned, group(machine).moving_to) == ("b2", "b2")
    machine.done(TransferHome(1, "b2", "b2.1", 1, 2))
    assert (group(machine).pinned, group(machine).moving_to) == ("b2", "")
    machine.done(AppointHome(1, "b1", "b1.1", 2, 3))
    copy = make_machine()
    copy.state.restore(machine.state.index, machine.state.snapshot())
    assert (group(copy).home, group(copy).pinned) == ("b1", "b2")


def test_snapshots_name_pins_only_where_there_is_one() -> None:
    """Release 0.1 doesn't know them."""
    machine = replicated(B2_WHOLE)
    assert b"pinned" not in machine.state.snapshot()
    machine.done(PinHome(1, "b2", 1))
    assert b"pinned" in machine.state.snapshot()
    machine.done(PinHome(1, "", 1))
    assert b"pinned" not in machine.state.snapshot()


def test_pin_to_the_present_home_calls_off_a_move() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(TransferHome(1, "b2", "b2.1", 1, 2), PlanMove(1, "b3", 2), PinHome(1, "b2", 2))
    assert (group(machine).pinned, group(machine).moving_to) == ("b2", "")
    assert machine.done(PinHome(1, "b2", 2)).facts == []


def test_group_is_unpinned_by_a_person_and_when_its_broker_is_removed() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(PinHome(1, "b2", 1), PinHome(1, "", 1))
    assert (group(machine).pinned, group(machine).moving_to) == ("", "b2"), "the move goes on"
    machine.done(PinHome(1, "b3", 1), RetireBroker("b3"))
    assert (group(machine).pinned, group(machine).moving_to) == ("", "")


def test_pin_that_makes_no_sense_is_refused() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(register("w", role="witness"), SetDraining("b3", True))
    assert "is being drained" in machine.refused(PinHome(1, "b3", 1))
    assert "is a witness" in machine.refused(PinHome(1, "w", 1))
    assert "in epoch 1, not 2" in machine.refused(PinHome(1, "b2", 2))
    assert "no broker 'b9'" in machine.refused(PinHome(1, "b9", 1))
    machine.done(DeclareQueue("/", "tmp", arguments={"x-replicate": "none", "x-group": "b1"}))
    local = max(machine.state.groups.groups)
    assert "are not replicated" in machine.refused(PinHome(local, "b2", 1))


# --- force


def test_forced_home_needs_no_copy_and_says_what_it_continues() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(AppointHome(1, "b2", "b2.1", 1, 2))
    machine.done(ForceHome(1, "b3", "b3.1", 2, 3, 1))
    assert home(machine) == ("b3", "b3.1", 3)
    assert (group(machine).parent, group(machine).in_sync) == (1, ())


def test_forced_home_is_conditional_too() -> None:
    machine = replicated(B2_WHOLE)
    assert "version 2" in machine.refused(ForceHome(1, "b3", "b3.1", 1, 1, 0))
    assert "can't go on from 2" in machine.refused(ForceHome(1, "b3", "b3.1", 1, 2, 2))
    assert "not 'b3.9'" in machine.refused(ForceHome(1, "b3", "b3.9", 1, 2, 0))


# --- queues that are not replicated


def test_local_group_is_made_when_it_is_needed_first() -> None:
    machine = make_machine("b1", "b2")
    applied = machine.feed(DeclareQueue("/", "q1", arguments=LOCAL))
    made = [fact.group for fact in applied.facts if isinstance(fact, GroupChanged)]
    assert [(each.id, each.home, each.local) for each in made] == [(3, "b1", True)]
    assert machine.declared_group(DeclareQueue("/", "q2", arguments=LOCAL)) == 4
    assert machine.declared_group(DeclareQueue("/", "q3", arguments=LOCAL)) == 3
    assert machine.declared_group(DeclareQueue("/", "other")) == 1


def test_qpid_argument_and_policy_place_locally_too() -> None:
    machine = make_machine("b1")
    queue = DeclareQueue("/", "a", arguments={"qpid.replicate": "none"})
    assert group(machine, machine.declared_group(queue)).local
    machine.done(PutPolicy("/", "p", "^tmp", {"replicate": "none"}))
    assert group(machine, machine.declared_group(DeclareQueue("/", "tmp.1"))).local


def test_configuration_and_messages_are_replicated() -> None:
    machine = make_machine("b1", "b2")
    for word in ("configuration", "messages", "all"):
        queue = DeclareQueue("/", word, arguments={"x-replicate": word})
        assert not group(machine, machine.declared_group(queue)).local


def test_local_queue_may_ask_for_its_broker() -> None:
    machine = make_machine("b1", "b2")
    wanted = {**LOCAL, "x-group": "b2"}
    number = machine.declared_group(DeclareQueue("/", "q", arguments=wanted))
    assert (group(machine, number).home, group(machine, number).local) == ("b2", True)
    by_number = {**LOCAL, "x-group": str(number)}
    assert machine.declared_group(DeclareQueue("/", "r", arguments=by_number)) == number
    assert "asks for group 'b9'" in machine.refused(
        DeclareQueue("/", "s", arguments={**LOCAL, "x-group": "b9"})
    )


def test_replicated_queue_is_not_put_into_a_local_group() -> None:
    machine = make_machine("b1")
    number = machine.declared_group(DeclareQueue("/", "q", arguments=LOCAL))
    assert number == 2
    assert "asks for group '2'" in machine.refused(
        DeclareQueue("/", "r", arguments={"x-group": "2"})
    )


def test_local_group_is_never_taken_over_and_waits_for_its_broker() -> None:
    """G9."""
    machine = make_machine("b1", "b2")
    number = machine.declared_group(DeclareQueue("/", "q", arguments=LOCAL))
    assert "not replicated" in machine.refused(SetInSync(number, (B2_WHOLE,), 1, 1))
    assert "may lack" in machine.refused(AppointHome(number, "b2", "b2.1", 1, 1))
    assert "stay on 'b1'" in machine.refused(PlanMove(number, "b2", 1))
    machine.done(register("b1", "b1.2"))
    assert home(machine, number) == ("b1", "b1.2", 2)


def test_local_group_does_not_stand_for_the_group_that_a_primary_brings() -> None:
    machine = make_machine("b1")
    machine.done(PutSettings("root", 2, "ring", 1 << 20))
    machine.done(register("b2"))
    machine.done(DeclareQueue("/", "q", arguments={**LOCAL, "x-group": "b2"}))
    assert machine.declared_group(DeclareQueue("/", "shared")) == 1
    machine.done(PutSettings("spread", 2, "ring", 1 << 20))
    assert [(each.home, each.local) for each in machine.state.groups.groups.values()] == [
        ("b1", False),
        ("b2", True),
        ("b2", False),
    ]


# --- where new queues go


@pytest.mark.parametrize("arguments", [{}, LOCAL])
def test_new_queues_go_to_brokers_that_are_there(arguments: dict[str, object]) -> None:
    machine = make_machine("b1", "b2")
    machine.done(SetAway("b1", "b1.1", True))
    numbers = [
        machine.declared_group(DeclareQueue("/", f"q{i}", arguments=arguments)) for i in range(3)
    ]
    assert {group(machine, number).home for number in numbers} == {"b2"}
    machine.done(SetAway("b2", "b2.1", True))
    assert machine.declared_group(DeclareQueue("/", "last", arguments=arguments)) > 0


# --- copies


def copies(machine: Machine, number: int = 1) -> tuple[int, int]:
    return (group(machine, number).copies, group(machine, number).min_copies)


def test_group_has_the_copies_that_the_settings_say() -> None:
    machine = make_machine("b1", "b2", "b3")
    assert copies(machine) == (2, 1)
    machine.done(PutSettings("spread", 3, "ring", 1 << 20, 2))
    assert copies(machine) == (3, 2)
    assert group(machine).failover == ("b2", "b3")


def test_group_has_as_many_copies_as_its_queues_ask_for() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(DeclareQueue("/", "a", arguments={"x-group": "b1"}))
    machine.done(DeclareQueue("/", "many", arguments={"x-group": "b1"}))
    facts = machine.done(PutPolicy("/", "p", "^many", {"copies": 3, "min-copies": 2})).facts
    assert copies(machine) == (3, 2)
    assert GroupChanged(group(machine)) in facts
    assert group(machine).failover == ("b2", "b3")
    assert wanted_standbys(group(machine), machine.state.registry) == ["b2", "b3"]
    assert copies(machine, 2) == (2, 1)
    assert wanted_standbys(group(machine, 2), machine.state.registry) == ["b3"]
    machine.done(DeleteQueue("/", "many"))
    assert copies(machine) == (2, 1)


def test_group_may_have_fewer_copies_than_the_settings_say() -> None:
    machine = make_machine("b1", "b2")
    machine.done(PutPolicy("/", "p", ".*", {"copies": 1}))
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b1"}))
    assert copies(machine) == (1, 1)
    assert wanted_standbys(group(machine), machine.state.registry) == []


def test_what_must_be_there_should_be_there() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(PutPolicy("/", "p", ".*", {"min-copies": 3}))
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b1"}))
    assert copies(machine) == (3, 3)


def test_quorum_queue_asks_by_its_initial_group_size() -> None:
    machine = make_machine("b1", "b2", "b3")
    arguments: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-quorum-initial-group-size": 3,
        "x-group": "b1",
    }
    machine.done(DeclareQueue("/", "q", True, arguments=arguments))
    assert copies(machine) == (3, 1)


def test_local_group_has_one_copy_whatever_is_asked_for() -> None:
    machine = make_machine("b1", "b2")
    machine.done(PutPolicy("/", "p", ".*", {"copies": 3}))
    number = machine.declared_group(DeclareQueue("/", "q", arguments=LOCAL))
    assert copies(machine, number) == (1, 1)
    assert group(machine, number).failover == ()


def test_settings_need_as_many_copies_as_must_be_there() -> None:
    machine = make_machine("b1")
    assert "from 1 to copies" in machine.refused(PutSettings("spread", 2, "ring", 1 << 20, 3))


def test_standbys_in_sync_are_kept_before_others_are_invited() -> None:
    machine = make_machine("b1", "b2", "b3", "b4")
    machine.done(PutSettings("spread", 3, "ring", 1 << 20))
    assert wanted_standbys(group(machine), machine.state.registry) == ["b2", "b3"]
    machine.done(PutSettings("spread", 2, "ring", 1 << 20))
    machine.done(PutPolicy("/", "p", "^far", {"copies": 4}))
    machine.done(DeclareQueue("/", "far", arguments={"x-group": "b2"}))  # lists have three names
    machine.done(SetInSync(1, (B3_WHOLE,), 1, 1))
    assert wanted_standbys(group(machine), machine.state.registry) == ["b3"]
    machine.done(SetInSync(1, (), 1, 2), SetAway("b2", "b2.1", True))
    assert wanted_standbys(group(machine), machine.state.registry) == ["b3"]


def test_broker_that_drains_is_nobody_s_standby() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(SetDraining("b2", True))
    assert group(machine).failover == ("b3",)
    assert wanted_standbys(group(machine), machine.state.registry) == ["b3"]


def test_broker_that_a_group_came_from_is_the_first_choice() -> None:
    """It has most of the messages; a copy elsewhere would begin with nothing."""
    machine = replicated(B2_WHOLE)
    machine.done(AppointHome(1, "b2", "b2.1", 1, 2))
    assert group(machine).failover == ("b3",)
    assert wanted_standbys(group(machine), machine.state.registry) == ["b1"]
    machine.done(SetAway("b1", "b1.1", True))
    assert wanted_standbys(group(machine), machine.state.registry) == ["b3"]
    machine.done(SetInSync(1, (B3_WHOLE,), 2, 3), register("b1", "b1.2"))
    assert wanted_standbys(group(machine), machine.state.registry) == ["b3"]


def test_broker_that_a_group_came_from_keeps_no_copy_on_the_home_s_machine() -> None:
    machine = make_machine()
    machine.done(register("b1", machine="rack"), register("b2", machine="rack"), register("b3"))
    machine.done(SetInSync(1, (B2_WHOLE,), 1, 1), AppointHome(1, "b2", "b2.1", 1, 2))
    assert wanted_standbys(group(machine), machine.state.registry) == ["b3"]


def test_broker_that_is_lost_is_replaced_as_a_standby_until_it_returns() -> None:
    machine = replicated()
    machine.done(SetAway("b2", "b2.1", True))
    assert group(machine).failover == ("b2",)
    machine.done(SetAway("b2", "b2.1", True, True))
    assert group(machine).failover == ("b3",)
    machine.done(SetAway("b2", "b2.1", False, True))
    assert not machine.state.registry.get("b2").lost
    assert group(machine).failover == ("b2",)


# --- why nobody serves a group


def test_group_with_its_home_is_available() -> None:
    assert why(replicated(B2_WHOLE)) == ""


def test_unavailable_group_says_why_and_what_to_do() -> None:
    machine = replicated(B2_WHOLE)
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b1"}), SetAway("b1", "b1.1", True))
    assert why(machine) == "its home b1 is down; b2 is taking over"
    machine.done(SetAway("b2", "b2.1", True))
    assert why(machine) == ("its home b1 is down, and so are its copies: start b2 (whole) or b1")
    machine.done(register("b2", "b2.2"))
    assert why(machine) == "its home b1 is down; b2 takes over"
    machine.done(SetInSync(1, (), 1, 3))
    assert why(machine) == "its home b1 is down, and nobody else has all of its messages: start b1"
    machine.done(RetireBroker("b1"))
    assert why(machine) == (
        "its home was removed from the cluster, and nobody else has all of its messages: "
        "`rhizome group force-home` gives up what is lost"
    )


def test_local_group_says_that_it_waits_for_its_broker() -> None:
    machine = make_machine("b1", "b2")
    number = machine.declared_group(DeclareQueue("/", "q", arguments=LOCAL))
    machine.done(SetAway("b1", "b1.1", True))
    assert why(machine, number) == (
        "its home b1 is down, and its queues are not replicated: start b1"
    )
