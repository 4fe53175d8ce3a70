"""Who asks: HTTP basic authentication against the broker's users, and the tags that count here.

As in RabbitMQ's management plugin: `management` may use the vhosts that its permissions open and
look at its own connections, `policymaker` may set policies and parameters there too, `monitoring`
may look at the brokers and all connections, `administrator` may look at everything and manage
vhosts and users.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from typing import Final

from starlette.requests import Request

from rhizome.broker.access import KIND_APPLICATION, KIND_CONSOLE, AuthDone, Identity, Peer
from rhizome.management.context import Context
from rhizome.management.errors import NotAuthorised
from rhizome.management.network import is_loopback
from rhizome.security.mechanisms import USER_BYTES_MAX, Credentials

logger = logging.getLogger("rhizome.management")

ANYBODY: Final = ""
MANAGEMENT: Final = "management"
POLICYMAKER: Final = "policymaker"
MONITORING: Final = "monitoring"
ADMINISTRATOR: Final = "administrator"

REALM: Final = 'Basic realm="Rhizome"'
KINDS: Final = frozenset({KIND_APPLICATION, KIND_CONSOLE})

# Which tags open what asks for the key.
_OPENED_BY: Final = {
    MANAGEMENT: frozenset({MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR}),
    POLICYMAKER: frozenset({POLICYMAKER, ADMINISTRATOR}),
    MONITORING: frozenset({MONITORING, ADMINISTRATOR}),
    ADMINISTRATOR: frozenset({ADMINISTRATOR}),
}
_REFUSALS: Final = {
    MANAGEMENT: "Not management user",
    POLICYMAKER: "Not policymaker or administrator user",
    MONITORING: "Not monitor user",
    ADMINISTRATOR: "Not administrator user",
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

    def may(self, tag: str) -> bool:
        """Whether the user's tags open what asks for ``tag``."""
        return tag == ANYBODY or bool(self._tags & _OPENED_BY[tag])

    def check(self, tag: str) -> None:
        if not self.may(tag):
            raise NotAuthorised(_REFUSALS[tag])

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may look at what is in ``vhost``; for changes it takes permissions."""
        return self.may(ADMINISTRATOR) or self.identity.may_enter(vhost)


class _LoginAnswer(AuthDone):
    """Brings the login service's answer into the request that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: asyncio.Future[tuple[Identity | None, str]] = (
            asyncio.get_running_loop().create_future()
        )

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_result((identity, reason))


async def authenticate(context: Context, request: Request) -> Caller:
    """The caller behind a request's Authorization header; raises NotAuthorised."""
    peer = peer_of(request)
    done = _LoginAnswer()
    context.login.check(_credentials(request), peer, done, KINDS)
    identity, reason = await done.answer
    if identity is None:
        logger.warning("HTTP login refused: %s", reason)
        raise NotAuthorised("Login failed")
    return Caller(identity, peer)


def _credentials(request: Request) -> Credentials:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise NotAuthorised("Login failed")
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        raise NotAuthorised("Login failed") from None
    if not colon or len(user) > USER_BYTES_MAX:
        raise NotAuthorised("Login failed")
    return Credentials(user.decode("utf-8", "surrogateescape"), password)


def peer_of(request: Request) -> Peer:
    client = request.client
    host, port = (client.host, client.port) if client is not None else ("", 0)
    return Peer(host, port, is_loopback(host), request.url.scheme == "https")
