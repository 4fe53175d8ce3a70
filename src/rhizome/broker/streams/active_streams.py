"""All streams that are active on this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.streams.stream import Stream
from rhizome.broker.streams.stream_group_log import StreamGroupLog
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.journal.streams.stream_log import StreamLog

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue.queue import Queue

EVERY_MS: Final = 1_000
"""How often retention is checked and the progress of consumers recorded."""


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamsPort:
    """Where streams are kept; the shell implements it on its store."""

    def open(self, stream: i64) -> StreamLog:
        """The log of a stream, which is new if there is none."""
        raise NotImplementedError

    def has(self, stream: i64) -> bool:
        """Whether the store has anything of a stream."""
        raise NotImplementedError

    def cut(self, log: StreamLog, number: i64) -> StreamLog:
        """The same log without the chunks after one (0: without any). Nothing of the log may be
        waiting to be written."""
        raise NotImplementedError

    def touch(self, log: StreamLog) -> None:
        """Something is appended to a log in this turn."""
        raise NotImplementedError

    def remove_segments(self, log: StreamLog, segments: list[int]) -> None:
        raise NotImplementedError

    def remove(self, log: StreamLog) -> None:
        """A stream is deleted."""
        raise NotImplementedError

    def clear(self, stream: i64) -> None:
        """Remove a stream that can't be opened from the store."""
        raise NotImplementedError

    def remove_others(self, streams: list[int]) -> None:
        """Remove what is left of streams that aren't among these."""
        raise NotImplementedError

    def durable(self) -> i64:
        """The number of the last batch that is safe."""
        raise NotImplementedError


@final
class Streams:
    """Invariant: ``active`` has the streams of all queues that have one. ``logs`` has the logs of
    all streams that were active since this broker started, or that it keeps a copy of. ``unsafe``
    are streams, and ``copied`` logs of copies, with something that is not safe yet. ``whole`` is
    set while a transaction is carried out, and ``taking`` are the logs that have taken a part of
    it. ``held_bytes`` is what readers have read ahead. ``readers_refused`` counts positions that
    were reported and not kept, because a stream or its vhost has too many names."""

    broker: Broker
    port: StreamsPort
    logs: dict[int, StreamLog]
    active: dict[int, Stream]
    unsafe: dict[Stream, None]
    copied: dict[StreamLog, None]
    whole: bool
    taking: list[StreamGroupLog]
    held_bytes: i64
    readers_refused: i64
    _durable: i64
    _looked_ms: i64

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.port = StreamsPort()
        self.logs = {}
        self.active = {}
        self.unsafe = {}
        self.copied = {}
        self.whole = False
        self.taking = []
        self.held_bytes = 0
        self.readers_refused = 0
        self._durable = 0
        self._looked_ms = 0

    def made(self, queue: Queue) -> None:
        """A queue was made; if it is a stream and active here, open its log."""
        if queue.options.queue_type == "stream" and queue.away is None and queue.stream is None:
            self.open(queue, 0)

    def open(self, queue: Queue, epoch: i64) -> Stream:
        """A stream becomes active here, in this epoch or a later one."""
        log = self.log_of(queue.id)
        log.begin_epoch(max(epoch, log.epoch + 1))
        stream = Stream(self.broker, queue, log, epoch)
        self.active[queue.id] = stream
        stream.apply_options()
        return stream

    def log_of(self, stream: i64) -> StreamLog:
        """The log of a stream, active here or not."""
        log = self.logs.get(stream)
        if log is None:
            log = self.port.open(stream)
            self.logs[stream] = log
        return log

    def close(self, queue: Queue) -> None:
        """A stream is no longer active here. Its log stays, and what was appended becomes safe."""
        if self.active.pop(queue.id, None) is not None:
            queue.stream = None
            queue.ready = 0
            queue.ready_bytes = 0
            queue.seen = None
            queue.use_log(self.broker.log)

    def deleted(self, queue: Queue) -> None:
        stream = self.active.pop(queue.id, None)
        if stream is not None:
            self.unsafe.pop(stream, None)
            queue.stream = None
            stream.let_go()
        if is_stream(queue.options):
            self.drop(queue.id)

    def forget_others(self) -> None:
        """Have the store remove streams that no longer exist."""
        self.port.remove_others(
            [queue.id for queue in self.broker.shared.values() if is_stream(queue.options)]
        )

    # ---- copies ---------------------------------------------------------------------------------

    def has(self, stream: i64) -> bool:
        """Whether the store has anything of a stream."""
        return stream in self.logs or self.port.has(stream)

    def touch(self, log: StreamLog) -> None:
        """Something was appended to the log of a copy."""
        if not log.touched:
            log.touched = True
            self.copied[log] = None
            self.port.touch(log)

    def cut(self, stream: i64, number: i64) -> StreamLog:
        """Drop the chunks after one from a copy, all of which is written."""
        log = self.port.cut(self.logs[stream], number)
        self.logs[stream] = log
        return log

    def drop(self, stream: i64) -> None:
        """Remove a stream from this broker."""
        log = self.logs.pop(stream, None)
        if log is not None:
            self.copied.pop(log, None)
            self.port.remove(log)
        elif self.port.has(stream):
            # A copy that was not opened since this broker started.
            self.port.clear(stream)

    # ---- turns ----------------------------------------------------------------------------------

    def synced(self) -> None:
        """The store has synced more, perhaps of streams."""
        if len(self.unsafe) == 0 and len(self.copied) == 0:
            return
        durable = self.port.durable()
        if durable == self._durable:
            return
        self._durable = durable
        for log in list(self.copied):
            log.synced(durable)
            if not log.touched and log.is_written():
                del self.copied[log]
        for stream in list(self.unsafe):
            if stream.synced(durable):
                self.unsafe.pop(stream, None)

    def tick(self, now_ms: i64) -> None:
        if now_ms - self._looked_ms < EVERY_MS:
            return
        self._looked_ms = now_ms
        for stream in list(self.active.values()):
            stream.tick(now_ms)

    def has_room_for_reader(self, vhost: str) -> bool:
        """Whether the streams of a vhost that are active here may have one more named reader."""
        count: i64 = 0
        for stream in self.active.values():
            if stream.queue.vhost == vhost:
                count += stream.positions.count()
        return count < self.broker.limits.stream_readers_max

    # ---- transactions ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction: what is appended until ``commit`` belongs together, stream by
        stream."""
        self.whole = True

    def commit(self, needed: dict[GroupLog, int]) -> None:
        """Add the index in each log that must be safe before the transaction may be answered."""
        self.whole = False
        taking = self.taking
        self.taking = []
        for log in taking:
            needed[log] = log.commit()
