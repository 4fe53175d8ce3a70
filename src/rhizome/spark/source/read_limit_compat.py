"""How much a batch of a streaming query reads: Spark's own limits, where it has them.

Spark 4.2 asks a Python source for the end of a batch with the batch's start and a limit. Spark 4.1
asks for the end alone, and a run with `availableNow` is one batch: limits can't be kept there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

__all__ = [
    "HAS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS: Final = True
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_LIMITS = True
    except ImportError:
        HAS_LIMITS = False

        class ReadLimit:
            """As in Spark 4.2."""

        class ReadAllAvailable(ReadLimit):
            """As in Spark 4.2."""

        class ReadMaxRows(ReadLimit):
            """As in Spark 4.2."""

            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow(ABC):
            """As in Spark 4.2."""

            @abstractmethod
            def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
                """Never called by Spark 4.1."""
