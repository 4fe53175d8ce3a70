"""The journal's files and store on a simulated disk, which loses what a real one would lose.

`SimFiles` is a directory of the disk; `SimStore` is the store that a broker core is given. A batch
is written at once and is durable when the disk has synced it, so it survives a kill, but perhaps
not a power cut. With a flush policy that doesn't wait it is reported when it is written, and synced
later or never. Checkpoints are written aside, and a crash in the middle leaves the older one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rhizome.journal.files import SEGMENT_SUFFIX, Files
from rhizome.journal.journal import SegmentWrite
from rhizome.journal.store import Store, StoreEvents, StoreOptions, Writer
from rhizome.journal.streams.stream_store import StreamFiles, StreamWriter
from rhizome.journal.writer import ALWAYS, NEVER, Flush, WriterStatistics
from rhizome.testing.sim.world.event_scheduler import MS
from rhizome.testing.sim.world.sim_disk import SimFile
from rhizome.testing.sim.world.sim_host import Host

FREE_BYTES: Final = 1 << 40
BACKLOG_BYTES_MAX: Final = 8 * 1024 * 1024


class SimFiles(Files):
    """One directory on a host's disk."""

    def __init__(self, host: Host, directory: str) -> None:
        self.host = host
        self._disk = host.disk
        self._prefix = f"{directory}/"

    def path(self, segment: int) -> str:
        return f"{self._prefix}{segment:010d}{SEGMENT_SUFFIX}"

    def _paths(self) -> list[str]:
        return [path for path in self._all_paths() if "/" not in path]

    def _all_paths(self) -> list[str]:
        start = len(self._prefix)
        return [name[start:] for name in self._disk.names() if name.startswith(self._prefix)]

    def segments(self) -> list[int]:
        ends = len(SEGMENT_SUFFIX)
        return [int(name[:-ends]) for name in self._paths() if name.endswith(SEGMENT_SUFFIX)]

    def create(self, segment: int, bytes_reserved: int) -> None:
        self._disk.files[self.path(segment)] = SimFile()

    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None:
        self._disk.files[self.path(segment)].write(offset, b"".join(pieces))

    def sync(self, segment: int) -> None:
        self._disk.sync_now(self.path(segment))

    def cut(self, segment: int, size: int) -> None:
        self._disk.files[self.path(segment)].cut(size)

    def written(self, names: list[str], order: int) -> None:
        """The operating system has the writes of these files with a smaller number."""
        for name in names:
            if name in self._disk.files:
                self._disk.files[name].note_written(order)

    def read(self, segment: int, offset: int, length: int) -> bytes:
        file = self._disk.files.get(self.path(segment))
        return b"" if file is None else bytes(file.content[offset : offset + length])

    def size(self, segment: int) -> int:
        return len(self._disk.files[self.path(segment)].content)

    def remove(self, segment: int) -> None:
        self._disk.files.pop(self.path(segment), None)

    def names(self) -> list[str]:
        return [name for name in self._paths() if not name.endswith(SEGMENT_SUFFIX)]

    def load(self, name: str) -> bytes:
        return bytes(self._disk.files[self._prefix + name].content)

    def store(self, name: str, pieces: Sequence[bytes]) -> None:
        file = self._disk.files[self._prefix + name] = SimFile()
        file.append(b"".join(pieces))
        file.made_durable(1)

    def discard(self, name: str) -> None:
        self._disk.files.pop(self._prefix + name, None)

    def inside(self, name: str) -> SimFiles:
        return SimFiles(self.host, f"{self._prefix}{name}")

    def directories(self) -> list[str]:
        return sorted({path.partition("/")[0] for path in self._all_paths() if "/" in path})

    def remove_directory(self, name: str) -> None:
        for path in [path for path in self._all_paths() if path.startswith(f"{name}/")]:
            self._disk.files.pop(self._prefix + path)

    def rename_directory(self, name: str, to: str) -> None:
        for path in [path for path in self._all_paths() if path.startswith(f"{name}/")]:
            file = self._disk.files.pop(self._prefix + path)
            self._disk.files[f"{self._prefix}{to}{path[len(name) :]}"] = file

    def free_bytes(self) -> int:
        return FREE_BYTES

    def close(self) -> None:
        pass


class SyncTimer:
    """Syncs what was written every so often, beside the batches (`flush = interval`)."""

    def __init__(self, host: Host, flush: Flush, sync: Callable[[], None]) -> None:
        self._host = host
        self._flush = flush
        self._sync = sync
        self._is_set = False

    def set(self) -> None:
        """Something was written."""
        if self._flush.interval_ms > 0 and not self._is_set:
            self._is_set = True
            self._host.disk.world.after(self._flush.interval_ms * MS, self._due)

    def _due(self) -> None:
        self._is_set = False
        if not self._host.is_over():
            self._sync()


