"""Reading a store that a broker uses: what is being written is no damage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rhizome.journal.files import is_in_use
from rhizome.journal.recovery import Corruption
from rhizome.journal.store_identity import StoreIdentity
from rhizome.journal.store_inspection import (
    READS_MAX,
    SegmentReport,
    StoreReport,
    steady_report,
)

RUNNING = True
STOPPED = False


def report(
    *corrupt: int, fault: str = "", checkpoint_fault: str = "", segment: int = 1
) -> StoreReport:
    checkpoint: dict[str, object] = {"name": "checkpoint-1"}
    if checkpoint_fault:
        checkpoint["fault"] = checkpoint_fault
    return StoreReport(
        identity=StoreIdentity(b"u" * 16, b""),
        checkpoints=[checkpoint],
        segments=[SegmentReport(segment, bytes_used=100, fault=fault), SegmentReport(segment + 1)],
        live={},
        corruptions=[Corruption(segment, offset, "odd") for offset in corrupt],
        torn_bytes=0,
        clean=False,
    )


def read_in_turn(*reports: StoreReport | Exception) -> tuple[Callable[[], StoreReport], list[int]]:
    left, reads = list(reports), [0]

    def read() -> StoreReport:
        reads[0] += 1
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return read, reads


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (report(64), report(96)),
        (report(fault="no valid record at 64"), report(fault="no valid record at 96")),
        (report(checkpoint_fault="short"), report()),
        (report(64, segment=1), report(64, segment=2)),
    ],
)
def test_damage_that_moves_is_what_a_running_broker_writes(
    first: StoreReport, second: StoreReport
) -> None:
    read, reads = read_in_turn(first, second)
    assert not steady_report(read, lambda: RUNNING).is_damaged()
    assert reads == [2]


def test_damage_that_stays_is_told_of_a_running_broker_too() -> None:
    read, reads = read_in_turn(report(64, 96), report(64, 128), report(64))
    found = steady_report(read, lambda: RUNNING)
    assert [each.offset for each in found.corruptions] == [64]
    assert reads == [READS_MAX]


def test_store_that_nobody_uses_is_read_once() -> None:
    read, reads = read_in_turn(report(64), report())
    assert steady_report(read, lambda: STOPPED).is_damaged()
    assert reads == [1]


def test_segment_that_is_removed_meanwhile_is_no_error() -> None:
    read, _ = read_in_turn(FileNotFoundError("segment-1"), report())
    assert not steady_report(read, lambda: RUNNING).is_damaged()
    read, _ = read_in_turn(FileNotFoundError("segment-1"))
    with pytest.raises(FileNotFoundError):
        steady_report(read, lambda: RUNNING)


def test_who_holds_the_lock_must_run(tmp_path: Path) -> None:
    assert not is_in_use(tmp_path)
    (tmp_path / "lock").write_text(str(os.getpid()))
    assert is_in_use(tmp_path)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    (tmp_path / "lock").write_text(str(child))
    assert not is_in_use(tmp_path)
