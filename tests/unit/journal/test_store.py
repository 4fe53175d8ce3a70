"""Both stores pass the same tests; the one on disk has some of its own."""

from __future__ import annotations

import errno
import json
import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rhizome.journal.checkpoint import CheckpointBuilder
from rhizome.journal.errors import CorruptRecord, CorruptStore, ForeignStore, StoreInUse
from rhizome.journal.files import MemoryFiles
from rhizome.journal.journal import SPILL_SEGMENT_FIRST
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.store import JournalStore, MemoryStore, Store, StoreOptions
from rhizome.journal.store_inspection import inspect, open_offline, records
from rhizome.journal.writer import NEVER, every

UUID = bytes(range(16))
SMALL = StoreOptions(segment_bytes_max=4096, spill_segment_bytes_max=4096, checkpoint_bytes=20_000)


class Loop:
    """A loop in miniature: runs what other threads hand over, and keeps what the store tells."""

    def __init__(self) -> None:
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.token = 0
        self.alarms: list[str] = []
        self.errors: list[BaseException] = []

    def durable(self, token: int) -> None:
        assert token >= self.token
        self.token = token

    def alarm(self, text: str) -> None:
        self.alarms.append(text)

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)

    def hand_over(self, call: Callable[[], None]) -> None:
        self.calls.put(call)

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.calls.get(timeout=20)()
            assert not self.errors


