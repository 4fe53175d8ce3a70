"""PublishRoute: where one (exchange, routing key) leads, as the publish path remembers it."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Route
from rhizome.broker.publishing.forward_port import Target
from rhizome.broker.queue.queue import Queue


@final
class Part:
    """The queues of a route that share a log, and what a record in that log names of them.

    A local log names durable queues only, a replicated log all of them.
    """

    log: GroupLog
    queues: list[Queue]
    ids: list[int]
    durable: bool
    work: i64
    """What a message for these queues adds to the work of its turn."""

    def __init__(self, log: GroupLog) -> None:
        self.log = log
        self.queues = []
        self.ids = []
        self.durable = False
        self.work = 0

    def add(self, queue: Queue) -> None:
        self.queues.append(queue)
        if queue.durable or self.log.replicated:
            self.ids.append(queue.id)
        if queue.durable:
            self.durable = True


@final
class PublishRoute(Route):
    """Where one (exchange, routing key) leads.

    Invariant: ``queues`` (active here) and ``targets`` (on other brokers) are what the router
    answered at topology epoch ``epoch``; ``parts`` are the queues by log; ``unrouted`` says that
    all of them are taps; ``level`` is what they have in common (`reliability_levels.py`). A route
    of an older epoch is never used to publish, but messages go on referring to it for ``tail``.
    """

    epoch: i64
    queues: list[Queue]
    parts: list[Part]
    targets: list[Target]
    plain: bool
    unrouted: bool
    immediate: bool
    level: i64

    def __init__(self, exchange: str, key: str, tail: bytes) -> None:
        super().__init__(exchange, key, tail)
        self.epoch = -1
        self.queues = []
        self.parts = []
        self.targets = []
        self.plain = False
        self.unrouted = False
        self.immediate = False
        self.level = 0
