"""Channel: one channel of a connection: its consumers, its unacked deliveries, its publishing mode.

Here is what every delivery and settlement goes through. ``method_dispatch.py`` has the way from a
method to the function that carries it out, ``content_frames.py`` contents that come in pieces.
"""

from __future__ import annotations

from io import SEEK_END, BytesIO
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.field_table import unsigned_64
from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelOpenOk,
    ConfirmLevel,
    Method,
)
from rhizome.broker.channel.consumer import Consumer, put_content
from rhizome.broker.channel.open_transaction import Transaction
from rhizome.broker.channel.unacked import ACK, REJECT, REQUEUE, Unacked
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.broker.message import Message
from rhizome.broker.publishing.forward_port import PublisherChannel
from rhizome.broker.publishing.publish_route import PublishRoute
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.reliability_levels import Levels
from rhizome.broker.publishing.sequenced_header_cache import NumberedHeader
from rhizome.broker.streams.stream_restrictions import is_stream, unsupported
from rhizome.broker.turn import SETTLED_PER_WORK, TURN_WORK_MAX, Chore, Turn
from rhizome.errors import (
    AmqpError,
    PreconditionFailed,
)

if TYPE_CHECKING:
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.queue.queue import Queue

LARGE_CONTENT_BYTES: Final = 32 << 20
"""Contents beyond this are collected in one buffer that grows. To join 128 MiB of frames takes
100 ms, because the system has to clear that much memory in one go; a buffer of more than 32 MiB
(`tune_malloc`) grows without a copy, and its memory is cleared as it is used."""
SETTLED_AT_ONCE_MAX: Final = 1000
"""Deliveries that one method settles in its own turn; more are settled in steps."""
SETTLED_STEP: Final = 100
"""How many deliveries are settled between two checks of how full the turn is."""

NO_ROUTE: Final = 312

FORGIVEN_MAX: Final = 65536
"""How many deliveries that were taken back are remembered, in case a late ack comes."""


