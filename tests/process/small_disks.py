"""Small disks of their own for brokers, that can be filled up. Needs root."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

DISK_MIB: Final = 192
SMALL_DISK_SETTINGS: Final = {
    "RHIZOME_DISK_FREE_MIN": "64MiB",
    "RHIZOME_JOURNAL_SEGMENT_SIZE": "4MiB",
}
PIECE_BYTES: Final = 1 << 20


class SmallDisks:
    """Invariant: ``_mounted`` are the directories that are disks now."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = list(directories)
        self._mounted: list[Path] = []

    def mount(self) -> None:
        for directory in self._directories:
            directory.mkdir(parents=True, exist_ok=True)
            options = f"size={DISK_MIB}m,mode=0700"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "rhizome-test", str(directory)], check=True
            )
            self._mounted.append(directory)

    def unmount(self) -> None:
        for directory in self._mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)
        self._mounted.clear()

    def fill(self, directory: Path, but_bytes: int = 0) -> None:
        """Leave not a byte; or as many."""
        descriptor = os.open(_filler(directory), os.O_WRONLY | os.O_CREAT, 0o600)
        if but_bytes:
            found = os.statvfs(directory)
            os.posix_fallocate(descriptor, 0, found.f_bavail * found.f_frsize - but_bytes)
            os.close(descriptor)
            return
        size = PIECE_BYTES
        try:
            while size > 0:
                try:
                    os.write(descriptor, bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 16
        finally:
            os.close(descriptor)

    def free(self, directory: Path) -> None:
        _filler(directory).unlink(missing_ok=True)


def _filler(directory: Path) -> Path:
    return directory / "filler"
