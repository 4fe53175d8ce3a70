"""Snapshots, and the property that they stand on: equal commands make equal states."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.broker.metadata.metadata_commands import (
    Bind,
    Command,
    DamagedCommandError,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteLimit,
    DeleteParameter,
    DeletePermission,
    DeletePolicy,
    DeleteQueue,
    DeleteUser,
    DeleteVhost,
    PutLimit,
    PutParameter,
    PutPermission,
    PutPolicy,
    PutTopicPermission,
    PutUser,
    PutVhost,
    Unbind,
    decode,
    encode,
)
from rhizome.broker.metadata.metadata_snapshot import commands_of
from rhizome.broker.metadata.metadata_state import State

GOLDEN = Path(__file__).parent / "golden" / "snapshot.txt"
GOLDEN_0_1 = Path(__file__).parent / "golden" / "snapshot-0.1.txt"

VHOSTS = st.sampled_from(["/", "dev"])
NAMES = st.sampled_from(["a", "b", "c"])
SOURCES = st.sampled_from(["a", "b", "c", "amq.topic", "amq.match"])
KEYS = st.sampled_from(["", "1", "a.*"])
TABLES: st.SearchStrategy[dict[str, object]] = st.sampled_from([{}, {"n": 1}, {"n": True}])
ENDS = st.sampled_from(["queue", "exchange"])
SETTINGS: st.SearchStrategy[dict[str, object]] = st.sampled_from(
    [
        {"max-length": 5},
        {"max-length": 3, "overflow": "reject-publish"},
        {"alternate-exchange": "c"},
    ]
)


def commands(durable: st.SearchStrategy[bool], owners: list[str]) -> st.SearchStrategy[Command]:
    """Commands over few names, so that they meet."""
    kinds = st.sampled_from(["direct", "fanout", "topic", "headers", "x-consistent-hash"])
    return st.one_of(
        st.builds(PutVhost, VHOSTS, st.sampled_from(["", "text"])),
        st.builds(DeleteVhost, st.just("dev")),
        st.builds(DeclareExchange, VHOSTS, NAMES, kinds, durable, st.booleans()),
        st.builds(DeleteExchange, VHOSTS, NAMES, st.booleans()),
        st.builds(
            DeclareQueue, VHOSTS, NAMES, durable, st.booleans(), st.sampled_from(owners), TABLES
        ),
        st.builds(DeleteQueue, VHOSTS, NAMES),
        st.builds(Bind, VHOSTS, SOURCES, NAMES, ENDS, KEYS, TABLES),
        st.builds(Unbind, VHOSTS, SOURCES, NAMES, ENDS, KEYS, TABLES),
        st.builds(
            PutPolicy,
            VHOSTS,
            NAMES,
            st.sampled_from(["a", ".*"]),
            SETTINGS,
            st.sampled_from(["all", "queues", "exchanges"]),
            st.integers(0, 2),
        ),
        st.builds(DeletePolicy, VHOSTS, NAMES),
        st.builds(PutUser, NAMES, st.just("hash")),
        st.builds(DeleteUser, NAMES),
        st.builds(PutPermission, NAMES, VHOSTS, KEYS, KEYS, KEYS),
        st.builds(DeletePermission, NAMES, VHOSTS),
        st.builds(PutTopicPermission, NAMES, VHOSTS, SOURCES, KEYS, KEYS),
        st.builds(PutLimit, st.just("vhost"), VHOSTS, st.just("max-queues"), st.integers(-1, 2)),
        st.builds(DeleteLimit, st.just("vhost"), VHOSTS, st.just("max-queues")),
        st.builds(PutParameter, NAMES, VHOSTS, NAMES, TABLES),
        st.builds(DeleteParameter, NAMES, VHOSTS, NAMES),
    )


MIXED = st.lists(commands(st.booleans(), ["", "", "owner"]), max_size=40)
SHARED_AND_DURABLE = st.lists(commands(st.just(True), [""]), max_size=30)


def replay(applied: list[Command]) -> State:
    state = State()
    state.apply(PutVhost("/"))
    for command in applied:
        outcome = state.apply(command)
        if outcome.error is not None:
            assert not outcome.changed
            assert outcome.facts == []
    return state


def everything(state: State) -> list[object]:
    """All that a state holds, derived values and private queues included."""
    numbers = (state.next_queue_id, state.next_exchange_id)
    found: list[object] = [numbers, *commands_of(state, transient=True)]
    for vhost in state.vhosts.values():
        found.append(list(vhost.destinations) == list(vhost.queues))
        for exchange in vhost.router.exchanges.values():
            found.append((exchange.name, exchange.alternate, len(exchange.bindings())))
        for queue in vhost.queues.values():
            options = queue.options
            found.append((queue.id, queue.name, queue.exclusive_owner, queue.policy))
            found.append((int(options.length_max), options.overflow))
    return found


@given(MIXED)
def test_states_fed_the_same_commands_are_equal(applied: list[Command]) -> None:
    assert everything(replay(applied)) == everything(replay(applied))
    assert replay(applied).snapshot() == replay(applied).snapshot()


@given(MIXED)
def test_commands_mean_the_same_after_encoding(applied: list[Command]) -> None:
    decoded = [decode(encode(command)) for command in applied]
    assert everything(replay(decoded)) == everything(replay(applied))


@given(MIXED)
def test_refused_commands_change_nothing(applied: list[Command]) -> None:
    accepted = []
    state = replay([])
    for command in applied:
        if state.apply(command).error is None:
            accepted.append(command)
    assert everything(replay(accepted)) == everything(state)


@given(SHARED_AND_DURABLE, SHARED_AND_DURABLE)
@settings(max_examples=60)
def test_restored_state_goes_on_like_the_one_that_never_stopped(
    before: list[Command], after: list[Command]
) -> None:
    state = replay(before)
    restored = State.restore(state.snapshot())
    assert everything(restored) == everything(state)
    for command in after:
        ours, theirs = state.apply(command), restored.apply(command)
        assert (ours.changed, repr(ours.error)) == (theirs.changed, repr(theirs.error))
        assert [type(fact) for fact in ours.facts] == [type(fact) for fact in theirs.facts]
    assert everything(restored) == everything(state)


@given(MIXED)
def test_snapshot_holds_what_is_durable_and_shared(applied: list[Command]) -> None:
    state = replay(applied)
    restored = State.restore(state.snapshot())
    assert restored.snapshot() == state.snapshot()
    for name, vhost in restored.vhosts.items():
        original = state.vhosts[name]
        assert set(vhost.queues) == {
            queue.name
            for queue in original.queues.values()
            if queue.durable and queue.exclusive_owner == ""
        }
        assert set(vhost.router.exchanges) == {
            exchange.name for exchange in original.router.exchanges.values() if exchange.durable
        }
        assert {queue.id for queue in vhost.queues.values()} <= {
            queue.id for queue in original.queues.values()
        }


@given(MIXED)
def test_full_snapshot_leaves_out_private_queues_only(applied: list[Command]) -> None:
    state = replay(applied)
    restored = State.restore(state.snapshot(transient=True))
    for name, vhost in restored.vhosts.items():
        original = state.vhosts[name]
        assert list(vhost.router.exchanges) == list(original.router.exchanges)
        shared = [q.name for q in original.queues.values() if q.exclusive_owner == ""]
        assert list(vhost.queues) == shared


def example() -> State:
    return replay(
        [
            PutVhost("/", "main", ("a", "b")),
            DeclareExchange("/", "orders", "topic", True, True, arguments={"n": 1}),
            DeclareExchange("/", "passing", "fanout"),
            DeclareQueue("/", "gone", True),
            DeclareQueue("/", "work", True, arguments={"x-max-length": 10}, user="eve"),
            DeleteQueue("/", "gone"),
            DeclareQueue("/", "private", True, exclusive_owner="1"),
            Bind("/", "orders", "work", key="a.*"),
            Bind("/", "orders", "private", key="#"),
            PutPolicy("/", "p", "^w", {"max-length": 5}, "queues", 1),
            PutUser("eve", "hash"),
            PutPermission("eve", "/", ".*", ".*", ".*"),
            PutLimit("user", "eve", "max-queues", 1),
            PutLimit("vhost", "/", "max-queues", 0),
            PutParameter("global", "", "cluster_name", "rhizome"),
        ]
    )


def test_snapshot_format_is_the_one_on_disk_everywhere() -> None:
    """A change here makes existing stores unreadable: add a version instead."""
    data = bytes.fromhex("".join(GOLDEN.read_text().split()))
    assert example().snapshot() == data
    restored = State.restore(data)
    work = restored.vhosts["/"].queues["work"]
    assert (work.id, work.user, int(work.options.length_max)) == (2, "eve", 5)
    assert restored.next_queue_id == 3


def test_snapshot_of_release_0_1_is_still_understood() -> None:
    """It knew no groups and no numbers of exchanges: those are chosen when it is restored."""
    data = bytes.fromhex("".join(GOLDEN_0_1.read_text().split()))
    restored = State.restore(data)
    assert restored.vhosts["/"].queues["work"].group == 1
    assert restored.vhosts["/"].router.exchanges["orders"].id == 1
    assert list(commands_of(restored, False)) == list(commands_of(example(), False))


def test_lowered_limits_do_not_hinder_a_restore() -> None:
    restored = State.restore(example().snapshot())
    assert list(restored.vhosts["/"].queues) == ["work"]
    assert restored.limit("vhost", "/", "max-queues") == 0


def test_damaged_snapshot_is_refused() -> None:
    data = example().snapshot()
    for length in range(0, len(data), 7):
        with pytest.raises(DamagedCommandError):
            State.restore(data[:length])
    with pytest.raises(DamagedCommandError, match="follow its end"):
        State.restore(data + b"\0")


def test_limit_set_again_has_the_same_place_before_and_after_a_restore() -> None:
    state = replay(
        [
            PutUser("a", ""),
            PutUser("b", ""),
            PutLimit("user", "a", "max-queues", 1),
            PutLimit("user", "b", "max-queues", 1),
            DeleteLimit("user", "a", "max-queues"),
        ]
    )
    restored = State.restore(state.snapshot())
    for each in (state, restored):
        each.apply(PutLimit("user", "a", "max-queues", 2))
    assert restored.snapshot() == state.snapshot()
