"""The only file calls of the store.

`Files` is one directory of segments and small named files. `DiskFiles` is a real one; `MemoryFiles`
has the same behaviour without a disk. Both may be called from any thread, but a segment is written
by one thread only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from io import UnsupportedOperation
from pathlib import Path
from typing import Final

from rhizome.journal.errors import StoreInUse

DIRECTORY_MODE: Final = 0o750
FILE_MODE: Final = 0o640
OPEN_FILES_MAX: Final = 256
NESTED_OPEN_FILES_MAX: Final = 8
"""Of each of the directories inside of one: there may be thousands."""
PIECES_PER_WRITE_MAX: Final = 1024
"""IOV_MAX of Linux."""
SEGMENT_SUFFIX: Final = ".seg"
UNFINISHED_SUFFIX: Final = ".new"


class Files(ABC):
    """One directory of segments and named files."""

    @abstractmethod
    def segments(self) -> list[int]:
        """Numbers of the segments, ascending."""

    @abstractmethod
    def create(self, segment: int, bytes_reserved: int) -> None:
        """Make an empty segment with disk space for `bytes_reserved`; durable when this returns."""

    @abstractmethod
    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None:
        """Write the pieces one after the other. After an OSError the same call may be repeated."""

    @abstractmethod
    def sync(self, segment: int) -> None:
        """Make what was written to the segment durable."""

    @abstractmethod
    def cut(self, segment: int, size: int) -> None:
        """Cut the segment to `size` bytes, giving back the space behind them; sync makes it
        durable.
        """

    @abstractmethod
    def read(self, segment: int, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the segment, none if there is no such
        segment.
        """

    @abstractmethod
    def size(self, segment: int) -> int:
        """Size of a segment's file, reserved space included."""

    @abstractmethod
    def remove(self, segment: int) -> None:
        """Remove a segment; none there is fine."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the named files, sorted."""

    @abstractmethod
    def load(self, name: str) -> bytes:
        """The content of a named file."""

    @abstractmethod
    def store(self, name: str, pieces: Sequence[bytes]) -> None:
        """Replace a named file as a whole: after a crash it has its old or its new content."""

    @abstractmethod
    def discard(self, name: str) -> None:
        """Remove a named file; none there is fine."""

    @abstractmethod
    def inside(self, name: str) -> Files:
        """A directory in this one, which is made if it isn't there."""

    @abstractmethod
    def directories(self) -> list[str]:
        """Names of the directories in this one, sorted."""

    @abstractmethod
    def remove_directory(self, name: str) -> None:
        """Remove a directory with all that is in it; none there is fine."""

    @abstractmethod
    def rename_directory(self, name: str, to: str) -> None:
        """Give a directory another name, which nothing has; none there is fine."""

    def opened(self, name: str) -> Files:
        """A directory in this one, for reading; raises FileNotFoundError. It is never made."""
        if name not in self.directories():
            raise FileNotFoundError(f"there is no directory '{name}'")
        return self.inside(name)

    def lend(self, segment: int, to: Files, number: int) -> None:
        """Link the file of a segment into another directory, as a segment of that number: it stays
        readable there after it is removed here. Raises FileNotFoundError."""
        if segment not in self.segments():
            raise FileNotFoundError(f"there is no segment {segment}")
        to.create(number, 0)
        to.write(number, 0, [self.read(segment, 0, self.size(segment))])

    def lend_named(self, name: str, to: Files, number: int) -> None:
        """The same of a named file, which becomes a segment there."""
        if name not in self.names():
            raise FileNotFoundError(f"there is no file '{name}'")
        to.create(number, 0)
        to.write(number, 0, [self.load(name)])

    @abstractmethod
    def free_bytes(self) -> int:
        """Space left on the disk."""

    @abstractmethod
    def close(self) -> None:
        """Give up file handles."""

    def wipe(self) -> None:
        """Remove all segments: what spilled before a restart is void."""
        for segment in self.segments():
            self.remove(segment)


def make_directory(directory: Path) -> None:
    """Make a directory of a store, unless it is there; others can't look into it. The store has
    messages in it, and the users' password hashes."""
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def _create(path: Path) -> int:
    """The descriptor of an empty file that nobody but its owner may change, whatever the umask."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)


class _Handle:
    """A file descriptor that is closed when the last thread that uses it releases it.

    So a user of ``fd`` keeps the handle in a variable of its own meanwhile. Otherwise another
    thread may remove the segment, and the number may be another file's the next moment.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)


