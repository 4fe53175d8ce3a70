"""Queue order: the queues that are active on this broker, in the order in which lists show them.

A page of a hundred rows is cut from what is in order already. Without it each page would look at
every queue of the broker and sort them, a hundred thousand for a hundred.
"""

from __future__ import annotations

from heapq import merge
from operator import attrgetter
from typing import Final

from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.queue.queue import Queue
from rhizome.management.http.cooperative_yield import Pace

RUN_QUEUES: Final = 500
_NAME: Final = attrgetter("name")


class QueueOrder:
    """The active queues of each vhost by name, made when they are asked for.

    Invariant: a vhost's queues are kept with the epoch of its router from before they were looked
    at. Whatever declares or deletes a queue, or moves its home, begins another epoch, so a list of
    the present epoch is what a walk over the vhost would find.
    """

    def __init__(self) -> None:
        self._kept: dict[VHost, tuple[int, list[Queue]]] = {}

    async def active(self, vhost: VHost) -> list[Queue]:
        """The queues of a vhost that are active here, by name; not to be changed."""
        epoch = int(vhost.router.epoch)
        kept = self._kept.get(vhost)
        if kept is not None and kept[0] == epoch:
            return kept[1]
        found = await _in_order(vhost)
        self._kept[vhost] = (epoch, found)
        return found

    def keep_only(self, vhosts: dict[str, VHost]) -> None:
        """Forget the vhosts that are gone."""
        if len(self._kept) > len(vhosts):
            there = [each for each in self._kept if vhosts.get(each.name) is each]
            self._kept = {each: self._kept[each] for each in there}


async def _in_order(vhost: VHost) -> list[Queue]:
    """Sorted in runs that are merged: no step takes long."""
    pace = Pace()
    here: list[Queue] = []
    for queue in list(vhost.destinations.values()):
        if isinstance(queue, Queue) and queue.away is None:
            here.append(queue)
        if pace.is_due():
            await pace.rest()
    runs: list[list[Queue]] = []
    for start in range(0, len(here), RUN_QUEUES):
        runs.append(sorted(here[start : start + RUN_QUEUES], key=_NAME))
        if pace.is_due():
            await pace.rest()
    found: list[Queue] = []
    for queue in merge(*runs, key=_NAME):
        found.append(queue)
        if pace.is_due():
            await pace.rest()
    return found
