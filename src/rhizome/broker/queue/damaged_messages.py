"""Damaged messages: messages whose records can't be read, set aside so that their queues go on.

Nothing is recorded about a damaged message. The journal, its checkpoints and every copy of the
group go on counting it as alive. So its segment stays on disk, a restart finds it again, and a copy
that has it whole delivers it after a takeover. A record such as a DEQUEUE would make that copy
discard the last whole record. Only an administrator who drops the message, or purges or deletes the
queue, causes such a record.

If the queue's group has standbys, they are asked first, and the queue waits for their answers: a
message that a standby has comes at its place in the order. Otherwise it is set aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.message import (
    SPILL_POSITION_FIRST,
    Message,
    content_channel,
    is_journaled,
    largest_frame,
)
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import (
    RECORD_HEADER_BYTES,
    StoredMessage,
    content_bytes_at,
    u16_at,
    u32_at,
)

if TYPE_CHECKING:
    from rhizome.broker.queue.priority_lane import Lane
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.queue.queue_host import QueueHost

FIXED_BYTES: Final = 46
"""The size of a message record without the ids of its queues, its route and its content."""


@final
class DamagedMessage:
    """A message that is set aside; ``content_bytes`` is a guess if its lengths are damaged."""

    queue: Queue
    priority: i64
    index: i64
    position: i64
    content_bytes: i64
    reason: str
    found_ms: i64

    def __init__(
        self,
        queue: Queue,
        priority: i64,
        index: i64,
        position: i64,
        content_bytes: i64,
        reason: str,
        found_ms: i64,
    ) -> None:
        self.queue = queue
        self.priority = priority
        self.index = index
        self.position = position
        self.content_bytes = content_bytes
        self.reason = reason
        self.found_ms = found_ms


@final
class Damage:
    """Invariant: a message in ``aside`` is alive in the log of its queue, has one reference to its
    segment, and is neither ready nor unacked. ``asked`` has the messages that copies were asked
    for: False while an answer may come, True once no copy has them. ``in_copies`` has the messages,
    by queue and index, that were found damaged in copies of groups that are active elsewhere."""

    broker: QueueHost
    aside: dict[Queue, dict[int, DamagedMessage]]
    asked: dict[Queue, dict[int, bool]]
    in_copies: dict[tuple[int, int], str]
    found: i64
    repaired: i64

    def __init__(self, broker: QueueHost) -> None:
        self.broker = broker
        self.aside = {}
        self.asked = {}
        self.in_copies = {}
        self.found = 0
        self.repaired = 0

    # ---- finding it -----------------------------------------------------------------------------

    def met(self, queue: Queue, lane: Lane, buffer: bytes, at: i64, reason: str) -> bool:
        """The first paged message of a lane can't be read: ``buffer`` has what is left of its
        record at ``at``. Returns whether the queue goes on without it; otherwise the queue waits
        for a copy."""
        return self.met_at(queue, lane, lane.paged.first_index(), _bytes(buffer, at), reason)

    def met_at(self, queue: Queue, lane: Lane, index: i64, size: i64, reason: str) -> bool:
        """The same for any paged message that is to be delivered next; ``size`` is that of its
        content, -1 if it isn't known."""
        asked = self.asked.get(queue)
        if asked is None or index not in asked:
            if self.broker.ask_copies(queue, index):
                self.asked.setdefault(queue, {})[index] = False
                return False
        elif not asked[index]:
            return False
        position = lane.paged.remove(index)
        lane.paged_count -= 1
        self.set_aside(queue, _number_of(queue, lane), index, position, size, reason)
        return True

    def met_behind(self, queue: Queue, index: i64) -> None:
        """A message that isn't the first can't be read: ask copies for it. If no copy has it, it is
        set aside once it is the first."""
        asked = self.asked.setdefault(queue, {})
        if index not in asked:
            asked[index] = True
            asked[index] = not self.broker.ask_copies(queue, index)

    def set_aside(
        self, queue: Queue, priority: i64, index: i64, position: i64, size: i64, reason: str
    ) -> None:
        """Set aside a message that was ready and has left its lane."""
        if size < 0:
            size = queue.ready_bytes // queue.ready
        if queue.bounded:
            queue.body_bytes -= queue.body_bytes // queue.ready
        queue.ready -= 1
        queue.ready_bytes = max(queue.ready_bytes - size, 0)
        if queue.ready == 0:
            queue.ready_bytes = 0
            queue.body_bytes = 0
        self._keep(queue, priority, index, position, size, reason)

    def held(self, queue: Queue, lane: Lane, index: i64, position: i64) -> Message:
        """The placeholder of a damaged message that has left its lane because a client holds it:
        the client settles it."""
        self._forget_asked(queue, index)
        size = queue.ready_bytes // queue.ready
        queue.ready_bytes -= size
        queue.durable_bytes = max(queue.durable_bytes - size, 0)
        return placeholder(queue, index, position, _number_of(queue, lane))

    def put_back(self, queue: Queue, message: Message, reason: str) -> None:
        """A client gives back a message, neither ready nor unacked any more, whose record was found
        damaged when the client presented it."""
        pager = self.broker.pager
        pager.resident_bytes -= message.cost
        queue.resident_bytes -= message.cost
        priority = min(message.priority, i64(len(queue.lanes) - 1))
        self._keep(queue, priority, message.index, message.position, 0, reason)

    def _keep(
        self, queue: Queue, priority: i64, index: i64, position: i64, size: i64, reason: str
    ) -> None:
        self.found += 1
        self.aside.setdefault(queue, {})[index] = DamagedMessage(
            queue, priority, index, position, size, reason, self.broker.turn.now_ms
        )
        self._forget_asked(queue, index)
        self.broker.message_damaged(queue, index, reason)

    def met_in_copy(self, queue_id: i64, index: i64, reason: str) -> None:
        """A message of a passive copy can't be read."""
        key = (int(queue_id), int(index))
        if key not in self.in_copies:
            self.in_copies[key] = reason
            self.broker.copy_damaged(queue_id, index, reason)

    # ---- what others ask ------------------------------------------------------------------------

    def of(self, queue: Queue) -> list[DamagedMessage]:
        """The messages of a queue that are set aside, in order."""
        found = self.aside.get(queue)
        return [] if found is None else [found[index] for index in sorted(found)]

    def everything(self) -> list[DamagedMessage]:
        """All messages of this broker that are set aside."""
        found: list[DamagedMessage] = []
        for queue in self.aside:
            found.extend(self.of(queue))
        return found

    def wanted(self) -> list[tuple[Queue, int]]:
        """The messages that can't be read at this broker and that no copy had so far."""
        found = [(each.queue, int(each.index)) for each in self.everything()]
        for queue, asked in self.asked.items():
            found.extend([(queue, index) for index, missing in asked.items() if missing])
        return found

    def count(self) -> i64:
        total: i64 = 0
        for found in self.aside.values():
            total += len(found)
        return total

    def indexes(self, queue: Queue) -> list[tuple[int, PagedIndex]]:
        """The messages of a queue that are set aside, with their positions, by priority."""
        levels: dict[int, PagedIndex] = {}
        for each in self.of(queue):
            level = levels.get(each.priority)
            if level is None:
                level = PagedIndex()
                levels[each.priority] = level
            level.append(each.index, each.position)
        return list(levels.items())

    def segments(self) -> set[int]:
        """The segments that must stay because of messages that are set aside."""
        return {int(each.position >> 32) for each in self.everything()}

    # ---- copies ---------------------------------------------------------------------------------

    def nobody_has(self, queue: Queue, index: i64) -> None:
        """All copies that were asked for a message have answered that they don't have it, or can't
        answer."""
        asked = self.asked.get(queue)
        if asked is not None and index in asked:
            asked[index] = True
            if not queue.marked and not queue.deleted:
                queue.touch()
            self.broker.copies_answered()

    def repair(self, queue: Queue, stored: StoredMessage) -> bool:
        """A copy had a message whose record here is damaged: write it again. Returns False if it
        isn't needed any more."""
        index = stored.index
        asked = self.asked.get(queue)
        for lane in queue.lanes:
            old = lane.paged.find(index)
            if old != 0 and asked is not None and index in asked:
                self._write(queue, stored, old, lane)
                self._forget_asked(queue, index)
                if not queue.marked:
                    queue.touch()
                return True
        found = self.aside.get(queue)
        if found is None or index not in found:
            return False
        damaged = self._take(queue, index)
        message = self._message(stored)
        message.position = self._write(queue, stored, damaged.position, None)
        message.persistent = is_journaled(message)
        self.broker.pager.charge(queue, message)
        queue.unacked += 1
        queue.take_back(message)
        return True

    def _write(self, queue: Queue, stored: StoredMessage, old: i64, lane: Lane | None) -> i64:
        """Write a message to the journal or spill where it was, and release its old place."""
        pager = self.broker.pager
        journal = pager.spill if old >= SPILL_POSITION_FIRST else pager.journal
        position = journal.moved(
            stored.group,
            stored.epoch,
            stored.index,
            [int(queue.id)],
            stored.tail,
            stored.arrived_ms,
            stored.expiration_ms,
            stored.priority,
            0,
            stored.content,
        )
        if lane is not None:
            lane.paged.insert_sorted(stored.index, position)
        journal.release(old)
        self.repaired += 1
        self.broker.message_repaired(queue, stored.index)
        return position

    def _message(self, stored: StoredMessage) -> Message:
        content = stored.content
        route = self.broker.pager.route(stored.tail)
        message = Message(route, content, content_channel(content), largest_frame(content))
        message.index = stored.index
        message.arrived_ms = stored.arrived_ms
        message.expiration_ms = stored.expiration_ms
        message.priority = stored.priority
        return message

    # ---- giving it up ---------------------------------------------------------------------------

    def drop(self, queue: Queue, index: i64) -> bool:
        """Give a message up for good: the log records it, and every copy drops it. Returns False if
        it isn't set aside."""
        found = self.aside.get(queue)
        if found is None or index not in found:
            return False
        damaged = self._take(queue, index)
        queue.durable_bytes = max(queue.durable_bytes - damaged.content_bytes, 0)
        gone = placeholder(queue, index, damaged.position, damaged.priority)
        self.broker.pager.charge(queue, gone)
        queue.forget(gone)
        return True

    def release(self, queue: Queue) -> None:
        """A queue releases everything that it has set aside; the caller has that recorded."""
        self.asked.pop(queue, None)
        for each in self.of(queue):
            pager = self.broker.pager
            journal = pager.spill if each.position >= SPILL_POSITION_FIRST else pager.journal
            journal.release(each.position)
            queue.counts.pop(each.index, 0)
        self.aside.pop(queue, None)

    def _take(self, queue: Queue, index: i64) -> DamagedMessage:
        found = self.aside[queue]
        damaged = found.pop(index)
        if len(found) == 0:
            del self.aside[queue]
        return damaged

    def _forget_asked(self, queue: Queue, index: i64) -> None:
        asked = self.asked.get(queue)
        if asked is not None:
            asked.pop(index, None)
            if len(asked) == 0:
                del self.asked[queue]


