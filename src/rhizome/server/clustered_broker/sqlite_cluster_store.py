"""SqliteClusterStore: the cluster's log, term and vote in one SQLite database (ADR 9).

    cluster/state.db    write-ahead log, synchronous=FULL: a commit is one append and one sync
    cluster/mark        how many batches were reported as synced

Group commit: a thread takes all waiting batches, commits them in one transaction, syncs the mark
and reports the last token. The event loop never waits for it.

Damaged data must not pass for data that was never written (R7), and SQLite alone can't tell: a
flipped bit in its write-ahead log silently ends the log there, and an older state looks as valid as
a newer one. So every row has a checksum, the entries are counted, and the mark, synced before a
batch is reported, says how many batches the database must hold at least.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias
from uuid import uuid4

from crc32c import crc32c

from rhizome.cluster.consensus.log.cluster_store import (
    Batch,
    ClusterStore,
    Entry,
    Image,
    Position,
    Snapshot,
    SyncReport,
)
from rhizome.journal.files import make_directory

FailureReport: TypeAlias = Callable[[Exception], None]

DATABASE: Final = "state.db"
MARK: Final = "mark"
FORMAT_VERSION: Final = 1
FULL_DISK_RETRY_S: Final = 0.5
BATCHES_PER_COMMIT_MAX: Final = 256

_SLOT: Final = struct.Struct(">8sQQI")
_SLOT_BYTES: Final = 512
"""Two copies written in turn, a sector each: a torn write damages only one of them."""
_MAGIC: Final = b"RHZMARK1"

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, kind INTEGER NOT NULL, payload BLOB NOT NULL,
    crc INTEGER NOT NULL);
"""


class _Damaged(Exception):
    """The text says what was found."""


