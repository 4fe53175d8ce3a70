"""Stream homes: this broker as the home of streams.

A stream is alone in its group, so that all that a group has it has for itself: a home and an epoch,
numbers that edges send under, and a log, which is the stream's own (`broker/streams/log.py`).
Number and message are one entry of it, so no crash can keep one without the other (A1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.broker.streams.rules import is_stream
from rhizome.cluster.moving import queues_of

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue import Queue
    from rhizome.broker.streams.log import StreamGroupLog
    from rhizome.cluster.identity import Hello
    from rhizome.cluster.moving import Moving
    from rhizome.cluster.placement import Group


class StreamHomes:
    """Invariant: ``logs`` has the groups of streams that are active here."""

    def __init__(self, broker: Broker, moving: Moving) -> None:
        self.broker = broker
        self.moving = moving
        self.logs: dict[int, StreamGroupLog] = {}

    def update(self, groups: dict[int, Group], me: Hello) -> None:
        """Be what the state says, to the groups of streams (G1)."""
        for number in [each for each in self.logs if each not in groups]:
            self._lose(number)
        for group in groups.values():
            if not group.stream:
                continue
            mine = group.home == me.name and group.incarnation == me.incarnation
            log = self.logs.get(group.id)
            if log is not None and (not mine or log.epoch != group.epoch):
                self._lose(group.id)
            if mine and group.id not in self.logs:
                self._become(group)

    def _become(self, group: Group) -> None:
        queue = self._queue_of(group.id)
        if queue is None:
            return
        queue.away = None
        log = self.broker.streams.open(queue, group.epoch).group_log
        self.logs[group.id] = log
        self.moving.come_home(group.id, group.epoch, log)

    def _lose(self, group: int) -> None:
        log = self.logs.pop(group)
        queue = self._queue_of(group)
        self.moving.leave_home(group, log)
        if queue is not None:
            self.broker.streams.close(queue)

    def _queue_of(self, group: int) -> Queue | None:
        """The stream of a group; None if it is deleted, or not made yet."""
        found = [queue for queue in queues_of(self.broker, group) if is_stream(queue.options)]
        return found[0] if found else None
