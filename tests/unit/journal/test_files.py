"""Segment files that one thread uses while another removes them, and the modes of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhizome.journal.files import DiskFiles

SEGMENT = 1


@pytest.fixture
def files(tmp_path: Path) -> DiskFiles:
    made = DiskFiles(tmp_path / "segments")
    made.create(SEGMENT, 4096)
    made.write(SEGMENT, 0, [b"something"])
    return made


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("fdatasync", lambda files: files.sync(SEGMENT)),
        ("ftruncate", lambda files: files.cut(SEGMENT, 100)),
        ("fstat", lambda files: files.size(SEGMENT)),
        ("pread", lambda files: files.read(SEGMENT, 0, 9)),
        ("pwritev", lambda files: files.write(SEGMENT, 0, [b"more"])),
    ],
)
def test_a_segment_that_is_removed_while_it_is_used_stays_open(
    files: DiskFiles,
    call: str,
    use: Callable[[DiskFiles], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by another thread, right before the system is asked."""
    real = getattr(os, call)

    def late(descriptor: int, *arguments: Any) -> Any:
        files.remove(SEGMENT)
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, call, late)
    use(files)
    assert files.segments() == []


def test_a_file_that_finds_no_space_leaves_nothing_behind(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.store("checkpoint", [b"too much"])
    assert [each.name for each in files.directory.iterdir()] == ["0000000001.seg"]


def test_nobody_else_may_change_a_file_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = DiskFiles(tmp_path / "store")
        made.create(SEGMENT, 4096)
        made.store("store.json", [b"{}"])
    finally:
        os.umask(before)
    assert {each.stat().st_mode & 0o777 for each in made.directory.iterdir()} == {0o640}
