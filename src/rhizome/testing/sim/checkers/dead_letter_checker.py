"""The checker of dead letters that go from one group to another (A1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rhizome.testing.sim.apps.app_topology import GRAVES
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import MessageChecker
from rhizome.testing.sim.checkers.message_history import Delivery, Message
from rhizome.testing.sim.events import application_events as told


class LettersComeOnce(MessageChecker):
    """A message that dies in a queue becomes one dead letter: a dead letter that an application
    holds or has settled is delivered to nobody again (A1: a group is itself an edge for its dead
    letters). NoConfirmedMessageLost and ToldLevelIsKept check that it arrives at all.

    One message may die in several queues: each makes a dead letter. The excuses are those for other
    queues (NoAckedMessageRedelivered, ExactlyOnceBetweenEdgeAndHome), and a publish that may be
    twice in the queue that it died in. A message that was in memory only may die again if all
    brokers that had it may have ended, as may one whose death was not synced (`may_be_unsynced`).
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.Delivered: self._delivered}

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        if message is None or seen.queue != GRAVES:
            return
        *before, now = message.came_from(GRAVES)
        for earlier in before:
            if earlier.died_in != now.died_in or self._is_excused(message, earlier):
                continue
            settled = self.history.is_settled(earlier)
            if settled or earlier.is_held():
                has = "has settled" if settled else "holds"
                self.fail(
                    f"{message.id}, which died in {now.died_in}, comes to {seen.application} "
                    f"although {earlier.session.application} {has} it. "
                    f"{self.history.story(message.id)}"
                )

    def _is_excused(self, message: Message, earlier: Delivery) -> bool:
        source = self.history.topology.queues.get(earlier.died_in)
        if source is None or self.may_be_there_twice(message, source.name):
            return True
        if not (message.persistent and source.durable):
            if self.have_ended(message.at_us, [source.name, GRAVES], self.now_us):
                return True
        for queue in (source.name, GRAVES):
            if self.may_be_unsynced(queue, message.at_us, self.now_us):
                return True
        if self.history.is_settled(earlier):
            return self.verdict_may_be_lost(earlier)
        return self.hold_may_be_lost(earlier)
