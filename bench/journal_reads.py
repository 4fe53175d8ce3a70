"""What readers of journals cost publishers: `journal_reads.py [--messages N] [--rounds R]`.

A lone broker on loopback with a throw-away store. Persistent messages of 1 kB are published with
confirms, in turns with two processes that read the journal through the HTTP API and without them.
They read as the tasks of `rhizome pipeline audit --uri` do, again and again, as fast as
`journal.read_rate` lets them.

The wall clock tells little on a machine that does other things. Beside it stand CPU seconds of the
broker per million messages: of its event loop, which is what publishers wait for, and of all its
threads. The medians of all rounds count. Last, the readers read while nobody publishes: what the
event loop takes then is theirs alone, and tells best what they cost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from rhizome import build_info
from rhizome.client.blocking import Connection
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.journal.remote_broker_stores import PATH, JournalClient, http_addresses
from rhizome.spark.sink.confirmed_publisher import Publisher
from rhizome.spark.sink.publish_frames import Addressing, FrameBatch, Framer
from rhizome.testing.broker_process import BrokerProcess, wait_until

QUEUE = "bench-journal-reads"
BODY_BYTES = 1000
BATCH = 2000
READERS = 2
RANGE_BYTES = 4 << 20
ALONE_BYTES = 256 << 20
RATE_DEFAULT = 16 << 20


@dataclass(frozen=True)
class Turn:
    """One turn of publishing; CPU seconds are the broker's."""

    seconds: float
    loop_s: float
    all_s: float
    read_bytes: int


def cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of a broker's event loop, which is its first thread, and of all its threads."""
    used = {
        path.parent.name: int(path.read_text().split()[0]) / 1e9
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    }
    return used[str(pid)], sum(used.values())


def read_on(uri: str, going: Event, reading: Any, read: Any) -> None:
    """Read all parts of the journal again and again while `going` is set."""
    client = JournalClient(http_addresses(uri), 60)
    (row,) = client.document("GET", PATH)
    pins = f"{PATH}/{row['broker']}/pins"
    while True:
        going.wait()
        with reading.get_lock():
            reading.value += 1
        pin = client.document("POST", pins)
        for part in pin["parts"]:
            for offset in range(0, part["size"], RANGE_BYTES):
                if not going.is_set():
                    break
                size = min(RANGE_BYTES, part["size"] - offset)
                client.range_of(f"{pins}/{pin['pin']}/{part['name']}", offset, size)
                with read.get_lock():
                    read.value += size
        client.document("DELETE", f"{pins}/{pin['pin']}")
        with reading.get_lock():
            reading.value -= 1


class Bench:
    """The broker, the frames of a batch, and the readers."""

    def __init__(self, broker: BrokerProcess, messages: int) -> None:
        self.broker = broker
        self.messages = messages
        self.going = multiprocessing.Event()
        self.read = multiprocessing.Value("q", 0)
        self.reading = multiprocessing.Value("q", 0)
        with Connection(broker.url) as connection:
            connection.channel().declare_queue(QUEUE, durable=True)
        self.frames = self._frames()

    def _frames(self) -> FrameBatch:
        batch = pa.record_batch({"value": pa.array([b"x" * BODY_BYTES] * BATCH, pa.binary())})
        return Framer(Addressing("", QUEUE, True, True), 131_072).frames(batch, None)

    def readers_alone(self) -> Turn:
        """Readers of what a turn has left behind, while nobody publishes."""
        self.going.set()
        wait_until(lambda: self.reading.value == READERS, "the readers to begin")
        begun = (time.perf_counter(), *cpu_s(self.broker.pid), self.read.value)
        wait_until(lambda: self.read.value - begun[3] > ALONE_BYTES, "the readers to read", 600)
        ended = (time.perf_counter(), *cpu_s(self.broker.pid), self.read.value)
        self.going.clear()
        wait_until(lambda: self.reading.value == 0, "the readers to rest")
        return Turn(*(after - before for after, before in zip(ended, begun, strict=True)))

    def turn(self, with_readers: bool) -> Turn:
        publisher = Publisher(addresses_of(self.broker.url), "bench", 600)
        if with_readers:
            self.going.set()
        begun = (time.perf_counter(), *cpu_s(self.broker.pid), self.read.value)
        for _ in range(self.messages // BATCH):
            publisher.publish(self.frames)
        publisher.finish()
        ended = (time.perf_counter(), *cpu_s(self.broker.pid), self.read.value)
        self.going.clear()
        wait_until(lambda: self.reading.value == 0, "the readers to rest")
        with Connection(self.broker.url) as connection:
            connection.channel().purge_queue(QUEUE)
        return Turn(*(after - before for after, before in zip(ended, begun, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print(f"compiled: {build_info.is_compiled()}; load: {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[bool, list[Turn]] = {False: [], True: []}
    with (
        tempfile.TemporaryDirectory(prefix="rhizome-bench-") as name,
        BrokerProcess(Path(name) / "broker") as broker,
    ):
        bench = Bench(broker, args.messages)
        readers = [
            multiprocessing.Process(
                target=read_on,
                args=(broker.http_url, bench.going, bench.reading, bench.read),
                daemon=True,
            )
            for _ in range(READERS)
        ]
        for each in readers:
            each.start()
        bench.turn(with_readers=True)
        for _ in range(args.rounds):
            for with_readers in (False, True):
                found[with_readers].append(bench.turn(with_readers))
                print(with_readers, found[with_readers][-1], flush=True)
        alone = bench.readers_alone()
        for each in readers:
            each.terminate()
    tell(found, args.messages)
    tell_alone(alone)


def tell_alone(turn: Turn) -> None:
    mib = turn.read_bytes / (1 << 20)
    loop_ms, all_ms = turn.loop_s * 1000 / mib, turn.all_s * 1000 / mib
    share = loop_ms * RATE_DEFAULT / (1 << 20) / 1000
    print(
        f"readers alone, {mib / turn.seconds:.1f} MiB/s: {loop_ms:.2f} ms of the event loop and"
        f" {all_ms:.2f} ms of all threads per MiB; journal.read_rate by default would take"
        f" {share:.1%} of the loop"
    )


def tell(found: dict[bool, list[Turn]], messages: int) -> None:
    print("| readers | messages/s | loop CPU s per million | all CPU s per million | MiB/s read |")
    print("|---|---|---|---|---|")
    for with_readers, turns in found.items():
        rate = median(messages / each.seconds for each in turns)
        loop_s, all_s = (
            median(getattr(each, name) for each in turns) * 1e6 / messages
            for name in ("loop_s", "all_s")
        )
        mib = median(each.read_bytes / each.seconds for each in turns) / (1 << 20)
        who = str(READERS) if with_readers else "none"
        print(f"| {who} | {rate:,.0f} | {loop_s:.2f} | {all_s:.2f} | {mib:.1f} |")
    extra = [
        (reading.loop_s - alone.loop_s) * 1000 * (1 << 20) / reading.read_bytes
        for alone, reading in zip(found[False], found[True], strict=True)
    ]
    print(f"event loop: {median(extra):.2f} ms per MiB that is read, in each round:", end=" ")
    print(", ".join(f"{each:.2f}" for each in extra))
    ratios = [
        alone.seconds / reading.seconds
        for alone, reading in zip(found[False], found[True], strict=True)
    ]
    print(f"rate with readers: {median(ratios):.2f} of that without, in each round:", end=" ")
    print(", ".join(f"{each:.2f}" for each in ratios))


if __name__ == "__main__":
    main()
