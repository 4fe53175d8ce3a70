"""Queue: ready messages, consumers, and the rules between them.

A queue is told about messages one at a time but acts once per turn: ``dispatch`` hands ready
messages to consumers, round robin within the highest priority that can take one. What leaves the
queue for good goes through ``forget``, which is the only place that settles a message with the log
and the pager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import EVERYTHING, GroupLog
from rhizome.broker.message import NO_EXPIRATION, Message, body_bytes, is_journaled
from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.broker.queue.consumer_priority import PriorityLevel
from rhizome.broker.queue.due_heap import ExpiryIndex
from rhizome.broker.queue.last_value import LastValues
from rhizome.broker.queue.priority_lane import UNUSED_LANE, KeyedLane, Lane
from rhizome.broker.queue.publisher_flow_control import CONGESTED_BYTES, FlowControl
from rhizome.broker.queue.queue_consumer import LEASE_ARGUMENT, QueueConsumer
from rhizome.broker.queue.queue_host import QueueHost, QueueStream, RemoteHome
from rhizome.broker.queue.queue_message_totals import (
    ready_body_bytes,
    ready_indexes,
    unacked_durable_bytes,
)
from rhizome.broker.queue.redelivered_flag import was_delivered, with_delivery_count
from rhizome.broker.queue_keys.keyed_dispatch import KeyedDispatch
from rhizome.broker.routing.recent_history_exchange import HISTORY_PREFIX
from rhizome.broker.turn import (
    DISCARD_WORK,
    LETTER_WORK,
    SEARCHED_AT_ONCE_MAX,
    SEARCHED_PER_WORK,
    MarkedQueue,
    decoding_work,
)
from rhizome.journal.dedup_state import DedupState
from rhizome.journal.errors import CorruptRecord

if TYPE_CHECKING:
    from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
    from rhizome.broker.queue.priority_lane import Lane
    from rhizome.broker.queue.queue_host import InternalQueueWorker


def claim(queue: Queue, index: i64) -> Message | None:
    """Take the ready message of this index; it counts as unacked. None if it isn't ready."""
    for lane in queue.lanes:
        message = _take(queue, lane, index)
        if message is None:
            continue
        queue.discount(message)
        queue.unacked += 1
        return message
    return None


def _take(queue: Queue, lane: Lane, index: i64) -> Message | None:
    message = lane.take(index)
    if message is None and lane.paged_count > 0:
        position = lane.paged.remove(index)
        if position != 0:
            lane.paged_count -= 1
            try:
                message = queue.broker.pager.read_one(position, CLAIMED_BYTES)
            except (CorruptRecord, OSError):
                message = queue.broker.damage.held(queue, lane, index, position)
            queue.broker.pager.charge(queue, message)
    return message


CLAIMED_BYTES: Final = 4096
"""How much is read for one message at first; what is longer takes a second read."""

NEVER_MS: Final = 1 << 62
DELAYED_QUEUE: Final = "amq.delayed"
"""The queue of each vhost for messages that are held for x-delayed-message exchanges."""


REASON_REJECTED: Final = "rejected"
REASON_EXPIRED: Final = "expired"
REASON_MAXLEN: Final = "maxlen"
REASON_DELIVERY_LIMIT: Final = "delivery_limit"


