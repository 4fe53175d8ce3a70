"""Transactions over several groups: the edge whose client commits, and what brokers tell each other
about them (L4).

The edge sends each group its part, as a case for the docket of that group, on the way of its
publishes: numbered, repeated, and known to be committed there. When all have it the first group
gets its own part with the wish to commit. What is decided the edge is told; then it answers its
client.

    TX_ASK       {edge, number, decider, groups}    a group in doubt asks the first one
    TX_OUTCOME   {edge, number, decider, party, committed}    the first group tells
    TX_SETTLED   {edge, number, decider, party}     that is safe there; party 0 is the edge

These may be lost; whoever waits for an answer sends again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rhizome.amqp.methods import TxCommitOk
from rhizome.amqp.values import encode_table
from rhizome.broker.delayed import DELAYED_QUEUE
from rhizome.broker.message import Message
from rhizome.broker.port import Across, Forward, GroupLog
from rhizome.broker.publishing import Publication
from rhizome.broker.streams.rules import is_stream
from rhizome.broker.targets import Target
from rhizome.broker.transactions import PendingCommit, Transaction, carry_out
from rhizome.cluster.asking import number_in
from rhizome.cluster.cases import DECIDE, PREPARED, Case, Settle, TxId, message_of
from rhizome.cluster.copies.frames import table_in
from rhizome.cluster.docket import DOCKET_IDS, EDGE, Docket, TxRules, docket_of
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.cluster.node import Node

TX_ASK: Final = 72
TX_OUTCOME: Final = 73
TX_SETTLED: Final = 74

DOUBT_MS: Final = 10_000
"""A group asks what was decided when it has waited for so long, or when the edge is gone."""


def is_about_txs(method: i64) -> bool:
    return TX_ASK <= method <= TX_SETTLED


class Txs(Across):
    """Invariant: ``open`` has the transactions of this broker's clients that are under way."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node
        self.rules = TxRules()
        self.open: dict[int, Committing] = {}
        self._last = 0

    # ---- the edge -------------------------------------------------------------------------------

    def commit(self, channel: Channel, transaction: Transaction) -> None:
        self._last += 1
        Committing(self, self._last, channel, transaction).prepare()

    def send(self, group: int, case: Case, commit: PendingCommit) -> None:
        """Have a case recorded in the docket of a group; the commit waits for that."""
        broker = self.node.broker
        docket = docket_of(broker, group)
        assert docket is not None
        queue = docket.queue
        if queue.away is None:
            index = docket.put(case)
            commit.here[queue.log] = max(commit.here.get(queue.log, 0), index)
            return
        way = queue.away.forward()
        target = Target(way, "", [])
        target.queue_ids.append(DOCKET_IDS | group)
        message = message_of(case, broker.pager)
        message.arrived_ms = broker.turn.now_ms
        message.persistent = self.rules.on_disk
        commit.elsewhere[way] = way.send(message, target, None, 0)

    # ---- what brokers tell each other -----------------------------------------------------------

    def is_current(self, edge: int) -> bool:
        return self.node.state.registry.is_current(f"{edge:012x}")

    def _is_mine(self, edge: int) -> bool:
        return edge == int(self.node.me.incarnation, 16)

    def ask(self, case: Case) -> None:
        """Ask the first group of a transaction what was decided."""
        docket = self._docket_here(case.decider)
        if docket is not None:
            docket.asked(case)
            return
        table = self._table(case.tx, case.decider)
        table["groups"] = list(case.groups)
        self._send_to_home(case.decider, TX_ASK, table)

    def tell(self, case: Case, party: int, committed: bool) -> None:
        """Tell one of those that wait what was decided."""
        table = self._table(case.tx, case.decider)
        table["party"] = party
        table["committed"] = committed
        if party == EDGE:
            if self._is_mine(case.tx[0]):
                self._told(case.tx, case.decider, committed)
            else:
                self._send_to_edge(case.tx[0], table)
            return
        docket = self._docket_here(party)
        if docket is not None:
            docket.outcome(case.tx, committed, case.decider)
        else:
            self._send_to_home(party, TX_OUTCOME, table)

    def report(self, tx: TxId, party: int, decider: int) -> None:
        """One of those that take part has settled a transaction."""
        docket = self._docket_here(decider)
        if docket is not None:
            docket.settled(tx, party)
            return
        table = self._table(tx, decider)
        table["party"] = party
        self._send_to_home(decider, TX_SETTLED, table)

    def frame(self, method: int, data: bytes, start: int, end: int) -> None:
        table = table_in(data, start, end)
        tx = (number_in(table, "edge"), number_in(table, "number"))
        decider, party = number_in(table, "decider"), number_in(table, "party")
        committed = table.get("committed") is True
        if method == TX_ASK:
            docket = self._docket_here(decider)
            if docket is not None:
                groups = _numbers(table.get("groups"))
                docket.asked(Case(PREPARED, tx, decider, groups, self.node.broker.turn.now_ms))
        elif method == TX_SETTLED:
            docket = self._docket_here(decider)
            if docket is not None:
                docket.settled(tx, party)
        elif party == EDGE:
            self._told(tx, decider, committed)
        else:
            docket = self._docket_here(party)
            if docket is not None:
                docket.outcome(tx, committed, decider)

    def _told(self, tx: TxId, decider: int, committed: bool) -> None:
        committing = self.open.get(tx[1])
        if committing is None:
            # It was told before, and its client has been answered.
            self.report(tx, EDGE, decider)
        elif committing.outcome is None:
            committing.outcome = committed
            self.node.broker.committed()

    def tick(self) -> None:
        for docket in self.dockets():
            docket.tick(self.node.now_ms, DOUBT_MS)

    def dockets(self) -> list[Docket]:
        """Those of groups that are at home here."""
        workers = [each.worker for each in self.node.broker.internal.values() if each.away is None]
        return [each for each in workers if isinstance(each, Docket)]

    def in_doubt(self) -> list[dict[str, object]]:
        """For people: what is not settled at homes here."""
        found: list[dict[str, object]] = []
        for docket in self.dockets():
            for prepared in docket.prepared.values():
                found.append(_told_of(docket.group, prepared.case, "prepared", []))
            for decided in docket.decided.values():
                what = "committed" if decided.case.committed else "aborted"
                found.append(_told_of(docket.group, decided.case, what, decided.waits_for))
        return found

    def _docket_here(self, group: int) -> Docket | None:
        docket = docket_of(self.node.broker, group)
        return None if docket is None or docket.queue.away is not None else docket

    def _table(self, tx: TxId, decider: int) -> dict[str, object]:
        return {"edge": tx[0], "number": tx[1], "decider": decider, "party": EDGE}

    def _send_to_home(self, group: int, method: int, table: Mapping[str, object]) -> None:
        known = self.node.state.groups.groups.get(group)
        link = None if known is None else self.node.links.link_to(known.home)
        if link is not None:
            link.send(method, encode_table(dict(table)))

    def _send_to_edge(self, edge: int, table: Mapping[str, object]) -> None:
        for link in self.node.links.open_links():
            if link.peer.incarnation == f"{edge:012x}":
                link.send(TX_OUTCOME, encode_table(dict(table)))


