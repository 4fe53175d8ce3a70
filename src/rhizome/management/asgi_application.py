"""The ASGI application: every endpoint of the HTTP API, the metrics and the console at /.

Paths are matched as they came over the wire, so that `%2F` in a name is not taken for a separator:
the default vhost is called `/`, and `/api/queues/%2F/orders` must lead to it.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from rhizome.console import files
from rhizome.listen_sockets import is_loopback
from rhizome.management.api_context import Context
from rhizome.management.errors import ApiError, MethodNotAllowed, ObjectNotFound
from rhizome.management.http.auth import MONITORING, authenticate
from rhizome.management.http.endpoint import Endpoint, error_response, routes
from rhizome.management.http.json_responses import HEADERS
from rhizome.management.http.request_filter import RequestFilter
from rhizome.management.http.request_step_timer import RequestStepTimer
from rhizome.management.metrics.per_queue_metrics import with_queues
from rhizome.management.openapi import openapi_document
from rhizome.management.peers.peer_request_handler import peer_caller_of
from rhizome.management.rabbitmq_api import (
    bindings,
    connections_and_channels,
    definitions_file,
    exchanges,
    health_checks,
    overview_and_nodes,
    policies_and_parameters,
    queue_messages,
    queues,
    users,
    vhosts,
)
from rhizome.management.rhizome_api import (
    broker_status,
    cluster_key_fingerprints,
    cluster_status_and_changes,
    console_dashboard,
    console_login,
    damaged_message_list,
    doctor_facts,
    groups,
    journals,
    message_actions,
    message_move,
    message_search,
    open_transactions,
    queue_lease_list,
    role_health_checks,
    scheduled_messages,
    spark_pipelines,
    stalls,
    stream_readers,
    streams,
)

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


METRICS: Final = "rhizome.management.metrics.prometheus_metrics"


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *overview_and_nodes.ENDPOINTS,
    *broker_status.ENDPOINTS,
    *console_dashboard.ENDPOINTS,
    *stalls.ENDPOINTS,
    *doctor_facts.ENDPOINTS,
    *cluster_status_and_changes.ENDPOINTS,
    *cluster_key_fingerprints.ENDPOINTS,
    *groups.ENDPOINTS,
    *open_transactions.ENDPOINTS,
    *connections_and_channels.ENDPOINTS,
    *exchanges.ENDPOINTS,
    *queues.ENDPOINTS,
    *queue_lease_list.ENDPOINTS,
    *scheduled_messages.ENDPOINTS,
    *damaged_message_list.ENDPOINTS,
    *journals.ENDPOINTS,
    *streams.ENDPOINTS,
    *stream_readers.ENDPOINTS,
    *spark_pipelines.ENDPOINTS,
    *queue_messages.ENDPOINTS,
    *message_move.ENDPOINTS,
    *message_search.ENDPOINTS,
    *message_actions.ENDPOINTS,
    *bindings.ENDPOINTS,
    *vhosts.ENDPOINTS,
    *users.ENDPOINTS,
    *policies_and_parameters.ENDPOINTS,
    *definitions_file.ENDPOINTS,
    *health_checks.ENDPOINTS,
    *role_health_checks.ENDPOINTS,
    *openapi_document.ENDPOINTS,
)


class Page:
    """A path outside the API."""

    def __init__(self, context: Context, path: str) -> None:
        self.context = context
        self.path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ApiError as error:
            response = error_response(error)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if peer_caller_of(request) is not None:
            raise ObjectNotFound
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{request.method} is not for this path")
        if self.path == "/":
            return console_file(FRONT_PAGE, request)
        if self.path == CONSOLE_PATH:
            return console_file(request.path_params["name"], request)
        return await metrics(self.context, request, self.path == "/metrics/per-object")


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(ObjectNotFound())(scope, receive, send)


def make_application(context: Context) -> ASGIApp:
    router = Router(
        [
            *(
                Route(path, Page(context, path))
                for path in ("/", CONSOLE_PATH, "/metrics", "/metrics/per-object")
            ),
            Route(console_login.PATH, console_login.Session(context)),
            *routes(context, ENDPOINTS),
        ],
        redirect_slashes=False,
        default=unknown_path,
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            path = raw.decode("latin-1").partition("?")[0]
            # Changed in place, because the filter around this looks for what handlers note there.
            scope.update({"path": path.rstrip("/") or "/", "root_path": ""})
            doing = f"HTTP {scope['method']} {scope['path']}"
            await RequestStepTimer(context.shell, doing, router(scope, receive, send))

    return RequestFilter(context, application)
