"""MessageCursor: a place among the ready messages of a queue, from which a search goes on later.

Invariant: messages come in the order of delivery, each at most once, and none that arrived after
the search began: a search that puts messages back into its own queue ends all the same. What is
taken or given back behind the place between two steps is not seen.
"""

from __future__ import annotations

from typing import Final, final

from rhizome.broker.message import Message
from rhizome.broker.queue.pager import Pager
from rhizome.broker.queue.queue import Queue

STEP_MESSAGES_MAX: Final = 64
STEP_BYTES_MAX: Final = 256 * 1024
"""A step ends with the message that reaches this size."""


@final
class MessageCursor:
    """A place in a search, which ``step`` moves on."""

    lane: int
    """The lane that is looked at next; -1 at the end."""
    index: int
    """The first index of that lane that was not seen."""
    until: int
    """The last index that belongs to the search."""
    seen_lane: int
    """The lane of what the last step returned."""

    def __init__(self, lane: int, index: int, until: int) -> None:
        self.lane = lane
        self.index = index
        self.until = until
        self.seen_lane = lane

    def is_ended(self) -> bool:
        return self.lane < 0

    def step(self, queue: Queue, pager: Pager) -> list[Message]:
        """The next messages of one lane, left where they are; none at the end, or if all of them
        are damaged."""
        while self.lane >= 0:
            lane = queue.lanes[self.lane]
            self.seen_lane = self.lane
            found = lane.resident_from(self.index, STEP_MESSAGES_MAX)
            entries = lane.paged.peek_from(self.index, STEP_MESSAGES_MAX)
            # A message that came back from the middle may be in memory, and those before it not.
            if found and (not entries or found[0].index < entries[0][0]):
                return self._until_full(found, entries[0][0] if entries else self.until + 1)
            if found:
                entries = [each for each in entries if each[0] < found[0].index]
            if entries and entries[0][0] <= self.until:
                read = pager.read_several(entries, STEP_BYTES_MAX)
                self.index = entries[len(read) - 1][0] + 1
                return [each for each in read if each is not None and each.index <= self.until]
            self._end_lane()
        return []

    def _until_full(self, messages: list[Message], end: int) -> list[Message]:
        found: list[Message] = []
        size = 0
        for message in messages:
            if message.index > self.until:
                self._end_lane()
                return found
            if message.index >= end or size >= STEP_BYTES_MAX:
                break
            found.append(message)
            self.index = int(message.index) + 1
            size += len(message.content)
        return found

    def _end_lane(self) -> None:
        self.lane -= 1
        self.index = 0


def first_place(queue: Queue) -> MessageCursor:
    """The beginning of a search."""
    return MessageCursor(len(queue.lanes) - 1, 0, int(queue.log.next_index) - 1)


def look_at(queue: Queue, pager: Pager, index: int) -> Message | None:
    """The ready message of this index, left where it is; None if there is none, or if it can't be
    read."""
    for lane in queue.lanes:
        message = lane.find(index)
        if message is not None:
            return message
        position = lane.paged.find(index) if lane.paged_count > 0 else 0
        if position != 0:
            return pager.read_several([(index, position)], STEP_BYTES_MAX)[0]
    return None
