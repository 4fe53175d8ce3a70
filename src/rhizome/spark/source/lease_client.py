"""Leases of work queues, asked for and read over AMQP.

A consumer with the argument `x-lease` settles, takes or reads, and its first delivery tells the
outcome. Any broker of the cluster takes it, and everything may be asked again when a connection
breaks: what was done stays done, and a position always means the same message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rhizome.amqp import methods
from rhizome.amqp.properties import decode_properties
from rhizome.client.connection_uri import Address
from rhizome.client.protocol_events import ContentReceived
from rhizome.errors import RhizomeError
from rhizome.spark.amqp_socket import AmqpSocket
from rhizome.spark.source.retry_client import RANGE_TAG, DataLossError, RetryClient, RetryReader

CAPABILITY: Final = "queue.leases"
CODE_NOT_FOUND: Final = 404


class LeaseLostError(RhizomeError):
    """The lease, or a position of it, is gone; the text of the broker says why."""


class LeaseRefusedError(RhizomeError):
    """The broker refuses what was asked of a lease; its text says why."""


@dataclass(frozen=True)
class LeaseAnswer:
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
class LeaseDelivery:
    """The messages of a delivery (broker/queue_leases/lease_delivery.py), but for the first
    `skip`."""

    body: bytes
    count: int
    skip: int = 0


def _told(event: ContentReceived) -> LeaseAnswer:
    headers = decode_properties(event.header).headers or {}
    if "x-lease-error" in headers:
        text = str(headers["x-lease-error"])
        lost = headers.get("x-lease-code") == CODE_NOT_FOUND
        raise LeaseLostError(text) if lost else LeaseRefusedError(text)
    number = {name: value for name, value in headers.items() if isinstance(value, int)}
    return LeaseAnswer(
        number["x-lease-offset"],
        number["x-lease-count"],
        number["x-lease-first"],
        number["x-lease-next"],
        number["x-lease-ready"],
        event.body,
    )


def has_leases(wire: AmqpSocket) -> bool:
    """Whether the broker knows leases. One that doesn't would take `x-lease` for any consumer, and
    lose what it is sent."""
    capabilities = wire.server_properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(CAPABILITY) is True


def _consume(wire: AmqpSocket, queue: str, tag: str, lease: str, **arguments: object) -> None:
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


class LeaseClient(RetryClient):
    """Has things done with leases."""

    def ask(self, queue: str, lease: str, **arguments: object) -> LeaseAnswer:
        """Have something done, `take` for x-lease-take and so on; asked again if that is needed.

        Without arguments it is a sign of life.
        """
        return self.again(lambda wire: self._ask(wire, queue, lease, arguments))

    def _ask(
        self, wire: AmqpSocket, queue: str, lease: str, arguments: dict[str, object]
    ) -> LeaseAnswer:
        tag = self.tag()
        _consume(wire, queue, tag, lease, **arguments)
        told = _told(self.first(wire, tag, queue))
        wire.send(methods.BasicCancel(tag, True))
        return told

    def ready(self, queue: str) -> int:
        """How many messages of a queue are ready; raises NotFound if there is none."""
        return int(self.declared(queue).message_count)

    def has_leases(self) -> bool:
        return has_leases(self.connected())


class LeaseReader(RetryReader[LeaseDelivery]):
    """Reads positions of a lease."""

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
        # Tasks begin with different brokers.
        super().__init__(addresses, queue, start, end, patience_s, fail_on_loss, start)
        self.lease = lease

    def pieces(self) -> Iterator[list[LeaseDelivery]]:
        """The messages of the range, in pieces of several deliveries each."""
        try:
            yield from self.helpings()
        except (LeaseLostError, LeaseRefusedError) as error:
            self._lost(str(error))
            yield from self.rest()

    def _begin(self, wire: AmqpSocket) -> None:
        _consume(wire, self.queue, RANGE_TAG, self.lease, read=self.next, until=self.end)

    def _take(self, wire: AmqpSocket, event: ContentReceived) -> None:
        """After a takeover some comes again, cut elsewhere."""
        told = _told(event)
        if told.count == 0 or told.offset + told.count <= self.next:
            return
        if told.offset > self.next:
            self._lost(f"positions {self.next} to {told.offset - 1} were lost with a restart")
        piece = LeaseDelivery(told.body, told.count, max(0, self.next - told.offset))
        self.gather(piece, len(told.body))
        self.next = told.offset + told.count

    def _missing(self) -> str:
        return f"positions {self.next} to {self.end - 1} of lease '{self.lease}'"

    def _lost(self, why: str) -> None:
        if self.fail_on_loss:
            raise DataLossError(
                f"messages of queue '{self.queue}' that the query has yet to read are gone: {why}. "
                "Set the option failOnDataLoss to false to go on without them, or begin with a new "
                "checkpoint"
            )
