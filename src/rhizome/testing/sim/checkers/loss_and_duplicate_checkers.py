"""Checkers of messages: what must hold for them, and what excuses an exception.

`Promises` says how much a run demands of the cluster. Each switch makes excuses void. With all of
them on, the only excuses left are those that docs/internals/rules.md names at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rhizome.client.confirm_level import Level
from rhizome.testing.sim.apps.app_topology import DELAY_MS_MAX, GRAVES, HELD, LATER, QueuePlan
from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.checkers.fault_timeline import Timeline, lease, pair
from rhizome.testing.sim.checkers.message_history import (
    CONFIRMED,
    NEVER_US,
    Delivery,
    History,
    Message,
)
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.world.event_scheduler import SECOND

PARK_US: Final = 10 * SECOND
"""How long a home keeps what the applications of an unreachable edge hold."""
LEARN_US: Final = 5 * SECOND
"""A broker that hasn't learned within this time what is committed has no lease."""
TURN_US: Final = SECOND * 9 // 5
"""How long, at least, a single active consumer stays active while its edge is unreachable."""
ATTACH_US: Final = SECOND * 3 // 2
"""How long, at least, a new home waits for an edge to say what its applications hold."""


@dataclass(frozen=True)
class Promises:
    """What the checkers demand. `copies`: on how many brokers a message is when it is confirmed.

    `resumes` (A1, A2): a home accepts each publish of an edge once, whatever happens to home and
    link, and an edge presents what was settled and what is held to every later home.

    `atomic` (L4): a transaction in doubt was carried out as a whole or not at all. Without it that
    holds only if the broker of its session is the home of all its queues.

    `remembers` (L5): what is known about duplicates survives its home.

    `letters` (A1): a dead letter is not lost on its way, even if the home of the queue that it died
    in ends meanwhile.

    `unsynced_us` (G6): how long something may count as durable before it is synced; 0 with
    `flush = always`. A power cut may take that much (docs/operating/runbook.md).
    """

    copies: int = 1
    resumes: bool = False
    atomic: bool = False
    remembers: bool = False
    letters: bool = False
    unsynced_us: int = 0


TODAY: Final = Promises(copies=2, resumes=True, atomic=True, remembers=True, letters=True)


