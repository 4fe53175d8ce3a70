"""Leases: all queue leases that are active on this broker, the home of their queues. Compiled.

Leased messages count as unacked in their queue. They go back to their own place there when the
lease ends, as redelivered if somebody may have read them.

A lease outlives restarts and takeovers. What it holds is recorded in the log of the queue's group
before anybody is told, and a queue that is restored hands the messages over before it delivers
anything. The order in the log is DEQUEUE of what is settled, then LEASES. If a crash comes between,
the lease has lost some of its first messages; the client that settled them settles them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.methods import BasicCancel
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.erlang_term_text import queue_resource
from rhizome.broker.group_log.log_port import EVERYTHING
from rhizome.broker.message import Message
from rhizome.broker.queue.queue_consumer import QueueConsumer
from rhizome.broker.queue_leases.lease import Lease, PackedLease, pack, unpack
from rhizome.broker.queue_leases.lease_reader import LeaseReader
from rhizome.broker.queue_leases.lease_request import KEEP_MS_DEFAULT, LeaseRequest
from rhizome.errors import NotFound, PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue.queue import Queue

EXPIRED_MAX: Final = 64
"""How many expired leases of a queue are remembered."""


@final
class Leases:
    """Invariant: a queue is in ``queues`` if it has a lease and is active here. ``readers`` has the
    reader of each consumer with ``x-lease``, wherever its queue is active; those in ``waiting``
    have something to do when a log has committed more."""

    broker: Broker
    queues: dict[Queue, dict[str, Lease]]
    readers: dict[Consumer, LeaseReader]
    waiting: list[LeaseReader]

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.queues = {}
        self.readers = {}
        self.waiting = []

    # ---- what there is --------------------------------------------------------------------------

    def of(self, queue: Queue) -> list[Lease]:
        """The leases of a queue, expired ones included, the oldest first."""
        found = self.queues.get(queue)
        return [] if found is None else list(found.values())

    def find(self, queue: Queue, name: str) -> Lease | None:
        found = self.queues.get(queue)
        return None if found is None else found.get(name)

    def packed(self, queue: Queue) -> bytes:
        """The leases of a queue for the log."""
        return pack(self.of(queue))

    def collect(self, queue: Queue, found: list[Message]) -> None:
        """Append the messages of a queue that are leased."""
        for lease in self.of(queue):
            for message in lease.messages:
                if message is not None:
                    found.append(message)

    def holdings(self) -> list[tuple[Queue, Message]]:
        """Every leased message with its queue."""
        found: list[tuple[Queue, Message]] = []
        for queue in self.queues:
            messages: list[Message] = []
            self.collect(queue, messages)
            for message in messages:
                found.append((queue, message))
        return found

    # ---- what is asked for ----------------------------------------------------------------------

    def carry_out(self, queue: Queue, request: LeaseRequest) -> Lease | None:
        """Settle, take or end as asked; return the resulting lease, None if there is none.

        Raises the refusal.
        """
        lease = self.find(queue, request.name)
        queue.last_used_ms = self.broker.turn.now_ms
        if request.end:
            if lease is not None:
                if request.settle >= 0:
                    _check_alive(queue, lease, request)
                    self._settle(queue, lease, request.settle)
                self.end(queue, lease, False)
            return None
        if lease is not None:
            _check_alive(queue, lease, request)
            self._refresh(lease, request.keep_ms)
        changed = False
        if request.settle >= 0 and lease is not None:
            changed = self._settle(queue, lease, request.settle)
        try:
            if request.take >= 0:
                if lease is None:
                    lease = Lease(request.name, request.start, KEEP_MS_DEFAULT)
                changed = self._take(queue, lease, request) or changed
        finally:
            if changed:
                self._record(queue)
        return self.find(queue, request.name)

    def _refresh(self, lease: Lease, keep_ms: i64) -> None:
        if keep_ms >= 0:
            lease.keep_ms = keep_ms
        lease.until_ms = self.broker.turn.now_ms + lease.keep_ms

    def _settle(self, queue: Queue, lease: Lease, up_to: i64) -> bool:
        """Settle everything below a position; return whether that changed anything."""
        if up_to <= lease.base:
            return False
        if up_to > lease.end():
            raise PreconditionFailed(
                f"lease '{lease.name}' of {queue_resource(queue.vhost, queue.name)} ends at "
                f"position {lease.end()}: nothing can be settled up to {up_to}"
            )
        for message in lease.drop_to(up_to):
            queue.ack(message)
        return True

    def _take(self, queue: Queue, lease: Lease, request: LeaseRequest) -> bool:
        """Extend the lease to as many messages from a position on as are wanted, if there are;
        return whether some were added.

        A new lease is registered once it has something.
        """
        if not lease.base <= request.start <= lease.end():
            raise PreconditionFailed(
                f"lease '{lease.name}' of {queue_resource(queue.vhost, queue.name)} has the "
                f"positions {lease.base} to {lease.end() - 1}: it can't go on from {request.start}"
            )
        wanted = request.take - (lease.end() - request.start)
        room = request.bytes_max - lease.bytes_from(request.start)
        if wanted <= 0 or room <= 0 or queue.ready == 0:
            return False
        count, size = self._left(queue, lease)
        wanted = min(wanted, i64(count))
        room = min(room, i64(size))
        taken: i64 = 0
        while taken < wanted and room > 0:
            message = self._next(queue)
            if message is None:
                break
            queue.unacked += 1
            lease.add(message)
            room -= len(message.content)
            taken += 1
        if taken == 0:
            return False
        self._refresh(lease, request.keep_ms)
        self._known(queue)[lease.name] = lease
        return True

    def _next(self, queue: Queue) -> Message | None:
        """The next message that is visible (L1)."""
        if queue.ready == 0:
            return None
        if queue.log.visible < EVERYTHING and not queue.may_show_first():
            return None
        return queue.next_message(self.broker.turn.now_ms)

    def _left(self, queue: Queue, lease: Lease) -> tuple[int, int]:
        """How many more messages, and bytes of them, may be leased. Raises if a lease that holds
        nothing can't have any, because of other leases."""
        limits = self.broker.limits
        count: i64 = 0
        size: i64 = 0
        living: i64 = 0
        for other in self.of(queue):
            count += len(other.messages)
            size += other.size
            if not other.expired and other is not lease:
                living += 1
        resource = queue_resource(queue.vhost, queue.name)
        if len(lease.messages) == 0 and living >= limits.leases_max:
            raise PreconditionFailed(
                f"{resource} has {living} leases, which is the limit (limits.leases_max)"
            )
        count_left: i64 = limits.leased_messages_max - count
        size_left: i64 = limits.leased_bytes_max - size
        if len(lease.messages) == 0 and (count_left <= 0 or size_left <= 0):
            raise PreconditionFailed(
                f"{resource} has {count} leased messages of {size} bytes, which is the limit "
                "(limits.leased_messages_max, limits.leased_bytes_max): settle or end other leases"
            )
        return (int(count_left), int(size_left))

    def _known(self, queue: Queue) -> dict[str, Lease]:
        found = self.queues.get(queue)
        if found is None:
            found = {}
            self.queues[queue] = found
        return found

    def _record(self, queue: Queue) -> None:
        if queue.recorded:
            queue.write_settled()
            queue.log.leased(queue.id, self.packed(queue))

    # ---- the end of a lease ---------------------------------------------------------------------

    def end(self, queue: Queue, lease: Lease, expired: bool) -> None:
        """Give back what a lease holds. A lease that expired while it held something stays
        known."""
        held = lease.end() - lease.base
        seen = lease.read_to - lease.base
        messages = lease.messages
        lease.messages = []
        lease.size = 0
        for at, message in enumerate(messages):
            if message is None:
                continue
            if at < seen:
                queue.requeue(message)
            else:
                queue.take_back(message)
        if expired and held > 0 and not lease.expired:
            lease.expired = True
            lease.given_back = held
            self._forget_oldest(queue)
        else:
            self._forget(queue, lease)
        self._record(queue)

    def revoke(self, queue: Queue, lease: Lease) -> None:
        """End a lease on behalf of somebody other than its reader. The reader may have worked on
        what goes back and must be told, so the lease stays known. A lease that is over already is
        forgotten."""
        if not lease.expired:
            lease.keep_ms = 0
        self.end(queue, lease, True)

    def _forget(self, queue: Queue, lease: Lease) -> None:
        known = self._known(queue)
        known.pop(lease.name, None)
        if len(known) == 0:
            del self.queues[queue]

    def _forget_oldest(self, queue: Queue) -> None:
        """Keep only so many expired leases."""
        expired = [lease for lease in self.of(queue) if lease.expired]
        if len(expired) > EXPIRED_MAX:
            self._forget(queue, expired[0])

    def tick(self, now_ms: i64) -> None:
        """End the leases whose reader has shown no sign of life for their keep time."""
        for queue in list(self.queues):
            still = queue.away is not None or queue.log.still or not self.broker.may_deliver
            for lease in self.of(queue):
                if lease.expired:
                    continue
                queue.last_used_ms = now_ms
                if still:
                    # Readers can't show signs of life now.
                    lease.until_ms = now_ms + lease.keep_ms
                elif now_ms >= lease.until_ms:
                    self.end(queue, lease, True)
        self.committed()

    # ---- queues come and go ---------------------------------------------------------------------

    def restore(self, queue: Queue, packed: bytes) -> None:
        """Take what a restart or a takeover found out of the queue, which has it as ready."""
        found = unpack(packed)
        wanted: dict[int, Message | None] = {}
        for each in found:
            at: i64 = 0
            while at < len(each.runs):
                first: i64 = each.runs[at]
                count: i64 = each.runs[at + 1]
                while count > 0 and first > 0:
                    count -= 1
                    wanted[first + count] = None
                at += 2
        if len(wanted) > 0:
            _reclaim(queue, wanted)
        for each in found:
            self._restore(queue, each, wanted)

    def _restore(self, queue: Queue, each: PackedLease, wanted: dict[int, Message | None]) -> None:
        lease = each.lease
        at: i64 = 0
        while at < len(each.runs):
            first: i64 = each.runs[at]
            count: i64 = each.runs[at + 1]
            index: i64 = first
            while index < first + count:
                lease.add(wanted.get(index) if first > 0 else None)
                index += 1
            at += 2
        # It is no longer known what was read.
        lease.read_to = lease.end()
        lease.until_ms = self.broker.turn.now_ms + lease.keep_ms
        self._known(queue)[lease.name] = lease

    def let_go(self, queue: Queue) -> None:
        """A queue is no longer active here: its next home finds the leases in the log."""
        self.queues.pop(queue, None)

    def deleted(self, queue: Queue) -> None:
        """A queue is gone with all that it had."""
        messages: list[Message] = []
        self.collect(queue, messages)
        self.queues.pop(queue, None)
        for message in messages:
            queue.unacked -= 1
            queue.forget(message)
        for consumer in self.consumers(queue):
            del self.readers[consumer]
            channel = consumer.channel
            channel.consumers.pop(consumer.tag, None)
            if consumer.proxy is not None:
                consumer.proxy.detach(consumer, None)
            elif consumer.carrier is None and channel.connection.cancel_notify:
                channel.send(BasicCancel(consumer.tag, True))

    # ---- readers --------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        """Attach a consumer with ``x-lease``, at its queue's home or at its own edge."""
        reader = LeaseReader(self, consumer)
        consumer.reader = reader
        self.readers[consumer] = reader
        reader.wake()

    def forget(self, consumer: QueueConsumer) -> None:
        if isinstance(consumer, Consumer):
            self.readers.pop(consumer, None)

    def consumers(self, queue: Queue) -> list[Consumer]:
        return [consumer for consumer in self.readers if consumer.queue is queue]

    def came_home(self, consumer: Consumer) -> None:
        """The queue of a consumer is active here from now on: carry out its request here."""
        reader = self.readers.get(consumer)
        if reader is not None:
            reader.begin()
            reader.wake()

    def pump(self) -> None:
        """Continue the readers that were marked in this turn."""
        turn = self.broker.turn
        while len(turn.readers) > 0:
            readers = turn.readers
            turn.readers = []
            for reader in readers:
                reader.take_turn()

    def committed(self) -> None:
        """A log has committed more, or this broker may deliver again."""
        if len(self.waiting) > 0:
            waiting = self.waiting
            self.waiting = []
            for reader in waiting:
                reader.wake()
            self.pump()


def _check_alive(queue: Queue, lease: Lease, request: LeaseRequest) -> None:
    if not lease.expired:
        return
    why = "was ended by somebody else"
    if lease.keep_ms > 0:
        why = f"has expired: nothing was heard of its reader for {lease.keep_ms // 1000} s"
    raise NotFound(
        f"lease '{lease.name}' of {queue_resource(queue.vhost, queue.name)} {why}, and the "
        f"{lease.given_back} messages from position {lease.base} on went back to the queue"
    )


def _reclaim(queue: Queue, wanted: dict[int, Message | None]) -> None:
    """Find the messages of these indexes; they count as unacked.

    They are near the head, since they were taken there. Lanes are read from the front, and messages
    between them go back to their place.
    """
    last = max(wanted)
    others: list[Message] = []
    for lane in queue.lanes:
        while lane.ready() > 0 and lane.first_index() <= last:
            message = lane.pop()
            if message is None:
                if not queue.broker.pager.fill(queue, lane):
                    break
                continue
            queue.discount(message)
            queue.unacked += 1
            if message.index in wanted:
                wanted[message.index] = message
            else:
                others.append(message)
    for message in others:
        queue.take_back(message)
