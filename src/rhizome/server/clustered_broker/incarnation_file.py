"""Incarnation file: which start of a broker uses a store, so that its end can be certified (R15).

A broker of a cluster writes DATA/incarnation before it links with anybody, and removes it when it
has given its lease back. Whoever finds the file and the lock of the store free knows for certain
that this incarnation has ended: the system frees the lock at the end of the process, not before.

That holds where the lock was taken only. So the file names the boot of the machine and the lock
itself; in a copy of the store, or on another machine that mounts it, nothing is certain.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from rhizome.cluster.link.death_certificate import DeathCertificate
from rhizome.journal.files import DirectoryLock

FILE_NAME: Final = "incarnation"
FILE_VERSION: Final = 1
FILE_MODE: Final = 0o640
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def write_incarnation(directory: Path, name: str, uuid: str, incarnation: str) -> None:
    """Write the file, whole or not at all. Its directory is locked by this process."""
    text = json.dumps(
        {
            "version": FILE_VERSION,
            "name": name,
            "uuid": uuid,
            "incarnation": incarnation,
            "where": _where(directory),
        }
    )
    fresh = directory / f".{FILE_NAME}.new"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w") as file:
        file.write(text + "\n")
    fresh.replace(directory / FILE_NAME)


def remove_incarnation(directory: Path) -> None:
    (directory / FILE_NAME).unlink(missing_ok=True)


def ended_incarnation(directory: Path, seen_by: str) -> DeathCertificate | None:
    """The incarnation that has ended on this store without giving its lease back; None if there is
    none, or that isn't certain. Raises StoreInUse while a process has the store."""
    if not (directory / FILE_NAME).exists():
        return None
    lock = DirectoryLock(directory)
    try:
        return _read(directory, seen_by)
    finally:
        lock.release()


def _read(directory: Path, seen_by: str) -> DeathCertificate | None:
    try:
        found = json.loads((directory / FILE_NAME).read_text("utf-8"))
        if found["version"] != FILE_VERSION or found["where"] != _where(directory):
            return None
        return DeathCertificate(
            str(found["name"]), str(found["uuid"]), str(found["incarnation"]), seen_by
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _where(directory: Path) -> list[str]:
    """This boot of this machine, and the lock in this directory."""
    try:
        boot = _BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        boot = ""
    status = (directory / "lock").stat()
    return [boot, str(status.st_dev), str(status.st_ino)]
