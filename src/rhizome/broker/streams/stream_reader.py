"""StreamReader: one consumer of a stream and its place there. Compiled.

Segments are read in runs of ``RUN_BYTES``; a chunk is checked once, and its entries go out as they
are stored. An ack is credit for another delivery and nothing else, unless the consumer has a name:
then it also moves the position recorded for that name. With ``x-stream-chunks`` each chunk goes out
whole, as one delivery (chunk_delivery.py). With ``x-stream-filter`` chunks that can't match are
skipped unread (stream_filters.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.field_table import Timestamp
from rhizome.broker.message import Message, Route
from rhizome.broker.message_batch_content import FRAME_BYTES_MAX
from rhizome.broker.metadata.declare_and_consume_arguments import parse_age_ms
from rhizome.broker.queue.queue_consumer import Reader
from rhizome.broker.streams.chunk_delivery import (
    CHUNKS_ARGUMENT,
    TIME_ARGUMENT,
    chunk_content,
    chunk_tail,
)
from rhizome.broker.streams.stream_arguments import NAME_ARGUMENT, OFFSET_ARGUMENT
from rhizome.broker.streams.stream_filters import StreamFilter, filter_of
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import u16_at
from rhizome.journal.streams.bloom_filter import BloomView
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    CONTENT_CHANNEL,
    KIND_FILTER,
    KIND_MESSAGES,
    STREAM_HEADER_BYTES,
    ChunkHead,
    check_chunk,
    entry_end,
    entry_tail_at,
)
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.journal.streams.stream_lookup import NO_OFFSET

if TYPE_CHECKING:
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.streams.stream import Stream

RUN_BYTES: Final = 256 * 1024
FILTERED_RUN_BYTES: Final = 4 * 1024
"""How much a consumer with a filter reads at once before it knows that it wants a chunk."""
PASSED_WORK_MAX: Final = 4_096
"""How much a reader skips in one turn, in units of a turn's work (turn.py): a message is 1, a chunk
``CHUNK_WORK``."""
PASSED_WORK_MIN: Final = 256
"""The same in a turn that is full already: others may fill every turn."""
CHUNK_WORK: Final = 16
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""How many bytes all readers of a broker may keep of what they have read ahead. Beyond that a
reader whose consumer has no credit drops its bytes and reads them again later."""


def name_of(arguments: dict[str, object]) -> bytes:
    """The name under which a consumer's progress is recorded; empty if it has none."""
    name = arguments.get(NAME_ARGUMENT)
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else b""


def start_of(log: StreamLog, name: bytes, arguments: dict[str, object], now_ms: i64) -> i64:
    """The first offset that a consumer gets: the one after what its name has acknowledged. If there
    is no name or nothing is recorded for it, the offset at ``x-stream-time-ms``, or what
    ``x-stream-offset`` asks for."""
    if len(name) > 0 and name in log.offsets:
        return _within(log, log.offsets[name] + 1)
    at_ms = arguments.get(TIME_ARGUMENT)
    if isinstance(at_ms, int):
        return log.offset_at(max(0, min(at_ms, 1 << 60)))
    wanted = arguments.get(OFFSET_ARGUMENT, "next")
    if isinstance(wanted, Timestamp):
        return log.offset_at(min(wanted.seconds, 1 << 50) * 1000)
    if isinstance(wanted, int):
        return _within(log, max(-1, min(wanted, 1 << 62)))
    if wanted == "first":
        return log.first
    if wanted == "last":
        return _within(log, log.committed - 1)
    if isinstance(wanted, str) and wanted != "next":
        return log.offset_at(now_ms - parse_age_ms(wanted))
    return log.committed


def start_at(consumer: Consumer, offset: i64) -> None:
    """Fix the first offset of a consumer. If it is attached again before it got anything, it asks
    for this offset, whatever was appended meanwhile."""
    arguments = dict(consumer.arguments)
    arguments.pop(TIME_ARGUMENT, None)
    arguments[OFFSET_ARGUMENT] = int(offset)
    consumer.arguments = arguments


def _within(log: StreamLog, offset: i64) -> i64:
    """The nearest offset that exists."""
    if offset < log.first:
        return log.first
    return offset if offset < log.committed else log.committed


