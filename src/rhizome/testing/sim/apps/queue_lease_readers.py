"""Applications that lease messages of a work queue and read it in batches, as the Spark source
does.

A checkpoint keeps what the batch is and how far it got. It outlives the application: killed at any
instant and started again, the application reads the same positions again. If it was away for too
long its lease has ended, and it begins another.
"""

from __future__ import annotations

import struct
from typing import Final

from rhizome.amqp.frames import body_of as body_of_content
from rhizome.amqp.methods import BasicCancel, BasicConsume, BasicDeliver
from rhizome.amqp.properties import decode_properties
from rhizome.client.protocol_events import ChannelEnded, ContentReceived, MethodReceived
from rhizome.testing.sim.apps.app_program import AppProgram, Workload, body_of, id_of
from rhizome.testing.sim.apps.consumers import Worker
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import queue_lease_events as told
from rhizome.testing.sim.world.sim_host import Host

KEEP_MS: Final = 4_000
ACT_MS_MEAN: Final = 120
WAIT_MS: Final = 500
BATCHES: Final = (1, 4, 12)
LINGER_CHANCE: Final = 0.5
"""How often a batch takes longer, with a request that keeps the lease alive or without."""
SIGN_CHANCE: Final = 0.5
END_CHANCE: Final = 0.06
ENTRY_HEAD: Final = ">QQBBH"
ENTRY_HEAD_BYTES: Final = 20


