"""Every operation of the HTTP API and of AMQP, tried by every type of user.

What came out of RabbitMQ 3.10 is in `permissions_http.txt` and `permissions_amqp.txt`, and is what
Rhizome must do. To try RabbitMQ again, run test_permission_matrix.py against it (see
tests/conftest.py) with RHIZOME_RECORD_PERMISSIONS=1, which writes the tables anew; rows of
operations that only Rhizome has are kept.

The types of users, by tag and by what they may do in the vhost that everything happens in:

    nobody                                                      has not logged in
    none, management, policymaker, monitoring, administrator    every permission there
    ...-outside                                                 none, and can't enter it
    management-without-rights                                   may enter, and no name matches
"""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rhizome.amqp import methods as m
from rhizome.management.asgi_application import ENDPOINTS
from rhizome.management.http.endpoint import Endpoint
from rhizome.testing.broker_process import Broker
from tests.conformance.http_api_client import Answer, Api
from tests.conformance.wire_driver import Channel, ChannelClosed, Connection

HTTP_TABLE: Final = Path(__file__).with_name("permissions_http.txt")
AMQP_TABLE: Final = Path(__file__).with_name("permissions_amqp.txt")

VHOST: Final = "matrix"
OTHER_VHOST: Final = "matrix-2"
EVERYTHING: Final = {"configure": ".*", "write": ".*", "read": ".*"}
NOTHING: Final = {"configure": "", "write": "", "read": ""}
PASSWORD: Final = "a-long-enough-password"

REFUSED, SEES_NOTHING, ALLOWED = "-", "o", "+"


@dataclass(frozen=True)
class UserType:
    name: str
    tag: str
    rights: dict[str, str] | None


USER_TYPES: Final = (
    UserType("none", "", EVERYTHING),
    UserType("management", "management", EVERYTHING),
    UserType("policymaker", "policymaker", EVERYTHING),
    UserType("monitoring", "monitoring", EVERYTHING),
    UserType("administrator", "administrator", EVERYTHING),
    UserType("management-outside", "management", None),
    UserType("policymaker-outside", "policymaker", None),
    UserType("monitoring-outside", "monitoring", None),
    UserType("administrator-outside", "administrator", None),
    UserType("management-without-rights", "management", NOTHING),
)


@dataclass(frozen=True)
class Operation:
    """A request, and what the administrator does so that it can be made again."""

    method: str
    target: str
    body: Any
    restore: tuple[tuple[str, str, Any], ...]


# ---- the HTTP API -------------------------------------------------------------------------------

