"""Detached sessions: what a home keeps for an edge whose link broke.

The messages are neither delivered to others nor lost to the application, until the edge attaches
again or has been away for ``PARK_MS``, or for as long as their queue says
(``x-consumer-disconnected-timeout``).

If the edge is known not to come back as it was, what its applications held goes back to the queues
at once. An exception are clients that may be on their way to another broker (J12): what they held
is kept for the whole time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.channel.unacked import REQUEUE
from rhizome.broker.channel.unacked_lookup import Key, Place, give_back_unseen, places_of, take_held
from rhizome.broker.connection.session_resume import is_later
from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.queue.queue import Queue

PARK_MS: Final = 10_000
"""How long a home keeps what an edge holds after its link broke. Auto-delete queues wait as long
for their consumers to come back."""
TURN_MS: Final = 2_000
"""How long a consumer whose edge is away remains the active one of its queue. It is longer than a
lease, so that a broker that nobody reaches shows its applications nothing any more (R9)."""


@final
class DetachedSessions:
    """What the sessions of one incarnation of an edge hold of one group, while it is away.

    ``carrier`` has their channels. ``abandoned`` are auto-delete queues that the edge consumed, and
    whether the consumer was a client that may come back elsewhere. ``turns`` are the active
    consumers of queues that have one at a time: each remains the active one of its queue, and takes
    nothing.
    """

    broker: Broker
    incarnation: str
    name: str
    since_ms: i64
    carrier: Connection
    places: dict[Key, Place]
    abandoned: dict[Queue, bool]
    turns: dict[Queue, Consumer]
    patience_min_ms: i64
    """The shortest time for which a queue keeps something of what is here."""
    patience_max_ms: i64

    def __init__(self, broker: Broker, incarnation: str, name: str) -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.name = name
        self.since_ms = broker.turn.now_ms
        self.carrier = broker.carry(f"parked for {name}")
        self.places = {}
        self.abandoned = {}
        self.turns = {}
        self.patience_min_ms = self.patience_max_ms = PARK_MS

    def is_empty(self) -> bool:
        return len(self.places) == 0 and len(self.abandoned) == 0 and len(self.turns) == 0

    def part(self) -> DetachedSessions:
        """Split off what is kept for clients that may come back elsewhere, and return it."""
        parted = DetachedSessions(self.broker, self.incarnation, f"clients of {self.name}")
        parted.since_ms = self.since_ms
        for number, channel in list(self.carrier.channels.items()):
            if len(channel.client) > 0:
                del self.carrier.channels[number]
                parted.add(number, channel)
        for queue, awaited in list(self.abandoned.items()):
            if awaited:
                del self.abandoned[queue]
                parted.abandoned[queue] = True
        return parted

    def add(self, number: i64, channel: Channel) -> None:
        """Take over a channel whose consumers are gone from their queues."""
        channel.connection = self.carrier
        self.carrier.channels[number] = channel
        for tag in channel.unacked.tags():
            message = channel.unacked.message(tag)
            consumer = channel.unacked.consumer(tag)
            assert message is not None
            assert consumer is not None
            self.places[(int(consumer.queue.id), int(message.index))] = (channel, tag)
            self._note_patience(patience_ms(consumer.queue))

    def _note_patience(self, patience: i64) -> None:
        self.patience_min_ms = min(self.patience_min_ms, patience)
        self.patience_max_ms = max(self.patience_max_ms, patience)

    def give_back_overdue(self, away_ms: i64) -> None:
        """Put back what its queues no longer keep for an edge that has been away for so long."""
        self.patience_min_ms = self.patience_max_ms
        for key, (channel, tag) in list(self.places.items()):
            consumer = channel.unacked.consumer(tag)
            assert consumer is not None
            patience = patience_ms(consumer.queue)
            if patience > away_ms:
                self._note_patience(patience)
            else:
                del self.places[key]
                channel.settle_one(tag, REQUEUE)

    def keep_turn(self, consumer: Consumer) -> None:
        """Keep a consumer that is gone from its queue as the active one: nobody else's turn
        begins."""
        consumer.credit = 0
        consumer.exclusive = False
        consumer.queue.active = consumer
        self.turns[consumer.queue] = consumer

    def resume_turns(self, consumers: dict[int, Consumer]) -> None:
        """The edge is back with these consumers: the active ones among them remain so."""
        for queue, active in self.turns.items():
            consumer = consumers.get(active.number)
            if consumer is not None and consumer.queue is queue and queue.active is active:
                queue.active = consumer
        self.pass_turns()

    def pass_turns(self) -> None:
        """The active consumers do not come back: the next ones become active."""
        for queue, active in self.turns.items():
            if queue.active is active:
                queue.remove_consumer(active)
        self.turns = {}

    def take(self, queue_id: i64, index: i64) -> Message | None:
        """Take a message out; it goes on counting as unacked in its queue."""
        place = self.places.pop((int(queue_id), int(index)), None)
        return None if place is None else take_held(place[0], place[1])

    def give_back_to(self, client: str, visit: i64) -> None:
        """Put back what is kept for a client that has come back without it."""
        for channel in self.carrier.channels.values():
            if channel.client == client and not is_later(channel.visit, visit):
                for key in places_of([channel]):
                    self.places.pop(key, None)
                give_back_rest(channel)

    def give_back(self, was_seen: bool) -> None:
        """Put what is left back into its queues, as redelivered if an application may have seen
        it."""
        for channel in self.carrier.channels.values():
            if was_seen:
                give_back_rest(channel)
            else:
                for tag in channel.unacked.tags():
                    give_back_unseen(channel, tag)
        self.forget()

    def forget(self) -> None:
        """Keep nothing for the edge any more."""
        self.carrier.channels = {}
        self.places = {}
        self.pass_turns()
        self.broker.connection_gone(self.carrier)
        for queue in self.abandoned:
            queue.expected -= 1
            if not queue.deleted and queue.away is None:
                self.broker.delete_if_unused(queue)
        self.abandoned = {}


def patience_ms(queue: Queue) -> i64:
    """How long a queue keeps what an edge holds that is away."""
    own = queue.options.disconnected_timeout_ms
    return own if own >= 0 else PARK_MS


def give_back_rest(channel: Channel) -> None:
    """Put back all that a channel holds, as redelivered, since younger messages may have been
    delivered."""
    for tag in channel.unacked.tags():
        channel.settle_one(tag, REQUEUE)
