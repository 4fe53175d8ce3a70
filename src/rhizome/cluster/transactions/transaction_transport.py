"""Transport of transactions between brokers: parts to the groups' prepared transactions, and what
brokers tell each other about decisions (L4).

TX_ASK, TX_OUTCOME and TX_SETTLED may be lost; whoever waits for an answer sends again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rhizome.amqp.field_table import encode_table
from rhizome.broker.channel.channel_transaction import carry_out
from rhizome.broker.channel.open_transaction import PendingCommit, Transaction
from rhizome.broker.cluster_port import Across
from rhizome.broker.publishing.forward_port import Target
from rhizome.cluster.home.edge_reconciliation import EdgeSessionsByGroup
from rhizome.cluster.node_port import NodePort
from rhizome.cluster.protocol.call_table_codec import number_in
from rhizome.cluster.protocol.catalogue import TX_ASK, TX_OUTCOME, TX_SETTLED
from rhizome.cluster.protocol.frame_dispatch import FrameTable, SpanHandler
from rhizome.cluster.protocol.replication_codec import table_in
from rhizome.cluster.transactions.prepared_transactions import (
    EDGE,
    PreparedTransactions,
    TxRules,
    prepared_queue_id,
    prepared_transactions_of,
)
from rhizome.cluster.transactions.transaction_coordinator import (
    MultiGroupCommit,
    SingleGroupCommit,
    TransactionSplit,
)
from rhizome.cluster.transactions.transaction_part import (
    PREPARED,
    TransactionPart,
    TxId,
    message_of,
)

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel

DOUBT_MS: Final = 10_000
"""A group asks for the decision after waiting this long, or when the edge is gone."""


class TransactionTransport(Across):
    """Commits of this broker's clients, and the frames about transactions between brokers.

    Invariant: ``open`` has the transactions of this broker's clients that are under way.
    """

    def __init__(self, port: NodePort, tenures: EdgeSessionsByGroup) -> None:
        super().__init__()
        self.port = port
        self.broker = port.broker
        self.tenures = tenures
        self.rules = TxRules()
        self.open: dict[int, MultiGroupCommit] = {}
        self._last = 0

    # ---- the edge -------------------------------------------------------------------------------

    def commit(self, channel: Channel, transaction: Transaction) -> None:
        self._last += 1
        split = TransactionSplit(self, self._last, channel, transaction)
        if len(split.parts) > 1:
            MultiGroupCommit(self, channel, split).prepare()
        elif len(split.parts) == 1:
            SingleGroupCommit(self, channel, split).send()
        else:
            broker = self.broker
            broker.commits.append(carry_out(broker, channel, transaction))

    def send(self, group: int, tx_part: TransactionPart, commit: PendingCommit) -> None:
        """Have a part recorded among a group's prepared transactions; the commit waits for that."""
        broker = self.broker
        prepared_txs = prepared_transactions_of(broker, group)
        assert prepared_txs is not None
        queue = prepared_txs.queue
        if queue.away is None:
            for log, index in prepared_txs.take(tx_part).items():
                commit.here[log] = max(commit.here.get(log, 0), index)
            return
        way = queue.away.forward()
        target = Target(way, "", [])
        target.queue_ids.append(prepared_queue_id(group))
        message = message_of(tx_part, broker.pager)
        message.arrived_ms = broker.turn.now_ms
        message.persistent = self.rules.on_disk
        commit.elsewhere[way] = way.send(message, target, None, 0)

    # ---- what brokers tell each other -----------------------------------------------------------

    def is_current(self, edge: int) -> bool:
        return self.port.state.registry.is_current(f"{edge:012x}")

    def is_mine(self, edge: int) -> bool:
        return edge == int(self.port.incarnation, 16)

    def ask(self, tx_part: TransactionPart) -> None:
        """Ask the first group of a transaction what was decided."""
        prepared_txs = self._docket_here(tx_part.decider)
        if prepared_txs is not None:
            prepared_txs.asked(tx_part)
            return
        table = self._table(tx_part.tx, tx_part.decider)
        table["groups"] = list(tx_part.groups)
        self._send_to_home(tx_part.decider, TX_ASK, table)

    def tell(self, tx_part: TransactionPart, party: int, committed: bool) -> None:
        """Tell a party that waits what was decided."""
        table = self._table(tx_part.tx, tx_part.decider)
        table["party"] = party
        table["committed"] = committed
        if party == EDGE:
            if self.is_mine(tx_part.tx[0]):
                self._told(tx_part.tx, tx_part.decider, committed)
            else:
                self._send_to_edge(tx_part.tx[0], table)
            return
        prepared_txs = self._docket_here(party)
        if prepared_txs is not None:
            prepared_txs.outcome(tx_part.tx, committed, tx_part.decider)
        else:
            self._send_to_home(party, TX_OUTCOME, table)

    def report(self, tx: TxId, party: int, decider: int) -> None:
        """Report that a party has settled a transaction."""
        prepared_txs = self._docket_here(decider)
        if prepared_txs is not None:
            prepared_txs.settled(tx, party)
            return
        table = self._table(tx, decider)
        table["party"] = party
        self._send_to_home(decider, TX_SETTLED, table)

    def register(self, frames: FrameTable) -> None:
        frames.register(TX_ASK, SpanHandler(self.outcome_asked))
        frames.register(TX_OUTCOME, SpanHandler(self.outcome_told))
        frames.register(TX_SETTLED, SpanHandler(self.part_settled))

    def outcome_asked(self, name: str, data: bytes, start: int, end: int) -> None:
        table = table_in(data, start, end)
        decider = number_in(table, "decider")
        prepared_txs = self._docket_here(decider)
        if prepared_txs is not None:
            groups = _numbers(table.get("groups"))
            now_ms = self.broker.turn.now_ms
            prepared_txs.asked(TransactionPart(PREPARED, _tx_in(table), decider, groups, now_ms))

    def outcome_told(self, name: str, data: bytes, start: int, end: int) -> None:
        table = table_in(data, start, end)
        decider, party = number_in(table, "decider"), number_in(table, "party")
        committed = table.get("committed") is True
        if party == EDGE:
            self._told(_tx_in(table), decider, committed)
            return
        prepared_txs = self._docket_here(party)
        if prepared_txs is not None:
            prepared_txs.outcome(_tx_in(table), committed, decider)

    def part_settled(self, name: str, data: bytes, start: int, end: int) -> None:
        table = table_in(data, start, end)
        prepared_txs = self._docket_here(number_in(table, "decider"))
        if prepared_txs is not None:
            prepared_txs.settled(_tx_in(table), number_in(table, "party"))

    def _told(self, tx: TxId, decider: int, committed: bool) -> None:
        committing = self.open.get(tx[1])
        if committing is None:
            # The edge was told before, and has answered its client.
            self.report(tx, EDGE, decider)
        elif committing.outcome is None:
            committing.outcome = committed
            self.broker.committed()

    def tick(self) -> None:
        for prepared_txs in self.all_prepared_txs():
            prepared_txs.tick(self.port.now_ms(), DOUBT_MS)

    def all_prepared_txs(self) -> list[PreparedTransactions]:
        """The prepared transactions of the groups that are at home here."""
        workers = [each.worker for each in self.broker.internal.values() if each.away is None]
        return [each for each in workers if isinstance(each, PreparedTransactions)]

    def _docket_here(self, group: int) -> PreparedTransactions | None:
        prepared_txs = prepared_transactions_of(self.broker, group)
        return None if prepared_txs is None or prepared_txs.queue.away is not None else prepared_txs

    def _table(self, tx: TxId, decider: int) -> dict[str, object]:
        return {"edge": tx[0], "number": tx[1], "decider": decider, "party": EDGE}

    def _send_to_home(self, group: int, method: int, table: Mapping[str, object]) -> None:
        known = self.port.state.groups.groups.get(group)
        link = None if known is None else self.port.links().link_to(known.home)
        if link is not None:
            link.send(method, encode_table(dict(table)))

    def _send_to_edge(self, edge: int, table: Mapping[str, object]) -> None:
        for link in self.port.links().open_links():
            if link.peer.incarnation == f"{edge:012x}":
                link.send(TX_OUTCOME, encode_table(dict(table)))


def _tx_in(table: dict[str, object]) -> TxId:
    return number_in(table, "edge"), number_in(table, "number")


def _numbers(value: object) -> list[int]:
    return [each for each in value if isinstance(each, int)] if isinstance(value, list) else []