class MessageChecker(Checker):
    """Base of the checkers of messages: the history, the timeline, and questions to them."""

    def __init__(self, history: History, timeline: Timeline, promises: Promises = TODAY) -> None:
        super().__init__()
        self.history = history
        self.timeline = timeline
        self.promises = promises

    @property
    def now_us(self) -> int:
        return self.watch.world.now_us

    def homes(self, queue: str, from_us: int, to_us: int) -> list[str]:
        return self.history.homes_of(queue, from_us, to_us)

    def may_be_there_twice(self, message: Message, queue: str) -> bool:
        """Whether a home may have stored a publish that its edge then sent again (A1): the home
        ended before it had confirmed it. With `resumes` only if all brokers that had it ended: what
        is committed in memory is shown before it is on disk, unless it is persistent and its home
        has no whole standby (L1). A delayed message is sent once more, by the group that held it
        (`may_be_released_twice`)."""
        until_us = self.now_us if message.outcome_us < 0 else message.outcome_us
        if self.promises.resumes:
            places = places_of(message, queue)
            on_disk = message.persistent and self.history.topology.queues[queue].durable
            on_disk = on_disk and not self.promises.unsynced_us
            ended = self.have_ended(message.at_us, places, until_us, on_disk)
            return ended or (message.delayed and self.may_be_released_twice(message, queue))
        homes = self.homes(queue, message.at_us, until_us)
        return self.timeline.ended(homes, message.at_us, until_us) or self.is_damaged(homes)

    def may_be_released_twice(self, message: Message, queue: str) -> bool:
        """Whether a delayed message that was delivered from its queue may be released into it
        again (A1): all brokers that had it there, and knew its name, ended before it had left the
        group outbox. Within the group that held it nothing passes the outbox: one record has both
        queues. If that is lost the message is held again, unless it was in memory only and is lost
        with it."""
        came, groups = message.came_from(queue), self.history.groups
        if not came or (not message.persistent and groups.get(queue) == groups.get(HELD)):
            return False
        first_us = came[0].at_us
        begun_us = self.timeline.begun_us(first_us, self.between(came[0], first_us))
        until_us = min(self._letter_done_us(message, first_us), self.now_us)
        return self.have_ended(max(begun_us, message.at_us), [queue], until_us)

    def _letter_done_us(self, message: Message, first_us: int) -> int:
        """When a message that was first delivered at `first_us` must have left the group outbox.
        Messages leave it in order, so what holds up one of them, anywhere, holds up all."""
        history, timeline = self.history, self.timeline
        ends = [queue for exchange, _, queue in history.topology.bindings if exchange == LATER]
        holders: dict[str, None] = {}
        for queue in (HELD, GRAVES, *ends):
            holders.update(dict.fromkeys(history.holders_of(queue, 0, self.now_us)))
        links = [pair(one, other) for one in holders for other in holders if one < other]
        places = [*holders, *links]
        sent_us = first_us
        if message.outcome == CONFIRMED:
            # It may have been in its queue long before it was delivered.
            due_us = message.outcome_us + DELAY_MS_MAX * 1000
            sent_us = min(first_us, timeline.done_us(due_us, places))
        return timeline.done_us(sent_us, places)

    def have_ended(
        self, since_us: int, queues: list[str], until_us: int, on_disk: bool = False
    ) -> bool:
        """Whether all brokers that had something of these queues in memory may have ended since
        then: as many holders of copies as there should be; or the home while it had no whole
        standby, or was about to have none; or the successor of a home that was deposed
        (docs/internals/rules.md, at its end), before that or after (`_was_deposed_alone`); or no
        whole standby had a lease, and a home began with what was on disk. ``on_disk``: a home
        without a whole standby showed it only when it was on its disk, so that the end of such a
        home excuses nothing."""
        return any(self._have_ended(since_us, queue, until_us, on_disk) for queue in queues)

    def _have_ended(self, since_us: int, queue: str, until_us: int, on_disk: bool) -> bool:
        timeline, history = self.timeline, self.history
        homes = self.homes(queue, since_us, until_us)
        if self.promises.copies == 1:
            return timeline.ended(homes, since_us, until_us)
        holders = history.holders_of(queue, since_us, until_us)
        ended = [name for name in holders if timeline.ended([name], since_us, until_us)]
        group = history.groups.get(queue, -1)
        alone = not on_disk and any(
            group in history.groups_of(name, us) and history.ended_alone(group, us)
            for name in homes
            for us in timeline.ends.get(name, ())
            if since_us <= us <= until_us
        )
        deposed = any(
            timeline.ended([name], since_us, known_us)
            for known_us, name in history.successors_of(queue, since_us, until_us)
        )
        if len(ended) >= self.promises.copies or alone or deposed:
            return True
        if self._was_deposed_alone(group, since_us, until_us):
            return True
        return any(
            whole and all(self._had_no_lease(name, us) for name in whole)
            for us, whole in history.begun_from_disk(group, since_us, until_us)
        )

    def _was_deposed_alone(self, group: int, since_us: int, until_us: int) -> bool:
        """Whether the only broker that still had something in memory may be a home that was
        replaced by a broker with a copy on disk (G3), and so has to start again, though it never
        ended.

        It had no lease when it was replaced, and had one after `since_us`: otherwise it accepted
        nothing. The standbys that were whole last were no longer whole at `since_us`, or ended
        after they had become whole.
        """
        ended = self.timeline.ended
        return any(
            since_us <= self.timeline.disturbed_since_us(lease(each.home), each.at_us)
            and (
                each.until_us < since_us
                or all(ended([name], us, each.at_us) for name, us in each.last.items())
            )
            for each in self.history.deposed_alone(group, since_us, until_us)
        )

    def _had_no_lease(self, broker: str, at_us: int) -> bool:
        return self.timeline.disturbed_for([lease(broker)], at_us, at_us, 0)

    def may_be_unsynced(self, queue: str, since_us: int, known_us: int) -> bool:
        """Whether something that came since `since_us`, and counted as durable at `known_us`, may
        be lost: a broker that had it on disk lost power before that was synced, and all that had it
        in memory may have ended. One machine that loses power takes nothing while a whole standby
        is on another."""
        if not self.promises.unsynced_us:
            return False
        holders = self.history.holders_of(queue, since_us, self.now_us)
        due_us = self.timeline.done_us(known_us + self.promises.unsynced_us, holders)
        if not self.timeline.lost_power(holders, since_us, min(due_us, self.now_us)):
            return False
        return self.have_ended(since_us, [queue], self.now_us)

    def is_damaged(self, homes: list[str]) -> bool:
        """Whether a disk has lost something that only it had."""
        return self.promises.copies == 1 and any(name in self.timeline.damaged for name in homes)

    def was_struck(self, delivery: Delivery, places: list[str], until_us: int) -> bool:
        """Whether something was lost at these places since the delivery left its queue."""
        begun_us = self.timeline.begun_us(delivery.at_us, places)
        return self.timeline.struck(places, begun_us, until_us)

    def was_out_of_reach(
        self, delivery: Delivery, wait_us: int = PARK_US, until_us: int = NEVER_US
    ) -> bool:
        """Whether homes may have continued, until then or until now, without what the delivery's
        broker presents about it: the broker had no lease, was absent when a new home began, or was
        absent for the old home for longer than homes wait. A broker whose disk hangs doesn't know
        that there is a new home."""
        session = delivery.session
        until_us = self.now_us if until_us < 0 else until_us
        begun_us = self.timeline.begun_us(delivery.at_us, [session.broker])
        if self.timeline.disturbed_for([lease(session.broker)], begun_us, until_us, 0):
            return True
        homes = self.homes(delivery.queue, delivery.at_us, until_us)
        places = [pair(session.broker, home) for home in homes]
        if not self.history.has_changed(delivery.queue, begun_us, until_us):
            return self.timeline.disturbed_for(places, begun_us, until_us, wait_us)
        places.append(session.broker)
        return self.timeline.disturbed_for(places, begun_us, until_us, ATTACH_US)

    def left_before(self, late: Delivery, other: Delivery) -> bool:
        """Whether the late delivery left its broker before the other one came: that broker has
        ended since then, or has ended the session, and this delivery, of an earlier publish, was
        under way."""
        session = late.session
        since_us = max(session.opened_us, self.history.messages[late.message].at_us)
        ends = (session.let_go_us, *self.timeline.ends.get(session.broker, ()))
        return any(since_us <= us <= other.at_us for us in ends)

    def between(self, delivery: Delivery, until_us: int) -> list[str]:
        """The places on the path from an application to the homes of a queue."""
        session = delivery.session
        homes = self.homes(delivery.queue, delivery.at_us, until_us)
        places = [session.broker, pair(session.application, session.broker)]
        for home in homes:
            places += [home, pair(session.broker, home)]
        return places

    def verdict_may_be_lost(self, earlier: Delivery) -> bool:
        """Whether an application's verdict on a delivery may not have reached the home
        (NoAckedMessageRedelivered)."""
        session = earlier.session
        near = [session.broker, pair(session.application, session.broker)]
        every = self.between(earlier, self.now_us)
        homes = self.homes(earlier.queue, earlier.at_us, self.now_us)
        if self.is_damaged(homes):
            return True
        if earlier.transaction and self.history.transactions[earlier.transaction].is_in_doubt:
            return True
        if self.may_be_unsynced(earlier.queue, earlier.at_us, earlier.settled_us):
            return True
        done_us = self.timeline.done_us(earlier.settled_us, every)
        over = session.over_us
        if 0 <= over <= done_us and over >= earlier.settled_us:
            return True
        if 0 <= session.let_go_us <= done_us:
            return True
        if not self.promises.resumes:
            return self.was_struck(earlier, every, done_us)
        return self.was_struck(earlier, near, done_us) or self.was_out_of_reach(earlier)

    def hold_may_be_lost(self, earlier: Delivery) -> bool:
        """Whether the broker of a delivery may have lost its right to it
        (ExactlyOnceBetweenEdgeAndHome)."""
        session, now_us = earlier.session, self.now_us
        homes = self.homes(earlier.queue, earlier.at_us, now_us)
        near = [session.broker, pair(session.application, session.broker)]
        links = [pair(session.broker, home) for home in homes]
        if self.was_struck(earlier, near, now_us) or self.is_damaged(homes):
            return True
        if not self.promises.resumes:
            return self.was_struck(earlier, [*links, *homes], now_us)
        return self.was_out_of_reach(earlier)