class Place:
    """Where a store is kept, so that it can be opened again."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.files = MemoryFiles()
        self.loop = Loop()
        self.open_stores: list[Store] = []

    def open(self, options: StoreOptions = SMALL) -> Store:
        self.loop = Loop()
        store: Store
        if self.kind == "disk":
            store = JournalStore(self.directory, UUID, self.loop, self.loop.hand_over, options)
        else:
            store = MemoryStore(self.files, UUID, self.loop, self.loop.hand_over, options)
        self.open_stores.append(store)
        return store

    def close(self, store: Store, builder: CheckpointBuilder | None = None) -> None:
        self.open_stores.remove(store)
        store.close(builder)

    def flush(self, store: Store) -> None:
        token = store.submit()
        self.loop.run_until(lambda: self.loop.token >= token)


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(request.param, tmp_path / "store")
    yield found
    for store in list(found.open_stores):
        found.close(store)


def enqueue(store: Store, index: int, size: int = 100) -> tuple[int, int]:
    content = b"%08d" % index * (size // 8)
    return index, store.journal.enqueue(0, 1, index, [1], b"t", 1, -1, 0, 1, content)


def indexes(store: Store) -> list[int]:
    return [n for n, _ in store.recovered.queues[1].in_order().positions()]


def snapshot(store: Store, entries: list[tuple[int, int]]) -> CheckpointBuilder:
    builder = store.begin_checkpoint()
    builder.group(0, 1, entries[-1][0] if entries else 0)
    builder.queue(1, 0)
    builder.pairs(0, entries)
    return builder


def test_what_was_submitted_is_there_when_it_is_opened_again(place: Place) -> None:
    store = place.open()
    assert store.recovered.queues == {}
    for index in range(1, 101):
        enqueue(store, index)
    store.journal.dequeue(0, 1, 1, list(range(1, 11)))
    store.journal.state(1, b"declare")
    place.flush(store)
    place.close(store)
    store = place.open()
    assert not store.recovered.clean
    assert store.recovered.commands == [(1, b"declare")]
    assert store.recovered.queues[1].content_bytes == 90 * 96
    assert indexes(store) == list(range(11, 101))


def test_a_message_can_be_fetched_as_soon_as_it_is_submitted(place: Place) -> None:
    store = place.open()
    entries = [enqueue(store, index, index % 7 * 3000) for index in range(1, 60)]
    store.submit()
    messages = store.fetch(entries)
    assert [message.index for message in messages] == [index for index, _ in entries]
    assert messages[5].content == b"00000006" * (18000 // 8)
    wrong = entries[2][1] + 1
    place_on_disk = f"^segment {wrong >> 32}: .* at offset {wrong & 0xFFFFFFFF}$"
    with pytest.raises(CorruptRecord, match=place_on_disk):
        store.fetch([*entries[:2], (3, wrong)])


def test_a_clean_close_is_remembered(place: Place) -> None:
    store = place.open()
    entries = [enqueue(store, index) for index in range(1, 11)]
    place.close(store, snapshot(store, entries))
    store = place.open()
    assert store.recovered.clean
    assert store.recovered.records == 0
    assert indexes(store) == list(range(1, 11))
    enqueue(store, 11)
    place.flush(store)
    place.close(store)
    store = place.open()
    assert not store.recovered.clean
    assert indexes(store) == list(range(1, 12))


def test_a_checkpoint_frees_the_segments_that_it_does_not_need(place: Place) -> None:
    store = place.open()
    entries = [enqueue(store, index, 1000) for index in range(1, 101)]
    assert store.checkpoint_due()
    gone = entries[:90]
    store.journal.dequeue(0, 1, 1, [index for index, _ in gone])
    for _, position in gone:
        store.journal.release(position)
    before = len(store.journal.segments())
    store.checkpoint(snapshot(store, entries[90:]))
    assert not store.checkpoint_due()
    place.loop.run_until(lambda: len(store.journal.segments()) < before - 20)
    place.close(store)
    store = place.open()
    assert indexes(store) == list(range(91, 101))
    assert store.recovered.records <= 2


def test_what_crashes_left_to_replay_counts_towards_the_next_checkpoint(place: Place) -> None:
    lives = 0
    while True:
        store = place.open()
        if store.checkpoint_due():
            break
        enqueue(store, lives + 1, 1000)
        place.flush(store)
        place.close(store)
        lives += 1
        assert lives < 100, "no number of crashes makes a checkpoint due"
    assert store.uncheckpointed_bytes() > lives * 1000
    entries = list(store.recovered.queues[1].in_order().positions())
    store.checkpoint(snapshot(store, entries))
    assert not store.checkpoint_due()
    place.flush(store)
    place.close(store)
    store = place.open()
    assert store.uncheckpointed_bytes() < 200
    assert indexes(store) == list(range(1, lives + 1))


def test_spilled_bodies_are_read_back_and_gone_after_a_restart(place: Place) -> None:
    store = place.open()
    spill = PagedIndex()
    for index in range(1, 31):
        spill.append(index, store.spill.enqueue(0, 0, index, [1], b"", 1, -1, 0, 0, b"s" * 500))
    store.submit()
    assert store.spill.active_segment() > SPILL_SEGMENT_FIRST
    entries = spill.positions()
    assert [message.index for message in store.fetch(entries)] == list(range(1, 31))
    builder = store.begin_checkpoint()
    builder.queue(1, 0, 0)
    builder.entries(0, spill)
    assert builder.references() == {}
    place.close(store, builder)
    store = place.open()
    assert store.recovered.queues[1].count == 0
    assert store.spill.segments()[-1].size == 0


def test_dead_spill_segments_are_removed(place: Place) -> None:
    store = place.open()
    for index in range(1, 51):
        position = store.spill.enqueue(0, 0, index, [1], b"", 1, -1, 0, 0, b"s" * 1000)
        store.submit()
        store.spill.release(position)
    store.submit()
    place.loop.run_until(lambda: len(store.spill.segments()) == 1)


def test_a_queue_in_a_transaction_is_all_or_nothing_across_a_restart(place: Place) -> None:
    store = place.open()
    enqueue(store, 1)
    store.journal.begin_tx(0, 1)
    enqueue(store, 2)
    store.journal.dequeue(0, 1, 1, [1])
    store.journal.end_tx()
    store.journal.begin_tx(0, 1)
    enqueue(store, 3)
    store.journal.abort_tx()
    place.flush(store)
    place.close(store)
    assert indexes(place.open()) == [2]


# --- on disk only ---------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Place]:
    found = Place("disk", tmp_path / "store")
    yield found
    for store in list(found.open_stores):
        found.close(store)


def test_a_store_is_opened_by_one_process_only(disk: Place) -> None:
    disk.open()
    with pytest.raises(StoreInUse, match="in use by process"):
        disk.open()


def test_a_store_of_a_newer_version_is_refused(disk: Place) -> None:
    disk.close(disk.open())
    path = disk.directory / "store.json"
    fields = json.loads(path.read_text())
    del fields["crc"]
    path.write_text(json.dumps({**fields, "version": 99}))
    with pytest.raises(ForeignStore, match="version 99"):
        disk.open()
    path.write_text("{")
    with pytest.raises(CorruptStore, match=r"can't be read.*put back a copy"):
        disk.open()


def test_no_flipped_bit_makes_another_store_of_it(disk: Place) -> None:
    disk.close(disk.open())
    path = disk.directory / "store.json"
    sound = path.read_bytes()
    refused = 0
    for bit in range(len(sound) * 8):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert open_offline(disk.directory)[1].uuid == UUID
        except CorruptStore:
            refused += 1
    assert refused > 8 * len(UUID)


def test_an_identity_without_a_checksum_gets_one_at_the_next_start(disk: Place) -> None:
    """Release 0.1.1 writes none, and reads what we write."""
    disk.close(disk.open())
    path = disk.directory / "store.json"
    sound = path.read_bytes()
    fields = json.loads(sound)
    del fields["crc"]
    assert set(fields) == {"version", "uuid", "cluster_uuid"}
    path.write_text(json.dumps(fields))
    disk.close(disk.open())
    assert path.read_bytes() == sound


def test_an_identity_that_its_segments_contradict_gets_no_checksum(disk: Place) -> None:
    store = disk.open(SMALL)
    enqueue(store, 1)
    disk.close(store)
    path = disk.directory / "store.json"
    other = json.dumps({"version": 1, "uuid": "ff" * 16, "cluster_uuid": ""})
    path.write_text(other)
    with pytest.raises(ForeignStore, match="another store"):
        disk.open()
    assert path.read_text() == other


def test_a_damaged_identity_is_written_anew_from_a_segment(disk: Place) -> None:
    """As the runbook has it."""
    store = disk.open(SMALL)
    enqueue(store, 1)
    disk.close(store)
    path = disk.directory / "store.json"
    path.write_bytes(b"")
    with pytest.raises(CorruptStore, match="runbook"):
        disk.open()
    segment = next((disk.directory / "journal").glob("*.seg"))
    uuid = segment.read_bytes()[20:36].hex()
    path.write_text(f'{{"version": 1, "uuid": "{uuid}", "cluster_uuid": ""}}')
    assert indexes(disk.open()) == [1]
    assert "crc" in json.loads(path.read_text())


def test_a_store_belongs_to_one_cluster(disk: Place) -> None:
    store = disk.open()
    assert isinstance(store, JournalStore)
    store.adopt_cluster(b"c" * 16)
    disk.close(store)
    store = disk.open()
    assert isinstance(store, JournalStore)
    assert store.identity.cluster_uuid == b"c" * 16
    with pytest.raises(ForeignStore, match="belongs to cluster"):
        store.adopt_cluster(b"d" * 16)


@pytest.mark.parametrize("flush", [NEVER, every(5)])
def test_other_flush_policies_keep_what_a_living_system_has_written(
    disk: Place, flush: object
) -> None:
    options = StoreOptions(segment_bytes_max=4096, flush=flush)  # type: ignore[arg-type]
    store = disk.open(options)
    for index in range(1, 51):
        enqueue(store, index)
        disk.flush(store)
    disk.close(store)
    assert indexes(disk.open(options)) == list(range(1, 51))


def test_an_idle_interval_store_syncs_what_was_written(disk: Place) -> None:
    store = disk.open(StoreOptions(flush=every(1)))
    enqueue(store, 1)
    end = store.submit()
    disk.loop.run_until(lambda: store.journal.synced_position() >= end)
    assert store.statistics().syncs == 1


def test_a_reserved_segment_gives_back_its_space_when_it_is_closed(disk: Place) -> None:
    store = disk.open(StoreOptions(segment_bytes_max=1 << 20))
    entries = [enqueue(store, 1)]
    disk.flush(store)
    segment = disk.directory / "journal" / "0000000001.seg"
    assert segment.stat().st_size == 1 << 20
    disk.close(store, snapshot(store, entries))
    assert segment.stat().st_size < 1000


def test_a_store_is_inspected_without_being_changed(disk: Place) -> None:
    store = disk.open()
    for index in range(1, 51):
        enqueue(store, index)
    store.journal.dequeue(0, 1, 1, [1, 2, 3])
    disk.flush(store)
    disk.close(store)
    before = {p: p.read_bytes() for p in disk.directory.rglob("*") if p.is_file()}
    report = inspect(disk.directory)
    assert {p: p.read_bytes() for p in disk.directory.rglob("*") if p.is_file()} == before
    assert report.identity.uuid == UUID
    assert report.live == {1: (47, 47 * 96)}
    assert report.corruptions == []
    kinds = sum(
        (segment.kinds for segment in report.segments), start=type(report.segments[0].kinds)()
    )
    assert (kinds["enqueue"], kinds["dequeue"]) == (50, 1)
    files, _ = open_offline(disk.directory)
    (row,) = records(files, kinds={"dequeue"}, queue_id=1)
    assert row["ranges"] == [(1, 3)]
    assert list(records(files, kinds={"dequeue"}, queue_id=2)) == []


def test_inspection_shows_damage_and_what_is_left(disk: Place) -> None:
    store = disk.open()
    for index in range(1, 51):
        enqueue(store, index)
    disk.flush(store)
    disk.close(store)
    path = disk.directory / "journal" / "0000000001.seg"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    report = inspect(disk.directory)
    assert [corruption.segment for corruption in report.corruptions] == [1]
    assert report.live[1][0] == 49
    assert "no valid record" in report.segments[0].fault


class FullDisk(MemoryFiles):
    """Has no space for checkpoints until it is told."""

    full = True

    def store(self, name: str, pieces: Sequence[bytes]) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().store(name, pieces)

    def free_bytes(self) -> int:
        return 0 if self.full else super().free_bytes()


def test_a_checkpoint_that_finds_no_space_is_made_up_for_later() -> None:
    files, loop = FullDisk(), Loop()
    store = MemoryStore(files, UUID, loop, loop.hand_over, SMALL)
    entries = [enqueue(store, index) for index in range(1, 11)]
    store.checkpoint(snapshot(store, entries))
    loop.run_until(lambda: len(loop.alarms) == 1)
    assert "no space for a checkpoint" in loop.alarms[0]
    assert not store.checkpoint_due(), "it would find no space again"
    files.full = False
    assert store.checkpoint_due(), "publishers wait for it, so nothing else makes it due"
    store.checkpoint(snapshot(store, entries))
    loop.run_until(lambda: len(loop.alarms) == 2)
    assert loop.alarms[1] == ""
    assert not store.checkpoint_due()
    assert files.names() == ["checkpoint-0000000001"]
