"""Homes: what an edge has at another broker on behalf of its applications.

For each channel of an application that touches queues whose home is another broker there is a
session there; it holds the consumers and the unacked deliveries of that channel. Deliveries come
back under the session's tags and are shown to the application under its own.

Flow: the home sends a consumer at most its credit, in bytes, and the edge gives credit back as the
application's socket takes what was delivered. So a slow application costs one window of memory
here, and slows nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.methods import (
    BasicCancel,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    QueueDeclareOk,
    QueueDelete,
    QueuePurgeOk,
)
from rhizome.amqp.values import encode_table
from rhizome.amqp.wire import u16_at, u32_at
from rhizome.broker.basic import pull_consumer, show_pulled
from rhizome.broker.message import Message, content_channel
from rhizome.broker.outbox import Outbox
from rhizome.broker.port import Away, Forward, Proxy
from rhizome.broker.topology import delete_counted
from rhizome.broker.unacked import ACK
from rhizome.cluster.calls import (
    ATTACH,
    CALL,
    DETACH,
    END_SESSION,
    OP_COUNTS,
    OP_DELETE,
    OP_GET,
    OP_PURGE,
    PREFETCH,
    TAKE_BACK,
    error_of,
)
from rhizome.cluster.forwarding import Way
from rhizome.cluster.link.frames import put_frame
from rhizome.cluster.track import Track
from rhizome.cluster.wire import DELIVER_FIXED, put_credit, put_settled
from rhizome.errors import AmqpError, NotFound

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel import Channel
    from rhizome.broker.consumer import Consumer
    from rhizome.broker.queue import Queue

WINDOW_BYTES: Final = 2 << 20
"""What a home may send a consumer beyond what its application's socket has taken."""

KINDS: Final = 4


@final
class Session(Proxy):
    """One channel of an application, at one home.

    Invariant: ``settled[kind]`` are the tags settled in this turn, of deliveries that came over
    the present link; tags of earlier links mean nothing to the home any more.
    """

    home: RemoteHome
    channel: Channel
    number: i64
    settled: list[list[int]]
    marked: bool

    def __init__(self, home: RemoteHome, channel: Channel, number: i64) -> None:
        super().__init__()
        self.home = home
        self.channel = channel
        self.number = number
        self.settled = [[], [], [], []]
        self.marked = False

    def settle(self, consumer: Consumer, message: Message, kind: i64) -> None:
        # Deliveries carry the link that they came over where other messages have their copy.
        if message.spilled == self.home.generation:
            self.note(message.index, kind)

    def note(self, tag: i64, kind: i64) -> None:
        self.settled[kind].append(tag)
        if not self.marked:
            self.marked = True
            self.home.touched.append(self)

    def detach(self, consumer: Consumer) -> None:
        self.home.detach(self, consumer)

    def drained(self, consumer: Consumer) -> None:
        if consumer.credit >= WINDOW_BYTES // 2:
            self.home.grant(consumer)

    def flush(self, outbox: Outbox) -> None:
        self.marked = False
        kind: i64 = 0
        while kind < KINDS:
            tags = self.settled[kind]
            if len(tags) > 0:
                put_settled(outbox, self.number, kind, tags)
                self.settled[kind] = []
            kind += 1


class Call:
    """A question to a home that a channel waits for the answer of."""

    home: RemoteHome
    channel: Channel
    queue: Queue

    def __init__(self, home: RemoteHome, channel: Channel, queue: Queue) -> None:
        self.home = home
        self.channel = channel
        self.queue = queue

    def answered(self, answer: dict[str, object]) -> None:
        raise NotImplementedError

    def failed(self, error: AmqpError) -> None:
        self.channel.connection.fail_on(self.channel, error)


@final
class AttachCall(Call):
    consumer: Consumer
    no_wait: bool

    def __init__(self, home: RemoteHome, consumer: Consumer, no_wait: bool) -> None:
        super().__init__(home, consumer.channel, consumer.queue)
        self.consumer = consumer
        self.no_wait = no_wait

    def answered(self, answer: dict[str, object]) -> None:
        self.queue.add_consumer(self.consumer)
        if not self.no_wait and not self.channel.closing:
            self.channel.send(BasicConsumeOk(self.consumer.tag))

    def failed(self, error: AmqpError) -> None:
        self.home.forget(self.consumer)
        self.channel.consumers.pop(self.consumer.tag, None)
        super().failed(error)


