"""Pending proposals: changes of the cluster state that this incarnation has asked for (R10).

A proposal is sent to the root, again whenever there is another one, until a committed entry carries
it; the state sees to it that it counts once. Its client is answered when every broker with a lease
has applied it.

A client whose change no root has taken for a while is told so. A home that has proposed another set
of standbys isn't told: the change may still come about, and until it is decided the home has to
wait for the standbys that would be in the set (G4).
"""

from __future__ import annotations

from typing import Final

from rhizome.broker.cluster_port import Waiter
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import Command
from rhizome.broker.metadata.vhost_metadata_byte_quota import vhost_of
from rhizome.cluster.state.cluster_commands import Envelope, SetInSync, encode
from rhizome.errors import PreconditionFailed

PATIENCE_MS: Final = 5_000
"""How long a change waits for a root before its client is told."""


class Proposal:
    """A command that is not known to be committed yet. `lasts`: it is kept until it is decided."""

    def __init__(
        self,
        number: int,
        payload: bytes,
        waiter: Waiter | None,
        begun_ms: int,
        lasts: bool,
        vhost: str | None,
    ) -> None:
        """``vhost``: the vhost whose part of the state it enlarges, if any."""
        self.number = number
        self.payload = payload
        self.waiter = waiter
        self.begun_ms = begun_ms
        self.lasts = lasts
        self.vhost = vhost


class Settling:
    """A command that was applied here, and that some broker with a lease may not have applied."""

    def __init__(
        self, index: int, waiter: Waiter | None, outcome: Outcome, command: Command | None
    ) -> None:
        """``command``: None if a snapshot has answered for it."""
        self.index = index
        self.command = command
        self.waiter = waiter
        self.outcome = outcome


class Proposals:
    """The proposals of this incarnation.

    Invariant: ``open`` are those that no committed entry carried yet, ``settling`` those that wait
    to be settled, in the order of the log; ``bytes_under_way`` is the size of those in ``open`` by
    vhost.
    """

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.open: dict[int, Proposal] = {}
        self.settling: list[Settling] = []
        self.bytes_under_way: dict[str, int] = {}
        self._number = 0

    def make(self, command: Command, waiter: Waiter | None, now_ms: int) -> Proposal:
        """Number a command; raises ValueError if it can't be encoded."""
        number = self._number + 1
        answered = min(self.open, default=number) - 1
        payload = encode(Envelope(command, self.incarnation, number, answered))
        self._number = number
        lasts = isinstance(command, SetInSync)
        vhost = vhost_of(command)
        self.open[number] = Proposal(number, payload, waiter, now_ms, lasts, vhost)
        if vhost is not None:
            self.bytes_under_way[vhost] = self.bytes_under_way.get(vhost, 0) + len(payload)
        return self.open[number]

    def _close(self, number: int) -> Proposal | None:
        proposal = self.open.pop(number, None)
        if proposal is not None and proposal.vhost is not None:
            left = self.bytes_under_way[proposal.vhost] - len(proposal.payload)
            self.bytes_under_way[proposal.vhost] = left
            if left == 0:
                del self.bytes_under_way[proposal.vhost]
        return proposal

    def applied(
        self,
        incarnation: str,
        number: int,
        index: int,
        outcome: Outcome,
        command: Command | None = None,
    ) -> bool:
        """An entry was applied; False if it is not an open one of this broker."""
        if incarnation != self.incarnation:
            return False
        proposal = self._close(number)
        if proposal is None:
            return False
        self.settling.append(Settling(index, proposal.waiter, outcome, command))
        return True

    def take_settled(self, index: int) -> list[Settling]:
        """The commands that every broker with a lease has applied."""
        count = 0
        while count < len(self.settling) and self.settling[count].index <= index:
            count += 1
        settled = self.settling[:count]
        del self.settling[:count]
        return settled

    def give_up(self, now_ms: int, reason: str) -> None:
        """Tell clients that no root has taken their change; it may still come about."""
        for proposal in list(self.open.values()):
            if proposal.lasts or now_ms - proposal.begun_ms < PATIENCE_MS:
                continue
            self._close(proposal.number)
            if proposal.waiter is not None:
                proposal.waiter.resolved(Outcome(error=PreconditionFailed(reason)))
