"""Unacked: the deliveries of a channel that are not settled yet, by delivery tag.

This is a power-of-two ring indexed by tag, so that a delivery costs two list stores and no object.
A message that stays unsettled while many later ones come and go would keep the ring growing; such
stragglers are moved to ``old``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.channel.consumer import Consumer

SLOTS_MIN: Final = 16

ACK: Final = 0
REJECT: Final = 1
REQUEUE: Final = 2


@final
class Unacked:
    """Invariant: tags in ``old`` < ``base`` <= tags in the ring < ``end``; ``count`` counts
    both, and ``pulled`` those of them that basic.get has taken.
    """

    messages: list[Message | None]
    consumers: list[Consumer | None]
    mask: i64
    base: i64
    end: i64
    count: i64
    pulled: i64
    old: dict[int, tuple[Message, Consumer]]

    def __init__(self) -> None:
        self.messages = [None] * SLOTS_MIN
        self.consumers = [None] * SLOTS_MIN
        self.mask = SLOTS_MIN - 1
        self.base = 1
        self.end = 1
        self.count = 0
        self.pulled = 0
        self.old = {}

    def push(self, tag: i64, message: Message, consumer: Consumer) -> None:
        """Remember a delivery. Tags only ever rise."""
        if self.base == self.end:
            self.base = tag
        if tag - self.base > self.mask:
            self._make_room(tag)
        at = tag & self.mask
        self.messages[at] = message
        self.consumers[at] = consumer
        self.end = tag + 1
        self.count += 1

    def window(self) -> i64:
        """How many deliveries a prefetch of the channel counts: basic.get asks for each."""
        return self.count - self.pulled

    def holds(self, tag: i64) -> bool:
        if tag < self.base:
            return tag in self.old
        return tag < self.end and self.messages[tag & self.mask] is not None

    def message(self, tag: i64) -> Message | None:
        if tag < self.base:
            entry = self.old.get(tag)
            return None if entry is None else entry[0]
        if tag >= self.end:
            return None
        return self.messages[tag & self.mask]

    def consumer(self, tag: i64) -> Consumer | None:
        if tag < self.base:
            entry = self.old.get(tag)
            return None if entry is None else entry[1]
        if tag >= self.end:
            return None
        return self.consumers[tag & self.mask]

    def forget(self, tag: i64) -> None:
        """Drop a tag that is held."""
        self.count -= 1
        if self.pulled > 0:
            consumer = self.consumer(tag)
            if consumer is not None and consumer.pulls:
                self.pulled -= 1
        if tag < self.base:
            del self.old[tag]
            return
        at = tag & self.mask
        self.messages[at] = None
        self.consumers[at] = None
        if tag == self.base:
            self._advance()

    def replace(self, tag: i64, message: Message) -> None:
        """Replace the object that stands for the message of a held tag."""
        if tag < self.base:
            self.old[tag] = (message, self.old[tag][1])
        else:
            self.messages[tag & self.mask] = message

    def lowest(self) -> i64:
        """The lowest tag held; 0 if none."""
        if self.count == 0:
            return 0
        if len(self.old) > 0:
            return min(self.old)
        return self.base

    def tags(self) -> list[int]:
        """All tags held, ascending."""
        found: list[int] = sorted(self.old)
        at = self.base
        while at < self.end:
            if self.messages[at & self.mask] is not None:
                found.append(at)
            at += 1
        return found

    def tags_up_to(self, tag: i64) -> list[int]:
        """Tags held up to and including ``tag``, ascending; 0 means all."""
        if tag == 0:
            return self.tags()
        return [held for held in self.tags() if held <= tag]

    def _advance(self) -> None:
        at = self.base
        while at < self.end and self.messages[at & self.mask] is None:
            at += 1
        self.base = at

    def _make_room(self, tag: i64) -> None:
        slots: i64 = self.mask + 1
        if (self.count - len(self.old)) * 4 < slots and slots > 256:
            self._retire_to(tag - slots // 2)
        while tag - self.base > self.mask:
            self._grow()

    def _retire_to(self, tag: i64) -> None:
        """Move tags below ``tag`` out of the ring."""
        at = self.base
        while at < tag and at < self.end:
            slot = at & self.mask
            message = self.messages[slot]
            consumer = self.consumers[slot]
            if message is not None and consumer is not None:
                self.old[at] = (message, consumer)
                self.messages[slot] = None
                self.consumers[slot] = None
            at += 1
        self.base = tag
        if self.end < tag:
            self.end = tag
        self._advance()
        if self.base == self.end:
            self.base = tag

    def _grow(self) -> None:
        slots: i64 = (self.mask + 1) * 2
        messages: list[Message | None] = [None] * slots
        consumers: list[Consumer | None] = [None] * slots
        at = self.base
        while at < self.end:
            messages[at & (slots - 1)] = self.messages[at & self.mask]
            consumers[at & (slots - 1)] = self.consumers[at & self.mask]
            at += 1
        self.messages = messages
        self.consumers = consumers
        self.mask = slots - 1
