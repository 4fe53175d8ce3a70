"""Finds exchanges and queues for a channel, and checks its user's permissions on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rhizome.amqp.methods import Method
from rhizome.broker.access.auth_interface import Identity
from rhizome.broker.metadata.declare_and_consume_arguments import queue_locked
from rhizome.broker.metadata.metadata_commands import EXCHANGE
from rhizome.broker.metadata.resource_names import EVENT_EXCHANGE, no_exchange, no_queue
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import AccessRefused, AmqpError, CommandInvalid, NotFound

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel

EVENT_TAGS: Final = ("administrator", "monitoring")
"""Who may bind to amq.rabbitmq.event has one of these tags, besides the permission to read it."""


def queue_name(channel: Channel, name: str) -> str:
    """The queue that a method means: the last one declared if it names none."""
    if name:
        return name
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


def find_queue(channel: Channel, name: str) -> Queue:
    """A queue that exists and is not another connection's."""
    router = channel.connection.router
    queue = router.queues.get(name)
    if not isinstance(queue, Queue):
        check_not_elsewhere(channel, name, 0, 0)
        raise no_queue(router.vhost, name)
    owner = queue.definition.exclusive_owner
    if owner and owner != channel.connection.owner:
        raise queue_locked(router.vhost, name, 0, 0)
    return queue


def check_not_elsewhere(channel: Channel, name: str, class_id: int, method_id: int) -> None:
    """Raise ResourceLocked if a queue is private on another broker."""
    connection = channel.connection
    if connection.broker.cluster.is_private_elsewhere(connection.router.vhost, name):
        raise queue_locked(connection.router.vhost, name, class_id, method_id)


def may_tell(queue: Queue) -> bool:
    """Whether this broker may answer for a queue that is active here: no other broker can be its
    home (R9), and what other brokers hold is known (A2)."""
    return queue.definition.is_private() or (queue.broker.may_deliver and not queue.log.still)


def find_exchange(channel: Channel, name: str) -> Exchange:
    router = channel.connection.router
    exchange = router.exchanges.get(name)
    if exchange is None:
        raise no_exchange(router.vhost, name)
    return exchange


def check_configure(channel: Channel, kind: str, name: str) -> None:
    connection = channel.connection
    if not connection.identity.may_configure(connection.router.vhost, name):
        raise refused(channel, kind, name)


def check_write(channel: Channel, kind: str, name: str) -> None:
    connection = channel.connection
    if not connection.identity.may_write(connection.router.vhost, name):
        raise refused(channel, kind, name)


def check_read(channel: Channel, kind: str, name: str) -> None:
    connection = channel.connection
    if kind == EXCHANGE and name == EVENT_EXCHANGE and not _may_see_events(connection.identity):
        raise refused(channel, kind, name)
    if not connection.identity.may_read(connection.router.vhost, name):
        raise refused(channel, kind, name)


def _may_see_events(identity: Identity) -> bool:
    """Whether a user may bind a queue for what happens to others' objects and connections."""
    return any(tag in identity.tags for tag in EVENT_TAGS)


def refused(channel: Channel, kind: str, name: str) -> AmqpError:
    connection = channel.connection
    return AccessRefused(
        f"access to {kind} '{name or 'amq.default'}' in vhost '{connection.router.vhost}' "
        f"refused for user '{connection.identity.user}'"
    )


def unimplemented(method: Method) -> AmqpError:
    """The refusal of a method that only brokers send."""
    code = method.code()
    return CommandInvalid("unimplemented method", code >> 16, code & 0xFFFF)
