"""Neighbour: all that this broker has with one other broker, linked or between two links.

Frames about messages are handed out here. One that was sent by a broker which has applied more of
the cluster's log than this one waits, with everything behind it, until this broker has caught up
(R10); a link itself is never paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.values import encode_table, read_table
from rhizome.cluster.calls import (
    ANSWER,
    ATTACH,
    ATTACHED,
    BEGIN,
    CALL,
    DETACH,
    DETACHED,
    END_SESSION,
    PREFETCH,
)
from rhizome.cluster.forwarding import Way
from rhizome.cluster.homes import RemoteHome
from rhizome.cluster.identity import PRIMARY, SECONDARY
from rhizome.cluster.interests import INTEREST, INTEREST_KNOWN, Interests
from rhizome.cluster.link.frames import put_frame
from rhizome.cluster.link.link import Link
from rhizome.cluster.relaying import relay
from rhizome.cluster.serving import Serving
from rhizome.cluster.track import Applied, Track
from rhizome.cluster.wire import (
    CONFIRM,
    CREDIT,
    DELIVER,
    FENCE,
    PUBLISH,
    REFUSE,
    ROUTE,
    SETTLE,
    UNROUTED,
)

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue import Queue

ABANDONED_MS: Final = 10_000
"""So long after their link went down consumers may still come back to auto-delete queues."""


@final
class Neighbour:
    """Invariant: ``track`` and ``serving`` are there exactly while there is a link; ``taken``
    remembers, for the edge's last incarnation, the last publish that was taken from it. While
    ``waits`` is set this broker is not ready, and all frames are held. ``abandoned`` are
    auto-delete queues that were consumed over the last link.
    """

    broker: Broker
    applied: Applied
    interests: Interests
    name: str
    role: str
    way: Way
    home: RemoteHome
    track: Track | None
    serving: Serving | None
    taken_incarnation: str
    taken: i64
    begun: bool
    held: list[tuple[int, bytes]]
    held_for: i64
    waits: bool
    confirmed: bool
    abandoned: list[Queue]
    disconnected_ms: i64

    def __init__(self, broker: Broker, applied: Applied, interests: Interests, name: str) -> None:
        self.broker = broker
        self.applied = applied
        self.interests = interests
        self.name = name
        self.role = PRIMARY
        self.way = Way(name, applied)
        self.home = RemoteHome(broker, name, self.way)
        self.track = None
        self.serving = None
        self.taken_incarnation = ""
        self.taken = 0
        self.begun = False
        self.held = []
        self.held_for = 0
        self.waits = False
        self.confirmed = False
        self.abandoned = []
        self.disconnected_ms = 0

    def is_secondary(self) -> bool:
        return self.role == SECONDARY

    # ---- the link -------------------------------------------------------------------------------

    def connect(self, link: Link) -> None:
        self.role = link.peer.role
        carrier = self.broker.carry(f"link with {self.name}")
        track = Track(link, carrier)
        self.track = track
        self.serving = Serving(self.broker, track)
        self.begun = False
        self.send(BEGIN, {"incarnation": self.broker.incarnation, "first": self.way.first})
        self.interests.connect(self)
        self.way.connect(track)
        self.home.connect(track)

    def disconnect(self) -> None:
        if self.track is None:
            return
        self._note_taken()
        self.track = None
        self.held = []
        self.held_for = 0
        self.interests.disconnect(self)
        self.way.disconnect()
        self.home.disconnect()
        if self.serving is not None:
            self.abandoned.extend(self.serving.close())
            self.serving = None
        self.disconnected_ms = self.broker.turn.now_ms
        self.broker.committed()

    def _note_taken(self) -> None:
        if self.serving is not None and self.begun:
            self.taken = self.serving.last

    def flushed(self) -> None:
        """The link has written: consumers that waited for room go on."""
        track = self.track
        if track is not None:
            track.carrier.set_writable(track.link.writable)
            track.carrier.flushed()

    def send(self, method: i64, table: dict[str, object]) -> None:
        """Send a frame that is a table; without a link it is lost."""
        if self.track is not None:
            table["applied"] = self.applied.index
            put_frame(self.track.outbox, method, encode_table(table))
            self.track.link.touch()

    # ---- turns ----------------------------------------------------------------------------------

    def tick(self, now_ms: i64) -> None:
        self.home.tick(now_ms)
        if self.track is None and now_ms - self.disconnected_ms >= ABANDONED_MS:
            self._judge_abandoned()

    def _judge_abandoned(self) -> None:
        """Whoever wanted to consume again does: auto-delete queues without a consumer go."""
        abandoned = self.abandoned
        self.abandoned = []
        for queue in abandoned:
            queue.expected -= 1
            if not queue.deleted:
                self.broker.delete_if_unused(queue)

    def end_turn(self) -> None:
        """Before the link is flushed: tell what was settled here and what is safe here."""
        self.home.end_turn()
        if self.serving is not None:
            self.serving.confirm()
        if self.confirmed:
            self.confirmed = False
            self.broker.committed()

    # ---- frames ---------------------------------------------------------------------------------

    def frame(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        if self.held_for > 0 or self.waits:
            self.held.append((method, data[start:end]))
            return
        self._frame(method, data, start, end)

    def caught_up(self) -> None:
        """This broker has applied more: take up what was held."""
        if self.track is None and len(self.way.messages) > 0:
            self.way.drop_deleted(self.broker.shared)
            self.confirmed = True
        while len(self.held) > 0 and not self.waits and self.applied.index >= self.held_for:
            self.held_for = 0
            held = self.held
            self.held = []
            at = 0
            while at < len(held) and self.held_for == 0:
                method, data = held[at]
                at += 1
                self._frame(method, data, 0, len(data))
            self.held.extend(held[at:])

    def _hold(self, index: i64, method: i64, data: bytes, start: i64, end: i64) -> bool:
        if index <= self.applied.index:
            return False
        self.held_for = index
        self.held.insert(0, (method, data[start:end]))
        return True

    def _frame(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        serving = self.serving
        if serving is None:
            return
        if method == PUBLISH:
            message = serving.published(data, start, end)
            if message is not None:
                slot = serving.slot_of(data, start)
                if not relay(self.interests, self, message, slot) and serving.untaken:
                    serving.return_last()
        elif method == DELIVER:
            self.home.delivered(data, start, end)
        elif method == SETTLE:
            serving.settled(data, start)
        elif method == CREDIT:
            serving.credited(data, start)
        elif method == CONFIRM:
            self.way.confirm(read_i64_be(data, start))
            self.confirmed = True
        elif method == REFUSE:
            self.way.refuse(read_i64_be(data, start))
        elif method == FENCE:
            serving.fenced(read_i64_be(data, start))
        elif method == UNROUTED:
            self.way.unrouted(read_i64_be(data, start))
        elif method == ROUTE:
            if not self._hold(read_i64_be(data, start), method, data, start, end):
                serving.routed(data, start + 8)
        else:
            self._table_frame(serving, method, data, start, end)

    def _table_frame(
        self, serving: Serving, method: i64, data: bytes, start: i64, end: i64
    ) -> None:
        table, _ = read_table(data[start:end], 0)
        index = table.get("applied", 0)
        assert isinstance(index, int)
        if self._hold(index, method, data, start, end):
            return
        if method == BEGIN:
            self._begin(serving, table)
        elif method == ATTACH:
            serving.attach(table)
        elif method == ATTACHED:
            self._judge_abandoned()
        elif method == DETACH:
            serving.detach(table)
        elif method == DETACHED:
            self.home.detached(number_in(table, "consumer"))
        elif method == END_SESSION:
            serving.end_session(table)
        elif method == PREFETCH:
            serving.set_prefetch(table)
        elif method == CALL:
            serving.call(table)
        elif method == ANSWER:
            self.home.answered(table)
        elif method == INTEREST:
            self.interests.received(self, table)
        elif method == INTEREST_KNOWN:
            self.interests.known(self, number_in(table, "number"))

    def _begin(self, serving: Serving, table: dict[str, object]) -> None:
        """The edge says who it is and where it goes on; nothing is taken twice."""
        incarnation = str(table["incarnation"])
        first = number_in(table, "first")
        if incarnation != self.taken_incarnation:
            self.taken_incarnation = incarnation
            self.taken = first - 1
        serving.begin(max(self.taken, first - 1))
        self.begun = True


def number_in(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value
