"""Events: what happens at this broker, as messages on exchange amq.rabbitmq.event.

Routing keys and headers are those of RabbitMQ's event exchange plugin. Each vhost has the exchange,
and gets the events of its own objects and connections; what belongs to no vhost (users, vhosts,
alarms, refused logins) goes to vhost /. Each event is published by one broker: a change by the one
that proposed it, the others where they happen.

An event names things and people. It never carries bodies, the values of parameters, hashes of
passwords or what clients say of themselves beyond their product. Nothing is noted while nothing is
bound. Like traces, events have no confirms and are left out rather than hold anybody up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rhizome.amqp.field_table import encode_table
from rhizome.amqp.frames import content_frames
from rhizome.amqp.primitives import SHORTSTR_BYTES_MAX
from rhizome.amqp.properties import Properties, encode_header
from rhizome.amqp.spec import FRAME_OVERHEAD
from rhizome.broker.channel.topology_methods import Reply
from rhizome.broker.message import Message, largest_frame
from rhizome.broker.metadata.metadata_changes import (
    AccessChanged,
    BindingAdded,
    BindingRemoved,
    ExchangeCreated,
    ExchangeDeleted,
    Fact,
    Outcome,
    QueueCreated,
    QueueDeleted,
    VhostCreated,
    VhostDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    SCOPE_VHOST,
    Command,
    DeclareQueue,
    DeleteLimit,
    DeleteParameter,
    DeletePermission,
    DeletePolicy,
    DeleteTopicPermission,
    DeleteUser,
    PutLimit,
    PutParameter,
    PutPermission,
    PutPolicy,
    PutTopicPermission,
)
from rhizome.broker.metadata.resource_names import EVENT_EXCHANGE
from rhizome.broker.observer import EventSink
from rhizome.broker.publishing.publish_path import enqueue, recipients_of, send_on
from rhizome.broker.turn import STEPS_PER_WORK, Chore, decoding_work
from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.cluster_port import Waiter
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.routing.router import Router

EVENTS_MAX: Final = 1_000
"""How many wait to be published. What comes beyond is left out."""

SERVER_VHOST: Final = "/"
"""Where the events go that belong to no vhost."""

_CLIENT_WORDS: Final = ("connection_name", "product", "version", "platform")
"""What is told of a client's properties. Others may be secret, as an application token is."""

_Words = dict[str, object]

_OF_VHOST: Final[dict[type[Command], tuple[str, tuple[str, ...]]]] = {
    PutPermission: ("permission.created", ("user", "vhost", "configure", "write", "read")),
    DeletePermission: ("permission.deleted", ("user", "vhost")),
    PutTopicPermission: (
        "topic.permission.created",
        ("user", "vhost", "exchange", "write", "read"),
    ),
    DeleteTopicPermission: ("topic.permission.deleted", ("user", "vhost", "exchange")),
    PutPolicy: ("policy.set", ("vhost", "name", "pattern", "apply_to", "priority", "definition")),
    DeletePolicy: ("policy.cleared", ("vhost", "name")),
    PutParameter: ("parameter.set", ("vhost", "component", "name")),
    DeleteParameter: ("parameter.cleared", ("vhost", "component", "name")),
}
"""The routing key of a command about a vhost, and which of its fields are told."""


