"""Store: the directory of a broker on disk, which the shell opens, feeds and closes.

    DIR/lock                     held while a broker runs
    DIR/store.json               format, uuid of the store, uuid of its cluster, checksum
    DIR/journal/NNNNNNNNNN.seg   segments
    DIR/journal/checkpoint-N     the two newest checkpoints
    DIR/spill/NNNNNNNNNN.seg     bodies of transient messages; emptied at every start
    DIR/streams/ID/              the segments of one stream (stream_store.py)
    DIR/salvage/NAME/            what a copy had to give up (salvaged_messages.py)
    DIR/kept/NAME/               messages that are being sent to the next home of their queue
    DIR/pins/ID/                 parts that are read slowly (pinned_files.py); emptied at each start

The shell's duties, once per wake-up and in this order:
1. let the core append to `journal`, `spill` and `streams`;
2. `submit`; the token that it returns is durable when `events.durable(token)` says so;
3. if `checkpoint_due()`: `begin_checkpoint`, let the core fill it, `checkpoint`;
4. while `congested()`: read no more from publishers.

A body may be fetched from the moment its batch was submitted. All methods but `read` and `fetch`
are called in the loop's thread; `events` are delivered there too, through `hand_over`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rhizome.journal import checkpoint as checkpoints
from rhizome.journal.checkpoint import CheckpointBuilder
from rhizome.journal.errors import CorruptRecord, ForeignStore
from rhizome.journal.files import DirectoryLock, DiskFiles, Files, MemoryFiles
from rhizome.journal.journal import (
    SEGMENT_BYTES_DEFAULT,
    SPILL_SEGMENT_FIRST,
    Journal,
    SegmentWrite,
)
from rhizome.journal.pinned_files import Committed, PinnedStore, Pins
from rhizome.journal.records import StoredMessage, decode_message, decode_run
from rhizome.journal.recovery import Recovered, recover
from rhizome.journal.salvaged_messages import KEPT, Salvage
from rhizome.journal.store_identity import StoreIdentity, add_checksum, load_identity, save_identity
from rhizome.journal.streams.stream_store import STREAM_BYTES_RESERVED, StreamStore, StreamWriter
from rhizome.journal.writer import (
    ALWAYS,
    FULL_DISK_ERRORS,
    NEVER,
    Flush,
    InlineWriter,
    JournalWriter,
    Thread,
    WriterStatistics,
    run_aside,
)

FETCH_SPAN_BYTES_MAX: Final = 1024 * 1024
FETCH_SLACK_BYTES: Final = 16 * 1024
CHECKPOINT_BYTES_DEFAULT: Final = 256 * 1024 * 1024
CHECKPOINT_COST_FACTOR: Final = 4
"""A checkpoint is due after this many times its own size in journal bytes, if that is more."""


@dataclass(frozen=True)
class StoreOptions:
    """The settings of a store."""

    segment_bytes_max: int = SEGMENT_BYTES_DEFAULT
    spill_segment_bytes_max: int = SEGMENT_BYTES_DEFAULT
    checkpoint_bytes: int = CHECKPOINT_BYTES_DEFAULT
    flush: Flush = ALWAYS
    accept_corruption: bool = False


class StoreEvents(Protocol):
    """The events that the store reports to the shell, in the loop's thread."""

    def durable(self, token: int) -> None:
        """Every batch up to this token counts as durable by the flush policy."""

    def alarm(self, text: str) -> None:
        """The disk is full, or (empty text) has space again."""

    def failed(self, error: BaseException) -> None:
        """The disk failed: nothing more becomes durable, so the broker must stop."""


HandOver = Callable[[Callable[[], None]], None]
"""Runs a callable in the loop's thread, as loop.call_soon_threadsafe does."""


class Writer(Protocol):
    """The interface of a writer that a store needs."""

    statistics: WriterStatistics
    backlog_bytes: int

    def submit(self, chunks: list[SegmentWrite], token: int, hurried: bool) -> None: ...
    def hurry(self) -> None: ...
    def sync_soon(self) -> None: ...
    def congested(self) -> bool: ...
    def read(self, segment: int, offset: int, length: int) -> bytes: ...
    def close(self) -> None: ...