@final
class Queue(MarkedQueue):
    """One queue. If it is shared and active on another broker, ``away`` leads there, and nothing is
    ever ready here. ``worker`` processes it if it is an internal queue of a group
    (`internal_queues.py`).

    Invariant: ``ready`` is the sum of the lanes' ready messages; ``unacked`` counts deliveries not
    yet settled; ``expected`` counts the brokers whose consumers may come back when their link does;
    ``ready_bytes`` adds up the contents of the ready ones, and ``body_bytes`` their bodies, but
    only if ``bytes_max`` bounds these.
    """

    broker: QueueHost
    definition: QueueDefinition
    id: i64
    log: GroupLog
    durable: bool
    recorded: bool
    options: QueueArguments
    lanes: list[Lane]
    lane: Lane
    single: bool
    ready: i64
    ready_bytes: i64
    body_bytes: i64
    durable_bytes: i64
    unacked: i64
    resident_bytes: i64
    counts: dict[int, int]
    may_expire: bool
    bounded: bool
    plain: bool
    levels: list[PriorityLevel]
    searched: i64
    """How many consumers that could take nothing were passed in search of one that could."""
    consumer_count: i64
    had_consumer: bool
    releases: i64
    """How many channels are putting messages back over several turns; nothing is delivered
    meanwhile."""
    expected: i64
    active: QueueConsumer | None
    successor: QueueConsumer | None
    """The consumer of a higher priority that becomes active when the active one holds nothing."""
    exclusive: bool
    flow_control: FlowControl
    delivered_bytes: i64
    settled_marked: bool
    settled: list[int]
    settled_durable: bool
    shown_marked: bool
    shown_before: i64
    last_values: LastValues | None
    keys: KeyedDispatch | None
    """If this is a keyed queue: which of its messages goes to which consumer."""
    seen: DedupState | None
    last_used_ms: i64
    published: i64
    delivered: i64
    acked: i64
    redelivered: i64
    retrying: bool
    held: i64
    """How many messages wait for their retry; they count as unacked."""
    held_bytes: i64
    held_up: bool
    """Nothing is delivered because too many messages wait for their retry."""
    restored: dict[int, None]
    """Messages that had come back before this broker became their home: whether they waited for
    their retry isn't known, so they wait again."""
    away: RemoteHome | None
    stream: QueueStream | None
    worker: InternalQueueWorker | None
    expiries: ExpiryIndex | None
    """Which messages expire before others that are ahead of them; None if none came that could."""
    holds: bool
    """Its messages wait for the time that they ask for (`delayed_messages.py`)."""
    of_broker: bool
    """The broker alone puts messages into it: what waits for its time, and what an exchange
    remembers. No exchange leads here, or publishers could forge whose messages these are."""

    def __init__(self, broker: QueueHost, definition: QueueDefinition) -> None:
        super().__init__(definition.vhost, definition.name)
        self.broker = broker
        self.definition = definition
        self.id = definition.id
        self.durable = definition.durable and not definition.exclusive_owner
        self.use_log(broker.log)
        self.lanes = []
        self.lane = Lane()
        self.single = True
        self.ready = 0
        self.ready_bytes = 0
        self.body_bytes = 0
        self.durable_bytes = 0
        self.unacked = 0
        self.resident_bytes = 0
        self.counts = {}
        self.may_expire = False
        self.bounded = False
        self.levels = []
        self.searched = 0
        self.consumer_count = 0
        self.had_consumer = False
        self.expected = self.releases = 0
        self.active = self.successor = None
        self.exclusive = False
        self.marked = False
        self.flow_control = FlowControl()
        self.delivered_bytes = 0
        self.settled_marked = False
        self.settled = []
        self.settled_durable = False
        self.shown_marked = False
        self.shown_before = -1
        self.last_values = self.keys = self.seen = None
        self.last_used_ms = broker.turn.now_ms
        self.published = self.delivered = self.acked = self.redelivered = 0
        self.retrying = self.held_up = self.deleted = False
        self.held = self.held_bytes = 0
        self.restored = {}
        self.away = None
        self.stream = self.worker = self.expiries = None
        self.holds = definition.name == DELAYED_QUEUE
        self.of_broker = self.holds or definition.name.startswith(HISTORY_PREFIX)
        self._prepare_lanes(definition.options)
        self.apply_options(definition.options)

    def use_log(self, log: GroupLog) -> None:
        """Record what happens to this queue in this log."""
        self.log = log
        self.recorded = self.durable or log.replicated

    def is_active_here(self) -> bool:
        return self.away is None

    def is_kept_here(self) -> bool:
        """Whether its messages are here, including while its home is being moved away (G11)."""
        return self.away is None or self.log.replicated

    def apply_options(self, options: QueueArguments) -> None:
        """Take over arguments merged with policy; called again whenever a policy changes."""
        if self.holds:
            options = options.of_held_messages()
        self.options = options
        if options.message_ttl_ms >= 0:
            self.may_expire = True
        for lane in self.lanes:
            if lane.is_made():
                lane.fresh_index = -1
        was_bounded = self.bounded
        self.bounded = options.length_max >= 0 or options.bytes_max >= 0
        if self.bounded and not was_bounded and self.ready > 0:
            self.body_bytes = ready_body_bytes(self)
        if options.last_value_key is not None and self.last_values is None:
            self.last_values = LastValues(options.last_value_key)
        self.plain = (
            not self.bounded
            and self.single
            and self.last_values is None
            and self.keys is None
            and options.message_ttl_ms < 0
            and options.queue_type != "stream"
        )
        if self.bounded:
            self._enforce_bounds()
        self.retrying = options.delays_retries()
        if self.may_expire or options.expires_ms >= 0:
            self.broker.watch_expiry(self)

    def _prepare_lanes(self, options: QueueArguments) -> None:
        """Quorum queues have priorities without being asked: they begin with one lane."""
        self.single = options.priority_max == 0 or options.queue_type == "quorum"
        self.lanes = [UNUSED_LANE] * (1 if self.single else int(options.priority_max) + 1)
        if options.group_key is None:
            self.lane = self.made_lane(0)
        else:
            lane = KeyedLane()
            self.lanes = [lane]
            self.lane = lane
            self.keys = KeyedDispatch(self, lane, options.group_key, options.group_fair)

    def prepare_for(self, priority: i64) -> None:
        """A message of this priority is about to come: make room for lanes if it needs one."""
        if self.single and priority > 0 and self.options.priority_max > 0:
            self.lanes.extend([UNUSED_LANE] * int(self.options.priority_max))
            self.single = self.plain = False

    # ---- messages in ----------------------------------------------------------------------------

    def accepts(self, message: Message) -> bool:
        """False if the queue's own limits refuse the message (overflow reject-publish).

        Only messages that stay in the queue count: waiting consumers get their share first.
        """
        if not self.bounded or self.options.overflow == "drop-head" or self.log.still:
            return True
        if self._is_full(message) and self.consumer_count > 0:
            self.dispatch(self.broker.turn.now_ms)
            return not self._is_full(message) or (self.ready == 0 and self._is_awaited())
        return not self._is_full(message)

    def _is_full(self, message: Message) -> bool:
        """Whether one more message would be beyond a limit."""
        options = self.options
        if options.length_max >= 0 and self.ready >= options.length_max:
            return True
        bytes_max = options.bytes_max
        return bytes_max >= 0 and self.body_bytes + body_bytes(message.content) > bytes_max

    def _is_awaited(self) -> bool:
        """Whether a consumer could take a message at once."""
        for level in self.levels:
            for consumer in level.consumers():
                if consumer.can_take():
                    return True
        return False

    def push(self, message: Message) -> None:
        """Append a message that the log has taken."""
        self.published += 1
        if self.recorded and message.position != 0:
            self.durable_bytes += len(message.content)
        if (
            self.plain
            and message.expiration_ms == NO_EXPIRATION
            and (message.priority == 0 or self.options.priority_max == 0)
        ):
            self.broker.pager.admit(self, self.lane, message)
            self._count(message)
            if not self.marked:
                self.touch()
            return
        self._push_special(message)

    def _push_special(self, message: Message) -> None:
        if self.stream is not None:
            return
        self.prepare_for(message.priority)
        if message.expiration_ms != NO_EXPIRATION or self.expiries is not None:
            self._note_expiry(message)
        if self.last_values is not None:
            self._supersede(message)
        self.broker.pager.admit(self, self.lane_of(message), message)
        self._count(message)
        if self.keys is not None:
            self.keys.arrived(message)
        if not self.marked:
            self.touch()
        if self.bounded:
            self._enforce_bounds()

    def keep_for_later(self, message: Message) -> None:
        """Append a message that the log has taken and that nobody gets before its time: on disk
        only."""
        self.published += 1
        if self.recorded and message.position != 0:
            self.durable_bytes += len(message.content)
        self.broker.pager.page(self, self.lane, message)
        self._count(message)

    def _note_expiry(self, message: Message) -> None:
        """Note a message with a time of its own, or one that comes after such a message."""
        alone = self.ready == 0 and self.unacked == 0
        found = self._made_expiries()
        found.note(message.index, self.expires_ms(message), self.published, alone)

    def _made_expiries(self) -> ExpiryIndex:
        if not self.may_expire:
            self.may_expire = True
            self.broker.watch_expiry(self)
        if self.expiries is None:
            self.expiries = ExpiryIndex()
        return self.expiries

    def _count(self, message: Message) -> None:
        self.ready += 1
        self.ready_bytes += len(message.content)
        if self.bounded:
            self.body_bytes += body_bytes(message.content)

    def discount(self, message: Message) -> None:
        """A message is no longer ready."""
        self.uncount(message)
        if self.last_values is not None:
            self.last_values.take(message.index, message.content)
        if self.keys is not None:
            self.keys.taken(message)

    def uncount(self, message: Message) -> None:
        """The same, where indexes by key don't matter."""
        self.ready -= 1
        self.ready_bytes -= len(message.content)
        if self.bounded:
            self.body_bytes -= body_bytes(message.content)

    def _supersede(self, message: Message) -> None:
        assert self.last_values is not None
        self.broker.turn.work += decoding_work(message.content)
        older = self.last_values.put(message.index, message.content)
        gone = claim(self, older) if older >= 0 else None
        if gone is not None:
            self.unacked -= 1
            self.forget(gone)

    def lane_of(self, message: Message) -> Lane:
        if self.single:
            return self.lane
        top: i64 = len(self.lanes) - 1
        return self.made_lane(message.priority if message.priority < top else top)

    def made_lane(self, priority: i64) -> Lane:
        """The lane of a priority, made if there was nothing of it before."""
        lane = self.lanes[priority]
        if lane is UNUSED_LANE:
            lane = Lane()
            self.lanes[priority] = lane
        return lane

    def _enforce_bounds(self) -> None:
        """Drop from the head until the queue is within its bounds.

        Only messages that stay count: waiting consumers get their share before anything is dropped.
        """
        if self.options.overflow == "drop-head" and self._is_beyond():
            if self.consumer_count > 0:
                self.dispatch(self.broker.turn.now_ms)
            else:
                self._drop_beyond()

    def _drop_beyond(self) -> None:
        dropped: i64 = 0
        while self._is_beyond():
            if self.broker.turn.is_too_full(dropped):
                self.postpone()
                return
            message = self.next_message(-1)
            if message is None:
                # Appended in this turn; the queue is dispatched again in the next.
                return
            self.discard(message, REASON_MAXLEN)
            dropped += 1

    def _is_beyond(self) -> bool:
        """Whether the queue holds more than its limits allow."""
        options = self.options
        return (
            self.ready > 0
            and not self.log.still
            and (
                (options.length_max >= 0 and self.ready > options.length_max)
                or (options.bytes_max >= 0 and self.body_bytes > options.bytes_max)
            )
        )

    def touch(self) -> None:
        """Ask for a dispatch at the end of this turn."""
        self.marked = True
        self.broker.turn.queues.append(self)

    def postpone(self) -> None:
        """Ask for a dispatch in the next turn: this one has done enough."""
        if not self.marked:
            self.marked = True
            self.broker.turn.postponed.append(self)

    # ---- messages out ---------------------------------------------------------------------------

    def next_message(self, now_ms: i64) -> Message | None:
        """Take the first ready message that has not expired (``now_ms`` -1: don't look).

        None with ``ready`` above 0 means that the rest is being written to disk and cannot be read
        yet, or has to wait for the next turn, because this one is full or so many had expired.
        """
        expired: i64 = 0
        while self.ready > 0:
            lane = self.lane if self.single else self._top_lane()
            message = lane.pop()
            if message is None:
                if lane.paged_count == 0:
                    return None
                if self.broker.turn.is_full():
                    self.postpone()
                    return None
                if not self.broker.pager.fill(self, lane):
                    return None
                continue
            self.discount(message)
            if self.may_expire and now_ms >= 0 and self.is_withheld(message, now_ms):
                expired += 1
                if self.broker.turn.is_too_full(expired):
                    self.postpone()
                    return None
                continue
            return message
        return None

    def is_withheld(self, message: Message, now_ms: i64) -> bool:
        """Whether a message that was just taken isn't delivered: it is discarded if it has expired,
        and waits for its retry if it did so at the home before."""
        if self.is_expired(message, now_ms):
            self.discard(message, REASON_EXPIRED)
            return True
        if len(self.restored) == 0 or message.index not in self.restored:
            return False
        del self.restored[message.index]
        if not self.retrying:
            return False
        return self._hold(message, self.counts.get(message.index, 1))

    def _top_lane(self) -> Lane:
        at: i64 = len(self.lanes) - 1
        while at > 0:
            lane = self.lanes[at]
            if lane.ready() > 0:
                return lane
            at -= 1
        return self.lanes[0]

    def is_expired(self, message: Message, now_ms: i64) -> bool:
        # Not in the same instant: with a TTL of 0 a message may still go to a waiting consumer.
        return now_ms > self.expires_ms(message)

    def expires_ms(self, message: Message) -> i64:
        """When a message expires in this queue: the queue's time or its own, whichever is less."""
        ttl = self.options.message_ttl_ms
        expiration = message.expiration_ms
        if expiration != NO_EXPIRATION and (ttl < 0 or expiration < ttl):
            ttl = expiration
        return message.arrived_ms + ttl if ttl >= 0 else NEVER_MS

    def dispatch(self, now_ms: i64) -> None:
        """Deliver ready messages to consumers until one of the two runs out."""
        self.marked = False
        if self.stream is not None:
            self.stream.dispatch()
            return
        if self.worker is not None:
            self.worker.run()
            return
        if (
            self.ready > 0
            and self.consumer_count > 0
            and self.broker.may_deliver
            and self.releases == 0
        ):
            self.searched = 0
            if self.keys is None:
                self._deliver_ready(now_ms)
            else:
                self.delivered += self.keys.dispatch(now_ms)
        if self.bounded and self.options.overflow == "drop-head":
            self._drop_beyond()
        if self.flow_control.congested or self.ready_bytes > CONGESTED_BYTES:
            self.flow_control.update(self, now_ms)

    def _deliver_ready(self, now_ms: i64) -> None:
        delivered: i64 = 0
        last: Message | None = None
        limited = self.log.visible < EVERYTHING
        while self.ready > 0:
            if limited and not self.may_show_first():
                break
            consumer = self.next_consumer()
            if consumer is None:
                break
            message = self.next_message(now_ms)
            if message is None:
                break
            self.deliver(consumer, message)
            delivered += 1
            last = message
            if self.searched > SEARCHED_AT_ONCE_MAX and self.search_waits():
                break
        self.delivered += delivered
        if last is not None and self.durable_bytes > 0:
            self.broker.delivered_marks.note(self, last)

    def may_show_first(self) -> bool:
        """Whether the first message is committed (L1); if not, the queue is touched when it is."""
        lane = self.lane if self.single else self._top_lane()
        if lane.first_index() <= self.log.visible:
            return True
        self.log.waiting.append(self)
        return False

    def deliver(self, consumer: QueueConsumer, message: Message) -> None:
        redelivered = was_delivered(self, message)
        if redelivered:
            self.redelivered += 1
            message = with_delivery_count(self, message)
        self.delivered_bytes += len(message.content)
        consumer.deliver(message, redelivered)
        if consumer.no_ack:
            self.forget(message)
        else:
            self.unacked += 1
            if self.durable_bytes > 0 and (not self.single or self.keys is not None):
                self.broker.delivered_marks.note(self, message)

    def next_consumer(self) -> QueueConsumer | None:
        active = self.active
        if active is not None:
            if self.successor is not None and not self._hands_over(active):
                return None
            active = self.active
            return active if active is not None and active.can_take() else None
        for level in self.levels:
            consumer = level.next()
            if level.passed > 0:
                self.searched += level.passed
                level.passed = 0
            if consumer is not None:
                return consumer
        return None

    def search_waits(self) -> bool:
        """After a search for a consumer that can take more: count it, and put the rest off to the
        next turn if this one is full. Each message may have to pass thousands that can't."""
        turn = self.broker.turn
        turn.work += self.searched // SEARCHED_PER_WORK
        self.searched = 0
        if not turn.is_full():
            return False
        self.postpone()
        return True

    # ---- settling -------------------------------------------------------------------------------

    def ack(self, message: Message) -> None:
        self.unacked -= 1
        self.acked += 1
        self.forget(message)
        if self.ready > 0 and not self.marked:
            self.touch()

    def reject(self, message: Message) -> None:
        """Settle an unacked message negatively: it is dead-lettered or dropped."""
        self.unacked -= 1
        self.discard(message, REASON_REJECTED)
        if self.ready > 0 and not self.marked:
            self.touch()

    def requeue(self, message: Message) -> None:
        """Put an unacked message back at its place, at once or when its retry is due, unless it
        reached its delivery limit."""
        self.unacked -= 1
        if self.deleted:
            self.forget(message)
            return
        count = self.counts.get(message.index, 0) + 1
        limit = self.options.delivery_limit
        if limit < 0:
            limit = self._default_delivery_limit()
        if limit >= 0 and count > limit:
            self.discard(message, REASON_DELIVERY_LIMIT)
        elif self._is_over(message):
            self.discard(message, REASON_EXPIRED)
        else:
            self.counts[message.index] = count
            durable = is_journaled(message)
            if self.recorded and (durable or self.log.replicated):
                self.log.requeue(self.id, message.index, count, durable)
            if not self.retrying or not self._hold(message, count):
                self._put_back(message)
        if self.ready > 0 and not self.marked:
            self.touch()

    def _is_over(self, message: Message) -> bool:
        """Whether a message that comes back is in its last instant: only its first delivery may
        still be made then."""
        if not self.may_expire or self.log.still:
            return False
        return self.broker.turn.now_ms >= self.expires_ms(message)

    def _default_delivery_limit(self) -> i64:
        """The limit of a queue that was declared without one; -1: none."""
        if self.options.queue_type != "quorum" or self.options.delivery_limit_given:
            return -1
        return self.broker.queue_limits.quorum_delivery_limit

    def _hold(self, message: Message, count: i64) -> bool:
        """Have a message wait for its retry. False if so many wait that there is no room for it."""
        if self._holds_more_than(2):
            return False
        self.restored.pop(message.index, None)
        self.unacked += 1
        self.held += 1
        self.held_bytes += len(message.content)
        if not self.held_up and self._holds_more_than(1):
            self.held_up = True
            self.releases += 1
        due_ms = self.broker.turn.now_ms + self.options.retry_delay_ms(count)
        self.broker.delay_retry(self, message, due_ms)
        if self.keys is not None:
            self.keys.delay(message.index)
        return True

    def _holds_more_than(self, times: i64) -> bool:
        """Whether so many times of what may wait for retries does."""
        limits = self.broker.queue_limits
        return (
            self.held > times * limits.retries_held_max
            or self.held_bytes > times * limits.retries_held_bytes_max
        )

    def retry(self, message: Message) -> None:
        """The retry of a message is due."""
        self.held -= 1
        self.held_bytes -= len(message.content)
        if self.held_up and not self._holds_more_than(1):
            self.held_up = False
            self.releases -= 1
        self.take_back(message)

    def forget_held(self) -> None:
        """What waits for its retry is no longer here, but at the next home."""
        if self.held_up:
            self.releases -= 1
        self.held_up = False
        self.held = self.held_bytes = 0

    def take_back(self, message: Message) -> None:
        """Put back a message that was sent to a consumer but never reached it."""
        self.unacked -= 1
        if self.deleted:
            self.forget(message)
            return
        self._put_back(message)
        if not self.marked:
            self.touch()

    def _put_back(self, message: Message) -> None:
        if len(message.content) == 0:
            self.broker.damage.put_back(self, message, "a client gave it back")
            return
        if self.last_values is not None and not self.last_values.put_back(
            message.index, message.content
        ):
            self.forget(message)
            return
        if self.holds:
            self.broker.put_back_scheduled(self, message)
            self._count(message)
            return
        if message.expiration_ms != NO_EXPIRATION or self.expiries is not None:
            self._made_expiries().put_back(message.index, self.expires_ms(message))
        self.lane_of(message).put_back(message)
        self._count(message)
        if self.keys is not None:
            self.keys.returned(message)
        if self.bounded and self.consumer_count == 0:  # else at the dispatch, when all are back
            self._enforce_bounds()

    def discard(self, message: Message, reason: str) -> None:
        """Remove a message unconsumed: dead-letter it if the queue says where, then forget it."""
        turn = self.broker.turn
        turn.work += DISCARD_WORK
        if self.options.dead_letter_exchange is not None and not self.deleted:
            if len(message.content) == 0:
                self.broker.damage.put_back(self, message, "it is dead, and can't be sent on")
                return
            turn.work += LETTER_WORK + decoding_work(message.content)
            self.broker.dead_letter(self, message, reason)
        self.forget(message)

    def forget(self, message: Message) -> None:
        """A message leaves this queue for good."""
        self.broker.pager.release(self, message)
        if len(self.counts) > 0:
            self.counts.pop(message.index, 0)
        if self.keys is not None:
            self.keys.settled(message.index)
        if self.recorded:
            if is_journaled(message):
                self.durable_bytes -= len(message.content)
                self.settled_durable = True
            elif not self.log.replicated:
                return
            self.settled.append(message.index)
            if not self.settled_marked:
                self.settled_marked = True
                self.broker.turn.settled.append(self)

    def write_settled(self) -> None:
        """Write the dequeues of this turn as one record."""
        self.settled_marked = False
        if not self.deleted:
            self._log_settled()
        self.settled = []
        self.settled_durable = False

    def _log_settled(self) -> None:
        if len(self.settled) > 0:
            self.log.dequeue(self.id, self.settled, self.settled_durable)

    def purge(self) -> i64:
        """Drop all ready messages, and those that are set aside; return how many were ready."""
        if self.held > 0:
            self.broker.return_delayed(self)
        count = self.ready
        if self.recorded and (count > 0 or self in self.broker.damage.aside):
            self._log_settled()
            self.settled = []
            if self.unacked == 0:
                self.log.purge(self.id, self.log.next_index - 1)
            else:
                # A purge names everything up to an index; unacked messages must survive it.
                self.log.dequeue(self.id, ready_indexes(self), True)
        self.drop_ready()
        return count

    def drop_ready(self) -> None:
        """Forget all ready messages, and those that are set aside, without logging."""
        if self.recorded:
            self.durable_bytes = unacked_durable_bytes(self)
        for lane in self.lanes:
            for message in lane.resident():
                self.broker.pager.release(self, message)
                self.counts.pop(message.index, 0)
            self.broker.pager.release_paged(lane.paged)
            if lane.is_made():
                lane.clear()
        if self.last_values is not None:
            self.last_values.clear()
        if self.holds:
            self.broker.forget_scheduled(self)
        if self.keys is not None:
            self.keys.clear_ready()
        self.expiries = None
        self.broker.damage.release(self)
        self.ready = 0
        self.ready_bytes = 0
        self.body_bytes = 0

    # ---- consumers ------------------------------------------------------------------------------

    def add_consumer(self, consumer: QueueConsumer) -> None:
        if LEASE_ARGUMENT in consumer.arguments:
            self.broker.attach_lease(consumer)
            return
        self.had_consumer = True
        self.consumer_count += 1
        if consumer.exclusive:
            self.exclusive = True
        self._level(consumer.priority).add(consumer)
        if self.options.single_active_consumer:
            if self._becomes_active(consumer):
                self.active = consumer
            self._choose_successor()
        if self.stream is not None:
            self.stream.attach(consumer)
        if self.ready > 0 and not self.marked:
            self.touch()

    def _becomes_active(self, consumer: QueueConsumer) -> bool:
        """Whether this consumer becomes the active one: the first, or at a new home the one that
        was active before."""
        active = self.active
        return active is None or (active.delivered == 0 and consumer.delivered > 0)

    def _choose_successor(self) -> None:
        """In quorum queues a consumer of a higher priority than the active one takes over from it,
        as in RabbitMQ 4.x."""
        first = self._first_consumer()
        self.successor = None
        if (
            first is not None
            and self.active is not None
            and first.priority > self.active.priority
            and self.options.queue_type == "quorum"
        ):
            self.successor = first

    def _hands_over(self, active: QueueConsumer) -> bool:
        """Let the successor become active. False while the active consumer still holds something:
        it gets nothing more, and nobody else gets anything."""
        successor = self.successor
        if successor is not None and successor.priority > active.priority:
            if active.unacked > 0:
                return False
            self.active = successor
        self.successor = None
        return True

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        self.broker.forget_lease(consumer)
        at = self._level_at(consumer.priority)
        if at < len(self.levels) and self.levels[at].remove(consumer):
            self.consumer_count -= 1
            if len(self.levels[at].members) == 0:
                del self.levels[at]
        if consumer.exclusive:
            self.exclusive = False
        if self.keys is not None:
            self.keys.consumer_gone(consumer)
        if self.active is consumer:
            self.active = self._first_consumer()
        if self.active is not None:
            self._choose_successor()
        self.last_used_ms = self.broker.turn.now_ms
        if self.ready > 0 and not self.marked:
            self.touch()

    def is_coming(self) -> bool:
        """Whether a client that asks for a message, and gets none, may soon get one that is there:
        it is being written, or isn't committed yet."""
        return self.ready > 0 and (self.keys is None or self.keys.is_coming())

    def is_over(self) -> bool:
        """Whether this is an auto-delete queue that has no consumers and expects none back."""
        return self.definition.auto_delete and self.consumer_count == 0 and self.expected == 0

    def _level(self, priority: i64) -> PriorityLevel:
        at = self._level_at(priority)
        if at < len(self.levels) and self.levels[at].priority == priority:
            return self.levels[at]
        level = PriorityLevel(priority)
        self.levels.insert(at, level)
        return level

    def _level_at(self, priority: i64) -> i64:
        """Where the level of this priority is or belongs; the highest comes first. Each consumer
        may have a priority of its own, so it is searched by halves."""
        low: i64 = 0
        high: i64 = len(self.levels)
        while low < high:
            middle = (low + high) // 2
            if self.levels[middle].priority > priority:
                low = middle + 1
            else:
                high = middle
        return low

    def _first_consumer(self) -> QueueConsumer | None:
        return self.levels[0].first() if len(self.levels) > 0 else None

    def consumers(self) -> list[QueueConsumer]:
        return [consumer for level in self.levels for consumer in level.consumers()]
