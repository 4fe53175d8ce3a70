"""Broker: the broker core, sans-IO.

The shell calls in with bytes and ticks, then ``end_turn`` once per wake-up. Then it writes the
outboxes of the connections in ``turn.connections`` and hands the journal's batch to its writer.
When the writer has synced, the shell calls ``synced``.

The duties of the shell, in order, once per wake-up:

1. set ``turn.now_ms``; feed ``Connection.receive`` and ``tick``;
2. call ``end_turn``;
3. take the batches of journal and spill and hand them to their writers;
4. write and clear the outboxes of ``turn.connections`` and call ``flushed`` on each;
5. if ``turn.pending()``, come back soon.

A confirm is put into an outbox only after ``synced`` said that its record is on disk. So the order
of 3 and 4 within one wake-up is a matter of speed, not of safety.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, final

from mypy_extensions import i64

from rhizome.amqp.methods import BasicCancel, Method
from rhizome.broker.access.auth_interface import AccessEpoch, Authenticator, Identity, Peer
from rhizome.broker.access.revocation import Revocation
from rhizome.broker.access.usage_limits import Limits
from rhizome.broker.broker_context import BrokerContext, BrokerSettings
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.consumer import Consumer, consumers_of
from rhizome.broker.channel.deferred_methods import DeferredMethods
from rhizome.broker.channel.direct_reply_to import REPLY_QUEUE, DirectReplyTo
from rhizome.broker.cluster_port import Across, Cluster, Histories, Waiter
from rhizome.broker.connection.amqp_handshake import Handshake
from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.broker.connection.exclusive_queue_cleanup import OrphanedQueues, is_late
from rhizome.broker.connection.frame_reader import FrameReader
from rhizome.broker.connection.session_resume import SuspendedSessions
from rhizome.broker.dead_letters.dead_letter_routing import bury_apart, noted
from rhizome.broker.fault_log import (
    FAULT_CONNECTION,
    FAULT_GROUP,
    FAULT_QUEUE,
    FAULT_TIMER,
    FAULT_TURN,
    FaultLog,
)
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message, Route
from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.broker.metadata.metadata_changes import (
    AccessChanged,
    BindingAdded,
    BindingRemoved,
    ExchangeDeleted,
    ExchangeUnused,
    Fact,
    Outcome,
    QueueChanged,
    QueueDeleted,
    VhostDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    CLUSTER_NAME,
    GLOBAL,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.observer import EventSink, Observer, Tracer
from rhizome.broker.periodic_sweep import Timers
from rhizome.broker.publishing.blocked_publishers import update_blocking
from rhizome.broker.publishing.confirm_latency import ConfirmLatencies, LatencyHistogram
from rhizome.broker.publishing.delayed_messages import Delayed
from rhizome.broker.publishing.publication import MessageOptions, Publication
from rhizome.broker.publishing.publish_path import place
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.unfinished_content_limits import UnfinishedContents
from rhizome.broker.queue.checkpoint_live_messages import unacked_messages
from rhizome.broker.queue.damaged_messages import Damage
from rhizome.broker.queue.internal_queues import touch_workers
from rhizome.broker.queue.pager import Pager
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.queue_consumer import QueueConsumer
from rhizome.broker.queue.redelivered_flag import DeliveredMarks
from rhizome.broker.queue_leases.active_leases import Leases
from rhizome.broker.routing.bindings_and_destinations import Destination
from rhizome.broker.streams.active_streams import Streams
from rhizome.broker.turn import (
    COMMAND_WORK,
    FACT_WORK,
    POLICY_STEP_WORK,
    MarkedChannel,
    MarkedQueue,
    Turn,
)
from rhizome.errors import AmqpError, InternalFault

TICK_PARTS: Final = (
    "timers",
    "delivery marks",
    "sessions that may resume",
    "queues that hold publishers back",
    "streams",
    "commits",
    "methods that wait",
)
"""The parts of a tick, in the order in which they run."""


@final
class Broker(BrokerContext):
    """Every part of a broker, and what all of them do in a turn."""

    faults: FaultLog
    suspended_sessions: SuspendedSessions
    histories: Histories
    delayed: Delayed
    leases: Leases
    timers: Timers
    streams: Streams
    carriers: dict[int, Connection]
    orphans: dict[Queue, list[Consumer]]
    """The consumers of queues that were deleted, until they are told."""
    admin_consumers: dict[int, Connection]
    shared_by_group: dict[int, dict[int, Queue]]
    """The same queues by group, in the same order; no group is empty."""
    waiting: DeferredMethods
    takeover_times: LatencyHistogram
    disk_full: bool  # the cluster is told: another broker may have a copy and room
    backlog_fills_disk: bool  # the same, if there would be room without the messages here
    disabled: str
    _seed: bytes
    _reader: FrameReader
    _names: i64
    _next_connection: i64
    _reply_queue: Queue | None
    _nobody: Identity
    _nowhere: VHost

    def __init__(
        self,
        settings: BrokerSettings,
        log: GroupLog,
        pager: Pager,
        authenticator: Authenticator,
        access_epoch: AccessEpoch,
        limits: Limits,
        observer: Observer,
        seed: bytes,
        now_ms: i64,
    ) -> None:
        """``seed``: at least 16 bytes that no other start of a broker has used."""
        self.settings = settings
        self.incarnation = hashlib.sha256(seed).hexdigest()[:12]
        self.turn = Turn()
        self.turn.now_ms = now_ms
        self.log = log
        self.logs = {int(log.group): log}
        self.published = self._names = self._next_connection = 0
        self.confirm_latencies = ConfirmLatencies()
        self.levels_told = [0, 0, 0, 0]
        self.takeover_times = LatencyHistogram()
        self.pager = pager
        self.damage = Damage(self)
        self.faults = FaultLog()
        self.delivered_marks = DeliveredMarks(pager.journal)
        self.sessions = self.suspended_sessions = SuspendedSessions(self)
        self.cluster, self.across, self.histories = Cluster(), Across(), Histories()
        self.authenticator = authenticator
        self.access_epoch = access_epoch
        self.revocation = Revocation(self.turn)
        self.limits = self.queue_limits = limits
        limits.broker = self
        self.contents = UnfinishedContents(limits)
        self.observer = observer
        self.events, self.replies = EventSink(), DirectReplyTo()
        self.timers = Timers(self)
        self.delayed = Delayed(self)
        self.leases = Leases(self)
        self.streams = Streams(self)
        self.connections = {}
        self.carriers, self.releases, self.orphans = {}, {}, {}
        self.admin_consumers = {}
        self.shared, self.shared_by_group = {}, {}
        self.internal = {}
        self.unconfirmed = []
        self.commits = []
        self.dead_letters = []
        self.waiting = DeferredMethods(self)
        self.may_deliver = True
        self.blocking = self.alarmed = self.suspended = self.disk_full = False
        self.backlog_fills_disk = False
        self.block_reason = self.alarm_reason = ""
        self.isolation = self.stall = self.disabled = ""
        self.stalled, self.unread = {}, {}
        self.older_peers = {}
        self.congested = {}
        self._seed = seed
        self._reader = FrameReader()
        self._reply_queue = self.tracer = None
        # The stand-ins of a connection that has not logged in and opened a vhost.
        self._nobody = Identity("", "", (), access_epoch)
        self._nowhere = VHost("", self.make_queue)
        self.state = State(self.make_queue)

    # ---- the state ------------------------------------------------------------------------------

    def make_queue(self, definition: QueueDefinition) -> Destination:
        queue = Queue(self, definition)
        if not definition.is_private():
            self.add_shared(queue)
            self.cluster.queue_made(queue)
            self.streams.made(queue)
        else:
            self.cluster.private_declared(definition.vhost, definition.name)
        return queue

    def add_shared(self, queue: Queue) -> None:
        """A queue is one that all brokers know, or belongs to a group itself."""
        definition = queue.definition
        self.shared[definition.id] = queue
        self.shared_by_group.setdefault(definition.group, {})[definition.id] = queue

    def _remove_shared(self, queue: Queue) -> None:
        definition = queue.definition
        if self.shared.pop(definition.id, None) is not None:
            of_group = self.shared_by_group[definition.group]
            del of_group[definition.id]
            if len(of_group) == 0:
                del self.shared_by_group[definition.group]

    def apply(self, command: Command) -> Outcome:
        """Apply a committed command and react to what it changed, but for what `go_on` does."""
        outcome = self.state.begin(command)
        self.turn.work += COMMAND_WORK + len(outcome.facts) * FACT_WORK
        if isinstance(command, (DeclareQueue, DeclareExchange)) and len(outcome.facts) > 0:
            self.turn.work += self.state.vhosts[command.vhost].search_work(command.name)
        for fact in outcome.facts:
            self._react(fact)
        return outcome

    def go_on(self) -> list[Fact]:
        """Do more of what commands have begun, so much that a turn has time for some of it; the
        facts."""
        facts = self.state.go_on(POLICY_STEP_WORK)
        self.turn.work += self.state.stepped
        for fact in facts:
            self._react(fact)
        return facts

    def _react(self, fact: Fact) -> None:
        if isinstance(fact, QueueDeleted):
            if isinstance(fact.destination, Queue):
                self.queue_deleted(fact.destination)
        elif isinstance(fact, QueueChanged):
            if isinstance(fact.destination, Queue):
                fact.destination.apply_options(fact.definition.options)
                # Routes remember whether their queues take everything.
                self.state.vhosts[fact.definition.vhost].router.epoch += 1
        elif isinstance(fact, BindingAdded):
            if _is_private(fact.binding.destination):
                self.cluster.private_bound(fact.vhost, fact.binding)
            self.histories.bound(fact.vhost, fact.binding)
        elif isinstance(fact, BindingRemoved):
            if _is_private(fact.binding.destination):
                self.cluster.private_unbound(fact.vhost, fact.binding)
        elif isinstance(fact, ExchangeDeleted):
            if fact.exchange.history != "":
                self.histories.dropped(fact.exchange)
        elif isinstance(fact, ExchangeUnused):
            self.cluster.exchange_unused(fact.exchange)
        elif isinstance(fact, AccessChanged):
            self.access_epoch.advance()
            self.revocation.changed(fact.user, fact.deleted)
        elif isinstance(fact, VhostDeleted):
            self._close_where_vhost(fact.name)

    def queue_deleted(self, queue: Queue) -> None:
        queue.deleted = True
        if queue.held > 0:
            self.delayed.return_all(queue)
        self._remove_shared(queue)
        if queue.definition.is_private():
            self.cluster.private_deleted(queue.vhost, queue.name)
            for binding in queue.incoming:
                # The exchange goes with its vhost; otherwise its bindings were reported one by one.
                self.cluster.private_unbound(queue.vhost, binding)
        queue.ready_bytes = 0
        queue.flow_control.update(queue, self.turn.now_ms)
        self.timers.unwatch(queue)
        orphans = consumers_of(queue)
        self.orphans[queue] = orphans
        for consumer in orphans:
            consumer.channel.consumers.pop(consumer.tag, None)
            if consumer.proxy is not None:
                consumer.proxy.detach(consumer, None)
        queue.levels = []
        queue.consumer_count = 0
        queue.drop_ready()
        queue.keys = None  # which refers to the queue: neither would ever be freed
        if queue.recorded and queue.is_kept_here():
            queue.log.drop(queue.id)
        self.streams.deleted(queue)
        self.leases.deleted(queue)

    def announce(self, outcome: Outcome) -> None:
        """Tell clients what a command took from them, after the proposer has its answer.

        Clients that delete a queue they consume from rely on delete-ok coming first.
        """
        for fact in outcome.facts:
            if isinstance(fact, QueueDeleted) and isinstance(fact.destination, Queue):
                for consumer in self.orphans.pop(fact.destination, ()):
                    channel = consumer.channel
                    if channel.connection.cancel_notify and not channel.closing:
                        channel.send(BasicCancel(consumer.tag, True))

    def _close_where_vhost(self, vhost: str) -> None:
        for connection in list(self.connections.values()):
            if connection.stage == RUNNING and connection.router.vhost == vhost:
                connection.force_close(f"vhost '{vhost}' is down: it was deleted")

    def delete_queue(self, queue: Queue, waiter: Waiter | None = None) -> bool:
        """Delete a queue because it is unused; return whether ``waiter`` is told when it is."""
        command = DeleteQueue(queue.vhost, queue.name, queue.definition.id)
        if queue.definition.exclusive_owner:
            outcome = self.apply(command)
            self.announce(outcome)
            self.events.changed(command, outcome, None)
            return False
        self.cluster.propose(command, waiter)
        return waiter is not None

    # ---- connections ----------------------------------------------------------------------------

    def connect(self, name: str, peer: Peer) -> Connection:
        """A client has connected."""
        self._next_connection += 1
        connection = Connection(
            self,
            self._reader,
            self._next_connection,
            name,
            peer,
            Handshake(self),
            self._nowhere,
            self._nobody,
        )
        self.connections[connection.id] = connection
        return connection

    def connection_opened(self, connection: Connection) -> None:
        self.observer.connection_opened(connection)
        self.events.connection_opened(connection)
        self.cluster.opened(connection)

    def connection_failed(self, connection: Connection, error: AmqpError) -> None:
        self.observer.connection_failed(connection, error)

    def channel_failed(self, channel: Channel, error: AmqpError) -> None:
        self.observer.channel_failed(channel, error)

    def login_refused(self, connection: Connection, reason: str) -> None:
        self.observer.login_refused(connection, reason)
        self.events.login_refused(connection, reason)

    def connection_gone(self, connection: Connection) -> None:
        """A connection's socket is gone."""
        connection.handshake = None  # a login that never ended knows its connection
        self.carriers.pop(connection.id, None)
        if self.connections.pop(connection.id, None) is None:
            return
        self.revocation.forget(connection)
        self.suspended_sessions.closed(connection)
        self.stalled.pop(connection.id, None)
        self.unread.pop(connection.id, None)
        self.observer.connection_closed(connection)
        if connection.vhost is not self._nowhere:
            self.events.connection_closed(connection)

    def drop_private_queues(self, connection: Connection) -> None:
        """Delete the private queues of a connection before its owner is told that the connection is
        gone. Queues that are too much for one turn are deleted later."""
        late: list[Queue] = []
        for name in list(connection.private_queues):
            queue = connection.router.queues.get(name)
            if isinstance(queue, Queue) and queue.definition.exclusive_owner == connection.owner:
                if is_late(self.turn, queue):
                    late.append(queue)
                else:
                    self.delete_queue(queue)
        connection.private_queues = {}
        if len(late) > 0:
            self.turn.chores.append(OrphanedQueues(self, late))

    def carry(self, name: str) -> Connection:
        """Make a connection that holds the channels of another broker's applications.

        It never speaks AMQP itself: a link feeds its channels and takes what they deliver.
        """
        self._next_connection += 1
        connection = Connection(
            self,
            self._reader,
            self._next_connection,
            name,
            Peer("", 0, loopback=False),
            Handshake(self),
            self._nowhere,
            self._nobody,
        )
        connection.handshake = None
        connection.stage = RUNNING
        self.carriers[connection.id] = connection
        return connection

    def holders(self) -> list[Connection]:
        """Every connection whose channels may hold unacked messages of queues that are active
        here."""
        return [*self.connections.values(), *self.carriers.values()]

    def applications(self) -> list[Connection]:
        """The connections of this broker's applications; connections that keep what resuming
        clients held, or what goes back to its queues; and the admin consumers."""
        return [
            *self.connections.values(),
            *self.suspended_sessions.carriers(),
            *self.admin_consumers.values(),
            *self.releases.values(),
        ]

    def running_connections(self) -> list[Connection]:
        return [each for each in self.connections.values() if each.stage == RUNNING]

    def report_bug(self, error: BaseException, where: str, kind: str = FAULT_CONNECTION) -> None:
        """Report an unexpected exception; the fault has been contained."""
        self.faults.note(kind, error, where, self.turn.now_ms)
        self.observer.bug(error, where)

    def disable(self, error: BaseException, where: str, why: str = "") -> None:
        """Confirm, deliver and admit nothing any more until the broker is restarted: a fault may
        have kept a record out of the log that others rely on. ``why`` is for people."""
        self.report_bug(error, where, FAULT_TURN)
        if not self.disabled:
            self.disabled = why or (
                f"this broker serves nobody until it is started again: a fault at {where}; its log"
                " has the details"
            )
            self.isolate(self.disabled)

    def cluster_name(self) -> str:
        """The name of the cluster that clients and tools are told: a parameter, or configured."""
        name = self.state.parameters.get((GLOBAL, "", CLUSTER_NAME))
        return name if isinstance(name, str) else self.settings.cluster_name

    def make_name(self, prefix: str) -> str:
        """Make a name that is unique and can't be guessed."""
        self._names += 1
        digest = hashlib.sha256(self._seed + str(self._names).encode()).digest()[:16]
        name = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        return prefix + name + self.cluster.name_suffix()

    def reply_queue(self, vhost: str) -> Queue:
        """The queue that reply consumers nominally consume; it never holds anything."""
        if self._reply_queue is None:
            arguments = QueueArguments()
            definition = QueueDefinition(
                0, vhost, REPLY_QUEUE, False, False, "", {}, arguments, arguments
            )
            self._reply_queue = Queue(self, definition)
        return self._reply_queue

    def remove_consumer(self, consumer: Consumer, waiter: Waiter | None = None) -> bool:
        """A consumer is gone; an auto-delete queue is deleted with its last one. Return whether
        ``waiter`` is told when that is done."""
        queue = consumer.queue
        if queue.deleted:
            return False
        queue.remove_consumer(consumer)
        self.events.consumer_removed(consumer)
        if consumer.reader is not None:
            consumer.reader.detach()
        if consumer.proxy is not None:
            return consumer.proxy.detach(consumer, waiter)
        return queue.had_consumer and self.delete_if_unused(queue, waiter)

    def delete_if_unused(self, queue: Queue, waiter: Waiter | None = None) -> bool:
        """Delete an auto-delete queue that has no consumers and expects none back; return whether
        ``waiter`` is told when it is."""
        return queue.is_over() and self.delete_queue(queue, waiter)

    # ---- blocking publishers --------------------------------------------------------------------

    def block(self, reason: str) -> None:
        """Block publishers for a reason, which they are told if the cause is an alarm."""
        if reason != self.alarm_reason:
            self.events.alarm(reason)
        self.alarmed = True
        self.alarm_reason = reason
        update_blocking(self)

    def unblock(self) -> None:
        if self.alarm_reason != "":
            self.events.alarm("")
        self.alarmed = False
        self.alarm_reason = ""
        update_blocking(self)

    def isolate(self, reason: str) -> None:
        """Deliver, confirm and admit nothing until the reason is empty (R9)."""
        if self.disabled:
            reason = self.disabled
        self.may_deliver = reason == ""
        self.isolation = reason
        update_blocking(self)
        if self.may_deliver:
            for queue in self.shared.values():
                if queue.ready > 0 and not queue.marked:
                    queue.touch()
            self.committed()
            self.waiting.try_again()
            self.cluster.submitted()

    def hold_back(self, reason: str) -> None:
        """Have publishers wait for copies of what they publish until the reason is empty (G10)."""
        self.stall = reason
        update_blocking(self)

    # ---- dead letters and transactions ----------------------------------------------------------

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Note a dead letter; it is sent before the turn ends."""
        self.dead_letters.append(noted(self, queue, message, reason))

    # ---- what others ask of parts that they don't know -------------------------------------------

    def defer(self, channel: Channel, method: Method) -> None:
        self.waiting.later(channel, method)

    def answer_purge(self, channel: Channel, queue: Queue, count: i64, no_wait: bool) -> None:
        self.waiting.purged(channel, queue, count, no_wait)

    def delayed_queue(self, vhost: str) -> Queue | None:
        return self.delayed.queue(vhost)

    def hold_delayed(self, queue: Queue, message: Message, confirms: Confirms | None) -> None:
        self.delayed.hold(queue, message, confirms)

    def begin_streams(self) -> None:
        self.streams.begin()

    def commit_streams(self, needed: dict[GroupLog, int]) -> None:
        self.streams.commit(needed)

    # ---- what queues ask ------------------------------------------------------------------------

    def delay_retry(self, queue: Queue, message: Message, due_ms: i64) -> None:
        self.delayed.hold_back(queue, message, due_ms)

    def return_delayed(self, queue: Queue) -> None:
        self.delayed.return_all(queue)

    def put_back_scheduled(self, queue: Queue, message: Message) -> None:
        self.delayed.put_back(queue, message)

    def forget_scheduled(self, queue: Queue) -> None:
        self.delayed.forget_all(queue)

    def look_at_scheduled(self, due_ms: i64) -> None:
        self.delayed.schedule(due_ms)

    def unacked_messages(self, queue: Queue) -> list[Message]:
        return unacked_messages(self, queue)

    def watch_expiry(self, queue: Queue) -> None:
        self.timers.watch(queue)

    def attach_lease(self, consumer: QueueConsumer) -> None:
        assert isinstance(consumer, Consumer), "what leases messages belongs to a channel"
        self.leases.attach(consumer)

    def forget_lease(self, consumer: QueueConsumer) -> None:
        self.leases.forget(consumer)

    def lease_came_home(self, consumer: QueueConsumer) -> None:
        if isinstance(consumer, Consumer):
            self.leases.came_home(consumer)

    def restore_leases(self, queue: Queue, packed: bytes) -> None:
        self.leases.restore(queue, packed)

    def ask_copies(self, queue: Queue, index: i64) -> bool:
        return self.cluster.ask_copies(queue, index)

    def copies_answered(self) -> None:
        self.waiting.try_again()

    def message_damaged(self, queue: Queue, index: i64, reason: str) -> None:
        self.observer.message_damaged(queue, index, reason)

    def message_repaired(self, queue: Queue, index: i64) -> None:
        self.observer.message_repaired(queue, index)

    def copy_damaged(self, queue_id: i64, index: i64, reason: str) -> None:
        self.observer.copy_damaged(queue_id, index, reason)

    def route_to(self, exchange: str, key: str) -> Route:
        """The route for a message that the broker itself publishes."""
        exchange_bytes = exchange.encode("utf-8", "surrogateescape")
        key_bytes = key.encode("utf-8", "surrogateescape")
        tail = bytes([len(exchange_bytes)]) + exchange_bytes + bytes([len(key_bytes)]) + key_bytes
        return self.pager.route(tail)

    def publish_internally(self, message: Message, queues: list[Queue]) -> None:
        """Publish on behalf of the broker itself."""
        place(self, Publication(message, queues, [], False, MessageOptions()), None)

    # ---- turns ----------------------------------------------------------------------------------

    def tick(self, now_ms: i64) -> None:
        """Time has passed: run the timers. A fault in one must not keep the others from running."""
        part: i64 = 0
        while part < len(TICK_PARTS):
            try:
                self._tick(part, now_ms)
            except Exception as error:
                self.report_bug(error, TICK_PARTS[part], FAULT_TIMER)
            part += 1

    def _tick(self, part: i64, now_ms: i64) -> None:
        if part == 0:
            self.timers.tick(now_ms)
        elif part == 1:
            self.delivered_marks.tick(now_ms)
        elif part == 2:
            self.suspended_sessions.tick(now_ms)
        elif part == 3:
            for queue in list(self.congested):
                queue.flow_control.update(queue, now_ms)
        elif part == 4:
            self.streams.tick(now_ms)
        elif part == 5:
            if len(self.commits) > 0:
                self._answer_commits()
        else:
            self.waiting.try_again()

    def end_turn(self) -> None:
        """Dispatch, settle and confirm everything that this wake-up has touched. If one step
        raises, the rest is still done."""
        turn = self.turn
        try:
            self._prepare_end()
        except Exception as error:
            self.report_bug(error, "the beginning of the end of a turn", FAULT_TURN)
        self._dispatch_marked()
        if self.tracer is not None:
            self._trace(self.tracer)
        if self.events.pending:
            self._publish_events()
        self.write_settled()
        if len(self.delivered_marks.queues) > 0:
            try:
                self.delivered_marks.write(turn.now_ms)
            except Exception as failure:
                self.report_bug(failure, "the note of what was delivered", FAULT_TURN)
        if len(turn.channels) > 0:
            channels = turn.channels
            turn.channels = []
            for channel in channels:
                self._confirm(channel)
        turn.close()

    def _dispatch_marked(self) -> None:
        turn = self.turn
        while len(turn.queues) > 0 or len(self.dead_letters) > 0:
            queues = turn.queues
            turn.queues = []
            for queue in queues:
                self._dispatch(queue)
            if len(self.dead_letters) > 0:
                self._bury()

    def _trace(self, tracer: Tracer) -> None:
        """Publish the traces of this turn. Traces themselves are not traced, so this ends."""
        try:
            tracer.end_turn()
        except Exception as failure:
            self.report_bug(failure, "the traces of a turn", FAULT_TURN)
        self._dispatch_marked()

    def _publish_events(self) -> None:
        """Publish the events of this turn, which causes none itself."""
        try:
            self.events.end_turn()
        except Exception as failure:
            self.report_bug(failure, "the events of a turn", FAULT_TURN)
        self._dispatch_marked()

    def _prepare_end(self) -> None:
        turn = self.turn
        if len(turn.users) > 0:
            self.revocation.revoke()
        if turn.has_more():
            self._go_on()
        self.leases.pump()

    def _go_on(self) -> None:
        """Continue what the last turn had no time for, one connection, queue or chore after the
        other."""
        turn = self.turn
        turn.keep_half()
        chores = turn.chores
        turn.chores = []
        for at, chore in enumerate(chores):
            if turn.is_full():
                # Those that had no share of this turn come first in the next.
                turn.chores = chores[at:] + turn.chores
                break
            try:
                if not chore.run():
                    turn.chores.append(chore)
            except Exception as error:
                self.report_bug(error, "work that takes several turns", FAULT_TURN)
        rested = turn.rested
        turn.rested = []
        for connection in rested:
            connection.take_up()

    def _dispatch(self, queue: MarkedQueue) -> None:
        """Dispatch a queue; a queue that fails must not hold up the others."""
        self.turn.doing = queue
        try:
            queue.dispatch(self.turn.now_ms)
        except Exception as error:
            self.report_bug(error, f"queue '{queue.name}' in vhost '{queue.vhost}'", FAULT_QUEUE)

    def _bury(self) -> None:
        """Route the dead letters. A fault may leave their transaction open, and with it everything
        that is recorded from here on."""
        try:
            bury_apart(self)
        except Exception as error:
            self.dead_letters = []
            self.disable(error, "dead letters")

    def _confirm(self, channel: MarkedChannel) -> None:
        try:
            channel.flush_confirms()
        except Exception as error:
            channel.faulted(error)

    def connection_fault(self, connection: Connection, error: BaseException) -> None:
        """End a connection after a fault that is about it, so that its client doesn't wait for
        ever."""
        self.report_bug(error, connection.name)
        connection.fail(InternalFault("the broker made a mistake; its log has the details"))

    def write_settled(self) -> None:
        """Write the dequeues of this turn into the log."""
        settled = self.turn.settled
        if len(settled) > 0:
            self.turn.settled = []
            for queue in settled:
                try:
                    queue.write_settled()
                except Exception as error:
                    # The journal may have half a record: nothing behind it may be confirmed.
                    self.disable(error, f"the acks of queue '{queue.name}'")

    def handed_over(self, token: i64) -> None:
        """The journal's batch of this turn, which ends at ``token``, was handed to the writer."""
        for log in self.logs.values():
            log.handed_over(token)
        self.cluster.handed_over(token)

    def synced(self, position: i64) -> None:
        """Everything below ``position`` of the journal is on disk."""
        self.suspended_sessions.durable = position
        for log in self.logs.values():
            try:
                log.synced(position)
            except Exception as error:
                self.report_bug(error, f"the log of group {log.group}", FAULT_GROUP)
        try:
            self.streams.synced()
        except Exception as failure:
            self.report_bug(failure, "streams", FAULT_QUEUE)
        self.committed()
        self.cluster.synced(position)

    def committed(self) -> None:
        """A log has committed more: confirm and answer what waited for that."""
        waiting = self.unconfirmed
        self.unconfirmed = []
        for channel in waiting:
            confirms = channel.confirms
            if confirms is not None:
                confirms.waiting = False
                self._confirm(channel)
        if len(self.commits) > 0:
            self._answer_commits()
        if len(self.suspended_sessions.syncs) > 0:
            self.suspended_sessions.answer_syncs()
        try:
            self.leases.committed()
        except Exception as error:
            self.report_bug(error, "leases", FAULT_QUEUE)
        if len(self.internal) > 0:
            touch_workers(self)
        for log in self.logs.values():
            if len(log.waiting) > 0:
                self._wake(log)

    def _wake(self, log: GroupLog) -> None:
        """More of a log is visible: dispatch the queues that wait for that."""
        waiting = log.waiting
        log.waiting = []
        for queue in waiting:
            if not queue.marked and not queue.deleted:
                queue.touch()
        self.waiting.try_again()

    def _answer_commits(self) -> None:
        done = [commit for commit in self.commits if commit.is_safe()]
        self.commits = [commit for commit in self.commits if not commit.is_safe()]
        for commit in done:
            try:
                commit.finish()
            except Exception as error:
                self.report_bug(error, "the answer to a commit")

    def submitted(self) -> None:
        """The shell has handed the batches of this turn to the writers."""
        self.pager.submitted()
        self.cluster.submitted()
        self.waiting.try_again()


def _is_private(destination: Destination) -> bool:
    return isinstance(destination, Queue) and destination.definition.is_private()
