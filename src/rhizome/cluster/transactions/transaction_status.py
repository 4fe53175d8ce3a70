"""Status of transactions over several groups that are not settled, as one broker knows them.

This is for people. Each broker reports its own part: an edge reports the commits it has under way,
a home reports its groups' prepared transactions. `management/rhizome_api/open_transactions.py` puts
the reports together, and they say what a transaction waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rhizome.cluster.transactions.prepared_transactions import (
    EDGE,
    Decided,
    Prepared,
    PreparedTransactions,
)
from rhizome.cluster.transactions.transaction_part import TransactionPart, TxId

if TYPE_CHECKING:
    from rhizome.cluster.transactions.transaction_coordinator import MultiGroupCommit
    from rhizome.cluster.transactions.transaction_transport import TransactionTransport

LONG_MS: Final = 20_000
"""A transaction that has been in doubt this long needs a person's attention. A group asks for the
decision after half of this time."""

EDGE_ROLE: Final = "edge"
DECIDES: Final = "decides"
TAKES_PART: Final = "takes part"

PREPARING: Final = "preparing"
DECIDING: Final = "deciding"
PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"


@dataclass
class TransactionStatus:
    """The status of one transaction at one broker.

    ``group`` is 0 for an edge; ``homes`` are those of ``groups``, "" if one has none.
    """

    broker: str
    transaction: str
    edge: str
    edge_is_gone: bool
    role: str
    group: int
    decider: int
    groups: list[int]
    homes: list[str]
    state: str
    age_ms: int
    set_aside: int = 0
    waits_for: list[str] = field(default_factory=list)


def doubts(tx_transport: TransactionTransport) -> list[TransactionStatus]:
    """The status of every unsettled transaction that this broker knows."""
    found = [_of_edge(tx_transport, each) for each in tx_transport.open.values()]
    for prepared_txs in tx_transport.all_prepared_txs():
        found.extend(
            _of_prepared(tx_transport, prepared_txs, each)
            for each in prepared_txs.prepared.values()
        )
        found.extend(
            _of_decided(tx_transport, prepared_txs, each) for each in prepared_txs.decided.values()
        )
    return found


def long_transactions(tx_transport: TransactionTransport) -> list[TransactionStatus]:
    """Transactions at homes here that have lasted so long that a person should look at them."""
    found = [each for each in doubts(tx_transport) if each.age_ms >= LONG_MS]
    return [each for each in found if each.role != EDGE_ROLE]


def _of_edge(tx_transport: TransactionTransport, commit: MultiGroupCommit) -> TransactionStatus:
    tx_part = commit.parts[commit.decider]
    if commit.deciding:
        waits_for = [_decision(tx_transport, tx_part)]
    else:
        late = [way for way, number in commit.elsewhere.items() if way.confirmed < number]
        waits_for = [_group(tx_transport, int(way.group)) for way in late]
        slow = [log for log, index in commit.here.items() if index > log.committed_disk]
        waits_for += [f"the copies of group {int(log.group)}" for log in slow]
    state = DECIDING if commit.deciding else PREPARING
    return _doubt(tx_transport, tx_part, EDGE_ROLE, 0, state, waits_for)


def _of_prepared(
    tx_transport: TransactionTransport, prepared_txs: PreparedTransactions, prepared: Prepared
) -> TransactionStatus:
    waits_for = [_decision(tx_transport, prepared.tx_part)]
    doubt = _doubt(
        tx_transport, prepared.tx_part, TAKES_PART, prepared_txs.group, PREPARED, waits_for
    )
    doubt.set_aside = len(prepared.aside)
    return doubt


def _of_decided(
    tx_transport: TransactionTransport, prepared_txs: PreparedTransactions, decided: Decided
) -> TransactionStatus:
    tx_part = decided.tx_part
    edge = edge_of(tx_transport, tx_part.tx) or "its edge"
    waits_for = [edge if each == EDGE else _group(tx_transport, each) for each in decided.waits_for]
    state = COMMITTED if tx_part.committed else ABORTED
    return _doubt(tx_transport, tx_part, DECIDES, prepared_txs.group, state, waits_for)


def _doubt(
    tx_transport: TransactionTransport,
    tx_part: TransactionPart,
    role: str,
    group: int,
    state: str,
    waits_for: list[str],
) -> TransactionStatus:
    return TransactionStatus(
        tx_transport.port.name,
        name_of(tx_part.tx),
        edge_of(tx_transport, tx_part.tx),
        not tx_transport.is_current(tx_part.tx[0]),
        role,
        group,
        tx_part.decider,
        list(tx_part.groups),
        [_home(tx_transport, each) for each in tx_part.groups],
        state,
        max(0, int(tx_transport.broker.turn.now_ms) - tx_part.made_ms),
        waits_for=waits_for,
    )


def name_of(tx: TxId) -> str:
    return f"{tx[0]:012x}.{tx[1]}"


def edge_of(tx_transport: TransactionTransport, tx: TxId) -> str:
    """The broker whose client commits, by its present or past incarnation; "" if it is unknown."""
    incarnation = f"{tx[0]:012x}"
    for broker in tx_transport.port.state.registry.brokers.values():
        if broker.incarnation == incarnation or incarnation in broker.past:
            return broker.name
    return ""


def _home(tx_transport: TransactionTransport, group: int) -> str:
    known = tx_transport.port.state.groups.groups.get(group)
    return "" if known is None else known.home


def _group(tx_transport: TransactionTransport, group: int) -> str:
    home = _home(tx_transport, group)
    return f"group {group} at {home}" if home else f"group {group}, which has no home"


def _decision(tx_transport: TransactionTransport, tx_part: TransactionPart) -> str:
    return f"the decision of {_group(tx_transport, tx_part.decider)}"
