"""Delayed messages: held for an x-delayed-message exchange until they are due.

Each vhost has a queue for held messages, ``amq.delayed``. So persistent ones are in the journal
like those of any durable queue, operators see how many there are, and a restart recovers them.
Within that queue they are ready, but nobody consumes it; `HeldMessages` knows when each is due, and
which one has an id by which it can be taken back. In a cluster the queue is a shared one: its
home holds the messages, whichever broker received them.

Messages that wait for their retry are held here too. They stay in their own queues, and in memory.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.dead_letters.dead_letter_headers import stored_cc_keys, strip_bcc
from rhizome.broker.dead_letters.group_outbox import outbox_of, take_for_outbox
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.message import Message, largest_frame
from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.broker.publishing.message_options import identity_of, routing_headers
from rhizome.broker.publishing.publish_path import enqueue, need_for, recipients_of, send_on
from rhizome.broker.publishing.schedule_headers import (
    ScheduleName,
    delay_in,
    hash_of,
    schedule_name,
    unsigned,
)
from rhizome.broker.publishing.schedule_ids import ScheduleIds
from rhizome.broker.queue.due_heap import NEVER_DUE_MS, DueHeap
from rhizome.broker.queue.message_deduplication import accept, is_duplicate, wait_for_original
from rhizome.broker.queue.queue import DELAYED_QUEUE, Queue, claim
from rhizome.broker.turn import DISCARD_WORK, STEPS_PER_WORK, Chore, Turn, decoding_work
from rhizome.errors import PreconditionFailed
from rhizome.journal.errors import CorruptRecord

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.publishing.publisher_confirms import Confirms

__all__ = ["DELAYED_QUEUE", "Delayed"]

DUE_FIRST: Final = 2
"""The first batch of due messages; each further one is twice as large, until none are due or the
turn is full. The next tick continues."""
SCAN_MESSAGES: Final = 128
SCAN_BYTES: Final = 1 << 20
"""How much a scan reads before it looks whether the turn is full."""
SCAN_WORK: Final = 4
"""The work of scanning one message."""
READ_BYTES: Final = 4096
"""How much is read for one held message at first; what is longer takes a second read."""
SWEPT_MIN: Final = 10_000
SWEPT_PER_WORK: Final = 2
SWEPT_AT_ONCE: Final = 1_000
"""Entries of messages that are gone are dropped when they are more than the others, and this
many."""


@final
class HeldMessages:
    """What one queue of held messages has, by due time and by schedule id.

    The messages themselves are ready messages of the queue, on disk only: 8 bytes of index for each
    in its lane, 16 here, and about 12 for those with an id. Nothing here is recorded: after a
    restart or a takeover `scan` reads all messages once, in the order in which they came, and does
    what they ask for. So a message that takes back another one has its effect even if its home dies
    right after it was recorded. Until the scan has come to the end new messages are left to it, and
    those with ids are not released: what takes them back may be still ahead.

    Invariant: every message of the queue below ``scanned`` is in ``due`` or ``old``, and under
    its id in ``ids``. ``gone`` counts entries of messages that were taken back. While they are
    being dropped ``old`` is what is left to look through."""

    queue: Queue
    due: DueHeap
    old: DueHeap
    ids: ScheduleIds | None
    gone: i64
    scanning: bool
    scanned: i64
    named: list[tuple[int, int]]
    """(due, index) of messages with ids that are due and wait for the end of the scan."""
    chore: bool

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.due = DueHeap()
        self.old = DueHeap()
        self.ids = None
        self.gone = 0
        self.scanning = queue.lane.paged_count > 0
        self.scanned = 0
        self.named = []
        self.chore = False

    def count(self) -> i64:
        return self.queue.lane.paged_count

    def next_ms(self) -> i64:
        """When the next message is due."""
        first = self.due.first_ms()
        other = self.old.first_ms()
        return first if first <= other else other

    # ---- taking messages in -----------------------------------------------------------------

    def take(self, message: Message) -> None:
        """A message was recorded and stands in the queue: do what it asks for."""
        if not self.scanning:
            self.take_again(message)

    def take_again(self, message: Message) -> None:
        self._take(message, schedule_name(message.route.exchange, message.content))

    def _take(self, message: Message, name: ScheduleName | None) -> None:
        due_ms = message.arrived_ms + delay_in(message.content)
        if name is None:
            self.due.push(due_ms, message.index)
            return
        key = hash_of(name.key)
        older = self.find(name.key)
        if older is not None and older.index != message.index:
            if self.ids is not None:
                self.ids.remove(key, older.index)
            self.drop(older)
        if name.cancels:
            self.remove(message)
            return
        if self.ids is None:
            self.ids = ScheduleIds()
        self.ids.add(key, message.index)
        self.due.push(due_ms, message.index)

    def find(self, key: bytes) -> Message | None:
        """The message of this key."""
        ids = self.ids
        if ids is None:
            return None
        number = hash_of(key)
        for index in ids.find(number, self.queue.log.next_index):
            message = self.read(index)
            if message is None:
                if self.queue.lane.paged.find(index) == 0:
                    ids.remove(number, index)
                continue
            name = schedule_name(message.route.exchange, message.content)
            if name is not None and not name.cancels and name.key == key:
                return message
        return None

    def read(self, index: i64) -> Message | None:
        """A message of the queue, left where it is; None if it is gone, or can't be read."""
        position = self.queue.lane.paged.find(index)
        if position == 0:
            return None
        try:
            return self.queue.broker.pager.read_one(position, READ_BYTES)
        except (CorruptRecord, OSError):
            return None

    # ---- taking messages out ----------------------------------------------------------------

    def drop(self, message: Message) -> None:
        """A message that is not due yet is taken back: it goes nowhere."""
        self.gone += 1
        self.remove(message)
        if self.gone > SWEPT_MIN and self.gone > self.count() and len(self.old) == 0:
            self.old = self.due
            self.due = DueHeap()

    def remove(self, message: Message) -> None:
        """A message leaves the queue for good."""
        queue = self.queue
        message.position = queue.lane.paged.remove(message.index)
        assert message.position != 0, "only what stands in the queue can leave it"
        queue.lane.paged_count -= 1
        queue.broker.pager.charge(queue, message)
        queue.discount(message)
        queue.forget(message)

    def forget_id(self, message: Message) -> None:
        """A message is released: its id may be used again."""
        if self.ids is None:
            return
        name = schedule_name(message.route.exchange, message.content)
        if name is not None:
            self.ids.remove(hash_of(name.key), message.index)

    def pop_due(self, now_ms: i64) -> i64:
        """The index of a message that is due and may be released; -1 if there is none."""
        while self.next_ms() <= now_ms:
            heap = self.due if self.due.first_ms() <= self.old.first_ms() else self.old
            due_ms = heap.first_ms()
            index = heap.pop()
            if self.queue.lane.paged.find(index) == 0:
                if self.gone > 0:
                    self.gone -= 1
                continue
            if self.scanning and self._is_named(index):
                self.named.append((due_ms, index))
                continue
            return index
        return -1

    def _is_named(self, index: i64) -> bool:
        message = self.read(index)
        if message is None:
            return False
        return schedule_name(message.route.exchange, message.content) is not None

    # ---- what takes several turns -----------------------------------------------------------

    def is_busy(self) -> bool:
        return self.scanning or len(self.old) > 0

    def go_on(self, turn: Turn) -> None:
        """Scan and sweep until that is done or the turn is full."""
        while self.scanning and not turn.is_full():
            self._scan(turn)
        while len(self.old) > 0 and not turn.is_full():
            self._sweep()
            turn.work += SWEPT_AT_ONCE // SWEPT_PER_WORK

    def _scan(self, turn: Turn) -> None:
        queue = self.queue
        entries = queue.lane.paged.peek_from(self.scanned, SCAN_MESSAGES)
        # The chunk where the search begins may have entries below it.
        entries = [entry for entry in entries if entry[0] >= self.scanned]
        if len(entries) == 0:
            self._scanned_all()
            return
        found = queue.broker.pager.read_several(entries, SCAN_BYTES)
        for at, message in enumerate(found):
            turn.work += SCAN_WORK
            self.scanned = entries[at][0] + 1
            if message is None:
                # It can't be read: it is due now, and is set aside then.
                self.due.push(0, entries[at][0])
            elif queue.lane.paged.find(message.index) != 0:
                self._take(message, schedule_name(message.route.exchange, message.content))

    def _scanned_all(self) -> None:
        self.scanning = False
        for due_ms, index in self.named:
            self.due.push(due_ms, index)
        self.named = []

    def _sweep(self) -> None:
        done: i64 = 0
        while done < SWEPT_AT_ONCE and len(self.old) > 0:
            done += 1
            if self.queue.lane.paged.find(self.old.last_index()) != 0:
                self.old.move_last(self.due)
            else:
                self.old.drop_last()
                if self.gone > 0:
                    self.gone -= 1


