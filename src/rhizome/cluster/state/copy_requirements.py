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

    Invariant: ``by_group`` has the requirement of each shared queue by its id, by group.
    """

    by_group: dict[int, dict[int, CopyRequirement]]

    def __init__(self) -> None:
        self.by_group = {}

    def put(self, definition: QueueDefinition) -> None:
        options = definition.options
        wish = CopyRequirement(int(options.copies), int(options.min_copies))
        self.by_group.setdefault(definition.group, {})[definition.id] = wish

    def drop(self, definition: QueueDefinition) -> None:
        copy_requirements = self.by_group[definition.group]
        del copy_requirements[definition.id]
        if not copy_requirements:
            del self.by_group[definition.group]

    def count(self, group: int) -> int:
        """How many shared queues a group has."""
        return len(self.by_group.get(group, ()))

    def copies(self, group: int, copies: int, min_copies: int) -> tuple[int, int]:
        """The copies that a group should have and those that it must have; queues without a
        requirement get the given ones. A group should have at least what it must have."""
        copy_requirements = self.by_group.get(group, {}).values()
        most = max(
            (each.copies if each.copies > 0 else copies for each in copy_requirements),
            default=copies,
        )
        least = max(
            (each.min_copies if each.min_copies > 0 else min_copies for each in copy_requirements),
            default=min_copies,
        )
        return max(most, least), least
