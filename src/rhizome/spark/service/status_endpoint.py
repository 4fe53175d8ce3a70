"""The service's own address: `/metrics` for Prometheus, `/status` as JSON, `/health`.

It has no login, so it belongs on the loopback address or behind what keeps others out. It tells
names of flows and streams and texts of errors; never a password.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

REQUEST_SECONDS_MAX: Final = 5.0
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


class StatusEndpoint:
    """Serves the status until it is closed; `port` is the one that was bound."""

    def __init__(self, host: str, port: int, document: Document) -> None:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(StatusCollector(document))
        self._server = HTTPServer((host, port), _handler(registry, document))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="rhizome status", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(registry: Any, document: Document) -> type[BaseHTTPRequestHandler]:
    from prometheus_client import generate_latest

    class Handler(BaseHTTPRequestHandler):
        """Answers one request and closes."""

        timeout = REQUEST_SECONDS_MAX
        server_version = "rhizome"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
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
