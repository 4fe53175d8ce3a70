"""Migration of the messages of unreplicated queues from the old home to the new one (G9).

A queue with replicate `configuration` is taken over empty. The old home has its messages on disk,
or in memory if it lives. When the old home learns that another broker is home, it sets the messages
aside, takes them out of its copy of the group, and publishes them to the queue, as an edge (A1). It
does so in order, each under a number of its own, so that a broker that is killed meanwhile begins
anew and the queue takes each message once. If it becomes home again before it is done, the rest
goes into its own queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.message import Message, content_channel, largest_frame
from rhizome.broker.publishing.publish_path import enqueue
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.remote_targets import Recipients, bundle
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.cluster.takeover.forced_home_salvage import Salvager
from rhizome.journal.dedup_state import DedupIdentity
from rhizome.journal.records import FLAG_DURABLE, StoredMessage, drop_queue_record
from rhizome.journal.salvaged_messages import SalvageManifest

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.state.cluster_state import ClusterState

BARE: Final = "configuration"
UNDER_WAY_MAX: Final = 500
"""How many messages are published and unconfirmed at a time, and at most how many a tick
publishes."""
PERSISTENT: Final = 2


class ReturnInProgress:
    """Messages that were set aside, on their way to the home of an epoch."""

    def __init__(
        self, about: SalvageManifest, epoch: int, messages: Iterator[StoredMessage]
    ) -> None:
        self.about = about
        self.epoch = epoch
        self.messages = messages
        self.confirms = Confirms()
        self.sent = 0
        self.is_over = False


class ReturnNode(Protocol):
    """What the return of messages needs of the node."""

    broker: Broker
    me: Hello
    state: ClusterState
    ready: bool


class UnreplicatedMessageReturn:
    """Brings the messages of unreplicated queues from this broker to their new home.

    Invariant: a message is in the copy of its group, in the store ``kept``, or confirmed by a home
    of its queue.
    """

    def __init__(self, node: ReturnNode, salvager: Salvager) -> None:
        self._node = node
        self._salvager = salvager
        self._kept = salvager.salvage
        self._waiting: list[SalvageManifest] = self._kept.entries()
        self._passage: ReturnInProgress | None = None
        self._bare: dict[int, list[int]] = {}

    def waiting(self) -> int:
        """Messages that are set aside."""
        return sum(each.messages for each in self._waiting)

    def lost_home(self, group: int, bare: dict[int, None]) -> None:
        """This broker was home, and these queues were bare. Their messages can't be read before
        they are written, so they are set aside at the next tick."""
        self._bare[group] = list(bare)

    def has_bare(self, copy: GroupCopy) -> bool:
        """Whether a copy has something that must be set aside before it follows any home."""
        return len(self._bare_queues(copy)) > 0

    def _bare_queues(self, copy: GroupCopy) -> list[int]:
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

    def take(self, copy: GroupCopy, group: Group) -> None:
        """Set aside what a copy has of bare queues; while the disk is full it stays in the copy."""
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
        """Publish some of the messages, and forget a store once all of it has arrived."""
        if not self._waiting or not self._node.ready or not self._node.broker.may_deliver:
            return
        about = self._waiting[0]
        group = self._node.state.groups.groups.get(about.group)
        if group is None:
            self._done(about)
            return
        passage = self._passage
        if passage is None or passage.about is not about or passage.epoch != group.epoch:
            # The home before may have had messages that the next one lacks; the queue knows which
            # it has.
            passage = ReturnInProgress(about, group.epoch, self._kept.messages(about.name))
            self._passage = passage
        self._send(passage)
        confirms = passage.confirms
        confirms.close_turn()
        confirms.sent = max(confirms.sent, confirms.ready())
        if passage.is_over and confirms.sent == confirms.published:
            self._done(about)

    def _done(self, about: SalvageManifest) -> None:
        self._kept.remove(about.name)
        self._waiting.remove(about)
        self._passage = None

    def _send(self, passage: ReturnInProgress) -> None:
        confirms = passage.confirms
        while not passage.is_over and confirms.published - confirms.sent < UNDER_WAY_MAX:
            stored = next(passage.messages, None)
            if stored is None:
                passage.is_over = True
                return
            passage.sent += 1
            self._publish(passage, stored)

    def _publish(self, passage: ReturnInProgress, stored: StoredMessage) -> None:
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
        recipients = Recipients([])
        for queue_id in stored.queue_ids:
            queue = broker.shared.get(queue_id)
            if queue is not None:
                recipients.add(queue)
        bundle(recipients.targets)
        confirms = passage.confirms
        confirms.published += 1
        for target in recipients.targets:
            number = target.forward.send(message, target, None, 0)
            confirms.wait_for(target.forward, number)
        enqueue(broker, message, recipients.queues, confirms)

    def _identity(self, passage: ReturnInProgress) -> DedupIdentity:
        """The identity by which queues recognise the message; no other identity begins like
        this."""
        about = passage.about
        name = f"{self._node.me.uuid}/{about.name}/{about.saved_ms}"
        return DedupIdentity(b"\0kept" + name.encode(), passage.sent, b"")