class Checkpoint:
    """What a leasing application keeps on disk. Everything below `committed` is done, and `planned`
    is the end of the current batch. `messages` is what it has read and not settled, by position."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._leases = 0
        self.renew()

    def renew(self) -> None:
        """Begin another lease."""
        self._leases += 1
        self.lease = f"{self._application}.{self._leases}"
        self.committed = 0
        self.planned = 0
        self.messages: dict[int, str] = {}


class QueueLeaseReader(AppProgram):
    """Plans, reads and settles batches of one queue.

    Invariant: `_consumer` belongs to the pending request, empty if there is none; `_next` is the
    position that it reads next, -1 if it doesn't read.
    """

    def __init__(
        self, host: Host, name: str, workload: Workload, queue: str, checkpoint: Checkpoint
    ) -> None:
        super().__init__(host, name, workload)
        self._queue = queue
        self._checkpoint = checkpoint
        self._batch = BATCHES[self.pick(len(BATCHES))]
        self._channel = 0
        self._consumers = 0
        self._consumer = ""
        self._answered = False
        self._next = -1
        self._has_read = False
        self._ends = False

    def opened(self) -> None:
        assert self.core is not None
        self._channel = self.core.open_channel()
        self._consumer = ""
        self._has_read = False

    def lost(self) -> None:
        self._channel = 0

    # --- asking

    def act(self) -> int:
        if not self.workload.is_declared:
            return WAIT_MS
        if self._channel and not self._consumer:
            self._go_on()
        return self.pause_ms(ACT_MS_MEAN)

    def _go_on(self) -> None:
        checkpoint = self._checkpoint
        calm = self.workload.is_calm
        if checkpoint.planned == checkpoint.committed:
            take = {"take": self._batch, "from": checkpoint.committed}
            self._ask(settle=checkpoint.committed, **take)
        elif not self._has_read:
            self._next = checkpoint.committed
            self._ask(read=checkpoint.committed, until=checkpoint.planned)
        elif not calm and self.chance.random() < LINGER_CHANCE:
            if self.chance.random() < SIGN_CHANCE:
                self._ask()
        else:
            checkpoint.committed = checkpoint.planned
            self._has_read = False
            if not calm and self.chance.random() < END_CHANCE:
                self._ends = True
                self._ask(settle=checkpoint.committed, end=True)

    def _ask(self, **arguments: int) -> None:
        assert self.core is not None
        checkpoint = self._checkpoint
        self._consumers += 1
        self._consumer = f"{self.name}.{self._consumers}"
        self._answered = False
        settle = arguments.get("settle", -1)
        given: dict[str, object] = {"x-lease": checkpoint.lease, "x-lease-keep-ms": KEEP_MS}
        given.update({f"x-lease-{key}": value for key, value in arguments.items()})
        ends = int(arguments.get("end", False))
        self.see(
            told.LeaseAsked(
                self.name,
                self.session,
                self._consumer,
                self._queue,
                checkpoint.lease,
                settle,
                ends,
                KEEP_MS,
            )
        )
        for position in [each for each in checkpoint.messages if each < settle]:
            message = checkpoint.messages.pop(position)
            self.see(
                application_events.SettledAway(
                    self.name, self.session, self._queue, message, application_events.ACK
                )
            )
        method = BasicConsume(self._queue, self._consumer, no_ack=True, arguments=given)
        self.core.send(self._channel, method)

    # --- hearing

    def heard(self, event: MethodReceived | ContentReceived | ChannelEnded) -> None:
        if event.channel != self._channel:
            return
        if isinstance(event, ChannelEnded):
            self.opened()
        elif isinstance(event, ContentReceived):
            assert isinstance(event.method, BasicDeliver), event.method
            if event.method.consumer_tag == self._consumer:
                self._delivered(event)
        elif isinstance(event.method, BasicCancel) and event.method.consumer_tag == self._consumer:
            self._consumer = ""

    def _delivered(self, event: ContentReceived) -> None:
        headers = decode_properties(event.header).headers or {}
        number = {key: each for key, each in headers.items() if isinstance(each, int)}
        code = number.get("x-lease-code", 0)
        if not self._answered or code:
            self._answered = True
            first, after = number["x-lease-first"], number["x-lease-next"]
            self.see(told.LeaseAnswered(self.session, self._consumer, code, first, after))
            self._told(code, after)
        if self._next >= 0 and not code:
            self._read(number["x-lease-offset"], number["x-lease-count"], event.body)

    def _told(self, code: int, after: int) -> None:
        checkpoint = self._checkpoint
        if code or self._ends:
            self._ends = False
            checkpoint.renew()
            self._done()
        elif self._next < 0:
            if checkpoint.planned == checkpoint.committed:
                checkpoint.planned = min(after, checkpoint.committed + self._batch)
            self._done()

    def _read(self, offset: int, count: int, body: bytes) -> None:
        """After a takeover some messages come again, in other pieces."""
        for position in range(self._next, offset):
            self.see(told.LeaseHole(self.session, self._consumer, position))
        sizes = struct.unpack_from(f">{count}I", body, 0)
        at = 4 * count
        for position, size in enumerate(sizes, offset):
            tail = struct.unpack_from(ENTRY_HEAD, body, at)[-1]
            content = body[at + ENTRY_HEAD_BYTES + tail : at + size]
            at += size
            if position >= self._next:
                self._read_one(position, body_of_content(content))
        self._next = max(self._next, offset + count)
        if self._next >= self._checkpoint.planned:
            self._has_read = True
            self._done()

    def _read_one(self, position: int, body: bytes) -> None:
        message = id_of(body)
        intact = body == body_of(message, len(body))
        self._checkpoint.messages[position] = message
        self.see(
            told.LeaseRead(self.name, self.session, self._consumer, position, message, int(intact))
        )

    def _done(self) -> None:
        """The request is done: the consumer is no longer needed."""
        assert self.core is not None
        self.core.send(self._channel, BasicCancel(self._consumer, True))
        self._consumer = ""
        self._next = -1


class SlowWorker(Worker):
    """Consumes one message at a time, and holds it for long, so that messages are left to lease."""

    hold_chance = 0.9

    def __init__(self, host: Host, name: str, workload: Workload, queues: list[str]) -> None:
        super().__init__(host, name, workload, queues)
        for place in self._places:
            place.pulls, place.prefetch = False, 1
