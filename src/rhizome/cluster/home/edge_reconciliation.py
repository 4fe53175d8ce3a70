"""Edge sessions of the groups that are at home here, and their reconciliation when edges attach.

When the link to an edge breaks, what its sessions hold is detached (`detached_sessions.py`).

When an edge attaches, the home compares what it presents with what the queues have. A settlement
wins over anything; a message that is held wins over one that was given back (A2). A presented
message that is found nowhere is void: settling it later means nothing. So is a message that an
earlier home showed and that was lost with it, though another message may have its index now: a
message is named by epoch and index. A message that was kept for the edge and isn't presented never
reached its application, and goes back to its queue as if it had not been delivered.

A new home begins *recovering*: it collects what edges present, and compares when all of it is there
(`EdgeSessions.resolve_all`). Until then nothing is delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.channel.unacked import ACK, REJECT, REQUEUE
from rhizome.broker.channel.unacked_lookup import Key, Place, places_of, take_held
from rhizome.broker.connection.session_resume import is_later
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.home_change_effects import choose_active, claim_of_stream, queues_of, settle
from rhizome.broker.message import Message
from rhizome.broker.queue.queue import claim
from rhizome.cluster.home.detached_sessions import PARK_MS, TURN_MS, DetachedSessions
from rhizome.cluster.home.edge_attachment import EdgeAttachment, SettledRange, TakenNumbers
from rhizome.cluster.home.home_phase import HomePhase
from rhizome.cluster.home.resumed_client_holdings import GroupResumedDeliveries
from rhizome.cluster.protocol.attach_rule_switches import AttachRules

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.home.edge_channels import EdgeConnection
    from rhizome.cluster.state.broker_registry import Registry
    from rhizome.cluster.state.cluster_state import ClusterState

BACK_MAX: Final = 10_000
"""A home knows where this many clients came back; what is kept for others just expires."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LocalEdge:
    """This broker's own applications, where what edges present is resolved (`home_change.py`)."""

    def flush(self) -> None:
        """Collect what was settled."""
        raise NotImplementedError

    def settle(self, kind: i64) -> None:
        raise NotImplementedError

    def hold(self, only_kept: bool) -> None:
        """Hold what is presented: by sessions that only keep it for a client, or by the others."""
        raise NotImplementedError

    def join(self) -> None:
        raise NotImplementedError

    def end_turn(self) -> None:
        raise NotImplementedError


