"""The log of a stream: format, finding, retention, and what is left of it after a crash."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.broker.streams.stream_browser import peek
from rhizome.journal.dedup_state import DedupIdentity
from rhizome.journal.errors import CorruptRecord, CorruptStore
from rhizome.journal.files import DiskFiles, MemoryFiles
from rhizome.journal.journal import SegmentWrite
from rhizome.journal.streams.sparse_index import STRIDE_BYTES
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    KIND_INDEX,
    KIND_MESSAGES,
    KIND_SNAPSHOT,
    KIND_TRACKING,
    STREAM_HEADER_BYTES,
    ChunkHead,
    check_chunk,
)
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.journal.streams.stream_store import UNSYNCED, StreamStore
from rhizome.journal.writer import ALWAYS, NEVER, Flush, JournalWriter, WriterStatistics, every
from tests.unit.journal.crashing_files import CrashingFiles

GOLDEN = Path(__file__).parents[1] / "golden" / "stream-v1.hex"
STREAM = 7
TAIL = b"\x02ex\x03key"
ALL = 1 << 30


class Directories(MemoryFiles):
    """Streams whose files lose what was not synced."""

    def inside(self, name: str) -> MemoryFiles:
        return self.nested.setdefault(name, CrashingFiles())


class HeldWriter:
    """Writes at once what it is given, and syncs when it is told to."""

    def __init__(self, store: StreamStore) -> None:
        self.statistics = WriterStatistics()
        self.backlog_bytes = 0
        self.store = store
        self.token = 0
        self.dirty: dict[int, None] = {}

    def submit(self, chunks: list[SegmentWrite], token: int) -> None:
        files = self.store.segment_files()
        for chunk in chunks:
            segment = int(chunk.segment)
            if chunk.offset == 0:
                files.create(segment, 0)
            files.write(segment, int(chunk.offset), chunk.pieces)
            self.dirty[segment] = None
            if chunk.closes:
                self._sync_files()
        self.token = token

    def sync(self) -> None:
        self._sync_files()
        self.store.synced(self.token)

    def _sync_files(self) -> None:
        for segment in self.dirty:
            self.store.segment_files().sync(segment)
        self.dirty = {}

    def congested(self) -> bool:
        return False

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self.sync()


class Bench:
    """One stream on files that can lose power, and what was appended to it."""

    def __init__(
        self,
        root: Directories | None = None,
        segment_bytes_max: int = 4096,
        flush: Flush = ALWAYS,
    ) -> None:
        self.root = root or Directories()
        self.flush = flush
        self.store = StreamStore(self.root, lambda work: work(), flush.waits)
        self.writer = HeldWriter(self.store)
        self.store.writer = self.writer
        self.now_ms = 1_000
        self.log = self.store.open(STREAM)
        self.log.segment_bytes_max = segment_bytes_max
        self.log.begin_epoch(self.log.epoch + 1)
        self.appended: list[bytes] = []
        self.times: list[int] = []

    @property
    def files(self) -> CrashingFiles:
        files = self.root.inside(str(STREAM))
        assert isinstance(files, CrashingFiles)
        return files

    def append(
        self,
        content: bytes,
        origin: int = 0,
        number: int = 0,
        identity: DedupIdentity | None = None,
    ) -> int:
        offset = int(
            self.log.append(TAIL, content, 0, len(content), self.now_ms, origin, number, identity)
        )
        self.appended.append(content)
        self.times.append(self.now_ms)
        self.store.touch(self.log)
        return offset

    def submit(self) -> None:
        self.store.touch(self.log)
        self.store.submit()

    def sync(self) -> None:
        self.submit()
        self.writer.sync()
        self.log.synced(self.store.durable)

    def written(self) -> None:
        """What was appended is written and counts as durable without a sync."""
        self.submit()
        self.store.synced(self.writer.token)
        self.log.synced(self.store.durable)

    def lose_power(self, seed: int) -> None:
        self.root.nested[str(STREAM)] = self.files.power_cut(seed)

    def reopened(self, flush: Flush | None = None) -> Bench:
        again = Bench(self.root, int(self.log.segment_bytes_max), flush or self.flush)
        again.now_ms = self.now_ms
        count = int(again.log.next)
        again.appended, again.times = self.appended[:count], self.times[:count]
        return again

    def check(self) -> None:
        """Everything that may be shown is what was appended, wherever one begins to read."""
        log = self.log
        first, committed = int(log.first), int(log.committed)
        found = peek(log, first, ALL, ALL)
        assert [entry.content for entry in found] == self.appended[first:committed]
        assert [int(entry.offset) for entry in found] == list(range(first, committed))
        assert all(entry.tail == TAIL for entry in found)
        for offset in range(first, committed):
            (one,) = peek(log, offset, 1, ALL)
            assert one.content == self.appended[offset]
        for time_ms in {0, *self.times, *(time + 1 for time in self.times)}:
            later = [at for at in range(first, committed) if self.times[at] >= time_ms]
            assert log.offset_at(time_ms) == (later[0] if later else committed)


def chunks_of(data: bytes) -> list[ChunkHead]:
    found = []
    at = STREAM_HEADER_BYTES
    while at < len(data):
        head = ChunkHead(data, at)
        check_chunk(data, at, head.size)
        found.append(head)
        at += int(head.size)
    return found


# ---- the format


def golden_bench() -> Bench:
    bench = Bench(segment_bytes_max=900)
    bench.append(b"first")
    bench.append(b"second" * 10, origin=0xABC, number=5)
    bench.append(b"third", identity=DedupIdentity(b"producer", 17, b"id"))
    bench.sync()
    bench.log.note_offset(b"app", 1)
    bench.sync()
    bench.now_ms = 2_000
    bench.append(b"fourth" * 100)
    bench.sync()
    bench.append(b"fifth")
    bench.sync()
    return bench


def test_segments_have_the_bytes_of_the_golden_file() -> None:
    files = golden_bench().files
    found = {segment: bytes(files.contents[segment]) for segment in files.segments()}
    lines = [f"{segment} {data.hex()}" for segment, data in found.items()]
    assert lines == GOLDEN.read_text().splitlines()


def test_a_segment_begins_with_a_snapshot_and_ends_with_an_index() -> None:
    bench = golden_bench()
    kinds = [
        [int(head.kind) for head in chunks_of(bytes(bench.files.contents[segment]))]
        for segment in bench.files.segments()
    ]
    assert kinds == [
        [KIND_SNAPSHOT, KIND_MESSAGES, KIND_TRACKING, KIND_MESSAGES, KIND_INDEX],
        [KIND_SNAPSHOT, KIND_MESSAGES],
    ]
    heads = chunks_of(bytes(bench.files.contents[1]))
    assert [int(head.number) for head in heads] == [1, 2, 3, 4, 5]
    assert [int(head.committed) for head in heads] == [0, 0, 3, 3, 3]


def test_what_was_noted_outlives_the_segments_it_was_noted_in() -> None:
    bench = golden_bench()
    for number in range(50):
        bench.append(b"%d" % number * 100)
        bench.sync()
    assert bench.log.retire(bench.now_ms, 2_000, -1)
    again = bench.reopened()
    assert again.log.offsets == {b"app": 1}
    assert again.log.origins == {0xABC: 5}
    assert again.log.epoch == 2
    assert [epoch for epoch, _ in again.log.starts] == [1, 2]


def test_what_is_known_of_publishers_is_what_their_messages_say() -> None:
    bench = Bench(segment_bytes_max=4096)
    for number in range(1, 40):
        identity = DedupIdentity(b"p%d" % (number % 3), number, b"")
        bench.append(b"%d" % number * 100, origin=1, number=number, identity=identity)
        bench.submit()
    bench.writer.sync()
    bench.append(b"lost", origin=1, number=40, identity=DedupIdentity(b"p0", 99, b""))
    files = bench.files
    bench.submit()
    last = files.segments()[-1]
    heads = chunks_of(bytes(files.contents[last]))
    files.cut(last, len(files.contents[last]) - int(heads[-1].size))
    again = bench.reopened()
    assert again.log.origins == {1: 39}
    assert again.log.next == 39
    seen = again.log.seen
    assert seen.has_sequence(b"p0", 39)
    assert not seen.has_sequence(b"p0", 99)
    assert seen.packed() == again.reopened().log.seen.packed()


def test_a_snapshot_does_not_know_what_comes_after_it() -> None:
    bench = Bench()
    bench.append(b"lost", origin=1, number=1, identity=DedupIdentity(b"p", 1, b""))
    bench.submit()
    snapshot = ChunkHead(bytes(bench.files.contents[1]), STREAM_HEADER_BYTES)
    bench.files.cut(1, STREAM_HEADER_BYTES + int(snapshot.size))
    again = bench.reopened()
    assert again.log.next == 0
    assert again.log.origins == {}
    assert again.log.seen.is_empty()


# ---- any history


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    steps = st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2_000)),
        st.tuples(st.just("submit"), st.just(0)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("note"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.integers(0, 5_000)),
        st.tuples(st.just("retire"), st.integers(0, 20_000)),
        st.tuples(st.just("reopen"), st.just(0)),
    )
    return draw(st.lists(steps, min_size=1, max_size=40))


def play(bench: Bench, history: list[tuple[str, int]]) -> Bench:
    noted = {name: int(offset) for name, offset in bench.log.offsets.items()}
    for step, size in history:
        if step == "append":
            bench.append(b"%d:" % len(bench.appended) + b"." * size)
        elif step == "submit":
            bench.submit()
        elif step == "sync":
            bench.sync()
        elif step == "note":
            noted[b"n%d" % size] = int(bench.log.next)
            bench.log.note_offset(b"n%d" % size, bench.log.next)
        elif step == "wait":
            bench.now_ms += size
        elif step == "retire":
            dead = bench.log.retire(bench.now_ms, size, -1)
            bench.store.remove_segments(STREAM, dead)
        else:
            bench.sync()
            bench = bench.reopened()
            assert bench.log.offsets == noted
        bench.check()
    return bench


@given(histories(), st.sampled_from([4096, 10_000, 1 << 20]))
def test_a_log_holds_what_was_appended_and_shows_what_is_safe(
    history: list[tuple[str, int]], segment_bytes_max: int
) -> None:
    bench = play(Bench(segment_bytes_max=segment_bytes_max), history)
    bench.sync()
    assert bench.log.committed == len(bench.appended)
    bench.check()
    assert bench.files.segments() == [int(each.number) for each in bench.log.segments]


# ---- crashes


def with_unsynced_tail() -> tuple[Bench, int]:
    """A log of which the last two batches are written and not synced; where these begin."""
    bench = Bench(segment_bytes_max=1 << 20)
    for number in range(6):
        bench.append(b"safe %d" % number * 20)
        bench.sync()
    safe_end = int(bench.log.committed_position)
    for number in range(3):
        bench.append(b"unsafe %d" % number * 10)
        bench.submit()
    return bench, safe_end


def fresh(bench: Bench, data: bytes, reserved: int = 0) -> Bench:
    """The log from a disk that has these bytes of its one segment."""
    root = Directories()
    files = root.inside(str(STREAM))
    files.create(1, 0)
    files.write(1, 0, [data, bytes(reserved)])
    again = Bench(root, int(bench.log.segment_bytes_max))
    count = int(again.log.next)
    again.appended, again.times = bench.appended[:count], bench.times[:count]
    again.now_ms = bench.now_ms
    return again


@pytest.mark.parametrize("reserved", [0, 1000])
def test_cut_at_any_byte_a_log_ends_with_a_whole_chunk(reserved: int) -> None:
    bench, safe_end = with_unsynced_tail()
    data = bytes(bench.files.contents[1])
    seen = set()
    for end in range(safe_end, len(data) + 1):
        again = fresh(bench, data[:end], reserved)
        assert 6 <= again.log.next <= 9
        seen.add(int(again.log.next))
        again.check()
        again.append(b"goes on")
        again.sync()
        again.check()
    assert seen == {6, 7, 8, 9}


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_whatever_a_crash_leaves_of_the_tail_nothing_safe_is_lost(
    seed: int, chance: random.Random
) -> None:
    bench, safe_end = with_unsynced_tail()
    data = bytearray(bench.files.contents[1])
    for sector in range(safe_end // 64, len(data) // 64 + 1):
        start = max(sector * 64, safe_end)
        kind = chance.choice(["kept", "zeros", "garbage"])
        size = len(data[start : sector * 64 + 64])
        if kind == "zeros":
            data[start : start + size] = bytes(size)
        elif kind == "garbage":
            data[start : start + size] = chance.randbytes(size)
    again = fresh(bench, bytes(data))
    assert again.log.next >= 6
    again.check()
    again.append(b"goes on")
    again.sync()
    again.reopened().check()


@given(histories(), st.integers(0, 1 << 30))
def test_a_power_cut_at_any_time_loses_nothing_that_was_safe(
    history: list[tuple[str, int]], seed: int
) -> None:
    bench = play(Bench(), history)
    committed = int(bench.log.committed)
    bench.submit()
    bench.root.nested[str(STREAM)] = bench.files.power_cut(seed)
    again = bench.reopened()
    assert committed <= again.log.next <= bench.log.next
    again.check()
    play(again, [("append", 10), ("sync", 0), ("append", 3000), ("sync", 0), ("reopen", 0)])


# ---- power cuts with a flush policy that doesn't wait


@given(
    st.lists(st.tuples(st.integers(1, 1500), st.booleans()), max_size=40), st.integers(0, 1 << 30)
)
def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(
    appended: list[tuple[int, bool]], seed: int
) -> None:
    """What counts as durable was only written, and chunks behind it say that it was safe."""
    bench = Bench(segment_bytes_max=8192, flush=NEVER)
    synced = 0
    for size, syncs in appended:
        bench.append(b"%d." % size * (size // 5 + 1))
        bench.written()
        if syncs:
            bench.sync()
            synced = int(bench.log.next)
    bench.lose_power(seed)
    again = bench.reopened()
    assert synced <= again.log.next <= bench.log.next
    again.check()
    play(again, [("append", 10), ("sync", 0), ("append", 3000), ("sync", 0), ("reopen", 0)])


def torn_without_sync(flush: Flush = NEVER) -> Bench:
    """A log whose second of three batches never reached the disk, unlike the third."""
    bench = Bench(segment_bytes_max=1 << 20, flush=flush)
    bench.append(b"kept")
    bench.sync()
    for content in (b"lost" * 1000, b"said that the other was safe" * 40):
        bench.append(content)
        start = int(bench.log.active.size)
        bench.written()
    bench.files.contents[1][start - start % 512 - 512 : start - start % 512] = bytes(512)
    return bench


def test_a_stream_remembers_that_it_was_written_without_waiting_for_syncs() -> None:
    bench = torn_without_sync()
    again = bench.reopened(ALWAYS)
    assert again.log.next == 1
    assert again.log.torn_bytes > 1000
    assert again.store.torn_bytes == again.log.torn_bytes
    assert UNSYNCED not in again.files.names(), "all that recovery has read it has synced"
    again.check()


def test_a_store_without_that_mark_takes_it_from_the_flush_policy() -> None:
    """It was written by a program that left no mark."""
    bench = torn_without_sync()
    bench.files.discard(UNSYNCED)
    with pytest.raises(CorruptStore):
        bench.reopened(ALWAYS)
    assert bench.reopened(NEVER).log.next == 1


def test_a_flipped_bit_is_damage_with_every_flush_policy() -> None:
    """No power cut flips one: what was synced must not go as a torn tail."""
    bench = Bench(segment_bytes_max=1 << 20, flush=NEVER)
    for content in (b"first" * 300, b"second" * 300, b"third"):
        bench.append(content)
        bench.written()
    bench.files.contents[1][1000] ^= 1
    with pytest.raises(CorruptStore, match="wrong checksum"):
        bench.reopened()


# ---- damage


@given(st.data())
def test_a_damaged_bit_is_never_taken_for_a_message(data: st.DataObject) -> None:
    bench = Bench(segment_bytes_max=4096)
    for number in range(30):
        bench.append(b"%d" % number * 150)
        bench.sync()
    files = bench.files
    segment = data.draw(st.sampled_from(files.segments()))
    content = files.contents[segment]
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        again = bench.reopened()
        found = peek(again.log, 0, ALL, ALL)
    except (CorruptStore, CorruptRecord):
        return
    whole = bench.appended[int(again.log.first) : int(again.log.next)]
    assert [entry.content for entry in found] == whole
    # All but perhaps the last chunk, of which nobody has said that it was safe.
    assert again.log.next >= 29


def test_damage_in_the_middle_of_the_last_segment_is_no_torn_tail() -> None:
    bench, _ = with_unsynced_tail()
    data = bytearray(bench.files.contents[1])
    data[STREAM_HEADER_BYTES + CHUNK_HEADER_BYTES + 200] ^= 1
    with pytest.raises(CorruptStore, match="segment 1 of stream 7 is damaged"):
        fresh(bench, bytes(data))


def test_accepted_damage_ends_the_log_before_it() -> None:
    bench, safe_end = with_unsynced_tail()
    data = bytearray(bench.files.contents[1])
    data[safe_end - 10] ^= 1
    root = Directories()
    root.inside(str(STREAM)).create(1, 0)
    root.inside(str(STREAM)).write(1, 0, [bytes(data)])
    store = StreamStore(root, lambda work: work())
    with pytest.raises(CorruptStore):
        store.open(STREAM)
    assert store.open(STREAM, accept_corruption=True).next == 5


def test_a_segment_of_another_stream_is_refused() -> None:
    bench = Bench()
    for content in (b"x", b"y"):
        bench.append(content)
        bench.sync()
    root = Directories()
    root.inside("8").create(1, 0)
    root.inside("8").write(1, 0, [bytes(bench.files.contents[1])])
    with pytest.raises(CorruptStore, match="which does not belong here"):
        StreamStore(root, lambda work: work()).open(8)


# ---- removing


def test_what_retention_dropped_is_gone_even_if_it_was_not_all_removed() -> None:
    bench = Bench(segment_bytes_max=4096)
    for number in range(40):
        bench.append(b"%d" % number * 300)
        bench.sync()
    segments = bench.files.segments()
    assert len(segments) > 5
    bench.files.remove(segments[1])
    again = bench.reopened()
    assert again.files.segments() == segments[2:]
    assert again.log.first > 0
    again.check()


def test_a_removed_stream_waits_for_what_is_being_written() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.submit()
    bench.store.remove(bench.log)
    assert bench.root.directories() == [str(STREAM)]
    bench.writer.sync()
    assert bench.root.directories() == []


def test_streams_that_nobody_knows_are_removed() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.sync()
    bench.store.open(9)
    assert bench.store.remove_others([STREAM]) == [9]
    assert bench.root.directories() == [str(STREAM)]


def test_a_stream_of_many_small_chunks_is_found_through_its_index() -> None:
    bench = Bench(segment_bytes_max=1 << 20)
    for number in range(3000):
        bench.now_ms += 10
        bench.append(b"%06d" % number * 10)
        bench.submit()
    bench.sync()
    log = bench.log
    assert len(log.segments) == 1
    place = log.find(2_900)
    assert bench.log.active.size - place.position < 2 * STRIDE_BYTES
    assert log.offset_at(bench.times[1_234]) == 1_234
    (entry,) = peek(log, 2_900, 1, ALL)
    assert entry.content == b"002900" * 10


def written(store: StreamStore, log: StreamLog, content: bytes) -> None:
    log.begin_epoch(log.epoch + 1)
    log.append(TAIL, content, 0, len(content), 1_000, 0, 0, None)
    store.touch(log)
    store.submit()


@pytest.mark.parametrize("flush", [ALWAYS, every(3_600_000)], ids=["always", "seldom"])
@pytest.mark.parametrize("safe", [False, True], ids=["unwritten", "safe"])
def test_a_stream_that_was_removed_can_be_opened_again_at_once(
    tmp_path: Path, safe: bool, flush: Flush
) -> None:
    """As a copy is, which its broker loses and gets again. Whatever is removed aside, and however
    late, is of the old one."""
    aside: list[Callable[[], None]] = []
    failures: list[BaseException] = []
    durable = threading.Semaphore(0)
    store = StreamStore(DiskFiles(tmp_path), aside.append)
    writer = JournalWriter(
        store.segment_files(),
        65_536,
        flush,
        lambda token, synced: durable.release(),
        failures.append,
        failures.append,
    )
    store.writer = writer
    log = store.open(STREAM)
    written(store, log, b"the old one")
    if safe:
        durable.acquire()
        store.synced(store.submitted)
    store.remove(log)
    again = store.open(STREAM)
    assert int(again.next) == 0
    written(store, again, b"the new one")
    writer.settle()
    store.synced(store.submitted)
    for work in aside:
        work()
    store.close()
    assert not failures
    (segment,) = (tmp_path / str(STREAM)).glob("*.seg")
    assert b"the new one" in segment.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == [str(STREAM)]
