"""Checkpoints: the state that all records below a position amount to, in one file.

    8s magic "RHIZCKP\\0" | u32 version | u8 1 if little-endian | u8 1 if clean | u16 0
    16s store uuid | u64 position
    u64 length, state snapshot (opaque)
    u32 n | n * (u16 group, u32 epoch, u64 index, u8 1 if its copy is not whole,
                 u32 m, m * (u32 epoch, u64 first index),
                 u32 k, k * (u64 origin, u64 last number))
    u32 n | n * (u64 segment, u64 references ever made to it)
    u32 n | n * (u32 queue id, u16 group, i64 content bytes (-1: unknown),
                 u32 m, m * (u64 index, u32 delivery count),
                 u32 length, what it has accepted (dedup_state.py; empty: nothing that it knows)
                 u32 m, m * (u8 priority, u64 index up to which messages were delivered),
                 u32 length, its leases (broker/queue_leases/lease.py; empty: none),
                 u32 k, k * (u8 priority, u64 length, packed index))
    if there are any, u32 n | n * (u16 group, u64 origin, u32 m, m * u64 number that was refused)
    u32 crc of all of this, at the end in every version

Numbers are big-endian, the packed indexes in the byte order of the machine. A checkpoint is written
under another name, synced, renamed, and the directory synced; the two newest are kept. `clean` says
that the broker stopped cleanly: nothing follows the position.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from rhizome.journal.dedup_state import DedupState, unpack_dedup_state
from rhizome.journal.errors import CorruptRecord, ForeignStore
from rhizome.journal.files import Files
from rhizome.journal.journal import SPILL_SEGMENT_FIRST
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.record_replay import QueueReplay, Replay, merged
from rhizome.journal.records import crc32c

CHECKPOINT_VERSION: Final = 4
CHECKPOINT_MAGIC: Final = b"RHIZCKP\0"
CHECKPOINT_PREFIX: Final = "checkpoint-"
CHECKPOINTS_KEPT: Final = 2

_HEADER: Final = struct.Struct(">8sIBBH16sQ")
_GROUP: Final = struct.Struct(">HIQB")
_START: Final = struct.Struct(">IQ")
_ORIGIN: Final = struct.Struct(">QQ")
_REFUSED: Final = struct.Struct(">HQI")
_SEGMENT: Final = struct.Struct(">QQ")
_QUEUE: Final = struct.Struct(">IHq")
_COUNT: Final = struct.Struct(">QI")
_PART: Final = struct.Struct(">BQ")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


@dataclass
class _QueuePart:
    queue_id: int
    group: int
    content_bytes: int
    delivery_counts: dict[int, int]
    seen: bytes
    shown: dict[int, int]
    leases: bytes
    parts: list[tuple[int, bytes]] = field(default_factory=list)


class CheckpointBuilder:
    """Collects a checkpoint within one wake-up: nothing may be appended to the journal meanwhile.

    The caller gives every live persistent message of every queue, in any number of parts per queue:
    the paged ones as their PagedIndex, those in memory and the unacked ones as (index, position)
    pairs. `entries` refers to the last `queue`. Transient messages (in spill segments, or without a
    position) are left out automatically.
    """

    def __init__(self, position: int, store_uuid: bytes) -> None:
        self.position = position
        self.store_uuid = store_uuid
        self.live: dict[int, int] = {}
        self._state = b""
        self._groups: list[bytes] = []
        self._refused: list[bytes] = []
        self._segments: list[bytes] = []
        self._queues: list[_QueuePart] = []

    def state(self, snapshot: bytes) -> None:
        """The state machine's snapshot; recovery hands it back before later commands."""
        self._state = snapshot

    def group(
        self,
        group: int,
        epoch: int,
        index: int,
        starts: list[tuple[int, int]] | None = None,
        origins: dict[int, int] | None = None,
        refused: dict[int, list[int]] | None = None,
        installing: bool = False,
    ) -> None:
        """A group's epoch and highest index, (epoch, first index) of the epochs to remember, the
        last number of each origin and which of its numbers were refused (A1), and whether its copy
        here is still being made (L2).
        """
        starts = starts or []
        origins = origins or {}
        packed = [_GROUP.pack(group, epoch, index, installing), _U32.pack(len(starts))]
        packed.extend(_START.pack(*start) for start in starts)
        packed.append(_U32.pack(len(origins)))
        packed.extend(_ORIGIN.pack(*item) for item in origins.items())
        self._groups.append(b"".join(packed))
        for origin, numbers in (refused or {}).items():
            if numbers:
                head = _REFUSED.pack(group, origin, len(numbers))
                self._refused.append(head + struct.pack(f">{len(numbers)}Q", *numbers))

    def segment(self, segment: int, references_ever: int) -> None:
        self._segments.append(_SEGMENT.pack(segment, references_ever))

    def queue(
        self,
        queue_id: int,
        group: int,
        content_bytes: int = -1,
        delivery_counts: dict[int, int] | None = None,
        seen: DedupState | None = None,
        shown: dict[int, int] | None = None,
        leases: bytes = b"",
    ) -> None:
        """Begin a queue. `content_bytes` sums its persistent messages; -1 makes recovery read them.
        `seen`: its deduplication state (L5); `shown`: by priority, up to which index messages were
        delivered; `leases`: those of the queue, packed."""
        packed = b"" if seen is None or seen.is_empty() else seen.packed()
        self._queues.append(
            _QueuePart(
                queue_id,
                group,
                content_bytes,
                delivery_counts or {},
                packed,
                dict(shown or {}),
                leases,
            )
        )

    def entries(self, priority: int, index: PagedIndex) -> None:
        """Live messages of this queue in a PagedIndex."""
        data = index.to_bytes(SPILL_SEGMENT_FIRST)
        if data:
            self._queues[-1].parts.append((priority, data))
            index.count_references(self.live)

    def pairs(self, priority: int, entries: list[tuple[int, int]]) -> None:
        """Live messages of this queue as (index, position), in any order."""
        index = PagedIndex()
        for message, position in sorted(entries):
            if 0 < position >> 32 < SPILL_SEGMENT_FIRST:
                index.append(message, position)
        self.entries(priority, index)

    def references(self) -> dict[int, int]:
        """References per segment of the journal proper."""
        return {s: n for s, n in self.live.items() if s < SPILL_SEGMENT_FIRST}

    def pieces(self, clean: bool) -> list[bytes]:
        """The file, checksum included."""
        order = 1 if sys.byteorder == "little" else 0
        found = [
            _HEADER.pack(
                CHECKPOINT_MAGIC,
                CHECKPOINT_VERSION,
                order,
                int(clean),
                0,
                self.store_uuid,
                self.position,
            ),
            _U64.pack(len(self._state)),
            self._state,
        ]
        for packed in (self._groups, self._segments):
            found.append(_U32.pack(len(packed)))
            found.extend(packed)
        found.append(_U32.pack(len(self._queues)))
        for queue in self._queues:
            found.extend(_queue_pieces(queue))
        if self._refused:
            # At the very end, where a program that doesn't know this part stops reading.
            found.append(_U32.pack(len(self._refused)))
            found.extend(self._refused)
        crc = 0
        for piece in found:
            crc = crc32c(piece, crc)
        found.append(_U32.pack(crc))
        return found


