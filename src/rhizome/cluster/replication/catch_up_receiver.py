"""Catch-up receiver: brings a copy to what its home has, by live sets (L2). Compiled.

The home tells what is alive, a part at a time. Each part is true at the end n of the home's log at
which it is told, and the standby has applied the records up to n when it reads the part. The
standby drops what it has in that part and the home has not, and asks for what the home has and it
has not. Meanwhile records go on.

Why no acked message comes back. The home sends a message (BACKFILL) only while it is alive there,
on the same link as the records. If its DEQUEUE has been sent before, the message isn't sent any
more; if not, the DEQUEUE comes behind it.

Order. What lies above `sound` is fetched first: up to there the copy has everything that must
survive a restart. So after that part only transient messages are missing, the mark of the install
is lifted, and what the copy says of its disk counts again. Thus a restarted standby that is in sync
for disk (G2) holds up confirms only for what it missed, not for all transient messages.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.cluster.protocol.replication_codec import (
    ITEM_LEASES,
    ITEM_ORIGINS,
    ITEM_QUEUES,
    ITEM_REFUSALS,
    ITEM_SEEN,
    ITEM_SHOWN,
    ITEM_WINDOW,
)
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.replication.index_ranges import below, indexes_between, without
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.dedup_state import DedupState
from rhizome.journal.record_replay import QueueReplay
from rhizome.journal.records import (
    FLAG_DURABLE,
    FLAG_REFUSED,
    dequeue_ranges_record,
    drop_queue_record,
    leases_record,
    number_record,
    requeue_record,
    shown_record,
    u32_at,
    watermark_record,
)

WANT_RANGES_MAX: Final = 1024
WANT_MESSAGES_MAX: Final = 16 * 1024
RANGE_COUNT_MAX: Final = 0x7FFFFFFF


@final
class WantedMessages:
    """Messages to ask for, in order. Invariant: the first `asked` of them have been asked for."""

    asked: i64
    _triples: list[int]
    _head: i64

    def __init__(self) -> None:
        self.asked = 0
        self._triples = []
        self._head = 0

    def is_empty(self) -> bool:
        return self._head == len(self._triples)

    def add(self, queue_id: i64, ranges: list[int]) -> None:
        at: i64 = 0
        while at < len(ranges):
            first: i64 = ranges[at]
            count: i64 = ranges[at + 1]
            while count > 0:
                portion: i64 = min(count, i64(RANGE_COUNT_MAX))
                self._triples.append(int(queue_id))
                self._triples.append(int(first))
                self._triples.append(int(portion))
                first += portion
                count -= portion
            at += 2

    def ask(self) -> list[int]:
        """The next ones to ask for: [queue, first, count, ...]."""
        found: list[int] = []
        at = self._head
        while at < len(self._triples) and len(found) < WANT_RANGES_MAX * 3:
            count: i64 = min(i64(self._triples[at + 2]), WANT_MESSAGES_MAX - self.asked)
            if count <= 0:
                break
            found.append(self._triples[at])
            found.append(self._triples[at + 1])
            found.append(int(count))
            self.asked += count
            at += 3
        return found

    def answered(self, count: i64) -> None:
        """The first `count` of those that were asked for have been answered."""
        if count > self.asked:
            raise SyntaxErrorFault(f"{count} messages were sent and {self.asked} asked for")
        self.asked = 0
        while count > 0:
            left: i64 = self._triples[self._head + 2]
            if left > count:
                self._triples[self._head + 1] += int(count)
                self._triples[self._head + 2] = int(left - count)
                return
            count -= left
            self._head += 3
        if self._head == len(self._triples):
            self._triples = []
            self._head = 0


@final
class CatchUpReceiver:
    """The state of one catch-up at a standby.

    Invariant: everything that is alive at the home, in the parts that it has told of, is in the
    copy or in one of the wants.

    `listed`: the home has told all.
    """

    copy: GroupCopy
    sound: i64
    listed: bool
    high: WantedMessages
    low: WantedMessages

    def __init__(self, copy: GroupCopy, index: i64) -> None:
        """Begin at the end `index` of the home's log."""
        self.copy = copy
        self.sound = 0 if copy.installing else copy.index
        self.listed = False
        self.high = WantedMessages()
        self.low = WantedMessages()
        copy.begin_install()
        copy.advance(index)

    # ---- what is missing ------------------------------------------------------------------------

    def wants(self) -> WantedMessages | None:
        """What to ask for next; None if nothing is missing."""
        if not self.high.is_empty():
            return self.high
        if self.listed and not self.low.is_empty():
            return self.low
        return None

    def outstanding(self) -> bool:
        return self.high.asked > 0 or self.low.asked > 0

    def answered(self, count: i64) -> None:
        wants = self.low if self.low.asked > 0 else self.high
        wants.answered(count)

    # ---- what is alive --------------------------------------------------------------------------

    def take(self, data: bytes, at: i64, end: i64) -> None:
        """The items of a LIVE frame."""
        while at < end:
            item: i64 = data[at]
            at += 1
            if item == ITEM_WINDOW:
                at = self._window(data, at)
            elif item == ITEM_SEEN:
                at = self._seen(data, at)
            elif item == ITEM_SHOWN:
                at = self._shown(data, at)
            elif item == ITEM_LEASES:
                at = self._leases(data, at)
            elif item == ITEM_REFUSALS:
                at = self._refusals(data, at)
            elif item == ITEM_ORIGINS:
                at = self._origins(data, at)
            elif item == ITEM_QUEUES:
                at = self._queues(data, at)
            else:
                raise SyntaxErrorFault(f"a live set has an item {item}")

    def _window(self, data: bytes, at: i64) -> i64:
        queue_id: i64 = u32_at(data, at)
        first: i64 = read_i64_be(data, at + 4)
        end: i64 = read_i64_be(data, at + 12)
        count: i64 = u32_at(data, at + 20)
        at += 24
        counts: dict[int, int] = {}
        while count > 0:
            counts[read_i64_be(data, at)] = u32_at(data, at + 8)
            at += 12
            count -= 1
        count = u32_at(data, at)
        at += 4
        alive: list[int] = []
        while count > 0:
            alive.append(read_i64_be(data, at))
            alive.append(u32_at(data, at + 8))
            at += 12
            count -= 1
        self._compare(queue_id, first, end, alive)
        self._compare_counts(queue_id, first, end, counts)
        return at

    def _compare(self, queue_id: i64, first: i64, end: i64, alive: list[int]) -> None:
        queue = self.copy.queues.get(int(queue_id))
        own: list[int] = []
        if queue is not None:
            own = indexes_between(list(queue.levels.values()), first, end)
        surplus = without(own, alive)
        if len(surplus) > 0:
            self.copy.record(
                dequeue_ranges_record(
                    self.copy.group, self.copy.epoch, 0, queue_id, surplus, FLAG_DURABLE
                )
            )
        missing = without(alive, own)
        low = below(missing, self.sound + 1)
        self.low.add(queue_id, low)
        self.high.add(queue_id, without(missing, low))

    def _compare_counts(self, queue_id: i64, first: i64, end: i64, counts: dict[int, int]) -> None:
        """Set delivery counts in the window to those of the home."""
        queue = self.copy.queues.get(int(queue_id))
        changed = dict(counts)
        if queue is not None:
            for index, count in queue.delivery_counts.items():
                if first <= i64(index) < end:
                    if changed.get(index, 0) == count:
                        del changed[index]
                    else:
                        changed.setdefault(index, 0)
        copy = self.copy
        if len(changed) > 0:
            copy.replay.queue(queue_id, copy.group)
        for index, count in changed.items():
            copy.record(
                requeue_record(copy.group, copy.epoch, 0, queue_id, index, count, FLAG_DURABLE)
            )

    def _seen(self, data: bytes, at: i64) -> i64:
        queue_id: i64 = u32_at(data, at)
        end: i64 = at + 8 + u32_at(data, at + 4)
        packed = data[at + 8 : end]
        queue = self.copy.queues.get(int(queue_id))
        if len(packed) == 0 and (queue is None or queue.seen is None):
            return end
        if len(packed) == 0:
            packed = DedupState().packed()
        copy = self.copy
        copy.record(watermark_record(copy.group, copy.epoch, 0, queue_id, packed, FLAG_DURABLE))
        return end

    def _shown(self, data: bytes, at: i64) -> i64:
        queue_id: i64 = u32_at(data, at)
        count: i64 = data[at + 4]
        at += 5
        copy = self.copy
        queue: QueueReplay = copy.replay.queue(queue_id, copy.group)
        while count > 0:
            index: i64 = read_i64_be(data, at + 1)
            if i64(queue.shown.get(data[at], 0)) != index:
                priority: i64 = data[at]
                copy.record(
                    shown_record(copy.group, copy.epoch, 0, queue_id, priority, index, FLAG_DURABLE)
                )
            at += 9
            count -= 1
        return at

    def _leases(self, data: bytes, at: i64) -> i64:
        queue_id: i64 = u32_at(data, at)
        end: i64 = at + 8 + u32_at(data, at + 4)
        packed = data[at + 8 : end]
        queue = self.copy.queues.get(int(queue_id))
        if packed != (b"" if queue is None else queue.leases):
            copy = self.copy
            copy.record(leases_record(copy.group, copy.epoch, 0, queue_id, packed, FLAG_DURABLE))
        return end

    def _refusals(self, data: bytes, at: i64) -> i64:
        """Replace the refusals of an origin where the copy has others than the home. Its own may
        come from records that were cut off, and their numbers may be those of other messages
        now."""
        missing = dict(self.copy.known.refused)
        count: i64 = u32_at(data, at)
        at += 4
        while count > 0:
            origin = read_i64_be(data, at)
            end: i64 = at + 12 + 8 * u32_at(data, at + 8)
            at += 12
            numbers: list[int] = []
            while at < end:
                numbers.append(read_i64_be(data, at))
                at += 8
            self._refuse(origin, missing.pop(origin, []), numbers)
            count -= 1
        for origin, own in missing.items():
            self._refuse(origin, own, [])
        return at

    def _refuse(self, origin: i64, own: list[int], numbers: list[int]) -> None:
        if own == numbers:
            return
        self._put_number(origin, 0, FLAG_DURABLE)
        for number in numbers:
            self._put_number(origin, number, FLAG_DURABLE | FLAG_REFUSED)

    def _origins(self, data: bytes, at: i64) -> i64:
        count: i64 = u32_at(data, at)
        at += 4
        numbers: dict[int, int] = {}
        while count > 0:
            numbers[read_i64_be(data, at)] = read_i64_be(data, at + 8)
            at += 16
            count -= 1
        own = dict(self.copy.origins)
        for origin in own:
            if origin not in numbers:
                self._put_number(origin, 0, FLAG_DURABLE)
        for origin, number in numbers.items():
            if own.get(origin, 0) != number:
                self._put_number(origin, number, FLAG_DURABLE)
        return at

    def _put_number(self, origin: i64, number: i64, flags: i64) -> None:
        copy = self.copy
        copy.record(number_record(copy.group, copy.epoch, 0, origin, number, flags))

    def _queues(self, data: bytes, at: i64) -> i64:
        count: i64 = u32_at(data, at)
        at += 4
        alive: dict[int, int] = {}
        while count > 0:
            alive[u32_at(data, at)] = 1
            at += 4
            count -= 1
        copy = self.copy
        for queue_id in list(copy.queues):
            if queue_id not in alive:
                copy.record(drop_queue_record(copy.group, copy.epoch, 0, queue_id, FLAG_DURABLE))
        return at