def places_of(message: Message, queue: str) -> list[str]:
    """The queues that a message passes, in order, on its way to the consumers of a queue."""
    return [HELD, queue] if message.delayed else [queue]


# --- losses


class MessageFates(MessageChecker):
    """Base of the checkers that look at the end for all messages that were confirmed."""

    def concerns(self, message: Message, queue: str) -> bool:
        """Whether this checker is responsible for a message in a queue."""
        raise NotImplementedError

    def excuse(self, message: Message, queue: str) -> bool:
        """Whether it may have vanished there."""
        raise NotImplementedError

    def kept(self) -> dict[str, dict[str, int]]:
        """How often each message is in each queue now."""
        found: dict[str, dict[str, int]] = {}
        for broker in self.watch.brokers.values():
            contents = getattr(broker, "contents", None)
            if contents is not None:
                for queue, messages in contents().items():
                    counted = found.setdefault(queue, {})
                    for message in messages:
                        counted[message] = counted.get(message, 0) + 1
        return found

    def final(self) -> None:
        kept = self.kept()
        for message in self.history.messages.values():
            if message.outcome != CONFIRMED or message.returned:
                continue
            for queue in message.queues:
                if not self.concerns(message, queue):
                    continue
                if self._is_accounted_for(message, queue, kept) or self.excuse(message, queue):
                    continue
                self.fail(
                    f"{message.id} was confirmed, and is nowhere: {queue} doesn't have it. "
                    f"{self.history.story(message.id)}"
                )

    def _is_accounted_for(
        self, message: Message, queue: str, kept: dict[str, dict[str, int]]
    ) -> bool:
        """Whether it, or a message that counts as the same, was settled, is there, or died as it
        may."""
        plan = self.history.topology.queues[queue]
        same = [message]
        if plan.dedup and message.message_id:
            same = self.history.same[message.message_id]
        for each in same:
            if each.id in kept.get(queue, {}) or self._was_settled(each, queue):
                return True
        if message.at_us <= max(self.history.purges.get(queue, ()), default=-1):
            return True
        if plan.keeps_all():
            return False
        if plan.dead_to:
            return message.id in kept.get(GRAVES, {}) or self._was_settled(message, GRAVES)
        if plan.rejects:
            # A transaction can't tell its client that a queue refused something.
            return message.transaction > 0
        return not plan.length_max or self._was_crowded_out(message, queue, plan.length_max)

    def _was_settled(self, message: Message, queue: str) -> bool:
        had = [*message.came_from(queue), *message.continued.get(queue, ())]
        return any(self.history.is_settled(each) for each in had)

    def _was_crowded_out(self, message: Message, queue: str, length_max: int) -> bool:
        """Whether later messages may have pushed it out of a queue with a length limit."""
        others = 0
        for each in self.history.messages.values():
            if queue in each.queues and each is not message:
                over = each.outcome_us < 0 or each.outcome_us >= message.at_us
                others += over
        return others >= length_max


