"""Who gets an HTTP connection when there are too many."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from rhizome.management.api_context import LONG_ANSWERS_MAX
from rhizome.management.http.http_connection_limits import (
    RESERVE_MAX,
    RESERVE_PER_ADDRESS_MAX,
    ConnectionTable,
    Place,
    party_of,
)
from rhizome.management.http_service import HttpService
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import HttpSection, ListenSection
from rhizome.server.config.units import Address
from tests.unit.management.conftest import Core


@dataclass(frozen=True)
class Limits:
    connections_max: int
    connections_per_address_max: int


class World:
    """A table, and the connections in it by name."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self.table = ConnectionTable(lambda: Limits(connections_max, per_address_max))
        self.closed: list[str] = []
        self.places: dict[str, Place] = {}

    def enter(self, name: str, address: str) -> Place | None:
        place = self.table.enter(address, lambda why: self.closed.append(name))
        if place is not None:
            self.places[name] = place
        return place

    def busy(self, name: str, address: str) -> None:
        place = self.enter(name, address)
        assert place is not None
        self.table.begin_request(place)


def test_an_address_with_too_many_loses_its_own_idle_one() -> None:
    world = World(10, 2)
    for name in ("a1", "a2", "a3"):
        place = world.enter(name, "a")
        assert place is not None
        assert not place.reserved
    assert world.closed == ["a1"]
    world.enter("b1", "b")
    assert world.closed == ["a1"]


def test_the_one_that_was_idle_for_longest_goes_first() -> None:
    world = World(10, 2)
    world.enter("a1", "a")
    world.enter("a2", "a")
    world.table.begin_request(world.places["a1"])
    world.table.end_request(world.places["a1"])
    world.enter("a3", "a")
    assert world.closed == ["a2"]


def test_of_all_the_address_with_most_idle_ones_loses_one() -> None:
    world = World(4, 3)
    for name in ("a1", "b1", "b2", "b3"):
        world.enter(name, name[0])
    world.enter("c1", "c")
    assert world.closed == ["b1"]
    assert len(world.table) == 4


def test_while_all_are_busy_the_reserve_takes_new_ones() -> None:
    world = World(2, 2)
    world.busy("a1", "a")
    world.busy("b1", "b")
    place = world.enter("c1", "c")
    assert place is not None
    assert place.reserved
    assert world.closed == []
    world.table.leave(world.places["a1"])
    place = world.enter("c2", "c")
    assert place is not None
    assert not place.reserved


def test_the_reserve_has_its_maxima_too() -> None:
    world = World(1, 1)
    world.busy("first", "x")
    for number in range(RESERVE_MAX + 5):
        assert world.enter(f"r{number}", f"address-{number}") is not None
    assert world.closed == [f"r{number}" for number in range(5)]
    assert len(world.table) == 1 + RESERVE_MAX
    world = World(1, 1)
    world.busy("first", "x")
    for number in range(RESERVE_PER_ADDRESS_MAX + 2):
        world.enter(f"r{number}", "y")
    assert world.closed == ["r0", "r1"]


def test_nobody_is_taken_if_the_reserve_is_busy_as_well() -> None:
    world = World(1, 1)
    world.busy("first", "x")
    for number in range(RESERVE_PER_ADDRESS_MAX):
        world.busy(f"r{number}", "y")
    assert world.enter("late", "y") is None
    assert world.enter("other", "z") is not None


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    assert party_of("2001:db8:1:2::1") == party_of("2001:db8:1:2:ffff::7")
    assert party_of("2001:db8:1:2::1") != party_of("2001:db8:1:3::1")
    assert party_of("fe80::1%eth0") == party_of("fe80::2%eth0")
    assert party_of("::ffff:10.0.0.1") == party_of("10.0.0.1") != party_of("10.0.0.2")
    assert party_of("somewhere") == "somewhere"


def test_leaving_twice_counts_once() -> None:
    world = World(2, 2)
    world.enter("a1", "a")
    world.table.leave(world.places["a1"])
    world.table.leave(world.places["a1"])
    world.table.end_request(world.places["a1"])
    assert len(world.table) == 0


# ---- over sockets


HEAD = b"GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + b64encode(b"guest:guest") + b"\r\n"


@asynccontextmanager
async def serving(core: Core, http: HttpSection) -> AsyncIterator[HttpService]:
    config = core.context.config
    assert isinstance(config, Config)
    listen = ListenSection(http=(Address("127.0.0.1", 0),))
    service = HttpService(
        replace(config, listen=listen, http=http),
        core.broker,
        core.shell,
        core.context.login,
        core.store,
    )
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


def port_of(service: HttpService) -> int:
    return service.context.http_listeners[0].port


async def ask(port: int, path: bytes) -> bytes:
    """The first line of an answer; empty if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD % path + b"\r\n")
    try:
        return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n"])
def test_strangers_who_hold_connections_keep_nobody_out(core: Core, begun: bytes) -> None:
    async def scenario() -> tuple[list[bytes], int]:
        async with serving(core, HttpSection(connections_max=8)) as service:
            port = port_of(service)
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for _, writer in held:
                writer.write(begun)
            await asyncio.sleep(0)
            answers = [await ask(port, b"/api/whoami"), await ask(port, b"/api/health/ready")]
            ended = [asyncio.ensure_future(reader.read()) for reader, _ in held]
            done, late = await asyncio.wait(ended, timeout=0.2)
            for task in late:
                task.cancel()
            for _, writer in held:
                writer.close()
            await asyncio.gather(*ended, return_exceptions=True)
            return answers, len(done)

    answers, ended = core.run(scenario())
    assert answers == [b"HTTP/1.1 200 OK\r\n"] * 2
    assert ended >= 12


def test_health_checks_are_answered_while_all_others_work(core: Core) -> None:
    """Requests that wait hold every connection; a probe is answered, and everybody else is told to
    come again."""

    async def scenario() -> list[bytes]:
        async with serving(core, HttpSection(connections_max=8)) as service, AsyncExitStack() as on:
            for _ in range(LONG_ANSWERS_MAX):
                await on.enter_async_context(service.context.long_answers.place(asked=False))
            busy = [await asyncio.open_connection("127.0.0.1", port_of(service)) for _ in range(8)]
            for _, writer in busy:
                writer.write(HEAD % b"/api/queues" + b"\r\n")
            while service.context.long_answers.waiting < len(busy):
                await asyncio.sleep(0)
            answers = []
            for path in (b"/api/health/ready", b"/api/whoami", b"/api/health/checks/local-alarms"):
                answers.append(await ask(port_of(service), path))
            for _, writer in busy:
                writer.close()
            return answers

    ready, other, alarms = core.run(scenario())
    assert ready == alarms == b"HTTP/1.1 200 OK\r\n"
    assert other == b"HTTP/1.1 503 Service Unavailable\r\n"
