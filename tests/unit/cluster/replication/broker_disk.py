"""A broker reduced to its disk: journal, spill, and what of it has been synced."""

from __future__ import annotations

from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.journal import checkpoint as checkpoints
from rhizome.journal import compaction
from rhizome.journal.checkpoint import CheckpointBuilder
from rhizome.journal.files import MemoryFiles
from rhizome.journal.journal import SPILL_SEGMENT_FIRST, Journal, SegmentWrite
from rhizome.journal.records import StoredMessage, decode_message
from rhizome.journal.recovery import recover

UUID = bytes(range(16))
GROUP = 7


class Place:
    """What was submitted and not synced is lost in a restart; the spill is lost in any case."""

    def __init__(self, files: MemoryFiles | None = None, segment_bytes: int = 4096) -> None:
        self.files = files or MemoryFiles()
        self.segment_bytes = segment_bytes
        self.recovered = recover(self.files, UUID)
        self.journal = Journal(UUID, segment_bytes, self.recovered.next_segment)
        for count in self.recovered.segments:
            self.journal.adopt(count.segment, count.live, count.total, count.size)
        self.journal.checkpointed(
            self.recovered.checkpoint_position, self.recovered.checkpoint_references
        )
        self.spill = Journal(UUID, segment_bytes, SPILL_SEGMENT_FIRST, scratch=True)
        self.spill_files = MemoryFiles()
        self.unsynced: list[tuple[list[SegmentWrite], int]] = []

    def copy(self, group: int = GROUP) -> GroupCopy:
        return GroupCopy.from_recovery(group, self.recovered, self.journal, self.spill)

    def submit(self) -> int:
        """Hand the batches of a turn over; the token of the journal's."""
        _write(self.spill_files, self.spill.take())
        chunks = self.journal.take()
        token = int(self.journal.end_position())
        if chunks:
            self.unsynced.append((chunks, token))
        return token

    def sync(self, batches: int = 1 << 30) -> int:
        """Sync some of what was submitted; the position up to which all is on disk."""
        for chunks, token in self.unsynced[:batches]:
            _write(self.files, chunks)
            self.journal.synced(token)
        del self.unsynced[:batches]
        if not self.unsynced and not self.journal.pending():
            return int(self.journal.end_position())
        return int(self.journal.synced_position())

    def checkpoint(self, copies: list[GroupCopy]) -> None:
        """Write a checkpoint and remove what it makes dead."""
        self.submit()
        self.sync()
        builder = CheckpointBuilder(int(self.journal.end_position()), UUID)
        for count in self.journal.segments():
            builder.segment(int(count.segment), int(count.total))
        for copy in copies:
            copy.write_checkpoint(builder)
        checkpoints.write(self.files, builder.pieces(clean=False))
        self.journal.checkpointed(builder.position, builder.references())
        for segment in self.journal.dead_segments():
            self.journal.removed(segment)
            self.files.remove(segment)
        for segment in self.spill.dead_segments():
            self.spill.removed(segment)
            self.spill_files.remove(segment)

    def compact(self, copy: GroupCopy) -> int:
        """Move everything out of the sparsest segments of both journals; how much was moved."""
        moved = 0
        for journal in (self.journal, self.spill):
            for segment in compaction.choose_victims(journal.segments(), 60):
                for queue_id, index in copy.indexes():
                    step = compaction.plan(queue_id, index, segment)
                    if step is not None:
                        self.submit()
                        self.sync()
                        messages = [self.message(position) for _, position in step.entries]
                        moved += compaction.apply(step, messages, index, journal)
        return moved

    def message(self, position: int) -> StoredMessage:
        """Read a message back."""
        segment, offset = position >> 32, position & 0xFFFFFFFF
        files = self.spill_files if segment >= SPILL_SEGMENT_FIRST else self.files
        data = files.read(segment, offset, 1 << 20)
        if not data:
            # Not synced yet: the writer has it.
            for chunks, _ in self.unsynced:
                for chunk in chunks:
                    if (
                        chunk.segment == segment
                        and chunk.offset <= offset < chunk.offset + chunk.size
                    ):
                        data = b"".join(chunk.pieces)[offset - int(chunk.offset) :]
        message = decode_message(data, 0)
        assert message is not None
        return message

    def restart(self) -> Place:
        return Place(self.files, self.segment_bytes)


def _write(files: MemoryFiles, chunks: list[SegmentWrite]) -> None:
    for chunk in chunks:
        if chunk.offset == 0:
            files.create(int(chunk.segment), 0)
        files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)


def references(copy: GroupCopy) -> dict[int, int]:
    """References per segment, counted from the indexes."""
    found: dict[int, int] = {}
    for _, index in copy.indexes():
        index.count_references(found)
    return {segment: count for segment, count in found.items() if count}