class NoConfirmedMessageLost(MessageFates):
    """A persistent message of a durable queue that was confirmed, or whose commit was, is settled
    by an application or still there once everything is over.

    Nothing that happens to brokers, machines, links and clocks excuses a loss. Excused only if:
    - its queue dropped it as told to: by a purge, or by a length limit; expired and rejected
      messages must have reached their dead letter queue;
    - it was on its way to a consumer with automatic acks whose channel ended, for its application
      or, later, for its broker, which may continue to send into a broken connection;
    - it is a dead letter, and the home of the queue that it died in ended (without `letters`);
    - the disk of a home was damaged (with `copies` 1);
    - with `unsynced_us`, its brokers lost power before it was synced (`may_be_unsynced`).
    """

    def concerns(self, message: Message, queue: str) -> bool:
        return message.persistent and self.history.topology.queues[queue].durable

    def excuse(self, message: Message, queue: str) -> bool:
        plan = self.history.topology.queues[queue]
        homes = self.homes(queue, message.at_us, self.now_us)
        if self.is_damaged(homes):
            return True
        places = places_of(message, queue) + ([GRAVES] if plan.dead_to else [])
        if any(self.may_be_unsynced(each, message.at_us, message.outcome_us) for each in places):
            return True
        if plan.automatic:
            over = self.history.automatic_over.get(queue, ())
            return any(us >= message.at_us for us in over)
        if plan.dead_to and not self.promises.letters:
            return self.timeline.ended(homes, message.at_us, self.now_us)
        return False


