"""Fan-out over a cluster: one publisher, many subscribers with private queues; and the churn of
private bindings.

    .venv/bin/python bench/fanout.py [--subscribers 1000] [--messages 2000] [--bindings 100000]

Clusters of growing size are measured in turn with the same subscribers, spread over the brokers.
Copies on links are counted by what the publisher's broker has sent, in messages of the size that it
was given. Generator and brokers share the cores of this machine; what a broker costs is therefore
told as its processor time, from /proc, and with it what the cluster would do with a core each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import socket
import sqlite3
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from history import remember, verdict
from measure import allow_open_files, expect, method, open_connection, receive, short_string

from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess

BODY = b"x" * 128
BATCH = 50
SIZES = ((1, 0), (3, 0), (3, 2))
BINDERS = 200
CHURN_SECONDS_MAX = 30.0
COPIES_MAX = 1.25
"""Bytes on a link for each message, in messages: one, its frame and what else links say."""

EMPTY_TABLE = (0).to_bytes(4, "big")


@dataclass(frozen=True)
class Spread:
    """What one cluster did. Seconds of processor are of all brokers, and of the busiest."""

    brokers: int
    rate: float
    cpu_per_million: float
    busiest_per_million: float
    copies_per_link: float

    @property
    def rate_with_a_core_each(self) -> float:
        return 1e6 / self.busiest_per_million


def declare_private(stream: socket.socket) -> bytes:
    """A private queue with a name from its broker."""
    stream.sendall(method(1, 50, 10, b"\0\0" + short_string(b"") + b"\x04" + EMPTY_TABLE))
    answer = expect(stream, 50, 11)
    return answer[5 : 5 + answer[4]]


def bind(queue: bytes, exchange: bytes, key: bytes) -> bytes:
    fields = b"\0\0" + short_string(queue) + short_string(exchange) + short_string(key)
    return method(1, 50, 20, fields + b"\0" + EMPTY_TABLE)


def subscribe(port: int) -> socket.socket:
    stream = open_connection(port)
    queue = declare_private(stream)
    stream.sendall(bind(queue, b"amq.fanout", b""))
    expect(stream, 50, 21)
    fields = b"\0\0" + short_string(queue) + short_string(b"c") + b"\x02" + EMPTY_TABLE
    stream.sendall(method(1, 60, 20, fields))
    expect(stream, 60, 21)
    stream.setblocking(False)
    return stream


def publish_frames(count: int) -> bytes:
    publish = method(1, 60, 40, b"\0\0" + short_string(b"amq.fanout") + short_string(b"") + b"\0")
    header = (60).to_bytes(2, "big") + b"\0\0" + len(BODY).to_bytes(8, "big") + b"\0\0"
    return (publish + frame(2, header) + frame(3, BODY)) * count


def frame(kind: int, payload: bytes) -> bytes:
    head = bytes([kind]) + (1).to_bytes(2, "big") + len(payload).to_bytes(4, "big")
    return head + payload + b"\xce"


def delivery_bytes() -> int:
    """Of one message at a subscriber."""
    deliver = method(1, 60, 60, short_string(b"c") + bytes(9) + short_string(b"amq.fanout") + b"\0")
    return len(deliver) + len(frame(2, bytes(14))) + len(frame(3, BODY))


class Audience:
    """Subscribers that only count what comes."""

    def __init__(self, streams: list[socket.socket]) -> None:
        self._selector = selectors.DefaultSelector()
        self.received = 0
        for stream in streams:
            self._selector.register(stream, selectors.EVENT_READ)

    def read_until(self, wanted: int) -> None:
        while self.received < wanted:
            ready = self._selector.select(60)
            if not ready:
                raise TimeoutError(f"{wanted - self.received} bytes are missing")
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                self.received += len(key.fileobj.recv(1 << 18))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def metrics(broker: BrokerProcess) -> str:
    request = urllib.request.Request(f"{broker.http_url}/metrics")
    request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def link_bytes(broker: BrokerProcess) -> dict[str, float]:
    """Broker -> bytes that this one has sent to it."""
    found = re.findall(
        r'^rhizome_link_sent_bytes(?:_total)?\{[^}]*peer="([^"]+)"[^}]*\} (\S+)$',
        metrics(broker),
        re.MULTILINE,
    )
    return {name: float(value) for name, value in found}


def fan_out(cluster: ClusterProcess, subscribers: int, messages: int) -> Spread:
    brokers = list(cluster.brokers.values())
    streams = [subscribe(brokers[n % len(brokers)].port) for n in range(subscribers)]
    audience = Audience(streams)
    publisher = open_connection(brokers[0].port)
    frames = publish_frames(BATCH)
    each = delivery_bytes() * subscribers
    publisher.sendall(frames)
    audience.read_until(BATCH * each)
    sent = BATCH
    before = [cpu_seconds(broker.pid) for broker in brokers]
    links_before = link_bytes(brokers[0])
    begun = time.monotonic()
    while sent < messages + BATCH:
        publisher.sendall(frames)
        sent += BATCH
        audience.read_until((sent - BATCH) * each)
    audience.read_until(sent * each)
    seconds = time.monotonic() - begun
    spent = [cpu_seconds(b.pid) - was for b, was in zip(brokers, before, strict=True)]
    more = {name: now - links_before[name] for name, now in link_bytes(brokers[0]).items()}
    copies = max(more.values(), default=0.0) / (messages * len(BODY + bytes(64)))
    for stream in [*streams, publisher]:
        stream.close()
    millions = messages * subscribers / 1e6
    return Spread(
        len(brokers),
        messages * subscribers / seconds,
        sum(spent) / millions,
        max(spent) / millions,
        copies,
    )


def churn(cluster: ClusterProcess, bindings: int) -> dict[str, Any]:
    """Bind so many keys of private queues, and let go of them; twice, for what is left behind."""
    names = list(cluster.brokers)
    figures: dict[str, Any] = {"bindings": bindings}
    for turn in ("first", "second"):
        index = log_index(cluster)
        rss = {name: rss_bytes(cluster.brokers[name].pid) for name in names}
        binders = [open_connection(cluster.brokers["b1"].port) for _ in range(BINDERS)]
        queues = [declare_private(stream) for stream in binders]
        begun = time.monotonic()
        bind_all(binders, queues, bindings // BINDERS)
        figures[f"{turn}_seconds"] = time.monotonic() - begun
        grown = {name: rss_bytes(cluster.brokers[name].pid) - rss[name] for name in names}
        figures[f"{turn}_bytes_each"] = {n: round(grown[n] / bindings) for n in names}
        figures[f"{turn}_entries"] = log_index(cluster) - index
        begun = time.monotonic()
        for stream in binders:
            stream.close()
        wait_until(lambda: connections(cluster) == 0, "the binders to be gone", 120)
        figures[f"{turn}_gone_seconds"] = time.monotonic() - begun
    return figures


def bind_all(binders: list[socket.socket], queues: list[bytes], each: int) -> None:
    """All binders at once, each with its commands pipelined; until every bind-ok has come."""
    ok = len(method(1, 50, 21, b""))
    for number, (stream, queue) in enumerate(zip(binders, queues, strict=True)):
        keys = [f"churn.{number}.{n}".encode() for n in range(each)]
        stream.sendall(b"".join(bind(queue, b"amq.topic", key) for key in keys))
    for stream in binders:
        receive(stream, each * ok)


def log_index(cluster: ClusterProcess) -> int:
    """The last entry of the cluster's log, as the store of a broker has it."""
    path = first(cluster).data / "cluster" / "state.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        (last,) = store.execute("SELECT max(idx) FROM entries").fetchone()
    return int(last or 0)


