"""One measurement of one broker: amqpload runs, backlogs, restarts, idle connections."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from brokers import BrokerUnderTest, settled_rss_bytes
from scenarios import LATENCY_FLAGS, Backlog

HERE = Path(__file__).resolve().parent
BINARY = HERE / "bin" / "amqpload"
RUN_SECONDS_MAX = 900
DRAIN_SECONDS_MAX = 60
FILES_PER_CONNECTION_SPARE = 500
MIB = 1 << 20

Result = dict[str, Any]


class MeasurementError(Exception):
    """amqpload could not run, or what it received was not what it had sent."""


def build_amqpload() -> None:
    source = HERE / "amqpload.c"
    if BINARY.exists() and BINARY.stat().st_mtime > source.stat().st_mtime:
        return
    BINARY.parent.mkdir(exist_ok=True)
    flags = ["-O2", "-Wall", "-Wextra", "-pthread"]
    subprocess.run(["cc", *flags, "-o", str(BINARY), str(source)], check=True)


def amqpload(broker: BrokerUnderTest, *flags: str) -> Result:
    """Run the generator and return its line. Every message was checked, or this raises."""
    command = [str(BINARY), "--json", "--port", str(broker.port), *flags]
    command += ["--drain", str(DRAIN_SECONDS_MAX)]
    for pid in broker.pids():
        command += ["--pid", str(pid)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    result: Result = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    if done.returncode != 0 or not result.get("ok"):
        raise MeasurementError(
            f"{broker.name}: {' '.join(flags)}: exit {done.returncode}: {done.stderr.strip()} "
            f"{done.stdout.strip()}"
        )
    return result


def throughput(broker: BrokerUnderTest, flags: tuple[str, ...], seconds: float) -> Result:
    line = amqpload(broker, *flags, "--seconds", str(seconds), "--warmup", "1")
    return {
        "rate": line["con_s"],
        "cpu_per_million": line["cpu_s_per_1m_con"],
        "broker_cpu": line["broker_cpu"],
    }


def latency(broker: BrokerUnderTest, seconds: float) -> Result:
    line = amqpload(broker, *LATENCY_FLAGS, "--seconds", str(seconds), "--warmup", "1")
    return {
        "p50_us": line["lat_us"]["p50"],
        "p99_us": line["lat_us"]["p99"],
        "p999_us": line["lat_us"]["p999"],
        "cpu_per_million": line["cpu_s_per_1m_con"],
    }


def fill(broker: BrokerUnderTest, messages: int, flags: tuple[str, ...]) -> Result:
    count = ("--consumers", "0", "--count", str(messages), "--confirm", "1000", "--keep")
    return amqpload(broker, *flags, *count)


def backlog(broker: BrokerUnderTest, scenario: Backlog, messages: int, seconds: float) -> Result:
    """Growth of the memory with the backlog, and the rate of its drain beside an empty queue's.

    The broker is fresh, so that memory kept from earlier runs can't hide the growth.
    """
    broker.restart_empty()
    acked = (*scenario.flags, "--ack", "1000")
    paced = ("--confirm", "1000", "--seconds", str(seconds))
    empty_rate = amqpload(broker, *acked, *paced)["con_s"]
    broker.restart_empty()
    before = settled_rss_bytes(broker)
    filled = fill(broker, messages, scenario.flags)
    after = settled_rss_bytes(broker)
    drained = amqpload(broker, *acked, "--reuse", "--publishers", "0")
    return {
        "messages": messages,
        "growth_mib": (after - before) / MIB,
        "fill_rate": filled["pub_s"],
        "drain_rate": drained["con_s"],
        "empty_rate": empty_rate,
        "drain_ratio": drained["con_s"] / empty_rate,
    }


def restart(broker: BrokerUnderTest, messages: int) -> Result:
    """Seconds from the start of the process to its first answer, on a store full of messages."""
    flags = ("--body", "1024", "--durable", "--persistent")
    broker.restart_empty()
    fill(broker, messages, flags)
    seconds: Result = {"messages": messages}
    for how, end in (("clean", broker.stop), ("killed", broker.kill)):
        end()
        begun = time.monotonic()
        broker.start()
        seconds[f"{how}_seconds"] = time.monotonic() - begun
    drained = amqpload(broker, *flags, "--ack", "1000", "--reuse", "--publishers", "0")
    if drained["consumed"] != messages:
        raise MeasurementError(f"{broker.name} lost messages: {drained['consumed']} of {messages}")
    return seconds


def idle_connections(broker: BrokerUnderTest, connections: int) -> Result:
    """Memory per connection that is open and does nothing, with one channel each."""
    allow_open_files(connections + FILES_PER_CONNECTION_SPARE)
    broker.restart_empty()
    before = settled_rss_bytes(broker)
    streams: list[socket.socket] = []
    try:
        for _ in range(connections):
            streams.append(open_connection(broker.port))
        after = settled_rss_bytes(broker)
    finally:
        for stream in streams:
            stream.close()
    return {"connections": connections, "kib_each": (after - before) / 1024 / connections}


def allow_open_files(wanted: int) -> None:
    """For us; the brokers must have inherited as much, see run.py."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise MeasurementError(f"{wanted} open files are needed, {hard} allowed: ulimit -n")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_connection(port: int) -> socket.socket:
    """An AMQP connection with channel 1 open and heartbeats off, by hand: cheap for us."""
    stream = socket.create_connection(("127.0.0.1", port), timeout=30)
    stream.sendall(b"AMQP\0\0\x09\x01")
    expect(stream, 10, 10)
    response = b"\0guest\0guest"
    start_ok = long_string(b"") + short_string(b"PLAIN") + long_string(response)
    stream.sendall(method(0, 10, 11, start_ok + short_string(b"en_US")))
    tune = expect(stream, 10, 30)
    channel_max_and_frame_max = tune[4:10]
    tune_ok = method(0, 10, 31, channel_max_and_frame_max + b"\0\0")
    stream.sendall(tune_ok + method(0, 10, 40, short_string(b"/") + b"\0\0"))
    expect(stream, 10, 41)
    stream.sendall(method(1, 20, 10, b"\0"))
    expect(stream, 20, 11)
    return stream


def method(channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
    payload = class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + arguments
    head = b"\x01" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big")
    return head + payload + b"\xce"


def short_string(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long_string(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def expect(stream: socket.socket, class_id: int, method_id: int) -> bytes:
    head = receive(stream, 7)
    payload = receive(stream, int.from_bytes(head[3:7], "big") + 1)
    got = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
    if got != (class_id, method_id):
        raise MeasurementError(f"expected method {class_id}.{method_id}, got {got[0]}.{got[1]}")
    return payload


def receive(stream: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = stream.recv(size - len(parts))
        if not part:
            raise MeasurementError("the broker closed the connection during the handshake")
        parts += part
    return bytes(parts)
