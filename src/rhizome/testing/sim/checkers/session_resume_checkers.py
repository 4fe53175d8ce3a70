"""Checkers of clients that come back with what they hold (J12, A2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rhizome.cluster.home.settings import RESUME_PATIENCE_MS
from rhizome.testing.sim.apps.app_topology import GRAVES
from rhizome.testing.sim.checkers.fault_timeline import lease, pair
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import ATTACH_US, MessageChecker
from rhizome.testing.sim.checkers.message_history import Message, Session
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.world.event_scheduler import SECOND, shown_time

KEPT_US: Final = 10 * SECOND * 96 // 100
"""How long, at least, what a client holds is kept for it, by any broker's clock."""
PARKED_US: Final = KEPT_US - SECOND
"""How long an edge may be out of its home's reach and still be back in time."""

RESUME_US: Final = RESUME_PATIENCE_MS * 1_000 * 96 // 100
"""How long, at least, a new home waits for a client whose broker is gone, by any clock."""
TOLD_US: Final = SECOND
"""How long a client must have been there for others to have been told of it."""


class Step:
    """One connection over which a client has had a message, since it came or was presented."""

    __slots__ = ("session", "since_us")

    def __init__(self, session: Session, since_us: int) -> None:
        self.session = session
        self.since_us = since_us


class Chain:
    """A message that a client that can resume has, from connection to connection.

    `settled`: the client has acked or rejected it; `certain`: and knows that this is committed.
    `suspect`: it was delivered to another while the client was away; that counts once it is back.
    """

    __slots__ = ("application", "certain", "message", "queue", "settled", "steps", "suspect")

    def __init__(self, application: str, queue: str, message: Message, step: Step) -> None:
        self.application = application
        self.queue = queue
        self.message = message
        self.steps = [step]
        self.settled = False
        self.certain = False
        self.suspect = ""

    def is_away(self) -> bool:
        return self.steps[-1].session.over_us >= 0


