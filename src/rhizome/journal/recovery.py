"""Recovery: finds what is live in the files of a store.

Load the newest valid checkpoint, apply all records from its position on (record_replay.py), and
decide what a place means where no valid record is:

- nothing but zeros follow in the last segment: its end;
- no valid record follows in the last segment: a torn tail. A crash cut the last writes short;
  nothing of it was ever reported durable. It is cut off.
- valid records follow in the last segment: damage, unless the bad part has a hole (sectors that
  the disk never got) and no SYNCED record after it says that it had been synced: then
  the power went while the pages of an unsynced batch were written in another order;
- anything else (an earlier segment, a missing segment, a live message in a missing segment) is
  damage to records that may have been confirmed.

Damage is always reported, all of it, and recovery refuses to go on unless it is told to accept it;
it then keeps everything else. Nothing is changed on disk before that decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rhizome.journal.checkpoint import Checkpoint, checkpoint_names, decode
from rhizome.journal.dedup_state import DedupState
from rhizome.journal.errors import CorruptRecord, CorruptStore, ForeignStore
from rhizome.journal.files import Files
from rhizome.journal.journal import SegmentCount
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.record_replay import (
    STOP_END_RECORD,
    STOP_INCOMPLETE,
    STOP_UNWRITTEN,
    GroupReplay,
    QueueReplay,
    Replay,
    find_record,
    merged,
)
from rhizome.journal.records import (
    KIND_END,
    KIND_SYNCED,
    KIND_TX,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    UNCHECKED_HEADER_BYTES,
    bare_record,
    check_record,
    content_bytes_at,
    crc32c,
    is_newer,
    offset_of,
    position_of,
    segment_header_fault,
    segment_of,
    u32_at,
)

WINDOW_BYTES: Final = 8 * 1024 * 1024
SECTOR_BYTES: Final = 512
CRC_OFFSET: Final = 4
MESSAGE_HEAD_BYTES: Final = 4096
"""Enough of a message's record to find its content length; read again if the route tail is
longer.
"""


@dataclass(frozen=True)
class Corruption:
    """A place where something that may have been confirmed can't be read."""

    segment: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"segment {self.segment} at {self.offset}: {self.reason}"


@dataclass
class RecoveredQueue:
    """The live messages of a queue: an index per priority, delivery counts of requeued ones.
    `seen`: its deduplication state (L5); `shown`: by priority, up to which index messages were
    delivered; `leases`: those of the queue, packed."""

    queue_id: int
    group: int
    levels: dict[int, PagedIndex]
    delivery_counts: dict[int, int]
    content_bytes: int
    seen: DedupState | None = None
    shown: dict[int, int] = field(default_factory=dict)
    leases: bytes = b""

    @property
    def count(self) -> int:
        return sum(len(level) for level in self.levels.values())

    def in_order(self) -> PagedIndex:
        """All messages in one index, for a queue that has no priorities. Empties `levels`."""
        levels = list(self.levels.values())
        self.levels = {}
        return levels[0] if len(levels) == 1 else merged(levels)


@dataclass
class Recovered:
    """What a store holds."""

    snapshot: bytes = b""
    commands: list[tuple[int, bytes]] = field(default_factory=list)
    queues: dict[int, RecoveredQueue] = field(default_factory=dict)
    groups: dict[int, GroupReplay] = field(default_factory=dict)
    segments: list[SegmentCount] = field(default_factory=list)
    next_segment: int = 1
    clean: bool = False
    checkpoint_position: int = 0
    checkpoint_references: dict[int, int] = field(default_factory=dict)
    checkpoint_bytes: int = 0
    records: int = 0
    torn_bytes: int = 0
    corruptions: list[Corruption] = field(default_factory=list)


@dataclass
class _Repair:
    """What to do with the last segment once recovery goes ahead."""

    segment: int = 0
    size: int = 0
    complete: bool = False


