"""Doubts: transactions over several groups that are not settled, as one broker knows them.

This is for people. Each broker tells its own part: an edge what it has under way, a home what its
dockets have. Put together (`management/transactions.py`) they say what a transaction waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rhizome.cluster.cases import Case, TxId
from rhizome.cluster.docket import EDGE, Decided, Docket, Prepared

if TYPE_CHECKING:
    from rhizome.cluster.committing import Committing
    from rhizome.cluster.txs import Txs

LONG_MS: Final = 20_000
"""A transaction that is in doubt for so long is worth a person's attention: a group asks what was
decided after half of that."""

EDGE_ROLE: Final = "edge"
DECIDES: Final = "decides"
TAKES_PART: Final = "takes part"

PREPARING: Final = "preparing"
DECIDING: Final = "deciding"
PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"


@dataclass
class Doubt:
    """``group`` is 0 for an edge; ``homes`` are those of ``groups``, "" if one has none."""

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


def doubts(txs: Txs) -> list[Doubt]:
    """What this broker knows of transactions that are not settled."""
    found = [_of_edge(txs, each) for each in txs.open.values()]
    for docket in txs.dockets():
        found.extend(_of_prepared(txs, docket, each) for each in docket.prepared.values())
        found.extend(_of_decided(txs, docket, each) for each in docket.decided.values())
    return found


def long_doubts(txs: Txs) -> list[Doubt]:
    """Those of homes here that somebody should look at."""
    found = [each for each in doubts(txs) if each.age_ms >= LONG_MS]
    return [each for each in found if each.role != EDGE_ROLE]


def _of_edge(txs: Txs, commit: Committing) -> Doubt:
    case = commit.parts[commit.decider]
    if commit.deciding:
        waits_for = [_decision(txs, case)]
    else:
        late = [way for way, number in commit.elsewhere.items() if way.confirmed < number]
        waits_for = [_group(txs, int(way.group)) for way in late]
        slow = [log for log, index in commit.here.items() if index > log.committed_disk]
        waits_for += [f"the copies of group {int(log.group)}" for log in slow]
    state = DECIDING if commit.deciding else PREPARING
    return _doubt(txs, case, EDGE_ROLE, 0, state, waits_for)


def _of_prepared(txs: Txs, docket: Docket, prepared: Prepared) -> Doubt:
    waits_for = [_decision(txs, prepared.case)]
    doubt = _doubt(txs, prepared.case, TAKES_PART, docket.group, PREPARED, waits_for)
    doubt.set_aside = len(prepared.aside)
    return doubt


def _of_decided(txs: Txs, docket: Docket, decided: Decided) -> Doubt:
    case = decided.case
    edge = edge_of(txs, case.tx) or "its edge"
    waits_for = [edge if each == EDGE else _group(txs, each) for each in decided.waits_for]
    state = COMMITTED if case.committed else ABORTED
    return _doubt(txs, case, DECIDES, docket.group, state, waits_for)


def _doubt(txs: Txs, case: Case, role: str, group: int, state: str, waits_for: list[str]) -> Doubt:
    return Doubt(
        txs.node.me.name,
        name_of(case.tx),
        edge_of(txs, case.tx),
        not txs.is_current(case.tx[0]),
        role,
        group,
        case.decider,
        list(case.groups),
        [_home(txs, each) for each in case.groups],
        state,
        max(0, int(txs.node.broker.turn.now_ms) - case.made_ms),
        waits_for=waits_for,
    )


def name_of(tx: TxId) -> str:
    return f"{tx[0]:012x}.{tx[1]}"


def edge_of(txs: Txs, tx: TxId) -> str:
    """The broker whose client commits, as it is or was; "" if it isn't known any more."""
    incarnation = f"{tx[0]:012x}"
    for broker in txs.node.state.registry.brokers.values():
        if broker.incarnation == incarnation or incarnation in broker.past:
            return broker.name
    return ""


def _home(txs: Txs, group: int) -> str:
    known = txs.node.state.groups.groups.get(group)
    return "" if known is None else known.home


def _group(txs: Txs, group: int) -> str:
    home = _home(txs, group)
    return f"group {group} at {home}" if home else f"group {group}, which has no home"


def _decision(txs: Txs, case: Case) -> str:
    return f"the decision of {_group(txs, case.decider)}"
