"""Applications that come back with what they hold: consumers with the capability session.resume.

What they hold, and what they have settled without knowing the outcome, is kept as the product's
client keeps it (`client/session/held_deliveries.py`). When their connection is lost they connect to
any broker, or to the one that the last broker has named, and present all of it there. What they
settle meanwhile they send late. After `RESUME_MS_MAX` they give up, as the client does.
"""

from __future__ import annotations

from typing import Final

from rhizome.amqp.methods import (
    BasicDeliver,
    BasicGetOk,
    BasicQos,
    SessionMessage,
    SessionResume,
    SessionResumed,
    SessionResumeOk,
    SessionSync,
    SessionSyncOk,
)
from rhizome.client.protocol_events import ChannelEnded, ContentReceived, MethodReceived
from rhizome.client.session.held_deliveries import (
    ACKED,
    METHOD_BYTES,
    REJECTED,
    REQUEUED,
    DeliveryIdentity,
    HeldDeliveries,
    in_parts,
    settlement,
)
from rhizome.client.session.session_channel import RESUME_S_MAX
from rhizome.testing.sim.apps.app_program import Workload, id_of
from rhizome.testing.sim.apps.consumers import Worker, _Place
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.world.sim_host import Host

RESUME: Final = "session.resume"
MOVE: Final = "session.move"
MOVING: Final = 320
RESUME_MS_MAX: Final = int(RESUME_S_MAX * 1000)
ENTRY_BYTES: Final = len(DeliveryIdentity(0, 0, 0).entry(0))
ENTRIES_OF_PART: Final = (2, 5, 1000)
"""So small that presenting takes several parts."""
HOLD_CHANCES: Final = (0.3, 0.7, 0.95)
SYNC_CHANCE: Final = 0.15
AWAY_SETTLE_CHANCE: Final = 0.2
MOVE_CHANCE: Final = 0.5
LEAVE_MS_MAX: Final = 1_000
"""How long a client waits for the answer to its close."""

KINDS: Final = {told.ACK: ACKED, told.REJECT: REJECTED, told.REQUEUE: REQUEUED}
VERDICTS: Final = {kind: verdict for verdict, kind in KINDS.items()}


class _Hold:
    """What a consuming channel has of its queue, from one connection to the next.

    Invariant: the place's `held` has the tags that `holdings` knows, and `names` what they are;
    `unsure` are the messages whose settlements it keeps, oldest first. `parts` is what is still to
    be presented, and `shown` the tags that were held when presenting began.
    """

    def __init__(self) -> None:
        self.holdings = HeldDeliveries()
        self.identity: DeliveryIdentity | None = None
        self.names: dict[int, str] = {}
        self.unsure: list[str] = []
        self.presents = False
        self.parts: list[bytes] = []
        self.shown: list[int] = []
        self.first_tag = 0
        self.lost_ms = -1

    def is_empty(self) -> bool:
        return not self.names and not self.unsure

    def clear(self) -> None:
        self.holdings.clear()
        self.names = {}
        self.unsure = []
        self.presents = False
        self.parts = []
        self.lost_ms = -1


