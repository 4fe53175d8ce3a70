"""Peer broker: all that this broker has with one other broker, linked or between two links.

Frames about messages are dispatched here. A frame whose sender has applied more of the cluster's
log than this broker waits, with everything behind it, until this broker has caught up (R10). A link
itself is never paused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.field_table import read_table
from rhizome.amqp.primitives import u16_at
from rhizome.broker.fault_log import FAULT_LINK
from rhizome.cluster.edge.edge import Edge
from rhizome.cluster.edge.forward_queue import ForwardQueue
from rhizome.cluster.home.edge_channels import EdgeConnection
from rhizome.cluster.home.edge_reconciliation import EdgeSessionsByGroup
from rhizome.cluster.home.forward_receiver import ForwardReceiver
from rhizome.cluster.link.link import Link
from rhizome.cluster.linked_peer import LinkedPeer
from rhizome.cluster.peer_link_state import Applied, LinkChannel
from rhizome.cluster.private_queues.meta_bindings import MetaBindings
from rhizome.cluster.private_queues.root_relay import relay
from rhizome.cluster.protocol.call_table_codec import number_in
from rhizome.cluster.protocol.catalogue import (
    ANSWER,
    ATTACH,
    ATTACH_BEGIN,
    ATTACH_END,
    ATTACHED_TO,
    CALL,
    CONFIRM,
    CREDIT,
    DELIVER,
    DETACH,
    DETACHED,
    END_SESSION,
    FENCE,
    HAS_SETTLED,
    HELD,
    META_BINDINGS,
    META_BINDINGS_KNOWN,
    PREFETCH,
    PUBLISH,
    REATTACH,
    REFUSE,
    ROUTE,
    SESSION_GONE,
    SESSION_OF,
    SETTLE,
    SETTLED,
    UNROUTED,
)
from rhizome.cluster.protocol.edge_home_codec import COPIED_AT
from rhizome.cluster.protocol.frame_dispatch import FrameHandler, FrameTable, SpanHandler
from rhizome.errors import AmqpError, InternalFault

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker


@final
class PeerBroker(LinkedPeer):
    """Everything that this broker has with one peer.

    Invariant: ``edge_connection`` exists exactly while there is a link. ``waits`` is set while this
    broker is not ready, ``held_for`` while the peer is ahead. Under either, the link has
    ``keepers`` in place of ``handlers``: frames about messages are kept in ``held``. All others are
    handled as they come.
    """

    broker: Broker
    frames: FrameTable
    meta_bindings: MetaBindings
    edge: Edge
    tenures: EdgeSessionsByGroup
    edge_connection: EdgeConnection | None
    handlers: list[FrameHandler]
    keepers: list[FrameHandler]
    held: list[tuple[int, bytes]]
    held_for: i64
    waits: bool
    confirmed: bool

    def __init__(
        self,
        broker: Broker,
        frames: FrameTable,
        applied: Applied,
        meta_bindings: MetaBindings,
        edge: Edge,
        tenures: EdgeSessionsByGroup,
        name: str,
    ) -> None:
        """``frames``: the handlers of the frames that aren't about messages."""
        super().__init__(name, applied)
        self.broker = broker
        self.frames = frames
        self.meta_bindings = meta_bindings
        self.edge = edge
        self.tenures = tenures
        self.edge_connection = None
        self.handlers = frames.handlers
        self.keepers = frames.handlers
        self.held = []
        self.held_for = 0
        self.waits = False
        self.confirmed = False

    # ---- the link -------------------------------------------------------------------------------

    def connect(self, link: Link) -> None:
        self.role = link.peer.role
        carrier = self.broker.carry(f"link with {self.name}")
        link_channel = LinkChannel(link, carrier, self.applied)
        self.link_channel = link_channel
        if not link_channel.by_user:
            self.broker.older_peers[self.name] = None
        forward_receiver = ForwardReceiver(self.broker, link_channel)
        self.forward_receiver = forward_receiver
        edge_connection = EdgeConnection(self.broker, self.tenures, forward_receiver, link_channel)
        self.edge_connection = edge_connection
        self.meta_bindings.connect(self)
        self.way.connect(link_channel)
        self.edge.linked(self)
        self._register(link_channel, forward_receiver, edge_connection)
        self._choose_handlers()

    def disconnect(self) -> None:
        if self.link_channel is None:
            return
        self.link_channel.link.handlers = self.frames.handlers
        self.handlers = self.frames.handlers
        self.keepers = self.frames.handlers
        self.link_channel = None
        self.broker.older_peers.pop(self.name, None)
        self.held = []
        self.held_for = 0
        self.meta_bindings.disconnect(self)
        self.way.disconnect()
        self.edge.unlinked(self)
        self.forward_receiver = None
        if self.edge_connection is not None:
            self.edge_connection.close()
            self.edge_connection = None
        self.broker.committed()

    def flushed(self) -> None:
        """The link has written: consumers that waited for room go on."""
        link_channel = self.link_channel
        if link_channel is not None:
            link_channel.carrier.set_writable(link_channel.link.writable)
            link_channel.carrier.flushed()

    # ---- turns ----------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Before the link is flushed: tell the peer what is safe here."""
        if self.edge_connection is not None:
            self.edge_connection.answers.try_again()
        if self.forward_receiver is not None:
            self.forward_receiver.confirm()
        if self.confirmed:
            self.confirmed = False
            self.broker.committed()

    # ---- frames that wait until this broker has caught up ---------------------------------------

    def keep(self, number: i64, data: bytes, start: i64, end: i64) -> None:
        """Keep a frame that came behind one that is kept."""
        self.held.append((number, data[start:end]))

    def wait(self, waits: bool) -> None:
        """This broker is not ready, or is ready from now on."""
        self.waits = waits
        self.caught_up()

    def caught_up(self) -> None:
        """This broker has applied more: handle the frames that were held."""
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
        self._choose_handlers()

    def _take_up(self, method: i64, data: bytes) -> bool:
        """Handle a frame that was held.

        A frame that fails ends its link, as if it had just come; False if so: then the rest means
        nothing.
        """
        link_channel = self.link_channel
        # One name per clause: a variable of compiled code has one type.
        try:
            if link_channel is not None:
                self.handlers[method].take(link_channel.link, method, data, 0, len(data))
            return True
        except AmqpError as fault:
            if link_channel is not None:
                link_channel.link.fail(fault)
        except Exception as bug:
            self.broker.report_bug(bug, f"link with {self.name}", FAULT_LINK)
            if link_channel is not None:
                link_channel.link.fail(
                    InternalFault("the broker made a mistake; its log has the details")
                )
        return False

    def is_ahead(self, index: i64, number: i64, data: bytes, start: i64, end: i64) -> bool:
        """Whether the sender of a frame has applied more than this broker: then the frame is kept,
        with those behind it."""
        if index <= self.applied.index:
            return False
        self.held_for = index
        self.held.insert(0, (number, data[start:end]))
        self._choose_handlers()
        return True

    def _choose_handlers(self) -> None:
        """Choose whether frames about messages are handled as they come, or kept."""
        link_channel = self.link_channel
        if link_channel is not None:
            keeps = self.held_for > 0 or self.waits
            link_channel.link.handlers = self.keepers if keeps else self.handlers

    # ---- the handlers of frames -----------------------------------------------------------------

    def _register(
        self,
        link_channel: LinkChannel,
        forward_receiver: ForwardReceiver,
        edge_connection: EdgeConnection,
    ) -> None:
        """Make the table of this link: the broker's handlers, and those of frames about
        messages."""
        table = self.frames.copy()
        table.register(PUBLISH, PublishHandler(self, forward_receiver))
        table.register(DELIVER, DeliverHandler(self.edge, link_channel))
        table.register(SETTLE, SettleHandler(edge_connection))
        table.register(CREDIT, CreditHandler(edge_connection))
        table.register(CONFIRM, ConfirmHandler(self, link_channel))
        table.register(SETTLED, SettledHandler(self.edge, link_channel))
        table.register(ROUTE, SpanHandler(self.routed))
        table.register(REFUSE, SpanHandler(self.publish_refused))
        table.register(UNROUTED, SpanHandler(self.publish_unrouted))
        table.register(FENCE, SpanHandler(self.fenced))
        table.register(HELD, SpanHandler(self.presented))
        table.register(HAS_SETTLED, SpanHandler(self.has_settled))
        self._register_tables(table, edge_connection)
        keeper = WaitingFrameHandler(self)
        keepers: list[FrameHandler] = []
        for at, handler in enumerate(table.handlers):
            keepers.append(handler if handler is self.frames.handlers[at] else keeper)
        self.handlers = table.handlers
        self.keepers = keepers

    def _register_tables(self, table: FrameTable, edge_connection: EdgeConnection) -> None:
        functions: dict[int, Callable[[dict[str, object]], None]] = {
            ATTACH_BEGIN: edge_connection.attach_begin,
            ATTACH_END: edge_connection.attach_end,
            ATTACH: edge_connection.attach,
            DETACH: edge_connection.detach,
            END_SESSION: edge_connection.end_session,
            PREFETCH: edge_connection.set_prefetch,
            SESSION_OF: edge_connection.session_of,
            CALL: edge_connection.call,
            ATTACHED_TO: self.attached_to,
            REATTACH: self.reattach,
            SESSION_GONE: self.session_gone,
            DETACHED: self.detached,
            ANSWER: self.answered,
            META_BINDINGS: self.meta_bindings_came,
            META_BINDINGS_KNOWN: self.meta_bindings_known,
        }
        for number, function in functions.items():
            table.register(number, TableHandler(self, function))

    # ---- frames that are read by offset ---------------------------------------------------------

    def routed(self, name: str, data: bytes, start: int, end: int) -> None:
        if self.forward_receiver is not None and not self.is_ahead(
            read_i64_be(data, start), ROUTE, data, start, end
        ):
            self.forward_receiver.routed(data, start + 8)

    def presented(self, name: str, data: bytes, start: int, end: int) -> None:
        if self.edge_connection is not None:
            self.edge_connection.presented(data, start)

    def has_settled(self, name: str, data: bytes, start: int, end: int) -> None:
        if self.edge_connection is not None:
            self.edge_connection.has_settled(data, start)

    def fenced(self, name: str, data: bytes, start: int, end: int) -> None:
        if self.forward_receiver is not None:
            self.forward_receiver.fenced(u16_at(data, start), read_i64_be(data, start + 2))

    def publish_refused(self, name: str, data: bytes, start: int, end: int) -> None:
        way = self.way_of(u16_at(data, start), self.link_channel)
        if way is not None:
            way.refuse(read_i64_be(data, start + 2))

    def publish_unrouted(self, name: str, data: bytes, start: int, end: int) -> None:
        way = self.way_of(u16_at(data, start), self.link_channel)
        if way is not None:
            way.unrouted(read_i64_be(data, start + 2))

    def way_of(self, group: i64, link_channel: LinkChannel | None) -> ForwardQueue | None:
        """The forward queue that a home's frame is about; None if the home isn't attached to, so
        that its frame doesn't count any more."""
        if group == 0:
            return self.way
        edge_group = None if link_channel is None else self.edge.group_of(group, link_channel)
        return None if edge_group is None else edge_group.way

    # ---- frames that are tables -----------------------------------------------------------------

    def attached_to(self, table: dict[str, object]) -> None:
        if self.link_channel is not None:
            self.edge.attached_to(self.link_channel, table)

    def reattach(self, table: dict[str, object]) -> None:
        self.edge.attach_anew(self, number_in(table, "group"), number_in(table, "epoch"))

    def session_gone(self, table: dict[str, object]) -> None:
        if self.link_channel is not None:
            self.edge.session_gone(self.link_channel, table)

    def detached(self, table: dict[str, object]) -> None:
        self.edge.detached(number_in(table, "consumer"), table.get("unused") is True)

    def answered(self, table: dict[str, object]) -> None:
        if self.link_channel is not None:
            self.edge.answered(self.link_channel, table)

    def meta_bindings_came(self, table: dict[str, object]) -> None:
        self.meta_bindings.received(self, table)

    def meta_bindings_known(self, table: dict[str, object]) -> None:
        self.meta_bindings.known(self, number_in(table, "number"))


