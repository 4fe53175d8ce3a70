"""Publish path: from the wire bytes of a publish to the queues that take the message.

``publish`` is hot. A plain message (without message options) on a plain route (queues that take
everything, no headers needed) is one message object, one log append and one push per queue.
Everything else goes through ``_publish_with_options``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from rhizome.broker.access.auth_interface import Identity
from rhizome.broker.channel.direct_reply_to import REPLY_PREFIX
from rhizome.broker.cluster_port import Cluster
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import (
    DELIVERY_MODE_ONLY,
    HEADER_FLAGS_OFFSET,
    Message,
    Route,
    copy_of,
)
from rhizome.broker.publishing.blocked_publishers import published_by
from rhizome.broker.publishing.forward_port import Target
from rhizome.broker.publishing.message_options import producers_of, read_message_options
from rhizome.broker.publishing.publication import MessageOptions, Publication
from rhizome.broker.publishing.publish_route import Part, PublishRoute
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.reliability_levels import ceiling
from rhizome.broker.publishing.remote_targets import Recipients, keeping_of
from rhizome.broker.queue.message_deduplication import (
    accept,
    is_duplicate,
    set_window,
    wait_for_original,
)
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.bindings_and_destinations import Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.turn import ENQUEUES_PER_WORK, STEPS_PER_WORK
from rhizome.errors import (
    AccessRefused,
    NotFound,
    NotImplementedFault,
    SyntaxErrorFault,
)
from rhizome.journal.dedup_state import DedupIdentity

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.routing.router import Router

ROUTES_MAX: Final = 65536


def publish(channel: Channel, key: bytes, content: bytes, frame_bytes_max: i64) -> None:
    """Publish a content. ``key`` holds the fields of basic.publish as they came."""
    connection = channel.connection
    broker = connection.broker
    route = channel.publish_route
    if (
        route is None
        or route.epoch != connection.router.epoch
        or channel.publish_access != broker.access_epoch.value
        or key != channel.publish_key
    ):
        route = _resolve(channel, key)
    channel.published += 1
    broker.published += 1
    message = Message(route, content, channel.number, frame_bytes_max)
    message.arrived_ms = broker.turn.now_ms
    flags: i64 = i64(read_i16_be(content, HEADER_FLAGS_OFFSET)) & 0xFFFF
    mode: i64 = content[HEADER_FLAGS_OFFSET + 2] if flags == DELIVERY_MODE_ONLY else 1
    if (
        (flags & ~DELIVERY_MODE_ONLY) == 0
        and (mode == 1 or mode == 2)
        and route.plain
        and channel.transaction is None
    ):
        message.persistent = mode == 2
        confirms = channel.confirms
        if confirms is not None:
            confirms.published += 1
            if confirms.levels is not None:
                confirms.at_most(ceiling(route.level, mode == 2, len(route.parts)))
            if not channel.marked:
                channel.touch()
        for part in route.parts:
            if part is not route.parts[0]:
                message = copy_of(message)
            log = part.log
            log.append(message, part.ids, part.durable)
            if part.work > 0:
                broker.turn.work += part.work
            for queue in part.queues:
                queue.push(message)
                if queue.flow_control.congested:
                    queue.flow_control.pause(queue, connection)
            if confirms is not None and (message.position != 0 or log.replicated):
                confirms.need(log, message.index, message.position != 0)
        if len(route.targets) > 0:
            send_on(message, route.targets, channel)
    else:
        _publish_with_options(channel, route, message, flags)
    if broker.blocking or not connection.publishing:
        published_by(broker, connection)


# ---- routes -------------------------------------------------------------------------------------


def check_publish(channel: Channel, key: bytes) -> None:
    """Raise, before any content is kept, if this channel's user may not publish this way or nobody
    may."""
    route = channel.publish_route
    if (
        route is None
        or route.epoch != channel.connection.router.epoch
        or channel.publish_access != channel.connection.broker.access_epoch.value
        or key != channel.publish_key
    ):
        _resolve(channel, key)


def _resolve(channel: Channel, key: bytes) -> PublishRoute:
    """The route of a publish, checked for this channel's user."""
    connection = channel.connection
    broker = connection.broker
    router = connection.router
    known = connection.routes.get(key)
    route = known if isinstance(known, PublishRoute) else _remember_route(connection.routes, key)
    exchange = router.exchanges.get(route.exchange)
    if exchange is None:
        raise NotFound(f"no exchange '{route.exchange}' in vhost '{router.vhost}'", 60, 40)
    if route.epoch != router.epoch:
        try:
            refresh(route, exchange, router, broker.cluster)
        finally:
            broker.turn.work += router.take_steps() // STEPS_PER_WORK
    if route.immediate:
        raise NotImplementedFault("immediate=true", 60, 40)
    _check_permission(channel, exchange, route)
    channel.publish_key = key
    channel.publish_route = route
    channel.publish_access = broker.access_epoch.value
    return route