class _Recovery:
    def __init__(self, files: Files, store_uuid: bytes) -> None:
        self.files = files
        self.store_uuid = store_uuid
        self.existing = files.segments()
        self.corruptions: list[Corruption] = []
        self.replay = Replay()
        self.checkpoint: Checkpoint | None = None
        self.start = position_of(1, 0)
        self.torn_bytes = 0
        self.repair = _Repair()
        self.ends: dict[int, int] = {}

    # --- loading ------------------------------------------------------------------------------

    def load_checkpoint(self) -> None:
        names = checkpoint_names(self.files)
        for name in names:
            try:
                found = decode(name, self.files.load(name), self.store_uuid)
            except CorruptRecord as error:
                self.corruptions.append(Corruption(0, 0, error.reason))
                continue
            # An older checkpoint serves as well if all segments from its position on are there,
            # which is checked below.
            self.corruptions.clear()
            self.checkpoint = found
            self.replay = found.replay
            self.start = found.position
            return

    def scan_tail(self) -> None:
        tail = [segment for segment in self.existing if segment >= segment_of(self.start)]
        expected = segment_of(self.start)
        if not tail:
            if offset_of(self.start) > 0:
                self._damage(expected, 0, "the segment of the checkpoint's end is missing")
            return
        for segment in tail:
            while expected < segment:
                self._damage(expected, 0, "the segment is missing")
                expected += 1
            expected = segment + 1
            self._scan_segment(segment, segment == tail[-1])

    def _scan_segment(self, segment: int, last: bool) -> None:
        offset = offset_of(self.start) if segment == segment_of(self.start) else 0
        size = self.files.size(segment)
        if size < offset:
            self._damage(segment, size, "the segment ends before the checkpoint's position")
            return
        offset = self._check_header(segment, offset, size, last)
        while offset >= 0:
            stop_offset, reason = self._scan_windows(segment, offset, size)
            if reason == STOP_END_RECORD:
                self._end(segment, stop_offset, last, complete=True)
                return
            offset = self._judge(segment, stop_offset, size, last, reason)

    def _check_header(self, segment: int, offset: int, size: int, last: bool) -> int:
        """The offset to scan from; -1 if the segment never held a record."""
        header = self.files.read(segment, 0, SEGMENT_HEADER_BYTES)
        fault = segment_header_fault(header, segment, self.store_uuid)
        if not fault:
            return max(offset, SEGMENT_HEADER_BYTES)
        if is_newer(header):
            raise ForeignStore(f"{fault}: start the newer program that wrote it")
        if fault == "segment belongs to another store":
            raise ForeignStore(
                f"segment {segment} belongs to another store: it names {header[20:36].hex()} and "
                f"store.json {self.store_uuid.hex()}; put the one back that belongs here"
            )
        if last and self.is_torn(segment, 0, size):
            self._end(segment, 0, last, complete=False)
            return -1
        self._damage(segment, 0, fault)
        return max(offset, SEGMENT_HEADER_BYTES)

    def _scan_windows(self, segment: int, offset: int, size: int) -> tuple[int, int]:
        window = WINDOW_BYTES
        while True:
            buffer = self.files.read(segment, offset, min(window, size - offset))
            stop = self.replay.scan(buffer, 0, segment, offset)
            progress = int(stop.offset)
            offset += progress
            at_end = offset - progress + len(buffer) >= size
            if stop.reason != STOP_INCOMPLETE or at_end:
                return offset, int(stop.reason)
            window = WINDOW_BYTES if progress else window * 2

    # --- judging a place without a valid record -----------------------------------------------

    def _judge(self, segment: int, offset: int, size: int, last: bool, reason: int) -> int:
        """Decide what a stop means; return the offset to continue the scan at, -1 if there is
        none."""
        if last and self.is_torn(segment, offset, size):
            self._end(segment, offset, last, complete=False)
            return -1
        self._damage(segment, offset, _STOP_TEXTS.get(reason, "a record fails its checksum"))
        following = _following(self.files.read(segment, offset, size - offset))
        if following >= 0:
            return offset + following
        self._end(segment, offset, last, complete=False)
        return -1

    def is_torn(self, segment: int, offset: int, size: int) -> bool:
        """Whether a crash explains that no valid record is here, in the last segment."""
        if self._zeros_from(segment, offset, size):
            return True
        rest = self.files.read(segment, offset, size - offset)
        following = _following(rest)
        if following < 0 or _is_torn_transaction(rest):
            self.torn_bytes += len(rest.rstrip(b"\0"))
            return True
        if _synced_beyond(rest, following, position_of(segment, offset)):
            return False
        if _has_hole(rest, following, offset):
            self.torn_bytes += len(rest.rstrip(b"\0"))
            return True
        return False

    def _zeros_from(self, segment: int, offset: int, size: int) -> bool:
        while offset < size:
            block = self.files.read(segment, offset, min(WINDOW_BYTES, size - offset))
            if block != bytes(len(block)):
                return False
            offset += WINDOW_BYTES
        return True

    def _damage(self, segment: int, offset: int, reason: str) -> None:
        self.corruptions.append(Corruption(segment, offset, reason))

    def _end(self, segment: int, offset: int, last: bool, complete: bool) -> None:
        self.ends[segment] = offset
        if last:
            self.repair = _Repair(segment, offset, complete)

    # --- the result ---------------------------------------------------------------------------

    def find_missing_segments(self, accept: bool) -> None:
        """Live messages whose segment isn't there are damage; if that is accepted they are
        dropped.
        """
        references: dict[int, int] = {}
        for queue in self.replay.queues.values():
            for level in queue.levels.values():
                level.count_references(references)
        for segment in sorted(set(references) - set(self.existing)):
            text = f"the segment is missing and {references[segment]} live messages are in it"
            self._damage(segment, 0, text)
            if accept:
                self._drop_entries(segment)

    def _drop_entries(self, segment: int) -> None:
        for queue in self.replay.queues.values():
            queue.content_bytes = -1
            for level in queue.levels.values():
                for index, _ in level.entries_in(segment, level.count):
                    level.remove(index)

    def repair_last_segment(self) -> None:
        """Make the last segment complete, so that the next one may begin."""
        repair = self.repair
        if repair.segment == 0 or repair.complete:
            return
        if repair.size <= SEGMENT_HEADER_BYTES:
            self.files.remove(repair.segment)
            self.existing.remove(repair.segment)
            return
        self.files.cut(repair.segment, repair.size)
        self.files.write(repair.segment, repair.size, [bare_record(KIND_END, 0, 0, 0)])
        self.files.sync(repair.segment)
        self.ends[repair.segment] = repair.size + RECORD_HEADER_BYTES

    def result(self) -> Recovered:
        replay = self.replay
        found = Recovered(
            commands=replay.commands,
            groups=replay.groups,
            records=int(replay.records),
            torn_bytes=self.torn_bytes,
            corruptions=self.corruptions,
            checkpoint_position=self.start,
        )
        if self.checkpoint is not None:
            found.snapshot = self.checkpoint.snapshot
            found.clean = self.checkpoint.clean and replay.records == 0
            found.checkpoint_bytes = self.checkpoint.size
        for queue_id, queue in replay.queues.items():
            found.queues[queue_id] = self._recovered_queue(queue)
        found.segments = self._segment_counts()
        last = max(self.existing, default=0)
        found.next_segment = max(last + 1, segment_of(self.start))
        return found

    def _recovered_queue(self, queue: QueueReplay) -> RecoveredQueue:
        content_bytes = self._content_bytes(queue)
        levels = {p: level for p, level in sorted(queue.levels.items()) if level.count > 0}
        for level in levels.values():
            level.forget_sizes()
        return RecoveredQueue(
            int(queue.queue_id),
            int(queue.group),
            levels,
            queue.delivery_counts,
            content_bytes,
            queue.seen,
            queue.shown,
            queue.leases,
        )

    def _content_bytes(self, queue: QueueReplay) -> int:
        levels = queue.levels.values()
        if queue.count() == 0:
            return 0
        removed = [position for level in levels for position in level.removed_unsized]
        gone = any(segment_of(position) not in self.existing for position in removed)
        if queue.content_bytes < 0 or gone:
            return sum(self._content_size(p) for level in levels for _, p in level.positions())
        total = int(queue.content_bytes) + sum(int(level.sized_bytes) for level in levels)
        return total - sum(self._content_size(position) for position in removed)

    def _content_size(self, position: int) -> int:
        segment, offset = segment_of(position), offset_of(position)
        head = self.files.read(segment, offset, MESSAGE_HEAD_BYTES)
        try:
            return int(content_bytes_at(head, 0))
        except IndexError:
            # Many queues or a long route: as much as such a head can ever be.
            head = self.files.read(segment, offset, 64 + 0xFFFF * 5)
            return int(content_bytes_at(head, 0))

    def _segment_counts(self) -> list[SegmentCount]:
        references: dict[int, int] = {}
        for queue in self.replay.queues.values():
            for level in queue.levels.values():
                level.count_references(references)
        totals = self.replay.totals
        return [
            SegmentCount(
                segment,
                self.ends.get(segment, self.files.size(segment)),
                references.get(segment, 0),
                max(totals.get(segment, 0), references.get(segment, 0)),
            )
            for segment in self.existing
        ]


