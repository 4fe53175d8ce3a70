"""The queues, exchanges and streams that simulated applications use, each with its own arguments.

A seed takes some of them, and always those that others dead-letter to. Checkers ask here what a
queue may do with its messages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

SEGMENT_BYTES: Final = 4096
"""As small as a segment can be, so that streams have many."""
RETAINED_BYTES: Final = 24 * 1024


@dataclass(frozen=True)
class StreamPlan:
    """How a stream is declared. `retained_bytes` 0: it keeps everything. `dedup`: it accepts one
    message of each id. `is_passing`: an application declares and deletes it during the run."""

    name: str
    segment_bytes: int = 0
    retained_bytes: int = 0
    dedup: bool = False
    is_passing: bool = False

    def arguments(self) -> dict[str, object]:
        found: dict[str, object] = {"x-queue-type": "stream"}
        if self.segment_bytes:
            found["x-stream-max-segment-size-bytes"] = self.segment_bytes
        if self.retained_bytes:
            found["x-max-length-bytes"] = self.retained_bytes
        if self.dedup:
            found["x-dedup"] = "message-id"
        return found


KEEPS: Final = (
    StreamPlan("events"),
    StreamPlan("clicks", segment_bytes=SEGMENT_BYTES),
    StreamPlan("entries", segment_bytes=SEGMENT_BYTES, dedup=True),
)
RETAINS: Final = StreamPlan("ticks", segment_bytes=SEGMENT_BYTES, retained_bytes=RETAINED_BYTES)
RETAINS_CHANCE: Final = 0.6


def drawn_streams(chance: random.Random) -> dict[str, StreamPlan]:
    """One or two of them."""
    plans = [KEEPS[int(chance.random() * len(KEEPS))]]
    if chance.random() < RETAINS_CHANCE:
        plans.append(RETAINS)
    return {plan.name: plan for plan in plans}


GRAVES: Final = "graves"
DEAD: Final = "dead"
WORK: Final = "work"
ALL: Final = "all"
TOPICS: Final = "topics"
LATER: Final = "later"
"""What is published there is held for a while, in a queue of a group that may be another one."""
HELD: Final = "amq.delayed"
DELAY_MS_MAX: Final = 1_500
"""How long a message is held at most."""


@dataclass(frozen=True)
class QueuePlan:
    """A shared queue: how it is declared, and what that allows.

    `automatic`: consumed with automatic acks only, so what is under way to a consumer that goes
    away is lost. `purged`: an application purges it now and then.
    """

    name: str
    durable: bool = True
    ttl_ms: int = 0
    length_max: int = 0
    rejects: bool = False
    delivery_limit: int = -1
    dead_to: str = ""
    priority_max: int = 0
    single_active: bool = False
    dedup: bool = False
    automatic: bool = False
    purged: bool = False
    keyed: bool = False

    def arguments(self) -> dict[str, object]:
        found: dict[str, object] = {}
        if self.ttl_ms:
            found["x-message-ttl"] = self.ttl_ms
        if self.length_max:
            found["x-max-length"] = self.length_max
        if self.rejects:
            found["x-overflow"] = "reject-publish"
        if self.delivery_limit >= 0:
            found["x-queue-type"] = "quorum"
            found["x-delivery-limit"] = self.delivery_limit
        if self.dead_to:
            found["x-dead-letter-exchange"] = DEAD
        if self.priority_max:
            found["x-max-priority"] = self.priority_max
        if self.single_active:
            found["x-single-active-consumer"] = True
        if self.keyed:
            found["x-group-key"] = "routing-key"
        if self.dedup:
            found["x-dedup"] = "message-id"
        return found

    def keeps_all(self) -> bool:
        """Whether messages leave this queue through consumers only."""
        return not (self.ttl_ms or self.length_max or self.delivery_limit >= 0)


ALWAYS: Final = (
    QueuePlan("orders"),
    QueuePlan("bills"),
    QueuePlan(GRAVES),
)
SOMETIMES: Final = (
    QueuePlan("letters", single_active=True),
    QueuePlan("urgent", priority_max=4),
    QueuePlan("brief", ttl_ms=1_500, dead_to=GRAVES),
    QueuePlan("short", length_max=6, dead_to=GRAVES),
    QueuePlan("narrow", length_max=1, rejects=True),
    QueuePlan("tries", delivery_limit=2, dead_to=GRAVES),
    QueuePlan("once", dedup=True),
    QueuePlan("notes", durable=False, purged=True),
    QueuePlan("telegrams", automatic=True),
    QueuePlan("lossy", length_max=6),
)
SOMETIMES_CHANCE: Final = 0.5


@dataclass
class Topology:
    """The queues of one run, and where a publish goes."""

    queues: dict[str, QueuePlan]
    bindings: list[tuple[str, str, str]] = field(default_factory=list)
    """Exchange, key and queue."""
    exchanges: dict[str, str] = field(default_factory=dict)
    streams: dict[str, StreamPlan] = field(default_factory=dict)
    """The streams of the run, which have applications and checkers of their own."""

    def exchange_arguments(self, exchange: str) -> dict[str, object]:
        return {"x-delayed-type": "direct"} if exchange == LATER else {}

    def route(self, exchange: str, key: str) -> tuple[str, ...]:
        """The queues that a publish goes to."""
        if exchange == "":
            return (key,) if key in self.queues else ()
        if self.exchanges.get(exchange) == "fanout":
            return tuple(queue for at, _, queue in self.bindings if at == exchange)
        return tuple(
            queue
            for at, bound, queue in self.bindings
            if at == exchange and (bound == key or _matches(bound, key))
        )

    def destinations(self) -> list[tuple[str, str]]:
        """Exchanges and keys that an application may publish to; some lead nowhere."""
        found = [("", name) for name in self.queues if name != GRAVES]
        found += [
            (exchange, key) for exchange, key, _ in self.bindings if exchange in (WORK, LATER)
        ]
        found += [(ALL, ""), (TOPICS, "eu.paid"), (TOPICS, "us.paid"), (TOPICS, "us.late")]
        return [*dict.fromkeys(found)]


KEYED: Final = "tasks"
KEYS: Final = ("ann", "bob", "eve")


def add_keyed_queue(topology: Topology) -> None:
    """A queue whose messages go in order, key by key, to one consumer at a time."""
    topology.queues[KEYED] = QueuePlan(KEYED, keyed=True)
    topology.bindings.extend((WORK, key, KEYED) for key in KEYS)


def _matches(pattern: str, key: str) -> bool:
    """Topic patterns, as far as they are used here: `eu.#`, `#.paid`."""
    if pattern.endswith("#"):
        return key.startswith(pattern[:-1])
    return pattern.startswith("#") and key.endswith(pattern[1:])


def drawn_topology(chance: random.Random) -> Topology:
    """The queues of a seed."""
    plans = [*ALWAYS, *[plan for plan in SOMETIMES if chance.random() < SOMETIMES_CHANCE]]
    topology = Topology({plan.name: plan for plan in plans})
    topology.exchanges = {
        DEAD: "fanout",
        WORK: "direct",
        ALL: "fanout",
        TOPICS: "topic",
        LATER: "x-delayed-message",
    }
    bind = topology.bindings.append
    bind((DEAD, "", GRAVES))
    for name in topology.queues:
        if name == GRAVES:
            continue
        bind((WORK, name, name))
        if name not in ("narrow", "once") and chance.random() < 0.5:
            bind((ALL, "", name))
        if name not in ("narrow", "once", "lossy", "notes"):
            # A delayed message is on disk while it is held; its level must hold afterwards, too.
            bind((LATER, name, name))
    bind((WORK, "both", "orders"))
    bind((WORK, "both", "bills"))
    bind((TOPICS, "eu.#", "orders"))
    bind((TOPICS, "#.paid", "bills"))
    return topology
