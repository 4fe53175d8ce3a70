"""Policies, operator policies, and what they do to queues and exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.broker.metadata.metadata_changes import ExchangeChanged, Outcome, QueueChanged
from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeletePolicy,
    DeleteQueue,
    DeleteVhost,
    PutPermission,
    PutPolicy,
    PutTopicPermission,
    PutUser,
    PutVhost,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.policy_resolution import APPLY_TO
from rhizome.broker.metadata.queue_policy_user_records import Policy, QueueDefinition
from rhizome.broker.metadata.vhost import REFRESH_WORK
from rhizome.errors import PreconditionFailed


@pytest.fixture
def state() -> State:
    state = State()
    state.apply(PutVhost("/"))
    return state


def declare(state: State, name: str, **arguments: object) -> QueueDefinition:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    outcome = state.apply(DeclareQueue("/", name, durable=True, arguments=given))
    assert outcome.error is None
    assert outcome.queue is not None
    return outcome.queue


def put(
    state: State,
    name: str,
    definition: dict[str, object],
    pattern: str = ".*",
    apply_to: str = "all",
    priority: int = 0,
    operator: bool = False,
) -> Outcome:
    return state.apply(PutPolicy("/", name, pattern, definition, apply_to, priority, operator))


def changed_queues(outcome: Outcome) -> list[str]:
    return [fact.definition.name for fact in outcome.facts if isinstance(fact, QueueChanged)]


def test_policy_reaches_queues_that_exist_and_queues_to_come(state: State) -> None:
    before = declare(state, "tmp-1")
    other = declare(state, "work")
    outcome = put(state, "p", {"message-ttl": 500}, "^tmp")
    assert changed_queues(outcome) == ["tmp-1"]
    after = declare(state, "tmp-2")
    assert (before.options.message_ttl_ms, after.options.message_ttl_ms) == (500, 500)
    assert other.options.message_ttl_ms == -1
    assert (before.policy, other.policy) == ("p", "")
    assert state.policy_for_queue(before).definition == {"message-ttl": 500}


def test_pattern_is_searched_not_anchored(state: State) -> None:
    put(state, "p", {"max-length": 1}, "mid")
    assert declare(state, "amidst").options.length_max == 1


def test_deleted_policy_leaves_no_trace(state: State) -> None:
    queue = declare(state, "q", x_max_length=9)
    put(state, "p", {"max-length": 5, "overflow": "reject-publish"})
    outcome = state.apply(DeletePolicy("/", "p"))
    assert changed_queues(outcome) == ["q"]
    assert (queue.options.length_max, queue.options.overflow) == (9, "drop-head")
    assert queue.policy == ""
    assert not state.apply(DeletePolicy("/", "p")).changed


def test_highest_priority_wins_alone(state: State) -> None:
    put(state, "low", {"message-ttl": 1, "max-length": 7}, priority=1)
    put(state, "high", {"message-ttl": 2}, priority=2)
    queue = declare(state, "q")
    assert (queue.options.message_ttl_ms, queue.options.length_max) == (2, -1)
    state.apply(DeletePolicy("/", "high"))
    assert (queue.options.message_ttl_ms, queue.options.length_max) == (1, 7)


def test_of_equal_priorities_the_first_name_wins_whatever_the_order() -> None:
    for names in (("a", "b"), ("b", "a")):
        state = State()
        state.apply(PutVhost("/"))
        for name in names:
            put(state, name, {"max-length": ord(name)})
        assert declare(state, "q").policy == "a"


def test_apply_to_chooses_by_kind_and_type(state: State) -> None:
    for number, apply_to in enumerate(
        ("exchanges", "classic_queues", "quorum_queues", "streams", "queues")
    ):
        put(state, apply_to, {"max-length-bytes": number}, apply_to=apply_to, priority=-number)
    assert declare(state, "c").policy == "classic_queues"
    assert declare(state, "q", x_queue_type="quorum").policy == "quorum_queues"
    assert declare(state, "s", x_queue_type="stream").policy == "streams"
    for apply_to in ("classic_queues", "quorum_queues"):
        state.apply(DeletePolicy("/", apply_to))
    assert state.vhosts["/"].queues["c"].policy == "queues"
    assert state.policy_for_exchange(state.vhost("/").exchange("amq.topic")).policy == "exchanges"


def test_smaller_of_argument_and_policy_counts(state: State) -> None:
    put(state, "p", {"max-length": 10, "message-ttl": 10, "expires": 10, "delivery-limit": 10})
    strict = declare(state, "strict", x_max_length=3, x_message_ttl=0)
    limits = {"x_max_length": 30, "x_expires": 50, "x_delivery_limit": 20}
    loose = declare(state, "loose", x_queue_type="quorum", **limits)
    assert (strict.options.length_max, strict.options.message_ttl_ms) == (3, 0)
    assert (loose.options.length_max, loose.options.expires_ms) == (10, 10)
    assert loose.options.delivery_limit == 10


def test_word_in_the_arguments_beats_the_policy(state: State) -> None:
    put(state, "p", {"dead-letter-exchange": "policy", "overflow": "reject-publish"})
    assert declare(state, "a", x_dead_letter_exchange="own").options.dead_letter_exchange == "own"
    assert declare(state, "b").options.dead_letter_exchange == "policy"
    assert declare(state, "c", x_overflow="drop-head").options.overflow == "drop-head"
    assert declare(state, "d").options.overflow == "reject-publish"


def test_operator_policy_lowers_limits_and_never_raises_them(state: State) -> None:
    put(state, "p", {"max-length": 10, "message-ttl": 100, "dead-letter-exchange": "dlx"})
    put(state, "op", {"max-length": 20, "message-ttl": 50, "expires": 9}, operator=True)
    queue = declare(state, "q")
    assert (queue.policy, queue.operator_policy) == ("p", "op")
    options = queue.options
    assert (options.length_max, options.message_ttl_ms, options.expires_ms) == (10, 50, 9)
    assert options.dead_letter_exchange == "dlx"
    outcome = state.apply(DeletePolicy("/", "op", operator=True))
    assert changed_queues(outcome) == ["q"]
    assert queue.options.message_ttl_ms == 100


def test_policy_gives_an_exchange_its_alternate(state: State) -> None:
    state.apply(DeclareExchange("/", "x", "direct"))
    state.apply(DeclareExchange("/", "own", "direct", arguments={"alternate-exchange": "declared"}))
    router = state.vhosts["/"].router
    epoch = router.epoch
    outcome = put(state, "p", {"alternate-exchange": "lost"}, "^(x|own|y)$")
    assert [fact.exchange.name for fact in outcome.facts if isinstance(fact, ExchangeChanged)] == [
        "x"
    ]
    assert router.epoch > epoch
    state.apply(DeclareExchange("/", "y", "direct"))
    alternates = {name: router.exchanges[name].alternate for name in ("x", "own", "y")}
    assert alternates == {"x": "lost", "own": "declared", "y": "lost"}
    state.apply(DeletePolicy("/", "p"))
    assert router.exchanges["x"].alternate == ""


def test_private_queues_follow_policies_too(state: State) -> None:
    put(state, "p", {"max-length": 3})
    outcome = state.apply(DeclareQueue("/", "mine", exclusive_owner="connection 1"))
    assert outcome.queue is not None
    assert outcome.queue.options.length_max == 3


def test_same_policy_again_changes_nothing(state: State) -> None:
    declare(state, "q")
    assert put(state, "p", {"max-length": 3}).changed
    again = put(state, "p", {"max-length": 3})
    assert not again.changed
    assert again.facts == []


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"message-ttl": "soon"}, "message-ttl to 'soon'"),
        ({"message-ttl": -1}, "at least 0"),
        ({"message-ttl": True}, "whole number"),
        ({"expires": 0}, "at least 1"),
        ({"overflow": "explode"}, "drop-head, reject-publish"),
        ({"dead-letter-exchange": 1}, "must be a string"),
        ({"max-lenght": 1}, "'max-lenght', which is not a recognised policy setting"),
    ],
)
def test_senseless_setting_is_refused(
    state: State, definition: dict[str, object], reason: str
) -> None:
    outcome = put(state, "p", definition)
    assert isinstance(outcome.error, PreconditionFailed)
    assert reason in outcome.error.text
    assert state.vhosts["/"].policies == {}


def test_senseless_policy_is_refused(state: State) -> None:
    for outcome, reason in (
        (put(state, "p", {}, apply_to="everything"), "applies to 'everything'"),
        (put(state, "p", {"alternate-exchange": "x"}, operator=True), "operator policies can set"),
    ):
        assert outcome.error is not None
        assert reason in outcome.error.text


def test_policy_with_a_pattern_that_is_no_good_applies_to_nothing(state: State) -> None:
    queue = declare(state, "q")
    outcome = put(state, "p", {"max-length": 1}, pattern="(q)\\1|q(")
    assert outcome.error is None
    assert queue.policy == ""
    assert declare(state, "qq(").policy == ""


def test_stored_patterns_that_are_no_good_are_named_and_kept(state: State) -> None:
    put(state, "p", {"max-length": 1}, pattern="(q)\\1")
    put(state, "o", {"max-length": 1}, pattern="(?<=q)", operator=True)
    state.apply(PutUser("app", "hash", "application", ()))
    state.apply(PutPermission("app", "/", "^app-", "(?>a)", ".*"))
    state.apply(PutTopicPermission("app", "/", "amq.topic", "(", "^a"))
    again = State.restore(state.snapshot())
    assert again.snapshot() == state.snapshot()
    found = again.faulty_patterns()
    assert [(each.kind, each.name, each.exchange) for each in found] == [
        ("policy", "p", ""),
        ("operator policy", "o", ""),
        ("permission", "app", ""),
        ("topic permission", "app", "amq.topic"),
    ]
    assert "(?>" in str(found[2])
    assert str(found[0]).startswith("policy 'p' in vhost '/': pattern '(q)")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["^(a|a)*!", "^(.|.)*!", "(a|aa)+$", "(a*)*b"])
def test_pattern_that_a_backtracking_matcher_takes_years_for_is_applied(
    state: State, pattern: str
) -> None:
    """As an attacker's entry in the cluster's log is, when it is replayed."""
    queue = declare(state, "a" * 40 + "c")
    assert put(state, "p", {"max-length": 1}, pattern).changed
    assert queue.policy == ""
    assert State.restore(state.snapshot()).vhosts["/"].queues[queue.name].policy == ""


def test_settings_of_mirrored_queues_are_taken_and_ignored(state: State) -> None:
    assert put(state, "p", {"ha-mode": "all", "max-length": 2}).error is None
    assert declare(state, "q").options.length_max == 2


class CountingPattern:
    """Fits nothing, and counts the names that it is asked about."""

    def __init__(self) -> None:
        self.count = 0

    def search(self, name: str) -> bool:
        self.count += 1
        return False

    def reads_all(self) -> bool:
        return True


def test_a_change_of_a_policy_searches_no_other_pattern(state: State) -> None:
    """Else who sets a thousand policies, and declares a thousand queues, holds every broker up with
    each change of one."""
    put(state, "other", {"max-length": 1}, "^none$")
    policies = state.vhosts["/"].policies
    counting = CountingPattern()
    policies["other"] = replace(policies["other"], expression=counting)  # type: ignore[arg-type]
    for number in range(100):
        declare(state, f"queue-{number}")
    assert counting.count == 100
    put(state, "some", {"max-length": 2}, "^queue-1.$")
    put(state, "some", {"max-length": 2}, "^queue-2.$", priority=7)
    assert state.apply(DeletePolicy("/", "some")).error is None
    assert counting.count == 100
    assert all(queue.options.length_max < 0 for queue in state.vhosts["/"].queues.values())


def test_a_policy_is_put_in_force_in_steps(state: State) -> None:
    queues = [declare(state, f"queue-{number}") for number in range(100)]
    outcome = state.begin(PutPolicy("/", "p", "^queue", {"max-length": 1}, "queues"))
    assert (outcome.changed, outcome.facts) == (True, [])
    facts = state.go_on(50)
    assert 1 <= len(facts) <= 10
    assert state.stepped <= 50 + REFRESH_WORK + 1
    assert sum(queue.policy == "p" for queue in queues) == len(facts)
    while state.is_unfinished():
        facts += state.go_on(50)
    changed = [fact.definition for fact in facts if isinstance(fact, QueueChanged)]
    assert changed == queues, "each once, in their order"
    state.begin(DeletePolicy("/", "p"))
    state.apply(DeleteVhost("/"))
    assert state.go_on(50) == [], "nothing is left of a vhost that is gone"
    assert not state.is_unfinished()


def test_new_priority_of_a_policy_searches_nothing(state: State) -> None:
    put(state, "a", {"max-length": 1}, "^queue")
    put(state, "b", {"max-length": 2}, "^queue", priority=1)
    queue = declare(state, "queue-1")
    assert queue.policy == "b"
    policies = state.vhosts["/"].policies
    counting = CountingPattern()
    policies["a"] = replace(policies["a"], expression=counting)  # type: ignore[arg-type]
    put(state, "b", {"max-length": 2}, "^queue", priority=-1)
    assert (queue.policy, counting.count) == ("a", 0)


NAMES = ("a", "ab", "b", "bc", "abc")
PATTERNS = ("a", "^a$", "b", "^b", "c$", ".*", "x")
STEPS = st.one_of(
    st.tuples(st.just("declare"), st.sampled_from(NAMES), st.sampled_from(["classic", "quorum"])),
    st.tuples(st.just("exchange"), st.sampled_from(NAMES), st.just("")),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just("")),
    st.tuples(st.just("delete-exchange"), st.sampled_from(NAMES), st.just("")),
    st.tuples(
        st.just("put"),
        st.sampled_from(("p", "q", "r")),
        st.tuples(
            st.sampled_from(PATTERNS),
            st.integers(0, 2),
            st.sampled_from(APPLY_TO),
            st.integers(1, 3),
            st.booleans(),
        ),
    ),
    st.tuples(st.just("delete-policy"), st.sampled_from(("p", "q", "r")), st.booleans()),
)


def commands_of(steps: list[Any]) -> Iterator[Command]:
    for kind, name, detail in steps:
        if kind == "declare":
            yield DeclareQueue("/", name, durable=True, arguments={"x-queue-type": detail})
        elif kind == "exchange":
            yield DeclareExchange("/", name, "topic", durable=True)
        elif kind == "delete":
            yield DeleteQueue("/", name)
        elif kind == "delete-exchange":
            yield DeleteExchange("/", name)
        elif kind == "put":
            pattern, priority, apply_to, length, operator = detail
            definition = {"max-length": length}
            yield PutPolicy("/", name, pattern, definition, apply_to, priority, operator)
        else:
            yield DeletePolicy("/", name, detail)


def searched(policies: dict[str, Policy], name: str, kinds: tuple[str, ...]) -> str:
    """The policy that applies, found by trying all of them."""
    fitting = [
        policy
        for policy in policies.values()
        if policy.expression.search(name) and policy.apply_to in ("all", *kinds)
    ]
    best = min(fitting, key=lambda policy: (-policy.priority, policy.name), default=None)
    return best.name if best is not None else ""


@given(st.lists(STEPS, max_size=30))
def test_the_same_policies_apply_as_if_all_were_searched(steps: list[Any]) -> None:
    state = State()
    state.apply(PutVhost("/"))
    for command in commands_of(steps):
        state.apply(command)
    check_as_if_all_were_searched(state)


@given(st.lists(STEPS, max_size=30), st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_changes_of_policies_that_are_left_for_later_come_to_the_same(
    steps: list[Any], works: list[int]
) -> None:
    """Whatever comes and goes while a policy is put in force, other changes of it included."""
    state = State()
    state.apply(PutVhost("/"))
    for command, work in zip(commands_of(steps), works, strict=False):
        state.begin(command)
        state.go_on(work)
    while state.is_unfinished():
        state.go_on(1)
    check_as_if_all_were_searched(state)


def check_as_if_all_were_searched(state: State) -> None:
    vhost = state.vhosts["/"]
    for name, queue in vhost.queues.items():
        kinds = ("queues", f"{queue.options.queue_type}_queues")
        assert queue.policy == searched(vhost.policies, name, kinds)
        assert queue.operator_policy == searched(vhost.operator_policies, name, kinds)
    for name, exchange in vhost.router.exchanges.items():
        if name:
            found = vhost.policy_for_exchange(exchange)
            assert found.policy == searched(vhost.policies, name, ("exchanges",))
            assert found.operator_policy == searched(vhost.operator_policies, name, ("exchanges",))
    known = {*vhost.queues, *vhost.router.exchanges}
    for index in (vhost._policy_index, vhost._operator_index):
        assert set(index._fitting) <= known, "what is gone is forgotten"
