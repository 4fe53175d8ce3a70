"""Append and read rates of a stream: `stream.py [--messages N] [--body BYTES]`.

Starts a broker on loopback with a throw-away store, appends to a stream over one connection with
confirms, then reads it whole over another, acknowledging many at once. All deliveries have the same
size, so the reader counts bytes and looks into the last delivery of each read only: the broker is
what is measured.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from pathlib import Path

from rhizome import build_info
from rhizome.amqp.frames import content_frames, method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicPublish,
    BasicQos,
    ChannelOpen,
    ConfirmSelect,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    Method,
    QueueDeclare,
    decode_method,
)
from rhizome.amqp.properties import Properties, encode_header
from rhizome.testing.broker_process import BrokerProcess

QUEUE = "bench-stream"
BATCH = 500
WINDOW = 20_000
PREFETCH = 60_000
ACK_EVERY = 20_000
FRAME_MAX = 131_072
ACK_BYTES = 21
OFFSET_ENTRY = b"\x0fx-stream-offsetl"


class Wire:
    """One connection with channel 1 open."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.data = b""
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.expect()
        self.send(ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"), 0)
        self.expect()
        self.send(ConnectionTuneOk(2047, FRAME_MAX, 0), 0)
        self.send(ConnectionOpen("/"), 0)
        self.expect()
        self.call(ChannelOpen())

    def send(self, method: Method, channel: int = 1) -> None:
        self.socket.sendall(method_frame(channel, method))

    def call(self, method: Method) -> Method:
        self.send(method)
        return self.expect()

    def expect(self) -> Method:
        return decode_method(self.frame()[7:-1])

    def frame(self) -> bytes:
        """The next frame, taken from the data."""
        while len(self.data) < 7 or len(self.data) < self._size():
            self.data += self.receive()
        size = self._size()
        found, self.data = self.data[:size], self.data[size:]
        return found

    def _size(self) -> int:
        return int.from_bytes(self.data[3:7], "big") + 8

    def receive(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise SystemExit("the broker closed the connection")
        return data


def append(port: int, count: int, body_bytes: int) -> float:
    """Seconds from the first publish to the last confirm."""
    wire = Wire(port)
    arguments: dict[str, object] = {"x-queue-type": "stream"}
    wire.call(QueueDeclare(QUEUE, durable=True, arguments=arguments))
    wire.call(ConfirmSelect())
    header = encode_header(body_bytes, Properties())
    contents = content_frames(1, header, bytes(body_bytes), FRAME_MAX)
    batch = (method_frame(1, BasicPublish("", QUEUE)) + contents) * BATCH
    sent = confirmed = 0
    start = time.perf_counter()
    while confirmed < count:
        while sent < count and sent - confirmed < WINDOW:
            wire.socket.sendall(batch)
            sent += BATCH
        wire.data += wire.receive()
        whole = len(wire.data) // ACK_BYTES * ACK_BYTES
        if whole:
            # Confirms rise, so the last one says it all.
            confirmed = int.from_bytes(wire.data[whole - 10 : whole - 2], "big")
            wire.data = wire.data[whole:]
    return time.perf_counter() - start


def read(port: int, count: int) -> float:
    """Seconds from the consume to the last delivery."""
    wire = Wire(port)
    wire.call(BasicQos(0, PREFETCH, False))
    start = time.perf_counter()
    wire.call(BasicConsume(QUEUE, "reader", arguments={"x-stream-offset": "first"}))
    size = len(wire.frame()) + len(wire.frame()) + len(wire.frame())
    taken = 1
    acked = 0
    while taken < count:
        wire.data += wire.receive()
        whole = len(wire.data) // size
        if whole == 0:
            continue
        taken += whole
        last = wire.data[(whole - 1) * size : whole * size]
        at = last.find(OFFSET_ENTRY) + len(OFFSET_ENTRY)
        offset = int.from_bytes(last[at : at + 8], "big")
        assert offset == taken - 1, f"offset {offset} came as delivery {taken}"
        wire.data = wire.data[whole * size :]
        if taken - acked >= ACK_EVERY:
            wire.send(BasicAck(taken, True))
            acked = taken
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=200)
    parser.add_argument("--reads", type=int, default=3)
    options = parser.parse_args()
    count = -(-options.messages // BATCH) * BATCH
    print(f"{build_info.describe()}, {count:,} messages of {options.body} B")
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory) / "broker")
        broker.start()
        try:
            seconds = append(broker.port, count, options.body)
            print(f"append, confirmed    {count / seconds:12,.0f} /s")
            for _ in range(options.reads):
                seconds = read(broker.port, count)
                print(f"read by one consumer {count / seconds:12,.0f} /s")
        finally:
            broker.stop()
            broker.close()


if __name__ == "__main__":
    main()
