"""Reliability levels: where a message was kept when the broker confirmed it."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

CAPABILITY: Final = "confirm.level"


class Level(IntEnum):
    """The reliability level of a publish. A higher number is not always safer: compare `is_on_disk`
    and `is_copied`.

    A message that went to several queues has the level that all of them have reached.
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
"""Called with the number of a publish on its channel, and the level that it has reached."""


def tells_levels(properties: dict[str, object]) -> bool:
    """Whether a broker with these server properties tells levels to clients that ask."""
    capabilities = properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(CAPABILITY) is True