@final
class Channel(PublisherChannel):
    """Invariant: ``unacked.count`` equals the sum of ``unacked`` over its consumers and pulls. If
    the client is on another broker and can resume, ``client`` is its session and ``visit`` says
    which of the client's connections this channel belongs to (`session_resume.py`)."""

    connection: Connection
    number: i64
    delivery_tag: i64
    unacked: Unacked
    consumers: dict[str, Consumer]
    pulls: dict[str, Consumer]
    prefetch: i64
    prefetch_global: i64
    turn_of: i64
    """Which of the consumers is the first to use room in the prefetch of the channel."""
    confirms: Confirms | None
    transaction: Transaction | None
    settlement: Settlement | None
    last_queue: str
    publish_key: bytes
    publish_route: PublishRoute | None
    publish_access: i64
    numbered: NumberedHeader | None
    """The header of the last message that its producer numbered."""
    content_key: bytes | None
    content_parts: list[bytes]
    content_large: BytesIO | None
    """What was collected of a large content, instead of ``content_parts``."""
    content_left: i64
    content_frame_max: i64
    content_bytes: i64
    transaction_bytes: i64
    reply_consumer: Consumer | None
    reply_token: str
    timeout_marks: dict[int, list[tuple[int, int]]]
    forgiven: set[int]
    client: str
    visit: i64
    published: i64

    def __init__(self, connection: Connection, number: i64) -> None:
        self.connection = connection
        self.number = number
        self.closing = False
        self.delivery_tag = 0
        self.unacked = Unacked()
        self.consumers = {}
        self.pulls = {}
        self.prefetch = 0
        self.prefetch_global = 0
        self.turn_of = 0
        self.confirms = None
        self.nacked = set()
        self.transaction = None
        self.settlement = None
        self.marked = False
        self.last_queue = ""
        self.publish_key = b""
        self.publish_route = None
        self.publish_access = -1
        self.numbered = None
        self.content_key = None
        self.content_parts = []
        self.content_large = None
        self.content_left = -1
        self.content_frame_max = 0
        self.content_bytes = 0
        self.transaction_bytes = 0
        self.reply_consumer = None
        self.reply_token = ""
        self.timeout_marks = {}
        self.forgiven = set()
        self.client = ""
        self.visit = connection.visit
        self.published = 0

    # ---- life -----------------------------------------------------------------------------------

    def opened(self) -> None:
        self.send(ChannelOpenOk())

    def send(self, method: Method) -> None:
        connection = self.connection
        connection.outbox.put(method_frame(self.number, method))
        connection.touch()

    def touch(self) -> None:
        """Have this turn's confirms sent at its end."""
        if not self.marked:
            self.marked = True
            self.connection.broker.turn.channels.append(self)

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error; everything on it is ignored until close-ok."""
        if self.closing:
            return
        self.flush_confirms()
        self.connection.broker.channel_failed(self, error)
        self.release(ChannelClose(error.code, error.reply_text(), error.class_id, error.method_id))

    def release(self, answer: Method | None = None) -> None:
        """Give everything back: consumers, unacked messages, an open transaction. The answer is
        sent when that is done."""
        if self.closing:
            return
        self.closing = True
        self.drop_content()
        broker = self.connection.broker
        broker.events.channel_closed(self)
        for consumer in list(self.consumers.values()):
            broker.remove_consumer(consumer)
        self.consumers = {}
        if self.reply_consumer is not None:
            broker.replies.forget(self.reply_token)
            self.reply_consumer = None
        self.drop_transaction()
        if self.connection.id in broker.connections and not self._gives_back_now():
            release = Release(self, answer)
            if not release.run():
                broker.turn.chores.append(release)
            return
        self.give_back()
        if answer is not None:
            self.send(answer)

    def _gives_back_now(self) -> bool:
        """Put all held messages back into their queues, unless that is much work."""
        if self.unacked.count > SETTLED_AT_ONCE_MAX:
            return False
        if self.connection.broker.turn.is_full() and self.unacked.count > 0:
            return False  # a connection may close two thousand channels at once
        if self.settlement is not None:
            self.settlement.finish()
        tags = self.unacked.tags()
        return self._settle_now(tags, REQUEUE) == len(tags)

    def give_back(self) -> None:
        """Put all held messages back into their queues, at once."""
        if self.settlement is not None:
            self.settlement.finish()
        for tag in self.unacked.tags():
            self.settle_one(tag, REQUEUE)
        self.pulls = {}
        self.connection.broker.cluster.channel_released(self)

    def wake_consumers(self) -> None:
        for consumer in self.consumers.values():
            if consumer.proxy is not None:
                consumer.proxy.drained(consumer)
            queue = consumer.queue
            if consumer.reader is not None:
                consumer.reader.wake()
            elif queue.ready > 0 and not queue.marked:
                queue.touch()

    # ---- content that comes frame by frame ------------------------------------------------------

    def collect(self, frame: bytes) -> None:
        """Keep a frame of a content."""
        large = self.content_large
        if large is not None:
            large.write(frame)
            return
        self.content_parts.append(frame)
        if self.content_bytes > LARGE_CONTENT_BYTES:
            # Nobody else knows the joined bytes, so the buffer takes them over and grows in place.
            large = BytesIO(b"".join(self.content_parts))
            large.seek(0, SEEK_END)
            self.content_large = large
            self.content_parts = []

    def collected(self) -> bytes:
        large = self.content_large
        return b"".join(self.content_parts) if large is None else large.getvalue()

    def drop_content(self) -> None:
        """Forget what was collected of a content."""
        self.content_key = None
        self.content_parts = []
        self.content_large = None
        self.connection.broker.contents.forget(self)

    def drop_transaction(self) -> None:
        """Forget what an open transaction has collected, and that there is one."""
        self.transaction = None
        self.connection.broker.contents.end(self)

    # ---- settling -------------------------------------------------------------------------------

    def ack(self, tag: i64, multiple: bool) -> None:
        """Acknowledge one delivery, or all up to ``tag`` (0: all there are)."""
        if self.closing:
            return
        unacked = self.unacked
        if self.transaction is not None or len(unacked.old) > 0 or (multiple and tag == 0):
            self.settle(tag, multiple, ACK, 80)
            return
        if not multiple:
            if tag < unacked.base or tag >= unacked.end:
                self._check_forgiven(tag, 80)
                return
            self._ack_slot(tag)
        elif tag < unacked.base or tag >= unacked.end:
            self.settle(tag, multiple, ACK, 80)
        elif tag - unacked.base >= SETTLED_AT_ONCE_MAX:
            self.settle(tag, multiple, ACK, 80)
            return
        else:
            at = unacked.base
            while at <= tag:
                if unacked.messages[at & unacked.mask] is not None:
                    self._ack_slot(at)
                at += 1
        self.wake_if_global()

    def _ack_slot(self, tag: i64) -> None:
        unacked = self.unacked
        slot = tag & unacked.mask
        message = unacked.messages[slot]
        consumer = unacked.consumers[slot]
        if message is None or consumer is None:
            self._check_forgiven(tag, 80)
            return
        unacked.forget(tag)
        consumer.unacked -= 1
        consumer.ack(message)

    def ack_held(self, first: i64, last: i64) -> None:
        """Acknowledge the held deliveries from ``first`` to ``last``, in a transaction or not."""
        unacked = self.unacked
        tag = first
        while tag <= last:
            if tag < unacked.base or tag >= unacked.end:
                self.settle_one(tag, ACK)
            else:
                slot = tag & unacked.mask
                message = unacked.messages[slot]
                consumer = unacked.consumers[slot]
                if message is not None and consumer is not None:
                    unacked.forget(tag)
                    consumer.unacked -= 1
                    consumer.ack(message)
            tag += 1

    def settle(self, tag: i64, multiple: bool, kind: int, method_id: int) -> None:
        """Ack, reject or requeue one delivery or all up to ``tag``."""
        tags = self._tags(tag, multiple, method_id)
        if kind != ACK:
            self.check_settle(tags, "basic.nack and basic.reject", method_id)
        if self.transaction is not None:
            self.transaction.settle(tags, kind)
            return
        self.settle_all(tags, kind, None)

    def settle_all(self, tags: list[int], kind: int, answer: Method | None) -> None:
        """Settle held deliveries, then send the answer. The channel takes no further input until
        then."""
        if len(tags) <= SETTLED_AT_ONCE_MAX:
            done = self._settle_now(tags, kind)
            if done == len(tags):
                self.wake_if_global()
                if answer is not None:
                    self.send(answer)
                return
            tags = tags[done:]
        settlement = Settlement(self, tags, kind, answer)
        self.connection.suspend()
        if not settlement.run():
            self.settlement = settlement
            self.connection.broker.turn.chores.append(settlement)

    def _settle_now(self, tags: list[int], kind: int) -> i64:
        """Settle deliveries in this turn; return how many. Rejected ones are dead-lettered, and the
        route of one dead letter may cost as much as a turn has time for."""
        turn = self.connection.broker.turn
        limit: i64 = turn.work + TURN_WORK_MAX // 2
        done: i64 = 0
        for held in tags:
            if turn.work > limit:
                break
            self.settle_one(held, kind)
            done += 1
        turn.work += done // SETTLED_PER_WORK
        return done

    def check_settle(self, tags: list[int], what: str, method_id: int) -> None:
        """Refuse to requeue deliveries of streams: a stream redelivers nothing. Deliveries of a
        cancelled consumer may be given up in any way."""
        for tag in tags:
            consumer = self.unacked.consumer(tag)
            if consumer is None or self.consumers.get(consumer.tag) is not consumer:
                continue
            if is_stream(consumer.queue.options):
                queue = consumer.queue
                raise unsupported(what, queue.vhost, queue.name, 60, method_id)

    def _tags(self, tag: i64, multiple: bool, method_id: int) -> list[int]:
        unacked = self.unacked
        if not multiple:
            if not unacked.holds(tag) or self._is_pending(tag):
                self._check_forgiven(tag, method_id)
                return []
            return [tag]
        if tag != 0 and (tag > self.delivery_tag or tag < 0):
            raise unknown_tag(tag, method_id)
        tags = self.unsettled_tags(tag)
        if tag != 0 and len(tags) == 0:
            self._check_forgiven(tag, method_id)
        return tags

    def unsettled_tags(self, tag: i64) -> list[int]:
        """Tags held up to and including ``tag`` (0: all), without those that an open transaction
        settles."""
        tags = self.unacked.tags_up_to(tag)
        if self.transaction is not None:
            tags = [held for held in tags if not self._is_pending(held)]
        return tags

    def forgive(self, tag: i64) -> None:
        """The broker took a delivery back from its consumer: settling it later is no error."""
        if len(self.forgiven) >= FORGIVEN_MAX:
            self.forgiven.clear()
        self.forgiven.add(tag)

    def _check_forgiven(self, tag: i64, method_id: int) -> None:
        """Raise for a tag that is not held, unless the broker took the delivery back."""
        if tag not in self.forgiven:
            raise unknown_tag(tag, method_id)
        self.forgiven.discard(tag)

    def _is_pending(self, tag: i64) -> bool:
        return self.transaction is not None and tag in self.transaction.settled

    def settle_one(self, tag: i64, kind: int) -> None:
        """Settle one held delivery at once, transaction or not."""
        message = self.unacked.message(tag)
        consumer = self.unacked.consumer(tag)
        if message is None or consumer is None:
            return
        self.unacked.forget(tag)
        consumer.unacked -= 1
        if kind == ACK:
            consumer.ack(message)
        elif kind == REJECT:
            consumer.reject(message)
        else:
            consumer.requeue(message)

    def is_sated(self) -> bool:
        """Whether the prefetch that all consumers share is used up."""
        return self.unacked.window() >= self.prefetch_global

    def wake_if_global(self) -> None:
        """After a settlement: the room that it made goes to the consumer whose turn it is, so that
        a queue with many messages doesn't take all of it."""
        if self.prefetch_global > 0:
            self.rotate_consumers()
            self.wake_consumers()

    def rotate_consumers(self) -> None:
        """Let the queues of this channel's consumers deliver, beginning behind the consumer that
        began last time. A queue that a settlement has touched would always be the first."""
        count: i64 = len(self.consumers)
        if count < 2:
            return
        line = list(self.consumers.values())
        first = self.turn_of % count
        self.turn_of = first + 1
        at: i64 = 0
        while at < count:
            consumer = line[(first + at) % count]
            queue = consumer.queue
            if consumer.proxy is None and consumer.reader is None and queue.ready > 0:
                if consumer.is_sated():
                    return
                queue.dispatch(self.connection.broker.turn.now_ms)
            at += 1

    # ---- confirms -------------------------------------------------------------------------------

    def flush_confirms(self) -> None:
        """At the end of the turn: confirm what is safe, remember the rest."""
        self.marked = False
        confirms = self.confirms
        if confirms is None or self.closing:
            return
        broker = self.connection.broker
        confirms.now_ms = broker.turn.now_ms
        confirms.close_turn()
        tag = confirms.ready() if broker.may_deliver else 0
        if tag > 0:
            self._confirm(confirms, tag)
        if len(confirms.tags) > 0 and not confirms.waiting:
            confirms.waiting = True
            broker.unconfirmed.append(self)

    def _confirm(self, confirms: Confirms, tag: i64) -> None:
        first = confirms.sent + 1
        confirms.sent = tag
        tag = self._ack(first, tag)
        if confirms.levels is not None:
            self._tell_levels(confirms.levels, first - 1, tag)

    def _ack(self, first: i64, tag: i64) -> i64:
        """Confirm those of these publishes that are not refused; return the last tag that is
        confirmed."""
        if len(self.nacked) > 0:
            top = tag
            while top >= first and top in self.nacked:
                self.nacked.discard(top)
                top -= 1
            self.nacked = {nacked for nacked in self.nacked if nacked > tag}
            if top < first:
                return 0
            tag = top
        self.send(BasicAck(tag, tag > first))
        return tag

    def _tell_levels(self, levels: Levels, before: i64, last: i64) -> None:
        """Send the levels that the publishes just confirmed have reached: one frame per run of a
        level."""
        told = self.connection.broker.levels_told
        for at, end in enumerate(levels.told_tags):
            tag: i64 = min(last, end)
            if tag <= before:
                break
            level = levels.told_levels[at]
            told[level] += tag - before
            before = tag
            self.send(ConfirmLevel(tag, level))
        levels.clear()

    def nack(self, tag: i64) -> None:
        """Tell the publisher that a queue refused its message."""
        self.nacked.add(tag)
        self.send(BasicNack(tag, False, False))

    def send_return(self, message: Message) -> None:
        """Return a mandatory message that no queue took."""
        route = message.route
        connection = self.connection
        answer = BasicReturn(NO_ROUTE, "NO_ROUTE", route.exchange, route.key)
        connection.outbox.put(method_frame(self.number, answer))
        put_content(self, message)
        connection.touch()

    def faulted(self, error: Exception) -> None:
        self.connection.broker.connection_fault(self.connection, error)

    def collect_unacked(self, queue: Queue, found: list[Message]) -> None:
        """Append the messages of ``queue`` that are unacked here, if the queue is also active
        here."""
        if self.unacked.count == 0:
            return
        for tag in self.unacked.tags():
            consumer = self.unacked.consumer(tag)
            message = self.unacked.message(tag)
            if consumer is not None and message is not None and consumer.queue is queue:
                # What a reader delivers is not a message of the queue.
                if consumer.proxy is None and consumer.reader is None:
                    found.append(message)

    # ---- pulls ----------------------------------------------------------------------------------

    def hold(self, message: Message, consumer: Consumer) -> i64:
        """Give a pulled message its delivery tag and keep it until it is settled."""
        self.delivery_tag += 1
        self.unacked.push(self.delivery_tag, message, consumer)
        self.unacked.pulled += 1
        consumer.unacked += 1
        return self.delivery_tag


