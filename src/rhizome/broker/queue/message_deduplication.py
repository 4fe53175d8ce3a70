"""Deduplication (L5): a queue accepts nothing twice, and confirms a duplicate with its original.

Publishers may number what they send with the headers ``x-producer`` and ``x-sequence``; each queue
then accepts each sequence of a producer once. A queue with ``x-dedup: message-id`` does the same by
message id, within a window of entries or time. Only acceptance counts: what was refused may be sent
again under the same sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.journal.dedup_state import IDS_DEFAULT, DedupIdentity, DedupState

if TYPE_CHECKING:
    from rhizome.broker.publishing.publisher_confirms import Confirms
    from rhizome.broker.queue.queue import Queue


def is_duplicate(queue: Queue, identity: DedupIdentity, now_ms: i64) -> bool:
    """Whether the queue has accepted this message before."""
    seen = queue.seen
    if seen is None:
        return False
    if len(identity.producer) > 0 and seen.has_sequence(identity.producer, identity.sequence):
        return True
    if queue.options.dedup is None or len(identity.message_id) == 0:
        return False
    window_ms = queue.options.dedup_window_ms
    return seen.has_id(identity.message_id, now_ms - window_ms + 1 if window_ms > 0 else 0)


def wait_for_original(queue: Queue, confirms: Confirms) -> None:
    """Confirm the last publish once its original is safe.

    The original's index is not known any more; the last index that the queue accepted is above it.
    """
    seen = queue.seen
    if seen is not None:
        confirms.need_again(queue.log, seen.index_on_disk, seen.index)


def set_window(identity: DedupIdentity, taking: list[Queue]) -> None:
    """Note for how many messages the queues that accept a message remember its id."""
    identity.window = 0
    for queue in taking:
        if queue.options.dedup is not None:
            window = queue.options.dedup_window_entries
            if window <= 0:
                window = IDS_DEFAULT
            if window > identity.window:
                identity.window = window


def accept(queue: Queue, message: Message) -> None:
    """A queue has taken a message that its log has recorded."""
    identity = message.identity
    if identity is not None and identity.is_kept():
        if queue.seen is None:
            queue.seen = DedupState()
        queue.seen.take(message.index, message.position != 0, identity, message.arrived_ms)