@final
class ReattachCall(Call):
    """A consumer that was attached before its link broke. The application waits for nothing."""

    consumer: Consumer

    def __init__(self, home: RemoteHome, consumer: Consumer) -> None:
        super().__init__(home, consumer.channel, consumer.queue)
        self.consumer = consumer

    def answered(self, answer: dict[str, object]) -> None:
        pass

    def failed(self, error: AmqpError) -> None:
        consumer = self.consumer
        channel = self.channel
        self.home.forget(consumer)
        if channel.consumers.get(consumer.tag) is consumer:
            del channel.consumers[consumer.tag]
            self.queue.remove_consumer(consumer)
            if channel.connection.cancel_notify and not channel.closing:
                channel.send(BasicCancel(consumer.tag, True))


@final
class GetCall(Call):
    no_ack: bool

    def __init__(self, home: RemoteHome, channel: Channel, queue: Queue, no_ack: bool) -> None:
        super().__init__(home, channel, queue)
        self.no_ack = no_ack

    def answered(self, answer: dict[str, object]) -> None:
        content = answer.get("content")
        channel = self.channel
        if not isinstance(content, bytes):
            if not channel.closing:
                channel.send(BasicGetEmpty())
            return
        session = self.home.session(channel)
        message = self.home.message(_bytes(answer, "tail"), content, _int(answer, "frame_max"))
        message.index = _int(answer, "tag")
        if channel.closing:
            session.note(message.index, TAKE_BACK)
            return
        pull_consumer(channel, self.queue).proxy = session
        redelivered = answer.get("redelivered") is True
        left = _int(answer, "left")
        show_pulled(channel, self.queue, message, self.no_ack, redelivered, left)
        if self.no_ack:
            session.note(message.index, ACK)


@final
class CountsCall(Call):
    def answered(self, answer: dict[str, object]) -> None:
        if not self.channel.closing:
            self.channel.send(
                QueueDeclareOk(self.queue.name, _int(answer, "ready"), _int(answer, "consumers"))
            )


@final
class PurgeCall(Call):
    no_wait: bool

    def __init__(self, home: RemoteHome, channel: Channel, queue: Queue, no_wait: bool) -> None:
        super().__init__(home, channel, queue)
        self.no_wait = no_wait

    def answered(self, answer: dict[str, object]) -> None:
        if not self.no_wait and not self.channel.closing:
            self.channel.send(QueuePurgeOk(_int(answer, "ready")))


@final
class DeleteCall(Call):
    method: QueueDelete

    def __init__(
        self, home: RemoteHome, channel: Channel, queue: Queue, method: QueueDelete
    ) -> None:
        super().__init__(home, channel, queue)
        self.method = method

    def answered(self, answer: dict[str, object]) -> None:
        if self.channel.closing:
            return
        try:
            delete_counted(self.channel, self.queue, _int(answer, "ready"), self.method)
        except AmqpError as error:
            self.failed(error)


