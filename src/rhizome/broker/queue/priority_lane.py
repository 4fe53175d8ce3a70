"""Lane: the ready messages of one priority of a queue, in index order.

Three zones follow each other:

- ``returned``: requeued messages, back at their own place;
- the ring: messages in memory;
- ``paged``: messages that live on disk only and cost a few bytes of index each.

Invariant: every index in ``returned`` is below every index in the ring, and every index in the ring
is below every index in ``paged``. Messages are appended to the ring only while ``paged`` is empty.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.broker.queue_keys.index_sequence import SLACK_MIN, IndexSequence
from rhizome.journal.paged_index import PagedIndex

RING_SLOTS_MIN: Final = 16
LATE_MAX: Final = 1024
"""How many messages that came back out of order a step of a search goes through."""


class Lane:
    """``shown``: up to which index messages were delivered, if that matters after a crash;
    ``noted``: up to which index a record says so; ``before``: up to which index they had been
    delivered when the broker started."""

    slots: list[Message | None]
    head: i64
    tail: i64
    mask: i64
    returned: list[tuple[int, Message]]
    returned_sorted: bool
    paged: PagedIndex
    paged_count: i64
    fresh_index: i64
    fresh_until_ms: i64
    shown: i64
    noted: i64
    before: i64

    def __init__(self) -> None:
        self.slots = [None] * RING_SLOTS_MIN
        self.mask = RING_SLOTS_MIN - 1
        self.head = 0
        self.tail = 0
        self.returned = []
        self.returned_sorted = True
        self.paged = PagedIndex()
        self.paged_count = 0
        # The head last seen not to have expired, and until when it will not.
        self.fresh_index = -1
        self.fresh_until_ms = 0
        self.shown = -1
        self.noted = -1
        self.before = -1

    def is_made(self) -> bool:
        """Whether this is a real lane, and not the stand-in for all unused ones."""
        return self is not UNUSED_LANE

    def ready(self) -> i64:
        return self.tail - self.head + len(self.returned) + self.paged_count

    def push(self, message: Message) -> None:
        """Append a resident message. Its index is above all others of this lane."""
        if self.tail - self.head > self.mask:
            self._resize((self.mask + 1) * 2)
        tail = self.tail
        self.slots[tail & self.mask] = message
        self.tail = tail + 1

    def pop(self) -> Message | None:
        """The first message that is in memory, or None: then the lane is empty or must be
        filled.
        """
        if len(self.returned) > 0:
            return self._pop_returned()
        head = self.head
        if head == self.tail:
            return None
        at = head & self.mask
        message = self.slots[at]
        self.slots[at] = None
        self.head = head + 1
        if self.head == self.tail and self.mask > 1023:
            self._resize(RING_SLOTS_MIN)
        return message

    def peek(self) -> Message | None:
        """The first message that is in memory, left where it is."""
        if len(self.returned) > 0:
            self._sort_returned()
            return self.returned[-1][1]
        if self.head == self.tail:
            return None
        return self.slots[self.head & self.mask]

    def first_index(self) -> i64:
        """The index of the first message, in memory or on disk; -1 if there is none."""
        message = self.peek()
        if message is not None:
            return message.index
        return self.paged.first_index()

    def put_back(self, message: Message) -> None:
        """Requeue a message at its own place."""
        self.returned.append((message.index, message))
        self.returned_sorted = False

    def take(self, index: i64) -> Message | None:
        """Take a message that is in memory out of the middle; None if it isn't there."""
        at: i64 = 0
        while at < len(self.returned):
            if self.returned[at][0] == index:
                return self.returned.pop(at)[1]
            at += 1
        place = self._place(index)
        if place == self.tail:
            return None
        message = self.slots[place & self.mask]
        assert message is not None
        if message.index != index:
            return None
        # Claimed messages are mostly near the head.
        while place > self.head:
            self.slots[place & self.mask] = self.slots[(place - 1) & self.mask]
            place -= 1
        self.slots[place & self.mask] = None
        self.head += 1
        return message

    def find(self, index: i64) -> Message | None:
        """A message that is in memory, left where it is; None if it isn't there."""
        for number, message in self.returned:
            if i64(number) == index:
                return message
        place = self._place(index)
        found = None if place == self.tail else self.slots[place & self.mask]
        return found if found is not None and found.index == index else None

    def depth(self, index: i64) -> i64:
        """How many messages in the ring are before this index."""
        return self._place(index) - self.head

    def _place(self, index: i64) -> i64:
        """The place in the ring of the first message with this index or a higher one."""
        low = self.head
        high = self.tail
        while low < high:
            middle: i64 = (low + high) >> 1
            message = self.slots[middle & self.mask]
            assert message is not None
            if message.index < index:
                low = middle + 1
            else:
                high = middle
        return low

    def append_paged(self, index: i64, position: i64) -> None:
        self.paged.append(index, position)
        self.paged_count += 1

    def resident(self) -> list[Message]:
        """The messages in memory, in order."""
        self._sort_returned()
        found: list[Message] = [entry[1] for entry in reversed(self.returned)]
        at = self.head
        while at != self.tail:
            message = self.slots[at & self.mask]
            assert message is not None
            found.append(message)
            at += 1
        return found

    def resident_from(self, index: i64, count: i64) -> list[Message]:
        """Up to ``count`` messages in memory from this index on, by index: also if one that came
        back had been taken from the middle."""
        self._sort_returned()
        found: list[tuple[int, Message]] = []
        at = self._returned_from(index)
        while at >= 0 and len(found) < count:
            found.append(self.returned[at])
            at -= 1
        place = self._place(index)
        end: i64 = place + count if self.tail - place > count else self.tail
        while place != end:
            message = self.slots[place & self.mask]
            assert message is not None
            found.append((message.index, message))
            place += 1
        found.sort()
        return [each[1] for each in found[:count]]

    def _returned_from(self, index: i64) -> i64:
        """The place, among the sorted returned messages, of the first one from this index on; -1 if
        there is none."""
        low: i64 = 0
        high: i64 = len(self.returned)
        while low < high:
            middle: i64 = (low + high) >> 1
            if i64(self.returned[middle][0]) >= index:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def clear(self) -> None:
        """Forget everything; the caller has accounted for it."""
        self.slots = [None] * RING_SLOTS_MIN
        self.mask = RING_SLOTS_MIN - 1
        self.head = 0
        self.tail = 0
        self.returned = []
        self.returned_sorted = True
        self.paged = PagedIndex()
        self.paged_count = 0

    def _pop_returned(self) -> Message:
        self._sort_returned()
        return self.returned.pop()[1]

    def _sort_returned(self) -> None:
        if not self.returned_sorted:
            # Descending: the lowest index is popped off the end. Indexes are unique within a lane,
            # so the sort never compares messages.
            self.returned.sort(reverse=True)
            self.returned_sorted = True

    def _resize(self, slots_new: i64) -> None:
        fresh: list[Message | None] = [None] * slots_new
        count: i64 = self.tail - self.head
        at: i64 = 0
        while at < count:
            fresh[at] = self.slots[(self.head + at) & self.mask]
            at += 1
        self.slots = fresh
        self.mask = slots_new - 1
        self.head = 0
        self.tail = count


