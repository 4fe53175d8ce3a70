"""Deliveries that returning clients held, as the homes of the queues know them (J12).

A client that presents a message may have held it through a broker that still has its session, or
that is gone. The home takes the message from there. The places to look through are found once for
all that is presented in one frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.broker.channel.unacked_lookup import Key, Place, places_of, take_held
from rhizome.broker.cluster_port import Holdings
from rhizome.broker.connection.session_resume import is_later
from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.home.edge_reconciliation import EdgeSessions, EdgeSessionsByGroup


@final
class GroupResumedDeliveries(Holdings):
    """What one client held of one group that is at home here, before its present visit."""

    tenure: EdgeSessions
    client: str
    visit: i64
    places: dict[Key, Place] | None

    def __init__(self, tenure: EdgeSessions, client: str, visit: i64) -> None:
        super().__init__()
        self.tenure = tenure
        self.client = client
        self.visit = visit
        self.places = None

    def take(self, queue: Queue, index: i64) -> Message | None:
        if not self.client:
            return None
        key = (int(queue.id), int(index))
        for detached in self.tenure.kept():
            place = detached.places.get(key)
            if place is not None and self._is_mine(place[0]):
                return detached.take(queue.id, index)
        if self.places is None:
            self.places = places_of(self.tenure.channels_of(self.client, self.visit))
        place = self.places.pop(key, None)
        return None if place is None else take_held(place[0], place[1])

    def _is_mine(self, channel: Channel) -> bool:
        return channel.client == self.client and not is_later(channel.visit, self.visit)


@final
class ClientResumedDeliveries(Holdings):
    """What one client held of all groups that are at home here."""

    tenures: EdgeSessionsByGroup
    client: str
    visit: i64
    by_group: dict[int, GroupResumedDeliveries]

    def __init__(self, tenures: EdgeSessionsByGroup, client: str, visit: i64) -> None:
        super().__init__()
        self.tenures = tenures
        self.client = client
        self.visit = visit
        self.by_group = {}

    def take(self, queue: Queue, index: i64) -> Message | None:
        group = queue.definition.group
        holdings = self.by_group.get(group)
        if holdings is None:
            tenure = self.tenures.tenures.get(group)
            if tenure is None:
                return None
            holdings = GroupResumedDeliveries(tenure, self.client, self.visit)
            self.by_group[group] = holdings
        return holdings.take(queue, index)