class EventExchange(EventSink):
    """``left_out`` counts the events that were not published, by reason."""

    def __init__(self, broker: Broker, node: str) -> None:
        super().__init__()
        self.left_out = {"too many": 0, "blocked": 0, "congested": 0, "unroutable": 0}
        self._broker = broker
        self._node = node
        self._notes: list[tuple[str, str, _Words]] = []
        self._goes_on = False
        """Whether a chore sees to it that there is a turn for the rest."""

    # ---- what happens ---------------------------------------------------------------------------

    def changed(self, command: Command, outcome: Outcome, waiter: Waiter | None) -> None:
        if outcome.error is not None or not outcome.changed:
            return
        by: _Words = {}
        if isinstance(waiter, Reply):
            by = {"user_who_performed_action": waiter.channel.connection.identity.user}
        elif isinstance(command, DeclareQueue) and command.user:
            by = {"user_who_performed_action": command.user}
        for fact in outcome.facts:
            self._changed(fact, by)
        self._about_command(command, by)

    def _changed(self, fact: Fact, by: _Words) -> None:
        if isinstance(fact, (QueueCreated, QueueDeleted)):
            definition = fact.definition
            words = {
                "name": definition.name,
                "vhost": definition.vhost,
                "durable": definition.durable,
                "auto_delete": definition.auto_delete,
                "exclusive": definition.is_private(),
                "type": definition.options.queue_type,
                "arguments": definition.arguments,
            }
            key = "queue.created" if isinstance(fact, QueueCreated) else "queue.deleted"
            self._note(definition.vhost, key, {**words, **by})
        elif isinstance(fact, (ExchangeCreated, ExchangeDeleted)):
            exchange = fact.exchange
            words = {
                "name": exchange.name,
                "vhost": exchange.vhost,
                "type": exchange.kind,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": exchange.arguments,
            }
            key = "exchange.created" if isinstance(fact, ExchangeCreated) else "exchange.deleted"
            self._note(exchange.vhost, key, {**words, **by})
        elif isinstance(fact, (BindingAdded, BindingRemoved)):
            self._binding(fact, by)
        elif isinstance(fact, AccessChanged):
            if fact.is_put:
                self._user_put(fact, by)
        elif isinstance(fact, VhostCreated):
            self._note(SERVER_VHOST, "vhost.created", {"name": fact.name, **by})
        elif isinstance(fact, VhostDeleted):
            self._note(SERVER_VHOST, "vhost.deleted", {"name": fact.name, **by})

    def _user_put(self, fact: AccessChanged, by: _Words) -> None:
        user = self._broker.state.users.get(fact.user)
        before = fact.before
        if user is None:
            return
        if before is None:
            self._note(SERVER_VHOST, "user.created", {"name": fact.user, **by})
        elif before.password_hash != user.password_hash:
            self._note(SERVER_VHOST, "user.password.changed", {"name": fact.user, **by})
        if user.tags != (() if before is None else before.tags):
            tags = {"name": fact.user, "tags": list(user.tags)}
            self._note(SERVER_VHOST, "user.tags.set", {**tags, **by})

    def _binding(self, fact: BindingAdded | BindingRemoved, by: _Words) -> None:
        binding = fact.binding
        words = {
            "vhost": fact.vhost,
            "source_name": binding.source,
            "source_kind": "exchange",
            "destination_name": binding.destination.name,
            "destination_kind": "exchange" if binding.destination.is_exchange else "queue",
            "routing_key": binding.key,
            "arguments": binding.arguments,
        }
        key = "binding.created" if isinstance(fact, BindingAdded) else "binding.deleted"
        self._note(fact.vhost, key, {**words, **by})

    def _about_command(self, command: Command, by: _Words) -> None:
        if isinstance(command, DeleteUser):
            self._note(SERVER_VHOST, "user.deleted", {"name": command.name, **by})
        elif isinstance(command, (PutLimit, DeleteLimit)):
            set_it = isinstance(command, PutLimit)
            scope = "vhost" if command.scope == SCOPE_VHOST else "user"
            limit: _Words = {"name": command.name, "limit": command.limit, **by}
            if isinstance(command, PutLimit):
                limit["value"] = command.value
            key = f"{scope}.limits.{'set' if set_it else 'cleared'}"
            self._note(command.name if scope == "vhost" else SERVER_VHOST, key, limit)
        elif type(command) in _OF_VHOST:
            key, fields = _OF_VHOST[type(command)]
            found: _Words = {field.replace("_", "-"): getattr(command, field) for field in fields}
            vhost = str(found["vhost"]) or SERVER_VHOST
            self._note(vhost, key, {**found, **by})

    def connection_opened(self, connection: Connection) -> None:
        words = _connection_words(connection)
        vhost = connection.router.vhost
        self._note(vhost, "user.authentication.success", {"name": words["user"], **words})
        self._note(vhost, "connection.created", {**words, "name": connection.name})

    def connection_closed(self, connection: Connection) -> None:
        words = {**_connection_words(connection), "name": connection.name}
        self._note(connection.router.vhost, "connection.closed", words)

    def login_refused(self, connection: Connection, reason: str) -> None:
        peer = connection.peer
        words: _Words = {
            "error": reason,
            "connection_type": "network",
            "peer_host": peer.address,
            "peer_port": peer.port,
            "ssl": peer.tls,
        }
        self._note(SERVER_VHOST, "user.authentication.failure", words)

    def channel_opened(self, channel: Channel) -> None:
        self._channel(channel, "channel.created")

    def channel_closed(self, channel: Channel) -> None:
        self._channel(channel, "channel.closed")

    def _channel(self, channel: Channel, key: str) -> None:
        connection = channel.connection
        if _is_of_client(connection):
            words: _Words = {
                "name": f"{connection.name} ({channel.number})",
                "number": int(channel.number),
                "connection": connection.name,
                "user": connection.identity.user,
                "vhost": connection.router.vhost,
            }
            self._note(connection.router.vhost, key, words)

    def consumer_added(self, consumer: Consumer) -> None:
        self._consumer(consumer, "consumer.created")

    def consumer_removed(self, consumer: Consumer) -> None:
        self._consumer(consumer, "consumer.deleted")

    def _consumer(self, consumer: Consumer, key: str) -> None:
        channel = consumer.channel
        connection = channel.connection
        if _is_of_client(connection):
            words: _Words = {
                "consumer_tag": consumer.tag,
                "queue": consumer.queue.name,
                "vhost": connection.router.vhost,
                "exclusive": consumer.exclusive,
                "ack_required": not consumer.no_ack,
                "prefetch_count": int(consumer.prefetch),
                "arguments": consumer.arguments,
                "channel": f"{connection.name} ({channel.number})",
                "user": connection.identity.user,
            }
            self._note(connection.router.vhost, key, words)

    def alarm(self, reason: str) -> None:
        key = "alarm.set" if reason else "alarm.cleared"
        self._note(SERVER_VHOST, key, {"reason": reason} if reason else {})

    # ---- publishing -----------------------------------------------------------------------------

    def _note(self, vhost: str, key: str, words: _Words) -> None:
        found = self._broker.state.vhosts.get(vhost)
        if found is None or found.router.exchanges[EVENT_EXCHANGE].is_unused():
            return
        if len(self._notes) >= EVENTS_MAX:
            self.left_out["too many"] += 1
            return
        words["node"] = self._node
        words["timestamp_in_ms"] = int(self._broker.turn.now_ms)
        self._notes.append((vhost, key, words))
        self.pending = True

    def end_turn(self) -> None:
        notes, self._notes = self._notes, []
        turn = self._broker.turn
        for at, (vhost, key, words) in enumerate(notes):
            if at > 0 and turn.is_full():
                self._notes = notes[at:]
                break
            self._publish_note(vhost, key, words)
        self.pending = len(self._notes) > 0
        if self.pending and not self._goes_on:
            self._goes_on = True
            turn.chores.append(_MoreEvents(self))

    def is_done(self) -> bool:
        """Whether no event waits for a turn; asked once per turn while there was one."""
        self._goes_on = self.pending
        return not self.pending

    def _publish_note(self, name: str, key: str, words: _Words) -> None:
        vhost = self._broker.state.vhosts.get(name)
        if vhost is None:
            return
        if self._broker.blocking and not key.startswith("alarm."):
            self.left_out["blocked"] += 1
            return
        try:
            self._publish(vhost.router, key, words)
        except AmqpError:
            # Its bindings lead to more places than a message may reach.
            self.left_out["unroutable"] += 1

    def _publish(self, router: Router, key: str, words: _Words) -> None:
        broker = self._broker
        exchange = router.exchanges[EVENT_EXCHANGE]
        headers = words if router.needs_headers(exchange) else None
        found = recipients_of(router, broker.cluster, exchange, [key], headers)
        broker.turn.work += 1 + router.take_steps() // STEPS_PER_WORK
        targets = [target for target in found.targets if not target.forward.congested]
        self.left_out["congested"] += len(found.targets) - len(targets)
        if not found.queues and not targets:
            return
        content = _content(words, int(broker.limits.frame_max))
        broker.turn.work += decoding_work(content)
        message = Message(broker.route_to(EVENT_EXCHANGE, key), content, 1, largest_frame(content))
        message.arrived_ms = broker.turn.now_ms
        message.persistent = True
        send_on(message, targets, None)
        enqueue(broker, message, found.queues, None)


