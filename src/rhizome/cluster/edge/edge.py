"""Edge: this broker in its role of serving applications whose queues are at home elsewhere.

It has one `EdgeGroup` for each group that it has heard of. Numbers of sessions, consumers and
calls are unique here, whatever the group and whoever is its home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import u32_at
from rhizome.cluster.edge.channel_session import ChannelSession
from rhizome.cluster.edge.edge_group import ATTACHED, EdgeGroup
from rhizome.cluster.edge.home_calls import PendingCancel
from rhizome.cluster.protocol.attach_rule_switches import AttachRules
from rhizome.cluster.protocol.call_table_codec import number_in, number_or, starts_in

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.connection.connection import Connection
    from rhizome.cluster.linked_peer import LinkedPeer
    from rhizome.cluster.peer_link_state import LinkChannel

CANCEL_PATIENCE_MS: Final = 1_000
"""How long basic.cancel waits for the home of an auto-delete queue before it is answered anyway."""


@final
class Edge:
    """This broker between its applications and the homes of groups.

    Invariant: ``consumers`` holds those of all groups by number; ``leaving`` those whose last
    deliveries may still be on their way. While ``ready`` isn't set nothing is attached: a home
    takes no attach of an incarnation that the cluster doesn't know. ``ended``: a group is gone, and
    those who waited for it are to be told.
    """

    broker: Broker
    rules: AttachRules
    groups: dict[int, EdgeGroup]
    consumers: dict[int, Consumer]
    leaving: dict[int, ChannelSession]
    cancels: dict[int, PendingCancel]
    """Those of the leaving consumers whose clients wait for the end of their auto-delete queue."""
    ready: bool
    ended: bool
    next_number: i64

    def __init__(self, broker: Broker, rules: AttachRules) -> None:
        self.broker = broker
        self.rules = rules
        self.groups = {}
        self.consumers = {}
        self.leaving = {}
        self.cancels = {}
        self.ready = False
        self.ended = False
        self.next_number = 0

    def group(self, number: i64) -> EdgeGroup:
        group = self.groups.get(number)
        if group is None:
            group = EdgeGroup(self, number)
            self.groups[number] = group
        return group

    def end(self, number: i64) -> None:
        """A group is gone with its stream: forget it."""
        group = self.groups.pop(number, None)
        if group is None:
            return
        group.end()
        gone = [each for each, session in self.leaving.items() if session.home is group]
        for consumer in gone:
            self.detached(consumer, False)
        self.ended = True

    def number(self) -> i64:
        self.next_number += 1
        return self.next_number

    def at_home(self, peer_broker: LinkedPeer) -> list[EdgeGroup]:
        """The groups whose home is that broker."""
        return [group for group in self.groups.values() if group.home is peer_broker]

    # ---- links ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """This broker is registered: attach to all homes that can be reached."""
        self.ready = True
        for group in self.groups.values():
            group.attach()

    def lease_gained(self) -> None:
        """This broker has a lease again. Homes may have gone on without waiting for it (A2), so it
        tells them what it didn't show."""
        for group in self.groups.values():
            if group.missed:
                group.detached()
                group.attach()

    def linked(self, peer_broker: LinkedPeer) -> None:
        for group in self.at_home(peer_broker):
            group.attach()

    def unlinked(self, peer_broker: LinkedPeer) -> None:
        for group in self.at_home(peer_broker):
            group.detached()
        gone = [
            number for number, session in self.leaving.items() if session.home.link_channel is None
        ]
        for number in gone:
            self.detached(number, False)

    def explain(self, peer_broker: LinkedPeer, reason: str) -> None:
        """Tell publishers why their messages for homes at that broker don't get through; "" if they
        do."""
        for group in self.at_home(peer_broker):
            group.way.explain(reason)

    # ---- turns ----------------------------------------------------------------------------------

    def tick(self, now_ms: i64) -> None:
        for group in self.groups.values():
            group.tick(now_ms)
        for number, cancel in list(self.cancels.items()):
            if now_ms - cancel.asked_ms > CANCEL_PATIENCE_MS:
                del self.cancels[number]
                cancel.done(self.broker, False)

    def end_turn(self) -> None:
        for group in self.groups.values():
            group.end_turn()

    def caught_up(self) -> None:
        """More of the cluster's log is applied: queues may be gone."""
        dropped = self.ended
        self.ended = False
        for group in self.groups.values():
            if group.link_channel is None and len(group.way.messages) > 0:
                group.way.drop_deleted(self.broker.shared)
                dropped = True
        if dropped:
            self.broker.committed()

    def release(self, channel: Channel) -> None:
        for group in self.groups.values():
            group.release(channel)

    def client_left(self, channel: Channel) -> None:
        for group in self.groups.values():
            group.client_left(channel)

    def client_came_back(self, connection: Connection) -> None:
        for group in self.groups.values():
            group.client_came_back(connection)

    # ---- frames from homes ----------------------------------------------------------------------

    def group_of(self, number: i64, link_channel: LinkChannel) -> EdgeGroup | None:
        """The group, if that link leads to the home that is attached to (A2)."""
        group = self.groups.get(number)
        return group if group is not None and self.counts(group, link_channel) else None

    def counts(self, group: EdgeGroup, link_channel: LinkChannel) -> bool:
        """Whether a frame that came over this link belongs to the attach that counts (A2)."""
        if not self.rules.older_epochs_dropped:
            return True
        return group.link_channel is link_channel and group.phase == ATTACHED

    def attached_to(self, link_channel: LinkChannel, table: dict[str, object]) -> None:
        group = self.groups.get(number_in(table, "group"))
        if group is not None:
            group.attached_to(
                link_channel,
                number_in(table, "epoch"),
                number_in(table, "last"),
                number_in(table, "start"),
                number_or(table, "void_from", 0),
                number_or(table, "doubtful", 0),
                starts_in(table),
                number_or(table, "attach", -1),
            )

    def session_gone(self, link_channel: LinkChannel, table: dict[str, object]) -> None:
        group = self.group_of(number_in(table, "group"), link_channel)
        if group is not None:
            group.session_gone(number_in(table, "session"))

    def attach_anew(self, peer_broker: LinkedPeer, number: i64, epoch: i64) -> None:
        """A home says that everything has to be presented again."""
        group = self.groups.get(number)
        if group is not None and group.home is peer_broker and group.epoch == epoch:
            group.detached()
            group.attach()

    def answered(self, link_channel: LinkChannel, answer: dict[str, object]) -> None:
        group = self.groups.get(number_in(answer, "group"))
        if group is None or group.link_channel is not link_channel:
            return
        if "content" in answer and not self.broker.may_deliver:
            # A message, as in `delivered`; it is asked for again.
            group.missed = True
            return
        call = group.calls.pop(number_in(answer, "call"), None)
        if call is not None:
            group.answered(call, answer)

    def detached(self, number: i64, unused: bool) -> None:
        """No delivery of this consumer can come any more. ``unused``: its queue is deleted."""
        self.leaving.pop(number, None)
        cancel = self.cancels.pop(number, None)
        if cancel is not None:
            cancel.done(self.broker, unused)

    def delivered(self, link_channel: LinkChannel, data: bytes, at: i64, end: i64) -> None:
        """A DELIVER frame.

        One that isn't of the attach that counts is dropped: the message is not among what was
        presented, so its home has it for others (A2). So is one that comes while this broker has no
        lease: there may be a new home, unknown here, that doesn't wait for this broker.
        """
        number = u32_at(data, at)
        consumer = self.consumers.get(number)
        if consumer is None or consumer.channel.closing:
            session = self.leaving.get(number)
            if session is not None and self.counts(session.home, link_channel):
                session.take_back(read_i64_be(data, at + 4))
            return
        owner = consumer.proxy
        if isinstance(owner, ChannelSession):
            home = owner.home
            if self.counts(home, link_channel):
                if self.broker.may_deliver:
                    home.delivered(owner, consumer, data, at, end)
                else:
                    home.missed = True
