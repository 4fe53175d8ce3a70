"""Prepared transactions: unsettled transactions over several groups, as one group sees them (L4).

Every group but the first prepares its part; the first group decides. Preparing records the part and
sets aside the messages that it settles, so that nobody else gets them. When all groups have
committed that, the edge asks the first group to decide. In one record the first group does its own
part and notes the decision. The others then do their parts, or give back what was set aside.

A group in doubt asks the first group. If that has no decision yet, it decides to abort before it
answers, and refuses a later request of the edge to commit. A decision is kept until all have
settled it. The next home of a group finds all of this in its copy and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rhizome.broker.channel.unacked import ACK, REJECT
from rhizome.broker.channel.unacked_lookup import Key, Place, places_of, take_held
from rhizome.broker.dead_letters.dead_letter_routing import bury
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message
from rhizome.broker.publishing.delayed_messages import DELAYED_QUEUE
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publish_path import enqueue
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.queue.internal_queues import make_internal_queue
from rhizome.broker.queue.queue import Queue, claim
from rhizome.broker.queue.queue_host import InternalQueueWorker
from rhizome.cluster.transactions.transaction_part import (
    DECIDE,
    DECISION,
    PREPARED,
    TransactionPart,
    TxId,
    is_sole,
    kind_of,
    message_of,
    tx_part_of,
)

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.cluster.transactions.transaction_transport import TransactionTransport

PREPARED_QUEUE_IDS: Final = 0xFFFE0000
"""The id of a group's queue of prepared transactions is this plus the group's number."""

EDGE: Final = 0
"""Stands for the edge among the parties that have to settle."""

TELL_MS: Final = 250
"""How often a decision is sent again to the parties that have not settled it: a group that had no
home the last time may have one now."""


Aside = tuple[Queue, Message, int]
"""A queue, a message of it that was set aside, and how the message is to be settled."""


class TxRules:
    """Rules of transactions that tests, and only tests, can break to show what they are for."""

    def __init__(self) -> None:
        self.prepared_first = True
        """L4: all parts are prepared before the decision; else a part is lost with the edge."""
        self.on_disk = True
        """L4: transaction parts outlast a power cut; else what was prepared is lost, and the rest
        is done."""
        self.taken_over = True
        """L4: the next home goes on with the prepared transactions; else a part is lost with its
        home, or a decision is made twice."""
        self.committed_first = True
        """L4: a decision is told to nobody before it is committed; else the next home may decide
        otherwise."""
        self.abort_noted = True
        """L4: a group that is asked and has no decision notes an abort before it answers; else the
        edge may get another decision."""
        self.decided_once = True
        """L4: an aborted transaction stays aborted, whatever the edge asks for later."""
        self.kept_until_settled = True
        """L4: a decision stays until all have settled; else a party that asks late is told
        otherwise."""
        self.edge_last = True
        """L4: the edge is told when all the others have settled; else what its client commits next
        may overtake this transaction."""
        self.asks = True
        """L4: a group in doubt asks, and never decides alone."""


@dataclass
class Prepared:
    """A transaction in doubt. ``aside`` is what it settles, taken from whoever held it."""

    message: Message
    tx_part: TransactionPart
    since_ms: int
    aside: list[Aside]
    asked_ms: int = 0


@dataclass
class Decided:
    """A decision, and the parties that have yet to settle it."""

    message: Message
    tx_part: TransactionPart
    waits_for: list[int]
    told_ms: int = 0


class PreparedTransactions(InternalQueueWorker):
    """The prepared transactions of one group; of use only while this broker is the group's home.

    Invariant: each message taken from the queue is in ``prepared`` or ``decided``.
    """

    def __init__(self, broker: Broker, queue: Queue, tx_transport: TransactionTransport) -> None:
        super().__init__()
        self.broker = broker
        self.queue = queue
        self.group = int(queue.definition.group)
        self.tx_transport = tx_transport
        self.prepared: dict[TxId, Prepared] = {}
        self.decided: dict[TxId, Decided] = {}
        self.settling: dict[TxId, tuple[int, int]] = {}
        """Transactions that are done here: the index that has to be committed, and who decided."""
        self._coming = False

    # ---- a queue of the group -------------------------------------------------------------------

    def held(self) -> list[Message]:
        found = [each.message for each in self.prepared.values()]
        found.extend(each.message for each in self.decided.values())
        return sorted(found, key=lambda each: each.index)

    def waits(self) -> bool:
        return bool(self.prepared or self.decided or self.settling)

    def reserved(self) -> list[tuple[Queue, Message]]:
        return [
            (queue, message)
            for prepared in self.prepared.values()
            for queue, message, _ in prepared.aside
        ]

    def let_go(self) -> None:
        self.prepared = {}
        self.decided = {}
        self.settling = {}

    def wait_elsewhere(
        self, log: GroupLog, forward: Forward, indexes: list[int], numbers: list[int]
    ) -> None:
        """Nothing here waits for another log."""

    def is_active(self) -> bool:
        queue = self.queue
        return queue.away is None and not queue.log.still and queue.broker.may_deliver

    def take(self, tx_part: TransactionPart) -> dict[GroupLog, int]:
        """Take a transaction part of a client of this broker; returns the index in each log that
        has to be safe."""
        if is_sole(tx_part):
            pager = self.queue.broker.pager
            return self._do(tx_part_of(message_of(tx_part, pager), pager), False)
        return {self.queue.log: self.put(tx_part)}

    def at_once(self, message: Message, confirms: Confirms) -> bool:
        """Do a transaction of this group alone at once; False if the message is no such
        transaction.

        It is one record, with the number of the edge that sent it: all or nothing, on every copy.
        If the home is replaced, that edge brings it to the next one.
        """
        if kind_of(message) != DECIDE:
            return False
        tx_part = tx_part_of(message, self.queue.broker.pager)
        if not is_sole(tx_part):
            return False
        for log, index in self._do(tx_part, True).items():
            confirms.need(log, index, True)
        return True

    def _do(self, tx_part: TransactionPart, derived: bool) -> dict[GroupLog, int]:
        aside = self._aside(tx_part)
        self._begin(sum(len(message.content) for message, _ in tx_part.publishes), derived)
        self.queue.log.taken()
        self._carry_out(tx_part, aside)
        return self._commit()

    def put(self, tx_part: TransactionPart) -> int:
        """Record a transaction part here; returns its index."""
        queue = self.queue
        message = message_of(tx_part, queue.broker.pager)
        message.arrived_ms = queue.broker.turn.now_ms
        message.persistent = self.tx_transport.rules.on_disk
        queue.log.append(message, [queue.id], True)
        queue.push(message)
        return int(message.index)

    def restored(self) -> None:
        """The group has just come home: set aside what is in doubt, before anybody is served."""
        self._coming = True
        while self._next():
            pass
        self._coming = False

    def run(self) -> None:
        if not self.is_active():
            return
        while self._next():
            pass
        for tx, decided in list(self.decided.items()):
            if decided.tx_part.kind == DECIDE:
                self._decide(tx, decided.message, decided.tx_part)
        self._tell()

    def _next(self) -> bool:
        queue = self.queue
        message = queue.next_message(-1) if queue.ready > 0 else None
        if message is None:
            return False
        queue.unacked += 1
        tx_part = tx_part_of(message, queue.broker.pager)
        if self._coming and not self.tx_transport.rules.taken_over:
            queue.ack(message)
        elif tx_part.kind == PREPARED:
            self._prepare(message, tx_part)
        else:
            self._take_decision(message, tx_part)
        return True

    # ---- taking part ----------------------------------------------------------------------------

    def _prepare(self, message: Message, tx_part: TransactionPart) -> None:
        since_ms = self.queue.broker.turn.now_ms
        self.prepared[tx_part.tx] = Prepared(message, tx_part, since_ms, self._aside(tx_part))

    def _aside(self, tx_part: TransactionPart) -> list[Aside]:
        """Set aside the messages that a transaction part settles."""
        aside: list[Aside] = []
        wanted = self._wanted(tx_part)
        places: dict[Key, Place] = {}
        if not self._coming:
            # Otherwise everything is ready: applications hold only what the last home has shown
            # them.
            places = places_of(self._holders(tx_part.tx[0]), wanted)
        missed: list[tuple[Queue, int, int]] = []
        for settle in tx_part.settles:
            queue = self.broker.shared.get(settle.queue_id)
            if queue is None or queue.definition.group != self.group:
                continue
            for index in settle.indexes:
                message = self._taken(queue, index, places)
                if message is not None:
                    aside.append((queue, message, settle.kind))
                    del wanted[(settle.queue_id, index)]
                else:
                    missed.append((queue, index, settle.kind))
            if queue.ready > 0 and not queue.marked:
                queue.touch()
        if missed and not self._coming:
            aside.extend(self._from_others(missed, wanted))
        return aside

    def _wanted(self, tx_part: TransactionPart) -> dict[Key, None]:
        return {(each.queue_id, index): None for each in tx_part.settles for index in each.indexes}

    def _taken(self, queue: Queue, index: int, places: dict[Key, Place]) -> Message | None:
        """Take a message from its holder, from what is kept for somebody, or out of the queue; it
        goes on counting as unacked."""
        place = places.get((int(queue.id), index))
        if place is not None:
            message = take_held(place[0], place[1])
            place[0].wake_if_global()
            return message
        tenure = self.tx_transport.tenures.tenures.get(self.group)
        if tenure is not None and not self._coming:
            for detached in tenure.kept():
                message = detached.take(queue.id, index)
                if message is not None:
                    return message
        return claim(queue, index)

    def _from_others(
        self, missed: list[tuple[Queue, int, int]], wanted: dict[Key, None]
    ) -> list[Aside]:
        """Take messages that other applications hold by now, because the edge was away for too
        long.

        The transaction settles them. The others keep them, but their own settlement is void.
        """
        aside: list[Aside] = []
        places = places_of(self._holders(0), wanted)
        for queue, index, kind in missed:
            place = places.get((int(queue.id), index))
            if place is None:
                continue
            channel, tag = place
            message = take_held(channel, tag)
            if message is not None:
                aside.append((queue, message, kind))
                channel.forgive(tag)
                channel.wake_if_global()
        return aside

    def _holders(self, edge: int) -> list[Channel]:
        """The channels of an edge's applications; of all edges if ``edge`` is 0."""
        found: list[Channel] = []
        tenure = self.tx_transport.tenures.tenures.get(self.group)
        if tenure is not None:
            for attached in tenure.attachments.values():
                if edge in (0, attached.origin):
                    found.extend(attached.sessions.values())
        if edge == 0 or self.tx_transport.is_mine(edge):
            for connection in self.broker.applications():
                found.extend(connection.channels.values())
        return found

    def outcome(self, tx: TxId, committed: bool, decider: int) -> None:
        """The first group has decided: settle that here. The report goes out when it is safe."""
        if not self.is_active():
            return
        while self._next():
            pass
        prepared = self.prepared.pop(tx, None)
        if prepared is not None:
            self.settling[tx] = (self._settle(prepared, committed), decider)
        elif tx not in self.settling:
            self.settling[tx] = (int(self.queue.log.next_index) - 1, decider)
        self._tell()

    def _settle(self, prepared: Prepared, committed: bool) -> int:
        self._begin(len(prepared.message.content), True)
        if committed:
            self._carry_out(prepared.tx_part, prepared.aside)
        else:
            for queue, message, _ in prepared.aside:
                queue.requeue(message)
        self.queue.ack(prepared.message)
        self._commit()
        return int(self.queue.log.next_index) - 1

    def _begin(self, bytes_expected: int, derived: bool) -> None:
        """Begin one record for what a transaction part does.

        If it is ``derived`` and this home is replaced before the commit, the next home has the
        part, or gets it from its edge, and does it. So nothing is carried over, or it would be done
        twice (`uncommitted_local_work.py`).
        """
        # What applications have settled in this turn is not part of the record.
        self.broker.write_settled()
        begin_all(self.broker, bytes_expected)
        self.queue.log.derived = derived

    def _commit(self) -> dict[GroupLog, int]:
        bury(self.broker)
        needed = commit_all(self.broker)
        self.queue.log.derived = False
        return needed

    def _carry_out(self, tx_part: TransactionPart, aside: list[Aside]) -> None:
        broker = self.broker
        for message, ids in tx_part.publishes:
            message.arrived_ms = broker.turn.now_ms
            found = [broker.shared.get(each) for each in ids]
            queues = [each for each in found if each is not None and each.away is None]
            if len(queues) == 1 and queues[0].name == DELAYED_QUEUE and message.route.exchange:
                broker.delayed.hold(queues[0], message, None)
            else:
                enqueue(broker, message, queues, None)
        for queue, message, kind in aside:
            if kind == ACK:
                queue.ack(message)
            elif kind == REJECT:
                queue.reject(message)
            else:
                queue.requeue(message)

    # ---- deciding --------------------------------------------------------------------------------

    def _take_decision(self, message: Message, tx_part: TransactionPart) -> None:
        known = self.decided.get(tx_part.tx)
        if known is not None:
            if self.tx_transport.rules.decided_once:
                # It was aborted when somebody asked; the edge is told so.
                self.queue.ack(message)
                return
            self.queue.ack(known.message)
        waits_for = [EDGE, *[each for each in tx_part.groups if each != self.group]]
        self.decided[tx_part.tx] = Decided(message, tx_part, waits_for)

    def _decide(self, tx: TxId, message: Message, tx_part: TransactionPart) -> None:
        """Do this group's part and note the decision: one record."""
        aside = self._aside(tx_part)
        self._begin(len(message.content), True)
        self._carry_out(tx_part, aside)
        self.queue.ack(message)
        del self.decided[tx]
        self._note(tx, tx_part, True)
        self._commit()

    def _note(self, tx: TxId, tx_part: TransactionPart, committed: bool) -> None:
        noted = TransactionPart(
            DECISION, tx, self.group, tx_part.groups, tx_part.made_ms, committed
        )
        self.put(noted)
        while self._next():
            pass

    def asked(self, tx_part: TransactionPart) -> None:
        """A group that takes part is in doubt and asks for the decision."""
        if not self.is_active():
            return
        while self._next():
            pass
        if tx_part.tx not in self.decided:
            if not self.tx_transport.rules.abort_noted:
                for party in [each for each in tx_part.groups if each != self.group]:
                    self.tx_transport.tell(tx_part, party, False)
                return
            self.queue.log.derived = True
            self._note(tx_part.tx, tx_part, False)
            self.queue.log.derived = False
        decided = self.decided.get(tx_part.tx)
        if decided is not None:
            decided.told_ms = 0
        if not self.queue.marked:
            self.queue.touch()

    def settled(self, tx: TxId, by: int) -> None:
        """A party has settled a transaction, and that is safe."""
        decided = self.decided.get(tx)
        if decided is None:
            return
        if by in decided.waits_for:
            decided.waits_for.remove(by)
        if decided.waits_for == [EDGE] and decided.told_ms:
            self.tx_transport.tell(decided.tx_part, EDGE, decided.tx_part.committed)
        elif not decided.waits_for:
            self._forget(decided)

    def _forget(self, decided: Decided) -> None:
        if self.decided.pop(decided.tx_part.tx, None) is not None:
            self.queue.ack(decided.message)

    # ---- telling --------------------------------------------------------------------------------

    def _is_safe(self, index: int) -> bool:
        log = self.queue.log
        if not self.tx_transport.rules.committed_first:
            return True
        return index <= log.committed_memory and index <= log.committed_disk

    def _tell(self) -> None:
        """Tell what is committed: decisions to the parties that wait, and what is settled here."""
        now_ms = self.tx_transport.port.now_ms()
        for decided in list(self.decided.values()):
            if decided.tx_part.kind == DECISION and self._is_safe(int(decided.message.index)):
                if decided.told_ms == 0:
                    decided.told_ms = max(now_ms, 1)
                    self._tell_all(decided)
                    if not self.tx_transport.rules.kept_until_settled:
                        self._forget(decided)
        for tx, (index, decider) in list(self.settling.items()):
            if self._is_safe(index):
                del self.settling[tx]
                self.tx_transport.report(tx, self.group, decider)

    def _tell_all(self, decided: Decided) -> None:
        """Tell a decision to all parties that have not settled it.

        The edge is told after all the others have settled, however long that takes: its client
        finds the transaction done, and nothing that the client does next overtakes it.
        """
        tx_part = decided.tx_part
        for party in list(decided.waits_for):
            if (
                party != EDGE
                or decided.waits_for == [EDGE]
                or not self.tx_transport.rules.edge_last
            ):
                self.tx_transport.tell(tx_part, party, tx_part.committed)

    def tick(self, now_ms: int, doubt_ms: int) -> None:
        """Repeat the questions and decisions that may have been lost on their way."""
        if not self.is_active():
            return
        for prepared in list(self.prepared.values()):
            waited_ms = self.queue.broker.turn.now_ms - prepared.since_ms
            gone = not self.tx_transport.is_current(prepared.tx_part.tx[0])
            if (gone or waited_ms >= doubt_ms) and now_ms - prepared.asked_ms >= doubt_ms // 5:
                prepared.asked_ms = now_ms
                if self.tx_transport.rules.asks:
                    self.tx_transport.ask(prepared.tx_part)
                else:
                    self.outcome(prepared.tx_part.tx, False, prepared.tx_part.decider)
        for decided in list(self.decided.values()):
            if decided.told_ms and now_ms - decided.told_ms >= TELL_MS:
                decided.told_ms = now_ms
                if EDGE in decided.waits_for and not self.tx_transport.is_current(
                    decided.tx_part.tx[0]
                ):
                    self.settled(decided.tx_part.tx, EDGE)
                else:
                    self._tell_all(decided)
        self._tell()


def prepared_queue_id(group: int) -> int:
    return PREPARED_QUEUE_IDS | group


def open_prepared_transactions(
    broker: Broker, group: int, tx_transport: TransactionTransport
) -> None:
    """Give a group its queue of prepared transactions, wherever its home is."""
    queue_id = prepared_queue_id(group)
    if queue_id not in broker.internal:
        queue = make_internal_queue(broker, queue_id, f"amq.docket.{group}", group)
        queue.worker = PreparedTransactions(broker, queue, tx_transport)


def prepared_transactions_of(broker: Broker, group: int) -> PreparedTransactions | None:
    """The prepared transactions of a group."""
    queue = broker.internal.get(prepared_queue_id(group))
    worker = None if queue is None else queue.worker
    return worker if isinstance(worker, PreparedTransactions) else None
