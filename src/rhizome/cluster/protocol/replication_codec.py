"""Replication codec: payloads between the home of a group and its standbys. The catalogue describes
each frame.

Items of LIVE, each with a tag u8; what is absent in the part that an item covers is not alive:

    REFUSALS  n u32, n * (origin u64, m u32, m * number u64)    of the group, all; before ORIGINS
    ORIGINS   n u32, n * (origin u64, number u64)               of the group, all
    WINDOW    queue u32, first u64, end u64, n u32, n * (index u64, delivery count u32),
              m u32, m * (first u64, count u32)                 of a queue, indexes in [first, end)
    SEEN      queue u32, length u32, what the queue has accepted (journal/dedup_state.py;
              empty: nothing)
    SHOWN     queue u32, n u8, n * (priority u8, index u64)
    LEASES    queue u32, length u32, the leases of the queue (broker/queue_leases/lease.py;
              empty: none)
    QUEUES    n u32, n * queue u32                              of the group, all
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.records import put_u16, put_u32, u32_at

ITEM_ORIGINS: Final = 1
ITEM_WINDOW: Final = 2
ITEM_SEEN: Final = 3
ITEM_SHOWN: Final = 4
ITEM_QUEUES: Final = 5
ITEM_LEASES: Final = 6
ITEM_REFUSALS: Final = 7

INSTALLING: Final = 0
"""State of a copy: messages that must survive a restart may be missing."""
ON_DISK: Final = 1
"""Only transient messages may be missing; what it says of its disk counts."""
WHOLE: Final = 2
"""Nothing is missing."""

HEAD_BYTES: Final = 6
RECORDS_BYTES: Final = HEAD_BYTES + 32
BACKFILL_BYTES: Final = HEAD_BYTES + 8
FETCHED_BYTES: Final = HEAD_BYTES + 12
LIVE_BYTES: Final = HEAD_BYTES + 13
LIVE_LAST: Final = 1
LIVE_FIRST: Final = 2
START_BYTES: Final = 12


def table_in(data: bytes, start: i64, end: i64) -> dict[str, object]:
    return read_table(data[start:end], 0)[0]


def number_in(table: dict[str, object], name: str) -> int:
    found = table.get(name)
    if not isinstance(found, int):
        raise SyntaxErrorFault(f"a frame about a copy has no number '{name}'")
    return found


def epoch_at(data: bytes, start: i64) -> i64:
    """The epoch of a frame that is no table."""
    return u32_at(data, start + 2)


def put_head(writer: BytesWriter, group: i64, epoch: i64) -> None:
    put_u16(writer, group)
    put_u32(writer, epoch)


# ---- tables --------------------------------------------------------------------------------------


def invite(
    applied: i64,
    group: i64,
    epoch: i64,
    starts: list[tuple[int, int]],
    whole: bool,
    more: dict[str, object],
) -> bytes:
    writer = BytesWriter()
    for first_epoch, first_index in starts:
        put_u32(writer, first_epoch)
        write_i64_be(writer, first_index)
    table: dict[str, object] = {
        "applied": applied,
        "group": group,
        "epoch": epoch,
        "starts": writer.getvalue(),
        "whole": whole,
    }
    table.update(more)
    return encode_table(table)


def starts_in(table: dict[str, object]) -> list[tuple[int, int]]:
    """The history in an INVITE, which has at least its own epoch."""
    packed = table.get("starts")
    if not isinstance(packed, bytes) or len(packed) == 0 or len(packed) % START_BYTES != 0:
        raise SyntaxErrorFault("an invitation to keep a copy has no history")
    found: list[tuple[int, int]] = []
    at: i64 = 0
    while at < len(packed):
        found.append((u32_at(packed, at), read_i64_be(packed, at + 4)))
        at += START_BYTES
    return found


def follow(
    applied: i64,
    group: i64,
    epoch: i64,
    incarnation: str,
    resume: bool,
    memory: i64,
    offset: i64 = 0,
) -> bytes:
    return encode_table(
        {
            "applied": applied,
            "group": group,
            "epoch": epoch,
            "incarnation": incarnation,
            "resume": resume,
            "memory": memory,
            "offset": offset,
            "refusals": True,
        }
    )


def refused(applied: i64, group: i64, epoch: i64, reason: str) -> bytes:
    return encode_table({"applied": applied, "group": group, "epoch": epoch, "reason": reason})


# ---- per batch -----------------------------------------------------------------------------------


def records_head(group: i64, epoch: i64, first: i64, last: i64, memory: i64, disk: i64) -> bytes:
    """What precedes the records in RECORDS."""
    writer = BytesWriter()
    put_head(writer, group, epoch)
    write_i64_be(writer, first)
    write_i64_be(writer, last)
    write_i64_be(writer, memory)
    write_i64_be(writer, disk)
    return writer.getvalue()


def replicated(group: i64, epoch: i64, memory: i64, disk: i64, state: i64, listing: i64) -> bytes:
    writer = BytesWriter()
    put_head(writer, group, epoch)
    write_i64_be(writer, memory)
    write_i64_be(writer, disk)
    writer.append(int(state))
    put_u32(writer, listing)
    return writer.getvalue()


def backfill_head(group: i64, epoch: i64, answered: i64) -> bytes:
    """What precedes the records in BACKFILL."""
    writer = BytesWriter()
    put_head(writer, group, epoch)
    write_i64_be(writer, answered)
    return writer.getvalue()


def want(group: i64, epoch: i64, listing: i64, wanted: list[int]) -> bytes:
    """WANT of [queue, first, count, queue, first, count, ...]."""
    writer = BytesWriter()
    put_head(writer, group, epoch)
    put_u32(writer, listing)
    put_u32(writer, len(wanted) // 3)
    at: i64 = 0
    while at < len(wanted):
        put_u32(writer, wanted[at])
        write_i64_be(writer, wanted[at + 1])
        put_u32(writer, wanted[at + 2])
        at += 3
    return writer.getvalue()


def fetched_head(group: i64, epoch: i64, queue_id: i64, index: i64) -> bytes:
    """What precedes the record in FETCHED."""
    writer = BytesWriter()
    put_head(writer, group, epoch)
    put_u32(writer, queue_id)
    write_i64_be(writer, index)
    return writer.getvalue()


def fetch(group: i64, epoch: i64, queue_id: i64, index: i64, in_epoch: i64) -> bytes:
    writer = BytesWriter()
    writer.write(fetched_head(group, epoch, queue_id, index))
    put_u32(writer, in_epoch)
    return writer.getvalue()


def restore_head(group: i64, epoch: i64) -> bytes:
    """What precedes the record in RESTORE."""
    writer = BytesWriter()
    put_head(writer, group, epoch)
    return writer.getvalue()


def wanted_in(data: bytes, start: i64) -> list[int]:
    found: list[int] = []
    count: i64 = u32_at(data, start + HEAD_BYTES + 4)
    at: i64 = start + HEAD_BYTES + 8
    while count > 0:
        found.append(u32_at(data, at))
        found.append(read_i64_be(data, at + 4))
        found.append(u32_at(data, at + 12))
        at += 16
        count -= 1
    return found


# ---- live sets -----------------------------------------------------------------------------------


@final
class LiveWriter:
    """Collects the items of one LIVE frame."""

    _writer: BytesWriter

    def __init__(self) -> None:
        self._writer = BytesWriter()

    def size(self) -> i64:
        return len(self._writer)

    def origins(self, numbers: dict[int, int]) -> None:
        writer = self._writer
        writer.append(ITEM_ORIGINS)
        put_u32(writer, len(numbers))
        for origin, number in numbers.items():
            write_i64_be(writer, origin)
            write_i64_be(writer, number)

    def refusals(self, refused: dict[int, list[int]]) -> None:
        writer = self._writer
        writer.append(ITEM_REFUSALS)
        put_u32(writer, len(refused))
        for origin, numbers in refused.items():
            write_i64_be(writer, origin)
            put_u32(writer, len(numbers))
            for number in numbers:
                write_i64_be(writer, number)

    def window(
        self, queue_id: i64, first: i64, end: i64, counts: list[tuple[int, int]], ranges: list[int]
    ) -> None:
        writer = self._writer
        writer.append(ITEM_WINDOW)
        put_u32(writer, queue_id)
        write_i64_be(writer, first)
        write_i64_be(writer, end)
        put_u32(writer, len(counts))
        for index, count in counts:
            write_i64_be(writer, index)
            put_u32(writer, count)
        put_u32(writer, len(ranges) // 2)
        at: i64 = 0
        while at < len(ranges):
            write_i64_be(writer, ranges[at])
            put_u32(writer, ranges[at + 1])
            at += 2

    def seen(self, queue_id: i64, packed: bytes) -> None:
        writer = self._writer
        writer.append(ITEM_SEEN)
        put_u32(writer, queue_id)
        put_u32(writer, len(packed))
        writer.write(packed)

    def shown(self, queue_id: i64, up_to: dict[int, int]) -> None:
        writer = self._writer
        writer.append(ITEM_SHOWN)
        put_u32(writer, queue_id)
        writer.append(len(up_to))
        for priority, index in up_to.items():
            writer.append(priority)
            write_i64_be(writer, index)

    def leases(self, queue_id: i64, packed: bytes) -> None:
        writer = self._writer
        writer.append(ITEM_LEASES)
        put_u32(writer, queue_id)
        put_u32(writer, len(packed))
        writer.write(packed)

    def queues(self, queue_ids: list[int]) -> None:
        writer = self._writer
        writer.append(ITEM_QUEUES)
        put_u32(writer, len(queue_ids))
        for queue_id in queue_ids:
            put_u32(writer, queue_id)

    def frame(self, group: i64, epoch: i64, index: i64, listing: i64, flags: i64) -> list[bytes]:
        """The parts of the frame."""
        head = BytesWriter()
        put_head(head, group, epoch)
        write_i64_be(head, index)
        put_u32(head, listing)
        head.append(int(flags))
        return [head.getvalue(), self._writer.getvalue()]
