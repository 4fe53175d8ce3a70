"""Forward receiver: takes the publishes that one edge forwards to this home.

A PUBLISH frame names a route slot. The slot has a route target for each group that the message goes
to here, and one for private queues. Each target has a number of its own. Of a group only the number
after the last one is ever taken (A1), whatever becomes of the message; private queues take whatever
comes (A3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.amqp.properties import decode_properties
from rhizome.broker.channel.direct_reply_to import REPLY_PREFIX
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.dead_letters.dead_letter_routing import bury
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.message import Message, Route, content_channel, copy_of
from rhizome.broker.publishing.delayed_messages import DELAYED_QUEUE
from rhizome.broker.publishing.message_options import identity_of, routing_headers
from rhizome.broker.publishing.publish_path import enqueue, need_for, parts_of
from rhizome.broker.publishing.publish_route import Part
from rhizome.broker.publishing.recent_history import answer_request, asks_for_history
from rhizome.broker.publishing.reliability_levels import COPIED
from rhizome.broker.queue.queue import Queue
from rhizome.cluster.home.edge_attachment import EdgeAttachment
from rhizome.cluster.link.link import Link
from rhizome.cluster.peer_link_state import LinkChannel
from rhizome.cluster.protocol.catalogue import REFUSE, SETTLED, UNROUTED
from rhizome.cluster.protocol.edge_home_codec import (
    FLAG_IDENTITY,
    FLAG_LETTER,
    FLAG_MANDATORY,
    FLAG_PERSISTENT,
    FLAG_SEQUENCE,
    FLAG_STEERED,
    NUMBER_BYTES,
    PUBLISH_FIXED,
    STEERED_FIXED,
    put_confirm,
    put_number,
)
from rhizome.journal.dedup_state import DedupIdentity, identity_at

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.routing.router import Router


@final
class RouteTarget:
    """Where a route slot leads within one group, or among private queues.

    Invariant: ``queues`` and ``parts`` are those of topology epoch ``epoch``; a plain target has at
    most one part, of the group's own log; private queues share a log, too.
    """

    attached: EdgeAttachment
    queue_ids: list[int]
    exchanges: list[str]
    names: list[str]
    epoch: i64
    queues: list[Queue]
    parts: list[Part]
    plain: bool
    by_headers: bool
    is_reply: bool
    delayed: bool
    asks_history: bool
    """Another broker asks for a history on behalf of the private queue that the key names."""

    def __init__(self, attached: EdgeAttachment) -> None:
        self.attached = attached
        self.queue_ids = []
        self.exchanges = []
        self.names = []
        self.epoch = -1
        self.queues = []
        self.parts = []
        self.plain = False
        self.by_headers = False
        self.is_reply = False
        self.delayed = self.asks_history = False


@final
class RouteSlot:
    """What a slot of the link stands for: a route and its targets here.

    ``private`` is among them if the route leads to private queues. ``keys`` are all routing keys
    that count, the route's own among them.
    """

    vhost: str
    route: Route
    keys: list[str]
    route_targets: list[RouteTarget]
    private: RouteTarget | None
    relay: bool

    def __init__(self, vhost: str, route: Route) -> None:
        self.vhost = vhost
        self.route = route
        self.keys = [route.key]
        self.route_targets = []
        self.private = None
        self.relay = False


@final
class ForwardReceiver:
    """One edge's publishes, over one link.

    Invariant: ``attachments`` has one for each group that was attached to or published to over this
    link, and ``private`` for what goes to private queues. ``untaken`` says that the last publish
    for private queues was mandatory and nobody took it.
    """

    broker: Broker
    link: Link
    outbox: Outbox
    slots: list[RouteSlot]
    attachments: dict[int, EdgeAttachment]
    private: EdgeAttachment
    untaken: bool

    def __init__(self, broker: Broker, link_channel: LinkChannel) -> None:
        self.broker = broker
        self.link = link_channel.link
        self.outbox = link_channel.outbox
        self.slots = []
        self.attachments = {}
        self.private = EdgeAttachment(0, broker.log)
        self.private.open = True
        self.untaken = False

    def attachment(self, group: i64) -> EdgeAttachment:
        """What the edge has of a group over this link; not open until it has attached."""
        attached = self.attachments.get(group)
        if attached is None:
            attached = EdgeAttachment(group, self.broker.log)
            self.attachments[group] = attached
        return attached

    # ---- slots ----------------------------------------------------------------------------------

    def routed(self, data: bytes, at: i64) -> None:
        """A ROUTE frame, behind the index."""
        number = u16_at(data, at)
        vhost_end: i64 = at + 3 + data[at + 2]
        vhost = data[at + 3 : vhost_end].decode("utf-8", "surrogateescape")
        key_at: i64 = vhost_end + 1 + data[vhost_end]
        tail_end: i64 = key_at + 1 + data[key_at]
        slot = RouteSlot(vhost, self.broker.pager.route(data[vhost_end:tail_end]))
        count: i64 = data[tail_end]
        at = tail_end + 1
        while count > 0:
            at = self._route_target(slot, data, at)
            count -= 1
        if number == len(self.slots):
            self.slots.append(slot)
        else:
            self.slots[number] = slot

    def _route_target(self, slot: RouteSlot, data: bytes, at: i64) -> i64:
        """Read one route target; returns where it ends."""
        group = u16_at(data, at)
        route_target = RouteTarget(self.private if group == 0 else self.attachment(group))
        slot.route_targets.append(route_target)
        count = u16_at(data, at + 2)
        at += 4
        while count > 0:
            route_target.queue_ids.append(read_i64_be(data, at))
            at += 8
            count -= 1
        if group == 0:
            slot.private = route_target
            route_target.exchanges, at = _names_at(data, at)
            keys, at = _names_at(data, at)
            slot.keys.extend(keys)
            route_target.names, at = _names_at(data, at)
            slot.relay = data[at] == 1
            at += 1
        return at

    def slot_of(self, data: bytes, at: i64) -> RouteSlot:
        """The slot of a PUBLISH frame."""
        return self.slots[u16_at(data, at)]

    # ---- publishes ------------------------------------------------------------------------------

    def published(self, data: bytes, at: i64, end: i64) -> Message | None:
        """A PUBLISH frame; returns a message that has to be relayed."""
        slot = self.slots[u16_at(data, at)]
        number_at: i64 = at + PUBLISH_FIXED
        content_at: i64 = number_at + NUMBER_BYTES * len(slot.route_targets)
        made: Message | None = None
        relayed: Message | None = None
        for route_target in slot.route_targets:
            number = read_i64_be(data, number_at)
            number_at += NUMBER_BYTES
            attached = route_target.attached
            if not attached.takes(number):
                continue
            if made is None:
                made = self._message(slot, data, at, content_at, end)
                message = made
            else:
                message = copy_of(made)
            taken = self._take(slot, route_target, message, number, data[at + 2])
            if attached.group == 0:
                self.untaken = not taken and data[at + 2] & FLAG_MANDATORY != 0
                if slot.relay:
                    relayed = message
                elif self.untaken:
                    self.return_last()
        return relayed

    def _message(self, slot: RouteSlot, data: bytes, at: i64, content_at: i64, end: i64) -> Message:
        flags: i64 = data[at + 2]
        steered_at = content_at
        if flags & FLAG_STEERED != 0:
            content_at += STEERED_FIXED
        identity: DedupIdentity | None = None
        if flags & FLAG_LETTER != 0:
            identity = identity_at(data, content_at)
            content_at += len(identity.packed())
        content = data[content_at:end]
        message = Message(slot.route, content, content_channel(content), u32_at(data, at + 3))
        message.arrived_ms = self.broker.turn.now_ms
        message.persistent = flags & FLAG_PERSISTENT != 0
        message.identity = identity
        if flags & FLAG_STEERED != 0:
            message.expiration_ms = read_i64_be(data, steered_at)
            message.priority = data[steered_at + 8]
        return message

    def _take(
        self, slot: RouteSlot, route_target: RouteTarget, message: Message, number: i64, flags: i64
    ) -> bool:
        """Whether there was a queue for the message, including one that refused it."""
        attached = route_target.attached
        log = attached.numbered
        if slot.vhost == "":
            return self._take_internal(route_target, message, number)
        vhost = self.broker.state.vhosts.get(slot.vhost)
        if vhost is not None and route_target.epoch != vhost.router.epoch:
            self._resolve(slot, route_target, vhost.router)
        if vhost is None or not route_target.plain or flags & FLAG_SEQUENCE != 0:
            if log is not None:
                log.take_from(attached.origin, number)
            taken = vhost is not None and self._steered(slot, route_target, message, number, flags)
            if log is not None:
                log.taken()
            return taken
        if len(route_target.parts) == 0:
            if log is not None:
                log.note_number(attached.origin, number)
            return False
        part = route_target.parts[0]
        if log is not None:
            log.append_from(message, part.ids, part.durable, attached.origin, number)
        else:
            part.log.append(message, part.ids, part.durable)
        for queue in part.queues:
            queue.push(message)
        need_for(attached.confirms, part.log, message)
        return True

    def _take_internal(self, route_target: RouteTarget, message: Message, number: i64) -> bool:
        """Take a message for a queue of the group itself, in no vhost (`internal_queues.py`)."""
        attached = route_target.attached
        queues: list[Queue] = []
        for queue_id in route_target.queue_ids:
            queue = self.broker.internal.get(queue_id)
            if queue is not None and queue.away is None:
                queues.append(queue)
        attached.log.take_from(attached.origin, number)
        worker = queues[0].worker if len(queues) == 1 else None
        if worker is None or not worker.at_once(message, attached.confirms):
            enqueue(self.broker, message, queues, attached.confirms)
        attached.log.taken()
        return True

    def _steered(
        self, slot: RouteSlot, route_target: RouteTarget, message: Message, number: i64, flags: i64
    ) -> bool:
        """Take a message that isn't plain, or whose target isn't."""
        if route_target.is_reply:
            return self.broker.replies.deliver(slot.vhost, message)
        if flags & FLAG_IDENTITY != 0 and flags & FLAG_LETTER == 0:
            message.identity = identity_of(message.content, flags & FLAG_SEQUENCE != 0)
        router = self.broker.state.vhosts[slot.vhost].router
        return self._enqueue(slot, route_target, message, router, number)

    def _enqueue(
        self,
        slot: RouteSlot,
        route_target: RouteTarget,
        message: Message,
        router: Router,
        number: i64,
    ) -> bool:
        queues = route_target.queues
        attached = route_target.attached
        if route_target.delayed:
            self.broker.delayed.hold(queues[0], message, attached.confirms)
            return True
        if route_target.asks_history:
            answer_request(self.broker, queues[0], slot.route.key)
            return True
        if route_target.by_headers:
            headers = routing_headers(decode_properties(header_payload_of(message.content)))
            queues = [*queues, *self._private(slot, route_target, router, headers)]
        if not enqueue(self.broker, message, queues, attached.confirms):
            if attached.numbered is not None:
                attached.numbered.note_refused(attached.origin, number)
            self.put(REFUSE, attached, number)
        if not slot.relay:
            message.identity = None
        return len(queues) > 0

    def _resolve(self, slot: RouteSlot, route_target: RouteTarget, router: Router) -> None:
        queues: list[Queue] = []
        for queue_id in route_target.queue_ids:
            queue = self.broker.shared.get(queue_id)
            if queue is not None and queue.away is None:
                queues.append(queue)
        route_target.by_headers = False
        for name in route_target.exchanges:
            exchange = router.exchanges.get(name)
            if exchange is not None and exchange.reads_headers:
                route_target.by_headers = True
        route_target.is_reply = len(route_target.names) > 0 and slot.route.key.startswith(
            REPLY_PREFIX
        )
        if not route_target.by_headers and not route_target.is_reply:
            queues.extend(self._private(slot, route_target, router, None))
        route_target.queues = queues
        route_target.parts = parts_of(queues)
        route_target.delayed = len(queues) == 1 and queues[0].name == DELAYED_QUEUE
        route_target.delayed = route_target.delayed and slot.route.exchange != ""
        route_target.asks_history = asks_for_history(slot.route, queues)
        route_target.plain = (
            not route_target.by_headers
            and not route_target.is_reply
            and not route_target.delayed
            and not route_target.asks_history
        )
        if route_target.attached.group != 0:
            for part in route_target.parts:
                route_target.plain = route_target.plain and part.log is route_target.attached.log
        for queue in queues:
            overflow = queue.bounded and queue.options.overflow != "drop-head"
            if queue.options.dedup is not None or overflow:
                route_target.plain = False
        route_target.epoch = router.epoch

    def _private(
        self,
        slot: RouteSlot,
        route_target: RouteTarget,
        router: Router,
        headers: dict[str, object] | None,
    ) -> list[Queue]:
        """The private queues here that a route target names or its exchanges lead to."""
        found: dict[Queue, None] = {}
        for name in route_target.names:
            named = router.queues.get(name)
            if isinstance(named, Queue) and named.definition.is_private():
                found[named] = None
        for name in route_target.exchanges:
            exchange = router.exchanges.get(name)
            if exchange is None:
                continue
            for key in slot.keys:
                for destination in router.bound(exchange, key, headers):
                    if isinstance(destination, Queue) and destination.definition.is_private():
                        found[destination] = None
        return list(found)

    def fenced(self, group: i64, number: i64) -> None:
        """A FENCE frame: what was settled so far becomes one record, and is confirmed when it is
        safe."""
        attached = self.attachments.get(group)
        if attached is None or not attached.takes(number):
            return
        begin_all(self.broker, 0)
        if attached.numbered is not None:
            attached.numbered.note_number(attached.origin, number)
        bury(self.broker)
        for log, index in commit_all(self.broker).items():
            attached.confirms.need(log, index, True)

    # ---- answers --------------------------------------------------------------------------------

    def return_last(self) -> None:
        """Return the last publish for private queues: it was mandatory, and nobody took it."""
        self.put(UNROUTED, self.private, self.private.last)

    def refuse_last(self) -> None:
        """Refuse the last publish for private queues: it can't be brought to all of them."""
        self.put(REFUSE, self.private, self.private.last)

    def put(self, method: i64, attached: EdgeAttachment, number: i64) -> None:
        put_number(self.outbox, method, attached.group, number)
        self.link.touch()

    def confirm(self) -> None:
        """Confirm what is safe: it is the end of a turn, or a log has come further."""
        self._confirm(self.private)
        for attached in self.attachments.values():
            if attached.open:
                self._confirm(attached)

    def _confirm(self, attached: EdgeAttachment) -> None:
        if attached.settles.published > attached.settles_noted:
            # Frames that had to wait may have come after the broker's own end of the turn.
            self.broker.write_settled()
        attached.close_turn()
        if not self.broker.may_deliver:
            return
        confirms = attached.confirms
        # In an alarm edges have to hold back their publishers as soon as the forward queue to here
        # is full.
        number = 0 if self.broker.alarmed else confirms.ready()
        if number > 0:
            confirms.sent = number
            self._tell(attached, number)
        settles = attached.settles
        number = settles.ready()
        if number > 0:
            settles.sent = number
            self.put(SETTLED, attached, number)

    def _tell(self, attached: EdgeAttachment, number: i64) -> None:
        """Confirm everything up to a number, with how much of it standbys have, too."""
        levels = attached.confirms.levels
        if levels is None:
            put_confirm(self.outbox, attached.group, number, False)
        else:
            for at, tag in enumerate(levels.told_tags):
                put_confirm(self.outbox, attached.group, tag, levels.told_levels[at] == COPIED)
            levels.clear()
        self.link.touch()


def _names_at(data: bytes, at: i64) -> tuple[list[str], i64]:
    """A counted list of short strings, and where it ends."""
    names: list[str] = []
    count = u16_at(data, at)
    at += 2
    while count > 0:
        end: i64 = at + 1 + data[at]
        names.append(data[at + 1 : end].decode("utf-8", "surrogateescape"))
        at = end
        count -= 1
    return names, at