@final
class Settlement(Chore):
    """Deliveries of a channel that are settled over several turns.

    Invariant: the connection is suspended until this is done, so nothing that the client sent later
    overtakes it. Queues that get messages back deliver nothing meanwhile, so that messages keep
    their order. If the channel is closed meanwhile, this finishes first: what was acked stays
    acked.
    """

    channel: Channel
    connection: Connection
    tags: list[int]
    kind: int
    answer: Method | None
    at: i64
    queues: list[Queue]

    def __init__(self, channel: Channel, tags: list[int], kind: int, answer: Method | None) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.tags = tags
        self.kind = kind
        self.answer = answer
        self.at = 0
        self.queues = []
        if kind == REQUEUE:
            self.queues = hold_queues(channel, tags)

    def run(self) -> bool:
        turn = self.connection.broker.turn
        try:
            while self.at < len(self.tags):
                if turn.is_full():
                    return False
                self.step(turn)
        except Exception:
            free_queues(self.queues)
            raise
        free_queues(self.queues)
        channel = self.channel
        channel.settlement = None
        if not channel.closing and channel.connection is self.connection:
            channel.wake_if_global()
            if self.answer is not None:
                channel.send(self.answer)
        self.connection.resume()
        return True

    def finish(self) -> None:
        """Settle all that is left, now."""
        self.advance(len(self.tags))

    def step(self, turn: Turn) -> None:
        """Settle some more; fewer if they make much work."""
        end: i64 = min(self.at + SETTLED_STEP, len(self.tags))
        turn.work += SETTLED_STEP // SETTLED_PER_WORK
        while self.at < end and (self.kind == ACK or not turn.is_full()):
            self.advance(1)

    def advance(self, count: i64) -> None:
        """Settle ``count`` more deliveries."""
        end: i64 = min(self.at + count, len(self.tags))
        while self.at < end:
            self.channel.settle_one(self.tags[self.at], self.kind)
            self.at += 1


