"""The cluster state: what commands do, what they refuse, and what they report."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.metadata_changes import (
    AccessChanged,
    BindingAdded,
    BindingRemoved,
    ExchangeCreated,
    ExchangeDeleted,
    ExchangeUnused,
    LimitChanged,
    Outcome,
    ParameterChanged,
    QueueCreated,
    QueueDeleted,
    VhostCreated,
    VhostDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteLimit,
    DeleteParameter,
    DeletePermission,
    DeleteQueue,
    DeleteTopicPermission,
    DeleteUser,
    DeleteVhost,
    PutLimit,
    PutParameter,
    PutPermission,
    PutTopicPermission,
    PutUser,
    PutVhost,
    Unbind,
)
from rhizome.broker.metadata.metadata_state import (
    LONE_GROUP,
    PRIVATE_QUEUE_IDS,
    State,
    lone_placement,
)
from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
from rhizome.broker.metadata.resource_names import check_declarable_name
from rhizome.broker.routing import Destination
from rhizome.errors import (
    AccessRefused,
    AmqpError,
    CommandInvalid,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)


@pytest.fixture
def state() -> State:
    state = State()
    state.apply(PutVhost("/"))
    return state


def done(state: State, *commands: Command) -> Outcome:
    """Apply commands that must succeed; the last outcome."""
    outcome = Outcome()
    for command in commands:
        outcome = state.apply(command)
        assert outcome.error is None, (command, outcome.error)
    return outcome


def refused(state: State, command: Command, error: type[AmqpError], text: str) -> None:
    before = state.snapshot(transient=True)
    outcome = state.apply(command)
    assert type(outcome.error) is error
    assert outcome.error.text == text
    assert not outcome.changed
    assert outcome.facts == []
    assert state.snapshot(transient=True) == before


def collected(state: State, outcome: Outcome) -> list[str]:
    """Delete the exchanges that become unused, as a broker does; their names in order."""
    gone: list[str] = []
    facts = list(outcome.facts)
    while facts:
        fact = facts.pop(0)
        if isinstance(fact, ExchangeUnused):
            unused = fact.exchange
            facts += done(state, DeleteExchange("/", unused.name, True, unused.id)).facts
        elif isinstance(fact, ExchangeDeleted):
            gone.append(fact.exchange.name)
    return gone


def place_by_length(definition: QueueDefinition) -> int:
    """A placement that shows in the name."""
    if len(definition.name) > 9:
        raise PreconditionFailed(f"no group {len(definition.name)}")
    return len(definition.name)


def exchanges(state: State) -> list[str]:
    return list(state.vhosts["/"].router.exchanges)


# --- vhosts


def test_vhost_has_its_predeclared_exchanges(state: State) -> None:
    found = state.vhosts["/"].router.exchanges
    assert {name: exchange.kind for name, exchange in found.items()} == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
        "amq.rabbitmq.event": "topic",
    }
    assert all(exchange.durable for exchange in found.values())
    internal = [name for name, exchange in found.items() if exchange.internal]
    assert internal == ["amq.rabbitmq.trace", "amq.rabbitmq.event"]


def test_vhost_can_be_described_anew(state: State) -> None:
    assert state.apply(PutVhost("dev")).facts == [VhostCreated("dev")]
    assert state.apply(PutVhost("dev", "for tests", ("a",))).changed
    assert not state.apply(PutVhost("dev", "for tests", ("a",))).changed
    assert state.vhosts["dev"].description == "for tests"


def test_deleted_vhost_takes_everything_with_it(state: State) -> None:
    done(
        state,
        PutVhost("dev"),
        DeclareQueue("dev", "q"),
        DeclareQueue("/", "q"),
        PutUser("eve", ""),
        PutPermission("eve", "dev", "", "", ""),
        PutPermission("eve", "/", "", "", ""),
        PutTopicPermission("eve", "dev", "amq.topic", "", ""),
        PutParameter("c", "dev", "n", 1),
        PutParameter("c", "", "n", 1),
    )
    definition = state.vhosts["dev"].queues["q"]
    destination = state.vhosts["dev"].destinations["q"]
    outcome = done(state, DeleteVhost("dev"))
    assert outcome.facts == [
        QueueDeleted(definition, destination),
        AccessChanged("eve"),
        AccessChanged("eve"),
        ParameterChanged("c", "dev", "n"),
        VhostDeleted("dev"),
    ]
    assert list(state.vhosts) == ["/"]
    assert list(state.permissions) == [("eve", "/")]
    assert state.topic_permissions == {}
    assert list(state.parameters) == [("c", "", "n")]
    assert not state.apply(DeleteVhost("dev")).changed


def test_commands_for_an_unknown_vhost_are_refused(state: State) -> None:
    for command in (
        DeclareQueue("no", "q"),
        DeclareExchange("no", "x", "direct"),
        Bind("no", "x", "q"),
        PutLimit("vhost", "no", "max-queues", 1),
    ):
        refused(state, command, NotFound, "no vhost 'no'")


# --- exchanges


def test_exchange_is_declared_once(state: State) -> None:
    command = DeclareExchange("/", "x", "topic", True, False, True, {"alternate-exchange": "y"})
    outcome = done(state, command)
    (fact,) = outcome.facts
    assert isinstance(fact, ExchangeCreated)
    assert (fact.exchange.name, fact.exchange.kind) == ("x", "topic")
    assert (fact.exchange.internal, fact.exchange.alternate) == (True, "y")
    assert not done(state, command).changed


def test_exchange_declared_in_another_way_is_refused(state: State) -> None:
    done(state, DeclareExchange("/", "x", "direct", arguments={"alternate-exchange": "UME"}))
    refused(
        state,
        DeclareExchange("/", "x", "topic"),
        PreconditionFailed,
        "inequivalent arg 'type' for exchange 'x' in vhost '/': "
        "received 'topic' but current is 'direct'",
    )
    refused(
        state,
        DeclareExchange("/", "x", "direct", arguments={"alternate-exchange": "somewhere"}),
        PreconditionFailed,
        "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': "
        "received 'somewhere' but current is 'UME'",
    )


def test_predeclared_exchange_may_be_declared_as_it_is(state: State) -> None:
    assert not done(state, DeclareExchange("/", "amq.direct", "direct", True)).changed


def test_exchange_of_unknown_type_is_refused(state: State) -> None:
    refused(
        state,
        DeclareExchange("/", "x", "ZZwwInvalid"),
        CommandInvalid,
        "unknown exchange type 'ZZwwInvalid'",
    )


def test_default_exchange_is_off_limits(state: State) -> None:
    done(state, DeclareQueue("/", "q"), DeclareExchange("/", "x", "direct"))
    for command in (
        DeclareExchange("/", "", "direct", True),
        DeleteExchange("/", ""),
        Bind("/", "", "q", key="k"),
        Unbind("/", "", "q", key="q"),
        Bind("/", "x", "", "exchange"),
    ):
        refused(state, command, AccessRefused, "operation not permitted on the default exchange")


def test_system_exchange_stays(state: State) -> None:
    refused(
        state,
        DeleteExchange("/", "amq.topic"),
        AccessRefused,
        "deletion of system exchange 'amq.topic' in vhost '/' not allowed",
    )


def test_reserved_names_are_not_for_applications() -> None:
    check_declarable_name("queue", "amqp")
    with pytest.raises(AccessRefused) as caught:
        check_declarable_name("queue", "amq.mine")
    assert caught.value.text == "queue name 'amq.mine' contains reserved prefix 'amq.*'"


def test_exchange_in_use_is_not_deleted_if_unused_is_asked(state: State) -> None:
    done(
        state,
        DeclareExchange("/", "x", "direct"),
        DeclareExchange("/", "y", "direct"),
        DeclareQueue("/", "q"),
        Bind("/", "x", "q"),
        Bind("/", "y", "x", "exchange"),
    )
    refused(
        state,
        DeleteExchange("/", "x", if_unused=True),
        PreconditionFailed,
        "exchange 'x' in vhost '/' in use",
    )
    done(state, Unbind("/", "x", "q"), DeleteExchange("/", "x", if_unused=True))
    assert "x" not in exchanges(state)
    assert state.vhosts["/"].router.exchanges["y"].is_unused()
    assert not done(state, DeleteExchange("/", "x")).changed


def test_auto_delete_exchange_goes_with_its_last_binding(state: State) -> None:
    done(
        state,
        DeclareExchange("/", "x", "direct", auto_delete=True),
        DeclareQueue("/", "q"),
        Bind("/", "x", "q", key="1"),
        Bind("/", "x", "q", key="2"),
        Unbind("/", "x", "q", key="1"),
    )
    assert "x" in exchanges(state)
    outcome = done(state, Unbind("/", "x", "q", key="2"))
    removed, unused = outcome.facts
    assert isinstance(removed, BindingRemoved)
    assert isinstance(unused, ExchangeUnused)
    assert collected(state, outcome) == ["x"]
    assert "x" not in exchanges(state)


def test_auto_delete_exchange_that_was_never_bound_stays(state: State) -> None:
    done(
        state,
        DeclareExchange("/", "x", "direct", auto_delete=True),
        DeclareQueue("/", "q"),
        Unbind("/", "x", "q"),
        DeleteQueue("/", "q"),
    )
    assert "x" in exchanges(state)


def test_deleting_a_queue_takes_a_whole_chain_of_auto_delete_exchanges(state: State) -> None:
    length = 3000  # deeper than the interpreter can recurse
    done(state, DeclareQueue("/", "q"))
    done(state, *[DeclareExchange("/", f"x{i}", "fanout", auto_delete=True) for i in range(length)])
    done(state, *[Bind("/", f"x{i + 1}", f"x{i}", "exchange") for i in range(length - 1)])
    done(state, Bind("/", "x0", "q"))
    outcome = done(state, DeleteQueue("/", "q"))
    assert collected(state, outcome) == [f"x{i}" for i in range(length)]


def test_exchange_that_loses_several_bindings_in_one_cascade_is_deleted_once(state: State) -> None:
    done(
        state,
        DeclareQueue("/", "q"),
        *[DeclareExchange("/", name, "fanout", auto_delete=True) for name in ("a", "b", "top")],
        Bind("/", "a", "q"),
        Bind("/", "top", "a", "exchange"),
        Bind("/", "top", "q"),
    )
    outcome = done(state, DeleteQueue("/", "q"))
    assert collected(state, outcome) == ["a", "top"]


def test_late_auto_delete_does_not_hit_a_new_exchange_of_the_name(state: State) -> None:
    """Every broker of a cluster may propose it; all but the first come late."""
    declare = DeclareExchange("/", "x", "direct", auto_delete=True)
    done(state, declare, DeclareQueue("/", "q"), Bind("/", "x", "q"))
    (_, unused) = done(state, Unbind("/", "x", "q")).facts
    assert isinstance(unused, ExchangeUnused)
    delete = DeleteExchange("/", "x", True, unused.exchange.id)
    done(state, delete, declare)
    assert not done(state, delete).changed
    assert "x" in exchanges(state)


def test_exchange_numbers_are_never_given_twice(state: State) -> None:
    done(
        state, DeclareExchange("/", "x", "direct"), DeclareExchange("/", "amq.topic", "topic", True)
    )
    assert state.vhosts["/"].router.exchanges["x"].id == 1
    done(state, DeleteExchange("/", "x"))
    restored = State.restore(state.snapshot(transient=True))
    done(restored, DeclareExchange("/", "x", "direct"))
    assert restored.vhosts["/"].router.exchanges["x"].id == 2


def test_unused_exchanges_are_remembered_until_they_are_gone_or_bound_again(state: State) -> None:
    vhost = state.vhosts["/"]
    done(
        state,
        DeclareQueue("/", "q"),
        *[DeclareExchange("/", name, "fanout", auto_delete=True) for name in ("a", "b", "new")],
        Bind("/", "a", "q"),
        Bind("/", "b", "q"),
        DeleteQueue("/", "q"),
    )
    assert [exchange.name for exchange in vhost.unused_exchanges()] == ["a", "b"]
    done(state, DeleteExchange("/", "a"), DeclareQueue("/", "q"), Bind("/", "b", "q"))
    assert vhost.unused_exchanges() == []
    done(state, Unbind("/", "b", "q"))
    assert [exchange.name for exchange in vhost.unused_exchanges()] == ["b"]


# --- queues


def test_queue_is_declared_once(state: State) -> None:
    command = DeclareQueue("/", "q", True, arguments={"x-max-length": 3}, user="eve")
    outcome = done(state, command)
    assert outcome.queue is not None
    assert outcome.facts == [QueueCreated(outcome.queue, state.vhosts["/"].destinations["q"])]
    assert (outcome.queue.id, outcome.queue.user) == (1, "eve")
    assert outcome.queue.options.length_max == 3
    again = done(state, command)
    assert again.queue is outcome.queue
    assert not again.changed


def test_shared_queue_belongs_to_the_group_where_it_was_placed(state: State) -> None:
    here = done(state, DeclareQueue("/", "here")).queue
    assert here is not None
    assert here.group == LONE_GROUP
    state.place = place_by_length
    placed = done(state, DeclareQueue("/", "four")).queue
    assert placed is not None
    assert placed.group == 4
    restored = State.restore(state.snapshot(transient=True))
    assert {q.name: q.group for q in restored.vhosts["/"].queues.values()} == {"here": 1, "four": 4}
    state.place = lone_placement
    assert done(state, DeclareQueue("/", "four")).queue is placed
    assert placed.group == 4


def test_private_queue_belongs_to_no_group(state: State) -> None:
    state.place = place_by_length
    mine = done(state, DeclareQueue("/", "mine", exclusive_owner="1")).queue
    assert mine is not None
    assert mine.group == 0


def test_queue_that_cannot_be_placed_is_refused(state: State) -> None:
    state.place = place_by_length
    refused(state, DeclareQueue("/", "long" * 4), PreconditionFailed, "no group 16")


def test_queue_declared_in_another_way_is_refused(state: State) -> None:
    done(state, DeclareQueue("/", "q", True))
    refused(
        state,
        DeclareQueue("/", "q", False),
        PreconditionFailed,
        "inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'false' but current is 'true'",
    )


def test_private_queue_is_locked_for_others(state: State) -> None:
    done(state, DeclareQueue("/", "mine", exclusive_owner="1"), DeclareQueue("/", "ours"))
    locked = (
        "cannot obtain exclusive access to locked queue '{}' in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of "
        "the original declaration."
    )
    done(state, DeclareQueue("/", "mine", exclusive_owner="1"))
    for command in (
        DeclareQueue("/", "mine", exclusive_owner="2"),
        DeclareQueue("/", "ours", exclusive_owner="1"),
    ):
        refused(state, command, ResourceLocked, locked.format(command.name))


def test_wrong_argument_is_refused(state: State) -> None:
    refused(
        state,
        DeclareQueue("/", "q", arguments={"x-message-ttl": "soon"}),
        PreconditionFailed,
        "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': \"expected integer, got longstr\"",
    )


def test_name_too_long_for_the_wire_is_refused(state: State) -> None:
    done(state, DeclareQueue("/", "q" * 255), DeclareExchange("/", "x" * 255, "direct"))
    for command in (
        DeclareQueue("/", "q" * 256),
        DeclareExchange("/", "ä" * 128, "direct"),
        Bind("/", "x" * 255, "q" * 255, key="k" * 256),
        PutVhost("v" * 256),
        PutUser("u" * 256, ""),
    ):
        assert isinstance(state.apply(command).error, PreconditionFailed)


def test_number_of_a_queue_is_never_given_twice(state: State) -> None:
    first = done(state, DeclareQueue("/", "q")).queue
    done(state, DeleteQueue("/", "q"))
    second = done(state, DeclareQueue("/", "q")).queue
    assert first is not None
    assert second is not None
    assert second.id > first.id


def test_private_queues_are_numbered_apart(state: State) -> None:
    private = done(state, DeclareQueue("/", "mine", exclusive_owner="1")).queue
    shared = done(state, DeclareQueue("/", "ours")).queue
    assert private is not None
    assert shared is not None
    assert private.id >= PRIVATE_QUEUE_IDS
    assert shared.id == 1


def test_deleted_queue_reports_its_bindings_and_itself(state: State) -> None:
    done(state, DeclareQueue("/", "q"), Bind("/", "amq.topic", "q", key="a.*"))
    definition = state.vhosts["/"].queues["q"]
    destination = state.vhosts["/"].destinations["q"]
    removed, deleted = done(state, DeleteQueue("/", "q")).facts
    assert isinstance(removed, BindingRemoved)
    assert removed.binding.key == "a.*"
    assert deleted == QueueDeleted(definition, destination)
    assert state.vhosts["/"].queues == {}
    assert state.vhosts["/"].destinations == {}
    assert state.vhosts["/"].router.bindings() == []


def test_delete_meant_for_an_earlier_queue_of_the_name_does_nothing(state: State) -> None:
    first = done(state, DeclareQueue("/", "q")).queue
    assert first is not None
    done(state, DeleteQueue("/", "q"), DeclareQueue("/", "q"))
    assert not done(state, DeleteQueue("/", "q", first.id)).changed
    assert done(state, DeleteQueue("/", "q", first.id + 1)).changed


def test_queue_objects_come_from_the_factory() -> None:
    made: list[Destination] = []

    def make(definition: QueueDefinition) -> Destination:
        made.append(Destination(definition.vhost, definition.name))
        return made[-1]

    state = State(make)
    done(state, PutVhost("/"), DeclareQueue("/", "q"), Bind("/", "amq.fanout", "q"))
    router = state.vhosts["/"].router
    assert router.route(router.exchanges["amq.fanout"], "", None) == made


# --- bindings


def test_binding_needs_both_ends(state: State) -> None:
    done(state, DeclareQueue("/", "q"))
    refused(state, Bind("/", "x", "q"), NotFound, "no exchange 'x' in vhost '/'")
    refused(state, Bind("/", "amq.topic", "z"), NotFound, "no queue 'z' in vhost '/'")
    refused(
        state, Bind("/", "amq.topic", "q", "exchange"), NotFound, "no exchange 'q' in vhost '/'"
    )


def test_unbinding_what_is_not_there_is_no_error(state: State) -> None:
    done(state, DeclareQueue("/", "q"))
    for command in (
        Unbind("/", "nowhere", "q"),
        Unbind("/", "amq.topic", "nothing"),
        Unbind("/", "amq.topic", "q"),
    ):
        assert not done(state, command).changed


def test_binding_is_reported_once(state: State) -> None:
    done(state, DeclareQueue("/", "q"))
    command = Bind("/", "amq.direct", "q", key="k", arguments={"a": 1})
    (fact,) = done(state, command).facts
    assert isinstance(fact, BindingAdded)
    assert (fact.binding.source, fact.binding.key) == ("amq.direct", "k")
    assert not done(state, command).changed


def test_binding_that_the_exchange_cannot_take_is_refused(state: State) -> None:
    done(state, DeclareQueue("/", "q"), DeclareExchange("/", "h", "x-consistent-hash"))
    refused(
        state,
        Bind("/", "amq.match", "q", arguments={"x-match": 23}),
        PreconditionFailed,
        "Invalid x-match field type signedint (value 23); expected longstr",
    )
    refused(
        state,
        Bind("/", "h", "q", key="heavy"),
        PreconditionFailed,
        "The binding key must be an integer: 'heavy'",
    )


def test_error_names_the_method_that_caused_it(state: State) -> None:
    outcome = state.apply(Bind("/", "x", "q"))
    with pytest.raises(NotFound) as caught:
        outcome.check(50, 20)
    assert (caught.value.class_id, caught.value.method_id) == (50, 20)
    done(state, DeclareQueue("/", "q")).check(50, 10)


# --- users, limits, parameters


def test_user_takes_permissions_and_limits_along(state: State) -> None:
    done(
        state,
        PutUser("eve", "hash", "application", ("management",)),
        PutPermission("eve", "/", "^a", "^b", "^c"),
        PutTopicPermission("eve", "/", "amq.topic", "w", "r"),
        PutLimit("user", "eve", "max-connections", 3),
    )
    assert state.users["eve"].tags == ("management",)
    assert state.permissions[("eve", "/")].write == "^b"
    assert state.topic_permissions[("eve", "/", "amq.topic")].read == "r"
    assert state.limit("user", "eve", "max-connections") == 3
    assert done(state, DeleteUser("eve")).facts == [AccessChanged("eve", deleted=True)]
    assert (state.users, state.permissions, state.topic_permissions) == ({}, {}, {})
    assert state.limit("user", "eve", "max-connections") == -1
    assert not done(state, DeleteUser("eve")).changed


def test_permissions_can_be_taken_away(state: State) -> None:
    done(
        state,
        PutUser("eve", "hash"),
        PutPermission("eve", "/", "", "", ""),
        PutTopicPermission("eve", "/", "amq.topic", "", ""),
    )
    assert not done(state, PutPermission("eve", "/", "", "", "")).changed
    assert done(state, DeletePermission("eve", "/")).facts == [AccessChanged("eve")]
    assert done(state, DeleteTopicPermission("eve", "/", "amq.topic")).changed
    assert not done(state, DeletePermission("eve", "/")).changed


def test_senseless_users_and_permissions_are_refused(state: State) -> None:
    done(state, PutUser("eve", "hash"))
    refused(state, PutPermission("adam", "/", "", "", ""), NotFound, "no user 'adam'")
    refused(state, PutPermission("eve", "no", "", "", ""), NotFound, "no vhost 'no'")
    refused(
        state,
        PutUser("eve", "hash", "king"),
        PreconditionFailed,
        "user 'eve' has the kind 'king'; it must be one of application, console, cluster",
    )


def test_limit_on_queues_of_a_vhost_holds(state: State) -> None:
    done(state, DeclareQueue("/", "a"), PutLimit("vhost", "/", "max-queues", 1))
    done(state, DeclareQueue("/", "a"))
    refused(
        state,
        DeclareQueue("/", "b"),
        PreconditionFailed,
        "cannot declare queue 'b': queue limit in vhost '/' (1) is reached",
    )
    assert done(state, DeleteLimit("vhost", "/", "max-queues")).facts == [
        LimitChanged("vhost", "/")
    ]
    done(state, DeclareQueue("/", "b"))
    done(state, PutLimit("vhost", "/", "max-queues", -1), DeclareQueue("/", "c"))


def test_limit_on_queues_of_a_user_holds(state: State) -> None:
    done(state, PutUser("eve", ""), PutLimit("user", "eve", "max-queues", 1))
    done(state, DeclareQueue("/", "a", user="eve"), DeclareQueue("/", "b", user="adam"))
    refused(
        state,
        DeclareQueue("/", "c", user="eve"),
        PreconditionFailed,
        "cannot declare queue 'c': queue limit for user 'eve' (1) is reached",
    )


def test_private_queues_never_decide_about_a_shared_one(state: State) -> None:
    done(
        state,
        PutLimit("vhost", "/", "max-queues", 1),
        DeclareQueue("/", "mine", exclusive_owner="1"),
        DeclareQueue("/", "ours"),
    )
    outcome = state.apply(DeclareQueue("/", "mine too", exclusive_owner="1"))
    assert isinstance(outcome.error, PreconditionFailed)


def test_unknown_limits_are_refused(state: State) -> None:
    refused(
        state,
        PutLimit("vhost", "/", "max-fun", 1),
        PreconditionFailed,
        "unknown limit 'max-fun'; it must be one of max-connections, max-channels, max-queues",
    )
    refused(state, PutLimit("user", "eve", "max-queues", 1), NotFound, "no user 'eve'")


def test_parameters_come_and_go(state: State) -> None:
    put = PutParameter("shovel", "/", "s", {"a": 1})
    assert done(state, put).facts == [ParameterChanged("shovel", "/", "s")]
    assert not done(state, put).changed
    assert state.parameters[("shovel", "/", "s")] == {"a": 1}
    assert done(state, DeleteParameter("shovel", "/", "s")).changed
    assert not done(state, DeleteParameter("shovel", "/", "s")).changed
