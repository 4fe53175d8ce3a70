"""Call: one request and its caller, as the handlers see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.requests import Request

from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.queue.queue import Queue
from rhizome.management.api_context import Context
from rhizome.management.errors import BadRequest, NotAuthorised, ObjectNotFound, Unavailable
from rhizome.management.http.auth import MONITORING, Caller
from rhizome.management.http.json_body import Document, read_document, stream_document, too_large
from rhizome.management.http.json_decoder import VALUES_MAX
from rhizome.management.peers.peer_requests import PeerRequest

BODY_BYTES_MAX: Final = 128 * 1024
DEFINITIONS_REST_BYTES: Final = 16 << 20
"""Room for what the cluster state's limit doesn't count: users, permissions, operator policies."""

JSON_BYTES_PER_STATE_BYTE: Final = 6
"""The most characters of JSON per byte of a state: a control character, and a byte of a name that
is not UTF-8, takes six. Nothing else takes as many."""

HELD_BYTES_MAX: Final = 64 << 20
"""The bytes of the bodies of all requests in progress together, without imports of definitions."""


class Call:
    """A request whose caller is known and has the tag that its endpoint asks for."""

    def __init__(
        self, context: Context, request: Request, caller: Caller, asked: bool = False
    ) -> None:
        """``asked``: another broker asks for what this one has itself."""
        self.context = context
        self.request = request
        self.caller = caller
        self.asked = asked
        self._held_bytes = 0
        self._import_bytes = 0

    # ---- the path -------------------------------------------------------------------------------

    def target(self) -> str:
        """Path and query as they came over the wire."""
        scope = self.request.scope
        query = scope["query_string"].decode("latin-1")
        return f"{scope['path']}?{query}" if query else str(scope["path"])

    def question(self, target: str) -> PeerRequest:
        """The target of the request as another broker is asked for it."""
        caller = self.caller
        return PeerRequest("GET", target, caller.user, token=caller.token, address=caller.place)

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
        """The vhost in the path; without one, all that the caller may look at."""
        if "vhost" in self.request.path_params:
            return [self.vhost()]
        vhosts = self.context.broker.state.vhosts
        return [vhost for name, vhost in vhosts.items() if self.caller.may_enter(name)]

    def monitored_vhosts(self) -> list[VHost]:
        """The same, but callers that monitor may look at any vhost."""
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
        """The queue in the path, for reading."""
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

    async def document(self, bytes_max: int = BODY_BYTES_MAX) -> Document:
        """The JSON object in the body. Everything that can be refused without it is refused
        before."""
        return await read_document(await self.body(bytes_max))

    async def definitions(self) -> Document:
        """The definitions file in the body, decoded as it comes.

        What may be exported may be imported: its limits follow from that of the cluster state.
        """
        state_bytes_max = self.context.broker.state.sizes.bytes_max
        bytes_max = definitions_bytes_max(state_bytes_max)
        why = f"; cluster.state_size_max has {state_bytes_max}, and a larger one allows for more"
        pieces = body_pieces(self.request, bytes_max, why)
        values_max = state_bytes_max + VALUES_MAX  # none takes less than a byte of the state
        return await stream_document(self._counted(pieces, bytes_max), values_max)

    async def _counted(self, pieces: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes]:
        """Count imports in progress: together they may use no more than one of them may."""
        async for piece in pieces:
            if self.context.import_bytes + len(piece) > bytes_max:
                raise Unavailable("other imports of definitions are under way; try again")
            self.context.import_bytes += len(piece)
            self._import_bytes += len(piece)
            yield piece

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
        self.context.import_bytes -= self._import_bytes
        self._import_bytes = 0


def definitions_bytes_max(state_bytes_max: int) -> int:
    """How long an export of a state can be, and a body with definitions may be."""
    return JSON_BYTES_PER_STATE_BYTE * state_bytes_max + DEFINITIONS_REST_BYTES


def _ignore(size: int) -> None:
    """Count nothing."""


async def read_body(
    request: Request, bytes_max: int, hold: Callable[[int], None] = _ignore
) -> bytes:
    """A request's body; raises TooLarge before more than ``bytes_max`` are kept. ``hold`` is told
    of each piece."""
    pieces: list[bytes] = []
    async for piece in body_pieces(request, bytes_max):
        hold(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


async def body_pieces(request: Request, bytes_max: int, why: str = "") -> AsyncIterator[bytes]:
    """A request's body as it comes; raises TooLarge, which says ``why``, before more than
    ``bytes_max`` were given."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise too_large(bytes_max, why)
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > bytes_max:
            raise too_large(bytes_max, why)
        yield piece
