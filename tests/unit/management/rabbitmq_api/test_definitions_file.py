"""Definitions go out as RabbitMQ writes them and come in as RabbitMQ wrote them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rhizome.amqp.field_table import Timestamp
from rhizome.broker.metadata.metadata_commands import (
    QUEUE,
    Bind,
    DeclareExchange,
    DeclareQueue,
    PutParameter,
)
from rhizome.management.http.api_call import definitions_bytes_max
from tests.unit.management.conftest import Api, Core

# Exported by RabbitMQ 3.10.8.
RABBITMQ_FILE = Path(__file__).with_name("rabbitmq-3.10-definitions.json")


def fill(api: Api) -> None:
    api.put("vhosts", "v", description="second")
    api.put("users", "alice", password="alice", tags="monitoring")
    api.put("permissions", "v", "alice", configure="^a", write="^b", read="^c")
    api.put("topic-permissions", "v", "alice", exchange="amq.topic", write="^b", read="^c")
    api.put("queues", "v", "kept", durable=True, arguments={"x-max-length": 5})
    api.put("queues", "v", "lost", durable=False)
    api.put("exchanges", "v", "e", type="headers", durable=True)
    api.post("bindings", "v", "e", "e", "q", "kept", arguments={"x-match": "any", "a": 1})
    api.post("bindings", "v", "e", "amq.topic", "e", "e", routing_key="a.#")
    api.post("bindings", "v", "e", "amq.topic", "q", "lost", routing_key="a.#")
    api.put("policies", "v", "p", pattern="^k", definition={"max-length": 3}, priority=1)
    api.put("operator-policies", "v", "o", pattern="^k", definition={"max-length": 2})
    api.put("vhost-limits", "v", "max-queues", value=9)
    api.put("user-limits", "alice", "max-channels", value=7)
    api.put("parameters", "bridge", "v", "b", value={"uri": "amqp://"})
    api.put("global-parameters", "motd", value="hello")


def test_definitions_survive_the_way_out_and_in(api: Api, runner: asyncio.Runner) -> None:
    fill(api)
    exported = api.get("definitions").json
    assert {"kept"} == {queue["name"] for queue in exported["queues"]}
    assert {"e"} == {exchange["name"] for exchange in exported["exchanges"]}
    assert len(exported["bindings"]) == 2
    other = Api(Core(runner))
    answer = other.post("definitions", **exported)
    assert answer.status == 204, answer.body
    assert other.get("definitions").json == exported
    assert other.get("queues", "v", "kept").json["effective_policy_definition"] == {"max-length": 2}
    assert Api(other.core, "alice").get("whoami").status == 200
    assert other.post("definitions", **exported).status == 204, "importing twice changes nothing"


def test_a_parameter_that_an_import_would_take_for_limits_is_not_exported(api: Api) -> None:
    """As older releases kept it for whoever may set parameters: it spoiled every backup."""
    api.core.broker.cluster.propose(PutParameter("vhost-limits", "/", "limits", "spoilt"), None)
    exported = api.get("definitions").json
    assert exported["parameters"] == []
    assert api.post("definitions", **exported).status == 204


def test_no_argument_of_an_application_spoils_an_export(api: Api, runner: asyncio.Runner) -> None:
    late: dict[str, object] = {"a": [{"b": Timestamp((1 << 64) - 1)}], "c": Timestamp(5)}
    propose = api.core.broker.cluster.propose
    propose(DeclareQueue("/", "q", True, False, "", late), None)
    propose(DeclareExchange("/", "e", "fanout", True, False, False, late), None)
    propose(Bind("/", "amq.direct", "q", QUEUE, "k", late), None)
    exported = api.get("definitions").json
    found = [
        each["arguments"] for kind in ("queues", "exchanges", "bindings") for each in exported[kind]
    ]
    assert found == [{"a": [{"b": None}], "c": 5}] * 3
    other = Api(Core(runner))
    answer = other.post("definitions", **exported)
    assert answer.status == 204, answer.body


def test_an_export_is_imported_however_long_its_json_is(api: Api, runner: asyncio.Runner) -> None:
    """A control character is one byte of the state and six of JSON."""
    propose = api.core.broker.cluster.propose
    for at in range(190):
        propose(DeclareQueue("/", f"q{at}", True, False, "", {"a": "\x01" * 16_000}), None)
    exported = api.get("definitions")
    assert len(exported.body) > 16 << 20
    other = Api(Core(runner))
    answer = other.ask("POST", "/api/definitions", exported.body)
    assert answer.status == 204, answer.body
    assert other.get("definitions").json == exported.json
    assert other.core.context.import_bytes == 0


def test_an_export_is_imported_however_the_state_came_to_be_shared(
    api: Api, runner: asyncio.Runner
) -> None:
    """A vhost that was alone may have all of the state; in an import it is not alone."""
    api.core.broker.state.sizes.bytes_max = 100_000
    propose = api.core.broker.cluster.propose
    for at in range(8):
        propose(DeclareQueue("/", f"q{at}", True, False, "", {"a": "x" * 10_000}), None)
    assert api.put("vhosts", "late").status == 201
    exported = api.get("definitions").json
    assert len(exported["queues"]) == 8
    other = Api(Core(runner))
    other.core.broker.state.sizes.bytes_max = 100_000
    answer = other.post("definitions", **exported)
    assert answer.status == 204, answer.body
    assert other.get("definitions").json == exported
    more = {"queues": [{"vhost": "late", "name": "q", "arguments": {"a": "x" * 16_000}}] * 2}
    assert other.post("definitions", **more).status == 204
    more["queues"][1]["name"] = "r"
    refused = other.post("definitions", **more)
    assert refused.status == 400
    assert "cluster.state_size_max" in refused.reason


def test_a_file_of_definitions_has_a_limit_with_a_name(api: Api) -> None:
    api.core.broker.state.sizes.bytes_max = 1 << 20
    answer = api.ask("POST", "/api/definitions", b" " * (definitions_bytes_max(1 << 20) + 1))
    assert answer.status == 413
    assert "cluster.state_size_max" in answer.reason


def test_imports_together_have_no_more_than_one_may_have(api: Api) -> None:
    limit = definitions_bytes_max(api.core.broker.state.sizes.bytes_max)
    api.core.context.import_bytes = limit - 10
    assert api.post("definitions", queues=[]).status == 503
    assert api.core.context.import_bytes == limit - 10


def test_one_vhost_can_be_copied_into_another(api: Api) -> None:
    fill(api)
    exported = api.get("definitions", "v").json
    assert "users" not in exported
    api.put("vhosts", "copy")
    answer = api.post("definitions", "copy", **exported)
    assert answer.status == 204, answer.body
    assert api.get("definitions", "copy").json == exported
    assert api.get("queues", "copy", "kept").json["operator_policy"] == "o"


def test_a_shovel_that_no_bridge_could_follow_does_not_stop_an_import(api: Api) -> None:
    """Whoever comes from RabbitMQ has it all; the program that follows parameters tells of it."""
    value = {"src-protocol": "amqp10", "src-uri": "amqp://h", "src-address": "a"}
    shovel = {"component": "shovel", "vhost": "/", "name": "s", "value": value}
    assert api.put("parameters", "shovel", "/", "s", value=value).status == 400
    assert api.post("definitions", parameters=[shovel]).status == 204
    assert api.get("parameters", "shovel").json == [shovel]


def test_a_file_of_rabbitmq_can_be_imported(api: Api, core: Core) -> None:
    answer = api.ask("POST", "/api/definitions", RABBITMQ_FILE.read_bytes())
    assert answer.status == 204, answer.body
    given = json.loads(RABBITMQ_FILE.read_text())
    assert {row["name"] for row in given["users"]} <= set(core.broker.state.users)
    for queue in given["queues"]:
        row = api.get("queues", queue["vhost"], queue["name"]).json
        assert row["arguments"] == queue["arguments"]
    bound = {
        (row["vhost"], row["source"], row["destination"], row["routing_key"])
        for row in api.get("bindings").json
    }
    for row in given["bindings"]:
        key = (row["vhost"], row["source"], row["destination"], row["routing_key"])
        assert key in bound
    shop = Api(core, "shop-app")
    assert shop.ask("GET", "/api/whoami", password="s3cret").status == 200
    assert api.get("vhost-limits", "shop").json == [{"vhost": "shop", "value": {"max-queues": 100}}]
    assert api.get("queues", "shop", "shop.orders").json["operator_policy"] == "cap"


def test_nothing_is_changed_by_a_file_with_a_part_that_makes_no_sense(api: Api) -> None:
    answer = api.post(
        "definitions",
        vhosts=[{"name": "v"}],
        queues=[{"name": "q", "vhost": "v", "durable": True, "arguments": "none"}],
    )
    assert answer.status == 400
    assert api.get("vhosts", "v").status == 404


def test_what_exists_stays_as_it_is(api: Api) -> None:
    api.put("queues", "/", "q", durable=True)
    queue = {"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": 1}}
    exchange = {"name": "amq.topic", "vhost": "/", "type": "fanout", "durable": True}
    assert api.post("definitions", queues=[queue], exchanges=[exchange]).status == 204
    assert api.get("queues", "/", "q").json["arguments"] == {}
    assert api.get("exchanges", "/", "amq.topic").json["type"] == "topic"


def test_a_refusal_names_its_cause(api: Api) -> None:
    queue = {"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": "many"}}
    answer = api.post("definitions", queues=[queue])
    assert answer.status == 400
    assert "invalid arg 'x-max-length' for queue 'q' in vhost '/'" in answer.reason
    binding = {"vhost": "/", "source": "amq.topic", "destination": "q"}
    assert api.post("definitions", bindings=[binding]).status == 404