def _numbers(value: object) -> list[int]:
    return [each for each in value if isinstance(each, int)] if isinstance(value, list) else []


def _told_of(group: int, case: Case, what: str, waits_for: list[int]) -> dict[str, object]:
    return {
        "group": group,
        "transaction": f"{case.tx[0]:012x}.{case.tx[1]}",
        "state": what,
        "decider": case.decider,
        "groups": list(case.groups),
        "since_ms": case.made_ms,
        "waits_for": ["edge" if each == EDGE else f"group {each}" for each in waits_for],
    }


class Committing(PendingCommit):
    """A transaction of a client here, first while it is prepared, then while it is decided.

    Invariant: ``parts`` has what each group does; ``rest`` what private queues and streams get once
    it is decided.
    """

    def __init__(self, txs: Txs, number: int, channel: Channel, transaction: Transaction) -> None:
        here: dict[GroupLog, int] = {}
        elsewhere: dict[Forward, int] = {}
        super().__init__(here, elsewhere, channel, TxCommitOk())
        self.txs = txs
        self.number = number
        self.tx = (int(txs.node.me.incarnation, 16), number)
        self.transaction = transaction
        self.parts: dict[int, Case] = {}
        self.rest = Transaction()
        self.deciding = False
        self.outcome: bool | None = None
        self._split()
        self.decider = self._choose()
        for case in self.parts.values():
            case.decider = self.decider
            case.groups = list(self.parts)

    # ---- its parts ------------------------------------------------------------------------------

    def _part(self, group: int) -> Case:
        part = self.parts.get(group)
        if part is None:
            now_ms = int(self.txs.node.broker.turn.now_ms)
            part = Case(PREPARED, self.tx, 0, [], now_ms)
            self.parts[group] = part
        return part

    def _split(self) -> None:
        for publication in self.transaction.publications:
            self._split_publication(publication)
        by_queue: dict[tuple[int, int, int], list[int]] = {}
        for tag, kind in self.transaction.settled.items():
            consumer = self.channel.unacked.consumer(tag)
            message = self.channel.unacked.message(tag)
            if consumer is None or message is None:
                continue
            group = int(consumer.queue.definition.group)
            if group == 0 or is_stream(consumer.queue.options):
                self.rest.settled[tag] = kind
            else:
                key = (group, int(consumer.queue.id), kind)
                by_queue.setdefault(key, []).append(int(message.index))
        for (group, queue_id, kind), indexes in by_queue.items():
            self._part(group).settles.append(Settle(queue_id, kind, indexes))

    def _split_publication(self, publication: Publication) -> None:
        message = publication.message
        shared = self.txs.node.broker.shared
        queues = list(publication.queues)
        if message.route.delayed and publication.steering.delay_ms > 0:
            vhost = self.channel.connection.router.vhost
            held = self.txs.node.broker.state.vhosts[vhost].destinations.get(DELAYED_QUEUE)
            found = [each for each in shared.values() if each is held]
            by_group = {int(each.definition.group): [int(each.id)] for each in found}
            self._publish(by_group, message)
            return
        by_group = {}
        rest = Publication(message, [], [], publication.mandatory, publication.steering)
        rest.unrouted = publication.unrouted
        for queue in queues:
            if queue.log.group == 0 or is_stream(queue.options):
                rest.queues.append(queue)
            else:
                by_group.setdefault(int(queue.log.group), []).append(int(queue.id))
        for target in publication.targets:
            away = [shared[each] for each in target.queue_ids if each in shared]
            if target.forward.group == 0 or any(is_stream(each.options) for each in away):
                rest.targets.append(target)
            elif away:
                ids = by_group.setdefault(int(target.forward.group), [])
                ids.extend(int(each.id) for each in away)
        self._publish(by_group, message)
        if rest.queues or rest.targets or not by_group:
            self.rest.publications.append(rest)

    def _publish(self, by_group: dict[int, list[int]], message: Message) -> None:
        for group, ids in by_group.items():
            self._part(group).publishes.append((message, ids))

    def _choose(self) -> int:
        """Who decides: a group that is at home here, if there is one."""
        for group in self.parts:
            docket = docket_of(self.txs.node.broker, group)
            if docket is not None and docket.queue.away is None:
                return group
        return min(self.parts)

    # ---- phases ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.txs.open[self.number] = self
        for group, case in self.parts.items():
            if group != self.decider:
                self.txs.send(group, case, self)
        self.txs.node.broker.commits.append(self)
        if not self.txs.rules.prepared_first:
            self._decide()

    def is_safe(self) -> bool:
        """Whether there is something to do: all have prepared, or the outcome is known. What was
        decided against is over only when nothing of it can come to the first group any more."""
        if self.deciding:
            return self.outcome is not None and (self.outcome or super().is_safe())
        return self.outcome is not None or super().is_safe()

    def finish(self) -> None:
        if self.outcome is None:
            self._decide()
            self.txs.node.broker.commits.append(self)
            return
        del self.txs.open[self.number]
        if self.outcome:
            self._done()
        else:
            self._failed()
        self.txs.report(self.tx, EDGE, self.decider)

    def _decide(self) -> None:
        self.deciding = True
        case = self.parts[self.decider]
        case.kind = DECIDE
        self.txs.send(self.decider, case, self)

    def _done(self) -> None:
        """Everything is decided: settle here what homes have settled, and answer."""
        channel = self.channel
        for tag, kind in self.transaction.settled.items():
            if tag not in self.rest.settled:
                channel.settle_one(tag, kind)
        if len(self.rest.publications) == 0 and len(self.rest.settled) == 0:
            super().finish()
            return
        broker = self.txs.node.broker
        broker.commits.append(carry_out(broker, channel, self.rest))

    def _failed(self) -> None:
        channel = self.channel
        channel.connection.resume()
        if not channel.closing:
            channel.fail(
                PreconditionFailed(
                    "the transaction was rolled back: not all of its queues could be reached in "
                    "time; it may be tried again",
                    90,
                    20,
                )
            )
