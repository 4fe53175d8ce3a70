"""Serving: what a home does for the applications of one edge.

The channels of these applications are channels here too, on a connection that never speaks AMQP
(the carrier): consumers, prefetch, unacked deliveries and requeueing are those of any channel. Only
the way in and out differs: methods come as frames of the link, deliveries leave as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.amqp.values import encode_table
from rhizome.amqp.wire import u16_at, u32_at
from rhizome.broker.basic import check_free, pull, pull_consumer
from rhizome.broker.channel import Channel
from rhizome.broker.confirms import Confirms
from rhizome.broker.consumer import Consumer
from rhizome.broker.delayed import DELAYED_QUEUE, delay_of
from rhizome.broker.message import Message, Part, Route, content_channel, copy_of
from rhizome.broker.outbox import Outbox
from rhizome.broker.port import Carrier
from rhizome.broker.publishing import enqueue, need_for, parts_of
from rhizome.broker.queue import Queue
from rhizome.broker.replies import REPLY_PREFIX
from rhizome.broker.steering import identity_of, routing_headers
from rhizome.broker.topology import check_deletable
from rhizome.broker.transactions import begin_all, commit_all
from rhizome.cluster.calls import (
    ANSWER,
    DETACHED,
    OP_COUNTS,
    OP_DELETE,
    OP_GET,
    OP_PURGE,
    TAKE_BACK,
)
from rhizome.cluster.link.frames import put_frame
from rhizome.cluster.link.link import Link
from rhizome.cluster.track import Track
from rhizome.cluster.wire import (
    CONFIRM,
    FLAG_IDENTITY,
    FLAG_MANDATORY,
    FLAG_PERSISTENT,
    FLAG_SEQUENCE,
    FLAG_STEERED,
    PUBLISH_FIXED,
    REFUSE,
    STEERED_FIXED,
    UNROUTED,
    put_delivery,
    put_number,
)
from rhizome.errors import AmqpError, InternalFault, NotFound

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection import Connection
    from rhizome.broker.routing.router import Router


@final
class Slot:
    """What a slot of the link stands for: a route and what this broker has on it.

    Invariant: ``queues`` are those of topology epoch ``epoch``.
    """

    vhost: str
    route: Route
    queue_ids: list[int]
    exchanges: list[str]
    keys: list[str]
    names: list[str]
    relay: bool
    epoch: i64
    queues: list[Queue]
    parts: list[Part]
    plain: bool
    by_headers: bool
    is_reply: bool
    delayed: bool

    def __init__(
        self,
        vhost: str,
        route: Route,
        queue_ids: list[int],
        exchanges: list[str],
        keys: list[str],
        names: list[str],
        relay: bool,
    ) -> None:
        """``keys``: all that count, the route's own among them."""
        self.vhost = vhost
        self.route = route
        self.queue_ids = queue_ids
        self.exchanges = exchanges
        self.keys = keys
        self.names = names
        self.relay = relay
        self.epoch = -1
        self.queues = []
        self.parts = []
        self.plain = False
        self.by_headers = False
        self.is_reply = False
        self.delayed = False


