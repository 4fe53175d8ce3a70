"""Replay: what the records of a journal amount to. Compiled: recovery speed is the speed of this
loop.

Records are applied in the order of the journal. The rules, which the broker must keep on its side:

- an ENQUEUE brings its message to life in each queue it names, a MOVED gives the message of one
  queue a new place; both carry the message's own index;
- DEQUEUE, PURGE, DROP_QUEUE and EPOCH only ever end the life of messages that an earlier record of
  the journal (or the checkpoint) brought to life;
- the number of an origin (A1) only rises with messages; a NUMBER sets it whatever it was;
- the identity in an ENQUEUE is accepted by each queue it names (L5); a WATER sets what a queue has
  accepted whatever it was;
- so the live set after the last record is right whatever prefix of the journal survived a crash.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.journal.dedup_state import DedupState, identity_at, unpack_dedup_state
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import (
    CHECK_BAD,
    CHECK_INCOMPLETE,
    CHECK_UNWRITTEN,
    FLAG_DURABLE,
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    FLAG_REFUSED,
    KIND_DEQUEUE,
    KIND_DROP_QUEUE,
    KIND_END,
    KIND_ENQUEUE,
    KIND_EPOCH,
    KIND_INSTALL,
    KIND_LAST,
    KIND_LEASES,
    KIND_MOVED,
    KIND_NUMBER,
    KIND_PURGE,
    KIND_REQUEUE,
    KIND_SHOWN,
    KIND_STATE,
    KIND_SYNCED,
    KIND_TX,
    KIND_WATERMARK,
    RECORD_HEADER_BYTES,
    check_record,
    content_bytes_at,
    identity_offset,
    origin_at,
    u16_at,
    u32_at,
)

INDEX_SPAN_MAX: Final = 0x7FFFFFFFFFFFFFFF

# Why a scan stopped.
STOP_END_RECORD: Final = 1
STOP_UNWRITTEN: Final = 2
STOP_INCOMPLETE: Final = 3
STOP_BAD: Final = 4


@final
class QueueReplay:
    """The live messages of one queue, in an index per priority.

    `content_bytes` is the sum for the messages that came from a checkpoint (-1: unknown); the sized
    indexes hold the sums of the others. `unsized`: how many messages that sum is of, if the sizes
    of the remaining ones are to be estimated. `seen`: the queue's deduplication state (L5).
    `shown`: by priority, up to which index messages were delivered. `leases`: those of the queue,
    packed.
    """

    queue_id: i64
    group: i64
    content_bytes: i64
    unsized: i64
    levels: dict[int, PagedIndex]
    delivery_counts: dict[int, int]
    seen: DedupState | None
    shown: dict[int, int]
    leases: bytes
    _level: i64
    _index: PagedIndex

    def __init__(self, queue_id: i64, group: i64) -> None:
        self.queue_id = queue_id
        self.group = group
        self.content_bytes = 0
        self.unsized = 0
        self.levels = {}
        self.delivery_counts = {}
        self.seen = None
        self.shown = {}
        self.leases = b""
        self._level = -1
        self._index = PagedIndex(True)

    def level(self, priority: i64) -> PagedIndex:
        if priority == self._level:
            return self._index
        found = self.levels.get(int(priority))
        if found is None:
            found = PagedIndex(True)
            self.levels[int(priority)] = found
        self._level = priority
        self._index = found
        return found

    def level_of(self, index: i64, priority: i64) -> PagedIndex:
        """The priority whose index has a message; `priority` if none has.

        A queue with fewer priorities keeps a message at a lower priority than its record says, and
        so do checkpoints.
        """
        for level in self.levels.values():
            if level.find(index) != 0:
                return level
        return self.level(priority)

    def set_level(self, priority: i64, index: PagedIndex) -> None:
        self.levels[int(priority)] = index
        self._level = -1

    def remove_range(self, first: i64, count: i64, released: dict[int, int] | None = None) -> None:
        """Messages are gone; `released` counts them by the segments that their records are in."""
        for index in self.levels.values():
            index.remove_range(first, count, released)
        if len(self.delivery_counts) > 0:
            self._forget_counts(first, count)

    def _forget_counts(self, first: i64, count: i64) -> None:
        if count == 1:
            self.delivery_counts.pop(int(first), 0)
            return
        end: i64 = first + count
        gone = [index for index in self.delivery_counts if first <= i64(index) < end]
        for index in gone:
            del self.delivery_counts[index]

    def set_count(self, index: i64, count: i64) -> None:
        """How often a message has been delivered; 0 forgets it."""
        if count == 0:
            self.delivery_counts.pop(int(index), 0)
        else:
            self.delivery_counts[int(index)] = int(count)

    def accepted(self) -> DedupState:
        """The queue's deduplication state, to be added to."""
        if self.seen is None:
            self.seen = DedupState()
        return self.seen

    def truncate(self, index: i64, released: dict[int, int] | None = None) -> None:
        """The log's records from an index on are void.

        What was accepted there stays known: a copy that has to truncate gets the watermarks and
        leases of the home with the records that follow.
        """
        self.remove_range(index, INDEX_SPAN_MAX - index, released)
        if self.seen is not None:
            self.seen.truncate(index)
        for priority in list(self.shown):
            if i64(self.shown[priority]) >= index:
                self.shown[priority] = int(index - 1)

    def count(self) -> i64:
        total: i64 = 0
        for index in self.levels.values():
            total += index.count
        return total

    def has(self, index: i64) -> bool:
        """Whether a message is live in the queue."""
        return any(level.find(index) != 0 for level in self.levels.values())

    def estimate_sizes(self, content_bytes: i64) -> None:
        """Only the sum of the sizes of these messages is known."""
        for index in self.levels.values():
            index.estimate_sizes()
        self.unsized = self.count()
        self.content_bytes = content_bytes

    def bytes_below(self, segment: i64) -> i64:
        """The content bytes of the messages whose records are in segments below a number. Messages
        of unknown size count as the average of such, and as below."""
        total: i64 = 0
        unsized: i64 = 0
        for index in self.levels.values():
            total += index.sized_bytes_below(segment)
            unsized += index.unsized
        if unsized > 0:
            total += self.content_bytes * unsized // self.unsized
        return total


