"""Edge connection: what a home does for the applications of one edge.

The channels of these applications are channels here too, on a connection that never speaks AMQP
(the carrier). Consumers, prefetch, unacked deliveries and requeueing work as on any channel. Only
input and output differ: methods come as frames of the link, and deliveries leave as such frames.
Sessions, and what they hold, outlast the link (`edge_reconciliation.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table
from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.consume_methods import check_free, restored_consumer
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.channel.unacked import ACK
from rhizome.broker.channel.unacked_lookup import give_back_unseen
from rhizome.broker.cluster_port import Carrier
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.message import Message
from rhizome.cluster.home.detached_sessions import DetachedSessions, give_back_rest
from rhizome.cluster.home.edge_attachment import (
    EdgeAttachment,
    HeldRange,
    SettledRange,
    WaitingConsumer,
    WaitingFrame,
    start_after,
)
from rhizome.cluster.home.edge_call_handler import EdgeCallHandler
from rhizome.cluster.home.edge_reconciliation import EdgeSessionsByGroup
from rhizome.cluster.home.forward_receiver import ForwardReceiver
from rhizome.cluster.link.frame_codec import put_frame
from rhizome.cluster.link.link import Link
from rhizome.cluster.peer_link_state import LinkChannel
from rhizome.cluster.protocol.call_table_codec import TAKE_BACK, number_or
from rhizome.cluster.protocol.catalogue import (
    ATTACHED_TO,
    DETACHED,
    REFUSE,
    SESSION_GONE,
)
from rhizome.cluster.protocol.edge_home_codec import (
    HAS_SETTLED_FIXED,
    HELD_FIXED,
    HELD_RANGE_BYTES,
    RANGE_BYTES,
    SETTLE_FIXED,
    put_delivery,
)
from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.queue.queue import Queue


@final
class EdgeConnection(Carrier):
    """One incarnation of an edge, over one link.

    Invariant: ``consumers`` are those of the edge's applications here, by the numbers that the edge
    has given them; ``paused`` are channels that may hold no more for the moment.
    """

    broker: Broker
    tenures: EdgeSessionsByGroup
    forward_receiver: ForwardReceiver
    name: str
    incarnation: str
    carrier: Connection
    link: Link
    outbox: Outbox
    consumers: dict[int, Consumer]
    paused: dict[Channel, None]
    answers: EdgeCallHandler

    def __init__(
        self,
        broker: Broker,
        tenures: EdgeSessionsByGroup,
        forward_receiver: ForwardReceiver,
        link_channel: LinkChannel,
    ) -> None:
        super().__init__()
        self.broker = broker
        self.tenures = tenures
        self.forward_receiver = forward_receiver
        self.name = link_channel.link.peer.name
        self.incarnation = link_channel.link.peer.incarnation
        self.carrier = link_channel.carrier
        self.link = link_channel.link
        self.outbox = link_channel.outbox
        self.consumers = {}
        self.paused = {}
        self.answers = EdgeCallHandler(self)

    def close(self) -> None:
        """The link is gone."""
        self.tenures.left(self.name)
        self.carrier.lost()

    # ---- attaching ------------------------------------------------------------------------------

    def attach_begin(self, table: dict[str, object]) -> None:
        """The edge begins to attach. It is ignored unless it names the present epoch, and if its
        incarnation was retired or followed by another (A1)."""
        group = _int(table, "group")
        tenure = self.tenures.get(group, _int(table, "epoch"))
        if tenure is not None and self.tenures.state.registry.is_current(self.incarnation):
            tenure.left(self.name)
            self.answers.nobody_waits(group, 0)
            attached = self.forward_receiver.attachment(group)
            tenure.begin(self.name, self, attached, _int(table, "first"))
            attached.since = _int(table, "since")
            if tenure.rules.epochs_compared:
                attached.void_from = start_after(attached.log.starts, number_or(table, "seen", 0))

    def presented(self, data: bytes, at: i64) -> None:
        """A HELD frame: part of the attach, or of a client that resumes later."""
        attached = self.forward_receiver.attachments.get(u16_at(data, at))
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

    def _presenting(self, group: i64) -> EdgeAttachment | None:
        attached = self.forward_receiver.attachments.get(group)
        if attached is None or attached.epoch == 0 or attached.open:
            return None
        return attached

    def attach_end(self, table: dict[str, object]) -> None:
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
            self.forward_receiver.put(REFUSE, attached, number)
        self.link.touch()
        tenure.presented(self.name)

    def hold(
        self,
        attached: EdgeAttachment,
        session: i64,
        consumer: i64,
        queue: Queue | None,
        message: Message | None,
    ) -> None:
        """A session holds the next message of its order; None if that is void."""
        channel = self.channel(attached, session)
        tag = channel.delivery_tag + 1
        channel.delivery_tag = tag
        if message is None or queue is None:
            return
        holder = self.consumers.get(consumer)
        if holder is None or holder.queue is not queue:
            holder = restored_consumer(channel, queue)
        channel.unacked.push(tag, message, holder)
        holder.unacked += 1

    def join(self, attached: EdgeAttachment) -> None:
        """What the edge presented is resolved: its consumers may get more, its waiting frames go
        on."""
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
            if frame.function is None:
                self.settled(frame.data, 0, len(frame.data))
            else:
                frame.function(frame.table)

    def leave(self, attached: EdgeAttachment, detached: DetachedSessions) -> None:
        """The link is gone: hand over what the edge's sessions hold, which consumers are active,
        and the auto-delete queues that were consumed. These stay until it is known whether their
        consumers come back."""
        abandoned = detached.abandoned
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
                detached.add(number, channel)
        for consumer in active:
            detached.keep_turn(consumer)
        for queue in abandoned:
            queue.expected += 1

    def drop(self, attached: EdgeAttachment) -> None:
        """The group is at home elsewhere: forget its sessions without giving back what they
        hold."""
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

    def _attachment(self, table: dict[str, object]) -> EdgeAttachment | None:
        """The attachment that a frame is about; None if the edge isn't attached or attaching."""
        attached = self.forward_receiver.attachments.get(_int(table, "group"))
        return None if attached is None or attached.epoch == 0 else attached

    def _resolved(
        self, table: dict[str, object], function: Callable[[dict[str, object]], None]
    ) -> EdgeAttachment | None:
        """The same for a frame that has to wait until the attachment is resolved. None, too, if it
        waits: ``function`` gets it later."""
        attached = self._attachment(table)
        if attached is None or attached.resolved:
            return attached
        attached.waiting.append(WaitingFrame(function, table, b""))
        return None

    def session_of(self, table: dict[str, object]) -> None:
        """The edge names the client of a session. If the client left, or came back with it, that
        counts when all that was presented is resolved."""
        attached = self._attachment(table)
        if attached is None:
            return
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
        if not is_kept:
            tenure.absent.pop(client, None)
        if not attached.resolved:
            attached.waiting.append(WaitingFrame(self.session_of, table, b""))
        elif is_kept:
            tenure.client_left(client, self.name, session, channel.visit)
        else:
            tenure.client_came_back(client, self.name, channel.visit)

    def give_up(self, attached: EdgeAttachment, session: i64) -> None:
        """Give up what a session keeps: its client doesn't have it, or has it elsewhere by now."""
        channel = attached.sessions.get(session)
        if channel is not None:
            give_back_rest(channel)
        put_frame(
            self.outbox,
            SESSION_GONE,
            encode_table({"group": attached.group, "session": session}),
        )
        self.link.touch()

    def attach(self, table: dict[str, object]) -> None:
        """Attach a consumer of the edge's applications."""
        attached = self._attachment(table)
        if attached is not None:
            self._attach(attached, table)

    def _attach(self, attached: EdgeAttachment, table: dict[str, object]) -> None:
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
            attached.joining.append(WaitingConsumer(consumer, None))
            self._answer_attach(consumer, table)
        else:
            # Where the consumer begins is known when it joins. Answered earlier, a reader of what
            # comes next would miss what is confirmed meanwhile.
            attached.joining.append(WaitingConsumer(consumer, table))

    def _answer_attach(self, consumer: Consumer, table: dict[str, object]) -> None:
        reader = consumer.reader
        self.answers.answer(table, {} if reader is None else {"start": int(reader.next)})

    def detach(self, table: dict[str, object]) -> None:
        """A consumer is gone."""
        if self._resolved(table, self.detach) is None:
            return
        number = _int(table, "consumer")
        consumer = self.consumers.pop(number, None)
        unused = False
        if consumer is not None:
            consumer.channel.consumers.pop(consumer.tag, None)
            self.broker.remove_consumer(consumer)
            unused = consumer.queue.is_over()
        put_frame(self.outbox, DETACHED, encode_table({"consumer": number, "unused": unused}))
        self.link.touch()

    def channel(self, attached: EdgeAttachment, session: i64) -> Channel:
        channel = attached.sessions.get(session)
        if channel is None:
            channel = Channel(self.carrier, session)
            self.carrier.channels[session] = channel
            attached.sessions[session] = channel
        return channel

    def end_session(self, table: dict[str, object]) -> None:
        """A channel is closed."""
        attached = self._resolved(table, self.end_session)
        if attached is None:
            return
        session: i64 = _int(table, "session")
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

    def call(self, table: dict[str, object]) -> None:
        """A channel asks for an operation on a queue."""
        attached = self._resolved(table, self.call)
        if attached is not None:
            self.answers.call(attached, table)

    def set_prefetch(self, table: dict[str, object]) -> None:
        attached = self._attachment(table)
        if attached is None:
            return
        channel = self.channel(attached, _int(table, "session"))
        self._set_share(channel, _int(table, "share"))
        channel.wake_consumers()

    def _set_share(self, channel: Channel, share: i64) -> None:
        """Set how many messages of this home a channel may hold; 0 for any number, -1 for none."""
        if share < 0:
            self.paused[channel] = None
        else:
            self.paused.pop(channel, None)
            channel.prefetch_global = share

    def settled(self, data: bytes, at: i64, end: i64) -> None:
        """A SETTLE frame."""
        attached = self.forward_receiver.attachments.get(u16_at(data, at))
        if attached is None or not attached.open:
            return
        if not attached.resolved:
            attached.waiting.append(WaitingFrame(None, {}, data[at:end]))
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
        channel.wake_if_global()

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
