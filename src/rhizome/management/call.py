"""Call: one request with who makes it, as the handlers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from rhizome.broker.queue import Queue
from rhizome.broker.vhost import VHost
from rhizome.management.auth import MONITORING, Caller
from rhizome.management.context import Context
from rhizome.management.document import Document, read_document, too_large
from rhizome.management.errors import BadRequest, NotAuthorised, ObjectNotFound, Unavailable
from rhizome.management.json_decoder import ENTRY_VALUES_MAX
from rhizome.management.others import Question

BODY_BYTES_MAX: Final = 128 * 1024
DEFINITIONS_BYTES_MAX: Final = 16 << 20
HELD_BYTES_MAX: Final = 64 << 20
"""Bodies of all requests under way together."""


class Call:
    """A request whose caller is known and has the tag that its endpoint asks for."""

    def __init__(
        self, context: Context, request: Request, caller: Caller, asked: bool = False
    ) -> None:
        """``asked``: another broker asks, and wants to know what this one has itself."""
        self.context = context
        self.request = request
        self.caller = caller
        self.asked = asked
        self._held_bytes = 0

    # ---- the path -------------------------------------------------------------------------------

    def target(self) -> str:
        """Path and query as they came over the wire."""
        scope = self.request.scope
        query = scope["query_string"].decode("latin-1")
        return f"{scope['path']}?{query}" if query else str(scope["path"])

    def question(self, target: str) -> Question:
        """What the caller would ask another broker for."""
        caller = self.caller
        return Question("GET", target, caller.user, token=caller.token, address=caller.place)

    def name(self, key: str = "name") -> str:
        """A part of the path, decoded."""
        found = self.request.path_params[key]
        assert isinstance(found, str)
        return found

    def vhost(self) -> VHost:
        """The vhost in the path."""
        vhost = self.context.broker.state.vhosts.get(self.name("vhost"))
        if vhost is None:
            raise ObjectNotFound
        if not self.caller.may_enter(vhost.name):
            raise NotAuthorised("User not authorised to access virtual host")
        return vhost

    def vhosts(self) -> list[VHost]:
        """The vhost in the path; without one there all that the caller may look at."""
        if "vhost" in self.request.path_params:
            return [self.vhost()]
        vhosts = self.context.broker.state.vhosts
        return [vhost for name, vhost in vhosts.items() if self.caller.may_enter(name)]

    def monitored_vhosts(self) -> list[VHost]:
        """The same, but those who monitor look at any."""
        if not self.caller.may(MONITORING):
            return self.vhosts()
        vhosts = self.context.broker.state.vhosts
        if "vhost" not in self.request.path_params:
            return list(vhosts.values())
        vhost = vhosts.get(self.name("vhost"))
        if vhost is None:
            raise ObjectNotFound
        return [vhost]

    def queue(self) -> Queue:
        """The queue in the path, for looking at."""
        queue = self.vhost().destinations.get(self.name())
        if not isinstance(queue, Queue):
            raise ObjectNotFound
        return queue

    # ---- the query ------------------------------------------------------------------------------

    def flag(self, key: str) -> bool:
        return self.request.query_params.get(key) == "true"

    def number(self, key: str, default: int, least: int, most: int) -> int:
        text = self.request.query_params.get(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise BadRequest(f"{key} is {text[:40]!r}; it must be a whole number")
        if not least <= int(text) <= most:
            raise BadRequest(f"{key} is {text}; it must be from {least} to {most}")
        return int(text)

    # ---- the body -------------------------------------------------------------------------------

    async def document(
        self, bytes_max: int = BODY_BYTES_MAX, values_max: int = ENTRY_VALUES_MAX
    ) -> Document:
        """The JSON object in the body. Whatever can be refused without it is refused before."""
        return await read_document(await self.body(bytes_max), values_max)

    async def body(self, bytes_max: int) -> bytes:
        return await read_body(self.request, bytes_max, self._hold)

    def _hold(self, size: int) -> None:
        if self.context.body_bytes + size > HELD_BYTES_MAX:
            raise Unavailable(
                f"the requests under way have more than {HELD_BYTES_MAX} bytes; try again"
            )
        self.context.body_bytes += size
        self._held_bytes += size

    def end(self) -> None:
        """The request is answered."""
        self.context.body_bytes -= self._held_bytes
        self._held_bytes = 0


def _ignore(size: int) -> None:
    """Nobody counts."""


async def read_body(
    request: Request, bytes_max: int, hold: Callable[[int], None] = _ignore
) -> bytes:
    """A request's body; raises TooLarge before more than ``bytes_max`` are kept. ``hold`` is told
    of each piece."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise too_large(bytes_max)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > bytes_max:
            raise too_large(bytes_max)
        hold(len(piece))
        pieces.append(piece)
    return b"".join(pieces)
