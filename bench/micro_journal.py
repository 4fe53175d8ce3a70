"""Nanoseconds per journal record, and recovery speed: `python bench/micro_journal.py [messages]`."""

from __future__ import annotations

import time

from rhizome.journal.index import PagedIndex
from rhizome.journal.journal import Journal

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


if __name__ == "__main__":
    for size in (20, 100, 1024, 2048, 4096, 16384):
        enqueue(size)
    dequeue()
    index()
