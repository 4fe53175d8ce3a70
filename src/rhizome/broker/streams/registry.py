"""All streams that are active on this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.port import GroupLog
from rhizome.broker.streams.log import StreamGroupLog
from rhizome.broker.streams.rules import is_stream
from rhizome.broker.streams.stream import Stream
from rhizome.journal.streamlog import StreamLog

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue import Queue

EVERY_MS: Final = 1_000
"""How often retention is looked at, and what consumers have done with is noted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamsPort:
    """Where streams are kept; the shell implements it on its store."""

    def open(self, stream: i64) -> StreamLog:
        """The log of a stream, which is new if there is none."""
        raise NotImplementedError

    def touch(self, log: StreamLog) -> None:
        """Something is appended to a log in this turn."""
        raise NotImplementedError

    def remove_segments(self, log: StreamLog, segments: list[int]) -> None:
        raise NotImplementedError

    def remove(self, log: StreamLog) -> None:
        """A stream is deleted."""
        raise NotImplementedError

    def remove_others(self, streams: list[int]) -> None:
        """Remove what is left of streams that aren't among these."""
        raise NotImplementedError

    def durable(self) -> i64:
        """The number of the last batch that is safe."""
        raise NotImplementedError


@final
class Streams:
    """Invariant: ``active`` has the streams of all queues that have one, ``logs`` the logs of all
    that had one since this broker started; ``unsafe`` are streams with
    something that is not safe yet; ``whole`` is set while a transaction is carried out, and
    ``taking`` are the logs that have taken a part of it. ``held_bytes`` is what readers have read
    ahead."""

    broker: Broker
    port: StreamsPort
    logs: dict[int, StreamLog]
    active: dict[int, Stream]
    unsafe: dict[Stream, None]
    whole: bool
    taking: list[StreamGroupLog]
    held_bytes: i64
    _durable: i64
    _looked_ms: i64

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.port = StreamsPort()
        self.logs = {}
        self.active = {}
        self.unsafe = {}
        self.whole = False
        self.taking = []
        self.held_bytes = 0
        self._durable = 0
        self._looked_ms = 0

    def made(self, queue: Queue) -> None:
        """A queue was made; if it is a stream and is active here, it gets its log."""
        if queue.options.queue_type == "stream" and queue.away is None:
            self.open(queue, 0)

    def open(self, queue: Queue, epoch: i64) -> Stream:
        """A stream becomes active here, in this epoch or a later one."""
        log = self.logs.get(queue.id)
        if log is None:
            log = self.port.open(queue.id)
            self.logs[queue.id] = log
        log.begin_epoch(max(epoch, log.epoch + 1))
        stream = Stream(self.broker, queue, log, epoch)
        self.active[queue.id] = stream
        stream.apply_options()
        return stream

    def close(self, queue: Queue) -> None:
        """A stream is no longer active here. Its log stays as it is, and gets safe."""
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
        log = self.logs.pop(queue.id, None)
        if log is not None:
            self.port.remove(log)

    def forget_others(self) -> None:
        """Have everything removed that is of streams which are not known any more."""
        self.port.remove_others(
            [queue.id for queue in self.broker.shared.values() if is_stream(queue.options)]
        )

    # ---- turns ----------------------------------------------------------------------------------

    def synced(self) -> None:
        """The store has come further, perhaps with streams."""
        durable = self.port.durable() if len(self.unsafe) > 0 else self._durable
        if durable == self._durable:
            return
        self._durable = durable
        for stream in list(self.unsafe):
            if stream.synced(durable):
                self.unsafe.pop(stream, None)

    def tick(self, now_ms: i64) -> None:
        if now_ms - self._looked_ms < EVERY_MS:
            return
        self._looked_ms = now_ms
        for stream in list(self.active.values()):
            stream.tick(now_ms)

    # ---- transactions ---------------------------------------------------------------------------

    def begin(self) -> None:
        """What is appended until ``commit`` belongs together, stream by stream."""
        self.whole = True

    def commit(self, needed: dict[GroupLog, int]) -> None:
        """Add the index in each log that must be safe before the transaction may be answered."""
        self.whole = False
        taking = self.taking
        self.taking = []
        for log in taking:
            needed[log] = log.commit()