FLAGS_AT: Final = 9

REFUSED_MAX: Final = 65_536
"""The most refused numbers remembered of one origin; no more publishes can be waiting at an
edge."""


def note_refused(refused: dict[int, list[int]], origin: i64, number: i64) -> None:
    """Remember that a number of an origin was refused, and forget old ones. Mostly it is the last
    number; a repeated report may be older, or known."""
    numbers = refused.get(int(origin))
    if numbers is None:
        numbers = []
        refused[int(origin)] = numbers
    at = len(numbers)
    while at > 0 and i64(numbers[at - 1]) > number:
        at -= 1
    if at > 0 and i64(numbers[at - 1]) == number:
        return
    numbers.insert(at, int(number))
    if len(numbers) >= 2 * REFUSED_MAX:
        del numbers[:REFUSED_MAX]


def take_back_refused(refused: dict[int, list[int]], origin: i64, number: i64) -> list[int]:
    """Forget refusals above the last number that counts, because those numbers are used again.
    Returns the list that is left, which goes on changing."""
    numbers = refused.get(int(origin))
    if numbers is None:
        numbers = []
        refused[int(origin)] = numbers
    while len(numbers) > 0 and i64(numbers[len(numbers) - 1]) > number:
        del numbers[len(numbers) - 1]
    return numbers