class SqliteClusterStore(ClusterStore):
    """``report`` and ``failed`` are called in the store's own thread.

    After ``failed`` nothing more is written: the kernel may have dropped the pages whose sync
    failed, so a later success would prove nothing.
    """

    def __init__(
        self,
        directory: Path,
        report: SyncReport,
        failed: FailureReport,
        new_uuid: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._directory = directory
        self._report = report
        self._failed = failed
        self._new_uuid = new_uuid
        self._waiting: deque[tuple[Batch, int]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._batches = 0
        self._mark = _Mark(directory / MARK)

    def load(self) -> Image:
        """What the store holds. A new one gets a UUID, which is durable before this returns."""
        make_directory(self._directory)
        # Otherwise a power cut may take the directory with everything that is synced in it.
        _sync_directory(self._directory.parent)
        try:
            image = self._read()
        except (sqlite3.DatabaseError, _Damaged, struct.error) as error:
            self._mark.close()
            return Image(uuid="", damage=f"{self._directory}: {error}")
        self._thread = threading.Thread(target=self._work, name="cluster-store", daemon=True)
        self._thread.start()
        return image

    def submit(self, batch: Batch, token: int) -> None:
        with self._wake:
            self._waiting.append((batch, token))
            self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._mark.close()

    # Reading, before the thread starts.

    def _read(self) -> Image:
        marked = self._mark.open()
        connection = _connect(self._directory / DATABASE)
        try:
            facts = _Facts(connection)
            self._batches = facts.number("batches")
            if self._batches < marked:
                raise _Damaged(
                    f"the store holds {self._batches} batches and had reported {marked}: some that "
                    "other brokers relied on are lost"
                )
            if not facts.text("uuid"):
                self._create(connection, facts)
            if facts.number("format") != FORMAT_VERSION:
                raise _Damaged(
                    f"its format is {facts.number('format')} and this release knows "
                    f"{FORMAT_VERSION}: use a newer release"
                )
            return _image(connection, facts)
        finally:
            connection.close()

    def _create(self, connection: sqlite3.Connection, facts: _Facts) -> None:
        if self._batches:
            raise _Damaged("the store has lost its UUID")
        connection.execute("BEGIN IMMEDIATE")
        facts.put("uuid", self._new_uuid().encode())
        facts.put_number("format", FORMAT_VERSION)
        connection.execute("COMMIT")
        _sync_directory(self._directory)

    # Writing, in the thread.

    def _work(self) -> None:
        connection = _connect(self._directory / DATABASE)
        try:
            while taken := self._take():
                if not self._write_patiently(connection, taken):
                    return
                self._report(taken[-1][1])
        except Exception as error:  # whatever it is, nothing that follows would be durable
            self._failed(error)
        finally:
            connection.close()

    def _take(self) -> list[tuple[Batch, int]]:
        """All batches that wait; none if the store is closing and everything is written."""
        with self._wake:
            while not self._waiting and not self._closing:
                self._wake.wait()
            count = min(len(self._waiting), BATCHES_PER_COMMIT_MAX)
            return [self._waiting.popleft() for _ in range(count)]

    def _write_patiently(
        self, connection: sqlite3.Connection, taken: list[tuple[Batch, int]]
    ) -> bool:
        """Write; a full disk is waited out. False if the store was closed meanwhile."""
        while True:
            try:
                self._write(connection, taken)
                return True
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
            with self._wake:
                if self._closing:
                    return False
                self._wake.wait(FULL_DISK_RETRY_S)

    def _write(self, connection: sqlite3.Connection, taken: list[tuple[Batch, int]]) -> None:
        facts = _Facts(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for batch, _ in taken:
                _apply(connection, facts, batch)
            facts.put_number("batches", self._batches + len(taken))
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._batches += len(taken)
        self._mark.write(self._batches)


def read_image(directory: Path) -> Image:
    """What a store holds, whether or not a broker runs on it; nothing is written. ``damage`` says
    so if the store is damaged."""
    path = directory / DATABASE
    if not path.is_file():
        return Image(uuid="", damage=f"{directory}: there is no {DATABASE}")
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            return _image(connection, _Facts(connection))
        finally:
            connection.close()
    except (sqlite3.DatabaseError, _Damaged, struct.error) as error:
        return Image(uuid="", damage=f"{directory}: {error}")


class _Mark:
    """A number that never falls, durable when ``write`` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._writes = 0

    def open(self) -> int:
        """The highest number that was written; 0 for a new file."""
        is_new = not self._path.exists()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if is_new:
            os.pwrite(self._file, bytes(2 * _SLOT_BYTES), 0)
            os.fsync(self._file)
            _sync_directory(self._path.parent)
            return 0
        slots = [self._slot(number) for number in (0, 1)]
        best = max(slots)
        if best == (0, 0) and os.pread(self._file, 2 * _SLOT_BYTES, 0).strip(b"\0"):
            raise _Damaged("both slots of its mark are unreadable")
        self._writes = best[1] + 1
        return best[0]

    def _slot(self, number: int) -> tuple[int, int]:
        data = os.pread(self._file, _SLOT.size, number * _SLOT_BYTES)
        if len(data) < _SLOT.size:
            return (0, 0)
        magic, mark, writes, crc = _SLOT.unpack(data)
        if magic != _MAGIC or crc != crc32c(data[:-4]):
            return (0, 0)
        return (mark, writes)

    def write(self, mark: int) -> None:
        head = _SLOT.pack(_MAGIC, mark, self._writes, 0)[:-4]
        data = head + crc32c(head).to_bytes(4, "big")
        os.pwrite(self._file, data, self._writes % 2 * _SLOT_BYTES)
        os.fdatasync(self._file)
        self._writes += 1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class _Facts:
    """Small named values, each with a checksum."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, name: str) -> bytes:
        row = self._connection.execute(
            "SELECT value, crc FROM facts WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return b""
        value, crc = row
        if not isinstance(value, bytes) or crc != crc32c(name.encode() + value):
            raise _Damaged(f"the checksum of {name} is wrong")
        return value

    def text(self, name: str) -> str:
        return self.get(name).decode()

    def number(self, name: str) -> int:
        return int.from_bytes(self.get(name), "big")

    def put(self, name: str, value: bytes) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)",
            (name, value, crc32c(name.encode() + value)),
        )

    def put_number(self, name: str, value: int) -> None:
        self.put(name, value.to_bytes(8, "big"))


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(_SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _sync_directory(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _checksum(index: int, term: int, kind: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(struct.pack(">QQB", index, term, kind)))


def _apply(connection: sqlite3.Connection, facts: _Facts, batch: Batch) -> None:
    """The order is that of ``Batch``."""
    if batch.log_from is not None:
        connection.execute("DELETE FROM entries WHERE idx >= ?", (batch.log_from,))
        facts.put_number("last", batch.log_from - 1)
    if batch.entries:
        connection.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?)",
            (
                (e.index, e.term, e.kind, e.payload, _checksum(e.index, e.term, e.kind, e.payload))
                for e in batch.entries
            ),
        )
        facts.put_number("last", batch.entries[-1].index)
    if batch.snapshot is not None:
        head = struct.pack(">QQ", batch.snapshot.index, batch.snapshot.term)
        facts.put("snapshot", head + batch.snapshot.data)
    if batch.log_start is not None:
        start = batch.log_start
        connection.execute("DELETE FROM entries WHERE idx <= ?", (start.index,))
        facts.put("log_start", struct.pack(">QQ", start.index, start.term))
        facts.put_number("last", max(start.index, facts.number("last")))
    _apply_facts(facts, batch)


def _apply_facts(facts: _Facts, batch: Batch) -> None:
    if batch.term is not None:
        facts.put_number("term", batch.term)
    if batch.vote is not None:
        facts.put("vote", batch.vote.encode())
    if batch.commit is not None:
        facts.put_number("commit", batch.commit)
    if batch.cluster_uuid is not None:
        facts.put("cluster_uuid", batch.cluster_uuid.encode())


def _image(connection: sqlite3.Connection, facts: _Facts) -> Image:
    start = Position(*struct.unpack(">QQ", facts.get("log_start") or bytes(16)))
    stored = facts.get("snapshot")
    snapshot = None
    if stored:
        index, term = struct.unpack(">QQ", stored[:16])
        snapshot = Snapshot(index, term, stored[16:])
    return Image(
        uuid=facts.text("uuid"),
        cluster_uuid=facts.text("cluster_uuid"),
        term=facts.number("term"),
        vote=facts.text("vote"),
        commit=facts.number("commit"),
        snapshot=snapshot,
        log_start=start,
        entries=_entries(connection, start.index, facts.number("last")),
    )


def _entries(connection: sqlite3.Connection, start: int, last: int) -> tuple[Entry, ...]:
    """All entries after ``start`` up to ``last``, without a gap and undamaged."""
    found = []
    rows = connection.execute("SELECT idx, term, kind, payload, crc FROM entries ORDER BY idx")
    for expected, (index, term, kind, payload, crc) in enumerate(rows, start + 1):
        if index != expected:
            raise _Damaged(f"entry {expected} of its log is missing")
        if crc != _checksum(index, term, kind, payload):
            raise _Damaged(f"the checksum of entry {index} of its log is wrong")
        found.append(Entry(index, term, kind, payload))
    if start + len(found) != max(start, last):
        raise _Damaged(f"its log ends at {start + len(found)} and should end at {last}")
    return tuple(found)
