"""The worst that each endpoint of the HTTP API may be sent: the longest bodies, the most values,
the deepest nesting, and queries that make, sort and filter every row.

`worst_requests` has at least one for every handler, `filling` is what a broker should hold before.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rhizome.management import messages
from rhizome.management.application import ENDPOINTS
from rhizome.management.call import BODY_BYTES_MAX, DEFINITIONS_BYTES_MAX
from rhizome.management.document import SHORT_BYTES_MAX
from rhizome.management.endpoint import Endpoint
from rhizome.management.json_decoder import DEPTH_MAX, ENTRY_VALUES_MAX

QUEUES: Final = 3_000
NAMES: Final = {
    "vhost": "%2F",
    "name": "worst-0",
    "source": "amq.topic",
    "destination": "worst-0",
    "user": "guest",
    "limit": "max-connections",
    "group": "0",
    "broker": "rhizome",
    "node": "rhizome",
    "port": "5672",
    "protocol": "amqp",
    "within": "1",
    "unit": "days",
    "component": "c",
    "properties": "~",
    "consumer": "c",
    "lease": "l",
    "exchange": "amq.topic",
}
NAMED: Final = {
    "/api/nodes/": "rhizome",
    "/api/exchanges/": "amq.topic",
    "/api/rhizome/streams/": "worst-stream",
    "/api/users/": "worst-user",
    "/api/policies/": "worst-policy",
    "/api/operator-policies/": "worst-policy",
    "/api/parameters/": "worst-parameter",
    "/api/global-parameters/": "worst-parameter",
}
UNTOUCHED: Final = ("DELETE", "/api/rhizome/cluster/", "/drain", "/undrain", "/home", "/move")
"""What would end what others need; the bodies of these are as bounded as all others."""

SHORT: Final = ("/get", "/move", "/offsets/{consumer}")
"""Ends of paths whose bodies are short."""

QUERIES: Final = (
    "",
    "page=1&page_size=500&sort=message_stats.publish_details.rate&sort_reverse=true",
    "name=9&columns=" + ",".join(["name", "vhost", "arguments.x"] * 60),
)


@dataclass(frozen=True)
class WorstRequest:
    """One request; its body is made when it is needed."""

    name: str
    method: str
    path: str
    body: Callable[[], bytes]


def filling() -> bytes:
    """Definitions that give every list something to do."""
    queues = [
        {"vhost": "/", "name": f"worst-{at}", "durable": True, "arguments": {"x-a": [at] * 8}}
        for at in range(QUEUES)
    ]
    bindings = [
        {
            "vhost": "/",
            "source": "amq.topic",
            "destination": f"worst-{at}",
            "destination_type": "queue",
            "routing_key": f"a.{at}.*",
        }
        for at in range(QUEUES)
    ]
    return json.dumps({"queues": queues, "bindings": bindings}).encode()


def worst_requests() -> list[WorstRequest]:
    by_handler = {endpoint.handle: endpoint for endpoint in reversed(ENDPOINTS)}
    found = [request for endpoint in reversed(by_handler.values()) for request in _of(endpoint)]
    for path in ("/metrics", "/metrics/per-object", "/", "/console/main.js"):
        found.append(WorstRequest(f"GET {path}", "GET", path, lambda: b""))
    return found


def _of(endpoint: Endpoint) -> Iterator[WorstRequest]:
    path, name = _target(endpoint.path), f"{endpoint.method} {endpoint.path}"
    if endpoint.method == "DELETE" or endpoint.path.endswith(UNTOUCHED[2:]):
        return
    if endpoint.path.startswith(UNTOUCHED[1]):
        return
    if endpoint.takes is None:
        queries = QUERIES if endpoint.answers.is_long else ("",)
        for query in queries:
            target = f"{path}?{query}" if query else path
            yield WorstRequest(f"{name} {query[:20]}", endpoint.method, target, lambda: b"")
        return
    bytes_max = _bytes_max(endpoint)
    for kind, body in _bodies(endpoint, bytes_max):
        yield WorstRequest(f"{name} ({kind})", endpoint.method, path, body)


def _bytes_max(endpoint: Endpoint) -> int:
    if "definitions" in endpoint.path or "all-configuration" in endpoint.path:
        return DEFINITIONS_BYTES_MAX
    if endpoint.path.endswith("/publish"):
        return messages.BODY_BYTES_MAX
    return SHORT_BYTES_MAX if endpoint.path.endswith(SHORT) else BODY_BYTES_MAX


def _bodies(endpoint: Endpoint, bytes_max: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The body as a list without end, and the worst values in the place of each field."""
    yield "lists", lambda: _filled(b'{"x": [', b"[],", b"[]]}", bytes_max)
    yield "numbers", lambda: _filled(b'{"x": [', b"0.5,", b"0]}", bytes_max)
    yield "deep", lambda: b'{"x": ' + b"[" * (bytes_max - 6)
    assert endpoint.takes is not None
    for field, schema in endpoint.takes["properties"].items():
        if bytes_max == DEFINITIONS_BYTES_MAX and field != "queues":
            continue  # they are all alike
        fields = {**_right(endpoint), field: None}
        for kind, value in _values(schema, bytes_max - len(json.dumps(fields)) - 16):
            yield f"{field}: {kind}", lambda f=fields, n=field, v=value: _with(f, n, v())
    if endpoint.path.endswith("/publish"):
        whole = {**_right(endpoint), "payload_encoding": "base64"}
        payload = b64encode(bytes((bytes_max - 200) // 4 * 3))
        yield "base64", lambda: _with(whole, "payload", b'"%s"' % payload)


def _values(schema: Any, size: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind in ("string", None):
        yield "text", lambda: b'"' + b"a" * size + b'"'
        yield "escapes", lambda: b'"' + b"\\n" * (size // 2) + b'"'
    count = min(ENTRY_VALUES_MAX - 100, size // 12)
    if kind in ("object", None):
        yield "fields", lambda: b"{" + b",".join(b'"%d":0.5' % at for at in range(count)) + b"}"
        yield "nested", lambda: b'{"a":' * (DEPTH_MAX - 40) + b"0" + b"}" * (DEPTH_MAX - 40)
    if kind in ("array", None):
        yield "entries", lambda: _filled(b"[", b'{"name":"x"},', b"{}]", size)


def _with(fields: dict[str, object], name: str, value: bytes) -> bytes:
    text = json.dumps({**fields, name: None}).encode()
    mark = json.dumps(name).encode() + b": "
    return text.replace(mark + b"null", mark + value)


def _right(endpoint: Endpoint) -> dict[str, object]:
    assert endpoint.takes is not None
    right: dict[str, object] = {
        "pattern": "^none$",
        "definition": {"max-length": 1_000_000},
        "routing_key": "nowhere",
        "payload": "x",
        "tags": "",
        "ackmode": "ack_requeue_true",
        "users": [],
    }
    return {name: right.get(name, "x") for name in endpoint.takes["required"]}


def _filled(head: bytes, item: bytes, tail: bytes, size: int) -> bytes:
    return head + item * max(0, (size - len(head) - len(tail)) // len(item)) + tail


def _target(path: str) -> str:
    for beginning, name in NAMED.items():
        if path.startswith(beginning):
            path = path.replace("{name}", name)
    for key, name in NAMES.items():
        path = path.replace("{" + key + "}", name)
    return path
