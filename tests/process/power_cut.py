"""Power cuts for brokers in tests: what no sync covered is undone after a kill.

`PowerCut` builds a library (powercut.c) that a broker is started with. It notes each change of the
files under the data directory with what was there before, and each sync. After `kill -9` of the
broker `cut` undoes what was not synced:

- wholly: every file and directory is as its last sync left it;
- in part, from a seed: each sector of 512 bytes is as it was at some moment since its last sync, a
  file's size likewise, and of the changes of names only the first few were done, in their order.

A kill without a cut leaves the notes as they are: what was not synced before it may still be lost
by a cut after the next kill, unless the next broker syncs it. `Faults` makes writes and syncs fail
or hang while the broker runs.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Final

SOURCE: Final = Path(__file__).with_name("powercut.c")
SECTOR_BYTES: Final = 512
CONTROL_BYTES: Final = 4096

WRITE, SIZE, CREATE, UNLINK, RENAME, MKDIR, RMDIR, SYNC, CANCEL, UNSUPPORTED = range(1, 11)
_DATA: Final = (WRITE, SIZE)
_NAMES: Final = (CREATE, UNLINK, RENAME, MKDIR, RMDIR)
_ENTRY: Final = struct.Struct("=IIQQQQQII")
_MAGIC: Final = 0x54554357


@cache
def library() -> Path:
    """The library, built from its source once per run of the tests."""
    directory = Path(mkdtemp(prefix="powercut-"))
    made = directory / "powercut.so"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
    subprocess.run([*command, "-lpthread"], check=True)
    return made


@dataclass(frozen=True)
class Entry:
    """A change, as the library has noted it; see powercut.c for what the numbers are."""

    kind: int
    seq: int
    inode: int
    a: int
    b: int
    c: int
    names: bytes
    data: bytes

    def is_safe(self, synced: dict[int, int]) -> bool:
        """Whether syncs, by inode, have covered the change."""
        directories = [self.inode, self.c] if self.kind == RENAME else [self.inode]
        return all(synced.get(each, 0) > self.seq for each in directories)

    def name(self, which: int = 0) -> str:
        return os.fsdecode(self.names.split(b"\0")[which])


def entries(log: Path) -> list[Entry]:
    """What a log holds; the last entry of a process that was killed may be torn."""
    data = log.read_bytes() if log.exists() else b""
    found: list[Entry] = []
    at = 0
    while at + _ENTRY.size <= len(data):
        magic, kind, seq, inode, a, b, c, names, size = _ENTRY.unpack_from(data, at)
        assert magic == _MAGIC, f"{log} is damaged at {at}"
        at += _ENTRY.size
        if at + names + size > len(data):
            break
        whole = data[at + names : at + names + size]
        found.append(Entry(kind, seq, inode, a, b, c, data[at : at + names], whole))
        at += names + size
    return sorted(found, key=lambda each: each.seq)


def unsafe(found: list[Entry]) -> list[Entry]:
    """The changes that were done and that no sync covers."""
    odd = [each.name() for each in found if each.kind == UNSUPPORTED]
    assert not odd, f"changes that can't be undone: {odd}"
    cancelled = {each.a for each in found if each.kind == CANCEL}
    synced: dict[int, int] = {}
    for each in found:
        if each.kind == SYNC:
            synced[each.inode] = max(synced.get(each.inode, 0), each.a)
    return [
        each
        for each in found
        if each.kind in (*_DATA, *_NAMES) and each.seq not in cancelled and not each.is_safe(synced)
    ]


@dataclass
class Undone:
    """What a cut has taken back."""

    bytes: int = 0
    names: int = 0


class PowerCut:
    """The disk of one broker, whose data directory is `root`; its notes are in `beside`, which is
    on the same file system and not under the root."""

    def __init__(self, root: Path, beside: Path) -> None:
        self.root = root
        self.log = beside / "changes"
        self.graves = beside / "graves"
        self.control = beside / "control"
        self.graves.mkdir(parents=True)
        self.control.write_bytes(bytes(CONTROL_BYTES))
        self.faults = Faults(self.control)

    def environment(self) -> dict[str, str]:
        """What the broker is started with."""
        return {
            "LD_PRELOAD": str(library()),
            "POWERCUT_ROOT": str(self.root),
            "POWERCUT_LOG": str(self.log),
            "POWERCUT_GRAVES": str(self.graves),
            "POWERCUT_CONTROL": str(self.control),
        }

    def cut(self, seed: int | None = None) -> Undone:
        """Undo what was not synced: all of it, or what the seed says. The broker is not running."""
        undone = Undone()
        chance = None if seed is None else Random(seed)
        lost = unsafe(entries(self.log))
        by_inode: dict[int, list[Entry]] = {}
        for each in lost:
            if each.kind in _DATA:
                by_inode.setdefault(each.inode, []).append(each)
        files = _inodes([self.root, self.graves], directories=False)
        for inode, changes in by_inode.items():
            if inode in files:
                undone.bytes += _undo_data(files[inode], changes, chance)
        names = [each for each in lost if each.kind in _NAMES]
        kept = 0 if chance is None else chance.randint(0, len(names))
        for each in reversed(names[kept:]):
            self._undo_name(each)
            undone.names += 1
        self.forget()
        return undone

    def forget(self) -> None:
        """Take all that is there for safe."""
        self.log.unlink(missing_ok=True)
        shutil.rmtree(self.graves)
        self.graves.mkdir()

    def _undo_name(self, change: Entry) -> None:
        directories = _inodes([self.root.parent], directories=True)
        parent = directories.get(change.inode)
        if parent is None:
            return
        path = parent / change.name()
        if change.kind == CREATE:
            path.unlink(missing_ok=True)
        elif change.kind == MKDIR:
            shutil.rmtree(path, ignore_errors=True)
        elif change.kind == RMDIR:
            path.mkdir(exist_ok=True)
        elif change.kind == UNLINK:
            self._unbury(change.a, path)
        else:
            self._undo_rename(change, directories, path)

    def _undo_rename(self, change: Entry, directories: dict[int, Path], path: Path) -> None:
        other = directories.get(change.c)
        if other is None or not (other / change.name(1)).exists():
            return
        (other / change.name(1)).rename(path)
        if change.a:
            self._unbury(change.a, other / change.name(1))

    def _unbury(self, number: int, path: Path) -> None:
        grave = self.graves / f"{number >> 32}-{number & 0xFFFFFFFF}"
        if grave.exists() and not path.exists():
            grave.rename(path)


def _inodes(roots: Iterable[Path], directories: bool) -> dict[int, Path]:
    """Paths by inode, of directories or of files."""
    found: dict[int, Path] = {}
    for root in roots:
        for directory, _, files in os.walk(root):
            if directories:
                found[os.stat(directory).st_ino] = Path(directory)
                continue
            for name in files:
                path = Path(directory, name)
                found.setdefault(path.lstat().st_ino, path)
    return found


def _undo_data(path: Path, changes: list[Entry], chance: Random | None) -> int:
    """Take back changes of a file, which are in their order; returns how many bytes of them."""
    moments = [0, *(each.seq for each in changes)]
    kept: dict[int, int] = {}

    def kept_until(sector: int) -> int:
        """The moment that a sector is left as it was at."""
        if chance is None:
            return 0
        if sector not in kept:
            kept[sector] = chance.choice((0, moments[-1], chance.choice(moments)))
        return kept[sector]

    undone = 0
    size_kept = 0 if chance is None else chance.choice((0, moments[-1], chance.choice(moments)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        for change in reversed(changes):
            length = change.b if change.kind == WRITE else max(0, change.c - change.a)
            # Zeros were not noted, nor what was behind the end of the file.
            old = change.data.ljust(length, b"\0")
            at = change.a
            while at < change.a + length:
                sector = at // SECTOR_BYTES
                end = min((sector + 1) * SECTOR_BYTES, change.a + length)
                if change.seq > kept_until(sector):
                    file.seek(at)
                    file.write(old[at - change.a : end - change.a])
                    undone += end - at
                at = end
            if change.seq > size_kept:
                size = change.c
        file.truncate(size)
    return undone


class Faults:
    """What writes and syncs of a running broker meet; the numbers of struct control."""

    def __init__(self, control: Path) -> None:
        with control.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), CONTROL_BYTES)

    def fail_writes(self, error: int) -> None:
        """Writes and reservations of space fail with this errno; 0: they work."""
        self._set(0, error)

    def fail_syncs(self, error: int) -> None:
        self._set(1, error)

    def hang_syncs(self, hang: bool) -> None:
        self._set(2, int(hang))

    def hang_writes(self, hang: bool) -> None:
        self._set(3, int(hang))

    @property
    def writes(self) -> int:
        return self._get(4)

    @property
    def syncs(self) -> int:
        return self._get(5)

    @property
    def hanging(self) -> int:
        """How many threads wait for a call that hangs."""
        return self._get(6)

    def clear(self) -> None:
        for field in range(4):
            self._set(field, 0)

    def _set(self, field: int, value: int) -> None:
        struct.pack_into("=I", self._page, field * 4, value)

    def _get(self, field: int) -> int:
        return int(struct.unpack_from("=I", self._page, field * 4)[0])
