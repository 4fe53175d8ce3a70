"""Serving: what a home does for the applications of one edge.

The channels of these applications are channels here too, on a connection that never speaks AMQP
(the carrier): consumers, prefetch, unacked deliveries and requeueing are those of any channel. Only
the way in and out differs: methods come as frames of the link, deliveries leave as such. Which
sessions there are, and what they hold, outlasts the link (`tenure.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.values import encode_table
from rhizome.amqp.wire import u16_at, u32_at
from rhizome.broker.basic import check_free, pull_consumer
from rhizome.broker.channel import Channel
from rhizome.broker.consumer import Consumer
from rhizome.broker.message import Message
from rhizome.broker.outbox import Outbox
from rhizome.broker.places import give_back_unseen
from rhizome.broker.port import Carrier
from rhizome.broker.unacked import ACK
from rhizome.cluster.answering import Answering
from rhizome.cluster.asking import number_or
from rhizome.cluster.attachment import (
    Attachment,
    HeldRange,
    Joining,
    SettledRange,
    WaitingFrame,
    start_after,
)
from rhizome.cluster.calls import (
    ATTACH,
    ATTACHED_TO,
    CALL,
    DETACH,
    DETACHED,
    END_SESSION,
    PREFETCH,
    SESSION_GONE,
    SESSION_OF,
    TAKE_BACK,
)
from rhizome.cluster.link.frames import put_frame
from rhizome.cluster.link.link import Link
from rhizome.cluster.parking import Parked, give_back_rest
from rhizome.cluster.taking import Taking
from rhizome.cluster.tenure import Tenures
from rhizome.cluster.track import Track
from rhizome.cluster.wire import (
    HAS_SETTLED_FIXED,
    HELD_FIXED,
    HELD_RANGE_BYTES,
    RANGE_BYTES,
    REFUSE,
    SETTLE,
    SETTLE_FIXED,
    put_delivery,
)
from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection import Connection
    from rhizome.broker.queue import Queue


@final
class Serving(Carrier):
    """One incarnation of an edge, over one link.

    Invariant: ``consumers`` are those of the edge's applications here, by the numbers that the edge
    has given them; ``paused`` are channels that may hold no more for the moment.
    """

    broker: Broker
    tenures: Tenures
    taking: Taking
    name: str
    incarnation: str
    carrier: Connection
    link: Link
    outbox: Outbox
    consumers: dict[int, Consumer]
    paused: dict[Channel, None]
    answers: Answering

    def __init__(self, broker: Broker, tenures: Tenures, taking: Taking, track: Track) -> None:
        super().__init__()
        self.broker = broker
        self.tenures = tenures
        self.taking = taking
        self.name = track.link.peer.name
        self.incarnation = track.link.peer.incarnation
        self.carrier = track.carrier
        self.link = track.link
        self.outbox = track.outbox
        self.consumers = {}
        self.paused = {}
        self.answers = Answering(self)

    def close(self) -> None:
        """The link is gone."""
        self.tenures.left(self.name)
        self.carrier.lost()

    # ---- attaching ------------------------------------------------------------------------------

    def group_attach(self, table: dict[str, object]) -> None:
        """The edge begins to attach. Nothing is heard in an epoch that isn't the present one, nor
        of an incarnation that was retired or followed by another (A1)."""
        group = _int(table, "group")
        tenure = self.tenures.get(group, _int(table, "epoch"))
        if tenure is not None and self.tenures.state.registry.is_current(self.incarnation):
            tenure.left(self.name)
            self.answers.nobody_waits(group, 0)
            attached = self.taking.attachment(group)
            tenure.begin(self.name, self, attached, _int(table, "first"))
            attached.since = _int(table, "since")
            if tenure.rules.epochs_compared:
                attached.void_from = start_after(attached.log.starts, number_or(table, "seen", 0))

    def presented(self, data: bytes, at: i64) -> None:
        """A HELD frame: of the attach, or of a client that resumes later."""
        attached = self.taking.attachments.get(u16_at(data, at))
        if attached is None or attached.epoch == 0:
            return
        session = u32_at(data, at + 2)
        self._set_share(self.channel(attached, session), read_i64_be(data, at + 6))
        count = u32_at(data, at + 14)
        at += HELD_FIXED
        while count > 0:
            attached.held.append(
                HeldRange(
                    session,
                    u32_at(data, at),
                    read_i64_be(data, at + 4),
                    read_i64_be(data, at + 12),
                    read_i64_be(data, at + 20),
                    attached.open,
                )
            )
            at += HELD_RANGE_BYTES
            count -= 1
        tenure = self.tenures.get(attached.group, attached.epoch)
        if attached.resolved and tenure is not None:
            tenure.hold_more(self.name)

    def has_settled(self, data: bytes, at: i64) -> None:
        """A HAS_SETTLED frame."""
        attached = self._presenting(u16_at(data, at))
        if attached is None:
            return
        kind: i64 = data[at + 2]
        attached.settled_up_to(read_i64_be(data, at + 3))
        queue_id = read_i64_be(data, at + 11)
        count = u32_at(data, at + 19)
        at += HAS_SETTLED_FIXED
        while count > 0:
            first = read_i64_be(data, at)
            attached.settled.append(SettledRange(kind, queue_id, first, read_i64_be(data, at + 8)))
            at += RANGE_BYTES
            count -= 1

    def _presenting(self, group: i64) -> Attachment | None:
        attached = self.taking.attachments.get(group)
        if attached is None or attached.epoch == 0 or attached.open:
            return None
        return attached

    def group_attached(self, table: dict[str, object]) -> None:
        """The edge has presented everything."""
        group = _int(table, "group")
        epoch = _int(table, "epoch")
        tenure = self.tenures.get(group, epoch)
        attached = self._presenting(group)
        if tenure is None or attached is None or attached.epoch != epoch:
            return
        answer: dict[str, object] = {
            "group": group,
            "epoch": epoch,
            "last": attached.last,
            "start": start_after(attached.log.starts, attached.since),
            "void_from": attached.void_from,
            "doubtful": tenure.doubtful.get(attached.origin, 0),
            "attach": number_or(table, "attach", -1),
            "starts": [number for start in attached.log.starts for number in start],
        }
        put_frame(self.outbox, ATTACHED_TO, encode_table(answer))
        for number in attached.taken.refused:
            self.taking.put(REFUSE, attached, number)
        self.link.touch()
        tenure.presented(self.name)

    def hold(
        self,
        attached: Attachment,
        session: i64,
        consumer: i64,
        queue: Queue | None,
        message: Message | None,
    ) -> None:
        """A session holds what comes next in its order; None if that is void."""
        channel = self.channel(attached, session)
        tag = channel.delivery_tag + 1
        channel.delivery_tag = tag
        if message is None or queue is None:
            return
        holder = self.consumers.get(consumer)
        if holder is None or holder.queue is not queue:
            holder = pull_consumer(channel, queue)
        channel.unacked.push(tag, message, holder)
        holder.unacked += 1

    def join(self, attached: Attachment) -> None:
        """What the edge presented is resolved: its consumers may have more, its frames go on."""
        joining = attached.joining
        attached.joining = []
        for each in joining:
            consumer = each.consumer
            if self.consumers.get(consumer.number) is consumer and not consumer.queue.deleted:
                consumer.queue.add_consumer(consumer)
            if each.unanswered is not None:
                self._answer_attach(consumer, each.unanswered)
        waiting = attached.waiting
        attached.waiting = []
        for frame in waiting:
            if frame.table is None:
                self.settled(frame.data, 0, len(frame.data))
            else:
                self.heard(frame.method, frame.table)

    def leave(self, attached: Attachment, parked: Parked) -> None:
        """The link is gone: hand over what the edge's sessions hold, whose turn it is, and the
        auto-delete queues that were consumed; they stay until it is known whether their consumers
        come back."""
        abandoned = parked.abandoned
        active: list[Consumer] = []
        for number, channel in attached.sessions.items():
            for consumer in channel.consumers.values():
                queue = consumer.queue
                if queue.active is consumer and consumer.delivered > 0:
                    active.append(consumer)
                if queue.definition.auto_delete and not queue.deleted:
                    abandoned[queue] = len(channel.client) > 0 or abandoned.get(queue, False)
            self._empty(number, channel)
            give_up_streams(channel)
            if channel.unacked.count > 0:
                parked.add(number, channel)
        for consumer in active:
            parked.keep_turn(consumer)
        for queue in abandoned:
            queue.expected += 1

    def drop(self, attached: Attachment) -> None:
        """The group is at home elsewhere: forget its sessions. What they hold is not given back."""
        for number, channel in attached.sessions.items():
            self._empty(number, channel)

    def _empty(self, number: i64, channel: Channel) -> None:
        """Take a channel's consumers from their queues, and the channel from the carrier."""
        for consumer in channel.consumers.values():
            self.consumers.pop(consumer.number, None)
            if not consumer.queue.deleted:
                consumer.queue.remove_consumer(consumer)
            if consumer.reader is not None:
                consumer.reader.detach()
        channel.consumers = {}
        self.paused.pop(channel, None)
        self.carrier.channels.pop(number, None)

    # ---- consumers ------------------------------------------------------------------------------

    def can_take(self, consumer: Consumer) -> bool:
        if len(self.paused) > 0 and consumer.channel in self.paused:
            return False
        return consumer.credit > 0

    def deliver(self, consumer: Consumer, message: Message, redelivered: bool) -> None:
        channel = consumer.channel
        tag = channel.delivery_tag + 1
        channel.delivery_tag = tag
        route = message.route
        tail = b""
        if route is not consumer.named:
            consumer.named = route
            tail = route.tail
        put_delivery(self.outbox, consumer.number, tag, redelivered, message, tail)
        channel.unacked.push(tag, message, consumer)
        consumer.unacked += 1
        consumer.delivered += 1
        consumer.credit -= len(message.content)
        if not self.link.marked:
            self.link.touch()

    def heard(self, method: i64, table: dict[str, object]) -> None:
        """A frame about a group that the edge is attached to, or is attaching to."""
        attached = self.taking.attachments.get(_int(table, "group"))
        if attached is None or attached.epoch == 0:
            return
        if method == ATTACH:
            self._attach(attached, table)
        elif method == PREFETCH:
            self._set_prefetch(attached, table)
        elif method == SESSION_OF:
            self._named(attached, table)
        elif not attached.resolved:
            attached.waiting.append(WaitingFrame(method, table, b""))
        elif method == DETACH:
            self._detach(table)
        elif method == END_SESSION:
            self._end_session(attached, _int(table, "session"))
        elif method == CALL:
            self.answers.call(attached, table)

    def _named(self, attached: Attachment, table: dict[str, object]) -> None:
        """The edge says whose a session is. That a client left it, or came back with it, counts
        when all that was presented is resolved."""
        session = _int(table, "session")
        client = str(table["client"])
        channel = self.channel(attached, session)
        channel.client = client
        channel.visit = number_or(table, "visit", 0)
        is_kept = table.get("kept") is True
        if is_kept:
            attached.kept[session] = None
            self.answers.nobody_waits(attached.group, session)
        tenure = self.tenures.get(attached.group, attached.epoch)
        if tenure is None or (not is_kept and table.get("back") is not True):
            return
        if not attached.resolved:
            attached.waiting.append(WaitingFrame(SESSION_OF, table, b""))
        elif is_kept:
            tenure.client_left(client, self.name, session, channel.visit)
        else:
            tenure.client_came_back(client, self.name, channel.visit)

    def give_up(self, attached: Attachment, session: i64) -> None:
        """What a session keeps its client doesn't have, or has elsewhere by now."""
        channel = attached.sessions.get(session)
        if channel is not None:
            give_back_rest(channel)
        put_frame(
            self.outbox,
            SESSION_GONE,
            encode_table({"group": attached.group, "session": session}),
        )
        self.link.touch()

    def _attach(self, attached: Attachment, table: dict[str, object]) -> None:
        try:
            queue = self.answers.queue_of(table)
            exclusive = table["exclusive"] is True
            check_free(queue, exclusive)
            channel = self.channel(attached, _int(table, "session"))
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
            self.answers.refuse(table, error)
            return
        consumer.carrier = self
        consumer.number = _int(table, "consumer")
        consumer.reached = _int(table, "reached")
        consumer.credit = _int(table, "window")
        consumer.delivered = _int(table, "delivered")
        consumer.drained_ms = self.broker.turn.now_ms
        self.consumers[consumer.number] = consumer
        channel.consumers[consumer.tag] = consumer
        if attached.resolved:
            queue.add_consumer(consumer)
            self._answer_attach(consumer, table)
        elif queue.stream is None:
            attached.joining.append(Joining(consumer, None))
            self._answer_attach(consumer, table)
        else:
            # Where it begins is known when it joins: answered earlier, a reader of what comes next
            # would miss what is confirmed meanwhile.
            attached.joining.append(Joining(consumer, table))

    def _answer_attach(self, consumer: Consumer, table: dict[str, object]) -> None:
        reader = consumer.reader
        self.answers.answer(table, {} if reader is None else {"start": int(reader.next)})

    def _detach(self, table: dict[str, object]) -> None:
        number = _int(table, "consumer")
        consumer = self.consumers.pop(number, None)
        if consumer is not None:
            consumer.channel.consumers.pop(consumer.tag, None)
            self.broker.remove_consumer(consumer)
        put_frame(self.outbox, DETACHED, encode_table({"consumer": number}))
        self.link.touch()

    def channel(self, attached: Attachment, session: i64) -> Channel:
        channel = attached.sessions.get(session)
        if channel is None:
            channel = Channel(self.carrier, session)
            self.carrier.channels[session] = channel
            attached.sessions[session] = channel
        return channel

    def _end_session(self, attached: Attachment, session: i64) -> None:
        self.answers.nobody_waits(attached.group, session)
        channel = attached.sessions.pop(session, None)
        attached.kept.pop(session, None)
        if channel is None:
            return
        self.carrier.channels.pop(session, None)
        for consumer in channel.consumers.values():
            self.consumers.pop(consumer.number, None)
        self.paused.pop(channel, None)
        channel.release()

    def _set_prefetch(self, attached: Attachment, table: dict[str, object]) -> None:
        channel = self.channel(attached, _int(table, "session"))
        self._set_share(channel, _int(table, "share"))
        channel.wake_consumers()

    def _set_share(self, channel: Channel, share: i64) -> None:
        """How much of ours a channel may hold; 0 for any number, -1 for none."""
        if share < 0:
            self.paused[channel] = None
        else:
            self.paused.pop(channel, None)
            channel.prefetch_global = share

    def settled(self, data: bytes, at: i64, end: i64) -> None:
        """A SETTLE frame."""
        attached = self.taking.attachments.get(u16_at(data, at))
        if attached is None or not attached.open:
            return
        if not attached.resolved:
            attached.waiting.append(WaitingFrame(SETTLE, None, data[at:end]))
            return
        attached.settled_up_to(read_i64_be(data, at + 7))
        channel = attached.sessions.get(u32_at(data, at + 2))
        if channel is None:
            return
        kind: i64 = data[at + 6]
        count = u32_at(data, at + 15)
        at += SETTLE_FIXED
        while count > 0:
            tag = read_i64_be(data, at)
            last = read_i64_be(data, at + 8)
            if kind == ACK:
                channel.ack_held(tag, last)
                tag = last + 1
            while tag <= last:
                if kind == TAKE_BACK:
                    give_back_unseen(channel, tag)
                else:
                    channel.settle_one(tag, kind)
                tag += 1
            at += RANGE_BYTES
            count -= 1
        if channel.prefetch_global > 0:
            channel.wake_consumers()

    def credited(self, data: bytes, at: i64) -> None:
        """A CREDIT frame."""
        consumer = self.consumers.get(u32_at(data, at))
        if consumer is None:
            return
        consumer.credit += read_i64_be(data, at + 4)
        consumer.drained_ms = self.broker.turn.now_ms
        queue = consumer.queue
        if consumer.reader is not None:
            consumer.reader.wake()
        elif queue.ready > 0 and not queue.marked:
            queue.touch()


def give_up_streams(channel: Channel) -> None:
    """Forget what is held of streams: nobody waits for it, and the edge will present it again."""
    for tag in channel.unacked.tags():
        consumer = channel.unacked.consumer(tag)
        if consumer is not None and consumer.reader is not None:
            channel.unacked.forget(tag)
            consumer.unacked -= 1
            consumer.reader.given_up()


def _int(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value
