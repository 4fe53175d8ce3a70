"""What operators are told before homes change hands (G8, G11)."""

from __future__ import annotations

from rhizome.broker.metadata.metadata_commands import DeclareQueue
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
from rhizome.management.cluster_view import Change, CopyInfo
from rhizome.server.operator_views.group_info import Duties, duties_of, group_infos
from rhizome.server.operator_views.home_change_preview import PlannedChange, planned_change_for
from tests.unit.cluster.state.state_machines import Machine, make_machine, register


def cluster() -> Machine:
    """Group 1 at b1 has the queue q and, in sync, b2."""
    machine = make_machine("b1", "b2", "b3")
    machine.done(
        DeclareQueue("/", "q", arguments={"x-group": "b1"}),
        SetInSync(1, (Member("b2", "b2.1", WHOLE),), 1, 1),
    )
    return machine


def orders(
    machine: Machine,
    change: Change,
    root: str = "b3",
    connections: int = 2,
    unaware: tuple[str, ...] = (),
) -> PlannedChange:
    return planned_change_for(change, machine.state, root, connections, unaware)


def refusal(machine: Machine, change: Change, root: str = "b3") -> str:
    found = orders(machine, change, root)
    assert found.command is None
    assert found.preview.steps == ()
    return found.preview.refusal


# --- drain


def test_drain_shows_where_everything_goes() -> None:
    machine = cluster()
    found = orders(machine, Change("drain", "b1", grace_ms=30_000), root="b1")
    assert found.preview.steps == (
        "group 1 with 1 queue moves to b2, which has a whole copy",
        "another primary becomes root",
        "its 2 connections are asked to go elsewhere over 30 s, and new ones are not taken",
    )
    assert found.command == SetDraining("b1", True, 30_000)


def test_drain_shows_what_must_be_copied_first_and_who_takes_its_copies() -> None:
    machine = cluster()
    found = orders(machine, Change("drain", "b2"))
    assert found.preview.steps[:2] == (
        "group 2 with 0 queues is copied to b3, then moves there",
        "others keep the copies that it has of group 1; then it is let go",
    )


def test_drain_warns_of_queues_that_cannot_move() -> None:
    machine = cluster()
    machine.done(DeclareQueue("/", "tmp", arguments={"x-replicate": "none", "x-group": "b1"}))
    (warning,) = orders(machine, Change("drain", "b1")).preview.warnings
    assert warning == (
        "1 queue of group 4 are not replicated (x-replicate none): unavailable while b1 is stopped"
    )


def test_drain_is_refused_when_the_quorum_needs_the_broker() -> None:
    machine = cluster()
    machine.done(SetAway("b3", "b3.1", True))
    assert "can't be drained" in refusal(machine, Change("drain", "b1"))


def test_nothing_is_changed_without_a_root_or_about_nobody() -> None:
    assert "no root" in refusal(cluster(), Change("drain", "b1"), root="")
    assert "no broker 'b9'" in refusal(cluster(), Change("drain", "b9"))


def test_undrain_is_for_brokers_that_drain() -> None:
    machine = cluster()
    assert "not being drained" in refusal(machine, Change("undrain", "b1"))
    machine.done(SetDraining("b1", True))
    assert orders(machine, Change("undrain", "b1")).command == SetDraining("b1", False)


# --- move


def test_move_is_planned_in_the_epoch_that_was_shown_and_pins_the_group() -> None:
    found = orders(cluster(), Change("move-home", "b2", 1))
    assert found.command == PinHome(1, "b2", 1)
    assert found.preview.steps[0] == "group 1 with 1 queue moves to b2, which has a whole copy"
    assert "until `rhizome group unpin 1`" in found.preview.steps[-1]
    assert "is copied to b3" in orders(cluster(), Change("move-home", "b3", 1)).preview.steps[0]


def test_move_pins_nothing_while_a_broker_does_not_know_pins() -> None:
    machine = cluster()
    found = orders(machine, Change("move-home", "b2", 1), unaware=("b3",))
    assert found.command == PlanMove(1, "b2", 1)
    (warning,) = found.preview.warnings
    assert warning.startswith("b3 can't tell that a person has moved it")
    machine.done(PlanMove(1, "b2", 1), TransferHome(1, "b2", "b2.1", 1, 2))
    back = orders(machine, Change("move-home", "b1", 1), unaware=("b3",))
    assert (back.command, back.preview.warnings) == (PlanMove(1, "b1", 2), ())


def test_move_pins_nothing_where_homes_follow_the_root() -> None:
    machine = cluster()
    machine.done(PutSettings("root", 2, "ring", 1 << 20))
    found = orders(machine, Change("move-home", "b2", 1))
    assert found.command == PlanMove(1, "b2", 1)
    assert found.preview.warnings[0].startswith("the placement is root")


