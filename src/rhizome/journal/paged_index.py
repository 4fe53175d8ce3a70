"""PagedIndex: the messages of a queue that live only on disk, at about 8 bytes each. Compiled.

Entries (message index, journal position) are kept in ascending order of index, in chunks of at most
4095. A chunk holds entries of one segment: their distances from the index of its first entry and
their offsets, 4 bytes each. A removed entry in the middle of a chunk keeps its place with offset 0,
where no record can be; a chunk's first and last entries are always live.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from rhizome.journal.index_chunk import SIZE_UNKNOWN, IndexChunk

USUAL_SLACK_BYTES: Final = 256
"""Records of a queue differ in size by a little: the length of a key or of a number."""


@final
class RecordRun:
    """Entries of one segment at rising offsets, the first of them at `offset`.

    The record of the last entry begins `span` bytes after `offset` and extends beyond. Indexes and
    offsets are packed: a backlog is drained through here, and objects would cost more than the
    decoding of its messages.
    """

    segment: i64
    offset: i64
    span: i64
    count: i64
    indexes: vec[i64]
    offsets: vec[i32]

    def __init__(self, segment: i64, offset: i64) -> None:
        self.segment = segment
        self.offset = offset
        self.span = 0
        self.count = 0
        self.indexes = vec[i64]()
        self.offsets = vec[i32]()

    def takes(self, offset: i64, span_bytes_max: i64) -> bool:
        """Whether the record at `offset` lies behind the others and within the span."""
        distance: i64 = offset - self.offset
        return self.count == 0 or self.span < distance <= span_bytes_max

    def push(self, index: i64, offset: i64) -> None:
        self.indexes = append(self.indexes, index)
        self.offsets = append(self.offsets, i32(offset))
        self.span = offset - self.offset
        self.count += 1

    def bytes_wanted(self, single_bytes: i64) -> i64:
        """How much to read from `offset` on: the span, and a record of the usual size.

        A last record that is longer is left for the next run. Of a single record nothing is known
        but its place: `single_bytes` are read.
        """
        if self.count < 2:
            return single_bytes
        return self.span + self.span // (self.count - 1) + USUAL_SLACK_BYTES


HEAD_SLACK_MAX: Final = 64
CHUNK_HEADER_BYTES: Final = 20


@final
class PagedIndex:
    """An ordered map of message index to journal position.

    `sized` also keeps the content size of each entry (4 bytes more) and their sum; recovery needs
    that while it applies dequeues, and drops the sizes when it is done. `unsized` counts entries
    whose size isn't known; where they were is noted when they are removed, unless `estimated`.

    Invariant: chunks before `_head` are gone; of the others each has a live entry, and all its
    entries are above those of the one before.
    """

    count: i64
    sized: bool
    sized_bytes: i64
    unsized: i64
    estimated: bool
    removed_unsized: vec[i64]
    _chunks: list[IndexChunk]
    _head: i64

    def __init__(self, sized: bool = False) -> None:
        self.count = 0
        self.sized = sized
        self.sized_bytes = 0
        self.unsized = 0
        self.estimated = False
        self.removed_unsized = vec[i64]()
        self._chunks = []
        self._head = 0

    def __len__(self) -> int:
        return int(self.count)

    # --- adding -------------------------------------------------------------------------------

    def append(self, index: i64, position: i64) -> None:
        """Add an entry, usually above all others; one that isn't goes to its place."""
        self.append_sized(index, position, SIZE_UNKNOWN)

    def append_sized(self, index: i64, position: i64, size: i64) -> i64:
        """Add an entry; returns the position that the entry of this index had before, or 0."""
        segment: i64 = position >> 32
        chunks = self._chunks
        if len(chunks) > self._head:
            chunk = chunks[-1]
            if index <= chunk.last_index():
                return self._insert(index, position, size)
            if not chunk.takes(index, segment):
                chunk = IndexChunk(index, segment)
                chunks.append(chunk)
        else:
            chunk = IndexChunk(index, segment)
            chunks.append(chunk)
        self._push(chunk, index, position & 0xFFFFFFFF, size)
        self.count += 1
        return 0

    def insert_sorted(self, index: i64, position: i64) -> None:
        """Add an entry at its place, or give the entry that has this index a new position."""
        self.append_sized(index, position, SIZE_UNKNOWN)

    # --- reading ------------------------------------------------------------------------------

    def first_index(self) -> i64:
        """The lowest index; -1 if there is none."""
        if self.count == 0:
            return -1
        return self._chunks[self._head].first_index()

    def last_index(self) -> i64:
        """The highest index; -1 if there is none."""
        return -1 if self.count == 0 else self._chunks[-1].last_index()

    def find(self, index: i64) -> i64:
        """The position of an entry; 0 if there is none."""
        at = self._chunk_at(index)
        if at < 0:
            return 0
        chunk = self._chunks[at]
        slot = chunk.slot(index)
        if not self._holds(at, slot, index):
            return 0
        return chunk.segment << 32 | i64(chunk.offsets[slot])

    def peek_run(self, span_bytes_max: i64) -> RecordRun:
        """The leading entries of one segment, at rising offsets within `span_bytes_max`.

        At least one entry if there is any; a run of count 0 otherwise.
        """
        at = self._head
        run = RecordRun(0, 0)
        if at < len(self._chunks):
            chunk = self._chunks[at]
            run = RecordRun(chunk.segment, i64(chunk.offsets[chunk.start]))
        while at < len(self._chunks) and self._chunks[at].segment == run.segment:
            chunk = self._chunks[at]
            slot: i64 = chunk.start
            while slot < len(chunk.offsets):
                offset: i64 = i64(chunk.offsets[slot])
                if offset != 0:
                    if not run.takes(offset, span_bytes_max):
                        return run
                    run.push(chunk.base + i64(chunk.distances[slot]), offset)
                slot += 1
            at += 1
        return run

    def peek(self, count: i64) -> list[tuple[int, int]]:
        """Up to `count` leading entries (index, position), left where they are."""
        found: list[tuple[int, int]] = []
        at = self._head
        while at < len(self._chunks) and len(found) < count:
            chunk = self._chunks[at]
            slot: i64 = chunk.start
            while slot < len(chunk.offsets) and len(found) < count:
                self._collect(found, chunk, slot)
                slot += 1
            at += 1
        return found

    def peek_from(self, index: i64, count: i64) -> list[tuple[int, int]]:
        """Up to `count` entries (index, position) from this index on, left where they are."""
        found: list[tuple[int, int]] = []
        at = self._chunk_at(index)
        slot: i64 = 0
        if at < 0:
            at = self._head
        else:
            slot = self._chunks[at].slot(index)
        while at < len(self._chunks) and len(found) < count:
            chunk = self._chunks[at]
            if slot < chunk.start:
                slot = chunk.start
            while slot < len(chunk.offsets) and len(found) < count:
                self._collect(found, chunk, slot)
                slot += 1
            at += 1
            slot = 0
        return found

    def positions(self) -> list[tuple[int, int]]:
        """All entries (index, position). For tools and tests: it costs an object each."""
        return self.peek(self.count)

    def entries_in(self, segment: i64, count_max: i64) -> list[tuple[int, int]]:
        """Up to `count_max` entries whose records are in `segment`."""
        found: list[tuple[int, int]] = []
        at = self._head
        while at < len(self._chunks) and len(found) < count_max:
            chunk = self._chunks[at]
            slot: i64 = chunk.start
            while chunk.segment == segment and slot < len(chunk.offsets) and len(found) < count_max:
                self._collect(found, chunk, slot)
                slot += 1
            at += 1
        return found

    def count_references(self, references: dict[int, int]) -> None:
        """Add the number of entries per segment to `references`."""
        at = self._head
        while at < len(self._chunks):
            chunk = self._chunks[at]
            segment = int(chunk.segment)
            references[segment] = references.get(segment, 0) + int(chunk.live)
            at += 1

    def collect_ranges(self, first: i64, end: i64, numbers_max: i64, found: list[int]) -> i64:
        """Add the indexes in [first, end) to [first, count, first, count, ...] until that has about
        `numbers_max` numbers; returns up to where they are there, exclusively.
        """
        at = self._chunk_at(first)
        if at < 0:
            at = self._head
        while at < len(self._chunks):
            chunk = self._chunks[at]
            begin = chunk.first_index()
            if begin >= end:
                return end
            if len(found) >= numbers_max:
                return begin if begin > first else first
            chunk.collect_ranges(first, end, found)
            at += 1
        return end

    # --- taking -------------------------------------------------------------------------------

    def take(self, count: i64) -> list[tuple[int, int]]:
        """Remove and return up to `count` leading entries (index, position)."""
        found = self.peek(count)
        self.drop(len(found))
        return found

    def drop(self, count: i64) -> None:
        """Remove up to `count` leading entries."""
        left = count
        while self._head < len(self._chunks) and left > 0:
            chunk = self._chunks[self._head]
            slot: i64 = chunk.start
            taken: i64 = 0
            while slot < len(chunk.offsets) and taken < left:
                if chunk.offsets[slot] != 0:
                    taken += 1
                slot += 1
            while slot < len(chunk.offsets) and chunk.offsets[slot] == 0:
                slot += 1
            if self.sized:
                self._forget_sizes_between(chunk, chunk.start, slot)
            chunk.start = slot
            chunk.live -= taken
            self.count -= taken
            left -= taken
            if chunk.live == 0:
                self._drop_head()

    def move_first(self, target: PagedIndex) -> None:
        """Move the entry with the lowest index to the end of another index."""
        chunk = self._chunks[self._head]
        size = self._size_at(chunk, chunk.start)
        index, position = self.take(1)[0]
        target.append_sized(index, position, size)

    def pop_last(self) -> tuple[int, int]:
        """Remove and return the entry with the highest index."""
        assert self.count > 0, "no entry to pop"
        chunk = self._chunks[-1]
        slot: i64 = len(chunk.offsets) - 1
        index = chunk.last_index()
        position: i64 = chunk.segment << 32 | i64(chunk.offsets[slot])
        self._kill(len(self._chunks) - 1, slot)
        return (index, position)

    def remove(self, index: i64) -> i64:
        """Remove an entry; returns its position, or 0 if there is none."""
        at = self._chunk_at(index)
        if at < 0:
            return 0
        chunk = self._chunks[at]
        slot = chunk.slot(index)
        if not self._holds(at, slot, index):
            return 0
        position: i64 = chunk.segment << 32 | i64(chunk.offsets[slot])
        self._kill(at, slot)
        return position

    def remove_range(self, first: i64, count: i64, released: dict[int, int] | None = None) -> i64:
        """Remove the entries with indexes in [first, first + count); returns how many there
        were, and adds to `released` how many in each segment.
        """
        removed: i64 = 0
        end: i64 = first + count
        at = self._chunk_at(first)
        if at < 0:
            at = self._head
        while at < len(self._chunks):
            chunk = self._chunks[at]
            if chunk.first_index() >= end:
                break
            before: i64 = self.count
            leading = at == self._head
            emptied = self._remove_from_chunk(at, first, end)
            gone: i64 = before - self.count
            removed += gone
            if released is not None and gone > 0:
                segment = int(chunk.segment)
                released[segment] = released.get(segment, 0) + int(gone)
            if not emptied:
                at += 1
            elif leading:
                at = self._head
        return removed

    def clear(self) -> None:
        self.count = 0
        self.sized_bytes = 0
        self.unsized = 0
        self.removed_unsized = vec[i64]()
        self._chunks = []
        self._head = 0

    # --- compaction ---------------------------------------------------------------------------

    def relocate(self, segment: i64, moves: dict[int, int]) -> i64:
        """Give entries of `segment` the new positions of `moves` (by index); returns how many."""
        old = self._chunks
        at = self._head
        self._chunks = []
        self._head = 0
        moved: i64 = 0
        while at < len(old):
            chunk = old[at]
            if chunk.segment == segment:
                moved += self._relocate_chunk(chunk, moves)
            else:
                self._chunks.append(chunk)
            at += 1
        return moved

    def _relocate_chunk(self, chunk: IndexChunk, moves: dict[int, int]) -> i64:
        moved: i64 = 0
        slot: i64 = chunk.start
        while slot < len(chunk.offsets):
            offset: i64 = i64(chunk.offsets[slot])
            if offset != 0:
                index: i64 = chunk.base + i64(chunk.distances[slot])
                position: i64 = chunk.segment << 32 | offset
                new: i64 = moves.get(int(index), 0)
                if new != 0:
                    position = new
                    moved += 1
                self._place_last(index, position, self._size_at(chunk, slot))
            slot += 1
        return moved

    # --- checkpoints --------------------------------------------------------------------------

    def to_bytes(self, below_segment: i64 = 0x7FFFFFFF) -> bytes:
        """The entries in segments below a number, in this machine's byte order."""
        writer = BytesWriter()
        at = self._head
        while at < len(self._chunks):
            chunk = self._chunks[at]
            at += 1
            if chunk.segment >= below_segment:
                continue
            if chunk.live != len(chunk.offsets):
                chunk = chunk.without_dead()
            write_i64_be(writer, chunk.base)
            write_i64_be(writer, chunk.segment)
            write_i32_be(writer, i32(chunk.live))
            writer.write(bytes(memoryview(chunk.distances)))
            writer.write(bytes(memoryview(chunk.offsets)))
        return writer.getvalue()

    @staticmethod
    def from_bytes(data: bytes, sized: bool = False) -> PagedIndex:
        """The index that `to_bytes` wrote; sizes are unknown."""
        found = PagedIndex(sized)
        view = memoryview(data)
        at: i64 = 0
        while at < len(data):
            chunk = IndexChunk(read_i64_be(data, at), read_i64_be(data, at + 8))
            live: i64 = i64(read_i32_be(data, at + 16))
            at += CHUNK_HEADER_BYTES
            chunk.distances = vec[i32](view[at : at + live * 4].cast("i"))
            at += live * 4
            chunk.offsets = vec[i32](view[at : at + live * 4].cast("i"))
            at += live * 4
            if sized:
                chunk.sizes = vec[i32]([i32(SIZE_UNKNOWN)] * live)
                found.unsized += live
            chunk.live = live
            found.count += live
            found._chunks.append(chunk)
        return found

    def forget_sizes(self) -> None:
        """Drop the sizes; the index is an ordinary one from now on."""
        self.sized = False
        self.unsized = 0
        self.estimated = False
        self.removed_unsized = vec[i64]()
        at = self._head
        while at < len(self._chunks):
            self._chunks[at].sizes = vec[i32]()
            at += 1

    def estimate_sizes(self) -> None:
        """Keep the sizes of entries that come from now on; those of the others aren't known."""
        self.sized = True
        self.estimated = True
        self.unsized = self.count
        self.sized_bytes = 0
        at = self._head
        while at < len(self._chunks):
            chunk = self._chunks[at]
            chunk.sizes = vec[i32]([i32(SIZE_UNKNOWN)] * len(chunk.offsets))
            at += 1

    def sized_bytes_below(self, segment: i64) -> i64:
        """The sum of the sizes that are known, of the entries in segments below a number."""
        total: i64 = 0
        at = self._head
        while at < len(self._chunks):
            chunk = self._chunks[at]
            if chunk.segment < segment:
                total += chunk.sized_bytes()
            at += 1
        return total

    # --- inside -------------------------------------------------------------------------------

    def _push(self, chunk: IndexChunk, index: i64, offset: i64, size: i64) -> None:
        chunk.push(index, offset)
        if self.sized:
            chunk.sizes = append(chunk.sizes, i32(size))
            if size > 0:
                self.sized_bytes += size
            elif size == SIZE_UNKNOWN:
                self.unsized += 1

    def _collect(self, found: list[tuple[int, int]], chunk: IndexChunk, slot: i64) -> None:
        offset: i64 = i64(chunk.offsets[slot])
        if offset != 0:
            index: i64 = chunk.base + i64(chunk.distances[slot])
            found.append((index, chunk.segment << 32 | offset))

    def _size_at(self, chunk: IndexChunk, slot: i64) -> i64:
        return i64(chunk.sizes[slot]) if len(chunk.sizes) > 0 else SIZE_UNKNOWN

    def _chunk_at(self, index: i64) -> i64:
        """The last chunk whose entries begin at or below `index`; -1 if none does."""
        low: i64 = self._head
        high: i64 = len(self._chunks)
        # Dequeues mostly hit the first chunk.
        if low < high and self._chunks[low].first_index() <= index:
            if low + 1 == high or self._chunks[low + 1].first_index() > index:
                return low
        while low < high:
            middle: i64 = (low + high) >> 1
            if self._chunks[middle].first_index() <= index:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low > self._head else -1

    def _remove_from_chunk(self, at: i64, first: i64, end: i64) -> bool:
        """Remove the entries of one chunk in [first, end); whether the chunk is gone."""
        chunk = self._chunks[at]
        slot = chunk.slot(first)
        while slot < len(chunk.distances):
            if chunk.base + i64(chunk.distances[slot]) >= end:
                return False
            if chunk.offsets[slot] != 0:
                last = chunk.live == 1
                self._kill(at, slot)
                if last:
                    return True
            slot += 1
        return False

    def _kill(self, at: i64, slot: i64) -> None:
        if self.sized:
            self._forget_sizes_between(self._chunks[at], slot, slot + 1)
        self._unlink(at, slot)

    def _unlink(self, at: i64, slot: i64) -> None:
        chunk = self._chunks[at]
        chunk.kill(slot)
        self.count -= 1
        if chunk.live == 0:
            if at == self._head:
                self._drop_head()
            else:
                del self._chunks[at]

    def _forget_sizes_between(self, chunk: IndexChunk, slot: i64, end: i64) -> None:
        while slot < end:
            offset: i64 = i64(chunk.offsets[slot])
            if offset != 0:
                size: i64 = i64(chunk.sizes[slot])
                if size == SIZE_UNKNOWN:
                    self.unsized -= 1
                    if not self.estimated:
                        position: i64 = chunk.segment << 32 | offset
                        self.removed_unsized = append(self.removed_unsized, position)
                else:
                    self.sized_bytes -= size
            slot += 1

    def _drop_head(self) -> None:
        # The list entry is overwritten so that the chunk's memory is freed now, not when the list
        # is trimmed.
        self._chunks[self._head] = _EMPTY_CHUNK
        self._head += 1
        if self._head == len(self._chunks):
            self._chunks = []
            self._head = 0
        elif self._head > HEAD_SLACK_MAX and self._head * 2 > len(self._chunks):
            self._chunks = self._chunks[self._head :]
            self._head = 0

    def _place_last(self, index: i64, position: i64, size: i64) -> None:
        """Append to the chunks without counting: for rebuilding."""
        segment: i64 = position >> 32
        if len(self._chunks) == self._head or not self._chunks[-1].takes(index, segment):
            self._chunks.append(IndexChunk(index, segment))
        chunk = self._chunks[-1]
        chunk.push(index, position & 0xFFFFFFFF)
        if self.sized:
            chunk.sizes = append(chunk.sizes, i32(size))

    def _insert(self, index: i64, position: i64, size: i64) -> i64:
        """Add an entry that isn't above all others, or move the one that has this index."""
        before: i64 = 0
        at = self._chunk_at(index)
        if at >= 0:
            chunk = self._chunks[at]
            slot = chunk.slot(index)
            if self._holds(at, slot, index):
                before = chunk.segment << 32 | i64(chunk.offsets[slot])
                known = self._size_at(chunk, slot)
                if known != SIZE_UNKNOWN:
                    self.sized_bytes -= known
                elif self.sized:
                    self.unsized -= 1
                # The size doesn't change with the place; an unknown size is counted elsewhere.
                size = known
                self._unlink(at, slot)
                at = self._chunk_at(index)
        segment: i64 = position >> 32
        if at >= 0 and self._chunks[at].last_index() > index:
            self._split(at, index)
        if at >= 0 and self._chunks[at].takes(index, segment):
            chunk = self._chunks[at]
        else:
            chunk = IndexChunk(index, segment)
            self._chunks.insert(at + 1 if at >= 0 else self._head, chunk)
        self._push(chunk, index, position & 0xFFFFFFFF, size)
        self.count += 1
        return before

    def _holds(self, at: i64, slot: i64, index: i64) -> bool:
        """Whether the entry of `index` is live at this place."""
        chunk = self._chunks[at]
        return (
            slot < len(chunk.distances)
            and chunk.base + i64(chunk.distances[slot]) == index
            and chunk.offsets[slot] != 0
        )

    def _split(self, at: i64, index: i64) -> None:
        """Divide a chunk so that its entries above `index` are in a chunk after it."""
        chunk = self._chunks[at]
        keep = IndexChunk(chunk.base, chunk.segment)
        rest = IndexChunk(0, chunk.segment)
        slot: i64 = chunk.start
        while slot < len(chunk.offsets):
            offset: i64 = i64(chunk.offsets[slot])
            if offset != 0:
                entry: i64 = chunk.base + i64(chunk.distances[slot])
                half = keep
                if entry > index:
                    half = rest
                    if rest.live == 0:
                        rest.base = entry
                half.push(entry, offset)
                if self.sized:
                    half.sizes = append(half.sizes, chunk.sizes[slot])
            slot += 1
        self._chunks[at] = keep
        self._chunks.insert(at + 1, rest)


_EMPTY_CHUNK: Final = IndexChunk(0, 0)
