"""StreamTracking: the state that the chunks of a stream amount to, besides their messages.
Compiled.

Recovery, a copy that follows its home, and the home itself keep the same tracking state. The home
makes chunks and tracks what they say; the others take the chunks, one by one, and track the same.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from rhizome.journal.dedup_state import DedupState, identity_at, unpack_dedup_state
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    KIND_MESSAGES,
    KIND_SNAPSHOT,
    KIND_TRACKING,
    NOTE_EPOCH,
    NOTE_FIRST,
    NOTE_OFFSET,
    NOTE_ORIGIN,
    NOTE_SEEN,
    NOTE_START,
    NOTE_USED,
    ORIGIN_BYTES,
    ChunkHead,
    entry_end,
    notes_of,
    put_note,
    put_seen,
)

EPOCHS_MAX: Final = 64
"""How many epochs a log knows the first chunk of. A copy that is further behind starts again."""


class StreamTracking:
    """Invariant: this is what the chunks up to the last one say, and nothing else. ``offsets``:
    what consumers have acknowledged, by name, the one that moved last at the end; ``used``: when
    each of these names was last heard of, in ms, as far as that is known; ``origins``: the last
    number of each edge (A1); ``seen``: the deduplication state (L5). ``starts`` has the first
    offset of each epoch, ``epochs`` the number of its first chunk (L2). ``kept_from``: the first
    segment that retention has kept, as far as a chunk says so."""

    epoch: i64
    offsets: dict[bytes, int]
    used: dict[bytes, int]
    origins: dict[int, int]
    seen: DedupState
    starts: list[tuple[int, int]]
    epochs: list[tuple[int, int]]
    kept_from: i64

    def __init__(self) -> None:
        self.epoch = 0
        self.offsets = {}
        self.used = {}
        self.origins = {}
        self.seen = DedupState()
        self.starts = []
        self.epochs = []
        self.kept_from = 0

    def enter_epoch(self, epoch: i64, first: i64, number: i64) -> None:
        """An epoch begins with this offset, and the chunk of this number."""
        self.epoch = epoch
        if len(self.starts) == 0 or i64(self.starts[-1][0]) < epoch:
            self.starts.append((int(epoch), int(first)))
        if len(self.epochs) == 0 or i64(self.epochs[-1][0]) < epoch:
            self.epochs.append((int(epoch), int(number)))
            if len(self.epochs) > EPOCHS_MAX:
                self.epochs.pop(0)

    def take_chunk(self, head: ChunkHead, data: bytes, at: i64) -> None:
        """Track what the chunk at ``at``, which has been checked, says."""
        if head.kind == KIND_MESSAGES:
            self._take_entries(head, data, at)
        elif head.kind == KIND_SNAPSHOT:
            self.offsets = {}
            self.used = {}
            self.origins = {}
            self.seen = DedupState()
            self.starts = []
            self.epochs = []
            self._take_notes(data, at + CHUNK_HEADER_BYTES, at + head.size)
        elif head.kind == KIND_TRACKING:
            self._take_notes(data, at + CHUNK_HEADER_BYTES, at + head.size)
        if head.epoch > self.epoch:
            self.enter_epoch(head.epoch, head.first, head.number)

    def _take_entries(self, head: ChunkHead, data: bytes, at: i64) -> None:
        """Track what messages say about their senders."""
        end: i64 = at + head.size
        at += CHUNK_HEADER_BYTES
        offset = head.first
        while at < end:
            flags: i64 = data[at + 6]
            after = entry_end(data, at)
            at += ENTRY_HEADER_BYTES
            if flags & FLAG_ORIGIN != 0:
                self.origins[read_i64_be(data, at)] = read_i64_be(data, at + 8)
                at += ORIGIN_BYTES
            if flags & FLAG_IDENTITY != 0:
                self.seen.take(offset + 1, True, identity_at(data, at + 2), head.time_ms)
            at = after
            offset += 1

    def _take_notes(self, data: bytes, at: i64, end: i64) -> None:
        for kind, name, value in notes_of(data, at, end):
            if kind == NOTE_OFFSET:
                self.offsets.pop(name, 0)
                if value < 0:
                    self.used.pop(name, 0)
                else:
                    self.offsets[name] = value
            elif kind == NOTE_USED:
                self.used[name] = value
            elif kind == NOTE_ORIGIN:
                if value == 0:
                    self.origins.pop(int(name, 16), 0)
                else:
                    self.origins[int(name, 16)] = value
            elif kind == NOTE_START:
                self.starts.append((int(name), value))
            elif kind == NOTE_EPOCH:
                self.epochs.append((int(name), value))
            elif kind == NOTE_SEEN:
                self.seen = unpack_dedup_state(name, 0)
            elif kind == NOTE_FIRST:
                self.kept_from = value

    def put_snapshot(self, writer: BytesWriter) -> None:
        """The whole tracking state, as the entries of a SNAPSHOT."""
        for name, offset in self.offsets.items():
            put_note(writer, NOTE_OFFSET, name, offset)
            if name in self.used:
                put_note(writer, NOTE_USED, name, self.used[name])
        for origin, number in self.origins.items():
            put_note(writer, NOTE_ORIGIN, b"%x" % origin, number)
        for epoch, start in self.starts:
            put_note(writer, NOTE_START, b"%d" % epoch, start)
        for epoch, first in self.epochs:
            put_note(writer, NOTE_EPOCH, b"%d" % epoch, first)
        if not self.seen.is_empty():
            put_seen(writer, self.seen.packed())

    def take_notes_of(self, other: StreamTracking) -> None:
        """Continue with the tracking state of another."""
        self.epoch = other.epoch
        self.offsets = other.offsets
        self.used = other.used
        self.origins = other.origins
        self.seen = other.seen
        self.starts = other.starts
        self.epochs = other.epochs
        self.kept_from = other.kept_from
