"""Stream: the part of a queue that makes it a stream. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.amqp.methods import BasicCancel
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.fault_log import FAULT_QUEUE
from rhizome.broker.queue.queue_consumer import QueueConsumer
from rhizome.broker.queue.queue_host import QueueStream
from rhizome.broker.streams.reader_positions import ReaderPositions
from rhizome.broker.streams.stream_filters import bloom_bytes_of
from rhizome.broker.streams.stream_group_log import StreamGroupLog
from rhizome.broker.streams.stream_reader import StreamReader, name_of, start_of
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streams.stream_log import (
    STREAM_SEGMENT_BYTES_DEFAULT,
    STREAM_SEGMENT_BYTES_MIN,
    StreamLog,
)

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue.queue import Queue


@final
class Stream(QueueStream):
    """A stream that is active on this broker, with its queue.

    Invariant: the queue's lanes are empty, and its ``ready`` counts the visible messages.
    ``readers`` has the reader of each of the queue's consumers.
    """

    broker: Broker
    queue: Queue
    log: StreamLog
    group_log: StreamGroupLog
    readers: dict[Consumer, StreamReader]
    positions: ReaderPositions

    def __init__(self, broker: Broker, queue: Queue, log: StreamLog, epoch: i64) -> None:
        self.broker = broker
        self.log = log
        self.group_log = StreamGroupLog(self, log, queue.definition.group, epoch)
        self.readers = {}
        self.positions = ReaderPositions(self)
        self.become(queue)

    def become(self, queue: Queue) -> None:
        """Attach this stream to a queue, which may have been made again."""
        self.queue = queue
        queue.stream = self
        queue.use_log(self.group_log)
        # Nothing of a stream is recorded in the journal.
        queue.recorded = False
        queue.seen = self.log.seen
        self._count()

    def apply_options(self) -> None:
        """Take over the queue's options, which a policy may have changed."""
        size = self.queue.options.segment_bytes_max
        if size < 0:
            size = STREAM_SEGMENT_BYTES_DEFAULT
        self.log.segment_bytes_max = max(size, STREAM_SEGMENT_BYTES_MIN)
        self.log.bloom.size = bloom_bytes_of(self.queue.definition.arguments)

    # ---- messages in ----------------------------------------------------------------------------

    def begin_append(self) -> None:
        """Something is about to be appended, the first since the last turn."""
        streams = self.broker.streams
        self.log.touched = True
        streams.unsafe[self] = None
        streams.port.touch(self.log)

    def synced(self, durable: i64) -> bool:
        """Batches up to a number are safe here; return whether that is everything."""
        log = self.log
        if log.synced(durable):
            self.committed()
        return not log.touched and log.is_written()

    def committed(self) -> None:
        """More of the log may be delivered and confirmed than before (L1, G6)."""
        group_log = self.group_log
        if group_log.silent:
            return
        index = self.log.committed
        group_log.committed_disk = max(index, group_log.committed_disk)
        group_log.committed_memory = max(index, group_log.committed_memory)
        group_log.uncommitted.committed(index, index)
        queue = self.queue
        if queue.stream is self:
            self._count()
            if queue.consumer_count > 0 and not queue.marked:
                queue.touch()

    def let_go(self) -> None:
        """The stream is deleted: confirms that wait for it wait no longer."""
        self.group_log.committed_disk = self.group_log.next_index - 1
        self.group_log.committed_memory = self.group_log.next_index - 1

    def _count(self) -> None:
        log = self.log
        self.queue.ready = log.committed - log.first
        self.queue.ready_bytes = log.size

    # ---- messages out ---------------------------------------------------------------------------

    def attach(self, consumer: QueueConsumer) -> None:
        assert isinstance(consumer, Consumer), "what consumes a stream belongs to a channel"
        self.positions.take(consumer.arguments, self.broker.turn.now_ms)
        name = name_of(consumer.arguments)
        start = start_of(self.log, name, consumer.arguments, self.broker.turn.now_ms)
        reader = StreamReader(self, consumer, name, start)
        if consumer.reached > 0:
            reader.go_on_after(consumer.reached)
        consumer.reader = reader
        self.readers[consumer] = reader
        if not self.queue.marked:
            self.queue.touch()

    def dispatch(self) -> None:
        """Deliver to each consumer what it has credit for."""
        if not self.broker.may_deliver or self.group_log.still:
            return
        for reader in list(self.readers.values()):
            try:
                reader.pump()
            except CorruptRecord as error:
                self._cancel(reader.consumer, error)

    def _cancel(self, consumer: Consumer, error: CorruptRecord) -> None:
        """The next messages of a consumer can't be read: cancel it rather than leave a hole."""
        queue = self.queue
        where = f"stream '{queue.name}' in vhost '{queue.vhost}'"
        self.broker.report_bug(error, where, FAULT_QUEUE)
        channel = consumer.channel
        channel.consumers.pop(consumer.tag, None)
        if channel.connection.cancel_notify:
            channel.send(BasicCancel(consumer.tag, True))
        self.broker.remove_consumer(consumer)

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: i64) -> None:
        self.apply_options()
        if self.group_log.still:
            return
        for reader in self.readers.values():
            reader.note()
        self.positions.tick(now_ms)
        self.retire(now_ms)

    def retire(self, now_ms: i64) -> None:
        """Drop the oldest segments if there is more than the queue's options allow."""
        options = self.queue.options
        if options.retained_bytes_max < 0 and options.age_max_ms < 0:
            self.positions.at_risk.clear()
            return
        first = self.log.first
        dead = self.log.retire(now_ms, options.retained_bytes_max, options.age_max_ms)
        if len(dead) > 0:
            if self.log.pending() and not self.log.touched:
                self.begin_append()
            self.broker.streams.port.remove_segments(self.log, dead)
            self._count()
            self.positions.dropped(first, now_ms)
        self.positions.warn(now_ms)

    def forget_origin(self, origin: i64) -> None:
        """An edge won't come back: forget its numbers (A1)."""
        if not self.log.touched:
            self.begin_append()
        self.log.forget_origin(origin)

    def note_offset(self, name: bytes, offset: i64) -> bool:
        """Record that a consumer of this name has acknowledged everything up to an offset (-1:
        forget it). Returns False if the name is new and the vhost has too many."""
        streams = self.broker.streams
        if offset >= 0 and name not in self.log.offsets:
            if not streams.has_room_for_reader(self.queue.vhost):
                streams.readers_refused += 1
                return False
        if not self.log.touched:
            self.begin_append()
        self.log.note_offset(name, offset, self.broker.turn.now_ms)
        return True


def stream_of(queue: Queue) -> Stream | None:
    """The stream that a queue is, if it is active here."""
    stream = queue.stream
    return stream if isinstance(stream, Stream) else None
