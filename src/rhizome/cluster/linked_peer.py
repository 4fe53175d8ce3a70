"""Linked peer: another broker as the parts that send it something see it. Compiled."""

from __future__ import annotations

from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table
from rhizome.cluster.edge.forward_queue import PrivateForwardQueue
from rhizome.cluster.home.forward_receiver import ForwardReceiver
from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY
from rhizome.cluster.link.frame_codec import put_frame
from rhizome.cluster.peer_link_state import Applied, LinkChannel


class LinkedPeer:
    """A peer broker, linked or between two links.

    Invariant: ``link_channel`` and ``forward_receiver`` exist exactly while there is a link.
    ``way`` leads to the peer's private queues.
    """

    name: str
    role: str
    applied: Applied
    way: PrivateForwardQueue
    link_channel: LinkChannel | None
    forward_receiver: ForwardReceiver | None

    def __init__(self, name: str, applied: Applied) -> None:
        self.name = name
        self.role = PRIMARY
        self.applied = applied
        self.way = PrivateForwardQueue(name)
        self.link_channel = None
        self.forward_receiver = None

    def is_secondary(self) -> bool:
        return self.role == SECONDARY

    def send(self, method: i64, table: dict[str, object]) -> None:
        """Send a frame that is a table; without a link it is lost."""
        if self.link_channel is not None:
            table["applied"] = self.applied.index
            put_frame(self.link_channel.outbox, method, encode_table(table))
            self.link_channel.link.touch()
