"""JournalWriter: the thread that writes and syncs the batches of one journal.

Group commit: the thread takes everything that has been submitted, writes it, syncs once, and
reports how far it got. While it syncs, the next batches gather; so the number of syncs adapts to
what the disk can do, a single message waits for one sync only, and an idle journal causes none. A
batch that nobody waits for (acks, marks of delivered messages) causes no sync of its own: it goes
with the next one that somebody waits for, or at the next tick of the broker.

Order of writing (recovery relies on it):
1. batches are written in the order of submission;
2. a segment that is complete is cut and synced before a byte of the next one is written, whatever
   the flush policy, so that only the last segment can be torn;
3. a position is reported synced only after a sync that began after it was written succeeded.

A full disk is waited out: the batch is kept and tried again, and the alarm is raised meanwhile. Any
other error of a write, and every error of a sync, is the end: the kernel may have dropped the pages
whose sync failed, so a second sync that succeeds would prove nothing.
"""

from __future__ import annotations

import errno
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from rhizome.journal.errors import JournalFailed
from rhizome.journal.journal import SegmentWrite

Thread: TypeAlias = threading.Thread
SETTLE_S_MAX: Final = 30.0
FULL_DISK_RETRY_MS: Final = 500
BACKLOG_BYTES_MAX: Final = 64 * 1024 * 1024
SCRATCH_BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Spilled bodies that wait to be written are in memory, where they were not meant to be."""
FULL_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
SYNC_BUCKETS_MS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0)


class Flush:
    """When a batch counts as durable: after its sync, or once written.

    `interval_ms` 0 syncs every batch before it is reported (`always`); above 0 reports a batch when
    it is written and syncs every so often; -1 leaves syncing to the operating system (`never`).
    """

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms

    @property
    def waits(self) -> bool:
        return self.interval_ms == 0

    @property
    def syncs(self) -> bool:
        return self.interval_ms >= 0


ALWAYS: Final = Flush(0)
NEVER: Final = Flush(-1)


def every(interval_ms: int) -> Flush:
    """Sync every `interval_ms`, without making confirms wait for it."""
    assert interval_ms > 0
    return Flush(interval_ms)


class WriterStatistics:
    """What a writer has done since its start."""

    def __init__(self) -> None:
        self.batches = 0
        self.bytes_written = 0
        self.syncs = 0
        self.sync_seconds = 0.0
        self.sync_buckets = [0] * (len(SYNC_BUCKETS_MS) + 1)
        """Number of syncs per upper bound of SYNC_BUCKETS_MS; the last one is beyond all."""
        self.commit_seconds = 0.0
        self.commit_buckets = [0] * (len(SYNC_BUCKETS_MS) + 1)
        """The same of batches: from when one was submitted until it counted as durable."""

    def synced(self, seconds: float) -> None:
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_buckets[bisect_left(SYNC_BUCKETS_MS, seconds * 1000)] += 1

    def committed(self, seconds: float) -> None:
        self.commit_seconds += seconds
        self.commit_buckets[bisect_left(SYNC_BUCKETS_MS, seconds * 1000)] += 1


class SegmentFiles(Protocol):
    """The methods of `Files` that a writer needs."""

    def create(self, segment: int, bytes_reserved: int) -> None: ...
    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None: ...
    def sync(self, segment: int) -> None: ...
    def cut(self, segment: int, size: int) -> None: ...
    def read(self, segment: int, offset: int, length: int) -> bytes: ...


class _Batch:
    def __init__(self, chunks: list[SegmentWrite], token: int, hurried: bool) -> None:
        self.chunks = chunks
        self.token = token
        self.hurried = hurried
        self.size = sum(int(chunk.size) for chunk in chunks)
        self.submitted = time.perf_counter()


class JournalWriter:
    """Invariant: every submitted batch is either in `_pending`, in this order, or wholly written.

    The callbacks run in the writer's thread; the shell hands them on to its loop:
    `on_durable(token, synced)`: all batches up to `token` count as durable, and everything below
    the position `synced` is on disk; `on_alarm(text)`: the disk is full, or (empty) has space
    again; `on_failure(error)`: the writer has stopped for good, nothing more will become durable.
    """

    def __init__(
        self,
        files: SegmentFiles,
        segment_bytes_max: int,
        flush: Flush,
        on_durable: Callable[[int, int], None],
        on_alarm: Callable[[str], None],
        on_failure: Callable[[BaseException], None],
        start: int = 0,
        scratch: bool = False,
        name: str = "journal",
    ) -> None:
        self.statistics = WriterStatistics()
        self.backlog_bytes = 0
        self.backlog_bytes_max = SCRATCH_BACKLOG_BYTES_MAX if scratch else BACKLOG_BYTES_MAX
        self._files = files
        self._segment_bytes_max = segment_bytes_max
        self._flush = flush
        self._on_durable = on_durable
        self._on_alarm = on_alarm
        self._on_failure = on_failure
        self._scratch = scratch
        self._changed = threading.Condition()
        self._pending: deque[_Batch] = deque()
        self._hurried = False
        self._failure: BaseException | None = None
        self._stopping = False
        self._token = start
        self._synced = start
        self._sync_wanted = False
        self._dirty: dict[int, None] = {}
        self._dirty_end = 0
        self._sync_due = 0.0
        self._alarmed = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-writer", daemon=True)
        self._thread.start()

    # --- called by the shell ------------------------------------------------------------------

    def submit(self, chunks: list[SegmentWrite], token: int, hurried: bool = True) -> None:
        """Queue a batch; `token` is the journal's end position after it. One that is not `hurried`
        is written with the next that is, or at the next `hurry`."""
        if not chunks:
            return
        batch = _Batch(chunks, token, hurried)
        with self._changed:
            if self._failure is not None:
                raise JournalFailed(f"the journal has failed: {self._failure}") from self._failure
            self._pending.append(batch)
            self.backlog_bytes += batch.size
            if hurried:
                self._hurried = True
                self._changed.notify()

    def hurry(self) -> None:
        """Write what was submitted, though nobody waits for it."""
        if self._pending and not self._hurried:
            with self._changed:
                self._hurried = True
                self._changed.notify()

    def sync_soon(self) -> None:
        """Sync what has been submitted even if the flush policy wouldn't, and report it."""
        with self._changed:
            self._sync_wanted = True
            self._changed.notify()

    def congested(self) -> bool:
        """Whether publishers must be held back until the disk has caught up."""
        return self.backlog_bytes > self.backlog_bytes_max

    def read(self, segment: int, offset: int, length: int) -> bytes:
        """Bytes of a segment, including those that are submitted and not yet written."""
        with self._changed:
            waiting = [
                chunk
                for batch in self._pending
                for chunk in batch.chunks
                if chunk.segment == segment
                and chunk.offset < offset + length
                and chunk.offset + chunk.size > offset
            ]
        data = self._files.read(segment, offset, length)
        return _overlaid(data, offset, length, waiting) if waiting else data

    def settle(self) -> None:
        """Wait until everything submitted is written. This blocks, so it is only for rare cases."""
        self.hurry()
        with self._changed:
            done = self._changed.wait_for(
                lambda: not self._pending or self._failure is not None, SETTLE_S_MAX
            )
        if not done:
            raise JournalFailed(
                f"{self.backlog_bytes} bytes could not be written in {SETTLE_S_MAX:g} s"
            )

    def close(self, timeout_s: float = 60.0) -> None:
        """Write and sync what is queued, then stop. Raises JournalFailed if that doesn't work."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._failure is not None:
            raise JournalFailed(f"the journal has failed: {self._failure}") from self._failure
        if self._thread.is_alive():
            raise JournalFailed(f"{self.backlog_bytes} bytes could not be written in {timeout_s} s")

    # --- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._on_failure(error)

    def _step(self) -> bool:
        """Write and sync what there is to do now; False when all is done and the writer stops."""
        with self._changed:
            while not self._has_work():
                self._changed.wait(self._sync_wait_s())
            batches = list(self._pending)
            stopping = self._stopping
            wanted = self._sync_wanted
            self._sync_wanted = self._hurried = False
        for batch in batches:
            self._write_batch(batch)
        if batches:
            self._token = batches[-1].token
        if self._flush.waits or stopping or wanted or self._sync_is_due():
            self._sync()
            self._synced = self._token
        self._forget(batches)
        self._on_durable(self._token, self._synced)
        return not (stopping and not batches)

    def _has_work(self) -> bool:
        return self._hurried or self._stopping or self._sync_wanted or self._sync_is_due()

    def _write_batch(self, batch: _Batch) -> None:
        for chunk in batch.chunks:
            # A stream that was dropped and copied again begins with the same segment again.
            if chunk.offset == 0:
                self._retry_while_full(self._create, chunk)
            self._retry_while_full(self._write_chunk, chunk)
            self._note_written(chunk)
        self.statistics.batches += 1
        self.statistics.bytes_written += batch.size

    def _create(self, chunk: SegmentWrite) -> None:
        size = max(self._segment_bytes_max, int(chunk.size))
        self._files.create(int(chunk.segment), size)

    def _write_chunk(self, chunk: SegmentWrite) -> None:
        self._files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)

    def _note_written(self, chunk: SegmentWrite) -> None:
        if not self._dirty and self._flush.interval_ms > 0:
            self._sync_due = time.monotonic() + self._flush.interval_ms / 1000
        segment, end = int(chunk.segment), int(chunk.offset + chunk.size)
        self._dirty[segment] = None
        self._dirty_end = segment << 32 | end
        if chunk.closes:
            self._files.cut(segment, end)
            self._sync()

    def _sync(self) -> None:
        if not self._dirty or self._scratch:
            return
        for segment in self._dirty:
            start = time.perf_counter()
            self._files.sync(segment)
            self.statistics.synced(time.perf_counter() - start)
        self._synced = self._dirty_end
        self._dirty = {}
        self._sync_due = 0.0

    def _sync_is_due(self) -> bool:
        return self._sync_due > 0.0 and time.monotonic() >= self._sync_due

    def _sync_wait_s(self) -> float | None:
        return None if self._sync_due == 0.0 else max(0.0, self._sync_due - time.monotonic())

    def _forget(self, batches: list[_Batch]) -> None:
        """The batches are durable: release their bytes."""
        now = time.perf_counter()
        for batch in batches:
            if batch.hurried:
                self.statistics.committed(now - batch.submitted)
        with self._changed:
            for batch in batches:
                self._pending.popleft()
                self.backlog_bytes -= batch.size
            self._changed.notify_all()

    def _retry_while_full(
        self, attempt: Callable[[SegmentWrite], None], chunk: SegmentWrite
    ) -> None:
        while True:
            try:
                attempt(chunk)
            except OSError as error:
                if error.errno not in FULL_DISK_ERRORS:
                    raise
                self._wait_for_space(error)
            else:
                break
        if self._alarmed:
            self._alarmed = False
            self._on_alarm("")

    def _wait_for_space(self, error: OSError) -> None:
        if not self._alarmed:
            self._alarmed = True
            self._on_alarm(f"the disk of the journal is full ({error.strerror}): free some space")
        with self._changed:
            if self._stopping:
                raise error
            self._changed.wait_for(lambda: self._stopping, FULL_DISK_RETRY_MS / 1000)


def run_aside(
    work: Callable[[], None],
    then: Callable[[], None],
    on_failure: Callable[[BaseException], None],
) -> threading.Thread:
    """Run `work` and then `then` in a thread of their own, because they would hold up the
    batches."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            on_failure(error)
        else:
            then()

    thread = threading.Thread(target=run, name="journal-aside", daemon=True)
    thread.start()
    return thread


