"""Reading a store offline, for `rhizome journal inspect`. Nothing is written or locked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from librt.strings import read_i64_be

from rhizome.journal.checkpoint import checkpoint_names, decode
from rhizome.journal.dedup_state import (
    given_name,
    identity_at,
    is_users,
    unpack_dedup_state,
    user_of,
)
from rhizome.journal.errors import CorruptRecord, CorruptStore
from rhizome.journal.files import DiskFiles, Files, is_in_use
from rhizome.journal.record_replay import find_record
from rhizome.journal.records import (
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    KIND_DEQUEUE,
    KIND_ENQUEUE,
    KIND_INSTALL,
    KIND_MOVED,
    KIND_NAMES,
    KIND_NUMBER,
    KIND_PURGE,
    KIND_REQUEUE,
    KIND_SHOWN,
    KIND_STATE,
    KIND_SYNCED,
    KIND_TX,
    KIND_WATERMARK,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    check_record,
    identity_offset,
    origin_at,
    parse_message,
    segment_header_fault,
    u32_at,
)
from rhizome.journal.recovery import Corruption, Recovered, recover
from rhizome.journal.store_identity import StoreIdentity, load_identity

CONTENT_SHOWN_BYTES_MAX: Final = 64
READS_MAX: Final = 5
"""How often a running broker's store is read before what looks damaged counts as damage."""

Row = dict[str, object]


@dataclass
class SegmentReport:
    """What one segment holds. `bytes_used` ends with its last valid record."""

    segment: int
    bytes_used: int = 0
    bytes_file: int = 0
    fault: str = ""
    kinds: Counter[str] = field(default_factory=Counter)


@dataclass
class StoreReport:
    """What a store holds. `live` maps queue ids to live messages and their content bytes."""

    identity: StoreIdentity
    checkpoints: list[Row]
    segments: list[SegmentReport]
    live: dict[int, tuple[int, int]]
    corruptions: list[Corruption]
    torn_bytes: int
    clean: bool

    def forget_damage_unless_in(self, earlier: StoreReport) -> None:
        """Keep only the damage that ``earlier``, another report of the same store, has too."""
        places = {(each.segment, each.offset) for each in earlier.corruptions}
        self.corruptions = [
            each for each in self.corruptions if (each.segment, each.offset) in places
        ]
        faults = {each.segment: each.fault for each in earlier.segments}
        for segment in self.segments:
            if segment.fault != faults.get(segment.segment):
                segment.fault = ""
        checkpoints = {each["name"] for each in earlier.checkpoints if "fault" in each}
        for row in self.checkpoints:
            if row["name"] not in checkpoints:
                row.pop("fault", None)

    def is_damaged(self) -> bool:
        """Whether anything can't be read, in what a start would replay or in what it would skip
        because a checkpoint covers it.

        A segment that nothing was written to yet, and a torn tail of the last one, are normal after
        a crash.
        """
        if self.corruptions or any("fault" in each for each in self.checkpoints):
            return True
        segments = self.segments[:-1] if self.torn_bytes > 0 else self.segments
        return any(segment.fault and segment.bytes_used > 0 for segment in segments)


def open_offline(directory: Path) -> tuple[Files, StoreIdentity]:
    """The journal's files and identity of the store in `directory`."""
    identity = load_identity(DiskFiles(directory, read_only=True))
    return DiskFiles(directory / "journal", read_only=True), identity


def inspect(directory: Path) -> StoreReport:
    """Segments, records per kind, live messages per queue and damage of a store, which a broker may
    be using."""
    return steady_report(lambda: _inspected(directory), lambda: is_in_use(directory))


def steady_report(read: Callable[[], StoreReport], is_running: Callable[[], bool]) -> StoreReport:
    """What ``read`` reports; of a store that is being written, only the damage that stays.

    A record that is being written looks damaged, and a segment may be removed between two looks at
    it. So a running broker's store is read again, and only what is damaged each time counts.
    """
    report: StoreReport | None = None
    for last in [*[False] * (READS_MAX - 1), True]:
        try:
            found = read()
        except FileNotFoundError:
            if last or not is_running():
                raise
            continue
        if report is not None:
            found.forget_damage_unless_in(report)
        report = found
        if not report.is_damaged() or not is_running():
            break
    assert report is not None
    return report


