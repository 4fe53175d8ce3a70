"""Instructions per message of a broker core, for a few scenarios of `make bench`.

    python bench/micro_core.py [TREE ...]

Each TREE is a checkout with its hot modules compiled; without one it is this one. A core without
sockets, disk or clock is fed the same bytes in every tree, under callgrind, so the figures repeat
to a few tenths of a percent whatever else the machine does. They leave out system calls and the
event loop; `bench/compare.py` has those, and the noise of the machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
SCENARIOS: Final = (
    "auto-ack",
    "confirm-ack",
    "ack-single",
    "durable",
    "keys",
    "window-1",
    "fanout",
)
BATCH: Final = 100
FANOUT_BATCH: Final = 2500
"""As many messages of a fan-out as a busy publisher feeds into one turn: what the output of a large
turn costs shows in no small one."""
FANOUT_QUEUES: Final = 10
FANOUT_TURNS: Final = 8
TURNS: Final = 60
"""A run has this many turns, another twice as many: their difference holds no start."""


def instructions(tree: Path, scenario: str, turns: int) -> int:
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "RHIZOME_PURE": "",
        "PYTHONHASHSEED": "0",
    }
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [sys.executable, __file__, "--run", scenario, str(turns)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"{tree}: {scenario}: {done.stderr[-2000:]}")
    return int(found[1])


def per_message(tree: Path, scenario: str) -> float:
    """Per delivery in the case of a fan-out."""
    turns = FANOUT_TURNS if scenario == "fanout" else TURNS
    messages = turns * (1 if scenario == "window-1" else BATCH)
    if scenario == "fanout":
        messages = turns * FANOUT_BATCH * FANOUT_QUEUES
    first, second = (instructions(tree, scenario, each) for each in (turns, 2 * turns))
    return (second - first) / messages


def run_fanout(turns: int) -> None:
    """One publisher, an exchange with ten queues, each with a consumer of its own."""
    from rhizome.amqp.methods import QueueBind, QueueBindOk
    from rhizome.testing.in_memory_broker import CoreClient, make_core

    core = make_core()
    publisher = core.connect()

    def drop_output(client: CoreClient) -> None:
        client.connection.outbox.take()
        client.connection.flushed()

    for number in range(FANOUT_QUEUES):
        consumer = core.connect()
        queue = consumer.declare(f"q{number}")
        consumer.call(QueueBind(queue, "amq.fanout", ""), QueueBindOk)
        consumer.consume(queue, no_ack=True)
        consumer.flush = lambda client=consumer: drop_output(client)  # type: ignore[method-assign, misc]
    batch = publisher.published("amq.fanout", "key", b"x" * 128) * FANOUT_BATCH
    for _ in range(turns):
        publisher.connection.receive(batch)
        core.settle()


def run(scenario: str, turns: int) -> None:
    """Publish and consume, a batch per turn."""
    from rhizome.amqp.frames import method_frame
    from rhizome.amqp.methods import BasicAck, QueueBind, QueueBindOk
    from rhizome.amqp.properties import Properties
    from rhizome.testing.in_memory_broker import CoreClient, make_core

    core = make_core()
    publisher, consumer = core.connect(), core.connect()
    durable = scenario == "durable"
    queue = publisher.declare("q", durable=durable)
    exchange, key = "", queue
    acks = scenario != "auto-ack" and scenario != "keys"
    consumer.consume(queue, no_ack=not acks)
    if acks:
        publisher.confirm()
    properties = Properties(delivery_mode=2) if durable else Properties()
    size = 1 if scenario == "window-1" else BATCH
    keys = [key] * size
    if scenario == "keys":
        exchange = "amq.topic"
        publisher.call(QueueBind(queue, exchange, "#"), QueueBindOk)
        keys = [f"a.{number}.key" for number in range(size)]
    batch = b"".join(publisher.published(exchange, each, b"x" * 128, properties) for each in keys)

    def drop_output(client: CoreClient) -> None:
        client.connection.outbox.take()
        client.connection.flushed()

    publisher.flush = lambda: drop_output(publisher)  # type: ignore[method-assign]
    consumer.flush = lambda: drop_output(consumer)  # type: ignore[method-assign]
    tag = 0
    for _ in range(turns):
        publisher.connection.receive(batch)
        core.settle()
        tag += size
        if scenario == "ack-single":
            acked = [method_frame(1, BasicAck(each)) for each in range(tag - size + 1, tag + 1)]
            consumer.connection.receive(b"".join(acked))
        elif acks:
            consumer.connection.receive(method_frame(1, BasicAck(tag, multiple=True)))
        core.settle()


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        if sys.argv[2] == "fanout":
            run_fanout(int(sys.argv[3]))
        else:
            run(sys.argv[2], int(sys.argv[3]))
        return
    trees = [Path(name).resolve() for name in sys.argv[1:]] or [HERE.parent]
    for scenario in SCENARIOS:
        found = [per_message(tree, scenario) for tree in trees]
        ratios = "".join(f"  {value / found[0]:.3f}" for value in found[1:])
        print(f"{scenario:12}", *[f"{value:10,.0f}" for value in found], ratios, flush=True)


if __name__ == "__main__":
    main()