class DiskFiles(Files):
    """Segments `NNNNNNNNNN.seg` and named files in a directory, which is made if it isn't there."""

    def __init__(
        self, directory: Path, read_only: bool = False, open_files_max: int = OPEN_FILES_MAX
    ) -> None:
        self.directory = directory
        self.open_files_max = open_files_max
        self._flags = os.O_RDONLY if read_only else os.O_RDWR
        self._lock = threading.Lock()
        self._handles: OrderedDict[int, _Handle] = OrderedDict()
        if not read_only:
            make_directory(directory)
            self._sync_directory(directory.parent)

    def path(self, segment: int) -> Path:
        return self.directory / f"{segment:010d}{SEGMENT_SUFFIX}"

    def segments(self) -> list[int]:
        stems = (p.stem for p in self.directory.glob(f"*{SEGMENT_SUFFIX}"))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def create(self, segment: int, bytes_reserved: int) -> None:
        handle = _Handle(self.path(segment), os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(handle.fd, 0, bytes_reserved)
        except OSError:
            # A partial reservation must not stay behind on a full disk.
            os.unlink(self.path(segment))
            raise
        os.fsync(handle.fd)
        self._sync_directory(self.directory)
        self._keep(segment, handle)

    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None:
        handle = self._handle(segment)
        for first in range(0, len(pieces), PIECES_PER_WRITE_MAX):
            group = pieces[first : first + PIECES_PER_WRITE_MAX]
            offset += self._write_group(handle, offset, group)

    def _write_group(self, handle: _Handle, offset: int, pieces: Sequence[bytes]) -> int:
        total = sum(map(len, pieces))
        written = os.pwritev(handle.fd, pieces, offset)
        if written < total:
            # A short write: a signal, or the disk filled up. The rest goes in plain writes, which
            # say why they can't go on.
            rest = memoryview(b"".join(pieces))
            while written < total:
                written += os.pwrite(handle.fd, rest[written:], offset + written)
        return total

    def sync(self, segment: int) -> None:
        handle = self._handle(segment)
        os.fdatasync(handle.fd)

    def cut(self, segment: int, size: int) -> None:
        handle = self._handle(segment)
        os.ftruncate(handle.fd, size)

    def read(self, segment: int, offset: int, length: int) -> bytes:
        try:
            handle = self._handle(segment)
        except FileNotFoundError:
            return b""
        data = os.pread(handle.fd, length, offset)
        if len(data) in (0, length):
            return data
        pieces = [data]
        done = len(data)
        while data and done < length:
            data = os.pread(handle.fd, length - done, offset + done)
            pieces.append(data)
            done += len(data)
        return b"".join(pieces)

    def size(self, segment: int) -> int:
        handle = self._handle(segment)
        return os.fstat(handle.fd).st_size

    def remove(self, segment: int) -> None:
        with self._lock:
            self._handles.pop(segment, None)
        self.path(segment).unlink(missing_ok=True)

    def names(self) -> list[str]:
        skipped = (SEGMENT_SUFFIX, UNFINISHED_SUFFIX)
        found = (p.name for p in self.directory.iterdir() if p.is_file())
        return sorted(name for name in found if not name.endswith(skipped))

    def load(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def store(self, name: str, pieces: Sequence[bytes]) -> None:
        unfinished = self.directory / (name + UNFINISHED_SUFFIX)
        try:
            with os.fdopen(_create(unfinished), "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # A full disk has better use for the space.
            unfinished.unlink(missing_ok=True)
            raise
        unfinished.rename(self.directory / name)
        self._sync_directory(self.directory)

    def discard(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def inside(self, name: str) -> DiskFiles:
        read_only = self._flags == os.O_RDONLY
        is_new = not read_only and not (self.directory / name).exists()
        made = DiskFiles(self.directory / name, read_only, NESTED_OPEN_FILES_MAX)
        if is_new:
            self._sync_directory(self.directory)
        return made

    def directories(self) -> list[str]:
        return sorted(p.name for p in self.directory.iterdir() if p.is_dir())

    def remove_directory(self, name: str) -> None:
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def rename_directory(self, name: str, to: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.directory / name).rename(self.directory / to)

    def opened(self, name: str) -> DiskFiles:
        if not (self.directory / name).is_dir():
            raise FileNotFoundError(f"there is no directory '{self.directory / name}'")
        return DiskFiles(self.directory / name, True, NESTED_OPEN_FILES_MAX)

    def lend(self, segment: int, to: Files, number: int) -> None:
        assert isinstance(to, DiskFiles)
        os.link(self.path(segment), to.path(number))

    def lend_named(self, name: str, to: Files, number: int) -> None:
        assert isinstance(to, DiskFiles)
        os.link(self.directory / name, to.path(number))

    def free_bytes(self) -> int:
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        with self._lock:
            self._handles.clear()

    def _handle(self, segment: int) -> _Handle:
        with self._lock:
            handle = self._handles.get(segment)
            if handle is not None:
                self._handles.move_to_end(segment)
                return handle
        handle = _Handle(self.path(segment), self._flags)
        self._keep(segment, handle)
        return handle

    def _keep(self, segment: int, handle: _Handle) -> None:
        with self._lock:
            self._handles[segment] = handle
            while len(self._handles) > self.open_files_max:
                self._handles.popitem(last=False)

    @staticmethod
    def _sync_directory(directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class MemoryFiles(Files):
    """The same without a disk; everything is durable as long as the object lives."""

    def __init__(self) -> None:
        self.contents: dict[int, bytearray] = {}
        self.named: dict[str, bytes] = {}
        self.nested: dict[str, MemoryFiles] = {}
        self._lock = threading.Lock()

    def segments(self) -> list[int]:
        return sorted(self.contents)

    def create(self, segment: int, bytes_reserved: int) -> None:
        # Space isn't reserved: memory is given out as it is written.
        self.contents[segment] = bytearray()

    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None:
        with self._lock:
            content = self.contents[segment]
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            for piece in pieces:
                content[offset : offset + len(piece)] = piece
                offset += len(piece)

    def sync(self, segment: int) -> None:
        pass

    def cut(self, segment: int, size: int) -> None:
        with self._lock:
            del self.contents[segment][size:]

    def read(self, segment: int, offset: int, length: int) -> bytes:
        with self._lock:
            content = self.contents.get(segment)
            return b"" if content is None else bytes(memoryview(content)[offset : offset + length])

    def size(self, segment: int) -> int:
        return len(self.contents[segment])

    def remove(self, segment: int) -> None:
        self.contents.pop(segment, None)

    def names(self) -> list[str]:
        return sorted(self.named)

    def load(self, name: str) -> bytes:
        return self.named[name]

    def store(self, name: str, pieces: Sequence[bytes]) -> None:
        self.named[name] = b"".join(pieces)

    def discard(self, name: str) -> None:
        self.named.pop(name, None)

    def inside(self, name: str) -> MemoryFiles:
        return self.nested.setdefault(name, MemoryFiles())

    def directories(self) -> list[str]:
        return sorted(self.nested)

    def remove_directory(self, name: str) -> None:
        self.nested.pop(name, None)

    def rename_directory(self, name: str, to: str) -> None:
        if name in self.nested:
            self.nested[to] = self.nested.pop(name)

    def lend(self, segment: int, to: Files, number: int) -> None:
        assert isinstance(to, MemoryFiles)
        if segment not in self.contents:
            raise FileNotFoundError(f"there is no segment {segment}")
        to.contents[number] = self.contents[segment]

    def free_bytes(self) -> int:
        return 1 << 62

    def close(self) -> None:
        pass


class ReadOnlyFiles(Files):
    """Files that can only be read: a base class for files stored elsewhere."""

    def create(self, segment: int, bytes_reserved: int) -> None:
        raise UnsupportedOperation("these files are for reading")

    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None:
        raise UnsupportedOperation("these files are for reading")

    def sync(self, segment: int) -> None:
        raise UnsupportedOperation("these files are for reading")

    def cut(self, segment: int, size: int) -> None:
        raise UnsupportedOperation("these files are for reading")

    def remove(self, segment: int) -> None:
        raise UnsupportedOperation("these files are for reading")

    def store(self, name: str, pieces: Sequence[bytes]) -> None:
        raise UnsupportedOperation("these files are for reading")

    def discard(self, name: str) -> None:
        raise UnsupportedOperation("these files are for reading")

    def inside(self, name: str) -> Files:
        raise UnsupportedOperation("these files are for reading")

    def directories(self) -> list[str]:
        return []

    def remove_directory(self, name: str) -> None:
        raise UnsupportedOperation("these files are for reading")

    def rename_directory(self, name: str, to: str) -> None:
        raise UnsupportedOperation("these files are for reading")

    def free_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


def lock_owner(directory: Path) -> int:
    """The process that holds the lock of a directory, or held it last; 0 if nobody did."""
    try:
        written = (directory / "lock").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(written) if written.isdigit() else 0


def is_in_use(directory: Path) -> bool:
    """Whether the process that locked a directory last still runs. Locks nothing itself: a broker
    that starts at this moment must find the lock free."""
    owner = lock_owner(directory)
    if not owner:
        return False
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class DirectoryLock:
    """An exclusive lock on a store's directory, held until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self.path = directory / "lock"
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._fd, 32).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreInUse(
                f"{directory} is in use by process {owner or 'unknown'}: stop it, "
                "or start this broker with another data directory"
            ) from None
        os.truncate(self._fd, 0)
        os.write(self._fd, str(os.getpid()).encode())

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
