"""Turn: what one wake-up of the broker has touched, to be finished once at its end.

All work per message is batched by turn: each queue is dispatched once, dequeues become one journal
record per queue, confirms one frame per channel, and output one write per connection.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.amqp.primitives import u32_at
from rhizome.amqp.spec import FRAME_HEADER_SIZE
from rhizome.broker.queue.queue_consumer import Reader
from rhizome.broker.routing.bindings_and_destinations import Destination

TURN_WORK_MAX: Final = 10_000
"""How much a turn does before the rest has to wait for the next, in units of about a microsecond of
compiled code. Everybody waits for the end of a turn, so no input may make it long. Only work that
costs far more than the bytes that ask for it is counted: a plain publish is not."""

CHEAP_AT_ONCE_MAX: Final = 100
"""How many messages leave a queue unconsumed before the queue checks whether the turn is full. So
what one publish displaces is gone at once. Only masses of messages leave over several turns, and
dead letters whose routes are long."""

METHOD_WORK: Final = 10
"""The work of a method other than publish and ack."""
COUNTED_PER_WORK: Final = 50
"""One unit of work for this many connections whose channels, or consumers whose bytes, are counted
when another one comes, and for this many consumers of a channel that has another prefetch."""
COMMAND_WORK: Final = 100
"""The work of a change of the state: declare, bind, delete."""
RENEWAL_WORK: Final = 1000
"""The work of verifying the signature of a token; that of a long key takes a millisecond."""
POLICY_STEP_WORK: Final = TURN_WORK_MAX // 4
"""A change of a policy goes on in steps of so much."""
FACT_WORK: Final = 5
"""The work of a further effect of such a change: a binding that goes with its queue."""
DISCARD_WORK: Final = 1
LETTER_WORK: Final = 8
"""The work of dead-lettering a message, beyond discarding it."""
ENQUEUES_PER_WORK: Final = 2
"""One unit of work for putting a message into this many queues, where consumers may wait for it."""
STEPS_PER_WORK: Final = 8
"""One unit of work for this many routing steps."""
DECODED_BYTES_PER_WORK: Final = 24
"""One unit of work for this many bytes of decoded headers: thousands of tiny entries fit in a
frame."""
SETTLED_PER_WORK: Final = 3
SEARCHED_PER_WORK: Final = 32
"""One unit of work for this many consumers that can take nothing, passed in search of another."""
SEARCHED_AT_ONCE_MAX: Final = 100 * SEARCHED_PER_WORK
"""How many of them a queue passes before it counts them as work."""


def decoding_work(content: bytes) -> i64:
    """What it costs to decode the properties of a content that is in memory."""
    if len(content) <= FRAME_HEADER_SIZE:
        return 0
    return u32_at(content, 3) // DECODED_BYTES_PER_WORK


@mypyc_attr(allow_interpreted_subclasses=True)
class Chore:
    """Work that may be too much for one turn. It continues in each turn until it is done."""

    def run(self) -> bool:
        """Continue until the work is done or the turn is full; return whether it is done."""
        raise NotImplementedError


class MarkedQueue(Destination):
    """A queue as its turn and its log know it. ``marked``: it is dispatched in this turn, or in the
    next; ``deleted``: there is nothing left to dispatch."""

    marked: bool
    deleted: bool

    def touch(self) -> None:
        """Ask for a dispatch at the end of this turn."""
        raise NotImplementedError

    def dispatch(self, now_ms: i64) -> None:
        """Deliver ready messages to consumers until one of the two runs out."""
        raise NotImplementedError

    def write_settled(self) -> None:
        """Write the dequeues of this turn as one record."""
        raise NotImplementedError


class MarkedChannel:
    """A channel as its turn knows it. ``marked``: it may have something to confirm."""

    marked: bool

    def flush_confirms(self) -> None:
        """At the end of the turn: confirm what is safe, remember the rest."""
        raise NotImplementedError

    def faulted(self, error: Exception) -> None:
        """Something about this channel went wrong in the broker: end its connection, so that its
        client doesn't wait for ever."""
        raise NotImplementedError


