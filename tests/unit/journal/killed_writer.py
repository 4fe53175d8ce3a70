"""A process to be killed: enqueues, dequeues, checkpoints, and says what is durable."""

from __future__ import annotations

import queue
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rhizome.journal.store import JournalStore, StoreOptions

KEPT = 50


class Loop:
    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.token = 0

    def durable(self, token: int) -> None:
        self.token = token

    def alarm(self, text: str) -> None:
        raise AssertionError(text)

    def failed(self, error: BaseException) -> None:
        raise error


def main(directory: Path) -> None:
    loop = Loop()
    options = StoreOptions(segment_bytes_max=64 * 1024, checkpoint_bytes=256 * 1024)
    store = JournalStore(directory, bytes(16), loop, loop.calls.put, options)
    live: deque[tuple[int, int]] = deque()
    if 1 in store.recovered.queues:
        live.extend(store.recovered.queues[1].in_order().positions())
    index = store.recovered.groups[0].index if store.recovered.groups else 0
    while True:
        for _ in range(7):
            index += 1
            content = b"%d" % index * 100
            live.append((index, store.journal.enqueue(0, 1, index, [1], b"", 0, -1, 0, 1, content)))
        gone = [live.popleft() for _ in range(max(0, len(live) - KEPT))]
        store.journal.dequeue(0, 1, 1, [number for number, _ in gone])
        for _, position in gone:
            store.journal.release(position)
        token = store.submit()
        if store.checkpoint_due():
            builder = store.begin_checkpoint()
            builder.group(0, 1, index)
            builder.queue(1, 0)
            builder.pairs(0, list(live))
            store.checkpoint(builder)
        while loop.token < token:
            loop.calls.get()()
        sys.stdout.write(f"{live[0][0]} {index}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
