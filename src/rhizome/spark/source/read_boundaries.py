"""Where a read of streams starts or ends: by words, offsets or times, for all streams or for each.

    startingOffsets              earliest, latest, or JSON {"events": 120, "orders": "earliest"}
    startingTimestamp            a time for all of them
    startingOffsetsByTimestamp   JSON {"events": 1763280000000, "orders": "2026-11-16T08:00Z"}

and the same with `ending`. The one name of a partitioned stream stands for all of its partitions.
Streams that the JSON does not name start and end as if the option were not given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.source.retry_client import DataLossError
from rhizome.spark.source.stream_client import Bounds

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
WORDS: Final = (EARLIEST, LATEST)


@dataclass(frozen=True)
class Boundary:
    """`word` is for streams that neither `places` (offsets and words) nor `times_ms` name;
    `time_ms` is for all."""

    word: str
    places: Mapping[str, int | str] = field(default_factory=dict)
    times_ms: Mapping[str, int] = field(default_factory=dict)
    time_ms: int | None = None

    def named(self) -> list[str]:
        """The streams that it names."""
        return [*self.places, *self.times_ms]


def boundary(options: Options, side: str, word: str) -> Boundary:
    """Read what the options of one side, `starting` or `ending`, say."""
    names = [f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"]
    given = [name for name in names if options.has(name)]
    if len(given) > 1:
        raise OptionError(f"give the source either '{given[0]}' or '{given[1]}'")
    if options.has(names[0]) and options.text(names[0]) in WORDS:
        return Boundary(options.text(names[0]))
    if options.has(names[0]):
        return Boundary(word, places=_offsets(options, names[0]))
    if options.has(names[1]):
        what = "milliseconds since 1970, or a time like 2026-11-16T08:00:00Z"
        found = time_ms_of(options.text(names[1]))
        if found is None:
            raise options.wrong(names[1], what)
        return Boundary(word, time_ms=found)
    if options.has(names[2]):
        return Boundary(word, times_ms=_times(options, names[2]))
    return Boundary(word)


def time_ms_of(given: object) -> int | None:
    """A time as milliseconds since 1970, or as a text like 2026-11-16T08:00:00Z."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given if given >= 0 else None
    if not isinstance(given, str):
        return None
    if given.isascii() and given.isdigit():
        return int(given)
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def _document(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _offsets(options: Options, name: str) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    document = _document(options.text(name))
    for stream, place in document.items():
        is_offset = isinstance(place, int) and not isinstance(place, bool) and place >= 0
        if isinstance(place, (int, str)) and (is_offset or place in WORDS):
            found[stream] = place
    if len(found) < len(document) or not document:
        example = '{"events-0": 120, "events-1": "earliest"}'
        raise options.wrong(name, f"earliest, latest, or JSON like {example}")
    return found


def _times(options: Options, name: str) -> dict[str, int]:
    document = _document(options.text(name))
    found = {stream: time_ms_of(given) for stream, given in document.items()}
    if not document or None in found.values():
        example = '{"events": 1763280000000, "orders": "2026-11-16T08:00:00Z"}'
        raise options.wrong(name, f"JSON like {example}")
    return {stream: at_ms for stream, at_ms in found.items() if at_ms is not None}


class Resolver:
    """Makes offsets of boundaries.

    `streams` leads from each name that was subscribed to, or found by the pattern, to its streams;
    `offset_at` asks for the offset of a stream at a time.
    """

    def __init__(
        self,
        streams: Mapping[str, list[str]],
        offset_at: Callable[[str, int], int],
        fail_on_loss: bool,
    ) -> None:
        self._names = {stream: name for name, found in streams.items() for stream in found}
        self._offset_at = offset_at
        self._fail_on_loss = fail_on_loss

    def offsets(self, asked: Boundary, bounds: Mapping[str, Bounds]) -> dict[str, int]:
        """An offset for each stream."""
        known = {*self._names, *self._names.values()}
        for name in asked.named():
            if name not in known:
                raise OptionError(f"offsets are given for '{name}', which is not subscribed to")
        return {stream: self._offset(asked, stream, each) for stream, each in bounds.items()}

    def _offset(self, asked: Boundary, stream: str, bounds: Bounds) -> int:
        name = self._names.get(stream, stream)
        time_ms = asked.times_ms.get(stream, asked.times_ms.get(name, asked.time_ms))
        if time_ms is not None:
            return self._offset_at(stream, time_ms)
        place = asked.places.get(stream, asked.places.get(name, asked.word))
        if place == EARLIEST:
            return bounds.first
        if place == LATEST:
            return bounds.next
        offset = int(place)
        if not bounds.first <= offset <= bounds.next and self._fail_on_loss:
            raise DataLossError(
                f"offset {offset} of stream '{stream}' is not there: it has {bounds.first} to "
                f"{bounds.next - 1}. Set the option failOnDataLoss to false to take the nearest"
            )
        return min(max(offset, bounds.first), bounds.next)
