"""Moving: the home of a group comes to this broker, or leaves it, while applications go on.

This broker is an edge of every group, also of those that it is home of; then its applications' part
in them is simply local. When that changes, nothing that they have under way is lost or doubled:

- ``come_home``: what was published to the group and isn't confirmed goes into the log here, as far
  as it isn't there already (A1), and what waits for an answer is answered here. Then, when the
  tenure is resolved, consumers become local, with what they hold (A2).
- ``leave_home``: local consumers become proxied ones, with what they hold, and are presented to the
  new home like those of any edge. What was recorded here and may not be committed is brought to
  the new home as far as it lacks it (`carrying.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.broker.claiming import claim
from rhizome.broker.delayed import DELAYED_QUEUE, delay_of
from rhizome.broker.livemessages import unacked_messages
from rhizome.broker.message import Message, copy_of
from rhizome.broker.publishing import enqueue
from rhizome.broker.queue import Queue
from rhizome.broker.streams.reader import start_at
from rhizome.cluster.asking import ReattachCall
from rhizome.cluster.attachment import Attachment, Taken, start_after
from rhizome.cluster.carrying import carry_over
from rhizome.cluster.holdings import HomeHoldings
from rhizome.cluster.session import Session
from rhizome.cluster.tenure import OwnEdge, Tenure, Tenures, is_void, settle_claimed
from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel import Channel
    from rhizome.broker.consumer import Consumer
    from rhizome.broker.port import GroupLog
    from rhizome.cluster.edge import Edge
    from rhizome.cluster.remote import RemoteGroup


@final
class Moving:
    """Moves what the applications of this broker have with a group."""

    edge: Edge
    tenures: Tenures

    def __init__(self, edge: Edge, tenures: Tenures) -> None:
        self.edge = edge
        self.tenures = tenures

    def come_home(
        self, group: i64, epoch: i64, log: GroupLog, doubtful: dict[int, int]
    ) -> Homecoming:
        """A group is at home here from now on, and its queues are active. ``doubtful`` are the last
        numbers of edges, if what was in memory only is lost. The caller has calls answered, once
        queues may show what they have."""
        for queue in queues_of(self.edge.broker, group):
            queue.last_used_ms = self.edge.broker.turn.now_ms
        remote = self.edge.group(group)
        remote.home_is(None, epoch)
        tenure = self.tenures.begin(group, epoch, log)
        tenure.recovering = log.recovering
        tenure.aside = False
        tenure.doubtful = doubtful
        own = Homecoming(remote, tenure)
        tenure.own = own
        own.take_publishes()
        if not tenure.recovering:
            # Before anything is asked for: what was settled here meanwhile is nobody's any more.
            tenure.resolve_all()
        return own

    def step_aside(self, group: i64) -> None:
        """The home of a group here is about to hand over. Its queues keep everything, unacked or
        not; what applications hold they hold through sessions, to be presented to the next home,
        or to this one if nothing comes of it."""
        broker = self.edge.broker
        remote = self.edge.group(group)
        for queue in queues_of(broker, group):
            mark_active(queue)
            for consumer in queue.consumers():
                if consumer.proxy is None and consumer.carrier is None:
                    leave_place(consumer)
                    remote.adopt(consumer)
            _leave_leases(remote, queue)
        for connection in broker.applications():
            for channel in connection.channels.values():
                _step_aside_with(remote, channel)
        self.tenures.step_aside(group)

    def leave_home(self, group: i64, log: GroupLog) -> None:
        """A group that was at home here no longer is. Its queues let go of what is unacked; what is
        ready whoever calls this takes away."""
        broker = self.edge.broker
        remote = self.edge.group(group)
        carry_over(remote, log)
        queues = queues_of(broker, group)
        for queue in queues:
            mark_active(queue)
            if queue.stream is None:
                for message in unacked_messages(queue):
                    broker.pager.release(queue, message)
            queue.unacked = 0
            queue.durable_bytes = 0
            queue.counts = {}
        self.tenures.end(group)
        for queue in queues:
            for consumer in queue.consumers():
                leave_place(consumer)
                if consumer.proxy is None:
                    remote.adopt(consumer)
            _leave_leases(remote, queue)
        for connection in broker.applications():
            for channel in connection.channels.values():
                _leave_with(remote, channel)


def _leave_leases(remote: RemoteGroup, queue: Queue) -> None:
    """What consumers of this broker ask of leases, the next home is asked."""
    for consumer in queue.broker.leases.consumers(queue):
        if consumer.proxy is None and consumer.carrier is None:
            remote.adopt(consumer)


def _step_aside_with(remote: RemoteGroup, channel: Channel) -> None:
    """What a channel holds of the group is ready again here, and held through a session."""
    for tag in channel.unacked.tags():
        consumer = channel.unacked.consumer(tag)
        message = channel.unacked.message(tag)
        assert consumer is not None
        assert message is not None
        queue = consumer.queue
        if queue.definition.group == remote.group and not queue.deleted:
            channel.unacked.replace(tag, shown_copy(message))
            if queue.stream is None:
                queue.take_back(message)
            else:
                queue.unacked -= 1
    _leave_with(remote, channel)


def _leave_with(remote: RemoteGroup, channel: Channel) -> None:
    """What a channel holds of the group it holds through a session from now on."""
    for pulled in channel.pulls.values():
        if pulled.queue.definition.group == remote.group and pulled.proxy is None:
            pulled.proxy = remote.session(channel)
    for tag in channel.unacked.tags():
        consumer = channel.unacked.consumer(tag)
        message = channel.unacked.message(tag)
        assert consumer is not None
        assert message is not None
        if consumer.queue.definition.group == remote.group:
            if consumer.proxy is None:
                consumer.proxy = remote.session(channel)
            # Its record and its place in memory are the queue's, and go with it.
            channel.unacked.replace(tag, shown_copy(message))


def mark_active(queue: Queue) -> None:
    """Of consumers that take turns, the active one here stays so wherever the home is."""
    active = queue.active
    if active is None or active.carrier is not None or active.proxy is not None:
        return
    if queue.stream is None:
        active.reached = max(active.reached, queue.log.next_index)


def leave_place(consumer: Consumer) -> None:
    """A consumer of a stream goes on elsewhere where it was here."""
    reader = consumer.reader
    if reader is not None:
        consumer.reached = reader.next
        start_at(consumer, reader.next)
        reader.detach()
        consumer.reader = None


def shown_copy(message: Message) -> Message:
    """A message as an edge has it that only shows it."""
    shown = Message(message.route, message.content, message.channel, message.frame_bytes_max)
    shown.index = message.index
    return shown


def queues_of(broker: Broker, group: i64) -> list[Queue]:
    return [queue for queue in broker.shared.values() if queue.definition.group == group]


@final
class Homecoming(OwnEdge):
    """What the applications of this broker had under way with a group that comes home.

    It takes part in what the new home resolves as if it were attached from elsewhere; ``attached``
    is only for its publishes.
    """

    remote: RemoteGroup
    broker: Broker
    tenure: Tenure
    attached: Attachment

    def __init__(self, remote: RemoteGroup, tenure: Tenure) -> None:
        super().__init__()
        self.remote = remote
        self.broker = remote.broker
        self.tenure = tenure
        self.attached = Attachment(remote.group, tenure.log)
        origin = int(self.broker.incarnation, 16)
        self.attached.begin(tenure.epoch, tenure.log, origin, Taken(), remote.way.first)
        self.attached.open = True

    # ---- publishes and calls --------------------------------------------------------------------

    def take_publishes(self) -> None:
        """Append what no home has taken yet, in its order."""
        way = self.remote.way
        log = self.attached.numbered
        start = start_after(self.tenure.log.starts, way.since())
        way.doubt(self.tenure.doubtful.get(self.attached.origin, 0), self.broker.shared)
        first = way.first
        for refused in self.attached.taken.refused:
            way.refuse(refused)
        for at, message in enumerate(list(way.messages)):
            number = first + at
            if self.attached.takes(number):
                if log is not None:
                    log.take_from(self.attached.origin, number)
                known = message is way.nothing or way.is_known(number, start)
                if message is not None and not known:
                    self._take(number, message, way.targets[at].queue_ids)
                if log is not None:
                    log.taken()

    def _take(self, number: i64, sent: Message, queue_ids: list[int]) -> None:
        queues: list[Queue] = []
        for queue_id in queue_ids:
            queue = self.broker.shared.get(queue_id)
            if queue is not None and queue.away is None:
                queues.append(queue)
        message = copy_of(sent)
        confirms = self.attached.confirms
        worker = queues[0].worker if len(queues) == 1 else None
        if worker is not None and worker.at_once(message, confirms):
            return
        if len(queues) == 1 and queues[0].name == DELAYED_QUEUE and message.route.exchange != "":
            self.broker.delayed.hold(queues[0], message, delay_of(message), confirms)
        elif not enqueue(self.broker, message, queues, confirms):
            self.remote.way.refuse(number)
        message.identity = None

    def answer_calls(self) -> None:
        """Carry out here what the home was to be asked."""
        calls = self.remote.calls
        self.remote.calls = {}
        for call in calls.values():
            if isinstance(call, ReattachCall):
                continue
            if not call.channel.closing:
                try:
                    call.carry_out()
                except AmqpError as error:
                    call.failed(error)
            call.channel.connection.resume()

    def end_turn(self) -> None:
        """Confirm what is safe, once what was settled is in the log, too."""
        if self.remote.way.sent > self.attached.last:
            # It was routed, or settled, when the home was another.
            self.take_publishes()
        self.attached.close_turn()
        if self.tenure.recovering or not self.broker.may_deliver:
            return
        confirms = self.attached.confirms
        number = confirms.ready()
        if number > 0:
            confirms.sent = number
            self.remote.way.confirm(number)
            self.broker.committed()

    # ---- what is resolved -----------------------------------------------------------------------

    def flush(self) -> None:
        for session in self._sessions():
            session.flush(None)
        self.remote.touched = []

    def settle(self, kind: i64) -> None:
        void_from = self._void_from()
        for settled in self.remote.kept:
            if settled.kind != kind:
                continue
            for queue_id, indexes in settled.by_queue.items():
                queue = self.broker.shared.get(queue_id)
                if queue is not None and queue.away is None:
                    known = [each for each in indexes if not is_void(queue, each, void_from)]
                    _settle_all(queue, known, kind)

    def _void_from(self) -> i64:
        """From which index on the log has lost what was held or kept here; 0: nothing."""
        if not self.tenure.rules.epochs_compared:
            return 0
        return start_after(self.tenure.log.starts, self.remote.seen)

    def hold(self, only_kept: bool) -> None:
        for session in self._sessions():
            if self.broker.ghosts.keeps(session.channel.connection) is only_kept:
                self._hold(session, only_kept)

    def _hold(self, session: Session, only_kept: bool) -> None:
        void_from = self._void_from()
        channel = session.channel
        unacked = channel.unacked
        client = "" if only_kept else channel.connection.resume_id
        holdings = HomeHoldings(self.tenure, client, channel.visit)
        for tag in unacked.tags():
            consumer = unacked.consumer(tag)
            shown = unacked.message(tag)
            assert consumer is not None
            assert shown is not None
            if consumer.proxy is not session:
                continue
            queue = consumer.queue
            message: Message | None = None
            if queue.stream is not None:
                message = shown
                queue.unacked += 1
            elif not queue.deleted and not is_void(queue, shown.index, void_from):
                message = claim(queue, shown.index)
                if message is None:
                    message = holdings.take(queue, shown.index)
            if message is not None:
                unacked.replace(tag, message)
            else:
                unacked.forget(tag)
                consumer.unacked -= 1
                channel.forgive(tag)

    def join(self) -> None:
        """Everything that applications here have of the group is local from now on."""
        # First, while they have the numbers that they are known by.
        for consumer in list(self.remote.consumers.values()):
            self.remote.forget(consumer)
        for session in self._sessions():
            channel = session.channel
            for tag in channel.unacked.tags():
                _make_local(channel.unacked.consumer(tag), session)
            for pulled in channel.pulls.values():
                _make_local(pulled, session)
            for consumer in channel.consumers.values():
                _make_local(consumer, session)
        self.remote.sessions = {}
        self.remote.uncounted = {}
        self.remote.kept = []
        self.remote.seen = self.tenure.epoch
        self.remote.starts = list(self.tenure.log.starts)
        self.attached.settled_up_to(self.attached.settles.published + 1)

    def _sessions(self) -> list[Session]:
        return [*self.remote.sessions.values(), *self.remote.uncounted.values()]


def _settle_all(queue: Queue, indexes: list[int], kind: i64) -> None:
    for index in indexes:
        message = claim(queue, index)
        if message is not None:
            settle_claimed(queue, message, kind, True)


def _make_local(consumer: Consumer | None, session: Session) -> None:
    if consumer is not None and consumer.proxy is session:
        consumer.proxy = None
        consumer.number = 0
        consumer.credit = 0
        stream = consumer.queue.stream
        if stream is not None and consumer in consumer.queue.consumers():
            stream.attach(consumer)
        consumer.queue.broker.leases.came_home(consumer)
