"""A naive model of queues: lists, no batching, no disk, no journal.

`Model` is told what a client does and what time it is. It says which messages each queue must
deliver, in which order and with which redelivered flag (`ModelQueue.expected`); to which of the
consumers that have room is left to the broker, which must prefer the higher priority.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

ACK, REJECT, REQUEUE = range(3)
NO_LIMIT = 1 << 60


@dataclass
class Entry:
    """A message in one queue; `seq` is its place there. `deaths` as in x-death, latest first.

    `handed`: somebody got it who has to ack it; `shown`: the broker knows that after a crash;
    `found`: a restart found it, and nobody has had it since.
    """

    seq: int
    body: bytes
    persistent: bool
    priority: int
    expiration_ms: int | None
    arrived_ms: int
    count: int = 0
    handed: bool = False
    shown: bool = False
    found: bool = False
    deaths: list[tuple[str, str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Shape:
    """The arguments of a queue. `dead_to` is the queue that its dead letters go to."""

    name: str
    durable: bool = True
    ttl_ms: int | None = None
    length_max: int | None = None
    overflow: str = "drop-head"
    priority_max: int = 0
    dead_to: str | None = None
    delivery_limit: int | None = None

    @property
    def level_max(self) -> int:
        """The highest priority. One that counts deliveries is a quorum queue, which has 32."""
        return self.priority_max or (31 if self.delivery_limit is not None else 0)

    def arguments(self) -> dict[str, object]:
        found: dict[str, object] = {}
        if self.ttl_ms is not None:
            found["x-message-ttl"] = self.ttl_ms
        if self.length_max is not None:
            found["x-max-length"] = self.length_max
            found["x-overflow"] = self.overflow
        if self.priority_max:
            found["x-max-priority"] = self.priority_max
        if self.dead_to is not None:
            found["x-dead-letter-exchange"] = ""
            found["x-dead-letter-routing-key"] = self.dead_to
        if self.delivery_limit is not None:
            found["x-queue-type"] = "quorum"
            found["x-delivery-limit"] = self.delivery_limit
        return found


@dataclass(eq=False)
class ModelConsumer:
    tag: str
    channel: int
    queue: ModelQueue
    no_ack: bool
    prefetch: int
    priority: int
    unacked: int = 0

    def room(self) -> int:
        if self.no_ack or self.prefetch == 0:
            return NO_LIMIT
        return self.prefetch - self.unacked


@dataclass(eq=False)
class ModelQueue:
    """`hurried` says that messages had to go while others were still on their way back: a consumer
    of a lower priority may have got one before a higher one had room.
    """

    shape: Shape
    ready: list[Entry] = field(default_factory=list)
    unacked: list[Entry] = field(default_factory=list)
    consumers: list[ModelConsumer] = field(default_factory=list)
    expected: list[Entry] = field(default_factory=list)
    deleted: bool = False
    hurried: bool = False

    def lane(self, entry: Entry) -> int:
        return min(entry.priority, self.shape.level_max)

    def sort(self) -> None:
        self.ready.sort(key=lambda entry: (-self.lane(entry), entry.seq))

    def room(self) -> int:
        return sum(consumer.room() for consumer in self.consumers) - len(self.expected)

    def expires_ms(self, entry: Entry) -> int:
        limits = [ms for ms in (self.shape.ttl_ms, entry.expiration_ms) if ms is not None]
        return entry.arrived_ms + min(limits, default=NO_LIMIT)

    def is_expired(self, entry: Entry, now_ms: int) -> bool:
        return now_ms > self.expires_ms(entry)

    def is_full(self) -> bool:
        return self.shape.length_max is not None and len(self.ready) >= self.shape.length_max

    def is_over(self) -> bool:
        return self.shape.length_max is not None and len(self.ready) > self.shape.length_max


@dataclass(frozen=True)
class Publish:
    """A message that a client sends to some queues."""

    body: bytes
    queues: tuple[str, ...]
    persistent: bool
    priority: int
    expiration_ms: int | None


@dataclass
class ModelChannel:
    number: int
    tag: int = 0
    held: dict[int, tuple[Entry, ModelQueue, ModelConsumer | None]] = field(default_factory=dict)
    transactional: bool = False
    publishes: list[Publish] = field(default_factory=list)
    settled: dict[int, int] = field(default_factory=dict)


class Model:
    """Invariant: between actions every `expected` is empty and nothing is left in `letters`."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.queues: dict[str, ModelQueue] = {}
        self.channels: dict[int, ModelChannel] = {}
        self.letters: list[tuple[ModelQueue, Entry, str]] = []
        self.seq = 0
        # The places of all messages that were ever in a queue, if only for an instant; of those
        # that came twice, the place where they were published to.
        self.places: dict[tuple[str, bytes], int] = {}

    # --- messages in

    def publish(self, one: Publish) -> bool:
        """False if a queue refused it."""
        entry = Entry(0, one.body, one.persistent, one.priority, one.expiration_ms, self.now_ms)
        return self._enqueue(entry, [self.queues[n] for n in one.queues if n in self.queues])

    def _enqueue(self, entry: Entry, queues: list[ModelQueue]) -> bool:
        self.seq += 1
        accepted = [queue for queue in queues if self._accepts(queue, entry)]
        for queue in accepted:
            place = (queue.shape.name, entry.body)
            if place not in self.places or not entry.deaths:
                self.places[place] = self.seq
            queue.ready.append(replace(entry, seq=self.seq, deaths=list(entry.deaths)))
            queue.sort()
            self._enforce(queue)
        return len(accepted) == len(queues)

    def _accepts(self, queue: ModelQueue, entry: Entry) -> bool:
        if queue.shape.overflow == "drop-head" or not queue.is_full():
            return True
        self.dispatch(queue)
        if not queue.is_full() or self._goes_through(queue):
            return True
        if queue.shape.overflow == "reject-publish-dlx":
            self.letters.append((queue, entry, "maxlen"))
        return False

    def _goes_through(self, queue: ModelQueue) -> bool:
        """Whether a consumer takes the next message at once, so that none has to wait."""
        return not queue.ready and queue.room() > 0

    def _enforce(self, queue: ModelQueue) -> None:
        """What consumers can take is not in the way; then the oldest go."""
        if queue.shape.overflow != "drop-head" or not queue.is_over():
            return
        self.dispatch(queue)
        while queue.is_over():
            self._discard(queue, queue.ready.pop(0), "maxlen")

    # --- messages out

    def dispatch(self, queue: ModelQueue) -> None:
        while queue.ready and queue.room() > 0:
            entry = queue.ready.pop(0)
            if queue.is_expired(entry, self.now_ms):
                self._discard(queue, entry, "expired")
            else:
                queue.expected.append(entry)

    def finish_action(self) -> None:
        """Dispatch, and send dead letters, until nothing moves."""
        while True:
            for queue in self.queues.values():
                self.dispatch(queue)
                self._enforce(queue)
            if not self.letters:
                return
            self._bury_letters()

    def _bury_letters(self) -> None:
        letters, self.letters = self.letters, []
        for queue, entry, reason in letters:
            self._bury(queue, entry, reason)

    def take(self, queue: ModelQueue) -> Entry | None:
        """What a pull gets: nothing in its last instant, which is for consumers that wait."""
        while queue.ready:
            entry = queue.ready.pop(0)
            if not queue.is_expired(entry, self.now_ms + 1):
                return entry
            self._discard(queue, entry, "expired")
        return None

    def _discard(self, queue: ModelQueue, entry: Entry, reason: str) -> None:
        if queue.shape.dead_to is not None and not queue.deleted:
            self.letters.append((queue, entry, reason))

    def _bury(self, queue: ModelQueue, entry: Entry, reason: str) -> None:
        name = queue.shape.name
        same = [count for where, why, count in entry.deaths if (where, why) == (name, reason)]
        others = [death for death in entry.deaths if death[:2] != (name, reason)]
        deaths = [(name, reason, sum(same) + 1), *others]
        target = self.queues.get(queue.shape.dead_to or "")
        if target is None or _went_round(deaths, target.shape.name):
            return
        letter = replace(entry, expiration_ms=None, arrived_ms=self.now_ms, count=0, deaths=deaths)
        letter.handed = letter.shown = letter.found = False
        self._enqueue(letter, [target])

    # --- settling

    def settle(self, channel: ModelChannel, tag: int, kind: int) -> None:
        entry, queue, consumer = channel.held.pop(tag)
        if consumer is not None:
            consumer.unacked -= 1
        queue.unacked.remove(entry)
        if kind == REJECT:
            self._discard(queue, entry, "rejected")
        elif kind == REQUEUE and not queue.deleted:
            self._requeue(queue, entry)

    def _requeue(self, queue: ModelQueue, entry: Entry) -> None:
        entry.count += 1
        entry.found = False
        limit = queue.shape.delivery_limit
        if limit is not None and entry.count > limit:
            self._discard(queue, entry, "delivery_limit")
            return
        if queue.is_expired(entry, self.now_ms + 1):  # its last instant was for its first delivery
            self._discard(queue, entry, "expired")
            return
        queue.ready.append(entry)
        queue.sort()
        queue.hurried = queue.hurried or queue.is_over()
        if not queue.consumers:  # else when all are back
            self._enforce(queue)

    def commit(self, channel: ModelChannel) -> None:
        publishes, channel.publishes = channel.publishes, []
        settled, channel.settled = channel.settled, {}
        for one in publishes:
            self.publish(one)
        for tag, kind in settled.items():
            self.settle(channel, tag, kind)
        # Dead letters are part of it: they are in their queues before anything is delivered.
        while self.letters:
            self._bury_letters()

    def close(self, channel: ModelChannel) -> None:
        """A channel goes: its consumers first, then what it holds comes back."""
        for queue in self.queues.values():
            queue.consumers = [c for c in queue.consumers if c.channel != channel.number]
        channel.publishes, channel.settled = [], {}
        for tag in sorted(channel.held):
            self.settle(channel, tag, REQUEUE)

    # --- time, and what outlives it

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for queue in self.queues.values():
            for lane in range(queue.shape.level_max + 1):
                self._expire_lane(queue, lane)
            self._expire_behind(queue)

    def _expire_lane(self, queue: ModelQueue, lane: int) -> None:
        for entry in [entry for entry in queue.ready if queue.lane(entry) == lane]:
            if not queue.is_expired(entry, self.now_ms):
                return
            queue.ready.remove(entry)
            self._discard(queue, entry, "expired")

    def _expire_behind(self, queue: ModelQueue) -> None:
        """What expires behind others, each at its time. What a restart has found waits until it is
        the first."""
        gone = [e for e in queue.ready if queue.is_expired(e, self.now_ms) and not e.found]
        for entry in sorted(gone, key=lambda entry: (queue.expires_ms(entry), entry.seq)):
            queue.ready.remove(entry)
            self._discard(queue, entry, "expired")

    def restart(self, entries: dict[str, list[Entry]], shapes: dict[str, Shape]) -> None:
        """Everybody has gone and these are left; what clients held may be beyond a bound now."""
        self.queues = {name: ModelQueue(shapes[name], some) for name, some in entries.items()}
        for queue in self.queues.values():
            self._enforce(queue)
        self.finish_action()

    def durable(self) -> dict[str, list[Entry]]:
        """What a restart must find if everything so far is on disk, in order of delivery."""
        found: dict[str, list[Entry]] = {}
        for name, queue in self.queues.items():
            if queue.shape.durable:
                kept = ModelQueue(queue.shape)
                kept.ready = [
                    replace(e, found=True, deaths=list(e.deaths))
                    for e in queue.ready + queue.unacked
                    if e.persistent
                ]
                kept.sort()
                found[name] = kept.ready
        return found


def _went_round(deaths: list[tuple[str, str, int]], target: str) -> bool:
    for where, why, _ in deaths:
        if why == "rejected":
            return False
        if where == target:
            return True
    return False
