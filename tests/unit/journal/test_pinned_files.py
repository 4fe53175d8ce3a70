"""Pins keep what is committed readable, whatever the store does meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rhizome.journal.pinned_files import CHECKPOINT, PINS, RETIRED, SEGMENT, STREAM, Committed, Pin
from rhizome.journal.record_walk import walk
from rhizome.journal.records import SEGMENT_HEADER_BYTES
from rhizome.journal.store import JournalStore, StoreOptions

OPTIONS = StoreOptions(segment_bytes_max=4096)


class Events:
    def durable(self, token: int) -> None: ...
    def alarm(self, text: str) -> None: ...

    def failed(self, error: BaseException) -> None:
        raise error


class Opened:
    """A store whose callbacks run when `settle` lets them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.due: list[object] = []
        self.store = JournalStore(directory, bytes(16), Events(), self.due.append, OPTIONS)
        self.index = 0
        self.positions: list[int] = []

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.index += 1
            position = self.store.journal.enqueue(
                0, 1, self.index, [1], b"\0\0", 1, -1, 0, 0, b"x" * 300
            )
            self.positions.append(int(position))
        self.settle()

    def settle(self) -> None:
        """Until all that was appended is durable."""
        token = self.store.submit()
        while self.store._durable_token < token or self.due:
            if self.due:
                work = self.due.pop(0)
                assert callable(work)
                work()

    def settle_all(self) -> None:
        """Acknowledge everything and write a checkpoint, which lets the segments go."""
        for position in self.positions:
            self.store.journal.release(position)
        self.positions = []
        builder = self.store.begin_checkpoint()
        before = {path.name for path in self.journal.glob("checkpoint-*")}
        self.store.checkpoint(builder)
        while {path.name for path in self.journal.glob("checkpoint-*")} == before:
            self.settle()
        self.store._finish_aside()
        self.settle()
        self.store._finish_aside()

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    def pin(self, committed: Committed | None = None) -> Pin:
        draft = self.store.pins.draft(f"pin{len(self.store.pins.lent)}", "somebody", 0)
        draft.link_checkpoints()
        assert draft.link_parts(committed or self.store.committed())
        self.store.pins.add(draft.pin)
        return draft.pin


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "data")


def contents(pin: Pin) -> dict[str, bytes]:
    return {name: pin.read(part, 0, 1 << 30) for name, part in pin.parts.items()}


def test_sealed_parts_are_whole_and_the_active_one_ends_with_what_is_durable(
    opened: Opened,
) -> None:
    opened.publish(40)
    pin = opened.pin()
    segments = [part for part in pin.parts.values() if part.kind == SEGMENT]
    assert len(segments) > 2
    assert [part.sealed for part in segments] == [True] * (len(segments) - 1) + [False]
    assert (segments[-1].number, segments[-1].size) == (
        int(opened.store.journal.end_position()) >> 32,
        int(opened.store.journal.end_position()) & 0xFFFFFFFF,
    )
    for part in segments:
        data = pin.read(part, 0, part.size)
        assert walk(data, SEGMENT_HEADER_BYTES)[1] == part.size == part.committed
        assert pin.read(part, part.size - 10, 100) == data[-10:], "nothing beyond the committed"


def test_what_is_appended_and_not_durable_is_no_part(opened: Opened) -> None:
    opened.publish(1)
    committed = opened.store.committed()
    opened.publish(40)
    pin = opened.pin(committed)
    (part,) = pin.parts.values()
    assert part.size == committed.position & 0xFFFFFFFF
    assert part.sealed is False


def test_pin_outlives_checkpoint_and_removal_of_segments(opened: Opened) -> None:
    opened.publish(40)
    pin = opened.pin()
    before = contents(pin)
    there = set(os.listdir(opened.journal))
    opened.settle_all()
    gone = there - set(os.listdir(opened.journal))
    assert len(gone) > 2, "the store removes its segments as ever"
    assert contents(pin) == before
    held = opened.store.pins.held_bytes(pin)
    assert held == sum(part.size for part in pin.parts.values() if part.sealed)
    newer = opened.pin()
    assert [part.kind for part in newer.parts.values()].count(CHECKPOINT) == 1


def test_checkpoint_that_comes_meanwhile_makes_the_pin_incomplete(opened: Opened) -> None:
    opened.publish(10)
    draft = opened.store.pins.draft("a", "somebody", 0)
    draft.link_checkpoints()
    opened.settle_all()
    assert not draft.link_parts(opened.store.committed())


def test_file_that_is_shorter_than_what_was_committed_is_told(opened: Opened) -> None:
    opened.publish(3)
    (path,) = opened.journal.glob("*.seg")
    os.truncate(path, 500)
    (part,) = opened.pin().parts.values()
    assert part.size == 500 < part.committed


def test_retired_segments_and_streams_are_parts(opened: Opened) -> None:
    history = opened.directory / "history"
    history.mkdir()
    (history / "0000000007.seg").write_bytes(b"old")
    log = opened.store.streams.open(12)
    log.append(b"\0\0", b"hello stream", 0, 4096, 100)
    opened.store.streams.touch(log)
    opened.publish(1)
    while not log.synced(opened.store.streams.durable):
        opened.settle()
    pin = opened.pin()
    retired = pin.parts["retired-7"]
    assert (retired.kind, retired.sealed, pin.read(retired, 0, 9)) == (RETIRED, True, b"old")
    (stream,) = [part for part in pin.parts.values() if part.kind == STREAM]
    assert (stream.stream, stream.size, stream.sealed) == (12, log.durable_position, False)
    assert b"hello stream" in pin.read(stream, 0, stream.size)


def test_new_start_removes_the_pins_that_a_crash_has_left(opened: Opened, tmp_path: Path) -> None:
    opened.publish(1)
    opened.pin()
    left = opened.directory / PINS
    assert list(left.glob("*/*.seg"))
    opened.store._lock.release()  # the process is gone
    again = Opened(opened.directory)
    assert not left.exists()
    assert again.store.pins.lent == {}


def test_closing_removes_the_pins(opened: Opened) -> None:
    opened.publish(1)
    opened.pin()
    opened.store.close()
    assert not (opened.directory / PINS).exists()


def test_removed_pin_reads_nothing(opened: Opened) -> None:
    opened.publish(1)
    pin = opened.pin()
    (part,) = pin.parts.values()
    opened.store.pins.end(pin)
    opened.store.pins.remove(pin)
    assert pin.read(part, 0, 100) == b""
