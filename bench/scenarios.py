"""What is measured, and what Rhizome must show in each: the numbers of the project's charter.

Throughput scenarios are runs of amqpload with these flags. `lavinmq_cpu` is what LavinMQ 2.9.1 used
on the reference machine, in CPU seconds per million messages consumed: at 1 KiB or less Rhizome may
not use more.
"""

from __future__ import annotations

from dataclasses import dataclass

CONFIRMED = ("--confirm", "1000", "--ack", "1000")
DURABLE = ("--durable", "--persistent", *CONFIRMED)


@dataclass(frozen=True)
class Throughput:
    name: str
    title: str
    flags: tuple[str, ...]
    rate_ratio_min: float = 10.0
    cpu_ratio_max: float | None = 0.1
    lavinmq_cpu: float | None = None


@dataclass(frozen=True)
class Backlog:
    """Fill a queue nobody reads, look at the memory, drain it."""

    name: str
    title: str
    messages: int
    persistent: bool
    growth_mib_max: int
    with_rabbitmq: bool
    drain_ratio_min: float = 0.5

    @property
    def flags(self) -> tuple[str, ...]:
        kept = ("--durable", "--persistent") if self.persistent else ()
        return ("--body", "1024", *kept)


THROUGHPUT = (
    Throughput("auto-16", "16 B, auto-ack", ("--body", "16"), lavinmq_cpu=1.48),
    Throughput("auto-128", "128 B, auto-ack", ("--body", "128"), lavinmq_cpu=1.73),
    Throughput("auto-1k", "1 KiB, auto-ack", ("--body", "1024"), lavinmq_cpu=4.07),
    Throughput("auto-16k", "16 KiB, auto-ack", ("--body", "16384"), 1.0, 1.0),
    Throughput("auto-200k", "200 KB, auto-ack", ("--body", "200000"), 1.0, 1.0),
    Throughput("confirm-ack", "confirm 1,000, ack 1,000", CONFIRMED, lavinmq_cpu=3.60),
    Throughput("ack-single", "the same, each acked singly", (*CONFIRMED, "--ack-single")),
    Throughput("durable", "durable, persistent, confirm, ack", DURABLE, lavinmq_cpu=2.42),
    Throughput("durable-1k", "the same, 1 KiB", (*DURABLE, "--body", "1024"), lavinmq_cpu=5.03),
    Throughput("quorum", "quorum queue, confirm, ack", (*DURABLE, "--queue-type", "quorum")),
    Throughput(
        "fanout", "fan-out to 10, deliveries", ("--fanout", "--consumers", "10"), lavinmq_cpu=1.16
    ),
    Throughput(
        "4x4x4",
        "4 publishers, 4 queues, 4 consumers",
        ("--publishers", "4", "--consumers", "4", "--queues", "4"),
        lavinmq_cpu=1.84,
    ),
    Throughput(
        "window-1", "16 publishers, confirm window 1", ("--publishers", "16", "--confirm", "1")
    ),
    Throughput("keys-10k", "topic, 10,000 distinct keys", ("--keys", "10000"), 5.0, None),
)

LATENCY_NAME = "latency"
LATENCY_TITLE = "latency at 5,000/s"
LATENCY_FLAGS = ("--rate", "5000", "--latency")
LATENCY_RATIO_MAX = 0.5

BACKLOGS = (
    Backlog("backlog-1m", "1M x 1 KiB transient", 1_000_000, False, 100, True),
    Backlog("backlog-1m-durable", "1M x 1 KiB persistent", 1_000_000, True, 100, True),
    Backlog("backlog-10m", "10M x 1 KiB transient", 10_000_000, False, 256, False),
    Backlog("backlog-10m-durable", "10M x 1 KiB persistent", 10_000_000, True, 256, False),
)

RESTART_NAME = "restart"
RESTART_TITLE = "start with 1M persistent messages"
RESTART_MESSAGES = 1_000_000
RESTART_SECONDS_MAX = 5.0

IDLE_NAME = "idle"
IDLE_TITLE = "10,000 idle connections"
IDLE_CONNECTIONS = 10_000
IDLE_KIB_MAX = 40.0


def all_names() -> list[str]:
    return [
        *(s.name for s in THROUGHPUT),
        LATENCY_NAME,
        *(b.name for b in BACKLOGS),
        RESTART_NAME,
        IDLE_NAME,
    ]
