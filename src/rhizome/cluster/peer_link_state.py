"""Link channel: what the parts that speak to one peer broker share while there is a link with
it."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.message import Message
from rhizome.broker.publishing.forward_port import Bundle, Target
from rhizome.cluster.link.broker_hello import PRODUCERS_BY_USER
from rhizome.cluster.link.link import Link
from rhizome.cluster.protocol.edge_home_codec import put_route

SLOTS: Final = 16384


@final
class Applied:
    """How far this broker has applied the cluster's log, and the groups that it is home of since;
    ``tenures`` has their epochs."""

    index: i64
    tenures: dict[int, int]

    def __init__(self) -> None:
        self.index = 0
        self.tenures = {}


@final
class LinkChannel:
    """One link to a peer. ``carrier`` holds the channels of the peer's applications; its outbox is
    the link's, so what these channels want written leaves with everything else.

    Invariant: ``slots[n]`` is the target or the bundle that slot ``n`` of the link stands for;
    ``copies`` counts the messages that were published over it. ``by_user``: the peer knows that
    producers belong to users (`journal/dedup_state.py`).
    """

    link: Link
    outbox: Outbox
    carrier: Connection
    applied: Applied
    slots: list[object]
    next_slot: i64
    copies: i64
    by_user: bool

    def __init__(self, link: Link, carrier: Connection, applied: Applied) -> None:
        self.link = link
        self.outbox = link.outbox
        self.carrier = carrier
        self.applied = applied
        self.slots = [None] * SLOTS
        self.next_slot = 0
        self.copies = 0
        self.by_user = PRODUCERS_BY_USER in link.peer.features
        carrier.outbox = link.outbox

    def define(self, target: Target, message: Message) -> None:
        """Tell the other end what a slot stands for from now on."""
        target.slot = self._claim(target)
        put_route(self.outbox, target.slot, [target], message.route.tail, self.applied.index)

    def define_bundle(self, bundle: Bundle, message: Message) -> None:
        bundle.slot = self._claim(bundle)
        tail = message.route.tail
        put_route(self.outbox, bundle.slot, bundle.targets, tail, self.applied.index)

    def _claim(self, owner: object) -> i64:
        slot = self.next_slot
        self.slots[slot] = owner
        self.next_slot = (slot + 1) % SLOTS
        return slot
