"""Which way the messages of a queue go while its applications switch. No input or output.

Consumers decide, one queue at a time:

    consumers at      direction    what happens
    source only       BACK         what is published at the target is brought to the source
    target only       FORWARD      what is at the source, and still comes there, is brought over
    both              REST         each side serves itself
    neither           REST         everything waits where it is, unless the operator has it moved

So a message is always on its way to where somebody takes it, and a queue never goes both ways at
once: `queue_crossing` begins a direction when the bridge of the other has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from rhizome.adopt.queue_listing import Listing, QueueCounts, QueueKey


class Direction(Enum):
    """Where the messages of one queue are brought."""

    REST = "rest"
    FORWARD = "forward"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Decision:
    """A direction, and why, in words for people."""

    direction: Direction
    why: str


@dataclass(frozen=True, slots=True)
class Course:
    """Where all of it goes. `goal` is FORWARD, or BACK for one who returns. Queues that match a
    pattern of `moved` go there although nobody consumes them."""

    goal: Direction = Direction.FORWARD
    moved: tuple[str, ...] = ()

    def moves(self, key: QueueKey) -> bool:
        """Whether a queue without consumers is to be moved: a pattern names it, or vhost/name."""
        names = (key.name, f"{key.vhost}/{key.name}")
        return any(fnmatchcase(name, pattern) for pattern in self.moved for name in names)


def decide(
    key: QueueKey, source: QueueCounts | None, target: QueueCounts | None, course: Course
) -> Decision:
    """The direction of one queue."""
    if source is None or target is None:
        where = "target" if source is None else "source"
        return Decision(Direction.REST, f"only at the {where}")
    if not (source.is_shared and target.is_shared):
        return Decision(Direction.REST, "not moved: private or a stream")
    decision = _by_consumers(key, source.consumers, target.consumers, course)
    if target.remembers_ids and decision.direction not in (Direction.REST, course.goal):
        # What was taken back would be dropped as a repeat when it comes again.
        return Decision(Direction.REST, "not brought back: the target's queue has x-dedup")
    return decision


def _by_consumers(key: QueueKey, source: int, target: int, course: Course) -> Decision:
    if source and target:
        return Decision(Direction.REST, "consumers at both sides")
    if source:
        return Decision(Direction.BACK, "consumers at the source")
    if target:
        return Decision(Direction.FORWARD, "consumers at the target")
    if course.moves(key):
        return Decision(course.goal, "no consumers, to be moved")
    return Decision(Direction.REST, "no consumers")


def decide_all(listing: Listing, course: Course) -> dict[QueueKey, Decision]:
    """The direction of every queue that one of the sides has, private ones and streams apart."""
    found: dict[QueueKey, Decision] = {}
    for key in listing.queues():
        source, target = listing.source.get(key), listing.target.get(key)
        if all(counts is None or counts.is_shared for counts in (source, target)):
            found[key] = decide(key, source, target, course)
    return found


def admitted(
    decisions: dict[QueueKey, Decision],
    listing: Listing,
    running: set[QueueKey],
    bridges_max: int,
) -> set[QueueKey]:
    """The queues whose bridges may run now: those with messages come first, then those that run.

    A bridge has two connections. A queue that waits for its turn gets it when it has messages and
    another has none.
    """
    wanted = [key for key, each in decisions.items() if each.direction is not Direction.REST]
    if len(wanted) <= bridges_max:
        return set(wanted)

    def rank(key: QueueKey) -> tuple[bool, bool, QueueKey]:
        is_back = decisions[key].direction is Direction.BACK
        counts = (listing.target if is_back else listing.source).get(key)
        return not (counts and counts.messages), key not in running, key

    return set(sorted(wanted, key=rank)[:bridges_max])
