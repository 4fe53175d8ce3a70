"""Journals written for tests, without a broker."""

from __future__ import annotations

from pathlib import Path

from rhizome.amqp import frames
from rhizome.amqp.properties import Properties, encode_header
from rhizome.journal.files import DiskFiles
from rhizome.journal.journal import Journal
from rhizome.journal.records import enqueue_record

STORE_UUID = bytes(range(16))
SEGMENT_BYTES = 64 * 1024
START_MS = 1_700_000_000_000


def content(body: bytes, properties: Properties, body_frames: int = 1) -> bytes:
    """The frames of a message, its body in some number of frames."""
    found = [frames.frame(2, 1, encode_header(len(body), properties))]
    size = -(-len(body) // body_frames) if body else 0
    for start in range(0, len(body), size or 1):
        found.append(frames.frame(3, 1, body[start : start + size]))
    return b"".join(found)


def route(exchange: bytes, key: bytes) -> bytes:
    return bytes([len(exchange)]) + exchange + bytes([len(key)]) + key


class JournalFiles:
    """A store directory whose journal is written through `journal`; `flush` puts it on disk."""

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.files = DiskFiles(directory / "journal")
        self.journal = Journal(STORE_UUID, segment_bytes)
        self._segment_bytes = segment_bytes
        self._created: set[int] = set()
        self.index = 0

    def message(
        self,
        queue_ids: list[int],
        body: bytes = b"body",
        properties: Properties | None = None,
        exchange: bytes = b"orders",
        key: bytes = b"new",
        body_frames: int = 1,
        expiration_ms: int = -1,
        origin: int = 0,
        number: int = 0,
        identity: bytes = b"",
        flags: int = 0,
    ) -> int:
        """Append an ENQUEUE; returns its index. Message n arrives n ms after the start."""
        self.index += 1
        record = enqueue_record(
            3 if flags else 0,
            1,
            self.index,
            queue_ids,
            route(exchange, key),
            START_MS + self.index,
            expiration_ms,
            0,
            flags,
            content(body, properties or Properties(delivery_mode=2), body_frames),
            origin,
            number,
            identity,
        )
        self.journal.append_raw(record, len(queue_ids))
        return self.index

    def flush(self, now_ms: int = 0) -> None:
        for chunk in self.journal.take(now_ms):
            if chunk.segment not in self._created:
                self.files.create(chunk.segment, self._segment_bytes)
                self._created.add(chunk.segment)
            self.files.write(chunk.segment, chunk.offset, chunk.pieces)

    def segment(self, number: int) -> Path:
        return self.files.path(number)
