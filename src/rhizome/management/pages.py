"""What isn't the API: the console, and /metrics."""

from __future__ import annotations

import asyncio
import importlib
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rhizome.console import files
from rhizome.management.answers import HEADERS
from rhizome.management.auth import MONITORING, authenticate
from rhizome.management.context import Context
from rhizome.management.errors import ObjectNotFound
from rhizome.management.network import is_loopback
from rhizome.management.perqueue import with_queues

FRONT_PAGE: Final = "index.html"
CONSOLE_PATH: Final = "/console/{name}"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final = {
    **HEADERS,
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
}


def console_file(name: str, request: Request) -> Response:
    """A file of the console. Browsers ask each time whether it has changed: nobody shall run half
    of an old one after an upgrade."""
    file = files().get(name)
    if file is None:
        raise ObjectNotFound
    headers = {**PAGE_HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(b"", 304, headers)
    return Response(file.content, 200, {**headers, "content-type": file.content_type})


async def metrics(context: Context, request: Request, per_queue: bool) -> Response:
    """Anybody on this machine may scrape; from elsewhere it takes a user who may monitor."""
    client = request.client
    if client is None or not is_loopback(client.host):
        caller = await authenticate(context, request)
        caller.check(MONITORING)
    loop = asyncio.get_running_loop()
    # The first scrape loads the client library; messages don't wait for that.
    library = await loop.run_in_executor(None, importlib.import_module, METRICS)
    reading = await library.read(context)
    accept = request.headers.get("accept", "")
    text, content_type = await loop.run_in_executor(None, library.render, reading, accept)
    if per_queue:
        text = await with_queues(context, text, content_type)
    return Response(text, 200, {**HEADERS, "content-type": content_type})


METRICS: Final = "rhizome.management.metrics"
