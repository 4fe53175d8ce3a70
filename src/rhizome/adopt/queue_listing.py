"""What one side tells of its queues, read from the rows of its HTTP API. No input or output.

RabbitMQ counts anew every five seconds or so, except for consumers that go, which it tells at once.
So these numbers are for people, and who consumes a queue is for decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

OWN_TAG: Final = "rhizome-adopt"
"""The consumer tag of all bridges of an adoption: those consumers are no application's."""
STREAM: Final = "stream"
DEDUP_ARGUMENT: Final = "x-dedup"

Row = Mapping[str, Any]


class QueueKey(NamedTuple):
    """Names one queue at both sides."""

    vhost: str
    name: str

    @property
    def label(self) -> str:
        """For people: the vhost is left out if it is the usual one."""
        return self.name if self.vhost == "/" else f"{self.vhost}/{self.name}"


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """A queue at one side. `consumers` are those of applications; counts are None if not told."""

    consumers: int = 0
    messages: int | None = None
    unacked: int | None = None
    publish_rate: float = 0.0
    kind: str = "classic"
    is_private: bool = False
    """Exclusive or deleted with its last consumer: it belongs to who declared it."""
    remembers_ids: bool = False
    """It takes no message-id twice (`x-dedup`), not even of a message that was taken back."""

    @property
    def is_shared(self) -> bool:
        """Whether a bridge may consume it, and leave it as it was."""
        return not self.is_private and self.kind != STREAM


@dataclass(frozen=True, slots=True)
class Listing:
    """All queues of both sides at about the same moment."""

    source: Mapping[QueueKey, QueueCounts] = field(default_factory=dict)
    target: Mapping[QueueKey, QueueCounts] = field(default_factory=dict)

    def queues(self) -> list[QueueKey]:
        return sorted(self.source.keys() | self.target.keys())


def read_queues(queues: Iterable[Row], consumers: Iterable[Row]) -> dict[QueueKey, QueueCounts]:
    """The queues of one side from `/api/queues` and `/api/consumers`."""
    counted = Counter(_queue_of(row) for row in consumers if row.get("consumer_tag") != OWN_TAG)
    found = {QueueKey(str(row.get("vhost")), str(row.get("name"))): row for row in queues}
    return {key: _counts(row, counted[key]) for key, row in found.items()}


def _queue_of(consumer: Row) -> QueueKey:
    queue = consumer.get("queue")
    named = queue if isinstance(queue, Mapping) else {}
    return QueueKey(str(named.get("vhost")), str(named.get("name")))


def _counts(row: Row, consumers: int) -> QueueCounts:
    arguments = row.get("arguments")
    told = arguments if isinstance(arguments, Mapping) else {}
    return QueueCounts(
        consumers=consumers,
        messages=_number(row.get("messages")),
        unacked=_number(row.get("messages_unacknowledged")),
        publish_rate=_publish_rate(row),
        kind=str(told.get("x-queue-type") or row.get("type") or "classic"),
        is_private=_flag(row.get("exclusive")) or _flag(row.get("auto_delete")),
        remembers_ids=DEDUP_ARGUMENT in told,
    )


def _flag(value: object) -> bool:
    """Some versions write flags as text."""
    return value in (True, "true")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _publish_rate(row: Row) -> float:
    stats = row.get("message_stats")
    details = stats.get("publish_details") if isinstance(stats, Mapping) else None
    rate = details.get("rate") if isinstance(details, Mapping) else None
    return float(rate) if isinstance(rate, (int, float)) else 0.0
