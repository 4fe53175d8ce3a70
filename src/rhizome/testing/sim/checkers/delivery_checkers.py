"""Checkers of deliveries: transactions, order, single active consumers, prefetch, progress, and
that nothing is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rhizome.testing.sim.apps.app_program import TRAFFIC_AFTER_US
from rhizome.testing.sim.apps.app_topology import GRAVES
from rhizome.testing.sim.checkers.fault_timeline import DONE_US, lease, pair
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import (
    TURN_US,
    MessageChecker,
    MessageFates,
    places_of,
)
from rhizome.testing.sim.checkers.message_history import (
    CONFIRMED,
    NEVER_US,
    Delivery,
    Message,
    Session,
    Transaction,
)
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.events.broker_events import Healed, Recovered
from rhizome.testing.sim.world.event_scheduler import SECOND, shown_time

ANSWER_US: Final = 20 * SECOND
"""Requests sent this long before the end must have been answered."""
FOREVER_US: Final = 1 << 62
"""Later than anything that happens in a run."""
BEGIN_US: Final = 10 * SECOND
"""How long applications may take to begin once all faults are over."""


class NothingMadeUp(MessageChecker):
    """Every delivery is a message that was sent to that queue, byte for byte, and that is not part
    of an open transaction.

    Nothing excuses that.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Delivered: self._delivered, told.Returned: self._returned}

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        if message is None:
            self.fail(f"{seen.queue} gives {seen.message} to {seen.application}, which nobody sent")
            return
        if not seen.intact:
            self.fail(f"{seen.queue} gives {seen.message} to {seen.application}, but not its body")
        if seen.queue not in message.queues and not self._died_for(message, seen.queue):
            self.fail(f"{seen.message} was not sent to {seen.queue}")
        if message.transaction:
            transaction = self.history.transactions[message.transaction]
            if transaction.asked != told.COMMIT:
                self.fail(
                    f"{seen.queue} gives {seen.message} to {seen.application}, of a transaction "
                    f"that was not committed. {self.history.story(seen.message)}"
                )

    def _died_for(self, message: Message, queue: str) -> bool:
        plans = self.history.topology.queues
        return any(plans[each].dead_to == queue for each in message.queues)

    def _returned(self, seen: told.Returned) -> None:
        message = self.history.messages[seen.message]
        if message.queues or not message.mandatory:
            self.fail(f"{message.id} was returned. {self.history.story(message.id)}")


class TransactionsAllOrNothing(MessageFates):
    """A transaction in doubt, whose commit was sent and not answered, was carried out in full or
    not at all, publishes and acks.

    NoConfirmedMessageLost and NoAckedMessageRedelivered check transactions that were answered,
    NothingMadeUp those that were rolled back. Without `atomic` this checker looks only at
    transactions whose queues are all in one group, so that one record has all of it (L4). It leaves
    out queues that lose messages on purpose, which prove nothing, and homes with damaged disks.

    That a message is gone does not prove the ack if another application that had the message has
    settled it, too, and its verdict may have counted (`_may_be_settled_by_another`). That a message
    came again proves that the ack was not done, whoever else had it, but only if it came after
    something of the transaction was seen: a home that waits for an edge in vain gives what that
    edge's clients hold to others, and takes it from them when the edge is back with a transaction
    that settles it (`PreparedTransactions._from_others`).

    With `unsynced_us` a power cut may undo what one group did of a transaction over several.
    """

    def final(self) -> None:
        kept = self.kept()
        for transaction in self.history.transactions.values():
            if transaction.is_in_doubt and self._is_watched(transaction):
                done = self._traces(transaction, kept)
                if len(set(done.values())) > 1:
                    facts = ", ".join(
                        f"{what}: {'yes' if yes else 'no'}" for what, yes in done.items()
                    )
                    self.fail(
                        f"transaction {transaction.number} of {transaction.session.application} at "
                        f"{transaction.session.broker}, committed at "
                        f"{shown_time(transaction.asked_us)} and never answered, is done in part. "
                        f"{facts}"
                    )

    def _is_watched(self, transaction: Transaction) -> bool:
        plans = self.history.topology.queues
        for queue in self._queues(transaction):
            plan = plans[queue]
            if not plan.keeps_all() or not plan.durable or plan.automatic or plan.purged:
                return False
            homes = self.homes(queue, transaction.asked_us, self.now_us)
            if self.is_damaged(homes):
                return False
        if len(self._groups(transaction)) > 1 and self._may_be_undone(transaction):
            return False
        return self.promises.atomic or len(self._groups(transaction)) == 1

    def _may_be_undone(self, transaction: Transaction) -> bool:
        since_us = transaction.asked_us
        queues = self._queues(transaction)
        return any(self.may_be_unsynced(each, since_us, self.now_us) for each in queues)

    def _groups(self, transaction: Transaction) -> list[int]:
        groups = self.history.groups
        return list(dict.fromkeys(groups.get(each, -1) for each in self._queues(transaction)))

    def _queues(self, transaction: Transaction) -> list[str]:
        found: dict[str, None] = {}
        for message in transaction.messages:
            found.update(dict.fromkeys(self.history.messages[message].queues))
        found.update(dict.fromkeys(each.queue for each in transaction.settled))
        return list(found)

    def _traces(self, transaction: Transaction, kept: dict[str, dict[str, int]]) -> dict[str, bool]:
        """Which parts of a transaction were carried out, as far as the history shows."""
        done: dict[str, bool] = {}
        for id_ in transaction.messages:
            message = self.history.messages[id_]
            for queue in message.queues:
                there = bool(message.came_from(queue)) or id_ in kept.get(queue, {})
                done[f"{id_} to {queue}"] = there
        published = any(done.values())
        for delivery in transaction.settled:
            if not self.history.messages[delivery.message].persistent:
                # It may be gone with its homes, acked or not.
                continue
            ack = f"ack of {delivery.message} of {delivery.queue}"
            again_us = self._came_again_us(delivery, kept)
            if again_us > self._seen_us(transaction):
                done[ack] = False
            elif again_us:
                if not published:
                    done[ack] = False
            elif not self._may_be_settled_by_another(delivery):
                done[ack] = True
        return done

    def _seen_us(self, transaction: Transaction) -> int:
        """When a message that it published was first delivered to any application."""
        found = [
            delivery.at_us
            for id_ in transaction.messages
            for queue in self.history.messages[id_].queues
            for delivery in self.history.messages[id_].came_from(queue)
        ]
        return min(found, default=FOREVER_US)

    def _came_again_us(self, delivery: Delivery, kept: dict[str, dict[str, int]]) -> int:
        """When a message was last delivered to any application after this delivery; 0 if it was
        not. A message that is still in the queue counts as yet to come."""
        if delivery.message in kept.get(delivery.queue, {}):
            return FOREVER_US + 1
        message = self.history.messages[delivery.message]
        later = [each.at_us for each in message.came_from(delivery.queue) if each is not delivery]
        return max((each for each in later if each > delivery.at_us), default=0)

    def _may_be_settled_by_another(self, delivery: Delivery) -> bool:
        """Whether the verdict of another application may have taken a message out of its queue."""
        message = self.history.messages[delivery.message]
        queue = delivery.queue
        return any(
            self.history.is_settled(each)
            and each.transaction != delivery.transaction
            and self._may_count(each, delivery)
            for each in (*message.came_from(queue), *message.continued.get(queue, ()))
        )

    def _may_count(self, other: Delivery, delivery: Delivery) -> bool:
        """Whether the verdict about another delivery may have counted, though this one came later.

        So it is if its client has come back with it since; if this one was late (`left_before`); or
        if the other's broker, which has the verdict and has not ended, presents it to a home that
        had continued without it (A2), or brings it with a transaction in doubt, which takes what it
        settles from any holder (L4). A verdict that its broker never got, or lost when it ended
        before the home delivered the message again, does not count.
        """
        if other.at_us > delivery.at_us or self.left_before(delivery, other):
            return True
        session = other.session
        given_us = self.timeline.begun_us(delivery.at_us, self.between(delivery, delivery.at_us))
        known_us = max(other.settled_us, given_us)
        if self.timeline.ended([session.broker], session.opened_us, known_us):
            return False
        if 0 <= session.let_go_us <= other.settled_us:
            return False
        if other.transaction and self.history.transactions[other.transaction].is_in_doubt:
            return True
        return self.was_out_of_reach(other, until_us=delivery.at_us)


@dataclass(slots=True)
class _Cancel:
    """A consumer was cancelled. `over_us`: when the answer came, or its channel or session was
    over; until then its broker may get the cancel at any instant. `places`: where the cancel may be
    delayed after that, beside the homes and the paths to them; without an answer also the path to
    its broker."""

    consumer: tuple[int, int, str]
    over_us: int = NEVER_US
    places: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Taker:
    """A channel that has asked for messages of a queue. `over_us`: when it was closed."""

    session: Session
    channel: int
    over_us: int = NEVER_US


class CommitIsDoneWhenAnswered(MessageChecker):
    """What a transaction published is in its queues, or was delivered, when the commit is answered.
    Otherwise the next transaction of the same client could overtake it (L4).

    The checker looks at the home that was appointed last. If that home doesn't serve the queue at
    that instant, it or its successor must have the message as soon as it does: what is done is
    committed.

    Left out are queues that drop messages by themselves or deliver them without an ack, and
    delayed messages.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._awaited: dict[tuple[str, str], int] = {}
        """Messages and queues that no home served when the commit was answered, and when."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.TransactionEnded: self._ended, told.Delivered: self._delivered}

    def glance(self) -> None:
        if self._awaited:
            self._look()

    def _ended(self, seen: told.TransactionEnded) -> None:
        transaction = self.history.transactions.get(seen.transaction)
        if transaction is None or not transaction.is_committed:
            return
        for id_ in transaction.messages:
            for queue in self.history.messages[id_].queues:
                if self._is_kept(self.history.messages[id_], queue):
                    self._awaited[id_, queue] = self.now_us
        self._look()

    def _is_kept(self, message: Message, queue: str) -> bool:
        """Whether the message stays in the queue until it was delivered."""
        plan = self.history.topology.queues[queue]
        loses = plan.ttl_ms or plan.length_max or plan.purged or plan.dedup or plan.automatic
        return plan.durable and message.persistent and not (loses or message.delayed)

    def _delivered(self, seen: told.Delivered) -> None:
        self._awaited.pop((seen.message, seen.queue), None)

    def _look(self) -> None:
        """Look for what is awaited in the queues that are served."""
        contents: dict[str, list[str] | None] = {}
        for (id_, queue), answered_us in list(self._awaited.items()):
            if self.history.messages[id_].came_from(queue):
                del self._awaited[id_, queue]
                continue
            if queue not in contents:
                contents[queue] = self._contents(queue)
            found = contents[queue]
            if found is None:
                continue
            message = self.history.messages[id_]
            lost = self.may_be_unsynced(queue, message.at_us, self.now_us)
            if id_ not in found and not lost:
                self.fail(
                    f"{id_} was committed at {shown_time(answered_us)}, and {queue} doesn't have "
                    f"it yet. {self.history.story(id_)}"
                )
            del self._awaited[id_, queue]

    def _contents(self, queue: str) -> list[str] | None:
        """What the home has in a queue; None if it doesn't serve the queue."""
        homes = self.history.homes.get(self.history.groups.get(queue, -1), [])
        broker = self.watch.brokers.get(homes[-1][1]) if homes else None
        contents_of = getattr(broker, "contents_of", None)
        return None if contents_of is None else contents_of(queue, homes[-1][2])


class OrderPerPublisherAndQueue(MessageChecker):
    """What one session published to a queue, with one priority, comes to a consumer in that order.

    The order does not cover redeliveries, marked or not, delayed messages, nor keyed queues. It is
    excused when,
    since the earlier of the two was sent, the home has ended or a link to it has broken: what was
    under way then is delivered later, perhaps without the redelivered mark. It is also excused when
    another consumer of the queue was cancelled meanwhile: what was under way to it was requeued. A
    cancel counts from when it was sent until the home must have got it, since others may get what
    was requeued before the cancel is answered.

    It is also excused when an application at another broker has asked for messages, and that broker
    had no lease and showed nothing (R9); or when a living home was replaced after it had sent the
    later message: edges drop what comes from it too late, and the next home delivers it to any
    consumer (A2). That does not excuse it if all that have asked are at the broker that the later
    message came to, over the same link as the earlier one; unless one of them is gone, so that
    nothing was presented for it to the next home.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._last: dict[tuple[object, ...], Message] = {}
        self._consumed: dict[tuple[int, int, str], str] = {}
        self._takers: dict[str, list[_Taker]] = {}
        """By queue."""
        self._cancels: dict[str, list[_Cancel]] = {}
        """By queue."""
        self._open: dict[tuple[int, int, str], _Cancel] = {}
        """Cancels without an answer, by consumer."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            told.Delivered: self._delivered,
            told.Takes: self._takes,
            told.Consuming: self._consuming,
            told.CancelSent: self._cancel_sent,
            told.ConsumerGone: self._gone,
            told.Cancelled: self._gone,
            told.ChannelGone: self._channel_gone,
            told.SessionOver: self._session_over,
        }

    def _takes(self, seen: told.Takes) -> None:
        takers = self._takers.setdefault(seen.queue, [])
        session = self.history.sessions[seen.session]
        known = (each for each in takers if each.session is session and each.over_us < 0)
        if not any(each.channel == seen.channel for each in known):
            takers.append(_Taker(session, seen.channel))

    def _consuming(self, seen: told.Consuming) -> None:
        self._consumed[seen.session, seen.channel, seen.consumer] = seen.queue

    def _cancel_sent(self, seen: told.CancelSent) -> None:
        consumer = (seen.session, seen.channel, seen.consumer)
        queue = self._consumed.get(consumer)
        if queue is not None:
            self._open[consumer] = _Cancel(consumer)
            self._cancels.setdefault(queue, []).append(self._open[consumer])

    def _gone(self, seen: told.ConsumerGone | told.Cancelled) -> None:
        cancel = self._open.pop((seen.session, seen.channel, seen.consumer), None)
        if cancel is not None:
            cancel.over_us = self.now_us
            cancel.places = [self.history.sessions[seen.session].broker]

    def _channel_gone(self, seen: told.ChannelGone) -> None:
        self._unanswered([key for key in self._open if key[:2] == (seen.session, seen.channel)])
        for takers in self._takers.values():
            for each in takers:
                is_this = (each.session.number, each.channel) == (seen.session, seen.channel)
                if is_this and each.over_us < 0:
                    each.over_us = self.now_us

    def _session_over(self, seen: told.SessionOver) -> None:
        self._unanswered([key for key in self._open if key[0] == seen.session])

    def _unanswered(self, consumers: list[tuple[int, int, str]]) -> None:
        for consumer in consumers:
            session = self.history.sessions[consumer[0]]
            cancel = self._open.pop(consumer)
            cancel.over_us = self.now_us
            cancel.places = _near(session)

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        if message is None or seen.queue == GRAVES or seen.redelivered or message.delayed:
            return
        plan = self.history.topology.queues.get(seen.queue)
        if plan is not None and plan.keyed:
            return  # OrderPerKey sees to it
        if len(message.came_from(seen.queue)) > 1:
            return
        key = (
            seen.session,
            seen.channel,
            seen.consumer,
            seen.queue,
            message.session.number,
            message.priority,
        )
        last = self._last.get(key)
        self._last[key] = message
        if last is None or last.order < message.order:
            return
        if not self._is_excused(seen, message, last):
            self.fail(
                f"{seen.queue} gives {message.id} to {seen.application} after {last.id}. "
                f"{self.history.story(message.id)}. {self.history.story(last.id)}"
            )

    def _is_excused(self, seen: told.Delivered, message: Message, last: Message) -> bool:
        homes = self.homes(seen.queue, message.at_us, self.now_us)
        consumer = (seen.session, seen.channel, seen.consumer)
        for cancel in self._cancels.get(seen.queue, ()):
            if cancel.consumer != consumer and self._may_go_back(cancel, message, homes):
                return True
        if self.timeline.struck_around(homes, message.at_us, self.now_us):
            return True
        broker = self.history.sessions[seen.session].broker
        takers = self._takers.get(seen.queue, [])
        elsewhere = [each.session.broker for each in takers if each.session.broker != broker]
        leases = [lease(each) for each in elsewhere]
        if self.timeline.disturbed_for(leases, message.at_us, self.now_us, 0):
            return True
        if not elsewhere and not any(self._is_gone(each, message) for each in takers):
            return False
        came = last.came_from(seen.queue)[0]
        sent_us = self.timeline.begun_us(came.at_us, _near(came.session))
        return self.history.has_changed(seen.queue, max(sent_us, message.at_us))

    def _is_gone(self, taker: _Taker, message: Message) -> bool:
        """Whether the message may have been under way to a channel that its broker then closed."""
        ends = (taker.over_us, taker.session.over_us, taker.session.let_go_us)
        done = [self.timeline.done_us(us, _near(taker.session)) for us in ends if us >= 0]
        return any(us >= message.at_us for us in done)

    def _may_go_back(self, cancel: _Cancel, message: Message, homes: list[str]) -> bool:
        """Whether the message may have been under way to a consumer when that was cancelled."""
        if cancel.over_us < 0:
            return True
        edge = self.history.sessions[cancel.consumer[0]].broker
        places = [*cancel.places, *homes, *[pair(edge, home) for home in homes]]
        return self.timeline.done_us(cancel.over_us, places) >= message.at_us


def _near(session: Session) -> list[str]:
    return [session.broker, pair(session.application, session.broker)]


class OneActiveConsumer(MessageChecker):
    """A queue with x-single-active-consumer delivers to one consumer until that one is gone: it was
    cancelled, or its channel or session is over. A broker that drains may have ended the session
    before the application hears of it.

    The active consumer stays active when the home changes (L3). Excused if the consumer's broker
    may have lost its right to it (R9, A2): it ended, it had no lease, or it was out of the home's
    reach for longer than homes keep a consumer active (`was_out_of_reach`); or if the connection to
    its application broke. What was under way through a broker that stood still had left its queue
    before, and says nothing about which consumer is active now; nor does what was under way when
    its broker ended, or ended the session (`left_before`). Without `resumes` any break of the link
    and the end of the home excuse it, too.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._active: dict[str, Delivery] = {}
        self._gone: set[tuple[int, int, str]] = set()

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            told.Delivered: self._delivered,
            told.CancelSent: self._cancelled,
            told.Cancelled: self._cancelled,
        }

    def _cancelled(self, seen: told.CancelSent | told.Cancelled) -> None:
        self._gone.add((seen.session, seen.channel, seen.consumer))

    def _delivered(self, seen: told.Delivered) -> None:
        plan = self.history.topology.queues.get(seen.queue)
        message = self.history.messages.get(seen.message)
        if plan is None or message is None or not plan.single_active or not seen.consumer:
            return
        now = message.came_from(seen.queue)[-1]
        last = self._active.get(seen.queue)
        if last is not None and (self.left_before(now, last) or self._comes_late(now, last)):
            return
        self._active[seen.queue] = now
        if last is None or _consumer(last) == _consumer(now) or self._is_gone(last):
            return
        if not self._is_excused(last):
            self.fail(
                f"{seen.queue} gives {message.id} to {seen.consumer} of {seen.application}, while "
                f"{last.consumer} of {last.session.application}, which got {last.message} at "
                f"{shown_time(last.at_us)}, is still there"
            )

    def _comes_late(self, now: Delivery, last: Delivery) -> bool:
        begun_us = self.timeline.begun_us(now.at_us, self.between(now, self.now_us))
        return begun_us < now.at_us - DONE_US and begun_us <= last.at_us

    def _is_excused(self, last: Delivery) -> bool:
        session = last.session
        if not self.promises.resumes:
            return self.was_struck(last, self.between(last, self.now_us), self.now_us)
        near = [session.broker, pair(session.application, session.broker)]
        return self.was_struck(last, near, self.now_us) or self.was_out_of_reach(last, TURN_US)

    def _is_gone(self, last: Delivery) -> bool:
        return (
            last.session.over_us >= 0
            or last.session.let_go_us >= 0
            or _consumer(last) in self._gone
            or (last.session.number, last.channel) in self.history.channels_gone
        )


class OrderPerKey(MessageChecker):
    """At most one application holds messages of a key of a keyed queue, and what it acks of a
    publisher's was delivered in the order of publishing: nothing comes for the first time when a
    later message of its key has been acked.

    Excused where the other's broker may have lost its right to what it holds, as for a single
    active consumer, and in the second case if the earlier message may have come to somebody who
    couldn't tell.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._keys: dict[str, str] = {}
        self._held: dict[tuple[str, str], list[Delivery]] = {}
        """By queue and key."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Sent: self._sent, told.Delivered: self._delivered}

    def _sent(self, seen: told.Sent) -> None:
        self._keys[seen.message] = seen.key

    def _delivered(self, seen: told.Delivered) -> None:
        plan = self.history.topology.queues.get(seen.queue)
        message = self.history.messages.get(seen.message)
        if plan is None or message is None or not plan.keyed:
            return
        place = (seen.queue, self._keys[seen.message])
        now = message.came_from(seen.queue)[-1]
        known = self._held.setdefault(place, [])
        held = [each for each in known if each.is_held() or each.verdict == told.ACK]
        for last in held:
            if last.verdict == told.ACK:
                self._check_order(now, message, last)
            elif not self._is_same(last, now) and not self._is_excused(now, last):
                self.fail(
                    f"{seen.queue} gives {message.id} of key {place[1]} to {seen.application}, "
                    f"while {last.session.application} holds {last.message} of this key since "
                    f"{shown_time(last.at_us)}"
                )
        self._held[place] = [*held, now]

    def _check_order(self, now: Delivery, message: Message, last: Delivery) -> None:
        later = self.history.messages[last.message]
        if later.session is not message.session or later.channel != message.channel:
            return
        if later.order <= message.order or len(message.came_from(now.queue)) > 1:
            return
        if now.redelivered or message.continued.get(now.queue):
            return
        if not self.was_struck(last, self.between(last, self.now_us), self.now_us):
            self.fail(
                f"{now.queue} gives {message.id} to {now.session.application} after {later.id} of "
                f"the same key, which was published later, was acked"
            )

    def _is_same(self, last: Delivery, now: Delivery) -> bool:
        mine = (last.session.number, last.channel)
        return mine == (now.session.number, now.channel)

    def _is_excused(self, now: Delivery, last: Delivery) -> bool:
        session = last.session
        near = [session.broker, pair(session.application, session.broker)]
        return (
            self.left_before(now, last)
            or self.was_struck(last, near, self.now_us)
            or self.was_out_of_reach(last, TURN_US)
            or (session.number, last.channel) in self.history.channels_gone
        )


def _consumer(delivery: Delivery) -> tuple[int, int, str]:
    return delivery.session.number, delivery.channel, delivery.consumer


class PrefetchIsKept(MessageChecker):
    """A consumer never holds more than its prefetch.

    Not counted are messages that may have been taken from it (`was_out_of_reach`), messages that
    may be gone with all brokers that had them in memory, and messages that an earlier holder, whose
    broker was out of reach, has settled; without `resumes` also what it had when the home ended or
    the link to it broke.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prefetch: dict[tuple[int, int, str], int] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Consuming: self._consuming, told.Delivered: self._delivered}

    def _consuming(self, seen: told.Consuming) -> None:
        self._prefetch[seen.session, seen.channel, seen.consumer] = seen.prefetch

    def _delivered(self, seen: told.Delivered) -> None:
        prefetch = self._prefetch.get((seen.session, seen.channel, seen.consumer), 0)
        if not prefetch or seen.automatic:
            return
        held = self.history.held_by(seen.session, seen.channel, seen.consumer)
        if len(held) <= prefetch:
            return
        counted = [each for each in held if not self._is_excused(each)]
        if len(counted) > prefetch:
            self.fail(
                f"{seen.consumer} of {seen.application} holds {len(held)} messages of {seen.queue},"
                f" and asked for {prefetch} at most: {' '.join(each.message for each in held)}"
            )

    def _is_settled_by_others(self, held: Delivery) -> bool:
        others = self.history.messages[held.message].came_from(held.queue)
        return any(
            each is not held
            and each.verdict in (told.ACK, told.REJECT)
            and (not each.transaction or self._is_asked_for(each.transaction))
            for each in others
        )

    def _is_asked_for(self, transaction: int) -> bool:
        return self.history.transactions[transaction].asked == told.COMMIT

    def _is_excused(self, held: Delivery) -> bool:
        if self._is_settled_by_others(held):
            return True
        if self.promises.resumes:
            return self.was_out_of_reach(held) or self._is_gone(held)
        return self.was_struck(held, self.between(held, self.now_us), self.now_us)

    def _is_gone(self, held: Delivery) -> bool:
        """Whether there may be no such message any more (A2: what a home lacks is void): it was in
        memory only. What was confirmed as persistent is on disks."""
        message = self.history.messages[held.message]
        plan = self.history.topology.queues[held.queue]
        if message.persistent and plan.durable and message.outcome == CONFIRMED:
            return False
        return self.have_ended(message.at_us, places_of(message, held.queue), self.now_us)


class NoMessageStuck(MessageChecker):
    """After the faults every publish and every commit is answered, and every queue is empty,
    because its consumers take what is there.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._recovered_us = -1
        self._healed_us = -1

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Recovered: self._recovered, Healed: self._healed}

    def _healed(self, _: Healed) -> None:
        self._healed_us = self.now_us

    def _recovered(self, _: Recovered) -> None:
        self._recovered_us = self.now_us

    def is_done(self) -> bool:
        """Whether applications have begun nothing new for a while, have all answers, and have left
        no messages."""
        if self._recovered_us < 0 or self.now_us < self._recovered_us + TRAFFIC_AFTER_US:
            return False
        if self._left():
            return False
        return not any(self._lacks_answer(each, 0) for each in self.history.messages.values())

    def final(self) -> None:
        # An application whose broker vanished just before notices within two heartbeat intervals.
        if not self.history.messages and self.now_us - self._healed_us > BEGIN_US:
            self.fail("nobody has published anything")
        for message in self.history.messages.values():
            if self._lacks_answer(message, ANSWER_US):
                self.fail(f"{message.id} was never answered. {self.history.story(message.id)}")
        for text in self._left():
            self.fail(text)

    def _left(self) -> list[str]:
        """The queues that are not empty."""
        found: list[str] = []
        for broker in self.watch.brokers.values():
            depths = getattr(broker, "depths", None)
            if depths is not None:
                for queue, depth in depths().items():
                    found.append(f"{queue} is not empty: {depth}. {broker.explain()}")
        return found

    def _lacks_answer(self, message: Message, patience_us: int) -> bool:
        """Whether its answer, or that of its transaction, is still missing after so long. A channel
        that the broker closes counts as an answer: nothing of it is confirmed."""
        session, asked_us = message.session, message.at_us
        if message.outcome or session.over_us >= 0:
            return False
        if (session.number, message.channel) in self.history.channels_gone:
            return False
        if message.transaction:
            transaction = self.history.transactions[message.transaction]
            if not transaction.is_in_doubt:
                return False
            asked_us = max(asked_us, transaction.asked_us)
        return asked_us <= self.now_us - patience_us
