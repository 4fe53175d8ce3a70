"""Nanoseconds per frame of a link, written and read, by size of the content.

    python bench/micro_link.py

What a message between two brokers costs beside the sockets and what is in it.
"""

from __future__ import annotations

import time
from typing import Final

from rhizome.broker.outbox import Outbox
from rhizome.cluster.link import frames as frames_module
from rhizome.cluster.link.frames import FrameSink, LinkReader, put_frame_of
from rhizome.cluster.link.link import BATCH_BYTES

ROUNDS: Final = 15
FRAMES_PER_ROUND: Final = 20_000
READ_BYTES: Final = 64 * 1024
FIELDS: Final = b"f" * 24


class Counter(FrameSink):
    """Takes frames and looks at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def frame(self, method: int, data: bytes, start: int, end: int) -> None:
        self.count += 1


def write_ns(content: bytes) -> float:
    """CPU time per frame in the best of several rounds: other processes hardly count."""
    best = float("inf")
    for _ in range(ROUNDS):
        outbox = Outbox()
        started = time.process_time_ns()
        for _ in range(FRAMES_PER_ROUND):
            put_frame_of(outbox, 16, FIELDS, content)
            if outbox.size() >= BATCH_BYTES:
                outbox.take()
        best = min(best, (time.process_time_ns() - started) / FRAMES_PER_ROUND)
    return best


def read_ns(content: bytes) -> float:
    """Of a stream that comes in reads of a socket's size."""
    outbox = Outbox()
    for _ in range(100):
        put_frame_of(outbox, 16, FIELDS, content)
    stream = b"".join(outbox.take())
    reads = [stream[at : at + READ_BYTES] for at in range(0, len(stream), READ_BYTES)]
    best = float("inf")
    for _ in range(ROUNDS):
        sink = Counter()
        reader = LinkReader(sink, 1 << 30)
        started = time.process_time_ns()
        for _ in range(FRAMES_PER_ROUND // 100):
            for data in reads:
                reader.receive(data)
        best = min(best, (time.process_time_ns() - started) / sink.count)
    return best


def main() -> None:
    compiled = not str(frames_module.__file__).endswith(".py")
    print(f"links are {'compiled' if compiled else 'interpreted'}; ns per frame")
    print(f"{'content':>12}{'write':>9}{'read':>9}")
    for size in (16, 1024, 16 * 1024, 256 * 1024):
        content = b"x" * size
        print(f"{size:>10} B{write_ns(content):9.0f}{read_ns(content):9.0f}")


if __name__ == "__main__":
    main()
