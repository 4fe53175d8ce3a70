"""A cluster's stores made by hand, and ways to damage one of them on purpose."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import DeclareQueue, PutVhost
from rhizome.cluster.consensus.consensus_registry import Registry, encode_snapshot
from rhizome.cluster.state.cluster_commands import Member, RegisterBroker, SetInSync
from rhizome.cluster.state.cluster_state import ClusterState, StateAlone
from rhizome.journal.records import (
    FLAG_DURABLE,
    KIND_DEQUEUE,
    KIND_ENQUEUE,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    crc32c,
    dequeue_record,
    enqueue_record,
    number_record,
    requeue_record,
)
from rhizome.spark.journal.journal_record_decoder import record_offsets
from tests.spark.journals import JournalFiles, content, route

GROUP = 1
OTHER = 2
QUEUES = ("orders", "payments")
BROKERS = ("b1", "b2", "b3")
SETTLED = range(10, 60)


def cluster_state() -> ClusterState:
    """Three brokers; group 1 is at b1, and all have a copy of it; group 2 is at b2 and b3."""
    state = ClusterState(StateAlone())
    for number, name in enumerate(BROKERS, 1):
        state.apply_command(
            number, RegisterBroker(name, f"uuid-{name}", f"{number:012x}", "primary", (), name)
        )
    group = state.groups.groups[GROUP]
    members = tuple(
        Member(name, f"{n:012x}", "whole") for n, name in enumerate(BROKERS, 1) if n > 1
    )
    command = SetInSync(GROUP, members, group.epoch, group.version)
    assert state.apply_command(4, command).outcome.error is None
    group = state.groups.groups[OTHER]
    command = SetInSync(OTHER, members[1:], group.epoch, group.version)
    assert state.apply_command(5, command).outcome.error is None
    for declared in (
        PutVhost("/"),
        *(DeclareQueue("/", name, True, group=GROUP) for name in QUEUES),
    ):
        assert state._host.apply(declared).error is None
    return state


def write_state(directory: Path, broker: str) -> None:
    state = cluster_state()
    (directory / "cluster").mkdir(parents=True)
    connection = sqlite3.connect(directory / "cluster" / "state.db")
    connection.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB, crc INTEGER)")
    connection.execute("CREATE TABLE entries (idx, term, kind, payload, crc)")
    facts = {
        "uuid": f"uuid-{broker}".encode(),
        "commit": (5).to_bytes(8, "big"),
        "snapshot": struct.pack(">QQ", 5, 1) + encode_snapshot(Registry(), state.snapshot()),
    }
    connection.executemany("INSERT INTO facts VALUES (?, ?, 0)", facts.items())
    connection.commit()
    connection.close()


def queue_ids() -> dict[str, int]:
    queues = cluster_state()._host.state.vhosts["/"].queues
    return {name: definition.id for name, definition in queues.items()}


def write_copies(directory: Path) -> list[Path]:
    """The stores of three brokers with the same records of one group."""
    ids = list(queue_ids().values())
    found = []
    for broker in BROKERS:
        store = JournalFiles(directory / broker, segment_bytes=16 * 1024)
        write_state(directory / broker, broker)
        if broker != "b1":
            write_other_group(store)
        write_records(store, ids)
        # What only this broker has: a queue of its own, in the local group.
        store.journal.enqueue(0, 1, 1, [999], b"\0\0", 1, -1, 0, 0, content(b"x", Properties()))
        store.flush()
        found.append(directory / broker)
    return found


def write_other_group(store: JournalFiles) -> None:
    for index in range(1, 11):
        record = enqueue_record(
            OTHER, 1, index, [77], b"\0\0", 1, -1, 0, FLAG_DURABLE, content(b"x", Properties())
        )
        store.journal.append_raw(record, 1)


def write_records(store: JournalFiles, ids: list[int]) -> None:
    index = 0
    messages = []
    for number in range(200):
        index += 1
        messages.append(index)
        record = enqueue_record(
            GROUP, 1, index, [ids[number % 2]] if number % 5 else ids, route(b"ex", b"key"),
            1_700_000_000_000 + number, -1, 0, FLAG_DURABLE,
            content(b"message %d " % number + b"x" * 100, Properties(message_id=f"m{number}")),
        )  # fmt: skip
        store.journal.append_raw(record, 1)
        if number in SETTLED:
            index += 1
            settled = dequeue_record(GROUP, 1, index, ids[number % 2], [messages[-1]], FLAG_DURABLE)
            store.journal.append_raw(settled, 0)
        if number % 50 == 0:
            index += 2
            store.journal.append_raw(requeue_record(GROUP, 1, index - 1, ids[0], 1, 2, 1), 0)
            store.journal.append_raw(number_record(GROUP, 1, index, 0xABC, number + 1, 1), 0)
    store.flush()


# --- damage: each takes a store and says what must be found: kind, and index if it has one


class Segment:
    """The records of a segment file, to be changed and written back."""

    def __init__(self, store: Path, number: int) -> None:
        self.path = store / "journal" / f"{number:010d}.seg"
        data = self.path.read_bytes()
        offsets, end = record_offsets(data, SEGMENT_HEADER_BYTES)
        bounds = [*offsets.tolist(), end]
        self.header = data[:SEGMENT_HEADER_BYTES]
        self.records = [data[a:b] for a, b in pairwise(bounds)]

    def write(self) -> None:
        self.path.write_bytes(self.header + b"".join(self.records))

    def find(self, kind: int, skip: int = 0) -> int:
        return self.places(kind, GROUP)[skip]

    def places(self, kind: int, group: int) -> list[int]:
        """Where the records of a kind and group are in `records`."""
        return [
            place
            for place, record in enumerate(self.records)
            if record[8] == kind and record[10:12] == group.to_bytes(2, "big")
        ]


def index_of(record: bytes) -> int:
    return int.from_bytes(record[16:24], "big")


def resealed(record: bytes) -> bytes:
    """The record with a checksum that fits its content."""
    return record[:4] + crc32c(record[8:]).to_bytes(4, "big") + record[8:]


def lose_a_record(store: Path) -> int:
    segment = Segment(store, 1)
    place = segment.find(KIND_ENQUEUE, 3)
    index = index_of(segment.records.pop(place))
    segment.write()
    return index


def duplicate_a_record(store: Path) -> int:
    segment = Segment(store, 1)
    place = segment.find(KIND_ENQUEUE, 5)
    segment.records.insert(place, segment.records[place])
    segment.write()
    return index_of(segment.records[place])


def swap_two_records(store: Path) -> int:
    segment = Segment(store, 1)
    place = segment.find(KIND_ENQUEUE, 7)
    records = segment.records
    records[place], records[place + 1] = records[place + 1], records[place]
    segment.write()
    return index_of(records[place + 1])


def change_a_body(store: Path) -> int:
    segment = Segment(store, 2)
    place = segment.find(KIND_ENQUEUE, 2)
    record = segment.records[place]
    segment.records[place] = resealed(record.replace(b"message", b"massage"))
    segment.write()
    return index_of(record)


def lose_the_copy(store: Path) -> int | None:
    return lose_group(store, GROUP)


def lose_group(store: Path, group: int) -> None:
    for path in sorted((store / "journal").glob("*.seg")):
        segment = Segment(store, int(path.stem))
        own = group.to_bytes(2, "big")
        segment.records = [each for each in segment.records if each[10:12] != own]
        segment.write()


def diverge(store: Path) -> int:
    """Another decision under an index: another message was settled."""
    segment = Segment(store, 1)
    place = segment.find(KIND_DEQUEUE, 8)
    record = segment.records[place]
    at = RECORD_HEADER_BYTES + 8
    settled = int.from_bytes(record[at : at + 8], "big") - 2
    changed = record[:at] + settled.to_bytes(8, "big") + record[at + 8 :]
    segment.records[place] = resealed(changed)
    segment.write()
    return settled


def resurrect_a_message(store: Path) -> int:
    segment = Segment(store, 1)
    place = segment.find(KIND_DEQUEUE, 2)
    record = segment.records.pop(place)
    segment.write()
    at = RECORD_HEADER_BYTES + 8
    return int.from_bytes(record[at : at + 8], "big")


def truncate_a_segment(store: Path) -> int | None:
    path = store / "journal" / "0000000002.seg"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    return None


DAMAGES: dict[str, Callable[[Path], int | None]] = {
    "lost record": lose_a_record,
    "duplicated record": duplicate_a_record,
    "swapped order": swap_two_records,
    "changed body": change_a_body,
    "missing copy": lose_the_copy,
    "diverging copy": diverge,
    "resurrected message": resurrect_a_message,
    "truncated segment": truncate_a_segment,
}