class MarkedConnection:
    """A connection as its turn knows it, and what makes publishers wait. ``marked``: its outbox is
    written at the end of this turn, by the shell's object in ``port``; ``paused``: it takes no
    input, because what it publishes can't be taken fast enough."""

    name: str
    port: object
    marked: bool
    paused: bool

    def take_up(self) -> None:
        """The next turn has come: continue."""
        raise NotImplementedError

    def pause(self) -> None:
        """Take no input for a while, because consumers of what was published here are busy."""
        raise NotImplementedError

    def unpause(self) -> None:
        raise NotImplementedError

    def set_blocked(self, reason: str) -> None:
        """Block publishers, or (with an empty reason) unblock them."""
        raise NotImplementedError


@final
class Turn:
    """Invariant: an object is in a list here if and only if its own mark says so. ``users`` are the
    users that have changed, and whether they were deleted (`revocation.py`).

    ``work`` is what this turn has done so far. What comes when the turn is full continues in the
    next one: connections that had a share of this turn (``resting``) after those that had none
    (``deferred``), queues (``postponed``) and ``chores``.
    """

    now_ms: i64
    doing: object
    """What is running now: a connection, a queue, or a text. It tells people what takes so long."""
    queues: list[MarkedQueue]
    settled: list[MarkedQueue]
    channels: list[MarkedChannel]
    connections: list[MarkedConnection]
    readers: list[Reader]
    users: dict[str, bool]
    work: i64
    resting: list[MarkedConnection]
    deferred: list[MarkedConnection]
    rested: list[MarkedConnection]
    """The connections that continue in this turn, because they rested in the last."""
    postponed: list[MarkedQueue]
    chores: list[Chore]
    framed: bytes
    """The last large content that was put into other frames, for the next consumer of it."""
    framed_from: bytes
    framed_channel: i64
    framed_bytes_max: i64

    def __init__(self) -> None:
        self.now_ms = 0
        self.doing = None
        self.queues = []
        self.settled = []
        self.channels = []
        self.connections = []
        self.readers = []
        self.users = {}
        self.work = 0
        self.resting = []
        self.deferred = []
        self.rested = []
        self.postponed = []
        self.chores = []
        self.framed = b""
        self.framed_from = b""
        self.framed_channel = 0
        self.framed_bytes_max = 0

    def is_full(self) -> bool:
        """Whether this turn is full, so that what can wait has to."""
        return self.work >= TURN_WORK_MAX

    def is_too_full(self, done: i64) -> bool:
        """Like ``is_full``, for callers that have ``done`` this much in one go: a hundred cheap
        things are done however full the turn is."""
        return self.work >= TURN_WORK_MAX and (
            done >= CHEAP_AT_ONCE_MAX or self.work >= 2 * TURN_WORK_MAX
        )

    def has_more(self) -> bool:
        """Whether the last turn left chores or input for this one."""
        return len(self.chores) > 0 or len(self.rested) > 0

    def keep_half(self) -> None:
        """Reserve half of this turn for what the last one left, however much input came since."""
        self.work = min(self.work, TURN_WORK_MAX // 2)

    def close(self) -> None:
        """End the turn: what is left continues in the next."""
        self.work = 0
        if len(self.framed) > 0:
            self.framed = b""
            self.framed_from = b""
        if len(self.resting) > 0 or len(self.deferred) > 0:
            self.rested = self.deferred + self.resting
            self.deferred = []
            self.resting = []
        if len(self.postponed) > 0:
            self.queues += self.postponed
            self.postponed = []

    def pending(self) -> bool:
        """Whether something is left to finish."""
        return (
            len(self.queues) > 0
            or len(self.settled) > 0
            or len(self.channels) > 0
            or len(self.connections) > 0
            or len(self.readers) > 0
            or len(self.users) > 0
            or self.has_more()
        )
