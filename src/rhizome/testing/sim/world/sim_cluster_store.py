"""A broker's cluster store on a simulated disk.

Two files. `cluster/log` holds batches, one after the other, each with its length and checksum.
`cluster/mark` says how far the log is known to be synced; it is written and synced before a batch
is reported. So damage at or below the mark is told from a write that a power cut left unfinished,
and makes the store unusable (R7).

Two marks alternate in their file, a sector each: if a write tears one of them, the other is whole.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from rhizome.cluster.consensus.dataclass_codec import DamagedError, decode, encode
from rhizome.cluster.consensus.log.cluster_store import (
    NO_VOTE,
    Batch,
    ClusterStore,
    Entry,
    Image,
    Position,
    Snapshot,
    SyncReport,
)
from rhizome.testing.sim.world.sim_disk import SECTOR_BYTES
from rhizome.testing.sim.world.sim_host import Host

LOG: Final = "cluster/log"
MARK: Final = "cluster/mark"

_FRAME: Final = struct.Struct(">II")
_MARK: Final = struct.Struct(">QI")
_UNCHANGED: Final = -1


@dataclass(frozen=True, slots=True)
class _Record:
    """A batch as it is written, with `_UNCHANGED` or an empty tuple for None.

    The first of a log has the store's UUID.
    """

    uuid: str = ""
    term: int = _UNCHANGED
    vote: tuple[str, ...] = ()
    log_from: int = _UNCHANGED
    entries: tuple[Entry, ...] = ()
    commit: int = _UNCHANGED
    snapshot: tuple[bytes, ...] = ()
    snapshot_index: int = 0
    snapshot_term: int = 0
    start_index: int = _UNCHANGED
    start_term: int = 0
    cluster_uuid: tuple[str, ...] = ()


class _Contents:
    """What the records of a log amount to."""

    def __init__(self) -> None:
        self.uuid = ""
        self.cluster_uuid = ""
        self.term = 0
        self.vote = NO_VOTE
        self.commit = 0
        self.snapshot: Snapshot | None = None
        self.log_start = Position()
        self.entries: list[Entry] = []

    def apply(self, record: _Record) -> None:
        self.uuid = record.uuid or self.uuid
        if record.log_from != _UNCHANGED:
            del self.entries[max(0, record.log_from - self.log_start.index - 1) :]
        self.entries += record.entries
        if record.start_index != _UNCHANGED:
            self._begin_log_at(Position(record.start_index, record.start_term))
        if record.snapshot:
            data = record.snapshot[0]
            self.snapshot = Snapshot(record.snapshot_index, record.snapshot_term, data)
        for vote in record.vote:
            self.vote = vote
        for cluster_uuid in record.cluster_uuid:
            self.cluster_uuid = cluster_uuid
        self.term = record.term if record.term != _UNCHANGED else self.term
        self.commit = record.commit if record.commit != _UNCHANGED else self.commit

    def _begin_log_at(self, start: Position) -> None:
        self.entries = [entry for entry in self.entries if entry.index > start.index]
        self.log_start = start

    def image(self) -> Image:
        return Image(
            uuid=self.uuid,
            cluster_uuid=self.cluster_uuid,
            term=self.term,
            vote=self.vote,
            commit=self.commit,
            snapshot=self.snapshot,
            log_start=self.log_start,
            entries=tuple(self.entries),
        )


class SimClusterStore(ClusterStore):
    """Invariant: a batch is reported when the log is synced up to its end and a mark says so."""

    def __init__(self, host: Host, new_uuid: str, report: SyncReport) -> None:
        self._host = host
        self._new_uuid = new_uuid
        self._report = report
        self._waiting: list[int] = []
        self._syncing = False
        self._marks = 0

    # --- opening

    def load(self) -> Image:
        """What the store holds. One that is damaged says so, and may be set aside."""
        disk = self._host.disk
        for name in (LOG, MARK):
            # What a killed program has written can be read, and is not yet safe.
            disk.sync_now(name)
        data = bytes(disk.open(LOG).content)
        marked = self._read_mark()
        if not data and not marked:
            return self._begin()
        contents = _Contents()
        end = _replay(data, contents)
        if end < marked or not contents.uuid:
            damage = f"{LOG} was synced up to {marked}, but is whole up to {end} only"
            return Image(uuid=self._new_uuid, damage=damage)
        disk.open(LOG).cut(end)
        disk.sync_now(LOG)
        return contents.image()

    def set_aside(self) -> Image:
        """Begin with an empty store, as a new broker (R7)."""
        for name in (LOG, MARK):
            self._host.disk.files.pop(name, None)
        return self._begin()

    def _begin(self) -> Image:
        disk = self._host.disk
        disk.open(LOG).append(_framed(_Record(uuid=self._new_uuid)))
        disk.sync_now(LOG)
        self._put_mark(len(disk.open(LOG).content))
        disk.sync_now(MARK)
        return Image(self._new_uuid)

    def _read_mark(self) -> int:
        data = bytes(self._host.disk.open(MARK).content)
        marked = 0
        for number, place in enumerate((0, SECTOR_BYTES)):
            piece = data[place : place + _MARK.size]
            if len(piece) == _MARK.size and zlib.crc32(piece[:8]) == _MARK.unpack(piece)[1]:
                end = _MARK.unpack(piece)[0]
                if end > marked:
                    # The older one is overwritten next.
                    marked, self._marks = end, number + 1
        return marked

    def _put_mark(self, end: int) -> None:
        head = struct.pack(">Q", end)
        place = self._marks % 2 * SECTOR_BYTES
        self._marks += 1
        self._host.disk.open(MARK).write(place, head + struct.pack(">I", zlib.crc32(head)))

    # --- writing

    def submit(self, batch: Batch, token: int) -> None:
        self._host.disk.open(LOG).append(_framed(_record(batch)))
        self._waiting.append(token)
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        """One sync at a time; what comes meanwhile shares the next one."""
        self._syncing = True
        token = self._waiting[-1]
        self._waiting.clear()
        end = len(self._host.disk.open(LOG).content)
        self._host.sync_aside([LOG], lambda: self._mark(token, end))

    def _mark(self, token: int, end: int) -> None:
        self._put_mark(end)
        self._host.sync([MARK], lambda: self._safe(token))

    def _safe(self, token: int) -> None:
        self._syncing = False
        self._report(token)
        if self._waiting:
            self._sync()

    def close(self) -> None:
        self._host.disk.sync_now(LOG)


def _record(batch: Batch) -> _Record:
    snapshot, start = batch.snapshot, batch.log_start
    return _Record(
        term=_UNCHANGED if batch.term is None else batch.term,
        vote=() if batch.vote is None else (batch.vote,),
        log_from=_UNCHANGED if batch.log_from is None else batch.log_from,
        entries=batch.entries,
        commit=_UNCHANGED if batch.commit is None else batch.commit,
        snapshot=() if snapshot is None else (snapshot.data,),
        snapshot_index=0 if snapshot is None else snapshot.index,
        snapshot_term=0 if snapshot is None else snapshot.term,
        start_index=_UNCHANGED if start is None else start.index,
        start_term=0 if start is None else start.term,
        cluster_uuid=() if batch.cluster_uuid is None else (batch.cluster_uuid,),
    )


def _framed(record: _Record) -> bytes:
    body = encode(record)
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def _replay(data: bytes, contents: _Contents) -> int:
    """Apply every whole record from the beginning on; where the last of them ends."""
    at = 0
    while at + _FRAME.size <= len(data):
        size, check = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + size]
        if not size or len(body) < size or zlib.crc32(body) != check:
            break
        try:
            contents.apply(decode(_Record, body))
        except DamagedError:
            break
        at += _FRAME.size + size
    return at
