"""Nanoseconds per record at a standby, and what telling a live set costs: `micro_copies.py`."""

from __future__ import annotations

import time

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.cluster.replication.catch_up_receiver import CatchUpReceiver
from rhizome.cluster.replication.catch_up_sender import CatchUpSender, LiveQueue, LiveSource
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.journal.journal import SPILL_SEGMENT_FIRST, Journal
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import FLAG_DURABLE, dequeue_record, enqueue_record

GROUP = 1
MESSAGES = 200_000
BATCH = 256


def timed(label: str, count: int, seconds: float) -> None:
    print(f"{label:48s} {seconds / count * 1e9:9.0f} ns each  {count / seconds:12,.0f} /s")


def new_copy() -> GroupCopy:
    return GroupCopy(GROUP, Journal(bytes(16)), Journal(bytes(16), segment=SPILL_SEGMENT_FIRST))


def batches(content_bytes: int, flags: int) -> list[bytes]:
    """The records of messages, each batch with the dequeues of the one before."""
    content = bytes(content_bytes)
    found = []
    index = 1
    for first in range(0, MESSAGES, BATCH):
        parts = []
        for _ in range(BATCH):
            parts.append(
                enqueue_record(
                    *(GROUP, 1, index, [7], b"\x02ex\x03key", 1, -1, 0, flags, content, 0xA, index)
                )
            )
            index += 1
        if first:
            gone = list(range(index - 2 * BATCH - 1, index - BATCH - 1))
            parts.append(dequeue_record(GROUP, 1, index, 7, gone, flags))
        index += 1
        found.append(b"".join(parts))
    return found


def apply(content_bytes: int, flags: int) -> None:
    copy = new_copy()
    made = batches(content_bytes, flags)
    start = time.perf_counter()
    for data in made:
        copy.apply(data, 0, len(data))
        copy.journal.take()
        copy.spill.take()
    kind = "durable" if flags else "transient"
    label = f"apply {kind} messages of {content_bytes} B, dequeued"
    timed(label, MESSAGES, time.perf_counter() - start)


class Source(LiveSource):
    def __init__(self, parts: list[PagedIndex]) -> None:
        super().__init__()
        self.parts = parts

    def queue_ids(self) -> list[int]:
        return [7]

    def live(self, queue_id: int) -> LiveQueue | None:
        return LiveQueue(self.parts, {}, None, {}, b"")


def tell(messages: int, step: int) -> None:
    """Tell a standby that has nothing what is alive, every `step`-th index."""
    index = PagedIndex()
    for number in range(messages):
        index.append(1 + number * step, 1 << 32 | (64 + number))
    end = messages * step
    source = Source([index])
    copy = new_copy()
    listing = CatchUpSender(1, refusals=True)
    log = GroupLog(GROUP, 1, end + 1)
    size = 0
    frames = 0
    start = time.perf_counter()
    install = CatchUpReceiver(copy, end)
    while not listing.done:
        data = listing.next_frame(source, log, end).frame(GROUP, 1, end, 1, 0)[1]
        install.take(data, 0, len(data))
        size += len(data)
        frames += 1
    seconds = time.perf_counter() - start
    timed(f"tell {messages:,} messages, one of {step} alive", messages, seconds)
    print(f"{'':48s} {size:9,} bytes in {frames} frames")


def main() -> None:
    for content_bytes in (16, 1024):
        for flags in (FLAG_DURABLE, 0):
            apply(content_bytes, flags)
    tell(1_000_000, 1)
    tell(200_000, 2)


if __name__ == "__main__":
    main()
