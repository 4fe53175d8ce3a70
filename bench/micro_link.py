"""Nanoseconds per frame of a link, written and read, by size of the content.

    python bench/micro_link.py

What a message between two brokers costs beside the sockets and what is in it; then the same with
MACs (docs/adr/0018-links-have-macs.md), in writes as large as a batch. Last, what it costs to find
the handler of a frame: the link of a whole broker reads CREDIT frames for a consumer that is gone.
"""

from __future__ import annotations

import time
from typing import Final

from rhizome.broker.connection.outbox import Outbox
from rhizome.cluster.link import frame_codec as frames_module
from rhizome.cluster.link.frame_codec import FrameSink, LinkReader, put_frame_of
from rhizome.cluster.link.link import BATCH_BYTES
from rhizome.cluster.link.mac_records import MacReader, MacWriter
from rhizome.cluster.protocol.edge_home_codec import put_credit
from rhizome.testing.in_memory_cluster import make_cluster

ROUNDS: Final = 15
FRAMES_PER_ROUND: Final = 2_000
FRAMES_READ: Final = 2_000
KEY: Final = b"k" * 32
READ_BYTES: Final = 64 * 1024
FIELDS: Final = b"f" * 24


class Counter(FrameSink):
    """Takes frames and looks at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def frame(self, method: int, data: bytes, start: int, end: int) -> None:
        self.count += 1


def write_ns(content: bytes, macs: bool) -> float:
    """CPU time per frame in the best of several rounds: other processes hardly count."""
    best = float("inf")
    for _ in range(ROUNDS):
        outbox = Outbox()
        writer = MacWriter(KEY)
        started = time.process_time_ns()
        for _ in range(FRAMES_PER_ROUND):
            put_frame_of(outbox, 16, FIELDS, content)
            if outbox.size() >= BATCH_BYTES:
                chunks = outbox.take()
                if macs:
                    writer.records(chunks)
        best = min(best, (time.process_time_ns() - started) / FRAMES_PER_ROUND)
    return best


def written(content: bytes, macs: bool) -> list[bytes]:
    """Some thousand frames, as reads of a socket's size have them."""
    outbox, writer = Outbox(), MacWriter(KEY)
    stream: list[bytes] = []
    for at in range(FRAMES_READ):
        put_frame_of(outbox, 16, FIELDS, content)
        if outbox.size() >= BATCH_BYTES or at == FRAMES_READ - 1:
            chunks = outbox.take()
            stream += writer.records(chunks) if macs else chunks
    data = b"".join(stream)
    return [data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES)]


def read_ns(content: bytes, macs: bool) -> float:
    reads = written(content, macs)
    best = float("inf")
    for _ in range(ROUNDS):
        sink = Counter()
        reader = LinkReader(sink, 1 << 30)
        checked = MacReader(reader, KEY)
        started = time.process_time_ns()
        for data in reads:
            if macs:
                checked.receive(data)
            else:
                reader.receive(data)
        best = min(best, (time.process_time_ns() - started) / sink.count)
        assert sink.count == FRAMES_READ
    return best


def handled_ns() -> float:
    """CPU time per frame, from the bytes of a read to the end of its handler."""
    link = make_cluster(2)["b1"].links.link_to("b2")
    assert link is not None
    outbox = Outbox()
    for _ in range(FRAMES_READ):
        put_credit(outbox, 0xFFFFFFFF, 1)
    data = b"".join(outbox.take())
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        link.reader.receive(data)
        best = min(best, (time.process_time_ns() - started) / FRAMES_READ)
    return best


def main() -> None:
    compiled = not str(frames_module.__file__).endswith(".py")
    print(f"links are {'compiled' if compiled else 'interpreted'}; ns per frame")
    print(f"{'content':>12}{'write':>9}{'read':>9}{'write+MAC':>12}{'read+MAC':>12}")
    for size in (16, 128, 1024, 16 * 1024, 256 * 1024):
        content = b"x" * size
        plain = f"{write_ns(content, False):9.0f}{read_ns(content, False):9.0f}"
        macs = f"{write_ns(content, True):12.0f}{read_ns(content, True):12.0f}"
        print(f"{size:>10} B{plain}{macs}")
    print(f"{'handled':>12}{handled_ns():18.0f}")


if __name__ == "__main__":
    main()
