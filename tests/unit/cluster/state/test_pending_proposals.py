"""What becomes of changes that no root takes."""

from __future__ import annotations

from rhizome.broker.cluster_port import Waiter
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import Command, DeclareQueue
from rhizome.cluster.state.cluster_commands import WHOLE, Member, SetInSync
from rhizome.cluster.state.pending_proposals import PATIENCE_MS, Proposals


class Asker(Waiter):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Outcome] = []

    def resolved(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def given_up(command: Command) -> list[Outcome]:
    """What the proposer is told when there was no root for too long."""
    proposals, asker = Proposals("i1"), Asker()
    number = proposals.make(command, asker, 0).number
    proposals.give_up(PATIENCE_MS, "there is no root")
    assert (number in proposals.open) == (not asker.outcomes)
    return asker.outcomes


def test_client_whose_change_no_root_takes_is_told_after_a_while() -> None:
    [outcome] = given_up(DeclareQueue("/", "q", durable=True))
    assert outcome.error is not None
    assert outcome.error.text == "there is no root"


def test_home_that_has_proposed_a_set_is_told_nothing_before_that_is_decided() -> None:
    """It would confirm without a standby that a root may still take for whole (G4)."""
    assert given_up(SetInSync(1, (Member("b2", "i2", WHOLE),), 1, 1)) == []
