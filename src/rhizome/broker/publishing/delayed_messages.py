"""Delayed messages: held for an x-delayed-message exchange until they are due.

Each vhost has a queue for held messages, ``amq.delayed``. So persistent ones are in the journal
like those of any durable queue, operators see how many there are, and a restart recovers them.
Messages that wait for their retry are held here too, and stay in their own queues.
Within that queue a held message counts as unacked; it is settled when it is routed on. In a cluster
the queue is a shared one: its home holds the messages, whichever broker received them.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.dead_letters.dead_letter_headers import stored_cc_keys, strip_bcc
from rhizome.broker.dead_letters.group_outbox import outbox_of, take_for_outbox
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.message import Message, largest_frame
from rhizome.broker.metadata.metadata_commands import DeclareQueue
from rhizome.broker.publishing.message_options import identity_of, routing_headers
from rhizome.broker.publishing.publish_path import enqueue, need_for, recipients_of, send_on
from rhizome.broker.queue.message_deduplication import accept, is_duplicate, wait_for_original
from rhizome.broker.queue.queue import Queue
from rhizome.broker.turn import DISCARD_WORK, STEPS_PER_WORK, decoding_work
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.publishing.publisher_confirms import Confirms

DELAYED_QUEUE: Final = "amq.delayed"
DELAY_MS_MAX: Final = 0xFFFFFFFF
DUE_FIRST: Final = 2
"""The first batch of due messages; each further one is twice as large, until none are due or the
turn is full. The next tick continues."""


class Delayed:
    """Invariant: ``held`` is a heap of (due, serial, queue, message), one for each held message.

    Messages that are due at once come in the order of their serials; indexes wouldn't do, because
    queues of different groups have equal ones.
    """

    broker: Broker
    held: list[tuple[int, int, Queue, Message]]
    serial: int

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.held = []
        self.serial = 0

    def _push(self, due_ms: int, queue: Queue, message: Message) -> None:
        self.serial += 1
        heapq.heappush(self.held, (due_ms, self.serial, queue, message))

    def queue(self, vhost: str) -> Queue | None:
        """The queue of held messages; None if the cluster has yet to make it."""
        queues = self.broker.state.vhosts[vhost].destinations
        if DELAYED_QUEUE not in queues:
            self.broker.cluster.propose(DeclareQueue(vhost, DELAYED_QUEUE, durable=True), None)
        queue = queues.get(DELAYED_QUEUE)
        return queue if isinstance(queue, Queue) else None

    def hold(
        self, queue: Queue, message: Message, delay_ms: int, confirms: Confirms | None
    ) -> None:
        """Hold a message; from here on it is as safe as in any queue.

        A publisher's sequence counts here, and no longer when the message is routed on: by then
        later messages may have overtaken it.
        """
        identity = message.identity
        if identity is not None and is_duplicate(queue, identity, message.arrived_ms):
            if confirms is not None:
                wait_for_original(queue, confirms)
            return
        queue.log.append(message, [queue.id], queue.durable)
        accept(queue, message)
        if confirms is not None:
            need_for(confirms, queue.log, message)
        self.broker.pager.charge(queue, message)
        queue.published += 1
        queue.unacked += 1
        due_ms = message.arrived_ms + min(delay_ms, DELAY_MS_MAX)
        self._push(int(due_ms), queue, message)

    def hold_back(self, queue: Queue, message: Message, due_ms: int) -> None:
        """Hold a message that was given back to its queue until its retry is due."""
        self._push(due_ms, queue, message)

    def return_all(self, queue: Queue) -> None:
        """Give a queue back all that waits for its retry."""
        waiting = [message for _, _, holder, message in self.held if holder is queue]
        self.held = [entry for entry in self.held if entry[2] is not queue]
        heapq.heapify(self.held)
        for message in waiting:
            queue.retry(message)

    def recover(self) -> None:
        """Take over what a restart found in the queues of held messages."""
        for vhost in self.broker.state.vhosts.values():
            queue = vhost.destinations.get(DELAYED_QUEUE)
            if not isinstance(queue, Queue) or queue.away is not None:
                continue
            while True:
                message = queue.next_message(-1)
                if message is None:
                    break
                queue.unacked += 1
                due_ms = message.arrived_ms + delay_of(message)
                self._push(int(due_ms), queue, message)

    def let_go(self, queue: Queue) -> None:
        """A queue is no longer active here: its new home holds its messages."""
        queue.forget_held()
        self.held = [entry for entry in self.held if entry[2] is not queue]
        heapq.heapify(self.held)

    def collect(self, queue: Queue, found: list[Message]) -> None:
        """Append the messages that ``queue`` holds for later."""
        found.extend(message for _, _, holder, message in self.held if holder is queue)

    def holdings(self) -> list[tuple[Queue, Message]]:
        """Every held message with the queue that holds it."""
        return [(queue, message) for _, _, queue, message in self.held]

    def release_due(self, now_ms: int) -> None:
        """Route due messages, unless this broker may not deliver (R9) or the log must not change
        (A2)."""
        if not self.broker.may_deliver:
            return
        count = DUE_FIRST
        while self.held and self.held[0][0] <= now_ms:
            if not self._release_some(now_ms, count) or self.broker.turn.is_full():
                return
            count *= 2

    def _release_some(self, now_ms: int, count: int) -> bool:
        """Route or retry up to ``count`` due messages; False if there is nothing more to do."""
        due: list[tuple[Queue, Message]] = []
        still: list[tuple[int, int, Queue, Message]] = []
        taken = 0
        while taken < count and self.held and self.held[0][0] <= now_ms:
            entry = heapq.heappop(self.held)
            taken += 1
            if entry[2].log.still and not entry[2].deleted:
                still.append(entry)
            elif entry[2].name != DELAYED_QUEUE:
                entry[2].retry(entry[3])
                self.broker.turn.work += DISCARD_WORK
            else:
                due.append((entry[2], entry[3]))
        for entry in still:
            heapq.heappush(self.held, entry)
        # The release of a message and its routing are one record, as with dead letters.
        if len(self.broker.internal) == 0:
            self._release_all(due)
        elif len(due) > 0:
            begin_all(self.broker, 0)
            self._release_all(due)
            self.broker.write_settled()
            for queue, message in due:
                if not queue.deleted:
                    queue.log.buried(queue.id, message.index, False)
            commit_all(self.broker)
        return taken - len(still) == count

    def _release_all(self, due: list[tuple[Queue, Message]]) -> None:
        """Release due messages. If this broker is replaced before that is committed, the next home
        does the same by itself, so nothing of it is presented there."""
        for log in self.broker.logs.values():
            log.derived = True
        for queue, message in due:
            if not queue.deleted:
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
        content = strip_bcc(held.content)
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


def delay_of(message: Message) -> int:
    """For how long a message asks to be held."""
    headers = decode_properties(header_payload_of(message.content)).headers or {}
    delay = headers.get("x-delay", 0)
    return min(delay, DELAY_MS_MAX) if isinstance(delay, int) else 0
