"""Authentication of HTTP callers, against the broker's users or a console session, and user tags.

As in RabbitMQ's management plugin: `management` may use the vhosts that its permissions open and
look at its own connections, `policymaker` may set policies and parameters there too, `monitoring`
may look at the brokers and all connections, `administrator` may look at everything and manage
vhosts and users. `bridge`, which RabbitMQ doesn't have, is for the program that follows parameters,
and `auditor` for those who read the journals of brokers, with the messages of all vhosts in them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from typing import Final

from starlette.requests import Request

from rhizome.broker.access.auth_interface import (
    KIND_APPLICATION,
    KIND_CONSOLE,
    AccessEpoch,
    AuthDone,
    Identity,
    Peer,
)
from rhizome.listen_sockets import is_loopback
from rhizome.management.api_context import Context
from rhizome.management.errors import Forbidden, LoginFailed, NotAuthorised
from rhizome.management.http.console_sessions import (
    GUARD_HEADER,
    IDLE_HEADER,
    ConsoleSession,
    cookie_name,
    guards_match,
)
from rhizome.management.peers.peer_request_handler import peer_caller_of
from rhizome.security.audit_log import place_of
from rhizome.security.password_hashes import is_same_password
from rhizome.security.permissions import UserIdentity
from rhizome.security.rate_limited_log import caused_by
from rhizome.security.sasl_mechanisms import USER_BYTES_MAX, Credentials
from rhizome.security.token_login import TokenIdentity, identity_of_passport

logger = logging.getLogger("rhizome.management")

ANYBODY: Final = ""
OPEN: Final = "open"
"""The tag of endpoints that need no login."""
MANAGEMENT: Final = "management"
POLICYMAKER: Final = "policymaker"
MONITORING: Final = "monitoring"
ADMINISTRATOR: Final = "administrator"
BRIDGE: Final = "bridge"
"""The tag of a program that follows parameters: it is shown the passwords in them."""
AUDITOR: Final = "auditor"
"""The tag of jobs that read journals. It opens nothing else."""
PARAMETERS: Final = "policymaker or bridge"
"""Not a tag, but either of two: callers that may look at parameters."""
SECRETS: Final = "administrator or bridge"
"""The same: callers that are shown the passwords in them."""

HTTP: Final = "http"
CONSOLE: Final = "console"

REALM: Final = 'Basic realm="Rhizome"'
KINDS: Final = frozenset({KIND_APPLICATION, KIND_CONSOLE})
READING: Final = ("GET", "HEAD", "OPTIONS")

# The tags that open an endpoint which demands the key.
_OPENED_BY: Final = {
    MANAGEMENT: frozenset({MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR, BRIDGE}),
    POLICYMAKER: frozenset({POLICYMAKER, ADMINISTRATOR}),
    MONITORING: frozenset({MONITORING, ADMINISTRATOR}),
    ADMINISTRATOR: frozenset({ADMINISTRATOR}),
    PARAMETERS: frozenset({POLICYMAKER, ADMINISTRATOR, BRIDGE}),
    SECRETS: frozenset({ADMINISTRATOR, BRIDGE}),
    AUDITOR: frozenset({AUDITOR, ADMINISTRATOR}),
}
_REFUSALS: Final = {
    MANAGEMENT: "Not management user",
    POLICYMAKER: "Not policymaker or administrator user",
    MONITORING: "Not monitor user",
    ADMINISTRATOR: "Not administrator user",
    PARAMETERS: "Not policymaker or administrator user",
    AUDITOR: (
        "Not auditor or administrator user: journals have the messages of all vhosts, so whoever"
        " reads them needs the tag auditor (rhizome user add NAME --tags auditor)"
    ),
}


class Caller:
    """The user that a request comes from."""

    def __init__(self, identity: Identity, peer: Peer) -> None:
        self.identity = identity
        self.peer = peer
        self._tags = frozenset(identity.tags)

    @property
    def user(self) -> str:
        return self.identity.user

    @property
    def token(self) -> str:
        """The permissions in the user's access token, for other brokers; empty without one."""
        identity = self.identity
        return identity.passport() if isinstance(identity, TokenIdentity) else ""

    @property
    def place(self) -> str:
        """The address that the request comes from; empty if another broker asks."""
        return place_of(self.peer)

    def may(self, tag: str) -> bool:
        """Whether the user's tags open an endpoint that demands ``tag``."""
        return tag == ANYBODY or bool(self._tags & _OPENED_BY[tag])

    def check(self, tag: str) -> None:
        if not self.may(tag):
            raise NotAuthorised(_REFUSALS[tag])

    def sees(self, user: str) -> bool:
        """Whether the user may look at connections of ``user``: all for those who monitor, else
        their own."""
        return self.may(MONITORING) or user == self.user

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may look at what is in ``vhost``; for changes it takes permissions."""
        return self.may(ADMINISTRATOR) or self.identity.may_enter(vhost)


def nobody(request: Request) -> Caller:
    """The caller of an endpoint that needs no login."""
    return Caller(Identity("", KIND_CONSOLE, (), AccessEpoch()), peer_of(request))


class _LoginAnswer(AuthDone):
    """Passes the login service's answer to the request that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: asyncio.Future[tuple[Identity | None, str]] = (
            asyncio.get_running_loop().create_future()
        )

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_result((identity, reason))