def placeholder(queue: Queue, index: i64, position: i64, priority: i64) -> Message:
    """The stand-in for a message whose content can't be read: it can be settled, and nothing else.
    No other message has an empty content."""
    message = Message(queue.broker.pager.route_last, b"", 0, 0)
    message.index = index
    message.position = position
    message.priority = priority
    message.persistent = position < SPILL_POSITION_FIRST
    return message


def is_placeholder(message: Message) -> bool:
    return len(message.content) == 0


def _number_of(queue: Queue, lane: Lane) -> i64:
    at: i64 = 0
    while queue.lanes[at] is not lane:
        at += 1
    return at


def _bytes(buffer: bytes, at: i64) -> i64:
    """The length of the content in a damaged record; -1 if its lengths don't fit each other."""
    if at + FIXED_BYTES > len(buffer):
        return -1
    length: i64 = u32_at(buffer, at)
    queues_end: i64 = at + FIXED_BYTES + u16_at(buffer, at + 42) * 4
    if queues_end + 4 > len(buffer):
        return -1
    tail_end: i64 = queues_end + u16_at(buffer, queues_end - 2)
    if tail_end + 4 > len(buffer):
        return -1
    size = content_bytes_at(buffer, at)
    return size if size <= length - (tail_end + 4 - at - RECORD_HEADER_BYTES) else -1