class SessionsKeepWhatTheyHold(MessageChecker):
    """What a client that can resume holds, or has acked or rejected, is delivered to nobody again,
    itself included, if the client comes back and presents it in time: at most `KEPT_US` from when
    its connection was lost, for the client, for its broker or with that broker, until the home must
    have got it. For what it knows to be committed (session.sync) that holds wherever it is.

    While its first connection lasts other checkers are responsible. Excused:
    - by a publish that may be there twice;
    - if the broker through which the client had it was out of the home's reach for as long as homes
      keep things, or when the home changed: without a lease, or without a link for as long as a new
      home waits (A2). The end of a broker alone is no excuse;
    - if that broker had ended, and a new home had begun that it wasn't attached to, and the client
      was back later than new homes wait for clients, or the home can't have heard of it.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._resuming: set[int] = set()
        self._chains: dict[tuple[str, str], list[Chain]] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            told.CanResume: self._can_resume,
            told.Delivered: self._delivered,
            told.SettledBy: self._settled,
            told.SettledAway: self._settled_away,
            told.Presented: self._presented,
            told.Synced: self._synced,
            told.GaveUp: self._gave_up,
        }

    # --- what clients have

    def _can_resume(self, seen: told.CanResume) -> None:
        self._resuming.add(seen.session)

    def _delivered(self, seen: told.Delivered) -> None:
        message = self.history.messages.get(seen.message)
        if message is None or seen.queue == GRAVES:
            return
        chains = self._chains.setdefault((seen.queue, seen.message), [])
        for chain in list(chains):
            self._came_again(chain, seen)
        if seen.session in self._resuming and not seen.automatic:
            step = Step(self.history.sessions[seen.session], self.now_us)
            chains[:] = [each for each in chains if each.application != seen.application]
            chains.append(Chain(seen.application, seen.queue, message, step))

    def _settled(self, seen: told.SettledBy) -> None:
        delivery = self.history.last_settled
        if delivery is not None and seen.session in self._resuming:
            self._says(delivery.session.application, delivery.queue, delivery.message, seen.verdict)

    def _settled_away(self, seen: told.SettledAway) -> None:
        self._says(seen.application, seen.queue, seen.message, seen.verdict)

    def _says(self, application: str, queue: str, message: str, verdict: str) -> None:
        chain = self._chain(application, queue, message)
        if chain is not None and verdict == told.REQUEUE:
            self._forget(chain)
        elif chain is not None:
            chain.settled = True

    def _synced(self, seen: told.Synced) -> None:
        chain = self._chain(seen.application, seen.queue, seen.message)
        if chain is not None and chain.settled:
            chain.certain = True

    def _gave_up(self, seen: told.GaveUp) -> None:
        for chains in list(self._chains.values()):
            for chain in list(chains):
                mine = chain.application == seen.application and not chain.certain
                if mine and seen.queue in ("", chain.queue):
                    self._forget(chain)

    def _presented(self, seen: told.Presented) -> None:
        chain = self._chain(seen.application, seen.queue, seen.message)
        if chain is None:
            return
        chain.steps.append(Step(self.history.sessions[seen.session], self.now_us))
        if chain.suspect:
            self._judge(chain, chain.suspect)

    def _chain(self, application: str, queue: str, message: str) -> Chain | None:
        for chain in self._chains.get((queue, message), ()):
            if chain.application == application:
                return chain
        return None

    def _forget(self, chain: Chain) -> None:
        self._chains[chain.queue, chain.message.id].remove(chain)

    # --- what comes again

    def _came_again(self, chain: Chain, seen: told.Delivered) -> None:
        when = shown_time(self.now_us)
        text = f"{seen.queue} gives {seen.message} to {seen.application} at {when}"
        is_away = chain.is_away() or self._has_lost_broker(chain.steps[-1])
        if chain.certain or (len(chain.steps) > 1 and not is_away):
            self._judge(chain, text)
        elif is_away:
            chain.suspect = chain.suspect or text

    def _has_lost_broker(self, step: Step) -> bool:
        """Whether the broker of a step has ended, though its client may not have noticed yet."""
        ends = self.timeline.ends.get(step.session.broker, ())
        return any(us >= step.since_us for us in ends)

    def _judge(self, chain: Chain, text: str) -> None:
        if not self._is_excused(chain):
            has = "knows to be safely settled" if chain.certain else "holds"
            if chain.settled and not chain.certain:
                has = "has settled"
            self.fail(
                f"{text}, which {chain.application} {has}. {self._steps_told(chain)}. "
                f"{self.history.story(chain.message.id)}"
            )
        self._forget(chain)

    def _is_excused(self, chain: Chain) -> bool:
        if self.may_be_there_twice(chain.message, chain.queue):
            return True
        return any(
            self._was_late(chain, at)
            or self._was_out_of_reach(chain, at)
            or self._was_replaced(chain, at)
            for at in range(len(chain.steps))
        )

    def _was_late(self, chain: Chain, at: int) -> bool:
        """Whether the client may have come too late for this step."""
        if at == 0:
            return False
        step, before = chain.steps[at], chain.steps[at - 1]
        homes = self.homes(chain.queue, step.since_us, self.now_us)
        broker = step.session.broker
        places = [broker, *homes, *[pair(broker, home) for home in homes]]
        due_us = min(self.timeline.done_us(step.since_us, places), self.now_us)
        return due_us - self._gone_us(before) > KEPT_US

    def _was_replaced(self, chain: Chain, at: int) -> bool:
        """Whether a new home began before this step and without the previous broker, which may
        have ended while the delivery to the client was under way, or while it attached; and did not
        wait for the client, or not long enough."""
        if at == 0:
            return False
        step, before = chain.steps[at], chain.steps[at - 1]
        broker = before.session.broker
        begun_us = self.timeline.begun_us(before.since_us, [broker])
        ends = [us for us in self.timeline.ends.get(broker, ()) if us >= begun_us]
        ended_us = min(ends, default=self.now_us + ATTACH_US)
        homes = self.history.homes.get(self.history.groups.get(chain.queue, -1), ())
        for us, home, _ in homes:
            if ended_us - ATTACH_US < us <= step.since_us:
                places = [step.session.broker, home, pair(step.session.broker, home)]
                came_us = self.timeline.done_us(step.since_us, places)
                is_late = came_us - max(us, ended_us) > RESUME_US
                if is_late or not self._was_told(before, home, ended_us):
                    return True
        return False

    def _was_told(self, step: Step, home: str, ended_us: int) -> bool:
        """Whether a broker that has ended must have told another one of a client."""
        broker = step.session.broker
        opened_us = step.session.opened_us
        places = [broker, home, pair(broker, home)]
        if self.timeline.disturbed_for(places, opened_us - SECOND, ended_us, 1):
            return False
        return ended_us - opened_us > TOLD_US

    def _gone_us(self, step: Step) -> int:
        """When the connection of a step was lost, for the side that noticed first."""
        session = step.session
        ends = [us for us in self.timeline.ends.get(session.broker, ()) if us >= step.since_us]
        return min(us for us in (session.over_us, session.let_go_us, *ends) if us >= 0)

    def _was_out_of_reach(self, chain: Chain, at: int) -> bool:
        """Whether homes may have continued without what the broker of this step presents."""
        step = chain.steps[at]
        broker = step.session.broker
        until_us = self.now_us
        if at + 1 < len(chain.steps):
            until_us = chain.steps[at + 1].since_us
        since_us = self.timeline.begun_us(step.since_us, [broker])
        homes = self.homes(chain.queue, since_us, until_us)
        links = [pair(broker, home) for home in homes]
        changed = self.history.has_changed(chain.queue, since_us)
        if changed and self.timeline.disturbed_for([lease(broker)], since_us, until_us, 0):
            return True
        least_us = ATTACH_US if changed else PARKED_US
        return self.timeline.disturbed_for(links, since_us, until_us, least_us)

    def _steps_told(self, chain: Chain) -> str:
        parts = []
        for at, step in enumerate(chain.steps):
            text = f"at {step.session.broker} from {shown_time(step.since_us)}"
            if at + 1 < len(chain.steps) or chain.is_away():
                text += f" until {shown_time(self._gone_us(step))}"
            parts.append(text)
        group = self.history.groups.get(chain.queue, -1)
        homes = [f"{home} {shown_time(us)}" for us, home, _ in self.history.homes.get(group, ())]
        return f"It had it {', '.join(parts)}; homes: {', '.join(homes)}"


class NothingKeptForNobody(MessageChecker):
    """After the faults nothing is kept any more for clients or edges that are gone: those that came
    back have it, and the rest was requeued."""

    def is_done(self) -> bool:
        return not self._kept()

    def final(self) -> None:
        for text in self._kept():
            self.fail(text)

    def _kept(self) -> list[str]:
        found: list[str] = []
        for name, broker in self.watch.brokers.items():
            kept = getattr(broker, "kept", None)
            if kept is not None:
                found += [f"{name} still keeps {text}" for text in kept()]
        return found
