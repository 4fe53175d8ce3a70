"""What a channel of a session holds, and what it has settled without knowing the outcome (J12).

A broker that can resume says what each delivery is (session.message). After a failover the channel
presents that to the next broker, and continues under the tags that it is given there. Settlements
have no answer in AMQP: they are kept until a session.sync is answered, and presented, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from rhizome.amqp import methods

UNSURE_MAX: Final = 50_000
"""How many settlements are remembered; older ones reached the broker long ago, or never will."""
SYNC_EVERY: Final = 100

HELD: Final = 0
ACKED: Final = 1
REJECTED: Final = 2
REQUEUED: Final = 3

_ENTRY: Final = Struct(">QIQB")
METHOD_BYTES: Final = 64
"""More than a frame and a method take around what a session.resume presents."""
FRAME_BYTES_USUAL: Final = 131_072

Settlement = methods.BasicAck | methods.BasicNack | methods.BasicReject


@dataclass(frozen=True, slots=True)
class DeliveryIdentity:
    """What a message is, wherever its queue may be."""

    queue_id: int
    epoch: int
    index: int

    @property
    def place(self) -> tuple[int, int]:
        """Queue and index, without the epoch: a later message may have the same place, and then
        this one no longer exists."""
        return self.queue_id, self.index

    def entry(self, kind: int) -> bytes:
        """How a session.resume presents it."""
        return _ENTRY.pack(self.queue_id, self.epoch, self.index, kind)


class HeldDelivery(NamedTuple):
    """A message that was delivered over one connection, under a tag of that connection."""

    identity: DeliveryIdentity | None
    incarnation: object
    tag: int


class HeldDeliveries:
    """Invariant: `_held` is by the present tags, which rise; what has no identity can't be
    presented. `syncing` counts the settlements at the time of the sync that is under way. While it
    is presented, `_presented` has the place of each tag, and `_late` what was settled meanwhile.
    """

    def __init__(self) -> None:
        self._held: dict[int, HeldDelivery] = {}
        self._presented: dict[int, int] = {}
        self._late: list[tuple[int, int]] = []
        self._unsure: deque[tuple[DeliveryIdentity, int]] = deque(maxlen=UNSURE_MAX)
        self.syncing = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def can_be_presented(self) -> bool:
        """Whether the broker has said what each of the messages is."""
        return all(holding.identity is not None for holding in self._held.values())

    def add(self, tag: int, identity: DeliveryIdentity | None, incarnation: object) -> None:
        """A message was delivered that has to be acked."""
        self._held[tag] = HeldDelivery(identity, incarnation, tag)

    def tags(self, incarnation: object, tag: int, multiple: bool) -> list[int]:
        """The present tags of what was delivered over one connection as `tag`, or up to it."""
        if multiple:
            return [
                present
                for present, holding in self._held.items()
                if holding.incarnation is incarnation and holding.tag <= tag
            ]
        holding = self._held.get(tag)
        if holding is not None and holding.incarnation is incarnation and holding.tag == tag:
            return [tag]
        return [
            present
            for present, holding in self._held.items()
            if holding.incarnation is incarnation and holding.tag == tag
        ]

    def settle(self, tags: list[int], kind: int) -> None:
        """These are no longer held; whether the settlement reaches the broker is not known yet."""
        for tag in tags:
            identity = self._held.pop(tag).identity
            if identity is not None:
                self._unsure.append((identity, kind))
            if tag in self._presented:
                self._late.append((self._presented[tag], kind))

    def sync_is_due(self) -> bool:
        return self.syncing == 0 and len(self._unsure) >= SYNC_EVERY

    def begin_sync(self) -> None:
        self.syncing = len(self._unsure)

    def synced(self) -> None:
        """The broker has committed everything that was settled before the sync was sent."""
        for _ in range(min(self.syncing, len(self._unsure))):
            self._unsure.popleft()
        self.syncing = 0

    def present(self) -> bytes:
        """What a session.resume presents: what is held, in order, then what was settled; of a
        message that was requeued and came again only the last settlement."""
        self._presented = {tag: place for place, tag in enumerate(self._held)}
        self._late = []
        packed = [
            holding.identity.entry(HELD)
            for holding in self._held.values()
            if holding.identity is not None
        ]
        held = {each.identity.place for each in self._held.values() if each.identity is not None}
        last_words = {identity.place: (identity, kind) for identity, kind in self._unsure}
        packed.extend(
            identity.entry(kind)
            for place, (identity, kind) in last_words.items()
            if place not in held
        )
        return b"".join(packed)

    def resumed(self, first_tag: int) -> list[tuple[int, int]]:
        """The broker knows what was presented, under tags from this one on; the tags and kinds of
        what was settled since."""
        self._held = {
            first_tag + self._presented[tag]: holding for tag, holding in self._held.items()
        }
        late = [(first_tag + place, kind) for place, kind in self._late]
        self._presented = {}
        self._late = []
        self.syncing = 0
        return late

    def clear(self) -> None:
        """Forget everything: it means nothing to the next broker."""
        self._held.clear()
        self._presented = {}
        self._late = []
        self._unsure.clear()
        self.syncing = 0


def in_parts(entries: bytes, frame_bytes_max: int) -> list[bytes]:
    """What is presented, in pieces that a frame can take. While a home is slow to answer syncs a
    busy consumer settles more than one takes."""
    size = (frame_bytes_max or FRAME_BYTES_USUAL) - METHOD_BYTES
    size -= size % _ENTRY.size
    return [entries[at : at + size] for at in range(0, len(entries), size)]


def kind_of(method: Settlement) -> int:
    """How a method settles what it names."""
    if isinstance(method, methods.BasicAck):
        return ACKED
    return REQUEUED if method.requeue else REJECTED


def settlement(tag: int, kind: int) -> Settlement:
    """The method that settles one delivery."""
    if kind == ACKED:
        return methods.BasicAck(tag, False)
    return methods.BasicNack(tag, False, kind == REQUEUED)
