"""Commands: every change of the topology, the users and the policies of a cluster, as data.

A command is proposed, kept in the state log and applied by each broker's ``State``. It contains
everything that its outcome depends on besides the state itself: no clock, no randomness, no
defaults that differ between brokers.

Encoding: an AMQP table {"v": 1, "op": name, field: value, ...}. Inner tables are kept as encoded
bytes, so that arguments as deep as a client may send them still fit; other values are kept as they
are. Fields may be added with defaults; anything else needs a new version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.errors import AmqpError, RhizomeError

COMMAND_VERSION: Final = 1
_PLAIN: Final = frozenset((str, int, bool))
"""Types of values that are encoded as they are, where a field says their type."""

# Kinds of destinations. Shared and private queues are two of them: what a bind finds must not
# depend on the private queues of the broker that applies it.
QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
PRIVATE: Final = "private"
SCOPE_VHOST: Final = "vhost"
SCOPE_USER: Final = "user"


class DamagedCommandError(RhizomeError):
    """Bytes that are no command, or one of a version that this broker doesn't know."""


@dataclass(frozen=True)
class Command:
    """A change of the cluster state."""


@dataclass(frozen=True)
class PutVhost(Command):
    """Create a vhost with its predeclared exchanges, or change its description and tags."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeleteVhost(Command):
    """Delete a vhost with everything in it."""

    name: str


@dataclass(frozen=True)
class DeclareExchange(Command):
    """Declare an exchange, or check that the one that exists is the same.

    ``exchange_id`` is 0, so that the state chooses, except in snapshots.
    """

    vhost: str
    name: str
    kind: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, object] = field(default_factory=dict)
    exchange_id: int = 0


@dataclass(frozen=True)
class DeleteExchange(Command):
    """Delete an exchange, if it exists; with ``if_unused`` only one without shared bindings.

    The proposer of a command with ``if_unused`` has checked the other bindings, those of private
    queues here and on other brokers. If ``exchange_id`` is not 0 it names the exact exchange, so
    that a late auto-delete can't hit a new exchange of the same name.
    """

    vhost: str
    name: str
    if_unused: bool = False
    exchange_id: int = 0


@dataclass(frozen=True)
class DeclareQueue(Command):
    """Declare a queue, or check that the one that exists is the same.

    ``exclusive_owner`` names the connection that owns a private queue ("" for a shared one), and
    ``user`` who declares it, for limits per user.
    ``queue_id`` and ``group`` are 0, so that the state chooses, except in snapshots, which keep
    what it chose.
    """

    vhost: str
    name: str
    durable: bool = False
    auto_delete: bool = False
    exclusive_owner: str = ""
    arguments: dict[str, object] = field(default_factory=dict)
    user: str = ""
    queue_id: int = 0
    group: int = 0


@dataclass(frozen=True)
class DeleteQueue(Command):
    """Delete a queue, if it exists.

    If ``queue_id`` is not 0 it names the exact queue: a decision that a queue is unused, empty or
    expired must not hit a later queue of the same name. A private queue is deleted by its number
    only.
    """

    vhost: str
    name: str
    queue_id: int = 0


@dataclass(frozen=True)
class Bind(Command):
    """Bind a shared queue, an exchange or a private queue (``destination_kind``) to the exchange
    ``source``. Only its own broker applies a command about a private queue; it is not proposed."""

    vhost: str
    source: str
    destination: str
    destination_kind: str = QUEUE
    key: str = ""
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Unbind(Command):
    """Remove a binding, if it is there."""

    vhost: str
    source: str
    destination: str
    destination_kind: str = QUEUE
    key: str = ""
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PutPolicy(Command):
    """Set a policy, or with ``operator`` an operator policy, of a vhost."""

    vhost: str
    name: str
    pattern: str
    definition: dict[str, object]
    apply_to: str = "all"
    priority: int = 0
    operator: bool = False


@dataclass(frozen=True)
class DeletePolicy(Command):
    vhost: str
    name: str
    operator: bool = False


@dataclass(frozen=True)
class PutUser(Command):
    """Create or replace a user. The command carries the finished hash, because hashing takes a
    random salt."""

    name: str
    password_hash: str
    kind: str = "application"
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeleteUser(Command):
    """Delete a user with all permissions and limits."""

    name: str


@dataclass(frozen=True)
class PutPermission(Command):
    """Set the patterns of the names that a user may configure, write to and read from."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True)
class DeletePermission(Command):
    user: str
    vhost: str


