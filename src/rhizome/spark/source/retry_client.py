"""What clients of streams and of leases share: questions and ranges that outlive connections.

Any broker of the cluster answers. What a broken connection leaves open is asked again over another
one, for as long as patience lasts: to ask twice must do no harm.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from rhizome.amqp import methods
from rhizome.client.connection_uri import Address
from rhizome.client.errors import ConnectionLost
from rhizome.client.protocol_events import ContentReceived, MethodReceived
from rhizome.errors import RhizomeError
from rhizome.spark.amqp_socket import AmqpSocket, connect_patiently, is_passing

BATCH_BYTES: Final = 2 << 20
"""Deliveries are handed on together from this size on: a batch of some thousand rows is
cheapest."""
POLL_SECONDS: Final = 1.0
RANGE_TAG: Final = "range"
_CONNECTION: Final = "rhizome.spark"

T = TypeVar("T")


class DataLossError(RhizomeError):
    """What was to be read is gone; the text names it and says what may be done."""


class StreamTimeoutError(RhizomeError):
    """Nothing came for too long."""


def deliveries(wire: AmqpSocket, tag: str) -> list[ContentReceived]:
    """What has come for a consumer; of others, which are cancelled, something may still come."""
    found = []
    for event in wire.poll(POLL_SECONDS):
        if isinstance(event, ContentReceived):
            method = event.method
            if isinstance(method, methods.BasicDeliver) and method.consumer_tag == tag:
                found.append(event)
        elif isinstance(event, MethodReceived) and isinstance(event.method, methods.BasicCancel):
            # The queue moved, or was deleted: consuming again tells which.
            raise ConnectionLost("the broker ended the consumer")
    return found


class RetryClient:
    """Asks over one connection that it keeps. Pickled it leaves the connection behind."""

    def __init__(self, addresses: Sequence[Address], patience_s: float) -> None:
        self.addresses = addresses
        self.patience_s = patience_s
        self._wire: AmqpSocket | None = None
        self._asked = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_wire": None}

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def again(self, ask: Callable[[AmqpSocket], T]) -> T:
        """The answer to a question, asked again while only connections are to blame."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return ask(self.connected())
            except (RhizomeError, OSError) as error:
                self._drop()
                if not is_passing(error) or time.monotonic() > deadline:
                    raise

    def declared(self, queue: str) -> methods.QueueDeclareOk:
        """What a passive declaration of a queue says; raises NotFound if there is none."""
        asked = methods.QueueDeclare(queue=queue, passive=True)
        return self.again(lambda wire: wire.call(asked, methods.QueueDeclareOk))

    def tag(self) -> str:
        """A consumer tag that this connection has not had."""
        self._asked += 1
        return f"ask-{self._asked}"

    def first(self, wire: AmqpSocket, tag: str, queue: str) -> ContentReceived:
        """The first delivery of a consumer, which tells what was asked for."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            for event in deliveries(wire, tag):
                return event
        raise StreamTimeoutError(f"'{queue}' said nothing for {self.patience_s:g} s")

    def connected(self) -> AmqpSocket:
        if self._wire is None:
            self._wire = connect_patiently(self.addresses, _CONNECTION, self.patience_s)
            self._prepare(self._wire)
        return self._wire

    def _prepare(self, wire: AmqpSocket) -> None:
        """What a new connection needs before the first question."""

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.drop()
            self._wire = None


class RetryReader(ABC, Generic[T]):
    """Reads what lies from `start` up to `end` of a queue, through broken connections.

    With `fail_on_loss` what is gone raises DataLossError; else it is passed over.

    Invariant: everything below `next` was yielded or is gathered, whatever becomes of connections.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        queue: str,
        start: int,
        end: int,
        patience_s: float,
        fail_on_loss: bool,
        first_address: int,
    ) -> None:
        self.addresses = addresses
        self.queue = queue
        self.next = start
        self.end = end
        self.patience_s = patience_s
        self.fail_on_loss = fail_on_loss
        self.first_address = first_address
        self._heard_s = time.monotonic()
        self._gathered: list[T] = []
        self._gathered_bytes = 0

    @abstractmethod
    def _begin(self, wire: AmqpSocket) -> None:
        """Consume from `next` on, with the tag `RANGE_TAG`."""

    @abstractmethod
    def _take(self, wire: AmqpSocket, event: ContentReceived) -> None:
        """Gather what a delivery has of the range, and go on behind it."""

    @abstractmethod
    def _missing(self) -> str:
        """What is still to come, for people."""

    def helpings(self) -> Iterator[list[T]]:
        """All of the range, several deliveries at a time."""
        while self.next < self.end:
            try:
                yield from self._session()
            except (RhizomeError, OSError) as error:
                if not is_passing(error) or self._is_late():
                    raise
                self.first_address += 1
        yield from self.rest()

    def rest(self) -> Iterator[list[T]]:
        """What is gathered, if anything."""
        if self._gathered:
            found, self._gathered, self._gathered_bytes = self._gathered, [], 0
            yield found

    def gather(self, one: T, size_bytes: int) -> None:
        self._gathered.append(one)
        self._gathered_bytes += size_bytes

    def _session(self) -> Iterator[list[T]]:
        """One connection, until the range is read or the connection breaks."""
        name = f"{_CONNECTION} {self.queue} {self.next}-{self.end}"
        wire = connect_patiently(self.addresses, name, self.patience_s, self.first_address)
        with wire:
            self._begin(wire)
            while self.next < self.end:
                for event in self._received(wire):
                    self._take(wire, event)
                    if self._gathered_bytes >= BATCH_BYTES:
                        yield from self.rest()

    def _received(self, wire: AmqpSocket) -> list[ContentReceived]:
        found = deliveries(wire, RANGE_TAG)
        if found:
            self._heard_s = time.monotonic()
        elif self._is_late():
            raise StreamTimeoutError(
                f"'{self.queue}' sent nothing for {self.patience_s:g} s, and {self._missing()} "
                "are still to come"
            )
        return found

    def _is_late(self) -> bool:
        return time.monotonic() - self._heard_s > self.patience_s
