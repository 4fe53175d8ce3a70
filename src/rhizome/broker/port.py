"""The port: all that the broker core knows of whatever surrounds it, alone or in a cluster.

Two interfaces, both owned by the broker:

- ``GroupLog``: where the broker records its decisions about messages (enqueued, dequeued, requeued,
  purged), in batches per turn. The log says how far its records are safe: ``committed_memory`` and
  ``committed_disk`` never fall, and a publish is confirmed once the index that it needs is at or
  below the one that its reliability level asks for.
- ``Cluster``: where the broker proposes changes of the cluster state (declare, bind, delete, ...).
  A proposal is answered through a ``Waiter`` when it is committed, applied and safe.

A lone broker runs on ``lone.py``, which commits at once; there is no "if clustered" in the core.
Nothing here knows sockets, files, clocks or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.commands import Command
    from rhizome.broker.state import Outcome


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupLog:
    """The log of one group as its home's queues see it.

    Invariant: indexes are handed out in the order of ``append``; ``committed_disk`` and
    ``committed_memory`` never fall and never pass ``next_index - 1``.
    """

    next_index: i64
    committed_memory: i64
    committed_disk: i64

    def __init__(self, next_index: i64) -> None:
        self.next_index = next_index
        self.committed_memory = next_index - 1
        self.committed_disk = next_index - 1

    def append(self, message: Message, durable_ids: list[int]) -> None:
        """Give the message its index; record it if it is persistent and a durable queue took it."""
        raise NotImplementedError

    def dequeue(self, queue_id: i64, indexes: list[int]) -> None:
        raise NotImplementedError

    def requeue(self, queue_id: i64, index: i64, count: i64) -> None:
        raise NotImplementedError

    def purge(self, queue_id: i64, up_to_index: i64) -> None:
        raise NotImplementedError

    def drop(self, queue_id: i64) -> None:
        """Forget a queue with all its messages."""
        raise NotImplementedError

    def begin(self, bytes_expected: i64) -> None:
        """Open a transaction: what is recorded until ``commit`` is kept whole or not at all."""
        raise NotImplementedError

    def commit(self) -> i64:
        """Close the transaction; the index that must be on disk before it may be answered."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter:
    """Whoever waits for a proposal."""

    def resolved(self, outcome: Outcome) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Cluster:
    """Where changes of the cluster state are put in order."""

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        """Have a command committed and applied; then tell the waiter, now or later."""
        raise NotImplementedError
