"""Reading streams of a cluster: their bounds, and ranges of their offsets in chunks.

All of it is AMQP with the consumer argument `x-stream-chunks`: any broker of the cluster answers,
and a reader goes on at its offset on another connection when one breaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rhizome.amqp import methods
from rhizome.amqp.properties import decode_properties
from rhizome.client.connection_uri import Address
from rhizome.client.protocol_events import ContentReceived
from rhizome.errors import AccessRefused, NotFound, PreconditionFailed, RhizomeError
from rhizome.spark.amqp_socket import AmqpSocket
from rhizome.spark.source.retry_client import RANGE_TAG, DataLossError, RetryClient, RetryReader

PREFETCH_CHUNKS: Final = 32
ACK_CHUNKS: Final = 8
PARTITIONS_MAX: Final = 1000
DIRECTORY: Final = "amq.rhizome.streams"
"""The queue that is answered with the names of the streams that there are."""


class NoStreamError(RhizomeError):
    """What was to be read is no stream; the text says what was found."""


@dataclass(frozen=True)
class Milliseconds:
    """A time, as a place in a stream."""

    since_1970: int


@dataclass(frozen=True)
class Position:
    """How far a reader of this name is; `keep`: the broker is to remember it."""

    reader: str
    next: int
    keep: bool


@dataclass(frozen=True)
class Wanted:
    """Only messages with one of these filter values; `unfiltered`: those without any, too."""

    values: tuple[str, ...]
    unfiltered: bool


@dataclass(frozen=True)
class Bounds:
    """The offsets `first` to `next` - 1 can be read. `start` is what was asked for, as an offset.
    `size_bytes` is what they take on disk.
    """

    first: int
    next: int
    start: int
    size_bytes: int

    def message_bytes(self) -> int:
        """What a message takes on average, at least 1."""
        return max(1, self.size_bytes // max(1, self.next - self.first))


@dataclass(frozen=True)
class Chunk:
    """One delivery: messages from `first` on, or none with the bounds only."""

    tag: int
    first: int
    count: int
    bounds: Bounds
    data: bytes


def _chunk_of(event: ContentReceived) -> Chunk:
    method = event.method
    assert isinstance(method, methods.BasicDeliver)
    headers = decode_properties(event.header).headers or {}
    numbers = {name: value for name, value in headers.items() if isinstance(value, int)}
    if "x-stream-count" not in numbers:
        raise NoStreamError(
            "the broker delivers messages where chunks were asked for; it is too old, or none of "
            "Rhizome's"
        )
    bounds = Bounds(
        numbers["x-stream-first"],
        numbers["x-stream-next"],
        numbers["x-stream-offset"],
        numbers.get("x-stream-bytes", 0),
    )
    return Chunk(
        int(method.delivery_tag),
        numbers["x-stream-offset"],
        numbers["x-stream-count"],
        bounds,
        event.body,
    )


def _consume(
    wire: AmqpSocket,
    stream: str,
    offset: object,
    tag: str,
    position: Position | None = None,
    wanted: Wanted | None = None,
) -> None:
    arguments: dict[str, object] = {"x-stream-chunks": True}
    if wanted is not None:
        arguments["x-stream-filter"] = list(wanted.values)
        arguments["x-stream-match-unfiltered"] = wanted.unfiltered
    if position is not None:
        arguments["x-stream-reader"] = position.reader
        arguments["x-stream-reader-next"] = position.next
        arguments["x-stream-reader-keep"] = position.keep
    if isinstance(offset, Milliseconds):
        arguments["x-stream-time-ms"] = offset.since_1970
    else:
        arguments["x-stream-offset"] = offset
    wire.call(
        methods.BasicConsume(queue=stream, consumer_tag=tag, arguments=arguments),
        methods.BasicConsumeOk,
    )


def _short_strings(data: bytes) -> list[str]:
    found = []
    at = 0
    while at < len(data):
        after = at + 1 + data[at]
        found.append(data[at + 1 : after].decode("utf-8", "surrogateescape"))
        at = after
    return found


class StreamClient(RetryClient):
    """Asks for bounds of streams."""

    def bounds(
        self, stream: str, offset: object = "next", position: Position | None = None
    ) -> Bounds:
        """The bounds of a stream, and what `offset` (a number, "first", "next", a time) is. Tells
        the broker a position with the same question."""
        try:
            return self.again(lambda wire: self._ask(wire, stream, offset, position))
        except PreconditionFailed as error:
            raise NoStreamError(f"'{stream}' is no stream: {error.text}") from None

    def bounds_at(self, stream: str, time_ms: int) -> Bounds:
        """The bounds, with `start` the first offset at or after a time."""
        return self.bounds(stream, Milliseconds(time_ms))

    def exists(self, queue: str) -> bool:
        """Whether there is a queue, or stream, of this name."""
        try:
            self.declared(queue)
        except NotFound:
            return False
        return True

    def streams_of(self, name: str) -> list[str]:
        """The stream of this name, or the partitions NAME-0, NAME-1, ... of a partitioned one."""
        if self.exists(name):
            return [name]
        found: list[str] = []
        while len(found) < PARTITIONS_MAX and self.exists(f"{name}-{len(found)}"):
            found.append(f"{name}-{len(found)}")
        if not found:
            raise NotFound(
                f"there is no stream '{name}', and no partition '{name}-0' of one; declare it first"
            )
        return found

    def directory(self) -> list[str] | None:
        """The streams of the vhost that may be read; None if the brokers are too old to tell."""
        found: list[str] = []
        start = 0
        while start >= 0:
            try:
                body, start = self._directory_from(start)
            except (NotFound, AccessRefused):
                return None
            found += _short_strings(body)
        return found

    def _directory_from(self, start: int) -> tuple[bytes, int]:
        return self.again(lambda wire: self._ask_directory(wire, start))

    def _ask_directory(self, wire: AmqpSocket, start: int) -> tuple[bytes, int]:
        tag = self.tag()
        asked = methods.BasicConsume(
            queue=DIRECTORY, consumer_tag=tag, no_ack=True, arguments={"x-stream-from": start}
        )
        wire.call(asked, methods.BasicConsumeOk)
        event = self.first(wire, tag, DIRECTORY)
        after = (decode_properties(event.header).headers or {}).get("x-stream-next")
        return event.body, after if isinstance(after, int) else -1

    def _ask(
        self, wire: AmqpSocket, stream: str, offset: object, position: Position | None
    ) -> Bounds:
        tag = self.tag()
        _consume(wire, stream, offset, tag, position)
        chunk = _chunk_of(self.first(wire, tag, stream))
        wire.send(methods.BasicCancel(tag, True))
        wire.send(methods.BasicAck(chunk.tag, True))
        return chunk.bounds

    def _prepare(self, wire: AmqpSocket) -> None:
        # One delivery tells the bounds; a second, of messages, must not come.
        wire.call(methods.BasicQos(prefetch_count=1), methods.BasicQosOk)


class RangeReader(RetryReader[bytes]):
    """Reads offsets of a stream: all of them, or the chunks that may have what is `wanted`. Between
    those the broker passes over chunks, and it tells how far it has looked."""

    def __init__(
        self,
        addresses: Sequence[Address],
        stream: str,
        start: int,
        end: int,
        patience_s: float,
        fail_on_loss: bool,
        first_address: int = 0,
        wanted: Wanted | None = None,
    ) -> None:
        super().__init__(addresses, stream, start, end, patience_s, fail_on_loss, first_address)
        self._wanted = wanted
        self._unacked = 0

    def chunks(self) -> Iterator[bytes]:
        """Whole chunks that cover the range, several at a time."""
        for several in self.helpings():
            yield b"".join(several)

    def _begin(self, wire: AmqpSocket) -> None:
        wire.call(methods.BasicQos(prefetch_count=PREFETCH_CHUNKS), methods.BasicQosOk)
        _consume(wire, self.queue, self.next, RANGE_TAG, wanted=self._wanted)
        self._unacked = 0

    def _take(self, wire: AmqpSocket, event: ContentReceived) -> None:
        chunk = _chunk_of(event)
        self._unacked += 1
        if self._unacked >= ACK_CHUNKS:
            wire.send(methods.BasicAck(chunk.tag, True))
            self._unacked = 0
        if self._covers(chunk):
            self.gather(chunk.data, len(chunk.data))

    def _missing(self) -> str:
        return f"offsets {self.next} to {self.end - 1}"

    def _covers(self, chunk: Chunk) -> bool:
        """Whether the chunk has offsets of the range; goes on behind them."""
        if chunk.count == 0:
            self._check_bounds(chunk.bounds)
            self.next = max(self.next, chunk.first) if self._wanted is not None else self.next
            return False
        if self.next >= self.end or chunk.first + chunk.count <= self.next:
            return False
        if self._wanted is not None:
            self._check_bounds(chunk.bounds)
        elif chunk.first > self.next:
            self._lost(self.next, min(chunk.first, self.end))
        is_wanted = chunk.first < self.end
        self.next = chunk.first + chunk.count
        return is_wanted

    def _check_bounds(self, bounds: Bounds) -> None:
        if bounds.first > self.next:
            self._lost(self.next, min(bounds.first, self.end))
            self.next = bounds.first
        if bounds.next < self.end:
            # It was that long once: it was deleted and declared again, or cut.
            self._lost(max(bounds.next, self.next), self.end)
            self.end = bounds.next

    def _lost(self, start: int, end: int) -> None:
        if self.fail_on_loss:
            raise DataLossError(
                f"offsets {start} to {end - 1} of stream '{self.queue}' are gone: retention has "
                "dropped them, or the stream was declared anew. Set the option failOnDataLoss to "
                "false to go on without them, or begin with a new checkpoint"
            )
