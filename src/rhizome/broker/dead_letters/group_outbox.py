"""The group outbox: what a group forwards to queues of other groups: dead letters and delayed
messages.

A group is itself an edge for these messages (A1). The record that takes a message out of its queue
also puts the dead letter into the group outbox. Both are one transaction, so a copy has both or
neither. The home sends a message when that record is committed, on disk as well. The message leaves
the outbox when every queue it is for has committed it.

After a takeover the new home sends what the outbox holds, in the same order and under the same
identities. The producer of a message is the group and epoch of its record, its sequence is the
index of that record, and each queue accepts each sequence once (L5). So a dead letter is neither
lost nor doubled, whichever home dies.

A message in the outbox has this route (`tail`):

    shortstr vhost | shortstr exchange | shortstr routing key | u16 n | n * u64 queue id

The queues are those that the message was routed to when it died. Private queues are never among
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import put_shortstr, put_u16, put_u64, u16_at
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message, copy_of
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publish_path import enqueue
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.remote_targets import Recipients, bundle
from rhizome.broker.queue.internal_queues import OUTBOX_QUEUE_IDS, make_internal_queue
from rhizome.broker.queue.queue_host import InternalQueueWorker
from rhizome.journal.dedup_state import DedupIdentity

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.queue.queue import Queue

UNDER_WAY_BYTES_MAX: Final = 4 << 20
"""How many bytes of one group outbox may be in flight at a time; the rest waits on disk."""

LETTER_BYTES: Final = 256
"""The bytes that a message in flight costs beyond its content."""


@final
class OutboxRules:
    """Rules of the group outbox. Tests turn one off at a time to show what it is for; nothing else
    does."""

    kept: bool
    """A1: the sending group keeps a dead letter. Without this the dead letter is lost with its
    home."""

    committed_first: bool
    """A1: only committed messages are sent. Without this the message may also still be in its
    queue."""

    named: bool
    """A1: dead letters carry identities that queues recognise. Without this they arrive twice."""

    def __init__(self) -> None:
        self.kept = True
        self.committed_first = True
        self.named = True


@final
class GroupOutbox(InternalQueueWorker):
    """The worker that sends what is in the outbox of one group.

    Invariant: ``letters`` were sent, in order, and ``confirms`` waits for them. The first has the
    tag after ``confirms.sent``. ``under_way_bytes`` is what they cost. ``ways`` are the forward
    queues that messages were last sent on.
    """

    broker: BrokerContext
    queue: Queue
    rules: OutboxRules
    confirms: Confirms
    letters: list[Message]
    under_way_bytes: i64
    ways: dict[Forward, None]
    sent: i64

    def __init__(self, broker: BrokerContext, queue: Queue, rules: OutboxRules) -> None:
        super().__init__()
        self.broker = broker
        self.queue = queue
        self.rules = rules
        self.sent = 0
        self.let_go()

    def let_go(self) -> None:
        self.confirms = Confirms()
        self.letters = []
        self.under_way_bytes = 0
        self.ways = {}

    def held(self) -> list[Message]:
        return self.letters

    def waits(self) -> bool:
        return len(self.letters) > 0

    def wait_elsewhere(
        self, log: GroupLog, forward: Forward, indexes: list[int], numbers: list[int]
    ) -> None:
        self.confirms.wait_elsewhere(log, forward, indexes, numbers)

    # ---- letters --------------------------------------------------------------------------------

    def put(self, letter: Message, vhost: str, queue_ids: list[int]) -> None:
        """Keep a dead letter for these queues. The caller settles the original message in the same
        transaction."""
        queue = self.queue
        writer = BytesWriter()
        put_shortstr(writer, vhost)
        put_shortstr(writer, letter.route.exchange)
        put_shortstr(writer, letter.route.key)
        put_u16(writer, len(queue_ids))
        for queue_id in queue_ids:
            put_u64(writer, queue_id)
        kept = copy_of(letter)
        kept.route = queue.broker.pager.route(writer.getvalue())
        kept.identity = None
        ids: list[int] = [queue.id]
        queue.log.append(kept, ids, True)
        queue.push(kept)

    def run(self) -> None:
        queue = self.queue
        if queue.away is not None or queue.log.still or not queue.broker.may_deliver:
            return
        self._settle()
        while queue.ready > 0 and self._has_room() and self._may_send_first():
            letter = queue.next_message(-1)
            if letter is None:
                break
            queue.unacked += 1
            self.letters.append(letter)
            self.under_way_bytes += len(letter.content) + LETTER_BYTES
            self._send(letter)
        self.confirms.close_turn()
        self._settle()

    def _has_room(self) -> bool:
        if self.under_way_bytes >= UNDER_WAY_BYTES_MAX:
            return False
        return not any(way.congested for way in self.ways)

    def _may_send_first(self) -> bool:
        """Whether no takeover and no power cut can undo the record that put the first message
        here."""
        log = self.queue.log
        first = self.queue.lane.first_index()
        if not self.rules.committed_first:
            return True
        if first <= log.committed_memory and first <= log.committed_disk:
            return True
        log.waiting.append(self.queue)
        return False

    def _send(self, letter: Message) -> None:
        broker = self.broker
        tail = letter.route.tail
        key_at: i64 = 1 + tail[0]
        key_at += 1 + tail[key_at]
        exchange_at: i64 = 1 + tail[0]
        ids_at: i64 = key_at + 1 + tail[key_at]
        message = copy_of(letter)
        message.route = broker.pager.route(tail[exchange_at:ids_at])
        message.arrived_ms = broker.turn.now_ms
        if self.rules.named:
            message.identity = self._name(letter.index)
        recipients = Recipients([])
        at = ids_at + 2
        count = u16_at(tail, ids_at)
        while count > 0:
            queue = broker.shared.get(read_i64_be(tail, at))
            if queue is not None:
                recipients.add(queue)
            at += 8
            count -= 1
        bundle(recipients.targets)
        confirms = self.confirms
        confirms.published += 1
        self.sent += 1
        for target in recipients.targets:
            number = target.forward.send(message, target, None, 0)
            confirms.wait_for(target.forward, number)
            self.ways[target.forward] = None
        enqueue(broker, message, recipients.queues, confirms)

    def _name(self, index: i64) -> DedupIdentity:
        """The identity by which queues recognise the message of this index."""
        log = self.queue.log
        writer = BytesWriter()
        writer.append(0)
        put_u16(writer, log.group)
        put_u64(writer, log.epoch_of(index))
        return DedupIdentity(writer.getvalue(), index, b"")

    def _settle(self) -> None:
        """Settle the messages that are safe in the queues they were sent to."""
        confirms = self.confirms
        safe = confirms.ready()
        if safe == 0:
            return
        done = safe - confirms.sent
        confirms.sent = safe
        for letter in self.letters[:done]:
            self.under_way_bytes -= len(letter.content) + LETTER_BYTES
            self.queue.ack(letter)
        del self.letters[:done]
        if len(self.letters) == 0:
            self.ways = {}


def open_outbox(broker: BrokerContext, group: i64, rules: OutboxRules) -> None:
    """Give a group its outbox, wherever its home is."""
    queue_id = OUTBOX_QUEUE_IDS | group
    if queue_id not in broker.internal:
        queue = make_internal_queue(broker, queue_id, f"amq.post.{group}", group)
        queue.worker = GroupOutbox(broker, queue, rules)


def outbox_of(broker: BrokerContext, queue: Queue) -> GroupOutbox | None:
    """The outbox of a queue's group; None if the queue has no group."""
    found = broker.internal.get(OUTBOX_QUEUE_IDS | queue.log.group)
    if found is None:
        return None
    worker = found.worker
    return worker if isinstance(worker, GroupOutbox) and worker.rules.kept else None


def take_for_outbox(queue: Queue, recipients: Recipients) -> list[int]:
    """Remove from ``recipients`` the shared queues of other groups, and return their ids. What
    leaves ``queue`` reaches those through the group outbox."""
    ids: list[int] = []
    queues: list[Queue] = []
    for each in recipients.queues:
        if each.log is queue.log or each.definition.is_private():
            queues.append(each)
        else:
            ids.append(each.id)
    targets = []
    for target in recipients.targets:
        if target.forward.group == 0:
            targets.append(target)
        else:
            ids.extend(target.queue_ids)
    if len(ids) > 0:
        recipients.queues = queues
        recipients.targets = targets
        for target in targets:
            target.bundle = None
        bundle(targets)
    return ids
