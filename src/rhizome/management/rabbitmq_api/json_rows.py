"""JSON rows: exchanges, queues, bindings, vhosts and users in JSON, with RabbitMQ's names."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.metadata.metadata_commands import EXCHANGE, QUEUE
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.new_queue_arguments import default_type
from rhizome.broker.metadata.queue_policy_user_records import User
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.metadata.vhost_metadata_byte_quota import quota_of
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.management.api_context import Context
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.json_responses import Row
from rhizome.management.metrics.message_rates import Totals, head_arrived_ms
from rhizome.management.openapi import rabbitmq_schemas
from rhizome.management.openapi.endpoint_shapes import attributes

DEFAULT_EXCHANGE: Final = "amq.default"
RABBIT_HASH: Final = {
    "rabbit-sha256": "rabbit_password_hashing_sha256",
    "rabbit-sha512": "rabbit_password_hashing_sha512",
}
SCRYPT: Final = "scrypt"


# ---- queues -------------------------------------------------------------------------------------


def queue_definition_row(queue: Queue) -> Row:
    definition = queue.definition
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "exclusive": definition.is_private(),
        "arguments": definition.arguments,
        "type": definition.options.queue_type,
        "policy": definition.policy or None,
        "operator_policy": definition.operator_policy or None,
        "effective_policy_definition": definition.policy_definition,
    }


def absent_queue_row(context: Context, queue: Queue) -> Row:
    """A shared queue whose home doesn't answer: its contents are not known here."""
    home = context.others.home_of(queue)
    return {**queue_definition_row(queue), "node": home or None, "state": "down"}


def queue_row(context: Context, queue: Queue) -> Row:
    """A queue that is active here."""
    ready, unacked = int(queue.ready), int(queue.unacked)
    paged = sum(int(lane.paged_count) for lane in queue.lanes)
    row: Row = {
        **queue_definition_row(queue),
        "node": context.name,
        "state": "running",
        "consumers": int(queue.consumer_count),
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        **context.rates.of_depth(queue),
        "messages_paged_out": paged,
        "messages_ready_ram": ready - paged,
        "message_bytes_ready": int(queue.ready_bytes),
        "message_bytes_ram": int(queue.resident_bytes),
        "message_bytes_persistent": int(queue.durable_bytes),
        "memory": int(queue.resident_bytes),
        "head_message_timestamp": None,
        "head_arrived_ms": head_arrived_ms(queue),
        "idle_since": idle_since(queue),
        "single_active_consumer_tag": None,
        "exclusive_consumer_tag": None,
        "recoverable_slaves": None,
        "message_stats": context.rates.of_queue(queue),
    }
    if queue.keys is not None:
        row["keys_live"] = len(queue.keys.keys)
        row["keys_held"] = int(queue.keys.held)
    if queue.active is not None:
        row["single_active_consumer_tag"] = queue.active.tag
    if queue.exclusive and queue.consumer_count:
        row["exclusive_consumer_tag"] = queue.consumers()[0].tag
    return row


def idle_since(queue: Queue) -> str | None:
    """Since when nothing has happened, in RabbitMQ's form; None if the queue has messages."""
    if queue.ready or queue.unacked or queue.consumer_count:
        return None
    seconds = int(queue.last_used_ms) // 1000
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def consumer_row(context: Context, consumer: Consumer) -> Row:
    channel = consumer.channel
    connection = channel.connection
    queue = consumer.queue
    is_active = queue.active is None or queue.active is consumer
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost},
        "channel_details": {
            "name": f"{connection.name} ({channel.number})",
            "node": context.name,
            "number": int(channel.number),
            "connection_name": connection.name,
            "peer_host": connection.peer.address,
            "peer_port": int(connection.peer.port),
            "user": connection.identity.user,
        },
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": int(consumer.prefetch),
        "priority": int(consumer.priority),
        "arguments": consumer.arguments,
        "active": is_active,
        "activity_status": "up" if is_active else "waiting",
        "messages_unacknowledged": int(consumer.unacked),
    }


