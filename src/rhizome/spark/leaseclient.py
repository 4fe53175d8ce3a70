"""Leases of work queues, asked for and read over AMQP.

A consumer with the argument `x-lease` settles, takes or reads, and its first delivery tells the
outcome. Any broker of the cluster takes it, and everything may be asked again when a connection
breaks: what was done stays done, and a position always means the same message.
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
from rhizome.errors import NotFound, RhizomeError
from rhizome.spark.streamclient import DataLossError, StreamTimeoutError
from rhizome.spark.wire import Wire, connect_patiently, is_passing

CAPABILITY: Final = "queue.leases"
BATCH_BYTES: Final = 2 << 20
POLL_SECONDS: Final = 1.0
CODE_NOT_FOUND: Final = 404


class LeaseLostError(RhizomeError):
    """The lease, or a position of it, is gone; the text of the broker says why."""


class LeaseRefusedError(RhizomeError):
    """The broker refuses what was asked of a lease; its text says why."""


@dataclass(frozen=True)
class Told:
    """What a delivery says: messages from `offset` on, if any; the lease has the positions `first`
    to `next` - 1, and `ready` more messages wait in the queue.
    """

    offset: int
    count: int
    first: int
    next: int
    ready: int
    body: bytes


@dataclass(frozen=True)
class Piece:
    """The messages of a delivery (broker/leases/delivery.py), but for the first `skip`."""

    body: bytes
    count: int
    skip: int = 0


def _told(event: ContentReceived) -> Told:
    headers = decode_properties(event.header).headers or {}
    if "x-lease-error" in headers:
        text = str(headers["x-lease-error"])
        lost = headers.get("x-lease-code") == CODE_NOT_FOUND
        raise LeaseLostError(text) if lost else LeaseRefusedError(text)
    number = {name: value for name, value in headers.items() if isinstance(value, int)}
    return Told(
        number["x-lease-offset"],
        number["x-lease-count"],
        number["x-lease-first"],
        number["x-lease-next"],
        number["x-lease-ready"],
        event.body,
    )


def has_leases(wire: Wire) -> bool:
    """Whether the broker knows leases. One that doesn't would take `x-lease` for any consumer, and
    lose what it is sent."""
    capabilities = wire.server_properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(CAPABILITY) is True


def _consume(wire: Wire, queue: str, tag: str, lease: str, **arguments: object) -> None:
    given: dict[str, object] = {"x-lease": lease}
    for key, value in arguments.items():
        given["x-lease-" + key.replace("_", "-")] = value
    if not has_leases(wire):
        raise LeaseRefusedError(
            "the broker has no leases of queues: it is too old, or none of Rhizome's"
        )
    wire.call(
        methods.BasicConsume(queue=queue, consumer_tag=tag, no_ack=True, arguments=given),
        methods.BasicConsumeOk,
    )


def _deliveries(wire: Wire, tag: str) -> list[Told]:
    """What has come for a consumer; of others, which are cancelled, something may still come."""
    found = []
    for event in wire.poll(POLL_SECONDS):
        if isinstance(event, ContentReceived):
            method = event.method
            if isinstance(method, methods.BasicDeliver) and method.consumer_tag == tag:
                found.append(_told(event))
        elif isinstance(event, MethodReceived) and isinstance(event.method, methods.BasicCancel):
            raise ConnectionLost("the broker ended the consumer")
    return found


class LeaseClient:
    """Asks over one connection that it keeps."""

    def __init__(self, addresses: Sequence[Address], patience_s: float) -> None:
        self.addresses = addresses
        self.patience_s = patience_s
        self._wire: Wire | None = None
        self._asked = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_wire": None}

    def ask(self, queue: str, lease: str, **arguments: object) -> Told:
        """Have something done, `take` for x-lease-take and so on; asked again if that is needed.

        Without arguments it is a sign of life.
        """
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return self._ask(queue, lease, arguments)
            except (LeaseLostError, LeaseRefusedError):
                raise
            except (RhizomeError, OSError) as error:
                self.close()
                if not is_passing(error) or time.monotonic() > deadline:
                    raise

    def _ask(self, queue: str, lease: str, arguments: dict[str, object]) -> Told:
        wire = self._connected()
        self._asked += 1
        tag = f"lease-{self._asked}"
        _consume(wire, queue, tag, lease, **arguments)
        deadline = time.monotonic() + self.patience_s
        try:
            while time.monotonic() < deadline:
                for told in _deliveries(wire, tag):
                    return told
        finally:
            wire.send(methods.BasicCancel(tag, True))
        raise StreamTimeoutError(f"queue '{queue}' said nothing for {self.patience_s:g} s")

    def ready(self, queue: str) -> int:
        """How many messages of a queue are ready; raises NotFound if there is none."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                declared = self._connected().call(
                    methods.QueueDeclare(queue=queue, passive=True), methods.QueueDeclareOk
                )
                return int(declared.message_count)
            except NotFound:
                self.close()
                raise
            except (RhizomeError, OSError) as error:
                self.close()
                if not is_passing(error) or time.monotonic() > deadline:
                    raise

    def has_leases(self) -> bool:
        return has_leases(self._connected())

    def close(self) -> None:
        if self._wire is not None:
            self._wire.drop()
            self._wire = None

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = connect_patiently(self.addresses, "rhizome.spark", self.patience_s)
        return self._wire


