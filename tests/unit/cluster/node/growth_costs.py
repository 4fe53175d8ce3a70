"""What operations of a cluster cost beside few and beside ten times as many objects.

A cost is the number of lines of the program that run on all brokers, counted by the interpreter's
tracer: no clock is involved, so a busy machine changes nothing. The module is run as a program of
its own with ``RHIZOME_PURE=1``, because the tracer sees no compiled code, and writes JSON:

    RHIZOME_PURE=1 python -m tests.unit.cluster.node.growth_costs queues 60
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from rhizome.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
)
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster

TIMES: Final = 10
SETTLE_MS: Final = 2_000
ROUNDS: Final = 2
"""Each operation is counted this often, on objects of its own, and the lowest count taken."""


class LineCount:
    """Counts the lines that run."""

    def __init__(self) -> None:
        self.lines = 0

    def of(self, work: Callable[[], object]) -> int:
        self.lines = 0
        sys.settrace(self._trace)
        try:
            work()
        finally:
            sys.settrace(None)
        return self.lines

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
        return self._trace


class Objects:
    """A cluster of three with a client at one of them, and objects that only are there."""

    def __init__(self) -> None:
        self.cluster: CoreCluster = make_cluster(3)
        self.client: CoreClient = self.cluster["b2"].connect()
        self.clients: list[CoreClient] = []
        self.made = 0

    def add_queues(self, count: int) -> None:
        """Durable queues, each with a binding of its own."""
        for _ in range(count):
            self.made += 1
            queue = f"q{self.made}"
            self.client.declare(queue, durable=True)
            self.client.call(QueueBind(queue, "amq.topic", f"{queue}.*"), QueueBindOk)

    def add_streams(self, count: int) -> None:
        for _ in range(count):
            self.made += 1
            self.client.declare(f"s{self.made}", durable=True, x_queue_type="stream")

    def add_connections(self, count: int) -> None:
        self.clients += [self.cluster["b2"].connect() for _ in range(count)]

    def operations(self, mark: str) -> dict[str, Callable[[], object]]:
        """The operations, in the order in which they can be done."""
        client, name = self.client, f"new{mark}"
        others: list[CoreClient] = []
        exclusive = QueueDeclare("", exclusive=True)
        return {
            "declare": lambda: client.declare(name, durable=True),
            "bind": lambda: client.call(QueueBind(name, "amq.topic", name), QueueBindOk),
            "publish with a cold cache": lambda: client.publish("amq.topic", name, b"x"),
            "unbind": lambda: client.call(QueueUnbind(name, "amq.topic", name), QueueUnbindOk),
            "get": lambda: client.get(name),
            "consume": lambda: client.consume(name, name),
            "cancel": lambda: client.call(BasicCancel(name), BasicCancelOk),
            "delete": lambda: client.call(QueueDelete(name), QueueDeleteOk),
            "declare a stream": lambda: client.declare(name, durable=True, x_queue_type="stream"),
            "delete a stream": lambda: client.call(QueueDelete(name), QueueDeleteOk),
            "connect": lambda: others.append(self.cluster["b2"].connect()),
            "declare a private queue": lambda: others[0].call(exclusive, QueueDeclareOk),
            "disconnect": lambda: others.pop().close_socket(),
            "a second": lambda: self.cluster.advance(1_000),
        }

    def costs(self, mark: str) -> dict[str, int]:
        self.cluster.advance(SETTLE_MS)
        count = LineCount()
        rounds = [
            {name: count.of(work) for name, work in self.operations(f"{mark}.{at}").items()}
            for at in range(ROUNDS)
        ]
        return {name: min(each[name] for each in rounds) for name in rounds[0]}


def costs_beside(kind: str, few: int) -> dict[str, tuple[int, int]]:
    """The cost of each operation beside few objects of a kind, and beside ten times as many."""
    objects = Objects()
    add = {
        "queues": objects.add_queues,
        "streams": objects.add_streams,
        "connections": objects.add_connections,
    }[kind]
    add(few)
    before = objects.costs("few")
    add((TIMES - 1) * few)
    after = objects.costs("many")
    return {name: (before[name], after[name]) for name in before}


if __name__ == "__main__":
    print(json.dumps(costs_beside(sys.argv[1], int(sys.argv[2]))))
