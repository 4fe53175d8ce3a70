"""Snapshots of the cluster state.

A snapshot is the list of the commands that make the state, so that restoring it uses the same code
that made it. The order is such that each command finds what it needs, and that no command meets a
limit that was lowered after its object had been made.

    table   {"v": 1, "next_queue_id": first number not given to a shared queue, "count": commands,
             "next_exchange_id": first number not given to an exchange}
    count times: u32 length, command
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.metadata.metadata_commands import (
    EXCHANGE,
    QUEUE,
    SCOPE_USER,
    SCOPE_VHOST,
    Bind,
    Command,
    DamagedCommandError,
    DeclareExchange,
    DeclareQueue,
    PutLimit,
    PutParameter,
    PutPermission,
    PutPolicy,
    PutTopicPermission,
    PutUser,
    PutVhost,
    decode,
    encode,
)
from rhizome.broker.metadata.queue_policy_user_records import Policy, QueueDefinition
from rhizome.broker.metadata.vhost import PREDECLARED_EXCHANGES, VHost
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.metadata.metadata_state import State

SNAPSHOT_VERSION: Final = 1
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True)
class Snapshot:
    commands: list[Command]
    next_queue_id: int
    next_exchange_id: int


def damaged(what: str) -> DamagedCommandError:
    return DamagedCommandError(f"the snapshot of the cluster state can't be used: {what}")


def write(state: State, transient: bool) -> bytes:
    """The bytes of a snapshot of shared objects; of the durable ones unless ``transient``."""
    parts = [encode(command) for command in commands_of(state, transient)]
    header: dict[str, object] = {
        "v": SNAPSHOT_VERSION,
        "next_queue_id": state.next_queue_id,
        "count": len(parts),
        "next_exchange_id": state.next_exchange_id,
    }
    framed = [encode_table(header)]
    for part in parts:
        framed.append(len(part).to_bytes(_LENGTH_BYTES, "big"))
        framed.append(part)
    return b"".join(framed)


def read(data: bytes) -> Snapshot:
    """What is in a snapshot; raises DamagedCommandError unless all of it is there."""
    try:
        header, offset = read_table(data, 0)
    except AmqpError as error:
        raise damaged(error.text) from error
    version, count, next_id = header.get("v"), header.get("count"), header.get("next_queue_id")
    if version != SNAPSHOT_VERSION:
        raise damaged(f"it has version {version!r} and this broker knows {SNAPSHOT_VERSION}")
    next_exchange_id = header.get("next_exchange_id", 1)  # release 0.1 knew none
    if not isinstance(count, int) or not isinstance(next_id, int):
        raise damaged("its header lacks a number")
    if not isinstance(next_exchange_id, int):
        raise damaged("its header lacks a number")
    at = int(offset)
    commands: list[Command] = []
    for _ in range(count):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        if start > len(data) or at > len(data):
            raise damaged(f"it ends after {len(commands)} of {count} commands")
        commands.append(decode(data[start:at]))
    if at != len(data):
        raise damaged(f"{len(data) - at} bytes follow its end")
    return Snapshot(commands, next_id, next_exchange_id)


def commands_of(state: State, transient: bool) -> Iterator[Command]:
    """The commands that make the shared part of a state: those of each of its tables."""
    for vhost in state.vhosts.values():
        yield vhost_command(vhost)
        yield from policy_commands(vhost.policies)
        yield from policy_commands(vhost.operator_policies)
        yield from exchange_commands(vhost, transient)
        yield from queue_commands(vhost, transient)
        for exchange in vhost.router.exchanges.values():
            if exchange.durable or transient:
                yield from bind_commands(vhost, exchange, transient)
        yield from limit_commands(SCOPE_VHOST, vhost.name, vhost.limits)
    yield from user_commands(state)
    yield from permission_commands(state)
    yield from topic_permission_commands(state)
    for user, limits in state.accounts.limits.items():
        yield from limit_commands(SCOPE_USER, user, limits)
    yield from parameter_commands(state)


# --- tables


def vhost_command(vhost: VHost) -> PutVhost:
    return PutVhost(vhost.name, vhost.description, vhost.tags)


def policy_commands(policies: dict[str, Policy]) -> Iterator[Command]:
    for policy in policies.values():
        yield PutPolicy(
            policy.vhost,
            policy.name,
            policy.pattern,
            policy.definition,
            policy.apply_to,
            policy.priority,
            policy.operator,
        )


def exchange_commands(vhost: VHost, transient: bool) -> Iterator[Command]:
    for exchange in vhost.router.exchanges.values():
        if exchange.name == "" or exchange.name in PREDECLARED_EXCHANGES:
            continue
        if exchange.durable or transient:
            yield exchange_command(exchange)


def queue_commands(vhost: VHost, transient: bool) -> Iterator[Command]:
    for queue in vhost.queues.values():
        if _is_kept(vhost, vhost.destinations[queue.name], transient):
            yield queue_command(queue)


def bind_commands(vhost: VHost, exchange: Exchange, transient: bool) -> Iterator[Command]:
    for binding in exchange.bindings():
        if _is_kept(vhost, binding.destination, transient):
            yield bind_command(vhost.name, binding)


def limit_commands(scope: str, name: str, limits: dict[str, int]) -> Iterator[Command]:
    for limit, value in limits.items():
        yield PutLimit(scope, name, limit, value)


def user_commands(state: State) -> Iterator[Command]:
    for user in state.users.values():
        yield PutUser(user.name, user.password_hash, user.kind, user.tags)


def permission_commands(state: State) -> Iterator[Command]:
    for right in state.permissions.values():
        yield PutPermission(right.user, right.vhost, right.configure, right.write, right.read)


def topic_permission_commands(state: State) -> Iterator[Command]:
    for rule in state.topic_permissions.values():
        yield PutTopicPermission(rule.user, rule.vhost, rule.exchange, rule.write, rule.read)


def parameter_commands(state: State) -> Iterator[Command]:
    for (component, vhost, name), value in state.parameters.items():
        yield PutParameter(component, vhost, name, value)


# --- single objects


def exchange_command(exchange: Exchange) -> DeclareExchange:
    """What declares an exchange as it is."""
    return DeclareExchange(
        exchange.vhost,
        exchange.name,
        exchange.kind,
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        exchange.arguments,
        exchange.id,
    )


def queue_command(queue: QueueDefinition) -> DeclareQueue:
    """What declares a shared queue as it is."""
    return DeclareQueue(
        queue.vhost,
        queue.name,
        queue.durable,
        queue.auto_delete,
        "",
        queue.arguments,
        queue.user,
        queue.id,
        queue.group,
    )


def bind_command(vhost: str, binding: Binding) -> Bind:
    """What makes a shared binding."""
    destination = binding.destination
    kind = EXCHANGE if destination.is_exchange else QUEUE
    return Bind(vhost, binding.source, destination.name, kind, binding.key, binding.arguments)


def _is_kept(vhost: VHost, destination: Destination, transient: bool) -> bool:
    """Whether a snapshot has this exchange or queue."""
    if not vhost.is_shared(destination):
        return False
    if isinstance(destination, Exchange):
        return destination.durable or transient
    return vhost.queues[destination.name].durable or transient
