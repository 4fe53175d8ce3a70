"""The methods of the exchange and queue classes.

Each checks what can be checked here and now (names, permissions, locks), then proposes a command
and answers when it is committed. Private queues belong to one connection and never leave this
broker, so changes to them are applied at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.amqp.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueueUnbind,
    QueueUnbindOk,
)
from rhizome.broker.channel.direct_reply_to import REPLY_PREFIX, REPLY_QUEUE
from rhizome.broker.channel.resource_lookup import (
    check_configure,
    check_not_elsewhere,
    check_read,
    check_write,
    find_exchange,
    find_queue,
    may_tell,
    queue_name,
    unimplemented,
)
from rhizome.broker.cluster_port import Waiter, away_of
from rhizome.broker.erlang_term_text import exchange_resource, queue_resource
from rhizome.broker.metadata.declare_and_consume_arguments import check_server_named, queue_locked
from rhizome.broker.metadata.metadata_changes import Outcome, QueueCreated
from rhizome.broker.metadata.metadata_commands import (
    EXCHANGE,
    PRIVATE,
    QUEUE,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
)
from rhizome.broker.metadata.new_queue_arguments import (
    check_proposed_queue,
    default_type,
    with_default_type,
)
from rhizome.broker.metadata.resource_names import (
    check_declarable_name,
    check_deletable_exchange,
    check_length,
    check_not_default_exchange,
    no_queue,
)
from rhizome.broker.metadata.vhost_metadata_byte_quota import check_arguments, check_bindings
from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams.stream_restrictions import is_stream, unsupported
from rhizome.errors import AccessRefused, AmqpError, NotFound, PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel


class Reply(Waiter):
    """Answers a channel when its proposal is committed, and tells the observer.

    Invariant: ``late`` is set exactly while the connection is suspended for this proposal;
    ``command`` is what was proposed.
    """

    channel: Channel
    method: Method | None
    class_id: int
    method_id: int
    outcome: Outcome | None
    error: AmqpError | None
    late: bool
    command: Command | None
    private: bool

    def __init__(self, channel: Channel, method: Method | None, cause: Method) -> None:
        self.channel = channel
        self.method = method
        self.class_id = cause.code() >> 16
        self.method_id = cause.code() & 0xFFFF
        self.outcome = None
        self.error = None
        self.late = False
        self.command = None
        self.private = False

    def resolved(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.command is not None and (outcome.changed or outcome.error is not None):
            connection = self.channel.connection
            connection.broker.observer.topology_changed(
                connection, self.command, self.private, outcome.error
            )
        try:
            self.finish()
        except AmqpError as error:
            self.error = error
        if not self.late:
            return
        connection = self.channel.connection
        if self.error is not None:
            connection.fail_on(self.channel, self.error)
        connection.resume()

    def finish(self) -> None:
        """Send the answer, or raise what went wrong."""
        assert self.outcome is not None
        self.outcome.check(self.class_id, self.method_id)
        if self.method is not None and not self.channel.closing:
            self.channel.send(self.method)


def propose(channel: Channel, command: Command, reply: Reply, private: bool) -> None:
    """Have a command committed, or a private one applied, then answer."""
    broker = channel.connection.broker
    reply.command = command
    reply.private = private
    if private:
        if isinstance(command, (DeclareQueue, Bind)):
            check_arguments(command)
        if isinstance(command, Bind):
            check_bindings(broker.state, command)
        outcome = broker.apply(command)
        broker.cluster.private_applied(outcome, reply)
        broker.announce(outcome)
        broker.events.changed(command, outcome, reply)
    else:
        broker.cluster.propose(command, reply)
    if reply.error is not None:
        raise reply.error
    if reply.outcome is None:
        reply.late = True
        channel.connection.suspend()


def strip_names(method: Method) -> None:
    """Leave out CR and LF of the names in a method of the exchange or queue class, as RabbitMQ
    does: in all of them but queue.purge."""
    if isinstance(method, (QueueDeclare, QueueDelete)):
        method.queue = _stripped(method.queue)
    elif isinstance(method, (QueueBind, QueueUnbind)):
        method.queue = _stripped(method.queue)
        method.exchange = _stripped(method.exchange)
    elif isinstance(method, (ExchangeDeclare, ExchangeDelete)):
        method.exchange = _stripped(method.exchange)
    elif isinstance(method, (ExchangeBind, ExchangeUnbind)):
        method.destination = _stripped(method.destination)
        method.source = _stripped(method.source)


def _stripped(name: str) -> str:
    if "\n" in name or "\r" in name:
        return name.replace("\r", "").replace("\n", "")
    return name


def handle(channel: Channel, method: Method) -> None:
    """Carry out a method of the exchange or queue class."""
    strip_names(method)
    if isinstance(method, QueueDeclare):
        queue_declare(channel, method)
    elif isinstance(method, QueueBind):
        queue_bind(channel, method)
    elif isinstance(method, QueueUnbind):
        queue_unbind(channel, method)
    elif isinstance(method, QueuePurge):
        queue_purge(channel, method)
    elif isinstance(method, QueueDelete):
        queue_delete(channel, method)
    elif isinstance(method, ExchangeDeclare):
        exchange_declare(channel, method)
    elif isinstance(method, ExchangeDelete):
        exchange_delete(channel, method)
    elif isinstance(method, ExchangeBind):
        exchange_bind(channel, method)
    elif isinstance(method, ExchangeUnbind):
        exchange_unbind(channel, method)
    else:
        raise unimplemented(method)


# ---- exchanges ----------------------------------------------------------------------------------


def exchange_declare(channel: Channel, method: ExchangeDeclare) -> None:
    router = channel.connection.router
    answer = None if method.no_wait else ExchangeDeclareOk()
    check_not_default_exchange(method.exchange)
    if method.passive:
        find_exchange(channel, method.exchange)
        if answer is not None:
            channel.send(answer)
        return
    is_new = method.exchange not in router.exchanges
    if is_new:
        check_declarable_name(EXCHANGE, method.exchange)
    check_configure(channel, EXCHANGE, method.exchange)
    alternate = method.arguments.get("alternate-exchange")
    if is_new and isinstance(alternate, str):
        check_read(channel, EXCHANGE, method.exchange)
        check_write(channel, EXCHANGE, alternate)
    command = DeclareExchange(
        router.vhost,
        method.exchange,
        method.type,
        method.durable,
        method.auto_delete,
        method.internal,
        method.arguments,
    )
    propose(channel, command, Reply(channel, answer, method), False)


def exchange_delete(channel: Channel, method: ExchangeDelete) -> None:
    router = channel.connection.router
    check_deletable_exchange(router.vhost, method.exchange)
    check_configure(channel, EXCHANGE, method.exchange)
    exchange = router.exchanges.get(method.exchange)
    if method.if_unused and exchange is not None and not exchange.is_unused():
        raise PreconditionFailed(f"{exchange_resource(router.vhost, method.exchange)} in use")
    command = DeleteExchange(router.vhost, method.exchange, method.if_unused)
    answer = None if method.no_wait else ExchangeDeleteOk()
    propose(channel, command, Reply(channel, answer, method), False)


def exchange_bind(channel: Channel, method: ExchangeBind) -> None:
    _check_exchange_binding(channel, method.destination, method.source, method.routing_key)
    find_exchange(channel, method.source)
    find_exchange(channel, method.destination)
    command = Bind(
        channel.connection.router.vhost,
        method.source,
        method.destination,
        EXCHANGE,
        method.routing_key,
        method.arguments,
    )
    answer = None if method.no_wait else ExchangeBindOk()
    propose(channel, command, Reply(channel, answer, method), False)


def exchange_unbind(channel: Channel, method: ExchangeUnbind) -> None:
    """Remove a binding; a missing binding, source or destination is no error."""
    _check_exchange_binding(channel, method.destination, method.source, method.routing_key)
    command = Unbind(
        channel.connection.router.vhost,
        method.source,
        method.destination,
        EXCHANGE,
        method.routing_key,
        method.arguments,
    )
    answer = None if method.no_wait else ExchangeUnbindOk()
    propose(channel, command, Reply(channel, answer, method), False)


def _check_exchange_binding(channel: Channel, destination: str, source: str, key: str) -> None:
    check_not_default_exchange(destination)
    check_not_default_exchange(source)
    check_write(channel, EXCHANGE, destination)
    check_read(channel, EXCHANGE, source)
    _check_topic_read(channel, source, key)


# ---- queues -------------------------------------------------------------------------------------


def queue_declare(channel: Channel, method: QueueDeclare) -> None:
    connection = channel.connection
    router = connection.router
    name = method.queue
    if name == REPLY_QUEUE or name.startswith(REPLY_PREFIX):
        _declare_reply_queue(channel, method)
        return
    if method.passive:
        _declared(channel, find_queue(channel, name), method)
        return
    existing = router.queues.get(name) if name else None
    if name == "":
        check_server_named(method.arguments)
        name = connection.broker.make_name("amq.gen-")
    elif existing is None:
        check_declarable_name(QUEUE, name)
        check_not_elsewhere(channel, name, 50, 10)
    elif isinstance(existing, Queue):
        _check_same_owner(channel, existing, method.exclusive)
    check_configure(channel, QUEUE, name)
    arguments = method.arguments
    kind = default_type(connection.broker.state.parameters, router.vhost)
    if kind != "" and method.queue != "":
        there = existing.options.queue_type if isinstance(existing, Queue) else ""
        arguments = with_default_type(
            kind, there, arguments, method.durable, method.exclusive, method.auto_delete
        )
    if existing is None:
        _check_new_queue(channel, name, method, arguments)
    command = DeclareQueue(
        router.vhost,
        name,
        method.durable,
        method.auto_delete,
        connection.owner if method.exclusive else "",
        arguments,
        user=connection.identity.user,
    )
    propose(channel, command, QueueDeclared(channel, name, method), method.exclusive)


def _check_new_queue(
    channel: Channel, name: str, method: QueueDeclare, arguments: dict[str, object]
) -> None:
    connection = channel.connection
    check_proposed_queue(connection.router.vhost, name, arguments)
    dead_letter = arguments.get("x-dead-letter-exchange")
    dead_letter_key = arguments.get("x-dead-letter-routing-key")
    if isinstance(dead_letter_key, str):
        check_length("dead letter routing key", dead_letter_key)
    if isinstance(dead_letter, str):
        check_read(channel, QUEUE, name)
        check_write(channel, EXCHANGE, dead_letter)
    limits = connection.broker.limits
    limits.check_queue()
    if method.exclusive:
        limits.check_private_queue(connection.router.vhost, connection.identity.user, name)


class QueueDeclared(Reply):
    """Answers queue.declare with the counts of the queue."""

    name: str
    no_wait: bool

    def __init__(self, channel: Channel, name: str, method: QueueDeclare) -> None:
        super().__init__(channel, None, method)
        self.name = name
        self.no_wait = method.no_wait

    def finish(self) -> None:
        super().finish()
        self._check_rivals()
        queue = self.channel.connection.router.queues.get(self.name)
        self.channel.last_queue = self.name
        if not isinstance(queue, Queue):
            # The queue was made, and deleted again before every broker knew it (R10).
            if not self.no_wait and not self.channel.closing:
                self.channel.send(QueueDeclareOk(self.name, 0, 0))
            return
        queue.last_used_ms = self.channel.connection.broker.turn.now_ms
        if queue.definition.exclusive_owner:
            self.channel.connection.private_queues[self.name] = None
        if self.no_wait or self.channel.closing:
            return
        if self._is_new():
            # There is nothing to ask its home for, and the home may be out of reach for now.
            self.channel.send(QueueDeclareOk(queue.name, 0, 0))
        else:
            _answer_declare(self.channel, queue)

    def _check_rivals(self) -> None:
        """Delete a private queue again if other brokers used up the limit first."""
        connection = self.channel.connection
        if not self.private or not self._is_new():
            return
        queue = connection.router.queues.get(self.name)
        if isinstance(queue, Queue):
            try:
                connection.broker.limits.check_rivals(queue.vhost, queue.definition.user, self.name)
            except AmqpError:
                connection.broker.delete_queue(queue)
                raise

    def _is_new(self) -> bool:
        assert self.outcome is not None
        return any(isinstance(fact, QueueCreated) for fact in self.outcome.facts)


def _declared(channel: Channel, queue: Queue, method: QueueDeclare) -> None:
    channel.last_queue = queue.name
    queue.last_used_ms = channel.connection.broker.turn.now_ms
    if not method.no_wait:
        _answer_declare(channel, queue)


def _answer_declare(channel: Channel, queue: Queue) -> None:
    away = away_of(queue)
    if away is not None:
        away.declared(channel, queue)
    else:
        channel.send(QueueDeclareOk(queue.name, queue.ready, queue.consumer_count))


def _declare_reply_queue(channel: Channel, method: QueueDeclare) -> None:
    """Answer a server that asks whether its client still waits for a reply.

    If the client is on another broker, this broker only knows that broker, and whether it can be
    reached.
    """
    broker = channel.connection.broker
    vhost = channel.connection.router.vhost
    if (
        method.queue != REPLY_QUEUE
        and not broker.replies.knows(vhost, method.queue)
        and broker.cluster.private_elsewhere(vhost, method.queue) is None
    ):
        raise no_queue(vhost, method.queue)
    channel.last_queue = method.queue
    if not method.no_wait:
        channel.send(QueueDeclareOk(method.queue, 0, 1))


def _check_same_owner(channel: Channel, queue: Queue, exclusive: bool) -> None:
    owner = queue.definition.exclusive_owner
    wanted = channel.connection.owner if exclusive else ""
    if owner != wanted:
        raise queue_locked(queue.vhost, queue.name, 50, 10)


def queue_bind(channel: Channel, method: QueueBind) -> None:
    name = queue_name(channel, method.queue)
    _check_queue_binding(channel, name, method.exchange, method.routing_key)
    find_exchange(channel, method.exchange)
    queue = find_queue(channel, name)
    if queue.of_broker:
        raise AccessRefused(
            f"queue '{name}' in vhost '{queue.vhost}' is the broker's own; nothing can be bound to"
            " it"
        )
    key = method.routing_key
    if key == "" and method.queue == "":
        key = queue.name
    private = queue.definition.is_private()
    kind = PRIVATE if private else QUEUE
    command = Bind(queue.vhost, method.exchange, queue.name, kind, key, method.arguments)
    answer = None if method.no_wait else QueueBindOk()
    propose(channel, command, Reply(channel, answer, method), private)


def queue_unbind(channel: Channel, method: QueueUnbind) -> None:
    """Remove a binding; a missing binding, source or destination is no error.

    Only a binding that exists is protected by its queue's lock, as in RabbitMQ.
    """
    name = queue_name(channel, method.queue)
    _check_queue_binding(channel, name, method.exchange, method.routing_key)
    router = channel.connection.router
    queue = router.queues.get(name)
    source = router.exchanges.get(method.exchange)
    private = False
    if queue is not None and source is not None:
        if source.find(queue, method.routing_key, method.arguments) is not None:
            private = find_queue(channel, name).definition.is_private()
    kind = PRIVATE if private else QUEUE
    command = Unbind(
        router.vhost, method.exchange, name, kind, method.routing_key, method.arguments
    )
    propose(channel, command, Reply(channel, QueueUnbindOk(), method), private)


def _check_queue_binding(channel: Channel, queue: str, exchange: str, key: str) -> None:
    check_not_default_exchange(exchange)
    check_write(channel, QUEUE, queue)
    check_read(channel, EXCHANGE, exchange)
    _check_topic_read(channel, exchange, key)


def _check_topic_read(channel: Channel, exchange: str, key: str) -> None:
    connection = channel.connection
    vhost = connection.router.vhost
    source = connection.router.exchanges.get(exchange)
    if source is None or source.kind != "topic":
        return
    if not connection.identity.may_read_topic(vhost, exchange, key):
        raise AccessRefused(
            f"access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' refused for "
            f"user '{connection.identity.user}'"
        )


def queue_purge(channel: Channel, method: QueuePurge) -> None:
    name = queue_name(channel, method.queue)
    check_read(channel, QUEUE, name)
    queue = find_queue(channel, name)
    if is_stream(queue.options):
        raise unsupported("queue.purge", queue.vhost, name, 50, 30)
    away = away_of(queue)
    if away is not None:
        away.purge(channel, queue, method.no_wait)
        return
    waiting = channel.connection.broker
    if may_tell(queue):
        waiting.answer_purge(channel, queue, queue.purge(), method.no_wait)
    else:
        waiting.defer(channel, method)


def queue_delete(channel: Channel, method: QueueDelete) -> None:
    name = queue_name(channel, method.queue)
    check_configure(channel, QUEUE, name)
    router = channel.connection.router
    if name not in router.queues:
        check_not_elsewhere(channel, name, 50, 40)
        if not method.no_wait:
            channel.send(QueueDeleteOk(0))
        return
    queue = find_queue(channel, name)
    away = away_of(queue)
    if away is not None:
        away.delete(channel, queue, method)
        return
    if (method.if_unused or method.if_empty) and not may_tell(queue):
        channel.connection.broker.defer(channel, method)
        return
    check_deletable(queue, method.if_unused, method.if_empty)
    delete_counted(channel, queue, queue.ready, method)


def check_deletable(queue: Queue, if_unused: bool, if_empty: bool) -> None:
    """Raise PreconditionFailed if the queue is not unused or empty as if_unused or if_empty
    demands."""
    where = queue_resource(queue.vhost, queue.name)
    if if_unused and queue.consumer_count > 0:
        raise PreconditionFailed(f"{where} in use")
    if if_empty and queue.ready > 0:
        raise PreconditionFailed(f"{where} not empty")


class QueueGone(Reply):
    """Answers queue.delete. A queue that was deleted meanwhile, because it was unused or by another
    client, is no error: what does not exist can be deleted, too."""

    def finish(self) -> None:
        assert self.outcome is not None
        if not isinstance(self.outcome.error, NotFound):
            super().finish()
        elif self.method is not None and not self.channel.closing:
            self.channel.send(self.method)


def delete_counted(channel: Channel, queue: Queue, count: int, method: QueueDelete) -> None:
    """Have a queue deleted, and answer with the number of messages that it holds."""
    answer = None if method.no_wait else QueueDeleteOk(count)
    command = DeleteQueue(queue.vhost, queue.name, queue.definition.id)
    propose(channel, command, QueueGone(channel, answer, method), queue.definition.is_private())