@final
class GroupReplay:
    """The progress of a group's log: how far it got, where its epochs began, the last number of
    each origin, and which numbers were refused, oldest first.

    `installing`: a copy of the group was being caught up and is not whole.
    """

    epoch: i64
    index: i64
    starts: list[tuple[int, int]]
    origins: dict[int, int]
    refused: dict[int, list[int]]
    installing: bool

    def __init__(self) -> None:
        self.epoch = 0
        self.index = 0
        self.starts = []
        self.origins = {}
        self.refused = {}
        self.installing = False

    def take_number(self, origin: i64, number: i64) -> None:
        """Take the number of an origin's message; a copy of an old message (MOVED) must not lower
        it."""
        if number > i64(self.origins.get(int(origin), 0)):
            self.origins[int(origin)] = int(number)

    def set_number(self, origin: i64, number: i64) -> None:
        if number == 0:
            self.origins.pop(int(origin), None)
            self.refused.pop(int(origin), None)
        else:
            self.origins[int(origin)] = int(number)
            if int(origin) in self.refused:
                take_back_refused(self.refused, origin, number)

    def refuse_number(self, origin: i64, number: i64) -> None:
        """At least one queue refused what came under a number. Later numbers may have been taken
        already: a copy that catches up is told of the refusal later."""
        self.take_number(origin, number)
        note_refused(self.refused, origin, number)


@final
class Stop:
    """Where and why a scan of a buffer stopped."""

    offset: i64
    reason: i64

    def __init__(self, offset: i64, reason: i64) -> None:
        self.offset = offset
        self.reason = reason