class SimWriter:
    """Writes batches at once and reports them when the disk has synced them, or, with a flush
    policy that doesn't wait, when the system has them.

    As with the real writer, a complete segment is cut and synced before the next one is begun, so
    only the last can be torn; and a full disk is waited out, with an alarm meanwhile.

    Invariant: `_held` are the batches that a full disk has not taken, in order.
    """

    def __init__(
        self,
        files: SimFiles,
        segment_bytes_max: int,
        on_durable: Callable[[int, int], None],
        on_alarm: Callable[[str], None],
        start: int,
        flush: Flush = ALWAYS,
        scratch: bool = False,
    ) -> None:
        self.statistics = WriterStatistics()
        self._on_alarm = on_alarm
        self._held: list[tuple[list[SegmentWrite], int]] = []
        self.backlog_bytes = 0
        self._files = files
        self._segment_bytes_max = segment_bytes_max
        self._on_durable = on_durable
        self._token = start
        self._synced = start
        self._flush = flush
        self._timer = SyncTimer(files.host, flush, self.sync_soon)
        self._scratch = scratch
        self._active = -1
        self._end = 0

    def submit(self, chunks: list[SegmentWrite], token: int, hurried: bool = True) -> None:
        disk = self._files.host.disk
        if not disk.is_full() and not self._held:
            self._submit(chunks, token)
            return
        if not self._held:
            self._on_alarm("the disk is full: free some space")
            disk.when_not_full(self._go_on)
        self._held.append((chunks, token))
        self.backlog_bytes += sum(int(chunk.size) for chunk in chunks)

    def _go_on(self) -> None:
        held, self._held = self._held, []
        for chunks, token in held:
            self.backlog_bytes -= sum(int(chunk.size) for chunk in chunks)
            self._submit(chunks, token)
        self._on_alarm("")

    def _submit(self, chunks: list[SegmentWrite], token: int) -> None:
        size = 0
        for chunk in chunks:
            self._write(chunk)
            size += int(chunk.size)
        self.statistics.batches += 1
        self.statistics.bytes_written += size
        self._token = token
        if self._scratch:
            self._on_durable(token, token)
            return
        self.backlog_bytes += size
        if self._flush.waits:
            self._sync(size)
        else:
            self._report_written(size)
            self._timer.set()

    def _write(self, chunk: SegmentWrite) -> None:
        segment, offset = int(chunk.segment), int(chunk.offset)
        if offset == 0:
            if self._active >= 0 and not self._scratch:
                self._files.cut(self._active, self._end)
                self._files.sync(self._active)
            self._files.create(segment, self._segment_bytes_max)
        self._files.write(segment, offset, chunk.pieces)
        self._active, self._end = segment, offset + int(chunk.size)

    def _sync(self, size: int) -> None:
        token = self._token

        def done() -> None:
            self.backlog_bytes -= size
            self.statistics.synced(0.0)
            self._synced = max(self._synced, token)
            self._on_durable(token, self._synced)

        self._files.host.sync_aside(self._active_names(), done)

    def _active_names(self) -> list[str]:
        return [self._files.path(self._active)] if self._active >= 0 else []

    def _report_written(self, size: int) -> None:
        """Report a batch when the writing thread has made it: no kill loses it from then on."""
        token, names = self._token, self._active_names()
        order = self._files.host.disk.next_order()

        def done() -> None:
            self.backlog_bytes -= size
            self._files.written(names, order)
            self._on_durable(token, self._synced)

        self._files.host.sync_aside([], done)

    def hurry(self) -> None:
        pass

    def sync_soon(self) -> None:
        self._sync(0)

    def congested(self) -> bool:
        return self.backlog_bytes > BACKLOG_BYTES_MAX

    def read(self, segment: int, offset: int, length: int) -> bytes:
        data = self._files.read(segment, offset, length)
        for chunks, _ in self._held:
            for chunk in chunks:
                if chunk.segment == segment and chunk.offset <= offset + len(data):
                    skip = offset + len(data) - int(chunk.offset)
                    data += b"".join(chunk.pieces)[skip:]
        return data[:length]

    def close(self) -> None:
        if self._active >= 0 and not self._scratch:
            self._files.sync(self._active)


