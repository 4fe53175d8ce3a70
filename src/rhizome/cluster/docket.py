"""Docket: transactions over several groups that are not settled, as one group sees them (L4).

A transaction is prepared in each group but the first, which decides. What is prepared is recorded,
and what it settles is set aside, so that nobody else gets it. When all groups have that committed
the edge asks the first one to decide: in one record it does its own part and notes the decision.
The others then do theirs, or give back what was set aside.

A group in doubt asks the first one. If there is no decision that one decides against it before it
answers, and refuses what the edge may still ask for. A decision stays until all have settled it.
Whoever is home next finds all of this in its copy and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rhizome.broker.claiming import claim
from rhizome.broker.confirms import Confirms
from rhizome.broker.delayed import DELAYED_QUEUE, delay_of
from rhizome.broker.letters import bury
from rhizome.broker.message import Message
from rhizome.broker.places import Key, Place, places_of, take_held
from rhizome.broker.port import Forward, GroupLog
from rhizome.broker.publishing import enqueue
from rhizome.broker.queue import Queue
from rhizome.broker.together import begin_all, commit_all
from rhizome.broker.unacked import ACK, REJECT
from rhizome.broker.worker import Worker, make_internal
from rhizome.cluster.cases import (
    DECIDE,
    DECISION,
    PREPARED,
    Case,
    TxId,
    case_of,
    is_sole,
    kind_of,
    message_of,
)

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel import Channel
    from rhizome.cluster.txs import Txs

DOCKET_IDS: Final = 0xFFFE0000
"""The docket of a group has this id and the group's number."""

EDGE: Final = 0
"""Stands for the edge among the groups that have to settle."""

TELL_MS: Final = 250
"""So often is a decision told again to whoever has not settled it: a group that had no home when it
was told has one again."""


Aside = tuple[Queue, Message, int]
"""A message that was set aside, its queue, and how it is to be settled."""


class TxRules:
    """What can be broken to show what it is for. Only tests do that."""

    def __init__(self) -> None:
        self.prepared_first = True
        """L4: all is prepared before it is decided; else a part is lost with the edge."""
        self.on_disk = True
        """L4: cases outlast a power cut; else what was prepared is lost, and the rest is done."""
        self.taken_over = True
        """L4: whoever is home next goes on with what the docket has; else a part is lost with its
        home, or a decision is made twice."""
        self.committed_first = True
        """L4: nobody is told what was decided before that is committed; else it may be decided
        otherwise at the next home."""
        self.abort_noted = True
        """L4: who is asked and has no decision notes one before it answers; else the edge may get
        another."""
        self.decided_once = True
        """L4: what was decided against stays so, whatever the edge asks for later."""
        self.kept_until_settled = True
        """L4: a decision stays until all have settled; else who asks late is told otherwise."""
        self.edge_last = True
        """L4: the edge is told when all the others have settled; else what its client commits next
        may overtake this."""
        self.asks = True
        """L4: a group in doubt asks, and never decides alone."""


@dataclass
class Prepared:
    """A transaction in doubt. ``aside`` is what it settles, taken from whoever held it."""

    message: Message
    case: Case
    since_ms: int
    aside: list[Aside]
    asked_ms: int = 0


@dataclass
class Decided:
    """A decision, and who has yet to settle it."""

    message: Message
    case: Case
    waits_for: list[int]
    told_ms: int = 0


