"""LeaseReader: a consumer with ``x-lease``. Compiled.

Transitions:
    ASKED to SETTLING      the request was carried out, and recorded
    SETTLING to TELLING    the record is as safe as it gets: nobody is told before
    TELLING to READING     the outcome was delivered
    READING to DONE        everything up to ``until`` was delivered, or can't be
    any to ASKED           the queue has another home

A consumer whose queue is active elsewhere waits in ASKED; a reader at the queue's home does the
work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.erlang_term_text import queue_resource
from rhizome.broker.message import Message
from rhizome.broker.message_batch_content import FRAME_BYTES_MAX
from rhizome.broker.queue.queue_consumer import Reader
from rhizome.broker.queue.redelivered_flag import was_delivered
from rhizome.broker.queue_leases.lease import Lease
from rhizome.broker.queue_leases.lease_delivery import Entries, LeaseOutcome
from rhizome.broker.queue_leases.lease_request import LeaseRequest
from rhizome.errors import AmqpError, NotFound
from rhizome.journal.streams.stream_format import CONTENT_CHANNEL

if TYPE_CHECKING:
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.queue_leases.active_leases import Leases

ASKED: Final = 0
SETTLING: Final = 1
TELLING: Final = 2
READING: Final = 3
DONE: Final = 4

DELIVERY_BYTES: Final = 256 * 1024
"""A delivery is full when it has this much; one message may exceed it."""


@final
class LeaseReader(Reader):
    """Invariant: ``next`` is the position that is delivered next."""

    leases: Leases
    consumer: Consumer
    request: LeaseRequest
    stage: i64
    safe_at: i64
    marked: bool
    _failed: AmqpError | None

    def __init__(self, leases: Leases, consumer: Consumer) -> None:
        super().__init__()
        self.leases = leases
        self.consumer = consumer
        self.request = LeaseRequest(consumer.arguments)
        self.marked = False
        self.begin()

    def begin(self) -> None:
        """Carry out the request from the beginning."""
        self.stage = ASKED
        self.next = max(self.request.read, i64(0))
        self.safe_at = 0
        self._failed = None

    def wake(self) -> None:
        if not self.marked and self.consumer.proxy is None:
            self.marked = True
            self.leases.broker.turn.readers.append(self)

    def take_turn(self) -> None:
        """Continue what was marked, unless this consumer has gone."""
        self.marked = False
        if self.leases.readers.get(self.consumer) is self:
            try:
                self.pump()
            except AmqpError as error:
                self.fail(error)

    def fail(self, error: AmqpError) -> None:
        """The request is refused: deliver the refusal instead of continuing."""
        self._failed = error
        self.stage = TELLING
        self.wake()

    def pump(self) -> None:
        """Continue as far as the log, the lease and the consumer's credit allow."""
        consumer = self.consumer
        queue = consumer.queue
        if consumer.proxy is not None or queue.deleted:
            return
        if self.stage == ASKED:
            if not self.leases.broker.may_deliver or queue.log.still or queue.away is not None:
                self.leases.waiting.append(self)
                return
            self.leases.carry_out(queue, self.request)
            self.safe_at = queue.log.mark() if queue.recorded else 0
            self.stage = SETTLING
        if self.stage == SETTLING:
            if self.safe_at > queue.log.committed_disk and queue.recorded:
                self.leases.waiting.append(self)
                return
            self.stage = TELLING
        if self.stage == TELLING and consumer.can_take():
            self._tell()
        if self.stage == READING:
            self._read()

    def _outcome(self, offset: i64) -> LeaseOutcome:
        queue = self.consumer.queue
        outcome = LeaseOutcome(offset, queue.ready)
        lease = self.leases.find(queue, self.request.name)
        if lease is not None:
            outcome.first = lease.base
            outcome.next = lease.end()
            outcome.size = lease.size
        return outcome

    def _tell(self) -> None:
        outcome = self._outcome(self.next if self.request.read >= 0 else self.request.start)
        self.stage = READING if self.request.read >= 0 else DONE
        if self._failed is not None:
            outcome.code = self._failed.code
            outcome.error = self._failed.text
            self.stage = DONE
        self._deliver(outcome, b"")

    def _read(self) -> None:
        until = self.request.until
        while self.next < until and self.consumer.can_take():
            lease = self._lease()
            self._deliver_run(lease, min(until, lease.end()))
        if self.next >= until:
            self.stage = DONE

    def _lease(self) -> Lease:
        """The lease, if it has what is to be read; raises if not."""
        queue = self.consumer.queue
        lease = self.leases.find(queue, self.request.name)
        resource = queue_resource(queue.vhost, queue.name)
        if lease is None or lease.expired:
            raise NotFound(
                f"no lease '{self.request.name}' of {resource}: it has expired or was ended, and "
                "its messages went back to the queue"
            )
        if self.next < lease.base or self.next >= lease.end():
            raise NotFound(
                f"lease '{lease.name}' of {resource} has the positions {lease.base} to "
                f"{lease.end() - 1}, and not {self.next}"
            )
        return lease

    def _deliver_run(self, lease: Lease, until: i64) -> None:
        """Deliver the next messages, in one delivery."""
        queue = self.consumer.queue
        first = self.next
        at = first
        entries = Entries()
        while at < until and entries.size() < DELIVERY_BYTES:
            message = lease.messages[at - lease.base]
            if message is None:
                # Lost in a restart. The reader sees the gap.
                if entries.count > 0:
                    break
                first = at + 1
            else:
                entries.add(message, was_delivered(queue, message))
            at += 1
        self.next = at
        if at > lease.read_to:
            lease.read_to = at
        outcome = self._outcome(first)
        outcome.count = entries.count
        queue.delivered += entries.count
        self._deliver(outcome, entries.body())

    def _deliver(self, outcome: LeaseOutcome, body: bytes) -> None:
        consumer = self.consumer
        route = self.leases.broker.route_to("", consumer.queue.name)
        message = Message(route, outcome.content(body), CONTENT_CHANNEL, FRAME_BYTES_MAX)
        # No message has this index, so what an edge says of it later means nothing (A2).
        message.index = 0
        consumer.deliver(message, False)
        message.content = b""

    # ---- what a carrier's channel settles -------------------------------------------------------

    def settled(self, message: Message) -> None:
        """A delivery has reached its consumer, or never will."""
