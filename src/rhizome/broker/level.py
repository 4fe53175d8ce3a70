"""Level: the consumers of a queue that have one priority."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from mypy_extensions import i64

from rhizome.broker.consumer import Consumer


@final
class Level:
    """The consumers of one priority; ``cursor`` is whose turn it is.

    ``members`` has them in the order in which they came, and forgets any of them at the same cost:
    a connection may go with a hundred thousand. ``_line`` is the same as a list, made again when
    somebody asks for it after members have come or gone.
    """

    priority: i64
    members: OrderedDict[Consumer, None]
    cursor: i64
    _line: list[Consumer]
    _changed: bool

    def __init__(self, priority: i64) -> None:
        self.priority = priority
        self.members = OrderedDict()
        self.cursor = 0
        self._line = []
        self._changed = False

    def add(self, consumer: Consumer) -> None:
        self.members[consumer] = None
        self._changed = True

    def remove(self, consumer: Consumer) -> bool:
        """Whether it was one of these."""
        if consumer not in self.members:
            return False
        del self.members[consumer]
        self._changed = True
        return True

    def first(self) -> Consumer:
        """The one who came first; there must be one."""
        return next(iter(self.members))

    def consumers(self) -> list[Consumer]:
        """All of them, in the order in which they came."""
        if self._changed:
            self._changed = False
            self._line = list(self.members)
        return self._line

    def next(self) -> Consumer | None:
        line = self.consumers() if self._changed else self._line
        count: i64 = len(line)
        at: i64 = self.cursor
        tried: i64 = 0
        while tried < count:
            if at >= count:
                at = 0
            consumer = line[at]
            at += 1
            if consumer.can_take():
                self.cursor = at
                return consumer
            tried += 1
        return None