def test_move_to_where_a_group_belongs_leaves_it_without_a_pin() -> None:
    machine = cluster()
    machine.done(PinHome(1, "b2", 1), TransferHome(1, "b2", "b2.1", 1, 2))
    assert machine.state.groups.groups[1].pinned == "b2"
    found = orders(machine, Change("move-home", "b1", 1))
    assert not any("pinned" in step for step in found.preview.steps)
    assert found.command is not None
    machine.done(found.command)
    group = machine.state.groups.groups[1]
    assert (group.pinned, group.moving_to) == ("", "b1")


def test_unpinned_is_what_is_pinned() -> None:
    machine = cluster()
    assert "is not pinned" in refusal(machine, Change("unpin", group=1))
    assert "there is no group 9" in refusal(machine, Change("unpin", group=9))
    machine.done(PinHome(1, "b2", 1))
    found = orders(machine, Change("unpin", group=1))
    assert found.preview.steps[0] == "group 1 is no longer pinned to b2"
    assert found.command == PinHome(1, "", 1)


def test_move_that_makes_no_sense_is_refused() -> None:
    machine = cluster()
    machine.done(register("w", role="witness"))
    machine.done(DeclareQueue("/", "tmp", arguments={"x-replicate": "none", "x-group": "b1"}))
    assert "is the home of group 1 already" in refusal(machine, Change("move-home", "b1", 1))
    assert "is a witness" in refusal(machine, Change("move-home", "w", 1))
    assert "no group 9" in refusal(machine, Change("move-home", "b2", 9))
    assert "not replicated" in refusal(machine, Change("move-home", "b2", 4))
    machine.done(SetDraining("b2", True))
    assert "is being drained" in refusal(machine, Change("move-home", "b2", 1))
    machine.done(SetAway("b1", "b1.1", True))
    assert "is unavailable" in refusal(machine, Change("move-home", "b3", 1))


# --- force


def copy(broker: str, epoch: int, index: int, usable: bool = True) -> CopyInfo:
    return CopyInfo(broker, f"{broker}.1", "spare", epoch, index, usable)


def lost() -> Machine:
    """b1, home of group 1, and b2, in sync, are down."""
    machine = cluster()
    machine.done(SetAway("b1", "b1.1", True), SetAway("b2", "b2.1", True))
    return machine


def test_force_shows_the_copy_that_it_begins_with_and_what_that_lacks() -> None:
    found = orders(lost(), Change("force-home", "b3", 1, copies=(copy("b3", 1, 40),)))
    assert found.preview.steps[:2] == (
        "b3 becomes the home of group 1 (1 queue) in epoch 2",
        "it begins with its copy, which ends at record 40 of epoch 1",
    )
    assert found.preview.warnings == (
        "b3 was not in sync: messages that publishers were told are safe may be lost, and messages"
        " that were acked may come again",
        "b1 does not answer: what only it has is lost; start it if you can",
        "b2 does not answer: what only it has is lost; start it if you can",
    )
    assert found.command == ForceHome(1, "b3", "b3.1", 1, 2, 1)


def test_force_says_what_becomes_of_what_others_have() -> None:
    machine = cluster()
    machine.done(
        DeclareQueue("/", "s", True, arguments={"x-queue-type": "stream", "x-group": "b1"})
    )
    (stream,) = (each.id for each in machine.state.groups.groups.values() if each.stream)
    machine.done(SetAway("b1", "b1.1", True), SetAway("b2", "b2.1", True))
    told = [
        orders(machine, Change("force-home", "b3", group)).preview.steps[-1]
        for group in (1, stream)
    ]
    assert told == [
        "copies elsewhere that come back set aside what it lacks, and raise an alarm",
        "copies elsewhere that come back drop what it lacks: keep a copy of their data directories",
    ]


def test_force_without_a_copy_gives_up_everything() -> None:
    found = orders(lost(), Change("force-home", "b3", 1))
    assert found.preview.warnings[0] == "ALL messages of group 1 are given up"
    assert found.command == ForceHome(1, "b3", "b3.1", 1, 2, 0)


def test_force_names_a_better_copy() -> None:
    machine = make_machine("b1", "b2", "b3", "b4")
    machine.done(DeclareQueue("/", "q", arguments={"x-group": "b1"}), SetAway("b1", "b1.1", True))
    copies = (copy("b3", 1, 40), copy("b4", 1, 45), copy("b2", 1, 10))
    warnings = orders(machine, Change("force-home", "b3", 1, copies=copies)).preview.warnings
    assert warnings[0] == (
        "b4 has 5 records more, up to record 45 of epoch 1: choose it instead if you can"
    )
    assert not any("b2 has" in each for each in warnings)


