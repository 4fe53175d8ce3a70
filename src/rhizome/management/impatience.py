"""Impatience: HTTP connections that take too long are closed.

uvicorn waits for ever for a request that comes byte by byte, and for a client that doesn't read its
answer; a few hundred of such clients would keep everybody else out. Here

- a request's header must be there `limits.handshake_timeout` after its first byte, or after the
  connection was made;
- its body must be there BODY_SECONDS_MAX later;
- an answer must be read within ANSWER_SECONDS_MAX;
- no more than a maximum of connections are open, whatever they do.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rhizome.management.context import Context
from rhizome.security.seldom import Seldom

logger = logging.getLogger("rhizome.management")

BODY_SECONDS_MAX: Final = 60.0
ANSWER_SECONDS_MAX: Final = 60.0

REPORTS: Final = 10
REPORT_INTERVAL_MS: Final = 10_000


def protocol_class(context: Context, connections_max: int) -> type[asyncio.Protocol]:
    """The protocol of the HTTP listeners of one broker."""
    reports = Seldom(REPORTS, REPORT_INTERVAL_MS)

    class ImpatientProtocol(H11Protocol):
        """Invariant: `_receiving` runs while a request is incomplete, `_sending` while the
        transport takes nothing."""

        _receiving: asyncio.TimerHandle | None = None
        _sending: asyncio.TimerHandle | None = None
        _in_body = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections_max:
                self._give_up(f"more than {connections_max} connections")
                return
            self._expect(self._header_seconds(), "its request has not come in time")

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            state = self.conn.their_state
            if state is h11.SEND_BODY:
                if not self._in_body:
                    self._in_body = True
                    self._expect(BODY_SECONDS_MAX, "the body of its request has not come in time")
            elif state is h11.IDLE:
                if self._in_body or self._receiving is None:
                    self._in_body = False
                    self._expect(self._header_seconds(), "its request has not come in time")
            else:
                self._in_body = False
                self._stop_expecting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_expecting()
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

        def _header_seconds(self) -> float:
            return context.config.limits.handshake_timeout_ms / 1000

        def _expect(self, seconds: float, otherwise: str) -> None:
            self._stop_expecting()
            self._receiving = self.loop.call_later(seconds, self._give_up, otherwise)

        def _stop_expecting(self) -> None:
            if self._receiving is not None:
                self._receiving.cancel()
                self._receiving = None

        def _give_up(self, why: str) -> None:
            address: Any = self.client[0] if self.client else "an unknown address"
            held_back = reports.held_back(str(address), int(monotonic() * 1000))
            if held_back >= 0:
                more = f" ({held_back} others were closed, too)" if held_back else ""
                logger.warning("HTTP connection from %s closed: %s%s", address, why, more)
            self.transport.abort()

    return ImpatientProtocol
