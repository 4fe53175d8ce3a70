"""Stream recovery: reads the segments of a stream once, when it is opened.

Of complete segments only the header and the INDEX are read. The last one is read whole: a chunk
that isn't what was written there ends the log, and is cut off, if a crash explains it: the tail
that was not synced may have any bytes. It is damage if a later chunk says that the offsets of the
bad one were safe, or if another segment follows.

With a flush policy that doesn't wait, "safe" meant "written" (``unsynced``): a power cut leaves any
of the last segment's sectors as they were, and chunks behind them that call them safe. What such
sectors spoil is a torn tail too. A sector that never reached the disk is zeros, or zeros from the
end of what was there before; a chunk that is bad without one is damage all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rhizome.journal.errors import CorruptRecord, CorruptStore
from rhizome.journal.files import Files
from rhizome.journal.streams.sparse_index import SparseIndex
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    CHUNK_MAGIC,
    KIND_FILTER,
    KIND_INDEX,
    KIND_MESSAGES,
    KIND_SNAPSHOT,
    STREAM_HEADER_BYTES,
    ChunkHead,
    check_chunk,
    read_segment_header,
)
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.journal.streams.stream_segment import (
    StreamFilesReader,
    StreamSegment,
    read_index_chunk,
)
from rhizome.journal.streams.tracking_state import StreamTracking

WINDOW_BYTES: Final = 4 * 1024 * 1024
SECTOR_BYTES: Final = 512
EVERY_CHUNK: Final = 1 << 62


class Window:
    """A segment of which one part at a time is in memory."""

    def __init__(self, files: Files, segment: int) -> None:
        self.size = files.size(segment)
        self._files = files
        self._segment = segment
        self._start = 0
        self._data = b""

    def read(self, position: int, length: int) -> bytes:
        """The bytes at a position; fewer at the end."""
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            self._data = self._files.read(self._segment, position, max(length, WINDOW_BYTES))
            self._start, at = position, 0
        return self._data[at : at + length]

    def find(self, what: bytes, position: int) -> int:
        """The next position of some bytes from one on; -1 if there is none."""
        while position < self.size:
            data = self.read(position, WINDOW_BYTES)
            at = data.find(what)
            if at >= 0:
                return position + at
            position += max(len(data) - len(what) + 1, 1)
        return -1


@dataclass
class Scan:
    """The result of reading the chunks of one segment."""

    first: int
    next: int
    number: int = 0
    first_ms: int = 0
    last_ms: int = 0
    size: int = STREAM_HEADER_BYTES
    complete: bool = False
    bad: str = ""
    index: SparseIndex = field(default_factory=SparseIndex)
    notes: StreamTracking = field(default_factory=StreamTracking)
    chunk: int = 0

    def segment(self, number: int) -> StreamSegment:
        """As a log knows it."""
        return StreamSegment(
            number, self.first, self.next, self.first_ms, self.last_ms, self.size, self.chunk
        )


def recover_stream(
    stream: int,
    files: Files,
    reader: StreamFilesReader,
    accept_corruption: bool = False,
    number_max: int = EVERY_CHUNK,
    unsynced: bool = False,
) -> StreamLog:
    """The log of a stream from its directory; cuts off a torn tail, and what comes after the chunk
    ``number_max``. ``torn_bytes`` of the log says how much was torn.

    ``unsynced``: it was perhaps written with a flush policy that doesn't wait. Raises CorruptStore
    if something is damaged that no crash explains, unless that is accepted: then the log ends
    before it.
    """
    log = StreamLog(stream, reader)
    if number_max < EVERY_CHUNK:
        _remove_above(files, number_max)
    numbers, log.torn_bytes = _contiguous(stream, files, accept_corruption, unsynced)
    if not numbers:
        return log
    last = numbers[-1]
    segments = [_complete(stream, files, reader, number) for number in numbers[:-1]]
    window = Window(files, last)
    scan = scan_segment(window, stream, last, number_max)
    if scan.bad and not accept_corruption and not _is_torn(window, scan, unsynced):
        raise _corrupt(stream, last, scan.bad)
    if scan.bad:
        log.torn_bytes += _written_bytes(window, scan.size)
    if segments and scan.first != segments[-1].next:
        raise _corrupt(stream, last, f"begins with offset {scan.first}, not {segments[-1].next}")
    if scan.size < window.size:
        files.cut(last, scan.size)
    # What a killed program wrote can be read, but would be lost in a power cut.
    files.sync(last)
    segments.append(scan.segment(last))
    log.adopt(segments, scan.index)
    log.counted(scan.number)
    log.time_ms = scan.last_ms
    log.take_notes_of(scan.notes)
    if scan.complete:
        log.close_active()
    return log


def _remove_above(files: Files, number_max: int) -> None:
    """Remove the segments that begin above a chunk, the last one first: if this is interrupted,
    the others are still a log."""
    for segment in reversed(files.segments()):
        head = files.read(segment, STREAM_HEADER_BYTES, CHUNK_HEADER_BYTES)
        try:
            if ChunkHead(head, 0).number <= number_max:
                return
        except CorruptRecord:
            pass
        files.remove(segment)


def _contiguous(
    stream: int, files: Files, accept_corruption: bool, unsynced: bool
) -> tuple[list[int], int]:
    """The numbers of the segments that make up the log, the last of which has a snapshot; and how
    many bytes were in those that were removed.

    Segments before a gap were dropped by retention and not all removed. A last one that was begun
    and has no whole snapshot holds nothing: it is removed.
    """
    numbers = files.segments()
    torn = 0
    while numbers:
        last = numbers[-1]
        head = files.read(last, 0, STREAM_HEADER_BYTES + CHUNK_HEADER_BYTES)
        if _begins_well(stream, files, last, head):
            break
        window = Window(files, last)
        lost = unsynced and _has_hole(window, 0)
        if not accept_corruption and not lost and _held_safe(window):
            raise _corrupt(stream, last, _fault(stream, last, head))
        torn += _written_bytes(window, 0)
        files.remove(last)
        numbers.pop()
    start = len(numbers) - 1
    while start > 0 and numbers[start - 1] == numbers[start] - 1:
        start -= 1
    for number in numbers[: max(start, 0)]:
        files.remove(number)
    return numbers[max(start, 0) :], torn


def _begins_well(stream: int, files: Files, segment: int, head: bytes) -> bool:
    try:
        read_segment_header(head, segment, stream)
        snapshot = ChunkHead(head, STREAM_HEADER_BYTES)
        data = files.read(segment, STREAM_HEADER_BYTES, int(snapshot.size))
        if len(data) < snapshot.size or snapshot.kind != KIND_SNAPSHOT:
            return False
        check_chunk(data, 0, snapshot.size)
    except (CorruptRecord, IndexError):
        return False
    return True


def _complete(stream: int, files: Files, reader: StreamFilesReader, number: int) -> StreamSegment:
    """A segment that is followed by another, from its header and INDEX; else by reading it."""
    size = files.size(number)
    try:
        first = read_segment_header(files.read(number, 0, STREAM_HEADER_BYTES), number, stream)
    except CorruptRecord as error:
        raise _corrupt(stream, number, str(error)) from error
    chunk = read_index_chunk(reader, stream, number, size)
    if chunk is not None:
        head = ChunkHead(chunk, 0)
        first_ms = _first_ms(files, number)
        last_ms = int.from_bytes(chunk[-16:-8], "big")
        begin = ChunkHead(files.read(number, STREAM_HEADER_BYTES, CHUNK_HEADER_BYTES), 0)
        return StreamSegment(number, first, head.first, first_ms, last_ms, size, begin.number)
    scan = scan_segment(Window(files, number), stream, number)
    if scan.bad:
        raise _corrupt(stream, number, scan.bad)
    return scan.segment(number)


def _first_ms(files: Files, number: int) -> int:
    """The time of the first chunk with messages."""
    position = STREAM_HEADER_BYTES
    while True:
        data = files.read(number, position, CHUNK_HEADER_BYTES)
        if len(data) < CHUNK_HEADER_BYTES:
            return 0
        head = ChunkHead(data, 0)
        if head.kind in (KIND_MESSAGES, KIND_INDEX):
            return int(head.time_ms)
        position += int(head.size)


def scan_segment(window: Window, stream: int, segment: int, number_max: int = EVERY_CHUNK) -> Scan:
    """Go through a segment, chunk by chunk, up to a number, to its end or to the first that is
    bad."""
    first = int(read_segment_header(window.read(0, STREAM_HEADER_BYTES), segment, stream))
    scan = Scan(first, first)
    while not scan.complete and scan.size < window.size:
        head_bytes = window.read(scan.size, CHUNK_HEADER_BYTES)
        if not any(head_bytes):
            # Space that was never written; or a hole before what was.
            scan.bad = "no chunk" if window.find(CHUNK_MAGIC, scan.size) >= 0 else ""
            return scan
        try:
            if len(head_bytes) < CHUNK_HEADER_BYTES:
                raise CorruptRecord("a chunk that its segment is too short for", scan.size)
            head = ChunkHead(head_bytes, 0)
            if head.number > number_max:
                return scan
            chunk = window.read(scan.size, int(head.size))
            if len(chunk) < head.size:
                raise CorruptRecord("a chunk that its segment is too short for", scan.size)
            check_chunk(chunk, 0, head.size)
            _follow(scan, head, chunk)
        except CorruptRecord as error:
            scan.bad = f"{error.reason} at offset {scan.size}"
            return scan
        scan.size += int(head.size)
    return scan


def _follow(scan: Scan, head: ChunkHead, chunk: bytes) -> None:
    """Take a whole chunk over; raises CorruptRecord if it doesn't follow the one before."""
    if head.first != scan.next or (scan.number and head.number != scan.number + 1):
        raise CorruptRecord(
            f"chunk {head.number} with offset {head.first} after chunk {scan.number} "
            f"and offset {scan.next},",
            scan.size,
        )
    scan.chunk = scan.chunk or int(head.number)
    scan.number = int(head.number)
    scan.last_ms = int(head.time_ms)
    if head.kind == KIND_MESSAGES:
        position = scan.index.begin_of(head.first, scan.size)
        scan.index.note(head.first, head.time_ms, position)
        if scan.next == scan.first:
            scan.first_ms = int(head.time_ms)
        scan.next += int(head.count)
    elif head.kind == KIND_FILTER:
        scan.index.note_filter(head.first, scan.size)
    elif head.kind == KIND_INDEX:
        scan.complete = True
    scan.notes.take_chunk(head, chunk, 0)