@final
class EdgeSessions:
    """The sessions that edges have with this broker as the home of one group, in one epoch (G1).

    Invariant: each edge, by name, has an attachment in ``attachments``, or something in
    ``detached``, or neither; ``detached`` outlasts an attach until that is resolved.

    ``parted`` is what is kept for clients of edges that won't come back as they were. ``taken`` is
    by incarnation. ``doubtful`` has the last number of each edge that was taken before messages
    held only in memory were lost; it is empty if none were lost. ``back`` has the clients that came
    back with what they held, the edges through which they came, and which visit it was. ``absent``
    are the clients that a new home waits for, each with the incarnation of the broker that it had.
    """

    broker: Broker
    rules: AttachRules
    group: i64
    epoch: i64
    log: GroupLog
    phase: HomePhase
    own: LocalEdge | None
    attachments: dict[str, EdgeAttachment]
    servings: dict[str, EdgeConnection]
    detached: dict[str, DetachedSessions]
    parted: list[DetachedSessions]
    taken: dict[str, TakenNumbers]
    doubtful: dict[int, int]
    back: dict[str, tuple[str, int]]
    absent: dict[str, str]
    _places: dict[Key, Place] | None

    def __init__(
        self,
        broker: Broker,
        rules: AttachRules,
        group: i64,
        epoch: i64,
        log: GroupLog,
        phase: HomePhase,
    ) -> None:
        self.broker = broker
        self.rules = rules
        self.group = group
        self.epoch = epoch
        self.log = log
        self.phase = phase
        self.own = None
        self.attachments = {}
        self.servings = {}
        self.detached = {}
        self.parted = []
        self.taken = {}
        self.doubtful = {}
        self.back = {}
        self.absent = {}
        self._places = None

    # ---- edges come and go ----------------------------------------------------------------------

    def begin(
        self, name: str, edge_connection: EdgeConnection, attached: EdgeAttachment, first: i64
    ) -> None:
        """An edge begins to attach."""
        incarnation = edge_connection.incarnation
        taken = self.taken.get(incarnation)
        if taken is None:
            taken = TakenNumbers()
            self.taken[incarnation] = taken
        attached.begin(self.epoch, self.log, int(incarnation, 16), taken, first)
        if not self.rules.numbers_counted:
            attached.last = first - 1
        detached = self.detached.get(name)
        if detached is not None and detached.incarnation != incarnation:
            self._part_with(name)
        self.attachments[name] = attached
        self.servings[name] = edge_connection

    def presented(self, name: str) -> None:
        """An edge has presented everything: from now on it is attached."""
        self.attachments[name].open = True
        incarnation = self.servings[name].incarnation
        for client in [each for each in self.absent if self.absent[each] == incarnation]:
            # The broker was only out of reach: it has presented what the client holds.
            del self.absent[client]
        if not self.phase.is_recovering():
            self.resolve([name], None)

    def attached(self) -> list[str]:
        """The edges that are attached."""
        return [name for name, attached in self.attachments.items() if attached.open]

    def left(self, name: str) -> None:
        """The link to an edge is gone: keep what it holds for it."""
        attached = self.attachments.pop(name, None)
        if attached is None:
            return
        edge_connection = self.servings.pop(name)
        if attached.resolved:
            detached = DetachedSessions(self.broker, edge_connection.incarnation, name)
            edge_connection.leave(attached, detached)
            if detached.is_empty():
                detached.forget()
            else:
                self.detached[name] = detached
        attached.close()

    def _part_with(self, name: str) -> None:
        """An edge won't come back as it was: what its applications held goes back to the queues,
        except what clients held that may be on their way to another broker (J12)."""
        detached = self.detached.pop(name)
        parted = detached.part()
        detached.give_back(True)
        if parted.is_empty():
            parted.forget()
        else:
            self.parted.append(parted)

    def kept(self) -> list[DetachedSessions]:
        """All that is kept for somebody who is away."""
        return [*self.detached.values(), *self.parted]

    def tick(self, now_ms: i64) -> None:
        for name in list(self.detached):
            detached = self.detached[name]
            away_ms = 0 if name in self.attachments else now_ms - detached.since_ms
            if away_ms >= detached.patience_max_ms:
                del self.detached[name]
                detached.give_back(True)
                continue
            if away_ms >= detached.patience_min_ms and name not in self.attachments:
                detached.give_back_overdue(away_ms)
            if away_ms >= TURN_MS:
                detached.pass_turns()
        for parted in list(self.parted):
            if now_ms - parted.since_ms >= PARK_MS:
                self.parted.remove(parted)
                parted.give_back(True)

    def forget_past(self, registry: Registry) -> None:
        """Give up what is kept for edges that won't come back as the incarnation they were."""
        for name in list(self.detached):
            detached = self.detached[name]
            if not registry.is_current(detached.incarnation):
                self._part_with(name)
        for broker in registry.brokers.values():
            for incarnation in broker.past:
                self.taken.pop(incarnation, None)
                origin = int(incarnation, 16)
                if self.log.numbered and origin in self.log.origins:
                    self.log.note_number(origin, 0)

    # ---- what edges present ---------------------------------------------------------------------

    def resolve_all(self) -> None:
        """Resolve all attachments: everybody who may hold something of this group is attached, or
        won't be waited for."""
        self.resolve(self.attached(), self.own)
        for queue in queues_of(self.broker, self.group):
            choose_active(queue)
            if queue.ready > 0 and not queue.marked:
                queue.touch()

    def resolve(self, names: list[str], own: LocalEdge | None) -> None:
        """Compare what these edges have presented with what the queues have (A2)."""
        if own is not None:
            own.flush()
        self._places = None
        self._settle(names, own, ACK)
        self._settle(names, own, REJECT)
        self._places = None
        for only_kept in (False, True):
            # Sessions that only keep something for their client come after those that hold it.
            for name in names:
                self._hold(name, only_kept)
            if own is not None:
                own.hold(only_kept)
        self._settle(names, own, REQUEUE)
        if own is not None:
            own.join()
        for name in names:
            attached = self.attachments[name]
            attached.held = []
            attached.settled = []
            attached.resolved = True
            detached = self.detached.pop(name, None)
            edge_connection = self.servings[name]
            edge_connection.join(attached)
            if detached is not None:
                detached.resume_turns(edge_connection.consumers)
                detached.give_back(False)

    def _settle(self, names: list[str], own: LocalEdge | None, kind: i64) -> None:
        if own is not None:
            own.settle(kind)
        for name in names:
            attached = self.attachments[name]
            for settled in attached.settled:
                if settled.kind == kind:
                    self._settle_range(self.detached.get(name), settled, attached.void_from)

    def _settle_range(
        self, detached: DetachedSessions | None, settled: SettledRange, void_from: i64
    ) -> None:
        queue = self._queue(settled.queue_id)
        if queue is None:
            return
        index = settled.first
        while index <= settled.last and not is_void(queue, index, void_from):
            message = None if detached is None else detached.take(queue.id, index)
            if message is None and settled.kind != REQUEUE:
                message = self.take_kept(queue, index)
            was_ready = message is None
            if message is None:
                message = claim(queue, index)
            if message is not None:
                settle(queue, message, settled.kind, was_ready)
            index += 1

    def take_kept(self, queue: Queue, index: i64) -> Message | None:
        """Take a message that is kept for somebody, or held over a connection that is left: its
        client has come back at the broker that settles it, and the client's earlier broker, if it
        lives, doesn't know."""
        for detached in self.kept():
            message = detached.take(queue.id, index)
            if message is not None:
                return message
        if self._places is None:
            self._places = places_of(self._keeping())
        place = self._places.pop((int(queue.id), int(index)), None)
        return None if place is None else take_held(place[0], place[1])

    def _keeping(self) -> list[Channel]:
        """The channels that only keep something for clients."""
        channels: list[Channel] = []
        for attached in self.attachments.values():
            for session in attached.kept:
                if session in attached.sessions:
                    channels.append(attached.sessions[session])
        for connection in self.broker.suspended_sessions.carriers():
            channels.extend(connection.channels.values())
        return [*channels, *self._left_behind()]

    def _left_behind(self) -> list[Channel]:
        """The channels of clients that have come back over another connection, though the brokers
        of these haven't noticed yet that the client is gone."""
        channels = self._channels_by_client()
        latest: dict[str, int] = {}
        for client, channel in channels:
            latest[client] = max(latest.get(client, 0), int(channel.visit))
        return [channel for client, channel in channels if is_later(latest[client], channel.visit)]

    def _channels_by_client(self) -> list[tuple[str, Channel]]:
        """The channels of clients that can resume, through edges and here."""
        found: list[tuple[str, Channel]] = []
        for attached in self.attachments.values():
            for channel in attached.sessions.values():
                if len(channel.client) > 0:
                    found.append((channel.client, channel))
        for connection in self.broker.applications():
            if len(connection.resume_id) > 0:
                for channel in connection.channels.values():
                    found.append((connection.resume_id, channel))
        return found

    def _hold(self, name: str, only_kept: bool) -> None:
        edge_connection = self.servings[name]
        attached = self.attachments[name]
        detached = self.detached.get(name)
        holdings: dict[int, GroupResumedDeliveries] = {}
        for held in attached.held:
            if (held.session in attached.kept) is not only_kept:
                continue
            queue = self._queue(held.queue_id)
            void_from: i64 = 0 if held.more else attached.void_from
            channel = edge_connection.channel(attached, held.session)
            has_moved_on = self._has_moved_on(channel)
            index = held.first
            while index <= held.last:
                message: Message | None = None
                if queue is not None and queue.stream is not None:
                    message = claim_of_stream(queue, index)
                elif queue is not None and not (has_moved_on or is_void(queue, index, void_from)):
                    if detached is not None:
                        message = detached.take(queue.id, index)
                    if message is None:
                        message = claim(queue, index)
                    if message is None:
                        if held.session not in holdings:
                            client, visit = channel.client, channel.visit
                            found = held_before(self, client, visit, only_kept)
                            holdings[held.session] = found
                        message = holdings[held.session].take(queue, index)
                edge_connection.hold(attached, held.session, held.consumer, queue, message)
                index += 1

    def hold_more(self, name: str) -> None:
        """An edge whose attachment is resolved presents more: one of its clients resumes."""
        self._hold(name, False)
        self.attachments[name].held = []

    def client_came_back(self, client: str, name: str, visit: i64) -> None:
        """A client has presented everything, through an edge or, if ``name`` is "", here. The
        client doesn't have what else is kept for it, so that is given up, unless the client has
        moved on since."""
        known = self.back.pop(client, None)
        if known is not None and is_later(known[1], visit):
            self.back[client] = known
            return
        self.back[client] = (name, visit)
        if len(self.back) > BACK_MAX:
            del self.back[next(iter(self.back))]
        for detached in self.kept():
            detached.give_back_to(client, visit)
        for other, attached in self.attachments.items():
            if other != name and attached.resolved:
                for session in attached.kept:
                    channel = attached.sessions.get(session)
                    if channel is not None and channel.client == client:
                        if not is_later(channel.visit, visit):
                            self.servings[other].give_up(attached, session)
        for connection in self.broker.suspended_sessions.carriers():
            if connection.resume_id == client:
                for channel in connection.channels.values():
                    if not is_later(channel.visit, visit):
                        self._give_back_ours(channel)

    def client_left(self, client: str, name: str, session: i64, visit: i64) -> None:
        """From now on a session's messages are only kept for its client."""
        known = self.back.get(client)
        if known is None or is_later(visit, known[1]):
            return
        if is_later(known[1], visit) or known[0] != name:
            self.servings[name].give_up(self.attachments[name], session)
        else:
            del self.back[client]

    def _has_moved_on(self, channel: Channel) -> bool:
        """Whether the client of a channel has come back since, with all that it has."""
        known = self.back.get(channel.client)
        return known is not None and is_later(known[1], channel.visit)

    def _give_back_ours(self, channel: Channel) -> None:
        for tag in channel.unacked.tags():
            consumer = channel.unacked.consumer(tag)
            if consumer is not None and consumer.queue.definition.group == self.group:
                if consumer.proxy is None:
                    channel.settle_one(tag, REQUEUE)

    def channels_of(self, client: str, visit: i64) -> list[Channel]:
        """The channels of a client that can resume, through edges and here, up to a visit."""
        return [
            channel
            for whose, channel in self._channels_by_client()
            if whose == client and not is_later(channel.visit, visit)
        ]

    def _queue(self, queue_id: i64) -> Queue | None:
        queue = self.broker.shared.get(queue_id)
        return None if queue is None or queue.away is not None else queue

    def end(self) -> None:
        """The group is at home elsewhere: what edges have here means nothing any more."""
        for name, attached in self.attachments.items():
            self.servings[name].drop(attached)
            attached.close()
        self.attachments = {}
        self.servings = {}
        for detached in self.kept():
            detached.forget()
        self.detached = {}
        self.parted = []


