"""What is promised about dead letters on their way from one group to another (A1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rhizome.testing.sim import traffic as told
from rhizome.testing.sim.history import Delivery, Message
from rhizome.testing.sim.promises import MessageChecker
from rhizome.testing.sim.topology import GRAVES


class LettersComeOnce(MessageChecker):
    """A message that dies in a queue comes to where dead letters go once: a letter that somebody
    holds or has settled comes to nobody again (A1: a group is itself an edge for its letters). That
    it comes at all is in the care of NoConfirmedMessageLost and ToldLevelIsKept.

    One message may die in several queues: each makes a letter. Excused by what excuses it for other
    queues (NoAckedMessageRedelivered, ExactlyOnceBetweenEdgeAndHome), by a publish that may be in
    the queue that it died in twice; and, of one that was in memory only, if all who had it there
    may have ended, for then it may die again.
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
        if self.history.is_settled(earlier):
            return self.verdict_may_be_lost(earlier)
        return self.hold_may_be_lost(earlier)