class Store(ABC):
    """An open store. `recovered` is what it held when it was opened; the shell may drop it."""

    def __init__(
        self,
        files: Files,
        spill_files: Files,
        stream_files: Files,
        root: Files,
        store_uuid: bytes,
        events: StoreEvents,
        hand_over: HandOver,
        options: StoreOptions,
    ) -> None:
        """``root`` is the directory for what is accessed by name only."""
        self.uuid = store_uuid
        self.salvage = Salvage(root, store_uuid)
        self.kept = Salvage(root, store_uuid, KEPT)
        self.pins = Pins(PinnedStore(root, files, stream_files))
        self.options = options
        self._files = files
        self._spill_files = spill_files
        self._events = events
        self._hand_over = hand_over
        self._checkpoint: CheckpointBuilder | None = None
        self._checkpoint_alarmed = False
        self._checkpoint_writing = False
        self._checkpoint_fault = ""
        self._checkpoint_needs = 0
        spill_files.wipe()
        self.recovered = recover(files, store_uuid, options.accept_corruption)
        self.journal = self._new_journal(self.recovered)
        self._remove(self._take_dead())
        # Everything that recovery found is on disk, up to the segment that is about to begin.
        self._opened_at = int(self.journal.end_position())
        self.spill = Journal(
            store_uuid, options.spill_segment_bytes_max, SPILL_SEGMENT_FIRST, scratch=True
        )
        self._checkpoint_bytes = self.recovered.checkpoint_bytes
        # Replayed bytes count: otherwise a broker that crashes often replays more and more.
        self._checkpoint_end = -_replayed_bytes(self.recovered)
        self._spill_written = 0
        self._durable_token = 0
        self._writer = self._make_writer()
        self._spill_writer = self._make_spill_writer()
        self.streams = StreamStore(
            stream_files, lambda work: self._run_aside(work, _nothing), options.flush.waits
        )
        self.streams.writer = self._make_stream_writer()

    # --- every wake-up ------------------------------------------------------------------------

    def pending(self) -> bool:
        """Whether there is something to submit."""
        return self.journal.pending() or self.spill.pending() or self.streams.pending()

    def submit(self, now_ms: int = 0) -> int:
        """Hand the batches of this wake-up to the disk; returns the token of the journal's."""
        token = int(self.journal.end_position())
        if self.journal.pending():
            hurried = self.journal.is_hurried()
            # take() may append a record of its own, so the token is read after it.
            chunks = self.journal.take(now_ms)
            token = int(self.journal.end_position())
            self._writer.submit(chunks, token, hurried)
        if self.spill.pending():
            self._spill_writer.submit(self.spill.take(), int(self.spill.end_position()), True)
        if self.streams.pending():
            self.streams.submit()
        self._remove_dead_spill()
        return token

    def tick(self) -> None:
        """Time has passed: write what waits for somebody who waits for the disk."""
        self._writer.hurry()

    def congested(self) -> bool:
        """Whether the disk is so far behind that publishers must be held back."""
        return (
            self._writer.congested()
            or self._spill_writer.congested()
            or self.streams.writer.congested()
        )

    def backlog_bytes(self) -> int:
        writers = (self._writer, self._spill_writer, self.streams.writer)
        return sum(writer.backlog_bytes for writer in writers)

    # --- reading back -------------------------------------------------------------------------

    def read(self, segment: int, offset: int, length: int) -> bytes:
        """Bytes of a segment of the journal or the spill. Any thread."""
        writer = self._writer if segment < SPILL_SEGMENT_FIRST else self._spill_writer
        return writer.read(segment, offset, length)

    def fetch(self, entries: list[tuple[int, int]]) -> list[StoredMessage]:
        """The messages of (index, position) entries, with few reads. Any thread.

        Raises CorruptRecord for the first that can't be read.
        """
        found: list[StoredMessage] = []
        while len(found) < len(entries):
            rest = entries[len(found) :]
            run = _leading_run(rest)
            offset = rest[0][1] & 0xFFFFFFFF
            span = (run[-1][1] & 0xFFFFFFFF) - offset
            data = self.read(rest[0][1] >> 32, offset, span + FETCH_SLACK_BYTES)
            try:
                messages = decode_run(data, offset, run)
                found.extend(messages or [self._fetch_long(rest[0], len(data))])
            except CorruptRecord as error:
                # Offsets within the read are no help: name the place on disk.
                place = f"segment {rest[0][1] >> 32}: {error.reason}"
                raise CorruptRecord(place, offset + error.offset) from error
        return found

    def _fetch_long(self, entry: tuple[int, int], length: int) -> StoredMessage:
        """A message whose record is longer than `length`."""
        index, position = entry
        while True:
            asked = length * 4 + FETCH_SLACK_BYTES
            data = self.read(position >> 32, position & 0xFFFFFFFF, asked)
            message = decode_message(data, 0)
            if message is not None:
                if message.index != index:
                    raise CorruptRecord(f"record of message {message.index}, not {index},", 0)
                return message
            if len(data) < asked:
                raise CorruptRecord("a record that its segment is too short for", 0)
            length = asked

    def committed(self) -> Committed:
        """How far journal and streams are durable by the flush policy."""
        streams = {
            stream: (int(log.durable_segment), int(log.durable_position))
            for stream, log in self.streams.logs.items()
        }
        return Committed(max(self._opened_at, self._durable_token), streams)

    # --- checkpoints --------------------------------------------------------------------------

    def checkpoint_due(self) -> bool:
        """Whether enough was appended since the last checkpoint to make a new one, or there is
        now space for one that failed for lack of it: publishers wait for that, so nothing is
        appended."""
        if self._checkpoint is not None or self._checkpoint_writing:
            return False
        if self._checkpoint_alarmed:
            return self.free_bytes() > self._checkpoint_needs
        cost = CHECKPOINT_COST_FACTOR * self._checkpoint_bytes
        return self.uncheckpointed_bytes() >= max(self.options.checkpoint_bytes, cost)

    def uncheckpointed_bytes(self) -> int:
        """How many bytes of the journal the next start would replay after a crash now."""
        return int(self.journal.bytes_appended) - self._checkpoint_end

    def removable_bytes(self) -> int:
        """How many bytes a checkpoint made now would free; 0 while one is being made, and if it
        would take more than it frees."""
        if self._checkpoint is not None or self._checkpoint_writing:
            return 0
        found = sum(int(each.size) for each in self.journal.segments()[:-1] if not each.live)
        return found if found > self._checkpoint_bytes else 0

    def begin_checkpoint(self) -> CheckpointBuilder:
        """A builder to fill before anything else is appended to the journal."""
        self.submit()
        builder = CheckpointBuilder(int(self.journal.end_position()), self.uuid)
        for count in self.journal.segments():
            builder.segment(int(count.segment), int(count.total))
        return builder

    def checkpoint(self, builder: CheckpointBuilder) -> None:
        """Write a checkpoint once the journal is synced up to it, then remove what it made dead."""
        assert builder.position <= self.journal.end_position()
        self._checkpoint_end = int(self.journal.bytes_appended)
        self._checkpoint = builder
        self.submit()
        self._writer.sync_soon()

    # --- the end ------------------------------------------------------------------------------

    def close(self, builder: CheckpointBuilder | None = None) -> None:
        """Write everything, with `builder` a clean checkpoint too, and close the files.

        Raises JournalFailed if something couldn't be written; the store is closed all the same.
        """
        self._checkpoint = None
        try:
            self.submit()
            self._finish_aside()
            self._spill_writer.close()
            self.streams.close()
            self._writer.close()
            if builder is not None:
                checkpoints.write(self._files, builder.pieces(clean=True))
                for segment in self._checkpointed(builder):
                    self._files.remove(segment)
                self._cut_active_segment()
        finally:
            self.pins.clear()
            self._spill_files.wipe()
            self._files.close()
            self._spill_files.close()

    def free_bytes(self) -> int:
        return self._files.free_bytes()

    def torn_bytes(self) -> int:
        """How many bytes of torn tails were cut off journal and streams since the store was
        opened."""
        return self.recovered.torn_bytes + self.streams.torn_bytes

    def stopped_unsynced(self) -> bool:
        """Whether what was confirmed last may be lost: the store was not closed, and its flush
        policy doesn't wait for syncs. A crash of the process alone loses nothing, but can't be told
        from a power cut that left no torn tail."""
        found = self.recovered
        had_something = found.records > 0 or len(found.snapshot) > 0
        return had_something and not found.clean and not self.options.flush.waits

    def statistics(self) -> WriterStatistics:
        return self._writer.statistics

    # --- inside -------------------------------------------------------------------------------

    @abstractmethod
    def _make_writer(self) -> Writer: ...

    @abstractmethod
    def _make_spill_writer(self) -> Writer: ...

    @abstractmethod
    def _make_stream_writer(self) -> StreamWriter: ...

    @abstractmethod
    def _run_aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run `work` in a thread of its own, then `then` in the loop's thread."""

    @abstractmethod
    def _finish_aside(self) -> None:
        """Wait for the work that runs aside."""

    def _new_journal(self, recovered: Recovered) -> Journal:
        journal = Journal(self.uuid, self.options.segment_bytes_max, recovered.next_segment)
        for count in recovered.segments:
            journal.adopt(count.segment, count.live, count.total, count.size)
        journal.checkpointed(recovered.checkpoint_position, recovered.checkpoint_references)
        return journal

    def _durable(self, token: int, synced: int) -> None:
        """Called by the writer, in its thread."""
        self._hand_over(lambda: self._durable_in_loop(token, synced))

    def _spilled(self, token: int, synced: int) -> None:
        turned = token >> 32 != self._spill_written >> 32
        self._spill_written = token
        if turned:
            self._hand_over(self._remove_dead_spill)

    def _streams_durable(self, number: int, synced: int) -> None:
        self._hand_over(lambda: self._streams_durable_in_loop(number))

    def _streams_durable_in_loop(self, number: int) -> None:
        self.streams.synced(number)
        self._events.durable(self._durable_token)

    def _durable_in_loop(self, token: int, synced: int) -> None:
        self.journal.synced(synced)
        self._durable_token = token
        self._events.durable(token)
        builder = self._checkpoint
        if builder is not None and synced >= builder.position:
            self._checkpoint = None
            self._checkpoint_writing = True
            self._run_aside(
                lambda: self._write_checkpoint(builder), lambda: self._checkpoint_written(builder)
            )

    def _write_checkpoint(self, builder: CheckpointBuilder) -> None:
        pieces = builder.pieces(clean=False)
        try:
            checkpoints.write(self._files, pieces)
        except OSError as error:
            if error.errno not in FULL_DISK_ERRORS:
                raise
            self._checkpoint_needs = sum(map(len, pieces))
            self._checkpoint_fault = f"no space for a checkpoint ({error.strerror})"
        else:
            self._checkpoint_fault = ""
            self._checkpoint_bytes = sum(map(len, pieces))

    def _checkpoint_written(self, builder: CheckpointBuilder) -> None:
        self._checkpoint_writing = False
        if self._checkpoint_fault:
            # The journal alone is enough; the next checkpoint does what this one couldn't.
            self._checkpoint_alarmed = True
            self._events.alarm(f"{self._checkpoint_fault}: free some space")
            return
        if self._checkpoint_alarmed:
            self._checkpoint_alarmed = False
            self._events.alarm("")
        dead = self._checkpointed(builder)
        if dead:
            self._run_aside(lambda: self._remove(dead), _nothing)

    def _checkpointed(self, builder: CheckpointBuilder) -> list[int]:
        """Note that a checkpoint is durable; returns the segments to remove."""
        self.journal.checkpointed(builder.position, builder.references())
        return self._take_dead()

    def _take_dead(self) -> list[int]:
        dead = self.journal.dead_segments()
        for segment in dead:
            self.journal.removed(segment)
        return dead

    def _remove(self, segments: list[int]) -> None:
        for segment in segments:
            self._files.remove(segment)

    def _remove_dead_spill(self) -> None:
        # Not before it is written, or the writer would find its segment gone.
        written = self._spill_written >> 32
        dead = [segment for segment in self.spill.dead_segments() if segment < written]
        if dead:
            for segment in dead:
                self.spill.removed(segment)
            self._run_aside(lambda: self._remove_spill(dead), _nothing)

    def _remove_spill(self, segments: list[int]) -> None:
        for segment in segments:
            self._spill_files.remove(segment)

    def _cut_active_segment(self) -> None:
        segment = int(self.journal.active_segment())
        if segment in self._files.segments():
            self._files.cut(segment, int(self.journal.end_position()) & 0xFFFFFFFF)
            self._files.sync(segment)


