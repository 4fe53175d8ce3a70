"""Attachment of an edge: what a home has of one edge for one group, over one link.

It is open once the edge has presented everything. It is resolved once the home has compared that
with its queues (`edge_reconciliation.py`). Publishes are taken while it is open; frames about
deliveries wait until it is resolved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.reliability_levels import Levels
from rhizome.journal.record_replay import take_back_refused

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer


@final
class TakenNumbers:
    """The numbers that a home has taken of one incarnation of an edge: the last one, and the
    refused ones that the edge may not know of.

    The edge says when it attaches what it knows: what it was told may have been lost with its link.
    """

    last: i64
    refused: list[int]

    def __init__(self) -> None:
        self.last = 0
        self.refused = []

    def share(self, refused: dict[int, list[int]], origin: i64) -> None:
        """Go on with what the log knows of this edge, perhaps from the home before."""
        self.refused = take_back_refused(refused, origin, self.last)

    def known(self, number: i64) -> None:
        """The edge knows of everything up to this number that it is safe, or was refused."""
        count: i64 = 0
        while count < len(self.refused) and i64(self.refused[count]) <= number:
            count += 1
        del self.refused[:count]


@final
class HeldRange:
    """Messages of one queue that a session says it holds, for a consumer if it is attached.

    ``more``: the edge knew the epoch of the home already.
    """

    session: i64
    consumer: i64
    queue_id: i64
    first: i64
    last: i64
    more: bool

    def __init__(
        self, session: i64, consumer: i64, queue_id: i64, first: i64, last: i64, more: bool
    ) -> None:
        self.session = session
        self.consumer = consumer
        self.queue_id = queue_id
        self.first = first
        self.last = last
        self.more = more


@final
class SettledRange:
    """Messages of one queue that an edge says were settled."""

    kind: i64
    queue_id: i64
    first: i64
    last: i64

    def __init__(self, kind: i64, queue_id: i64, first: i64, last: i64) -> None:
        self.kind = kind
        self.queue_id = queue_id
        self.first = first
        self.last = last


@final
class WaitingFrame:
    """A frame that came before the attachment was resolved: a table and the function that takes it
    later, or the data of SETTLE."""

    function: Callable[[dict[str, object]], None] | None
    table: dict[str, object]
    data: bytes

    def __init__(
        self,
        function: Callable[[dict[str, object]], None] | None,
        table: dict[str, object],
        data: bytes,
    ) -> None:
        self.function = function
        self.table = table
        self.data = data


@final
class WaitingConsumer:
    """A consumer that came before the attachment was resolved, and the request for it unless that
    is answered."""

    consumer: Consumer
    unanswered: dict[str, object] | None

    def __init__(self, consumer: Consumer, unanswered: dict[str, object] | None) -> None:
        self.consumer = consumer
        self.unanswered = unanswered


@final
class EdgeAttachment:
    """What one edge has with this home for one group, over one link.

    Invariant: a number is taken only if it is the one after ``last``, including numbers that are
    refused, dropped or without a message (A1); of group 0, private queues, any higher number is
    taken.

    ``sessions`` are the channels here that stand for channels of the edge's applications. ``kept``
    are those that only keep what a client held that may have come back elsewhere. ``since`` is the
    epoch in which the edge was home itself, if it has something left from then. ``held``,
    ``settled``, ``joining`` (consumers) and ``waiting`` (frames) exist until the attachment is
    resolved.

    If ``void_from`` isn't 0, presented messages with that index or a higher one were lost with an
    earlier epoch: the messages that have these indexes now are others. The edge is told whether
    standbys have its publishes to a group, so ``confirms`` notes levels.
    """

    group: i64
    epoch: i64
    log: GroupLog
    numbered: GroupLog | None
    origin: i64
    since: i64
    void_from: i64
    open: bool
    resolved: bool
    last: i64
    taken: TakenNumbers
    confirms: Confirms
    settles: Confirms
    settles_noted: i64
    sessions: dict[int, Channel]
    kept: dict[int, None]
    held: list[HeldRange]
    settled: list[SettledRange]
    joining: list[WaitingConsumer]
    waiting: list[WaitingFrame]

    def __init__(self, group: i64, log: GroupLog) -> None:
        self.group = group
        self.log = log
        self.origin = 0
        self.close()

    def close(self) -> None:
        """The edge has nothing here, and nothing of it is taken, until it attaches (again)."""
        self.epoch = 0
        self.since = 0
        self.void_from = 0
        self.numbered = None
        self.open = False
        self.resolved = False
        self.last = 0
        self.taken = TakenNumbers()
        self.confirms = Confirms()
        if self.group != 0:
            self.confirms.levels = Levels()
        self.settles = Confirms()
        self.settles_noted = 0
        self.sessions = {}
        self.kept = {}
        self.held = []
        self.settled = []
        self.joining = []
        self.waiting = []

    def begin(
        self, epoch: i64, log: GroupLog, origin: i64, taken: TakenNumbers, first: i64
    ) -> None:
        """The edge attaches. ``first`` is its oldest unconfirmed publish: all before it were
        confirmed or given up."""
        self.close()
        self.epoch = epoch
        self.log = log
        self.origin = origin
        self.numbered = log if log.numbered else None
        self.taken = taken
        taken.last = max(taken.last, log.origins.get(origin, 0), first - 1)
        if log.numbered:
            taken.share(log.refused, origin)
        taken.known(first - 1)
        self.last = taken.last
        confirms = self.confirms
        confirms.sent = first - 1
        confirms.published = self.last
        if self.last >= first:
            self._need_all(confirms)

    def takes(self, number: i64) -> bool:
        """Whether a number is to be taken; if so, it counts as taken."""
        if not self.open:
            return False
        if number != self.last + 1 and (self.group != 0 or number <= self.last):
            return False
        self.last = number
        self.taken.last = number
        self.confirms.published = number
        return True

    def settled_up_to(self, number: i64) -> None:
        """What the edge settled under this number is in the queues, but not yet safe."""
        if number > self.settles.published:
            self.settles.published = number

    def close_turn(self) -> None:
        """All records of this turn are in the log: what was taken and settled waits for them."""
        settles = self.settles
        if settles.published > self.settles_noted:
            self.settles_noted = settles.published
            self._need_all(settles)
            settles.close_turn()
        self.confirms.close_turn()

    def _need_all(self, confirms: Confirms) -> None:
        """What was counted last is safe when everything recorded so far is."""
        log = self.log
        confirms.need(log, log.mark(), True)
        confirms.need(log, log.next_index - 1, False)


def start_after(starts: list[tuple[int, int]], epoch: i64) -> i64:
    """The index below which a log has everything that was in it in an epoch; 0 for no epoch."""
    start: i64 = 0
    if epoch > 0:
        for later, first in starts:
            if later > epoch and (start == 0 or first < start):
                start = first
    return start
