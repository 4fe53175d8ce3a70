"""What isn't the API: the page at /, and /metrics."""

from __future__ import annotations

import asyncio
import html
import importlib
import string
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rhizome import __version__
from rhizome.management.answers import HEADERS
from rhizome.management.auth import MONITORING, authenticate
from rhizome.management.context import Context
from rhizome.management.network import is_loopback

PAGE: Final = Path(__file__).with_name("page.html")
PAGE_HEADERS: Final = {
    **HEADERS,
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-frame-options": "DENY",
}


def front_page(context: Context) -> Response:
    text = string.Template(PAGE.read_text()).substitute(
        name=html.escape(context.name),
        cluster=html.escape(context.broker.settings.cluster_name),
        version=html.escape(__version__),
    )
    return Response(text, 200, PAGE_HEADERS, "text/html; charset=utf-8")


async def metrics(context: Context, request: Request, per_queue: bool) -> Response:
    """Anybody on this machine may scrape; from elsewhere it takes a user who may monitor."""
    client = request.client
    if client is None or not is_loopback(client.host):
        caller = await authenticate(context, request)
        caller.check(MONITORING)
    loop = asyncio.get_running_loop()
    # The first scrape loads the client library; messages don't wait for that.
    library = await loop.run_in_executor(None, importlib.import_module, METRICS)
    reading = await library.read(context, per_queue)
    accept = request.headers.get("accept", "")
    text, content_type = await loop.run_in_executor(None, library.render, reading, accept)
    return Response(text, 200, {**HEADERS, "content-type": content_type})


METRICS: Final = "rhizome.management.metrics"