_STOP_TEXTS: Final = {
    STOP_UNWRITTEN: "an unwritten place with records after it, or a segment without its end",
    STOP_INCOMPLETE: "a record that its segment is too short for",
}


def recover(
    files: Files, store_uuid: bytes = b"", accept_corruption: bool = False, repair: bool = True
) -> Recovered:
    """What is live in the store; raises CorruptStore if it is damaged and that isn't accepted.

    `repair` makes the last segment complete (cutting off a torn tail); without it nothing is
    written.
    """
    recovery = _Recovery(files, store_uuid)
    recovery.load_checkpoint()
    references: dict[int, int] = {}
    for queue in recovery.replay.queues.values():
        for level in queue.levels.values():
            level.count_references(references)
    recovery.scan_tail()
    recovery.find_missing_segments(accept_corruption)
    if recovery.corruptions and not accept_corruption:
        raise CorruptStore(_refusal(recovery.corruptions), list(recovery.corruptions))
    if repair:
        recovery.repair_last_segment()
    found = recovery.result()
    found.checkpoint_references = references
    return found


def is_torn_tail(files: Files, segment: int, offset: int) -> bool:
    """Whether a crash, or a writer that is still writing, explains that no valid record is at
    `offset` of the last segment."""
    return _Recovery(files, b"").is_torn(segment, offset, files.size(segment))