class Delayed:
    """Invariant: ``retries`` is a heap of (due, serial, queue, message), one for each message that
    waits for its retry. ``next_ms`` is at most when the next message of any kind is due.

    Retries that are due at once come in the order of their serials; indexes wouldn't do, because
    queues of different groups have equal ones.
    """

    broker: Broker
    retries: list[tuple[int, int, Queue, Message]]
    serial: int
    queues: dict[Queue, HeldMessages]
    next_ms: i64

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.retries = []
        self.serial = 0
        self.queues = {}
        self.next_ms = NEVER_DUE_MS

    def schedule(self, due_ms: i64) -> None:
        """Something is due then, or later."""
        if due_ms < self.next_ms:
            self.next_ms = due_ms

    # ---- messages of delayed exchanges ----------------------------------------------------------

    def queue(self, vhost: str) -> Queue | None:
        """The queue of held messages; None if the cluster has yet to make it."""
        queues = self.broker.state.vhosts[vhost].destinations
        if DELAYED_QUEUE not in queues:
            self.broker.cluster.propose(DeclareQueue(vhost, DELAYED_QUEUE, durable=True), None)
        queue = queues.get(DELAYED_QUEUE)
        return queue if isinstance(queue, Queue) else None

    def hold(self, queue: Queue, message: Message, confirms: Confirms | None) -> None:
        """Hold a message, or do what it asks for with one that is held; from here on that is as
        safe as in any queue.

        A publisher's sequence counts here, and no longer when the message is routed on: by then
        later messages may have overtaken it.
        """
        identity = message.identity
        if identity is not None and is_duplicate(queue, identity, message.arrived_ms):
            if confirms is not None:
                wait_for_original(queue, confirms)
            return
        held = self.held_by(queue)
        queue.log.append(message, [queue.id], queue.durable)
        accept(queue, message)
        if confirms is not None:
            need_for(confirms, queue.log, message)
        queue.keep_for_later(message)
        held.take(message)
        self.schedule(held.next_ms())

    def held_by(self, queue: Queue) -> HeldMessages:
        held = self.queues.get(queue)
        if held is None:
            held = HeldMessages(queue)
            self.queues[queue] = held
        return held

    def put_back(self, queue: Queue, message: Message) -> None:
        """A message that an administrator had taken, or that could not be read, is back."""
        held = self.held_by(queue)
        self.broker.pager.uncharge(queue, message)
        self.broker.pager.page(queue, queue.lane, message)
        if held.scanning and message.index >= held.scanned:
            return
        held.take_again(message)
        self.schedule(held.next_ms())

    def forget_all(self, queue: Queue) -> None:
        """A queue of held messages is empty, deleted, or active elsewhere."""
        self.queues.pop(queue, None)

    def recover(self) -> None:
        """Take over what a restart or a takeover found in the queues of held messages. They are
        looked through from the next tick on."""
        for vhost in self.broker.state.vhosts.values():
            queue = vhost.destinations.get(DELAYED_QUEUE)
            if isinstance(queue, Queue) and queue.away is None:
                self.held_by(queue)

    # ---- retries --------------------------------------------------------------------------------

    def hold_back(self, queue: Queue, message: Message, due_ms: int) -> None:
        """Hold a message that was given back to its queue until its retry is due."""
        self.serial += 1
        heapq.heappush(self.retries, (due_ms, self.serial, queue, message))
        self.schedule(due_ms)

    def return_all(self, queue: Queue) -> None:
        """Give a queue back all that waits for its retry."""
        waiting = [message for _, _, holder, message in self.retries if holder is queue]
        self.retries = [entry for entry in self.retries if entry[2] is not queue]
        heapq.heapify(self.retries)
        for message in waiting:
            queue.retry(message)

    def let_go(self, queue: Queue) -> None:
        """A queue is no longer active here: its new home holds its messages."""
        queue.forget_held()
        self.retries = [entry for entry in self.retries if entry[2] is not queue]
        heapq.heapify(self.retries)
        self.forget_all(queue)

    def collect(self, queue: Queue, found: list[Message]) -> None:
        """Append the messages of ``queue`` that wait for their retry."""
        found.extend(message for _, _, holder, message in self.retries if holder is queue)

    def holdings(self) -> list[tuple[Queue, Message]]:
        """Every message that waits for its retry, with its queue."""
        return [(queue, message) for _, _, queue, message in self.retries]

    # ---- what is due ----------------------------------------------------------------------------

    def release_due(self, now_ms: int) -> None:
        """Route due messages, unless this broker may not deliver (R9) or the log must not change
        (A2)."""
        if not self.broker.may_deliver:
            return
        self._retry_due(now_ms)
        for held in list(self.queues.values()):
            if held.queue.log.still:
                continue
            if held.is_busy() and not held.chore:
                held.chore = True
                held.go_on(self.broker.turn)
                self.broker.turn.chores.append(HeldMessagesChore(held))
            count = DUE_FIRST
            while held.next_ms() <= now_ms and not self.broker.turn.is_full():
                self._release_some(held, now_ms, count)
                count *= 2
        self._look_ahead()

    def _look_ahead(self) -> None:
        self.next_ms = self.retries[0][0] if self.retries else NEVER_DUE_MS
        for held in self.queues.values():
            self.schedule(held.next_ms())

    def _retry_due(self, now_ms: int) -> None:
        still: list[tuple[int, int, Queue, Message]] = []
        while self.retries and self.retries[0][0] <= now_ms and not self.broker.turn.is_full():
            entry = heapq.heappop(self.retries)
            if entry[2].log.still and not entry[2].deleted:
                still.append(entry)
            else:
                entry[2].retry(entry[3])
                self.broker.turn.work += DISCARD_WORK
        for entry in still:
            heapq.heappush(self.retries, entry)

    def _release_some(self, held: HeldMessages, now_ms: int, count: int) -> None:
        """Route up to ``count`` due messages."""
        queue = held.queue
        due: list[Message] = []
        while len(due) < count:
            index = held.pop_due(now_ms)
            if index < 0:
                break
            message = claim(queue, index)
            if message is None:
                continue
            if len(message.content) == 0:
                queue.unacked -= 1
                self.broker.damage.put_back(queue, message, "it is due, and can't be sent on")
                continue
            held.forget_id(message)
            due.append(message)
        # The release of a message and its routing are one record, as with dead letters.
        if len(self.broker.internal) == 0:
            self._release_all(queue, due)
        elif len(due) > 0:
            begin_all(self.broker, 0)
            self._release_all(queue, due)
            self.broker.write_settled()
            for message in due:
                queue.log.buried(queue.id, message.index, False)
            commit_all(self.broker)

    def _release_all(self, queue: Queue, due: list[Message]) -> None:
        """Release due messages. If this broker is replaced before that is committed, the next home
        does the same by itself, so nothing of it is presented there."""
        for log in self.broker.logs.values():
            log.derived = True
        for message in due:
            self._release(queue, message)
            queue.ack(message)
        for log in self.broker.logs.values():
            log.derived = False

    def _release(self, queue: Queue, held: Message) -> None:
        router = self.broker.state.vhosts[queue.vhost].router
        exchange = router.exchanges.get(held.route.exchange)
        if exchange is None:
            return
        self.broker.turn.work += decoding_work(held.content)
        properties = decode_properties(header_payload_of(held.content))
        headers = routing_headers(properties)
        keys = [held.route.key, *stored_cc_keys(held.content)]
        try:
            recipients = recipients_of(router, self.broker.cluster, exchange, keys, headers)
        except PreconditionFailed as refused:
            self.broker.observer.letter_dropped(queue.vhost, queue.name, refused)
            return
        finally:
            self.broker.turn.work += router.take_steps() // STEPS_PER_WORK
        content = unsigned(strip_bcc(held.content))
        message = Message(held.route, content, held.channel, largest_frame(content))
        message.arrived_ms = self.broker.turn.now_ms
        message.expiration_ms = held.expiration_ms
        message.priority = held.priority
        message.persistent = properties.delivery_mode == 2
        message.identity = identity_of(content, False)
        outbox = outbox_of(self.broker, queue)
        if outbox is not None:
            ids = take_for_outbox(queue, recipients)
            if len(ids) > 0:
                outbox.put(message, queue.vhost, ids)
        send_on(message, recipients.targets, None)
        enqueue(self.broker, message, recipients.queues, None)


@final
class HeldMessagesChore(Chore):
    """Goes on with a scan or a sweep, turn by turn."""

    held: HeldMessages

    def __init__(self, held: HeldMessages) -> None:
        super().__init__()
        self.held = held

    def run(self) -> bool:
        held = self.held
        broker = held.queue.broker
        if held.queue.log.still or not broker.may_deliver or not held.is_busy():
            # The next tick looks again.
            held.chore = False
            return True
        held.go_on(broker.turn)
        if held.is_busy():
            return False
        held.chore = False
        broker.look_at_scheduled(held.next_ms())
        return True
