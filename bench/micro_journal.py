"""Nanoseconds per journal record, and recovery speed: `micro_journal.py [backlog]`."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from rhizome.journal import checkpoint as checkpoints
from rhizome.journal.checkpoint import CheckpointBuilder
from rhizome.journal.files import DiskFiles
from rhizome.journal.journal import Journal
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.recovery import recover

MESSAGES = 200_000
BATCH = 256


def timed(label: str, count: int, seconds: float) -> None:
    print(f"{label:42s} {seconds / count * 1e9:9.0f} ns each  {count / seconds:12,.0f} /s")


def enqueue(content_bytes: int) -> None:
    journal = Journal(bytes(16))
    content = bytes(content_bytes)
    queue_ids = [7]
    start = time.perf_counter()
    for number in range(MESSAGES):
        journal.enqueue(0, 1, number, queue_ids, b"\x02ex\x03key", 1, -1, 0, 1, content)
        if number % BATCH == 0:
            journal.take()
    timed(
        f"enqueue of {content_bytes} B, batches of {BATCH}", MESSAGES, time.perf_counter() - start
    )


def dequeue() -> None:
    journal = Journal(bytes(16))
    start = time.perf_counter()
    for first in range(0, MESSAGES, BATCH):
        journal.dequeue(0, 1, 7, list(range(first, first + BATCH)))
        journal.take()
    timed(f"dequeue, one record per {BATCH}", MESSAGES, time.perf_counter() - start)


def index() -> None:
    paged = PagedIndex()
    start = time.perf_counter()
    for number in range(MESSAGES):
        paged.append(number, 1 << 32 | (64 + number))
    timed("index append", MESSAGES, time.perf_counter() - start)
    start = time.perf_counter()
    while paged.take(paged.peek_run(4096).count):
        pass
    timed("index run and take", MESSAGES, time.perf_counter() - start)


def rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def write_backlog(files: DiskFiles, messages: int) -> tuple[Journal, PagedIndex]:
    journal = Journal(bytes(16))
    paged = PagedIndex()
    content = bytes(1024)
    start = time.perf_counter()
    for number in range(1, messages + 1):
        position = journal.enqueue(0, 1, number, [7], b"\x02ex\x03key", 1, -1, 0, 1, content)
        paged.append(number, position)
        if number % 1024 == 0 or number == messages:
            for chunk in journal.take():
                if chunk.offset == 0:
                    files.create(int(chunk.segment), int(journal.segment_bytes_max))
                files.write(int(chunk.segment), int(chunk.offset), chunk.pieces)
    timed("append and write of 1 KiB, unsynced", messages, time.perf_counter() - start)
    return journal, paged


def timed_recovery(label: str, files: DiskFiles, messages: int) -> None:
    before = rss_mib()
    start = time.perf_counter()
    recovered = recover(files, bytes(16), repair=False, accept_corruption=True)
    seconds = time.perf_counter() - start
    assert recovered.queues[7].count == messages
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{label:42s} {seconds:9.2f} s, +{rss_mib() - before:.0f} MiB, peak {peak:.0f} MiB")


def recovery(messages: int) -> None:
    with tempfile.TemporaryDirectory(dir=".") as directory:
        files = DiskFiles(Path(directory))
        journal, paged = write_backlog(files, messages)
        timed_recovery(f"recovery of {messages:,} from records", files, messages)
        builder = CheckpointBuilder(int(journal.end_position()), bytes(16))
        builder.queue(7, 0, messages * 1024)
        builder.entries(0, paged)
        start = time.perf_counter()
        checkpoints.write(files, builder.pieces(clean=True))
        print(f"{'checkpoint of it':42s} {time.perf_counter() - start:9.2f} s")
        timed_recovery("recovery from the checkpoint", files, messages)


if __name__ == "__main__":
    for size in (20, 100, 1024, 2048, 4096, 16384):
        enqueue(size)
    dequeue()
    index()
    recovery(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
