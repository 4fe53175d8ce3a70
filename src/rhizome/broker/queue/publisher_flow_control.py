"""Publisher flow control: publishers are slowed to the pace of consumers that are busy.

Without this a fast publisher outruns consumers that could keep up, and every message goes over the
disk. The queue does not wait for a consumer that has stopped reading, or that has its whole
prefetch unacked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.turn import MarkedConnection

CONGESTED_BYTES: Final = 512 * 1024
"""Above this many bytes waiting for busy consumers, publishers are slowed to the consumers'
pace."""

QUANTUM_BYTES: Final = 256 * 1024
"""How many bytes consumers take before a paused publisher continues."""

BUSY_MS: Final = 100
"""A consumer whose socket has taken nothing for this long counts as slow, not busy, and slows
nobody down."""


@final
class FlowControl:
    """The flow control of one queue.

    Invariant: every connection in ``paused`` is paused. It is released when the consumers have
    taken ``QUANTUM_BYTES`` for each since ``mark``, when the queue is no longer congested, or when
    none of its consumers is busy any more (``update`` is called in every tick while it is
    congested).

    It is told its queue each time: a queue and a part that holds it would be a cycle, which only a
    collection of all garbage frees, and that practically never comes.
    """

    congested: bool
    paused: list[MarkedConnection]
    mark: i64

    def __init__(self) -> None:
        self.congested = False
        self.paused = []
        self.mark = 0

    def update(self, queue: Queue, now_ms: i64) -> None:
        """Check whether publishers have to wait, and release those that have waited enough."""
        congested = queue.ready_bytes > CONGESTED_BYTES and _is_consumer_busy(queue, now_ms)
        if congested and not self.congested:
            self.congested = True
            queue.broker.congested[queue] = None
        elif not congested and self.congested:
            self.congested = False
            queue.broker.congested.pop(queue, None)
            self._unpause()
        elif len(self.paused) > 0:
            taken: i64 = queue.delivered_bytes - self.mark
            if taken >= QUANTUM_BYTES * len(self.paused):
                self._unpause()

    def pause(self, queue: Queue, connection: MarkedConnection) -> None:
        """A connection has published to this queue while it is congested."""
        if not connection.paused:
            if len(self.paused) == 0:
                self.mark = queue.delivered_bytes
            connection.pause()
            self.paused.append(connection)

    def _unpause(self) -> None:
        paused = self.paused
        self.paused = []
        for connection in paused:
            connection.unpause()


def _is_consumer_busy(queue: Queue, now_ms: i64) -> bool:
    for level in queue.levels:
        for consumer in level.consumers():
            if now_ms - consumer.drained_at() < BUSY_MS and not consumer.is_sated():
                return True
    return False
