"""/api/rhizome/transactions: what brokers know of unsettled transactions, put together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rhizome.management.cluster_view import TxPart
from rhizome.management.rhizome_api.open_transactions import together
from tests.unit.management.conftest import Api, Core
from tests.unit.management.peers.test_cluster_wide_queries import FakeOthers, other, others  # noqa: F401

WAITING = ("the decision of group 1 at b1",)


def part(broker: str, role: str, group: int, state: str, *waits: str, aside: int = 0) -> Any:
    row = TxPart(
        broker, "00ab.7", "s1", False, role, group, 1, (1, 2, 3), ("b1", "b2", ""), state, 900,
        aside, waits
    )  # fmt: skip
    return asdict(row)


def test_a_transaction_in_doubt_waits_for_the_decision() -> None:
    [found] = together([part("b2", "takes part", 2, "prepared", *WAITING, aside=4)])
    assert (found.id, found.state, found.edge, found.age_ms) == ("00ab.7", "in doubt", "s1", 900)
    assert found.waits_for == WAITING
    parties = [(each.group, each.home, each.state, each.set_aside) for each in found.parties]
    assert parties == [
        (1, "b1", "undecided", 0),
        (2, "b2", "prepared", 4),
        (3, "", "unknown", 0),
    ]


def test_who_decides_knows_more_than_the_edge_and_that_more_than_who_takes_part() -> None:
    prepared = part("b2", "takes part", 2, "prepared", *WAITING)
    edge = part("s1", "edge", 0, "preparing", "group 3, which has no home")
    decided = part("b1", "decides", 1, "committed", "group 2 at b2", "s1")
    assert together([prepared, edge])[0].state == "preparing"
    assert together([prepared, edge])[0].waits_for == ("group 3, which has no home",)
    [found] = together([prepared, decided, edge])
    assert (found.state, found.waits_for) == ("committed", ("group 2 at b2", "s1"))
    assert [each.state for each in found.parties] == ["committed", "prepared", "unknown"]


def test_the_oldest_come_first() -> None:
    old, young = part("b1", "decides", 1, "aborted"), part("b2", "takes part", 2, "prepared")
    young.update(transaction="00ab.8", age_ms=3)
    assert [each.id for each in together([young, old])] == ["00ab.7", "00ab.8"]


class Doubtful:
    """A broker that takes part in one transaction."""

    def doubts(self) -> list[TxPart]:
        row = part("b2", "takes part", 2, "prepared", *WAITING)
        row.update(groups=(1, 2, 3), homes=("b1", "b2", ""), waits_for=WAITING)
        return [TxPart(**row)]


def test_all_brokers_are_asked(
    api: Api,
    core: Core,
    other: Core,  # noqa: F811
    others: FakeOthers,  # noqa: F811
) -> None:
    assert api.get("rhizome", "transactions").json == []
    other.context.view = Doubtful()
    [row] = api.get("rhizome", "transactions").json
    assert (row["id"], row["state"], row["decider"]) == ("00ab.7", "in doubt", 1)
    assert row["parties"][1] == {"group": 2, "home": "b2", "state": "prepared", "set_aside": 0}
    assert api.get("rhizome", "transactions", "own").json == []
