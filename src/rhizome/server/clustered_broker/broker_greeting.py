"""Broker greeting: a connection to a broker up to its connection.start, before anybody logs in."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import ConnectionStart, Method, decode_method
from rhizome.amqp.spec import FRAME_HEADER_SIZE
from rhizome.cluster.link.dial_handshake import PROTOCOL_HEADER
from rhizome.errors import RhizomeError
from rhizome.server.config.units import Address

FRAME_BYTES_MAX: Final = 64 * 1024


class NoBroker(RhizomeError):
    """What answers at an address is no broker."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """An open connection, and what the broker has said of itself, unproved."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    start: ConnectionStart

    def send(self, method: Method) -> None:
        self.writer.write(method_frame(0, method))

    async def next(self) -> Method:
        return await _next(self.reader)


@asynccontextmanager
async def greeted(address: Address, tls: ssl.SSLContext | None) -> AsyncIterator[Greeting]:
    """Connect; the connection ends with the block. Raises NoBroker, OSError and EOFError."""
    if address.path:
        reader, writer = await asyncio.open_unix_connection(address.path)
    else:
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        writer.write(PROTOCOL_HEADER)
        start = await _next(reader)
        if not isinstance(start, ConnectionStart):
            raise NoBroker("what answers there is no broker")
        yield Greeting(reader, writer, start)
    finally:
        writer.transport.abort()


async def _next(reader: asyncio.StreamReader) -> Method:
    head = await reader.readexactly(FRAME_HEADER_SIZE)
    size = int.from_bytes(head[3:], "big")
    if size > FRAME_BYTES_MAX:
        raise NoBroker("what answers there is no broker")
    return decode_method((await reader.readexactly(size + 1))[:-1])
