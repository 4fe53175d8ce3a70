"""Groups, their homes, and where new queues go."""

from __future__ import annotations

from dataclasses import replace

from rhizome.broker.metadata.metadata_commands import (
    DeclareQueue,
    DeleteQueue,
    DeleteVhost,
    PutPolicy,
    PutVhost,
)
from rhizome.cluster.state.cluster_commands import (
    DISK,
    ROOT,
    SPREAD,
    WHOLE,
    AppointHome,
    ForceHome,
    Member,
    PutSettings,
    RegisterBroker,
    RetireBroker,
    SetInSync,
)
from rhizome.cluster.state.groups_and_placement import STREAMS_FROM, STREAMS_TO, Group
from rhizome.cluster.state.state_changes import GroupChanged, GroupRemoved, SettingsChanged
from tests.unit.cluster.state.state_machines import Machine, make_machine, register


def settings(placement: str = SPREAD, copies: int = 2) -> PutSettings:
    return PutSettings(placement, copies, "ring", 1 << 20)


def groups(machine: Machine) -> list[tuple[int, str, str, int]]:
    found = machine.state.groups.groups.values()
    return [(group.id, group.home, group.incarnation, group.epoch) for group in found]


# --- which groups there are


def test_every_primary_brings_a_group() -> None:
    machine = make_machine("b1", "b2")
    machine.done(register("w", role="witness"), register("s1", role="secondary"), register("b3"))
    assert groups(machine) == [(1, "b1", "b1.1", 1), (2, "b2", "b2.1", 1), (3, "b3", "b3.1", 1)]


def test_registration_reports_the_new_group() -> None:
    machine = make_machine("b1")
    facts = machine.done(register("b2")).facts
    created = [fact.group for fact in facts if isinstance(fact, GroupChanged)]
    assert created[-1] == Group(2, "b2", "b2", "b2.1", failover=("b1",), copies=2)


def test_with_placement_root_there_is_one_group() -> None:
    machine = Machine()
    machine.done(PutVhost("/"), settings(ROOT), register("b1"), register("b2"))
    assert groups(machine) == [(1, "b1", "b1.1", 1)]
    assert [machine.declared_group(DeclareQueue("/", f"q{i}")) for i in range(2)] == [1, 1]


def test_change_of_placement_makes_the_groups_that_it_wants() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b3"}))
    removed = machine.done(settings(ROOT)).facts
    assert [fact.group.id for fact in removed if isinstance(fact, GroupRemoved)] == [2]
    assert [group[0] for group in groups(machine)] == [1, 3]
    assert machine.declared_group(DeclareQueue("/", "new")) == 1
    machine.done(settings(SPREAD))
    assert [group[:2] for group in groups(machine)] == [(1, "b1"), (3, "b3"), (4, "b2")]


def test_settings_that_make_no_sense_are_refused() -> None:
    machine = make_machine("b1")
    assert "must be one of spread, root" in machine.refused(settings("here"))
    assert "at least one copy" in machine.refused(settings(copies=0))


def test_first_settings_are_reported_though_they_are_the_defaults() -> None:
    machine = make_machine("b1")
    assert not machine.state.settings_given
    assert SettingsChanged() in machine.done(machine.state.settings).facts
    assert machine.state.settings_given
    assert machine.feed(machine.state.settings).facts == []


# --- where queues go


def test_queue_goes_to_the_group_with_the_fewest_queues() -> None:
    machine = make_machine("b1", "b2")
    placed = [machine.declared_group(DeclareQueue("/", f"q{i}")) for i in range(4)]
    assert placed == [1, 2, 1, 2]
    machine.done(DeleteQueue("/", "q1"), DeleteQueue("/", "q3"))
    assert [machine.declared_group(DeclareQueue("/", f"n{i}")) for i in range(3)] == [2, 2, 1]


def test_queues_of_a_deleted_vhost_no_longer_count() -> None:
    machine = make_machine("b1", "b2")
    machine.done(PutVhost("dev"), DeclareQueue("dev", "a"), DeclareQueue("/", "b"))
    assert machine.state.groups.queues == {1: 1, 2: 1}
    machine.done(DeleteVhost("dev"))
    assert machine.state.groups.queues == {1: 0, 2: 1}


