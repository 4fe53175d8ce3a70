"""All streams that are active on this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.port import GroupLog
from rhizome.broker.streams.log import StreamGroupLog
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

    def durable(self) -> i64:
        """The number of the last batch that is safe."""
        raise NotImplementedError


@final
class Streams:
    """Invariant: ``active`` has the streams of all queues that have one; ``unsafe`` those with
    something that is not safe yet; ``whole`` is set while a transaction is carried out, and
    ``taking`` are the logs that have taken a part of it. ``held_bytes`` is what readers have read
    ahead."""

    broker: Broker
    port: StreamsPort
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
            self.open(queue)

    def open(self, queue: Queue) -> None:
        """A stream becomes active here."""
        log = self.port.open(queue.id)
        log.begin_epoch(log.epoch + 1)
        stream = Stream(self.broker, queue, log)
        self.active[queue.id] = stream
        stream.apply_options()

    def deleted(self, queue: Queue) -> None:
        stream = self.active.pop(queue.id, None)
        if stream is not None:
            self.unsafe.pop(stream, None)
            queue.stream = None
            self.port.remove(stream.log)

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
