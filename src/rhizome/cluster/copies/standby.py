"""Standby: speaks for the copy of a group to the home of its epoch. Sans-IO; compiled.

    away        nobody's standby: no home has invited it since the link or the epoch was lost
    invited     the copy can't go on in the home's history; it is left as it is until LIVE comes
    following   records are applied in order and answered
    installing  following, and the copy is being made whole by live sets (install.py)

    away to following         INVITE of an epoch that is not older than any known here (G1), and the
                              copy is whole and ends within the epoch, or where it begins if the
                              home was whole then
    away to invited           INVITE otherwise
    invited to installing     LIVE: now what the home's log hasn't is cut off
    following to installing   LIVE: the home has no longer what would come next
    installing to following   nothing is missing any more
    any to away               the link is lost, a newer epoch is heard of, a frame makes no sense

An invited copy isn't touched because it may be whole in the in-sync set: the root appoints a whole
member without asking, so the home has the set changed before it sends LIVE. What an invited copy
has is of another history, and no answer is given for it.

Answers (KEPT) are cumulative, one per turn at most, and tell the truth about this incarnation only:
what memory has, what is on disk, and how far both may be trusted.
"""

from __future__ import annotations

from typing import final

from librt.strings import read_i64_be
from mypy_extensions import i64, mypyc_attr

from rhizome.cluster.copies.copy import Copy
from rhizome.cluster.copies.frames import (
    BACKFILL,
    BACKFILL_BYTES,
    FOLLOW,
    HEAD_BYTES,
    INSTALLING,
    INVITE,
    KEPT,
    LIVE,
    LIVE_BYTES,
    LIVE_FIRST,
    LIVE_LAST,
    ON_DISK,
    RECORDS,
    RECORDS_BYTES,
    REFUSED,
    WANT,
    WHOLE,
    epoch_at,
    follow,
    kept,
    number_in,
    refused,
    starts_in,
    table_in,
    want,
)
from rhizome.cluster.copies.history import common_end
from rhizome.cluster.copies.install import Install
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import u32_at


@mypyc_attr(allow_interpreted_subclasses=True)
class StandbyPort:
    """What a standby needs of its broker."""

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        """Send a frame; False if there is no link."""
        raise NotImplementedError

    def applied(self) -> i64:
        """How far this broker has applied the cluster's log (R10)."""
        raise NotImplementedError

    def loses(self, copy: Copy, index: i64, messages: i64) -> None:
        """A copy is about to be cut back to `index`, and so many messages above that were
        confirmed as persistent: a home was forced (G8). This is the moment to save them."""


@final
class Standby:
    """Invariant: `home` and `epoch` are set exactly while it isn't away; `joined` while the copy is
    in the home's history, which is `starts`; `newest` is the highest epoch that this broker knows
    of, and nothing of an older one is taken (G1). `committed_memory` and `committed_disk` are what
    the home last told, and fall only with a home that was forced (G8).
    """

    copy: Copy
    port: StandbyPort
    incarnation: str
    home: str
    epoch: i64
    starts: list[tuple[int, int]]
    joined: bool
    newest: i64
    committed_memory: i64
    committed_disk: i64
    install: Install | None
    _listing: i64
    _kept_due: bool
    _told_memory: i64
    _told_disk: i64
    _told_state: i64

    def __init__(self, copy: Copy, port: StandbyPort, incarnation: str) -> None:
        self.copy = copy
        self.port = port
        self.incarnation = incarnation
        self.home = ""
        self.epoch = 0
        self.starts = []
        self.joined = False
        self.newest = copy.epoch
        self.committed_memory = 0
        self.committed_disk = 0
        self.install = None
        self._listing = 0
        self._kept_due = False
        self._told_memory = -1
        self._told_disk = -1
        self._told_state = -1

    # ---- what happens around it -----------------------------------------------------------------

    def learn(self, epoch: i64) -> None:
        """The cluster's state says that the group is in this epoch."""
        if epoch > self.newest:
            self.newest = epoch
            if self.epoch < epoch:
                self._leave()

    def link_down(self, name: str) -> None:
        if name == self.home:
            self._leave()

    def frame(self, name: str, method: i64, data: bytes, start: i64, end: i64) -> None:
        if method == INVITE:
            self._invited(name, table_in(data, start, end))
        elif method == REFUSED:
            if name == self.home:
                self._leave()
        elif self.home == "" or name != self.home or epoch_at(data, start) != self.epoch:
            if epoch_at(data, start) < self.newest:
                self._refuse(name, "a later epoch has begun")
        else:
            try:
                self._followed(method, data, start, end)
            except (CorruptRecord, SyntaxErrorFault) as error:
                self._give_up(str(error))

    def end_turn(self) -> None:
        """Once per turn, after the journal's batch was handed over: answer."""
        if not self.joined:
            return
        state = self.state()
        disk: i64 = 0 if state == INSTALLING else self.copy.disk
        changed = (
            self.copy.index != self._told_memory
            or disk != self._told_disk
            or state != self._told_state
        )
        if changed or self._kept_due:
            self._kept_due = False
            self._told_memory = self.copy.index
            self._told_disk = disk
            self._told_state = state
            answer = kept(self.copy.group, self.epoch, self.copy.index, disk, state, self._listing)
            self._send(KEPT, answer)

    def state(self) -> i64:
        """How far the copy may be trusted."""
        if self.copy.installing:
            return INSTALLING
        return WHOLE if self.copy.whole else ON_DISK

    # ---- frames ---------------------------------------------------------------------------------

    def _invited(self, name: str, table: dict[str, object]) -> None:
        epoch: i64 = number_in(table, "epoch")
        if epoch < self.newest:
            self._refuse(name, "a later epoch has begun")
            return
        starts = starts_in(table)
        self._leave()
        self.newest = epoch
        self.home = name
        self.epoch = epoch
        self.starts = starts
        self._listing = 0
        self._told_memory = -1
        copy = self.copy
        # A home that began with what its disk had kept lacks transient messages that are here.
        alike = table.get("whole") is True or copy.epoch == epoch
        resumes = alike and copy.continues(starts) and self.state() == WHOLE
        if resumes:
            copy.follow(starts)
            self.joined = True
        applied = self.port.applied()
        self._send(
            FOLLOW, follow(applied, copy.group, epoch, self.incarnation, resumes, copy.index)
        )

    def _followed(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        if method == LIVE:
            self._live(data, start, end)
        elif not self.joined:
            raise SyntaxErrorFault("records came before what is alive")
        elif method == RECORDS:
            self._records(data, start, end)
        elif method == BACKFILL:
            self._backfill(data, start, end)

    def _records(self, data: bytes, start: i64, end: i64) -> None:
        first: i64 = read_i64_be(data, start + HEAD_BYTES)
        last: i64 = read_i64_be(data, start + HEAD_BYTES + 8)
        if first != self.copy.index + 1:
            raise SyntaxErrorFault(f"records from {first} on came after {self.copy.index}")
        self.copy.apply(data, start + RECORDS_BYTES, end)
        if self.copy.index != last:
            raise SyntaxErrorFault(f"records up to {last} end with {self.copy.index}")
        memory: i64 = read_i64_be(data, start + HEAD_BYTES + 16)
        disk: i64 = read_i64_be(data, start + HEAD_BYTES + 24)
        self.committed_memory = max(memory, self.committed_memory)
        self.committed_disk = max(disk, self.committed_disk)

    def _live(self, data: bytes, start: i64, end: i64) -> None:
        index: i64 = read_i64_be(data, start + HEAD_BYTES)
        flags: i64 = data[start + HEAD_BYTES + 12]
        if flags & LIVE_FIRST != 0:
            self._judge_loss(common_end(self.copy.starts, self.copy.index, self.starts))
            self.copy.follow(self.starts)
            self.joined = True
            self._listing = u32_at(data, start + HEAD_BYTES + 8)
            self.install = Install(self.copy, index)
        install = self.install
        if install is None or index != self.copy.index:
            raise SyntaxErrorFault(f"a live set at {index} came at {self.copy.index}")
        install.take(data, start + LIVE_BYTES, end)
        install.listed = flags & LIVE_LAST != 0
        self._kept_due = True
        self._go_on(install)

    def _backfill(self, data: bytes, start: i64, end: i64) -> None:
        install = self.install
        if install is None:
            raise SyntaxErrorFault("messages came that nobody asked for")
        self.copy.apply(data, start + BACKFILL_BYTES, end)
        install.answered(read_i64_be(data, start + HEAD_BYTES))
        self._go_on(install)

    def _go_on(self, install: Install) -> None:
        """Ask for what is missing, or be done."""
        if install.outstanding():
            return
        if install.listed and install.high.is_empty() and self.copy.known.installing:
            self.copy.end_install()
        wants = install.wants()
        if wants is not None:
            wanted = want(self.copy.group, self.epoch, self._listing, wants.ask())
            self._send(WANT, wanted)
        elif install.listed:
            self.copy.whole = True
            self.install = None

    def _judge_loss(self, end: i64) -> None:
        """Tell if the copy is to lose messages that must survive anything.

        Transient ones may be lost when all whole copies are: that a home has fewer of them than
        were committed is no surprise.
        """
        lost = self.copy.count_journaled(end + 1, self.committed_disk + 1)
        if lost > 0:
            self.port.loses(self.copy, end, lost)
        self.committed_memory = min(self.committed_memory, end)
        self.committed_disk = min(self.committed_disk, end)

    # ---- leaving --------------------------------------------------------------------------------

    def _send(self, method: i64, payload: bytes) -> None:
        if not self.port.send(self.home, method, [payload]):
            self._leave()

    def _refuse(self, name: str, reason: str) -> None:
        payload = refused(self.port.applied(), self.copy.group, self.newest, reason)
        self.port.send(name, REFUSED, [payload])

    def _give_up(self, reason: str) -> None:
        """The home's frames make no sense: it must begin anew."""
        home = self.home
        self._leave()
        self._refuse(home, reason)

    def _leave(self) -> None:
        self.home = ""
        self.epoch = 0
        self.joined = False
        # An install that was not finished begins anew: the copy says that it isn't whole.
        self.install = None