# ---- handlers ------------------------------------------------------------------------------------


@final
class WaitingFrameHandler(FrameHandler):
    """Keeps all frames about messages while they have to wait."""

    peer_broker: PeerBroker

    def __init__(self, peer_broker: PeerBroker) -> None:
        super().__init__()
        self.peer_broker = peer_broker

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        self.peer_broker.keep(number, data, start, end)


@final
class TableHandler(FrameHandler):
    """Calls a function with the table in a frame, once this broker has caught up (R10)."""

    peer_broker: PeerBroker
    function: Callable[[dict[str, object]], None]

    def __init__(
        self, peer_broker: PeerBroker, function: Callable[[dict[str, object]], None]
    ) -> None:
        super().__init__()
        self.peer_broker = peer_broker
        self.function = function

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        table, _ = read_table(data[start:end], 0)
        index = table.get("applied", 0)
        assert isinstance(index, int)
        if not self.peer_broker.is_ahead(index, number, data, start, end):
            self.function(table)


@final
class PublishHandler(FrameHandler):
    """Takes publishes of the edge, and relays those that private queues elsewhere want."""

    peer_broker: PeerBroker
    forward_receiver: ForwardReceiver

    def __init__(self, peer_broker: PeerBroker, forward_receiver: ForwardReceiver) -> None:
        super().__init__()
        self.peer_broker = peer_broker
        self.forward_receiver = forward_receiver

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        forward_receiver = self.forward_receiver
        message = forward_receiver.published(data, start, end)
        if message is not None:
            slot = forward_receiver.slot_of(data, start)
            peer_broker = self.peer_broker
            if (
                not relay(peer_broker.meta_bindings, peer_broker, message, slot)
                and forward_receiver.untaken
            ):
                forward_receiver.return_last()


