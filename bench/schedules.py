"""Delayed messages: what scheduling and taking back costs, how much memory waits, how exact it is.

    .venv/bin/python bench/schedules.py [--pending 1000000] [--due 5000] [--seconds 10]

A broker of its own gets so many messages with ids, due in an hour and later, then those of every
second id are taken back: rates are per second of the broker's processor time (user and system, from
/proc), so they hold on a machine that is shared; memory is the growth of its resident set. Then
another broker has `--due` messages a second come due for some seconds: how late each arrived, by
this machine's clock, at a consumer that does nothing else. What is late may be the machine. Nothing
is synced (`journal.flush = "never"`), so the disk isn't measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from rhizome.amqp import methods as m
from rhizome.amqp.frames import content_frames, method_frame
from rhizome.amqp.properties import Properties, encode_header
from rhizome.build_info import is_compiled
from rhizome.client.protocol_events import ContentReceived
from rhizome.spark.amqp_socket import AmqpSocket, addresses_of
from rhizome.testing.broker_process import BrokerProcess

EXCHANGE: Final = "later"
BATCH: Final = 500
PUBLISH: Final = method_frame(1, m.BasicPublish(EXCHANGE, "k"))
WARM: Final = 5_000
SETTINGS: Final = {"RHIZOME_JOURNAL_FLUSH": "never", "RHIZOME_BROKER_BUSY_POLL": "0us"}


def message(body: bytes, **headers: object) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    header = encode_header(len(body), Properties(headers=named, delivery_mode=2))
    return PUBLISH + content_frames(1, header, body, 131_072)


def send(socket: AmqpSocket, frames: list[bytes]) -> None:
    socket.write(memoryview(b"".join(frames)))
    while socket.unsent_bytes > 1 << 20:
        socket.exchange(0.1)


def wait(socket: AmqpSocket) -> None:
    """Until the broker has done all that was sent."""
    while socket.unsent_bytes > 0:
        socket.exchange(0.1)
    socket.call(m.QueueDeclare("q", passive=True), m.QueueDeclareOk)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def opened(broker: BrokerProcess) -> AmqpSocket:
    socket = AmqpSocket(addresses_of(broker.url)[0], "schedules")
    arguments: dict[str, object] = {"x-delayed-type": "fanout"}
    declare = m.ExchangeDeclare(EXCHANGE, "x-delayed-message", durable=True, arguments=arguments)
    socket.call(declare, m.ExchangeDeclareOk)
    socket.call(m.QueueDeclare("q", durable=True), m.QueueDeclareOk)
    socket.call(m.QueueBind("q", EXCHANGE, ""), m.QueueBindOk)
    return socket


def schedule(socket: AmqpSocket, first: int, end: int) -> None:
    for start in range(first, end, BATCH):
        numbers = range(start, min(start + BATCH, end))
        hour = 3_600_000
        send(
            socket,
            [
                message(b"x" * 100, x_delay=hour + each, x_schedule_id=f"order-{each}")
                for each in numbers
            ],
        )
    wait(socket)


def take_back(socket: AmqpSocket, first: int, end: int) -> int:
    """Take back every second one; returns how many."""
    numbers = list(range(first, end, 2))
    for start in range(0, len(numbers), BATCH):
        some = numbers[start : start + BATCH]
        send(socket, [message(b"", x_schedule_cancel=f"order-{each}") for each in some])
    wait(socket)
    return len(numbers)


def measure_rates(directory: Path, pending: int) -> None:
    broker = BrokerProcess(directory, environment=dict(SETTINGS))
    broker.start()
    try:
        socket = opened(broker)
        schedule(socket, 0, WARM)
        memory, cpu = resident_bytes(broker.pid), cpu_seconds(broker.pid)
        schedule(socket, WARM, WARM + pending)
        spent = cpu_seconds(broker.pid) - cpu
        grown = resident_bytes(broker.pid) - memory
        print(f"schedule: {pending / spent:,.0f} per CPU second", flush=True)
        print(f"memory: {grown / (1 << 20):.1f} MiB, {grown / pending:.1f} bytes each", flush=True)
        cpu = cpu_seconds(broker.pid)
        count = take_back(socket, WARM, WARM + pending)
        spent = cpu_seconds(broker.pid) - cpu
        print(f"cancel: {count / spent:,.0f} per CPU second", flush=True)
    finally:
        broker.kill()


def measure_lateness(directory: Path, due: int, seconds: int) -> None:
    """Messages come due evenly, once the last of them was sent: the consumer has nothing else to
    do then."""
    broker = BrokerProcess(directory, environment=dict(SETTINGS))
    broker.start()
    try:
        socket = opened(broker)
        count = due * seconds
        begin_ms = int(time.time() * 1000) + 5_000 + count // 10
        for start in range(0, count, BATCH):
            now_ms = int(time.time() * 1000)
            frames = []
            for number in range(start, min(start + BATCH, count)):
                due_ms = begin_ms + number * 1000 // due
                frames.append(message(b"%d" % due_ms, x_delay=due_ms - now_ms))
            send(socket, frames)
            # What waits in a buffer would come later than it says.
            wait(socket)
        if int(time.time() * 1000) >= begin_ms:
            raise SystemExit("this machine is too busy: sending took too long")
        socket.call(m.BasicConsume("q", "tag", no_ack=True), m.BasicConsumeOk)
        late: list[float] = []
        deadline = time.time() + seconds * 3 + 60
        while len(late) < count and time.time() < deadline:
            events = socket.poll(0.5)
            now = time.time() * 1000
            late += [now - int(bytes(e.body)) for e in events if isinstance(e, ContentReceived)]
        late.sort()
        shown = ", ".join(
            f"{name} {late[min(len(late) - 1, int(len(late) * part))]:.1f} ms"
            for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
        )
        print(f"late at {due:,} due per second: {shown}; {len(late):,} of {count:,} came")
        print(f"earliest: {late[0]:.1f} ms")
    finally:
        broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=10)
    chosen = parser.parse_args()
    print("compiled" if is_compiled() else "interpreted", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        if chosen.pending:
            measure_rates(Path(directory) / "rates", chosen.pending)
        if chosen.seconds:
            measure_lateness(Path(directory) / "late", chosen.due, chosen.seconds)


if __name__ == "__main__":
    main()
