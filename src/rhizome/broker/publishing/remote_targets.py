"""Targets: what another broker gets of a message that was published here.

Each broker gets one copy, whatever the number of queues and bindings that match there (O33).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.publishing.forward_port import Bundle, Forward, Target
from rhizome.broker.publishing.reliability_levels import COPIED, EVERYWHERE, ON_DISK
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.bindings_and_destinations import Destination

META_PREFIX: Final = "\x00@"
RELAY_PREFIX: Final = "\x00*"
"""No queue name begins like this, so it tells meta-bindings from other bindings."""


@final
class MetaExchange(Destination):
    """The exchange of the same name on another broker, as the destination of a meta-binding.

    A binding to it says that the broker has private queues bound there. With ``relay`` it says that
    brokers reached through that broker have some.
    """

    forward: Forward
    exchange: str
    relay: bool

    def __init__(self, vhost: str, exchange: str, forward: Forward, relay: bool) -> None:
        kind = RELAY_PREFIX if relay else META_PREFIX
        super().__init__(vhost, kind + forward.broker_name)
        self.exchange = exchange
        self.forward = forward
        self.relay = relay


@final
class MetaQueue(Destination):
    """A private queue or reply token on another broker, or with ``relay`` on one behind it."""

    forward: Forward
    relay: bool

    def __init__(self, vhost: str, name: str, forward: Forward, relay: bool) -> None:
        super().__init__(vhost, name)
        self.forward = forward
        self.relay = relay


@final
class Recipients:
    """Where a message goes: queues that are active here, and targets on other brokers.

    ``unrouted``: the message goes nowhere except to streams that tap its exchange, which its
    publisher knows nothing of. ``level`` is what all places have in common of how they keep
    messages (`reliability_levels.py`).
    """

    queues: list[Queue]
    targets: list[Target]
    keys: list[str]
    unrouted: bool
    level: i64

    def __init__(self, keys: list[str]) -> None:
        """``keys`` are the routing keys that count besides the key of the route."""
        self.queues = []
        self.targets = []
        self.keys = keys
        self.unrouted = False
        self.level = EVERYWHERE

    def is_empty(self) -> bool:
        return len(self.queues) == 0 and len(self.targets) == 0

    def add(self, destination: Destination) -> None:
        """Add a destination that is not there yet."""
        if isinstance(destination, Queue):
            self.level &= keeping_of(destination)
            away = destination.away
            if away is None:
                self.queues.append(destination)
            else:
                self._target(away.forward(), destination.vhost).queue_ids.append(destination.id)
        elif isinstance(destination, MetaExchange):
            self.level = 0
            target = self._target(destination.forward, destination.vhost)
            if destination.exchange not in target.exchanges:
                target.exchanges.append(destination.exchange)
            if destination.relay:
                target.relay = True
        elif isinstance(destination, MetaQueue):
            self.level = 0
            target = self._target(destination.forward, destination.vhost)
            if destination.name not in target.names:
                target.names.append(destination.name)
            if destination.relay:
                target.relay = True

    def close(self, taps: list[Destination]) -> Recipients:
        """Finish: everything was added except streams and histories that get a copy."""
        self.unrouted = self.is_empty()
        sole = len(self.queues) == 0 and len(self.targets) == 1
        if sole:
            target = self.targets[0]
            target.sole = len(target.queue_ids) == 0
        for destination in taps:
            if isinstance(destination, Queue) and (
                destination.options.queue_type == "stream" or destination.of_broker
            ):
                self.add(destination)
        if len(self.targets) > 1 and not sole:
            bundle(self.targets)
        if self.is_empty():
            self.level = 0
        return self

    def _target(self, forward: Forward, vhost: str) -> Target:
        for target in self.targets:
            if target.forward is forward:
                return target
        target = Target(forward, vhost, self.keys)
        self.targets.append(target)
        return target


def keeping_of(queue: Queue) -> i64:
    """How a queue keeps messages (`reliability_levels.py`) if all its possible standbys are
    there."""
    if queue.options.queue_type == "stream":
        return EVERYWHERE
    level: i64 = ON_DISK if queue.durable else 0
    if queue.options.replicate is None or queue.options.replicate == "messages":
        level |= COPIED
    return level


def bundle(targets: list[Target]) -> None:
    """Group the targets that are on the same broker now."""
    firsts: dict[str, Target] = {}
    for target in targets:
        name = target.forward.broker_name
        first = firsts.setdefault(name, target)
        if first is target or not name:
            continue
        if first.bundle is None:
            first.bundle = Bundle(first)
        first.bundle.targets.append(target)
        target.bundle = first.bundle


def rehomed(queues: list[Queue], targets: list[Target], shared: dict[int, Queue]) -> Recipients:
    """Where a message goes now that was routed to these recipients earlier. A queue may have been
    deleted since, or be active elsewhere."""
    recipients = Recipients(targets[0].keys if len(targets) > 0 else [])
    if _are_as_they_were(queues, targets, shared):
        recipients.queues = queues
        recipients.targets = targets
        return recipients
    for queue in queues:
        if not queue.deleted:
            recipients.add(queue)
    for target in targets:
        for queue_id in target.queue_ids:
            moved = shared.get(queue_id)
            if moved is not None:
                recipients.add(moved)
        if len(target.exchanges) > 0 or len(target.names) > 0:
            # Routes share their targets, so this makes a new one.
            rest = Target(target.forward, target.vhost, target.keys)
            rest.exchanges = target.exchanges
            rest.names = target.names
            rest.relay = target.relay
            recipients.targets.append(rest)
    bundle(recipients.targets)
    return recipients


def _are_as_they_were(queues: list[Queue], targets: list[Target], shared: dict[int, Queue]) -> bool:
    for queue in queues:
        if queue.deleted or queue.away is not None:
            return False
    for target in targets:
        for queue_id in target.queue_ids:
            there = shared.get(queue_id)
            if there is None or there.away is None:
                return False
    return True
