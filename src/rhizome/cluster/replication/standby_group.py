"""Standby group: this broker as a standby of one group. Compiled.

It speaks for a copy of any kind to the home of its epoch, in one phase:

    away         nobody's standby: no home has invited it since the link or the epoch was lost
    invited      a home of an epoch asks for a copy, and the copy can't go on in that home's
                 history; it is left as it is until a live set comes
    following    the copy is in the home's history: records are applied in order and answered

    away to invited          ``invited_by``: INVITE of a home whose epoch is not older than any that
                             is known here (G1); also from the other phases, by way of away
    invited to following     ``follow_home``: at once if the copy can go on; otherwise with LIVE, by
                             which what the home's log doesn't have is cut off
    any to away              ``leave``: the link is lost, the cluster's state tells of a newer
                             epoch, a frame makes no sense, or this broker had a fault

What a following copy lacks is a matter of the copy (`QueueStandby`: installing).

Answers (REPLICATED) are cumulative, one per turn at most, and tell the truth about this incarnation
only: what memory has, what is on disk, and how far both may be trusted.

A standby refuses (REFUSED) frames of a home that it does not follow, and that home begins anew. So
the two can't disagree for long about whether the standby follows.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from rhizome.cluster.protocol.catalogue import REFUSED, REPLICATED
from rhizome.cluster.protocol.replication_codec import (
    INSTALLING,
    epoch_at,
    number_in,
    refused,
    replicated,
    starts_in,
)
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.errors import CorruptRecord

AWAY: Final = 0
INVITED: Final = 1
FOLLOWING: Final = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class StandbyGroupPort:
    """What a standby needs of its broker."""

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        """Send a frame; False if there is no link."""
        raise NotImplementedError

    def applied(self) -> i64:
        """How far this broker has applied the cluster's log (R10)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class StandbyGroup:
    """A standby's side of replication.

    Invariant: `home`, `epoch` and the home's history `starts` are set exactly while it isn't away;
    `newest` is the highest epoch that this broker knows of,
    and nothing of an older one is taken (G1).
    """

    group: i64
    link: StandbyGroupPort
    incarnation: str
    home: str
    epoch: i64
    starts: list[tuple[int, int]]
    phase: i64
    newest: i64
    listing: i64
    kept_due: bool
    _told_memory: i64
    _told_disk: i64
    _told_state: i64

    def __init__(self, group: i64, link: StandbyGroupPort, incarnation: str, newest: i64) -> None:
        self.group = group
        self.link = link
        self.incarnation = incarnation
        self.home = ""
        self.epoch = 0
        self.starts = []
        self.phase = AWAY
        self.newest = newest
        self.listing = 0
        self.kept_due = False
        self._told_memory = -1
        self._told_disk = -1
        self._told_state = -1

    # ---- the copy -------------------------------------------------------------------------------

    def memory(self) -> i64:
        """The last index that the copy has."""
        raise NotImplementedError

    def disk(self) -> i64:
        """The last index that it has on disk."""
        raise NotImplementedError

    def state(self) -> i64:
        """How far the copy may be trusted."""
        raise NotImplementedError

    def settle(self) -> None:
        """See what is on disk by now."""

    def invited(self, table: dict[str, object]) -> None:
        """`home` of `epoch` asks for a copy of its history `starts`: answer FOLLOW."""
        raise NotImplementedError

    def take_live(self, data: bytes, start: i64, end: i64) -> None:
        """A LIVE of the home."""
        raise SyntaxErrorFault("this copy can't do with a live set")

    def take_records(self, data: bytes, start: i64, end: i64) -> None:
        """A RECORDS of the home."""
        raise NotImplementedError

    def take_backfill(self, data: bytes, start: i64, end: i64) -> None:
        """A BACKFILL of the home."""
        raise SyntaxErrorFault("this copy can't do with messages of a live set")

    def take_restored(self, data: bytes, start: i64, end: i64) -> None:
        """A RESTORE of the home."""
        raise SyntaxErrorFault("this copy can't do with a single message")

    def left(self) -> None:
        """Nothing comes from the home any more."""

    # ---- what happens around it -----------------------------------------------------------------

    def learn(self, epoch: i64) -> None:
        """The cluster's state says that the group is in this epoch."""
        if epoch > self.newest:
            self.newest = epoch
            if self.epoch < epoch:
                self.leave()

    def link_down(self, name: str) -> None:
        if name == self.home:
            self.leave()

    def live(self, name: str, data: bytes, start: i64, end: i64) -> None:
        if self._is_of_home(name, data, start):
            try:
                self.take_live(data, start, end)
            except Exception as error:
                self._failed(error)

    def records(self, name: str, data: bytes, start: i64, end: i64) -> None:
        if self._is_of_home(name, data, start):
            try:
                self.take_records(data, start, end)
            except Exception as error:
                self._failed(error)

    def backfilled(self, name: str, data: bytes, start: i64, end: i64) -> None:
        if self._is_of_home(name, data, start):
            try:
                self.take_backfill(data, start, end)
            except Exception as error:
                self._failed(error)

    def restored(self, name: str, data: bytes, start: i64, end: i64) -> None:
        if self._is_of_home(name, data, start):
            try:
                self.take_restored(data, start, end)
            except Exception as error:
                self._failed(error)

    def refused_by(self, name: str) -> None:
        """A home refused this standby, which no home does. The frame answers what this broker sent
        in an earlier epoch, as home, and may come behind the invitation that is followed now."""

    def _is_of_home(self, name: str, data: bytes, start: i64) -> bool:
        """Whether a frame comes from the home that the copy follows. Any other sender is refused:
        it takes the copy for one that follows it, and would wait for ever."""
        if name == self.home and epoch_at(data, start) == self.epoch:
            return True
        later = epoch_at(data, start) < self.newest
        self.refuse(name, "a later epoch has begun" if later else "it doesn't follow")
        return False

    def _failed(self, error: Exception) -> None:
        """A frame makes no sense, or a fault of this broker kept it from being applied."""
        if isinstance(error, (CorruptRecord, SyntaxErrorFault)):
            self.give_up(str(error))
        else:
            # Half of the frame may be done: what is missing is asked for, and the link told to end.
            self.doubt()
            raise error

    def invited_by(self, name: str, table: dict[str, object]) -> None:
        epoch: i64 = number_in(table, "epoch")
        if epoch < self.newest:
            self.refuse(name, "a later epoch has begun")
            return
        starts = starts_in(table)
        self.leave()
        self.newest = epoch
        self.home = name
        self.epoch = epoch
        self.starts = starts
        self.phase = INVITED
        self.listing = 0
        self._told_memory = -1
        self.invited(table)

    def follow_home(self) -> None:
        """The copy is in the home's history from now on."""
        self.phase = FOLLOWING

    def end_turn(self) -> None:
        """Once per turn, after the journal's batch was handed over: answer."""
        self.settle()
        if self.phase != FOLLOWING:
            return
        if not self.has_told_all():
            state = self.state()
            memory = self.memory()
            disk: i64 = 0 if state == INSTALLING else self.disk()
            self.kept_due = False
            self._told_memory = memory
            self._told_disk = disk
            self._told_state = state
            self.send(
                REPLICATED, replicated(self.group, self.epoch, memory, disk, state, self.listing)
            )

    def has_told_all(self) -> bool:
        """Whether the home knows how far this copy is."""
        state = self.state()
        disk: i64 = 0 if state == INSTALLING else self.disk()
        told = state == self._told_state and disk == self._told_disk
        return told and self.memory() == self._told_memory and not self.kept_due

    def rests(self) -> bool:
        """Whether all is told, and nothing is to be done before something is heard."""
        return False

    def doubt(self) -> None:
        """A fault in the middle of a frame: the copy may lack something that it was sent."""

    # ---- leaving --------------------------------------------------------------------------------

    def send(self, method: i64, payload: bytes) -> None:
        if not self.link.send(self.home, method, [payload]):
            self.leave()

    def refuse(self, name: str, reason: str) -> None:
        payload = refused(self.link.applied(), self.group, self.newest, reason)
        self.link.send(name, REFUSED, [payload])

    def give_up(self, reason: str) -> None:
        """The standby can't go on with this home, which must begin anew."""
        home = self.home
        self.leave()
        self.refuse(home, reason)

    def leave(self) -> None:
        self.home = ""
        self.epoch = 0
        self.phase = AWAY
        self.left()