def _remember_route(routes: dict[bytes, Route], key: bytes) -> PublishRoute:
    if len(routes) >= ROUTES_MAX:
        routes.clear()
    route = _decode_route(key)
    routes[key] = route
    return route


def _decode_route(key: bytes) -> PublishRoute:
    """Parse the fields of basic.publish: reserved, exchange, routing key, bits."""
    size: i64 = len(key)
    exchange_end: i64 = 3 + key[2] if size > 2 else size
    if exchange_end >= size:
        raise SyntaxErrorFault("basic.publish is cut short", 60, 40)
    end: i64 = exchange_end + 1 + key[exchange_end]
    if end >= size:
        raise SyntaxErrorFault("basic.publish is cut short", 60, 40)
    exchange = key[3:exchange_end].decode("utf-8", "surrogateescape")
    routing_key = key[exchange_end + 1 : end].decode("utf-8", "surrogateescape")
    route = PublishRoute(exchange, routing_key, key[2:end])
    route.mandatory = key[end] & 1 == 1
    route.immediate = key[end] & 2 == 2
    return route


def refresh(route: PublishRoute, exchange: Exchange, router: Router, cluster: Cluster) -> None:
    """Look the route up again after the topology has changed."""
    route.by_headers = router.needs_headers(exchange)
    route.delayed = exchange.delayed
    recipients = Recipients([])
    recipients.level = 0
    is_reply = route.exchange == "" and route.key.startswith(REPLY_PREFIX)
    if not route.by_headers:
        recipients = recipients_of(router, cluster, exchange, [route.key], None)
    route.queues = recipients.queues
    route.targets = recipients.targets
    route.unrouted = recipients.unrouted
    route.level = recipients.level
    route.parts = parts_of(route.queues)
    route.plain = (
        not route.by_headers
        and not route.delayed
        and not is_reply
        and not router.traced
        and not (route.mandatory and recipients.unrouted)
        and _all_take_everything(route.queues)
    )
    route.epoch = router.epoch


def recipients_of(
    router: Router,
    cluster: Cluster,
    exchange: Exchange,
    keys: list[str],
    headers: dict[str, object] | None,
    may_take: Callable[[Destination], bool] | None = None,
) -> Recipients:
    """Where a message with these keys goes, each place once, if ``may_take`` lets it. Queues that
    are the broker's own get nothing by their names or bindings."""
    recipients = Recipients(keys[1:])
    taps: dict[Destination, None] = {}
    if len(keys) == 1:
        routed = router.route(exchange, keys[0], headers)
    else:
        routed = router.route_all(exchange, keys, headers)
    taps.update(dict.fromkeys(router.tapped))
    for destination in routed:
        if isinstance(destination, Queue) and destination.of_broker:
            continue
        taps.pop(destination, None)
        if may_take is None or may_take(destination):
            recipients.add(destination)
    if exchange.name == "":
        for key in keys:
            elsewhere = cluster.private_elsewhere(router.vhost, key)
            if elsewhere is not None:
                recipients.add(elsewhere)
    return recipients.close(list(taps))


