"""What other brokers ask this one: a question is run through the API, as its user, for this broker
alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message

from rhizome.management.others import Question, Reply

SCOPE_KEY: Final = "rhizome.asked"
"""Where the ASGI scope of a question has its user. No request that comes over HTTP has it."""


@dataclass(frozen=True, slots=True)
class Asked:
    user: str
    token: str
    address: str = ""
    origin: str = ""


def asked_of(request: Request) -> Asked | None:
    """Who asks, if another broker does."""
    found = request.scope.get(SCOPE_KEY)
    return found if isinstance(found, Asked) else None


async def respond(application: ASGIApp, question: Question) -> Reply:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": question.body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await application(_scope(question), receive, send)
    headers = dict(sent[0]["headers"])
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Reply(sent[0]["status"], headers.get(b"content-type", b"").decode("latin-1"), body)


def _scope(question: Question) -> dict[str, Any]:
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
        SCOPE_KEY: Asked(question.user, question.token, question.address, question.origin),
    }
