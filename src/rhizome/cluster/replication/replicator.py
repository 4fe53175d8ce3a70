"""Replicator: the standbys of one group, at its home. Sans-IO; compiled.

Every turn the home sends the records of the log to each standby in one frame. The answers, with the
home's own memory and disk, make the committed indexes (G6). The in-sync set (in_sync_set.py) says
whose answers count.

Records that standbys haven't answered are kept in a window, for a link that breaks and comes back.
A standby that needs more than the window has catches up by live sets (catch_up_sender.py).
`congested` says that a standby that counts is far behind: publishers must wait.

The broker's duties: `end_turn` after everything of the turn is recorded, also in a turn in which
only a frame came or the journal was synced; `tick` every 100 ms or so; `link_up` for the links that
are there when this begins.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.cluster.protocol.catalogue import (
    BACKFILL,
    INVITE,
    LIVE,
    RECORDS,
    RESTORE,
)
from rhizome.cluster.protocol.replication_codec import (
    HEAD_BYTES,
    LIVE_FIRST,
    LIVE_LAST,
    WHOLE,
    backfill_head,
    epoch_at,
    invite,
    number_in,
    records_head,
    restore_head,
    wanted_in,
)
from rhizome.cluster.replication.catch_up_throttle import CatchUpThrottle
from rhizome.cluster.replication.in_sync_set import REST_MS, InSyncSet
from rhizome.cluster.replication.message_repair import MessageRepair
from rhizome.cluster.replication.replicable_log import ReplicableLog
from rhizome.cluster.replication.replication_status import ReplicationStatus, StandbyStatus
from rhizome.cluster.replication.replicator_port import ReplicatorPort, ReplicatorSettings
from rhizome.cluster.replication.resend_window import ResendWindow
from rhizome.cluster.replication.standby_tracker import (
    HELD,
    INVITED,
    STAGES,
    STREAMING,
    StandbyTracker,
)
from rhizome.cluster.state.cluster_commands import WHOLE as MEMBER_WHOLE
from rhizome.cluster.state.cluster_commands import Member
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import u32_at

FRAME_BYTES_MAX: Final = 1024 * 1024
"""A frame of records or messages is full when it has this many bytes; one batch may exceed it."""
SHIPPED_BYTES_MAX: Final = 16 * 1024 * 1024
"""How many unanswered bytes a standby is sent at most; a home whose standby is that far behind is
congested."""
INVITE_MS: Final = 2000
"""How long a standby has to answer an invitation."""
RESUME_MS: Final = 30_000
"""How long after its link was lost records are kept for a standby."""


@final
class Replicator:
    """The standbys of one group, at its home.

    Invariant: the committed indexes of the log never pass the counted answers of any standby that
    `in_sync` waits for; while it recovers they don't rise at all (G7). `committed_memory` and
    `committed_disk` are what standbys are told: 0 until all have answered in this epoch.
    """

    log: ReplicableLog
    port: ReplicatorPort
    followers: dict[str, StandbyTracker]
    window: ResendWindow
    in_sync: InSyncSet
    whole: bool
    congested: bool
    fetches: MessageRepair
    committed_memory: i64
    committed_disk: i64
    now_ms: i64
    _due: bool
    _disk: i64
    _pace: CatchUpThrottle

    def __init__(
        self,
        log: ReplicableLog,
        whole: bool,
        port: ReplicatorPort,
        settings: ReplicatorSettings,
        now_ms: i64,
    ) -> None:
        """`whole`: the copy that the epoch began with was whole."""
        self.log = log
        self.whole = whole
        self.port = port
        self.followers = {}
        self.window = ResendWindow(settings.window_bytes_max)
        self.in_sync = InSyncSet(log, port, settings, self.window, self.followers)
        self.congested = False
        # The log counts as committed at its beginning, when no standby has answered yet.
        self.committed_memory = 0
        self.committed_disk = 0
        self.now_ms = now_ms
        self._due = True
        self._disk = -1
        self._pace = CatchUpThrottle(settings.backfill_bytes_max, now_ms)
        self.fetches = MessageRepair(log, port, now_ms)

    # ---- what the cluster says ------------------------------------------------------------------

    def group_changed(self, group: Group) -> None:
        """The group as it is committed."""
        if group.epoch == int(self.log.epoch):
            self._due = True
            self.in_sync.changed(group)
            for member in self.in_sync.members:
                self._follower(member.broker)
            self._update_alone(self.in_sync.waited_for())
            self._dismiss()

    def proposal_refused(self, version: i64) -> None:
        """The change that was proposed for a version of the set is not made."""
        self._due = True
        self.in_sync.refused(version, self.now_ms)

    def wanted(self, names: list[str]) -> None:
        """Where copies should be, in the order of preference."""
        self._due = True
        self.in_sync.wanted = names
        for name in names:
            self._invite(self._follower(name))
        self._dismiss()

    def _dismiss(self) -> None:
        for follower in self.followers.values():
            if not self.in_sync.needs(follower.name):
                follower.leave()

    # ---- links and frames -----------------------------------------------------------------------

    def link_up(self, name: str, incarnation: str) -> None:
        follower = self._follower(name)
        follower.link_up(incarnation, self.now_ms)
        self._invite(follower)

    def link_down(self, name: str) -> None:
        self._due = True
        self._follower(name).link_down(self.now_ms)
        self.fetches.link_down(name)

    def refused_by(self, name: str) -> None:
        """A REFUSED frame: its sender doesn't follow."""
        self._due = True
        follower = self._follower(name)
        follower.leave()
        follower.rests_until_ms = self.now_ms + REST_MS

    def _following(self, name: str, data: bytes, start: i64) -> StandbyTracker | None:
        """The standby that a frame comes from, if it follows in this epoch."""
        self._due = True
        follower = self._follower(name)
        if epoch_at(data, start) != self.log.epoch or not follower.has_followed():
            return None
        return follower

    def wanted_by(self, name: str, data: bytes, start: i64) -> None:
        """A WANT frame."""
        follower = self._following(name, data, start)
        if follower is not None and u32_at(data, start + HEAD_BYTES) == follower.listing_number:
            follower.wanted = wanted_in(data, start)

    def replicated_by(self, name: str, data: bytes, start: i64) -> None:
        """A REPLICATED frame."""
        follower = self._following(name, data, start)
        at: i64 = start + HEAD_BYTES
        if follower is not None and u32_at(data, at + 17) == follower.listing_number:
            memory: i64 = read_i64_be(data, at)
            disk: i64 = read_i64_be(data, at + 8)
            follower.answer(memory, disk, data[at + 16], self.now_ms)

    def followed_by(self, name: str, table: dict[str, object]) -> None:
        """A FOLLOW frame."""
        self._due = True
        follower = self._follower(name)
        if number_in(table, "epoch") != int(self.log.epoch) or follower.stage != INVITED:
            return
        if table.get("incarnation") != follower.incarnation:
            return
        follower.followed = True
        follower.rests_until_ms = 0
        follower.listing_number = 0
        follower.resumes = table.get("resume") is True
        follower.cursor = number_in(table, "memory") + 1
        follower.offset = number_in(table, "offset")
        follower.refusals = table.get("refusals") is True

    def _follower(self, name: str) -> StandbyTracker:
        found = self.followers.get(name)
        if found is None:
            found = StandbyTracker(name)
            found.linked_ms = self.now_ms
            self.followers[name] = found
        return found

    def forget(self, name: str) -> None:
        """A broker won't come back; nothing is kept of it unless it counts."""
        found = self.followers.get(name)
        if found is not None and not found.linked and not self.in_sync.needs(name):
            del self.followers[name]

    def _invite(self, follower: StandbyTracker) -> None:
        """Invite a standby, or invite it again if it hasn't answered: it may have been another
        incarnation."""
        if not follower.linked or not self.in_sync.needs(follower.name):
            return
        if follower.has_followed() or self.now_ms < follower.rests_until_ms:
            return
        follower.rests_until_ms = self.now_ms + INVITE_MS
        log = self.log
        payload = invite(
            self.port.applied(), log.group, log.epoch, log.starts, self.whole, log.invitation()
        )
        if self.port.send(follower.name, INVITE, [payload]):
            follower.stage = INVITED

    # ---- every turn -----------------------------------------------------------------------------

    def end_turn(self, now_ms: i64) -> None:
        """Send what this turn has recorded, and see what is committed."""
        self.now_ms = now_ms
        batch = self.log.take_batch()
        disk = self.log.disk()
        if batch is None and disk == self._disk and not self._due:
            return
        self._due = False
        self._disk = disk
        if self.log.shipping and batch is not None:
            self.window.add(batch)
            self._pace.recorded(batch.last - batch.first + 1, batch.size)
        for follower in self.followers.values():
            try:
                self._serve(follower)
            except Exception as error:
                # The standby begins anew: what it was sent in this turn may have a hole.
                follower.leave()
                follower.rests_until_ms = now_ms + REST_MS
                self.port.failed(follower.name, error)
        self._trim()
        self._commit()
        self.in_sync.update_joining(now_ms)
        self.in_sync.propose_changed()
        self._update_alone(self.in_sync.waited_for())

    def _serve(self, follower: StandbyTracker) -> None:
        """Send a standby what it lacks, as far as it takes it now."""
        if follower.followed:
            self._begin(follower)
        if follower.stage == HELD:
            self._list(follower)
        if follower.sends():
            self._ship(follower)
            self._tell(follower)
        if len(follower.wanted) > 0:
            # The next turn or tick tries again.
            self._due = True
            if self._pace.allows(self.now_ms):
                self._backfill(follower)

    def rests(self) -> bool:
        """Whether the next turn has nothing to do unless something is recorded or heard."""
        return not self._due and self.in_sync.proposed is None

    def stood_still(self, away_ms: i64) -> None:
        """This broker stood still for ``away_ms``, and has read nothing since."""
        for follower in self.followers.values():
            follower.stood_still(away_ms)

    def tick(self, now_ms: i64) -> None:
        """Now and then: see which standbys don't answer, and try again where something failed."""
        self.now_ms = now_ms
        if not self.log.stored or not self._is_settled():
            self._due = True
        for follower in self.followers.values():
            self._invite(follower)
        self.fetches.tick(now_ms)
        self.in_sync.propose_left_out(now_ms)

    def _is_settled(self) -> bool:
        """Whether time changes nothing: there may be thousands of idle streams."""
        for follower in self.followers.values():
            if not self.in_sync.needs(follower.name):
                continue
            if follower.stage != STREAMING or not self.in_sync.counts_as_whole(follower):
                return False
            if follower.memory_waits_ms >= 0 or follower.disk_waits_ms >= 0:
                return False
        return self.in_sync.proposed is None

    def _begin(self, follower: StandbyTracker) -> None:
        """Decide how a standby that follows gets what it lacks."""
        follower.followed = False
        log = self.log
        if not log.shipping:
            # Records are kept from the next one on.
            log.ship(True)
            self.window.begin(log.next_index)
        if follower.resumes and self.window.covers(follower.cursor):
            follower.stage = STREAMING
        elif log.stored:
            self._read_for(follower)
        else:
            self._list(follower)

    def _read_for(self, follower: StandbyTracker) -> None:
        """Have a standby get what it lacks from the store; if that is gone, begin anew."""
        follower.stored = self.log.stored_from(follower.cursor, follower.offset)
        follower.stored_mark = follower.cursor
        if follower.stored is None or not follower.resumes:
            follower.leave()
        else:
            follower.stage = STREAMING

    def _list(self, follower: StandbyTracker) -> None:
        """Have a standby catch up by live sets, unless it may be taken for whole: an incomplete
        copy can't take over."""
        if self.in_sync.counts_as_whole(follower):
            follower.hold()
        else:
            follower.begin_listing(self.log.next_index - 1)

    def _ship(self, follower: StandbyTracker) -> None:
        window = self.window
        log = self.log
        if not self._ship_stored(follower):
            return
        if not window.covers(follower.cursor):
            if log.stored:
                # The standby has to say anew where it is.
                follower.leave()
                return
            self._list(follower)
            if follower.stage == HELD:
                return
        while follower.cursor < window.next_index:
            if self._has_enough(follower):
                return
            parts: list[bytes] = [b""]
            last = window.collect(follower.cursor, FRAME_BYTES_MAX, parts)
            if not self._send_records(follower, last, parts):
                return

    def _ship_stored(self, follower: StandbyTracker) -> bool:
        """Send what the store has, up to where the window begins, two frames at a time; returns
        whether the standby has got there."""
        stored = follower.stored
        if stored is None:
            return True
        while follower.cursor < self.window.first:
            if follower.memory < follower.stored_mark - 1:
                return False
            parts: list[bytes] = [b""]
            try:
                last = stored.collect(FRAME_BYTES_MAX, self.window.first, parts)
            except CorruptRecord:
                # Retention dropped it, or it is damaged: a standby that follows anew is told where
                # the log begins.
                follower.leave()
                return False
            if last < follower.cursor:
                # The rest isn't on disk yet.
                return False
            follower.stored_mark = follower.cursor
            if not self._send_records(follower, last, parts):
                return False
        follower.stored = None
        return True

    def _send_records(self, follower: StandbyTracker, last: i64, parts: list[bytes]) -> bool:
        log = self.log
        parts[0] = records_head(
            log.group,
            log.epoch,
            follower.cursor,
            last,
            self.committed_memory,
            self.committed_disk,
        )
        if not self.port.send(follower.name, RECORDS, parts):
            follower.leave()
            return False
        for part in parts:
            follower.records_bytes += len(part)
        follower.cursor = last + 1
        return True

    def _has_enough(self, follower: StandbyTracker) -> bool:
        """Whether a standby must answer before it gets more."""
        unanswered = self.window.size_above(follower.memory)
        unsent = self.window.size_above(follower.cursor - 1)
        return unanswered - unsent >= SHIPPED_BYTES_MAX

    def _tell(self, follower: StandbyTracker) -> None:
        """Tell a standby that catches up the next part of what is alive."""
        listing = follower.listing
        if listing is None or not follower.listed or follower.cursor != self.log.next_index:
            return
        log = self.log
        index = log.next_index - 1
        flags: i64 = 0 if listing.begun else LIVE_FIRST
        writer = listing.next_frame(self.port, log, index)
        if listing.done:
            flags |= LIVE_LAST
            follower.listing = None
            follower.stage = STREAMING
        parts = writer.frame(log.group, log.epoch, index, listing.number, flags)
        follower.listed = False
        if not self.port.send(follower.name, LIVE, parts):
            follower.leave()
            return
        for part in parts:
            follower.live_bytes += len(part)

    def _backfill(self, follower: StandbyTracker) -> None:
        """Send a standby the messages that it asked for, as many as fit into a frame."""
        wanted = follower.wanted
        follower.wanted = []
        parts: list[bytes] = [b""]
        answered: i64 = 0
        size: i64 = 0
        at: i64 = 0
        while at < len(wanted) and size < FRAME_BYTES_MAX:
            first: i64 = wanted[at + 1]
            end: i64 = first + i64(wanted[at + 2])
            known: i64 = len(parts)
            stop = self.port.read(wanted[at], first, end, FRAME_BYTES_MAX - size, parts)
            while known < len(parts):
                size += len(parts[known])
                known += 1
            answered += stop - first
            if stop < end:
                break
            at += 3
        parts[0] = backfill_head(self.log.group, self.log.epoch, answered)
        follower.backfill_messages += len(parts) - 1
        follower.backfill_bytes += size
        self._pace.sent(size, self.now_ms)
        if not self.port.send(follower.name, BACKFILL, parts):
            follower.leave()

    def restore(self, record: bytes) -> None:
        """Send a message that could not be read here, and has come from a standby or from
        elsewhere, to all standbys. As with BACKFILL, its DEQUEUE can only come behind it."""
        parts = [restore_head(self.log.group, self.log.epoch), record]
        for follower in self.followers.values():
            if follower.sends() and self.fetches.knows(follower.name):
                if not self.port.send(follower.name, RESTORE, parts):
                    follower.leave()

    def _trim(self) -> None:
        """Forget what nobody needs any more, and stop recording if no standby listens."""
        if not self.log.shipping:
            return
        needed: i64 = -1
        for follower in self.followers.values():
            if self._keeps_for(follower):
                safe = min(follower.safe(), follower.cursor - 1)
                needed = safe if needed < 0 else min(needed, safe)
        if needed < 0:
            self.log.ship(False)
            self.window.begin(self.log.next_index)
        else:
            self.window.trim(needed)

    def _keeps_for(self, follower: StandbyTracker) -> bool:
        if follower.sends() or follower.followed or follower.stage == HELD:
            return True
        if follower.kept != WHOLE or not self.window.covers(follower.memory + 1):
            return False
        return self.now_ms - follower.linked_ms < RESUME_MS and self.in_sync.needs(follower.name)

    # ---- what is committed ----------------------------------------------------------------------

    def _update_alone(self, waited_for: list[Member]) -> None:
        alone = len(waited_for) == 0 and self.in_sync.min_copies <= 1
        by_disk = not alone and not self.in_sync.outlives_home_in_memory()
        if alone != self.log.alone or by_disk != self.log.by_disk:
            self.log.alone = alone
            self.log.by_disk = by_disk
            self.log.update_visible()

    def _commit(self) -> None:
        waited_for = self.in_sync.waited_for()
        self._update_alone(waited_for)
        log = self.log
        self.congested = False
        memory: i64 = log.next_index - 1
        disk = log.disk()
        for member in waited_for:
            follower = self._follower(member.broker)
            lacks_memory = self._lacks_memory(follower, member)
            follower.update_waiting(lacks_memory, self._lacks_disk(follower, member), self.now_ms)
            disk = min(disk, follower.counted_disk(member.incarnation))
            if member.copy == MEMBER_WHOLE:
                memory = min(memory, follower.counted_memory(member.incarnation))
            if follower.sends() and self.window.size_above(follower.safe()) > SHIPPED_BYTES_MAX:
                self.congested = True
        if not log.silent and not self.in_sync.too_few():
            log.set_committed(memory, disk)
            log.set_reliable(
                memory if self.in_sync.has_whole() else 0,
                disk if len(self.in_sync.members) > 0 else 0,
            )
            self.committed_memory = log.committed_memory
            self.committed_disk = log.committed_disk

    def _lacks_memory(self, follower: StandbyTracker, member: Member) -> bool:
        if member.copy != MEMBER_WHOLE:
            return False
        return follower.counted_memory(member.incarnation) < self.log.next_index - 1

    def _lacks_disk(self, follower: StandbyTracker, member: Member) -> bool:
        return follower.counted_disk(member.incarnation) < self.log.disk()

    def recovered(self) -> None:
        """The log is silent no more: see what is committed."""
        self._due = True

    def settled(self) -> bool:
        """Whether all that count have answered in this epoch, and have what it began with (G7)."""
        start: i64 = self.log.starts[-1][1]
        for member in self.in_sync.members:
            follower = self._follower(member.broker)
            if not follower.sends():
                return False
            if follower.counted_disk(member.incarnation) < start - 1:
                return False
            if member.copy == MEMBER_WHOLE:
                if follower.counted_memory(member.incarnation) < start - 1:
                    return False
        return True

    def has_everything(self, name: str) -> bool:
        """Whether a standby has all of the log, in memory and on disk (G11)."""
        follower = self._follower(name)
        end = self.log.next_index - 1
        return follower.kept == WHOLE and follower.memory >= end and follower.disk >= end

    # ---- status ---------------------------------------------------------------------------------

    def status(self) -> ReplicationStatus:
        """For people: what each standby has, and which ones confirms wait for."""
        waits_for: list[str] = []
        for member in self.in_sync.waited_for():
            follower = self._follower(member.broker)
            if self._lacks_memory(follower, member) or self._lacks_disk(follower, member):
                if member.broker not in waits_for:
                    waits_for.append(member.broker)
        standbys: list[StandbyStatus] = []
        for follower in self.followers.values():
            if self.in_sync.needs(follower.name):
                standbys.append(self._standby_status(follower))
        too_few = self.in_sync.too_few()
        return ReplicationStatus(standbys, waits_for, too_few, int(self.window.size()))

    def _standby_status(self, follower: StandbyTracker) -> StandbyStatus:
        member = self.in_sync.member(follower.name)
        return StandbyStatus(
            follower.name,
            follower.incarnation,
            STAGES[follower.stage],
            "" if member is None else member.copy,
            follower.linked,
            int(self.log.next_index - 1 - follower.memory),
            int(self.window.size_above(follower.memory)),
            int(follower.waited_ms(self.now_ms)),
            int(follower.records_bytes),
            int(follower.live_bytes),
            int(follower.backfill_bytes),
            int(follower.backfill_messages),
        )