def _inspected(directory: Path) -> StoreReport:
    files, identity = open_offline(directory)
    corruptions: list[Corruption] = []
    try:
        recovered = recover(files, identity.uuid, repair=False)
    except CorruptStore as error:
        corruptions = [c for c in error.corruptions if isinstance(c, Corruption)]
        recovered = recover(files, identity.uuid, accept_corruption=True, repair=False)
    return StoreReport(
        identity,
        _checkpoint_rows(files),
        [_segment_report(files, segment) for segment in files.segments()],
        _live(recovered),
        corruptions,
        recovered.torn_bytes,
        recovered.clean,
    )


def _live(recovered: Recovered) -> dict[int, tuple[int, int]]:
    queues = recovered.queues.values()
    return {queue.queue_id: (queue.count, queue.content_bytes) for queue in queues}


def _checkpoint_rows(files: Files) -> list[Row]:
    rows: list[Row] = []
    for name in checkpoint_names(files):
        try:
            found = decode(name, files.load(name), b"")
        except CorruptRecord as error:
            rows.append({"name": name, "fault": error.reason})
        else:
            segment, offset = found.position >> 32, found.position & 0xFFFFFFFF
            rows.append({"name": name, "segment": segment, "offset": offset, "clean": found.clean})
    return rows


def _segment_report(files: Files, segment: int) -> SegmentReport:
    report = SegmentReport(segment, bytes_file=files.size(segment))
    header = files.read(segment, 0, SEGMENT_HEADER_BYTES)
    report.fault = segment_header_fault(header, segment, b"")
    for row in records(files, segments=[segment], contents=False):
        kind = str(row["kind"])
        if kind == "damage":
            report.fault = report.fault or f"no valid record at {row['offset']}"
            continue
        report.kinds[kind] += 1
        end = row["end"]
        assert isinstance(end, int)
        report.bytes_used = max(report.bytes_used, end)
    return report


def records(
    files: Files,
    segments: list[int] | None = None,
    kinds: set[str] | None = None,
    queue_id: int | None = None,
    contents: bool = True,
) -> Iterator[Row]:
    """Every record as a dict, in the order of the journal, filtered by kind and queue.

    The records of a transaction follow it, with its position under "tx". Where no valid record is
    but one follows, a row of kind "damage" says so.
    """
    for segment in files.segments() if segments is None else segments:
        for row in _segment_rows(files, segment, contents):
            if kinds is not None and row["kind"] not in kinds:
                continue
            queues = row.get("queues", [])
            assert isinstance(queues, list)
            if queue_id is None or queue_id in queues:
                yield row


def _segment_rows(files: Files, segment: int, contents: bool) -> Iterator[Row]:
    # A whole segment at a time: this is a tool, and records may be of any size.
    buffer = files.read(segment, 0, files.size(segment))
    offset = SEGMENT_HEADER_BYTES
    while True:
        size = int(check_record(buffer, offset))
        if size > 0:
            yield from _record_rows(buffer, offset, size, segment, contents)
            offset += size
            continue
        following = int(find_record(buffer, offset + 1)) if buffer[offset:].strip(b"\0") else -1
        if following < 0:
            return
        yield {"kind": "damage", "segment": segment, "offset": offset, "end": following}
        offset = following


def _record_rows(
    buffer: bytes, offset: int, size: int, segment: int, contents: bool
) -> Iterator[Row]:
    row = _row(buffer, offset, size, segment, contents)
    yield row
    if row["kind"] == KIND_NAMES[KIND_TX]:
        at = offset + RECORD_HEADER_BYTES
        while at < offset + size:
            inner = RECORD_HEADER_BYTES + int(u32_at(buffer, at))
            yield {**_row(buffer, at, inner, segment, contents), "tx": offset}
            at += inner


