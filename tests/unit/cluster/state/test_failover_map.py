"""The failover map: the ring, policies of others, and lists that people set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.cluster.state.cluster_commands import PutSettings, RetireBroker, SetFailoverList
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.failover_map import FailoverInfo, UnknownPolicyError, load_policies, ring
from rhizome.cluster.state.state_changes import BrokerChanged, FailoverMapChanged
from tests.unit.cluster.state.state_machines import Machine, PlainHost, make_machine, register


def settings(copies: int = 2, policy: str = "ring") -> PutSettings:
    return PutSettings("spread", copies, policy, 1 << 20)


def failover_map(machine: Machine) -> dict[str, list[str]]:
    found = machine.state.failover_map.items()
    return {name: [info.broker for info in infos] for name, infos in found}


def test_ring_goes_round_in_order_of_seniority() -> None:
    machine = make_machine("b3", "b1", "b2")
    assert failover_map(machine) == {"b3": ["b1"], "b1": ["b2"], "b2": ["b3"]}


def test_ring_is_as_long_as_copies_are_wanted() -> None:
    machine = make_machine("b1", "b2", "b3", "b4")
    machine.done(settings(copies=3))
    assert failover_map(machine)["b3"] == ["b4", "b1"]
    machine.done(settings(copies=9))
    assert failover_map(machine)["b3"] == ["b4", "b1", "b2"]
    machine.done(settings(copies=1))
    assert failover_map(machine)["b3"] == []


def test_ring_skips_the_same_machine_and_those_without_queues() -> None:
    machine = make_machine()
    machine.done(
        register("b1", machine="rack"),
        register("b2", machine="rack"),
        register("w", role="witness"),
        register("s1", role="secondary"),
        register("b3"),
    )
    assert failover_map(machine) == {
        "b1": ["b3"],
        "b2": ["b3"],
        "w": ["b3"],
        "s1": ["b3"],
        "b3": ["b1"],
    }


def test_brokers_on_one_machine_have_nobody_to_take_over() -> None:
    machine = make_machine()
    machine.done(register("b1", machine="rack"), register("b2", machine="rack"))
    assert failover_map(machine) == {"b1": [], "b2": []}


def test_unknown_machines_are_not_the_same() -> None:
    view = [BrokerRecord(n, n, n, "primary", (), "", i) for i, n in enumerate(["b1", "b2"])]
    assert ring("b1", view, 1) == ["b2"]


def test_map_knows_addresses_and_machines() -> None:
    machine = make_machine("b1", "b2")
    assert machine.state.failover_map["b1"] == (FailoverInfo("b2", ("b2:5672",), "m-b2"),)


def test_map_of_a_broker_exists_from_its_registration_on() -> None:
    """J3: whoever hears of the broker can ask for its list."""
    machine = make_machine("b1")
    applied = machine.done(register("b2"))
    assert [type(fact) for fact in applied.facts][:1] == [BrokerChanged]
    assert FailoverMapChanged() in applied.facts
    assert failover_map(machine)["b2"] == ["b1"]


def test_map_is_not_reported_if_it_stays() -> None:
    machine = make_machine("b1", "b2")
    assert FailoverMapChanged() not in machine.done(register("b1", "b1.2")).facts


def test_group_follows_the_list_of_its_home() -> None:
    machine = make_machine("b1", "b2", "b3")
    assert machine.state.groups.groups[1].failover == ("b2",)
    machine.done(RetireBroker("b2"))
    assert machine.state.groups.groups[1].failover == ("b3",)


def test_people_can_set_a_list() -> None:
    machine = make_machine("b1", "b2", "b3")
    assert FailoverMapChanged() in machine.done(SetFailoverList("b1", ("b3", "b2"))).facts
    assert failover_map(machine)["b1"] == ["b3", "b2"]
    machine.done(RetireBroker("b3"))
    assert failover_map(machine)["b1"] == ["b2"]
    machine.done(SetFailoverList("b1", ()))
    assert failover_map(machine)["b1"] == ["b2"]


def test_list_with_brokers_that_cannot_take_over_is_refused() -> None:
    machine = make_machine("b1", "b2")
    machine.done(register("w", role="witness"))
    assert "no broker 'b9'" in machine.refused(SetFailoverList("b1", ("b9",)))
    assert "'w' can't take over" in machine.refused(SetFailoverList("b1", ("w",)))
    assert "'b1' can't take over" in machine.refused(SetFailoverList("b1", ("b1",)))


class EntryPoint:
    """As a package brings one."""

    name = "oldest"

    def load(self) -> Any:
        return oldest


def oldest(broker: str, view: Sequence[BrokerRecord], count: int) -> list[str]:
    """The oldest first, itself and a stranger included: neither may get into the map."""
    return ["stranger", *[each.name for each in view], view[0].name][: count + 3]


def test_policy_comes_by_its_name() -> None:
    machine = make_machine()
    machine.state = ClusterState(machine.host, load_policies([EntryPoint()]))
    machine.done(settings(policy="oldest"), register("b1"), register("b2"), register("b3"))
    assert failover_map(machine) == {"b1": ["b2", "b3"], "b2": ["b1", "b3"], "b3": ["b1", "b2"]}


def test_broker_without_the_policy_of_its_cluster_cannot_go_on() -> None:
    machine = Machine()
    machine.state = ClusterState(PlainHost(), load_policies([]))
    with pytest.raises(UnknownPolicyError, match="'oldest' and this broker has ring: install"):
        machine.done(settings(policy="oldest"))
