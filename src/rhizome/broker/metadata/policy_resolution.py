"""Policies: which definitions are valid, which policy applies, and how two combine.

Of the policies of a vhost that match a queue or exchange, only the one with the highest priority
applies, of equal ones the first by name (``policy_index.py`` knows which match, in that order).
One operator policy applies in the same way. As in RabbitMQ, of a number that both set the smaller
one counts; otherwise the operator policy beats the policy. ``QueueArguments.merged`` combines the
result with the arguments of a declaration.

Patterns are checked where they are set, not here: a store or the cluster's log may hold one that an
earlier release accepted, and every broker must go on with it. Such a policy applies to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from rhizome.broker.metadata.declare_and_consume_arguments import COPIES_MAX, RETRY_TYPES
from rhizome.broker.metadata.metadata_commands import PutPolicy
from rhizome.broker.metadata.queue_policy_user_records import Policy, QueueDefinition
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import PreconditionFailed
from rhizome.regex import pattern_of

APPLY_TO: Final = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")
_QUEUE_TYPES: Final = {
    "classic_queues": "classic",
    "quorum_queues": "quorum",
    "streams": "stream",
}

# Of several numbers the smallest counts.
_NUMBERS: Final = (
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "delivery-limit",
    "consumer-timeout",
    "stream-max-segment-size-bytes",
)
# Numbers of which a queue's own argument counts, else the policy's.
_DELAYS: Final = (
    "delayed-retry-min",
    "delayed-retry-max",
    "delayed-retry-multiplier",
    "consumer-disconnected-timeout",
)
# How many copies; a policy's alone.
_COUNTS: Final = ("copies", "min-copies")
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "queue-mode": ("default", "lazy"),
    "replicate": ("none", "configuration", "messages", "all"),
    "delayed-retry-type": RETRY_TYPES,
}
_TEXTS: Final = (
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "alternate-exchange",
    "tap",
    "max-age",
    "group",
)
_OPERATOR_KEYS: Final = (*_NUMBERS, "overflow")
# Settings of RabbitMQ's mirrored queues and plugins: taken so that definitions written for it can
# be imported, and without effect here.
_IGNORED_PREFIXES: Final = (
    "ha-",
    "queue-",
    "federation-",
    "max-in-memory-",
    "dead-letter-strategy",
)


@dataclass(frozen=True)
class Effective:
    """The policies in force for one queue or exchange, and their combined settings."""

    policy: str = ""
    operator_policy: str = ""
    definition: dict[str, object] = field(default_factory=dict)


def make_policy(command: PutPolicy) -> Policy:
    """The policy that a command describes; raises PreconditionFailed if it is not valid."""
    label = f"{'operator ' if command.operator else ''}policy '{command.name}'"
    where = f"{label} in vhost '{command.vhost}'"
    if command.apply_to not in APPLY_TO:
        raise PreconditionFailed(
            f"{where} applies to '{command.apply_to}'; it must be one of {', '.join(APPLY_TO)}"
        )
    for key, value in command.definition.items():
        _check_setting(where, key, value, command.operator)
    return Policy(
        command.vhost,
        command.name,
        command.pattern,
        command.apply_to,
        command.priority,
        command.definition,
        command.operator,
        pattern_of(command.pattern),
    )


def _check_setting(where: str, key: str, value: object, operator: bool) -> None:
    if operator and key not in _OPERATOR_KEYS:
        raise PreconditionFailed(
            f"{where} sets '{key}'; operator policies can set {', '.join(_OPERATOR_KEYS)}"
        )
    if key in _NUMBERS or key in _DELAYS:
        least = {"expires": 1, "delivery-limit": -1}.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise PreconditionFailed(
                f"{where} sets {key} to {value!r}; it must be a whole number of at least {least}"
            )
    elif key in _COUNTS:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COPIES_MAX:
            raise PreconditionFailed(
                f"{where} sets {key} to {value!r}; it must be a whole number from 1 to {COPIES_MAX}"
            )
    elif key in _CHOICES:
        if value not in _CHOICES[key]:
            raise PreconditionFailed(
                f"{where} sets {key} to {value!r}; it must be one of {', '.join(_CHOICES[key])}"
            )
    elif key in _TEXTS:
        if not isinstance(value, str):
            raise PreconditionFailed(f"{where} sets {key} to {value!r}; it must be a string")
    elif not key.startswith(_IGNORED_PREFIXES):
        raise PreconditionFailed(
            f"{where} sets '{key}', which is not a recognised policy setting{_nearest(key)}"
        )


def _nearest(key: str) -> str:
    found = get_close_matches(key, (*_NUMBERS, *_DELAYS, *_COUNTS, *_CHOICES, *_TEXTS), n=1)
    return f"; did you mean '{found[0]}'?" if found else ""


def policy_for_queue(fitting: Iterable[Policy], definition: QueueDefinition) -> Policy | None:
    """The first of the policies that fit a queue's name and apply to queues of its type."""
    kind = definition.options.queue_type
    for policy in fitting:
        if policy.apply_to != "exchanges" and _QUEUE_TYPES.get(policy.apply_to, kind) == kind:
            return policy
    return None


def policy_for_exchange(fitting: Iterable[Policy], exchange: Exchange) -> Policy | None:
    """The first of the policies that fit an exchange's name and apply to exchanges; the nameless
    one has none."""
    if exchange.name == "":
        return None
    for policy in fitting:
        if policy.apply_to in ("all", "exchanges"):
            return policy
    return None


def combine(policy: Policy | None, operator_policy: Policy | None) -> Effective:
    """Combine a policy and an operator policy."""
    merged: dict[str, object] = dict(policy.definition) if policy else {}
    for key, value in (operator_policy.definition if operator_policy else {}).items():
        other = merged.get(key)
        if key in _NUMBERS and isinstance(other, int) and isinstance(value, int):
            # A delivery limit of -1 is none.
            merged[key] = max(other, value) if min(other, value) < 0 else min(other, value)
        else:
            merged[key] = value
    return Effective(
        policy.name if policy else "", operator_policy.name if operator_policy else "", merged
    )


def alternate_for(exchange: Exchange, definition: dict[str, object]) -> str:
    """An exchange's alternate: what it was declared with, else what the policy says."""
    declared = exchange.declared_alternate()
    said = definition.get("alternate-exchange")
    return declared or (said if isinstance(said, str) else "")