@final
class KeyedLane(Lane):
    """The lane of a keyed queue, which messages leave in any order: any of them at the same cost,
    where a plain lane moves those before it.

    Invariant: ``messages`` has what is in memory, by index, and ``paged`` the rest; ``order``
    has at least the indexes of ``messages``. The ring of plain lanes stays empty."""

    messages: dict[int, Message]
    order: IndexSequence

    def __init__(self) -> None:
        super().__init__()
        self.messages = {}
        self.order = IndexSequence()

    def ready(self) -> i64:
        return len(self.messages) + self.paged_count

    def holds(self, index: i64) -> bool:
        """Whether the message of this index is ready."""
        if int(index) in self.messages:
            return True
        return self.paged_count > 0 and self.paged.find(index) != 0

    def push(self, message: Message) -> None:
        self.messages[int(message.index)] = message
        self.order.add(message.index)
        if len(self.order) > 2 * len(self.messages) + SLACK_MIN:
            self.order.fill(sorted(self.messages))

    def put_back(self, message: Message) -> None:
        self.push(message)

    def pop(self) -> Message | None:
        """The first message; None if it is on disk."""
        message = self.peek()
        if message is not None:
            self.order.drop_first()
            del self.messages[int(message.index)]
        return message

    def peek(self) -> Message | None:
        index = self._first_in_memory()
        if index < 0 or (self.paged_count > 0 and self.paged.first_index() < index):
            return None
        return self.messages[int(index)]

    def first_index(self) -> i64:
        index = self._first_in_memory()
        if self.paged_count > 0:
            first = self.paged.first_index()
            if index < 0 or first < index:
                return first
        return index

    def _first_in_memory(self) -> i64:
        index = self.order.first()
        while index >= 0 and int(index) not in self.messages:
            self.order.drop_first()
            index = self.order.first()
        return index

    def take(self, index: i64) -> Message | None:
        return self.messages.pop(int(index), None)

    def find(self, index: i64) -> Message | None:
        return self.messages.get(int(index))

    def resident(self) -> list[Message]:
        return [self.messages[index] for index in sorted(self.messages)]

    def resident_from(self, index: i64, count: i64) -> list[Message]:
        order = self.order
        messages = self.messages
        if len(order.late) > LATE_MAX:
            # All of them would be gone through for each step of a search.
            order.fill(sorted(messages))
        found = [each for each in order.late if i64(each) >= index and each in messages]
        wanted: i64 = len(found) + count
        at = order.place(index)
        while at < len(order.rising) and len(found) < wanted:
            if int(order.rising[at]) in messages:
                found.append(int(order.rising[at]))
            at += 1
        return [messages[each] for each in sorted(set(found))[:count]]

    def clear(self) -> None:
        super().clear()
        self.messages = {}
        self.order.clear()

    def drop_stale(self, indexes: IndexSequence) -> None:
        """Drop the lowest of some indexes up to that of a message that is ready here."""
        index = indexes.first()
        while index >= 0 and not self.holds(index):
            indexes.drop_first()
            index = indexes.first()

    def prune(self, indexes: IndexSequence) -> None:
        """Keep of some indexes only those of messages that are ready here, each once."""
        indexes.fill(sorted({each for each in indexes.indexes() if self.holds(each)}))


UNUSED_LANE: Final = Lane()
"""The stand-in, in every queue, for priorities that no message has had: 256 empty lanes would take
145 KB. It stays empty for ever; to put a message into a lane use `Queue.made_lane`."""
