"""Edge group: what an edge has at the home of a group on behalf of its applications.

For each channel of an application that uses queues of a group at another broker, there is a session
at that broker. It holds the consumers and the unacked deliveries of that channel. Deliveries come
back under the session's tags and are shown to the application under its own.

Everything here belongs to the group, not to the broker that is its home at the moment. Whenever the
home is another broker, or in another epoch, or the link to it is new, the edge *attaches*: it
presents its consumers, what they hold and what they have settled, and goes on (A2).

Flow: the home sends a consumer at most its credit, in bytes, and the edge gives credit back as the
application's socket takes what was delivered. So a slow application costs one window of memory
here, and slows nobody else.

An edge group is in one phase:

    detached     no home to speak to: the home is this broker, or nobody, or can't be reached. What
                 applications do waits here.
    attaching    everything was presented to the home, which hasn't answered yet. Frames from it
                 are of an older epoch or of an earlier attach, and deliveries among them are
                 dropped (A2).
    attached     the home has answered the last attach.
    ended        the group is gone with its stream.

    detached to attaching     ``attach``: there is a link to the home, and this broker is registered
    attaching to attached     ``attached_to``: ATTACHED_TO, in this epoch and for the last attach
    any to detached           ``detached``: the link is gone, the cluster's state names another home
                              or epoch, the home asks for a new attach, or a delivery was dropped
                              for lack of a lease
    any to ended              ``end``: the cluster's state says that the group is gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table
from rhizome.amqp.methods import BasicGet, QueueDelete
from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.broker.channel.topology_methods import delete_counted
from rhizome.broker.channel.unacked import ACK
from rhizome.broker.cluster_port import Away, Proxy, Waiter
from rhizome.broker.connection.session_resume import is_same
from rhizome.broker.home_change_effects import rehome
from rhizome.broker.message import Message, content_channel
from rhizome.broker.metadata.resource_names import no_queue
from rhizome.broker.publishing.forward_port import Forward
from rhizome.cluster.edge.channel_session import WINDOW_BYTES, ChannelSession, Settled
from rhizome.cluster.edge.forward_queue import GroupForwardQueue
from rhizome.cluster.edge.home_calls import (
    AttachCall,
    Call,
    CountsCall,
    DeleteCall,
    GetCall,
    PendingCancel,
    PurgeCall,
    ReattachCall,
    ResumeCall,
)
from rhizome.cluster.link.frame_codec import put_frame
from rhizome.cluster.peer_link_state import LinkChannel
from rhizome.cluster.protocol.call_table_codec import (
    OP_COUNTS,
    OP_DELETE,
    OP_GET,
    OP_PURGE,
    error_of,
    number_in,
)
from rhizome.cluster.protocol.catalogue import (
    ATTACH,
    ATTACH_BEGIN,
    ATTACH_END,
    CALL,
    DETACH,
    END_SESSION,
    PREFETCH,
    SESSION_OF,
)
from rhizome.cluster.protocol.edge_home_codec import (
    DELIVER_FIXED,
    FLAG_REDELIVERED,
    put_credit,
    put_has_settled,
)
from rhizome.errors import NotFound

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.edge.edge import Edge
    from rhizome.cluster.linked_peer import LinkedPeer

DETACHED: Final = 0
ATTACHING: Final = 1
ATTACHED: Final = 2
ENDED: Final = 3

CALL_PATIENCE_MS: Final = 5_000
"""How long a call waits for a home that can't be reached before its channel gets an error."""