@final
class Release(Chore):
    """What a channel held when it was closed, put back over several turns.

    Invariants: until this is done the queues that get messages back deliver nothing, so that
    messages keep their order. The channel belongs to ``carrier``, which lookups of held messages
    know and AMQP clients never see. ``connection``, which had the channel, is suspended. What the
    client had settled before is settled first.
    """

    channel: Channel
    connection: Connection
    carrier: Connection
    answer: Method | None
    tags: list[int]
    queues: list[Queue]
    at: i64

    def __init__(self, channel: Channel, answer: Method | None) -> None:
        connection = channel.connection
        self.channel = channel
        self.connection = connection
        self.answer = answer
        self.carrier = connection.broker.carry(f"{connection.name}, closed")
        self.carrier.router = connection.router
        self.carrier.identity = connection.identity
        self.carrier.channels[channel.number] = channel
        connection.broker.releases[self.carrier.id] = self.carrier
        channel.connection = self.carrier
        connection.leave_behind(channel)
        connection.suspend()
        connection.releases += 1
        self.tags = channel.unacked.tags()
        self.queues = hold_queues(channel, self.tags)
        self.at = 0

    def run(self) -> bool:
        turn = self.carrier.broker.turn
        pending = self.channel.settlement
        try:
            while pending is not None and pending.at < len(pending.tags):
                if turn.is_full():
                    return False
                pending.step(turn)
            while self.at < len(self.tags):
                if turn.is_full():
                    return False
                self._step(turn)
            self.channel.give_back()
        except Exception:
            self._end()
            raise
        self._end()
        return True

    def _step(self, turn: Turn) -> None:
        end: i64 = min(self.at + SETTLED_STEP, len(self.tags))
        turn.work += SETTLED_STEP // SETTLED_PER_WORK
        while self.at < end and not turn.is_full():
            self.channel.settle_one(self.tags[self.at], REQUEUE)
            self.at += 1

    def _end(self) -> None:
        broker = self.carrier.broker
        free_queues(self.queues)
        self.carrier.channels = {}
        broker.releases.pop(self.carrier.id, None)
        broker.connection_gone(self.carrier)
        connection = self.connection
        if self.answer is not None and connection.stage == RUNNING:
            connection.send(self.channel.number, self.answer)
        connection.released()
        connection.resume()


def hold_queues(channel: Channel, tags: list[int]) -> list[Queue]:
    """Keep the queues of these deliveries from delivering anything until `free_queues`."""
    found: dict[Queue, None] = {}
    last: Consumer | None = None
    for tag in tags:
        consumer = channel.unacked.consumer(tag)
        if consumer is not None and consumer is not last:
            last = consumer
            found[consumer.queue] = None
    for queue in found:
        queue.releases += 1
    return list(found)


def free_queues(queues: list[Queue]) -> None:
    for queue in queues:
        queue.releases -= 1
        if queue.ready > 0 and not queue.marked:
            queue.touch()


def unknown_tag(tag: i64, method_id: int) -> AmqpError:
    return PreconditionFailed(f"unknown delivery tag {unsigned_64(tag)}", 60, method_id)
