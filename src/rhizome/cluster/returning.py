"""Returning: what a broker kept of queues whose messages are not replicated (G9).

A queue with replicate `configuration` is taken over empty. What the old home has of it is on its
disk, or in its memory if it lives. When it learns that another broker is home, it sets that aside,
takes it out of its copy of the group, and publishes it to the queue, as an edge (A1): in order,
each under a number of its own, so that a broker that is killed meanwhile begins anew and the queue
takes each once. If it becomes home again before it is done, the rest goes into its own queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.confirms import Confirms
from rhizome.broker.message import Message, content_channel, largest_frame
from rhizome.broker.publishing import enqueue
from rhizome.broker.targets import Reach, bundle
from rhizome.cluster.copies.copy import Copy
from rhizome.cluster.placement import Group
from rhizome.cluster.salvaging import Salvager
from rhizome.journal.records import FLAG_DURABLE, StoredMessage, drop_queue_record
from rhizome.journal.salvage import About
from rhizome.journal.seen import Identity

if TYPE_CHECKING:
    from rhizome.cluster.node import Node

BARE: Final = "configuration"
UNDER_WAY_MAX: Final = 500
"""So many messages are published and not confirmed at a time; at most this many a tick."""
PERSISTENT: Final = 2


class Passage:
    """What was set aside, on its way to the home of an epoch."""

    def __init__(self, about: About, epoch: int, messages: Iterator[StoredMessage]) -> None:
        self.about = about
        self.epoch = epoch
        self.messages = messages
        self.confirms = Confirms()
        self.sent = 0
        self.is_over = False


class Returning:
    """Invariant: a message is in the copy of its group, in the store ``kept``, or confirmed by a
    home of its queue."""

    def __init__(self, node: Node, salvager: Salvager) -> None:
        self._node = node
        self._salvager = salvager
        self._kept = salvager.salvage
        self._waiting: list[About] = self._kept.entries()
        self._passage: Passage | None = None
        self._bare: dict[int, list[int]] = {}

    def waiting(self) -> int:
        """Messages that are set aside."""
        return sum(each.messages for each in self._waiting)

    def lost_home(self, group: int, bare: dict[int, None]) -> None:
        """This broker was home, and these queues were bare. What they have can't be read before
        it is written, so it is set aside at the next tick."""
        self._bare[group] = list(bare)

    def has_bare(self, copy: Copy) -> bool:
        """Whether a copy has something that must be set aside before it follows anybody."""
        return len(self._bare_queues(copy)) > 0

    def _bare_queues(self, copy: Copy) -> list[int]:
        shared = self._node.broker.shared
        known = self._bare.get(int(copy.group), ())
        return [
            queue_id
            for queue_id, queue in copy.queues.items()
            if queue.count() > 0
            and (
                queue_id in known
                or (queue_id in shared and shared[queue_id].options.replicate == BARE)
            )
        ]

    def take(self, copy: Copy, group: Group) -> None:
        """Set aside what a copy has of bare queues; while the disk is full it stays there."""
        found = self._bare_queues(copy)
        if not found:
            return
        epoch = int(copy.epoch)
        saved = any((each.group, each.epoch) == (group.id, epoch) for each in self._waiting)
        if not saved:
            try:
                about = self._salvager.save(copy, 0, group.home, group.epoch, found)
            except OSError:
                return
            self._waiting.append(about)
        for queue_id in found:
            copy.record(drop_queue_record(copy.group, copy.epoch, 0, queue_id, FLAG_DURABLE))
        self._bare.pop(group.id, None)

    # ---- on the way -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Publish a part, and forget what has arrived as a whole."""
        if not self._waiting or not self._node.ready or not self._node.broker.may_deliver:
            return
        about = self._waiting[0]
        group = self._node.state.groups.groups.get(about.group)
        if group is None:
            self._done(about)
            return
        passage = self._passage
        if passage is None or passage.about is not about or passage.epoch != group.epoch:
            # What the home before had and not the next: the queue knows what it has already.
            passage = Passage(about, group.epoch, self._kept.messages(about.name))
            self._passage = passage
        self._send(passage)
        confirms = passage.confirms
        confirms.close_turn()
        confirms.sent = max(confirms.sent, confirms.ready())
        if passage.is_over and confirms.sent == confirms.published:
            self._done(about)

    def _done(self, about: About) -> None:
        self._kept.remove(about.name)
        self._waiting.remove(about)
        self._passage = None

    def _send(self, passage: Passage) -> None:
        confirms = passage.confirms
        while not passage.is_over and confirms.published - confirms.sent < UNDER_WAY_MAX:
            stored = next(passage.messages, None)
            if stored is None:
                passage.is_over = True
                return
            passage.sent += 1
            self._publish(passage, stored)

    def _publish(self, passage: Passage, stored: StoredMessage) -> None:
        broker = self._node.broker
        message = Message(
            broker.pager.route(stored.tail),
            stored.content,
            content_channel(stored.content),
            largest_frame(stored.content),
        )
        properties = decode_properties(header_payload_of(stored.content))
        message.arrived_ms = broker.turn.now_ms
        message.expiration_ms = stored.expiration_ms
        message.priority = stored.priority
        message.persistent = properties.delivery_mode == PERSISTENT
        message.identity = self._identity(passage)
        reach = Reach([])
        for queue_id in stored.queue_ids:
            queue = broker.shared.get(queue_id)
            if queue is not None:
                reach.add(queue)
        bundle(reach.targets)
        confirms = passage.confirms
        confirms.published += 1
        for target in reach.targets:
            number = target.forward.send(message, target, None, 0)
            confirms.wait_for(target.forward, number)
        enqueue(broker, message, reach.queues, confirms)

    def _identity(self, passage: Passage) -> Identity:
        """By what queues know it again; nobody else has a name that begins like this."""
        about = passage.about
        name = f"{self._node.me.uuid}/{about.name}/{about.saved_ms}"
        return Identity(b"\0kept" + name.encode(), passage.sent, b"")