def held_before(
    tenure: EdgeSessions, client: str, visit: i64, only_kept: bool
) -> GroupResumedDeliveries:
    """What a client held before a visit, which it has presented. If that visit is over, too, and
    something is only kept for it, others may have it as the same visit's, or a later one's."""
    if not only_kept:
        return GroupResumedDeliveries(tenure, client, visit)
    return GroupResumedDeliveries(tenure, client if visit > 1 else "", visit - 1)


def is_void(queue: Queue, index: i64, void_from: i64) -> bool:
    """Whether what somebody has of a queue was lost with an earlier epoch. Streams have logs of
    their own, and show only what is on disk."""
    return 0 < void_from <= index and queue.stream is None


@final
class EdgeSessionsByGroup:
    """The edge sessions of all groups that this broker is home of."""

    broker: Broker
    state: ClusterState
    rules: AttachRules
    tenures: dict[int, EdgeSessions]

    def __init__(self, broker: Broker, state: ClusterState, rules: AttachRules) -> None:
        self.broker = broker
        self.state = state
        self.rules = rules
        self.tenures = {}

    def make(self, group: i64, epoch: i64, log: GroupLog) -> EdgeSessions:
        """The edge sessions of a home that is about to begin."""
        return EdgeSessions(self.broker, self.rules, group, epoch, log, HomePhase())

    def begin(self, tenure: EdgeSessions) -> None:
        """This broker is home of a group from now on; nothing is left of an earlier epoch."""
        before = self.tenures.get(tenure.group)
        if before is not None and before is not tenure:
            before.end()
        self.tenures[tenure.group] = tenure

    def end(self, group: i64) -> None:
        tenure = self.tenures.pop(group, None)
        if tenure is not None:
            tenure.end()

    def get(self, group: i64, epoch: i64) -> EdgeSessions | None:
        """The edge sessions of a group, if they are of this epoch and in service."""
        tenure = self.tenures.get(group)
        if tenure is None or tenure.epoch != epoch or tenure.phase.is_handing_over():
            return None
        return tenure

    def step_aside(self, group: i64) -> None:
        """Take nothing from edges any more; what they hold is kept for them."""
        tenure = self.tenures[group]
        for name in list(tenure.attachments):
            tenure.left(name)

    def left(self, name: str) -> None:
        for tenure in self.tenures.values():
            tenure.left(name)

    def client_came_back(self, client: str, visit: i64) -> None:
        """A client has presented everything here."""
        for tenure in self.tenures.values():
            tenure.absent.pop(client, None)
            if tenure.phase.is_serving():
                tenure.client_came_back(client, "", visit)

    def client_left(self, client: str, visit: i64) -> None:
        """From now on what a client held here is kept for it."""
        for tenure in self.tenures.values():
            known = tenure.back.get(client)
            if known is not None and known[0] == "" and not is_later(known[1], visit):
                del tenure.back[client]

    def tick(self, now_ms: i64) -> None:
        for tenure in self.tenures.values():
            tenure.tick(now_ms)

    def end_turn(self) -> None:
        for tenure in self.tenures.values():
            if tenure.own is not None and not tenure.phase.is_handing_over():
                tenure.own.end_turn()

    def brokers_changed(self) -> None:
        for tenure in self.tenures.values():
            tenure.forget_past(self.state.registry)