class LeaseReader:
    """Reads the positions from `start` up to `end` of a lease, through broken connections.

    With `fail_on_loss` positions that are gone raise DataLossError; else they are passed over.

    Invariant: everything below `next` was yielded or is gathered, whatever becomes of connections.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        queue: str,
        lease: str,
        start: int,
        end: int,
        patience_s: float,
        fail_on_loss: bool,
    ) -> None:
        self.addresses = addresses
        self.queue = queue
        self.lease = lease
        self.next = start
        self.end = end
        self.patience_s = patience_s
        self.fail_on_loss = fail_on_loss
        self.first_address = start
        self._heard_s = time.monotonic()
        self._gathered: list[Piece] = []
        self._gathered_bytes = 0

    def pieces(self) -> Iterator[list[Piece]]:
        """The messages of the range, in pieces of several deliveries each."""
        while self.next < self.end:
            try:
                yield from self._session()
            except (LeaseLostError, LeaseRefusedError) as error:
                self._lost(str(error))
                break
            except (RhizomeError, OSError) as error:
                if not is_passing(error) or self._is_late():
                    raise
                self.first_address += 1
        if self._gathered:
            yield self._take_gathered()

    def _take_gathered(self) -> list[Piece]:
        found, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        return found

    def _session(self) -> Iterator[list[Piece]]:
        """One connection, until the range is read or the connection breaks."""
        name = f"rhizome.spark {self.queue} {self.next}-{self.end}"
        wire = connect_patiently(self.addresses, name, self.patience_s, self.first_address)
        with wire:
            _consume(wire, self.queue, "range", self.lease, read=self.next, until=self.end)
            while self.next < self.end:
                for told in self._received(wire):
                    self._take(told)
                if self._gathered_bytes >= BATCH_BYTES:
                    yield self._take_gathered()

    def _received(self, wire: Wire) -> list[Told]:
        found = _deliveries(wire, "range")
        if found:
            self._heard_s = time.monotonic()
        elif self._is_late():
            raise StreamTimeoutError(
                f"queue '{self.queue}' sent nothing for {self.patience_s:g} s, and positions "
                f"{self.next} to {self.end - 1} of lease '{self.lease}' are still to come"
            )
        return found

    def _take(self, told: Told) -> None:
        """Gather what is new in a delivery. After a takeover some comes again, cut elsewhere."""
        if told.count == 0 or told.offset + told.count <= self.next:
            return
        if told.offset > self.next:
            self._lost(f"positions {self.next} to {told.offset - 1} were lost with a restart")
        self._gathered.append(Piece(told.body, told.count, max(0, self.next - told.offset)))
        self._gathered_bytes += len(told.body)
        self.next = told.offset + told.count

    def _is_late(self) -> bool:
        return time.monotonic() - self._heard_s > self.patience_s

    def _lost(self, why: str) -> None:
        if self.fail_on_loss:
            raise DataLossError(
                f"messages of queue '{self.queue}' that the query has yet to read are gone: {why}. "
                "Set the option failOnDataLoss to false to go on without them, or begin with a new "
                "checkpoint"
            )
