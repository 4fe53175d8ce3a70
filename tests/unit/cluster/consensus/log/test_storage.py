"""Every implementation of ClusterStore gives back what it reported as durable, or says it can't."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.cluster.consensus.log.cluster_store import (
    Batch,
    ClusterStore,
    Entry,
    Image,
    MemoryClusterStore,
    Position,
    Snapshot,
    advance,
)
from rhizome.server.clustered_broker.sqlite_cluster_store import SqliteClusterStore

UUID = "ab" * 16


class Reports:
    """What a store has reported, for tests that wait for it."""

    def __init__(self) -> None:
        self.synced = threading.Condition()
        self.token = 0
        self.failures: list[Exception] = []

    def report(self, token: int) -> None:
        with self.synced:
            self.token = max(self.token, token)
            self.synced.notify_all()

    def failed(self, error: Exception) -> None:
        with self.synced:
            self.failures.append(error)
            self.synced.notify_all()

    def wait(self, token: int) -> None:
        with self.synced:
            assert self.synced.wait_for(lambda: self.token >= token or self.failures, timeout=20)
            assert not self.failures


class Kept:
    """A store that can be closed and opened again."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.image = Image(uuid=UUID)
        self.reports = Reports()
        self.tokens = 0
        self.store = self._open()

    def _open(self) -> ClusterStore:
        if self.directory is None:
            return MemoryClusterStore(self.image, self.reports.report)
        return SqliteClusterStore(
            self.directory, self.reports.report, self.reports.failed, lambda: UUID
        )

    def write(self, *batches: Batch) -> None:
        for batch in batches:
            self.tokens += 1
            self.store.submit(batch, self.tokens)
        self.reports.wait(self.tokens)

    def reopened(self) -> Image:
        self.store.close()
        if isinstance(self.store, MemoryClusterStore):
            self.image = self.store.image
        self.store = self._open()
        return self.store.load()


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path / "cluster" if request.param == "sqlite" else None)
    assert kept.store.load() == Image(uuid=UUID)
    yield kept
    kept.store.close()


def entry(index: int, term: int = 1, payload: bytes = b"x") -> Entry:
    return Entry(index, term, 1, payload)


def test_an_empty_store_keeps_the_uuid_that_it_was_given(kept: Kept) -> None:
    assert kept.reopened() == Image(uuid=UUID)
    assert kept.reopened().is_empty()


def test_term_vote_and_entries_survive(kept: Kept) -> None:
    kept.write(Batch(term=3, vote="b2"), Batch(entries=(entry(1, 3), entry(2, 3)), commit=1))
    image = kept.reopened()
    assert (image.term, image.vote, image.commit) == (3, "b2", 1)
    assert image.entries == (entry(1, 3), entry(2, 3))


def test_entries_that_a_root_replaced_are_gone(kept: Kept) -> None:
    kept.write(Batch(entries=(entry(1), entry(2), entry(3))))
    kept.write(Batch(log_from=2, entries=(entry(2, 2, b"other"),)))
    assert kept.reopened().entries == (entry(1), entry(2, 2, b"other"))


def test_a_snapshot_replaces_the_entries_before_it(kept: Kept) -> None:
    kept.write(Batch(entries=tuple(entry(i) for i in range(1, 9)), commit=8))
    kept.write(Batch(snapshot=Snapshot(8, 1, b"state"), log_start=Position(6, 1)))
    image = kept.reopened()
    assert image.snapshot == Snapshot(8, 1, b"state")
    assert [e.index for e in image.entries] == [7, 8]


def test_an_installed_snapshot_replaces_the_whole_log_but_not_the_vote(kept: Kept) -> None:
    kept.write(Batch(term=4, vote="b1", entries=tuple(entry(i) for i in range(1, 4))))
    installed = Batch(log_from=1, snapshot=Snapshot(9, 4, b""), log_start=Position(9, 4), commit=9)
    kept.write(installed, Batch(entries=(entry(10, 4),)))
    image = kept.reopened()
    assert (image.term, image.vote, image.commit) == (4, "b1", 9)
    assert image.entries == (entry(10, 4),)


def batches() -> st.SearchStrategy[list[Callable[[Image], Batch]]]:
    """Functions from the image so far to a batch that a core could have made there."""

    def append(count: int, size: int) -> Callable[[Image], Batch]:
        def make(image: Image) -> Batch:
            last = image.log_start.index + len(image.entries)
            new = (entry(last + 1 + i, 1, bytes(size)) for i in range(count))
            return Batch(entries=tuple(new), commit=last)

        return make

    def cut(back: int) -> Callable[[Image], Batch]:
        def make(image: Image) -> Batch:
            last = image.log_start.index + len(image.entries)
            first = max(image.log_start.index, last - back) + 1
            return Batch(log_from=first, entries=(entry(first, 1, b"cut"),))

        return make

    def compact(back: int) -> Callable[[Image], Batch]:
        def make(image: Image) -> Batch:
            last = image.log_start.index + len(image.entries)
            start = max(image.log_start.index, last - back)
            return Batch(snapshot=Snapshot(last, 1, b"s"), log_start=Position(start, 1))

        return make

    def vote(term: int) -> Callable[[Image], Batch]:
        return lambda image: Batch(term=image.term + term, vote=f"b{term}", cluster_uuid="c")

    return st.lists(
        st.one_of(
            st.builds(append, st.integers(1, 5), st.integers(0, 300)),
            st.builds(cut, st.integers(0, 4)),
            st.builds(compact, st.integers(0, 4)),
            st.builds(vote, st.integers(1, 3)),
        ),
        max_size=12,
    )