class SessionWorker(Worker):
    """A worker that keeps what it holds over connections to any broker.

    Each run of its program is a session of its own.
    """

    def __init__(self, host: Host, name: str, workload: Workload, queues: list[str]) -> None:
        super().__init__(host, name, workload, queues)
        chance = host.chance("session")
        moves = chance.random() < MOVE_CHANCE
        self.capabilities = (RESUME, MOVE) if moves else (RESUME,)
        self.client_properties = {"session": f"{name}/{host.run}"}
        self.hold_chance = HOLD_CHANCES[int(chance.random() * len(HOLD_CHANCES))]
        self._part_bytes = METHOD_BYTES + ENTRY_BYTES * chance.choice(ENTRIES_OF_PART)
        self._sessions_chance = chance
        self._holds = {place: _Hold() for place in self._places}
        self._owes_resumed = False
        self._move_to = ""
        self._leaving_ms = -1
        self._visits = 0

    # --- connections

    def properties(self) -> dict[str, object]:
        self._visits += 1
        return {**self.client_properties, "session-visit": self._visits}

    def opened(self) -> None:
        super().opened()
        self.see(told.CanResume(self.name, self.session))
        self._leaving_ms = -1
        self._owes_resumed = True
        for place, hold in self._holds.items():
            if not hold.is_empty():
                if self._sessions_chance.random() < AWAY_SETTLE_CHANCE:
                    self._settle_quietly(place, place.held[:1], told.ACK)
                self._begin(place)
        self._say_resumed()

    def lost(self) -> None:
        super().lost()
        for hold in self._holds.values():
            hold.presents = False
            if hold.lost_ms < 0:
                hold.lost_ms = self.host.now_ms()

    def gone(self) -> None:
        super().gone()
        self.see(told.GaveUp(self.name, ""))

    def asked_to_move(self, host: str) -> None:
        self._move_to = host.partition(":")[0]

    def choose_broker(self) -> str:
        chosen, self._move_to = self._move_to or super().choose_broker(), ""
        return chosen

    def act(self) -> int:
        assert self.core is not None
        if self._move_to and self.is_open():
            # Nothing more is sent or received on this connection.
            self._leaving_ms = self.host.now_ms()
            self.core.close(MOVING, "moving to another broker")
        if not self.is_open():
            if self.host.now_ms() - self._leaving_ms >= LEAVE_MS_MAX:
                self._leave()
            return LEAVE_MS_MAX
        return super().act()

    # --- presenting

    def _begin(self, place: _Place) -> None:
        hold = self._holds[place]
        late = hold.lost_ms >= 0 and self.host.now_ms() - hold.lost_ms > RESUME_MS_MAX
        if hold.is_empty() or late:
            self._give_up(place)
            super()._begin(place)
            return
        assert self.core is not None
        place.channel = self.core.open_channel()
        place.asked = True
        place.consuming = False
        if place.prefetch and not place.pulls:
            self.core.send(place.channel, BasicQos(0, place.prefetch, False))
        hold.presents = True
        hold.first_tag = 0
        hold.shown = list(place.held)
        hold.parts = in_parts(hold.holdings.present(), self._part_bytes)
        self._present_part(place, hold)

    def _present_part(self, place: _Place, hold: _Hold) -> None:
        assert self.core is not None
        self.core.send(place.channel, SessionResume(hold.parts.pop(0)))
        self.asks(place.channel)

    def _presented(self, place: _Place, hold: _Hold, first_tag: int) -> None:
        assert self.core is not None
        hold.first_tag = hold.first_tag or first_tag
        if hold.parts:
            self._present_part(place, hold)
            return
        hold.presents = False
        hold.lost_ms = -1
        tags = {tag: hold.first_tag + at for at, tag in enumerate(hold.shown)}
        late = hold.holdings.resumed(hold.first_tag)
        place.held = [tags[tag] for tag in place.held]
        hold.names = {tags[tag]: name for tag, name in hold.names.items()}
        for tag, message in hold.names.items():
            self.see(
                told.Presented(self.name, self.session, place.channel, tag, place.queue, message, 1)
            )
        for message in dict.fromkeys(hold.unsure):
            if message not in hold.names.values():
                self.see(
                    told.Presented(
                        self.name, self.session, place.channel, 0, place.queue, message, 0
                    )
                )
        for tag, kind in late:
            self.core.send(place.channel, settlement(tag, kind))
        place.asked = False
        if not place.pulls:
            self._consume(place)
        self._say_resumed()

    def _say_resumed(self) -> None:
        """Once everything is presented the broker need not keep the rest."""
        waits = any(hold.presents or hold.lost_ms >= 0 for hold in self._waiting())
        if self._owes_resumed and not waits:
            self._owes_resumed = False
            assert self.core is not None
            self.core.say(SessionResumed())

    def _waiting(self) -> list[_Hold]:
        return [hold for hold in self._holds.values() if not hold.is_empty()]

    def _give_up(self, place: _Place) -> None:
        """Forget what is held: others may get it."""
        hold = self._holds[place]
        if not hold.is_empty():
            self.see(told.GaveUp(self.name, place.queue))
        hold.clear()
        place.held = []

    # --- settling

    def _live(self, place: _Place) -> None:
        if self._holds[place].presents:
            if place.held and self._sessions_chance.random() < AWAY_SETTLE_CHANCE:
                self._settle_quietly(place, place.held[-1:], told.ACK)
        else:
            super()._live(place)

    def _finish(self, place: _Place) -> None:
        if not self._holds[place].presents:
            super()._finish(place)

    def _settle(self, place: _Place, tag: int, verdict: str, multiple: bool) -> None:
        settled = [each for each in place.held if each == tag or (multiple and each < tag)]
        super()._settle(place, tag, verdict, multiple)
        self._note_settled(place, settled, verdict)
        hold = self._holds[place]
        if hold.holdings.syncing == 0 and self._sessions_chance.random() < SYNC_CHANCE:
            assert self.core is not None
            hold.holdings.begin_sync()
            self.core.send(place.channel, SessionSync())

    def _settle_quietly(self, place: _Place, tags: list[int], verdict: str) -> None:
        """Settle while there is no broker to tell: it is presented or sent later."""
        place.held = [each for each in place.held if each not in tags]
        for tag in tags:
            message = self._holds[place].names[tag]
            self.see(told.SettledAway(self.name, self.session, place.queue, message, verdict))
        self._note_settled(place, tags, verdict)

    def _note_settled(self, place: _Place, tags: list[int], verdict: str) -> None:
        hold = self._holds[place]
        hold.holdings.settle(tags, KINDS[verdict])
        hold.unsure += [hold.names.pop(tag) for tag in tags]

    def _synced(self, place: _Place, hold: _Hold) -> None:
        count = min(hold.holdings.syncing, len(hold.unsure))
        hold.holdings.synced()
        for message in hold.unsure[:count]:
            self.see(told.Synced(self.name, place.queue, message))
        del hold.unsure[:count]

    # --- hearing

    def _ended(self, place: _Place) -> None:
        """A channel is over; what was being presented is presented again."""
        super()._ended(place)
        if not self._holds[place].presents:
            self._give_up(place)

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        place = next((each for each in self._places if each.channel == event.channel), None)
        if place is None or not isinstance(event, MethodReceived):
            super().heard(event)
            return
        hold, method = self._holds[place], event.method
        if isinstance(method, SessionMessage):
            hold.identity = DeliveryIdentity(
                int(method.queue_id), int(method.epoch), int(method.index)
            )
        elif isinstance(method, SessionSyncOk):
            self._synced(place, hold)
        elif isinstance(method, SessionResumeOk):
            self.was_answered(place.channel)
            self._presented(place, hold, int(method.first_tag))
        else:
            super().heard(event)

    def _message(self, place: _Place, event: ContentReceived) -> None:
        hold = self._holds[place]
        identity, hold.identity = hold.identity, None
        if not self.workload.topology.queues[place.queue].automatic:
            method = event.method
            assert isinstance(method, (BasicDeliver, BasicGetOk)), method
            assert identity is not None, f"{self.name} is not told what {method} is"
            tag = int(method.delivery_tag)
            hold.holdings.add(tag, identity, hold)
            hold.names[tag] = id_of(event.body)
        super()._message(place, event)
