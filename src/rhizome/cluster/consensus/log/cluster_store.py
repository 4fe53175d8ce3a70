"""ClusterStore: what a broker keeps of the cluster's decisions, and the store that keeps
it.

The consensus core hands out a ``Batch`` for everything that it must not forget: its term and vote
(R3), entries of the log (R2), what it knows to be committed (R4), the snapshot that replaced older
entries (R8), the cluster that it belongs to (R7). A ``ClusterStore`` makes batches durable, whole
and in the order in which they were submitted, and reports the token of the last durable one.

A store that finds damage at or below what it had reported as synced doesn't guess: its image says
so, and the broker does not start with it. Once the store is set aside the broker begins with an
empty one, as a new broker (R7). What was never reported may be missing; that is an ordinary crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

SyncReport: TypeAlias = Callable[[int], None]
"""Told the token of a batch when that batch, and all before it, are durable."""

NO_VOTE: Final = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log; ``kind`` is one of those in ``log_entry_payloads.py``."""

    index: int
    term: int
    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the entry ``index``, which was written in ``term``."""

    index: int
    term: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Position:
    """The last entry that the log no longer holds; (0, 0) if it holds all of them."""

    index: int = 0
    term: int = 0


@dataclass(slots=True)
class Batch:
    """Changes that become durable together, or not at all. None: unchanged.

    A store applies them in this order: ``log_from`` (forget entries from this index on),
    ``entries`` (appended), ``snapshot`` (replaces the older one), ``log_start`` (forget entries up
    to this one).
    """

    term: int | None = None
    vote: str | None = None
    log_from: int | None = None
    entries: tuple[Entry, ...] = ()
    commit: int | None = None
    snapshot: Snapshot | None = None
    log_start: Position | None = None
    cluster_uuid: str | None = None

    def is_empty(self) -> bool:
        return self == _UNCHANGED


_UNCHANGED: Final = Batch()


@dataclass(frozen=True, slots=True)
class Image:
    """What a store held when it was opened.

    Invariant: ``entries`` are consecutive and begin after ``log_start``; ``snapshot`` covers at
    least ``log_start``; ``commit`` is at most the last entry and at least the snapshot's end.
    """

    uuid: str
    cluster_uuid: str = ""
    term: int = 0
    vote: str = NO_VOTE
    commit: int = 0
    snapshot: Snapshot | None = None
    log_start: Position = Position()
    entries: tuple[Entry, ...] = ()
    damage: str = ""
    """Why the store must not be used: empty if it may be."""

    def is_empty(self) -> bool:
        """An empty store may take part in the founding of a cluster (R7)."""
        return not self.cluster_uuid and not self.entries and self.snapshot is None


def advance(image: Image, batch: Batch) -> Image:
    """The image after a batch: what every implementation must give back after a restart."""
    entries = image.entries
    if batch.log_from is not None:
        entries = tuple(e for e in entries if e.index < batch.log_from)
    entries += batch.entries
    log_start = image.log_start
    if batch.log_start is not None:
        log_start = batch.log_start
        entries = tuple(e for e in entries if e.index > log_start.index)
    return replace(
        image,
        cluster_uuid=image.cluster_uuid if batch.cluster_uuid is None else batch.cluster_uuid,
        term=image.term if batch.term is None else batch.term,
        vote=image.vote if batch.vote is None else batch.vote,
        commit=image.commit if batch.commit is None else batch.commit,
        snapshot=image.snapshot if batch.snapshot is None else batch.snapshot,
        log_start=log_start,
        entries=entries,
    )


class ClusterStore(ABC):
    """Durable memory of one broker's consensus core."""

    @abstractmethod
    def load(self) -> Image:
        """What the store holds; called once, before the first ``submit``."""

    @abstractmethod
    def submit(self, batch: Batch, token: int) -> None:
        """Make a batch durable after all earlier ones, then report its token. Never waits.

        Tokens rise. One report may stand for several batches: the highest token counts.
        """

    @abstractmethod
    def close(self) -> None:
        """Make durable what was submitted, and give the store back."""


class MemoryClusterStore(ClusterStore):
    """A store without a disk, for tests and for brokers that need not remember.

    With ``report`` a batch is durable at once. Without, ``sync`` makes it so, and ``crash`` loses
    what wasn't: ``image`` is what a restart would find.
    """

    def __init__(self, image: Image, report: SyncReport | None = None) -> None:
        self.image = image
        self._report = report
        self._waiting: list[tuple[Batch, int]] = []

    def load(self) -> Image:
        return self.image

    def submit(self, batch: Batch, token: int) -> None:
        self._waiting.append((batch, token))
        if self._report is not None:
            self._report(self.sync())

    def sync(self) -> int:
        """Make everything durable; the token to report, or 0 if nothing waited."""
        token = self._waiting[-1][1] if self._waiting else 0
        for batch, _ in self._waiting:
            self.image = advance(self.image, batch)
        self._waiting.clear()
        return token

    def crash(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self.sync()
