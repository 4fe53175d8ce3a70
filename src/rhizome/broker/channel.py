"""Channel: one channel of a connection: its consumers, its unacked deliveries, its publishing mode.

Methods of the exchange and queue classes are in ``topology.py``, those of the basic class that
aren't hot in ``basic.py``; here is what every delivery and settlement goes through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i16_be, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpenOk,
    ConfirmLevel,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    TxCommit,
    TxRollback,
    TxSelect,
)
from rhizome.amqp.spec import BASIC, FRAME_HEADER, SESSION
from rhizome.amqp.values import unsigned_64
from rhizome.broker import basic, resuming, topology, transactions
from rhizome.broker.blocking import published_by
from rhizome.broker.confirms import Confirms
from rhizome.broker.consumer import Consumer
from rhizome.broker.levels import Levels, is_asked
from rhizome.broker.lookup import unimplemented
from rhizome.broker.message import Message, Route
from rhizome.broker.publishing import check_publish, publish
from rhizome.broker.streams.rules import is_stream, unsupported
from rhizome.broker.transactions import Transaction
from rhizome.broker.turn import SETTLED_PER_WORK, Chore
from rhizome.broker.unacked import ACK, REJECT, REQUEUE, Unacked
from rhizome.errors import (
    AmqpError,
    NotImplementedFault,
    PreconditionFailed,
    UnexpectedFrame,
)

if TYPE_CHECKING:
    from rhizome.broker.connection import Connection
    from rhizome.broker.queue import Queue

SETTLED_AT_ONCE_MAX: Final = 1000
"""Deliveries that one method settles in its own turn; more are settled in steps."""
SETTLED_STEP: Final = 100
"""Between two looks at how full the turn is."""

FORGIVEN_MAX: Final = 65536
"""So many deliveries that were taken back are remembered for a late ack."""


@final
class Channel:
    """Invariant: ``unacked.count`` equals the sum of ``unacked`` over its consumers and pulls.

    ``client``: the session that it belongs to, of a client that is on another broker and can
    resume; ``visit``: which of that client's connections it is of (`resuming.py`).
    """

    connection: Connection
    number: i64
    closing: bool
    delivery_tag: i64
    unacked: Unacked
    consumers: dict[str, Consumer]
    pulls: dict[str, Consumer]
    prefetch: i64
    prefetch_global: i64
    confirms: Confirms | None
    nacked: set[int]
    transaction: Transaction | None
    settlement: Settlement | None
    marked: bool
    last_queue: str
    publish_key: bytes
    publish_route: Route | None
    publish_access: i64
    content_key: bytes | None
    content_parts: list[bytes]
    content_left: i64
    content_frame_max: i64
    content_bytes: i64
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
        self.confirms = None
        self.nacked = set()
        self.transaction = None
        self.settlement = None
        self.marked = False
        self.last_queue = ""
        self.publish_key = b""
        self.publish_route = None
        self.publish_access = -1
        self.content_key = None
        self.content_parts = []
        self.content_left = -1
        self.content_frame_max = 0
        self.content_bytes = 0
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
        """Ask for this turn's confirms to be looked at."""
        if not self.marked:
            self.marked = True
            self.connection.broker.turn.channels.append(self)

    def fail(self, error: AmqpError) -> None:
        """Close the channel with an error; everything on it is ignored until close-ok."""
        if self.closing:
            return
        self.flush_confirms()
        self.connection.broker.channel_failed(self, error)
        self.release()
        self.send(ChannelClose(error.code, error.reply_text(), error.class_id, error.method_id))

    def release(self) -> None:
        """Give everything back: consumers, unacked messages, an open transaction."""
        if self.closing:
            return
        self.closing = True
        self.drop_content()
        broker = self.connection.broker
        for consumer in list(self.consumers.values()):
            broker.remove_consumer(consumer)
        self.consumers = {}
        if self.reply_consumer is not None:
            broker.replies.forget(self.reply_token)
            self.reply_consumer = None
        self.transaction = None
        if self.settlement is not None:
            self.settlement.finish()
        for tag in self.unacked.tags():
            self.settle_one(tag, REQUEUE)
        self.pulls = {}
        broker.cluster.channel_released(self)

    def wake_consumers(self) -> None:
        for consumer in self.consumers.values():
            if consumer.proxy is not None:
                consumer.proxy.drained(consumer)
            queue = consumer.queue
            if consumer.reader is not None:
                consumer.reader.wake()
            elif queue.ready > 0 and not queue.marked:
                queue.touch()

    # ---- methods --------------------------------------------------------------------------------

    def handle(self, method: Method) -> None:
        """Carry out a method other than publish."""
        if self.content_key is not None:
            raise self._expected_content()
        class_id = method.code() >> 16
        if class_id == 60:
            self._basic(method)
        elif class_id == 50 or class_id == 40:
            topology.handle(self, method)
        elif class_id == 90:
            self._tx(method)
        elif isinstance(method, ConfirmSelect):
            self._confirm_select(method)
        elif class_id == SESSION:
            resuming.handle(self, method)
        else:
            self._channel_method(method)

    def _expected_content(self) -> AmqpError:
        if self.content_left < 0:
            text = "expected content header for class 60, got non content header frame instead"
        else:
            text = "expected content body, got non content body frame instead"
        return UnexpectedFrame(text, 60, 40)

    def _basic(self, method: Method) -> None:
        if isinstance(method, BasicAck):
            self.ack(method.delivery_tag, method.multiple)
        elif isinstance(method, BasicNack):
            kind = REQUEUE if method.requeue else REJECT
            self.settle(method.delivery_tag, method.multiple, kind, 120)
        elif isinstance(method, BasicReject):
            self.settle(method.delivery_tag, False, REQUEUE if method.requeue else REJECT, 90)
        elif isinstance(method, BasicGet):
            basic.get(self, method)
        elif isinstance(method, BasicConsume):
            basic.consume(self, method)
        elif isinstance(method, BasicCancel):
            basic.cancel(self, method)
        elif isinstance(method, BasicQos):
            basic.qos(self, method)
        elif isinstance(method, BasicRecover):
            basic.recover(self, method.requeue, True)
        elif isinstance(method, BasicRecoverAsync):
            basic.recover(self, method.requeue, False)
        else:
            raise unimplemented(method)

    def _tx(self, method: Method) -> None:
        if isinstance(method, TxSelect):
            transactions.select(self)
        elif isinstance(method, TxCommit):
            transactions.commit(self)
        elif isinstance(method, TxRollback):
            transactions.rollback(self)
        else:
            raise unimplemented(method)

    def _confirm_select(self, method: ConfirmSelect) -> None:
        if self.transaction is not None:
            raise PreconditionFailed("cannot switch from tx to confirm mode", 85, 10)
        if self.confirms is None:
            self.confirms = Confirms(self.connection.broker.confirm_times)
            if is_asked(self.connection.client_properties):
                self.confirms.levels = Levels()
        if not method.no_wait:
            self.send(ConfirmSelectOk())

    def _channel_method(self, method: Method) -> None:
        if isinstance(method, ChannelClose):
            self.flush_confirms()
            self.release()
            self.send(ChannelCloseOk())
            self.connection.forget_channel(self)
        elif isinstance(method, ChannelFlow):
            if not method.active:
                raise NotImplementedFault("active=false", 20, 20)
            self.send(ChannelFlowOk(True))
        elif not isinstance(method, (ChannelCloseOk, ChannelFlowOk)):
            raise unimplemented(method)

    # ---- content that comes frame by frame ------------------------------------------------------

    def begin_content(self, key: bytes) -> None:
        """A publish whose content doesn't follow at once, or is large.

        Who may not publish is told so here: nothing is collected from them.
        """
        if self.content_key is not None:
            raise self._expected_content()
        check_publish(self, key)
        connection = self.connection
        if connection.broker.blocking:
            published_by(connection.broker, connection)
        self.content_key = key
        self.content_parts = []
        self.content_left = -1
        self.content_frame_max = 0

    def content_frame(self, kind: i64, frame: bytes) -> None:
        """A header or body frame on this channel."""
        if self.content_key is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        if self.content_left < 0:
            self._content_header(kind, frame)
        else:
            self._content_body(kind, frame)
        if len(frame) > self.content_frame_max:
            self.content_frame_max = len(frame)
        if self.content_left == 0:
            key = self.content_key
            content = b"".join(self.content_parts)
            self.drop_content()
            publish(self, key, content, self.content_frame_max)
        else:
            self.connection.broker.contents.grow(self, len(frame))

    def drop_content(self) -> None:
        """Forget what was collected of a content."""
        self.content_key = None
        self.content_parts = []
        self.connection.broker.contents.forget(self)

    def _content_header(self, kind: i64, frame: bytes) -> None:
        if kind != FRAME_HEADER:
            raise self._expected_content()
        if len(frame) < 22:
            raise UnexpectedFrame("the content header is too short", 60, 40)
        class_id = i64(read_i16_be(frame, 7)) & 0xFFFF
        if class_id != BASIC:
            raise UnexpectedFrame(
                f"expected content header for class 60, got one for class {class_id} instead",
                60,
                40,
            )
        self.content_left = read_i64_be(frame, 11)
        limit = self.connection.broker.limits.message_bytes_max
        if self.content_left < 0 or self.content_left > limit:
            size = unsigned_64(self.content_left)
            self.drop_content()
            raise PreconditionFailed(
                f"message size {size} is larger than configured max size {limit}", 60, 40
            )
        self.content_parts.append(frame)

    def _content_body(self, kind: i64, frame: bytes) -> None:
        if kind == FRAME_HEADER:
            raise self._expected_content()
        size: i64 = len(frame) - 8
        if size > self.content_left:
            raise UnexpectedFrame(
                f"the content body is {size - self.content_left} bytes longer than announced",
                60,
                40,
            )
        if size > 0:
            self.content_parts.append(frame)
        self.content_left -= size

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
        """Acknowledge those from ``first`` to ``last`` that are held, transaction or not."""
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
        """Settle held deliveries, then send the answer; no further input is taken until then."""
        if len(tags) <= SETTLED_AT_ONCE_MAX:
            for held in tags:
                self.settle_one(held, kind)
            self.wake_if_global()
            if answer is not None:
                self.send(answer)
            return
        settlement = Settlement(self, tags, kind, answer)
        self.connection.suspend()
        if not settlement.run():
            self.settlement = settlement
            self.connection.broker.turn.chores.append(settlement)

    def check_settle(self, tags: list[int], what: str, method_id: int) -> None:
        """Refuse to take deliveries of streams back: nothing is redelivered there. What a consumer
        holds that is cancelled it may give up as it likes."""
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
        tags = unacked.tags_up_to(tag)
        if self.transaction is not None:
            tags = [held for held in tags if not self._is_pending(held)]
        if tag != 0 and len(tags) == 0:
            self._check_forgiven(tag, method_id)
        return tags

    def forgive(self, tag: i64) -> None:
        """A delivery was taken back from its consumer: settling it later is no mistake."""
        if len(self.forgiven) >= FORGIVEN_MAX:
            self.forgiven.clear()
        self.forgiven.add(tag)

    def _check_forgiven(self, tag: i64, method_id: int) -> None:
        """Raise for a tag that nobody holds, unless it was taken back."""
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

    def wake_if_global(self) -> None:
        if self.prefetch_global > 0:
            self.wake_consumers()

    # ---- confirms -------------------------------------------------------------------------------

    def flush_confirms(self) -> None:
        """End of the turn: confirm what is safe, remember the rest."""
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
        """Confirm what is not refused of these; answers the last tag that is confirmed."""
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
        """Say which levels what was just confirmed has reached: one frame per run of a level."""
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

    def collect_unacked(self, queue: Queue, found: list[Message]) -> None:
        """Append the messages of ``queue`` that are unacked here, if it is active here, too."""
        if self.unacked.count == 0:
            return
        for tag in self.unacked.tags():
            consumer = self.unacked.consumer(tag)
            message = self.unacked.message(tag)
            if consumer is not None and message is not None and consumer.queue is queue:
                # What a reader delivers is no message of the queue.
                if consumer.proxy is None and consumer.reader is None:
                    found.append(message)

    # ---- pulls ----------------------------------------------------------------------------------

    def pull_consumer(self, queue_name: str) -> Consumer | None:
        return self.pulls.get(queue_name)

    def hold(self, message: Message, consumer: Consumer) -> i64:
        """Give a pulled message its delivery tag and keep it until it is settled."""
        self.delivery_tag += 1
        self.unacked.push(self.delivery_tag, message, consumer)
        consumer.unacked += 1
        return self.delivery_tag


@final
class Settlement(Chore):
    """Deliveries of a channel that are settled over several turns.

    Invariant: its connection is suspended until it is done, so nothing that the client sent later
    is done before. A channel that is closed meanwhile finishes it first: what was acked stays
    acked.
    """

    channel: Channel
    connection: Connection
    tags: list[int]
    kind: int
    answer: Method | None
    at: i64

    def __init__(self, channel: Channel, tags: list[int], kind: int, answer: Method | None) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.tags = tags
        self.kind = kind
        self.answer = answer
        self.at = 0

    def run(self) -> bool:
        turn = self.connection.broker.turn
        while self.at < len(self.tags):
            if turn.is_full():
                return False
            self._settle(SETTLED_STEP)
            turn.work += SETTLED_STEP // SETTLED_PER_WORK
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
        self._settle(len(self.tags))

    def _settle(self, count: i64) -> None:
        end: i64 = min(self.at + count, len(self.tags))
        while self.at < end:
            self.channel.settle_one(self.tags[self.at], self.kind)
            self.at += 1


def unknown_tag(tag: i64, method_id: int) -> AmqpError:
    return PreconditionFailed(f"unknown delivery tag {unsigned_64(tag)}", 60, method_id)