@final
class Progress:
    """What a named consumer has acknowledged, in whatever order.

    Invariant: everything it was sent below ``floor`` is acknowledged. ``done`` maps offsets above
    that which are acknowledged, or which retention dropped before they were sent, to the offsets
    after them.
    """

    floor: i64
    noted: i64
    done: dict[int, int]

    def __init__(self, start: i64) -> None:
        self.floor = start
        self.noted = start
        self.done = {}

    def resume(self, held: list[int], after: i64) -> None:
        """Everything before ``after`` was sent, and all of it but ``held`` is acknowledged."""
        self.done = {}
        self.floor = after
        at: i64 = len(held) - 1
        while at >= 0:
            offset: i64 = held[at]
            if offset + 1 < self.floor:
                self.done[offset + 1] = self.floor
            self.floor = offset
            at -= 1

    def skipped(self, offset: i64, to: i64) -> None:
        """The offsets from one up to another will never be sent."""
        if offset == self.floor:
            self._advance(to)
        else:
            self.done[offset] = to

    def settled(self, offset: i64) -> None:
        if offset == self.floor:
            self._advance(offset + 1)
        elif offset > self.floor:
            self.done[offset] = offset + 1

    def _advance(self, floor: i64) -> None:
        done = self.done
        while len(done) > 0:
            after = done.pop(floor, 0)
            if after == 0:
                break
            floor = after
        self.floor = floor


