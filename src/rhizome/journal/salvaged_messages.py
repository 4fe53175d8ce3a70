"""Salvage: messages that a copy had to give up, saved aside (G8).

    DIR/salvage/NAME/store.json       written last: without it the rest is incomplete
    DIR/salvage/NAME/about.json       which group and queues, why, when
    DIR/salvage/NAME/journal/*.seg    ENQUEUE records of the messages

Each salvage is a store of its own, so every tool that reads a broker's store (`rhizome journal
inspect`) reads it. No broker ever takes anything back from it: a person decides that (`rhizome
salvage`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

from rhizome.journal.files import Files
from rhizome.journal.records import (
    SEGMENT_HEADER_BYTES,
    StoredMessage,
    check_record,
    parse_message,
    segment_header,
)
from rhizome.journal.store_identity import IDENTITY_NAME, StoreIdentity, save_identity

DIRECTORY: Final = "salvage"
KEPT: Final = "kept"
"""The directory beside it, for messages of queues that are not replicated: a broker keeps them
there until the next home has them (G9)."""
ABOUT: Final = "about.json"
ABOUT_VERSION: Final = 1
PIECE_BYTES: Final = 1024 * 1024
SEGMENT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class SavedQueue:
    """Messages of one queue; ``name`` is empty if the queue was deleted before."""

    id: int
    vhost: str
    name: str
    messages: int


@dataclass(frozen=True)
class SalvageManifest:
    """What was saved. The copy was in ``epoch``; ``home``, in its epoch ``home_epoch``, has nothing
    of what the copy had from index ``first`` to ``last``."""

    group: int
    epoch: int
    home: str
    home_epoch: int
    first: int
    last: int
    saved_ms: int
    queues: list[SavedQueue] = field(default_factory=list)
    name: str = ""

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.queues)


class SalvageWriter:
    """One salvage that is being written; it becomes visible when ``finish`` has returned."""

    def __init__(self, files: Files, store_uuid: bytes) -> None:
        self._files = files
        self._uuid = store_uuid
        self._journal = files.inside("journal")
        self._segment = 0
        self._offset = SEGMENT_BYTES
        self._pieces: list[bytes] = []
        self._waiting = 0

    def add(self, record: bytes) -> None:
        """Append a record; it is written with others."""
        if self._offset + self._waiting >= SEGMENT_BYTES:
            self._next_segment()
        self._pieces.append(record)
        self._waiting += len(record)
        if self._waiting >= PIECE_BYTES:
            self._write()

    def finish(self, about: SalvageManifest) -> None:
        """Make the salvage durable, then make it visible."""
        self._end_segment()
        row: dict[str, object] = {"version": ABOUT_VERSION, **asdict(about)}
        self._files.store(ABOUT, [json.dumps(row, indent=2).encode() + b"\n"])
        save_identity(self._files, StoreIdentity(self._uuid))

    def _next_segment(self) -> None:
        self._end_segment()
        self._segment += 1
        self._offset = 0
        self._journal.create(self._segment, SEGMENT_HEADER_BYTES)
        self._pieces = [segment_header(self._segment, self._uuid)]
        self._waiting = len(self._pieces[0])

    def _write(self) -> None:
        self._journal.write(self._segment, self._offset, self._pieces)
        self._offset += self._waiting
        self._pieces = []
        self._waiting = 0

    def _end_segment(self) -> None:
        if self._segment > 0:
            self._write()
            self._journal.sync(self._segment)


class Salvage:
    """All that was saved in one store. ``root`` is the store's directory."""

    def __init__(self, root: Files, store_uuid: bytes, directory: str = DIRECTORY) -> None:
        self._root = root
        self._uuid = store_uuid
        self._directory = directory

    def begin(self, name: str) -> tuple[str, SalvageWriter]:
        """Begin to save under this name, or one like it that is free."""
        files = self._root.inside(self._directory)
        finished = [about.name for about in self.entries()]
        free, number = name, 1
        while free in finished:
            number += 1
            free = f"{name}-{number}"
        # Left by a crash during an earlier attempt.
        files.remove_directory(free)
        return free, SalvageWriter(files.inside(free), self._uuid)

    def entries(self) -> list[SalvageManifest]:
        """What was saved, oldest first."""
        if self._directory not in self._root.directories():
            return []
        files = self._root.inside(self._directory)
        found: list[SalvageManifest] = []
        for name in files.directories():
            inside = files.inside(name)
            if IDENTITY_NAME in inside.names():
                found.append(about_of(name, inside.load(ABOUT)))
        found.sort(key=lambda each: (each.saved_ms, each.name))
        return found

    def journal(self, name: str) -> Files:
        """The segments of one of them."""
        return self._root.inside(self._directory).inside(name).inside("journal")

    def messages(self, name: str) -> Iterator[StoredMessage]:
        """The messages of one of them, in order; a segment at a time is in memory."""
        files = self.journal(name)
        for segment in files.segments():
            buffer = files.read(segment, 0, files.size(segment))
            offset = SEGMENT_HEADER_BYTES
            while (size := int(check_record(buffer, offset))) > 0:
                yield parse_message(buffer, offset)
                offset += size

    def remove(self, name: str) -> None:
        """Delete the salvage of this name."""
        self._root.inside(self._directory).remove_directory(name)


def about_of(name: str, data: bytes) -> SalvageManifest:
    row = json.loads(data)
    row.pop("version")
    row["name"] = name
    row["queues"] = [SavedQueue(**each) for each in row["queues"]]
    return SalvageManifest(**row)
