"""Redeclaring what exists: allowed if the declaration is the same, else refused.

The refusals use the words of RabbitMQ 3.10, because clients and their test suites read them.
"""

from typing import Final, final

from rhizome.amqp.field_table import type_name
from rhizome.broker.erlang_term_text import erlang_term, exchange_resource, queue_resource
from rhizome.broker.metadata.declare_and_consume_arguments import queue_locked
from rhizome.errors import PreconditionFailed

__all__ = [
    "ExchangeTraits",
    "QueueTraits",
    "check_exchange_equivalent",
    "check_queue_equivalent",
    "queue_locked",
]

# The arguments that must be the same when a queue is declared again, in RabbitMQ's order. Others,
# x-consumer-timeout among them, may differ.
_EQUIVALENT_FOR_QUEUES: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
    "x-delivery-limit",
    "x-last-value-key",
    "x-group-key",
    "x-group-fair",
    "qpid.group_header_key",
    "qpid.shared_msg_group",
    "x-dedup",
    "x-dedup-window",
    "x-replicate",
    "qpid.replicate",
    "x-group",
)


@final
class QueueTraits:
    """How a queue is, or should be, declared."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, object]

    def __init__(
        self, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, object]
    ) -> None:
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.arguments = arguments


@final
class ExchangeTraits:
    """How an exchange is, or should be, declared."""

    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, object]

    def __init__(
        self,
        kind: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments


def check_queue_equivalent(
    vhost: str,
    name: str,
    existing: QueueTraits,
    requested: QueueTraits,
    class_id: int = 50,
    method_id: int = 10,
) -> None:
    """Refuse to redeclare a queue differently. The caller has compared the owners."""
    if existing.exclusive != requested.exclusive:
        raise queue_locked(vhost, name, class_id, method_id)
    check = _Equivalence(queue_resource(vhost, name), class_id, method_id)
    check.flag("durable", existing.durable, requested.durable)
    check.flag("auto_delete", existing.auto_delete, requested.auto_delete)
    for key in _EQUIVALENT_FOR_QUEUES:
        check.argument(key, existing.arguments, requested.arguments)


def check_exchange_equivalent(
    vhost: str,
    name: str,
    existing: ExchangeTraits,
    requested: ExchangeTraits,
    class_id: int = 40,
    method_id: int = 10,
) -> None:
    """Refuse to redeclare an exchange differently."""
    check = _Equivalence(exchange_resource(vhost, name), class_id, method_id)
    if existing.kind != requested.kind:
        raise check.refuse("type", f"'{requested.kind}'", f"'{existing.kind}'")
    check.flag("durable", existing.durable, requested.durable)
    check.flag("auto_delete", existing.auto_delete, requested.auto_delete)
    check.flag("internal", existing.internal, requested.internal)
    check.argument("alternate-exchange", existing.arguments, requested.arguments)


@final
class _Equivalence:
    """Compares one property after the other, and has the error text if two differ."""

    resource: str
    class_id: int
    method_id: int

    def __init__(self, resource: str, class_id: int, method_id: int) -> None:
        self.resource = resource
        self.class_id = class_id
        self.method_id = method_id

    def refuse(self, key: str, received: str, current: str) -> PreconditionFailed:
        text = (
            f"inequivalent arg '{key}' for {self.resource}: "
            f"received {received} but current is {current}"
        )
        return PreconditionFailed(text, self.class_id, self.method_id)

    def flag(self, key: str, existing: bool, requested: bool) -> None:
        if existing != requested:
            raise self.refuse(key, f"'{_plain(requested)}'", f"'{_plain(existing)}'")

    def argument(self, key: str, existing: dict[str, object], requested: dict[str, object]) -> None:
        if key in existing and key in requested:
            old, new = existing[key], requested[key]
            if _type_class(old) != _type_class(new) or old != new:
                raise self.refuse(key, f"'{_plain(new)}'", f"'{_plain(old)}'")
        elif key in existing or key in requested:
            only = existing[key] if key in existing else requested[key]
            if key == "x-queue-type" and only == "classic":
                return  # the type of a queue that doesn't say
            raise self.refuse(key, _typed(requested, key), _typed(existing, key))


def _type_class(value: object) -> str:
    """Return the word for a value's type, the same for integers of any width."""
    kind = type_name(value)
    return "int" if kind == "signedint" or kind == "long" else kind


def _typed(arguments: dict[str, object], key: str) -> str:
    if key not in arguments:
        return "none"
    value = arguments[key]
    return f"the value '{_plain(value)}' of type '{type_name(value)}'"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else erlang_term(value)
