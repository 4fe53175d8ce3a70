"""Brokers register, restart, are drained and retire."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.cluster.state.broker_registry import BrokerRecord, Registry
from rhizome.cluster.state.cluster_commands import (
    RegisterBroker,
    RetireBroker,
    SetAway,
    SetDraining,
)
from rhizome.cluster.state.failover_map import FailoverMap
from rhizome.cluster.state.state_changes import BrokerChanged, BrokerRemoved
from tests.unit.cluster.state.state_machines import Machine, make_machine, register


def test_seniority_is_the_index_of_the_first_registration() -> None:
    machine = make_machine("b2", "b1")
    assert [(b.name, b.seniority) for b in machine.state.registry.view()] == [("b2", 2), ("b1", 3)]
    machine.done(register("b2", "b2.2"))
    assert [(b.name, b.seniority) for b in machine.state.registry.view()] == [("b2", 2), ("b1", 3)]
    assert machine.state.registry.get("b2").incarnation == "b2.2"


class ByItsClock(Registry):
    """R6 broken: whoever applies a registration reads its own clock."""

    def __init__(self, readings: list[int]) -> None:
        super().__init__()
        self.readings = readings

    def register(self, index: int, command: RegisterBroker) -> BrokerRecord:
        return super().register(self.readings.pop(0), command)


def failover_map_by(registry: Registry) -> FailoverMap:
    machine = Machine()
    machine.state.registry = registry
    machine.done(*(register(name) for name in ("b1", "b2", "b3")))
    return machine.state.failover_map


@pytest.mark.parametrize("broken", [True, False])
def test_seniority_by_the_clock_makes_brokers_disagree_who_takes_over(broken: bool) -> None:
    """The clock of the second broker was set back meanwhile."""
    if broken:
        maps = [failover_map_by(ByItsClock(each)) for each in ([10, 20, 30], [10, 90, 40])]
    else:
        maps = [failover_map_by(Registry()) for _ in range(2)]
    assert (maps[0] == maps[1]) is not broken


def test_registering_again_the_same_changes_nothing() -> None:
    machine = make_machine("b1")
    assert machine.feed(register("b1")).facts == []


def test_new_incarnation_ends_the_one_before() -> None:
    machine = make_machine("b1")
    changed = machine.done(register("b1", "b1.2")).facts[0]
    assert changed == BrokerChanged(machine.state.registry.get("b1"), "b1.1")
    text = machine.refused(register("b1", "b1.1"))
    assert text == "incarnation 'b1.1' of broker 'b1' is over: start the broker again"


def test_name_and_uuid_are_bound_to_each_other() -> None:
    machine = make_machine("b1")
    wiped = RegisterBroker("b1", "u-new", "b1.2", "primary", (), "")
    assert machine.refused(wiped) == (
        "broker 'b1' with UUID u-new can't register: 'b1' has UUID u-b1; remove that one first"
    )
    renamed = RegisterBroker("b9", "u-b1", "b1.2", "primary", (), "")
    assert "'b1' has UUID u-b1" in machine.refused(renamed)
    machine.done(RetireBroker("b1"), wiped)
    assert machine.state.registry.get("b1").seniority == machine.state.index


def test_incarnation_belongs_to_one_broker() -> None:
    machine = make_machine("b1")
    assert "is over" in machine.refused(register("b2", "b1.1"))


def test_what_is_no_broker_is_refused() -> None:
    machine = make_machine()
    assert "must be one of" in machine.refused(register("b1", role="leader"))
    assert "must have a name" in machine.refused(RegisterBroker("", "u", "i", "primary", (), ""))


def test_retired_primary_keeps_seniority_and_group() -> None:
    machine = make_machine("b1", "b2")
    applied = machine.done(RetireBroker("b1", "b1.1"))
    broker = machine.state.registry.get("b1")
    assert applied.facts[0] == BrokerChanged(broker, "b1.1")
    assert (broker.incarnation, broker.seniority) == ("", 2)
    assert [group.home for group in machine.state.groups.groups.values()] == ["b1", "b2"]
    machine.done(register("b1", "b1.2"))
    assert machine.state.registry.get("b1").seniority == 2
    assert "is over" in machine.refused(register("b1", "b1.1"))


def test_retired_secondary_leaves_nothing_behind() -> None:
    machine = make_machine("b1")
    machine.done(register("s1", role="secondary"))
    gone = machine.state.registry.get("s1")
    assert BrokerRemoved(gone) in machine.done(RetireBroker("s1", "s1.1")).facts
    assert "s1" not in machine.state.registry.brokers


def test_retiring_an_incarnation_that_is_not_the_current_one_changes_nothing() -> None:
    machine = make_machine("b1")
    machine.done(register("b1", "b1.2"))
    assert machine.feed(RetireBroker("b1", "b1.1")).facts == []
    assert machine.feed(RetireBroker("b7")).facts == []


def test_draining_is_a_flag_that_survives_a_restart() -> None:
    machine = make_machine("b1", "b2", "b3")
    facts = machine.done(SetDraining("b1", True)).facts
    assert facts[0] == BrokerChanged(machine.state.registry.get("b1"))
    assert machine.feed(SetDraining("b1", True)).facts == []
    machine.done(register("b1", "b1.2"))
    assert machine.state.registry.get("b1").draining
    machine.done(SetDraining("b1", False))
    assert not machine.state.registry.get("b1").draining


def test_broker_that_is_needed_for_the_quorum_is_not_drained() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(register("s1", role="secondary"), SetDraining("s1", True))
    machine.done(SetDraining("b1", True))
    assert machine.refused(SetDraining("b2", True)) == (
        "broker 'b2' can't be drained: of 3 that vote 1 would stay, and 2 must; "
        "undrain, start or add another first"
    )
    assert "no broker 'b9'" in machine.refused(SetDraining("b9", True))


def test_broker_that_is_away_does_not_count_as_staying() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(SetAway("b2", "b2.1", True))
    assert "1 would stay, and 2 must" in machine.refused(SetDraining("b1", True))
    machine.done(SetAway("b2", "b2.1", False), SetDraining("b1", True))


def test_only_the_present_incarnation_can_be_away() -> None:
    machine = make_machine("b1", "b2")
    assert machine.done(SetAway("b2", "b2.9", True)).facts == []
    machine.done(SetAway("b2", "b2.1", True))
    assert machine.state.registry.get("b2").away
    machine.done(register("b2", "b2.1", machine="elsewhere"))
    assert machine.state.registry.get("b2").away
    machine.done(register("b2", "b2.2"))
    assert not machine.state.registry.get("b2").away


def test_grace_is_remembered_while_a_broker_drains() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(SetDraining("b1", True, 60_000), register("b1", "b1.2"))
    assert machine.state.registry.get("b1").grace_ms == 60_000
    machine.done(SetDraining("b1", True, 5_000))
    assert machine.state.registry.get("b1").grace_ms == 5_000
    machine.done(SetDraining("b1", False, 5_000))
    assert machine.state.registry.get("b1").grace_ms == 0


def test_witness_counts_for_the_quorum() -> None:
    machine = make_machine("b1", "b2")
    machine.done(register("w", role="witness"), SetDraining("b1", True))
    assert "can't be drained" in machine.refused(SetDraining("b2", True))


def test_new_queues_avoid_a_broker_that_is_drained_or_gone() -> None:
    machine = make_machine("b1", "b2", "b3")
    machine.done(SetDraining("b1", True), RetireBroker("b2", "b2.1"))
    groups = [machine.declared_group(DeclareQueue("/", f"q{i}")) for i in range(3)]
    assert groups == [3, 3, 3]


def test_identity_that_consensus_has_checked_takes_the_place_of_the_old_one() -> None:
    """R7: consensus registers a new UUID under a name only after the old identity is gone."""
    machine = make_machine("b1", "b2")
    old = machine.state.registry.get("b1")
    new = RegisterBroker("b1", "u-new", "b1.9", "primary", (), "")
    applied = machine.state.apply_command(machine.state.index + 1, new)
    assert applied.outcome.error is None
    broker = machine.state.registry.get("b1")
    assert (broker.uuid, broker.seniority) == ("u-new", machine.state.index)
    assert BrokerRemoved(old) in applied.facts
    assert BrokerChanged(broker) in applied.facts
    late = machine.feed(DeclareQueue("/", "q"), "b1.1", 1)
    assert late.outcome.error is not None
