"""The cluster state as a whole: entries in, equal states out; snapshots."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.metadata.metadata_changes import QueueDeleted
from rhizome.broker.metadata.metadata_commands import (
    PRIVATE,
    Bind,
    Command,
    DamagedCommandError,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeletePolicy,
    DeleteQueue,
    PutLimit,
    PutPolicy,
    PutUser,
    Unbind,
)
from rhizome.cluster.state.cluster_commands import (
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
    SetFailoverList,
    SetInSync,
    TransferHome,
)
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.errors import ResourceLocked
from tests.unit.cluster.state.state_machines import Machine, make_machine, register

GOLDEN = Path(__file__).parent / "golden" / "snapshot.txt"

BROKERS = st.sampled_from(["b1", "b2", "b3", "s1"])
STARTS = st.integers(1, 3)
NAMES = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(1, 3)


def started(name: str, start: int) -> Command:
    role = "secondary" if name == "s1" else "primary"
    return register(name, f"{name}.{start}", role, "rack" if name == "b3" else "")


def retired(name: str, start: int) -> Command:
    return RetireBroker(name, f"{name}.{start}" if start < 3 else "")


def appointed(group: int, name: str, start: int, epoch: int, version: int) -> Command:
    return AppointHome(group, name, f"{name}.{start}", epoch, version)


def in_sync(group: int, name: str, start: int, epoch: int, version: int) -> Command:
    return SetInSync(group, (Member(name, f"{name}.{start}", WHOLE),), epoch, version)


def transferred(group: int, name: str, start: int, epoch: int, version: int) -> Command:
    return TransferHome(group, name, f"{name}.{start}", epoch, version)


def forced(group: int, name: str, start: int, epoch: int, version: int) -> Command:
    return ForceHome(group, name, f"{name}.{start}", epoch, version, epoch - 1)


def away(name: str, start: int, is_away: bool, lost: bool) -> Command:
    return SetAway(name, f"{name}.{start}", is_away, lost)


CLUSTER: st.SearchStrategy[Command] = st.one_of(
    st.builds(started, BROKERS, STARTS),
    st.builds(started, BROKERS, STARTS),
    st.builds(retired, BROKERS, STARTS),
    st.builds(appointed, SMALL, BROKERS, STARTS, SMALL, SMALL),
    st.builds(in_sync, SMALL, BROKERS, STARTS, SMALL, SMALL),
    st.builds(transferred, SMALL, BROKERS, STARTS, SMALL, SMALL),
    st.builds(forced, SMALL, BROKERS, STARTS, SMALL, SMALL),
    st.builds(PlanMove, SMALL, st.one_of(BROKERS, st.just("")), SMALL),
    st.builds(PinHome, SMALL, st.one_of(BROKERS, st.just("")), SMALL),
    st.builds(away, BROKERS, STARTS, st.booleans(), st.booleans()),
    st.builds(SetDraining, BROKERS, st.booleans()),
    st.builds(SetFailoverList, BROKERS, st.lists(BROKERS, max_size=2).map(tuple)),
    st.builds(
        PutSettings,
        st.sampled_from(["spread", "root"]),
        SMALL,
        st.just("ring"),
        st.sampled_from([700, 1 << 20]),
    ),
)
SHARED: st.SearchStrategy[Command] = st.one_of(
    st.builds(DeclareQueue, st.just("/"), NAMES),
    st.builds(
        DeclareQueue,
        st.just("/"),
        NAMES,
        arguments=st.sampled_from([{"x-group": "b1"}, {"x-group": "2"}, {"x-replicate": "none"}]),
    ),
    st.builds(
        DeclareQueue,
        st.just("/"),
        NAMES,
        st.just(True),
        arguments=st.sampled_from(
            [
                {"x-queue-type": "stream"},
                {"x-queue-type": "stream", "x-initial-cluster-size": 3},
                {"x-queue-type": "stream", "x-replicate": "none"},
                {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3},
            ]
        ),
    ),
    st.builds(
        PutPolicy,
        st.just("/"),
        NAMES,
        NAMES,
        st.sampled_from(
            [{"copies": 3}, {"copies": 1, "min-copies": 2}, {"replicate": "none"}, {"group": "b2"}]
        ),
    ),
    st.builds(DeletePolicy, st.just("/"), NAMES),
    st.builds(DeleteQueue, st.just("/"), NAMES),
    st.builds(DeclareExchange, st.just("/"), NAMES, st.just("topic"), auto_delete=st.booleans()),
    st.builds(DeleteExchange, st.just("/"), NAMES, st.booleans()),
    st.builds(Bind, st.just("/"), NAMES, NAMES, st.sampled_from(["queue", "exchange"])),
    st.builds(Unbind, st.just("/"), NAMES, NAMES),
    st.builds(PutUser, NAMES, st.just("hash")),
    st.builds(PutLimit, st.just("vhost"), st.just("/"), st.just("max-queues"), st.integers(-1, 2)),
)
OWN: st.SearchStrategy[Command] = st.one_of(
    st.builds(DeclareQueue, st.just("/"), NAMES, exclusive_owner=st.just("1")),
    st.builds(Bind, st.just("/"), NAMES, NAMES, st.just(PRIVATE)),
)
PROPOSERS = st.sampled_from(["", "b1.1", "b1.2", "b2.1", "s1.1"])
ENTRIES = st.lists(
    st.tuples(st.one_of(CLUSTER, SHARED, SHARED), PROPOSERS, st.integers(1, 12), st.integers(0, 6)),
    max_size=50,
)


@given(ENTRIES, st.data())
@settings(max_examples=150)
def test_brokers_agree_whatever_they_missed_and_have_of_their_own(
    entries: list[tuple[Command, str, int, int]], data: st.DataObject
) -> None:
    ours, theirs = make_machine("b1", "b2"), make_machine("b1", "b2")
    for command, proposer, number, answered in entries:
        for own in data.draw(st.lists(OWN, max_size=2)):
            theirs.host.apply(own)
        here = ours.feed(command, proposer, number, answered)
        if data.draw(st.integers(0, 9)) == 0:  # it gets a snapshot instead
            theirs.state.restore(ours.state.index, ours.state.snapshot())
        else:
            there = theirs.feed(command, proposer, number, answered)
            assert repr(here.outcome.error) == repr(there.outcome.error)
            assert (here.duplicate, here.facts) == (there.duplicate, there.facts)
        assert ours.state.snapshot() == theirs.state.snapshot()
        assert ours.state.failover_map == theirs.state.failover_map
        assert ours.state.size.bytes_used == theirs.state.size.bytes_used
        assert (
            ours.state.groups.copy_requirements.by_group
            == theirs.state.groups.copy_requirements.by_group
        )
        check_counts(theirs.state)


def check_counts(state: ClusterState) -> None:
    """What is kept as groups and queues change is what a walk over all of them finds."""
    groups, index = state.groups, state.groups.index
    everything = list(groups.groups.values())
    queues = [each for each in everything if not each.stream]
    assert list(index.replicated) == [each.id for each in queues if not each.local]
    assert list(index.local) == [each.id for each in queues if each.local]
    assert index.streams_at == Counter(each.home for each in everything if each.stream)
    assert index.most_copies() == max((each.copies for each in everything), default=0)
    for number in groups.groups:
        asked = groups.copy_requirements.by_group.get(number, {}).values()
        least = max((each.min_copies if each.min_copies > 0 else 2 for each in asked), default=2)
        most = max((each.copies if each.copies > 0 else 4 for each in asked), default=4)
        assert groups.copy_requirements.copies(number, 4, 2) == (max(most, least), least)


@given(ENTRIES)
def test_groups_and_registry_keep_their_invariants(
    entries: list[tuple[Command, str, int, int]],
) -> None:
    machine = make_machine("b1", "b2")
    epochs: dict[int, tuple[int, str, str]] = {}
    for command, proposer, number, answered in entries:
        machine.feed(command, proposer, number, answered)
        state = machine.state
        check_counts(state)
        seniorities = [broker.seniority for broker in state.registry.view()]
        assert seniorities == sorted(set(seniorities))
        assert list(state.failover_map) == [broker.name for broker in state.registry.view()]
        for group in state.groups.groups.values():
            assert group.stream or group.id < state.groups.next_id
            epoch, home, incarnation = epochs.get(group.id, (0, "", ""))
            assert group.epoch >= epoch
            if group.epoch == epoch:
                assert (group.home, group.incarnation) == (home, incarnation)
            epochs[group.id] = (group.epoch, group.home, group.incarnation)
            assert group.member(group.home) is None
            assert group.moving_to != group.home or not group.moving_to
            assert not group.local or not (group.in_sync or group.failover or group.moving_to)
            assert group.parent < group.epoch
            copy_requirements = state.groups.copy_requirements
            asked = copy_requirements.copies(
                group.id, state.settings.copies, state.settings.min_copies
            )
            assert (group.copies, group.min_copies) == ((1, 1) if group.local else asked)
        for vhost in machine.host.state.vhosts.values():
            assert all(q.group in state.groups.groups for q in vhost.queues.values())


# --- what only one broker has


@pytest.mark.parametrize(
    "command",
    [
        DeclareQueue("/", "q", exclusive_owner="1"),
        DeclareQueue("/", "q", queue_id=7),
        DeclareQueue("/", "q", group=1),
        DeclareExchange("/", "x", "topic", exchange_id=7),
        Bind("/", "amq.topic", "q", PRIVATE),
        Unbind("/", "amq.topic", "q", PRIVATE),
        DeleteQueue("/", "q", 1 << 31),
    ],
)
def test_what_only_one_broker_has_is_refused_in_the_log(command: Command) -> None:
    machine = make_machine("b1")
    assert "only one broker has" in machine.refused(command)


# --- snapshots


def example() -> Machine:
    machine = make_machine("b1", "b2", "b3")
    machine.done(register("s1", role="secondary"), PutSettings("spread", 3, "ring", 1 << 20))
    machine.feed(DeclareQueue("/", "work", True), "b1.1", 1)
    machine.feed(DeclareQueue("/", "work", False), "b1.1", 2)
    machine.done(
        SetInSync(1, (Member("b2", "b2.1", WHOLE),), 1, 1),
        register("b1", "b1.2"),
        SetDraining("b3", True),
        SetFailoverList("b3", ("b1",)),
    )
    machine.feed(DeclareExchange("/", "x", "topic"), "b2.1", 1)
    machine.feed(Bind("/", "x", "none"), "b2.1", 2)
    return machine


def test_snapshot_format_is_the_one_on_disk_everywhere() -> None:
    """A change here makes existing stores unreadable: add a version instead."""
    data = bytes.fromhex("".join(GOLDEN.read_text().split()))
    assert example().state.snapshot() == data


def test_a_snapshot_from_before_streams_had_numbers_of_their_own_is_read() -> None:
    table = read_table(example().state.snapshot(), 0)[0]
    for name in ("last_stream", "stream_epoch"):
        del table[name]
    other = Machine()
    other.state.restore(1, encode_table(table))
    assert other.state.groups.last_stream == example().state.groups.last_stream


def test_restored_state_is_equal_in_all_parts() -> None:
    machine, other = example(), Machine()
    other.state.restore(machine.state.index, machine.state.snapshot())
    ours, theirs = machine.state, other.state
    assert theirs.index == ours.index
    assert (theirs.settings, theirs.settings_given) == (ours.settings, ours.settings_given)
    assert theirs.registry.view() == ours.registry.view()
    assert theirs.groups.groups == ours.groups.groups
    assert theirs.groups.queues == ours.groups.queues
    assert theirs.groups.next_id == ours.groups.next_id
    assert theirs.groups.last_stream == ours.groups.last_stream
    assert theirs.groups.stream_epoch == ours.groups.stream_epoch
    assert theirs.failover_map == ours.failover_map
    assert theirs.dedup.windows == ours.dedup.windows
    assert theirs.size.bytes_used == ours.size.bytes_used
    assert theirs.snapshot() == ours.snapshot()


def test_queue_that_was_deleted_meanwhile_is_deleted_by_a_snapshot() -> None:
    machine, other = example(), example()
    machine.done(DeclareQueue("/", "new"), DeleteQueue("/", "work"))
    outcomes = other.state.restore(machine.state.index, machine.state.snapshot())
    gone = [f for outcome in outcomes for f in outcome.facts if isinstance(f, QueueDeleted)]
    assert [fact.definition.name for fact in gone] == ["work"]
    assert list(other.host.state.vhosts["/"].queues) == ["new"]


def test_damaged_snapshot_changes_nothing() -> None:
    machine = example()
    data = machine.state.snapshot()
    before = make_machine("b7")
    untouched = before.state.snapshot()
    for length in range(0, len(data), 41):
        with pytest.raises(DamagedCommandError):
            before.state.restore(99, data[:length])
    with pytest.raises(DamagedCommandError):
        before.state.restore(99, data + b"\0")
    assert before.state.snapshot() == untouched


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DeclareQueue("/", "q", True), DeclareQueue("/", "q", False)),
        (DeclareExchange("/", "x", "topic"), DeclareExchange("/", "x", "fanout")),
    ],
)
def test_conflicting_declares_have_one_winner(first: Command, second: Command) -> None:
    machine = make_machine("b1", "b2")
    won = machine.feed(first, "b1.1", 1).outcome
    after = machine.host.state.snapshot(transient=True)
    lost = machine.feed(second, "b2.1", 1).outcome
    assert won.error is None
    assert lost.error is not None
    assert lost.error.code == 406
    assert machine.host.state.snapshot(transient=True) == after


def test_private_queue_is_not_declared_over_a_shared_one() -> None:
    machine = make_machine("b1")
    machine.done(DeclareQueue("/", "q"))
    outcome = machine.host.apply(DeclareQueue("/", "q", exclusive_owner="1"))
    assert isinstance(outcome.error, ResourceLocked)


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "from tests.unit.cluster.state.test_cluster_state import example;"
        "print(example().state.snapshot().hex())"
    )
    printed = []
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, check=True
        )
        printed.append(run.stdout)
    assert printed[0] == printed[1]
    assert bytes.fromhex(printed[0].decode().strip()) == example().state.snapshot()


def test_numbers_that_were_given_are_not_given_again_after_a_snapshot() -> None:
    machine, other = make_machine("b1"), Machine()
    machine.done(DeclareQueue("/", "q"), DeclareExchange("/", "x", "topic"))
    machine.done(DeleteQueue("/", "q"), DeleteExchange("/", "x"))
    other.state.restore(machine.state.index, machine.state.snapshot())
    for each in (machine, other):
        each.done(DeclareQueue("/", "q"), DeclareExchange("/", "x", "topic"))
        vhost = each.host.state.vhosts["/"]
        assert (vhost.queues["q"].id, vhost.router.exchanges["x"].id) == (2, 2)