QUEUE: Final = ("PUT", f"/api/queues/{VHOST}/q", {})
EXCHANGES: Final = tuple(
    ("PUT", f"/api/exchanges/{VHOST}/{name}", {"type": "topic"}) for name in ("x", "xx")
)
BINDINGS: Final = (
    ("POST", f"/api/bindings/{VHOST}/e/x/q/q", {"routing_key": "k"}),
    ("POST", f"/api/bindings/{VHOST}/e/x/e/xx", {"routing_key": "k"}),
)
POLICY: Final = {"pattern": "^zz", "definition": {"max-length": 10}, "apply-to": "queues"}
TOPIC: Final = {"exchange": "x", "write": ".*", "read": ".*"}
STREAM: Final = ("PUT", f"/api/rhizome/streams/{VHOST}/s", {})
VICTIM: Final = (
    ("PUT", "/api/users/victim", {"password_hash": "", "tags": ""}),
    ("PUT", f"/api/permissions/{VHOST}/victim", EVERYTHING),
    ("PUT", f"/api/topic-permissions/{VHOST}/victim", TOPIC),
    ("PUT", "/api/user-limits/victim/max-channels", {"value": 100}),
)
# What a restored operation needs, by the beginning of its path; the first that fits.
RESTORED_BY: Final = (
    ("/api/rhizome/streams/", (STREAM,)),
    ("/api/queues/", (QUEUE, *BINDINGS)),
    ("/api/exchanges/", (*EXCHANGES, *BINDINGS)),
    ("/api/bindings/", BINDINGS),
    ("/api/vhosts/", (("PUT", f"/api/vhosts/{OTHER_VHOST}", {}),)),
    ("/api/vhost-limits/", (("PUT", f"/api/vhost-limits/{VHOST}/max-queues", {"value": 1000}),)),
    ("/api/user", VICTIM),
    ("/api/permissions/", VICTIM),
    ("/api/topic-permissions/", VICTIM),
    ("/api/policies/", (("PUT", f"/api/policies/{VHOST}/p", POLICY),)),
    ("/api/operator-policies/", (("PUT", f"/api/operator-policies/{VHOST}/p", POLICY),)),
    ("/api/global-parameters/", (("PUT", "/api/global-parameters/g", {"value": 1}),)),
)
BODIES: Final[dict[str, Any]] = {
    "PUT /api/exchanges/{vhost}/{name}": {"type": "topic"},
    "PUT /api/permissions/{vhost}/{user}": EVERYTHING,
    "PUT /api/topic-permissions/{vhost}/{user}": TOPIC,
    "PUT /api/users/{name}": {"password_hash": "", "tags": ""},
    "PUT /api/policies/{vhost}/{name}": POLICY,
    "PUT /api/operator-policies/{vhost}/{name}": POLICY,
    "PUT /api/parameters/{component}/{vhost}/{name}": {"value": {"uri": "amqp://"}},
    "PUT /api/cluster-name": {"name": "matrix"},
    "PUT /api/global-parameters/{name}": {"value": 1},
    "PUT /api/vhost-limits/{vhost}/{limit}": {"value": 1000},
    "PUT /api/user-limits/{user}/{limit}": {"value": 100},
    "POST /api/users/bulk-delete": {"users": ["victim"]},
    "POST /api/queues/{vhost}/{name}/get": {
        "count": 1,
        "ackmode": "ack_requeue_true",
        "encoding": "auto",
    },
    "POST /api/rhizome/queues/{vhost}/{name}/move": {"to": "q"},
    "POST /api/exchanges/{vhost}/{name}/publish": {
        "routing_key": "nowhere",
        "payload": "",
        "payload_encoding": "string",
        "properties": {},
    },
    "POST /api/queues/{vhost}/{name}/actions": {"action": "sync"},
    "PUT /api/rhizome/streams/{vhost}/{name}/offsets/{consumer}": {"offset": 0},
    "POST /api/rhizome/pipelines/{vhost}/{name}/report": {"state": "running", "flows": []},
}
NAMES: Final = (
    ("/api/rhizome/streams", "s"),
    ("/api/queues", "q"),
    ("/api/rhizome/queues", "q"),
    ("/api/health/home", "q"),
    ("/api/exchanges", "x"),
    ("/api/users", "victim"),
    ("/api/global-parameters", "g"),
    ("/api/policies", "p"),
    ("/api/operator-policies", "p"),
    ("/api/parameters", "p"),
)


def operation_of(endpoint: Endpoint, node: str, connection: str) -> Operation:
    path = endpoint.path
    name = next((each for start, each in NAMES if path.startswith(start)), node)
    if path.startswith("/api/connections"):
        name = connection
    elif path.startswith("/api/channels"):
        name = f"{connection} (1)"
    changes_vhost = path == "/api/vhosts/{vhost}" and endpoint.method != "GET"
    values = {
        "vhost": OTHER_VHOST if changes_vhost else VHOST,
        "name": name,
        "user": "owner" if path.startswith("/api/connections/username") else "victim",
        "source": "x",
        "destination": "q" if "/q/" in path else "xx",
        "properties": "k",
        "limit": "max-channels" if path.startswith("/api/user-limits") else "max-queues",
        "component": "federation-upstream",
        "node": node,
        "broker": node,
        "group": "1",
        "consumer": "c",
        "lease": "l",
        "pin": "p",
        "part": "segment-1",
        "index": "1",
        "exchange": "x",
        "port": "5672",
        "protocol": "amqp",
        "within": "1",
        "unit": "weeks",
    }
    target = path
    for key, value in values.items():
        target = target.replace("{" + key + "}", quote(value, safe=""))
    empty = None if endpoint.method in ("GET", "DELETE") else {}
    body = BODIES.get(f"{endpoint.method} {path}", empty)
    restore = next((requests for start, requests in RESTORED_BY if path.startswith(start)), ())
    return Operation(endpoint.method, target, body, restore)


def set_up(admin: Api) -> None:
    for vhost in (VHOST, OTHER_VHOST):
        do(admin, "PUT", f"/api/vhosts/{vhost}", {})
    do(admin, "PUT", f"/api/permissions/{VHOST}/{admin.user}", EVERYTHING)
    for each in (*USER_TYPES, UserType("owner", "", EVERYTHING)):
        body = {"password": PASSWORD, "tags": each.tag}
        do(admin, "PUT", f"/api/users/{each.name}", body)
        if each.rights is not None:
            do(admin, "PUT", f"/api/permissions/{VHOST}/{each.name}", each.rights)
    for request in (QUEUE, *EXCHANGES, *BINDINGS, *VICTIM):
        do(admin, *request)
    for _, requests in RESTORED_BY:
        for request in requests:
            # RabbitMQ has no /api/rhizome.
            admin.ask(*request)


def do(api: Api, method: str, target: str, body: Any) -> None:
    answer = api.ask(method, target, body)
    assert answer.status < 300, f"{method} {target}: {answer}"


def clean_up(admin: Api) -> None:
    for vhost in (VHOST, OTHER_VHOST):
        admin.ask("DELETE", f"/api/vhosts/{vhost}")
    for name in (*(each.name for each in USER_TYPES), "owner", "victim", AMQP_USER):
        admin.ask("DELETE", f"/api/users/{name}")
    admin.ask("DELETE", "/api/global-parameters/g")


class Caller:
    """A user of the HTTP API that keeps its connection; without a name, nobody."""

    def __init__(self, broker: Broker, user: str = "", password: str = PASSWORD) -> None:
        self._connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=40)
        self._headers = {"Content-Type": "application/json"}
        if user:
            login = b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"

    def ask(self, method: str, target: str, body: Any = None) -> Answer:
        text = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, target, text, self._headers)
            answer = self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            # It was closed after a while without a request.
            self._connection.close()
            self._connection.request(method, target, text, self._headers)
            answer = self._connection.getresponse()
        return Answer(answer.status, {}, answer.read())

    def close(self) -> None:
        self._connection.close()


def try_http(broker: Broker, kept: Callable[[], str]) -> dict[str, str]:
    """Operation -> a sign for each type of user.

    ``kept`` says what the connection of the user `owner` is called, and makes it again if it is
    gone.
    """
    admin = Caller(broker, broker.user, broker.password)
    users = [Caller(broker), *(Caller(broker, each.name) for each in USER_TYPES)]
    node = json.loads(admin.ask("GET", "/api/nodes").body)[0]["name"]
    found = {}
    for endpoint in ENDPOINTS:
        signs = ""
        for user in users:
            operation = operation_of(endpoint, node, kept())
            answer = user.ask(operation.method, operation.target, operation.body)
            signs += sign_of(answer)
            if answer.status < 300 and operation.method != "GET":
                for request in operation.restore:
                    admin.ask(*request)
        found[f"{endpoint.method} {endpoint.path}"] = signs
    for each in (admin, *users):
        each.close()
    return found


def sign_of(answer: Answer) -> str:
    # RabbitMQ fails with 500 where it forgot to ask; a publish that is refused is a 400 there.
    refused_publish = answer.status == 400 and b"ACCESS_REFUSED" in answer.body
    if answer.status in (401, 403, 500) or refused_publish:
        return REFUSED
    if answer.status in (404, 405) and b"Not Found" in answer.body:
        return ALLOWED
    if answer.status != 200 or not answer.body.startswith(b"["):
        return ALLOWED
    return ALLOWED if any(map(_is_in_vhost, json.loads(answer.body))) else SEES_NOTHING


def _is_in_vhost(row: Any) -> bool:
    if not isinstance(row, dict):
        return True
    where = row.get("vhost", row.get("name") if "tracing" in row else VHOST)
    return bool(where == VHOST)


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """What is allowed and should not be, or the other way round."""
    wrong = []
    for name, signs in found.items():
        wanted = expected.get(name, "")
        if signs[ADMINISTRATOR] == SEES_NOTHING:
            # There is nothing to see: only who is refused counts.
            signs, wanted = (text.replace(SEES_NOTHING, ALLOWED) for text in (signs, wanted))
        if signs != wanted:
            wrong.append(f"{name}: {signs}, not {wanted or 'listed'}")
    return wrong


# ---- AMQP ---------------------------------------------------------------------------------------

