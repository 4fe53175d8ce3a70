"""KeyedDispatch: which message of a keyed queue goes to which consumer. Compiled.

The messages of a key go to one consumer at a time, in order: while something of a key is unacked,
its next message goes to the consumer that holds it, or to nobody. A key is free when nothing of it
is unacked. Messages without a key have no order among each other.

Ready messages are in the queue's lane; here are only their indexes, key by key. Each live key
stands in one line at most: that of free keys, that of the consumer that holds it, or that of keys
whose next message isn't committed yet (L1). A line is ordered by rank. In a fair queue the rank is
when the key was served last, so keys take turns; otherwise it is the index of the key's first
message, so the queue is first in, first out, but for keys that are held.

Nothing here is recorded. A home that takes over reads the keys from its messages, from the first
one on and many per turn. What applications hold of a key is claimed before, and keeps the key from
others until it is settled, whoever that is.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import EVERYTHING
from rhizome.broker.message import Message
from rhizome.broker.queue.pager import RUN_BYTES_MAX
from rhizome.broker.queue.priority_lane import KeyedLane
from rhizome.broker.queue_keys.index_sequence import SLACK_MIN, IndexSequence
from rhizome.broker.queue_keys.message_key import MessageKey
from rhizome.broker.turn import SEARCHED_AT_ONCE_MAX, SEARCHED_PER_WORK, Chore, Turn
from rhizome.journal.errors import CorruptRecord

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.queue.queue_consumer import QueueConsumer

SCANNED_AT_ONCE: Final = 256
"""How many messages of a backlog are read at once to learn their keys."""
ALL_KNOWN: Final = 1 << 62
FREED_AT_ONCE: Final = 100
FREED_PER_WORK: Final = 2


@final
class Key:
    """A live key: something of it is ready or unacked.

    ``ready`` and ``unacked`` count its messages; ``indexes`` has those of the ready ones;
    ``delayed`` of the unacked wait for their retry, and while they do, nothing of the key is
    delivered. ``holder`` holds it; None with unacked messages: they were claimed or pulled.
    """

    name: bytes
    indexes: IndexSequence
    ready: i64
    unacked: i64
    delayed: i64
    holder: KeyHolder | None
    line: KeyLine | None
    rank: i64
    served: i64
    """In a fair queue, the turn in which it was served last."""

    def __init__(self, name: bytes, served: i64) -> None:
        self.name = name
        self.indexes = IndexSequence()
        self.ready = self.unacked = self.delayed = 0
        self.holder = None
        self.line = None
        self.rank = 0
        self.served = served


@final
class KeyLine:
    """Keys ordered by rank. ``ranks`` is a heap with at least the ranks of ``keys``."""

    keys: dict[int, Key]
    ranks: list[int]

    def __init__(self) -> None:
        self.keys = {}
        self.ranks = []

    def put(self, key: Key, rank: i64) -> None:
        key.line = self
        key.rank = rank
        self.keys[int(rank)] = key
        if len(self.ranks) > 2 * len(self.keys) + SLACK_MIN:
            self.ranks = list(self.keys)
            heapify(self.ranks)
        else:
            heappush(self.ranks, int(rank))

    def remove(self, key: Key) -> None:
        del self.keys[int(key.rank)]
        key.line = None

    def clear(self) -> None:
        """Forget all keys, whose ``line`` the caller sees to."""
        self.keys = {}
        self.ranks = []

    def first(self) -> Key | None:
        ranks = self.ranks
        while len(ranks) > 0:
            key = self.keys.get(ranks[0])
            if key is not None:
                return key
            heappop(ranks)
        return None


@final
class KeyHolder:
    """A consumer that holds keys, and the line of those that have more for it."""

    consumer: QueueConsumer
    line: KeyLine
    held: i64
    gone: bool

    def __init__(self, consumer: QueueConsumer) -> None:
        self.consumer = consumer
        self.line = KeyLine()
        self.held = 0
        self.gone = False


@final
class ForgottenKeys(Chore):
    """Frees keys that nobody needs any more: a million of them take a third of a second."""

    turn: Turn
    keys: dict[bytes, Key]

    def __init__(self, turn: Turn, keys: dict[bytes, Key]) -> None:
        super().__init__()
        self.turn = turn
        self.keys = keys

    def run(self) -> bool:
        keys = self.keys
        while len(keys) > 0 and not self.turn.is_full():
            count: i64 = min(len(keys), FREED_AT_ONCE)
            self.turn.work += 1 + count // FREED_PER_WORK
            while count > 0:
                keys.popitem()
                count -= 1
        return len(keys) == 0


@final
class KeyedDispatch:
    """Invariant: ``keys`` has every key of which something is ready or unacked, but for messages
    from ``known_below`` on, which are not looked at yet; ``late`` are those of them that are in
    memory. ``unacked`` has the key of each unacked message; ``held`` counts the keys that have
    some."""

    queue: Queue
    lane: KeyedLane
    message_key: MessageKey
    fair: bool
    keys: dict[bytes, Key]
    unacked: dict[int, Key]
    delayed: dict[int, None]
    free: KeyLine
    uncommitted: KeyLine
    holders: dict[QueueConsumer, KeyHolder]
    serving: dict[KeyHolder, None]
    """The holders whose lines aren't empty."""
    clock: i64
    held: i64
    known_below: i64
    late: list[int]
    waits: bool
    """Whether a message has to be read, or repaired, before the queue can go on."""

    def __init__(self, queue: Queue, lane: KeyedLane, name: str, fair: bool) -> None:
        self.queue = queue
        self.lane = lane
        self.message_key = MessageKey(name)
        self.fair = fair
        self.keys = {}
        self.unacked = {}
        self.delayed = {}
        self.free = KeyLine()
        self.uncommitted = KeyLine()
        self.holders = {}
        self.serving = {}
        self.clock = 0
        self.held = 0
        self.known_below = ALL_KNOWN
        self.late = []
        self.waits = False

    def restart(self) -> None:
        """The queue has new contents, from a journal or a copy: nothing of it is known yet."""
        self._forget({})
        self.unacked = {}
        self.delayed = {}
        self.holders = {}
        self.held = 0
        self.known_below = 0
        self.waits = False

    def _forget(self, kept: dict[bytes, Key]) -> None:
        """Forget all keys but these, which nothing is ready of, and all lines. The time that it
        takes depends on the number of those that are kept.

        A line and its keys refer to each other: if that stayed so their memory would never be used
        again.
        """
        self.late = []
        self.free.clear()
        self.uncommitted.clear()
        for holder in self.serving:
            holder.line.clear()
        self.serving = {}
        forgotten = self.keys
        self.keys = kept
        for key in kept.values():
            key.ready = 0
            key.indexes.clear()
            key.line = None
            forgotten.pop(key.name, None)
        if len(forgotten) > 0:
            turn = self.queue.broker.turn
            turn.chores.append(ForgottenKeys(turn, forgotten))

    # ---- what happens to messages ---------------------------------------------------------------

    def arrived(self, message: Message) -> None:
        """A new message is ready."""
        if self.known_below < ALL_KNOWN and self.lane.paged_count == 0:
            self._know_late(ALL_KNOWN)  # nothing on disk is left to be looked at
        if message.index < self.known_below:
            self._add(self._key_of(message), message.index)
        elif int(message.index) in self.lane.messages:
            heappush(self.late, int(message.index))

    def returned(self, message: Message) -> None:
        """An unacked message is ready again."""
        key = self._settle(message.index)
        if message.index >= self.known_below:
            heappush(self.late, int(message.index))
        elif key is not None:
            key.indexes.add(message.index)
            key.ready += 1
        else:
            self._add(self._key_of(message), message.index)
        if key is not None:
            self._place(key)

    def taken(self, message: Message) -> None:
        """A message is no longer ready, and somebody holds it who isn't a consumer of keys, or it
        is about to go for good."""
        if len(message.content) == 0:
            return  # it can't be read
        name = self._key_of(message)
        key = self.keys.get(name)
        if key is None:
            key = self._make(name)
        if message.index < self.known_below and key.ready > 0:
            key.ready -= 1
        self._hold(key, message.index)
        self._place(key)

    def delay(self, index: i64) -> None:
        """An unacked message waits for its retry."""
        key = self.unacked.get(int(index))
        if key is not None:
            self.delayed[int(index)] = None
            key.delayed += 1
            self._place(key)

    def settled(self, index: i64) -> None:
        """A message has left the queue for good."""
        key = self._settle(index)
        if key is not None:
            self._place(key)

    def clear_ready(self) -> None:
        """All ready messages are gone."""
        self.known_below = ALL_KNOWN
        self._forget({key.name: key for key in self.unacked.values()})

    def consumer_gone(self, consumer: QueueConsumer) -> None:
        """A consumer gets nothing more: its keys are free when what it holds is settled."""
        holder = self.holders.pop(consumer, None)
        if holder is not None:
            holder.gone = True
            for key in list(holder.line.keys.values()):
                self._place(key)

    def _add(self, name: bytes, index: i64) -> None:
        key = self.keys.get(name)
        if key is None:
            key = self._make(name)
        key.indexes.add(index)
        key.ready += 1
        if len(key.indexes) > 2 * key.ready + SLACK_MIN:
            self.lane.prune(key.indexes)
            key.ready = len(key.indexes)
        if key.line is None or index <= key.rank:
            self._place(key)

    def _key_of(self, message: Message) -> bytes:
        return self.message_key.of(message.content, message.route.key)

    def _make(self, name: bytes) -> Key:
        self.clock += 1
        key = Key(name, self.clock)
        self.keys[name] = key
        return key

    def _hold(self, key: Key, index: i64) -> None:
        if len(key.name) == 0:
            return
        self.unacked[int(index)] = key
        key.unacked += 1
        if key.unacked == 1:
            self.held += 1

    def _settle(self, index: i64) -> Key | None:
        """A message isn't unacked any more; its key, if it has one. The caller places that."""
        key = self.unacked.pop(int(index), None)
        if key is None:
            return None
        key.unacked -= 1
        if len(self.delayed) > 0 and int(index) in self.delayed:
            del self.delayed[int(index)]
            key.delayed -= 1
        if key.unacked == 0:
            self.held -= 1
            self._give(key, None)
        return key

    def _give(self, key: Key, holder: KeyHolder | None) -> None:
        before = key.holder
        if before is holder:
            return
        if before is not None:
            self._leave(key)
            before.held -= 1
            if before.held == 0 and not before.gone:
                del self.holders[before.consumer]
        key.holder = holder
        if holder is not None:
            holder.held += 1

    # ---- lines ----------------------------------------------------------------------------------

    def _place(self, key: Key) -> None:
        """Put a key where it belongs, after anything about it has changed."""
        wanted = self._line_of(key)
        rank: i64 = 0
        if wanted is not None:
            by_time = self.fair and wanted is not self.uncommitted
            rank = key.served if by_time else key.indexes.first()
            if key.line is wanted and key.rank == rank:
                return
        self._leave(key)
        if wanted is not None:
            wanted.put(key, rank)
            holder = key.holder
            if holder is not None and wanted is holder.line:
                self.serving[holder] = None
        elif key.ready == 0 and key.unacked == 0 and self.keys.get(key.name) is key:
            del self.keys[key.name]

    def _line_of(self, key: Key) -> KeyLine | None:
        if key.ready == 0 or key.delayed > 0:
            return None
        if len(key.indexes) > key.ready:
            self.lane.drop_stale(key.indexes)
        first = key.indexes.first()
        if first < 0:
            key.ready = 0
            return None
        if first > self.queue.log.visible:
            return self.uncommitted
        if key.unacked == 0:
            return self.free
        holder = key.holder
        return None if holder is None or holder.gone else holder.line

    def _leave(self, key: Key) -> None:
        line = key.line
        if line is None:
            return
        line.remove(key)
        holder = key.holder
        if holder is not None and line is holder.line and len(line.keys) == 0:
            self.serving.pop(holder, None)

    # ---- messages out ---------------------------------------------------------------------------

    def dispatch(self, now_ms: i64) -> i64:
        """Deliver until nobody can take more, or nothing more may be taken; return how many."""
        queue = self.queue
        self._prepare()
        delivered: i64 = 0
        while self.free.first() is not None and not self.waits:
            consumer = queue.next_consumer()
            if consumer is None:
                return delivered
            if self._serve(consumer, now_ms):
                delivered += 1
            if queue.searched > SEARCHED_AT_ONCE_MAX and queue.search_waits():
                return delivered
        return delivered + self._serve_holders(now_ms)

    def _serve_holders(self, now_ms: i64) -> i64:
        """Deliver what only those can have that hold its keys."""
        queue = self.queue
        delivered: i64 = 0
        passed: i64 = 0
        for holder in list(self.serving):
            consumer = holder.consumer
            while len(holder.line.keys) > 0 and not self.waits and self._may_have(consumer):
                if self._serve(consumer, now_ms):
                    delivered += 1
            passed += 1
        queue.broker.turn.work += passed // SEARCHED_PER_WORK
        return delivered

    def _may_have(self, consumer: QueueConsumer) -> bool:
        if self.queue.active is not None:
            return self.queue.next_consumer() is consumer
        return consumer.can_take()

    def pull(self, now_ms: i64) -> Message | None:
        """Take a message for a client that asked for one. Nobody else gets anything of its key
        until it is settled."""
        self._prepare()
        while not self.waits:
            key = self.free.first()
            if key is None:
                return None
            message = self._take(key, now_ms)
            if message is not None:
                self._place(key)
                return message
        return None

    def is_coming(self) -> bool:
        """Whether a message may be there for the taking soon, without anybody settling one."""
        return self.waits or self.known_below < ALL_KNOWN or len(self.uncommitted.keys) > 0

    def _prepare(self) -> None:
        """See what has become known and committed."""
        self.waits = False
        if self.known_below < ALL_KNOWN:
            self._scan()
        if len(self.uncommitted.keys) == 0:
            return
        visible = self.queue.log.visible
        key = self.uncommitted.first()
        while key is not None and key.rank <= visible:
            self._place(key)
            key = self.uncommitted.first()
        if key is not None and visible < EVERYTHING:
            self.queue.log.waiting.append(self.queue)

    def _serve(self, consumer: QueueConsumer, now_ms: i64) -> bool:
        """Deliver to a consumer the first that it may have: of a free key, or of one that it
        holds."""
        key = self.free.first()
        holder = self.holders.get(consumer)
        if holder is not None:
            own = holder.line.first()
            if own is not None and (key is None or own.rank < key.rank):
                key = own
        if key is None:
            return False
        message = self._take(key, now_ms)
        if message is None:
            return False
        if len(key.name) > 0:
            if holder is None or holder.gone or holder.held == 0:
                holder = KeyHolder(consumer)
                self.holders[consumer] = holder
            self._give(key, holder)
        self._place(key)
        self.queue.deliver(consumer, message)
        return True

    def _take(self, key: Key, now_ms: i64) -> Message | None:
        """Take the first message of a key, which the caller places; None if there is none that may
        be delivered. Then the key is placed, or ``waits`` is set."""
        queue = self.queue
        expired: i64 = 0
        while key.ready > 0 and key.delayed == 0:
            message = self._first(key)
            if message is None:
                break
            queue.uncount(message)
            key.ready -= 1
            self._hold(key, message.index)
            if not queue.may_expire or not queue.is_withheld(message, now_ms):
                self.clock += 1
                key.served = self.clock
                return message
            expired += 1
            if queue.broker.turn.is_too_full(expired):
                queue.postpone()
                self.waits = True
                break
        if not self.waits:
            self._place(key)
        return None

    def _first(self, key: Key) -> Message | None:
        """Take the first message of a key from the lane. None if there is none any more, or if it
        can't be read now: then ``waits`` is set."""
        index = key.indexes.first()
        while index >= 0:
            message = self.lane.take(index)
            if message is None and self.lane.paged_count > 0:
                message = self._read(index)
                if self.waits:
                    return None
            key.indexes.drop_first()
            if message is not None:
                return message
            index = key.indexes.first()
        key.ready = 0
        return None

    # ---- messages on disk -----------------------------------------------------------------------

    def _read(self, index: i64) -> Message | None:
        """Take a message that is on disk. None if it isn't there, or set aside because it is
        damaged, or if it can't be read yet."""
        lane = self.lane
        queue = self.queue
        pager = queue.broker.pager
        position = lane.paged.find(index)
        if position == 0:
            return None
        if position >= pager.readable_end(position >> 32):
            pager.waiting.append(queue)
            self.waits = True
            return None
        if index == lane.paged.first_index() and self._may_read_ahead():
            if not pager.fill(queue, lane):
                self.waits = True
                return None
            return lane.take(index)
        try:
            message = pager.read_one(position)
        except (CorruptRecord, OSError) as error:
            self.waits = not queue.broker.damage.met_at(queue, lane, index, -1, str(error))
            return None
        lane.paged.remove(index)
        lane.paged_count -= 1
        pager.charge(queue, message)
        return message

    def _may_read_ahead(self) -> bool:
        """Whether the messages behind one on disk may come into memory with it. They stay there
        while their keys are held, so there must be few of them."""
        return len(self.lane.messages) == 0 or self.queue.resident_bytes < RUN_BYTES_MAX

    def _scan(self) -> None:
        """Learn the keys of messages that were recovered, many per turn."""
        queue = self.queue
        turn = queue.broker.turn
        while self.known_below < ALL_KNOWN:
            entries = self.lane.paged.peek_from(self.known_below, SCANNED_AT_ONCE)
            if len(entries) == 0:
                self._know_late(ALL_KNOWN)
                return
            if turn.is_full():
                queue.postpone()
                return
            messages = queue.broker.pager.read_several(entries, RUN_BYTES_MAX)
            turn.work += 1 + len(messages)
            for entry, message in zip(entries, messages, strict=False):
                index: i64 = entry[0]
                if message is None:
                    text = "its record can't be read"
                    if not queue.broker.damage.met_at(queue, self.lane, index, -1, text):
                        self.waits = True
                        return
                self._know_late(index + 1)
                if message is not None:
                    self._add(self._key_of(message), index)

    def _know_late(self, below: i64) -> None:
        """Messages below this index are known from now on; those in memory are looked at here."""
        self.known_below = below
        while len(self.late) > 0 and i64(self.late[0]) < below:
            message = self.lane.find(heappop(self.late))
            if message is not None:
                self._add(self._key_of(message), message.index)