@final
class DeliverHandler(FrameHandler):
    """Hands deliveries of the home to the applications of this edge."""

    edge: Edge
    link_channel: LinkChannel

    def __init__(self, edge: Edge, link_channel: LinkChannel) -> None:
        super().__init__()
        self.edge = edge
        self.link_channel = link_channel

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        self.edge.delivered(self.link_channel, data, start, end)


@final
class SettleHandler(FrameHandler):
    """Takes what applications of the edge have settled."""

    edge_connection: EdgeConnection

    def __init__(self, edge_connection: EdgeConnection) -> None:
        super().__init__()
        self.edge_connection = edge_connection

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        self.edge_connection.settled(data, start, end)


@final
class CreditHandler(FrameHandler):
    """Takes credit for more deliveries to a consumer of the edge."""

    edge_connection: EdgeConnection

    def __init__(self, edge_connection: EdgeConnection) -> None:
        super().__init__()
        self.edge_connection = edge_connection

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        self.edge_connection.credited(data, start)


@final
class ConfirmHandler(FrameHandler):
    peer_broker: PeerBroker
    link_channel: LinkChannel

    def __init__(self, peer_broker: PeerBroker, link_channel: LinkChannel) -> None:
        super().__init__()
        self.peer_broker = peer_broker
        self.link_channel = link_channel

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        peer_broker = self.peer_broker
        way = peer_broker.way_of(u16_at(data, start), self.link_channel)
        if way is None:
            return
        confirmed: i64 = read_i64_be(data, start + 2)
        # Release 0.1.0 doesn't say whether standbys have it.
        if end <= start + COPIED_AT or data[start + COPIED_AT] != 1:
            way.thin = confirmed
        way.confirm(confirmed)
        peer_broker.confirmed = True


@final
class SettledHandler(FrameHandler):
    edge: Edge
    link_channel: LinkChannel

    def __init__(self, edge: Edge, link_channel: LinkChannel) -> None:
        super().__init__()
        self.edge = edge
        self.link_channel = link_channel

    def take(self, link: Link, number: i64, data: bytes, start: i64, end: i64) -> None:
        group: i64 = u16_at(data, start)
        if group != 0:
            edge_group = self.edge.group_of(group, self.link_channel)
            if edge_group is not None:
                edge_group.settled(read_i64_be(data, start + 2))
