"""RequestFilter: what every HTTP request passes before it is routed, and every answer after it.

- Over plain HTTP the Host header must be a name of this broker, so that no page of a foreign site
  can pass for one of its own (DNS rebinding; see `security/allowed_host_names.py`). Over HTTPS the
  browser has checked the certificate, which such a page can't show.
- A connection of the reserve gets an answer to a health check and nothing else, and is then closed.
- Answers over HTTPS tell browsers to keep using it.
- A refusal that comes before a short body was read waits for the rest of it. Before a long one it
  is sent at once; then more of the body is read and dropped, and the connection is closed, so that
  the client can read the refusal although it is still sending. More is read from callers than from
  strangers.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rhizome.management.api_context import Context
from rhizome.management.http.cooperative_yield import own_turn
from rhizome.management.http.endpoint import CALLER_KEY
from rhizome.management.http.json_responses import refusal
from rhizome.management.peers.peer_request_handler import SCOPE_KEY as ASKED_KEY
from rhizome.security.allowed_host_names import host_of, is_allowed_host

HEALTH_PATHS: Final = ("/api/health/", "/api/healthchecks/")
"""The prefix of paths that are answered on connections of the reserve."""

RESERVE_KEY: Final = "rhizome.reserve"
"""Set in the state of a request that came over a connection of the reserve."""

DRAIN_BYTES_MAX: Final = 1 << 20
DRAIN_SECONDS_MAX: Final = 2.0
"""How much of an unwanted body is read, and for how long."""

CALLERS_DRAIN_BYTES_MAX: Final = 1 << 30
CALLERS_DRAIN_SECONDS_MAX: Final = 30.0
"""The same for a caller who has logged in: its program perhaps reads no answer before it has sent
everything."""

CLOSE: Final = (b"connection", b"close")
MISDIRECTED: Final = 421
AMBIGUOUS: Final = "a request has Content-Length or Transfer-Encoding, not both"
"""A proxy that follows the other header would take the rest of the body for another request."""


class RequestFilter:
    """The outermost ASGI application."""

    def __init__(self, context: Context, inner: ASGIApp) -> None:
        self.context = context
        self.inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or ASKED_KEY in scope:
            await self.inner(scope, receive, send)
            return
        exchange = _Exchange(self._headers(scope), scope, receive, send)
        if not scope["path"].startswith(HEALTH_PATHS):
            await own_turn()  # a thousand requests at once must not fill one round of the loop
        refused = self._refused(scope, exchange)
        application = self.inner if refused is None else refused
        await application(scope, exchange.receive, exchange.send)

    def _refused(self, scope: Scope, exchange: _Exchange) -> ASGIApp | None:
        """The answer to a request that goes no further."""
        if exchange.is_ambiguous:
            exchange.closes = True
            return refusal(400, "bad_request", AMBIGUOUS, {})
        if scope["scheme"] == "http" and not self._is_addressed(exchange.host):
            return refusal(MISDIRECTED, "misdirected_request", self._misdirected(exchange.host), {})
        if RESERVE_KEY not in scope.get("state", {}):
            return None
        exchange.closes = True
        if scope["path"].startswith(HEALTH_PATHS):
            return None
        reason = (
            "all HTTP connections of this broker, or of your address, are in use: try again, or"
            " raise http.connections_max or http.connections_per_address_max"
        )
        return refusal(503, "service_unavailable", reason, {"retry-after": "1"})

    def _is_addressed(self, header: str | None) -> bool:
        if header is None:  # HTTP/1.0; every browser sends one
            return True
        config = self.context.config
        own = (*config.host_names(), self.context.machine)
        return is_allowed_host(host_of(header), own, config.http.allowed_hosts)

    def _misdirected(self, header: str | None) -> str:
        return (
            f"this broker is not called {host_of(header or '')[:255]!r}; if it is, add that name"
            " to http.allowed_hosts"
        )

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        seconds = self.context.config.http.hsts_ms // 1000
        if scope["scheme"] != "https" or not seconds:
            return []
        return [(b"strict-transport-security", b"max-age=%d" % seconds)]


class _Exchange:
    """One request and its answer. ``unread``: a body was announced, and its end was not seen."""

    def __init__(
        self, headers: list[tuple[bytes, bytes]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        given = dict(scope["headers"])
        host = given.get(b"host")
        self.host = None if host is None else host.decode("latin-1")
        self.closes = False
        self.is_ambiguous = b"content-length" in given and b"transfer-encoding" in given
        announced = given.get(b"content-length", b"0")
        self._announced_bytes = int(announced) if announced.isdigit() else 0
        self.unread = announced != b"0" or b"transfer-encoding" in given
        self._waits = b"expect" in given
        self._drained_bytes = 0
        self._scope = scope
        self._headers = headers
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits = False
        if not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.unread and self._announced_bytes <= DRAIN_BYTES_MAX:
                await self._drain(DRAIN_BYTES_MAX, DRAIN_SECONDS_MAX)
            more = [CLOSE] if self.closes or self.unread else []
            message = {**message, "headers": [*message["headers"], *self._headers, *more]}
        elif self.unread and not message.get("more_body", False):
            # The connection is closed at the end of the answer. Later bytes would cause a reset,
            # which takes the answer from the client.
            await self._send({**message, "more_body": True})
            if CALLER_KEY in self._scope:
                await self._drain(CALLERS_DRAIN_BYTES_MAX, CALLERS_DRAIN_SECONDS_MAX)
            else:
                await self._drain(DRAIN_BYTES_MAX, DRAIN_SECONDS_MAX)
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _drain(self, bytes_max: int, seconds_max: float) -> None:
        """Read the rest of the body, within bounds, unless the client waits for 100-continue."""
        if self._waits:
            return
        try:
            async with asyncio.timeout(seconds_max):
                while self.unread and self._drained_bytes < bytes_max:
                    message: Any = await self.receive()
                    self._drained_bytes += len(message.get("body", b""))
        except TimeoutError:
            pass
