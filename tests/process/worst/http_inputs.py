"""The worst input of each endpoint of the HTTP API: lists of everything, the longest query, the
largest body that is read."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

from rhizome.amqp import methods
from rhizome.management.asgi_application import ENDPOINTS
from rhizome.management.http.api_call import BODY_BYTES_MAX
from rhizome.management.http.endpoint import Endpoint
from rhizome.management.http.json_body import SHORT_BYTES_MAX
from rhizome.management.http.json_decoder import DEPTH_MAX, ENTRY_VALUES_MAX
from rhizome.management.rabbitmq_api import queue_messages
from tests.process.worst.world import CROWD, World

Input = Callable[[World], Iterator[None]]
INPUTS: Final[list[tuple[str, str, Input]]] = []
"""Endpoint, what it is sent, and the input."""

HEAD_BYTES: Final = 50_000
"""A little less than what is read of the head of a request."""
BODY_BYTES: Final = 1_000_000
"""More than what is read of most bodies."""
DEFINITIONS_BYTES: Final = 16 << 20
"""Of a body with definitions; it may have more, and is decoded as it comes."""


def key_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


# ---- what stands in paths -----------------------------------------------------------------------

NAMES: Final[dict[str, str]] = {
    "vhost": CROWD,
    "name": "crowded",
    "user": "guest",
    "source": "fan",
    "destination": "crowded",
    "properties": "~",
    "group": "1",
    "broker": "rhizome",
    "node": "rhizome",
    "component": "operator_policy",
    "limit": "max-queues",
    "consumer": "c",
    "lease": "l",
    "pin": "p",
    "part": "segment-1",
    "port": "5672",
    "protocol": "amqp",
    "within": "1",
    "unit": "weeks",
    "exchange": "amq.topic",
}
NAMED: Final[dict[str, str]] = {
    "/api/nodes/": "rhizome",
    "/api/exchanges/": "fan",
    "/api/policies/": "policy1",
    "/api/operator-policies/": "limit1",
    "/api/parameters/": "limit1",
    "/api/global-parameters/": "global1",
    "/api/users/": "user1",
}
"""What {name} is, by the beginning of the path."""


def target(endpoint: Endpoint, **names: str) -> str:
    given = {**NAMES, **names}
    if "name" not in names:
        for beginning, name in NAMED.items():
            if endpoint.path.startswith(beginning):
                given["name"] = name
    path = endpoint.path
    for key, value in given.items():
        path = path.replace("{" + key + "}", quote(value, safe=""))
    return path


# ---- reading ------------------------------------------------------------------------------------


PAGE: Final = "a page of what a pattern matches"
MANY_COLUMNS: Final = "thousands of columns"
HISTORY: Final = "the last minutes"
RATES: Final = "a page in the order of rates"
SOME_COLUMNS: Final = "some columns, many times, of what has a name"
VARIANTS: Final = frozenset({PAGE, MANY_COLUMNS, HISTORY, RATES, SOME_COLUMNS})
"""What is asked of each of many lists."""
BODY: Final = "body: "
"""How the kinds of bodies begin that every endpoint is sent."""
COLUMNS: Final = "COLUMNS"
"""Stands for as many columns as the world has room for."""


def queries(endpoint: Endpoint) -> list[tuple[str, dict[str, str]]]:
    """The longest that may be asked of a list, or nothing where nothing may be asked."""
    asked = {parameter.name for parameter in endpoint.answers.query}
    made: list[tuple[str, dict[str, str]]] = [("everything", {})]
    if "sort" in asked:
        made[0] = ("everything, sorted downwards", {"sort": "name", "sort_reverse": "true"})
        page = {"page": "1", "page_size": "500", "use_regex": "true"}
        made.append((PAGE, {**page, "name": "(.*a){1,9}(x|y|z)*q"}))
        rate = "message_stats.publish_details.rate"
        made.append(
            (RATES, {"page": "1", "page_size": "500", "sort": rate, "sort_reverse": "true"})
        )
    if "columns" in asked:
        made.append((MANY_COLUMNS, {"columns": COLUMNS}))
        some = ",".join(["name", "vhost", "arguments.x"] * 60)
        made.append((SOME_COLUMNS, {"name": "9", "columns": some}))
    if "history" in asked:
        made.append((HISTORY, {"history": "true"}))
    return made


def reads(endpoint: Endpoint, what: str, query: dict[str, str]) -> None:
    def made(world: World) -> Iterator[None]:
        columns = ",".join(f"a{at}.b.c" for at in range(world.sizes.query_bytes // 12))
        given = {key: columns if value == COLUMNS else value for key, value in query.items()}
        asked = target(endpoint) + ("?" + urlencode(given) if given else "")
        yield
        world.http("GET", asked)

    INPUTS.append((key_of(endpoint), what, made))


for _endpoint in ENDPOINTS:
    if _endpoint.method == "GET":
        for _what, _query in queries(_endpoint):
            reads(_endpoint, _what, _query)


# ---- changing -----------------------------------------------------------------------------------


def wide(size: int = BODY_BYTES) -> dict[str, object]:
    return {f"k{at}": at for at in range(size // 17)}


def deep(size: int = BODY_BYTES) -> bytes:
    """As deep as JSON is parsed, many times over."""
    nested = b"[" * 400 + b"]" * 400
    return b"[" + b",".join([nested] * (size // 802)) + b"]"


FIELDS: Final[dict[str, dict[str, object]]] = {
    "PUT /api/exchanges/{vhost}/{name}": {"type": "topic"},
    "POST /api/queues/{vhost}/{name}/get": {"count": 1, "ackmode": "x", "encoding": "auto"},
    "POST /api/exchanges/{vhost}/{name}/publish": {"routing_key": "", "properties": {}},
    "PUT /api/permissions/{vhost}/{user}": {"configure": "", "write": "", "read": ""},
    "PUT /api/topic-permissions/{vhost}/{user}": {"exchange": "", "write": "", "read": ""},
    "PUT /api/policies/{vhost}/{name}": {"pattern": "^$"},
    "PUT /api/operator-policies/{vhost}/{name}": {"pattern": "^$"},
}


def large_bodies(endpoint: Endpoint) -> None:
    """The largest bodies: a wide one in a field that takes anything, and a deep one."""

    def wide_one(world: World) -> Iterator[None]:
        fields: dict[str, object] = dict(FIELDS.get(key_of(endpoint), {}))
        taken = (endpoint.takes or {}).get("properties", {})
        held = next(
            (each for each in ("arguments", "definition", "value") if each in taken), "more"
        )
        body = {**fields, held: wide()}
        yield
        world.http(endpoint.method, target(endpoint, name=world.name("made")), body)

    def deep_one(world: World) -> Iterator[None]:
        body = deep()
        yield
        world.http(endpoint.method, target(endpoint, name=world.name("made")), body)

    INPUTS.append((key_of(endpoint), "a wide body of 1 MB", wide_one))
    INPUTS.append((key_of(endpoint), "a deep body of 1 MB", deep_one))


def deletes(endpoint: Endpoint) -> None:
    """What is not there, or stays: those that delete much have inputs of their own below."""

    def made(world: World) -> Iterator[None]:
        vhost = "z" * 255 if endpoint.path == "/api/vhosts/{vhost}" else CROWD
        yield
        world.http("DELETE", target(endpoint, name="x" * 255, user="y" * 255, vhost=vhost))

    INPUTS.append((key_of(endpoint), "the longest name", made))


for _endpoint in ENDPOINTS:
    if _endpoint.method in ("PUT", "POST"):
        large_bodies(_endpoint)
    elif _endpoint.method == "DELETE":
        deletes(_endpoint)


# ---- every field of every body ------------------------------------------------------------------

UNTOUCHED: Final = ("/drain", "/undrain", "/home", "/move")
"""Ends of paths that would end what others need; their bodies are as bounded as all others."""
SHORT: Final = ("/get", "/offsets/{consumer}")
"""Ends of paths whose bodies are short."""
Body = Callable[[], bytes]


def bytes_max_of(endpoint: Endpoint) -> int:
    if "definitions" in endpoint.path or "all-configuration" in endpoint.path:
        return DEFINITIONS_BYTES
    if endpoint.path.endswith("/publish"):
        return queue_messages.BODY_BYTES_MAX
    return SHORT_BYTES_MAX if endpoint.path.endswith(SHORT) else BODY_BYTES_MAX


def bodies_of(endpoint: Endpoint) -> Iterator[tuple[str, Body]]:
    """The body as a list without end, and the worst values in the place of each field."""
    assert endpoint.takes is not None
    bytes_max = bytes_max_of(endpoint)
    yield "lists", lambda: filled(b'{"x": [', b"[],", b"[]]}", bytes_max)
    yield "numbers", lambda: filled(b'{"x": [', b"0.5,", b"0]}", bytes_max)
    yield "deep", lambda: b'{"x": ' + b"[" * (bytes_max - 6)
    for field, schema in endpoint.takes["properties"].items():
        if bytes_max == DEFINITIONS_BYTES and field != "queues":
            continue  # they are all alike
        fields = {**right_fields(endpoint), field: None}
        for kind, value in values_of(schema, bytes_max - len(json.dumps(fields)) - 16):
            yield f"{field}: {kind}", in_field(fields, field, value)
    if endpoint.path.endswith("/publish"):
        whole = {**right_fields(endpoint), "payload_encoding": "base64"}
        payload = b64encode(bytes((bytes_max - 200) // 4 * 3))
        yield "base64", lambda: with_field(whole, "payload", b'"%s"' % payload)


def values_of(schema: Any, size: int) -> Iterator[tuple[str, Body]]:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind in ("string", None):
        yield "text", lambda: b'"' + b"a" * size + b'"'
        yield "escapes", lambda: b'"' + b"\\n" * (size // 2) + b'"'
    count = min(ENTRY_VALUES_MAX - 100, size // 12)
    if kind in ("object", None):
        yield "fields", lambda: b"{" + b",".join(b'"%d":0.5' % at for at in range(count)) + b"}"
        yield "nested", lambda: b'{"a":' * (DEPTH_MAX - 40) + b"0" + b"}" * (DEPTH_MAX - 40)
    if kind in ("array", None):
        yield "entries", lambda: filled(b"[", b'{"name":"x"},', b"{}]", size)


def in_field(fields: dict[str, object], name: str, value: Body) -> Body:
    return lambda: with_field(fields, name, value())


def with_field(fields: dict[str, object], name: str, value: bytes) -> bytes:
    text = json.dumps({**fields, name: None}).encode()
    mark = json.dumps(name).encode() + b": "
    return text.replace(mark + b"null", mark + value)


def right_fields(endpoint: Endpoint) -> dict[str, object]:
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


def filled(head: bytes, item: bytes, tail: bytes, size: int) -> bytes:
    return head + item * max(0, (size - len(head) - len(tail)) // len(item)) + tail


def sends(endpoint: Endpoint, kind: str, body: Body) -> None:
    def made(world: World) -> Iterator[None]:
        whole = body()
        yield
        status, _ = world.http(endpoint.method, target(endpoint, name=world.name("made")), whole)
        assert status != 500

    INPUTS.append((key_of(endpoint), BODY + kind, made))


for _endpoint in {each.handle: each for each in reversed(ENDPOINTS)}.values():
    _path = _endpoint.path
    if _endpoint.takes is None or _path.endswith(UNTOUCHED) or "/rhizome/cluster/" in _path:
        continue
    for _kind, _body in bodies_of(_endpoint):
        sends(_endpoint, _kind, _body)


# ---- pages outside of the API -------------------------------------------------------------------

PAGES: Final[list[tuple[str, str, Input]]] = []


def page(path: str) -> None:
    def made(world: World) -> Iterator[None]:
        yield
        world.http("GET", path)

    PAGES.append((f"GET {path}", "a page", made))


for _path in ("/metrics", "/metrics/per-object", "/", "/console/main.js"):
    page(_path)


# ---- one by one ---------------------------------------------------------------------------------


def worst(name: str, what: str) -> Callable[[Input], Input]:
    assert name in {key_of(endpoint) for endpoint in ENDPOINTS}, name

    def add(made: Input) -> Input:
        INPUTS.append((name, what, made))
        return made

    return add


@worst("PUT /api/policies/{vhost}/{name}", "one that matches every queue and exchange")
def policy_for_all(world: World) -> Iterator[None]:
    name = world.name("policy")
    body = {"pattern": ".*", "definition": {"max-length": 1_000_000}, "priority": 9999}
    yield
    world.ok("PUT", f"/api/policies/{CROWD}/{name}", body)
    yield
    world.ok("DELETE", f"/api/policies/{CROWD}/{name}")


@worst("DELETE /api/policies/{vhost}/{name}", "one that matches every queue and exchange")
def no_policy_for_all(world: World) -> Iterator[None]:
    name = world.name("policy")
    body = {"pattern": ".*", "definition": {"max-length": 1_000_000}, "priority": 9999}
    world.ok("PUT", f"/api/policies/{CROWD}/{name}", body)
    yield
    world.ok("DELETE", f"/api/policies/{CROWD}/{name}")


@worst("PUT /api/operator-policies/{vhost}/{name}", "a shorter length for a full queue")
def shorter(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    world.fill(talker, queue, world.sizes.messages * 5)
    body = {"pattern": f"^{queue}$", "definition": {"max-length": 1}, "apply-to": "queues"}
    yield
    world.ok("PUT", f"/api/operator-policies/%2F/{queue}", body)
    yield
    world.ok("DELETE", f"/api/operator-policies/%2F/{queue}")
    talker.close()


@worst("PUT /api/policies/{vhost}/{name}", "a time to live that is over for a full queue")
def shorter_lived(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    world.fill(talker, queue, world.sizes.messages * 5)
    body = {"pattern": f"^{queue}$", "definition": {"message-ttl": 1}, "apply-to": "queues"}
    yield
    world.ok("PUT", f"/api/policies/%2F/{queue}", body)
    answer: Any = None
    while answer is None or answer.message_count:
        answer = talker.call(methods.QueueDeclare(queue, passive=True))
    yield
    world.ok("DELETE", f"/api/policies/%2F/{queue}")
    talker.close()


@worst("PUT /api/policies/{vhost}/{name}", "a pattern that takes for ever to fail")
def slow_pattern(world: World) -> Iterator[None]:
    talker = world.talker()
    talker.call(methods.QueueDeclare("a" * 25, exclusive=True))
    yield
    world.http(
        "PUT", "/api/policies/%2F/slow", {"pattern": "^(a|a)*!", "definition": {"max-length": 9}}
    )
    yield
    world.http("DELETE", "/api/policies/%2F/slow")
    talker.close()


@worst("GET /api/queues", "as many columns as the head of a request has room for")
def all_columns(world: World) -> Iterator[None]:
    columns = ",".join(f"a{at}.b.c" for at in range(HEAD_BYTES // 12))
    yield
    world.http("GET", f"/api/queues/{CROWD}1?columns={columns}")
    world.http("GET", f"/api/exchanges?columns={columns}")


@worst("GET /api/queues", "a pattern that takes for ever to fail")
def slow_search(world: World) -> Iterator[None]:
    talker = world.talker()
    talker.call(methods.QueueDeclare("a" * 25, exclusive=True))
    yield
    world.http("GET", "/api/queues?page=1&use_regex=true&name=" + quote("^(a|a)*!"))
    yield
    talker.close()


@worst("POST /api/queues/{vhost}/{name}/get", "10,000 messages, which are put back")
def get_many(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    world.fill(talker, queue, 10_000)
    body = {"count": 10_000, "ackmode": "ack_requeue_true", "encoding": "base64"}
    yield
    world.ok("POST", f"/api/queues/%2F/{queue}/get", body)
    yield
    talker.call(methods.QueueDelete(queue))
    talker.close()


@worst(
    "GET /api/rhizome/queues/{vhost}/{name}/messages", "as many as are shown, from the last offset"
)
def browse(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    world.fill(talker, queue, world.sizes.messages)
    yield
    offset = min(world.sizes.messages, 100_000) - 1000
    world.ok("GET", f"/api/rhizome/queues/%2F/{queue}/messages?count=1000&offset={offset}")
    yield
    talker.call(methods.QueueDelete(queue))
    talker.close()


PINS: Final = "/api/rhizome/journals/{broker}/pins"


@worst("POST " + PINS, "of a store with all there is, and the longest ranges of it")
def read_journal(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    world.fill(talker, queue, world.sizes.messages)
    pins = PINS.replace("{broker}", "rhizome")
    yield
    pin = world.ok("POST", pins)
    for part in pin["parts"][:10]:
        world.http("GET", f"{pins}/{pin['pin']}/{part['name']}")
    yield
    world.ok("DELETE", f"{pins}/{pin['pin']}")
    talker.call(methods.QueueDelete(queue))
    talker.close()


@worst("POST /api/rhizome/queues/{vhost}/{name}/move", "as many as go at once")
def move(world: World) -> Iterator[None]:
    talker = world.talker()
    queue, to = world.queue(talker), world.queue(talker)
    world.fill(talker, queue, 1000)
    yield
    world.ok("POST", f"/api/rhizome/queues/%2F/{queue}/move", {"to": to, "count": 1000})
    yield
    talker.close()


@worst("POST /api/exchanges/{vhost}/{name}/publish", "to many queues, 8 MB of base64")
def publish(world: World) -> Iterator[None]:
    body = {
        "routing_key": "",
        "payload": "QUFB" * 2_000_000,
        "payload_encoding": "base64",
        "properties": {},
    }
    yield
    world.http("POST", f"/api/exchanges/{CROWD}/fan/publish", body)
    yield
    for at in range(world.sizes.objects):
        world.http("DELETE", f"/api/queues/{CROWD}/q{at}/contents") if at % 2 == 0 else None


@worst("DELETE /api/queues/{vhost}/{name}/contents", "of a full queue")
def purge(world: World) -> Iterator[None]:
    talker = world.talker()
    queue = world.queue(talker)
    world.fill(talker, queue, world.sizes.messages * 5)
    yield
    world.ok("DELETE", f"/api/queues/%2F/{queue}/contents")
    yield
    talker.close()


def crowded_vhost(world: World) -> str:
    name = world.name("vhost")
    world.ok("PUT", f"/api/vhosts/{name}")
    queues = [
        {"name": f"q{at}", "durable": True, "arguments": {}} for at in range(world.sizes.objects)
    ]
    bindings = [
        {
            "source": "amq.topic",
            "destination": f"q{at}",
            "destination_type": "queue",
            "routing_key": f"a.{at}.#",
            "arguments": {},
        }
        for at in range(world.sizes.objects)
    ]
    world.ok("POST", f"/api/definitions/{name}", {"queues": queues, "bindings": bindings})
    return name


@worst("DELETE /api/vhosts/{vhost}", "with many queues and bindings")
def delete_vhost(world: World) -> Iterator[None]:
    name = crowded_vhost(world)
    yield
    world.ok("DELETE", f"/api/vhosts/{name}")


@worst("POST /api/definitions/{vhost}", "many queues and bindings")
def import_many(world: World) -> Iterator[None]:
    yield
    name = crowded_vhost(world)
    yield
    world.ok("DELETE", f"/api/vhosts/{name}")


@worst("DELETE /api/connections/username/{user}", "with many connections and channels")
def close_all(world: World) -> Iterator[None]:
    user = world.name("closed")
    world.ok("PUT", f"/api/users/{user}", {"password": "p", "tags": ""})
    allowed = {"configure": ".*", "write": ".*", "read": ".*"}
    world.ok("PUT", f"/api/permissions/%2F/{user}", allowed)
    for _ in range(world.sizes.connections):
        talker = world.talker(user=user, password="p")
        numbers = range(2, 102)
        for number in numbers:
            talker.send(methods.ChannelOpen(), number)
        for _ in numbers:
            talker.expect(methods.ChannelOpenOk)
    yield
    world.http("DELETE", f"/api/connections/username/{user}")
    yield
    world.ok("DELETE", f"/api/users/{user}")


@worst("POST /api/users/bulk-delete", "as many users as a body names")
def bulk_delete(world: World) -> Iterator[None]:
    users = [f"nobody{at}" for at in range(BODY_BYTES // 16)]
    yield
    world.http("POST", "/api/users/bulk-delete", {"users": users})


@worst("PUT /api/rhizome/streams/{vhost}/{name}", "as many partitions as it may have")
def partitions(world: World) -> Iterator[None]:
    name = world.name("stream")
    yield
    world.http("PUT", f"/api/rhizome/streams/%2F/{name}", {"partitions": 1000, "arguments": {}})
    yield
    world.http("DELETE", f"/api/rhizome/streams/%2F/{name}")
