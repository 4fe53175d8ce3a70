"""Filters that Spark pushes down to batch reads of streams: what they say of offset, timestamp,
queue and key.

A filter narrows what is read, and Spark applies it once more to what comes: a filter that is taken
for less than it is costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

COMPARISONS: Final = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
FROM: Final = (EqualTo, GreaterThan, GreaterThanOrEqual)
UP_TO: Final = (EqualTo, LessThan, LessThanOrEqual)
KEYS_MAX: Final = 10_000


@dataclass
class PushedFilters:
    """Offsets from `first` up to `end`, times from `first_ms` up to `end_ms` (both exclusive at the
    end); `queues` and `keys` are all that are wanted. None: any."""

    first: int = 0
    end: int | None = None
    first_ms: int | None = None
    end_ms: int | None = None
    queues: frozenset[str] | None = None
    keys: frozenset[str] | None = field(default=None)

    def take(self, filters: Iterable[Filter]) -> None:
        """Narrow to what all of the filters say, as far as it can be told before reading."""
        for each in filters:
            if isinstance(each, (*COMPARISONS, In)) and len(each.attribute) == 1:
                self._take(each.attribute[0], each)

    def _take(self, column: str, each: Any) -> None:
        if column in ("queue", "key") and isinstance(each, (EqualTo, In)):
            wanted = each.value if isinstance(each, In) else (each.value,)
            if len(wanted) <= KEYS_MAX:
                self._take_names(column, frozenset(text for text in wanted if text is not None))
        elif column == "offset" and isinstance(each.value, int):
            self._take_offset(each)
        elif column == "timestamp" and isinstance(each.value, datetime):
            self._take_time(each)

    def _take_names(self, column: str, wanted: frozenset[str]) -> None:
        if column == "queue":
            self.queues = wanted if self.queues is None else self.queues & wanted
        else:
            self.keys = wanted if self.keys is None else self.keys & wanted

    def _take_offset(self, each: Any) -> None:
        if isinstance(each, FROM):
            self.first = max(self.first, each.value + isinstance(each, GreaterThan))
        if isinstance(each, UP_TO):
            end = each.value + (not isinstance(each, LessThan))
            self.end = end if self.end is None else min(self.end, end)

    def _take_time(self, each: Any) -> None:
        """Times of streams are whole milliseconds; those of Spark have microseconds."""
        at_ms = int(each.value.timestamp() * 1000)
        if isinstance(each, FROM):
            self.first_ms = at_ms if self.first_ms is None else max(self.first_ms, at_ms)
        if isinstance(each, UP_TO):
            self.end_ms = at_ms + 1 if self.end_ms is None else min(self.end_ms, at_ms + 1)
