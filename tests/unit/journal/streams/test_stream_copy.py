"""Copies of a stream's log: the same bytes, whatever way they came."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.journal.dedup_state import DedupIdentity
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streams.chunk_cursor import ChunkCursor
from rhizome.journal.streams.stream_format import CHUNK_HEADER_BYTES, STREAM_HEADER_BYTES, ChunkHead
from rhizome.journal.streams.tracking_state import EPOCHS_MAX
from tests.unit.journal.streams.test_stream_log import STREAM, Bench, Directories

ALL = 1 << 40


def files_of(bench: Bench) -> dict[int, bytes]:
    return {number: bytes(bench.files.contents[number]) for number in bench.files.segments()}


def notes_of(bench: Bench) -> tuple[object, ...]:
    log = bench.log
    return (
        int(log.epoch),
        log.offsets,
        log.origins,
        log.starts,
        log.epochs,
        log.seen.packed(),
        int(log.number),
        int(log.next),
        int(log.time_ms),
    )


class Follower(Bench):
    """A log of the same stream elsewhere, which makes no chunks of its own."""

    def __init__(self, root: Directories | None = None) -> None:
        super().__init__(root)
        self.log = self.store.open(STREAM)

    def take(self, chunks: list[bytes]) -> None:
        data = b"".join(chunks)
        self.log.follow(data, 0, len(data))
        self.sync()

    def restarted(self) -> Follower:
        return Follower(self.root)

    def catch_up(self, home: Bench, bytes_max: int = ALL) -> int:
        """From what the home has on disk; answers how many bytes that took."""
        cursor = ChunkCursor(home.log, self.log.number, self.log.next)
        total = 0
        while self.log.number < home.log.number:
            parts: list[bytes] = []
            last = cursor.collect(bytes_max, ALL, parts)
            total += sum(map(len, parts))
            self.take(parts)
            assert last == self.log.number - 1
        return total


def some_stream(count: int = 40, segment_bytes_max: int = 900) -> Bench:
    """Several segments, with everything that a chunk can say."""
    home = Bench(segment_bytes_max=segment_bytes_max)
    home.log.shipping = True
    for number in range(count):
        home.now_ms += number % 3
        identity = DedupIdentity(b"producer", number + 1, b"") if number % 2 else None
        home.append(b"%d " % number * 20, 0xABC + number % 3, number + 1, identity)
        if number % 5 == 0:
            home.log.note_offset(b"app %d" % (number % 4), number)
        if number % 7 == 0:
            home.log.begin_epoch(home.log.epoch + 1)
            home.log.mark_epoch()
        home.sync()
    return home


def test_a_copy_that_follows_has_the_same_files_and_notes() -> None:
    home = some_stream()
    copy = Follower()
    copy.take(home.log.take_shipped())
    assert len(home.files.segments()) > 3
    assert files_of(copy) == files_of(home)
    assert notes_of(copy) == notes_of(home)
    copy.appended, copy.times = home.appended, home.times
    copy.check()


@pytest.mark.parametrize("bytes_max", [1, 700, ALL])
@pytest.mark.parametrize("missed", [1, 2, 17, 39])
def test_a_copy_gets_only_what_it_lacks(missed: int, bytes_max: int) -> None:
    home = some_stream(count=40 - missed)
    copy = Follower()
    copy.catch_up(home)
    before = sum(map(len, files_of(home).values()))
    for number in range(missed):
        home.append(b"missed %d" % number)
        home.sync()
    got = copy.catch_up(home, bytes_max)
    assert files_of(copy) == files_of(home)
    # What the home has more of, but for the headers of its segments.
    assert got <= sum(map(len, files_of(home).values())) - before


def test_chunks_that_are_not_on_disk_are_not_read() -> None:
    home = some_stream(count=3)
    last = int(home.log.number) - 1
    home.append(b"not synced")
    home.submit()
    cursor = ChunkCursor(home.log, last, home.log.next - 1)
    parts: list[bytes] = []
    assert cursor.collect(ALL, ALL, parts) == last
    assert cursor.collect(ALL, ALL, parts) == last
    home.sync()
    assert cursor.collect(ALL, ALL, parts) == last + 1


def test_a_copy_begins_where_retention_left_off() -> None:
    home = some_stream()
    home.log.retire(home.now_ms, 2_000, -1)
    first = home.log.segments[0]
    assert first.number > 2
    copy = Follower()
    number = first_chunk(home)
    copy.log.begin_at(first.number, number, first.first)
    copy.catch_up(home)
    kept = {number: data for number, data in files_of(home).items() if number >= first.number}
    assert files_of(copy) == kept
    assert notes_of(copy)[1:3] == notes_of(home)[1:3]
    assert notes_of(copy.restarted()) == notes_of(copy)


def first_chunk(home: Bench) -> int:
    data = home.files.read(
        int(home.log.segments[0].number), STREAM_HEADER_BYTES, CHUNK_HEADER_BYTES
    )
    return int(ChunkHead(data, 0).number)


def test_retention_of_the_home_is_that_of_its_copies() -> None:
    home = some_stream()
    copy = Follower()
    copy.take(home.log.take_shipped())
    home.log.retire(home.now_ms, 2_000, -1)
    copy.take(home.log.take_shipped())
    assert copy.log.kept_from == home.log.segments[0].number
    dead = copy.log.keep_from(copy.log.kept_from)
    assert dead[0] == 1
    assert copy.log.first == home.log.first
    assert copy.log.size == home.log.size


@settings(max_examples=60)
@given(st.integers(min_value=0, max_value=120))
def test_a_log_cut_at_a_chunk_is_the_log_as_it_was_then(number: int) -> None:
    home = some_stream()
    chunks = home.log.take_shipped()
    copy = Follower()
    copy.take(chunks)
    cut = copy.store.cut(copy.log, number)
    as_it_was = Follower()
    as_it_was.take(chunks[:number])
    copy.log = cut
    if number > 0:
        assert notes_of(copy) == notes_of(as_it_was)
        assert files_of(copy) == files_of(as_it_was)
    else:
        assert files_of(copy) == {}
    copy.take(chunks[number:])
    assert files_of(copy) == files_of(home)
    assert notes_of(copy) == notes_of(home)


def test_what_does_not_follow_is_refused() -> None:
    home = some_stream()
    chunks = home.log.take_shipped()
    copy = Follower()
    with pytest.raises(CorruptRecord):
        copy.take(chunks[1:])
    copy.take(chunks[:3])
    with pytest.raises(CorruptRecord):
        copy.take(chunks[2:4])
    damaged = bytearray(chunks[3])
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecord):
        copy.take([bytes(damaged)])
    copy.take(chunks[3:])
    assert files_of(copy) == files_of(home)


def test_a_restarted_copy_goes_on() -> None:
    home = some_stream()
    chunks = home.log.take_shipped()
    for at in range(1, len(chunks)):
        copy = Follower()
        copy.take(chunks[:at])
        copy = copy.restarted()
        assert copy.log.number == at + 1
        assert copy.log.durable == at
        copy.take(chunks[at:])
        assert notes_of(copy) == notes_of(home)


def test_only_what_the_copies_have_is_shown() -> None:
    home = some_stream(count=3)
    home.log.alone = False
    shown = int(home.log.committed)
    home.append(b"a")
    home.sync()
    first = int(home.log.durable)
    home.append(b"b")
    home.sync()
    assert home.log.committed == shown
    assert home.log.commit(first)
    assert home.log.committed == shown + 1
    home.append(b"c")
    home.submit()
    assert home.log.commit(int(home.log.number))
    # The third isn't on this disk.
    assert home.log.committed == shown + 2


def test_epochs_that_are_long_over_are_forgotten() -> None:
    home = Bench()
    for _ in range(2 * EPOCHS_MAX):
        home.log.begin_epoch(home.log.epoch + 1)
        home.log.mark_epoch()
    home.sync()
    assert len(home.log.epochs) == EPOCHS_MAX
    assert home.log.epochs[-1] == (int(home.log.epoch), int(home.log.number) - 1)