def connections(cluster: ClusterProcess) -> int:
    brokers = cluster.status("b1").get("brokers", [])
    return sum(int(each["connections"]) for each in brokers if each["name"] == "b1")


def first(cluster: ClusterProcess) -> BrokerProcess:
    return cluster.brokers["b1"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--bindings", type=int, default=100_000)
    options = parser.parse_args()
    allow_open_files(2 * options.subscribers + 1000)
    spreads: list[Spread] = []
    churned: dict[str, Any] = {}
    for primaries, secondaries in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            cluster = ClusterProcess(Path(directory) / "c", primaries, secondaries)
            try:
                cluster.start()
                spread = fan_out(cluster, options.subscribers, options.messages)
                spreads.append(spread)
                print(
                    f"{spread.brokers} brokers: {spread.rate:,.0f} deliveries/s,"
                    f" {spread.cpu_per_million:.2f} s of processor per million,"
                    f" {spread.rate_with_a_core_each:,.0f}/s with a core each,"
                    f" {spread.copies_per_link:.2f} copies per link and message"
                )
                if (primaries, secondaries) == SIZES[-1]:
                    churned = churn(cluster, options.bindings)
                    print(f"churn: {churned}")
            except BaseException:
                print(cluster.printed(), file=sys.stderr)
                raise
            finally:
                cluster.kill()
    most = max(spread.copies_per_link for spread in spreads)
    verdict("copies per link and message", most, most <= COPIES_MAX, 1.0)
    seconds = float(churned["first_seconds"])
    verdict("seconds of churn", seconds, seconds < CHURN_SECONDS_MAX, CHURN_SECONDS_MAX)
    remember({"fanout": [vars(each) for each in spreads], "churn": churned})
    return 0


if __name__ == "__main__":
    sys.exit(main())
