"""Endpoints: a table of paths, methods, the tag that each asks for, and its handler."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rhizome.errors import AccessRefused, AmqpError, NotFound
from rhizome.management.api_context import Context
from rhizome.management.errors import ApiError, Forbidden, MethodNotAllowed
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import OPEN, READING, REALM, Caller, authenticate, nobody
from rhizome.management.http.console_sessions import GUARD_HEADER
from rhizome.management.http.json_responses import refusal
from rhizome.management.openapi.endpoint_shapes import Answer, Schema
from rhizome.management.peers.peer_request_handler import peer_caller_of
from rhizome.security.password_hashes import PasswordHashError
from rhizome.security.permissions import PatternError

logger = logging.getLogger("rhizome.management")

Handler = Callable[[Call], Awaitable[Response]]

CALLER_KEY: Final = "rhizome.caller"
"""The key of the caller in the ASGI scope of a request, once it is known."""

PREVIEW_KEY: Final = "rhizome.preview"
"""Set in the scope of a request that only previewed a change."""

TRAFFIC: Final = ("/get", "/publish", "/report")
"""Ends of paths that move messages or report something, and change nothing else: they are not in
the audit log."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path. `{name}` in a path stands for one part of it, slashes encoded."""

    method: str
    path: str
    tag: str
    handle: Handler
    answers: Answer
    takes: Schema | None = None
    about: str = ""

    def summary(self) -> str:
        """One line about the endpoint: the beginning of its handler's docstring."""
        said = self.about or (self.handle.__doc__ or "").strip().partition("\n\n")[0]
        words = " ".join(said.split()) or self.handle.__name__.replace("_", " ").capitalize()
        return words.partition(". ")[0].rstrip(".")


GET: Final = partial(Endpoint, "GET")
PUT: Final = partial(Endpoint, "PUT")
POST: Final = partial(Endpoint, "POST")
DELETE: Final = partial(Endpoint, "DELETE")


class NameConvertor(Convertor[str]):
    """A part of a path as it came over the wire; `%2F` in it is part of the name."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="surrogateescape")

    def to_string(self, value: str) -> str:
        raise NotImplementedError


register_url_convertor("name", NameConvertor())


class Resource:
    """All methods of one path, as an ASGI application. Errors become answers here."""

    def __init__(self, context: Context, endpoints: list[Endpoint]) -> None:
        self.context = context
        self.methods = {endpoint.method: endpoint for endpoint in endpoints}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        try:
            response = await self._handle(request)
        except Exception as error:
            response = error_response(error)
            if response.status_code == 500:
                logger.exception("%s %s failed", request.method, request.url.path)
            if GUARD_HEADER in request.headers and "www-authenticate" in response.headers:
                # Otherwise the browser would ask for a password itself, over the console's own
                # page.
                del response.headers["www-authenticate"]
            if isinstance(error, MethodNotAllowed):
                response.headers["allow"] = ", ".join(self.methods)
        self._audit(request, response.status_code)
        return response

    async def _handle(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = self.methods.get(method)
        if endpoint is None:
            raise MethodNotAllowed(f"{request.method} is not for this path")
        check_same_site(request)
        if endpoint.tag == OPEN:
            return await self._answer(endpoint, Call(self.context, request, nobody(request)))
        caller = await authenticate(self.context, request)
        request.scope[CALLER_KEY] = caller
        caller.check(endpoint.tag)
        asked = peer_caller_of(request) is not None
        return await self._answer(endpoint, Call(self.context, request, caller, asked))

    async def _answer(self, endpoint: Endpoint, call: Call) -> Response:
        try:
            if not endpoint.answers.is_long:
                return await endpoint.handle(call)
            async with self.context.long_answers.place(call.asked):
                return await endpoint.handle(call)
        finally:
            call.end()

    def _audit(self, request: Request, status: int) -> None:
        """Audit changes, made or refused, and denied requests."""
        caller = request.scope.get(CALLER_KEY)
        if not isinstance(caller, Caller) or PREVIEW_KEY in request.scope:
            return
        what = f"{request.method} {request.scope['path']}"
        asked = peer_caller_of(request)
        via = "http" if asked is None else "broker"
        endpoint = self.methods[request.method if request.method != "HEAD" else "GET"]
        if request.method not in READING and not endpoint.path.endswith(TRAFFIC):
            place, origin = (caller.place, "") if asked is None else (asked.address, asked.origin)
            self.context.audit.change(caller.user, place, via, what, status, origin)
        elif status == 401 and asked is None:
            self.context.audit.access_refused(via, caller.user, caller.peer, "", what)
        elif status == 401 and asked is not None:
            self.context.audit.passed_on_refused(
                caller.user, caller.peer, asked.address, asked.origin, what
            )


def check_same_site(request: Request) -> None:
    """Refuse a change that a page of another site makes with the user's remembered password."""
    if request.method in READING:
        return
    site = request.headers.get("sec-fetch-site")
    if site is None:
        # A browser that doesn't send that header at least names the page's origin.
        origin = request.headers.get("origin", "")
        same = not origin or origin.partition("://")[2] == request.headers.get("host", "")
    else:
        same = site in ("none", "same-origin")
    if not same:
        raise Forbidden("changes are not accepted from pages of other sites")


def error_response(error: Exception) -> Response:
    """How an error looks to the client."""
    if isinstance(error, ApiError):
        headers = {"www-authenticate": REALM} if error.status == 401 else {}
        return refusal(error.status, error.error, error.reason, headers)
    if isinstance(error, NotFound):
        return refusal(404, "not_found", error.text, {})
    if isinstance(error, AccessRefused):
        return refusal(401, "not_authorised", error.text, {"www-authenticate": REALM})
    if isinstance(error, AmqpError):
        return refusal(400, "bad_request", error.text, {})
    if isinstance(error, (PatternError, PasswordHashError, UnicodeError)):
        return refusal(400, "bad_request", str(error), {})
    if isinstance(error, ClientDisconnect):
        return refusal(400, "bad_request", "the client went away", {})
    return refusal(500, "internal_error", "the broker made a mistake; its log has the details", {})


def routes(context: Context, endpoints: Iterable[Endpoint]) -> list[Route]:
    """One route per path, in the order of the table."""
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    return [
        Route(path.replace("}", ":name}"), Resource(context, found))
        for path, found in by_path.items()
    ]