class InlineWriter:
    """A writer without a thread, for files in memory: what is submitted is durable at once."""

    def __init__(
        self,
        files: SegmentFiles,
        segment_bytes_max: int,
        on_durable: Callable[[int, int], None],
        start: int,
    ) -> None:
        self.statistics = WriterStatistics()
        self.backlog_bytes = 0
        self._files = files
        self._segment_bytes_max = segment_bytes_max
        self._on_durable = on_durable
        self._token = start

    def submit(self, chunks: list[SegmentWrite], token: int, hurried: bool = True) -> None:
        if not chunks:
            return
        for chunk in chunks:
            if chunk.offset == 0:
                self._files.create(int(chunk.segment), self._segment_bytes_max)
            self._files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)
            self.statistics.bytes_written += int(chunk.size)
        self.statistics.batches += 1
        self._token = token
        self._on_durable(token, token)

    def hurry(self) -> None:
        pass

    def sync_soon(self) -> None:
        self._on_durable(self._token, self._token)

    def congested(self) -> bool:
        return False

    def settle(self) -> None:
        pass

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return self._files.read(segment, offset, length)

    def close(self) -> None:
        pass


def _overlaid(data: bytes, offset: int, length: int, chunks: list[SegmentWrite]) -> bytes:
    """`data` as read at `offset`, overlaid with what `chunks` will write there."""
    found = bytearray(data)
    for chunk in chunks:
        at = int(chunk.offset) - offset
        for piece in chunk.pieces:
            skipped = max(0, -at)
            part = piece[skipped : skipped + length - max(0, at)] if skipped < len(piece) else b""
            if part and at < length:
                start = max(0, at)
                if len(found) < start:
                    found.extend(bytes(start - len(found)))
                found[start : start + len(part)] = part
            at += len(piece)
    return bytes(found[:length])
