"""The history of a run as the applications saw it: every message, its deliveries and its fate.

Other checkers look things up here. The history comes before them in the list of checkers, so that
it has each event before they get it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from rhizome.testing.sim.apps.app_topology import LATER, Topology
from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.world.event_scheduler import shown_time

NEVER_US: Final = -1

UNKNOWN: Final = ""
CONFIRMED: Final = "confirmed"
NACKED: Final = "nacked"


@dataclass(slots=True)
class Session:
    """One connection of an application."""

    number: int
    application: str
    broker: str
    opened_us: int
    over_us: int = NEVER_US
    let_go_us: int = NEVER_US
    """When its broker ended it, or noticed that it is over."""


@dataclass(slots=True)
class Delivery:
    """One delivery of a message to an application."""

    session: Session
    channel: int
    consumer: str
    tag: int
    queue: str
    message: str
    redelivered: bool
    automatic: bool
    at_us: int
    died_in: str = ""
    verdict: str = ""
    settled_us: int = NEVER_US
    transaction: int = 0
    released_us: int = NEVER_US
    """When the application lost it: its channel or session was over."""

    def is_held(self) -> bool:
        """Whether the application has it, and its broker has not ended the session."""
        over = self.released_us >= 0 or self.session.let_go_us >= 0
        return not self.verdict and not self.automatic and not over


@dataclass(slots=True)
class Message:
    """One publish, and what its sender was told of it. `order` counts all publishes of a run."""

    id: str
    application: str
    session: Session
    channel: int
    order: int
    queues: tuple[str, ...]
    persistent: bool
    mandatory: bool
    priority: int
    message_id: str
    transaction: int
    size: int
    at_us: int
    delayed: bool = False
    outcome: str = UNKNOWN
    outcome_us: int = NEVER_US
    returned: bool = False
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    """By queue."""
    continued: dict[str, list[Delivery]] = field(default_factory=dict)
    """By queue: what was delivered over an earlier connection of a client that came back."""

    def came_from(self, queue: str) -> list[Delivery]:
        return self.deliveries.get(queue, [])


@dataclass(slots=True)
class Transaction:
    """A transaction. `asked` is the request that was sent, `answered` whether its answer came."""

    number: int
    session: Session
    messages: list[str] = field(default_factory=list)
    settled: list[Delivery] = field(default_factory=list)
    asked: str = ""
    asked_us: int = NEVER_US
    answered: bool = False

    @property
    def is_committed(self) -> bool:
        return self.answered and self.asked == told.COMMIT

    @property
    def is_in_doubt(self) -> bool:
        """Whether its sender cannot know if it was carried out."""
        return self.asked == told.COMMIT and not self.answered


@dataclass(frozen=True, slots=True)
class Deposed:
    """A home that was replaced while no broker was a whole standby: the new home began with what
    its disk had. `last` are the brokers that were whole last, each with the instant since when it
    was; `until_us` is when they were whole no longer."""

    home: str
    at_us: int
    last: dict[str, int]
    until_us: int


class History(Checker):
    """Keeps what applications report; it never raises a violation."""

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.topology = topology
        self.sessions: dict[int, Session] = {}
        self.messages: dict[str, Message] = {}
        self.transactions: dict[int, Transaction] = {}
        self.purges: dict[str, list[int]] = {}
        """When a purge of a queue was answered; one without an answer yet counts as endlessly
        late."""
        self.same: dict[str, list[Message]] = {}
        """Messages by their message_id."""
        self.groups: dict[str, int] = {}
        self.homes: dict[int, list[tuple[int, str, int]]] = {}
        """For each group: since when, which broker, in which epoch."""
        self.members: dict[int, list[tuple[int, str]]] = {}
        """For each group: since when, which whole standbys it has."""
        self._known: dict[int, tuple[int, int]] = {}
        self._connections: dict[int, int] = {}
        self.channels_gone: set[tuple[int, int]] = set()
        self.automatic_over: dict[str, list[int]] = {}
        """When channels ended that consumed a queue with automatic acks, for the application or, if
        that was later, for its broker."""
        self.last_settled: Delivery | None = None
        self._open: dict[tuple[int, int, int], Delivery] = {}
        self._automatic: dict[tuple[int, int], str] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            told.SessionOpened: self._opened,
            told.SessionOver: self._over,
            told.ConnectionLetGo: self._let_go,
            told.ProgramEnded: self._program_ended,
            told.ChannelGone: self._channel_gone,
            told.Sent: self._sent,
            told.Confirmed: self._confirmed,
            told.Nacked: self._nacked,
            told.Returned: self._returned,
            told.Delivered: self._delivered,
            told.SettledBy: self._settled,
            told.Presented: self._presented,
            told.SettledAway: self._settled_away,
            told.TakesUnseen: self._takes_unseen,
            told.TransactionEnds: self._ends,
            told.TransactionEnded: self._ended,
            told.PurgeSent: self._purge_sent,
            told.PurgeAnswered: self._purge_answered,
            told.GroupAt: self._group,
            told.QueueIn: self._queue_in,
        }

    @property
    def now_us(self) -> int:
        return self.watch.world.now_us

    # --- sessions

    def _opened(self, seen: told.SessionOpened) -> None:
        self.sessions[seen.session] = Session(
            seen.session, seen.application, seen.broker, self.now_us
        )
        self._connections[seen.connection] = seen.session

    def _over(self, seen: told.SessionOver) -> None:
        session = self.sessions.get(seen.session)
        if session is None:
            return
        session.over_us = self.now_us
        self._release(lambda key: key[0] == seen.session)

    def _channel_gone(self, seen: told.ChannelGone) -> None:
        self.channels_gone.add((seen.session, seen.channel))
        self._release(lambda key: key[:2] == (seen.session, seen.channel))

    def _let_go(self, seen: told.ConnectionLetGo) -> None:
        session = self.sessions.get(self._connections.get(seen.connection, -1))
        if session is not None and session.let_go_us < 0:
            session.let_go_us = self.now_us
            self._unseen_over([session.number])

    def _program_ended(self, seen: told.ProgramEnded) -> None:
        mine = [each.number for each in self.sessions.values() if each.broker == seen.broker]
        self._unseen_over(mine)
        for key in [key for key in self._automatic if key[0] in mine]:
            del self._automatic[key]

    def _unseen_over(self, sessions: list[int]) -> None:
        """Nothing more is sent there to a consumer with automatic acks."""
        for (number, _), queue in self._automatic.items():
            if number in sessions:
                self.automatic_over.setdefault(queue, []).append(self.now_us)

    def _release(self, over: Callable[[tuple[int, int, int]], bool]) -> None:
        for key in [key for key in self._open if over(key)]:
            self._open.pop(key).released_us = self.now_us
        for channel, queue in self._automatic.items():
            if over((*channel, 0)):
                self.automatic_over.setdefault(queue, []).append(self.now_us)

    # --- publishing

    def _sent(self, seen: told.Sent) -> None:
        message = Message(
            seen.message,
            seen.application,
            self.sessions[seen.session],
            seen.channel,
            len(self.messages),
            self.topology.route(seen.exchange, seen.key),
            bool(seen.persistent),
            bool(seen.mandatory),
            seen.priority,
            seen.message_id,
            seen.transaction,
            seen.size,
            self.now_us,
            seen.exchange == LATER,
        )
        self.messages[message.id] = message
        if message.message_id:
            self.same.setdefault(message.message_id, []).append(message)
        if message.transaction:
            self._transaction(message.transaction, message.session).messages.append(message.id)

    def _transaction(self, number: int, session: Session) -> Transaction:
        return self.transactions.setdefault(number, Transaction(number, session))

    def _confirmed(self, seen: told.Confirmed) -> None:
        self._answered(self.messages[seen.message], CONFIRMED)

    def _nacked(self, seen: told.Nacked) -> None:
        self._answered(self.messages[seen.message], NACKED)

    def _answered(self, message: Message, outcome: str) -> None:
        message.outcome, message.outcome_us = outcome, self.now_us

    def _returned(self, seen: told.Returned) -> None:
        self.messages[seen.message].returned = True

    def _ends(self, seen: told.TransactionEnds) -> None:
        transaction = self.transactions.get(seen.transaction)
        if transaction is not None:
            transaction.asked, transaction.asked_us = seen.verdict, self.now_us

    def _ended(self, seen: told.TransactionEnded) -> None:
        transaction = self.transactions.get(seen.transaction)
        if transaction is None:
            return
        transaction.answered = True
        if transaction.is_committed:
            for message in transaction.messages:
                self._answered(self.messages[message], CONFIRMED)
        else:
            for delivery in transaction.settled:
                # Unacked again, as if it had not been settled.
                delivery.verdict, delivery.transaction = "", 0
                if delivery.released_us < 0:
                    key = (delivery.session.number, delivery.channel, delivery.tag)
                    self._open[key] = delivery

    def _purge_sent(self, seen: told.PurgeSent) -> None:
        self.purges.setdefault(seen.queue, []).append(1 << 62)

    def _purge_answered(self, seen: told.PurgeAnswered) -> None:
        self.purges[seen.queue][-1] = self.now_us

    # --- consuming

    def _delivered(self, seen: told.Delivered) -> None:
        delivery = Delivery(
            self.sessions[seen.session],
            seen.channel,
            seen.consumer,
            seen.tag,
            seen.queue,
            seen.message,
            bool(seen.redelivered),
            bool(seen.automatic),
            self.now_us,
            seen.died_in,
        )
        if delivery.automatic:
            delivery.verdict, delivery.settled_us = told.ACK, self.now_us
        else:
            self._open[seen.session, seen.channel, seen.tag] = delivery
        message = self.messages.get(seen.message)
        if message is not None:
            message.deliveries.setdefault(seen.queue, []).append(delivery)

    def _takes_unseen(self, seen: told.TakesUnseen) -> None:
        self._automatic[seen.session, seen.channel] = seen.queue

    def _settled(self, seen: told.SettledBy) -> None:
        delivery = self._open.pop((seen.session, seen.channel, seen.tag), None)
        self.last_settled = delivery
        if delivery is None:
            return
        delivery.verdict, delivery.settled_us = seen.verdict, self.now_us
        delivery.transaction = seen.transaction
        if seen.transaction:
            transaction = self._transaction(seen.transaction, delivery.session)
            transaction.settled.append(delivery)

    def _presented(self, seen: told.Presented) -> None:
        message = self.messages.get(seen.message)
        if message is not None and seen.held:
            delivery = self._continued(seen.queue, message, self.sessions[seen.session])
            delivery.channel, delivery.tag = seen.channel, seen.tag
            self._open[seen.session, seen.channel, seen.tag] = delivery

    def _settled_away(self, seen: told.SettledAway) -> None:
        message = self.messages.get(seen.message)
        if message is not None:
            delivery = self._continued(seen.queue, message, self.sessions[seen.session])
            delivery.verdict, delivery.settled_us = seen.verdict, self.now_us

    def _continued(self, queue: str, message: Message, session: Session) -> Delivery:
        """What an application still holds of what it got over another connection."""
        delivery = Delivery(session, 0, "", 0, queue, message.id, True, False, self.now_us)
        message.continued.setdefault(queue, []).append(delivery)
        return delivery

    def is_settled(self, delivery: Delivery) -> bool:
        """Whether its application has settled it, as far as it knows: for good, or perhaps."""
        if delivery.verdict not in (told.ACK, told.REJECT):
            return False
        if delivery.transaction == 0:
            return True
        transaction = self.transactions[delivery.transaction]
        return transaction.is_committed or transaction.is_in_doubt

    # --- homes

    def _group(self, seen: told.GroupAt) -> None:
        if (seen.epoch, seen.version) <= self._known.get(seen.group, (0, 0)):
            # A broker learns late what others know.
            return
        self._known[seen.group] = (seen.epoch, seen.version)
        homes = self.homes.setdefault(seen.group, [])
        if not homes or (seen.epoch > homes[-1][2]):
            homes.append((self.now_us, seen.home, seen.epoch))
        members = self.members.setdefault(seen.group, [])
        whole = " ".join(each for each in seen.members.split() if each.endswith(":whole"))
        if not members or members[-1][1] != whole:
            members.append((self.now_us, whole))

    def _queue_in(self, seen: told.QueueIn) -> None:
        self.groups[seen.queue] = seen.group

    def homes_of(self, queue: str, from_us: int, to_us: int) -> list[str]:
        """The homes of a queue in that time, oldest first."""
        homes = self.homes.get(self.groups.get(queue, -1), [])
        found: dict[str, None] = {}
        for at, (since_us, home, _) in enumerate(homes):
            until_us = homes[at + 1][0] if at + 1 < len(homes) else 1 << 62
            if since_us <= to_us and until_us >= from_us:
                found[home] = None
        return list(found)

    def holders_of(self, queue: str, from_us: int, to_us: int) -> list[str]:
        """The homes and whole standbys of a queue in that time."""
        found = dict.fromkeys(self.homes_of(queue, from_us, to_us))
        members = self.members.get(self.groups.get(queue, -1), [])
        for at, (since_us, whole) in enumerate(members):
            until_us = members[at + 1][0] if at + 1 < len(members) else 1 << 62
            if since_us <= to_us and until_us >= from_us:
                found.update(dict.fromkeys(each.partition(":")[0] for each in whole.split()))
        return list(found)

    def successors_of(self, queue: str, from_us: int, to_us: int) -> list[tuple[int, str]]:
        """Brokers appointed in that time and replaced soon after, and when that was known."""
        homes = self.homes.get(self.groups.get(queue, -1), [])
        return [(us, home) for us, home, _ in homes[1:-1] if from_us <= us <= to_us]

    def has_changed(self, queue: str, since_us: int, until_us: int = 1 << 62) -> bool:
        """Whether a queue has got another home, or the same one in another epoch, in that time."""
        homes = self.homes.get(self.groups.get(queue, -1), [])
        return any(since_us <= us <= until_us for us, _, _ in homes[1:])

    def groups_of(self, broker: str, at_us: int) -> list[int]:
        """The groups that a broker was the home of."""
        return [
            group
            for group, homes in self.homes.items()
            if broker == next((home for since, home, _ in reversed(homes) if since <= at_us), "")
        ]

    def begun_from_disk(self, group: int, from_us: int, to_us: int) -> list[tuple[int, list[str]]]:
        """When a broker that was no whole standby of a group became its home in that time, and
        which brokers were whole standbys."""
        found: list[tuple[int, list[str]]] = []
        members = self.members.get(group, ())
        for us, home, _ in self.homes.get(group, [])[1:]:
            before = next((who for since, who in reversed(members) if since < us), "")
            whole = [each.removesuffix(":whole") for each in before.split()]
            if from_us <= us <= to_us and home not in whole:
                found.append((us, whole))
        return found

    def deposed_alone(self, group: int, from_us: int, to_us: int) -> list[Deposed]:
        """The homes of a group that were replaced in that time while no standby was whole."""
        found: list[Deposed] = []
        for (_, old, _), (us, new, _) in pairwise(self.homes.get(group, ())):
            if from_us <= us <= to_us and new != old and self.was_alone(group, us - 1):
                found.append(self._deposed(group, old, us))
        return found

    def _deposed(self, group: int, home: str, at_us: int) -> Deposed:
        listed = [each for each in self.members.get(group, ()) if each[0] < at_us]
        until_us = at_us
        while listed and not listed[-1][1]:
            until_us, _ = listed.pop()
        last: dict[str, int] = {}
        still = set(listed[-1][1].split()) if listed else set()
        for since_us, whole in reversed(listed):
            still &= set(whole.split())
            last.update({each.removesuffix(":whole"): since_us for each in sorted(still)})
        last.pop(home, None)
        return Deposed(home, at_us, last, until_us)

    def was_alone(self, group: int, at_us: int) -> bool:
        """Whether the home of a group had no whole standby then."""
        return not next(
            (who for since, who in reversed(self.members.get(group, ())) if since <= at_us), ""
        )

    def ended_alone(self, group: int, at_us: int) -> bool:
        """Whether a home that ended then had no whole standby, or had proposed a set without one: a
        later change in its epoch was proposed by it before (G5)."""
        next_us = next((us for us, _, _ in self.homes.get(group, ()) if us > at_us), 1 << 62)
        return self.was_alone(group, at_us) or any(
            not who for us, who in self.members.get(group, ()) if at_us < us < next_us
        )

    def was_alone_throughout(self, group: int, from_us: int, to_us: int) -> bool:
        """Whether the home of a group had no whole standby at any instant of that time."""
        if not self.was_alone(group, from_us):
            return False
        return not any(who and from_us < us <= to_us for us, who in self.members.get(group, ()))

    def held_by(self, session: int, channel: int, consumer: str) -> list[Delivery]:
        """What a consumer holds, oldest first."""
        return [
            each
            for key, each in self._open.items()
            if key[:2] == (session, channel) and each.consumer == consumer
        ]

    # --- for people

    def story(self, id_: str) -> str:
        """All that is known of a message, for the text of a violation."""
        message = self.messages.get(id_)
        if message is None:
            return f"{id_} was never sent"
        parts = [
            f"sent {shown_time(message.at_us)} by {message.application} at "
            f"{message.session.broker} to {', '.join(message.queues) or 'no queue'}"
            f"{' (transient)' if not message.persistent else ''}"
        ]
        if message.transaction:
            parts.append(f"in transaction {message.transaction}")
        if message.outcome:
            parts.append(f"{message.outcome} {shown_time(message.outcome_us)}")
        if message.session.over_us >= 0:
            parts.append(f"its session over {shown_time(message.session.over_us)}")
        for queue, deliveries in message.deliveries.items():
            parts += [f"{queue} -> {_told_of(each)}" for each in deliveries]
        for queue, deliveries in message.continued.items():
            parts += [f"{queue} kept by {_told_of(each)}" for each in deliveries]
        for queue in message.queues:
            parts.append(f"{queue} is in group {self.groups.get(queue, '?')}")
        return "; ".join(parts)


def _told_of(delivery: Delivery) -> str:
    text = (
        f"{delivery.session.application} at {delivery.session.broker} "
        f"{shown_time(delivery.at_us)}{' again' if delivery.redelivered else ''}"
    )
    if delivery.settled_us >= 0:
        text += f", {delivery.verdict or 'undone'} {shown_time(delivery.settled_us)}"
    elif delivery.released_us >= 0:
        text += f", let go {shown_time(delivery.released_us)}"
    return text