def _is_torn(window: Window, scan: Scan, unsynced: bool) -> bool:
    """Whether a crash explains that the chunk where a scan has stopped is bad."""
    if _later_commit(window, scan.size) <= scan.next:
        return True
    return unsynced and _has_hole(window, scan.size)


def _has_hole(window: Window, position: int) -> bool:
    """Whether sectors that never reached the disk explain that there is no whole chunk at a
    position. Only what lies before the next whole chunk is checked."""
    following = next((at for at, _ in _whole_chunks(window, position)), window.size)
    at = position
    while at < following:
        end = at - at % SECTOR_BYTES + SECTOR_BYTES
        if not any(window.read(at, end - at)):
            return True
        at = end
    return False


def _written_bytes(window: Window, position: int) -> int:
    """How many bytes lie behind a position, without the zeros at the end."""
    end = position
    at = position
    while at < window.size:
        data = window.read(at, min(WINDOW_BYTES, window.size - at))
        kept = len(data.rstrip(b"\0"))
        if kept:
            end = at + kept
        at += max(len(data), 1)
    return end - position


def _later_commit(window: Window, position: int) -> int:
    """The highest committed offset that a whole chunk behind a position tells of."""
    heads = (head for _, head in _whole_chunks(window, position))
    return max((int(head.committed) for head in heads), default=0)


