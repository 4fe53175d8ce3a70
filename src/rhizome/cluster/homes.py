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

from rhizome.amqp.methods import BasicGet, QueueDelete
from rhizome.amqp.values import encode_table
from rhizome.amqp.wire import u16_at, u32_at
from rhizome.broker.message import Message, content_channel
from rhizome.broker.outbox import Outbox
from rhizome.broker.port import Away, Forward, Proxy
from rhizome.broker.topology import delete_counted
from rhizome.broker.unacked import ACK
from rhizome.cluster.asking import (
    AttachCall,
    Call,
    CountsCall,
    DeleteCall,
    GetCall,
    PurgeCall,
    ReattachCall,
    number_in,
)
from rhizome.cluster.calls import (
    ATTACH,
    ATTACHED,
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
from rhizome.errors import NotFound

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel import Channel
    from rhizome.broker.consumer import Consumer
    from rhizome.broker.queue import Queue

WINDOW_BYTES: Final = 2 << 20
"""What a home may send a consumer beyond what its application's socket has taken."""

KINDS: Final = 4

CALL_PATIENCE_MS: Final = 5_000
"""How long a call waits for a home that can't be reached before its channel is told."""


@final
class Session(Proxy):
    """One channel of an application, at one home.

    Invariant: ``settled[kind]`` are the tags settled in this turn. Whatever the channel holds of
    this home came over the present link; its tags are the home's ``index`` of each message.

    A prefetch of the whole channel is kept where it is known, here: each home is told what the
    channel may hold from it. Homes that deliver at the same time may exceed it together, so what
    comes beyond it is given back at once, and its home pauses until the channel has room again.
    ``share`` is what the home was told last; -1 while it pauses.
    """

    home: RemoteHome
    channel: Channel
    number: i64
    counted: bool
    settled: list[list[int]]
    marked: bool
    share: i64
    contended: bool

    def __init__(self, home: RemoteHome, channel: Channel, number: i64, counted: bool) -> None:
        """``counted``: its deliveries count against the prefetch of the channel."""
        super().__init__()
        self.home = home
        self.channel = channel
        self.number = number
        self.counted = counted
        self.settled = [[], [], [], []]
        self.marked = False
        self.share = channel.prefetch_global if counted else 0
        self.contended = False

    def settle(self, consumer: Consumer, message: Message, kind: i64) -> None:
        self.note(message.index, kind)

    def void(self) -> None:
        """The link is gone, and the home has taken back what this session holds: if the application
        settles it later, that is no mistake and means nothing."""
        self.marked = False
        self.settled = [[], [], [], []]
        channel = self.channel
        unacked = channel.unacked
        for tag in unacked.tags():
            consumer = unacked.consumer(tag)
            if consumer is not None and consumer.proxy is self:
                unacked.forget(tag)
                consumer.unacked -= 1
                channel.forgive(tag)
        self.contended = False
        self.share = channel.prefetch_global if self.counted else 0
        channel.wake_consumers()

    def note(self, tag: i64, kind: i64) -> None:
        if self.home.track is None:
            return
        self.settled[kind].append(tag)
        if not self.marked:
            self.marked = True
            self.home.touched.append(self)

    def commit(self, elsewhere: dict[Forward, int]) -> None:
        track = self.home.track
        if track is not None:
            self.flush(track.outbox)
            elsewhere[self.home.way] = self.home.way.fence()

    def detach(self, consumer: Consumer) -> None:
        self.home.detach(self, consumer)

    def drained(self, consumer: Consumer) -> None:
        if consumer.credit >= WINDOW_BYTES // 2:
            self.home.grant(consumer)
        if self.contended:
            self.tell_share()

    def is_beyond(self) -> bool:
        """Whether the channel holds as much already as its prefetch allows."""
        limit = self.channel.prefetch_global
        return self.counted and limit > 0 and self.channel.unacked.count >= limit

    def give_back(self, tag: i64) -> None:
        """A delivery came beyond the channel's prefetch: the home may have it for others."""
        self.note(tag, TAKE_BACK)
        self.contended = True
        self.tell_share()

    def tell_share(self) -> None:
        """Tell the home how much of its the channel may hold, if it was told otherwise."""
        share = self._share()
        if share != self.share:
            self.share = share
            self.home.put_prefetch(self)

    def _share(self) -> i64:
        limit = self.channel.prefetch_global
        if not self.counted or limit == 0:
            return 0
        room = limit - self.channel.unacked.count
        if not self.contended:
            return limit
        if room <= 0:
            return -1
        held: i64 = 0
        for consumer in self.channel.consumers.values():
            if consumer.proxy is self:
                held += consumer.unacked
        for pulled in self.channel.pulls.values():
            if pulled.proxy is self:
                held += pulled.unacked
        return held + room

    def flush(self, outbox: Outbox) -> None:
        self.marked = False
        kind: i64 = 0
        while kind < KINDS:
            tags = self.settled[kind]
            if len(tags) > 0:
                put_settled(outbox, self.number, kind, tags)
                self.settled[kind] = []
            kind += 1


@final
class RemoteHome(Away):
    """Another broker as the home of shared queues.

    Invariant: a channel has one session for what counts against its prefetch, in ``sessions``, and
    one for consumers that don't acknowledge. ``consumers`` holds those that the other end knows by
    their number, or will once the link is back; ``leaving`` those whose last deliveries may still
    be on their way. Each entry of ``calls`` stands for one suspension of its channel's connection,
    but for those that attach a consumer again.
    """

    broker: Broker
    name: str
    way: Way
    track: Track | None
    sessions: dict[Channel, Session]
    uncounted: dict[Channel, Session]
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
        self.sessions = {}
        self.uncounted = {}
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
        channel = consumer.channel
        session = self.uncounted_session(channel) if consumer.no_ack else self.session(channel)
        consumer.proxy = session
        consumer.number = self._number()
        self.consumers[consumer.number] = consumer
        self.owners[consumer.number] = session
        self._attach(consumer, session, AttachCall(self, consumer, no_wait))
        channel.connection.suspend()

    def _attach(self, consumer: Consumer, session: Session, call: Call) -> None:
        queue = consumer.queue
        consumer.credit = 0
        self._call(
            call,
            ATTACH,
            {
                "session": session.number,
                "share": session.share,
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
        if session is not None:
            session.tell_share()

    def put_prefetch(self, session: Session) -> None:
        if self.track is not None:
            self._put(PREFETCH, {"session": session.number, "share": session.share})

    def _ask(self, operation: str, call: Call, details: dict[str, object]) -> None:
        queue = call.queue
        table: dict[str, object] = {
            "op": operation,
            "vhost": queue.vhost,
            "queue": queue.name,
            "id": queue.id,
        }
        table.update(details)
        self._call(call, CALL, table)
        call.channel.connection.suspend()

    def _call(self, call: Call, frame: i64, table: dict[str, object]) -> None:
        """Ask, now or as soon as there is a link."""
        number = self._number()
        table["call"] = number
        call.frame = frame
        call.table = table
        self.calls[number] = call
        if self.track is not None:
            # What the channel gave back before it asks must be in the queue when the home looks.
            self.end_turn()
            self._put(frame, table)

    def tick(self, now_ms: i64) -> None:
        """Fail the calls whose home has been out of reach for too long."""
        if self.track is not None or len(self.calls) == 0:
            return
        for number in list(self.calls):
            call = self.calls[number]
            if now_ms - call.asked_ms < CALL_PATIENCE_MS:
                continue
            del self.calls[number]
            queue = call.queue
            call.failed(
                NotFound(
                    f"home broker '{self.name}' of queue '{queue.name}' in vhost "
                    f"'{queue.vhost}' is down or cannot be reached"
                )
            )
            call.channel.connection.resume()

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
            session = Session(self, channel, self._number(), True)
            self.sessions[channel] = session
        return session

    def uncounted_session(self, channel: Channel) -> Session:
        session = self.uncounted.get(channel)
        if session is None:
            session = Session(self, channel, self._number(), False)
            self.uncounted[channel] = session
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
        self._end(self.sessions.pop(channel, None))
        self._end(self.uncounted.pop(channel, None))

    def _end(self, session: Session | None) -> None:
        if session is not None and self.track is not None:
            session.flush(self.track.outbox)
            self._put(END_SESSION, {"session": session.number})

    def end_turn(self) -> None:
        """Tell the home what was settled in this turn."""
        if len(self.touched) == 0:
            return
        touched = self.touched
        self.touched = []
        assert self.track is not None
        for session in touched:
            session.flush(self.track.outbox)
        self.track.link.touch()

    # ---- the link -------------------------------------------------------------------------------

    def connect(self, track: Track) -> None:
        """A link is there: ask again what was not answered, attach all consumers again."""
        self.track = track
        attaching: dict[Consumer, None] = {}
        for asked in list(self.calls):
            call = self.calls[asked]
            if isinstance(call, AttachCall):
                attaching[call.consumer] = None
            if call.channel.closing:
                del self.calls[asked]
                call.channel.connection.resume()
            else:
                self._put(call.frame, call.table)
        for number in list(self.consumers):
            consumer = self.consumers[number]
            if consumer not in attaching:
                self._attach(consumer, self.owners[number], ReattachCall(self, consumer))
        self._put(ATTACHED, {})

    def disconnect(self) -> None:
        """The link is gone. Deliveries that came over it can't be settled any more; the home has
        taken them back."""
        self.track = None
        self.leaving = {}
        self.touched = []
        for session in [*self.sessions.values(), *self.uncounted.values()]:
            session.void()
        for number in list(self.calls):
            call = self.calls[number]
            if isinstance(call, ReattachCall):
                del self.calls[number]
            else:
                call.asked_ms = self.broker.turn.now_ms

    # ---- frames from the home -------------------------------------------------------------------

    def answered(self, answer: dict[str, object]) -> None:
        call = self.calls.pop(number_in(answer, "call"), None)
        if call is None:
            return
        code = number_in(answer, "code")
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
        owner = self.owners[number]
        if owner.is_beyond():
            owner.give_back(tag)
            return
        tail_end: i64 = at + DELIVER_FIXED + u16_at(data, at + 17)
        content = data[tail_end:end]
        route = consumer.route
        tail = data[at + DELIVER_FIXED : tail_end]
        if route is None or route.tail != tail:
            route = self.broker.pager.route(tail)
        message = Message(route, content, content_channel(content), u32_at(data, at + 13))
        message.index = tag
        consumer.deliver(message, data[at + 12] == 1)
        consumer.credit += len(content)
        if consumer.no_ack:
            owner.note(tag, ACK)
        if consumer.credit >= WINDOW_BYTES // 2 and consumer.channel.connection.can_write():
            self.grant(consumer)

    def message(self, tail: bytes, content: bytes, frame_max: i64) -> Message:
        route = self.broker.pager.route(tail)
        return Message(route, content, content_channel(content), frame_max)

    def grant(self, consumer: Consumer) -> None:
        """Give credit back for what the application has taken."""
        if self.track is not None:
            put_credit(self.track.outbox, consumer.number, consumer.credit)
            self.track.link.touch()
        consumer.credit = 0
