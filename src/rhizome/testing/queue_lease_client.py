"""A client of queue leases on top of `CoreClient`."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rhizome.amqp.frames import body_of
from rhizome.amqp.methods import BasicCancel, BasicConsume, BasicConsumeOk
from rhizome.testing.in_memory_broker import Content, CoreClient


@dataclass(frozen=True)
class Entry:
    """One message of a lease."""

    position: int
    index: int
    redelivered: bool
    body: bytes


def entries_of(delivery: Content) -> list[Entry]:
    """The messages in a delivery to the reader of a lease."""
    count, first = delivery.headers["x-lease-count"], delivery.headers["x-lease-offset"]
    assert isinstance(count, int)
    assert isinstance(first, int)
    sizes = struct.unpack_from(f">{count}I", delivery.body, 0)
    at = 4 * count
    found = []
    for number, size in enumerate(sizes):
        index, _, flags, _, tail = struct.unpack_from(">QQBBH", delivery.body, at)
        content = delivery.body[at + 20 + tail : at + size]
        found.append(Entry(first + number, index, flags & 1 == 1, body_of(content)))
        at += size
    assert at == len(delivery.body)
    return found


class LeaseClient:
    """One lease of one queue, used over one connection."""

    def __init__(self, client: CoreClient, queue: str = "q", name: str = "lease") -> None:
        self.client = client
        self.queue = queue
        self.name = name
        self._asked = 0

    def ask(self, **arguments: object) -> list[Content]:
        """What is delivered for these arguments, `take` for x-lease-take and so on."""
        self._asked += 1
        tag = f"lease-{self._asked}"
        given: dict[str, object] = {"x-lease": self.name}
        for key, value in arguments.items():
            given["x-lease-" + key.replace("_", "-")] = value
        self.client.send(BasicConsume(self.queue, tag, no_ack=True, arguments=given))
        self.client.pick(BasicConsumeOk)
        found = self.client.deliveries()
        self.client.send(BasicCancel(tag, True))
        return found

    def told(self, **arguments: object) -> dict[str, object]:
        """The headers of the first delivery."""
        return self.ask(**arguments)[0].headers

    def take(self, count: int, start: int = 0, **arguments: object) -> tuple[int, int]:
        """The positions that the lease has after a take."""
        headers = self.told(take=count, **{"from": start}, **arguments)
        assert "x-lease-error" not in headers, headers
        first, end = headers["x-lease-first"], headers["x-lease-next"]
        assert isinstance(first, int)
        assert isinstance(end, int)
        return first, end

    def error(self, **arguments: object) -> str:
        """What something is refused with."""
        return str(self.ask(**arguments)[-1].headers["x-lease-error"])

    def read(self, start: int, until: int) -> list[Entry]:
        """The messages at some positions."""
        told, *deliveries = self.ask(read=start, until=until)
        assert told.body == b""
        assert all("x-lease-error" not in each.headers for each in deliveries), deliveries
        return [entry for each in deliveries for entry in entries_of(each)]

    def bodies(self, start: int, until: int) -> list[bytes]:
        return [entry.body for entry in self.read(start, until)]
