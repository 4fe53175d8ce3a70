"""HttpService: the HTTP listeners of a broker, in its own event loop.

Starlette and uvicorn are imported when the service starts, so that a broker without HTTP, and every
command of the CLI, does without them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rhizome.broker.broker import Broker
from rhizome.journal.store import Store
from rhizome.listen_sockets import bind
from rhizome.management.api_context import (
    Context,
    HttpConfig,
    ListenAddress,
    Listener,
    LoginChecker,
    Turns,
)
from rhizome.management.event_exchange import EventExchange
from rhizome.management.http.http_connection_limits import ConnectionTable
from rhizome.management.metrics.message_rates import Rates
from rhizome.management.peers.peer_requests import PeerRequest, PeerResponse

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

logger = logging.getLogger("rhizome.management")

HEADER_BYTES_MAX: Final = 64 * 1024
BACKLOG: Final = 128
KEEP_ALIVE_SECONDS: Final = 30
STOP_SECONDS_MAX: Final = 2


class HttpService:
    """Serves the API of one broker from `start` until `stop`.

    Without an address to listen on it answers other brokers only.
    """

    def __init__(
        self,
        config: HttpConfig,
        broker: Broker,
        shell: Turns,
        login: LoginChecker,
        store: Store,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls`` is for the addresses of listen.https. The view and control of a cluster are
        given to the context."""
        self.context = Context(
            config,
            broker,
            shell,
            login,
            store,
            Rates(broker),
            started_ms=int(broker.turn.now_ms),
        )
        broker.events = EventExchange(broker, self.context.name)
        self._tls = tls
        self._application: ASGIApp | None = None
        self._connections = ConnectionTable(lambda: self.context.config.http)
        self._servers: list[uvicorn.Server] = []
        self._serving: list[asyncio.Task[None]] = []
        self._sampling: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> list[str]:
        """Bind and serve; returns the addresses as URLs."""
        from rhizome.management.asgi_application import make_application

        self._application = make_application(self.context)
        self._sampling = asyncio.create_task(self.context.rates.run(), name="rates")
        context = self.context
        self._sweeping = asyncio.create_task(
            context.journal_readers.run(
                lambda: context.config.journal, lambda: context.config.disk.free_min_bytes
            ),
            name="journal readers",
        )
        listen = context.config.listen
        plain = _bind(listen.http, "HTTP")
        try:
            encrypted = _bind(listen.https, "HTTPS")
        except OSError:
            _close(plain)
            raise
        self.context.http_listeners = [
            *(Listener("http", *sock.getsockname()[:2]) for sock in plain),
            *(Listener("https", *sock.getsockname()[:2]) for sock in encrypted),
        ]
        for sockets, tls in ((plain, None), (encrypted, self._tls)):
            if sockets:
                await self._serve(self._make_server(self._application, tls), sockets)
        return [listener.url for listener in self.context.http_listeners]

    async def respond(self, question: PeerRequest) -> PeerResponse:
        """Answer a peer request."""
        from rhizome.management.peers.peer_request_handler import respond

        if self._application is None:
            raise RuntimeError("asked before the service has started")
        return await respond(self._application, question)

    async def stop(self) -> None:
        """Stop listening, let requests under way finish for a moment, then end them."""
        for server in self._servers:
            server.should_exit = True
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=STOP_SECONDS_MAX + 1)
            for task in late:
                task.cancel()
        tasks = list(self._serving)
        for work in (self._sampling, self._sweeping):
            if work is not None:
                work.cancel()
                tasks.append(work)
        await asyncio.gather(*tasks, return_exceptions=True)
        self.context.journal_readers.close()

    def _make_server(self, application: ASGIApp, tls: ssl.SSLContext | None) -> uvicorn.Server:
        import uvicorn

        from rhizome.management.http.http_timeouts import Server, protocol_class

        context = self.context
        return Server(
            context,
            uvicorn.Config(
                application,
                loop="none",
                http=protocol_class(context, self._connections),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                # A reverse proxy on this machine must not be able to speak for other addresses:
                # whether a caller comes from loopback decides what guest may do.
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                ssl_context_factory=None if tls is None else lambda *_: tls,
            ),
        )

    async def _serve(self, server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        serving = asyncio.create_task(server.serve(sockets), name="http")
        self._servers.append(server)
        self._serving.append(serving)
        await self._until_started(server, serving)

    async def _until_started(self, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        while not server.started:
            if serving.done():
                serving.result()
                raise OSError("the HTTP server ended before it had started")
            await asyncio.sleep(0)


def _bind(addresses: Sequence[ListenAddress], what: str) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            sockets += bind(address.host, address.port, what)
    except OSError:
        _close(sockets)
        raise
    return sockets


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
