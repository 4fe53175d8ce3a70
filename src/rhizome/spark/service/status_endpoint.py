"""The service's own address: `/metrics` for Prometheus, `/status` as JSON, `/health`.

It has no login, so it belongs on the loopback address or behind what keeps others out. It tells
names of flows and streams and texts of errors; never a password. On a loopback address it answers
only requests for a name that no other site can own, as the broker does.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

REQUEST_SECONDS_MAX: Final = 5.0
"""How long a request may take as a whole, from its first byte to the last of the answer."""
REQUESTS_MAX: Final = 16
"""How many requests are answered at the same time; one more, and the oldest is closed."""
PREFIX: Final = "rhizome_pipeline_"
STATES: Final = ("starting", "running", "waiting", "halted", "stopped")
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = "application/json"

Document = Callable[[], dict[str, Any]]

_GAUGES: Final = (
    ("rows_per_second", "rows_per_second", "Messages per second in the last batch."),
    ("batch_seconds", "batch_seconds", "How long the last batch took."),
    ("set_aside_batches", "set_aside", "Batches that lie set aside."),
)
_COUNTERS: Final = (
    ("rows", "rows", "Messages that were read and written."),
    ("batches", "batches", "Batches that were done."),
    ("restarts", "restarts", "Starts of the flow after the first."),
)
_TIMES: Final = (
    ("last_batch_timestamp_seconds", "batch_done", "When the last batch was done."),
    ("last_error_timestamp_seconds", "error_time", "When the flow failed last; 0 if never."),
)


class StatusCollector:
    """The status as metrics, made when they are asked for. What makes them is imported late: it is
    on the driver only, and this module goes to executors with the others."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        flows = self._document()["flows"]
        for name, key, text in _GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["flow"])
            for flow in flows:
                gauge.add_metric([flow["name"]], float(flow[key]))
            yield gauge
        for name, key, text in _COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=["flow"])
            for flow in flows:
                counter.add_metric([flow["name"]], float(flow[key]))
            yield counter
        for name, key, text in _TIMES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["flow"])
            for flow in flows:
                gauge.add_metric([flow["name"]], _seconds(flow[key]))
            yield gauge
        yield from self._states_and_lag(flows)

    def _states_and_lag(self, flows: list[dict[str, Any]]) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        states = GaugeMetricFamily(
            PREFIX + "flow_state", "1 for the state that a flow is in.", labels=["flow", "state"]
        )
        lag = GaugeMetricFamily(
            PREFIX + "lag_messages",
            "Messages of a stream or queue that the flow has not read.",
            labels=["flow", "stream"],
        )
        for flow in flows:
            for state in STATES:
                states.add_metric([flow["name"], state], float(flow["state"] == state))
            for stream, messages in flow["lag"].items():
                lag.add_metric([flow["name"], stream], float(messages))
        yield states
        yield lag


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


class _Server(ThreadingHTTPServer):
    """A thread for each request, so that a slow client holds nobody up but itself.

    Invariant: ``_open`` has the requests that are being answered, the oldest first, and at most
    REQUESTS_MAX. The oldest gives way: clients that say nothing would keep out those who ask for
    the health of the service, and have it restarted.
    """

    daemon_threads = True
    # The end of the service waits for no request.
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= REQUESTS_MAX else None
            if oldest is not None:
                del self._open[oldest]
            self._open[request] = None
        if oldest is not None:
            _end(oldest)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(REQUEST_SECONDS_MAX, _end, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nobody's error."""


def _end(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


class StatusEndpoint:
    """Serves the status until it is closed; `port` is the one that was bound."""

    def __init__(self, host: str, port: int, document: Document) -> None:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(StatusCollector(document))
        self._server = _Server((host, port), _handler(registry, document, _is_loopback(host)))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="rhizome status", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_own_name(header: str) -> bool:
    """Whether no other site can own the name in a Host header: an address, this machine's name, or
    one without a dot, which nobody can register."""
    host = header.strip().lower()
    name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if "." not in name or name.endswith(".localhost") or name == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _handler(registry: Any, document: Document, checks_host: bool) -> type[BaseHTTPRequestHandler]:
    from prometheus_client import generate_latest

    class Handler(BaseHTTPRequestHandler):
        """Answers one request and closes."""

        timeout = REQUEST_SECONDS_MAX
        server_version = "rhizome"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if checks_host and not _is_own_name(self.headers.get("Host", "localhost")):
                self._answer(421, _JSON, b'{"error": "this service has another name"}')
            elif path == "/metrics":
                self._answer(200, _TEXT, generate_latest(registry))
            elif path == "/status":
                self._answer(200, _JSON, json.dumps(document()).encode())
            elif path == "/health":
                halted = [each["name"] for each in document()["flows"] if each["state"] == "halted"]
                body = json.dumps({"healthy": not halted, "halted": halted}).encode()
                self._answer(503 if halted else 200, _JSON, body)
            else:
                self._answer(404, _JSON, b'{"error": "not found"}')

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Requests are not logged."""

    return Handler
