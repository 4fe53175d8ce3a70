"""Group roles: what this broker is to each group, and how its role changes.

To every group a broker is one of

    home      its queues are active here: a log, and the standbys that get it (``HomeGroup``)
    standby   a passive copy that follows the home
    neither   perhaps with a copy from before, which is of use if it is invited again

The cluster state says who is home, by incarnation (G1). ``update`` is called whenever groups have
changed, and gives this broker the role that the state says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table
from rhizome.broker.dead_letters.dead_letter_routing import bury_apart
from rhizome.broker.dead_letters.group_outbox import OutboxRules, open_outbox
from rhizome.broker.fault_log import FAULT_GROUP, FAULT_STANDBY
from rhizome.broker.group_log.local_group_log import LOCAL_GROUP
from rhizome.broker.home_change_effects import queues_of
from rhizome.broker.message import Message
from rhizome.broker.queue.internal_queues import drop_internal_queue
from rhizome.broker.queue.queue_recovery import restore_queue
from rhizome.broker.queue.redelivered_flag import shown_of
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.cluster.edge.edge import Edge
from rhizome.cluster.home.edge_reconciliation import EdgeSessionsByGroup
from rhizome.cluster.home.home_change import HomeChange, LocalEdgeReturn
from rhizome.cluster.home.home_group import HomeGroup, HomePort
from rhizome.cluster.home.replicated_group_log import ReplicatedGroupLog
from rhizome.cluster.home.settings import HomeSettings
from rhizome.cluster.home.unreplicated_message_migration import BARE, UnreplicatedMessageReturn
from rhizome.cluster.node_port import NodePort
from rhizome.cluster.protocol.catalogue import (
    BACKFILL,
    FETCH,
    FETCHED,
    FOLLOW,
    INVITE,
    LIVE,
    REATTACH,
    RECORDS,
    REFUSED,
    REPLICATED,
    RESTORE,
    WANT,
)
from rhizome.cluster.protocol.frame_dispatch import FrameHandler, FrameTable, SpanHandler
from rhizome.cluster.protocol.replication_codec import (
    FETCHED_BYTES,
    HEAD_BYTES,
    epoch_at,
    fetched_head,
    number_in,
    refused,
    table_in,
)
from rhizome.cluster.replication.broker_adapters import HomeAdapter, StandbyAdapter
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.replication.queue_standby import QueueStandby
from rhizome.cluster.replication.replicable_log import ReplicableLog
from rhizome.cluster.replication.standby_group import StandbyGroup
from rhizome.cluster.state.cluster_commands import WHOLE
from rhizome.cluster.state.groups_and_placement import Group, wanted_standbys
from rhizome.cluster.stream_group_roles import StreamGroupRoles
from rhizome.cluster.takeover.copy_progress import NO_COPY, CopyProgress
from rhizome.cluster.transactions.prepared_transactions import (
    open_prepared_transactions,
    prepared_transactions_of,
)
from rhizome.cluster.transactions.transaction_transport import TransactionTransport
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.record_replay import merged, starts_with
from rhizome.journal.records import u16_at, u32_at
from rhizome.journal.recovery import Recovered, RecoveredQueue

if TYPE_CHECKING:
    from rhizome.broker.cluster_port import Waiter
    from rhizome.broker.group_log.log_port import GroupLog
    from rhizome.broker.metadata.metadata_commands import Command
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.link.link import Link
    from rhizome.cluster.state.broker_registry import Registry
    from rhizome.journal.checkpoint import CheckpointBuilder

STREAMS_TICK_MS: Final = 100
"""How often idle streams are looked at."""


class GroupRoles:
    """This broker's role in each group.

    Invariant: ``homes`` has the groups whose log is in ``broker.logs``; a group is never both in
    ``homes`` and in ``copies``. ``standbys`` speak for copies.
    """

    def __init__(
        self,
        port: NodePort,
        edge: Edge,
        tenures: EdgeSessionsByGroup,
        recovered: Recovered,
        settings: HomeSettings,
    ) -> None:
        self.port = port
        self.broker = port.broker
        self.state = port.state
        self.tenures = tenures
        self.home_change = HomeChange(edge, tenures)
        self.home_port = RolesHomePort(self)
        self.settings = settings
        self.outbox_rules = OutboxRules()
        self.tx_transport = TransactionTransport(port, tenures)
        self.broker.across = self.tx_transport
        self.homes: dict[int, HomeGroup] = {}
        self.streams = StreamGroupRoles(self)
        self.copies: dict[int, GroupCopy] = {}
        self.standbys: dict[int, StandbyGroup] = {}
        self._invited: dict[int, int] = {}
        """How far the home that last invited this broker had applied the cluster's log, by
        group."""
        self._early: dict[int, tuple[str, bytes]] = {}
        """Invitations to groups that this broker has yet to learn of, and who sent them."""
        self._ticked_ms = port.now_ms()
        self._awake: dict[int, None] = {}
        """Groups to look at when the turn ends."""
        self._undecided: dict[int, None] = {}
        """Groups whose copy here may turn out to be of no use once more of the log is applied."""
        self._dropped: dict[int, GroupCopy] = {}
        """Copies that were emptied. The journal says that they aren't whole, and whatever goes on
        with them must say so too."""
        self._broken: dict[int, None] = {}
        """Groups in which a change of this broker's role failed half way."""
        self.link = StandbyAdapter(port)
        self.returning: UnreplicatedMessageReturn | None = None
        journal, spill = self.broker.pager.journal, self.broker.pager.spill
        for group in [each for each in recovered.groups if each != LOCAL_GROUP]:
            self.copies[group] = GroupCopy.from_recovery(group, recovered, journal, spill)
        self._unlooked: dict[int, None] = dict.fromkeys(self.copies)
        """Groups whose copies here may have messages that aren't replicated: from before a restart,
        or from when this broker was home (G9)."""

    def is_home(self, group: int) -> bool:
        return group in self.homes

    def update(self) -> None:
        """Take the role that the state says, in all groups."""
        known = self.state.groups.groups
        gone = [*self.homes, *self.standbys]
        gone += [int(queue.definition.group) for queue in self.broker.internal.values()]
        self.update_groups([*(each for each in gone if each not in known), *known])

    def update_groups(self, groups: Iterable[int]) -> None:
        """Take the role that the state says, in these groups."""
        known = self.state.groups.groups
        undecided = list(self._undecided) if self.port.is_ready() else []
        for number in [*groups, *undecided]:
            group = known.get(number)
            if group is None:
                self._forget(number)
            else:
                self._try_update(group)
        for number in [each for each in self._early if each in known]:
            name, payload = self._early.pop(number)
            self.invited(name, payload, 0, len(payload))

    def _forget(self, number: int) -> None:
        """The group no longer exists."""
        if number in self.homes:
            self.lose_home(number)
        self.standbys.pop(number, None)
        self._undecided.pop(number, None)
        for queue in list(self.broker.internal.values()):
            if queue.definition.group == number:
                drop_internal_queue(self.broker, queue)

    def _try_update(self, group: Group) -> None:
        """Update one group; a fault in it must not keep the others from their roles. Its copy may
        be half a home: nothing more is done with it until the broker is started again."""
        if group.id in self._broken:
            return
        try:
            self._update(group)
        except Exception as error:
            self._broken[group.id] = None
            self._fault(group.id, error)

    def _update(self, group: Group) -> None:
        port = self.port
        if not group.stream:
            open_outbox(self.broker, group.id, self.outbox_rules)
            open_prepared_transactions(self.broker, group.id, self.tx_transport)
        standby = self.standbys.get(group.id)
        if standby is not None:
            standby.learn(group.epoch)
        mine = group.home == port.name and group.incarnation == port.incarnation
        home = self.homes.get(group.id)
        if home is not None and (not mine or home.log.epoch != group.epoch):
            self.lose_home(group.id)
            home = None
        self._awake[group.id] = None
        if mine and home is None:
            self.become_home(group)
        elif home is not None:
            home.changed(group)
        elif self._is_spare(group):
            self._drop_copy(group.id)

    def _drop_copy(self, group: int) -> None:
        standby = self.standbys.pop(group, None)
        if standby is not None and standby.home:
            # If the copy is wanted after all, this broker is invited again.
            self._refuse(standby.home, group, int(standby.epoch), "it isn't needed")
        copy = self.copies.pop(group, None)
        if copy is None:
            self.streams.drop(group)
        else:
            copy.discard()
            self._dropped[group] = copy

    def _is_spare(self, group: Group) -> bool:
        """Whether the copy here is of no use: enough others have it whole.

        Entries read from the log while this broker starts say nothing about now; nor do entries
        older than an invitation.
        """
        me = self.port.name
        self._undecided.pop(group.id, None)
        if group.home in ("", me) or not self._is_kept(group):
            return False
        unknown = not self.port.is_ready() or self.has_unseen(group) or self._has_bare(group.id)
        if unknown or self.port.applied.index < self._invited.get(group.id, 0):
            self._undecided[group.id] = None
            return False
        if group.member(me) is not None or me in wanted_standbys(group, self.state.registry):
            return False
        whole = sum(each.copy == WHOLE for each in group.in_sync)
        return whole >= max(group.copies - 1, 0)

    def has_unseen(self, group: Group) -> bool:
        """Whether the copy here is from before a person forced a home, and nobody has compared the
        two yet. It may have messages that are nowhere else, and stays until it is invited (G8)."""
        copy = self.copies.get(group.id)
        return copy is not None and copy.epoch < group.forced and copy.count() > 0

    def _is_kept(self, group: Group) -> bool:
        return self.streams.is_kept(group.id) if group.stream else group.id in self.copies

    def copy_progress(self, group: int) -> CopyProgress:
        """The progress of the copy of a group that is kept here (G3)."""
        known = self.state.groups.groups.get(group)
        if known is not None and known.stream and group not in self.homes:
            return self.streams.copy_progress(group)
        copy = self.copies.get(group)
        if copy is None or copy.installing or group in self._broken:
            return CopyProgress(0, NO_COPY)
        return CopyProgress(int(copy.epoch), int(copy.index))

    # ---- becoming home --------------------------------------------------------------------------

    def become_home(self, group: Group) -> None:
        """Begin an epoch with what the copy here has, and activate its queues (G1)."""
        if group.stream:
            self.streams.become_home(group)
            return
        broker = self.broker
        copy = self.copy_of(group.id)
        del self.copies[group.id]
        self.standbys.pop(group.id, None)
        first = int(copy.index) + 1
        starts = starts_with(copy.starts, group.epoch, first)
        broker.pager.journal.epoch(group.id, group.epoch, first)
        log = ReplicatedGroupLog(
            broker.pager.journal,
            group.id,
            group.epoch,
            first,
            starts,
            dict(copy.origins),
            copy.disk,
        )
        log.refused = copy.known.refused
        home = self.new_home(group, log, log, copy.whole)
        broker.logs[group.id] = log
        for queue in queues_of(broker, group.id):
            self._activate(queue, log, copy)
        for queue_id in list(copy.queues):
            # The queue was deleted while this broker did not follow (H13).
            log.drop(queue_id)
        copy.let_go()
        home.sessions.doubtful = {} if copy.whole else dict(copy.origins)
        self.home_change.come_home(home.sessions).answer_calls()
        broker.delayed.recover()
        prepared_txs = prepared_transactions_of(broker, group.id)
        if prepared_txs is not None:
            prepared_txs.restored()
        self.homes[group.id] = home
        home.begin()

    def new_home(
        self, group: Group, log: ReplicableLog, known_log: GroupLog, whole: bool
    ) -> HomeGroup:
        """The home of a group, whose queues are not active yet; edges know it by ``known_log``."""
        sessions = self.tenures.make(group.id, group.epoch, known_log)
        copies = HomeAdapter(self.port, group.id)
        home = HomeGroup(self.home_port, copies, group, log, whole, sessions, self.settings)
        copies.copies = home.copies
        return home

    def _activate(self, queue: Queue, log: ReplicatedGroupLog, copy: GroupCopy) -> None:
        queue.use_log(log)
        queue.away = None
        if queue.options.replicate == BARE:
            log.bare[int(queue.id)] = None
        found = copy.recovered(queue.id)
        if found is not None:
            restore_queue(queue, found)

    def copy_of(self, group: int) -> GroupCopy:
        copy = self.copies.get(group)
        if copy is None:
            copy = self._dropped.pop(group, None)
            if copy is None:
                copy = GroupCopy(group, self.broker.pager.journal, self.broker.pager.spill)
            self.copies[group] = copy
        return copy

    # ---- being replaced -------------------------------------------------------------------------

    def lose_home(self, group_id: int) -> None:
        """Another broker is home: what is in the journal here becomes a copy, the rest is
        dropped."""
        if self.homes[group_id].group.stream:
            self.streams.lose_home(group_id)
            return
        broker = self.broker
        if len(broker.dead_letters) > 0:
            # What died in this turn was not acked: the next home must not be told that it was.
            bury_apart(broker)
        home = self.homes.pop(group_id)
        was_handing_over = home.end()
        log = home.log
        queues = queues_of(broker, group_id)
        for queue in queues:
            # Before the copy says how far it is: what was settled here must be in its log.
            queue.write_settled()
        copy = GroupCopy.from_home(log, log.disk(), broker.pager.journal, broker.pager.spill)
        copy.whole = was_handing_over
        self.copies[group_id] = copy
        for queue in queues:
            copy.adopt(self._kept(queue))
        self.home_change.leave_home(group_id, log)
        if self.returning is not None:
            self.returning.lost_home(group_id, log.bare)
            self._unlooked[group_id] = None
        for queue in queues:
            broker.delayed.let_go(queue)
            broker.leases.let_go(queue)
            if queue.worker is not None:
                queue.worker.let_go()
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
        for message in queue.broker.unacked_messages(queue):
            lane_number = min(int(message.priority), len(queue.lanes) - 1)
            by_priority.setdefault(lane_number, []).append(message)
            size += len(message.content)
        for priority, messages in by_priority.items():
            messages.sort(key=lambda each: each.index)
            parts[priority].append(self._resident(queue, messages))
        for priority, damaged in self.broker.damage.indexes(queue):
            pager.retain_paged(damaged)
            parts[priority].append(damaged)
        levels = {priority: merged(indexes) for priority, indexes in parts.items()}
        group, counts = int(queue.log.group), dict(queue.counts)
        leases = self.broker.leases.packed(queue)
        return RecoveredQueue(
            int(queue.id), group, levels, counts, size, queue.seen, shown_of(queue), leases
        )

    def _resident(self, queue: Queue, messages: list[Message]) -> PagedIndex:
        index = PagedIndex()
        for message in messages:
            index.append(message.index, self.broker.pager.keep(queue, message))
        return index

    # ---- handing over ---------------------------------------------------------------------------

    def serves(self, group: int) -> bool:
        """Whether the queues of a group are active here for applications."""
        home = self.homes.get(group)
        return home is not None and not home.is_handing_over

    def step_aside(self, home: HomeGroup) -> None:
        """What applications of this broker do waits for the next home."""
        group_id = home.group.id
        self.home_change.step_aside(group_id)
        self.port.homes_changed([group_id])

    def come_home(self, home: HomeGroup) -> LocalEdgeReturn:
        """Applications of this broker come back to a home that was to be handed over."""
        for queue in queues_of(self.broker, home.group.id):
            queue.away = None
        return self.home_change.come_home(home.sessions)

    def came_home(self, home: HomeGroup) -> None:
        """A home that was to be handed over serves again: edges attach anew."""
        group_id = home.group.id
        self.port.homes_changed([group_id])
        for link in self.port.links().open_links():
            payload = encode_table({"group": group_id, "epoch": home.group.epoch})
            link.send(REATTACH, payload)
        self.broker.committed()

    # ---- queues ---------------------------------------------------------------------------------

    def queue_made(self, queue: Queue) -> None:
        """A shared queue was made, or made again from a snapshot."""
        home = self.homes.get(queue.definition.group)
        if is_stream(queue.options):
            self.streams.queue_made(queue, home)
        elif home is not None:
            queue.use_log(home.log)
            if queue.options.replicate == BARE:
                home.log.bare[int(queue.id)] = None

    # ---- links ----------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        for home in self.homes.values():
            home.link_up(link)

    def link_down(self, name: str) -> None:
        for number, home in self.homes.items():
            try:
                home.link_down(name)
            except Exception as error:
                self._fault(number, error)
        for standby in self.standbys.values():
            standby.link_down(name)

    def stood_still(self, away_ms: int) -> None:
        """This broker stood still for ``away_ms``, and has read nothing since."""
        for home in self.homes.values():
            home.stood_still(away_ms)

    # ---- frames about copies --------------------------------------------------------------------

    def register(self, frames: FrameTable) -> None:
        """Take the frames between homes and standbys, and about transactions."""
        frames.register(RECORDS, RecordsHandler(self))
        frames.register(REPLICATED, ReplicatedHandler(self))
        frames.register(INVITE, SpanHandler(self.invited))
        frames.register(FOLLOW, SpanHandler(self.followed))
        frames.register(LIVE, SpanHandler(self.live))
        frames.register(WANT, SpanHandler(self.wanted))
        frames.register(BACKFILL, SpanHandler(self.backfilled))
        frames.register(REFUSED, SpanHandler(self.refused))
        frames.register(FETCH, SpanHandler(self.fetch))
        frames.register(FETCHED, SpanHandler(self.fetched))
        frames.register(RESTORE, SpanHandler(self.restored))
        self.tx_transport.register(frames)

    def _is_well(self, group: int) -> bool:
        """A frame about a group came: whether anything may be done about it here."""
        if group in self._broken:
            return False
        self._awake[group] = None
        return True

    def home_for(self, group: int) -> HomeGroup | None:
        """The home of a group, if it is here, for a frame of one of its standbys."""
        return self.homes.get(group) if self._is_well(group) else None

    def standby_for(self, group: int) -> StandbyGroup | None:
        """The standby that speaks for the copy of a group here, for a frame of its home."""
        if not self._is_well(group) or group in self.homes:
            return None
        return self._standby(group)

    def invited(self, name: str, data: bytes, start: int, end: int) -> None:
        table = table_in(data, start, end)
        group = number_in(table, "group")
        if not self._is_well(group):
            return
        home = self.homes.get(group)
        if home is not None:
            # There is another home: this broker has yet to learn that it is home no more.
            self._refuse(name, group, int(home.log.epoch), "it is home itself")
        elif not self.port.is_ready():
            # The sender may no longer be home: this broker can't tell yet.
            self._refuse(name, group, 0, "it is not ready yet")
        elif group not in self.state.groups.groups:
            # It isn't known here what this is a group of.
            self._early[group] = (name, data[start:end])
        elif self._has_bare(group):
            self._refuse(name, group, 0, "it sets aside what it has kept")
        else:
            self._invited[group] = number_in(table, "applied")
            standby = self._standby(group)
            if standby is not None:
                standby.invited_by(name, table)

    def refused(self, name: str, data: bytes, start: int, end: int) -> None:
        group = number_in(table_in(data, start, end), "group")
        home = self.home_for(group)
        if home is not None:
            home.copies.refused_by(name)
            return
        standby = self.standby_for(group)
        if standby is not None:
            standby.refused_by(name)

    def followed(self, name: str, data: bytes, start: int, end: int) -> None:
        table = table_in(data, start, end)
        home = self.home_for(number_in(table, "group"))
        if home is not None:
            home.copies.followed_by(name, table)

    def wanted(self, name: str, data: bytes, start: int, end: int) -> None:
        home = self.home_for(u16_at(data, start))
        if home is not None:
            home.copies.wanted_by(name, data, start)

    def live(self, name: str, data: bytes, start: int, end: int) -> None:
        standby = self.standby_for(u16_at(data, start))
        if standby is not None:
            standby.live(name, data, start, end)

    def backfilled(self, name: str, data: bytes, start: int, end: int) -> None:
        standby = self.standby_for(u16_at(data, start))
        if standby is not None:
            standby.backfilled(name, data, start, end)

    def restored(self, name: str, data: bytes, start: int, end: int) -> None:
        standby = self.standby_for(u16_at(data, start))
        if standby is not None:
            standby.restored(name, data, start, end)

    def fetched(self, name: str, data: bytes, start: int, end: int) -> None:
        """Another broker answers about a message that the home here can't read."""
        home = self.home_for(u16_at(data, start))
        if home is not None and home.log.epoch == epoch_at(data, start):
            queue_id = u32_at(data, start + HEAD_BYTES)
            index: i64 = read_i64_be(data, start + HEAD_BYTES + 4)
            record = data[start + FETCHED_BYTES : end]
            home.copies.fetches.answered(name, queue_id, index, record)

    def fetch(self, name: str, data: bytes, start: int, end: int) -> None:
        """A home asks for a message that it can't read."""
        group = int(u16_at(data, start))
        if not self._is_well(group):
            return
        epoch = epoch_at(data, start)
        queue_id = u32_at(data, start + HEAD_BYTES)
        index: i64 = read_i64_be(data, start + HEAD_BYTES + 4)
        copy = self.copies.get(group)
        found = b""
        if copy is not None:
            in_epoch = u32_at(data, start + FETCHED_BYTES)
            found = self.link.read(copy, queue_id, index, in_epoch)
        self.link.send(name, FETCHED, [fetched_head(group, epoch, queue_id, index), found])

    def _refuse(self, name: str, group: int, epoch: int, reason: str) -> None:
        payload = refused(self.port.applied.index, group, epoch, reason)
        self.link.send(name, REFUSED, [payload])

    def _standby(self, group: int) -> StandbyGroup | None:
        """The standby that speaks for the copy of a group, made if there is none yet; None for a
        stream that isn't known here."""
        standby = self.standbys.get(group)
        if standby is None:
            known = self.state.groups.groups.get(group)
            if known is not None and known.stream:
                standby = self.streams.standby(group)
                if standby is None:
                    return None
            else:
                standby = QueueStandby(self.copy_of(group), self.link, self.port.incarnation)
            self.standbys[group] = standby
            if known is not None:
                # An earlier home must not take hold of this copy (G1).
                standby.learn(known.epoch)
        return standby

    # ---- turns and timers -----------------------------------------------------------------------

    def tick(self) -> None:
        everything = self.port.now_ms() - self._ticked_ms >= STREAMS_TICK_MS
        for number, home in self.homes.items():
            if everything or not home.log.stored:
                self._awake[number] = None
                try:
                    home.tick()
                except Exception as error:
                    self.broker.report_bug(error, f"the home of group {number}", FAULT_GROUP)
        if everything:
            self._ticked_ms = self.port.now_ms()
            self._awake.update(dict.fromkeys(self.standbys))
        self._return_kept()
        self.tx_transport.tick()
        self.broker.hold_back(next(filter(None, map(HomeGroup.stall, self.homes.values())), ""))

    def _has_bare(self, group: int) -> bool:
        """Whether the copy here has messages that are not replicated, and so are nowhere else."""
        copy = self.copies.get(group) if group in self._unlooked else None
        return copy is not None and self.returning is not None and self.returning.has_bare(copy)

    def _return_kept(self) -> None:
        """Bring what was kept of queues that are taken over empty to their homes (G9)."""
        returning = self.returning
        if returning is None or not self.port.is_ready():
            return
        for number in list(self._unlooked):
            copy = self.copies.get(number)
            group = self.state.groups.groups.get(number)
            if copy is None or group is None:
                del self._unlooked[number]
            elif group.home not in ("", self.port.name):
                returning.take(copy, group)
                if not returning.has_bare(copy):
                    del self._unlooked[number]
        returning.tick()

    def end_turn(self) -> None:
        """End the turn of groups with something to do. Idle streams are left alone for a while:
        there may be thousands of them, and of turns."""
        awake = self._awake
        for stream in self.broker.streams.unsafe:
            awake[stream.queue.definition.group] = None
        for number in list(awake):
            part = self.homes.get(number) or self.standbys.get(number)
            if part is not None:
                try:
                    part.end_turn()
                except Exception as error:
                    self._fault(number, error)
            if part is None or part.rests():
                del awake[number]

    def _fault(self, number: int, error: Exception) -> None:
        """A home that failed in the middle of something confirms nothing any more; a standby begins
        anew."""
        home = self.homes.get(number)
        if home is not None:
            self.broker.report_bug(error, f"the home of group {number}", FAULT_GROUP)
            home.fail()
            return
        self.broker.report_bug(error, f"the copy of group {number}", FAULT_STANDBY)
        standby = self.standbys.get(number)
        if standby is not None and standby.home:
            name, epoch = standby.home, int(standby.epoch)
            standby.leave()
            self._refuse(name, number, epoch, "a fault of the broker itself; its log has more")

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


