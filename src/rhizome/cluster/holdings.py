"""Holdings: what clients held that come back, as the homes of the queues know it (J12).

A client that presents a message may have held it through a broker that still has its session, or
that is gone. The home takes it from there. What it looks through is found once for all that is
presented in one frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.broker.places import Key, Place, places_of, take_held
from rhizome.broker.port import Holdings
from rhizome.broker.resuming import is_later

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.broker.queue import Queue
    from rhizome.cluster.tenure import Tenure, Tenures


@final
class HomeHoldings(Holdings):
    """What one client held of one group that is at home here, before this visit of it."""

    tenure: Tenure
    client: str
    visit: i64
    places: dict[Key, Place] | None

    def __init__(self, tenure: Tenure, client: str, visit: i64) -> None:
        super().__init__()
        self.tenure = tenure
        self.client = client
        self.visit = visit
        self.places = None

    def take(self, queue: Queue, index: i64) -> Message | None:
        if not self.client:
            return None
        key = (int(queue.id), int(index))
        for parked in self.tenure.kept():
            place = parked.places.get(key)
            if place is not None and self._is_mine(place[0]):
                return parked.take(queue.id, index)
        if self.places is None:
            self.places = places_of(self.tenure.channels_of(self.client, self.visit))
        place = self.places.pop(key, None)
        return None if place is None else take_held(place[0], place[1])

    def _is_mine(self, channel: Channel) -> bool:
        return channel.client == self.client and not is_later(channel.visit, self.visit)


@final
class ClientHoldings(Holdings):
    """What one client held of all groups that are at home here."""

    tenures: Tenures
    client: str
    visit: i64
    by_group: dict[int, HomeHoldings]

    def __init__(self, tenures: Tenures, client: str, visit: i64) -> None:
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
            holdings = HomeHoldings(tenure, self.client, self.visit)
            self.by_group[group] = holdings
        return holdings.take(queue, index)