@dataclass(frozen=True)
class PutTopicPermission(Command):
    """Set the patterns of the routing keys that a user may use with a topic exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True)
class DeleteTopicPermission(Command):
    """Delete the rule for one exchange."""

    user: str
    vhost: str
    exchange: str


@dataclass(frozen=True)
class PutLimit(Command):
    """Limit a vhost or a user (``scope``); a negative value lifts the limit."""

    scope: str
    name: str
    limit: str
    value: int


@dataclass(frozen=True)
class DeleteLimit(Command):
    scope: str
    name: str
    limit: str


GLOBAL: Final = "global"
"""The component of parameters that are of no vhost."""
CLUSTER_NAME: Final = "cluster_name"
"""The one of them that clients are told."""


@dataclass(frozen=True)
class PutParameter(Command):
    """Keep a value for a component; vhost "" makes it one for the whole cluster."""

    component: str
    vhost: str
    name: str
    value: object


@dataclass(frozen=True)
class DeleteParameter(Command):
    component: str
    vhost: str
    name: str


# The names are part of the format: they stay when a class is renamed.
OPERATIONS: Final[dict[str, type[Command]]] = {
    "put-vhost": PutVhost,
    "delete-vhost": DeleteVhost,
    "declare-exchange": DeclareExchange,
    "delete-exchange": DeleteExchange,
    "declare-queue": DeclareQueue,
    "delete-queue": DeleteQueue,
    "bind": Bind,
    "unbind": Unbind,
    "put-policy": PutPolicy,
    "delete-policy": DeletePolicy,
    "put-user": PutUser,
    "delete-user": DeleteUser,
    "put-permission": PutPermission,
    "delete-permission": DeletePermission,
    "put-topic-permission": PutTopicPermission,
    "delete-topic-permission": DeleteTopicPermission,
    "put-limit": PutLimit,
    "delete-limit": DeleteLimit,
    "put-parameter": PutParameter,
    "delete-parameter": DeleteParameter,
}


class Codec:
    """Encodes and decodes the commands of one machine, by the names that it gives them."""

    def __init__(self, operations: Mapping[str, type[Command]]) -> None:
        self._operations = operations
        self._names = {command: name for name, command in operations.items()}
        self._hints = {command: get_type_hints(command) for command in self._names}

    def knows(self, command: Command) -> bool:
        return type(command) in self._names

    def encode(self, command: Command) -> bytes:
        """The bytes of a command; raises ValueError for a value that no AMQP table can hold."""
        table: dict[str, object] = {"v": COMMAND_VERSION, "op": self._names[type(command)]}
        for name, hint in self._hints[type(command)].items():
            value = getattr(command, name)
            plain = type(value) in _PLAIN and hint is not object
            table[name] = value if plain else _raw_value(value, hint)
        return encode_table(table)

    def decode(self, data: bytes) -> Command:
        """The command in ``data``; raises DamagedCommandError."""
        try:
            table, end = read_table(data, 0)
            if int(end) != len(data):
                behind = len(data) - int(end)
                raise DamagedCommandError(f"a command has {behind} bytes behind its end")
            return self._from_table(table)
        except AmqpError as error:
            raise DamagedCommandError(f"a command is damaged: {error.text}") from error

    def _from_table(self, table: dict[str, object]) -> Command:
        version = table.pop("v", None)
        if version != COMMAND_VERSION:
            raise DamagedCommandError(
                f"a command has version {version!r} and this broker knows {COMMAND_VERSION}: "
                "upgrade it"
            )
        operation = table.pop("op", None)
        command = self._operations.get(operation) if isinstance(operation, str) else None
        if command is None:
            raise DamagedCommandError(f"unknown command {operation!r}: upgrade this broker")
        return command(**_fields(f"command {operation}", command, self._hints[command], table))


def _fields(
    what: str, kind: type[Any], hints: dict[str, object], table: dict[str, object]
) -> dict[str, object]:
    """The fields of a dataclass from their encoded forms."""
    given: dict[str, object] = {}
    for known in fields(kind):
        if known.name in table:
            given[known.name] = _field_value(table[known.name], hints[known.name])
        elif known.default is MISSING and known.default_factory is MISSING:
            raise DamagedCommandError(f"{what} lacks the field {known.name!r}")
    unknown = sorted(set(table) - set(given))
    if unknown:
        raise DamagedCommandError(f"{what} has unknown fields {unknown}: upgrade the broker")
    return given


def _raw_value(value: object, hint: object) -> object:
    """The encoded form of a field's value."""
    if hint is object:
        return encode_table({"": value})
    if isinstance(value, dict):
        return encode_table(value)
    if isinstance(value, tuple):
        return [vars(item) if is_dataclass(item) else item for item in value]
    return value


def _field_value(raw: object, hint: object) -> object:
    """A field's value from its encoded form, checked against its declared type."""
    if isinstance(raw, bytes):
        table, _ = read_table(raw, 0)
        if hint == dict[str, object]:
            return table
        if hint is object and "" in table:
            return table[""]
    elif isinstance(raw, list):
        if get_origin(hint) is tuple:
            return tuple(_item_value(item, get_args(hint)[0]) for item in raw)
    elif isinstance(hint, type) and type(raw) is hint:
        return raw
    raise DamagedCommandError(f"a command has {raw!r} where {hint} belongs")


@cache
def _hints_of(kind: type[Any]) -> dict[str, object]:
    return get_type_hints(kind)


def _item_value(raw: object, kind: type[Any]) -> object:
    """One item of several: a text, or a dataclass of plain fields."""
    if is_dataclass(kind) and isinstance(raw, dict):
        return kind(**_fields(kind.__name__, kind, _hints_of(kind), raw))
    return _field_value(raw, kind)


_CODEC: Final = Codec(OPERATIONS)


def encode(command: Command) -> bytes:
    """The bytes of a command; raises ValueError for a value that no AMQP table can hold."""
    return _CODEC.encode(command)


def decode(data: bytes) -> Command:
    """The command in ``data``; raises DamagedCommandError."""
    return _CODEC.decode(data)
