"""Copy requirements: how many copies the queues of a group ask for (G10).

A group has as many copies as the queue that asks for most: they share one log. A queue without a
requirement gets what the cluster's settings say.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition


@dataclass(frozen=True)
class CopyRequirement:
    """The requirement of one queue; -1: none."""

    copies: int
    min_copies: int


class CopyRequirements:
    """The copy requirements of all shared queues.

    Invariant: ``by_group`` has the requirement of each shared queue by its id, by group, and
    ``_counts`` how many queues of a group have each requirement, never 0. A group has few different
    ones (COPIES_MAX bounds them) and may have a hundred thousand queues: a declare looks at the
    counts, and never at the queues.
    """

    by_group: dict[int, dict[int, CopyRequirement]]
    _counts: dict[int, dict[CopyRequirement, int]]

    def __init__(self) -> None:
        self.by_group = {}
        self._counts = {}

    def put(self, definition: QueueDefinition) -> None:
        options = definition.options
        new = CopyRequirement(int(options.copies), int(options.min_copies))
        of_group = self.by_group.setdefault(definition.group, {})
        old = of_group.get(definition.id)
        of_group[definition.id] = new
        counts = self._counts.setdefault(definition.group, {})
        counts[new] = counts.get(new, 0) + 1
        if old is not None:
            _count_down(counts, old)

    def drop(self, definition: QueueDefinition) -> None:
        of_group = self.by_group[definition.group]
        _count_down(self._counts[definition.group], of_group.pop(definition.id))
        if not of_group:
            del self.by_group[definition.group]
            del self._counts[definition.group]

    def count(self, group: int) -> int:
        """How many shared queues a group has."""
        return len(self.by_group.get(group, ()))

    def copies(self, group: int, copies: int, min_copies: int) -> tuple[int, int]:
        """The copies that a group should have and those that it must have; queues without a
        requirement get the given ones. A group should have at least what it must have."""
        different = self._counts.get(group, {})
        most = max(
            (each.copies if each.copies > 0 else copies for each in different),
            default=copies,
        )
        least = max(
            (each.min_copies if each.min_copies > 0 else min_copies for each in different),
            default=min_copies,
        )
        return max(most, least), least


def _count_down(counts: dict[CopyRequirement, int], requirement: CopyRequirement) -> None:
    counts[requirement] -= 1
    if counts[requirement] == 0:
        del counts[requirement]
