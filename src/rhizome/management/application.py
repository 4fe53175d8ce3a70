"""The ASGI application: every endpoint of the HTTP API, the metrics and the console at /.

Paths are matched as they came over the wire, so that `%2F` in a name is not taken for a separator:
the default vhost is called `/`, and `/api/queues/%2F/orders` must lead to it.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from rhizome.management import (
    bindings,
    checkup,
    cluster,
    cluster_keys,
    damaged,
    definitions,
    exchanges,
    groups,
    health,
    leases,
    live,
    messages,
    moving,
    openapi,
    overview,
    pages,
    policies,
    queues,
    rolechecks,
    session,
    sessions,
    stalls,
    status,
    streams,
    transactions,
    users,
    vhosts,
)
from rhizome.management.asked import asked_of
from rhizome.management.context import Context
from rhizome.management.endpoint import Endpoint, error_response, routes
from rhizome.management.errors import ApiError, MethodNotAllowed, ObjectNotFound
from rhizome.management.request_filter import RequestFilter
from rhizome.management.steps import Stepped

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *overview.ENDPOINTS,
    *status.ENDPOINTS,
    *live.ENDPOINTS,
    *stalls.ENDPOINTS,
    *checkup.ENDPOINTS,
    *cluster.ENDPOINTS,
    *cluster_keys.ENDPOINTS,
    *groups.ENDPOINTS,
    *transactions.ENDPOINTS,
    *sessions.ENDPOINTS,
    *exchanges.ENDPOINTS,
    *queues.ENDPOINTS,
    *leases.ENDPOINTS,
    *damaged.ENDPOINTS,
    *streams.ENDPOINTS,
    *messages.ENDPOINTS,
    *moving.ENDPOINTS,
    *bindings.ENDPOINTS,
    *vhosts.ENDPOINTS,
    *users.ENDPOINTS,
    *policies.ENDPOINTS,
    *definitions.ENDPOINTS,
    *health.ENDPOINTS,
    *rolechecks.ENDPOINTS,
    *openapi.ENDPOINTS,
)


class Page:
    """A path outside of the API."""

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
        if asked_of(request) is not None:
            raise ObjectNotFound
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{request.method} is not for this path")
        if self.path == "/":
            return pages.console_file(pages.FRONT_PAGE, request)
        if self.path == pages.CONSOLE_PATH:
            return pages.console_file(request.path_params["name"], request)
        return await pages.metrics(self.context, request, self.path == "/metrics/per-object")


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(ObjectNotFound())(scope, receive, send)


def make_application(context: Context) -> ASGIApp:
    router = Router(
        [
            *(
                Route(path, Page(context, path))
                for path in ("/", pages.CONSOLE_PATH, "/metrics", "/metrics/per-object")
            ),
            Route(session.PATH, session.Session(context)),
            *routes(context, ENDPOINTS),
        ],
        redirect_slashes=False,
        default=unknown_path,
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            path = raw.decode("latin-1").partition("?")[0]
            scope = {**scope, "path": path.rstrip("/") or "/", "root_path": ""}
            doing = f"HTTP {scope['method']} {scope['path']}"
            await Stepped(context.shell, doing, router(scope, receive, send))

    return RequestFilter(context, application)
