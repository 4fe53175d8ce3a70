"""HTTP timeouts: connections that take too long are closed.

uvicorn waits for ever for a request that comes byte by byte, and for a client that doesn't read its
answer; a few hundred of such clients would keep everybody else out. So

- a request's header must arrive within `limits.handshake_timeout` after its first byte, or after
  the connection was made;
- its body must arrive within BODY_SECONDS_MAX after that, and of a long one each BODY_PART_BYTES;
- an answer must be read within ANSWER_SECONDS_MAX;
- no more than a maximum of connections are open, whatever they do (`http_connection_limits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator
from time import monotonic
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rhizome.management.api_context import Context
from rhizome.management.http.http_connection_limits import ConnectionTable, Place
from rhizome.management.http.request_filter import RESERVE_KEY
from rhizome.security.rate_limited_log import RateLimitedLog

logger = logging.getLogger("rhizome.management")

BODY_SECONDS_MAX: Final = 60.0
BODY_PART_BYTES: Final = 1 << 20
ANSWER_SECONDS_MAX: Final = 60.0
RESERVE_SECONDS_MAX: Final = 2.0
"""A connection of the reserve must send its request within this time."""

REPORTS: Final = 10
REPORT_INTERVAL_MS: Final = 10_000


def protocol_class(context: Context, table: ConnectionTable) -> type[asyncio.Protocol]:
    """The protocol of the HTTP listeners of one broker."""
    reports = RateLimitedLog(REPORTS, REPORT_INTERVAL_MS)

    class BrokerProtocol(TimeoutProtocol):
        """The protocol of this broker."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.context = context
            self.table = table
            self.reports = reports
            self.logger = protocol_logger

    return BrokerProtocol


class _Sparingly(logging.Filter):
    """Lets few warnings of one kind through, because strangers can cause any number."""

    def __init__(self) -> None:
        super().__init__()
        self._reports = RateLimitedLog(REPORTS, REPORT_INTERVAL_MS)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        return self._reports.held_back(str(record.msg), int(monotonic() * 1000)) >= 0


protocol_logger: Final = logging.getLogger("rhizome.management.protocol")
protocol_logger.addFilter(_Sparingly())


class TimeoutProtocol(H11Protocol):
    """Invariant: `_receiving` runs while a request is incomplete, `_sending` while the transport
    takes nothing, and `_place` is idle in the table unless a whole request is under way."""

    context: Context
    table: ConnectionTable
    reports: RateLimitedLog
    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    _place: Place | None = None
    _in_body = False
    _part_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        self._place = self.table.enter(address, self._give_up)
        if self._place is None:
            self._give_up("there are too many connections, and none is idle")
            return
        seconds = self._header_seconds()
        if self._place.reserved:
            self.app_state = {**self.app_state, RESERVE_KEY: True}
            seconds = min(seconds, RESERVE_SECONDS_MAX)
        self._expect(seconds, "its request has not come in time")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        self._note_request()
        if state is h11.SEND_BODY:
            self._part_bytes += len(data)
            if not self._in_body or self._part_bytes > BODY_PART_BYTES:
                self._in_body = True
                self._part_bytes = 0
                self._expect(BODY_SECONDS_MAX, "the body of its request has not come in time")
        elif state is h11.IDLE:
            if self._in_body or self._receiving is None:
                self._in_body = False
                self._expect(self._header_seconds(), "its request has not come in time")
        else:
            self._in_body = False
            self._stop_expecting()

    def on_response_complete(self) -> None:
        if self._place is not None:
            self.table.end_request(self._place)
        super().on_response_complete()
        self._note_request()  # the next request may have come already

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        self._leave()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._sending is None:
            self._sending = self.loop.call_later(
                ANSWER_SECONDS_MAX, self._give_up, "it doesn't read its answer"
            )

    def resume_writing(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self.flow is not None:
            super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self._give_up("it doesn't read its answer")
            return
        super().timeout_keep_alive_handler()

    def _note_request(self) -> None:
        """Note whether a whole request is in progress: until then the broker waits for the
        client."""
        whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        if self._place is not None and whole and not self.transport.is_closing():
            self.table.begin_request(self._place)

    def _header_seconds(self) -> float:
        return self.context.config.limits.handshake_timeout_ms / 1000

    def _expect(self, seconds: float, otherwise: str) -> None:
        self._stop_expecting()
        self._receiving = self.loop.call_later(seconds, self._give_up, otherwise)

    def _stop_expecting(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _leave(self) -> None:
        if self._place is not None:
            self.table.leave(self._place)
            self._place = None

    def _give_up(self, why: str) -> None:
        address: Any = self.client[0] if self.client else "an unknown address"
        held_back = self.reports.held_back(str(address), int(monotonic() * 1000))
        if held_back >= 0:
            more = f" ({held_back} others were closed, too)" if held_back else ""
            logger.warning("HTTP connection from %s closed: %s%s", address, why, more)
        self._leave()
        self.transport.abort()


class Server(uvicorn.Server):
    """An HTTP server that leaves signals to the application that it is a part of, and also limits
    the time of TLS handshakes."""

    def __init__(self, context: Context, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.context = context

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Do what uvicorn does with given sockets, with a limit to the time of a handshake."""
        config = self.config
        loop = asyncio.get_running_loop()
        seconds = self.context.config.limits.handshake_timeout_ms / 1000
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=sock,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=seconds if config.ssl else None,
            )
            for sock in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )
