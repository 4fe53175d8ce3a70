"""More of what is promised about messages: transactions, order, progress, nothing made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rhizome.testing.sim import traffic as told
from rhizome.testing.sim.apps import TRAFFIC_AFTER_US
from rhizome.testing.sim.history import CONFIRMED, Delivery, Message, Transaction
from rhizome.testing.sim.observations import Healed, Recovered
from rhizome.testing.sim.promises import MessageChecker, _Fates, places_of
from rhizome.testing.sim.timeline import DONE_US, lease, pair
from rhizome.testing.sim.topology import GRAVES
from rhizome.testing.sim.world import SECOND, shown_time

ANSWER_US: Final = 20 * SECOND
BEGIN_US: Final = 10 * SECOND
"""How long applications may take to begin when all faults are over."""
"""What was sent so long before the end must have been answered."""


class NothingMadeUp(MessageChecker):
    """Every delivery is of something that was sent to that queue, byte for byte, and is no longer
    in the hands of an open transaction.

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


class TransactionsAllOrNothing(_Fates):
    """A transaction in doubt, whose commit was sent and not answered, was carried out in full or
    not at all, publishes and acks.

    What was committed by all accounts is in the care of NoConfirmedMessageLost and of
    NoAckedMessageRedelivered; what was rolled back, in that of NothingMadeUp. Until `atomic` only
    those are looked at whose queues are all in one group, so that one record has all of it (L4).
    Those that went to queues that lose messages on purpose tell nothing and are left out, as are
    homes with damaged disks.
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
        return self.promises.atomic or len(self._groups(transaction)) == 1

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
        """What of it was carried out, as far as anybody can tell."""
        done: dict[str, bool] = {}
        for id_ in transaction.messages:
            message = self.history.messages[id_]
            for queue in message.queues:
                there = bool(message.came_from(queue)) or id_ in kept.get(queue, {})
                done[f"{id_} to {queue}"] = there
        for delivery in transaction.settled:
            if not self.history.messages[delivery.message].persistent:
                # It may be gone with its homes, acked or not.
                continue
            done[f"ack of {delivery.message} of {delivery.queue}"] = not self._came_again(
                delivery, kept
            )
        return done

    def _came_again(self, delivery: Delivery, kept: dict[str, dict[str, int]]) -> bool:
        message = self.history.messages[delivery.message]
        later = [each for each in message.came_from(delivery.queue) if each is not delivery]
        return delivery.message in kept.get(delivery.queue, {}) or any(
            each.at_us > delivery.at_us for each in later
        )


class OrderPerPublisherAndQueue(MessageChecker):
    """What one session published to a queue, with one priority, comes to a consumer in that order.

    Messages that come again are out of it: those that say so, and those that came to somebody
    before; so are delayed ones. Excused when, since the earlier of the two was sent, the home has
    ended or a link to it has broken: what was under way then is delivered later, and may not know
    that it was. Also when another consumer of the queue was cancelled meanwhile, as far as the home
    can have known, or its broker had no lease and showed it nothing (R9): what was under way to it
    went back.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._last: dict[tuple[object, ...], Message] = {}
        self._consumed: dict[tuple[int, int, str], str] = {}
        self._cancelled: dict[str, list[tuple[int, str]]] = {}
        """When consumers of a queue had the answer to their cancel, and from which broker."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            told.Delivered: self._delivered,
            told.Consuming: self._consuming,
            told.ConsumerGone: self._gone,
        }

    def _consuming(self, seen: told.Consuming) -> None:
        self._consumed[seen.session, seen.channel, seen.consumer] = seen.queue

    def _gone(self, seen: told.ConsumerGone) -> None:
        queue = self._consumed.get((seen.session, seen.channel, seen.consumer))
        if queue is not None:
            broker = self.history.sessions[seen.session].broker
            self._cancelled.setdefault(queue, []).append((self.now_us, broker))

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        if message is None or seen.queue == GRAVES or seen.redelivered or message.delayed:
            return
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
        if not self._is_excused(seen.queue, message):
            self.fail(
                f"{seen.queue} gives {message.id} to {seen.application} after {last.id}. "
                f"{self.history.story(message.id)}. {self.history.story(last.id)}"
            )

    def _is_excused(self, queue: str, message: Message) -> bool:
        homes = self.homes(queue, message.at_us, self.now_us)
        for us, edge in self._cancelled.get(queue, ()):
            places = [edge, *homes, *[pair(edge, home) for home in homes]]
            if self.timeline.done_us(us, places) >= message.at_us:
                return True
        if self.timeline.struck_around(homes, message.at_us, self.now_us):
            return True
        sessions = [key[0] for key, consumed in self._consumed.items() if consumed == queue]
        leases = [lease(self.history.sessions[each].broker) for each in dict.fromkeys(sessions)]
        return self.timeline.disturbed_for(leases, message.at_us, self.now_us, 0)


class OneActiveConsumer(MessageChecker):
    """A queue with x-single-active-consumer gives its messages to one consumer until that is gone.

    Whose turn it is outlives the home (L3). Excused if the consumer's broker may have lost its
    right to it (R9, A2): it ended, it had no lease, or it was out of the home's reach for longer
    than homes wait (`was_out_of_reach`); or if the way to its application broke. What was under way
    through a broker that stood still left its queue before, and says nothing of whose turn it is
    now. Without `resumes` any break of the link and the end of the home excuse it too.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._active: dict[str, Delivery] = {}
        self._gone: set[tuple[int, int, str]] = set()

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Delivered: self._delivered, told.Cancelled: self._cancelled}

    def _cancelled(self, seen: told.Cancelled) -> None:
        self._gone.add((seen.session, seen.channel, seen.consumer))

    def _delivered(self, seen: told.Delivered) -> None:
        plan = self.history.topology.queues.get(seen.queue)
        message = self.history.messages.get(seen.message)
        if plan is None or message is None or not plan.single_active or not seen.consumer:
            return
        now = message.came_from(seen.queue)[-1]
        last = self._active.get(seen.queue)
        if last is not None and self._comes_late(now, last):
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
        return self.was_struck(last, near, self.now_us) or self.was_out_of_reach(last)

    def _is_gone(self, last: Delivery) -> bool:
        return (
            last.session.over_us >= 0
            or _consumer(last) in self._gone
            or (last.session.number, last.channel) in self.history.channels_gone
        )