AMQP_USER: Final = "app"
TOPIC_WRITE, TOPIC_READ = "topic write", "topic read"
# The names that operations use; a name may stand for more than itself in patterns.
PATTERNS: Final = {"amq.gen": r"amq\.gen.*", "amq.default": r"amq\.default"}

Attempt = Callable[[Channel], object]


def _call(method: m.Method, answer: type[m.Method]) -> Attempt:
    return lambda channel: channel.call(method, answer)


def _call_both(*calls: tuple[m.Method, type[m.Method]]) -> Attempt:
    return lambda channel: [channel.call(*each) for each in calls]


def _send(method: m.Method) -> Attempt:
    return lambda channel: channel.send(method)


def _publish(exchange: str) -> Attempt:
    def attempt(channel: Channel) -> None:
        channel.confirm()
        channel.publish_confirmed(exchange, "k")

    return attempt


_DEAD: Final[dict[str, object]] = {"x-dead-letter-exchange": "dead"}
_ALTERNATE: Final[dict[str, object]] = {"alternate-exchange": "alternate"}

# Operation -> (how it is tried, the names that it touches)
AMQP_OPERATIONS: Final[dict[str, tuple[Attempt, tuple[str, ...]]]] = {
    "exchange.declare": (
        _call(m.ExchangeDeclare("x", "topic", durable=True), m.ExchangeDeclareOk),
        ("x",),
    ),
    "exchange.declare with an alternate exchange": (
        _call_both(
            (m.ExchangeDeclare("new", "topic", arguments=_ALTERNATE), m.ExchangeDeclareOk),
            (m.ExchangeDelete("new"), m.ExchangeDeleteOk),
        ),
        ("new", "alternate"),
    ),
    "exchange.declare with an alternate exchange, exists": (
        _call(
            m.ExchangeDeclare("xa", "topic", durable=True, arguments=_ALTERNATE),
            m.ExchangeDeclareOk,
        ),
        ("xa", "alternate"),
    ),
    "exchange.declare passive": (
        _call(m.ExchangeDeclare("x", "topic", passive=True), m.ExchangeDeclareOk),
        ("x",),
    ),
    "exchange.delete": (_call(m.ExchangeDelete("gone"), m.ExchangeDeleteOk), ("gone",)),
    "exchange.bind": (_call(m.ExchangeBind("xx", "x", "k"), m.ExchangeBindOk), ("xx", "x")),
    "exchange.unbind": (_call(m.ExchangeUnbind("xx", "x", "k"), m.ExchangeUnbindOk), ("xx", "x")),
    "queue.declare": (_call(m.QueueDeclare("q", durable=True), m.QueueDeclareOk), ("q",)),
    "queue.declare with a dead letter exchange": (
        _call_both(
            (m.QueueDeclare("new", arguments=_DEAD), m.QueueDeclareOk),
            (m.QueueDelete("new"), m.QueueDeleteOk),
        ),
        ("new", "dead"),
    ),
    "queue.declare with a dead letter exchange, exists": (
        _call(m.QueueDeclare("qd", durable=True, arguments=_DEAD), m.QueueDeclareOk),
        ("qd", "dead"),
    ),
    "queue.declare without a name": (
        _call(m.QueueDeclare("", exclusive=True), m.QueueDeclareOk),
        ("amq.gen",),
    ),
    "queue.declare passive": (_call(m.QueueDeclare("q", passive=True), m.QueueDeclareOk), ("q",)),
    "queue.delete": (_call(m.QueueDelete("gone"), m.QueueDeleteOk), ("gone",)),
    "queue.bind": (_call(m.QueueBind("q", "x", "k"), m.QueueBindOk), ("q", "x")),
    "queue.unbind": (_call(m.QueueUnbind("q", "x", "k"), m.QueueUnbindOk), ("q", "x")),
    "queue.purge": (_call(m.QueuePurge("q"), m.QueuePurgeOk), ("q",)),
    "basic.publish": (_publish("x"), ("x",)),
    "basic.publish to the default exchange": (_publish(""), ("amq.default",)),
    "basic.consume": (_call(m.BasicConsume("q"), m.BasicConsumeOk), ("q",)),
    "basic.get": (_call(m.BasicGet("q"), m.BasicGetEmpty), ("q",)),
    "basic.cancel": (_call(m.BasicCancel("t"), m.BasicCancelOk), ("q",)),
    "basic.qos": (_call(m.BasicQos(0, 1, False), m.BasicQosOk), ("q",)),
    "basic.recover": (_call(m.BasicRecover(True), m.BasicRecoverOk), ("q",)),
    "basic.ack": (_send(m.BasicAck(1, False)), ("q",)),
    "basic.nack": (_send(m.BasicNack(1, False, True)), ("q",)),
    "basic.reject": (_send(m.BasicReject(1, True)), ("q",)),
    "channel.flow": (_call(m.ChannelFlow(True), m.ChannelFlowOk), ("q",)),
    "confirm.select": (_call(m.ConfirmSelect(), m.ConfirmSelectOk), ("q",)),
    "tx.select": (_call(m.TxSelect(), m.TxSelectOk), ("q",)),
}


