"""The consumers of a queue that have the same priority."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from mypy_extensions import i64

from rhizome.broker.queue.queue_consumer import QueueConsumer


@final
class PriorityLevel:
    """The consumers of one priority; ``cursor`` is whose turn it is.

    ``members`` has them in order of arrival, and removing any of them costs the same: one
    connection may end with a hundred thousand. ``_line`` is the same as a list, rebuilt on demand
    after members have come or gone.
    """

    priority: i64
    members: OrderedDict[QueueConsumer, None]
    cursor: i64
    passed: i64
    """How many that could take nothing were passed in search of one that could, since somebody
    looked."""
    _line: list[QueueConsumer]
    _changed: bool

    def __init__(self, priority: i64) -> None:
        self.priority = priority
        self.members = OrderedDict()
        self.cursor = self.passed = 0
        self._line = []
        self._changed = False

    def add(self, consumer: QueueConsumer) -> None:
        self.members[consumer] = None
        self._changed = True

    def remove(self, consumer: QueueConsumer) -> bool:
        """Remove a consumer; return whether it was one of these."""
        if consumer not in self.members:
            return False
        del self.members[consumer]
        self._changed = True
        return True

    def first(self) -> QueueConsumer:
        """The consumer that came first; there must be one."""
        return next(iter(self.members))

    def consumers(self) -> list[QueueConsumer]:
        """All consumers, in order of arrival."""
        if self._changed:
            self._changed = False
            self._line = list(self.members)
        return self._line

    def next(self) -> QueueConsumer | None:
        if self._changed:
            self.consumers()
        count: i64 = len(self._line)
        at: i64 = self.cursor
        tried: i64 = 0
        while tried < count:
            if at >= count:
                at = 0
            consumer = self._line[at]
            at += 1
            if consumer.can_take():
                self.cursor = at
                if tried > 0:
                    self.passed += tried
                return consumer
            tried += 1
        if count > 0:
            self.passed += count
        return None
