"""The power cuts that other tests make: what a program synced is there, and nothing else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.power_cut import SECTOR_BYTES, PowerCut

pytestmark = pytest.mark.rhizome_only

HELPERS = """
import os, sys, threading
root = sys.argv[1]
def path(name): return os.path.join(root, name)
def opened(name, flags=os.O_RDWR | os.O_CREAT): return os.open(path(name), flags, 0o600)
def sync_directory(name=""):
    fd = os.open(path(name), os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
"""


@pytest.fixture
def disk(tmp_path: Path) -> PowerCut:
    (tmp_path / "data").mkdir()
    return PowerCut(tmp_path / "data", tmp_path / "beside")


def killed(disk: PowerCut, program: str) -> None:
    """Run a program, which is killed at its end."""
    whole = f"{HELPERS}\n{program}\nimport signal; os.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-I", "-S", "-c", whole, str(disk.root)]
    done = subprocess.run(
        command, env={**os.environ, **disk.environment()}, capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr.decode()


def held(disk: PowerCut) -> dict[str, bytes]:
    files = (path for path in disk.root.rglob("*") if path.is_file())
    return {str(path.relative_to(disk.root)): path.read_bytes() for path in files}


def test_what_was_not_synced_is_undone_in_all_its_kinds(disk: PowerCut) -> None:
    killed(
        disk,
        """
a = opened("a")
os.posix_fallocate(a, 0, 4000)
os.pwrite(a, b"kept", 0)
os.fsync(a)
sync_directory()
os.pwrite(a, b"LOST and longer", 0)
os.pwritev(a, [b"x" * 600, b"y" * 600], 3900)
os.lseek(a, 10, 0)
os.write(a, b"z" * 100)
os.writev(a, [b"w", b"v"])
os.ftruncate(a, 7)
os.ftruncate(a, 70)
""",
    )
    disk.cut()
    assert held(disk) == {"a": b"kept".ljust(4000, b"\0")}


def test_a_sync_covers_what_was_written_before_it_and_nothing_after(disk: PowerCut) -> None:
    killed(
        disk,
        """
a, b = opened("a"), opened("b")
sync_directory()
os.write(a, b"1")
os.write(b, b"1")
os.fdatasync(a)
os.write(a, b"2")
""",
    )
    disk.cut()
    assert held(disk) == {"a": b"1", "b": b""}


def test_names_are_undone_unless_their_directory_was_synced(disk: PowerCut) -> None:
    killed(
        disk,
        """
for name in ("gone", "replaced", "new", "moved"):
    fd = opened(name)
    os.write(fd, name.encode())
    os.fsync(fd)
sync_directory()
os.unlink(path("gone"))
os.rename(path("new"), path("replaced"))
os.mkdir(path("inner"))
fd = opened("inner/made")
os.write(fd, b"made")
os.fsync(fd)
os.rename(path("moved"), path("inner/moved"))
opened("unsynced")
""",
    )
    disk.cut()
    assert held(disk) == {name: name.encode() for name in ("gone", "replaced", "new", "moved")}


def test_names_whose_directory_was_synced_stay(disk: PowerCut) -> None:
    killed(
        disk,
        """
for name in ("gone", "replaced", "new"):
    fd = opened(name)
    os.write(fd, name.encode())
    os.fsync(fd)
os.unlink(path("gone"))
os.rename(path("new"), path("replaced"))
os.mkdir(path("inner"))
os.rename(path("inner"), path("outer"))
sync_directory()
fd = opened("outer/lost")
""",
    )
    disk.cut()
    assert held(disk) == {"replaced": b"new"}
    assert (disk.root / "outer").is_dir()


def test_a_file_that_is_opened_anew_has_its_old_content_again(disk: PowerCut) -> None:
    killed(
        disk,
        """
with open(path("a"), "wb") as file:
    file.write(b"old" * 1000)
    file.flush()
    os.fsync(file.fileno())
sync_directory()
with open(path("a"), "wb") as file: file.write(b"new")
with open(path("a"), "ab") as file: file.write(b"er")
""",
    )
    disk.cut()
    assert held(disk) == {"a": b"old" * 1000}


def test_threads_are_noted_in_their_order(disk: PowerCut) -> None:
    killed(
        disk,
        """
a = opened("a")
os.write(a, bytes(range(256)) * 64)
os.fsync(a)
sync_directory()
def scribble(which):
    for turn in range(300):
        os.pwrite(a, bytes([which]) * 3000, (which * 997 + turn * 61) % 13000)
threads = [threading.Thread(target=scribble, args=(which,)) for which in range(1, 7)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    )
    assert held(disk)["a"] != bytes(range(256)) * 64
    disk.cut()
    assert held(disk) == {"a": bytes(range(256)) * 64}


def test_a_cut_in_part_leaves_each_sector_as_it_was_at_some_moment(disk: PowerCut) -> None:
    count = 64
    outcomes = set()
    for seed in range(6):
        killed(
            disk,
            f"""
a = opened("a")
os.ftruncate(a, 0)
os.write(a, b"0" * {count * SECTOR_BYTES})
os.fsync(a)
sync_directory()
os.pwrite(a, b"1" * {count * SECTOR_BYTES}, 0)
os.pwrite(a, b"2" * {count * SECTOR_BYTES}, 0)
""",
        )
        disk.cut(seed)
        content = held(disk)["a"]
        assert len(content) == count * SECTOR_BYTES
        starts = range(0, len(content), SECTOR_BYTES)
        sectors = [content[at : at + SECTOR_BYTES] for at in starts]
        assert {len(set(sector)) for sector in sectors} == {1}, "a sector is of two moments"
        assert {sector[:1] for sector in sectors} == {b"0", b"1", b"2"}
        outcomes.add(content)
    assert len(outcomes) > 1, "every seed does the same"


def test_what_a_kill_left_is_lost_with_the_next_cut_unless_it_is_synced(disk: PowerCut) -> None:
    write_both = """
a, b = opened("a"), opened("b")
sync_directory()
os.write(a, b"first")
os.write(b, b"first")
"""
    killed(disk, write_both)
    killed(disk, 'a = opened("a"); os.fdatasync(a); os.pwrite(a, b"FIRST", 0)')
    assert held(disk) == {"a": b"FIRST", "b": b"first"}
    disk.cut()
    assert held(disk) == {"a": b"first", "b": b""}


def test_sqlite_keeps_what_it_has_committed(disk: PowerCut) -> None:
    for seed in (None, 1, 2, 3):
        killed(
            disk,
            """
import sqlite3
connection = sqlite3.connect(path("db"), isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("PRAGMA synchronous=FULL")
connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
sync_directory()
(before,) = connection.execute("SELECT count(*) FROM t").fetchone()
assert before % 50 == 0, before
connection.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(50)])
connection.execute("BEGIN")
connection.execute("INSERT INTO t VALUES (0)")
""",
        )
        disk.cut(seed)


def test_shared_mappings_are_not_overlooked(disk: PowerCut) -> None:
    killed(
        disk,
        """
import mmap
a = opened("a")
os.ftruncate(a, 4096)
mmap.mmap(a, 4096)[0] = 1
""",
    )
    with pytest.raises(AssertionError, match=r"can't be undone.*mmap"):
        disk.cut()


def test_writes_and_syncs_fail_as_they_are_told_to(disk: PowerCut) -> None:
    disk.faults.fail_writes(errno.ENOSPC)
    disk.faults.fail_syncs(errno.EIO)
    killed(
        disk,
        """
import errno
def error_of(call, *arguments):
    try: call(*arguments)
    except OSError as error: return error.errno
a = opened("a")
assert error_of(os.write, a, b"1") == errno.ENOSPC
assert error_of(os.posix_fallocate, a, 0, 10) == errno.ENOSPC
assert error_of(os.fdatasync, a) == errno.EIO
""",
    )
    assert disk.faults.writes == 2
    assert disk.faults.syncs == 1
