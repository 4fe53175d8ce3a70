"""Reliability levels: which of the four levels a confirmed publish has reached.

A level is two facts: the message is on disk (``ON_DISK``), and a standby of each group that took it
has it as well (``COPIED``). A message in several places has the level made of the facts that all of
them have in common, which is 0 if there are none:

    0  fully transient      in the memory of one broker
    1  reliable transient   in the memories of home and standbys
    2  persistent           on the disk of one broker, as its flush policy says
    3  reliable persistent  on the disks of home and standbys

Publishers are told the level that was reached, not the one asked for: a group that lost its
standbys confirms without them (G5). Only publishers with the capability ``confirm.level`` are told;
nothing is noted for others.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.publishing.forward_port import Forward

CAPABILITY: Final = "confirm.level"

COPIED: Final = 1
ON_DISK: Final = 2
STORED: Final = 4
"""Of a place: it puts transient messages on disk, too. Streams do."""
SEVERAL: Final = 8
"""Of a message: more than one log here has it."""
EVERYWHERE: Final = COPIED | ON_DISK | STORED
LEVELS: Final = ("fully transient", "reliable transient", "persistent", "reliable persistent")


def is_asked(properties: dict[str, object]) -> bool:
    """Whether a client with these properties wants to be told levels."""
    capabilities = properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(CAPABILITY) is True


def ceiling(place: i64, persistent: bool, logs: i64) -> i64:
    """The level that a message may reach in places that have ``place`` in common."""
    level = place & COPIED
    if place & STORED != 0 or (persistent and place & ON_DISK != 0):
        level |= ON_DISK
    if logs > 1:
        level |= SEVERAL
    return level


@final
class Levels:
    """The levels of the entries of a `Confirms`: all publishes of an entry may reach the same
    level.

    Invariant: ``ceilings`` and ``firsts`` have one item per entry: the level that may be reached,
    and the first number of the entry on each forward queue. ``ceiling`` and ``first`` are those of
    the open entry; ``last`` are the numbers of the publish ``last_tag``. ``common`` carries what
    entries that confirm nothing yet have in common over to the next entry that does. ``told_tags``
    and ``told_levels`` are to be told to the publisher, tags rising.
    """

    ceiling: i64
    first: dict[Forward, int] | None
    last_tag: i64
    last: dict[Forward, int] | None
    ceilings: list[int]
    firsts: list[dict[Forward, int] | None]
    common: i64
    told_tags: list[int]
    told_levels: list[int]

    def __init__(self) -> None:
        self.ceiling = COPIED
        self.first = None
        self.last_tag = 0
        self.last = None
        self.ceilings = []
        self.firsts = []
        self.common = COPIED | ON_DISK
        self.told_tags = []
        self.told_levels = []

    def sent(self, forward: Forward, number: i64, tag: i64) -> None:
        """The last publish, with this tag, was sent on a forward queue under this number."""
        if tag != self.last_tag or self.last is None:
            self.last_tag = tag
            self.last = {}
        self.last[forward] = number
        if self.first is None:
            self.first = {}
        if forward not in self.first:
            self.first[forward] = number

    def moved(self, at: i64, forward: Forward, number: i64) -> None:
        """An entry waits for a forward queue from now on; none of its numbers there is below this
        one."""
        first = self.firsts[at]
        if first is None:
            first = {}
            self.firsts[at] = first
        first[forward] = min(number, first.get(forward, number))

    def close(self, tag: i64) -> None:
        """Close the open entry: it confirms publishes up to ``tag``. A later publish that was sent
        already counts in the next entry, too."""
        self.ceilings.append(self.ceiling)
        self.firsts.append(self.first)
        self.first = None
        if self.last is not None and self.last_tag > tag:
            self.first = dict(self.last)

    def reached(self, tag: i64, before: i64, log: GroupLog | None, disk: i64, memory: i64) -> None:
        """The first entry is safe: it confirms what is above ``before``, up to ``tag``."""
        first = self.firsts[0]
        level: i64 = self.ceilings[0]
        del self.firsts[0]
        del self.ceilings[0]
        level &= self.common
        if not is_copied(log, disk, memory, first):
            level &= ON_DISK
        if tag <= before:
            # The next entry contains the same publish, for another log.
            self.common = level
            return
        self.common = COPIED | ON_DISK
        count = len(self.told_tags)
        if count > 0 and self.told_levels[count - 1] == level:
            self.told_tags[count - 1] = tag
        else:
            self.told_tags.append(tag)
            self.told_levels.append(level)

    def clear(self) -> None:
        """Forget what was told."""
        self.told_tags = []
        self.told_levels = []


def is_copied(
    log: GroupLog | None, disk: i64, memory: i64, firsts: dict[Forward, int] | None
) -> bool:
    """Whether standbys have what an entry waited for, wherever that was."""
    if log is None and firsts is None:
        return False
    if log is not None and (disk > log.reliable_disk or memory > log.reliable_memory):
        return False
    if firsts is not None:
        for forward, number in firsts.items():
            if number <= forward.thin:
                return False
    return True
