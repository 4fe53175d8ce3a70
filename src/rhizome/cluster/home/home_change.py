"""Home change: the home of a group comes to this broker, or leaves it, while applications go on.

This broker is an edge of every group, including those that it is home of; for these its
applications' sessions are simply local. When the home changes, nothing that the applications have
under way is lost or doubled:

- ``come_home``: publishes to the group that aren't confirmed go into the log here, as far as they
  aren't there already (A1), and calls that wait for an answer are answered here. When the edge
  sessions are resolved, consumers become local, with what they hold (A2).
- ``leave_home``: local consumers become proxied ones, with what they hold, and are presented to the
  new home like those of any edge. Records made here that may not be committed are brought to the
  new home as far as it lacks them (`uncommitted_handover.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.broker.channel.consumer import Consumer, consumers_of
from rhizome.broker.channel.unacked import REQUEUE
from rhizome.broker.home_change_effects import (
    leave_place,
    let_go,
    mark_active,
    queues_of,
    reclaim_of_stream,
    rehome,
    restore,
    settle,
    show,
    show_and_give_back,
)
from rhizome.broker.message import Message, copy_of
from rhizome.broker.publishing.delayed_messages import DELAYED_QUEUE
from rhizome.broker.publishing.publish_path import enqueue
from rhizome.broker.publishing.recent_history import answer_request, asks_for_history
from rhizome.broker.publishing.reliability_levels import COPIED
from rhizome.broker.queue.queue import Queue, claim
from rhizome.cluster.edge.channel_session import ChannelSession
from rhizome.cluster.edge.home_calls import ReattachCall
from rhizome.cluster.home.edge_attachment import EdgeAttachment, TakenNumbers, start_after
from rhizome.cluster.home.edge_reconciliation import (
    EdgeSessions,
    EdgeSessionsByGroup,
    LocalEdge,
    held_before,
    is_void,
)
from rhizome.cluster.home.uncommitted_handover import carry_over
from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.group_log.log_port import GroupLog
    from rhizome.cluster.edge.edge import Edge
    from rhizome.cluster.edge.edge_group import EdgeGroup


@final
class HomeChange:
    """Moves what the applications of this broker have with a group."""

    edge: Edge
    tenures: EdgeSessionsByGroup

    def __init__(self, edge: Edge, tenures: EdgeSessionsByGroup) -> None:
        self.edge = edge
        self.tenures = tenures

    def come_home(self, tenure: EdgeSessions) -> LocalEdgeReturn:
        """A group is at home here from now on, and its queues are active. The caller has calls
        answered once queues may show what they have."""
        group = tenure.group
        for queue in queues_of(self.edge.broker, group):
            queue.last_used_ms = self.edge.broker.turn.now_ms
        edge_group = self.edge.group(group)
        edge_group.home_is(None, tenure.epoch)
        self.tenures.begin(tenure)
        own = LocalEdgeReturn(edge_group, tenure)
        tenure.own = own
        own.take_publishes()
        if not tenure.phase.is_recovering():
            # Before anything is asked for: messages that were settled here meanwhile belong to
            # nobody any more.
            tenure.resolve_all()
        return own

    def step_aside(self, group: i64) -> None:
        """The home of a group here is about to hand over.

        Its queues keep everything, unacked or not. Applications hold their messages through
        sessions from now on, to be presented to the next home, or to this one if the handover
        fails.
        """
        broker = self.edge.broker
        edge_group = self.edge.group(group)
        for queue in queues_of(broker, group):
            mark_active(queue)
            for consumer in consumers_of(queue):
                if consumer.proxy is None and consumer.carrier is None:
                    leave_place(consumer)
                    edge_group.adopt(consumer)
            _leave_leases(edge_group, queue)
        for connection in broker.applications():
            for channel in connection.channels.values():
                _step_aside_with(edge_group, channel)
        self.tenures.step_aside(group)

    def leave_home(self, group: i64, log: GroupLog) -> None:
        """A group that was at home here no longer is. Its queues let go of what is unacked; the
        caller takes away what is ready."""
        broker = self.edge.broker
        edge_group = self.edge.group(group)
        carry_over(edge_group, log)
        queues = queues_of(broker, group)
        for queue in queues:
            mark_active(queue)
            let_go(queue)
        self.tenures.end(group)
        for queue in queues:
            for consumer in consumers_of(queue):
                leave_place(consumer)
                if consumer.proxy is None:
                    edge_group.adopt(consumer)
            _leave_leases(edge_group, queue)
        for connection in broker.applications():
            for channel in connection.channels.values():
                _leave_with(edge_group, channel)


def _leave_leases(edge_group: EdgeGroup, queue: Queue) -> None:
    """Consumers of this broker ask the next home for what they ask of queue leases."""
    for consumer in edge_group.edge.broker.leases.consumers(queue):
        if consumer.proxy is None and consumer.carrier is None:
            edge_group.adopt(consumer)


def _step_aside_with(edge_group: EdgeGroup, channel: Channel) -> None:
    """What a channel holds of the group is ready again here, and held through a session."""
    for tag in channel.unacked.tags():
        consumer = channel.unacked.consumer(tag)
        assert consumer is not None
        queue = consumer.queue
        if queue.definition.group == edge_group.group and not queue.deleted:
            show_and_give_back(channel, tag)
    _leave_with(edge_group, channel)


def _leave_with(edge_group: EdgeGroup, channel: Channel) -> None:
    """What a channel holds of the group it holds through a session from now on."""
    for pulled in channel.pulls.values():
        if pulled.queue.definition.group == edge_group.group and pulled.proxy is None:
            pulled.proxy = edge_group.session(channel)
    for tag in channel.unacked.tags():
        consumer = channel.unacked.consumer(tag)
        assert consumer is not None
        if consumer.queue.definition.group == edge_group.group:
            if consumer.proxy is None:
                consumer.proxy = edge_group.session(channel)
            show(channel, tag)


@final
class LocalEdgeReturn(LocalEdge):
    """What the applications of this broker had under way with a group that comes home.

    It takes part in the new home's resolution as if it were attached from elsewhere; ``attached``
    is only for its publishes.
    """

    edge_group: EdgeGroup
    broker: Broker
    tenure: EdgeSessions
    attached: EdgeAttachment

    def __init__(self, edge_group: EdgeGroup, tenure: EdgeSessions) -> None:
        super().__init__()
        self.edge_group = edge_group
        self.broker = edge_group.broker
        self.tenure = tenure
        self.attached = EdgeAttachment(edge_group.group, tenure.log)
        origin = int(self.broker.incarnation, 16)
        self.attached.begin(tenure.epoch, tenure.log, origin, TakenNumbers(), edge_group.way.first)
        self.attached.open = True

    # ---- publishes and calls --------------------------------------------------------------------

    def take_publishes(self) -> None:
        """Append what no home has taken yet, in order."""
        way = self.edge_group.way
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
            self.broker.delayed.hold(queues[0], message, confirms)
        elif asks_for_history(message.route, queues):
            answer_request(self.broker, queues[0], message.route.key)
        elif not enqueue(self.broker, message, queues, confirms):
            self.edge_group.way.refuse(number)
        message.identity = None

    def answer_calls(self) -> None:
        """Carry out here the calls that the home was to be asked."""
        calls = self.edge_group.calls
        self.edge_group.calls = {}
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
        if self.edge_group.way.sent > self.attached.last:
            # Something was routed, or settled, when the home was another broker.
            self.take_publishes()
        self.attached.close_turn()
        if self.tenure.phase.is_recovering() or not self.broker.may_deliver:
            return
        confirms = self.attached.confirms
        number = confirms.ready()
        if number > 0:
            confirms.sent = number
            self._note_levels()
            self.edge_group.way.confirm(number)
            self.broker.committed()

    def _note_levels(self) -> None:
        """Note which of what is confirmed no standby has, as another home would tell."""
        levels = self.attached.confirms.levels
        if levels is None:
            return
        for at, number in enumerate(levels.told_tags):
            if levels.told_levels[at] != COPIED:
                self.edge_group.way.thin = number
        levels.clear()

    # ---- what is resolved -----------------------------------------------------------------------

    def flush(self) -> None:
        for session in self._sessions():
            session.flush(None)
        self.edge_group.touched = []

    def settle(self, kind: i64) -> None:
        void_from = self._void_from()
        for settled in self.edge_group.kept:
            if settled.kind != kind:
                continue
            for queue_id, indexes in settled.by_queue.items():
                queue = self.broker.shared.get(queue_id)
                if queue is not None and queue.away is None:
                    known = [each for each in indexes if not is_void(queue, each, void_from)]
                    self._settle_all(queue, known, kind)

    def _settle_all(self, queue: Queue, indexes: list[int], kind: i64) -> None:
        for index in indexes:
            message: Message | None = None
            if kind != REQUEUE:
                message = self.tenure.take_kept(queue, index)
            was_ready = message is None
            if message is None:
                message = claim(queue, index)
            if message is not None:
                settle(queue, message, kind, was_ready)

    def _void_from(self) -> i64:
        """The index from which on the log has lost what was held or kept here; 0: nothing was
        lost."""
        if not self.tenure.rules.epochs_compared:
            return 0
        return start_after(self.tenure.log.starts, self.edge_group.seen)

    def hold(self, only_kept: bool) -> None:
        for session in self._sessions():
            if self.broker.suspended_sessions.keeps(session.channel.connection) is only_kept:
                self._hold(session, only_kept)

    def _hold(self, session: ChannelSession, only_kept: bool) -> None:
        void_from = self._void_from()
        channel = session.channel
        unacked = channel.unacked
        client = channel.connection.resume_id
        holdings = held_before(self.tenure, client, channel.visit, only_kept)
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
                message = reclaim_of_stream(queue, shown)
            elif not queue.deleted and not is_void(queue, shown.index, void_from):
                message = claim(queue, shown.index)
                if message is None:
                    message = holdings.take(queue, shown.index)
            restore(channel, tag, message)

    def join(self) -> None:
        """Everything that applications here have of the group is local from now on."""
        # This comes first, while they have the numbers that they are known by.
        for consumer in list(self.edge_group.consumers.values()):
            self.edge_group.forget(consumer)
        for session in self._sessions():
            channel = session.channel
            for tag in channel.unacked.tags():
                _make_local(channel.unacked.consumer(tag), session)
            for pulled in channel.pulls.values():
                _make_local(pulled, session)
            for consumer in channel.consumers.values():
                _make_local(consumer, session)
        self.edge_group.sessions = {}
        self.edge_group.uncounted = {}
        self.edge_group.kept = []
        self.edge_group.seen = self.tenure.epoch
        self.edge_group.starts = list(self.tenure.log.starts)
        self.attached.settled_up_to(self.attached.settles.published + 1)

    def _sessions(self) -> list[ChannelSession]:
        return [*self.edge_group.sessions.values(), *self.edge_group.uncounted.values()]


def _make_local(consumer: Consumer | None, session: ChannelSession) -> None:
    if consumer is not None and consumer.proxy is session:
        rehome(consumer, None, 0)