@final
class Replay:
    """Applies records; holds the resulting state.

    With `released` it counts there, by segment, the references that records end. A replay that is
    kept current beside a journal uses this to release them.
    """

    released: dict[int, int] | None
    queues: dict[int, QueueReplay]
    groups: dict[int, GroupReplay]
    commands: list[tuple[int, bytes]]
    totals: dict[int, int]
    records: i64
    messages: i64
    synced: i64
    _group: i64
    _group_replay: GroupReplay
    _queue: QueueReplay

    def __init__(self, released: dict[int, int] | None = None) -> None:
        self.released = released
        self.queues = {}
        self.groups = {}
        self.commands = []
        self.totals = {}
        self.records = 0
        self.messages = 0
        self.synced = 0
        self._group = -1
        self._group_replay = GroupReplay()
        self._queue = QueueReplay(-1, 0)

    def scan(self, buffer: bytes, start: i64, segment: i64, buffer_offset: i64) -> Stop:
        """Apply the records of `buffer` from `start` on; it holds the segment from
        `buffer_offset`.
        """
        offset: i64 = start
        messages_before: i64 = self.messages
        reason: i64 = 0
        while reason == 0:
            size: i64 = check_record(buffer, offset)
            if size > 0:
                position: i64 = segment << 32 | (offset + buffer_offset)
                if self.apply(buffer, offset, size, position):
                    reason = STOP_END_RECORD
                offset += size
            elif size == CHECK_UNWRITTEN:
                reason = STOP_UNWRITTEN
            elif size == CHECK_INCOMPLETE:
                reason = STOP_INCOMPLETE
            else:
                assert size == CHECK_BAD
                reason = STOP_BAD
        added: i64 = self.messages - messages_before
        self.totals[int(segment)] = self.totals.get(int(segment), 0) + int(added)
        return Stop(offset, reason)

    def apply(self, buffer: bytes, offset: i64, size: i64, position: i64) -> bool:
        """Apply one record that has been checked; True if it ends the segment."""
        word: i64 = u32_at(buffer, offset + 8)
        kind: i64 = word >> 24
        self.records += 1
        if kind == KIND_SYNCED:
            self.synced = read_i64_be(buffer, offset + 16)
            return False
        if kind == KIND_END:
            return True
        if kind == KIND_STATE:
            command = buffer[offset + RECORD_HEADER_BYTES : offset + size]
            self.commands.append((read_i64_be(buffer, offset + 16), command))
            return False
        group: i64 = word & 0xFFFF
        if kind == KIND_EPOCH:
            self.begin_epoch(group, u32_at(buffer, offset + 12), read_i64_be(buffer, offset + 16))
            return False
        self._note_group(group, u32_at(buffer, offset + 12), read_i64_be(buffer, offset + 16))
        if kind in (KIND_ENQUEUE, KIND_MOVED):
            self._message(buffer, offset, group, position)
        elif kind == KIND_DEQUEUE:
            self._dequeue(buffer, offset + RECORD_HEADER_BYTES)
        elif kind == KIND_TX:
            self._transaction(buffer, offset, size, position)
        else:
            self._rare(kind, buffer, offset + RECORD_HEADER_BYTES)
        return False

    def queue(self, queue_id: i64, group: i64) -> QueueReplay:
        """The replay of a queue, made if there is none yet."""
        if self._queue.queue_id == queue_id:
            return self._queue
        found = self.queues.get(int(queue_id))
        if found is None:
            found = QueueReplay(queue_id, group)
            self.queues[int(queue_id)] = found
        self._queue = found
        return found

    def group(self, group: i64) -> GroupReplay:
        found = self.groups.get(int(group))
        if found is None:
            found = GroupReplay()
            self.groups[int(group)] = found
        return found

    def take_queue(self, queue_id: i64) -> QueueReplay | None:
        """Take a queue out, with its references."""
        self._queue = QueueReplay(-1, 0)
        return self.queues.pop(int(queue_id), None)

    def drop_queue(self, queue_id: i64) -> None:
        """A queue is gone with all that it had."""
        queue = self.take_queue(queue_id)
        if queue is not None and self.released is not None:
            for level in queue.levels.values():
                level.count_references(self.released)

    def begin_epoch(self, group: i64, epoch: i64, index: i64) -> None:
        """An epoch begins at `index`: what the group has from there on is void."""
        known = self.group(group)
        known.epoch = epoch
        known.index = index - 1
        known.starts = starts_with(known.starts, epoch, index)
        for queue in self.queues.values():
            if queue.group == group:
                queue.truncate(index, self.released)

    # --- one kind each ------------------------------------------------------------------------

    def _note_group(self, group: i64, epoch: i64, index: i64) -> None:
        if group != self._group:
            self._group_replay = self.group(group)
            self._group = group
        known = self._group_replay
        if epoch > known.epoch:
            known.epoch = epoch
        if index > known.index:
            known.index = index

    def _message(self, buffer: bytes, offset: i64, group: i64, position: i64) -> None:
        index: i64 = read_i64_be(buffer, offset + 16)
        count_word: i64 = u32_at(buffer, offset + 40)
        priority: i64 = count_word >> 24
        size: i64 = content_bytes_at(buffer, offset)
        moved = u32_at(buffer, offset + 8) >> 24 == KIND_MOVED
        at: i64 = offset + 44
        end: i64 = at + (count_word & 0xFFFF) * 4
        while at < end:
            queue = self.queue(u32_at(buffer, at), group)
            queue.group = group
            level = queue.level_of(index, priority) if moved else queue.level(priority)
            before = level.append_sized(index, position, size)
            if before != 0:
                self._release(before)
            self.messages += 1
            at += 4
        flags: i64 = u32_at(buffer, offset + 8) >> 16
        if flags & FLAG_ORIGIN != 0:
            at = origin_at(buffer, offset)
            self._group_replay.take_number(read_i64_be(buffer, at), read_i64_be(buffer, at + 8))
        if flags & FLAG_IDENTITY != 0:
            self._accept(buffer, offset, group)

    def _accept(self, buffer: bytes, offset: i64, group: i64) -> None:
        """The queues of a message record have accepted its identity."""
        identity = identity_at(buffer, identity_offset(buffer, offset))
        index: i64 = read_i64_be(buffer, offset + 16)
        arrived_ms: i64 = read_i64_be(buffer, offset + 24)
        # A home without copies leaves the flag out; then the record is in its own journal.
        word: i64 = u32_at(buffer, offset + 8)
        on_disk = group == 0 or word >> 16 & FLAG_DURABLE != 0
        at: i64 = offset + 44
        end: i64 = at + u16_at(buffer, offset + 42) * 4
        while at < end:
            seen = self.queue(u32_at(buffer, at), group).accepted()
            seen.take(index, on_disk, identity, arrived_ms)
            at += 4

    def _dequeue(self, buffer: bytes, at: i64) -> None:
        queue = self.queues.get(int(u32_at(buffer, at)))
        if queue is None:
            return
        count: i64 = u32_at(buffer, at + 4)
        at += 8
        while count > 0:
            queue.remove_range(read_i64_be(buffer, at), u32_at(buffer, at + 8), self.released)
            at += 12
            count -= 1

    def _transaction(self, buffer: bytes, offset: i64, size: i64, position: i64) -> None:
        at: i64 = offset + RECORD_HEADER_BYTES
        end: i64 = offset + size
        while at < end:
            # The crc of the whole covers the parts: their own are for reading one back later.
            inner: i64 = RECORD_HEADER_BYTES + u32_at(buffer, at)
            self.apply(buffer, at, inner, position + (at - offset))
            at += inner

    def _rare(self, kind: i64, buffer: bytes, at: i64) -> None:
        assert kind <= KIND_LAST
        if kind == KIND_NUMBER:
            number: i64 = read_i64_be(buffer, at + 8)
            if buffer[at - RECORD_HEADER_BYTES + FLAGS_AT] & FLAG_REFUSED != 0:
                self._group_replay.refuse_number(read_i64_be(buffer, at), number)
            else:
                self._group_replay.set_number(read_i64_be(buffer, at), number)
            return
        if kind == KIND_INSTALL:
            self._group_replay.installing = buffer[at] != 0
            return
        queue_id = int(u32_at(buffer, at))
        queue = self.queues.get(queue_id)
        if kind == KIND_WATERMARK:
            self.queue(queue_id, self._group).seen = unpack_dedup_state(buffer, at + 4)
        elif kind == KIND_LEASES:
            end: i64 = at + u32_at(buffer, at - RECORD_HEADER_BYTES)
            self.queue(queue_id, self._group).leases = buffer[at + 4 : end]
        elif kind == KIND_DROP_QUEUE:
            self.drop_queue(queue_id)
        elif queue is None:
            return
        elif kind == KIND_SHOWN:
            queue.shown[buffer[at + 4]] = read_i64_be(buffer, at + 5)
        elif kind == KIND_REQUEUE:
            queue.set_count(read_i64_be(buffer, at + 4), u32_at(buffer, at + 12))
        elif kind == KIND_PURGE:
            queue.remove_range(0, read_i64_be(buffer, at + 4) + 1, self.released)

    def _release(self, position: i64) -> None:
        if self.released is not None:
            segment = int(position >> 32)
            self.released[segment] = self.released.get(segment, 0) + 1


