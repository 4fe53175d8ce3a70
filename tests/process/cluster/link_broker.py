"""A broker with links and nothing else of a cluster, on real sockets.

Run as a program it is one process: it takes a JSON object of options, prints a line per event, and
stops when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from random import SystemRandom
from typing import Any

import uvloop

from rhizome.broker.access.auth_interface import AccessEpoch, OpenAuthenticator
from rhizome.broker.connection.connection import Connection
from rhizome.broker.observer import Observer
from rhizome.cluster.link.accept_handshake import LinkAuthenticator
from rhizome.cluster.link.broker_hello import PRIMARY, Hello
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.cluster.link.link import Link, LinkHandler
from rhizome.cluster.link.link_manager import LinkTable
from rhizome.cluster.link.peers import LinkSettings
from rhizome.cluster.protocol.frame_dispatch import FrameHandler, FrameTable
from rhizome.journal.files import MemoryFiles
from rhizome.journal.store import MemoryStore
from rhizome.security.tls import link_context, server_context
from rhizome.server.broker_bootstrap import SEED_BYTES, make_broker, make_log
from rhizome.server.broker_server import peer_of, wall_clock_ms
from rhizome.server.clustered_broker.link_driver import LinkDriver
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import TlsSection
from rhizome.server.event_loop.broker_driver import ClientProtocol, Shell
from rhizome.server.event_loop.busy_poll import BusyPoll

KEY = b"a key that all brokers share"
TICK_S = 0.02
FAST = LinkSettings(
    heartbeat_ms=200,
    timeout_ms=1_000,
    dial_timeout_ms=2_000,
    delay_ms=20,
    delay_max_ms=200,
    stable_ms=1_000,
    buffer_bytes=1 << 20,
    has_macs=True,
)
ECHO = 30
ECHOED = 31


class Echoes(FrameHandler):
    """Takes all frames for ``Events``."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self.events = events

    def take(self, link: Link, number: int, data: bytes, start: int, end: int) -> None:
        self.events.heard_frame(link, int(number), data[start:end])


class Events(LinkHandler):
    """Keeps what it hears, and wakes whoever waits for it. Answers ECHO with ECHOED."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.heard: list[str] = []
        self.frames = FrameTable(Echoes(self))
        self.received: list[tuple[int, bytes]] = []
        self.changed = asyncio.Event()
        self.printing = False

    def _hear(self, text: str) -> None:
        self.heard.append(text)
        self.changed.set()
        if self.printing:
            print(text, flush=True)

    def link_up(self, link: Link) -> None:
        self._hear(f"up {link.name}")

    def link_down(self, link: Link, reason: str) -> None:
        self._hear(f"down {link.name}: {reason}")

    def link_congested(self, link: Link) -> None:
        self._hear(f"{'congested' if link.congested else 'free'} {link.name}")

    def link_problem(self, name: str, address: str, reason: str) -> None:
        self._hear(f"problem {name}: {reason}")

    def bug(self, error: BaseException, where: str) -> None:
        self._hear(f"bug {where}: {error!r}")

    def heard_frame(self, link: Link, number: int, payload: bytes) -> None:
        if number == ECHO:
            link.send(ECHOED, payload)
        else:
            self.received.append((number, payload))
            self.changed.set()


class Closings(Observer):
    """Wakes whoever waits for the end of a connection."""

    def __init__(self, changed: asyncio.Event) -> None:
        super().__init__()
        self.changed = changed

    def connection_closed(self, connection: Connection) -> None:
        self.changed.set()


class LinkBroker:
    """One broker on a listener of its own, in the running event loop."""

    def __init__(
        self,
        hello: Hello,
        key: bytes = KEY,
        settings: LinkSettings = FAST,
        tls: TlsSection | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.tls = tls
        self.events = Events(hello.name)
        store = MemoryStore(MemoryFiles(), bytes(16), self, loop.call_soon_threadsafe)
        log = make_log(store)
        self.shell: Shell | None = None
        core = make_broker(
            Config(users={}),
            store,
            log,
            OpenAuthenticator(),
            AccessEpoch(),
            Closings(self.events.changed),
            wall_clock_ms(),
            os.urandom(SEED_BYTES),
        )
        self.core = core
        never = BusyPoll(loop, 0, time.monotonic_ns, os.sched_yield)
        self.shell = Shell(core, core.cluster, store, loop, wall_clock_ms, never)
        self.links = LinkTable(hello, LinkKeys(key), settings, self.events, SystemRandom(), 0)
        core.authenticator = LinkAuthenticator(self.links, core.authenticator)
        context = None if tls is None else link_context(tls)
        self.driver = LinkDriver(self.shell, self.links, loop, context)
        self.driver.turn_began()
        self.ticks: asyncio.Task[None] | None = None
        self.address = ""

    def durable(self, token: int) -> None:
        if self.shell is not None:
            self.shell.durable(token)

    def alarm(self, text: str) -> None:
        raise AssertionError(text)

    def failed(self, error: BaseException) -> None:
        raise error

    async def start(self, port: int = 0, path: str = "") -> None:
        def protocol() -> Any:
            return ClientProtocol(self.shell, "here", self.tls is not None, peer_of)

        context = None if self.tls is None else server_context(self.tls)
        if path:
            self.server = await self.loop.create_unix_server(protocol, path)
            self.address = f"unix:{path}"
        else:
            self.server = await self.loop.create_server(protocol, "127.0.0.1", port, ssl=context)
            self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        self.ticks = self.loop.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            assert self.shell is not None
            self.shell.tick()
            await asyncio.sleep(TICK_S)

    def knows(self, *others: LinkBroker) -> None:
        for other in others:
            if other is not self:
                self.links.configure(other.links.me.name, (other.address,), other.links.me.role)

    def linked(self) -> list[str]:
        return sorted(link.name for link in self.links.open_links())

    async def until(self, is_so: Any) -> None:
        """Wait until ``is_so()``, looked at whenever something was heard."""
        while not is_so():
            self.events.changed.clear()
            await self.events.changed.wait()

    async def until_linked(self, *names: str) -> None:
        await self.until(lambda: self.linked() == sorted(names))

    async def until_heard(self, text: str) -> None:
        await self.until(lambda: any(text in heard for heard in self.events.heard))

    async def until_protocols(self, count: int) -> None:
        """Wait until so many connections are left, and the broker has none besides links."""
        while len(self.driver.protocols) > count:
            self.driver.gone.clear()
            await self.driver.gone.wait()
        await self.until(lambda: not self.core.connections)

    async def stop(self) -> None:
        self.server.close()
        if self.ticks is not None:
            self.ticks.cancel()
        await self.driver.close(f"broker {self.links.me.name!r} stops")
        # Handshakes that were under way are connections of the core, at the latest one iteration
        # after they were accepted. No loop should end with one open.
        await asyncio.sleep(0)
        for connection in list(self.core.connections.values()):
            connection.port.transport.abort()
        await self.until(lambda: not self.core.connections)


def hello_of(name: str, number: int, **fields: Any) -> Hello:
    return Hello(name, f"{number:032x}", "1", **fields)


async def main(options: dict[str, Any]) -> None:
    broker = LinkBroker(hello_of(options["name"], options["number"], role=PRIMARY))
    broker.events.printing = True
    await broker.start()
    for name, address in options["peers"].items():
        broker.links.configure(name, (address,), PRIMARY)
    print(f"ready {broker.address}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await broker.stop()


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
