"""Broker: the lone broker core, sans-IO.

The shell calls in with bytes and ticks, then ``end_turn`` once per wake-up, then writes the
outboxes of the connections in ``turn.connections`` and hands the journal's batch to its writer.
When the writer has synced, the shell calls ``synced``.

The duties of the shell, in order, once per wake-up:

1. set ``turn.now_ms``; feed ``Connection.receive`` and ``tick``;
2. call ``end_turn``;
3. take the batches of journal and spill and hand them to their writers;
4. write and clear the outboxes of ``turn.connections`` and call ``flushed`` on each;
5. if ``turn.pending()``, come back soon.

A confirm is only ever put into an outbox after ``synced`` said that its record is on disk, so the
order of 3 and 4 within one wake-up is a matter of speed, not of safety.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, final

from mypy_extensions import i64

from rhizome.amqp.methods import BasicCancel
from rhizome.broker.access import AccessEpoch, Authenticator, Identity, Peer
from rhizome.broker.arguments import QueueArguments
from rhizome.broker.blocking import judge_blocking
from rhizome.broker.channel import Channel
from rhizome.broker.commands import Command, DeleteQueue
from rhizome.broker.connection import Connection
from rhizome.broker.consumer import Consumer
from rhizome.broker.damage import Damage
from rhizome.broker.definitions import QueueDefinition
from rhizome.broker.delayed import Delayed
from rhizome.broker.fault_log import (
    FAULT_CONNECTION,
    FAULT_GROUP,
    FAULT_QUEUE,
    FAULT_TIMER,
    FAULT_TURN,
    FaultLog,
)
from rhizome.broker.handshake import Handshake
from rhizome.broker.leases.leases import Leases
from rhizome.broker.letters import DeadLetter, bury_apart
from rhizome.broker.limits import Limits
from rhizome.broker.message import Message, Route
from rhizome.broker.observer import Observer
from rhizome.broker.outcome import (
    AccessChanged,
    BindingAdded,
    BindingRemoved,
    ExchangeUnused,
    Fact,
    Outcome,
    QueueChanged,
    QueueDeleted,
    VhostDeleted,
)
from rhizome.broker.pager import Pager
from rhizome.broker.port import Across, Cluster, GroupLog
from rhizome.broker.publishing import Publication, place
from rhizome.broker.queue import Queue
from rhizome.broker.replies import REPLY_QUEUE, Replies
from rhizome.broker.resuming import Ghosts
from rhizome.broker.revocation import Revocation
from rhizome.broker.routing.destination import Destination
from rhizome.broker.settings import Settings
from rhizome.broker.showing import Showing
from rhizome.broker.stages import RUNNING
from rhizome.broker.state import State
from rhizome.broker.steering import Steering
from rhizome.broker.streams.registry import Streams
from rhizome.broker.timers import Timers
from rhizome.broker.times import ConfirmTimes, Times
from rhizome.broker.transactions import PendingCommit
from rhizome.broker.turn import COMMAND_WORK, Turn
from rhizome.broker.unfinished_contents import UnfinishedContents
from rhizome.broker.vhost import VHost
from rhizome.broker.waiting import Waiting
from rhizome.broker.worker import touch_workers
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
"""What happens because time passes, in this order."""


@final
class Broker:
    """``older_peers`` are brokers linked with this one that don't know that producers belong to
    users (`journal/seen.py`)."""

    settings: Settings
    incarnation: str
    turn: Turn
    state: State
    log: GroupLog
    logs: dict[int, GroupLog]
    pager: Pager
    damage: Damage
    faults: FaultLog
    showing: Showing
    ghosts: Ghosts
    cluster: Cluster
    across: Across
    authenticator: Authenticator
    access_epoch: AccessEpoch
    revocation: Revocation
    limits: Limits
    contents: UnfinishedContents
    observer: Observer
    replies: Replies
    delayed: Delayed
    leases: Leases
    timers: Timers
    streams: Streams
    connections: dict[int, Connection]
    carriers: dict[int, Connection]
    errands: dict[int, Connection]
    shared: dict[int, Queue]
    internal: dict[int, Queue]
    unconfirmed: list[Channel]
    commits: list[PendingCommit]
    dead_letters: list[DeadLetter]
    waiting: Waiting
    published: i64
    confirm_times: ConfirmTimes
    levels_told: list[int]
    takeover_times: Times
    may_deliver: bool
    blocking: bool
    block_reason: str
    alarmed: bool
    alarm_reason: str
    disk_full: bool  # others are told, who may have a copy and room
    isolation: str
    disabled: str
    suspended: bool
    stall: str
    stalled: dict[int, Connection]
    unread: dict[int, Connection]
    older_peers: dict[str, None]
    congested: dict[Queue, None]
    _seed: bytes
    _names: i64
    _next_connection: i64
    _reply_queue: Queue | None
    _nobody: Identity
    _nowhere: VHost

    def __init__(
        self,
        settings: Settings,
        log: GroupLog,
        pager: Pager,
        authenticator: Authenticator,
        access_epoch: AccessEpoch,
        limits: Limits,
        observer: Observer,
        seed: bytes,
        now_ms: i64,
    ) -> None:
        """``seed``: at least 16 bytes that no other start of a broker has had."""
        self.settings = settings
        self.incarnation = hashlib.sha256(seed).hexdigest()[:12]
        self.turn = Turn()
        self.turn.now_ms = now_ms
        self.log = log
        self.logs = {int(log.group): log}
        self.published = self._names = self._next_connection = 0
        self.confirm_times = ConfirmTimes()
        self.levels_told = [0, 0, 0, 0]
        self.takeover_times = Times()
        self.pager = pager
        self.damage = Damage(self)
        self.faults = FaultLog()
        self.showing = Showing(pager.journal)
        self.ghosts = Ghosts(self)
        self.cluster = Cluster()
        self.across = Across()
        self.authenticator = authenticator
        self.access_epoch = access_epoch
        self.revocation = Revocation(self.turn)
        self.limits = limits
        limits.broker = self
        self.contents = UnfinishedContents(limits)
        self.observer = observer
        self.replies = Replies()
        self.timers = Timers(self)
        self.delayed = Delayed(self)
        self.leases = Leases(self)
        self.streams = Streams(self)
        self.connections = {}
        self.carriers = {}
        self.errands = {}
        self.shared = {}
        self.internal = {}
        self.unconfirmed = []
        self.commits = []
        self.dead_letters = []
        self.waiting = Waiting(self)
        self.may_deliver = True
        self.blocking = self.alarmed = self.suspended = self.disk_full = False
        self.block_reason = self.alarm_reason = ""
        self.isolation = self.stall = self.disabled = ""
        self.stalled = {}
        self.unread = {}
        self.older_peers = {}
        self.congested = {}
        self._seed = seed
        self._reply_queue = None
        # What a connection has before it has logged in and opened a vhost.
        self._nobody = Identity("", "", (), access_epoch)
        self._nowhere = VHost("", self.make_queue)
        self.state = State(self.make_queue)

    # ---- the state ------------------------------------------------------------------------------

    def make_queue(self, definition: QueueDefinition) -> Destination:
        queue = Queue(self, definition)
        if not definition.is_private():
            self.shared[definition.id] = queue
            self.cluster.queue_made(queue)
            self.streams.made(queue)
        else:
            self.cluster.private_declared(definition.vhost, definition.name)
        return queue

    def apply(self, command: Command) -> Outcome:
        """Apply a committed command and react to what it changed."""
        self.turn.work += COMMAND_WORK
        outcome = self.state.apply(command)
        for fact in outcome.facts:
            self._react(fact)
        return outcome

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
        elif isinstance(fact, BindingRemoved):
            if _is_private(fact.binding.destination):
                self.cluster.private_unbound(fact.vhost, fact.binding)
        elif isinstance(fact, ExchangeUnused):
            self.cluster.exchange_unused(fact.exchange)
        elif isinstance(fact, AccessChanged):
            self.access_epoch.advance()
            self.revocation.changed(fact.user, fact.deleted)
        elif isinstance(fact, VhostDeleted):
            self._close_where_vhost(fact.name)

    def queue_deleted(self, queue: Queue) -> None:
        queue.deleted = True
        self.shared.pop(queue.definition.id, None)
        if queue.definition.is_private():
            self.cluster.private_deleted(queue.vhost, queue.name)
            for binding in queue.incoming:
                # It goes with its vhost; else its bindings were told one by one.
                self.cluster.private_unbound(queue.vhost, binding)
        queue.ready_bytes = 0
        queue.pacing.judge(self.turn.now_ms)
        self.timers.unwatch(queue)
        queue.orphans = queue.consumers()
        for consumer in queue.orphans:
            consumer.channel.consumers.pop(consumer.tag, None)
            if consumer.proxy is not None:
                consumer.proxy.detach(consumer)
        queue.levels = []
        queue.consumer_count = 0
        queue.drop_ready()
        if queue.recorded and queue.is_kept_here():
            queue.log.drop(queue.id)
        self.streams.deleted(queue)
        self.leases.deleted(queue)

    def announce(self, outcome: Outcome) -> None:
        """Tell clients what a command took from them, after whoever proposed it has its answer.

        Clients that delete a queue they consume from rely on delete-ok coming first.
        """
        for fact in outcome.facts:
            if isinstance(fact, QueueDeleted) and isinstance(fact.destination, Queue):
                orphans = fact.destination.orphans
                fact.destination.orphans = []
                for consumer in orphans:
                    channel = consumer.channel
                    if channel.connection.cancel_notify and not channel.closing:
                        channel.send(BasicCancel(consumer.tag, True))

    def _close_where_vhost(self, vhost: str) -> None:
        for connection in list(self.connections.values()):
            if connection.stage == RUNNING and connection.router.vhost == vhost:
                connection.force_close(f"vhost '{vhost}' is down: it was deleted")

    def delete_queue(self, queue: Queue) -> None:
        """Delete a queue because it is unused."""
        command = DeleteQueue(queue.vhost, queue.name, queue.definition.id)
        if queue.definition.exclusive_owner:
            self.announce(self.apply(command))
        else:
            self.cluster.propose(command, None)

    # ---- connections ----------------------------------------------------------------------------

    def connect(self, name: str, peer: Peer) -> Connection:
        """A client has connected."""
        self._next_connection += 1
        connection = Connection(
            self, self._next_connection, name, peer, Handshake(self), self._nowhere, self._nobody
        )
        self.connections[connection.id] = connection
        return connection

    def connection_opened(self, connection: Connection) -> None:
        self.observer.connection_opened(connection)
        self.cluster.opened(connection)

    def connection_failed(self, connection: Connection, error: AmqpError) -> None:
        self.observer.connection_failed(connection, error)

    def channel_failed(self, channel: Channel, error: AmqpError) -> None:
        self.observer.channel_failed(channel, error)

    def login_refused(self, connection: Connection, reason: str) -> None:
        self.observer.login_refused(connection, reason)

    def connection_gone(self, connection: Connection) -> None:
        """A connection's socket is gone."""
        self.carriers.pop(connection.id, None)
        if self.connections.pop(connection.id, None) is None:
            return
        self.revocation.forget(connection)
        self.ghosts.closed(connection)
        self.stalled.pop(connection.id, None)
        self.unread.pop(connection.id, None)
        self.observer.connection_closed(connection)

    def drop_private_queues(self, connection: Connection) -> None:
        """Private queues are gone before their owner is told that its connection is."""
        for name in list(connection.private_queues):
            queue = connection.router.queues.get(name)
            if isinstance(queue, Queue) and queue.definition.exclusive_owner == connection.owner:
                self.delete_queue(queue)
        connection.private_queues = {}

    def carry(self, name: str) -> Connection:
        """A connection that holds the channels of another broker's applications.

        It never speaks AMQP itself: a link feeds its channels and takes what they deliver.
        """
        self._next_connection += 1
        connection = Connection(
            self,
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
        """The connections of this broker's applications, those that keep what clients held that may
        come back, and what people have the broker do in their place."""
        return [*self.connections.values(), *self.ghosts.carriers(), *self.errands.values()]

    def running_connections(self) -> list[Connection]:
        return [each for each in self.connections.values() if each.stage == RUNNING]

    def report_bug(self, error: BaseException, where: str, kind: str = FAULT_CONNECTION) -> None:
        """Something was raised that nobody expected; what it was about has been contained."""
        self.faults.note(kind, error, where, self.turn.now_ms)
        self.observer.bug(error, where)

    def disable(self, error: BaseException, where: str) -> None:
        """A fault may have kept a record out of the log that others rely on: confirm, deliver and
        admit nothing any more until the broker is started again."""
        self.report_bug(error, where, FAULT_TURN)
        if not self.disabled:
            self.disabled = (
                f"this broker serves nobody until it is started again: a fault at {where}; its log"
                " has the details"
            )
            self.isolate(self.disabled)

    def make_name(self, prefix: str) -> str:
        """A name that nobody else has and nobody can guess."""
        self._names += 1
        digest = hashlib.sha256(self._seed + str(self._names).encode()).digest()[:16]
        name = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        return prefix + name + self.cluster.name_suffix()

    def reply_queue(self, vhost: str) -> Queue:
        """The queue that reply consumers are said to consume; it never holds anything."""
        if self._reply_queue is None:
            arguments = QueueArguments()
            definition = QueueDefinition(
                0, vhost, REPLY_QUEUE, False, False, "", {}, arguments, arguments
            )
            self._reply_queue = Queue(self, definition)
        return self._reply_queue

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone; an auto-delete queue may go with its last one."""
        queue = consumer.queue
        if queue.deleted:
            return
        queue.remove_consumer(consumer)
        if consumer.reader is not None:
            consumer.reader.detach()
        if consumer.proxy is not None:
            consumer.proxy.detach(consumer)
        elif queue.had_consumer:
            self.delete_if_unused(queue)

    def delete_if_unused(self, queue: Queue) -> None:
        """Delete an auto-delete queue that nobody consumes, or is expected to."""
        if queue.definition.auto_delete and queue.consumer_count == 0 and queue.expected == 0:
            self.delete_queue(queue)

    # ---- blocking publishers --------------------------------------------------------------------

    def block(self, reason: str) -> None:
        """Hold publishers up, for a reason that they are told if the cause is an alarm."""
        self.alarmed = True
        self.alarm_reason = reason
        judge_blocking(self)

    def unblock(self) -> None:
        self.alarmed = False
        judge_blocking(self)

    def isolate(self, reason: str) -> None:
        """Deliver, confirm and admit nothing, for this reason, until it is empty (R9)."""
        if self.disabled:
            reason = self.disabled
        self.may_deliver = reason == ""
        self.isolation = reason
        judge_blocking(self)
        if self.may_deliver:
            for queue in self.shared.values():
                if queue.ready > 0 and not queue.marked:
                    queue.touch()
            self.committed()
            self.waiting.try_again()
            self.cluster.submitted()

    def hold_back(self, reason: str) -> None:
        """Have publishers wait for copies of what they publish, until the reason is empty (G10)."""
        self.stall = reason
        judge_blocking(self)

    # ---- dead letters and transactions ----------------------------------------------------------

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Note a dead letter; it is sent before the turn ends."""
        self.dead_letters.append(DeadLetter(queue, message, reason))

    def route_to(self, exchange: str, key: str) -> Route:
        """A route for a message that the broker itself publishes."""
        exchange_bytes = exchange.encode("utf-8", "surrogateescape")
        key_bytes = key.encode("utf-8", "surrogateescape")
        tail = bytes([len(exchange_bytes)]) + exchange_bytes + bytes([len(key_bytes)]) + key_bytes
        return self.pager.route(tail)

    def publish_internally(self, message: Message, queues: list[Queue]) -> None:
        """Publish on behalf of the broker itself."""
        place(self, Publication(message, queues, [], False, Steering()), None)

    # ---- turns ----------------------------------------------------------------------------------

    def tick(self, now_ms: i64) -> None:
        """Time has passed. A fault in one part must not keep the others from their turn."""
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
            self.showing.tick(now_ms)
        elif part == 2:
            self.ghosts.tick(now_ms)
        elif part == 3:
            for queue in list(self.congested):
                queue.pacing.judge(now_ms)
        elif part == 4:
            self.streams.tick(now_ms)
        elif part == 5:
            if len(self.commits) > 0:
                self._answer_commits()
        else:
            self.waiting.try_again()

    def end_turn(self) -> None:
        """Dispatch, settle and confirm everything that this wake-up has touched. Whatever is
        raised, the rest is done."""
        turn = self.turn
        try:
            self._prepare_end()
        except Exception as error:
            self.report_bug(error, "the beginning of the end of a turn", FAULT_TURN)
        while len(turn.queues) > 0 or len(self.dead_letters) > 0:
            queues = turn.queues
            turn.queues = []
            for queue in queues:
                self._dispatch(queue)
            if len(self.dead_letters) > 0:
                self._bury()
        self.write_settled()
        if len(self.showing.queues) > 0:
            try:
                self.showing.write(turn.now_ms)
            except Exception as failure:
                self.report_bug(failure, "the note of what was delivered", FAULT_TURN)
        if len(turn.channels) > 0:
            channels = turn.channels
            turn.channels = []
            for channel in channels:
                self._confirm(channel)
        turn.close()

    def _prepare_end(self) -> None:
        turn = self.turn
        if len(turn.users) > 0:
            self.revocation.revoke()
        if turn.has_more():
            self._go_on()
        self.leases.pump()

    def _go_on(self) -> None:
        """Take up what the last turn had no time for: each gets on, one after the other."""
        turn = self.turn
        turn.keep_half()
        chores = turn.chores
        turn.chores = []
        for at, chore in enumerate(chores):
            if turn.is_full():
                # Those that had nothing of this turn come first in the next.
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

    def _dispatch(self, queue: Queue) -> None:
        """Dispatch a queue; one that fails must not hold up the others."""
        self.turn.doing = queue
        try:
            queue.dispatch(self.turn.now_ms)
        except Exception as error:
            self.report_bug(error, f"queue '{queue.name}' in vhost '{queue.vhost}'", FAULT_QUEUE)

    def _bury(self) -> None:
        """Send dead letters on. A fault may leave the transaction that they are in open, and with
        it everything that is recorded from here on."""
        try:
            bury_apart(self)
        except Exception as error:
            self.dead_letters = []
            self.disable(error, "dead letters")

    def _confirm(self, channel: Channel) -> None:
        try:
            channel.flush_confirms()
        except Exception as error:
            self.connection_fault(channel.connection, error)

    def connection_fault(self, connection: Connection, error: BaseException) -> None:
        """A fault that is about one connection ends it: its client mustn't wait for ever."""
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
        self.ghosts.durable = position
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
        """A log has come further: confirm and answer what waited for that."""
        waiting = self.unconfirmed
        self.unconfirmed = []
        for channel in waiting:
            confirms = channel.confirms
            if confirms is not None:
                confirms.waiting = False
                self._confirm(channel)
        if len(self.commits) > 0:
            self._answer_commits()
        if len(self.ghosts.syncs) > 0:
            self.ghosts.answer_syncs()
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
        """More of a log is visible: go on with the queues that wait for that."""
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
