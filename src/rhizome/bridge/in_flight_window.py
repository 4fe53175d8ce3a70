"""What is under way: delivered by the source, and not yet settled there. No input or output.

Life of an entry:

    WAITING   delivered -> sent                            SENT
    SENT      the destination confirmed it                 TAKEN
    SENT      the destination went away, or refused it     WAITING   (sent again, in order)
    SENT      refused, and the bridge is to reject those   REJECTED
    TAKEN     acknowledged at the source                   gone
    REJECTED  rejected at the source                       gone
    WAITING   given back to the source at a stop           gone

A window belongs to one session with the source, since delivery tags do. When that session ends, the
source will deliver again what was not acknowledged. `ExpectedRedeliveries` recognises these: they
get their old entry back with all that is known about it, so what is on its way, or has arrived,
isn't sent a second time, and what is sent again has the id that it had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, final

from rhizome.bridge.message_ids import fingerprint, has_id
from rhizome.client import Message


class State(Enum):
    """How far an entry is; the module docstring lists the transitions."""

    WAITING = "waiting"
    SENT = "sent"
    TAKEN = "taken"
    REJECTED = "rejected"


@final
class Entry:
    """One message under way. `message_id` is what the bridge gave it, None so far or if it had one.

    `is_in_doubt` says that a publish of it had no answer: it may have arrived.

    Invariant: at most one publish of an entry is open, and only in state SENT.
    """

    __slots__ = ("is_in_doubt", "message", "message_id", "sends", "state")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.message_id: str | None = None
        self.state = State.WAITING
        self.sends = 0
        self.is_in_doubt = False

    def unanswered(self) -> None:
        """The destination went away before it said what became of the publish."""
        self.state = State.WAITING
        self.is_in_doubt = True


class Settlement(NamedTuple):
    """What to tell the source: ack all up to the tag, or reject the one with the tag."""

    delivery_tag: int
    is_ack: bool


class ExpectedRedeliveries:
    """Entries of earlier sessions that the source will deliver again.

    Only entries that were never acknowledged are kept. So each stands for one message that is still
    in the queue, or that somebody else got; giving its place to another message that is equal in
    everything changes nothing that anybody could notice.

    A delivery is recognised only if it is marked as redelivered or has a message-id. Else it could
    be a new message equal to one that a crash of the source has wiped out.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: dict[bytes, deque[Entry]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def remember(self, entries: Iterable[Entry]) -> None:
        """Keep these; the oldest are forgotten beyond the maximum."""
        for entry in entries:
            self._entries.setdefault(fingerprint(entry.message), deque()).append(entry)
            self._count += 1
        while self._count > self._entries_max:
            self._take(next(iter(self._entries)))

    def find(self, message: Message) -> Entry | None:
        """The entry of a message that is delivered again, with its new delivery; None: it is new.

        An entry is found once.
        """
        if not self._entries or not (message.redelivered or has_id(message)):
            return None
        entry = self._take(fingerprint(message))
        if entry is not None:
            entry.message = message
        return entry

    def _take(self, mark: bytes) -> Entry | None:
        alike = self._entries.get(mark)
        if alike is None:
            return None
        entry = alike.popleft()
        self._count -= 1
        if not alike:
            del self._entries[mark]
        return entry


class Window:
    """Deliveries of one session with the source, in order.

    Invariant: `_unsent` holds the entries in state WAITING, in the order of delivery.
    """

    def __init__(self, recall: ExpectedRedeliveries) -> None:
        self._recall = recall
        self._entries: deque[Entry] = deque()
        self._unsent: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, message: Message) -> Entry:
        """A message was delivered."""
        entry = self._recall.find(message) or Entry(message)
        self._entries.append(entry)
        if entry.state is State.WAITING:
            self._unsent.append(entry)
        return entry

    def take_unsent(self) -> Entry | None:
        """The next entry to send, now SENT; None if all are."""
        if not self._unsent:
            return None
        entry = self._unsent.popleft()
        entry.state = State.SENT
        entry.sends += 1
        return entry

    def rewind(self) -> None:
        """Line up all that waits, in order: publishes have failed, none is open any more."""
        self._unsent = deque(entry for entry in self._entries if entry.state is State.WAITING)

    def settle(self) -> list[Settlement]:
        """Let go of the entries at the front that are done; returns what to tell the source.

        Only at the front: so acks are cumulative, and what was acknowledged is always older than
        what was not.
        """
        settlements: list[Settlement] = []
        while self._entries and self._entries[0].state in (State.TAKEN, State.REJECTED):
            entry = self._entries.popleft()
            is_ack = entry.state is State.TAKEN
            if is_ack and settlements and settlements[-1].is_ack:
                settlements.pop()
            settlements.append(Settlement(entry.message.delivery_tag, is_ack))
        return settlements

    def give_up_waiting(self) -> list[int]:
        """Let go of what waits and can't have arrived; returns the tags to give back."""
        given_up = [e for e in self._entries if e.state is State.WAITING and not e.is_in_doubt]
        if given_up:
            self._entries = deque(
                e for e in self._entries if e.state is not State.WAITING or e.is_in_doubt
            )
            self.rewind()
        return [entry.message.delivery_tag for entry in given_up]

    def close(self) -> None:
        """The session is over: what was not settled will be delivered again."""
        self._recall.remember(self._entries)
        self._entries = deque()
        self._unsent = deque()