@final
class StreamReader(Reader):
    """Invariant: ``next`` is the offset that is delivered next. Its chunk, or one before it, begins
    at ``position`` of ``segment``, unless it is the current one: then its entry begins at ``_at``
    of ``_data``, and the chunk lies from ``_chunk_at`` to ``_chunk_end``. ``_data`` begins at
    ``_base`` of the segment; all of it was safe when it was read. ``chunked``: it delivers chunks,
    and first of all the bounds of the stream, while it is ``announcing``.

    ``filter`` is None for consumers that want everything. ``_bloom`` is the last Bloom filter that
    was met. ``passed_from`` is the first of the skipped offsets before ``next`` that are not
    reported yet, -1 if there are none. ``passed_work`` is what skipping took in this turn,
    ``work_max`` what it may take. ``_expected`` is the offset that the next chunk must have, if the
    one before it was skipped unchecked; else -1.
    """

    stream: Stream
    consumer: Consumer
    name: bytes
    progress: Progress | None
    segment: i64
    position: i64
    chunked: bool
    announcing: bool
    filter: StreamFilter | None
    passed_from: i64
    passed_work: i64
    work_max: i64
    _bloom: BloomView | None
    _expected: i64
    _data: bytes
    _base: i64
    _at: i64
    _chunk_at: i64
    _chunk_end: i64
    _frame_max: i64
    _route: Route

    def __init__(self, stream: Stream, consumer: Consumer, name: bytes, start: i64) -> None:
        super().__init__()
        self.stream = stream
        self.consumer = consumer
        self.name = name
        self.progress = Progress(start) if len(name) > 0 else None
        self.next = start
        self.segment = 0
        self.position = 0
        self.chunked = consumer.arguments.get(CHUNKS_ARGUMENT) is True
        self.announcing = self.chunked
        self.filter = filter_of(consumer.arguments)
        self.passed_from = -1
        self.passed_work = 0
        self.work_max = PASSED_WORK_MAX
        self._bloom = None
        self._expected = -1
        self._data = b""
        self._base = 0
        self._at = 0
        self._chunk_at = 0
        self._chunk_end = 0
        self._frame_max = 0
        self._route = stream.broker.pager.route_last
        self._seek(start)

    # ---- delivering -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver until the consumer has no credit or there is nothing more that is visible."""
        if self.filter is not None:
            self._pump_filtered()
            return
        consumer = self.consumer
        start = self.next
        deliveries: i64 = 0
        try:
            while consumer.can_take():
                if self.announcing:
                    self._announce(consumer)
                elif self._at == self._chunk_end and not self._next_chunk():
                    break
                elif self.chunked:
                    self._deliver_chunk(consumer)
                else:
                    self._deliver(consumer)
                deliveries += 1
        finally:
            queue = self.stream.queue
            queue.unacked += deliveries
            queue.delivered += self.next - start
            if self.stream.broker.streams.held_bytes > HELD_BYTES_MAX:
                self._let_go()

    def _pump_filtered(self) -> None:
        """Deliver to a consumer with a filter. When nothing is left to send, a consumer of chunks
        gets a delivery without a chunk that says how far the stream was searched."""
        consumer = self.consumer
        queue = self.stream.queue
        turn = self.stream.broker.turn
        self.passed_work = 0
        self.work_max = PASSED_WORK_MIN if turn.is_full() else PASSED_WORK_MAX
        try:
            while consumer.can_take():
                start = self.next
                if self.announcing:
                    self._announce(consumer)
                elif self._at == self._chunk_end and not self._next_chunk():
                    if not self.chunked or self.passed_from < 0:
                        break
                    self.passed_from = -1
                    self._announce(consumer)
                    start = self.next
                elif self.chunked:
                    start = self.next
                    self.passed_from = -1
                    self._deliver_chunk(consumer)
                elif self._find_entry():
                    self._settle_passed()
                    start = self.next
                    self._deliver(consumer)
                elif self.passed_work >= self.work_max:
                    break
                else:
                    continue
                queue.unacked += 1
                queue.delivered += self.next - start
        finally:
            self._settle_passed()
            turn.work += self.passed_work
            if self.passed_work >= self.work_max:
                queue.postpone()
            if self.stream.broker.streams.held_bytes > HELD_BYTES_MAX:
                self._let_go()

    def _find_entry(self) -> bool:
        """Go to the next entry of the current chunk that matches; False if there is none, or if
        this turn is full."""
        wanted = self.filter
        assert wanted is not None
        data = self._data
        while self._at < self._chunk_end and self.passed_work < self.work_max:
            content_at: i64 = entry_tail_at(data, self._at) + u16_at(data, self._at + 4)
            after = entry_end(data, self._at)
            if wanted.matches(data[content_at:after]):
                return True
            self._at = after
            self._pass_to(self.next + 1)
            self.passed_work += 1
        return False

    def _passes_over(self, head: ChunkHead) -> bool:
        """Skip a chunk if nothing in it can match; return whether it was skipped."""
        wanted = self.filter
        bloom = self._bloom
        after = head.first + head.count
        if wanted is None or bloom is None or head.kind != KIND_MESSAGES or after <= self.next:
            return False
        if not bloom.speaks_of(head) or wanted.may_match(bloom):
            return False
        self._pass_to(after)
        self._expected = after
        self.passed_work += CHUNK_WORK
        self.position += head.size
        return True

    def _pass_to(self, offset: i64) -> None:
        if self.passed_from < 0:
            self.passed_from = self.next
        self.next = offset

    def _settle_passed(self) -> None:
        """Count what a named consumer was not sent as acknowledged."""
        if self.progress is not None and self.passed_from >= 0:
            self.progress.skipped(self.passed_from, self.next)
        if not self.chunked:
            self.passed_from = -1

    def wake(self) -> None:
        queue = self.stream.queue
        if queue.ready > 0 and not queue.marked:
            queue.touch()

    def _deliver(self, consumer: Consumer) -> None:
        data = self._data
        at = self._at
        tail_at = entry_tail_at(data, at)
        content_at: i64 = tail_at + u16_at(data, at + 4)
        after = entry_end(data, at)
        tail = data[tail_at:content_at]
        route = self._route
        if route.tail != tail:
            route = self.stream.broker.pager.route(tail)
            self._route = route
        message = Message(route, data[content_at:after], CONTENT_CHANNEL, self._frame_max)
        offset = self.next
        message.index = offset + 1
        self._at = after
        self.next = offset + 1
        consumer.deliver(message, False)
        # Held until it is settled, for its place and not for its content.
        message.content = b""

    def _announce(self, consumer: Consumer) -> None:
        """Deliver the bounds of the stream, and where this consumer starts."""
        self.announcing = False
        self._deliver_bytes(consumer, b"", self.next, 0)

    def _deliver_chunk(self, consumer: Consumer) -> None:
        """Deliver the current chunk whole; the receiver skips what is before ``next``."""
        head = ChunkHead(self._data, self._chunk_at)
        chunk = self._data[self._chunk_at : self._chunk_end]
        self._at = self._chunk_end
        self.next = head.first + head.count
        self._deliver_bytes(consumer, chunk, head.first, head.count)

    def _deliver_bytes(self, consumer: Consumer, chunk: bytes, offset: i64, count: i64) -> None:
        log = self.stream.log
        content = chunk_content(chunk, offset, count, log.first, log.committed, log.size)
        tail = chunk_tail(self.stream.queue.name)
        if self._route.tail != tail:
            self._route = self.stream.broker.pager.route(tail)
        message = Message(self._route, content, CONTENT_CHANNEL, FRAME_BYTES_MAX)
        message.index = offset + count
        consumer.deliver(message, False)
        message.content = b""

    def go_on_after(self, index: i64) -> None:
        """The consumer was attached before, and has received everything up to this index."""
        self.next = _within(self.stream.log, index)
        self.announcing = False
        self._seek(self.next)
        if self.progress is not None:
            self.progress.resume(self._held(), self.next)

    def _held(self) -> list[int]:
        """The offsets that the consumer has not settled, ascending."""
        unacked = self.consumer.channel.unacked
        held: list[int] = []
        for tag in unacked.tags():
            message = unacked.message(tag)
            if message is not None and unacked.consumer(tag) is self.consumer:
                held.append(message.index - 1)
        held.sort()
        return held

    # ---- reading --------------------------------------------------------------------------------

    def _next_chunk(self) -> bool:
        """Go to the chunk that has ``next``; False if that is not visible yet."""
        log = self.stream.log
        if self.next < log.first:
            self._skip_to(log.first)
        run_bytes: i64 = RUN_BYTES if self.filter is None else FILTERED_RUN_BYTES
        while self.next < log.committed:
            at = self.position - self._base
            if at + CHUNK_HEADER_BYTES > len(self._data):
                if not self._fill(run_bytes):
                    continue
                at = 0
            head = ChunkHead(self._data, at)
            if head.first > self.next or (self._expected >= 0 and head.first != self._expected):
                raise CorruptRecord(f"offset {head.first}, not {self.next},", self.position)
            if self.filter is not None:
                if self.passed_work >= self.work_max:
                    return False
                if self._passes_over(head):
                    continue
                self._expected = -1
            if at + head.size > len(self._data):
                if not self._fill(max(head.size, run_bytes)):
                    continue
                at = 0
                if head.size > len(self._data):
                    raise CorruptRecord("a chunk that is not whole", self.position)
            if head.kind == KIND_FILTER and self.filter is not None:
                check_chunk(self._data, at, head.size)
                self._bloom = BloomView(head, self._data, at)
            self.position += head.size
            if head.kind == KIND_MESSAGES and head.first + head.count > self.next:
                self._enter(head, at)
                return True
        self._drop_data()
        return False

    def _enter(self, head: ChunkHead, at: i64) -> None:
        """Make a chunk the current one."""
        data = self._data
        check_chunk(data, at, head.size)
        entry: i64 = at + CHUNK_HEADER_BYTES
        offset = head.first
        while offset < self.next:
            entry = entry_end(data, entry)
            offset += 1
        self._at = entry
        self._chunk_at = at
        self._chunk_end = at + head.size
        self._frame_max = head.frame_max

    def _fill(self, length: i64) -> bool:
        """Read on at ``position``; False if that has changed."""
        log = self.stream.log
        limit = log.end_of(self.segment) - self.position
        if limit > 0:
            if length > limit:
                length = limit
            data = log.files.read(log.id, self.segment, self.position, length)
            if len(data) >= CHUNK_HEADER_BYTES:
                self._hold(data)
                return True
        after = log.segment_after(self.segment)
        if after == 0:
            raise CorruptRecord(f"no offset {self.next}", self.position)
        self.segment = after
        self.position = STREAM_HEADER_BYTES
        self._drop_data()
        return False

    def _skip_to(self, offset: i64) -> None:
        """Retention has dropped what would have come next."""
        self._settle_passed()
        if self.progress is not None:
            self.progress.skipped(self.next, offset)
        if self.filter is not None and self.chunked and self.passed_from < 0:
            self.passed_from = self.next
        self.next = offset
        self._seek(offset)

    def _seek(self, offset: i64) -> None:
        place = self.stream.log.find(offset)
        self._expected = -1
        self.segment = place.segment
        self.position = place.position
        self._drop_data()

    def _hold(self, data: bytes) -> None:
        self.stream.broker.streams.held_bytes += len(data) - len(self._data)
        self._data = data
        self._base = self.position

    def _drop_data(self) -> None:
        self._hold(b"")
        self._at = 0
        self._chunk_end = 0

    def _let_go(self) -> None:
        """Keep nothing in memory; the current chunk will be read again."""
        if self._at < self._chunk_end:
            self.position = self._base + self._chunk_at
        self._drop_data()

    # ---- settling -------------------------------------------------------------------------------

    def settled(self, message: Message) -> None:
        """A delivery was acknowledged, or given up."""
        stream = self.stream
        queue = stream.queue
        queue.unacked -= 1
        queue.acked += 1
        if self.progress is not None:
            self.progress.settled(message.index - 1)
        more = self.next < stream.log.committed or self.passed_from >= 0
        if more and not queue.marked and not queue.deleted:
            queue.touch()

    def given_up(self) -> None:
        """A delivery was not acknowledged, and the consumer is gone."""
        self.stream.queue.unacked -= 1

    def note(self) -> None:
        """Record what was acknowledged since the last time."""
        progress = self.progress
        if progress is not None and progress.floor > progress.noted:
            progress.noted = progress.floor
            if progress.floor - 1 > self.stream.log.offsets.get(self.name, NO_OFFSET):
                self.stream.note_offset(self.name, progress.floor - 1)

    def detach(self) -> None:
        """The consumer is gone."""
        self.stream.readers.pop(self.consumer, None)
        self.note()
        self.progress = None
        self._drop_data()

    def remembered(self) -> i64:
        """The offset up to which the consumer has acknowledged everything; -1 if it has no name."""
        return NO_OFFSET if self.progress is None else self.progress.floor - 1