@settings(max_examples=25, deadline=None)
@given(batches(), st.integers(0, 12))
def test_sqlite_agrees_with_the_model(
    tmp_path_factory: pytest.TempPathFactory,
    makers: list[Callable[[Image], Batch]],
    reopen_at: int,
) -> None:
    kept = Kept(tmp_path_factory.mktemp("store"))
    expected = kept.store.load()
    for number, make in enumerate(makers):
        batch = make(expected)
        kept.write(batch)
        expected = advance(expected, batch)
        if number == reopen_at:
            assert kept.reopened() == expected
    assert kept.reopened() == expected
    kept.store.close()


# Damage.


def written(directory: Path) -> Kept:
    """A store as a killed broker leaves it: nothing is closed."""
    kept = Kept(directory)
    kept.store.load()
    for index in range(1, 21):
        kept.write(Batch(term=2, vote="b1", entries=(entry(index, 2, b"payload" * 50),)))
    return kept


def after_a_kill(kept: Kept, spoil: Callable[[Path], None]) -> Image:
    """What is found in a copy of the files, spoiled on the way."""
    assert kept.directory is not None
    copy = kept.directory.with_name("copy")
    shutil.copytree(kept.directory, copy)
    kept.store.close()
    spoil(copy)
    store = SqliteClusterStore(copy, kept.reports.report, kept.reports.failed)
    image = store.load()
    store.close()
    return image


def test_a_killed_broker_finds_everything_that_was_reported(tmp_path: Path) -> None:
    image = after_a_kill(written(tmp_path / "cluster"), lambda directory: None)
    assert not image.damage
    assert len(image.entries) == 20


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8, 0.97])
def test_a_flipped_bit_in_the_write_ahead_log_is_damage(tmp_path: Path, part: float) -> None:
    def spoil(directory: Path) -> None:
        log = directory / "state.db-wal"
        flip(log, int(log.stat().st_size * part))

    image = after_a_kill(written(tmp_path / "cluster"), spoil)
    assert "had reported" in image.damage or "checksum" in image.damage or "log" in image.damage


def test_a_lost_write_ahead_log_is_damage(tmp_path: Path) -> None:
    image = after_a_kill(
        written(tmp_path / "cluster"), lambda directory: (directory / "state.db-wal").unlink()
    )
    assert "had reported" in image.damage


def test_a_lost_database_is_damage(tmp_path: Path) -> None:
    def spoil(directory: Path) -> None:
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (directory / name).unlink()

    assert "had reported 20" in after_a_kill(written(tmp_path / "cluster"), spoil).damage


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE entries SET payload = x'00' WHERE idx = 7", "checksum of entry 7"),
        ("DELETE FROM entries WHERE idx = 7", "entry 7 of its log is missing"),
        ("DELETE FROM entries WHERE idx = 20", "should end at 20"),
        ("UPDATE facts SET value = x'09' WHERE name = 'term'", "checksum of term"),
        ("DELETE FROM facts WHERE name = 'uuid'", "lost its UUID"),
    ],
)
def test_a_changed_row_is_damage(tmp_path: Path, statement: str, found: str) -> None:
    def spoil(directory: Path) -> None:
        connection = sqlite3.connect(directory / "state.db")
        connection.execute(statement)
        connection.commit()
        connection.close()

    assert found in after_a_kill(written(tmp_path / "cluster"), spoil).damage


def test_a_torn_slot_of_the_mark_is_no_damage(tmp_path: Path) -> None:
    kept = written(tmp_path / "cluster")
    newest = 0 if kept.tokens % 2 else 1
    image = after_a_kill(kept, lambda directory: flip(directory / "mark", newest * 512 + 12))
    assert not image.damage


def test_garbage_instead_of_a_database_is_damage(tmp_path: Path) -> None:
    def spoil(directory: Path) -> None:
        (directory / "state.db-wal").unlink()
        (directory / "state.db").write_bytes(b"garbage" * 1000)

    assert after_a_kill(written(tmp_path / "cluster"), spoil).damage


def test_a_store_that_fails_says_so_and_reports_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "cluster")
    kept.store.load()
    kept.write(Batch(term=1, vote="b1", entries=(entry(1),)))
    kept.store.submit(Batch(entries=(entry(1),)), 99)  # the same index twice
    with kept.reports.synced:
        assert kept.reports.synced.wait_for(lambda: bool(kept.reports.failures), timeout=20)
    assert kept.reports.token == 1
    kept.store.close()
