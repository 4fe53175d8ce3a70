"""StreamStore: the logs of all streams of a store, and the writer that they share.

    DIR/streams/ID/NNNNNNNNNN.seg    the segments of the stream whose queue has this id
    DIR/streams/ID/unsynced          it was written with a flush policy that doesn't wait

The chunks that all streams have made in a turn are one batch, written in order and made safe with
one sync per file. Batches are numbered; ``durable`` is the number of the last one that is safe. The
store reports this by repeating its last event about the journal, so there is one event for both.

Segments and streams are removed when nothing of them is waiting to be written. A copy that is
dropped may be needed again at once. So its directory is renamed first and removed aside, and the
removal never meets the files of the new copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rhizome.journal.files import Files
from rhizome.journal.journal import SegmentWrite
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.journal.streams.stream_recovery import recover_stream
from rhizome.journal.streams.stream_segment import StreamFilesReader
from rhizome.journal.writer import SegmentFiles, WriterStatistics

STREAM_BYTES_RESERVED: Final = 64 * 1024
"""How much disk space a new segment reserves: a stream that holds little should cost little."""
UNSYNCED: Final = "unsynced"
"""The file that marks such a stream: its chunks may call others safe that were only written."""


class StreamFiles(StreamFilesReader):
    """The directories of all streams as one, for writer and readers.

    A segment is known by the id of its stream << 32 | its number there.
    """

    def __init__(self, root: Files) -> None:
        super().__init__()
        self.root = root
        self._directories: dict[int, Files] = {}

    def directory(self, stream: int) -> Files:
        found = self._directories.get(stream)
        if found is None:
            found = self.root.inside(str(stream))
            self._directories[stream] = found
        return found

    def streams(self) -> list[int]:
        """The ids of the streams that have a directory."""
        return sorted(int(name) for name in self.root.directories() if name.isdecimal())

    def forget(self, stream: int) -> None:
        self._directories.pop(stream, None)

    def read(self, stream: int, segment: int, position: int, length: int) -> bytes:
        return self.directory(stream).read(segment, position, length)

    def size(self, stream: int, segment: int) -> int:
        return self.directory(stream).size(segment)

    def close(self) -> None:
        for directory in self._directories.values():
            directory.close()


class StreamSegmentFiles:
    """The interface of these files that the writer uses."""

    def __init__(self, files: StreamFiles) -> None:
        self._files = files

    def create(self, segment: int, bytes_reserved: int) -> None:
        self._files.directory(segment >> 32).create(segment & 0xFFFFFFFF, bytes_reserved)

    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None:
        self._files.directory(segment >> 32).write(segment & 0xFFFFFFFF, offset, pieces)

    def sync(self, segment: int) -> None:
        # With a flush policy that doesn't wait, the stream may have been removed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            self._files.directory(segment >> 32).sync(segment & 0xFFFFFFFF)

    def cut(self, segment: int, size: int) -> None:
        self._files.directory(segment >> 32).cut(segment & 0xFFFFFFFF, size)

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return self._files.directory(segment >> 32).read(segment & 0xFFFFFFFF, offset, length)


class StreamWriter(Protocol):
    """The interface of a writer that a store of streams needs."""

    statistics: WriterStatistics
    backlog_bytes: int

    def submit(self, chunks: list[SegmentWrite], token: int) -> None: ...
    def congested(self) -> bool: ...
    def settle(self) -> None: ...
    def close(self) -> None: ...


class StreamStore:
    """Invariant: ``submitted`` is the number of the last batch that was handed to the writer, and
    ``durable`` never passes it. ``changed`` has the logs that something was appended to, ``kept``
    the ids of the streams that have a directory, ``_leaving`` the batch that each stream being
    removed waits for. ``torn_bytes`` says how much was cut off the streams that were opened;
    ``logs`` has the open logs, by id."""

    def __init__(
        self, root: Files, run_aside: Callable[[Callable[[], None]], None], waits: bool = True
    ) -> None:
        """``run_aside`` runs something in a thread of its own; ``waits``: durable means synced."""
        self.files = StreamFiles(root)
        self.submitted = 0
        self.durable = 0
        self.changed: dict[StreamLog, None] = {}
        self.kept: dict[int, None] = dict.fromkeys(self.files.streams())
        self.torn_bytes = 0
        self.logs: dict[int, StreamLog] = {}
        self._waits = waits
        self._run_aside = run_aside
        self._removals: list[tuple[int, int, Callable[[], None]]] = []
        self._leaving: dict[int, int] = {}
        self._set_aside = 0
        for name in root.directories():
            if not name.isdecimal():
                root.remove_directory(name)
        self.writer: StreamWriter

    def segment_files(self) -> SegmentFiles:
        return StreamSegmentFiles(self.files)

    def open(self, stream: int, accept_corruption: bool = False) -> StreamLog:
        """The log of a stream, which is new if there is none."""
        if stream in self._leaving:
            self.writer.settle()
            self._set_stream_aside(stream)
        self.kept[stream] = None
        directory = self.files.directory(stream)
        marked = UNSYNCED in directory.names()
        unsynced = marked or not self._waits
        log = recover_stream(stream, directory, self.files, accept_corruption, unsynced=unsynced)
        self.torn_bytes += int(log.torn_bytes)
        # Recovery has synced what it read.
        if marked and self._waits:
            directory.discard(UNSYNCED)
        elif unsynced and not marked:
            directory.store(UNSYNCED, [])
        self.logs[stream] = log
        return log

    def has(self, stream: int) -> bool:
        """Whether the store has anything of a stream."""
        return stream in self.kept

    def cut(self, log: StreamLog, number: int) -> StreamLog:
        """The same log without the chunks after one (0: without any). Nothing of the log may be
        waiting to be written."""
        assert log.is_written()
        stream = int(log.id)
        self.changed.pop(log, None)
        directory = self.files.directory(stream)
        self.logs[stream] = recover_stream(stream, directory, self.files, number_max=number)
        return self.logs[stream]

    # --- every wake-up

    def touch(self, log: StreamLog) -> None:
        """Something was appended to a log."""
        self.changed[log] = None

    def pending(self) -> bool:
        return len(self.changed) > 0

    def submit(self) -> None:
        """Hand what was appended in this wake-up to the disk."""
        chunks: list[SegmentWrite] = []
        changed, self.changed = self.changed, {}
        for log in changed:
            chunks += log.take()
        if chunks:
            self.submitted += 1
            for log in changed:
                log.handed_over(self.submitted)
            self.writer.submit(chunks, self.submitted)

    def synced(self, number: int) -> None:
        """Batches up to a number are safe."""
        self.durable = number
        for stream, due in list(self._leaving.items()):
            if due <= number:
                self._set_stream_aside(stream)
        ready = [work for due, _, work in self._removals if due <= number]
        if ready:
            self._removals = [each for each in self._removals if each[0] > number]
            self._run_aside(lambda: _run(ready))

    # --- removing

    def remove_segments(self, stream: int, segments: list[int]) -> None:
        """Segments were dropped by retention."""
        directory = self.files.directory(stream)

        def work() -> None:
            for segment in segments:
                directory.remove(segment)

        if self.durable >= self.submitted:
            self._run_aside(work)
        else:
            self._removals.append((self.submitted, stream, work))

    def remove(self, log: StreamLog) -> None:
        """A stream is gone with all that it holds."""
        self.changed.pop(log, None)
        stream = int(log.id)
        self.kept.pop(stream, None)
        self.logs.pop(stream, None)
        self._leaving[stream] = self.submitted
        if self.durable >= self.submitted:
            self._set_stream_aside(stream)

    def _set_stream_aside(self, stream: int) -> None:
        """Remove a stream that nothing is written to any more, aside; its id may be used again."""
        del self._leaving[stream]
        self._removals = [each for each in self._removals if each[1] != stream]
        self._set_aside += 1
        name = f"{stream}.{self._set_aside}"
        self.files.forget(stream)
        self.files.root.rename_directory(str(stream), name)
        self._run_aside(lambda: self.files.root.remove_directory(name))

    def clear(self, stream: int) -> None:
        """Remove what is left of a stream that nothing is written to."""
        self.kept.pop(stream, None)
        self.logs.pop(stream, None)
        self.files.forget(stream)
        self.files.root.remove_directory(str(stream))

    def remove_others(self, streams: list[int]) -> list[int]:
        """Remove what is left of streams that aren't among these; returns their ids."""
        gone = [stream for stream in self.files.streams() if stream not in streams]
        for stream in gone:
            self.kept.pop(stream, None)
            self.logs.pop(stream, None)
            self.files.root.remove_directory(str(stream))
        return gone

    # --- the end

    def close(self) -> None:
        """Write everything and close the files."""
        self.submit()
        self.writer.close()
        self.files.close()


def _run(works: list[Callable[[], None]]) -> None:
    for work in works:
        work()