@final
class RemoteHome(Away):
    """Another broker as the home of shared queues.

    Invariant: ``consumers`` holds those that the other end knows by their number, or will once the
    link is back; ``leaving`` those whose last deliveries may still be on their way. ``generation``
    counts links. Each entry of ``calls`` stands for one suspension of its channel's connection,
    but for those that attach a consumer again.
    """

    broker: Broker
    name: str
    way: Way
    track: Track | None
    generation: i64
    sessions: dict[Channel, Session]
    consumers: dict[int, Consumer]
    owners: dict[int, Session]
    leaving: dict[int, Session]
    calls: dict[int, Call]
    touched: list[Session]
    next_number: i64

    def __init__(self, broker: Broker, name: str, way: Way) -> None:
        super().__init__()
        self.broker = broker
        self.name = name
        self.way = way
        self.track = None
        self.generation = 0
        self.sessions = {}
        self.consumers = {}
        self.owners = {}
        self.leaving = {}
        self.calls = {}
        self.touched = []
        self.next_number = 0

    def forward(self) -> Forward:
        return self.way

    # ---- what channels ask for ------------------------------------------------------------------

    def consume(self, consumer: Consumer, no_wait: bool) -> None:
        try:
            self._check_reachable(consumer.queue)
        except AmqpError:
            consumer.channel.consumers.pop(consumer.tag, None)
            raise
        session = self.session(consumer.channel)
        consumer.proxy = session
        consumer.number = self._number()
        self.consumers[consumer.number] = consumer
        self.owners[consumer.number] = session
        self._attach(consumer, session, AttachCall(self, consumer, no_wait))
        consumer.channel.connection.suspend()

    def _attach(self, consumer: Consumer, session: Session, call: Call) -> None:
        number = self._number()
        self.calls[number] = call
        queue = consumer.queue
        consumer.credit = 0
        self._put(
            ATTACH,
            {
                "call": number,
                "session": session.number,
                "prefetch_all": consumer.channel.prefetch_global,
                "consumer": consumer.number,
                "vhost": queue.vhost,
                "queue": queue.name,
                "id": queue.id,
                "tag": consumer.tag,
                "exclusive": consumer.exclusive,
                "priority": consumer.priority,
                "prefetch": 0 if consumer.no_ack else consumer.prefetch,
                "window": WINDOW_BYTES,
                "arguments": consumer.arguments,
            },
        )

    def get(self, channel: Channel, queue: Queue, method: BasicGet) -> None:
        session = self.session(channel)
        call = GetCall(self, channel, queue, method.no_ack)
        self._ask(OP_GET, call, {"session": session.number})

    def declared(self, channel: Channel, queue: Queue) -> None:
        self._ask(OP_COUNTS, CountsCall(self, channel, queue), {})

    def purge(self, channel: Channel, queue: Queue, no_wait: bool) -> None:
        self._ask(OP_PURGE, PurgeCall(self, channel, queue, no_wait), {})

    def delete(self, channel: Channel, queue: Queue, method: QueueDelete) -> None:
        if self.track is None and not method.if_empty and not method.if_unused:
            # Nobody has to be asked, and a queue whose home is gone must be deletable.
            delete_counted(channel, queue, 0, method)
            return
        call = DeleteCall(self, channel, queue, method)
        self._ask(OP_DELETE, call, {"if_unused": method.if_unused, "if_empty": method.if_empty})

    def prefetch(self, channel: Channel) -> None:
        session = self.sessions.get(channel)
        if session is not None and self.track is not None:
            self._put(
                PREFETCH, {"session": session.number, "prefetch_all": channel.prefetch_global}
            )

    def _ask(self, operation: str, call: Call, details: dict[str, object]) -> None:
        queue = call.queue
        self._check_reachable(queue)
        number = self._number()
        self.calls[number] = call
        table: dict[str, object] = {
            "call": number,
            "op": operation,
            "vhost": queue.vhost,
            "queue": queue.name,
            "id": queue.id,
        }
        table.update(details)
        self._put(CALL, table)
        call.channel.connection.suspend()

    def _check_reachable(self, queue: Queue) -> None:
        if self.track is None:
            raise NotFound(
                f"home broker '{self.name}' of queue '{queue.name}' in vhost '{queue.vhost}' is "
                "down or cannot be reached"
            )

    def _number(self) -> i64:
        self.next_number += 1
        return self.next_number

    def _put(self, method: i64, table: dict[str, object]) -> None:
        assert self.track is not None
        table["applied"] = self.way.applied.index
        put_frame(self.track.outbox, method, encode_table(table))
        self.track.link.touch()

    # ---- sessions -------------------------------------------------------------------------------

    def session(self, channel: Channel) -> Session:
        session = self.sessions.get(channel)
        if session is None:
            session = Session(self, channel, self._number())
            self.sessions[channel] = session
        return session

    def detach(self, session: Session, consumer: Consumer) -> None:
        if self.consumers.pop(consumer.number, None) is None:
            return
        self.owners.pop(consumer.number, None)
        if self.track is not None:
            self.leaving[consumer.number] = session
            self._put(DETACH, {"consumer": consumer.number})

    def forget(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer.number, None)
        self.owners.pop(consumer.number, None)

    def release(self, channel: Channel) -> None:
        """A channel is closed: what it still holds goes back to its queues."""
        session = self.sessions.pop(channel, None)
        if session is not None and self.track is not None:
            session.flush(self.track.outbox)
            self._put(END_SESSION, {"session": session.number})

    def end_turn(self) -> None:
        """Tell the home what was settled in this turn."""
        if len(self.touched) == 0:
            return
        touched = self.touched
        self.touched = []
        for session in touched:
            if self.track is not None:
                session.flush(self.track.outbox)
                self.track.link.touch()
            else:
                session.marked = False
                session.settled = [[], [], [], []]

    # ---- the link -------------------------------------------------------------------------------

    def connect(self, track: Track) -> None:
        """A link is there: attach all consumers again."""
        self.track = track
        self.generation += 1
        self.leaving = {}
        for number in list(self.consumers):
            consumer = self.consumers[number]
            self._attach(consumer, self.owners[number], ReattachCall(self, consumer))

    def disconnect(self) -> None:
        """The link is gone: whoever waits for an answer is told so. Deliveries that came over it
        can't be settled any more; the home has taken them back."""
        self.track = None
        self.generation += 1
        self.leaving = {}
        calls = self.calls
        self.calls = {}
        for call in list(calls.values()):
            if isinstance(call, ReattachCall):
                continue
            queue = call.queue
            call.failed(
                NotFound(
                    f"home broker '{self.name}' of queue '{queue.name}' in vhost "
                    f"'{queue.vhost}' went away"
                )
            )
            call.channel.connection.resume()

    # ---- frames from the home -------------------------------------------------------------------

    def answered(self, answer: dict[str, object]) -> None:
        call = self.calls.pop(_int(answer, "call"), None)
        if call is None:
            return
        code = _int(answer, "code")
        if code == 0:
            call.answered(answer)
        else:
            call.failed(error_of(code, answer))
        if not isinstance(call, ReattachCall):
            call.channel.connection.resume()

    def detached(self, number: i64) -> None:
        """No delivery of this consumer can come any more."""
        self.leaving.pop(number, None)

    def delivered(self, data: bytes, at: i64, end: i64) -> None:
        """A DELIVER frame: show the message to its consumer."""
        number = u32_at(data, at)
        tag = read_i64_be(data, at + 4)
        consumer = self.consumers.get(number)
        if consumer is None or consumer.channel.closing:
            session = self.leaving.get(number)
            if session is not None:
                session.note(tag, TAKE_BACK)
            return
        tail_end: i64 = at + DELIVER_FIXED + u16_at(data, at + 17)
        content = data[tail_end:end]
        route = consumer.route
        tail = data[at + DELIVER_FIXED : tail_end]
        if route is None or route.tail != tail:
            route = self.broker.pager.route(tail)
        message = Message(route, content, content_channel(content), u32_at(data, at + 13))
        message.index = tag
        message.spilled = self.generation
        consumer.deliver(message, data[at + 12] == 1)
        consumer.credit += len(content)
        if consumer.no_ack:
            self.owners[number].note(tag, ACK)
        if consumer.credit >= WINDOW_BYTES // 2 and consumer.channel.connection.can_write():
            self.grant(consumer)

    def message(self, tail: bytes, content: bytes, frame_max: i64) -> Message:
        message = Message(
            self.broker.pager.route(tail), content, content_channel(content), frame_max
        )
        message.spilled = self.generation
        return message

    def grant(self, consumer: Consumer) -> None:
        """Give credit back for what the application has taken."""
        if self.track is not None:
            put_credit(self.track.outbox, consumer.number, consumer.credit)
            self.track.link.touch()
        consumer.credit = 0


def _int(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value


def _bytes(table: dict[str, object], name: str) -> bytes:
    value = table[name]
    assert isinstance(value, bytes)
    return value