class Docket(Worker):
    """The docket of one group; what is here is only of use while this broker is its home.

    Invariant: each message taken from the queue is in ``prepared`` or ``decided``.
    """

    def __init__(self, queue: Queue, txs: Txs) -> None:
        super().__init__()
        self.queue = queue
        self.group = int(queue.definition.group)
        self.txs = txs
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

    def take(self, case: Case) -> dict[GroupLog, int]:
        """Take a case of a client of this broker: the index in each log that has to be safe."""
        if is_sole(case):
            pager = self.queue.broker.pager
            return self._do(case_of(message_of(case, pager), pager), False)
        return {self.queue.log: self.put(case)}

    def at_once(self, message: Message, confirms: Confirms) -> bool:
        """A transaction of this group alone is one record, with the number of the edge that sent
        it: all or nothing, on every copy. That edge brings it to the next home if need be."""
        if kind_of(message) != DECIDE:
            return False
        case = case_of(message, self.queue.broker.pager)
        if not is_sole(case):
            return False
        for log, index in self._do(case, True).items():
            confirms.need(log, index, True)
        return True

    def _do(self, case: Case, derived: bool) -> dict[GroupLog, int]:
        aside = self._aside(case)
        self._begin(sum(len(message.content) for message, _ in case.publishes), derived)
        self.queue.log.taken()
        self._carry_out(case, aside)
        return self._commit()

    def put(self, case: Case) -> int:
        """Record a case here; answers its index."""
        queue = self.queue
        message = message_of(case, queue.broker.pager)
        message.arrived_ms = queue.broker.turn.now_ms
        message.persistent = self.txs.rules.on_disk
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
            if decided.case.kind == DECIDE:
                self._decide(tx, decided.message, decided.case)
        self._tell()

    def _next(self) -> bool:
        queue = self.queue
        message = queue.next_message(-1) if queue.ready > 0 else None
        if message is None:
            return False
        queue.unacked += 1
        case = case_of(message, queue.broker.pager)
        if self._coming and not self.txs.rules.taken_over:
            queue.ack(message)
        elif case.kind == PREPARED:
            self._prepare(message, case)
        else:
            self._take_decision(message, case)
        return True

    # ---- taking part ----------------------------------------------------------------------------

    def _prepare(self, message: Message, case: Case) -> None:
        since_ms = self.queue.broker.turn.now_ms
        self.prepared[case.tx] = Prepared(message, case, since_ms, self._aside(case))

    def _aside(self, case: Case) -> list[Aside]:
        """Set aside what a case settles."""
        aside: list[Aside] = []
        wanted = self._wanted(case)
        places: dict[Key, Place] = {}
        if not self._coming:
            # Else all is ready: what applications hold is only what the last home has shown them.
            places = places_of(self._holders(case.tx[0]), wanted)
        missed: list[tuple[Queue, int, int]] = []
        for settle in case.settles:
            queue = self.queue.broker.shared.get(settle.queue_id)
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

    def _wanted(self, case: Case) -> dict[Key, None]:
        return {(each.queue_id, index): None for each in case.settles for index in each.indexes}

    def _taken(self, queue: Queue, index: int, places: dict[Key, Place]) -> Message | None:
        """A message, from who holds it, from what is kept for somebody, or out of the queue; it
        goes on counting as unacked."""
        place = places.get((int(queue.id), index))
        if place is not None:
            message = take_held(place[0], place[1])
            place[0].wake_if_global()
            return message
        tenure = self.txs.node.tenures.tenures.get(self.group)
        if tenure is not None and not self._coming:
            for parked in tenure.kept():
                message = parked.take(queue.id, index)
                if message is not None:
                    return message
        return claim(queue, index)

    def _from_others(
        self, missed: list[tuple[Queue, int, int]], wanted: dict[Key, None]
    ) -> list[Aside]:
        """The edge was away for so long that others were shown what its client settles. Settled it
        is: they have it, but when they settle it that is void."""
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
        """The channels of the applications of an edge, or, if it is 0, of all."""
        found: list[Channel] = []
        tenure = self.txs.node.tenures.tenures.get(self.group)
        if tenure is not None:
            for attached in tenure.attachments.values():
                if edge in (0, attached.origin):
                    found.extend(attached.sessions.values())
        if edge == 0 or self.txs.is_mine(edge):
            for connection in self.queue.broker.applications():
                found.extend(connection.channels.values())
        return found

    def outcome(self, tx: TxId, committed: bool, decider: int) -> None:
        """The first group has decided: settle that here. Answers when it is safe."""
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
            self._carry_out(prepared.case, prepared.aside)
        else:
            for queue, message, _ in prepared.aside:
                queue.requeue(message)
        self.queue.ack(prepared.message)
        self._commit()
        return int(self.queue.log.next_index) - 1

    def _begin(self, bytes_expected: int, derived: bool) -> None:
        """Begin one record of what a case asks for. If it is ``derived`` and this home is replaced
        before that is committed, the next one has the case, or gets it from its edge, and does it:
        nothing is carried over, or it were done twice (`unsure.py`)."""
        # What applications have settled in this turn is not part of it.
        self.queue.broker.write_settled()
        begin_all(self.queue.broker, bytes_expected)
        self.queue.log.derived = derived

    def _commit(self) -> dict[GroupLog, int]:
        bury(self.queue.broker)
        needed = commit_all(self.queue.broker)
        self.queue.log.derived = False
        return needed

    def _carry_out(self, case: Case, aside: list[Aside]) -> None:
        broker = self.queue.broker
        for message, ids in case.publishes:
            message.arrived_ms = broker.turn.now_ms
            found = [broker.shared.get(each) for each in ids]
            queues = [each for each in found if each is not None and each.away is None]
            if len(queues) == 1 and queues[0].name == DELAYED_QUEUE and message.route.exchange:
                broker.delayed.hold(queues[0], message, delay_of(message), None)
            else:
                enqueue(broker, message, queues, None)
        for queue, message, kind in aside:
            if kind == ACK:
                queue.ack(message)
            elif kind == REJECT:
                queue.reject(message)
            else:
                queue.requeue(message)

    # ---- deciding -------------------------------------------------------------------------------

    def _take_decision(self, message: Message, case: Case) -> None:
        known = self.decided.get(case.tx)
        if known is not None:
            if self.txs.rules.decided_once:
                # It was decided against when somebody asked; the edge is told so.
                self.queue.ack(message)
                return
            self.queue.ack(known.message)
        waits_for = [EDGE, *[each for each in case.groups if each != self.group]]
        self.decided[case.tx] = Decided(message, case, waits_for)

    def _decide(self, tx: TxId, message: Message, case: Case) -> None:
        """Do this group's part and note the decision: one record."""
        aside = self._aside(case)
        self._begin(len(message.content), True)
        self._carry_out(case, aside)
        self.queue.ack(message)
        del self.decided[tx]
        self._note(tx, case, True)
        self._commit()

    def _note(self, tx: TxId, case: Case, committed: bool) -> None:
        noted = Case(DECISION, tx, self.group, case.groups, case.made_ms, committed)
        self.put(noted)
        while self._next():
            pass

    def asked(self, case: Case) -> None:
        """A group that takes part is in doubt."""
        if not self.is_active():
            return
        while self._next():
            pass
        if case.tx not in self.decided:
            if not self.txs.rules.abort_noted:
                for party in [each for each in case.groups if each != self.group]:
                    self.txs.tell(case, party, False)
                return
            self.queue.log.derived = True
            self._note(case.tx, case, False)
            self.queue.log.derived = False
        decided = self.decided.get(case.tx)
        if decided is not None:
            decided.told_ms = 0
        if not self.queue.marked:
            self.queue.touch()

    def settled(self, tx: TxId, by: int) -> None:
        """One of those that take part has settled a transaction, and that is safe."""
        decided = self.decided.get(tx)
        if decided is None:
            return
        if by in decided.waits_for:
            decided.waits_for.remove(by)
        if decided.waits_for == [EDGE] and decided.told_ms:
            self.txs.tell(decided.case, EDGE, decided.case.committed)
        elif not decided.waits_for:
            self._forget(decided)

    def _forget(self, decided: Decided) -> None:
        if self.decided.pop(decided.case.tx, None) is not None:
            self.queue.ack(decided.message)

    # ---- telling --------------------------------------------------------------------------------

    def _is_safe(self, index: int) -> bool:
        log = self.queue.log
        if not self.txs.rules.committed_first:
            return True
        return index <= log.committed_memory and index <= log.committed_disk

    def _tell(self) -> None:
        """Tell what is committed: decisions to those who wait, and what is settled here."""
        now_ms = self.txs.node.now_ms
        for decided in list(self.decided.values()):
            if decided.case.kind == DECISION and self._is_safe(int(decided.message.index)):
                if decided.told_ms == 0:
                    decided.told_ms = max(now_ms, 1)
                    self._tell_all(decided)
                    if not self.txs.rules.kept_until_settled:
                        self._forget(decided)
        for tx, (index, decider) in list(self.settling.items()):
            if self._is_safe(index):
                del self.settling[tx]
                self.txs.report(tx, self.group, decider)

    def _tell_all(self, decided: Decided) -> None:
        """Tell all who have not settled it; the edge when the others have, however long that takes:
        its client finds the transaction done, and nothing that it does next overtakes it."""
        case = decided.case
        for party in list(decided.waits_for):
            if party != EDGE or decided.waits_for == [EDGE] or not self.txs.rules.edge_last:
                self.txs.tell(case, party, case.committed)

    def tick(self, now_ms: int, doubt_ms: int) -> None:
        """Ask again, and tell again, what may have been lost on its way."""
        if not self.is_active():
            return
        for prepared in list(self.prepared.values()):
            waited_ms = self.queue.broker.turn.now_ms - prepared.since_ms
            gone = not self.txs.is_current(prepared.case.tx[0])
            if (gone or waited_ms >= doubt_ms) and now_ms - prepared.asked_ms >= doubt_ms // 5:
                prepared.asked_ms = now_ms
                if self.txs.rules.asks:
                    self.txs.ask(prepared.case)
                else:
                    self.outcome(prepared.case.tx, False, prepared.case.decider)
        for decided in list(self.decided.values()):
            if decided.told_ms and now_ms - decided.told_ms >= TELL_MS:
                decided.told_ms = now_ms
                if EDGE in decided.waits_for and not self.txs.is_current(decided.case.tx[0]):
                    self.settled(decided.case.tx, EDGE)
                else:
                    self._tell_all(decided)
        self._tell()


def docket_id(group: int) -> int:
    return DOCKET_IDS | group


def open_docket(broker: Broker, group: int, txs: Txs) -> None:
    """Give a group its docket, wherever its home is."""
    queue_id = docket_id(group)
    if queue_id not in broker.internal:
        queue = make_internal(broker, queue_id, f"amq.docket.{group}", group)
        queue.worker = Docket(queue, txs)


def docket_of(broker: Broker, group: int) -> Docket | None:
    """The docket of a group."""
    queue = broker.internal.get(docket_id(group))
    worker = None if queue is None else queue.worker
    return worker if isinstance(worker, Docket) else None