@final
class RolesHomePort(HomePort):
    """Connects the homes of groups to this broker."""

    def __init__(self, roles: GroupRoles) -> None:
        super().__init__()
        self.roles = roles
        self.port = roles.port

    def now_ms(self) -> int:
        return self.port.now_ms()

    def name(self) -> str:
        return self.port.name

    def registry(self) -> Registry:
        return self.port.state.registry

    def open_links(self) -> list[Link]:
        return self.port.links().open_links()

    def absent_clients(self, group: int) -> dict[str, str]:
        return self.port.absent_clients(group)

    def propose(self, command: Command, waiter: Waiter) -> None:
        self.port.propose(command, waiter)

    def committed(self) -> None:
        self.port.broker.committed()

    def recovered(self, took_ms: int) -> None:
        self.port.broker.takeover_times.add(took_ms, 1)

    def step_aside(self, home: HomeGroup) -> None:
        self.roles.step_aside(home)

    def come_home(self, home: HomeGroup) -> LocalEdgeReturn:
        return self.roles.come_home(home)

    def came_home(self, home: HomeGroup) -> None:
        self.roles.came_home(home)


@final
class RecordsHandler(FrameHandler):
    """RECORDS: for the copy of a group here."""

    roles: GroupRoles

    def __init__(self, roles: GroupRoles) -> None:
        super().__init__()
        self.roles = roles

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        standby = self.roles.standby_for(u16_at(data, start))
        if standby is not None:
            standby.records(link.name, data, start, end)


@final
class ReplicatedHandler(FrameHandler):
    """REPLICATED: for the home of a group here."""

    roles: GroupRoles

    def __init__(self, roles: GroupRoles) -> None:
        super().__init__()
        self.roles = roles

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        home = self.roles.home_for(u16_at(data, start))
        if home is not None:
            home.copies.replicated_by(link.name, data, start)