# ---- exchanges and bindings ---------------------------------------------------------------------


def exchange_row(vhost: VHost, exchange: Exchange) -> Row:
    effective = vhost.policy_for_exchange(exchange)
    row: Row = {
        "name": exchange.name,
        "vhost": exchange.vhost,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
    }
    if effective.policy:
        # Without one RabbitMQ leaves it out, and rabbitmqadmin can't print a null.
        row["policy"] = effective.policy
    return row


def binding_row(vhost: str, binding: Binding) -> Row:
    destination = binding.destination
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": destination.name,
        "destination_type": kind_of(destination),
        "routing_key": binding.key,
        "arguments": binding.arguments,
        "properties_key": properties_key(binding),
    }


def default_binding_row(queue: Destination) -> Row:
    """The binding to the nameless exchange that every queue has by its own name."""
    return {
        "source": "",
        "vhost": queue.vhost,
        "destination": queue.name,
        "destination_type": QUEUE,
        "routing_key": queue.name,
        "arguments": {},
        "properties_key": quote(queue.name, safe="", errors="surrogateescape"),
    }


def is_shown(binding: Binding) -> bool:
    """Whether a binding is one of users; meta-bindings between brokers are not shown."""
    return not binding.destination.name.startswith("\0")


def kind_of(destination: Destination) -> str:
    return EXCHANGE if destination.is_exchange else QUEUE


def properties_key(binding: Binding) -> str:
    """What distinguishes a binding from others between the same two, usable as a part of a path."""
    # A tilde stands for "no key" and separates the key from the arguments.
    key = quote(binding.key, safe="", errors="surrogateescape").replace("~", "%7E")
    if not binding.arguments_key:
        return key or "~"
    digest = hashlib.sha256(binding.arguments_key).hexdigest()[:16]
    return f"{key}~{digest}"


# ---- vhosts, users and what they may do ---------------------------------------------------------


def vhost_metadata(state: State, vhost: VHost) -> Row:
    return {
        "description": vhost.description,
        "tags": list(vhost.tags),
        "default_queue_type": default_type(state.parameters, vhost.name) or "undefined",
    }


async def vhost_row(context: Context, vhost: VHost) -> Row:
    """A vhost, with the messages that are here."""
    pace = Pace()
    totals = Totals()
    for queue in list(vhost.destinations.values()):
        if isinstance(queue, Queue):
            totals.ready += int(queue.ready)
            totals.unacked += int(queue.unacked)
        if pace.is_due():
            await pace.rest()
    return {
        "name": vhost.name,
        **vhost_metadata(context.broker.state, vhost),
        "metadata": vhost_metadata(context.broker.state, vhost),
        "tracing": bool(vhost.router.traced),
        "cluster_state": {context.name: "running"},
        "messages": totals.ready + totals.unacked,
        "messages_ready": totals.ready,
        "messages_unacknowledged": totals.unacked,
        "state_bytes": context.broker.state.sizes.of(vhost.name),
        "state_bytes_max": quota_of(context.broker.state, vhost.name),
    }


def user_row(user: User, limits: dict[str, int]) -> Row:
    password_hash, algorithm = exported_hash(user.password_hash)
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": list(user.tags),
        "type": user.kind,
        "limits": limits,
    }


def exported_hash(password_hash: str) -> tuple[str, str]:
    """A stored hash as (password_hash, hashing_algorithm); RabbitMQ's own come out as they came."""
    _, _, rest = password_hash.partition("$")
    kind, _, value = rest.partition("$")
    algorithm = RABBIT_HASH.get(kind)
    if algorithm is not None:
        return value, algorithm
    return password_hash, SCRYPT if password_hash else RABBIT_HASH["rabbit-sha256"]


permission_row: Final = attributes(rabbitmq_schemas.PERMISSION)
topic_permission_row: Final = attributes(rabbitmq_schemas.TOPIC_PERMISSION)
policy_row: Final = attributes(rabbitmq_schemas.POLICY)
