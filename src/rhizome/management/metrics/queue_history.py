"""Queue history: the last minutes of the queues and of the broker as a whole, for charts.

One sample is taken every few seconds. A queue that is empty and idle has no history; of very many
busy queues those that came first have one. So memory is bounded: 2.9 KB per queue with a history.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final

from rhizome.management.http.cooperative_yield import Pace

SAMPLES_MAX: Final = 60
QUEUES_MAX: Final = 2000

# The columns of a sample of a queue, or of all queues together.
FIELDS: Final = ("ready", "unacked", "published", "delivered", "acked", "age_ms")
SUMMED: Final = range(5)
COUNTED: Final = (2, 3, 4)
"""The columns that can be added up, and those of them that only grow."""
Numbers = tuple[int, int, int, int, int, int]

AGE_UNKNOWN: Final = -1
"""The age of a next message that is on disk."""

ALL: Final = -1
"""The broker as a whole, in place of the id of a queue."""


class Track:
    """The samples of one queue, the oldest first. ``quiet``: how many of the last ones are equal
    and empty."""

    __slots__ = ("quiet", "values")

    def __init__(self) -> None:
        self.values = array("q")
        self.quiet = 0

    def add(self, numbers: Numbers) -> None:
        alike = numbers == tuple(self.values[-len(FIELDS) :])
        self.quiet = self.quiet + 1 if alike and numbers[0] + numbers[1] == 0 else 0
        self.values.extend(numbers)
        if len(self.values) > SAMPLES_MAX * len(FIELDS):
            del self.values[: len(FIELDS)]

    def count(self) -> int:
        return len(self.values) // len(FIELDS)

    def column(self, at: int) -> list[int]:
        return self.values[at :: len(FIELDS)].tolist()


class History:
    """Invariant: every track's last sample is the one at ``times_ms[-1]``."""

    def __init__(self) -> None:
        self.times_ms: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._tracks: dict[int, Track] = {ALL: Track()}

    def begin(self, now_ms: int) -> None:
        """A round of samples begins; ``add`` is then called once for everything that is there."""
        self.times_ms.append(now_ms)

    def add(self, queue_id: int, numbers: Numbers, is_busy: bool) -> None:
        """``is_busy``: it has messages, or counted some since the last round."""
        track = self._tracks.get(queue_id)
        if track is None:
            if not is_busy or len(self._tracks) > QUEUES_MAX:
                return
            track = self._tracks[queue_id] = Track()
        track.add(numbers)
        if track.quiet >= SAMPLES_MAX and queue_id != ALL:
            del self._tracks[queue_id]

    def forget(self, queue_id: int) -> None:
        self._tracks.pop(queue_id, None)

    def row(self, queue_id: int) -> dict[str, object]:
        """Times and numbers of one queue, in columns; empty ones if it has no history."""
        track = self._tracks.get(queue_id) or Track()
        count = track.count()
        row: dict[str, object] = {"times_ms": list(self.times_ms)[len(self.times_ms) - count :]}
        for at, name in enumerate(FIELDS):
            row[name] = track.column(at)
        return row

    async def together(self, queue_ids: Iterable[int]) -> dict[str, object]:
        """The same for several queues added up, without the age. Before its first sample a queue
        counts as empty and with the counters of that sample, so that counters don't jump when it
        appears."""
        pace = Pace()
        times_ms = list(self.times_ms)
        sums = [[0] * len(times_ms) for _ in FIELDS]
        for queue_id in queue_ids:
            track = self._tracks.get(queue_id)
            if track is not None and track.count():
                for at in SUMMED:
                    column = track.column(at)[-len(times_ms) :]
                    earlier = column[0] if at in COUNTED else 0
                    whole = [earlier] * (len(times_ms) - len(column)) + column
                    sums[at] = [one + more for one, more in zip(sums[at], whole, strict=True)]
            if pace.is_due():
                await pace.rest()
        return {"times_ms": times_ms, **dict(zip(FIELDS, sums, strict=True))}

    def depths(self, queue_id: int) -> list[int]:
        """Ready and unacked messages together."""
        track = self._tracks.get(queue_id)
        if track is None:
            return []
        return [ready + held for ready, held in zip(track.column(0), track.column(1), strict=True)]
