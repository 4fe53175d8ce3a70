"""Edge: this broker in its role of serving applications whose queues are at home elsewhere.

It has one `RemoteGroup` for each group that it has heard of. Numbers of sessions, consumers and
calls are unique here, whatever the group and whoever is its home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.wire import u32_at
from rhizome.cluster.asking import number_in, number_or, starts_in
from rhizome.cluster.attachrules import AttachRules
from rhizome.cluster.remote import RemoteGroup
from rhizome.cluster.session import Session

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel import Channel
    from rhizome.broker.connection import Connection
    from rhizome.broker.consumer import Consumer
    from rhizome.cluster.neighbour import Neighbour
    from rhizome.cluster.track import Track


@final
class Edge:
    """Invariant: ``consumers`` holds those of all groups by number; ``leaving`` those whose last
    deliveries may still be on their way. While ``ready`` isn't set nothing is attached: a home
    takes no attach of an incarnation that the cluster doesn't know. ``ended``: a group is gone, and
    who waited for it is to be told.
    """

    broker: Broker
    rules: AttachRules
    groups: dict[int, RemoteGroup]
    consumers: dict[int, Consumer]
    leaving: dict[int, Session]
    ready: bool
    ended: bool
    next_number: i64

    def __init__(self, broker: Broker, rules: AttachRules) -> None:
        self.broker = broker
        self.rules = rules
        self.groups = {}
        self.consumers = {}
        self.leaving = {}
        self.ready = False
        self.ended = False
        self.next_number = 0

    def group(self, number: i64) -> RemoteGroup:
        group = self.groups.get(number)
        if group is None:
            group = RemoteGroup(self, number)
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
            del self.leaving[consumer]
        self.ended = True

    def number(self) -> i64:
        self.next_number += 1
        return self.next_number

    def at_home(self, neighbour: Neighbour) -> list[RemoteGroup]:
        """The groups whose home is that broker."""
        return [group for group in self.groups.values() if group.home is neighbour]

    # ---- links ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """This broker is registered: attach to all homes that can be reached."""
        self.ready = True
        for group in self.groups.values():
            group.attach()

    def lease_gained(self) -> None:
        """Homes that were to wait for this broker may have gone on without it (A2): they are told
        what it didn't show."""
        for group in self.groups.values():
            if group.missed:
                group.detached()
                group.attach()

    def linked(self, neighbour: Neighbour) -> None:
        for group in self.at_home(neighbour):
            group.attach()

    def unlinked(self, neighbour: Neighbour) -> None:
        for group in self.at_home(neighbour):
            group.detached()
        gone = [number for number, session in self.leaving.items() if session.home.track is None]
        for number in gone:
            del self.leaving[number]

    def explain(self, neighbour: Neighbour, reason: str) -> None:
        """Tell publishers why what is at home there doesn't get through; "" if it does."""
        for group in self.at_home(neighbour):
            group.way.explain(reason)

    # ---- turns ----------------------------------------------------------------------------------

    def tick(self, now_ms: i64) -> None:
        for group in self.groups.values():
            group.tick(now_ms)

    def end_turn(self) -> None:
        for group in self.groups.values():
            group.end_turn()

    def caught_up(self) -> None:
        """More of the cluster's log is applied: queues may be gone."""
        dropped = self.ended
        self.ended = False
        for group in self.groups.values():
            if group.track is None and len(group.way.messages) > 0:
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

    def group_of(self, number: i64, track: Track) -> RemoteGroup | None:
        """The group, if that link leads to the home that is attached to (A2)."""
        group = self.groups.get(number)
        return group if group is not None and self.counts(group, track) else None

    def counts(self, group: RemoteGroup, track: Track) -> bool:
        """Whether a frame that came over this link is of the attach that counts (A2)."""
        if not self.rules.older_epochs_dropped:
            return True
        return group.track is track and group.attached

    def attached_to(self, track: Track, table: dict[str, object]) -> None:
        group = self.groups.get(number_in(table, "group"))
        if group is not None:
            group.attached_to(
                track,
                number_in(table, "epoch"),
                number_in(table, "last"),
                number_in(table, "start"),
                number_or(table, "void_from", 0),
                number_or(table, "doubtful", 0),
                starts_in(table),
                number_or(table, "attach", -1),
            )

    def session_gone(self, track: Track, table: dict[str, object]) -> None:
        group = self.group_of(number_in(table, "group"), track)
        if group is not None:
            group.session_gone(number_in(table, "session"))

    def attach_anew(self, neighbour: Neighbour, number: i64, epoch: i64) -> None:
        """A home says that everything has to be presented again."""
        group = self.groups.get(number)
        if group is not None and group.home is neighbour and group.epoch == epoch:
            group.detached()
            group.attach()

    def answered(self, track: Track, answer: dict[str, object]) -> None:
        group = self.groups.get(number_in(answer, "group"))
        if group is None or group.track is not track:
            return
        if "content" in answer and not self.broker.may_deliver:
            # A message, as in `delivered`; it is asked for again.
            group.missed = True
            return
        call = group.calls.pop(number_in(answer, "call"), None)
        if call is not None:
            group.answered(call, answer)

    def detached(self, number: i64) -> None:
        """No delivery of this consumer can come any more."""
        self.leaving.pop(number, None)

    def delivered(self, track: Track, data: bytes, at: i64, end: i64) -> None:
        """A DELIVER frame. One that isn't of the attach that counts is dropped: the message is not
        among what was presented, so its home has it for others (A2). So is one that comes while
        this broker has no lease: a new home, of which it doesn't know yet, doesn't wait for it."""
        number = u32_at(data, at)
        consumer = self.consumers.get(number)
        if consumer is None or consumer.channel.closing:
            session = self.leaving.get(number)
            if session is not None and self.counts(session.home, track):
                session.take_back(read_i64_be(data, at + 4))
            return
        owner = consumer.proxy
        if isinstance(owner, Session):
            home = owner.home
            if self.counts(home, track):
                if self.broker.may_deliver:
                    home.delivered(owner, consumer, data, at, end)
                else:
                    home.missed = True