class _MoreEvents(Chore):
    """Asks for turns until all events are published: thousands of arguments may be in them."""

    def __init__(self, events: EventExchange) -> None:
        super().__init__()
        self._events = events

    def run(self) -> bool:
        return self._events.is_done()


def _is_of_client(connection: Connection) -> bool:
    """Whether a connection is an application's own: not a link's, nor one of the HTTP API."""
    return connection.id > 0 and connection.router.vhost != ""


def _connection_words(connection: Connection) -> _Words:
    peer = connection.peer
    told: Any = connection.client_properties
    client = {word: told[word] for word in _CLIENT_WORDS if isinstance(told.get(word), str)}
    return {
        "user": connection.identity.user,
        "vhost": connection.router.vhost,
        "peer_host": peer.address,
        "peer_port": peer.port,
        "ssl": peer.tls,
        "protocol": "AMQP 0-9-1",
        "connection_type": "network",
        "client_properties": client,
    }


def _content(words: _Words, frame_max: int) -> bytes:
    """An event as a persistent message without a body. What doesn't fit in a frame is left out,
    the largest first: a header frame can't be split."""
    seconds = int(str(words["timestamp_in_ms"])) // 1000
    kept = {name[:SHORTSTR_BYTES_MAX]: value for name, value in words.items()}
    sizes = {name: _size(name, value) for name, value in kept.items()}
    for name in [each for each, size in sizes.items() if size == 0]:
        del kept[name]
    while True:
        properties = Properties(headers=kept, delivery_mode=2, timestamp=seconds)
        header = encode_header(0, properties)
        if not 0 < frame_max < len(header) + FRAME_OVERHEAD:
            return content_frames(1, header, b"", frame_max)
        del kept[max(kept, key=lambda name: sizes[name])]


def _size(name: str, value: object) -> int:
    """How large a field is; 0 if it can't be in a table. Arguments may be nested as deep as tables
    may be, and are one level deeper here."""
    try:
        return len(encode_table({name: value}))
    except ValueError:
        return 0