def _nothing() -> None:
    pass


def _replayed_bytes(recovered: Recovered) -> int:
    """How much of the journal lies behind the checkpoint that recovery began with."""
    segment, offset = (
        recovered.checkpoint_position >> 32,
        recovered.checkpoint_position & 0xFFFFFFFF,
    )
    sizes = (int(each.size) for each in recovered.segments if each.segment >= segment)
    return max(0, sum(sizes) - offset)


def _leading_run(entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The leading entries that one read may fetch: one segment, rising offsets, not too far."""
    first = entries[0][1]
    last = first - 1
    for count, (_, position) in enumerate(entries):
        if position <= last or position >> 32 != first >> 32:
            return entries[:count]
        if position - first > FETCH_SPAN_BYTES_MAX:
            return entries[:count]
        last = position
    return entries


class JournalStore(Store):
    """A store in a directory, which is locked while it is open."""

    def __init__(
        self,
        directory: Path,
        new_uuid: bytes,
        events: StoreEvents,
        hand_over: HandOver,
        options: StoreOptions | None = None,
    ) -> None:
        """Open or make the store in `directory`; `new_uuid` names it if it is new."""
        self.directory = directory
        self._aside: list[Thread] = []
        self._lock = DirectoryLock(directory)
        try:
            root = DiskFiles(directory)
            self.identity = load_identity(root, new_uuid)
            super().__init__(
                DiskFiles(directory / "journal"),
                DiskFiles(directory / "spill"),
                DiskFiles(directory / "streams"),
                root,
                self.identity.uuid,
                events,
                hand_over,
                options or StoreOptions(),
            )
            add_checksum(root, self.identity)
        except BaseException:
            self._lock.release()
            raise

    def adopt_cluster(self, cluster_uuid: bytes) -> None:
        """Remember the cluster that this store belongs to from now on."""
        known = self.identity.cluster_uuid
        if known and known != cluster_uuid:
            raise ForeignStore(
                f"{self.directory} belongs to cluster {known.hex()}, not {cluster_uuid.hex()}"
            )
        self.identity = StoreIdentity(self.identity.uuid, cluster_uuid)
        save_identity(DiskFiles(self.directory), self.identity)

    def close(self, builder: CheckpointBuilder | None = None) -> None:
        try:
            super().close(builder)
        finally:
            self._lock.release()

    def _make_writer(self) -> Writer:
        return JournalWriter(
            self._files,
            self.options.segment_bytes_max,
            self.options.flush,
            self._durable,
            self._alarm,
            self._failed,
            start=int(self.journal.end_position()),
        )

    def _make_spill_writer(self) -> Writer:
        return JournalWriter(
            self._spill_files,
            self.options.spill_segment_bytes_max,
            NEVER,
            self._spilled,
            self._alarm,
            self._failed,
            scratch=True,
            name="spill",
        )

    def _make_stream_writer(self) -> StreamWriter:
        return JournalWriter(
            self.streams.segment_files(),
            STREAM_BYTES_RESERVED,
            self.options.flush,
            self._streams_durable,
            self._alarm,
            self._failed,
            name="streams",
        )

    def _run_aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self._aside = [thread for thread in self._aside if thread.is_alive()]
        self._aside.append(run_aside(work, lambda: self._hand_over(then), self._failed))

    def _finish_aside(self) -> None:
        for thread in self._aside:
            thread.join()

    def _alarm(self, text: str) -> None:
        self._hand_over(lambda: self._events.alarm(text))

    def _failed(self, error: BaseException) -> None:
        self._hand_over(lambda: self._events.failed(error))


class MemoryStore(Store):
    """A store in memory: nothing survives the files that it is given."""

    def __init__(
        self,
        files: MemoryFiles,
        store_uuid: bytes,
        events: StoreEvents,
        hand_over: HandOver,
        options: StoreOptions | None = None,
    ) -> None:
        super().__init__(
            files,
            MemoryFiles(),
            files.inside("streams"),
            files,
            store_uuid,
            events,
            hand_over,
            options or StoreOptions(),
        )

    def _make_writer(self) -> Writer:
        start = int(self.journal.end_position())
        return InlineWriter(self._files, self.options.segment_bytes_max, self._durable, start)

    def _make_spill_writer(self) -> Writer:
        return InlineWriter(
            self._spill_files, self.options.spill_segment_bytes_max, self._spilled, 0
        )

    def _make_stream_writer(self) -> StreamWriter:
        return InlineWriter(self.streams.segment_files(), 0, self._streams_durable, 0)

    def _run_aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        work()
        self._hand_over(then)

    def _finish_aside(self) -> None:
        pass