def test_declarer_may_name_broker_or_group() -> None:
    machine = make_machine("b1", "b2", "b3")
    for wanted, group in (("b2", 2), ("3", 3), ("b1", 1)):
        command = DeclareQueue("/", f"q-{wanted}", arguments={"x-group": wanted})
        assert machine.declared_group(command) == group


def test_policy_may_name_the_group() -> None:
    machine = make_machine("b1", "b2")
    machine.done(PutPolicy("/", "p", "^eu\\.", {"group": "b2"}))
    assert machine.declared_group(DeclareQueue("/", "eu.orders")) == 2
    assert machine.declared_group(DeclareQueue("/", "orders")) == 1


def test_unknown_group_is_refused() -> None:
    machine = make_machine("b1", "b2")
    text = machine.refused(DeclareQueue("/", "q", arguments={"x-group": "b9"}))
    assert text == "queue 'q' in vhost '/' asks for group 'b9'; there are 1 (b1), 2 (b2)"


def test_queue_declared_again_for_another_group_is_refused() -> None:
    machine = make_machine("b1", "b2")
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b2"}))
    text = machine.refused(DeclareQueue("/", "q", arguments={"x-group": "b1"}))
    assert "inequivalent arg 'x-group'" in text


def test_queue_is_refused_while_no_group_exists() -> None:
    machine = make_machine()
    machine.done(register("w", role="witness"))
    assert "no primary" in machine.refused(DeclareQueue("/", "q"))


# --- homes


def test_restarted_home_without_standbys_is_appointed_again() -> None:
    machine = make_machine("b1", "b2")
    facts = machine.done(register("b1", "b1.2")).facts
    assert groups(machine) == [(1, "b1", "b1.2", 2), (2, "b2", "b2.1", 1)]
    assert [fact.group.id for fact in facts if isinstance(fact, GroupChanged)] == [1]
    machine.done(RetireBroker("b1", "b1.2"), register("b1", "b1.3"))
    assert groups(machine)[0] == (1, "b1", "b1.3", 3)


def test_new_addresses_don_t_change_a_home() -> None:
    machine = make_machine("b1")
    command = register("b1", machine="elsewhere")
    machine.done(command)
    assert groups(machine) == [(1, "b1", "b1.1", 1)]


def test_restarted_home_with_standbys_waits_for_the_root() -> None:
    machine = make_machine("b1", "b2")
    machine.done(SetInSync(1, (Member("b2", "b2.1", WHOLE),), 1, 1), register("b1", "b1.2"))
    assert groups(machine)[0] == (1, "b1", "b1.1", 1)


def test_restarted_member_counts_for_what_is_on_disk() -> None:
    machine = make_machine("b1", "b2")
    machine.done(SetInSync(1, (Member("b2", "b2.1", WHOLE),), 1, 1), register("b2", "b2.2"))
    group = machine.state.groups.groups[1]
    assert (group.in_sync, group.version) == ((Member("b2", "b2.2", DISK),), 3)


def test_home_is_appointed_in_a_new_epoch() -> None:
    machine = make_machine("b1", "b2")
    machine.done(SetInSync(1, (Member("b2", "b2.1", WHOLE),), 1, 1))
    machine.done(AppointHome(1, "b2", "b2.1", 1, 2))
    group = machine.state.groups.groups[1]
    assert (group.home, group.incarnation, group.epoch) == ("b2", "b2.1", 2)
    assert (group.in_sync, group.version) == ((), 3)
    assert group.failover == ("b1",)


def test_appointment_is_refused_if_the_group_has_changed() -> None:
    machine = make_machine("b1", "b2")
    machine.done(SetInSync(1, (Member("b2", "b2.1", WHOLE),), 1, 1))
    command = AppointHome(1, "b2", "b2.1", 1, 2)
    machine.done(command)
    assert machine.refused(command) == (
        "group 1 is in epoch 2 with version 3 of its in-sync set, not in epoch 1 with version 2"
    )
    assert "version" in machine.refused(AppointHome(1, "b1", "b1.1", 2, 2))
    assert machine.refused(AppointHome(9, "b1", "b1.1", 1, 1)) == "no group 9"


def test_only_the_named_incarnation_of_a_primary_becomes_home() -> None:
    machine = make_machine("b1", "b2")
    machine.done(register("w", role="witness"))
    assert "not 'b2.9'" in machine.refused(AppointHome(1, "b2", "b2.9", 1, 1))
    assert "is a witness" in machine.refused(AppointHome(1, "w", "w.1", 1, 1))


