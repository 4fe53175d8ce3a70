"""What this broker is to the groups of streams.

A stream is alone in its group, so it has everything of the group for itself: a home and an epoch,
copies, numbers that edges send under, and a log, which is the stream's own. Number and message are
one entry of that log, so no crash can keep one without the other (A1).

The log is the same object whatever this broker is to the group. Becoming home begins an epoch in
it; losing the role of home leaves it as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.broker.fault_log import FAULT_GROUP
from rhizome.cluster.home.home_group import HomeGroup
from rhizome.cluster.replication.replicated_stream_log import ReplicatedStreamLog
from rhizome.cluster.replication.stream_standby import StreamStandby
from rhizome.cluster.takeover.copy_progress import NO_COPY, CopyProgress
from rhizome.journal.errors import CorruptStore

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.group_roles import GroupRoles
    from rhizome.cluster.state.groups_and_placement import Group


class StreamGroupRoles:
    """This broker's role in the groups of streams; homes and standbys are among those of ``roles``.

    ``ids`` has the id of the stream of each group, whether deleted meanwhile or not.
    """

    def __init__(self, roles: GroupRoles) -> None:
        self.roles = roles
        self.broker = roles.broker
        self.ids: dict[int, int] = {}

    def become_home(self, group: Group) -> None:
        """Begin an epoch with what the log here has (G1)."""
        queue = self.queue_of(group.id)
        if queue is None:
            return
        roles = self.roles
        roles.standbys.pop(group.id, None)
        queue.away = None
        stream = self.broker.streams.open(queue, group.epoch)
        log = ReplicatedStreamLog(stream, group.id, group.epoch)
        home = roles.new_home(group, log, stream.group_log, True)
        roles.home_change.come_home(home.sessions).answer_calls()
        roles.homes[group.id] = home
        home.begin()

    def lose_home(self, group: int) -> None:
        """Another broker is home, or the stream is deleted."""
        home = self.roles.homes.pop(group)
        home.end()
        log = home.log
        assert isinstance(log, ReplicatedStreamLog)
        self.roles.home_change.leave_home(group, log.stream.group_log)
        log.let_go()
        queue = self.queue_of(group)
        if queue is not None:
            self.broker.streams.close(queue)

    def queue_made(self, queue: Queue, home: HomeGroup | None) -> None:
        """A stream was made, or made again from a snapshot while it is at home here."""
        self.ids[queue.definition.group] = queue.definition.id
        if home is not None:
            assert isinstance(home.log, ReplicatedStreamLog)
            home.log.stream.become(queue)

    # ---- copies ---------------------------------------------------------------------------------

    def is_kept(self, group: int) -> bool:
        """Whether there is a copy of a group here."""
        queue = self.queue_of(group)
        return queue is not None and self.broker.streams.has(queue.id)

    def drop(self, group: int) -> None:
        queue = self.queue_of(group)
        if queue is not None:
            self.broker.streams.drop(queue.id)

    def standby(self, group: int) -> StreamStandby | None:
        """The standby that speaks for the copy here; None if the stream is not known."""
        queue = self.queue_of(group)
        if queue is None:
            return None
        streams = self.broker.streams
        if not self._opened(queue):
            # The home has it whole, and a damaged copy is worse than none.
            streams.port.clear(queue.id)
        roles = self.roles
        return StreamStandby(group, roles.link, roles.port.incarnation, streams, queue.id)

    def copy_progress(self, group: int) -> CopyProgress:
        """The progress of the copy here (G3)."""
        queue = self.queue_of(group)
        streams = self.broker.streams
        if queue is None or not streams.has(queue.id) or not self._opened(queue):
            return CopyProgress(0, NO_COPY)
        log = streams.log_of(queue.id)
        return CopyProgress(int(log.epoch), int(log.number) - 1)

    def _opened(self, queue: Queue) -> bool:
        """Open the log of a copy; False if it is damaged."""
        try:
            self.broker.streams.log_of(queue.id)
        except CorruptStore as error:
            where = f"copy of stream '{queue.name}' in vhost '{queue.vhost}'"
            self.broker.report_bug(error, where, FAULT_GROUP)
            return False
        return True

    def queue_of(self, group: int) -> Queue | None:
        """The stream of a group; None if it is deleted, or not made yet."""
        return self.broker.shared.get(self.ids.get(group, 0))
