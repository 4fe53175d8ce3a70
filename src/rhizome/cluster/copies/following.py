"""Following: what speaks for a copy to the home of its epoch, whatever it is a copy of. Compiled.

Answers (KEPT) are cumulative, one per turn at most, and tell the truth about this incarnation only:
what memory has, what is on disk, and how far both may be trusted.

Who is sent something by a home that it doesn't follow says so (REFUSED), and the home begins anew:
the two can't differ for long about whether it follows.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from rhizome.cluster.copies.frames import (
    INSTALLING,
    INVITE,
    KEPT,
    REFUSED,
    epoch_at,
    kept,
    number_in,
    refused,
    starts_in,
    table_in,
)
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.errors import CorruptRecord


@mypyc_attr(allow_interpreted_subclasses=True)
class FollowingPort:
    """What it needs of its broker."""

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        """Send a frame; False if there is no link."""
        raise NotImplementedError

    def applied(self) -> i64:
        """How far this broker has applied the cluster's log (R10)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Following:
    """Invariant: `home` and `epoch` are set exactly while it isn't away; `joined` while the copy is
    in the home's history, which is `starts`; `newest` is the highest epoch that this broker knows
    of, and nothing of an older one is taken (G1).
    """

    group: i64
    link: FollowingPort
    incarnation: str
    home: str
    epoch: i64
    starts: list[tuple[int, int]]
    joined: bool
    newest: i64
    listing: i64
    kept_due: bool
    _told_memory: i64
    _told_disk: i64
    _told_state: i64

    def __init__(self, group: i64, link: FollowingPort, incarnation: str, newest: i64) -> None:
        self.group = group
        self.link = link
        self.incarnation = incarnation
        self.home = ""
        self.epoch = 0
        self.starts = []
        self.joined = False
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

    def followed(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        """A frame of the home."""
        raise NotImplementedError

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

    def frame(self, name: str, method: i64, data: bytes, start: i64, end: i64) -> None:
        if method == INVITE:
            self._invited(name, table_in(data, start, end))
        elif method == REFUSED:
            # No home refuses its standby. This answers what was sent from here in an earlier epoch,
            # as home, and may come behind the invitation that is followed now.
            return
        elif name != self.home or epoch_at(data, start) != self.epoch:
            # Who sends this takes the copy for one that follows, and would wait for ever.
            later = epoch_at(data, start) < self.newest
            self.refuse(name, "a later epoch has begun" if later else "it doesn't follow")
        else:
            try:
                self.followed(method, data, start, end)
            except (CorruptRecord, SyntaxErrorFault) as error:
                self.give_up(str(error))
            except Exception:
                # Half of it may be done: what is missing is asked for, and the link told to end.
                self.doubt()
                raise

    def _invited(self, name: str, table: dict[str, object]) -> None:
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
        self.listing = 0
        self._told_memory = -1
        self.invited(table)

    def end_turn(self) -> None:
        """Once per turn, after the journal's batch was handed over: answer."""
        self.settle()
        if not self.joined:
            return
        if not self.has_told_all():
            state = self.state()
            memory = self.memory()
            disk: i64 = 0 if state == INSTALLING else self.disk()
            self.kept_due = False
            self._told_memory = memory
            self._told_disk = disk
            self._told_state = state
            self.send(KEPT, kept(self.group, self.epoch, memory, disk, state, self.listing))

    def has_told_all(self) -> bool:
        """Whether the home knows how far this copy is."""
        state = self.state()
        disk: i64 = 0 if state == INSTALLING else self.disk()
        told = state == self._told_state and disk == self._told_disk
        return told and self.memory() == self._told_memory and not self.kept_due

    def rests(self) -> bool:
        """Whether all is told, and nothing to come before something is heard."""
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
        """It can't go on with this home, which must begin anew."""
        home = self.home
        self.leave()
        self.refuse(home, reason)

    def leave(self) -> None:
        self.home = ""
        self.epoch = 0
        self.joined = False
        self.left()
