"""RetryAndQuorumLimits: how much a queue holds for later, and which release's rules it follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RetryAndQuorumLimits:
    """``retries_held_max`` and ``retries_held_bytes_max`` bound what waits for its retry in one
    queue, in memory: beyond them the queue delivers nothing until some is due, and at twice as much
    what comes back doesn't wait.

    ``quorum_delivery_limit`` is that of quorum queues which were declared without one (-1: none),
    ``tells_acquired_count`` whether quorum queues set x-acquired-count beside x-delivery-count: see
    `Limits.be_compatible`.
    """

    retries_held_max: int = 100_000
    retries_held_bytes_max: int = 64 * 1024 * 1024
    quorum_delivery_limit: int = -1
    tells_acquired_count: bool = False
