"""How many copies the queues of a group ask for (G10).

A group has as many copies as the queue that asks for most: they share one log. A queue that says
nothing asks for what the cluster's settings say.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhizome.broker.definitions import QueueDefinition


@dataclass(frozen=True)
class Wish:
    """What one queue asks for; -1: nothing."""

    copies: int
    min_copies: int


class Wishes:
    """Invariant: ``by_group`` has the wish of each shared queue by its id, by group."""

    by_group: dict[int, dict[int, Wish]]

    def __init__(self) -> None:
        self.by_group = {}

    def put(self, definition: QueueDefinition) -> None:
        options = definition.options
        wish = Wish(int(options.copies), int(options.min_copies))
        self.by_group.setdefault(definition.group, {})[definition.id] = wish

    def drop(self, definition: QueueDefinition) -> None:
        wishes = self.by_group[definition.group]
        del wishes[definition.id]
        if not wishes:
            del self.by_group[definition.group]

    def count(self, group: int) -> int:
        """How many shared queues a group has."""
        return len(self.by_group.get(group, ()))

    def copies(self, group: int, copies: int, min_copies: int) -> tuple[int, int]:
        """The copies that a group should have and those that it must have, where queues that ask
        for nothing get the given ones. What must be there should be."""
        wishes = self.by_group.get(group, {}).values()
        most = max((each.copies if each.copies > 0 else copies for each in wishes), default=copies)
        least = max(
            (each.min_copies if each.min_copies > 0 else min_copies for each in wishes),
            default=min_copies,
        )
        return max(most, least), least
