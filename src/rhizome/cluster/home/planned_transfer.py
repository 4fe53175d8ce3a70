"""Planned transfer: a home hands its group to a whole copy while both live (G11).

none      the group is to stay
waiting   it is to move (`Group.moving_to`), and its copy there isn't whole yet
aside     the home admits nothing more: what applications do waits at their edges, this broker's
          own included. It waits until the successor has everything, then asks the root.

waiting to aside     the successor is a whole member and nothing else about the set is open
aside to none        committed: another epoch has begun, and this home is over
aside to waiting     refused, or not committed within `transfer_patience`: the home goes on in
                     its epoch, and tries again after a pause. A late commit is a takeover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.port import Waiter
from rhizome.cluster.state.cluster_commands import TransferHome

if TYPE_CHECKING:
    from rhizome.cluster.home.home_group import HomeGroup


class Transfer:
    """The planned transfer of one group. Invariant: ``aside`` exactly while the log is."""

    def __init__(self, home: HomeGroup) -> None:
        self.home = home
        self.aside = False
        self._since_ms = 0
        self._asked = False
        self._not_before_ms = 0

    def run(self) -> None:
        """Run once per turn, after the copies have been heard."""
        home = self.home
        if self.aside:
            self._go_on()
        elif home.group.moving_to and not home.log.recovering:
            if home.node.now_ms >= self._not_before_ms and self._is_due():
                self._step_aside()

    def _is_due(self) -> bool:
        group = self.home.group
        target = self.home.node.state.registry.brokers.get(group.moving_to)
        if target is None or not group.is_whole(target.name, target.incarnation):
            return False
        return self.home.copies.in_sync.proposed is None

    def _step_aside(self) -> None:
        self.aside = True
        self._asked = False
        self._since_ms = self.home.node.now_ms
        self.home.node.roles.step_aside(self.home.group.id)

    def _go_on(self) -> None:
        home = self.home
        node = home.node
        group = home.group
        if (
            node.now_ms - self._since_ms >= home.settings.transfer_patience_ms
            or not group.moving_to
        ):
            self.give_up()
        elif not self._asked and home.copies.has_everything(group.moving_to):
            self._asked = True
            record = node.state.registry.brokers[group.moving_to]
            command = TransferHome(
                group.id, record.name, record.incarnation, group.epoch, group.version
            )
            node.propose(command, TransferOutcome(self))

    def give_up(self) -> None:
        """Be home again and try later, unless another broker has taken over meanwhile. This broker
        may be home anew since, in another epoch, which this transfer does not concern (G1)."""
        home = self.home
        if self.aside and home.node.roles.homes.get(home.group.id) is home:
            self.aside = False
            self._not_before_ms = home.node.now_ms + home.settings.transfer_patience_ms
            home.node.roles.step_back(home.group.id)


class TransferOutcome(Waiter):
    """Hears the outcome of a transfer. If it was made, this home is over already."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__()
        self.transfer = transfer

    def resolved(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.transfer.give_up()
