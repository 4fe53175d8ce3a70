"""What is checked where a declaration is proposed, and not where it is applied."""

from __future__ import annotations

import pytest

from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareExchange,
    DeclareQueue,
    PutPolicy,
    PutVhost,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.proposed_arguments import check_known_to, check_proposed_queue
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
