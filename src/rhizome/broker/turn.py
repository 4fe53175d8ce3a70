"""Turn: what one wake-up of the broker has touched, to be finished once at its end.

Everything per message is batched by turns: queues are dispatched once per turn, dequeues become one
journal record per queue and turn, confirms one frame per channel and turn, output one write per
connection and turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.broker.connection import Connection
    from rhizome.broker.leases.reader import LeaseReader
    from rhizome.broker.queue import Queue


@final
class Turn:
    """Invariant: an object is in a list here if and only if its own mark says so."""

    now_ms: i64
    doing: object
    """What is at work: a connection, a queue, or words. For people who ask what takes so long."""
    queues: list[Queue]
    settled: list[Queue]
    channels: list[Channel]
    connections: list[Connection]
    readers: list[LeaseReader]

    def __init__(self) -> None:
        self.now_ms = 0
        self.doing = None
        self.queues = []
        self.settled = []
        self.channels = []
        self.connections = []
        self.readers = []

    def pending(self) -> bool:
        """Whether something is left to finish."""
        return (
            len(self.queues) > 0
            or len(self.settled) > 0
            or len(self.channels) > 0
            or len(self.connections) > 0
            or len(self.readers) > 0
        )
