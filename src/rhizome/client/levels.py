"""Levels: where a message was kept when the broker confirmed it."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

CAPABILITY: Final = "confirm.level"


class Level(IntEnum):
    """A higher one is not always safer: compare `is_on_disk` and `is_copied`.

    A message that went to several queues has what all of them have in common.
    """

    FULLY_TRANSIENT = 0
    RELIABLE_TRANSIENT = 1
    PERSISTENT = 2
    RELIABLE_PERSISTENT = 3

    @property
    def is_copied(self) -> bool:
        """It survives the loss of one broker."""
        return self & 1 == 1

    @property
    def is_on_disk(self) -> bool:
        """It survives a restart of all brokers that have it."""
        return self & 2 == 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


LevelCallback = Callable[[int, Level], None]
"""Gets the number of a publish on its channel, and the level that its confirm has reached."""


def tells_levels(properties: dict[str, object]) -> bool:
    """Whether a broker that says this of itself tells levels to those who ask."""
    capabilities = properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(CAPABILITY) is True
