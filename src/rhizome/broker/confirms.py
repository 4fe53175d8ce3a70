"""Confirms: which publishes of a channel may be confirmed, in batches per turn.

A turn's publishes on a channel share one entry: confirm up to ``tag`` once the log has ``index`` on
disk. So confirming costs nothing per message, and the frames sent say multiple=true.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class Confirms:
    """Invariant: tags and indexes in ``tags`` and ``indexes`` rise; tags <= ``sent`` are
    confirmed.
    """

    published: i64
    sent: i64
    need_index: i64
    tags: list[int]
    indexes: list[int]
    waiting: bool

    def __init__(self) -> None:
        self.published = 0
        self.sent = 0
        self.need_index = 0
        self.tags = []
        self.indexes = []
        self.waiting = False

    def close_turn(self) -> None:
        """Put what was published since the last turn into one entry."""
        last: i64 = self.tags[-1] if len(self.tags) > 0 else self.sent
        if self.published > last:
            self.tags.append(self.published)
            self.indexes.append(self.need_index)

    def ready(self, committed_disk: i64) -> i64:
        """The highest tag that may be confirmed now; 0 if none beyond those sent."""
        count: i64 = 0
        while count < len(self.tags) and self.indexes[count] <= committed_disk:
            count += 1
        if count == 0:
            return 0
        tag: i64 = self.tags[count - 1]
        del self.tags[:count]
        del self.indexes[:count]
        return tag