def _queue_pieces(queue: _QueuePart) -> list[bytes]:
    found = [
        _QUEUE.pack(queue.queue_id, queue.group, queue.content_bytes),
        _U32.pack(len(queue.delivery_counts)),
    ]
    found.extend(_COUNT.pack(*item) for item in queue.delivery_counts.items())
    found.append(_U32.pack(len(queue.seen)))
    found.append(queue.seen)
    found.append(_U32.pack(len(queue.shown)))
    found.extend(_PART.pack(*item) for item in queue.shown.items())
    found.append(_U32.pack(len(queue.leases)))
    found.append(queue.leases)
    found.append(_U32.pack(len(queue.parts)))
    for priority, data in queue.parts:
        found.append(_PART.pack(priority, len(data)))
        found.append(data)
    return found


@dataclass
class Checkpoint:
    """A checkpoint that was loaded: where it stands, and the replay that begins with it."""

    name: str
    position: int
    clean: bool
    snapshot: bytes
    replay: Replay
    size: int


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def numbers(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def number(self, form: struct.Struct) -> int:
        return self.numbers(form)[0]

    def take(self, length: int) -> bytes:
        self.at += length
        return self.data[self.at - length : self.at]


def decode(name: str, data: bytes, store_uuid: bytes) -> Checkpoint:
    """The checkpoint in `data`. Raises CorruptRecord, or ForeignStore if it belongs to another
    program."""
    header = _checked_header(name, data, store_uuid)
    reader = _Reader(data)
    reader.at = _HEADER.size
    snapshot = reader.take(reader.number(_U64))
    replay = Replay()
    _read_groups(reader, replay)
    for _ in range(reader.number(_U32)):
        segment, references = reader.numbers(_SEGMENT)
        replay.totals[segment] = references
    for _ in range(reader.number(_U32)):
        _read_queue(reader, replay)
    if reader.at < len(data) - _U32.size:
        _read_refused(reader, replay)
    return Checkpoint(name, header[6], bool(header[3]), snapshot, replay, len(data))


def decode_state(name: str, data: bytes) -> tuple[int, bytes]:
    """The position of any store's checkpoint, and its snapshot of the definitions; raises as
    `decode` does. The part about messages, which may be millions, is skipped."""
    header = _checked_header(name, data, b"")
    reader = _Reader(data)
    reader.at = _HEADER.size
    return header[6], reader.take(reader.number(_U64))


def _checked_header(name: str, data: bytes, store_uuid: bytes) -> tuple[Any, ...]:
    if len(data) < _HEADER.size + 4 or data[:8] != CHECKPOINT_MAGIC:
        raise CorruptRecord(f"{name} is no checkpoint", 0)
    if crc32c(memoryview(data)[:-4]) != _U32.unpack_from(data, len(data) - 4)[0]:
        # Checked first: a flipped bit in the version doesn't make it another program's.
        raise CorruptRecord(f"{name} fails its checksum", 0)
    header = _HEADER.unpack_from(data, 0)
    if header[1] != CHECKPOINT_VERSION:
        raise ForeignStore(
            f"{name} has version {header[1]} and this program knows {CHECKPOINT_VERSION}: "
            "start the program that wrote it"
        )
    if bool(header[2]) != (sys.byteorder == "little"):
        raise ForeignStore(f"{name} was written on a machine of the other byte order")
    if store_uuid and header[5] != store_uuid:
        raise ForeignStore(f"{name} belongs to store {header[5].hex()}, not {store_uuid.hex()}")
    return header


def _read_groups(reader: _Reader, replay: Replay) -> None:
    for _ in range(reader.number(_U32)):
        number, epoch, index, installing = reader.numbers(_GROUP)
        group = replay.group(number)
        group.epoch = epoch
        group.index = index
        group.installing = installing != 0
        for _ in range(reader.number(_U32)):
            first_epoch, first_index = reader.numbers(_START)
            group.starts.append((first_epoch, first_index))
        for _ in range(reader.number(_U32)):
            origin, last = reader.numbers(_ORIGIN)
            group.origins[origin] = last


def _read_refused(reader: _Reader, replay: Replay) -> None:
    for _ in range(reader.number(_U32)):
        group, origin, count = reader.numbers(_REFUSED)
        numbers = struct.unpack(f">{count}Q", reader.take(count * _U64.size))
        replay.group(group).refused[origin] = list(numbers)


def _read_queue(reader: _Reader, replay: Replay) -> None:
    queue_id, group, content_bytes = reader.numbers(_QUEUE)
    queue = QueueReplay(queue_id, group)
    queue.content_bytes = content_bytes
    for _ in range(reader.number(_U32)):
        index, count = reader.numbers(_COUNT)
        queue.delivery_counts[index] = count
    packed = reader.take(reader.number(_U32))
    if packed:
        queue.seen = unpack_dedup_state(packed, 0)
    for _ in range(reader.number(_U32)):
        priority, index = reader.numbers(_PART)
        queue.shown[priority] = index
    queue.leases = reader.take(reader.number(_U32))
    levels: dict[int, list[PagedIndex]] = {}
    for _ in range(reader.number(_U32)):
        priority, length = reader.numbers(_PART)
        part = PagedIndex.from_bytes(reader.take(length), sized=True)
        levels.setdefault(priority, []).append(part)
    for priority, parts in levels.items():
        queue.set_level(priority, merged(parts))
    replay.queues[queue_id] = queue


def checkpoint_names(files: Files) -> list[str]:
    """Names of the checkpoints, newest first."""
    found = [name for name in files.names() if name.startswith(CHECKPOINT_PREFIX)]
    return sorted(found, reverse=True)


def next_name(files: Files) -> str:
    """The name of the next checkpoint."""
    names = checkpoint_names(files)
    number = int(names[0].removeprefix(CHECKPOINT_PREFIX)) + 1 if names else 1
    return f"{CHECKPOINT_PREFIX}{number:010d}"


def write(files: Files, pieces: list[bytes]) -> None:
    """Make a checkpoint durable, then drop all but the newest."""
    files.store(next_name(files), pieces)
    for name in checkpoint_names(files)[CHECKPOINTS_KEPT:]:
        files.discard(name)
