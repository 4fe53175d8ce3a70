"""Peer request handler: runs a peer request through this broker's own API, as its user, for this
broker alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message

from rhizome.management.peers.peer_requests import CHECKSUM_HEADER, PeerRequest, PeerResponse

SCOPE_KEY: Final = "rhizome.asked"
"""The key of a peer request's user in its ASGI scope. No request that comes over HTTP has it."""


@dataclass(frozen=True, slots=True)
class PeerCaller:
    user: str
    token: str
    address: str = ""
    origin: str = ""


def peer_caller_of(request: Request) -> PeerCaller | None:
    """The caller of a peer request, if this is one."""
    found = request.scope.get(SCOPE_KEY)
    return found if isinstance(found, PeerCaller) else None


async def respond(application: ASGIApp, question: PeerRequest) -> PeerResponse:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": question.body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await application(_scope(question), receive, send)
    headers = dict(sent[0]["headers"])
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return PeerResponse(
        sent[0]["status"],
        headers.get(b"content-type", b"").decode("latin-1"),
        body,
        headers.get(CHECKSUM_HEADER.encode(), b"").decode("latin-1"),
    )


def _scope(question: PeerRequest) -> dict[str, Any]:
    path, _, query = question.target.partition("?")
    headers = [(b"x-reason", question.reason.encode("latin-1", "replace"))]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": question.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("latin-1", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "headers": headers if question.reason else [],
        "client": None,
        "server": None,
        SCOPE_KEY: PeerCaller(question.user, question.token, question.address, question.origin),
    }
