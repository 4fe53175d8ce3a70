"""Round trips of a bystander: a process of its own that asks a broker for an empty queue's message,
again and again, and says how long that took at worst.

Beside the wall clock it reads the processor time of the broker's event loop from /proc. A machine
that is busy makes round trips long as well, but not by the broker's own work: what counts is the
lesser of the two. The bystander comes before all other processes where it may: if it read an answer
late, what the loop did in between, for others, would count.

`python -m tests.process.worst.round_trips PID HOST PORT VHOST` answers each line on its standard
input with the worst since the one before.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rhizome.amqp import methods
from rhizome.amqp.frames import method_frame
from rhizome.testing.broker_process import BrokerProcess
from tests.process.worst.talker import Talker

QUEUE: Final = "nothing-in-it"
PAUSE_S: Final = 0.002
ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Worst:
    """``ran_ms`` is the longest of the times that the loop ran during one round trip, or that the
    round trip took if that is less."""

    trips: int
    took_ms: float
    ran_ms: float


class RoundTrips:
    """The bystander of one broker. Its vhost must exist."""

    def __init__(self, broker: BrokerProcess, vhost: str) -> None:
        where = [str(broker.pid), broker.host, str(broker.port), vhost]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.worst.round_trips", *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self.worst()

    def worst(self) -> Worst:
        """The worst since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the bystander is gone"
        return Worst(**json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def loop_cpu_ns(pid: int) -> int:
    """Processor time of a process's main thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_bytes().split()[0])


def main(pid: int, host: str, port: int, vhost: str) -> None:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    talker = Talker(host, port, vhost)
    talker.call(methods.QueueDeclare(QUEUE, False, False, True, True, False, {}))
    question = method_frame(1, methods.BasicGet(QUEUE, True))
    descriptor = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY)
    stream: socket.socket = talker.socket
    trips, took_ns, ran_ns = 0, 0, 0
    while True:
        before_ns, began_ns = int(os.pread(descriptor, 64, 0).split()[0]), time.monotonic_ns()
        stream.sendall(question)
        talker.read_method()
        lasted_ns = time.monotonic_ns() - began_ns
        ran = int(os.pread(descriptor, 64, 0).split()[0]) - before_ns
        trips += 1
        took_ns, ran_ns = max(took_ns, lasted_ns), max(ran_ns, min(ran, lasted_ns))
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            if not sys.stdin.buffer.readline():
                return
            worst = {"trips": trips, "took_ms": took_ns / 1e6, "ran_ms": ran_ns / 1e6}
            print(json.dumps(worst), flush=True)
            trips, took_ns, ran_ns = 0, 0, 0


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
