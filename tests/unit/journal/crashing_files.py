"""A disk that loses power: a fake for the tests of the journal."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence

from rhizome.journal.files import MemoryFiles

SECTOR_BYTES = 512


class CrashingFiles(MemoryFiles):
    """Keeps what was synced apart from what was only written.

    `bytes_left` is the space on the disk; a write that doesn't fit fails with ENOSPC after writing
    what does. `write_error` and `sync_error` make the next writes or syncs fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[int, bytes] = {}
        self.unsynced: list[tuple[int, int, bytes]] = []
        self.bytes_left = 1 << 40
        self.write_error = 0
        self.sync_error = 0
        self.syncs = 0

    def create(self, segment: int, bytes_reserved: int) -> None:
        if self.bytes_left < bytes_reserved // 64:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().create(segment, bytes_reserved)
        # Reserved space reads as zeros until it is written.
        self.contents[segment].extend(bytes(bytes_reserved))
        self.synced[segment] = bytes(bytes_reserved)

    def write(self, segment: int, offset: int, pieces: Sequence[bytes]) -> None:
        if self.write_error:
            raise OSError(self.write_error, "the disk failed")
        data = b"".join(pieces)
        fits = data[: self.bytes_left]
        self.bytes_left -= len(fits)
        super().write(segment, offset, [fits])
        self.unsynced.append((segment, offset, fits))
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self, segment: int) -> None:
        if self.sync_error:
            raise OSError(self.sync_error, "the disk failed")
        self.syncs += 1
        self.synced[segment] = bytes(self.contents[segment])
        self.unsynced = [entry for entry in self.unsynced if entry[0] != segment]

    def remove(self, segment: int) -> None:
        super().remove(segment)
        self.synced.pop(segment, None)
        self.unsynced = [entry for entry in self.unsynced if entry[0] != segment]

    def killed(self, bytes_kept: int) -> CrashingFiles:
        """The disk after the process was killed: writes are kept in order, up to a point."""
        found = self._survivor()
        for segment, offset, data in self.unsynced:
            kept = data[:bytes_kept]
            bytes_kept -= len(kept)
            found.overwrite(segment, offset, kept)
        return found

    def power_cut(self, seed: int) -> CrashingFiles:
        """The disk after a power cut: each sector is as some moment since its sync had it."""
        chance = random.Random(seed)
        found = self._survivor()
        sectors: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for segment, offset, data in self.unsynced:
            at = 0
            while at < len(data):
                size = SECTOR_BYTES - (offset + at) % SECTOR_BYTES
                key = (segment, (offset + at) // SECTOR_BYTES)
                sectors.setdefault(key, []).append((offset + at, data[at : at + size]))
                at += size
        for (segment, _), writes in sectors.items():
            for offset, data in writes[: chance.randint(0, len(writes))]:
                found.overwrite(segment, offset, data)
        return found

    def overwrite(self, segment: int, offset: int, data: bytes) -> None:
        MemoryFiles.write(self, segment, offset, [data])
        self.synced[segment] = bytes(self.contents[segment])

    def _survivor(self) -> CrashingFiles:
        found = CrashingFiles()
        found.named = dict(self.named)
        for segment, content in self.synced.items():
            found.contents[segment] = bytearray(content)
            found.synced[segment] = content
        return found


def copy_of(files: MemoryFiles) -> MemoryFiles:
    found = MemoryFiles()
    found.named = dict(files.named)
    found.contents = {segment: bytearray(content) for segment, content in files.contents.items()}
    return found