@final
class Serving(Carrier):
    """One edge, over one link.

    Invariant: ``last`` is the number of the last publish that was taken from this incarnation of
    the edge, over whatever link; a number at or below it is never taken again (A1).
    """

    broker: Broker
    carrier: Connection
    link: Link
    outbox: Outbox
    slots: dict[int, Slot]
    consumers: dict[int, Consumer]
    paused: dict[Channel, None]
    last: i64
    confirms: Confirms
    pulls: list[dict[str, object]]
    untaken: bool

    def __init__(self, broker: Broker, track: Track) -> None:
        super().__init__()
        self.broker = broker
        self.carrier = track.carrier
        self.link = track.link
        self.outbox = track.outbox
        self.slots = {}
        self.consumers = {}
        self.paused = {}
        self.last = 0
        self.confirms = Confirms()
        self.pulls = []
        self.untaken = False

    def begin(self, last: i64) -> None:
        """The edge goes on after this number."""
        self.last = last
        self.confirms = Confirms()
        self.confirms.published = last
        self.confirms.sent = last

    def close(self) -> list[Queue]:
        """The link is gone: take everything back.

        Answers the auto-delete queues that were consumed over it; they stay until it is known
        whether their consumers come back.
        """
        abandoned: dict[Queue, None] = {}
        for consumer in self.consumers.values():
            if consumer.queue.definition.auto_delete and not consumer.queue.deleted:
                abandoned[consumer.queue] = None
        for queue in abandoned:
            queue.expected += 1
        self.carrier.lost()
        self.consumers = {}
        return list(abandoned)

    # ---- publishes ------------------------------------------------------------------------------

    def routed(self, data: bytes, at: i64) -> None:
        """A ROUTE frame, behind the index."""
        slot = u16_at(data, at)
        vhost_end: i64 = at + 3 + data[at + 2]
        vhost = data[at + 3 : vhost_end].decode("utf-8", "surrogateescape")
        key_at: i64 = vhost_end + 1 + data[vhost_end]
        tail_end: i64 = key_at + 1 + data[key_at]
        route = self.broker.pager.route(data[vhost_end:tail_end])
        queue_ids: list[int] = []
        count = u16_at(data, tail_end)
        at = tail_end + 2
        while count > 0:
            queue_ids.append(read_i64_be(data, at))
            at += 8
            count -= 1
        exchanges, at = _names_at(data, at)
        keys, at = _names_at(data, at)
        names, at = _names_at(data, at)
        keys.insert(0, route.key)
        self.slots[slot] = Slot(vhost, route, queue_ids, exchanges, keys, names, data[at] == 1)

    def slot_of(self, data: bytes, at: i64) -> Slot:
        """The slot of a PUBLISH frame."""
        return self.slots[u16_at(data, at)]

    def published(self, data: bytes, at: i64, end: i64) -> Message | None:
        """A PUBLISH frame; answers a message that has to be relayed."""
        number = read_i64_be(data, at + 2)
        if number <= self.last:
            return None
        slot = self.slots[u16_at(data, at)]
        self.last = number
        flags: i64 = data[at + 10]
        content_at: i64 = at + PUBLISH_FIXED
        if flags & FLAG_STEERED != 0:
            content_at += STEERED_FIXED
        content = data[content_at:end]
        message = Message(slot.route, content, content_channel(content), u32_at(data, at + 11))
        message.arrived_ms = self.broker.turn.now_ms
        message.persistent = flags & FLAG_PERSISTENT != 0
        if flags & FLAG_STEERED != 0:
            message.expiration_ms = read_i64_be(data, at + PUBLISH_FIXED)
            message.priority = data[at + PUBLISH_FIXED + 8]
        confirms = self.confirms
        confirms.published = number
        vhost = self.broker.state.vhosts.get(slot.vhost)
        if vhost is None:
            return None
        if slot.epoch != vhost.router.epoch:
            self._resolve(slot, vhost.router)
        if slot.plain and flags & FLAG_SEQUENCE == 0:
            taken = len(slot.queues) > 0
            is_first = True
            for part in slot.parts:
                if not is_first:
                    message = copy_of(message)
                is_first = False
                part.log.append(message, part.ids, part.durable)
                for queue in part.queues:
                    queue.push(message)
                need_for(confirms, part.log, message)
        elif slot.is_reply:
            taken = self.broker.replies.deliver(message)
        else:
            if flags & FLAG_IDENTITY != 0:
                message.identity = identity_of(content, flags & FLAG_SEQUENCE != 0)
            taken = self._enqueue(slot, message, vhost.router, number)
        self.untaken = not taken and flags & FLAG_MANDATORY != 0
        if slot.relay:
            return message
        if self.untaken:
            self.return_last()
        return None

    def fenced(self, number: i64) -> None:
        """A FENCE frame: what was settled up to here becomes one record; confirm it when safe."""
        if number <= self.last:
            return
        self.last = number
        self.confirms.published = number
        begin_all(self.broker, 0)
        while len(self.broker.dead_letters) > 0:
            self.broker.send_dead_letters()
        self.broker.write_settled()
        for log, index in commit_all(self.broker).items():
            self.confirms.need(log, index, True)

    def return_last(self) -> None:
        """Nobody took the last publish, which was mandatory."""
        put_number(self.outbox, UNROUTED, self.last)
        self.link.touch()

    def _enqueue(self, slot: Slot, message: Message, router: Router, number: i64) -> bool:
        """Whether there was a queue for the message, be it one that refused it."""
        queues = slot.queues
        if slot.delayed:
            self.broker.delayed.hold(queues[0], message, delay_of(message), self.confirms)
            return True
        if slot.by_headers:
            headers = routing_headers(decode_properties(header_payload_of(message.content)))
            queues = [*queues, *self._private(slot, router, headers)]
        if not enqueue(self.broker, message, queues, self.confirms):
            put_number(self.outbox, REFUSE, number)
            self.link.touch()
        if not slot.relay:
            message.identity = None
        return len(queues) > 0

    def _resolve(self, slot: Slot, router: Router) -> None:
        queues: list[Queue] = []
        for queue_id in slot.queue_ids:
            queue = self.broker.shared.get(queue_id)
            if queue is not None and queue.away is None:
                queues.append(queue)
        slot.by_headers = False
        for name in slot.exchanges:
            exchange = router.exchanges.get(name)
            if exchange is not None and exchange.reads_headers:
                slot.by_headers = True
        slot.is_reply = len(slot.names) > 0 and slot.route.key.startswith(REPLY_PREFIX)
        if not slot.by_headers and not slot.is_reply:
            queues.extend(self._private(slot, router, None))
        slot.queues = queues
        slot.parts = parts_of(queues)
        slot.delayed = len(queues) == 1 and queues[0].name == DELAYED_QUEUE
        slot.delayed = slot.delayed and slot.route.exchange != ""
        slot.plain = not slot.by_headers and not slot.is_reply and not slot.delayed
        for queue in queues:
            overflow = queue.bounded and queue.options.overflow != "drop-head"
            if queue.options.dedup is not None or overflow:
                slot.plain = False
        slot.epoch = router.epoch

    def _private(
        self, slot: Slot, router: Router, headers: dict[str, object] | None
    ) -> list[Queue]:
        """The private queues here that a slot names or its exchanges lead to."""
        found: dict[Queue, None] = {}
        for name in slot.names:
            named = router.queues.get(name)
            if isinstance(named, Queue) and named.definition.is_private():
                found[named] = None
        for name in slot.exchanges:
            exchange = router.exchanges.get(name)
            if exchange is None:
                continue
            for key in slot.keys:
                for destination in router.bound(exchange, key, headers):
                    if isinstance(destination, Queue) and destination.definition.is_private():
                        found[destination] = None
        return list(found)

    def confirm(self) -> None:
        """End of a turn, or the log has come further: confirm what is safe."""
        confirms = self.confirms
        confirms.close_turn()
        if not self.broker.may_deliver or self.broker.alarmed:
            # In an alarm edges have to hold their publishers up, as soon as their way here is full.
            return
        number = confirms.ready()
        if number > 0:
            confirms.sent = number
            put_number(self.outbox, CONFIRM, number)
            self.link.touch()

    # ---- consumers ------------------------------------------------------------------------------

    def can_take(self, consumer: Consumer) -> bool:
        if len(self.paused) > 0 and consumer.channel in self.paused:
            return False
        return consumer.credit > 0

    def deliver(self, consumer: Consumer, message: Message, redelivered: bool) -> None:
        channel = consumer.channel
        tag = channel.delivery_tag + 1
        channel.delivery_tag = tag
        put_delivery(self.outbox, consumer.number, tag, redelivered, message)
        channel.unacked.push(tag, message, consumer)
        consumer.unacked += 1
        consumer.delivered += 1
        consumer.credit -= len(message.content)
        if not self.link.marked:
            self.link.touch()

    def attach(self, table: dict[str, object]) -> None:
        try:
            queue = self._queue(table)
            exclusive = table["exclusive"] is True
            check_free(queue, exclusive)
            channel = self.channel(_int(table, "session"))
            self._set_share(channel, _int(table, "share"))
            arguments = table["arguments"]
            assert isinstance(arguments, dict)
            consumer = Consumer(
                str(table["tag"]),
                channel,
                queue,
                False,
                exclusive,
                _int(table, "priority"),
                _int(table, "prefetch"),
                arguments,
            )
        except AmqpError as error:
            self._answer_error(table, error)
            return
        consumer.carrier = self
        consumer.number = _int(table, "consumer")
        consumer.credit = _int(table, "window")
        consumer.drained_ms = self.broker.turn.now_ms
        self.consumers[consumer.number] = consumer
        channel.consumers[consumer.tag] = consumer
        self._answer(table, {})
        queue.add_consumer(consumer)

    def detach(self, table: dict[str, object]) -> None:
        number = _int(table, "consumer")
        consumer = self.consumers.pop(number, None)
        if consumer is not None:
            consumer.channel.consumers.pop(consumer.tag, None)
            self.broker.remove_consumer(consumer)
        put_frame(self.outbox, DETACHED, encode_table({"consumer": number}))
        self.link.touch()

    def channel(self, session: i64) -> Channel:
        channel = self.carrier.channels.get(session)
        if channel is None:
            channel = Channel(self.carrier, session)
            self.carrier.channels[session] = channel
        return channel

    def end_session(self, table: dict[str, object]) -> None:
        channel = self.carrier.channels.pop(_int(table, "session"), None)
        if channel is None:
            return
        for consumer in channel.consumers.values():
            self.consumers.pop(consumer.number, None)
        self.paused.pop(channel, None)
        channel.release()

    def set_prefetch(self, table: dict[str, object]) -> None:
        channel = self.channel(_int(table, "session"))
        self._set_share(channel, _int(table, "share"))
        channel.wake_consumers()

    def _set_share(self, channel: Channel, share: i64) -> None:
        """How much of ours a channel may hold; 0 for any number, -1 for none."""
        if share < 0:
            self.paused[channel] = None
        else:
            self.paused.pop(channel, None)
            channel.prefetch_global = share

    def settled(self, data: bytes, at: i64) -> None:
        """A SETTLE frame."""
        channel = self.carrier.channels.get(u32_at(data, at))
        if channel is None:
            return
        kind: i64 = data[at + 4]
        count = u32_at(data, at + 5)
        at += 9
        while count > 0:
            tag = read_i64_be(data, at)
            last = read_i64_be(data, at + 8)
            while tag <= last:
                if kind == TAKE_BACK:
                    self._take_back(channel, tag)
                else:
                    channel.settle_one(tag, kind)
                tag += 1
            at += 16
            count -= 1
        if channel.prefetch_global > 0:
            channel.wake_consumers()

    def _take_back(self, channel: Channel, tag: i64) -> None:
        message = channel.unacked.message(tag)
        consumer = channel.unacked.consumer(tag)
        if message is not None and consumer is not None:
            channel.unacked.forget(tag)
            consumer.unacked -= 1
            consumer.queue.take_back(message)

    def credited(self, data: bytes, at: i64) -> None:
        """A CREDIT frame."""
        consumer = self.consumers.get(u32_at(data, at))
        if consumer is None:
            return
        consumer.credit += read_i64_be(data, at + 4)
        consumer.drained_ms = self.broker.turn.now_ms
        queue = consumer.queue
        if queue.ready > 0 and not queue.marked:
            queue.touch()

    # ---- calls ----------------------------------------------------------------------------------

    def call(self, table: dict[str, object]) -> None:
        try:
            self._carry_out(table)
        except AmqpError as error:
            self._answer_error(table, error)

    def _carry_out(self, table: dict[str, object]) -> None:
        queue = self._queue(table)
        operation = table["op"]
        queue.last_used_ms = self.broker.turn.now_ms
        if operation == OP_GET:
            self._get(table, queue)
        elif operation == OP_COUNTS:
            self._answer(table, {"ready": queue.ready, "consumers": queue.consumer_count})
        elif operation == OP_PURGE:
            self._answer(table, {"ready": queue.purge()})
        elif operation == OP_DELETE:
            check_deletable(queue, table["if_unused"] is True, table["if_empty"] is True)
            self._answer(table, {"ready": queue.ready})
        else:
            raise InternalFault(f"this broker knows no operation '{operation}'")

    def _get(self, table: dict[str, object], queue: Queue) -> None:
        message = pull(queue)
        if message is None:
            if queue.ready > 0:
                # On its way to disk: asked again when it can be read.
                self.pulls.append(table)
            else:
                self._answer(table, {})
            return
        redelivered = message.index in queue.counts
        if redelivered:
            queue.redelivered += 1
            message = self.broker.with_delivery_count(queue, message)
        queue.delivered += 1
        queue.unacked += 1
        channel = self.channel(_int(table, "session"))
        tag = channel.hold(message, pull_consumer(channel, queue))
        self._answer(
            table,
            {
                "tag": tag,
                "redelivered": redelivered,
                "left": queue.ready,
                "tail": message.route.tail,
                "frame_max": message.frame_bytes_max,
                "content": message.content,
            },
        )

    def pull_again(self) -> None:
        """The pager has written: what pulls wait for may be there."""
        pulls = self.pulls
        self.pulls = []
        for table in pulls:
            self.call(table)

    def _queue(self, table: dict[str, object]) -> Queue:
        queue = self.broker.shared.get(_int(table, "id"))
        if queue is None:
            raise NotFound(f"no queue '{table['queue']}' in vhost '{table['vhost']}'")
        if queue.away is not None:
            raise NotFound(
                f"broker '{self.broker.settings.name}' is not the home of queue '{queue.name}' in "
                f"vhost '{queue.vhost}'"
            )
        return queue

    def _answer(self, table: dict[str, object], answer: dict[str, object]) -> None:
        whole: dict[str, object] = {"call": table["call"], "code": 0}
        whole.update(answer)
        put_frame(self.outbox, ANSWER, encode_table(whole))
        self.link.touch()

    def _answer_error(self, table: dict[str, object], error: AmqpError) -> None:
        whole: dict[str, object] = {
            "call": table["call"],
            "code": error.code,
            "text": error.text,
        }
        put_frame(self.outbox, ANSWER, encode_table(whole))
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


def _int(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value
