"""The OpenAPI document is true: every endpoint answers what it declares, whatever it is asked.

Schemathesis makes requests from the document, sensible ones and others, and holds the answers of a
real broker against it. Half of the requests are about objects that exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pika
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pika.exceptions import AMQPError
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from rhizome.management.asgi_application import ENDPOINTS
from rhizome.management.openapi.openapi_document import describe
from rhizome.testing.broker_process import BrokerProcess
from tests.conformance.http_api_client import Api

pytestmark = pytest.mark.rhizome_only

load_all_checks()
NAMES = (  # 500 is declared by nobody; 503 is by some
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
EXAMPLES = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 3
DOCUMENT = describe(ENDPOINTS)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    operation.label: operation
    for operation in (each.ok() for each in SCHEMA.get_all_operations() if isinstance(each, Ok))
}
USER = "api"  # who asks; no request is made that would delete it
GROUP = "0"  # of a lone broker
KNOWN = {
    "vhost": "v",
    "name": "q",
    "id": "invoice-7",
    "user": "u",
    "lease": "reader",
    "source": "x",
    "destination": "q",
    "properties": "key",
    "exchange": "x",
    "component": "c",
    "limit": "max-connections",
    "node": "rhizome",
    "broker": "rhizome",
    "consumer": "reader",
    "group": GROUP,
    "port": "5672",
    "protocol": "amqp",
    "within": "1",
    "unit": "days",
    "index": "1",
    "part": "segment-1",
}
# What {name} is where it is no queue.
NAMED = {
    "/api/nodes/": "rhizome",
    "/api/exchanges/": "x",
    "/api/rhizome/streams/": "s",
    "/api/users/": "u",
    "/api/policies/": "p",
    "/api/operator-policies/": "p",
    "/api/parameters/": "n",
    "/api/global-parameters/": "n",
}


class Stage:
    """A broker with one of everything, put back before each endpoint is tried."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.api = Api(broker)
        self.session = requests.Session()
        self.session.auth = (USER, "secret")
        self.connection: pika.BlockingConnection | None = None
        self.changed = True
        self.api.put("users", USER, password="secret", tags="administrator")

    def close(self) -> None:
        self.session.close()
        self._disconnect()

    def set_up(self) -> None:
        if not self.changed:
            return
        self.changed = False
        api = self.api
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        api.put("users", "u", password_hash="", tags="")
        api.put("vhosts", "v")
        for user in (USER, "guest", "u"):
            api.put("permissions", "v", user, **everything)
        api.put("queues", "v", "q", durable=True)
        api.put("exchanges", "v", "x", type="topic", durable=True)
        api.put("topic-permissions", "v", "u", exchange="x", write=".*", read=".*")
        api.put("rhizome", "streams", "v", "s")
        api.put("rhizome", "streams", "v", "s", "offsets", "reader", offset=0)
        api.post("bindings", "v", "e", "x", "q", "q", routing_key="key")
        api.post("bindings", "v", "e", "x", "e", "amq.fanout", routing_key="key")
        for kind in ("policies", "operator-policies"):
            api.put(kind, "v", "p", pattern="^none$", definition={"max-length": 5})
        api.put("parameters", "c", "v", "n", value={"a": 1})
        api.put("global-parameters", "n", value=1)
        api.put("vhost-limits", "v", "max-queues", value=1000)
        api.put("user-limits", "u", "max-connections", value=10)
        publish = {"properties": {"headers": {"a": 1}}, "payload": "x", "routing_key": "key"}
        api.post("exchanges", "v", "x", "publish", **publish)
        api.post("exchanges", "v", "amq.default", "publish", **{**publish, "routing_key": "s"})
        self._connect()

    def _connect(self) -> None:
        """A connection with a consumer that takes nothing, unless the last one is still there."""
        if self.api.rows("connections"):
            return
        self._disconnect()
        login = pika.PlainCredentials("guest", "guest")
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.broker.port, "v", login, heartbeat=0)
        )
        channel = self.connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("", exclusive=True)
        channel.basic_consume("", lambda *_: None, consumer_tag="c")

    def _disconnect(self) -> None:
        if self.connection is None:
            return
        try:
            self.connection.process_data_events(0)
            self.connection.close()
        except AMQPError:
            pass  # it was closed by a request

    def _pin(self) -> str:
        """A pin of the journal; it is ended by requests."""
        pins = ("rhizome", "journals", "rhizome", "pins")
        there = self.api.rows(*pins)
        return str(there[0]["pin"] if there else self.api.post(*pins).json["pin"])

    def known(self, path: str) -> dict[str, str]:
        """Names of things that are there, for the parts of a path."""
        found = dict(KNOWN, port=str(self.broker.port))
        for prefix, name in NAMED.items():
            if path.startswith(prefix):
                found["name"] = name
        if path.startswith("/api/bindings") and "/e/{destination}" in path:
            found["destination"] = "amq.fanout"
        if path.startswith("/api/rhizome/journals/"):
            found["pin"] = self._pin()
        connections = self.api.rows("connections")
        if connections and path.startswith("/api/connections/"):
            found["name"] = connections[0]["name"]
        if connections and path.startswith("/api/channels/"):
            found["name"] = connections[0]["name"] + " (1)"
        return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    broker = BrokerProcess(tmp_path_factory.mktemp("openapi"))
    broker.start()
    stage = Stage(broker)
    try:
        yield stage
    finally:
        stage.close()
        broker.close()


def test_a_broker_serves_the_document(stage: Stage) -> None:
    served = stage.api.rows("openapi.json")
    assert served == DOCUMENT
    assert len(served["paths"]) > 100


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(names) == len(set(names)) == len(ENDPOINTS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("label", OPERATIONS)
def test_answers_are_as_declared(stage: Stage, label: str) -> None:
    operation = OPERATIONS[label]
    stage.set_up()
    known = stage.known(operation.path)
    checks = [CHECKS.get_one(name) for name in NAMES]

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.one_of(
            operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
            operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
        ),
        is_known=st.booleans(),
    )
    def ask(case: Any, is_known: bool) -> None:
        if is_known:
            case.path_parameters = {name: known[name] for name in case.path_parameters or {}}
        response = case.call(base_url=stage.broker.http_url, session=stage.session)
        case.validate_response(response, checks=checks)

    stage.changed = operation.method.upper() != "GET"
    ask()


SEEN = ("overview", "rhizome/status", "rhizome/live", "rhizome/load", "rhizome/cluster")
SEEN_OF_GROUPS = ("rhizome/groups", "rhizome/groups/{group}", "rhizome/groups/{group}/own")


@pytest.mark.parametrize("path", [*SEEN, *SEEN_OF_GROUPS])
def test_answers_to_who_does_not_monitor_are_as_declared(stage: Stage, path: str) -> None:
    stage.api.put("users", "manager", password="secret", tags="management")
    operation = OPERATIONS[f"GET /api/{path}"]
    group = stage.api.rows("rhizome", "groups")[0]["id"]
    known = {"group": str(group)} if "{group}" in path else {}
    case = operation.Case(path_parameters=known)
    response = case.call(base_url=stage.broker.http_url, auth=("manager", "secret"))
    assert response.status_code == 200
    case.validate_response(response, checks=[CHECKS.get_one(name) for name in NAMES])
