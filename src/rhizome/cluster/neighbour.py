"""Neighbour: all that this broker has with one other broker, linked or between two links.

Frames about messages are handed out here. One that was sent by a broker which has applied more of
the cluster's log than this one waits, with everything behind it, until this broker has caught up
(R10); a link itself is never paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.values import encode_table, read_table
from rhizome.amqp.wire import u16_at
from rhizome.broker.fault_log import FAULT_LINK
from rhizome.cluster.asking import number_in
from rhizome.cluster.calls import (
    ANSWER,
    ATTACHED_TO,
    DETACHED,
    GROUP_ATTACH,
    GROUP_ATTACHED,
    REATTACH,
    SESSION_GONE,
)
from rhizome.cluster.edge import Edge
from rhizome.cluster.forwarding import PrivateWay, Way
from rhizome.cluster.identity import PRIMARY, SECONDARY
from rhizome.cluster.interests import INTEREST, INTEREST_KNOWN, Interests
from rhizome.cluster.link.frames import FrameSink, put_frame
from rhizome.cluster.link.link import Link
from rhizome.cluster.relaying import relay
from rhizome.cluster.serving import Serving
from rhizome.cluster.taking import Taking
from rhizome.cluster.tenure import Tenures
from rhizome.cluster.track import Applied, Track
from rhizome.cluster.wire import (
    CONFIRM,
    COPIED_AT,
    CREDIT,
    DELIVER,
    FENCE,
    HAS_SETTLED,
    HELD,
    PUBLISH,
    REFUSE,
    ROUTE,
    SETTLE,
    SETTLED,
    UNROUTED,
)
from rhizome.errors import AmqpError, InternalFault

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker


@final
class Neighbour(FrameSink):
    """Invariant: ``track``, ``taking`` and ``serving`` are there exactly while there is a link.
    While ``waits`` is set this broker is not ready, and all frames are held.
    """

    broker: Broker
    applied: Applied
    interests: Interests
    edge: Edge
    tenures: Tenures
    name: str
    role: str
    way: PrivateWay
    track: Track | None
    taking: Taking | None
    serving: Serving | None
    held: list[tuple[int, bytes]]
    held_for: i64
    waits: bool
    confirmed: bool

    def __init__(
        self,
        broker: Broker,
        applied: Applied,
        interests: Interests,
        edge: Edge,
        tenures: Tenures,
        name: str,
    ) -> None:
        super().__init__()
        self.broker = broker
        self.applied = applied
        self.interests = interests
        self.edge = edge
        self.tenures = tenures
        self.name = name
        self.role = PRIMARY
        self.way = PrivateWay(name)
        self.track = None
        self.taking = None
        self.serving = None
        self.held = []
        self.held_for = 0
        self.waits = False
        self.confirmed = False

    def is_secondary(self) -> bool:
        return self.role == SECONDARY

    # ---- the link -------------------------------------------------------------------------------

    def connect(self, link: Link) -> None:
        self.role = link.peer.role
        carrier = self.broker.carry(f"link with {self.name}")
        track = Track(link, carrier, self.applied)
        self.track = track
        if not track.by_user:
            self.broker.older_peers[self.name] = None
        taking = Taking(self.broker, track)
        self.taking = taking
        self.serving = Serving(self.broker, self.tenures, taking, track)
        self.interests.connect(self)
        self.way.connect(track)
        self.edge.linked(self)
        link.sink = self

    def disconnect(self) -> None:
        if self.track is None:
            return
        self.track.link.sink = None
        self.track = None
        self.broker.older_peers.pop(self.name, None)
        self.held = []
        self.held_for = 0
        self.interests.disconnect(self)
        self.way.disconnect()
        self.edge.unlinked(self)
        self.taking = None
        if self.serving is not None:
            self.serving.close()
            self.serving = None
        self.broker.committed()

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

    def end_turn(self) -> None:
        """Before the link is flushed: tell what is safe here."""
        if self.serving is not None:
            self.serving.answers.try_again()
        if self.taking is not None:
            self.taking.confirm()
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
        while len(self.held) > 0 and not self.waits and self.applied.index >= self.held_for:
            self.held_for = 0
            held = self.held
            self.held = []
            at = 0
            while at < len(held) and self.held_for == 0:
                method, data = held[at]
                at += 1
                if not self._take_up(method, data):
                    return
            self.held.extend(held[at:])

    def _take_up(self, method: i64, data: bytes) -> bool:
        """Take a frame that was held. One that fails ends its link, as if it had just come; False:
        then the rest means nothing."""
        track = self.track
        # One name per clause: a variable of compiled code has one type.
        try:
            self._frame(method, data, 0, len(data))
            return True
        except AmqpError as fault:
            if track is not None:
                track.link.fail(fault)
        except Exception as bug:
            self.broker.report_bug(bug, f"link with {self.name}", FAULT_LINK)
            if track is not None:
                track.link.fail(InternalFault("the broker made a mistake; its log has the details"))
        return False

    def _hold(self, index: i64, method: i64, data: bytes, start: i64, end: i64) -> bool:
        if index <= self.applied.index:
            return False
        self.held_for = index
        self.held.insert(0, (method, data[start:end]))
        return True

    def _frame(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        track = self.track
        taking = self.taking
        serving = self.serving
        if track is None or taking is None or serving is None:
            return
        if method == PUBLISH:
            message = taking.published(data, start, end)
            if message is not None:
                slot = taking.slot_of(data, start)
                if not relay(self.interests, self, message, slot) and taking.untaken:
                    taking.return_last()
        elif method == DELIVER:
            self.edge.delivered(track, data, start, end)
        elif method == SETTLE:
            serving.settled(data, start, end)
        elif method == CREDIT:
            serving.credited(data, start)
        elif method <= HAS_SETTLED:
            self._numbered_frame(track, method, data, start, end)
        else:
            self._table_frame(track, method, data, start, end)

    def _numbered_frame(self, track: Track, method: i64, data: bytes, start: i64, end: i64) -> None:
        """The others that are read by offset."""
        taking = self.taking
        serving = self.serving
        assert taking is not None
        assert serving is not None
        if method == ROUTE:
            if not self._hold(read_i64_be(data, start), method, data, start, end):
                taking.routed(data, start + 8)
        elif method == HELD:
            serving.presented(data, start)
        elif method == HAS_SETTLED:
            serving.has_settled(data, start)
        elif method == FENCE:
            taking.fenced(u16_at(data, start), read_i64_be(data, start + 2))
        else:
            # Release 0.1.0 doesn't say.
            copied = method == CONFIRM and end > start + COPIED_AT and data[start + COPIED_AT] == 1
            number = read_i64_be(data, start + 2)
            self._answered(track, method, u16_at(data, start), number, copied)

    def _answered(self, track: Track, method: i64, group: i64, number: i64, copied: bool) -> None:
        """What a home says about what it was sent. One that is no longer attached to has no say."""
        way: Way = self.way
        if group != 0:
            remote = self.edge.group_of(group, track)
            if remote is None:
                return
            way = remote.way
            if method == SETTLED:
                remote.settled(number)
        if method == CONFIRM:
            if not copied:
                way.thin = number
            way.confirm(number)
            self.confirmed = True
        elif method == REFUSE:
            way.refuse(number)
        elif method == UNROUTED:
            way.unrouted(number)

    def _table_frame(self, track: Track, method: i64, data: bytes, start: i64, end: i64) -> None:
        serving = self.serving
        assert serving is not None
        table, _ = read_table(data[start:end], 0)
        index = table.get("applied", 0)
        assert isinstance(index, int)
        if self._hold(index, method, data, start, end):
            return
        if method == GROUP_ATTACH:
            serving.group_attach(table)
        elif method == GROUP_ATTACHED:
            serving.group_attached(table)
        elif method == ATTACHED_TO:
            self.edge.attached_to(track, table)
        elif method == REATTACH:
            self.edge.attach_anew(self, number_in(table, "group"), number_in(table, "epoch"))
        elif method == SESSION_GONE:
            self.edge.session_gone(track, table)
        elif method == DETACHED:
            self.edge.detached(number_in(table, "consumer"))
        elif method == ANSWER:
            self.edge.answered(track, table)
        elif method == INTEREST:
            self.interests.received(self, table)
        elif method == INTEREST_KNOWN:
            self.interests.known(self, number_in(table, "number"))
        else:
            serving.heard(method, table)
