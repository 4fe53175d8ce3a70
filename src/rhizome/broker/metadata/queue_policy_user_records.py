"""The entities of the cluster state besides exchanges and bindings: queues, policies, users,
permissions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.regex import Pattern

POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator policy"
PERMISSION: Final = "permission"
TOPIC_PERMISSION: Final = "topic permission"


@dataclass
class QueueDefinition:
    """A queue as every broker knows it, without its messages.

    ``id`` is unique in the cluster and never reused, so that records of a queue are never taken for
    those of a later one of the same name. ``declared`` is ``arguments`` parsed, ``options`` the
    same merged with the policies in force (``policy_definition``). The code that runs the queue
    reads only ``options``, again after each `QueueChanged`. ``group`` is where it was placed when
    declared (0 for a private queue, which lives where its owner's connection is).
    """

    id: int
    vhost: str
    name: str
    durable: bool
    auto_delete: bool
    exclusive_owner: str
    arguments: dict[str, object]
    declared: QueueArguments
    options: QueueArguments
    user: str = ""
    policy: str = ""
    operator_policy: str = ""
    policy_definition: dict[str, object] = field(default_factory=dict)
    group: int = 0

    def is_private(self) -> bool:
        """Whether it belongs to one connection, and so to one broker, and is never replicated."""
        return self.exclusive_owner != ""


@dataclass(frozen=True)
class Policy:
    """Settings for the queues or exchanges of a vhost whose name fits a pattern.

    An ``expression`` with a fault fits no name.
    """

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: dict[str, object]
    operator: bool
    expression: Pattern = field(compare=False)


@dataclass(frozen=True)
class FaultyPattern:
    """A stored pattern that matches nothing: an earlier release accepted it, and it is refused
    today.

    ``name`` is that of the policy, or of the user whose permission it is; ``exchange`` is that of a
    topic permission.
    """

    kind: str
    vhost: str
    name: str
    exchange: str
    fault: str

    def __str__(self) -> str:
        place = f" for exchange {self.exchange!r}" if self.exchange else ""
        whose = "" if self.kind in (POLICY, OPERATOR_POLICY) else "of user "
        return f"{self.kind} {whose}{self.name!r}{place} in vhost {self.vhost!r}: {self.fault}"


@dataclass(frozen=True)
class User:
    name: str
    password_hash: str
    kind: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Permission:
    """Patterns of the names that a user may configure, write to and read from in a vhost.

    ``faults`` has the errors of faulty patterns, which permit nothing.
    """

    user: str
    vhost: str
    configure: str
    write: str
    read: str
    faults: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class TopicPermission:
    """Patterns of the routing keys that a user may use with one topic exchange.

    ``faults`` has the errors of faulty patterns, which permit nothing.
    """

    user: str
    vhost: str
    exchange: str
    write: str
    read: str
    faults: tuple[str, ...] = field(default=(), compare=False)
