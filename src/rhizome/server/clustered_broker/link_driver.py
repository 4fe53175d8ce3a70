"""LinkDriver: links on sockets. It dials, adopts accepted connections, and flushes once per turn.

The duties are numbered in ``rhizome.cluster.link``; the cores decide everything. An address is
"HOST:PORT", over TLS if links use it, or "unix:PATH".
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from rhizome.broker.fault_log import FAULT_LINK
from rhizome.cluster.link.accepted_link_port import ConnectionAdopter
from rhizome.cluster.link.link import CLOSED, Link
from rhizome.cluster.link.link_manager import LinkTable
from rhizome.listen_sockets import is_loopback
from rhizome.server.config.units import UnitError, parse_address
from rhizome.server.event_loop.broker_driver import (
    TURN_INPUT_BYTES_MAX,
    ClientProtocol,
    Shell,
    TurnPart,
)

WRITE_BUFFER_HIGH_BYTES: Final = 512 * 1024
WRITE_BUFFER_LOW_BYTES: Final = 128 * 1024
"""Small, because urgent frames can't overtake what is already in the transport."""

CLOSE_GRACE_S: Final = 2.0
"""How long a closed link may take to write what it has; a peer that doesn't read must not keep the
socket."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class LinkDriver(TurnPart, ConnectionAdopter):
    """Drives the links of one broker. Invariant: the ``port`` of a connected link is its
    ``LinkProtocol``; while the link is being connected it is the task that does so."""

    def __init__(
        self,
        shell: Shell,
        links: LinkTable,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext | None = None,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        super().__init__()
        self.shell = shell
        self.links = links
        self.loop = loop
        self.tls = tls
        self.clock_ms = clock_ms
        self.dials: set[asyncio.Task[None]] = set()
        self.protocols: set[LinkProtocol] = set()
        self.satiated: list[LinkProtocol] = []
        self.gone = asyncio.Event()
        links.adopter = self
        shell.links = self

    # ---- turns ----------------------------------------------------------------------------------

    def turn_began(self) -> None:
        self.links.now_ms = self.clock_ms()

    def turn_ended(self) -> None:
        while touched := self.links.take_touched():
            for link in touched:
                try:
                    self.flush(link)
                except Exception as error:
                    # take_touched removed it, so this is not tried again before it is touched.
                    link.marked = False
                    where = f"link with {link.name}"
                    self.shell.broker.report_bug(error, where, FAULT_LINK)
                    link.lost("the broker made a mistake; its log has the details")
                    if isinstance(link.port, LinkProtocol) and link.port.transport is not None:
                        link.port.transport.abort()
        satiated, self.satiated = self.satiated, []
        for protocol in satiated:
            protocol.read_on()

    def ticked(self) -> None:
        self.links.tick(self.links.now_ms)
        self.dial_due()

    def dial_due(self) -> None:
        for link in self.links.wants_dial():
            task = self.loop.create_task(self._connect(link))
            link.port = task
            self.dials.add(task)
            task.add_done_callback(self.dials.discard)

    def flush(self, link: Link) -> None:
        port = link.port
        if isinstance(port, LinkProtocol):
            port.flush()
            return
        link.flushed()
        if isinstance(port, asyncio.Task) and link.stage == CLOSED:
            port.cancel()

    # ---- dialling and accepting -----------------------------------------------------------------

    async def _connect(self, link: Link) -> None:
        try:
            await self._dial(link)
        except (OSError, UnitError, UnicodeError) as error:
            self.shell.begin_turn()
            link.lost(f"{link.address} can't be connected to: {_in_words(error)}")

    async def _dial(self, link: Link) -> None:
        def protocol() -> LinkProtocol:
            return LinkProtocol(self, link)

        address = parse_address(link.address)
        if address.path:
            await self.loop.create_unix_connection(protocol, address.path)
            return
        await self.loop.create_connection(
            protocol,
            address.host,
            address.port,
            ssl=self.tls,
            ssl_handshake_timeout=None if self.tls is None else self._patience_s(),
        )

    def _patience_s(self) -> float:
        return self.links.settings.dial_timeout_ms / 1000

    def adopted(self, link: Link, port: object) -> None:
        assert isinstance(port, ClientProtocol)
        protocol = LinkProtocol(self, link)
        transport = port.release()
        transport.set_protocol(protocol)
        protocol.adopt(transport)

    # ---- stopping -------------------------------------------------------------------------------

    async def close(self, reason: str) -> None:
        """Close all links, and wait until their peers know."""
        self.shell.begin_turn()
        self.links.close_all(reason)
        self.turn_ended()
        for task in list(self.dials):
            task.cancel()
        await asyncio.gather(*self.dials, return_exceptions=True)
        while self.protocols:
            self.gone.clear()
            await self.gone.wait()


class LinkProtocol(asyncio.Protocol):
    """The protocol of one link's transport."""

    def __init__(self, driver: LinkDriver, link: Link) -> None:
        self.driver = driver
        self.link = link
        self.transport: Any = None
        self.aborting: asyncio.TimerHandle | None = None
        self.turn = -1
        self.turn_bytes = 0
        self.doing = f"input of the link with {link.name or link.address}"

    def connection_made(self, transport: Any) -> None:
        self.driver.shell.begin_turn()
        self.adopt(transport)
        peer = transport.get_extra_info("peername")
        self.link.guard.is_local = not isinstance(peer, tuple) or is_loopback(str(peer[0]))
        self.link.connected()
        self.link.touch()

    def adopt(self, transport: Any) -> None:
        """Take over a transport from here on."""
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_HIGH_BYTES, WRITE_BUFFER_LOW_BYTES)
        self.link.port = self
        self.driver.protocols.add(self)

    def data_received(self, data: bytes) -> None:
        shell = self.driver.shell
        if not shell.scheduled:
            shell.begin_turn()
            shell.busy_poll.input_came()
        shell.broker.turn.doing = self.doing
        self.link.receive(data)
        if self.turn != shell.turns:
            self.turn = shell.turns
            self.turn_bytes = 0
        self.turn_bytes += len(data)
        if self.turn_bytes >= TURN_INPUT_BYTES_MAX and self.transport.is_reading():
            # Otherwise the loop would keep reading from a busy link before others get a turn.
            self.transport.pause_reading()
            self.driver.satiated.append(self)

    def read_on(self) -> None:
        """A new turn begins: read on."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: BaseException | None) -> None:
        self.driver.shell.begin_turn()
        if self.aborting is not None:
            self.aborting.cancel()
        self.transport = None
        self.driver.protocols.discard(self)
        self.driver.gone.set()
        where = "to" if self.link.dialled else "from"
        why = f"was lost: {_in_words(error)}" if error is not None else "was closed by it"
        self.link.lost(f"the connection {where} {self.link.name} at {self.link.address} {why}")

    def pause_writing(self) -> None:
        self.link.set_writable(False)

    def resume_writing(self) -> None:
        self.driver.shell.begin_turn()
        self.link.set_writable(True)

    def flush(self) -> None:
        """Write what the socket takes; close it if the link is closed."""
        link = self.link
        transport = self.transport
        while transport is not None and (link.writable or link.stage == CLOSED):
            chunks = link.next_output()
            if not chunks:
                break
            transport.writelines(chunks)
        link.flushed()
        if link.stage == CLOSED and transport is not None and self.aborting is None:
            self.aborting = self.driver.loop.call_later(CLOSE_GRACE_S, transport.abort)
            transport.close()


def _in_words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
