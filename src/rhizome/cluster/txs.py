"""Transactions that concern other brokers: how cases get to dockets, and what brokers tell each
other about them (L4).

    TX_ASK       {edge, number, decider, groups}    a group in doubt asks the first one
    TX_OUTCOME   {edge, number, decider, party, committed}    the first group tells
    TX_SETTLED   {edge, number, decider, party}     that is safe there; party 0 is the edge

These may be lost; whoever waits for an answer sends again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rhizome.amqp.values import encode_table
from rhizome.broker.port import Across
from rhizome.broker.targets import Target
from rhizome.broker.transactions import PendingCommit, Transaction, carry_out
from rhizome.cluster.asking import number_in
from rhizome.cluster.cases import PREPARED, Case, TxId, message_of
from rhizome.cluster.committing import Committing, Sole, Split
from rhizome.cluster.copies.frames import table_in
from rhizome.cluster.docket import EDGE, Docket, TxRules, docket_id, docket_of

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
        split = Split(self, self._last, channel, transaction)
        if len(split.parts) > 1:
            Committing(self, channel, split).prepare()
        elif len(split.parts) == 1:
            Sole(self, channel, split).send()
        else:
            broker = self.node.broker
            broker.commits.append(carry_out(broker, channel, transaction))

    def send(self, group: int, case: Case, commit: PendingCommit) -> None:
        """Have a case recorded in the docket of a group; the commit waits for that."""
        broker = self.node.broker
        docket = docket_of(broker, group)
        assert docket is not None
        queue = docket.queue
        if queue.away is None:
            for log, index in docket.take(case).items():
                commit.here[log] = max(commit.here.get(log, 0), index)
            return
        way = queue.away.forward()
        target = Target(way, "", [])
        target.queue_ids.append(docket_id(group))
        message = message_of(case, broker.pager)
        message.arrived_ms = broker.turn.now_ms
        message.persistent = self.rules.on_disk
        commit.elsewhere[way] = way.send(message, target, None, 0)

    # ---- what brokers tell each other -----------------------------------------------------------

    def is_current(self, edge: int) -> bool:
        return self.node.state.registry.is_current(f"{edge:012x}")

    def is_mine(self, edge: int) -> bool:
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
            if self.is_mine(case.tx[0]):
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