def set_up_amqp(admin: Api) -> None:
    do(admin, "PUT", f"/api/users/{AMQP_USER}", {"password": PASSWORD, "tags": ""})
    do(admin, "PUT", f"/api/permissions/{VHOST}/{AMQP_USER}", NOTHING)
    for name, arguments in (("alternate", {}), ("dead", {}), ("xa", _ALTERNATE)):
        body = {"type": "topic", "arguments": arguments}
        do(admin, "PUT", f"/api/exchanges/{VHOST}/{name}", body)
    do(admin, "PUT", f"/api/queues/{VHOST}/qd", {"arguments": _DEAD})


def grants_of(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """All that could matter for an operation on these names."""
    found = [(right, name) for name in names for right in ("configure", "write", "read")]
    return found + [(right, "x") for right in (TOPIC_WRITE, TOPIC_READ) if "x" in names]


def needs_of(
    admin: Caller, connection: Connection, attempt: Attempt, names: tuple[str, ...]
) -> list[str]:
    """What an operation is refused without. Nothing else is needed: with just that it is not."""
    possible = grants_of(names)
    needed = [
        lacking
        for lacking in possible
        if is_refused(admin, connection, attempt, [each for each in possible if each != lacking])
    ]
    assert not is_refused(admin, connection, attempt, needed), f"{needed} is not enough"
    return [f"{right} {name}" for right, name in needed]


def is_refused(
    admin: Caller, connection: Connection, attempt: Attempt, grants: list[tuple[str, str]]
) -> bool:
    def pattern(right: str) -> str:
        names = [PATTERNS.get(name, name) for what, name in grants if what == right]
        return f"^({'|'.join(names)})$" if names else "^$"

    rights = {right: pattern(right) for right in ("configure", "write", "read")}
    topic = {
        "exchange": "x",
        "write": ".*" if (TOPIC_WRITE, "x") in grants else "^$",
        "read": ".*" if (TOPIC_READ, "x") in grants else "^$",
    }
    for target, body in ((f"/api/permissions/{VHOST}", rights), (_topics(), topic)):
        answer = admin.ask("PUT", f"{target}/{AMQP_USER}", body)
        assert answer.status < 300, answer
    channel = connection.channel()
    try:
        attempt(channel)
        channel.call(m.BasicQos(0, 1, False), m.BasicQosOk)
    except ChannelClosed as closed:
        return closed.code == 403 and "refused for user" in closed.text
    channel.close()
    return False


def _topics() -> str:
    return f"/api/topic-permissions/{VHOST}"


# ---- tables -------------------------------------------------------------------------------------

OWN: Final = "* "
COLUMNS: Final = ("nobody", *(each.name for each in USER_TYPES))
ADMINISTRATOR: Final = COLUMNS.index("administrator")


def read_table(path: Path) -> dict[str, str]:
    """Operation -> what is said of it."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [line.rpartition("  ") for line in lines if line and not line.startswith("#")]
    return {name.removeprefix(OWN).strip(): said.strip() for name, _, said in rows}


def own_rows(path: Path) -> set[str]:
    """The operations that only Rhizome has, or lets others do than RabbitMQ."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.removeprefix(OWN).rpartition("  ")[0].strip() for line in lines if line[:2] == OWN}


def write_table(path: Path, heading: str, rows: dict[str, str], own: set[str]) -> None:
    width = max(len(name) for name in rows) + 4
    lines = [f"# {line}" for line in heading.splitlines()]
    for name, said in rows.items():
        lines.append(f"{(OWN if name in own else '') + name:<{width}}  {said}")
    path.write_text("\n".join(lines) + "\n")
