"""Group copy: the passive copy of a group at one broker. Compiled.

A copy is the replay of the group's records (journal/record_replay.py), kept current. Per queue it
has the live messages with the places of their records, delivery counts, what was accepted (L5),
delivered and leased; for the group it has the numbers of origins and the starts of epochs. So a
takeover is like a restart: the queues get what the replay has.

Records are applied in batches by offset, and there is no object per record. Durable records that
follow each other go into the journal in one piece, as the bytes that the home made. Messages of
other records go into the spill; the rest is only applied.

References: each (queue, message) of the copy is one reference to the segment that its record is in,
counted when the record is appended and released when the message leaves the copy. So the segments
of a copy become free while it is passive, and after a restart recovery counts the same.

What a copy claims:
- `index`: all records up to it have been applied, if the copy is `whole`;
- `disk`: all durable records up to it are on disk, unless it is `installing`;
- `installing`: its durable part may have holes, or numbers of origins that were taken back. That is
  marked in the journal before the first record that makes it so, and the copy isn't eligible as a
  home until the mark is lifted (L2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.cluster.replication.epoch_history import common_end, shared_epochs
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.journal import SPILL_SEGMENT_FIRST, Journal
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.record_replay import GroupReplay, QueueReplay, Replay
from rhizome.journal.records import (
    FLAG_DURABLE,
    KIND_ENQUEUE,
    KIND_EPOCH,
    KIND_MOVED,
    KIND_TX,
    RECORD_HEADER_BYTES,
    bare_record,
    check_record,
    drop_queue_record,
    install_record,
    number_record,
    tx_record,
    u16_at,
    u32_at,
)
from rhizome.journal.recovery import RecoveredQueue

if TYPE_CHECKING:
    from rhizome.broker.group_log.log_port import GroupLog
    from rhizome.journal.checkpoint import CheckpointBuilder
    from rhizome.journal.recovery import Recovered

PIECE_BYTES_MAX: Final = 1024 * 1024
"""How many bytes are appended in one piece; also what a segment may waste at its end."""


@final
class GroupCopy:
    """The passive copy of one group.

    Invariant: `journal` and `spill` hold one reference for each message of each queue of `replay`,
    and no other for this group; `_tokens[i]` is the journal's position behind everything that was
    appended for the records up to `_indexes[i]`.
    """

    group: i64
    journal: Journal
    spill: Journal
    replay: Replay
    known: GroupReplay
    whole: bool
    disk: i64
    _piece_bytes_max: i64
    _released: dict[int, int]
    _tokens: list[int]
    _indexes: list[int]
    _appended: bool
    _lifting: bool
    _run_references: i64
    _run_records: i64

    def __init__(self, group: i64, journal: Journal, spill: Journal) -> None:
        self.group = group
        self.journal = journal
        self.spill = spill
        self._released = {}
        self.replay = Replay(self._released)
        self.known = self.replay.group(group)
        # A new copy of a new log lacks nothing.
        self.whole = True
        self.disk = 0
        smaller = min(journal.segment_bytes_max, spill.segment_bytes_max)
        self._piece_bytes_max = min(PIECE_BYTES_MAX, smaller // 4)
        self._tokens = []
        self._indexes = []
        self._appended = False
        self._lifting = False
        self._run_references = 0
        self._run_records = 0

    @staticmethod
    def from_recovery(
        group: i64, recovered: Recovered, journal: Journal, spill: Journal
    ) -> GroupCopy:
        """The copy that a restart finds; takes the group's queues out of `recovered`."""
        copy = GroupCopy(group, journal, spill)
        # Transient messages are gone; they may have been all that there was.
        copy.whole = False
        found = recovered.groups.get(int(group))
        if found is not None:
            copy.replay.groups[int(group)] = found
            copy.known = found
            copy.disk = found.index
        ours = [each for each in recovered.queues.values() if each.group == int(group)]
        for queue in ours:
            del recovered.queues[queue.queue_id]
            copy.adopt(queue)
        return copy

    @staticmethod
    def from_home(log: GroupLog, disk: i64, journal: Journal, spill: Journal) -> GroupCopy:
        """The copy that a former home goes on with; `adopt` its queues.

        Messages that were in memory only are left behind, so it isn't whole. What must survive a
        restart is in the journal, and up to `disk` also on disk.
        """
        copy = GroupCopy(log.group, journal, spill)
        copy.known.epoch = log.epoch
        copy.known.index = log.next_index - 1
        copy.known.starts = list(log.starts)
        copy.known.origins = dict(log.origins)
        copy.known.refused = log.refused
        copy.whole = False
        copy.disk = disk
        # The journal may have records of the log that are not handed over yet.
        copy._appended = True
        return copy

    # ---- what it has ----------------------------------------------------------------------------

    @property
    def epoch(self) -> i64:
        return self.known.epoch

    @property
    def index(self) -> i64:
        return self.known.index

    @property
    def starts(self) -> list[tuple[int, int]]:
        return self.known.starts

    @property
    def origins(self) -> dict[int, int]:
        return self.known.origins

    @property
    def installing(self) -> bool:
        """Whether the copy is being installed, or would be after a restart at this instant."""
        return self.known.installing or self._lifting

    @property
    def queues(self) -> dict[int, QueueReplay]:
        return self.replay.queues

    def count(self) -> i64:
        """Messages in all queues."""
        total: i64 = 0
        for queue in self.replay.queues.values():
            total += queue.count()
        return total

    def count_journaled(self, first: i64, end: i64) -> i64:
        """Messages in the journal with indexes in [first, end)."""
        total: i64 = 0
        for queue in self.replay.queues.values():
            for level in queue.levels.values():
                ranges: list[int] = []
                level.collect_ranges(first, end, 1 << 62, ranges)
                at: i64 = 0
                while at < len(ranges):
                    index: i64 = ranges[at]
                    while index < i64(ranges[at]) + i64(ranges[at + 1]):
                        if level.find(index) >> 32 < SPILL_SEGMENT_FIRST:
                            total += 1
                        index += 1
                    at += 2
        return total

    # ---- records --------------------------------------------------------------------------------

    def apply(self, data: bytes, at: i64, end: i64) -> None:
        """Apply and keep the records in data[at:end]; raises CorruptRecord for bytes that are
        none."""
        while at < end:
            at = self._apply_run(data, at, end)
        self._release()

    def advance(self, index: i64) -> None:
        """The log is at `index`, and the copy lacks nothing that isn't asked for."""
        self.known.index = index

    def record(self, data: bytes) -> None:
        """Append a durable record that was made here, and apply it; it has no message."""
        position = self.journal.append_raw(data, 0)
        self._appended = True
        self.replay.apply(data, 0, len(data), position)
        self._release()

    def _apply_run(self, data: bytes, at: i64, end: i64) -> i64:
        """Apply leading records that can be appended in one piece; returns where the next one
        begins."""
        first = self._checked(data, at, end)
        durable = _is_durable(data, at)
        if durable and _is_mixed(data, at):
            self._apply_mixed(data, at, first)
            return at + first
        self._run_references = references_in(data, at)
        self._run_records = 1
        stop = self._run_end(data, at + first, end, durable, at + self._piece_bytes_max)
        position: i64 = 0
        if durable or self._run_references > 0:
            piece = data if at == 0 and stop == len(data) else data[at:stop]
            journal = self.journal if durable else self.spill
            position = journal.append_raw(piece, self._run_references, self._run_records)
            self._appended = self._appended or durable
        offset = at
        while offset < stop:
            size = RECORD_HEADER_BYTES + u32_at(data, offset)
            self.replay.apply(data, offset, size, position + (offset - at))
            offset += size
        return stop

    def _run_end(self, data: bytes, at: i64, end: i64, durable: bool, limit: i64) -> i64:
        """Where the run ends that has begun before `at`; counts what is in it."""
        while at < end:
            size = self._checked(data, at, end)
            if at + size > limit or _is_durable(data, at) != durable:
                break
            if durable and _is_mixed(data, at):
                break
            self._run_references += references_in(data, at)
            self._run_records += 1
            at += size
        return at

    def _checked(self, data: bytes, at: i64, end: i64) -> i64:
        size = check_record(data, at)
        if size <= 0 or at + size > end:
            raise CorruptRecord("no valid record", at)
        if u16_at(data, at + 10) != self.group:
            raise CorruptRecord(f"a record of group {u16_at(data, at + 10)}, not {self.group},", at)
        return size

    def _apply_mixed(self, data: bytes, at: i64, size: i64) -> None:
        """Apply a transaction of which not all belongs into the journal.

        A transient message must not come back with a restart: its DEQUEUE won't be in the journal.
        """
        kept: list[bytes] = []
        others: list[bytes] = []
        inner: i64 = at + RECORD_HEADER_BYTES
        while inner < at + size:
            after: i64 = inner + RECORD_HEADER_BYTES + u32_at(data, inner)
            part = kept if _is_durable(data, inner) else others
            part.append(data[inner:after])
            inner = after
        epoch = u32_at(data, at + 12)
        index = read_i64_be(data, at + 16)
        durable = tx_record(self.group, epoch, index, FLAG_DURABLE, kept)
        transient = tx_record(self.group, epoch, index, 0, others)
        position = self.journal.append_raw(durable, references_in(durable, 0))
        spilled: i64 = 0
        if references_in(transient, 0) > 0:
            spilled = self.spill.append_raw(transient, references_in(transient, 0))
        self._appended = True
        position += RECORD_HEADER_BYTES
        spilled += RECORD_HEADER_BYTES
        inner = at + RECORD_HEADER_BYTES
        while inner < at + size:
            length: i64 = RECORD_HEADER_BYTES + u32_at(data, inner)
            if _is_durable(data, inner):
                self.replay.apply(data, inner, length, position)
                position += length
            else:
                self.replay.apply(data, inner, length, spilled)
                spilled += length
            inner += length
        self.known.index = index

    def _release(self) -> None:
        if len(self._released) == 0:
            return
        for segment, count in self._released.items():
            journal = self.journal if segment < SPILL_SEGMENT_FIRST else self.spill
            journal.release(i64(segment) << 32, count)
        self._released.clear()

    # ---- epochs ---------------------------------------------------------------------------------

    def begin_epoch(self, epoch: i64, start: i64) -> None:
        """An epoch begins at `start`: what the copy has from there on is void."""
        self.record(bare_record(KIND_EPOCH, self.group, epoch, start))

    def truncate(self, index: i64, epoch: i64) -> None:
        """Drop everything above `index`, for the sake of `epoch`.

        What the dropped records had removed, and the numbers that they had taken, are not undone:
        the copy has to be installed again before it counts.
        """
        self.begin_install()
        self.begin_epoch(epoch, index + 1)
        self.disk = min(self.disk, index)
        self._indexes = [min(each, int(index)) for each in self._indexes]

    def continues(self, starts: list[tuple[int, int]]) -> bool:
        """Whether a log of this history continues from exactly where the copy is."""
        if common_end(self.known.starts, self.known.index, starts) < self.known.index:
            return False
        return self.known.index >= i64(starts[-1][1]) - 1

    def follow(self, starts: list[tuple[int, int]]) -> None:
        """Take the history of a home, and drop what its log doesn't have (L2)."""
        end = common_end(self.known.starts, self.known.index, starts)
        count = shared_epochs(self.known.starts, starts)
        epoch: i64 = starts[-1][0]
        if end < self.known.index:
            self.truncate(end, epoch)
        elif count < len(starts) and end < i64(starts[-1][1]) - 1:
            # The epochs begin above what is here: until the rest has come there is a hole.
            self.begin_install()
        for each in starts[count:]:
            self.begin_epoch(each[0], each[1])

    # ---- making it whole ------------------------------------------------------------------------

    def begin_install(self) -> None:
        """From here on the copy isn't whole, and after a restart it isn't eligible."""
        self.whole = False
        self._lifting = False
        if not self.known.installing:
            self.record(install_record(self.group, self.known.epoch, 0, True))

    def end_install(self) -> None:
        """The durable part is complete; the mark is lifted when that is on disk.

        A copy that took over before could be home, crash, and then not be eligible, as the only one
        that has what it confirmed.
        """
        self.record(install_record(self.group, self.known.epoch, self.known.index, False))
        self._lifting = True
        self.disk = 0
        self._tokens.clear()
        self._indexes.clear()

    # ---- how far it is on disk ------------------------------------------------------------------

    def handed_over(self, token: i64) -> None:
        """The journal's batch, which ends at position `token`, was handed to the writer."""
        if self._appended:
            self._appended = False
            self._tokens.append(int(token))
            self._indexes.append(int(self.known.index))
        elif len(self._tokens) == 0:
            self.disk = self.known.index
        else:
            # Nothing that has to be on disk has come since.
            self._indexes[-1] = int(self.known.index)

    def synced(self, position: i64) -> i64:
        """Everything below `position` is on disk: note up to which index the copy is."""
        done: i64 = 0
        while done < len(self._tokens) and i64(self._tokens[done]) <= position:
            done += 1
        if done > 0:
            self.disk = self._indexes[done - 1]
            self._lifting = False
            del self._tokens[:done]
            del self._indexes[:done]
        if len(self._tokens) == 0 and not self._appended:
            self.disk = self.known.index
        return self.disk

    # ---- queues in and out ----------------------------------------------------------------------

    def adopt(self, queue: RecoveredQueue) -> None:
        """Take a queue in, with its references: one that a restart found, or that was active."""
        found = QueueReplay(queue.queue_id, self.group)
        for priority, level in queue.levels.items():
            found.set_level(priority, level)
        # A checkpoint has the counts of transient messages too, which are gone after a restart.
        for index, count in queue.delivery_counts.items():
            if found.has(index):
                found.delivery_counts[index] = count
        found.seen = queue.seen
        found.shown = queue.shown
        found.leases = queue.leases
        found.estimate_sizes(max(queue.content_bytes, 0))
        self.replay.take_queue(queue.queue_id)
        self.replay.queues[queue.queue_id] = found

    def recovered(self, queue_id: i64) -> RecoveredQueue | None:
        """Take a queue out, with its references: what `restore_queue` takes."""
        found = self.replay.take_queue(queue_id)
        if found is None:
            return None
        size = found.bytes_below(1 << 62)
        levels: dict[int, PagedIndex] = {}
        for priority in sorted(found.levels):
            level = found.levels[priority]
            if level.count > 0:
                level.forget_sizes()
                levels[priority] = level
        return RecoveredQueue(
            int(queue_id),
            int(self.group),
            levels,
            found.delivery_counts,
            int(size),
            found.seen,
            found.shown,
            found.leases,
        )

    def let_go(self) -> None:
        """Release what is left; the new owner has recorded that it is gone."""
        for queue_id in list(self.replay.queues):
            self.replay.drop_queue(queue_id)
        self._release()

    def discard(self) -> None:
        """This broker keeps nothing of it any more, and nothing comes back with a restart.

        What is left is not whole: a copy that is to follow again begins with everything.
        """
        self.begin_install()
        for origin in list(self.known.origins):
            self.record(number_record(self.group, self.epoch, 0, origin, 0, FLAG_DURABLE))
        for queue_id in list(self.replay.queues):
            self.record(drop_queue_record(self.group, self.epoch, 0, queue_id, FLAG_DURABLE))

    # ---- checkpoints and compaction -------------------------------------------------------------

    def write_checkpoint(self, builder: CheckpointBuilder) -> None:
        """The group and its queues, as far as they are in the journal."""
        known = self.known
        builder.group(
            int(self.group),
            int(known.epoch),
            int(known.index),
            known.starts,
            known.origins,
            known.refused,
            known.installing,
        )
        for queue_id, queue in self.replay.queues.items():
            size = int(queue.bytes_below(SPILL_SEGMENT_FIRST))
            builder.queue(
                queue_id,
                int(self.group),
                size,
                dict(queue.delivery_counts),
                queue.seen,
                queue.shown,
                queue.leases,
            )
            for priority, level in queue.levels.items():
                builder.entries(priority, level)

    def indexes(self) -> list[tuple[int, PagedIndex]]:
        """Every index with its queue's id, for compaction to plan and apply moves in."""
        return [
            (queue_id, level)
            for queue_id, queue in self.replay.queues.items()
            for level in queue.levels.values()
        ]


def references_in(data: bytes, at: i64) -> i64:
    """How many (queue, message) pairs a record adds."""
    kind: i64 = data[at + 8]
    if kind in (KIND_ENQUEUE, KIND_MOVED):
        return u16_at(data, at + 42)
    if kind != KIND_TX:
        return 0
    total: i64 = 0
    inner: i64 = at + RECORD_HEADER_BYTES
    end: i64 = inner + u32_at(data, at)
    while inner < end:
        total += references_in(data, inner)
        inner += RECORD_HEADER_BYTES + u32_at(data, inner)
    return total


def _is_durable(data: bytes, at: i64) -> bool:
    return i64(data[at + 9]) & FLAG_DURABLE != 0


def _is_mixed(data: bytes, at: i64) -> bool:
    """Whether this is a transaction with a record that isn't durable."""
    if data[at + 8] != KIND_TX:
        return False
    inner: i64 = at + RECORD_HEADER_BYTES
    end: i64 = inner + u32_at(data, at)
    while inner < end:
        if not _is_durable(data, inner):
            return True
        inner += RECORD_HEADER_BYTES + u32_at(data, inner)
    return False
