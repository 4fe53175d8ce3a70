"""ForwardPort: the forward queue to another broker as publishers see it, and what they send on it.

It takes what is published here and belongs there. Nothing here knows links or homes: the cluster
implements it.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.message import Message
from rhizome.broker.turn import MarkedChannel, MarkedConnection


class PublisherChannel(MarkedChannel):
    """A channel as its forward queues know it: they tell it what became of its publishes elsewhere.
    ``nacked`` has the tags of those that were refused."""

    closing: bool
    nacked: set[int]

    def nack(self, tag: i64) -> None:
        """Tell the publisher that a queue refused its message."""
        raise NotImplementedError

    def send_return(self, message: Message) -> None:
        """Return a mandatory message that no queue took."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Forward:
    """The forward queue to another broker for publishes.

    It leads to the queues of one group, wherever their home is, or (group 0) to the private queues
    of one broker; ``broker_name`` is where that is now.

    Invariant: messages are numbered without gaps in the order of sending; ``confirmed`` never falls
    and never passes ``sent``. What was sent is kept until it is confirmed. ``thin`` is the last
    number that was confirmed although no standby has the message.
    """

    broker_name: str
    group: i64
    sent: i64
    confirmed: i64
    thin: i64
    congested: bool

    def __init__(self, broker_name: str, group: i64) -> None:
        self.broker_name = broker_name
        self.group = group
        self.sent = 0
        self.confirmed = 0
        self.thin = 0
        self.congested = False

    def send(
        self, message: Message, target: Target, channel: PublisherChannel | None, tag: i64
    ) -> i64:
        """Send a message to what ``target`` names there; return its number.

        A refusal is told to ``channel`` as a nack of ``tag``, unless that is 0.
        """
        raise NotImplementedError

    def pause(self, connection: MarkedConnection) -> None:
        """Pause a publisher until there is room in this forward queue."""
        raise NotImplementedError


@final
class Target:
    """What one forward queue has to do with the messages of a route.

    The forward queue of a group delivers to the group's queues on this route. The forward queue to
    a broker names the exchanges whose private bindings that broker looks at, with the route's key
    and ``keys``, and private queues by name. With ``relay`` that broker also sends the message on
    to brokers that this one has no link to.

    ``sole`` is set if nobody else gets the message and only private queues there may take it.
    ``bundle`` is set if another target of the route is on the same broker. ``slot`` belongs to the
    link.
    """

    forward: Forward
    vhost: str
    queue_ids: list[int]
    exchanges: list[str]
    keys: list[str]
    names: list[str]
    relay: bool
    sole: bool
    bundle: Bundle | None
    slot: i64

    def __init__(self, forward: Forward, vhost: str, keys: list[str]) -> None:
        self.forward = forward
        self.vhost = vhost
        self.queue_ids = []
        self.exchanges = []
        self.keys = keys
        self.names = []
        self.relay = False
        self.sole = False
        self.bundle = None
        self.slot = 0


@final
class Bundle:
    """The targets of a route that are on one broker: it gets one copy for all of them (O33).

    A message is sent to them in this order, and written when the last of them has its number.
    """

    targets: list[Target]
    slot: i64

    def __init__(self, first: Target) -> None:
        self.targets = [first]
        self.slot = 0
