"""Small files of a service, in a directory or an object store; each is whole or not there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Any

from pyarrow import fs

from rhizome.errors import RhizomeError
from rhizome.spark.lakehouse.table_location import Storage, is_remote, normal_location

DIRECTORY_MODE = 0o750


class StateError(RhizomeError):
    """The state can't be used; the text says why and what to do."""


class StateFiles:
    """Files below a location. Object stores are logged in to as the environment says."""

    def __init__(self, location: str) -> None:
        self.location = normal_location(_known_scheme(location))
        self.is_remote = is_remote(self.location)
        if not self.is_remote:
            Path(self.location).mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        self._system, self._root = Storage().filesystem(self.location)

    def read(self, name: str) -> bytes | None:
        try:
            with self._system.open_input_stream(f"{self._root}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a file at once. After a crash of the machine it is the old one or the new one."""
        if self.is_remote:
            with self._system.open_output_stream(f"{self._root}/{name}") as file:
                file.write(data)
            return
        path = Path(self._root) / name
        path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        _sync_directory(path.parent)

    def output(self, name: str) -> Any:
        """A stream to a file that counts only once another one names it."""
        if not self.is_remote:
            (Path(self._root) / name).parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        return self._system.open_output_stream(f"{self._root}/{name}")

    def sync(self, name: str) -> None:
        """See to it that a file that was written survives a crash of the machine."""
        if not self.is_remote:
            path = Path(self._root) / name
            with path.open("rb") as file:
                os.fsync(file.fileno())
            _sync_directory(path.parent)

    def names(self, directory: str) -> list[str]:
        """What a directory has; nothing if it isn't there."""
        selector = fs.FileSelector(f"{self._root}/{directory}", allow_not_found=True)
        return sorted(each.base_name for each in self._system.get_file_info(selector))

    def lock(self) -> IO[bytes] | None:
        """Make sure that no other process on this host has this state. Held until it is closed."""
        if self.is_remote:
            return None
        file = (Path(self.location) / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StateError(
                f"another service runs with the state {self.location}; give each its own"
            ) from None
        return file


def _known_scheme(location: str) -> str:
    """Hadoop says s3a where all others say s3."""
    return f"s3://{location[6:]}" if location.startswith("s3a://") else location


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