def following_record(files: Files, segment: int, offset: int) -> int:
    """Where to continue reading behind a bad record at `offset`; -1 if nowhere in its segment."""
    rest = files.read(segment, offset, files.size(segment) - offset)
    following = _following(rest)
    return -1 if following < 0 else offset + following


def _refusal(corruptions: list[Corruption]) -> str:
    shown = "; ".join(str(corruption) for corruption in corruptions[:5])
    more = f" and {len(corruptions) - 5} more" if len(corruptions) > 5 else ""
    return (
        f"the journal is damaged: {shown}{more}. Confirmed messages may be lost. Restore "
        "the files, "
        "look at them with `rhizome journal inspect`, or start with corruption accepted to keep "
        "everything else"
    )


def _synced_beyond(buffer: bytes, offset: int, position: int) -> bool:
    """Whether a record at or after `offset` tells that `position` had been synced."""
    while offset >= 0:
        size = int(check_record(buffer, offset))
        if size <= 0:
            offset = int(find_record(buffer, offset + 1))
            continue
        if buffer[offset + 8] == KIND_SYNCED:
            synced = int.from_bytes(buffer[offset + 16 : offset + 24], "big")
            if synced > position:
                return True
        offset += size
    return False


def _following(rest: bytes) -> int:
    """Where to continue behind the bad record that `rest` begins with; -1 if nowhere.

    The records of a damaged transaction are no records of their own: half of it must not count.
    """
    claimed = _claimed_by_transaction(rest)
    if 0 < claimed < len(rest) and check_record(rest, claimed) > 0:
        return claimed
    return int(find_record(rest, 1))


def _claimed_by_transaction(rest: bytes) -> int:
    """How long the record at the start of `rest` says it is if it says it is a transaction."""
    if len(rest) < RECORD_HEADER_BYTES or rest[8] != KIND_TX:
        return 0
    return RECORD_HEADER_BYTES + int(u32_at(rest, 0))


def _is_torn_transaction(rest: bytes) -> bool:
    """Whether `rest` is the beginning of a transaction whose end was never written.

    The valid records in it are then its own. If it is whole with another length, that length is
    damaged, and the records behind it are real ones.
    """
    claimed = _claimed_by_transaction(rest)
    if len(rest.rstrip(b"\0")) >= claimed:
        return False
    crc = crc32c(rest[UNCHECKED_HEADER_BYTES:RECORD_HEADER_BYTES])
    at = RECORD_HEADER_BYTES
    size = int(check_record(rest, at))
    while size > 0:
        crc = crc32c(rest[at : at + size], crc)
        if crc == u32_at(rest, CRC_OFFSET):
            return False
        at += size
        size = int(check_record(rest, at))
    return True


def _has_hole(rest: bytes, following: int, offset: int) -> bool:
    """Whether sectors that never reached the disk explain the bad record that `rest` begins with.

    `rest` begins at `offset` of its file and has a valid record at `following`. A sector on disk is
    as it was at some moment since the last sync: all zeros, or zeros from the end of an earlier
    batch on, which is the beginning of a record.
    """
    extent = min(max(following, _claimed_by_transaction(rest)), len(rest))
    boundary = -offset % SECTOR_BYTES
    sectors = range(boundary, extent, SECTOR_BYTES)
    if any(not rest[at : at + SECTOR_BYTES].strip(b"\0") for at in sectors):
        return True
    if boundary == 0 or rest[:boundary].strip(b"\0"):
        return False
    # Few zeros may be a part of a small length; then the rest of the record must be as it was.
    few = boundary <= CRC_OFFSET
    return not few or crc32c(rest[UNCHECKED_HEADER_BYTES:following]) == u32_at(rest, CRC_OFFSET)
