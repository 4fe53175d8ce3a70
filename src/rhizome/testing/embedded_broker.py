"""A broker in the event loop of the program that tests against it.

    async with rhizome.embedded() as broker:
        async with rhizome.client.connect(broker.url) as connection:
            ...

It is a whole broker, with sockets on loopback and its store in memory; only what there is once in a
process is left alone: signals, the garbage collector's settings, the watchdog. It runs while the
loop does: code that blocks the loop blocks the broker. Several may run in one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from rhizome.broker.broker import Broker as BrokerCore
from rhizome.server.broker_server import BrokerServer
from rhizome.server.config.broker_config import load_config
from rhizome.server.event_loop.broker_driver import Shell

USER: Final = "guest"
PASSWORD: Final = "guest"
DEFAULTS: Final[Mapping[str, object]] = {
    "broker.name": "embedded",
    "broker.memory": True,
    "listen.amqp": ["127.0.0.1:0"],
    "security.password_cost": 10,
}


@dataclass(frozen=True)
class EmbeddedBroker:
    """Where the broker listens. ``http_url`` is empty without HTTP."""

    host: str
    port: int
    http_url: str
    core: BrokerCore
    """For looking inside; its objects may change with each release."""
    user: str = USER
    password: str = PASSWORD

    @property
    def url(self) -> str:
        """AMQP address of the default vhost."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/"


class _EmbeddedServer(BrokerServer):
    """Leaves alone what belongs to the program."""

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        pass

    def _take_process(self, shell: Shell) -> None:
        pass


@asynccontextmanager
async def embedded(
    settings: Mapping[str, object] | None = None, *, http: bool = False
) -> AsyncIterator[EmbeddedBroker]:
    """A broker with its store in memory, on a free port of 127.0.0.1, until the block ends.

    ``settings`` maps "section.key" to a value, as in a configuration file. ``http``: with HTTP API
    and console. Environment variables don't count. Raises what keeps a broker from starting.
    """
    listeners = {"listen.http": ["127.0.0.1:0"] if http else []}
    config = load_config(overrides={**DEFAULTS, **listeners, **(settings or {})}, environ={})
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = _EmbeddedServer(config, ready.set_result, None)
    running = asyncio.create_task(server.serve(), name="rhizome")
    try:
        either: list[asyncio.Future[Any]] = [ready, running]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running  # raises
            raise RuntimeError("the broker ended before it was ready; its log says why")
        yield _describe(ready.result(), server)
    finally:
        server.stopping.set()
        ready.cancel()
        await running


def _describe(line: str, server: BrokerServer) -> EmbeddedBroker:
    """From the `ready` line: the name and the addresses."""
    addresses = line.split()[2:]
    amqp = next(each for each in addresses if each.startswith("amqp://"))
    host, _, port = amqp.removeprefix("amqp://").rpartition(":")
    web = next((each for each in addresses if each.startswith("http://")), "")
    return EmbeddedBroker(host, int(port), web.rstrip("/"), server.broker)
