"""/api/openapi.json: the HTTP API, described from the table of its endpoints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT, READING
from rhizome.management.http.endpoint import GET, Endpoint
from rhizome.management.http.json_responses import HEADERS, JSON_TYPE, encoded
from rhizome.management.openapi.endpoint_shapes import TABLE, TEXT, Part, Shape, record, row_of

VERSION: Final = "3.1.0"
PARAMETER: Final = re.compile(r"\{(\w+)\}")
REFUSAL: Final = record("Refusal", {"error": TEXT, "reason": TEXT})
REFUSALS: Final = {
    400: "What was sent makes no sense, or contradicts what exists",
    401: "Nobody has logged in, or the user may not do this",
    403: "A page of another site asks",
    404: "There is no such object",
    409: "It doesn't go with how things are now; the reason says what to do",
    413: "The body is too long",
    421: "Over plain HTTP, the Host header names another host: see http.allowed_hosts",
    503: "It can't be done now; the reason says why",
}
MEANINGS: Final = {
    200: "As asked",
    201: "It is new",
    204: "Done",
    503: "It fails, or can't be asked now",
}
ABOUT: Final = (
    "The API of RabbitMQ's management plugin, as far as its tools use it, and Rhizome's own under"
    " /api/rhizome. Vhosts and names are percent-encoded in paths: the default vhost is %2F."
)


class Describer:
    """Makes the document. Invariant: every schema that it refers to is among its components."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def rendered(self, part: Any) -> Any:
        """JSON Schema with references in place of named schemas."""
        if isinstance(part, Shape):
            if part.name not in self.components:
                self.components[part.name] = {}
                self.components[part.name] = self.rendered(part.schema)
            return {"$ref": f"#/components/schemas/{part.name}"}
        if isinstance(part, Mapping):
            return {key: self.rendered(value) for key, value in part.items()}
        if isinstance(part, (list, tuple)):
            return [self.rendered(value) for value in part]
        return part

    def operation(self, endpoint: Endpoint) -> dict[str, Any]:
        found: dict[str, Any] = {
            "operationId": operation_id(endpoint),
            "summary": endpoint.summary(),
            "description": f"For users with the tag `{endpoint.tag}`.",
            "tags": [endpoint.path.split("/")[3 if "/rhizome/" in endpoint.path else 2]],
            "parameters": self._parameters(endpoint),
            "responses": self._responses(endpoint),
        }
        if endpoint.takes is not None:
            found["requestBody"] = {"content": self._content(endpoint.takes), "required": True}
        return found

    def _parameters(self, endpoint: Endpoint) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
            for name in PARAMETER.findall(endpoint.path)
        ]
        found += [
            {
                "name": each.name,
                "in": "query",
                "description": each.text,
                "schema": self.rendered(each.schema),
            }
            for each in endpoint.answers.query
        ]
        return found

    def _responses(self, endpoint: Endpoint) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for status, part in endpoint.answers.bodies.items():
            found[str(status)] = {"description": MEANINGS[status]}
            if part is not None:
                media_type = endpoint.answers.media_type
                found[str(status)]["content"] = self._content(part, media_type)
        for status in refusals_of(endpoint):
            shapes: list[Part] = [REFUSAL]
            own = endpoint.answers.bodies.get(status)
            if own is not None:
                shapes.append(own)
            part = REFUSAL if own is None else {"anyOf": shapes}
            content = self._content(part)
            found[str(status)] = {"description": REFUSALS[status], "content": content}
        return found

    def _content(self, part: Part, media_type: str = JSON_TYPE) -> dict[str, Any]:
        return {media_type: {"schema": self.rendered(part)}}


def refusals_of(endpoint: Endpoint) -> list[int]:
    """The statuses that an endpoint may refuse with. An endpoint that only reads, and only what
    every broker has, is never unavailable unless it is long; what belongs to a queue is asked at
    its home."""
    found = [400, 401]
    if endpoint.method not in READING:
        found.append(403)
    if "{" in endpoint.path:
        found.append(404)
    if endpoint.takes is not None:
        found += [409, 413]
    found.append(421)
    if endpoint.method not in READING or "{" in endpoint.path or endpoint.answers.is_long:
        found.append(503)
    return found


def operation_id(endpoint: Endpoint) -> str:
    """Made of method and path: a handler may serve several."""
    words = re.findall(r"\w+", endpoint.path.replace("{", "by-").removeprefix("/api"))
    return "-".join([endpoint.method.lower(), *words]).replace("_", "-")


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document."""
    describer = Describer()
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operations = paths.setdefault(endpoint.path, {})
        operations[endpoint.method.lower()] = describer.operation(endpoint)
    return {
        "openapi": VERSION,
        "info": {"title": "Rhizome HTTP API", "version": __version__, "description": ABOUT},
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "schemas": describer.components,
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
    }


async def show_document(call: Call) -> Response:
    """This document."""
    # It is long; messages don't wait while it is made.
    body = await asyncio.get_running_loop().run_in_executor(None, encoded_document)
    return Response(body, 200, HEADERS, JSON_TYPE)


@cache
def encoded_document() -> bytes:
    from rhizome.management.asgi_application import ENDPOINTS as ALL

    return encoded(describe(ALL))


ENDPOINTS: Final = (GET("/api/openapi.json", MANAGEMENT, show_document, row_of(TABLE)),)