def parts_of(queues: list[Queue]) -> list[Part]:
    """Group queues by the log that records what they take, in order of appearance."""
    parts: list[Part] = []
    for queue in queues:
        for part in parts:
            if part.log is queue.log:
                break
        else:
            part = Part(queue.log)
            parts.append(part)
        part.add(queue)
        part.work = len(part.queues) // ENQUEUES_PER_WORK
    return parts


def _all_take_everything(queues: list[Queue]) -> bool:
    for queue in queues:
        if queue.options.dedup is not None:
            return False
        if queue.bounded and queue.options.overflow != "drop-head":
            return False
    return True


def _check_permission(channel: Channel, exchange: Exchange, route: PublishRoute) -> None:
    connection = channel.connection
    vhost = exchange.vhost
    identity = connection.identity
    if not identity.may_write(vhost, exchange.name):
        raise AccessRefused(
            f"access to exchange '{exchange.name or 'amq.default'}' in vhost '{vhost}' refused for "
            f"user '{identity.user}'",
            60,
            40,
        )
    if exchange.kind == "topic":
        _check_topic(identity, exchange, route.key)
    if exchange.internal:
        raise AccessRefused(
            f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost}'", 60, 40
        )


def _check_topic(identity: Identity, exchange: Exchange, key: str) -> None:
    """Check the topic permissions for one key of a publish, including keys of CC and BCC."""
    vhost = exchange.vhost
    if not identity.may_write_topic(vhost, exchange.name, key):
        raise AccessRefused(
            f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost}' "
            f"refused for user '{identity.user}'",
            60,
            40,
        )


# ---- messages that steer the broker -------------------------------------------------------------


def _publish_with_options(
    channel: Channel, route: PublishRoute, message: Message, flags: i64
) -> None:
    if route.plain and channel.transaction is None and len(route.targets) == 0:
        known = channel.numbered
        if known is not None:
            owner = producers_of(channel.connection)
            identity = known.identity_of(message.content, owner)
            if identity is not None:
                message.persistent = known.persistent
                _publish_numbered(channel, route, message, identity)
                return
    options = read_message_options(channel, message, flags)
    publication = Publication(message, route.queues, route.targets, route.mandatory, options)
    publication.unrouted = route.unrouted
    level = route.level
    if route.by_headers or len(options.keys) > 0:
        recipients = _recipients_for(channel, route, options)
        publication.queues = recipients.queues
        publication.targets = recipients.targets
        publication.unrouted = recipients.unrouted
        level = recipients.level
    tracer = channel.connection.broker.tracer
    if tracer is not None and channel.connection.router.traced:
        tracer.published(channel, publication)
    if channel.transaction is not None:
        channel.transaction.publish(publication)
        channel.connection.broker.contents.keep(channel, len(message.content))
        return
    confirms = channel.confirms
    if confirms is not None:
        confirms.published += 1
        if confirms.levels is not None:
            if route.delayed and options.held:
                held = channel.connection.broker.delayed_queue(channel.connection.router.vhost)
                level = 0 if held is None else keeping_of(held)
            logs = len(parts_of(publication.queues))
            confirms.at_most(ceiling(level, message.persistent, logs))
        channel.touch()
    accepted = place(channel.connection.broker, publication, channel)
    if confirms is not None and not accepted:
        channel.nack(confirms.published)


def _publish_numbered(
    channel: Channel, route: PublishRoute, message: Message, identity: DedupIdentity
) -> None:
    """Publish a message with a sequence, and without other options, on a plain route."""
    confirms = channel.confirms
    if confirms is not None:
        confirms.published += 1
        if confirms.levels is not None:
            confirms.at_most(ceiling(route.level, message.persistent, len(route.parts)))
        channel.touch()
    broker = channel.connection.broker
    message.identity = identity
    if len(route.queues) != 1:
        enqueue(broker, message, route.queues, confirms)
    elif is_duplicate(route.queues[0], identity, broker.turn.now_ms):
        if confirms is not None:
            wait_for_original(route.queues[0], confirms)
    else:
        part = route.parts[0]
        part.log.append(message, part.ids, part.durable)
        part.queues[0].push(message)
        accept(part.queues[0], message)
        if confirms is not None:
            need_for(confirms, part.log, message)
    message.identity = None