def _held_safe(window: Window) -> bool:
    """Whether a chunk of a segment says that others of it were safe."""
    heads = [head for _, head in _whole_chunks(window, 0)]
    return bool(heads) and max(head.committed for head in heads) > heads[0].first


def _whole_chunks(window: Window, position: int) -> Iterator[tuple[int, ChunkHead]]:
    """The chunks behind a position that are as they were written, and where they lie."""
    while (position := window.find(CHUNK_MAGIC, position + 1)) >= 0:
        head_bytes = window.read(position, CHUNK_HEADER_BYTES)
        if len(head_bytes) < CHUNK_HEADER_BYTES:
            return
        head = ChunkHead(head_bytes, 0)
        chunk = window.read(position, int(head.size))
        if len(chunk) == head.size:
            try:
                check_chunk(chunk, 0, head.size)
            except CorruptRecord:
                continue
            yield position, head


def _fault(stream: int, segment: int, head: bytes) -> str:
    try:
        read_segment_header(head, segment, stream)
    except CorruptRecord as error:
        return str(error)
    return "its snapshot is not whole"


def _corrupt(stream: int, segment: int, reason: str) -> CorruptStore:
    text = (
        f"segment {segment} of stream {stream} is damaged: {reason}; restore it from a backup, or "
        "accept the loss of what comes after"
    )
    return CorruptStore(text, [reason])