def _row(buffer: bytes, offset: int, size: int, segment: int, contents: bool) -> Row:
    word = int(u32_at(buffer, offset + 8))
    kind = word >> 24
    row: Row = {
        "kind": KIND_NAMES[kind],
        "segment": segment,
        "offset": offset,
        "end": offset + size,
        "flags": word >> 16 & 0xFF,
        "group": word & 0xFFFF,
        "epoch": int(u32_at(buffer, offset + 12)),
        "index": int(read_i64_be(buffer, offset + 16)),
    }
    if kind == KIND_SYNCED:
        row["time_ms"] = int(u32_at(buffer, offset + 12)) << 16 | word & 0xFFFF
        row["group"] = row["epoch"] = 0
    elif kind in (KIND_ENQUEUE, KIND_MOVED):
        row.update(_message_fields(buffer, offset, contents))
    elif kind == KIND_STATE:
        row["command"] = buffer[offset + RECORD_HEADER_BYTES : offset + size]
    elif kind == KIND_NUMBER:
        row.update(_origin_fields(buffer, offset + RECORD_HEADER_BYTES))
    elif kind == KIND_INSTALL:
        row["installing"] = buffer[offset + RECORD_HEADER_BYTES] != 0
    elif size > RECORD_HEADER_BYTES and kind != KIND_TX:
        row.update(_queue_fields(kind, buffer, offset + RECORD_HEADER_BYTES))
    return row


def _message_fields(buffer: bytes, offset: int, contents: bool) -> Row:
    message = parse_message(buffer, offset)
    fields: Row = {
        "queues": message.queue_ids,
        "arrived_ms": message.arrived_ms,
        "expiration_ms": message.expiration_ms,
        "priority": message.priority,
        "route": message.tail,
        "content_bytes": len(message.content),
        "content": message.content if contents else message.content[:CONTENT_SHOWN_BYTES_MAX],
    }
    if message.flags & FLAG_ORIGIN:
        fields.update(_origin_fields(buffer, int(origin_at(buffer, offset))))
    if message.flags & FLAG_IDENTITY:
        identity = identity_at(buffer, identity_offset(buffer, offset))
        producer = identity.producer
        if is_users(producer):
            fields.update(user=user_of(producer), producer=given_name(producer))
        else:
            fields.update(producer=producer)
        fields.update(sequence=int(identity.sequence))
        fields.update(message_id=identity.message_id)
    return fields


def _origin_fields(buffer: bytes, at: int) -> Row:
    """The edge's incarnation as it is written elsewhere, and its number (A1)."""
    origin = int(read_i64_be(buffer, at))
    return {"origin": f"{origin:012x}", "number": int(read_i64_be(buffer, at + 8))}


def _queue_fields(kind: int, buffer: bytes, at: int) -> Row:
    row: Row = {"queues": [int(u32_at(buffer, at))]}
    if kind == KIND_DEQUEUE:
        count = int(u32_at(buffer, at + 4))
        starts = range(at + 8, at + 8 + count * 12, 12)
        row["ranges"] = [(int(read_i64_be(buffer, s)), int(u32_at(buffer, s + 8))) for s in starts]
    elif kind == KIND_REQUEUE:
        row["message"] = int(read_i64_be(buffer, at + 4))
        row["delivery_count"] = int(u32_at(buffer, at + 12))
    elif kind == KIND_PURGE:
        row["up_to"] = int(read_i64_be(buffer, at + 4))
    elif kind == KIND_WATERMARK:
        seen = unpack_dedup_state(buffer, at + 4)
        row["producers"] = {name: int(mark.last) for name, mark in seen.producers.items()}
        row["message_ids"] = len(seen.ids)
    elif kind == KIND_SHOWN:
        row["priority"] = buffer[at + 4]
        row["up_to"] = int(read_i64_be(buffer, at + 5))
    return row