@final
class EdgeGroup(Away):
    """A group whose home is another broker.

    Invariant: ``link_channel`` is set exactly while it is attaching or attached. ``attaches``
    numbers the attaches. ``takes_more``: once attached, the home can be told of more that a session
    holds; homes of an older release have to be attached to again. ``missed``: the home believes
    something to be shown that was dropped for lack of a lease.

    Invariant: a channel has one session for what counts against its prefetch, in ``sessions``, and
    one for consumers that don't acknowledge. ``consumers`` holds those that the home knows by their
    number, or will know once it is attached to. Each entry of ``calls`` stands for one suspension
    of its channel's connection, except those that attach a consumer again. ``kept`` is what was
    settled, by rising numbers, as long as no home has said that it is safe. All that is held or
    kept was in the log of the group in the epoch ``seen``; ``starts`` has the first index of each
    epoch up to it.
    """

    edge: Edge
    broker: Broker
    group: i64
    home: LinkedPeer | None
    epoch: i64
    way: GroupForwardQueue
    link_channel: LinkChannel | None
    phase: i64
    takes_more: bool
    missed: bool
    sessions: dict[Channel, ChannelSession]
    uncounted: dict[Channel, ChannelSession]
    consumers: dict[int, Consumer]
    calls: dict[int, Call]
    touched: list[ChannelSession]
    kept: list[Settled]
    kept_last: i64
    attaches: i64
    seen: i64
    starts: list[tuple[int, int]]

    def __init__(self, edge: Edge, group: i64) -> None:
        super().__init__()
        self.edge = edge
        self.broker = edge.broker
        self.group = group
        self.home = None
        self.epoch = 0
        self.way = GroupForwardQueue(group, edge.rules)
        self.link_channel = None
        self.phase = DETACHED
        self.takes_more = False
        self.missed = False
        self.sessions = {}
        self.uncounted = {}
        self.consumers = {}
        self.calls = {}
        self.touched = []
        self.kept = []
        self.kept_last = 0
        self.attaches = 0
        self.seen = 0
        self.starts = []

    def forward(self) -> Forward:
        return self.way

    # ---- the home -------------------------------------------------------------------------------

    def home_is(self, home: LinkedPeer | None, epoch: i64) -> None:
        """The cluster state says which broker is home, in which epoch; None if no other broker
        is."""
        if home is self.home and epoch == self.epoch:
            return
        self.detached()
        self.home = home
        self.epoch = epoch
        self.way.broker_name = "" if home is None else home.name
        self.attach()

    def attach(self) -> None:
        """Present everything to the home, if there is a link to it."""
        home = self.home
        if (
            home is None
            or home.link_channel is None
            or self.link_channel is not None
            or not self.edge.ready
        ):
            return
        self._flush(None)
        self.link_channel = home.link_channel
        self.phase = ATTACHING
        self._put(
            ATTACH_BEGIN,
            {
                "group": self.group,
                "epoch": self.epoch,
                "first": self.way.first,
                "since": self.way.since(),
                "seen": self.seen,
            },
        )
        rules = self.edge.rules
        for session in [*self.sessions.values(), *self.uncounted.values()]:
            self._name(session)
            session.present(home.link_channel.outbox, rules.held_presented)
        if rules.settled_presented:
            self._present_settled(home.link_channel)
        self._attach_consumers()
        self.attaches += 1
        self._put(ATTACH_END, {"group": self.group, "epoch": self.epoch, "attach": self.attaches})
        self._ask_again()

    def _present_settled(self, link_channel: LinkChannel) -> None:
        for settled in self.kept:
            for queue_id, indexes in settled.by_queue.items():
                put_has_settled(
                    link_channel.outbox, self.group, settled.kind, settled.number, queue_id, indexes
                )

    def _attach_consumers(self) -> None:
        asking: dict[Consumer, None] = {}
        for call in self.calls.values():
            if isinstance(call, AttachCall):
                asking[call.consumer] = None
        for consumer in list(self.consumers.values()):
            if consumer not in asking:
                self._attach(consumer, ReattachCall(self, consumer))

    def _ask_again(self) -> None:
        """Repeat the unanswered calls under new numbers: an answer to an old number comes too
        late."""
        calls = self.calls
        self.calls = {}
        for number, call in calls.items():
            if isinstance(call, ReattachCall):
                self.calls[number] = call
            elif call.channel.closing:
                call.channel.connection.resume()
            else:
                self._call(call, call.frame, call.table)

    def attached_to(
        self,
        link_channel: LinkChannel,
        epoch: i64,
        last: i64,
        start: i64,
        void_from: i64,
        doubtful: i64,
        starts: list[tuple[int, int]],
        attach: i64,
    ) -> None:
        """The home has taken an attach: what follows is of this epoch.

        If ``void_from`` isn't 0, the home's log has lost what was shown here from that index on. Of
        the publishes up to ``doubtful`` it has lost those that were in memory only.

        What a home delivers between two attaches over one link is not presented by the second. So
        only the answer to the last attach counts; a home of an older release doesn't say which it
        answers (-1).
        """
        is_last = attach in (-1, self.attaches)
        if (
            link_channel is self.link_channel
            and epoch == self.epoch
            and is_last
            and self.phase == ATTACHING
        ):
            self.phase = ATTACHED
            self.takes_more = attach >= 0
            if void_from > 0:
                self._void(void_from)
            if doubtful > 0:
                self.way.doubt(doubtful, self.broker.shared)
            self.seen = epoch
            self.starts = starts
            self.way.attached(link_channel, last, start)

    def _void(self, first: i64) -> None:
        """Present nothing again that is held or was settled from this index on: other messages get
        these indexes (A2). The tags stay, and the home ignores what is said of them."""
        self._flush(self.link_channel)
        for session in self.sessions.values():
            session.void(first)
        shared = self.broker.shared
        for settled in self.kept:
            for queue_id in list(settled.by_queue):
                queue = shared.get(queue_id)
                if queue is None or queue.stream is None:
                    left = [index for index in settled.by_queue[queue_id] if index < first]
                    settled.by_queue[queue_id] = left
                    if len(left) == 0:
                        del settled.by_queue[queue_id]
        self.kept = [settled for settled in self.kept if len(settled.by_queue) > 0]

    def detached(self) -> None:
        """The link is gone, or the home is another broker. Applications go on holding what they
        hold."""
        self.link_channel = None
        self.phase = DETACHED
        self.takes_more = False
        self.missed = False
        self.way.detached()
        self._flush(None)
        for number in list(self.calls):
            call = self.calls[number]
            if isinstance(call, ReattachCall):
                del self.calls[number]
            else:
                call.asked_ms = self.broker.turn.now_ms

    def end(self) -> None:
        """The group is gone with its stream: nobody waits for a home any more."""
        self.home_is(None, 0)
        self.phase = ENDED
        calls = self.calls
        self.calls = {}
        for call in calls.values():
            call.failed(no_queue(call.queue.vhost, call.queue.name))
            call.channel.connection.resume()
        for consumer in list(self.consumers.values()):
            self.forget(consumer)
        self.kept = []
        self.way.end()

    # ---- what channels ask for ------------------------------------------------------------------

    def consume(self, consumer: Consumer, no_wait: bool) -> None:
        self.adopt(consumer)
        self._attach(consumer, AttachCall(self, consumer, no_wait))
        consumer.channel.connection.suspend()

    def adopt(self, consumer: Consumer) -> None:
        """Attach a consumer of this broker's applications to the home."""
        channel = consumer.channel
        if consumer.no_ack:
            session = self.uncounted_session(channel)
        else:
            session = self.session(channel)
        session.presented = -1
        rehome(consumer, session, self.edge.number())
        self.consumers[consumer.number] = consumer
        self.edge.consumers[consumer.number] = consumer

    def _attach(self, consumer: Consumer, call: Call) -> None:
        queue = consumer.queue
        session = consumer.proxy
        assert isinstance(session, ChannelSession)
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
                "window": WINDOW_BYTES - consumer.credit,
                "delivered": consumer.delivered,
                "reached": consumer.reached,
                "arguments": consumer.arguments,
            },
        )

    def get(self, channel: Channel, queue: Queue, method: BasicGet) -> None:
        session = self.session(channel)
        session.presented = -1
        call = GetCall(self, channel, queue, method.no_ack)
        self._ask(OP_GET, call, {"session": session.number})

    def declared(self, channel: Channel, queue: Queue) -> None:
        self._ask(OP_COUNTS, CountsCall(self, channel, queue), {})

    def purge(self, channel: Channel, queue: Queue, no_wait: bool) -> None:
        self._ask(OP_PURGE, PurgeCall(self, channel, queue, no_wait), {})

    def delete(self, channel: Channel, queue: Queue, method: QueueDelete) -> None:
        if self.link_channel is None and not method.if_empty and not method.if_unused:
            # No home has to be asked, and a queue whose home is gone must be deletable.
            delete_counted(channel, queue, 0, method)
            return
        call = DeleteCall(self, channel, queue, method)
        self._ask(OP_DELETE, call, {"if_unused": method.if_unused, "if_empty": method.if_empty})

    def prefetch(self, channel: Channel) -> None:
        session = self.sessions.get(channel)
        if session is not None:
            session.tell_share()

    def put_prefetch(self, session: ChannelSession) -> None:
        if self.link_channel is not None:
            self._put(
                PREFETCH,
                {"group": self.group, "session": session.number, "share": session.share},
            )

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
        """Send a call, now or as soon as there is a home to send it to."""
        number = self.edge.number()
        table["call"] = number
        table["group"] = self.group
        call.frame = frame
        call.table = table
        self.calls[number] = call
        if self.link_channel is not None:
            # What the channel gave back before its call must be in the queue when the home looks.
            self.end_turn()
            self._put(frame, table)

    def tick(self, now_ms: i64) -> None:
        """Fail the calls whose home has been out of reach for too long."""
        if self.link_channel is not None or len(self.calls) == 0:
            return
        for number in list(self.calls):
            call = self.calls[number]
            if now_ms - call.asked_ms < CALL_PATIENCE_MS:
                continue
            del self.calls[number]
            call.failed(NotFound(f"{self._home_of(call.queue)} is down or cannot be reached"))
            call.channel.connection.resume()

    def _home_of(self, queue: Queue) -> str:
        where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
        if self.home is None:
            return f"group {self.group} of {where} has no home: it"
        return f"home broker '{self.home.name}' of {where}"

    def _put(self, method: i64, table: dict[str, object]) -> None:
        assert self.link_channel is not None
        table["applied"] = self.link_channel.applied.index
        put_frame(self.link_channel.outbox, method, encode_table(table))
        self.link_channel.link.touch()

    # ---- sessions -------------------------------------------------------------------------------

    def session(self, channel: Channel) -> ChannelSession:
        session = self.sessions.get(channel)
        if session is None:
            session = ChannelSession(self, channel, self.edge.number(), True)
            self.sessions[channel] = session
            if self.link_channel is not None:
                self._name(session)
        return session

    def client_left(self, channel: Channel) -> None:
        """What a channel holds is only kept for its client from now on; nobody waits for its
        calls."""
        for number in list(self.calls):
            if self.calls[number].channel is channel:
                del self.calls[number]
        self._name_that_of(channel)

    def session_gone(self, number: i64) -> None:
        """The home has what a session keeps for its client: the client is back elsewhere."""
        for channel, session in self.sessions.items():
            if session.number == number and self.broker.suspended_sessions.keeps(
                channel.connection
            ):
                session.forget_all()

    def client_came_back(self, connection: Connection) -> None:
        """A client has presented everything, so it doesn't have what else is kept for it."""
        for channel in connection.channels.values():
            self._name_that_of(channel)

    def _name_that_of(self, channel: Channel) -> None:
        session = self.sessions.get(channel)
        if session is not None and self.link_channel is not None:
            self._name(session)

    def _name(self, session: ChannelSession) -> None:
        """Tell the home the client of a session, if that client may come back elsewhere; and
        whether the session is only kept for it, or has all that the client has."""
        connection = session.channel.connection
        client = connection.resume_id
        if len(client) > 0:
            table: dict[str, object] = {"group": self.group, "session": session.number}
            table["client"] = client
            table["visit"] = session.channel.visit
            table["kept"] = self.broker.suspended_sessions.keeps(connection)
            table["back"] = connection.has_resumed
            self._put(SESSION_OF, table)

    def knows(self, epoch: i64) -> bool:
        return epoch <= self.seen

    def is_void(self, epoch: i64, index: i64) -> bool:
        return self.edge.rules.epochs_compared and not is_same(self.starts, epoch, index)

    def catch_up(self, channel: Channel, queue: Queue, entries: bytes, asked: list[Away]) -> None:
        self._ask(OP_COUNTS, ResumeCall(self, channel, queue, entries, [*asked, self]), {})

    def holder(self, channel: Channel) -> Proxy:
        return self.session(channel)

    def present(self, channel: Channel, first_tag: i64) -> None:
        link_channel = self.link_channel
        session = self.sessions.get(channel)
        if link_channel is None or session is None:
            return
        if self.takes_more and session.presented >= 0 and self.edge.rules.held_presented:
            self._name(session)
            session.present_more(link_channel.outbox, first_tag)
        else:
            self.detached()
            self.attach()

    def uncounted_session(self, channel: Channel) -> ChannelSession:
        session = self.uncounted.get(channel)
        if session is None:
            session = ChannelSession(self, channel, self.edge.number(), False)
            self.uncounted[channel] = session
        return session

    def is_attached(self, consumer: Consumer) -> bool:
        """Whether the home knows, or is to know, this consumer: it isn't cancelled or a pull."""
        return self.consumers.get(consumer.number) is consumer

    def detach(self, session: ChannelSession, consumer: Consumer, waiter: Waiter | None) -> bool:
        """Tell the home that a consumer is gone. Return whether ``waiter`` is told when the queue
        is deleted with it, or stays."""
        if not self.is_attached(consumer):
            return False
        self.forget(consumer)
        if self.link_channel is None:
            return False
        self.edge.leaving[consumer.number] = session
        self._put(DETACH, {"group": self.group, "consumer": consumer.number})
        if waiter is None or not consumer.queue.definition.auto_delete:
            return False
        self.edge.cancels[consumer.number] = PendingCancel(
            consumer.queue, waiter, self.broker.turn.now_ms
        )
        return True

    def forget(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer.number, None)
        self.edge.consumers.pop(consumer.number, None)

    def release(self, channel: Channel) -> None:
        """A channel is closed: what it still holds goes back to its queues."""
        self._end(self.sessions.pop(channel, None))
        self._end(self.uncounted.pop(channel, None))

    def _end(self, session: ChannelSession | None) -> None:
        if session is None:
            return
        session.flush(None if self.link_channel is None else self.link_channel.outbox)
        if self.link_channel is not None:
            self._put(END_SESSION, {"group": self.group, "session": session.number})

    # ---- what was settled -----------------------------------------------------------------------

    def keep(self, kind: i64, by_queue: dict[int, list[int]]) -> i64:
        """Keep what was settled until it is safe at the home; returns its number."""
        self.kept_last += 1
        self.kept.append(Settled(self.kept_last, kind, by_queue))
        return self.kept_last

    def settled(self, number: i64) -> None:
        """A SETTLED frame: everything up to this number is committed."""
        done: i64 = 0
        while done < len(self.kept) and self.kept[done].number <= number:
            done += 1
        del self.kept[:done]

    def end_turn(self) -> None:
        """Tell the home what was settled in this turn."""
        if len(self.touched) > 0:
            self._flush(self.link_channel)

    def _flush(self, link_channel: LinkChannel | None) -> None:
        touched = self.touched
        self.touched = []
        for session in touched:
            session.flush(None if link_channel is None else link_channel.outbox)
        if link_channel is not None:
            link_channel.link.touch()

    # ---- frames from the home -------------------------------------------------------------------

    def answered(self, call: Call, answer: dict[str, object]) -> None:
        code = number_in(answer, "code")
        if code == 0:
            call.answered(answer)
        else:
            call.failed(error_of(code, answer))
        if not isinstance(call, ReattachCall):
            call.channel.connection.resume()

    def delivered(
        self, session: ChannelSession, consumer: Consumer, data: bytes, at: i64, end: i64
    ) -> None:
        """A DELIVER frame: show the message to its consumer."""
        tag = read_i64_be(data, at + 4)
        tail_at: i64 = at + DELIVER_FIXED
        tail_end: i64 = tail_at + u16_at(data, at + 25)
        route = consumer.named
        if tail_end > tail_at or route is None:
            route = self.broker.pager.route(data[tail_at:tail_end])
            consumer.named = route
        if session.is_beyond():
            session.give_back(tag)
            return
        content = data[tail_end:end]
        message = Message(route, content, content_channel(content), u32_at(data, at + 21))
        message.tag = tag
        message.index = read_i64_be(data, at + 12)
        consumer.reached = message.index
        consumer.deliver(message, data[at + 20] & FLAG_REDELIVERED != 0)
        consumer.credit += len(content)
        if consumer.no_ack:
            session.settle(consumer, message, ACK)
        if consumer.credit >= WINDOW_BYTES // 2 and consumer.channel.connection.can_write():
            self.grant(consumer)

    def message(self, tail: bytes, content: bytes, frame_max: i64) -> Message:
        route = self.broker.pager.route(tail)
        return Message(route, content, content_channel(content), frame_max)

    def grant(self, consumer: Consumer) -> None:
        """Give credit back for what the application has taken."""
        if self.link_channel is not None:
            put_credit(self.link_channel.outbox, consumer.number, consumer.credit)
            self.link_channel.link.touch()
            consumer.credit = 0
