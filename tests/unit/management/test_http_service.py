"""The HTTP listeners themselves, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from rhizome.management.http_service import HttpService, bind
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import ListenSection
from rhizome.server.config.units import Address
from tests.unit.management.conftest import Core


def service_on(core: Core, *addresses: Address) -> HttpService:
    config = core.context.config
    assert isinstance(config, Config)
    listening = replace(config, listen=ListenSection(http=addresses))
    return HttpService(listening, core.broker, core.shell, core.context.login, core.store)


async def ask(url: str, request: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_localhost_is_served_on_both_loopback_addresses(core: Core) -> None:
    async def scenario() -> tuple[list[str], list[bytes]]:
        service = service_on(core, Address("localhost", 0))
        urls = await service.start()
        request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answers = [await ask(url, request) for url in urls]
        await service.stop()
        return urls, answers

    urls, answers = core.run(scenario())
    assert urls[0].startswith("http://127.0.0.1:")
    assert len({url.rpartition(":")[2] for url in urls}) == 1, "one port for both families"
    assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)
    with pytest.raises(ConnectionRefusedError):
        core.run(ask(urls[0], b""))


def test_headers_are_bounded(core: Core) -> None:
    async def scenario() -> bytes:
        service = service_on(core, Address("127.0.0.1", 0))
        urls = await service.start()
        request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"a" * 200_000
        try:
            return await ask(urls[0], request + b"\r\n\r\n")
        except ConnectionResetError:
            # It hung up while we were still sending.
            return b""
        finally:
            await service.stop()

    answer = core.run(scenario())
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


def test_a_request_under_way_does_not_keep_the_service_from_stopping(core: Core) -> None:
    async def scenario() -> None:
        service = service_on(core, Address("127.0.0.1", 0))
        urls = await service.start()
        port = int(urls[0].rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n")
        await writer.drain()
        async with asyncio.timeout(10):
            await service.stop()
        writer.close()

    core.run(scenario())


def test_an_address_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen for HTTP on 127.0.0.1:{port}"):
            bind("127.0.0.1", port, "HTTP")


def test_a_service_that_never_started_can_be_stopped(core: Core) -> None:
    core.run(service_on(core, Address("127.0.0.1", 0)).stop())
