"""/api/rhizome/session: log in to the console and out of it.

POST {"user": ..., "password": ...} begins a login and sets its cookie; GET says who is logged in,
what the user may do and the guard that changes need; DELETE ends the login.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rhizome import __version__
from rhizome.management.api_context import Context
from rhizome.management.errors import (
    BadRequest,
    LoginFailed,
    MethodNotAllowed,
    NotAuthorised,
)
from rhizome.management.http.api_call import read_body
from rhizome.management.http.auth import (
    ADMINISTRATOR,
    CONSOLE,
    MANAGEMENT,
    MONITORING,
    POLICYMAKER,
    Caller,
    console_caller,
    cookie_of,
    login_of,
    secret_of,
    verified,
)
from rhizome.management.http.console_sessions import ConsoleSession
from rhizome.management.http.endpoint import check_same_site, error_response
from rhizome.management.http.json_body import parse_document
from rhizome.management.http.json_responses import answer, done
from rhizome.management.peers.peer_request_handler import peer_caller_of
from rhizome.security.login_service import LoggedIn
from rhizome.security.sasl_mechanisms import USER_BYTES_MAX, Credentials

PATH: Final = "/api/rhizome/session"
BODY_BYTES_MAX: Final = 16 * 1024
TAGS: Final = (MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR)


class Session:
    """The resource, as an ASGI application. It needs no login: it makes them."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except Exception as error:
            response = error_response(error)
            if "www-authenticate" in response.headers:
                del response.headers["www-authenticate"]
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        check_same_site(request)
        if peer_caller_of(request) is not None:
            raise NotAuthorised("brokers don't log in to the console")
        if request.method in ("GET", "HEAD"):
            caller = console_caller(self.context, request)
            return answer(self._row(caller, login_of(self.context, request)))
        if request.method == "POST":
            return await self._begin(request)
        if request.method == "DELETE":
            return self._end(request)
        raise MethodNotAllowed(f"{request.method} is not for this path")

    async def _begin(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            # A form of another site can't send this type.
            raise BadRequest("log in with a JSON object")
        document = parse_document(await read_body(request, BODY_BYTES_MAX))
        user = document.text("user")
        if len(user.encode("utf-8", "surrogateescape")) > USER_BYTES_MAX:
            raise LoginFailed
        password = document.text("password").encode("utf-8", "surrogateescape")
        caller = await verified(self.context, Credentials(user, password), request, CONSOLE)
        caller.check(MANAGEMENT)
        identity = caller.identity
        # The hash that was proved: the user's may be another one by now.
        password_hash = identity.password_hash if isinstance(identity, LoggedIn) else ""
        secret, login = self.context.logins.begin(caller.user, password_hash, caller.token)
        response = answer(self._row(caller, login), 201)
        response.set_cookie(
            cookie_of(request),
            secret,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    def _end(self, request: Request) -> Response:
        console_caller(self.context, request)
        self.context.logins.end(secret_of(request))
        response = done()
        response.delete_cookie(cookie_of(request), path="/", httponly=True, samesite="strict")
        return response

    def _row(self, caller: Caller, login: ConsoleSession) -> dict[str, object]:
        return {
            "user": caller.user,
            "may": [tag for tag in TAGS if caller.may(tag)],
            "guard": login.guard,
            "seconds_left": self.context.logins.left_seconds(login),
            "broker": self.context.name,
            "cluster": self.context.broker.settings.cluster_name,
            "version": __version__,
        }
