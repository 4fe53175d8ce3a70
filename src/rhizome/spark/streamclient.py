"""Reading streams of a cluster: their bounds, and ranges of their offsets in chunks.

All of it is AMQP with the consumer argument `x-stream-chunks`: any broker of the cluster answers,
and a reader goes on at its offset on another connection when one breaks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rhizome.amqp import methods
from rhizome.amqp.properties import decode_properties
from rhizome.client.address import Address
from rhizome.client.errors import ConnectionLost
from rhizome.client.events import ContentReceived, MethodReceived
from rhizome.errors import NotFound, PreconditionFailed, RhizomeError
from rhizome.spark.wire import Wire, connect_patiently, is_passing

PREFETCH_CHUNKS: Final = 32
ACK_CHUNKS: Final = 8
BATCH_BYTES: Final = 2 << 20
"""Chunks are handed on together from this size on: a batch of some thousand rows is cheapest."""
POLL_SECONDS: Final = 1.0
PARTITIONS_MAX: Final = 1000


class DataLossError(RhizomeError):
    """Offsets that were to be read are gone; the text names them and says what may be done."""


class StreamTimeoutError(RhizomeError):
    """Nothing came for too long."""


class NoStreamError(RhizomeError):
    """What was to be read is no stream; the text says what was found."""


@dataclass(frozen=True)
class Milliseconds:
    """A time, as a place in a stream."""

    since_1970: int


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


def _consume(wire: Wire, stream: str, offset: object, tag: str) -> None:
    arguments: dict[str, object] = {"x-stream-chunks": True}
    if isinstance(offset, Milliseconds):
        arguments["x-stream-time-ms"] = offset.since_1970
    else:
        arguments["x-stream-offset"] = offset
    wire.call(
        methods.BasicConsume(queue=stream, consumer_tag=tag, arguments=arguments),
        methods.BasicConsumeOk,
    )


def _deliveries(wire: Wire, seconds: float) -> list[Chunk]:
    found = []
    for event in wire.poll(seconds):
        if isinstance(event, ContentReceived):
            found.append(_chunk_of(event))
        elif isinstance(event, MethodReceived) and isinstance(event.method, methods.BasicCancel):
            # The stream moved, or was deleted: consuming again tells which.
            raise ConnectionLost("the broker ended the consumer")
    return found


class StreamClient:
    """Asks for bounds over one connection that it keeps. Pickled it takes only the addresses."""

    def __init__(self, addresses: Sequence[Address], patience_s: float) -> None:
        self.addresses = addresses
        self.patience_s = patience_s
        self._wire: Wire | None = None
        self._asked = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"addresses": self.addresses, "patience_s": self.patience_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["addresses"], state["patience_s"])  # type: ignore[misc]

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    # --- questions

    def bounds(self, stream: str, offset: object = "next") -> Bounds:
        """The bounds of a stream, and what `offset` (a number, "first", "next", a time) is."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return self._ask(stream, offset)
            except PreconditionFailed as error:
                self._drop()
                raise NoStreamError(f"'{stream}' is no stream: {error.text}") from None
            except (RhizomeError, OSError) as error:
                self._drop()
                if not is_passing(error) or time.monotonic() > deadline:
                    raise

    def bounds_at(self, stream: str, time_ms: int) -> Bounds:
        """The bounds, with `start` the first offset at or after a time."""
        return self.bounds(stream, Milliseconds(time_ms))

    def exists(self, queue: str) -> bool:
        """Whether there is a queue, or stream, of this name."""
        deadline = time.monotonic() + self.patience_s
        asked = methods.QueueDeclare(queue=queue, passive=True)
        while True:
            try:
                self._connected().call(asked, methods.QueueDeclareOk)
                return True
            except NotFound:
                self._drop()
                return False
            except (RhizomeError, OSError) as error:
                self._drop()
                if not is_passing(error) or time.monotonic() > deadline:
                    raise

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

    def _ask(self, stream: str, offset: object) -> Bounds:
        wire = self._connected()
        self._asked += 1
        tag = f"bounds-{self._asked}"
        _consume(wire, stream, offset, tag)
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            for chunk in _deliveries(wire, POLL_SECONDS):
                wire.send(methods.BasicCancel(tag, True))
                wire.send(methods.BasicAck(chunk.tag, True))
                return chunk.bounds
        raise StreamTimeoutError(f"stream '{stream}' said nothing for {self.patience_s:g} s")

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = connect_patiently(self.addresses, "rhizome.spark", self.patience_s)
            # One delivery tells the bounds; a second, of messages, must not come.
            self._wire.call(methods.BasicQos(prefetch_count=1), methods.BasicQosOk)
        return self._wire

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.drop()
            self._wire = None


