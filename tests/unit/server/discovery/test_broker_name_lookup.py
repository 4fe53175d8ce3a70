"""Who answers at some addresses: an edge has no names to begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import ConnectionStart
from rhizome.server.config.units import Address
from rhizome.server.discovery.broker_name_lookup import answering_brokers

HEADER_BYTES = 8
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def broker(name: object) -> Answer:
    """The beginning of a broker, which says its name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HEADER_BYTES)
        writer.write(method_frame(0, ConnectionStart(0, 9, {"broker": name}, b"PLAIN", b"en_US")))
        await reader.read()
        writer.close()

    return answer


async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(HEADER_BYTES)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def asked(*answers: Answer) -> tuple[list[str], list[str]]:
    """The names that are found, and what is said of the addresses without one."""
    servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in answers]
    closed = await asyncio.start_server(stranger, "127.0.0.1", 0)
    port_of_nobody = closed.sockets[0].getsockname()[1]
    closed.close()
    ports = [*(each.sockets[0].getsockname()[1] for each in servers), port_of_nobody]
    said: list[str] = []
    try:
        found = await answering_brokers([Address("127.0.0.1", p) for p in ports], None, said.append)
    finally:
        for each in servers:
            each.close()
    assert [primary.address.port for primary in found] == ports[: len(found)]
    return [primary.name for primary in found], said


def test_brokers_are_found_by_the_names_that_they_say() -> None:
    names, said = asyncio.run(asked(broker("b1"), broker("b2"), stranger))
    assert names == ["b1", "b2"]
    assert len(said) == 2


def test_two_addresses_of_one_broker_are_one_entry() -> None:
    names, _ = asyncio.run(asked(broker("b1"), broker("b1")))
    assert names == ["b1"]


def test_a_name_that_no_broker_has_is_refused() -> None:
    names, said = asyncio.run(asked(broker("b1"), broker("no name"), broker(7)))
    assert names == ["b1"]
    assert len(said) == 3


def test_it_waits_until_a_broker_answers() -> None:
    starts = 0

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal starts
        starts += 1
        await (stranger if starts == 1 else broker("b1"))(reader, writer)

    names, said = asyncio.run(asked(late))
    assert names == ["b1"]
    assert len(said) == 2
