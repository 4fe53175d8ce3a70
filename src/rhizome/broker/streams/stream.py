"""Stream: what makes a queue a stream. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.amqp.methods import BasicCancel
from rhizome.broker.fault_log import FAULT_QUEUE
from rhizome.broker.streams.log import StreamGroupLog
from rhizome.broker.streams.reader import StreamReader, name_of, start_of
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streamlog import (
    STREAM_SEGMENT_BYTES_DEFAULT,
    STREAM_SEGMENT_BYTES_MIN,
    StreamLog,
)

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.consumer import Consumer
    from rhizome.broker.queue import Queue


@final
class Stream:
    """A stream that is active on this broker, with the queue that it is known as.

    Invariant: the queue's lanes are empty, and its ``ready`` counts the messages that may be shown.
    ``readers`` has the reader of each of the queue's consumers.
    """

    broker: Broker
    queue: Queue
    log: StreamLog
    group_log: StreamGroupLog
    readers: dict[Consumer, StreamReader]

    def __init__(self, broker: Broker, queue: Queue, log: StreamLog, epoch: i64) -> None:
        self.broker = broker
        self.log = log
        self.group_log = StreamGroupLog(self, log, queue.definition.group, epoch)
        self.readers = {}
        self.become(queue)

    def become(self, queue: Queue) -> None:
        """Be known as this queue, which may have been made anew."""
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

    # ---- messages in ----------------------------------------------------------------------------

    def begin_append(self) -> None:
        """Something is about to be appended, the first since the last turn."""
        streams = self.broker.streams
        self.log.touched = True
        streams.unsafe[self] = None
        streams.port.touch(self.log)

    def synced(self, durable: i64) -> bool:
        """Batches up to a number are safe here; whether that is everything."""
        log = self.log
        if log.synced(durable):
            self.committed()
        return not log.touched and log.is_written()

    def committed(self) -> None:
        """More of the log may be shown and confirmed than before (L1, G6)."""
        group_log = self.group_log
        if group_log.recovering:
            return
        index = self.log.committed
        group_log.committed_disk = max(index, group_log.committed_disk)
        group_log.committed_memory = max(index, group_log.committed_memory)
        group_log.unsure.committed(index, index)
        queue = self.queue
        if queue.stream is self:
            self._count()
            if queue.consumer_count > 0 and not queue.marked:
                queue.touch()

    def let_go(self) -> None:
        """The stream is deleted: whoever waits for what was published to it waits for nothing."""
        self.group_log.committed_disk = self.group_log.next_index - 1
        self.group_log.committed_memory = self.group_log.next_index - 1

    def _count(self) -> None:
        log = self.log
        self.queue.ready = log.committed - log.first
        self.queue.ready_bytes = log.size

    # ---- messages out ---------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        """A consumer begins where its arguments say, or after what its name has done with."""
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
        """Let each consumer have what it has credit for."""
        if not self.broker.may_deliver or self.group_log.still:
            return
        for reader in list(self.readers.values()):
            try:
                reader.pump()
            except CorruptRecord as error:
                self._cancel(reader.consumer, error)

    def _cancel(self, consumer: Consumer, error: CorruptRecord) -> None:
        """What a consumer should get next can't be read: better nothing than a hole."""
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
        self.retire(now_ms)

    def retire(self, now_ms: i64) -> None:
        """Drop the oldest segments if there is more than the queue's options allow."""
        options = self.queue.options
        if options.retained_bytes_max < 0 and options.age_max_ms < 0:
            return
        dead = self.log.retire(now_ms, options.retained_bytes_max, options.age_max_ms)
        if len(dead) > 0:
            if self.log.pending() and not self.log.touched:
                self.begin_append()
            self.broker.streams.port.remove_segments(self.log, dead)
            self._count()

    def forget_origin(self, origin: i64) -> None:
        """An edge won't come back: its numbers are of no use any more (A1)."""
        if not self.log.touched:
            self.begin_append()
        self.log.forget_origin(origin)

    def note_offset(self, name: bytes, offset: i64) -> None:
        """A consumer of this name has done with everything up to an offset (-1: forget it)."""
        if not self.log.touched:
            self.begin_append()
        self.log.note_offset(name, offset)