def test_in_sync_set_is_checked() -> None:
    machine = make_machine("b1", "b2")
    member = Member("b2", "b2.1", WHOLE)
    assert "none the home" in machine.refused(SetInSync(1, (Member("b1", "b1.1", WHOLE),), 1, 1))
    assert "another broker" in machine.refused(SetInSync(1, (member, member), 1, 1))
    assert "not 'b2.9'" in machine.refused(SetInSync(1, (Member("b2", "b2.9", WHOLE),), 1, 1))
    assert "whole or disk" in machine.refused(SetInSync(1, (Member("b2", "b2.1", "half"),), 1, 1))
    machine.done(SetInSync(1, (member,), 1, 1))
    assert "version 2" in machine.refused(SetInSync(1, (), 1, 1))


def test_group_of_a_removed_broker_goes_if_it_is_empty() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b2"}))
    machine.done(SetInSync(2, (Member("b1", "b1.1", WHOLE),), 1, 1))
    facts = machine.done(RetireBroker("b1"), RetireBroker("b2")).facts
    assert not any(isinstance(fact, GroupRemoved) for fact in facts)
    assert groups(machine) == [(2, "", "", 2), (3, "b3", "b3.1", 1)]
    assert machine.state.groups.groups[2].in_sync == ()
    machine.done(register("b4"))
    assert groups(machine)[-1] == (4, "b4", "b4.1", 1)


def test_new_broker_of_an_old_name_does_not_serve_the_old_queues_empty() -> None:
    """G3: the messages went with the old store; a person must say that they may be given up."""
    machine = make_machine("b1", "b2")
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b1"}))
    wiped = RegisterBroker("b1", "u-new", "b1.2", "primary", (), "m")
    machine.done(RetireBroker("b1"), wiped)
    assert groups(machine) == [(1, "", "", 2), (2, "b2", "b2.1", 1), (3, "b1", "b1.2", 1)]
    assert machine.declared_group(DeclareQueue("/", "r", arguments={"x-group": "b1"})) == 3
    text = machine.refused(DeclareQueue("/", "s", arguments={"x-group": "b9"}))
    assert "1 (its broker was removed), 2 (b2), 3 (b1)" in text
    assert "may lack" in machine.refused(AppointHome(1, "b1", "b1.2", 2, 1))
    machine.done(ForceHome(1, "b2", "b2.1", 2, 1, 0))
    assert groups(machine)[0] == (1, "b2", "b2.1", 3)


# --- streams


def stream(name: str, **arguments: object) -> DeclareQueue:
    given: dict[str, object] = {"x-queue-type": "stream", **arguments}
    return DeclareQueue("/", name, durable=True, arguments=given)


def test_a_stream_has_a_replicated_group_of_its_own() -> None:
    machine = make_machine("b1", "b2")
    number = machine.declared_group(stream("s"))
    group = machine.state.groups.groups[number]
    assert (number, group.stream, group.local, group.copies) == (STREAMS_FROM, True, False, 2)
    assert group.failover == ("b2",)
    # No queue is put there, and it is not what its broker has brought.
    assert machine.declared_group(DeclareQueue("/", "q")) in (1, 2)
    machine.done(register("b3"))
    assert len([each for each in machine.state.groups.groups.values() if not each.stream]) == 3


def test_a_stream_that_is_not_replicated_stays_where_it_is() -> None:
    machine = make_machine("b1", "b2")
    number = machine.declared_group(stream("s", **{"x-replicate": "none"}))
    group = machine.state.groups.groups[number]
    assert (group.local, group.copies, group.failover) == (True, 1, ())


def test_numbers_of_streams_are_given_again_with_a_later_epoch() -> None:
    machine = make_machine("b1")
    first = machine.declared_group(stream("kept"))
    machine.done(stream("gone"))
    groups = machine.state.groups
    groups.groups[first + 1] = replace(groups.groups[first + 1], epoch=7)
    machine.done(DeleteQueue("/", "gone"))
    groups.last_stream = STREAMS_TO - 1
    assert machine.declared_group(stream("last")) == STREAMS_TO
    # After the last number the first that is free comes, not one in use.
    assert machine.declared_group(stream("again")) == first + 1
    assert groups.groups[first + 1].epoch == 8
    assert groups.groups[first].epoch == 1
