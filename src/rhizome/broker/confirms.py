"""Confirms: which publishes of a channel may be confirmed, in batches per turn.

A turn's publishes on a channel share one entry: confirm up to ``tag`` once the log has ``index`` on
disk, and every other broker that got one of them has it as safe. So confirming costs nothing per
message, and the frames sent say multiple=true.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.port import Forward


@final
class Confirms:
    """Invariant: tags and indexes in ``tags`` and ``indexes`` rise; tags <= ``sent`` are
    confirmed. ``elsewhere`` holds for each entry what other brokers must have confirmed.
    """

    published: i64
    sent: i64
    need_index: i64
    tags: list[int]
    indexes: list[int]
    elsewhere: list[dict[Forward, int] | None]
    sent_on: dict[Forward, int] | None
    waiting: bool

    def __init__(self) -> None:
        self.published = 0
        self.sent = 0
        self.need_index = 0
        self.tags = []
        self.indexes = []
        self.elsewhere = []
        self.sent_on = None
        self.waiting = False

    def wait_for(self, forward: Forward, number: i64) -> None:
        """What was published last went to another broker, too, under this number."""
        if self.sent_on is None:
            self.sent_on = {}
        self.sent_on[forward] = number

    def close_turn(self) -> None:
        """Put what was published since the last turn into one entry."""
        last: i64 = self.tags[-1] if len(self.tags) > 0 else self.sent
        if self.published > last:
            self.tags.append(self.published)
            self.indexes.append(self.need_index)
            self.elsewhere.append(self.sent_on)
            self.sent_on = None

    def ready(self, committed_disk: i64) -> i64:
        """The highest tag that may be confirmed now; 0 if none beyond those sent."""
        count: i64 = 0
        while count < len(self.tags) and self.indexes[count] <= committed_disk:
            others = self.elsewhere[count]
            if others is not None and not are_safe(others):
                break
            count += 1
        if count == 0:
            return 0
        tag: i64 = self.tags[count - 1]
        del self.tags[:count]
        del self.indexes[:count]
        del self.elsewhere[:count]
        return tag


def are_safe(others: dict[Forward, int]) -> bool:
    """Whether each of these brokers has confirmed what it was sent."""
    return all(forward.confirmed >= number for forward, number in others.items())
