"""Salvage: saves messages that a copy is about to lose and that may have been confirmed (G8).

That happens when a person has forced a home. Whatever else a copy is told to give up was never
confirmed, or is at its home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import FLAG_DURABLE, enqueue_record
from rhizome.journal.salvaged_messages import Salvage, SalvageManifest, SavedQueue

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.message import Message


class Salvager:
    """Saves messages of copies into the store of this broker."""

    def __init__(self, broker: Broker, salvage: Salvage) -> None:
        self._broker = broker
        self.salvage = salvage

    def save(
        self, copy: GroupCopy, end: int, home: str, home_epoch: int, only: list[int] | None = None
    ) -> SalvageManifest:
        """Save what a copy has above ``end``, of these queues or of all; durable when this returns.
        Raises OSError.

        It waits for the disk: no group is at home here, and nothing may happen to the copy before.
        """
        places = self._places(copy, end, only)
        counts: dict[int, int] = {}
        name, saving = self.salvage.begin(f"group-{copy.group}-epoch-{copy.epoch}")
        for index in sorted(places):
            position, queue_ids = places[index]
            message = self._read(queue_ids[0], index, position)
            if message is None:
                continue
            for queue_id in queue_ids:
                counts[queue_id] = counts.get(queue_id, 0) + 1
            saving.add(
                enqueue_record(
                    copy.group,
                    copy.epoch,
                    index,
                    queue_ids,
                    message.route.tail,
                    message.arrived_ms,
                    message.expiration_ms,
                    message.priority,
                    FLAG_DURABLE,
                    message.content,
                )
            )
        about = SalvageManifest(
            group=int(copy.group),
            epoch=int(copy.epoch),
            home=home,
            home_epoch=home_epoch,
            first=end + 1,
            last=int(copy.index),
            saved_ms=int(self._broker.turn.now_ms),
            queues=[self._queue(queue_id, counts[queue_id]) for queue_id in sorted(counts)],
            name=name,
        )
        saving.finish(about)
        return about

    def _read(self, queue_id: int, index: int, position: int) -> Message | None:
        """A message of a copy; None, and reported, if its record is damaged: nobody can save
        that."""
        broker = self._broker
        try:
            return broker.pager.read_one(position)
        except (CorruptRecord, OSError) as error:
            broker.damage.met_in_copy(queue_id, index, str(error))
            return None

    def _places(
        self, copy: GroupCopy, end: int, only: list[int] | None
    ) -> dict[int, tuple[int, list[int]]]:
        """Where the message of each index is, and in which queues it was."""
        found: dict[int, tuple[int, list[int]]] = {}
        for queue_id, queue in copy.queues.items():
            if only is not None and queue_id not in only:
                continue
            for level in queue.levels.values():
                ranges: list[int] = []
                level.collect_ranges(end + 1, int(copy.index) + 1, 1 << 62, ranges)
                for at in range(0, len(ranges), 2):
                    for index in range(ranges[at], ranges[at] + ranges[at + 1]):
                        place = found.setdefault(index, (int(level.find(index)), []))
                        place[1].append(queue_id)
        return found

    def _queue(self, queue_id: int, messages: int) -> SavedQueue:
        queue = self._broker.shared.get(queue_id)
        if queue is None:
            return SavedQueue(queue_id, "", "", messages)
        return SavedQueue(queue_id, queue.vhost, queue.name, messages)
