"""Level: the consumers of a queue that have one priority."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.consumer import Consumer


@final
class Level:
    """The consumers of one priority; ``cursor`` is whose turn it is."""

    priority: i64
    consumers: list[Consumer]
    cursor: i64

    def __init__(self, priority: i64) -> None:
        self.priority = priority
        self.consumers = []
        self.cursor = 0

    def next(self) -> Consumer | None:
        count: i64 = len(self.consumers)
        at: i64 = self.cursor
        tried: i64 = 0
        while tried < count:
            if at >= count:
                at = 0
            consumer = self.consumers[at]
            at += 1
            if consumer.can_take():
                self.cursor = at
                return consumer
            tried += 1
        return None
