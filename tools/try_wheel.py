"""Try the rhizome that is installed in this environment: a cluster comes up, and a message passes.

    python tools/try_wheel.py [DIRECTORY]

Starts `rhizome up` with its stores in DIRECTORY, publishes a message at one broker, gets it from
another, stops the cluster, and prints how long it took until the message was there. It needs
nothing but the package. cibuildwheel runs it for every wheel that it makes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BROKERS: Final = 3
START_SECONDS_MAX: Final = 300.0
STOP_SECONDS_MAX: Final = 120.0
HELLO: Final = b"hello"


def free_ports(count: int) -> int:
    """The first of so many loopback ports in a row that nobody listens on."""
    for first in range(21_000, 31_000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise SystemExit("error: no free ports on 127.0.0.1")


def wait_for_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while "\nready" not in output.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"error: the cluster did not come up:\n{output.read_text()}")
        time.sleep(0.05)


def say_hello(publisher: int, consumer: int) -> bytes:
    from rhizome.client.blocking import Connection

    with Connection(f"amqp://guest:guest@127.0.0.1:{publisher}/") as connection:
        channel = connection.channel(confirms=True)
        channel.declare_queue("hello", durable=True)
        channel.publish(HELLO, routing_key="hello", mandatory=True)
    with Connection(f"amqp://guest:guest@127.0.0.1:{consumer}/") as connection:
        message = connection.channel().get("hello", no_ack=True)
    return bytes(message.body) if message is not None else b""


def try_installed(directory: Path) -> float:
    """When the message had come."""
    first = free_ports(2 * BROKERS)
    output = directory / "up.txt"
    program = Path(sys.executable).with_name("rhizome")
    command = [str(program), "up", "--brokers", str(BROKERS), "--base-port", str(first)]
    command += ["--http-base-port", str(first + BROKERS), "--data", str(directory / "cluster")]
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["env", "--default-signal=INT,HUP", *command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_for_ready(process, output)
        heard = say_hello(first, first + 1)
        heard_at = time.monotonic()
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_SECONDS_MAX)
    if heard != HELLO or code != 0:
        raise SystemExit(f"error: heard {heard!r}, `up` ended with {code}:\n{output.read_text()}")
    return heard_at


def main(arguments: Sequence[str]) -> int:
    import rhizome
    from rhizome.build_info import describe

    began = time.monotonic()
    print(f"{describe()} of {os.path.dirname(rhizome.__file__)}")
    if arguments:
        heard_at = try_installed(Path(arguments[0]).absolute())
    else:
        with tempfile.TemporaryDirectory() as directory:
            heard_at = try_installed(Path(directory))
    print(f"{BROKERS} brokers, one message: first message after {heard_at - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