class RangeReader:
    """Reads the offsets from `start` up to `end` of a stream, through broken connections.

    With `fail_on_loss` offsets that are gone raise DataLossError; else they are passed over.

    Invariant: everything below `next` was yielded or is gathered, whatever becomes of connections.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        stream: str,
        start: int,
        end: int,
        patience_s: float,
        fail_on_loss: bool,
        first_address: int = 0,
    ) -> None:
        self.addresses = addresses
        self.stream = stream
        self.next = start
        self.end = end
        self.patience_s = patience_s
        self.fail_on_loss = fail_on_loss
        self.first_address = first_address
        self._heard_s = time.monotonic()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def chunks(self) -> Iterator[bytes]:
        """Whole chunks that cover the range, several at a time."""
        while self.next < self.end:
            try:
                yield from self._session()
            except (RhizomeError, OSError) as error:
                if not is_passing(error) or self._is_late():
                    raise
                self.first_address += 1
        if self._gathered:
            yield self._take_gathered()

    def _take_gathered(self) -> bytes:
        data = b"".join(self._gathered)
        self._gathered = []
        self._gathered_bytes = 0
        return data

    def _is_late(self) -> bool:
        return time.monotonic() - self._heard_s > self.patience_s

    def _session(self) -> Iterator[bytes]:
        """One connection, until the range is read or the connection breaks."""
        name = f"rhizome.spark {self.stream} {self.next}-{self.end}"
        wire = connect_patiently(self.addresses, name, self.patience_s, self.first_address)
        with wire:
            wire.call(methods.BasicQos(prefetch_count=PREFETCH_CHUNKS), methods.BasicQosOk)
            _consume(wire, self.stream, self.next, "range")
            unacked = 0
            while self.next < self.end:
                for chunk in self._received(wire):
                    unacked += 1
                    if unacked >= ACK_CHUNKS:
                        wire.send(methods.BasicAck(chunk.tag, True))
                        unacked = 0
                    if self._take(chunk):
                        self._gathered.append(chunk.data)
                        self._gathered_bytes += len(chunk.data)
                    if self._gathered_bytes >= BATCH_BYTES:
                        yield self._take_gathered()

    def _received(self, wire: Wire) -> list[Chunk]:
        found = _deliveries(wire, POLL_SECONDS)
        if found:
            self._heard_s = time.monotonic()
        elif self._is_late():
            raise StreamTimeoutError(
                f"stream '{self.stream}' sent nothing for {self.patience_s:g} s, and offsets "
                f"{self.next} to {self.end - 1} are still to come"
            )
        return found

    def _take(self, chunk: Chunk) -> bool:
        """Whether the chunk has offsets of the range; goes on behind them."""
        if chunk.count == 0:
            self._check_bounds(chunk.bounds)
            return False
        if self.next >= self.end or chunk.first + chunk.count <= self.next:
            return False
        if chunk.first > self.next:
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
                f"offsets {start} to {end - 1} of stream '{self.stream}' are gone: retention has "
                "dropped them, or the stream was declared anew. Set the option failOnDataLoss to "
                "false to go on without them, or begin with a new checkpoint"
            )