def _consumer(delivery: Delivery) -> tuple[int, int, str]:
    return delivery.session.number, delivery.channel, delivery.consumer


class PrefetchIsKept(MessageChecker):
    """A consumer never holds more than its prefetch.

    What may have been taken from it (`was_out_of_reach`) doesn't count, nor what may be gone with
    all who had it in memory; until `resumes` also what it had when the home ended, or the link to
    it broke; nor what somebody has settled who had it before, and whose broker was out of reach.
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
    """After the faults everything comes to an end: every publish and every commit is answered, and
    every queue is empty, because its consumers take what is there.
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
        """Applications have begun nothing new for a while, have all answers, and left nothing."""
        if self._recovered_us < 0 or self.now_us < self._recovered_us + TRAFFIC_AFTER_US:
            return False
        if self._left():
            return False
        return not any(self._lacks_answer(each, 0) for each in self.history.messages.values())

    def final(self) -> None:
        # Who lost a broker without a word just before notices that in twice its heartbeats.
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
        """Whether its answer, or that of its transaction, is still to come after so long."""
        session, asked_us = message.session, message.at_us
        if message.outcome or session.over_us >= 0:
            return False
        if message.transaction:
            transaction = self.history.transactions[message.transaction]
            if not transaction.is_in_doubt:
                return False
            asked_us = max(asked_us, transaction.asked_us)
        elif (session.number, message.channel) in self.history.channels_gone:
            return False
        return asked_us <= self.now_us - patience_us
