"""The arguments of a queue where its declaration is proposed: checks, and the vhost's default type.

The cluster state takes these arguments whatever their values are: an earlier release did, and every
broker must go on with what is in the log. So what only this release refuses is refused here, before
it is proposed. The words are those of RabbitMQ 4.3.

A vhost's default type of queues is a parameter, which every release keeps and replicates. It is
written into the arguments of declarations without a type, as RabbitMQ does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rhizome.broker.erlang_term_text import queue_resource
from rhizome.broker.metadata.argument_reader import ArgumentReader
from rhizome.broker.metadata.declare_and_consume_arguments import (
    GROUP_FAIR,
    GROUP_KEY,
    QPID_GROUP_KEY,
    QPID_SHARED_GROUP,
    RETRY_TYPES,
    group_key_in,
)
from rhizome.broker.metadata.metadata_commands import (
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    PutPolicy,
)
from rhizome.broker.metadata.resource_names import EVENT_EXCHANGE
from rhizome.broker.routing.random_exchange import CHOOSING_KINDS
from rhizome.broker.routing.recent_history_exchange import RECENT_HISTORY_KIND
from rhizome.errors import PreconditionFailed
from rhizome.journal.streams.bloom_filter import BLOOM_BYTES_MAX, BLOOM_BYTES_MIN

DEFAULTS_COMPONENT: Final = "vhost-defaults"
DEFAULT_TYPE: Final = "default_queue_type"
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
_TYPE: Final = "x-queue-type"
_NEWER_KINDS: Final = (*CHOOSING_KINDS, RECENT_HISTORY_KIND)
_NEWER_SETTINGS: Final = ("delayed-retry-", "consumer-disconnected-timeout")
_FILTER_SIZE: Final = "x-stream-filter-size-bytes"
_RETRY_TYPE: Final = "x-delayed-retry-type"
_NUMBERS: Final = (
    "x-delayed-retry-min",
    "x-delayed-retry-max",
    "x-delayed-retry-multiplier",
    "x-consumer-disconnected-timeout",
)


def check_proposed_queue(
    vhost: str,
    name: str,
    arguments: dict[str, object],
    class_id: int = 50,
    method_id: int = 10,
) -> None:
    """Raise PreconditionFailed if a new queue can't have these arguments."""
    reader = ArgumentReader(arguments, queue_resource(vhost, name), class_id, method_id)
    _check_retries_and_timeouts(reader)
    _check_group_key(reader)
    if arguments.get("x-queue-type") == "stream":
        _check_filter_size(reader)
    elif _FILTER_SIZE in arguments:
        raise reader.refuse_for(_FILTER_SIZE, str(arguments.get("x-queue-type", "classic")))


def _check_retries_and_timeouts(reader: ArgumentReader) -> None:
    kind = str(reader.arguments.get("x-queue-type", "classic"))
    for key in (_RETRY_TYPE, *_NUMBERS):
        if key in reader.arguments and kind == "stream":
            raise reader.refuse_for(key, kind)
    reader.word(_RETRY_TYPE, RETRY_TYPES, f"\"expected {', '.join(RETRY_TYPES)}, got '*'\"")
    for key in _NUMBERS:
        reader.integer(key)


def _check_group_key(reader: ArgumentReader) -> None:
    """Refuse what would make the promise of a keyed queue a lie: the messages of a key in order, to
    one consumer at a time."""
    arguments = reader.arguments
    key = GROUP_KEY if GROUP_KEY in arguments else QPID_GROUP_KEY
    if reader.flag(GROUP_FAIR) and key not in arguments:
        raise reader.refuse(GROUP_FAIR, f'"there are no keys without {GROUP_KEY}"')
    if key not in arguments:
        return
    reader.text(key)
    if group_key_in(arguments) is None:
        if key == QPID_GROUP_KEY and QPID_SHARED_GROUP not in arguments:
            text = f"groups are not bound to one consumer for ever: say {QPID_SHARED_GROUP}=1 too"
            raise reader.refuse(key, f'"{text}"')
        raise reader.refuse(key, '"expected the name of a header, of 1 to 255 bytes"')
    if arguments.get(_TYPE) == "stream":
        raise reader.refuse_for(key, "stream")
    if "x-last-value-key" in arguments:
        raise reader.refuse(key, '"a queue has either x-last-value-key or keys in order"')
    if reader.arguments.get("x-max-priority", 0) != 0:
        text = "messages of a key go in order, and a priority would let one pass by another"
        raise reader.refuse("x-max-priority", f'"{text}"')


def _check_filter_size(reader: ArgumentReader) -> None:
    size = reader.integer(_FILTER_SIZE)
    if size >= 0 and not BLOOM_BYTES_MIN <= size <= BLOOM_BYTES_MAX:
        text = f"Invalid value for {_FILTER_SIZE}"
        raise PreconditionFailed(text, reader.class_id, reader.method_id)


def default_type(parameters: Mapping[tuple[str, str, str], object], vhost: str) -> str:
    """The type of queues that are declared without one, by the parameters of the cluster state;
    empty if the vhost has no default."""
    word = parameters.get((DEFAULTS_COMPONENT, vhost, DEFAULT_TYPE))
    return word if isinstance(word, str) and word in QUEUE_TYPES else ""


def with_default_type(
    kind: str,
    existing: str,
    arguments: dict[str, object],
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
) -> dict[str, object]:
    """The arguments of a declaration with the default type ``kind`` of its vhost. Queues that only
    a classic one can be are classic; one that exists with another type (``existing``; empty if
    there is none) is compared as it was declared."""
    if kind == "" or kind == "classic" or _TYPE in arguments:
        return arguments
    if exclusive or auto_delete or not durable or existing not in ("", kind):
        return arguments
    return {**arguments, _TYPE: kind}


def check_known_to(older: Iterable[str], command: Command) -> None:
    """Raise PreconditionFailed if these brokers, of release 0.1, would refuse a command that this
    release accepts, or not do what it asks for: all brokers must decide alike."""
    newer = _newer(command)
    names = sorted(older)
    if newer and names:
        raise PreconditionFailed(
            f"{newer} needs a newer release on all brokers of the cluster: upgrade "
            f"{', '.join(names)} first"
        )


def _newer(command: Command) -> str:
    """What release 0.1 would refuse in a command, or not do; empty if nothing."""
    if isinstance(command, DeclareExchange):
        kinds = (command.kind, command.arguments.get("x-delayed-type"))
        found = [f"exchange type '{kind}'" for kind in kinds if kind in _NEWER_KINDS]
    elif isinstance(command, DeclareQueue):
        kind = command.arguments.get(_TYPE, "classic")
        new = {"quorum": "x-max-priority", "classic": "x-queue-leader-locator"}.get(str(kind), "")
        found = [f"argument '{new}' of a {kind} queue"] if new in command.arguments else []
        if group_key_in(command.arguments) is not None:
            found.append("a keyed queue")
    elif isinstance(command, PutPolicy):
        found = [
            f"policy setting '{key}'"
            for key, value in command.definition.items()
            if key.startswith(_NEWER_SETTINGS) or (key == "delivery-limit" and value == -1)
        ]
    elif isinstance(command, Bind) and EVENT_EXCHANGE in (command.source, command.destination):
        found = [f"exchange '{EVENT_EXCHANGE}'"]
    else:
        found = []
    return found[0] if found else ""