def _recipients_for(channel: Channel, route: PublishRoute, options: MessageOptions) -> Recipients:
    """Route by headers, and by every key in CC and BCC."""
    connection = channel.connection
    router = connection.router
    exchange = router.exchanges[route.exchange]
    if len(options.keys) > 0 and exchange.kind == "topic":
        for key in options.keys:
            _check_topic(connection.identity, exchange, key)
    keys = [route.key, *options.keys]
    try:
        return recipients_of(router, connection.broker.cluster, exchange, keys, options.headers)
    finally:
        connection.broker.turn.work += router.take_steps() // STEPS_PER_WORK


def place(broker: BrokerContext, publication: Publication, channel: Channel | None) -> bool:
    """Put a publication where it belongs; False if a queue refused it."""
    message = publication.message
    options = publication.options
    route = message.route
    if route.exchange == "" and route.key.startswith(REPLY_PREFIX) and channel is not None:
        vhost = channel.connection.router.vhost
        if len(publication.targets) > 0:
            send_on(message, publication.targets, channel)
        elif not broker.replies.deliver(vhost, message) and publication.mandatory:
            channel.send_return(message)
        return True
    if route.delayed and options.held and channel is not None:
        return _hold_back(broker, publication, channel)
    nowhere = len(publication.queues) == 0 and len(publication.targets) == 0
    if (nowhere or publication.unrouted) and publication.mandatory and channel is not None:
        channel.send_return(message)
    if nowhere:
        return True
    send_on(message, publication.targets, channel)
    confirms = None if channel is None else channel.confirms
    accepted = enqueue(broker, message, publication.queues, confirms)
    if len(publication.targets) == 0:
        message.identity = None
    return accepted


def _hold_back(broker: BrokerContext, publication: Publication, channel: Channel) -> bool:
    """Hold a message until it is due; False if there is no place for it."""
    vhost = channel.connection.router.vhost
    queue = broker.delayed_queue(vhost)
    if queue is None:
        return False
    if queue.away is None:
        broker.hold_delayed(queue, publication.message, channel.confirms)
        return True
    target = Target(queue.away.forward(), vhost, [])
    target.queue_ids.append(queue.id)
    publication.targets = [target]
    send_on(publication.message, publication.targets, channel)
    return True


def send_on(message: Message, targets: list[Target], channel: Channel | None) -> None:
    """Send a message to the other brokers that need it."""
    confirms = None if channel is None else channel.confirms
    tag: i64 = 0 if confirms is None else confirms.published
    for target in targets:
        forward = target.forward
        number = forward.send(message, target, channel, tag)
        if confirms is not None:
            confirms.wait_for(forward, number)
        if forward.congested and channel is not None:
            forward.pause(channel.connection)


def enqueue(
    broker: BrokerContext, message: Message, queues: list[Queue], confirms: Confirms | None
) -> bool:
    """Append a message to the queues that accept it; False if one refused."""
    taking: list[Queue] = []
    refused = False
    broker.turn.work += len(queues) // ENQUEUES_PER_WORK
    identity = message.identity
    for queue in queues:
        if identity is not None and is_duplicate(queue, identity, broker.turn.now_ms):
            if confirms is not None:
                wait_for_original(queue, confirms)
        elif queue.accepts(message):
            taking.append(queue)
        else:
            refused = True
            if queue.options.overflow == "reject-publish-dlx":
                broker.dead_letter(queue, message, "maxlen")
    if identity is not None:
        set_window(identity, taking)
    is_first = True
    for part in parts_of(taking):
        if not is_first:
            message = copy_of(message)
        is_first = False
        part.log.append(message, part.ids, part.durable)
        for queue in part.queues:
            queue.push(message)
            if identity is not None:
                accept(queue, message)
        if confirms is not None:
            need_for(confirms, part.log, message)
    return not refused


def need_for(confirms: Confirms, log: GroupLog, message: Message) -> None:
    """Confirm the last publish once the log has this message safe."""
    if message.position != 0 or log.replicated:
        confirms.need(log, message.index, message.position != 0)
