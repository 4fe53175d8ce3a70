"""Roles: what this broker is to each group, and how it becomes something else.

To every group a broker is one of

    home      its queues are active here: a log, and the standbys that get it (``Home``)
    standby   a passive copy that follows the home
    neither   perhaps with a copy from before, which is of use if it is invited again

The cluster state says who is home, by incarnation (G1). ``update`` is called whenever groups have
changed, and makes this broker what the state says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.broker.livemessages import unacked_messages
from rhizome.broker.log import LOCAL_GROUP
from rhizome.broker.message import Message
from rhizome.broker.restoring import restore_queue
from rhizome.broker.showing import shown_of
from rhizome.cluster.copies.copy import Copy
from rhizome.cluster.grouplog import ReplicatedLog
from rhizome.cluster.identity import Hello
from rhizome.cluster.moving import Moving, queues_of
from rhizome.cluster.placement import Group
from rhizome.journal.index import PagedIndex
from rhizome.journal.recovery import Recovered, RecoveredQueue
from rhizome.journal.scan import merged, starts_with

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue import Queue
    from rhizome.journal.checkpoint import CheckpointBuilder


class Home:
    """This broker as the home of a group, for one epoch."""

    def __init__(self, group: Group, log: ReplicatedLog) -> None:
        self.group = group
        self.log = log


class Roles:
    """Invariant: ``homes`` has the groups whose log is in ``broker.logs``; a group is never both in
    ``homes`` and in ``copies``."""

    def __init__(self, broker: Broker, moving: Moving, recovered: Recovered) -> None:
        self.broker = broker
        self.moving = moving
        self.homes: dict[int, Home] = {}
        self.copies: dict[int, Copy] = {}
        journal, spill = broker.pager.journal, broker.pager.spill
        for group in [each for each in recovered.groups if each != LOCAL_GROUP]:
            self.copies[group] = Copy.from_recovery(group, recovered, journal, spill)

    def is_home(self, group: int) -> bool:
        return group in self.homes

    def update(self, groups: dict[int, Group], me: Hello) -> None:
        """Be what the state says, to all groups."""
        for number in [each for each in self.homes if each not in groups]:
            self.lose_home(number)
        for group in groups.values():
            mine = group.home == me.name and group.incarnation == me.incarnation
            home = self.homes.get(group.id)
            if home is not None and (not mine or home.log.epoch != group.epoch):
                self.lose_home(group.id)
                home = None
            if mine and home is None:
                home = self.become_home(group)
            if home is not None:
                home.group = group

    # ---- becoming home --------------------------------------------------------------------------

    def become_home(self, group: Group) -> Home:
        """Begin an epoch with what the copy here has, and activate its queues (G1)."""
        broker = self.broker
        copy = self.copy_of(group.id)
        del self.copies[group.id]
        first = int(copy.index) + 1
        starts = starts_with(copy.starts, group.epoch, first)
        broker.pager.journal.epoch(group.id, group.epoch, first)
        log = ReplicatedLog(
            broker.pager.journal,
            group.id,
            group.epoch,
            first,
            starts,
            dict(copy.origins),
            copy.disk,
        )
        broker.logs[group.id] = log
        home = Home(group, log)
        self.homes[group.id] = home
        for queue in list(broker.shared.values()):
            if queue.definition.group == group.id:
                self._activate(queue, log, copy)
        for queue_id in list(copy.queues):
            # It was deleted while this broker did not follow (H13).
            log.drop(queue_id)
        copy.let_go()
        self.moving.come_home(group.id, group.epoch, log)
        broker.delayed.recover()
        return home

    def _activate(self, queue: Queue, log: ReplicatedLog, copy: Copy) -> None:
        queue.use_log(log)
        queue.away = None
        found = copy.recovered(queue.id)
        if found is not None:
            restore_queue(queue, found)

    def copy_of(self, group: int) -> Copy:
        copy = self.copies.get(group)
        if copy is None:
            copy = Copy(group, self.broker.pager.journal, self.broker.pager.spill)
            self.copies[group] = copy
        return copy

    # ---- being replaced -------------------------------------------------------------------------

    def lose_home(self, group_id: int) -> None:
        """Somebody else is home: what is in the journal here becomes a copy, the rest goes."""
        broker = self.broker
        home = self.homes.pop(group_id)
        log = home.log
        copy = Copy.from_home(log, log.disk(), broker.pager.journal, broker.pager.spill)
        self.copies[group_id] = copy
        self._close_waiting(log)
        queues = queues_of(broker, group_id)
        for queue in queues:
            queue.write_settled()
            copy.adopt(self._kept(queue))
        self.moving.leave_home(group_id)
        for queue in queues:
            broker.delayed.let_go(queue)
            queue.drop_ready()
            queue.use_log(broker.log)
        del broker.logs[group_id]

    def _kept(self, queue: Queue) -> RecoveredQueue:
        """Everything that a queue has, ready and unacked, with references of its own."""
        pager = self.broker.pager
        parts: dict[int, list[PagedIndex]] = {}
        size = int(queue.ready_bytes)
        for priority, lane in enumerate(queue.lanes):
            pager.retain_paged(lane.paged)
            paged = PagedIndex.from_bytes(lane.paged.to_bytes())
            parts[priority] = [paged, self._resident(queue, lane.resident())]
        by_priority: dict[int, list[Message]] = {}
        for message in unacked_messages(queue):
            lane_number = min(int(message.priority), len(queue.lanes) - 1)
            by_priority.setdefault(lane_number, []).append(message)
            size += len(message.content)
        for priority, messages in by_priority.items():
            messages.sort(key=lambda each: each.index)
            parts[priority].append(self._resident(queue, messages))
        levels = {priority: merged(indexes) for priority, indexes in parts.items()}
        group, counts = int(queue.log.group), dict(queue.counts)
        return RecoveredQueue(
            int(queue.id), group, levels, counts, size, queue.seen, shown_of(queue)
        )

    def _resident(self, queue: Queue, messages: list[Message]) -> PagedIndex:
        index = PagedIndex()
        for message in messages:
            index.append(message.index, self.broker.pager.keep(queue, message))
        return index

    def _close_waiting(self, log: ReplicatedLog) -> None:
        """Clients that wait for confirms can't be told any more what became of their messages."""
        reason = "the home of a queue has moved: confirms that were waited for are unknown"
        for connection in self.broker.running_connections():
            for channel in list(connection.channels.values()):
                if channel.waits_for(log):
                    connection.force_close(reason)
                    break

    # ---- queues ---------------------------------------------------------------------------------

    def queue_made(self, queue: Queue) -> None:
        """A shared queue was made, or made again from a snapshot."""
        home = self.homes.get(queue.definition.group)
        if home is not None:
            queue.use_log(home.log)

    # ---- the store ------------------------------------------------------------------------------

    def handed_over(self, token: int) -> None:
        for copy in self.copies.values():
            copy.handed_over(token)

    def synced(self, position: int) -> None:
        for copy in self.copies.values():
            copy.synced(position)

    def write_checkpoint(self, builder: CheckpointBuilder) -> None:
        for copy in self.copies.values():
            copy.write_checkpoint(builder)

    def passive_indexes(self) -> list[tuple[int, PagedIndex]]:
        return [entry for copy in self.copies.values() for entry in copy.indexes()]
