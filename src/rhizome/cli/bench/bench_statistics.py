"""What a benchmark measures: a histogram of latencies, counts, and their summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

# Values below 128 are exact, larger ones have 7 significant bits: at most 1.6 % off.
_EXACT_BELOW: Final = 128
_HALF: Final = 64

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Histogram:
    """Counts of whole numbers in buckets that grow with the value; can be merged."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.sum = 0
        self.maximum = 0

    def record(self, value: int) -> None:
        """Count one value; negative ones (clocks of two hosts) count as 0."""
        value = max(value, 0)
        index = value if value < _EXACT_BELOW else _bucket(value)
        self.counts[index] = self.counts.get(index, 0) + 1
        self.total += 1
        self.sum += value
        self.maximum = max(self.maximum, value)

    def merge(self, other: Histogram) -> None:
        """Add everything that `other` has counted."""
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.total += other.total
        self.sum += other.sum
        self.maximum = max(self.maximum, other.maximum)

    def percentile(self, percent: float) -> int:
        """The value that `percent` of all values don't exceed; 0 without any."""
        wanted = self.total * percent / 100
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= wanted:
                return min(_highest(index), self.maximum)
        return 0

    @property
    def mean(self) -> float:
        return self.sum / self.total if self.total else 0.0


def _bucket(value: int) -> int:
    shift = value.bit_length() - 7
    return shift * _HALF + (value >> shift)


def _highest(index: int) -> int:
    """The largest value that falls into a bucket."""
    if index < _EXACT_BELOW:
        return index
    shift = index // _HALF - 1
    return ((index - shift * _HALF + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages so far, of one worker or of all."""

    published: int = 0
    consumed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.published + other.published, self.consumed + other.consumed)


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of one run."""

    body_bytes: int
    seconds: float
    published: int
    consumed: int
    published_per_s: float
    consumed_per_s: float
    consumed_mib_per_s: float
    latency_us: Mapping[str, float] | None

    def document(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)


def summarize(body_bytes: int, seconds: float, counts: Counts, latency_us: Histogram) -> Summary:
    """Rates and percentiles of one run."""
    consumed_per_s = counts.consumed / seconds if seconds else 0.0
    return Summary(
        body_bytes=body_bytes,
        seconds=round(seconds, 3),
        published=counts.published,
        consumed=counts.consumed,
        published_per_s=round(counts.published / seconds, 1) if seconds else 0.0,
        consumed_per_s=round(consumed_per_s, 1),
        consumed_mib_per_s=round(consumed_per_s * body_bytes / (1 << 20), 2),
        latency_us=_latency(latency_us) if latency_us.total else None,
    )


def _latency(histogram: Histogram) -> dict[str, float]:
    latency: dict[str, float] = {
        f"p{percent:g}": histogram.percentile(percent) for percent in PERCENTILES
    }
    latency["max"] = histogram.maximum
    latency["mean"] = round(histogram.mean, 1)
    return latency


def total_counts(counts: Iterable[Counts]) -> Counts:
    """The sum over all workers."""
    total = Counts()
    for each in counts:
        total += each
    return total
