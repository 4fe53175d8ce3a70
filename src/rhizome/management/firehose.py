"""Firehose: copies of what is published and delivered in a vhost, on exchange amq.rabbitmq.trace.

Routing keys and headers are those of RabbitMQ: `publish.EXCHANGE` for what clients publish and
`deliver.QUEUE` for what they get, with the message's own properties in the header `properties`.
Each broker traces its own clients, so each message is traced once in a cluster. As in RabbitMQ, a
restart ends it.

Traces must never slow down or stop what they show. They are made at the end of the turn, have no
confirms, and are left out if too many came in one turn, if publishers are blocked, or if the broker
that they would go to can't keep up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.frames import body_of, content_frames, header_payload_of
from rhizome.amqp.primitives import SHORTSTR_BYTES_MAX
from rhizome.amqp.properties import Properties, decode_properties, encode_header
from rhizome.amqp.spec import FRAME_OVERHEAD
from rhizome.broker.message import Message, largest_frame
from rhizome.broker.observer import Tracer
from rhizome.broker.publishing.publish_path import enqueue, recipients_of, send_on
from rhizome.broker.turn import STEPS_PER_WORK
from rhizome.errors import AmqpError, SyntaxErrorFault
from rhizome.management.errors import Unavailable

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.publishing.publication import Publication
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.routing.router import Router
    from rhizome.management.api_context import Context

TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
NOTES_MAX: Final = 10_000
NOTED_BYTES_MAX: Final = 16 << 20
"""Of one turn. What comes beyond is not traced."""
ROUTED_BYTES_MAX: Final = 32 << 10
"""Names of queues in one trace; a message may reach thousands. The others are counted."""

NAME_OVERHEAD: Final = 5
"""Of each of them in a table."""
ROUTED: Final = "routed_queues"
ROUTED_MORE: Final = "routed_queues_more"

KNOWN_POLLS_MAX: Final = 100
KNOWN_POLL_SECONDS: Final = 0.02
_NAMES: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class Firehose(Tracer):
    """``left_out`` counts what was not traced, by reason."""

    def __init__(self, broker: Broker, node: str) -> None:
        reasons = ("too many", "blocked", "congested", "unroutable", "too large")
        self.left_out = dict.fromkeys(reasons, 0)
        self._broker = broker
        self._node = node
        self._notes: list[tuple[Router, str, bytes, dict[str, object]]] = []
        self._noted_bytes = 0

    def published(self, channel: Channel, publication: Publication) -> None:
        message, shared = publication.message, self._broker.shared
        queues = list(publication.queues)
        for target in publication.targets:
            # Private queues of other brokers are not known here by name.
            queues += [shared[each] for each in target.queue_ids if each in shared]
        keys = [message.route.key, *publication.options.keys]
        routed, size = _routed(queues)
        self._note(channel, f"publish.{message.route.exchange}", message, keys, routed, size)

    def delivered(
        self, channel: Channel, message: Message, queue: Queue, redelivered: bool
    ) -> None:
        if message.route.exchange != TRACE_EXCHANGE:
            again = {"redelivered": 1 if redelivered else 0}
            self._note(channel, f"deliver.{queue.name}", message, [message.route.key], again)

    def _note(
        self,
        channel: Channel,
        key: str,
        message: Message,
        keys: list[str],
        more: Mapping[str, object],
        routed_bytes: int = 0,
    ) -> None:
        if len(self._notes) >= NOTES_MAX or self._noted_bytes >= NOTED_BYTES_MAX:
            self.left_out["too many"] += 1
            return
        connection = channel.connection
        headers: dict[str, object] = {
            "exchange_name": message.route.exchange,
            "routing_keys": keys,
            "node": self._node,
            "vhost": connection.router.vhost,
            "connection": connection.name,
            "channel": int(channel.number),
            "user": connection.identity.user,
            **more,
        }
        self._notes.append((connection.router, key, message.content, headers))
        self._noted_bytes += len(message.content) + sum(map(len, keys)) + routed_bytes

    def end_turn(self) -> None:
        notes, self._notes, self._noted_bytes = self._notes, [], 0
        if self._broker.blocking:
            self.left_out["blocked"] += len(notes)
            return
        for router, key, content, headers in notes:
            try:
                self._publish(router, key, content, headers)
            except AmqpError:
                # Its bindings lead to more places than a message may reach.
                self.left_out["unroutable"] += 1

    def _publish(self, router: Router, key: str, traced: bytes, headers: dict[str, object]) -> None:
        broker = self._broker
        packed = key.encode("utf-8", "surrogateescape")[:SHORTSTR_BYTES_MAX]
        name = TRACE_EXCHANGE.encode()
        route = broker.pager.route(bytes([len(name)]) + name + bytes([len(packed)]) + packed)
        exchange = router.exchanges[TRACE_EXCHANGE]
        found = recipients_of(router, broker.cluster, exchange, [route.key], None)
        broker.turn.work += 1 + router.take_steps() // STEPS_PER_WORK
        targets = [target for target in found.targets if not target.forward.congested]
        self.left_out["congested"] += len(found.targets) - len(targets)
        if not found.queues and not targets:
            return
        content = _content(traced, headers, int(broker.limits.frame_max))
        if content is None:
            self.left_out["too large"] += 1
            return
        message = Message(route, content, 1, largest_frame(content))
        message.arrived_ms = broker.turn.now_ms
        send_on(message, targets, None)
        enqueue(broker, message, found.queues, None)


def _routed(queues: list[Queue]) -> tuple[dict[str, object], int]:
    """The names of the queues that a message reaches, as many as a trace may have, and how many
    more there are; and the size of all of that."""
    names: list[str] = []
    size = 0
    for queue in queues:
        more = len(queue.name) + NAME_OVERHEAD
        if size + more > ROUTED_BYTES_MAX:
            return {ROUTED: names, ROUTED_MORE: len(queues) - len(names)}, size
        names.append(queue.name)
        size += more
    return {ROUTED: names}, size


def _content(traced: bytes, headers: dict[str, object], frame_max: int) -> bytes | None:
    """A trace: the body of what it is about, and its properties in a header; None if it can't be
    made small enough.

    A header frame can't be split, and tables are nested deeper here than where they come from, so
    what clients write is left out if it doesn't fit.
    """
    properties = _property_table(traced)
    body = body_of(traced)
    for part, name in ((properties, ""), (properties, "headers"), (headers, ROUTED)):
        if name:
            part.pop(name, None)
        try:
            header = _header(body, headers, properties)
        except ValueError:
            continue
        if len(header) + FRAME_OVERHEAD <= frame_max or frame_max == 0:
            return content_frames(1, header, body, frame_max)
    return None


def _header(body: bytes, headers: dict[str, object], properties: dict[str, object]) -> bytes:
    return encode_header(len(body), Properties(headers={**headers, "properties": properties}))


def _property_table(content: bytes) -> dict[str, object]:
    try:
        properties = decode_properties(header_payload_of(content))
    except SyntaxErrorFault:
        return {}
    found = {name: getattr(properties, name) for name in _NAMES}
    if found["timestamp"] is not None:
        found["timestamp"] = Timestamp(found["timestamp"])
    return {name: value for name, value in found.items() if value is not None}


# ---- switching ----------------------------------------------------------------------------------


def trace(context: Context, vhost: str, is_on: bool) -> None:
    """Trace a vhost at this broker, or no more."""
    found = context.broker.state.vhosts.get(vhost)
    if found is not None:
        switch(context.broker, context.name, found.router, is_on)


def switch(broker: Broker, node: str, router: Router, is_on: bool) -> None:
    """Consumers that are there already are told, and all routes are looked up again."""
    if router.traced == is_on:
        return
    router.traced = is_on
    router.epoch += 1
    traced = any(vhost.router.traced for vhost in broker.state.vhosts.values())
    if not traced:
        broker.tracer = None
    elif broker.tracer is None:
        broker.tracer = Firehose(broker, node)
    for connection in broker.connections.values():
        if connection.router is router:
            for channel in connection.channels.values():
                for consumer in channel.consumers.values():
                    consumer.announced = consumer.identified or is_on


async def until_known(context: Context, vhost: str) -> None:
    """Wait until this broker has learnt of a vhost that another one has just made."""
    for _ in range(KNOWN_POLLS_MAX):
        if vhost in context.broker.state.vhosts:
            return
        await asyncio.sleep(KNOWN_POLL_SECONDS)
    raise Unavailable(f"this broker knows no vhost '{vhost}' yet")