def starts_with(starts: list[tuple[int, int]], epoch: i64, index: i64) -> list[tuple[int, int]]:
    """The (epoch, first index) pairs of a log in which an epoch begins at `index`.

    An epoch that never had a record, or whose records are void, is none; and an epoch that begins
    again (in a copy that was cut back first) begins there.
    """
    found = [start for start in starts if i64(start[1]) < index and i64(start[0]) < epoch]
    found.append((int(epoch), int(index)))
    return found


def merged(indexes: list[PagedIndex]) -> PagedIndex:
    """One index of the entries of several whose message indexes are all different; empties them."""
    filled = [index for index in indexes if index.count > 0]
    if len(filled) == 0:
        return PagedIndex()
    found = filled[0]
    for other in filled[1:]:
        found = _merged_two(found, other)
    return found


def _merged_two(first: PagedIndex, second: PagedIndex) -> PagedIndex:
    found = PagedIndex(first.sized)
    while first.count > 0 and second.count > 0:
        if first.first_index() < second.first_index():
            first.move_first(found)
        else:
            second.move_first(found)
    rest = first if first.count > 0 else second
    while rest.count > 0:
        rest.move_first(found)
    return found


def find_record(buffer: bytes, start: i64) -> i64:
    """Offset of the first valid record in `buffer` at or after `start`; -1 if there is none.

    For telling a torn tail from damage, byte by byte: what comes before is known to be no record.
    """
    offset: i64 = start
    limit: i64 = len(buffer) - RECORD_HEADER_BYTES
    while offset <= limit:
        # Cheap refusals first: almost every offset is refused by its kind or length.
        if buffer[offset + 8] != 0 and check_record(buffer, offset) > 0:
            return offset
        offset += 1
    return -1
