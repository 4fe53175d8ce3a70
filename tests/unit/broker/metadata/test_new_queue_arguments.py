"""What is checked where a declaration is proposed, and not where it is applied."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.declare_and_consume_arguments import check_consume_arguments
from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareExchange,
    DeclareQueue,
    PutPolicy,
    PutVhost,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.new_queue_arguments import check_known_to, check_proposed_queue
from rhizome.errors import PreconditionFailed

QUORUM: dict[str, object] = {"x-queue-type": "quorum"}


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (DeclareExchange("/", "e", "x-random"), "exchange type 'x-random'"),
        (
            DeclareExchange(
                "/", "e", "x-delayed-message", arguments={"x-delayed-type": "x-random"}
            ),
            "exchange type 'x-random'",
        ),
        (
            DeclareQueue("/", "q", True, arguments={**QUORUM, "x-max-priority": 3}),
            "argument 'x-max-priority' of a quorum queue",
        ),
        (
            DeclareQueue("/", "q", True, arguments={"x-queue-leader-locator": "balanced"}),
            "argument 'x-queue-leader-locator' of a classic queue",
        ),
        (DeclareQueue("/", "q", True, arguments={"x-group-key": "k"}), "a keyed queue"),
        (
            PutPolicy("/", "p", ".*", {"delayed-retry-min": 5}),
            "policy setting 'delayed-retry-min'",
        ),
        (PutPolicy("/", "p", ".*", {"delivery-limit": -1}), "policy setting 'delivery-limit'"),
    ],
)
def test_what_older_brokers_would_refuse_waits_for_their_upgrade(
    command: Command, text: str
) -> None:
    check_known_to([], command)
    with pytest.raises(PreconditionFailed) as refused:
        check_known_to(["b3", "b2"], command)
    assert text in refused.value.text
    assert "upgrade b2, b3 first" in refused.value.text


@pytest.mark.parametrize(
    "command",
    [
        DeclareExchange("/", "e", "topic"),
        DeclareQueue("/", "q", True, arguments=QUORUM),
        DeclareQueue("/", "q", True, arguments={"x-max-priority": 3}),
        DeclareQueue("/", "q", True, arguments={**QUORUM, "x-delayed-retry-min": 3}),
        PutPolicy("/", "p", ".*", {"delivery-limit": 3}),
        PutVhost("v"),
    ],
)
def test_what_older_brokers_know_or_ignore_needs_no_upgrade(command: Command) -> None:
    check_known_to(["b2"], command)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "stream", "x-stream-filter-size-bytes": 3},
        {"x-queue-type": "quorum", "x-delayed-retry-type": "nonsense"},
        {"x-queue-type": "quorum", "x-delayed-retry-min": "soon"},
    ],
)
def test_the_state_goes_on_with_what_is_only_refused_to_those_who_propose(
    arguments: dict[str, object],
) -> None:
    with pytest.raises(PreconditionFailed):
        check_proposed_queue("/", "q", arguments)
    state = State()
    state.apply(PutVhost("/"))
    assert state.apply(DeclareQueue("/", "q", True, arguments=arguments)).error is None


# --- RabbitMQ 4.3, as it lists its arguments (`capabilities()` of each type of queue)

EXAMPLES: dict[str, object] = {
    "x-consumer-disconnected-timeout": 1_000,
    "x-consumer-timeout": 60_000,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
    "x-dead-letter-strategy": "at-least-once",
    "x-delayed-retry-max": 10,
    "x-delayed-retry-min": 10,
    "x-delayed-retry-type": "all",
    "x-delivery-limit": 5,
    "x-expires": 60_000,
    "x-initial-cluster-size": 3,
    "x-max-age": "1h",
    "x-max-in-memory-bytes": 5,
    "x-max-in-memory-length": 5,
    "x-max-length": 5,
    "x-max-length-bytes": 5_000,
    "x-max-priority": 5,
    "x-message-ttl": 1_000,
    "x-overflow": "reject-publish",
    "x-queue-leader-locator": "balanced",
    "x-queue-master-locator": "min-masters",
    "x-queue-mode": "lazy",
    "x-queue-version": 2,
    "x-quorum-initial-group-size": 3,
    "x-single-active-consumer": True,
    "x-stream-filter-size-bytes": 32,
    "x-stream-max-segment-size-bytes": 1_000_000,
}
COMMON = (
    "x-expires x-message-ttl x-dead-letter-exchange x-dead-letter-routing-key x-max-length"
    " x-max-length-bytes x-overflow x-single-active-consumer x-queue-leader-locator"
)
KNOWN = {
    "classic": f"{COMMON} x-max-priority x-queue-mode x-queue-version x-queue-master-locator",
    "quorum": f"{COMMON} x-dead-letter-strategy x-max-in-memory-length x-max-in-memory-bytes"
    " x-quorum-initial-group-size x-delivery-limit x-consumer-disconnected-timeout"
    " x-consumer-timeout x-delayed-retry-type x-delayed-retry-min x-delayed-retry-max",
    "stream": "x-max-length-bytes x-max-age x-stream-max-segment-size-bytes"
    " x-stream-filter-size-bytes x-initial-cluster-size x-queue-leader-locator",
}
TAKEN_TOO = {
    "classic": "x-consumer-timeout x-consumer-disconnected-timeout x-delayed-retry-type"
    " x-delayed-retry-min x-delayed-retry-max",
    "quorum": "x-max-priority",
    "stream": "x-consumer-timeout",
}
"""What works here and is refused by 4.3."""


def refusal_of(kind: str, argument: str) -> str:
    """How a new queue with this argument is refused; empty if it isn't."""
    arguments: dict[str, object] = {"x-queue-type": kind, argument: EXAMPLES[argument]}
    if argument == "x-dead-letter-routing-key" and kind != "stream":
        arguments["x-dead-letter-exchange"] = ""
    state = State()
    state.apply(PutVhost("/"))
    try:
        check_proposed_queue("/", "q", arguments)
        state.apply(DeclareQueue("/", "q", True, arguments=arguments)).check(50, 10)
    except PreconditionFailed as refused:
        return refused.text
    return ""


@pytest.mark.parametrize("argument", EXAMPLES)
@pytest.mark.parametrize("kind", KNOWN)
def test_each_type_of_queue_knows_the_arguments_that_it_has_in_4_3(
    kind: str, argument: str
) -> None:
    if argument in f"{KNOWN[kind]} {TAKEN_TOO[kind]}".split():
        assert refusal_of(kind, argument) == ""
    else:
        assert f"invalid arg '{argument}'" in refusal_of(kind, argument)


@pytest.mark.parametrize("kind", KNOWN)
def test_arguments_that_nobody_knows_are_kept(kind: str) -> None:
    check_proposed_queue("/", "q", {"x-queue-type": kind, "x-nobody-knows": 5})


@pytest.mark.parametrize("argument", ["x-stream-offset", "x-stream-filter"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_arguments_of_consumers_of_streams_are_refused_elsewhere(kind: str, argument: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_consume_arguments("/", "q", {argument: "first"}, kind)
    assert f"invalid arg '{argument}'" in refused.value.text
    assert f"of queue type rabbit_{kind}_queue" in refused.value.text
