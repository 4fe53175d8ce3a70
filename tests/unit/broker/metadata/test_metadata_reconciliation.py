"""A snapshot taken in by a broker that has a state: the difference is applied, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.broker.metadata.metadata_changes import ExchangeUnused, Fact, QueueDeleted
from rhizome.broker.metadata.metadata_commands import (
    PRIVATE,
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
)
from rhizome.broker.metadata.metadata_reconciliation import reconcile
from rhizome.broker.metadata.metadata_state import State

VHOSTS = st.sampled_from(["/", "/", "dev"])
NAMES = st.sampled_from(["a", "b", "c"])
SOURCES = st.sampled_from(["a", "b", "amq.topic"])
KINDS = st.sampled_from(["queue", "exchange"])
TABLES: st.SearchStrategy[dict[str, object]] = st.sampled_from(
    [{}, {"n": 1, "m": 2}, {"m": 2, "n": 1}, {"n": True, "m": 2}]
)
VALUES = st.sampled_from([1, True, "1", {"a": 1}])
LIMITS = st.sampled_from(["max-queues", "max-connections"])


def shared() -> st.SearchStrategy[Command]:
    return st.one_of(
        st.builds(PutVhost, VHOSTS, st.sampled_from(["", "text"])),
        st.builds(DeleteVhost, st.just("dev")),
        st.builds(
            DeclareExchange,
            VHOSTS,
            NAMES,
            st.sampled_from(["direct", "topic"]),
            st.booleans(),
            st.booleans(),
        ),
        st.builds(DeleteExchange, VHOSTS, NAMES),
        st.builds(DeclareQueue, VHOSTS, NAMES, st.booleans(), user=NAMES),
        st.builds(DeclareQueue, VHOSTS, NAMES, st.booleans()),
        st.builds(DeleteQueue, VHOSTS, NAMES),
        st.builds(Bind, VHOSTS, SOURCES, NAMES, KINDS, st.just("k"), TABLES),
        st.builds(Bind, VHOSTS, SOURCES, NAMES, KINDS, st.just("k"), TABLES),
        st.builds(Unbind, VHOSTS, SOURCES, NAMES, KINDS, st.just("k"), TABLES),
        st.builds(
            PutPolicy,
            VHOSTS,
            NAMES,
            st.just(".*"),
            st.sampled_from([{"max-length": 5}, {"max-length": 3}]),
            operator=st.booleans(),
        ),
        st.builds(DeletePolicy, VHOSTS, NAMES, st.booleans()),
        access(),
    )


def access() -> st.SearchStrategy[Command]:
    return st.one_of(
        st.builds(PutUser, NAMES, st.sampled_from(["hash", "other"])),
        st.builds(PutUser, NAMES, st.just("hash")),
        st.builds(DeleteUser, NAMES),
        st.builds(PutPermission, NAMES, VHOSTS, NAMES, NAMES, NAMES),
        st.builds(DeletePermission, NAMES, VHOSTS),
        st.builds(PutTopicPermission, NAMES, VHOSTS, NAMES, NAMES, NAMES),
        st.builds(PutLimit, st.just("vhost"), VHOSTS, LIMITS, st.integers(-1, 2)),
        st.builds(PutLimit, st.just("user"), NAMES, LIMITS, st.integers(-1, 2)),
        st.builds(DeleteLimit, st.just("vhost"), VHOSTS, LIMITS),
        st.builds(DeleteLimit, st.just("user"), NAMES, LIMITS),
        st.builds(PutParameter, NAMES, VHOSTS, NAMES, VALUES),
        st.builds(DeleteParameter, NAMES, VHOSTS, NAMES),
    )


OWN: st.SearchStrategy[Command] = st.one_of(
    st.builds(DeclareQueue, VHOSTS, NAMES, exclusive_owner=st.just("1")),
    st.builds(Bind, VHOSTS, SOURCES, NAMES, st.just(PRIVATE)),
)
SHARED = st.lists(shared(), max_size=40)
MIXED = st.lists(st.one_of(shared(), OWN), max_size=40)


def replay(*histories: list[Command]) -> State:
    state = State()
    state.apply(PutVhost("/"))
    for history in histories:
        for command in history:
            state.apply(command)
    return state


def take_in(state: State, data: bytes) -> tuple[list[Command], list[Fact]]:
    """Reconcile a state; the commands and what came about."""
    difference = reconcile(state, data)
    facts: list[Fact] = []
    for command in difference.commands:
        outcome = state.apply(command)
        assert outcome.error is None, (command, outcome.error)
        facts += outcome.facts
    state.next_queue_id = difference.next_queue_id
    state.next_exchange_id = difference.next_exchange_id
    return difference.commands, facts


@given(MIXED, SHARED)
@settings(max_examples=150)
def test_any_state_becomes_any_other(before: list[Command], after: list[Command]) -> None:
    state, target = replay(before), replay(after)
    data = target.snapshot(transient=True)
    take_in(state, data)
    assert state.snapshot(transient=True) == data


@given(MIXED, SHARED)
def test_a_broker_that_was_away_keeps_what_is_still_there(
    before: list[Command], missed: list[Command]
) -> None:
    """The target is the same history, some commands later."""
    state, target = replay(before), replay(before, missed)
    surviving = {
        queue.id
        for vhost in target.vhosts.values()
        for queue in vhost.queues.values()
        if not queue.is_private()
    }
    commands, facts = take_in(state, target.snapshot(transient=True))
    gone = [fact.definition.id for fact in facts if isinstance(fact, QueueDeleted)]
    assert not surviving.intersection(gone)
    assert state.snapshot(transient=True) == target.snapshot(transient=True)
    assert missed or not commands


@given(MIXED, SHARED, SHARED)
def test_a_reconciled_broker_goes_on_like_the_others(
    before: list[Command], missed: list[Command], after: list[Command]
) -> None:
    state, target = replay(before), replay(missed)
    take_in(state, target.snapshot(transient=True))
    for command in after:
        ours, theirs = state.apply(command), target.apply(command)
        assert repr(ours.error) == repr(theirs.error)
    assert state.snapshot(transient=True) == target.snapshot(transient=True)


def test_nothing_is_done_for_a_state_that_is_up_to_date() -> None:
    state = replay([DeclareQueue("/", "q"), Bind("/", "amq.topic", "q"), PutUser("eve", "")])
    assert reconcile(state, state.snapshot(transient=True)).commands == []


def test_queue_that_was_declared_anew_is_another_queue() -> None:
    """Its messages belong to the one that was deleted."""
    state = replay([DeclareQueue("/", "q")])
    target = replay([DeclareQueue("/", "q"), DeleteQueue("/", "q"), DeclareQueue("/", "q")])
    commands, _ = take_in(state, target.snapshot(transient=True))
    assert commands == [DeleteQueue("/", "q"), DeclareQueue("/", "q", queue_id=2, group=1)]


def test_exchange_does_not_seem_unused_while_its_bindings_change() -> None:
    before: list[Command] = [
        DeclareExchange("/", "x", "fanout", auto_delete=True),
        DeclareQueue("/", "q"),
        Bind("/", "x", "q", key="old"),
    ]
    missed: list[Command] = [Bind("/", "x", "q", key="new"), Unbind("/", "x", "q", key="old")]
    _, facts = take_in(replay(before), replay(before, missed).snapshot(transient=True))
    assert not any(isinstance(fact, ExchangeUnused) for fact in facts)


def test_limits_do_not_hinder_what_was_made_before_they_were_lowered() -> None:
    state = replay([PutLimit("vhost", "/", "max-queues", 0)])
    target = replay([DeclareQueue("/", "q"), PutLimit("vhost", "/", "max-queues", 0)])
    take_in(state, target.snapshot(transient=True))
    assert list(state.vhosts["/"].queues) == ["q"]
    assert state.limit("vhost", "/", "max-queues") == 0


def test_damaged_snapshot_changes_nothing() -> None:
    state = replay([DeclareQueue("/", "q")])
    data = state.snapshot(transient=True)
    with pytest.raises(DamagedCommandError):
        reconcile(state, data[:-1])


def test_binding_made_anew_with_its_arguments_in_another_order_is_the_same() -> None:
    first: list[Command] = [
        DeclareQueue("/", "q"),
        Bind("/", "amq.match", "q", arguments={"a": 1, "b": 2}),
    ]
    again: list[Command] = [
        Unbind("/", "amq.match", "q", arguments={"a": 1, "b": 2}),
        Bind("/", "amq.match", "q", arguments={"b": 2, "a": 1}),
    ]
    state, target = replay(first), replay(first, again)
    take_in(state, target.snapshot(transient=True))
    assert state.snapshot(transient=True) == target.snapshot(transient=True)