class ToldLevelIsKept(MessageFates):
    """A transient message, or one of a queue that isn't durable, that was confirmed is settled or
    still there, unless all brokers that had it in memory ended: with `copies` 1 its home.

    With more copies one of these must have happened since it was sent: as many of its holders ended
    as there should be copies; its home ended while no other broker was whole; or its home was
    deposed, and the successor ended before it was known to be one, or while a set of its epoch
    without whole members was pending: a broker that has more than the successor has to start again.
    The same holds if the standby ended first, and the home lost its lease before it had a whole
    standby again: then the successor has only its disk. A deposed home plus the crash of its
    successor loses reliable transient messages: docs/internals/rules.md says so. The other excuses
    are those of NoConfirmedMessageLost.

    And no publisher is told a level that was not reached: a disk level, if a queue that accepted
    the message keeps it in memory; copies in memory, if a group that accepted it and keeps it there
    had no whole standby until then, since `LEARN_US` before it was sent: some brokers learn late
    what is committed.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.LevelTold: self._told}

    def _told(self, seen: told.LevelTold) -> None:
        message = self.history.messages[seen.message]
        level = Level(seen.level)
        story = self.history.story(message.id)
        if not message.queues and level != Level.FULLY_TRANSIENT:
            self.fail(f"{message.id} was said to be {level}, and no queue took it. {story}")
        for queue in message.queues:
            if level.is_on_disk and self.concerns(message, queue):
                self.fail(
                    f"{message.id} was said to be {level}; {queue} keeps it in memory. {story}"
                )
            if level != Level.RELIABLE_TRANSIENT or not self.concerns(message, queue):
                continue
            took = places_of(message, queue)[0]
            if self._was_alone(message, took):
                self.fail(f"{message.id} was said to be {level}; {took} had no copy. {story}")

    def _was_alone(self, message: Message, queue: str) -> bool:
        group = self.history.groups.get(queue, -1)
        return self.history.was_alone_throughout(group, message.at_us - LEARN_US, self.now_us)

    def concerns(self, message: Message, queue: str) -> bool:
        return not (message.persistent and self.history.topology.queues[queue].durable)

    def excuse(self, message: Message, queue: str) -> bool:
        plan = self.history.topology.queues[queue]
        # A duplicate that was dropped counts from when its original was sent.
        same = self.history.same.get(message.message_id, []) if plan.dedup else []
        since_us = min([message.at_us, *[each.at_us for each in same]])
        places = places_of(message, queue) + ([GRAVES] if plan.dead_to else [])
        if self.have_ended(since_us, places, self.now_us):
            return True
        over = self.history.automatic_over.get(queue, ())
        return plan.automatic and any(us >= message.at_us for us in over)


# --- too often


class NoAckedMessageRedelivered(MessageChecker):
    """A message that an application has acked or rejected is delivered to nobody again.

    Excused if the verdict may not have reached the home: something was lost between the
    application, its broker and the home (a connection or link broke, one of the programs ended)
    between the delivery and the time when the verdict must have been on disk. With `resumes` only
    these excuse it: a loss between the application and its broker; the end of that broker; that it
    was out of the home's reach or without a lease for longer than homes wait; and that the broker
    had ended the session, as one that drains does, before the verdict came.

    Messages that were stored twice are excused (`may_be_there_twice`). Dead letters may come from
    several queues. A delivery that left its broker before the other one came (`left_before`) is
    late, not a redelivery.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Delivered: self._delivered}

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        if message is None or seen.queue == GRAVES:
            return
        *before, now = message.came_from(seen.queue)
        for earlier in before:
            if not self.history.is_settled(earlier) or self.left_before(now, earlier):
                continue
            if self.may_be_there_twice(message, seen.queue) or self.verdict_may_be_lost(earlier):
                continue
            self.fail(
                f"{seen.queue} gives {message.id} to {seen.application} although "
                f"{earlier.session.application} has settled it. {self.history.story(message.id)}"
            )