class SimStreamWriter:
    """The writer of streams: a batch has chunks for many files, each of which is synced."""

    def __init__(
        self,
        files: StreamFiles,
        host: Host,
        on_durable: Callable[[int, int], None],
        flush: Flush = ALWAYS,
    ) -> None:
        self.statistics = WriterStatistics()
        self.backlog_bytes = 0
        self._files = files
        self._host = host
        self._on_durable = on_durable
        self._token = 0
        self._flush = flush
        self._timer = SyncTimer(host, flush, self._sync_dirty)
        self._dirty: dict[str, None] = {}
        """Files that were written and, with a flush policy that doesn't wait, not synced yet."""

    def submit(self, chunks: list[SegmentWrite], token: int) -> None:
        size = 0
        names: dict[str, None] = {}
        for chunk in chunks:
            stream, segment = int(chunk.segment) >> 32, int(chunk.segment) & 0xFFFFFFFF
            directory = self._files.directory(stream)
            assert isinstance(directory, SimFiles)
            if chunk.offset == 0:
                directory.create(segment, 0)
            directory.write(segment, int(chunk.offset), chunk.pieces)
            size += int(chunk.size)
            if chunk.closes:
                directory.sync(segment)
            else:
                names[directory.path(segment)] = None
        self.statistics.batches += 1
        self.statistics.bytes_written += size
        self.backlog_bytes += size
        self._token = token
        if self._flush.waits:
            self._host.sync_aside(list(names), lambda: self._done(token, size))
        else:
            self._report_written(list(names), token, size)

    def _report_written(self, names: list[str], token: int, size: int) -> None:
        """As `SimWriter` does."""
        disk = self._host.disk
        order = disk.next_order()

        def done() -> None:
            for name in names:
                if name in disk.files:
                    disk.files[name].note_written(order)
            self._done(token, size)

        self._host.sync_aside([], done)
        self._dirty.update(dict.fromkeys(names))
        self._timer.set()

    def _sync_dirty(self) -> None:
        there = [name for name in self._dirty if name in self._host.disk.files]
        self._dirty.clear()
        self._host.sync_aside(there, _nothing)

    def _done(self, token: int, size: int) -> None:
        self.backlog_bytes -= size
        self.statistics.synced(0.0)
        self._on_durable(token, token)

    def sync_soon(self) -> None:
        self._host.sync_aside([], lambda: self._on_durable(self._token, self._token))

    def congested(self) -> bool:
        return self.backlog_bytes > BACKLOG_BYTES_MAX

    def settle(self) -> None:
        pass

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return self._files.read(segment >> 32, segment & 0xFFFFFFFF, offset, length)

    def close(self) -> None:
        pass


class SimStore(Store):
    """A broker's store on a simulated disk. What it reports comes as an input of the program."""

    def __init__(
        self,
        host: Host,
        store_uuid: bytes,
        events: StoreEvents,
        options: StoreOptions | None = None,
    ) -> None:
        self._host = host
        self.written = 0
        """Up to where the journal counts as durable, by its flush policy."""
        self.synced = 0
        """Up to where a sync has covered it."""
        self._journal_files = SimFiles(host, "journal")
        self._scratch_files = SimFiles(host, "spill")
        for segment in self._journal_files.segments():
            # What a killed program wrote can be read, and would still be lost with the power.
            self._journal_files.sync(segment)
        super().__init__(
            self._journal_files,
            self._scratch_files,
            SimFiles(host, "streams"),
            SimFiles(host, "aside"),
            store_uuid,
            events,
            host.soon,
            options or StoreOptions(),
        )

    def _make_writer(self) -> Writer:
        start = int(self.journal.end_position())
        return SimWriter(
            self._journal_files,
            self.options.segment_bytes_max,
            self._durable,
            self._alarm,
            start,
            self.options.flush,
        )

    def _make_spill_writer(self) -> Writer:
        return SimWriter(
            self._scratch_files,
            self.options.spill_segment_bytes_max,
            self._spilled,
            self._alarm,
            0,
            NEVER,
            scratch=True,
        )

    def _make_stream_writer(self) -> StreamWriter:
        return SimStreamWriter(
            self.streams.files, self._host, self._streams_durable, self.options.flush
        )

    def _durable(self, token: int, synced: int) -> None:
        self.written, self.synced = token, synced
        super()._durable(token, synced)

    def end_found(self) -> int:
        """Up to where there was a journal when it was opened."""
        found = self.recovered
        ends = [int(each.segment) << 32 | int(each.size) for each in found.segments]
        return max([found.checkpoint_position, *ends])

    def _alarm(self, text: str) -> None:
        self._host.soon(lambda: self._events.alarm(text))

    def _run_aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run work that takes as long as a sync, and that a crash before its end undoes."""

        def done() -> None:
            work()
            then()

        self._host.sync([], done)

    def _finish_aside(self) -> None:
        pass


def _nothing() -> None:
    pass