def test_force_of_a_copy_on_disk_says_that_transient_messages_may_be_lost() -> None:
    machine = cluster()
    machine.done(SetAway("b1", "b1.1", True), register("b2", "b2.2"))
    assert machine.state.groups.groups[1].in_sync == (Member("b2", "b2.2", DISK),)
    warnings = orders(
        machine, Change("force-home", "b2", 1, copies=(copy("b2", 1, 5),))
    ).preview.warnings
    assert warnings[0] == "b2 has what was on disk only: transient messages may be lost"


def test_force_is_refused_where_nothing_needs_to_be_forced() -> None:
    machine = cluster()
    assert "has its home, b1" in refusal(machine, Change("force-home", "b2", 1))
    machine = lost()
    assert "b2 is down" in refusal(machine, Change("force-home", "b2", 1))
    broken = Change("force-home", "b3", 1, copies=(copy("b3", 1, 4, usable=False),))
    assert "installed or damaged" in refusal(machine, broken)


def test_basis_changes_with_the_group_and_with_the_copy() -> None:
    machine = lost()

    def basis(index: int) -> str:
        change = Change("force-home", "b3", 1, copies=(copy("b3", 1, index),))
        return orders(machine, change).preview.basis

    shown = basis(40)
    assert basis(41) != shown
    machine.done(SetInSync(1, (), 1, 2))
    assert basis(40) != shown


def test_removed_home_is_named_as_a_loss() -> None:
    machine = cluster()
    machine.done(SetInSync(1, (), 1, 2), RetireBroker("b1"))
    warnings = orders(machine, Change("force-home", "b3", 1)).preview.warnings
    assert warnings[-1] == "its last home was removed from the cluster, with what only that had"


# --- settings


def settings(machine: Machine, **given: int | str) -> PlannedChange:
    return orders(machine, Change("settings", settings=tuple(given.items())))


def test_settings_are_changed_one_by_one() -> None:
    machine = cluster()
    found = settings(machine, copies=3)
    assert found.command == PutSettings("spread", 3, "ring", 64 << 20, 1)
    assert found.preview.steps == (
        "copies is 3 from now on (now 2)",
        "groups are copied to more brokers, where no policy says otherwise",
    )
    assert found.preview.warnings == ()
    fewer = settings(machine, copies=1, placement="root").preview
    assert "copies that are more than wanted are let go" in fewer.steps
    assert "placement is root from now on (now spread)" in fewer.steps


def test_settings_that_cannot_be_met_are_warned_of_or_refused() -> None:
    machine = cluster()
    assert settings(machine, copies=5).preview.warnings == (
        "there are 3 brokers that hold queues, so 3 copies",
    )
    (warning,) = settings(machine, copies=5, min_copies=4).preview.warnings
    assert "publishers are blocked" in warning
    assert "from 1 to copies" in settings(machine, min_copies=3).preview.refusal
    assert "are so already" in settings(machine, copies=2).preview.refusal


# --- pictures


def test_groups_are_shown_as_the_state_and_their_homes_say() -> None:
    machine = cluster()
    news = {
        "b1": {"messages": {"1": 7}, "records": {"1": 90}, "lags": {"1": {"b2": 4}}},
        "b2": {},
    }
    first, second, third = group_infos(machine.state, news)
    assert (first.home, first.messages, first.index, first.queues) == ("b1", 7, 90, 1)
    assert [(each.broker, each.copy, each.lag) for each in first.in_sync] == [("b2", WHOLE, 4)]
    assert (second.home, second.index, second.messages) == ("b2", None, 0)
    assert (third.home, third.unavailable) == (None, "its home b3 can't be reached from here")


def test_unavailable_group_has_no_home_and_a_reason() -> None:
    (first, *_) = group_infos(lost().state, {"b1": {}, "b2": {}, "b3": {}})
    assert first.home is None
    assert first.unavailable.startswith("its home b1 is down")


def test_duties_count_homes_copies_and_what_cannot_move() -> None:
    machine = cluster()
    machine.done(DeclareQueue("/", "tmp", arguments={"x-replicate": "none", "x-group": "b1"}))
    assert duties_of(machine.state)["b1"] == Duties(2, 1, 0)
    assert duties_of(machine.state)["b2"] == Duties(1, 0, 1)
    machine.done(AppointHome(1, "b2", "b2.1", 1, 2))
    assert duties_of(machine.state)["b1"] == Duties(1, 1, 0)