async def authenticate(context: Context, request: Request) -> Caller:
    """The caller behind a request; raises NotAuthorised.

    It is the user that another broker names in a peer request, else the one in the Authorization
    header, else the user of a console session.
    """
    asked = peer_caller_of(request)
    if asked is not None:
        if asked.token:
            return bearer(context, asked.token, request)
        return known_caller(context, asked.user, request)
    if "authorization" in request.headers or not secret_of(request):
        return await verified(context, _credentials(context, request), request)
    return console_caller(context, request)


async def verified(
    context: Context, credentials: Credentials, request: Request, via: str = HTTP
) -> Caller:
    """The caller with these credentials, if they are right."""
    peer = peer_of(request)
    done = _LoginAnswer()
    context.login.check(credentials, peer, done, KINDS)
    identity, reason = await done.answer
    if identity is None:
        logger.warning("HTTP login refused: %s", reason, extra=caused_by(peer.address))
        context.audit.login_refused(via, credentials.user, peer, reason)
        raise LoginFailed
    if via == HTTP:
        context.audit.request(via, identity.user, peer)
    else:
        context.audit.login(via, identity.user, peer)
    return Caller(identity, peer)


def known_caller(context: Context, user: str, request: Request) -> Caller:
    """A user who has already proved their identity, elsewhere or before."""
    broker = context.broker
    record = broker.state.users.get(user)
    if record is None or record.kind not in KINDS:
        raise LoginFailed
    tags = tuple(sorted(record.tags))
    identity = UserIdentity(user, record.kind, tags, broker.state, broker.access_epoch)
    return Caller(identity, peer_of(request))


def bearer(context: Context, passport: str, request: Request) -> Caller:
    """A user who has already shown an access token, elsewhere or before."""
    identity = identity_of_passport(passport, context.broker.access_epoch)
    if identity.has_expired():
        raise LoginFailed("The access token has expired: log in again")
    return Caller(identity, peer_of(request))


# ---- logins of the console ----------------------------------------------------------------------


def secret_of(request: Request) -> str:
    """The secret in the console's cookie; empty if there is none."""
    return request.cookies.get(cookie_of(request), "")


def cookie_of(request: Request) -> str:
    server = request.scope.get("server")
    return cookie_name(server[1] if server else 0)


def login_of(context: Context, request: Request) -> ConsoleSession:
    """The console session that a request belongs to; raises NotAuthorised."""
    secret = secret_of(request)
    login = context.logins.find(secret, touch=IDLE_HEADER not in request.headers)
    if login is None:
        raise LoginFailed("Not logged in, or for too long: log in again")
    if login.token:
        return login
    record = context.broker.state.users.get(login.user)
    if record is None or not is_same_password(login.password_hash, record.password_hash):
        context.logins.end(secret)
        raise LoginFailed("The user has changed: log in again")
    login.password_hash = record.password_hash
    return login


def console_caller(context: Context, request: Request) -> Caller:
    login = login_of(context, request)
    if request.method not in READING:
        if not guards_match(login, request.headers.get(GUARD_HEADER, "")):
            raise Forbidden("changes with a login of the console come from its own pages only")
    if login.token:
        return bearer(context, login.token, request)
    return known_caller(context, login.user, request)


# ---- basic authentication, and tokens -----------------------------------------------------------


def _credentials(context: Context, request: Request) -> Credentials:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and context.login.takes_tokens:
        return Credentials("", encoded.strip().encode("latin-1"), bearer=True)
    if scheme.lower() != "basic":
        raise LoginFailed
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        raise LoginFailed from None
    if not colon or len(user) > USER_BYTES_MAX:
        raise LoginFailed
    return Credentials(user.decode("utf-8", "surrogateescape"), password)


def peer_of(request: Request) -> Peer:
    client = request.client
    host, port = (client.host, client.port) if client is not None else ("", 0)
    return Peer(host, port, is_loopback(host), request.url.scheme == "https")
