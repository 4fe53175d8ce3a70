"""Queue standby: speaks for the copy of a group to the home of its epoch. Sans-IO; compiled.

`standby_group.py` has the phases. An invited copy can go on in the home's history if it is whole
and ends within the epoch, or where the epoch begins if the home was whole then. While the standby
follows, the copy may be *installing*: it is being made whole by live sets (catch_up_receiver.py).

    to installing      LIVE: the copy was only invited, or the home no longer has what would come
                       next
    to whole           nothing is missing any more

An invited copy isn't touched because it may be whole in the in-sync set: the root appoints a whole
member without asking, so the home has the set changed before it sends LIVE. What an invited copy
has belongs to another history, and the standby gives no answer for it.
"""

from __future__ import annotations

from typing import final

from librt.strings import read_i64_be
from mypy_extensions import i64, mypyc_attr

from rhizome.cluster.protocol.catalogue import FOLLOW, WANT
from rhizome.cluster.protocol.replication_codec import (
    BACKFILL_BYTES,
    HEAD_BYTES,
    INSTALLING,
    LIVE_BYTES,
    LIVE_FIRST,
    LIVE_LAST,
    ON_DISK,
    RECORDS_BYTES,
    WHOLE,
    follow,
    want,
)
from rhizome.cluster.replication.catch_up_receiver import CatchUpReceiver
from rhizome.cluster.replication.epoch_history import common_end
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.replication.standby_group import FOLLOWING, StandbyGroup, StandbyGroupPort
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.records import u32_at


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueStandbyPort(StandbyGroupPort):
    """What a standby needs of its broker."""

    def forced(self, group: i64) -> i64:
        """The last epoch of a group that a person began (G8); 0 if there was none."""
        return 0

    def loses(self, copy: GroupCopy, end: i64, home: str, epoch: i64) -> None:
        """A copy is about to be cut back to `end`, for a home of `epoch`, and has messages above
        that may have been confirmed as persistent: a home was forced (G8).

        When this returns they are safe elsewhere. It raises SyntaxErrorFault if they can't be, and
        the copy stays as it is.
        """


@final
class QueueStandby(StandbyGroup):
    """The standby of a group of queues.

    Invariant: `committed_memory` and `committed_disk` are what the home last told, and fall only
    with a home that was forced (G8).
    """

    copy: GroupCopy
    port: QueueStandbyPort
    committed_memory: i64
    committed_disk: i64
    install: CatchUpReceiver | None

    def __init__(self, copy: GroupCopy, port: QueueStandbyPort, incarnation: str) -> None:
        super().__init__(copy.group, port, incarnation, copy.epoch)
        self.copy = copy
        self.port = port
        self.committed_memory = 0
        self.committed_disk = 0
        self.install = None

    # ---- the copy -------------------------------------------------------------------------------

    def memory(self) -> i64:
        return self.copy.index

    def disk(self) -> i64:
        return self.copy.disk

    def settle(self) -> None:
        """A copy that has nothing to sync is as safe as it gets."""
        self.copy.synced(0)

    def state(self) -> i64:
        if self.copy.installing:
            return INSTALLING
        return WHOLE if self.copy.whole else ON_DISK

    # ---- frames ---------------------------------------------------------------------------------

    def invited(self, table: dict[str, object]) -> None:
        copy = self.copy
        # A home that began with what its disk had kept lacks transient messages that are here.
        alike = table.get("whole") is True or copy.epoch == self.epoch
        resumes = alike and copy.continues(self.starts) and self.state() == WHOLE
        if resumes:
            copy.follow(self.starts)
            self.follow_home()
        applied = self.port.applied()
        self.send(
            FOLLOW, follow(applied, copy.group, self.epoch, self.incarnation, resumes, copy.index)
        )

    def _check_joined(self) -> None:
        if self.phase != FOLLOWING:
            raise SyntaxErrorFault("records came before what is alive")

    def take_restored(self, data: bytes, start: i64, end: i64) -> None:
        self._check_joined()
        # If the copy has the message, this is its place from now on.
        self.copy.apply(data, start + HEAD_BYTES, end)

    def take_records(self, data: bytes, start: i64, end: i64) -> None:
        self._check_joined()
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

    def take_live(self, data: bytes, start: i64, end: i64) -> None:
        index: i64 = read_i64_be(data, start + HEAD_BYTES)
        flags: i64 = data[start + HEAD_BYTES + 12]
        if flags & LIVE_FIRST != 0:
            self._update_loss(common_end(self.copy.starts, self.copy.index, self.starts))
            self.copy.follow(self.starts)
            self.follow_home()
            self.listing = u32_at(data, start + HEAD_BYTES + 8)
            self.install = CatchUpReceiver(self.copy, index)
        install = self.install
        if install is None or index != self.copy.index:
            raise SyntaxErrorFault(f"a live set at {index} came at {self.copy.index}")
        install.take(data, start + LIVE_BYTES, end)
        install.listed = flags & LIVE_LAST != 0
        self.kept_due = True
        self._go_on(install)

    def take_backfill(self, data: bytes, start: i64, end: i64) -> None:
        self._check_joined()
        install = self.install
        if install is None:
            raise SyntaxErrorFault("messages came that nobody asked for")
        self.copy.apply(data, start + BACKFILL_BYTES, end)
        install.answered(read_i64_be(data, start + HEAD_BYTES))
        self._go_on(install)

    def _go_on(self, install: CatchUpReceiver) -> None:
        """Ask for what is missing, or be done."""
        if install.outstanding():
            return
        if install.listed and install.high.is_empty() and self.copy.known.installing:
            self.copy.end_install()
        wants = install.wants()
        if wants is not None:
            wanted = want(self.copy.group, self.epoch, self.listing, wants.ask())
            self.send(WANT, wanted)
        elif install.listed:
            self.copy.whole = True
            self.install = None

    def _update_loss(self, end: i64) -> None:
        """Tell if the copy is to lose messages that must survive anything.

        Transient ones may be lost when all whole copies are: it is no surprise that a home has
        fewer of them than were committed. What was committed in an epoch before the last that a
        person began is not known any more: it may be all.
        """
        copy = self.copy
        last = self.committed_disk
        if copy.epoch < self.port.forced(copy.group):
            last = copy.index
        if copy.count_journaled(end + 1, last + 1) > 0:
            self.port.loses(copy, end, self.home, self.epoch)
        self.committed_memory = min(self.committed_memory, end)
        self.committed_disk = min(self.committed_disk, end)

    def doubt(self) -> None:
        self.copy.begin_install()

    def left(self) -> None:
        # An unfinished install begins anew: the copy says that it isn't whole.
        self.install = None
