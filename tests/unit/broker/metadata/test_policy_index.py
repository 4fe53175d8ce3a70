"""The index of policies says what a search of all policies in all names would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeletePolicy,
    DeleteQueue,
    PutPolicy,
    PutVhost,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.policy_resolution import applies_to_exchange, applies_to_queue
from rhizome.broker.metadata.queue_policy_user_records import Policy

NAMES = st.sampled_from(["a", "ab", "b", "bc", "abc"])
PATTERNS = st.sampled_from([".*", "^a", "b$", "^(a|c)", "c", "^abc$"])
APPLIES = st.sampled_from(["all", "queues", "exchanges", "classic_queues", "quorum_queues"])


def put(name: str, pattern: str, apply_to: str, priority: int, operator: bool) -> Command:
    return PutPolicy("/", name, pattern, {"max-length": priority + 9}, apply_to, priority, operator)


COMMANDS = st.one_of(
    st.builds(put, NAMES, PATTERNS, APPLIES, st.integers(-1, 2), st.booleans()),
    st.builds(lambda name, operator: DeletePolicy("/", name, operator), NAMES, st.booleans()),
    st.builds(lambda name: DeclareQueue("/", name, durable=True), NAMES),
    st.builds(lambda name: DeleteQueue("/", name), NAMES),
    st.builds(lambda name: DeclareExchange("/", name, "fanout"), NAMES),
    st.builds(lambda name: DeleteExchange("/", name), NAMES),
)


def best(policies: list[Policy]) -> str:
    found = sorted(policies, key=lambda each: (-each.priority, each.name))
    return found[0].name if found else ""


@given(st.lists(COMMANDS, max_size=40))
def test_the_index_agrees_with_a_search_of_everything(commands: list[Command]) -> None:
    state = State()
    state.apply(PutVhost("/"))
    for command in commands:
        state.apply(command)
    vhost = state.vhosts["/"]
    for queue in vhost.queues.values():
        for policies, name in (
            (vhost.policies, queue.policy),
            (vhost.operator_policies, queue.operator_policy),
        ):
            fitting = [each for each in policies.values() if each.expression.search(queue.name)]
            assert name == best([each for each in fitting if applies_to_queue(each, "classic")])
    for exchange in vhost.router.exchanges.values():
        effective = vhost.policy_for_exchange(exchange)
        fitting = [each for each in vhost.policies.values() if applies_to_exchange(each)]
        fitting = [each for each in fitting if each.expression.search(exchange.name)]
        assert effective.policy == (best(fitting) if exchange.name else "")
    for index in (vhost.policy_index, vhost.operator_policy_index):
        assert set(index.queues) <= set(vhost.queues), "names that are gone are forgotten"
        assert set(index.exchanges) <= set(vhost.router.exchanges)
