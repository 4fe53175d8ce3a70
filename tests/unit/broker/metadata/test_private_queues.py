"""Private queues are one broker's own affair: what is shared fares alike with and without them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.broker.metadata.metadata_changes import (
    BindingAdded,
    BindingRemoved,
    ExchangeUnused,
    Outcome,
    QueueCreated,
    QueueDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    PRIVATE,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    PutLimit,
    PutPolicy,
    PutUser,
    PutVhost,
    Unbind,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.routing import Destination
from rhizome.errors import NotFound, PreconditionFailed, ResourceLocked

NAMES = st.sampled_from(["a", "b", "c"])
SOURCES = st.sampled_from(["a", "b", "amq.topic"])
KEYS = st.sampled_from(["", "1"])

SHARED: st.SearchStrategy[Command] = st.one_of(
    st.builds(DeclareExchange, st.just("/"), NAMES, st.just("topic"), auto_delete=st.booleans()),
    st.builds(DeleteExchange, st.just("/"), NAMES, st.booleans(), st.integers(0, 4)),
    st.builds(DeclareQueue, st.just("/"), NAMES, user=st.sampled_from(["", "eve"])),
    st.builds(DeleteQueue, st.just("/"), NAMES, st.integers(0, 4)),
    st.builds(Bind, st.just("/"), SOURCES, NAMES, st.sampled_from(["queue", "exchange"]), KEYS),
    st.builds(Unbind, st.just("/"), SOURCES, NAMES, st.sampled_from(["queue", "exchange"]), KEYS),
    st.builds(PutLimit, st.just("vhost"), st.just("/"), st.just("max-queues"), st.integers(-1, 2)),
    st.builds(PutLimit, st.just("user"), st.just("eve"), st.just("max-queues"), st.integers(-1, 2)),
    st.builds(PutPolicy, st.just("/"), NAMES, st.just(".*"), st.just({"max-length": 5})),
)
OWN: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        DeclareQueue,
        st.just("/"),
        NAMES,
        exclusive_owner=st.sampled_from(["1", "2"]),
        user=st.sampled_from(["", "eve"]),
    ),
    st.builds(DeleteQueue, st.just("/"), NAMES, st.integers(1 << 31, (1 << 31) + 3)),
    st.builds(Bind, st.just("/"), SOURCES, NAMES, st.just(PRIVATE), KEYS),
    st.builds(Unbind, st.just("/"), SOURCES, NAMES, st.just(PRIVATE), KEYS),
)
HISTORY = st.lists(st.tuples(SHARED, st.lists(OWN, max_size=3), st.lists(OWN, max_size=3)))


def fresh() -> State:
    state = State()
    state.apply(PutVhost("/"))
    state.apply(PutUser("eve", ""))
    return state


@pytest.fixture
def state() -> State:
    return fresh()


def done(state: State, *commands: Command) -> Outcome:
    outcome = Outcome()
    for command in commands:
        outcome = state.apply(command)
        assert outcome.error is None, (command, outcome.error)
    return outcome


@given(HISTORY)
def test_brokers_with_other_private_queues_agree_on_what_is_shared(
    history: list[tuple[Command, list[Command], list[Command]]],
) -> None:
    ours, theirs = fresh(), fresh()
    for shared, own, other in history:
        for command in own:
            ours.apply(command)
        for command in other:
            theirs.apply(command)
        here, there = ours.apply(shared), theirs.apply(shared)
        assert repr(here.error) == repr(there.error), shared
        assert (here.queue is None) == (there.queue is None)
        if here.queue is not None and there.queue is not None:
            assert here.queue.id == there.queue.id
        assert ours.snapshot(transient=True) == theirs.snapshot(transient=True)


def test_private_queue_gives_way_to_a_shared_one(state: State) -> None:
    mine = done(state, DeclareQueue("/", "q", exclusive_owner="1")).queue
    outcome = done(
        state,
        DeclareExchange("/", "x", "fanout", auto_delete=True),
        Bind("/", "x", "q", PRIVATE),
        DeclareQueue("/", "q"),
    )
    removed, deleted, unused, created = outcome.facts
    assert isinstance(removed, BindingRemoved)
    assert not removed.shared
    assert isinstance(deleted, QueueDeleted)
    assert deleted.definition is mine
    assert isinstance(unused, ExchangeUnused)
    assert isinstance(created, QueueCreated)
    assert created.definition is outcome.queue
    assert not created.definition.is_private()


def test_refused_declare_leaves_the_private_queue_of_the_name_alone(state: State) -> None:
    mine = done(state, DeclareQueue("/", "q", exclusive_owner="1")).queue
    bad = DeclareQueue("/", "q", arguments={"x-max-length": "many"})
    assert isinstance(state.apply(bad).error, PreconditionFailed)
    assert state.vhosts["/"].queues["q"] is mine


def test_private_queue_does_not_displace_a_shared_one(state: State) -> None:
    done(state, DeclareQueue("/", "q"))
    outcome = state.apply(DeclareQueue("/", "q", exclusive_owner="1"))
    assert isinstance(outcome.error, ResourceLocked)


def test_shared_commands_do_not_see_private_queues(state: State) -> None:
    done(state, DeclareQueue("/", "q", exclusive_owner="1"))
    assert isinstance(state.apply(Bind("/", "amq.topic", "q")).error, NotFound)
    done(state, Bind("/", "amq.topic", "q", PRIVATE))
    assert not done(state, Unbind("/", "amq.topic", "q")).changed
    assert not done(state, DeleteQueue("/", "q")).changed
    assert len(state.vhosts["/"].router.exchanges["amq.topic"].bindings()) == 1


def test_private_commands_do_not_see_shared_queues(state: State) -> None:
    done(state, DeclareQueue("/", "q"))
    assert isinstance(state.apply(Bind("/", "amq.topic", "q", PRIVATE)).error, NotFound)


def test_exchange_with_private_bindings_alone_counts_as_unused(state: State) -> None:
    """Whoever proposes to delete it has looked; the others must not find it otherwise."""
    done(
        state,
        DeclareExchange("/", "x", "fanout"),
        DeclareQueue("/", "mine", exclusive_owner="1"),
        Bind("/", "x", "mine", PRIVATE),
    )
    assert done(state, DeleteExchange("/", "x", if_unused=True)).changed


def test_facts_tell_shared_bindings_from_others(state: State) -> None:
    done(
        state,
        DeclareExchange("/", "x", "fanout"),
        DeclareQueue("/", "mine", exclusive_owner="1"),
        DeclareQueue("/", "ours"),
    )
    added = [
        done(state, Bind("/", "amq.fanout", "mine", PRIVATE)).facts[0],
        done(state, Bind("/", "amq.fanout", "ours")).facts[0],
        done(state, Bind("/", "amq.fanout", "x", "exchange")).facts[0],
    ]
    assert [fact.shared for fact in added if isinstance(fact, BindingAdded)] == [False, True, True]


def test_what_stands_for_another_broker_is_not_shared(state: State) -> None:
    """A destination that is neither queue nor exchange: it keeps an exchange in use, no more."""
    vhost = state.vhosts["/"]
    done(
        state,
        DeclareExchange("/", "x", "fanout", auto_delete=True),
        DeclareQueue("/", "q"),
        Bind("/", "x", "q"),
    )
    exchange = vhost.router.exchanges["x"]
    elsewhere = Destination("/", "q")
    before = state.snapshot(transient=True)
    vhost.router.bind(exchange, elsewhere, "", {"n": 1})
    assert not vhost.is_shared(elsewhere)
    assert state.snapshot(transient=True) == before
    assert not any(
        isinstance(fact, ExchangeUnused) for fact in done(state, DeleteQueue("/", "q")).facts
    )
    vhost.router.unbind(exchange, elsewhere, "", {"n": 1})
    assert vhost.unused_exchanges() == []
