"""Segments of streams as the audit reads them: whole, torn, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhizome.journal.streams.stream_format import (
    KIND_INDEX,
    KIND_MESSAGES,
    KIND_SNAPSHOT,
    chunk_bytes,
    segment_header,
)
from rhizome.spark.jobs.audit_findings import DAMAGED, TRUNCATED
from rhizome.spark.jobs.audit_stream_copies import chunk_rows
from rhizome.spark.journal.broker_stores import STREAMS, DiskStore, StreamFile

STREAM = 7


def chunks(whole: bool) -> list[bytes]:
    """A snapshot, three chunks of ten messages, and the index of a segment that is whole."""
    found = [chunk_bytes(KIND_SNAPSHOT, 1, 0, 0, 1, 5, 0, 0, b"")]
    for number in range(3):
        first = 10 * number
        found.append(chunk_bytes(KIND_MESSAGES, 1, 10, first, 2 + number, 5, 0, 9, b"x" * 50))
    if whole:
        found.append(chunk_bytes(KIND_INDEX, 1, 0, 30, 5, 5, 0, 0, b""))
    return found


def path_of(directory: Path) -> Path:
    return directory / STREAMS / str(STREAM) / "0000000001.seg"


def read(directory: Path, parts: list[bytes], last: bool) -> tuple[list[int], list[str]]:
    """The numbers of the chunks that are found, and what is wrong."""
    file = StreamFile(str(directory), STREAM, 1, last)
    path = path_of(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(segment_header(1, STREAM, 0) + b"".join(parts))
    rows = list(chunk_rows(file, DiskStore(directory)))
    return [row[4] for row in rows if row[4] is not None], [row[9] for row in rows if row[9]]


def test_chunks_of_whole_and_growing_segments_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, chunks(whole=True), last=False) == ([1, 2, 3, 4, 5], [])
    assert read(tmp_path, chunks(whole=False), last=True) == ([1, 2, 3, 4], [])


def test_torn_tail_of_the_last_segment_is_none_of_the_others(tmp_path: Path) -> None:
    for kept in (10, 63, 80):
        torn = [*chunks(whole=False)[:-1], chunks(whole=False)[-1][:kept]]
        assert read(tmp_path, torn, last=True) == ([1, 2, 3], [])
        assert read(tmp_path, torn, last=False) == ([1, 2, 3], [TRUNCATED])
    unwritten = [*chunks(whole=False), bytes(4096)]
    assert read(tmp_path, unwritten, last=True) == ([1, 2, 3, 4], [])


def test_damage_before_other_chunks_is_no_torn_tail(tmp_path: Path) -> None:
    parts = chunks(whole=False)
    parts[2] = parts[2][:-1] + b"?"
    assert read(tmp_path, parts, last=True) == ([1, 2, 4], [DAMAGED])


def test_what_was_written_while_a_segment_was_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = chunks(whole=False)
    early = parts[2][:40] + bytes(len(parts[2]) - 40)
    header = segment_header(1, STREAM, 0)
    seen = [b"".join([header, *parts[:2], early, parts[3]]), b"".join([header, *parts])]
    monkeypatch.setattr(Path, "read_bytes", lambda path: seen.pop(0))
    rows = list(chunk_rows(StreamFile(str(tmp_path), STREAM, 1, True), DiskStore(tmp_path)))
    assert [row[4] for row in rows] == [1, 2, 3, 4]
    assert seen == []


def test_segment_of_another_stream_is_damage(tmp_path: Path) -> None:
    file = StreamFile(str(tmp_path), STREAM, 1, False)
    path_of(tmp_path).parent.mkdir(parents=True)
    path_of(tmp_path).write_bytes(segment_header(1, STREAM + 1, 0) + b"".join(chunks(whole=True)))
    assert [row[9] for row in chunk_rows(file, DiskStore(tmp_path)) if row[9]] == [DAMAGED]


def test_segment_that_retention_has_removed_has_no_rows(tmp_path: Path) -> None:
    file = StreamFile(str(tmp_path), STREAM, 1, False)
    assert list(chunk_rows(file, DiskStore(tmp_path))) == []