class ExactlyOnceBetweenEdgeAndHome(MessageChecker):
    """A message that an application holds is delivered to nobody else, and not to it again.

    An application holds what it got and has not settled, while its channel is open and its broker
    has not ended the session, as one that drains does. Excused if its broker may have lost its
    right to it: the broker ended, had no lease, or was out of the home's reach for longer than
    homes wait (`was_out_of_reach`); or if the new delivery left its broker before (`left_before`).
    Without `resumes` any break of the link and the end of the home excuse it, too, as does a
    publish that may be there twice.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Delivered: self._delivered}

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        if message is None or seen.queue == GRAVES:
            return
        *before, now = message.came_from(seen.queue)
        for earlier in before:
            if not earlier.is_held() or self.may_be_there_twice(message, seen.queue):
                continue
            if not self.hold_may_be_lost(earlier) and not self.left_before(now, earlier):
                self.fail(
                    f"{seen.queue} gives {message.id} to {seen.application} although "
                    f"{earlier.session.application} holds it. {self.history.story(message.id)}"
                )


class DuplicatesAreDropped(MessageChecker):
    """A queue with x-dedup delivers one message per message id (L5).

    Excused, without `remembers`, if its home ended after the first of them was sent; and always if
    one of them was kept in memory only, and all brokers that had it may have ended
    (ToldLevelIsKept).
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Delivered: self._delivered}

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        plan = self.history.topology.queues.get(seen.queue)
        if message is None or plan is None or not plan.dedup or not message.message_id:
            return
        for other in self.history.same[message.message_id]:
            if other is message or not other.came_from(seen.queue):
                continue
            first_us = min(other.at_us, message.at_us)
            homes = self.homes(seen.queue, first_us, self.now_us)
            if self.is_damaged(homes) or self._is_forgotten(plan, message, other, first_us):
                continue
            self.fail(
                f"{seen.queue} has given out both {other.id} and {message.id}, which are the same. "
                f"{self.history.story(other.id)}. {self.history.story(message.id)}"
            )

    def _is_forgotten(self, plan: QueuePlan, one: Message, other: Message, since_us: int) -> bool:
        if not self.promises.remembers:
            homes = self.homes(plan.name, since_us, self.now_us)
            return self.timeline.ended(homes, since_us, self.now_us)
        on_disk = plan.durable and one.persistent and other.persistent
        on_disk = on_disk and not self.promises.unsynced_us
        return not on_disk and self.have_ended(since_us, [plan.name], self.now_us)
