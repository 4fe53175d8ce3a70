"""Offsets of streaming queries, and how ranges become partitions.

An offset that Spark keeps in its checkpoint is

    {"version": 1, "next": {stream: the next offset to be read}, "parts": n, "least": rows}

`parts` and `least` freeze the plan: a batch that is replayed after a crash, perhaps on a machine
with other settings, is split into the same partitions, so its rows have the same places again. The
sink's exactly-once rests on that. The order of the streams in `next` is that of their numbers: one
that appears later comes last. Where it begins, if that is not 0, stands in

    "since": {stream: offset}    of the batch that reads it first
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rhizome.spark.data_source_options import OptionError, Options

OFFSET_VERSION: Final = 1
EXCLUDED: Final = "excludedOffsets"
"""Option of streaming sources: ranges of offsets that are passed over, JSON {stream: [first, end]}.
A batch that was set aside is replayed so, and has no rows."""
ROWS_LEAST: Final = 4096
"""A range is not split into parts of fewer rows: a task costs more than reading them."""


@dataclass(frozen=True)
class Plan:
    """Into how many partitions a batch is split, if it has enough rows."""

    parts: int
    least: int = ROWS_LEAST


@dataclass(frozen=True)
class Range:
    """Offsets `start` to `end` - 1 of a stream, which has the number `partition` among all."""

    stream: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Offsets:
    """Where each stream is to be read next."""

    next: dict[str, int]
    plan: Plan = field(default_factory=lambda: Plan(1))
    since: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "version": OFFSET_VERSION,
            "next": self.next,
            "parts": self.plan.parts,
            "least": self.plan.least,
        }
        if self.since:
            document["since"] = self.since
        return document


def from_json(document: dict[str, Any]) -> Offsets:
    """What a checkpoint holds; raises OptionError if it is of another version."""
    version = document.get("version")
    if version != OFFSET_VERSION:
        raise OptionError(
            f"the checkpoint has offsets of version {version!r} and this release knows "
            f"{OFFSET_VERSION}: continue with the release that wrote it"
        )
    plan = Plan(int(document["parts"]), int(document["least"]))
    following = {name: int(offset) for name, offset in document["next"].items()}
    since = {name: int(offset) for name, offset in document.get("since", {}).items()}
    return Offsets(following, plan, since)


def ranges(streams: list[str], start: Offsets, end: Offsets) -> list[Range]:
    """What lies between two offsets, split by the plan of the end."""
    starts = {**end.since, **start.next}
    whole = [
        Range(stream, number, begin(starts, end.next, stream), end.next[stream])
        for number, stream in enumerate(streams)
        if stream in end.next and end.next[stream] != starts.get(stream, 0)
    ]
    total = sum(each.end - each.start for each in whole)
    return [part for each in whole for part in _split(each, total, end.plan)]


def begin(start: dict[str, int], end: dict[str, int], stream: str) -> int:
    """Where to read a stream from. One that ends before its start was declared anew."""
    offset = start.get(stream, 0)
    return offset if offset <= end[stream] else 0


def _split(whole: Range, total: int, plan: Plan) -> list[Range]:
    """A stream's share of the parts, by its share of the rows; at least one."""
    rows = whole.end - whole.start
    count = max(1, min(plan.parts * rows // total, rows // plan.least))
    bounds = [whole.start + rows * number // count for number in range(count + 1)]
    return [
        Range(whole.stream, whole.partition, bounds[number], bounds[number + 1])
        for number in range(count)
    ]


def limited(start: dict[str, int], available: dict[str, int], rows_max: int) -> dict[str, int]:
    """How far to read so that it is about `rows_max` rows, shared out by how far each is behind.

    Every stream that is behind gets at least one, so that none is starved.
    """
    starts = {name: begin(start, available, name) for name in available}
    behind = {name: after - starts[name] for name, after in available.items()}
    total = sum(behind.values())
    if total <= rows_max:
        return available
    return {
        name: starts[name] + min(rows, max(1, rows * rows_max // total) if rows else 0)
        for name, rows in behind.items()
    }


def excluded_ranges(options: Options) -> dict[str, tuple[int, int]]:
    """What the option `excludedOffsets` says."""
    if not options.has(EXCLUDED):
        return {}
    try:
        document = json.loads(options.text(EXCLUDED))
        return {str(name): (int(first), int(end)) for name, (first, end) in document.items()}
    except (ValueError, TypeError, AttributeError):
        raise options.wrong(EXCLUDED, 'JSON like {"events": [100, 200]}') from None


def not_excluded(found: Sequence[Range], excluded: dict[str, tuple[int, int]]) -> list[Range]:
    """The ranges, without those that lie in what is excluded."""
    return [each for each in found if not _is_excluded(each, excluded.get(each.stream))]


def _is_excluded(part: Range, excluded: tuple[int, int] | None) -> bool:
    return excluded is not None and excluded[0] <= part.start and part.end <= excluded[1]
