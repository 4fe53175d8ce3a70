"""Turn: what one wake-up of the broker has touched, to be finished once at its end.

Everything per message is batched by turns: queues are dispatched once per turn, dequeues become one
journal record per queue and turn, confirms one frame per channel and turn, output one write per
connection and turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.amqp.spec import FRAME_HEADER_SIZE
from rhizome.amqp.wire import u32_at

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.broker.connection import Connection
    from rhizome.broker.leases.reader import LeaseReader
    from rhizome.broker.queue import Queue


TURN_WORK_MAX: Final = 10_000
"""What a turn does before the rest has to wait for the next, in units of about a microsecond of
compiled code. Everybody waits for the end of a turn, so nobody's input may make it long. Only what
costs far more than the bytes that ask for it is counted: a plain publish is not."""

METHOD_WORK: Final = 10
"""A method other than publish and ack."""
COMMAND_WORK: Final = 100
"""A change of the state: declare, bind, delete."""
DISCARD_WORK: Final = 1
LETTER_WORK: Final = 8
"""A message that is dead-lettered, beyond discarding it."""
ENQUEUES_PER_WORK: Final = 4
"""One message into so many queues."""
STEPS_PER_WORK: Final = 8
"""Steps of routing."""
DECODED_BYTES_PER_WORK: Final = 24
"""Headers that are decoded: thousands of tiny entries fit into one frame."""
SETTLED_PER_WORK: Final = 3


def decoding_work(content: bytes) -> i64:
    """What it costs to decode the properties of a content that is in memory."""
    if len(content) <= FRAME_HEADER_SIZE:
        return 0
    return u32_at(content, 3) // DECODED_BYTES_PER_WORK


@mypyc_attr(allow_interpreted_subclasses=True)
class Chore:
    """Work that may be too much for one turn. It goes on in each until it is done."""

    def run(self) -> bool:
        """Go on until this is done, which is answered, or the turn is full."""
        raise NotImplementedError


@final
class Turn:
    """Invariant: an object is in a list here if and only if its own mark says so.

    ``users`` are those about whom something has changed, and whether they were
    deleted (`revocation.py`).

    ``work`` is what this turn has done so far. What came when it was full goes on in the next turn:
    connections that had a part of this one (``resting``) after those that had none (``deferred``),
    queues (``postponed``) and ``chores``.
    """

    now_ms: i64
    doing: object
    """What is at work: a connection, a queue, or words. For people who ask what takes so long."""
    queues: list[Queue]
    settled: list[Queue]
    channels: list[Channel]
    connections: list[Connection]
    readers: list[LeaseReader]
    users: dict[str, bool]
    work: i64
    resting: list[Connection]
    deferred: list[Connection]
    rested: list[Connection]
    """Those that go on in this turn: they rested in the last."""
    postponed: list[Queue]
    chores: list[Chore]

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

    def is_full(self) -> bool:
        """Whether this turn has done enough: what can wait does so."""
        return self.work >= TURN_WORK_MAX

    def has_more(self) -> bool:
        """Whether the last turn has left chores or input for this one."""
        return len(self.chores) > 0 or len(self.rested) > 0

    def keep_half(self) -> None:
        """Half of a turn is kept for what the last one has left, however much came in since."""
        self.work = min(self.work, TURN_WORK_MAX // 2)

    def close(self) -> None:
        """The turn is over: what was left goes on in the next."""
        self.work = 0
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
