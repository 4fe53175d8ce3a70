"""The management API as RabbitMQ 3.10 has it. All of this holds there too."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from rhizome.testing.broker_process import Broker, wait_until
from tests.conformance.http_api_client import Answer, Api, path

from . import differences
from .conftest import Connect, Unique

STATS_SECONDS_MAX = 20.0
"""RabbitMQ shows a connection some seconds after it was opened."""


@pytest.fixture
def api(broker: Broker) -> Api:
    return Api(broker)


@pytest.fixture
def queue(api: Api, unique: Unique) -> Iterator[str]:
    name = unique("http")
    assert api.put("queues", "/", name, durable=True).status == 201
    yield name
    api.delete("queues", "/", name)


@pytest.fixture
def exchange(api: Api, unique: Unique) -> Iterator[str]:
    name = unique("http")
    assert api.put("exchanges", "/", name, type="topic", durable=True).status == 201
    yield name
    api.delete("exchanges", "/", name)


@pytest.fixture
def user(api: Api, unique: Unique) -> Iterator[str]:
    name = unique("user")
    assert api.put("users", name, password="secret", tags="management").status == 201
    yield name
    api.delete("users", name)


@pytest.fixture
def vhost(api: Api, unique: Unique) -> Iterator[str]:
    name = unique("vhost")
    assert api.put("vhosts", name).status == 201
    yield name
    api.delete("vhosts", name)


def error(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json["error"]


# ---- who asks, and how --------------------------------------------------------------------------


def test_without_a_login_there_is_a_challenge(broker: Broker) -> None:
    answer = Api(broker, "-").get("overview")
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Basic")


@differences.LOGIN_TEXT
def test_a_wrong_password_is_refused(broker: Broker) -> None:
    answer = Api(broker, broker.user, "wrong").get("overview")
    assert error(answer) == (401, "not_authorized")
    assert answer.json["reason"] == "Login failed"


def test_an_unknown_path_is_not_found(api: Api) -> None:
    assert api.get("nothing-like-this").status == 404
    assert error(api.get("queues", "/", "no such queue")) == (404, "Object Not Found")
    assert api.get("queues", "no such vhost").status == 404


def test_a_method_that_a_path_lacks_is_told(api: Api) -> None:
    assert api.ask("POST", "/api/overview", {}).status == 405


def test_a_body_that_is_no_json_is_refused(api: Api, unique: Unique) -> None:
    name = unique("q")
    for document in ("{", "[]", "nothing"):
        answer = api.ask_raw("PUT", path("queues", "/", name), document)
        assert error(answer) == (400, "bad_request")
        assert answer.json["reason"].startswith("not_json")
    assert api.get("queues", "/", name).status == 404


def test_whoami(api: Api, broker: Broker) -> None:
    row = api.rows("whoami")
    assert row["name"] == broker.user
    assert "administrator" in row["tags"]


# ---- the broker ---------------------------------------------------------------------------------


def test_the_overview_has_what_tools_look_at(api: Api) -> None:
    row = api.rows("overview")
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", row["rabbitmq_version"])
    assert row["management_version"] == row["rabbitmq_version"]
    assert isinstance(row["cluster_name"], str)
    assert {"connections", "channels", "exchanges", "queues", "consumers"} <= set(
        row["object_totals"]
    )
    assert {"direct", "fanout", "topic", "headers"} <= {
        kind["name"] for kind in row["exchange_types"]
    }
    assert {"node", "protocol", "ip_address", "port"} <= set(row["listeners"][0])


def test_columns_are_those_that_were_asked_for(api: Api, queue: str) -> None:
    assert set(api.rows("overview", columns="cluster_name,object_totals.queues")) == {
        "cluster_name",
        "object_totals",
    }
    row = api.rows("queues", "/", queue, columns="name,durable")
    assert row == {"name": queue, "durable": True}
    rows = api.rows("queues", "/", columns="name")
    assert {"name": queue} in rows


def test_nodes_have_what_exporters_read(api: Api) -> None:
    row = api.rows("nodes")[0]
    numbers = ("mem_used", "mem_limit", "disk_free", "disk_free_limit", "fd_used", "fd_total")
    numbers += ("sockets_used", "sockets_total", "uptime", "run_queue", "processors")
    assert all(isinstance(row[name], int) for name in numbers)
    flags = ("running", "mem_alarm", "disk_free_alarm")
    assert all(isinstance(row[name], bool) for name in flags)
    assert row["partitions"] == []
    assert api.rows("nodes", row["name"])["name"] == row["name"]
    memory = api.rows("nodes", row["name"], "memory")["memory"]
    assert memory["total"]["rss"] > 0


@pytest.mark.parametrize(
    "check",
    [
        "alarms",
        "local-alarms",
        "virtual-hosts",
        pytest.param("node-is-mirror-sync-critical", marks=differences.MIRROR_CHECK),
        "protocol-listener/amqp",
        "certificate-expiration/1/days",
    ],
)
def test_health_checks_pass(api: Api, check: str) -> None:
    assert api.rows("health", "checks", *check.split("/"))["status"] == "ok"


def test_health_checks_fail_with_503_and_a_reason(api: Api) -> None:
    answer = api.get("health", "checks", "port-listener", "1")
    assert answer.status == 503
    assert answer.json["status"] == "failed"
    assert api.get("health", "checks", "protocol-listener", "carrier-pigeon").status == 503


def test_the_broker_is_alive(api: Api) -> None:
    assert api.rows("aliveness-test", "/") == {"status": "ok"}
    assert api.get("aliveness-test", "no such vhost").status == 404


@pytest.mark.parametrize("name", ["extensions", "feature-flags"])
def test_lists_that_tools_ask_for_are_lists(api: Api, name: str) -> None:
    assert isinstance(api.rows(name), list)


# ---- queues -------------------------------------------------------------------------------------


@differences.CLASSIC_NAMED
def test_declaring_is_201_then_204_and_400_if_it_differs(api: Api, unique: Unique) -> None:
    name = unique("q")
    arguments = {"x-max-length": 5}
    assert api.put("queues", "/", name, durable=True, arguments=arguments).status == 201
    assert api.put("queues", "/", name, durable=True, arguments=arguments).status == 204
    differs = api.put("queues", "/", name, durable=False, arguments=arguments)
    assert error(differs) == (400, "bad_request")
    assert "inequivalent arg 'durable'" in differs.json["reason"]
    row = api.rows("queues", "/", name)
    assert (row["durable"], row["auto_delete"], row["arguments"]) == (True, False, arguments)
    assert row["exclusive"] is False
    assert row["type"] == "classic"
    assert api.delete("queues", "/", name).status == 204
    assert api.delete("queues", "/", name).status == 404


def test_flags_may_be_strings_as_rabbitmqadmin_sends_them(api: Api, unique: Unique) -> None:
    name = unique("q")
    answer = api.put("queues", "/", name, durable="true", auto_delete="false", arguments={})
    assert answer.status == 201
    assert api.rows("queues", "/", name)["durable"] is True
    api.delete("queues", "/", name)


def test_a_queue_in_use_or_not_empty_can_be_spared(api: Api, queue: str) -> None:
    api.publish("amq.default", queue, "x")
    refused = api.delete("queues", "/", queue, **{"if-empty": True})
    assert error(refused) == (400, "bad_request")
    assert api.delete("queues", "/", queue, "contents").status == 204
    assert api.delete("queues", "/", queue, **{"if-empty": True, "if-unused": True}).status == 204


def test_unknown_actions_on_queues_are_refused(api: Api, queue: str) -> None:
    assert api.post("queues", "/", queue, "actions", action="dance").status == 400


def test_a_page_has_its_place(api: Api, unique: Unique) -> None:
    stem = unique("page")
    names = [f"{stem}-{number}" for number in range(5)]
    for name in names:
        api.put("queues", "/", name)
    page = api.rows("queues", page=2, page_size=2, name=stem, sort="name", columns="name")
    assert [row["name"] for row in page["items"]] == names[2:4]
    counts = ("page", "page_size", "page_count", "item_count", "filtered_count")
    assert [page[name] for name in counts] == [2, 2, 3, 2, 5]
    assert page["total_count"] >= 5
    last = api.rows("queues", "/", page=1, page_size=2, name=stem, sort="name", sort_reverse=True)
    assert [row["name"] for row in last["items"]] == [names[4], names[3]]
    expression = api.rows("queues", page=1, name=f"^{stem}-[12]$", use_regex=True)
    assert sorted(row["name"] for row in expression["items"]) == names[1:3]
    assert error(api.get("queues", page=7, page_size=2, name=stem)) == (400, "page_out_of_range")
    for bad in ({"page": 0}, {"page": 1, "page_size": 501}, {"page": "x"}):
        assert api.get("queues", **bad).status == 400
    for name in names:
        api.delete("queues", "/", name)


# ---- exchanges and bindings ---------------------------------------------------------------------


def test_exchanges_are_declared_shown_and_deleted(api: Api, unique: Unique) -> None:
    name = unique("x")
    declared = {"type": "fanout", "durable": False, "auto_delete": True, "internal": True}
    assert api.put("exchanges", "/", name, **declared).status == 201
    assert api.put("exchanges", "/", name, **declared).status == 204
    assert api.put("exchanges", "/", name, **{**declared, "type": "topic"}).status == 400
    row = api.rows("exchanges", "/", name)
    assert {key: row[key] for key in declared} == declared
    assert name in [each["name"] for each in api.rows("exchanges", "/")]
    assert api.delete("exchanges", "/", name).status == 204
    assert api.get("exchanges", "/", name).status == 404
    assert api.put("exchanges", "/", unique("x"), type="no-such-type").status == 400
    assert api.rows("exchanges", "/", "amq.default")["name"] == ""


def test_bindings_have_keys_by_which_they_are_deleted(api: Api, queue: str, exchange: str) -> None:
    ends = ("bindings", "/", "e", exchange, "q", queue)
    made = api.post(*ends, routing_key="a.*", arguments={"x": 1})
    assert made.status == 201
    assert api.post(*ends, routing_key="").status == 201
    rows = api.rows(*ends)
    assert sorted(row["routing_key"] for row in rows) == ["", "a.*"]
    assert {row["properties_key"] for row in rows if row["routing_key"] == ""} == {"~"}
    for row in rows:
        assert row["source"] == exchange
        assert row["destination"] == queue
        assert row["destination_type"] == "queue"
        assert api.rows(*ends, row["properties_key"])["routing_key"] == row["routing_key"]
    assert len(api.rows("queues", "/", queue, "bindings")) == 3, "with that to the default exchange"
    assert len(api.rows("exchanges", "/", exchange, "bindings", "source")) == 2
    for row in rows:
        assert api.delete(*ends, row["properties_key"]).status == 204
    assert api.rows(*ends) == []
    assert api.delete(*ends, "~").status == 404


def test_exchanges_are_bound_to_exchanges(api: Api, exchange: str, unique: Unique) -> None:
    other = unique("x2")
    api.put("exchanges", "/", other, type="fanout")
    assert api.post("bindings", "/", "e", exchange, "e", other, routing_key="k").status == 201
    rows = api.rows("exchanges", "/", other, "bindings", "destination")
    assert [(row["source"], row["destination_type"]) for row in rows] == [(exchange, "exchange")]
    api.delete("exchanges", "/", other)


def test_a_binding_to_nothing_is_not_found(api: Api, exchange: str, queue: str) -> None:
    assert api.post("bindings", "/", "e", exchange, "q", "no such queue").status == 404
    assert api.post("bindings", "/", "e", "no such exchange", "q", queue).status == 404


# ---- messages -----------------------------------------------------------------------------------


def test_publish_says_whether_a_queue_took_it(api: Api, queue: str, unique: Unique) -> None:
    assert api.publish("amq.default", queue, "x") == {"routed": True}
    assert api.publish("amq.default", unique("nowhere"), "x") == {"routed": False}
    missing = api.post(
        "exchanges",
        "/",
        "no such exchange",
        "publish",
        routing_key="",
        payload="",
        payload_encoding="string",
        properties={},
    )
    assert missing.status in (400, 404)


def test_messages_come_back_as_they_were_sent(api: Api, queue: str) -> None:
    properties = {
        "delivery_mode": 2,
        "content_type": "text/plain",
        "headers": {"a": 1, "b": "two", "c": [1, "x"]},
        "message_id": "m1",
        "priority": 3,
    }
    api.publish("amq.default", queue, "grüße", **properties)
    (row,) = api.take(queue)
    assert row["payload"] == "grüße"
    assert row["payload_encoding"] == "string"
    assert row["payload_bytes"] == len("grüße".encode())
    assert row["properties"] == properties
    assert (row["exchange"], row["routing_key"], row["redelivered"]) == ("", queue, False)
    assert row["message_count"] == 0


def test_bytes_travel_in_base64(api: Api, queue: str) -> None:
    body = bytes(range(256))
    answer = api.post(
        "exchanges",
        "/",
        "amq.default",
        "publish",
        routing_key=queue,
        payload=base64.b64encode(body).decode(),
        payload_encoding="base64",
        properties={},
    )
    assert answer.json == {"routed": True}
    (row,) = api.take(queue)
    assert row["payload_encoding"] == "base64"
    assert base64.b64decode(row["payload"]) == body


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("ack_requeue_true", True),
        ("reject_requeue_true", True),
        ("ack_requeue_false", False),
        ("reject_requeue_false", False),
    ],
)
def test_get_leaves_or_takes(api: Api, queue: str, mode: str, left: bool) -> None:
    api.publish("amq.default", queue, "x")
    assert len(api.take(queue, mode=mode)) == 1
    assert [row["redelivered"] for row in api.take(queue)] == ([True] if left else [])


def test_payloads_can_be_cut(api: Api, queue: str) -> None:
    api.publish("amq.default", queue, "0123456789")
    answer = api.post(
        "queues",
        "/",
        queue,
        "get",
        count=1,
        ackmode="ack_requeue_false",
        encoding="auto",
        truncate=4,
    )
    assert answer.json[0]["payload"] == "0123"
    assert answer.json[0]["payload_bytes"] == 10


def test_a_bad_get_is_refused(api: Api, queue: str) -> None:
    assert api.post("queues", "/", queue, "get", count=1, encoding="auto").status == 400
    wrong = {"count": "x", "ackmode": "ack_requeue_true", "encoding": "auto"}
    bad = api.post("queues", "/", queue, "get", **wrong)
    assert bad.status == 400


# ---- vhosts, users, permissions -----------------------------------------------------------------


def test_vhosts_come_and_go(api: Api, broker: Broker, vhost: str) -> None:
    assert api.put("vhosts", vhost).status == 204
    assert api.rows("vhosts", vhost)["name"] == vhost
    assert vhost in [row["name"] for row in api.rows("vhosts")]
    users = [row["user"] for row in api.rows("vhosts", vhost, "permissions")]
    assert users == [broker.user], "who makes a vhost may use it"
    assert api.put("queues", vhost, "q").status == 201
    assert api.delete("vhosts", vhost).status == 204
    assert api.get("vhosts", vhost).status == 404
    assert api.get("queues", vhost).status == 404


def test_users_have_tags_and_a_hash(api: Api, user: str, unique: Unique) -> None:
    row = api.rows("users", user)
    assert row["tags"] == ["management"]
    assert row["password_hash"]
    assert (
        api.put("users", user, password="other", tags=["monitoring", "policymaker"]).status == 204
    )
    assert sorted(api.rows("users", user)["tags"]) == ["monitoring", "policymaker"]
    assert api.put("users", unique("u"), password="x").status == 400, "without tags"
    assert user in [each["name"] for each in api.rows("users", "without-permissions")]
    assert api.delete("users", user).status == 204
    assert api.get("users", user).status == 404


def test_users_are_deleted_in_bulk(api: Api, unique: Unique) -> None:
    names = [unique("u"), unique("u")]
    for name in names:
        api.put("users", name, password="x", tags="")
    assert api.post("users", "bulk-delete", users=names).status == 204
    assert [api.get("users", name).status for name in names] == [404, 404]


def test_permissions_are_patterns(api: Api, user: str) -> None:
    patterns = {"configure": "^a", "write": "", "read": ".*"}
    assert api.put("permissions", "/", user, **patterns).status == 201
    assert api.put("permissions", "/", user, **patterns).status == 204
    row = {"user": user, "vhost": "/", **patterns}
    assert api.rows("permissions", "/", user) == row
    assert row in api.rows("permissions")
    assert api.rows("users", user, "permissions") == [row]
    assert row in api.rows("vhosts", "/", "permissions")
    assert api.put("permissions", "/", user, configure="(", write="", read="").status == 400
    assert api.put("permissions", "no such vhost", user, **patterns).status == 400
    assert api.delete("permissions", "/", user).status == 204
    assert api.get("permissions", "/", user).status == 404


def test_topic_permissions_are_per_exchange(api: Api, user: str) -> None:
    rule = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    assert api.put("topic-permissions", "/", user, **rule).status == 201
    row = {"user": user, "vhost": "/", **rule}
    assert api.rows("topic-permissions", "/", user) == [row]
    assert row in api.rows("topic-permissions")
    assert api.rows("users", user, "topic-permissions") == [row]
    assert api.delete("topic-permissions", "/", user).status == 204
    assert row not in api.rows("topic-permissions")


@pytest.mark.parametrize(
    ("tags", "allowed"),
    [
        ("", ()),
        ("management", ("overview", "queues")),
        ("policymaker", ("overview", "queues", "parameters")),
        ("monitoring", ("overview", "queues", "nodes")),
        ("administrator", ("overview", "queues", "nodes", "users", "parameters", "definitions")),
    ],
)
def test_tags_open_what_they_open(
    api: Api, broker: Broker, user: str, tags: str, allowed: tuple[str, ...]
) -> None:
    api.put("users", user, password="secret", tags=tags)
    api.put("permissions", "/", user, configure="", write="", read="")
    own = Api(broker, user, "secret")
    paths = ("overview", "queues", "nodes", "users", "parameters", "definitions")
    assert tuple(each for each in paths if own.get(each).status == 200) == allowed
    refused = [own.get(each) for each in paths if each not in allowed]
    assert {error(each) for each in refused} <= {(401, "not_authorised")}


@differences.OTHERS_QUEUES
def test_permissions_hold_over_http(api: Api, broker: Broker, user: str, queue: str) -> None:
    own = Api(broker, user, "secret")
    assert own.get("queues", "/", queue).status == 401
    api.put("permissions", "/", user, configure="^mine", write="^mine", read="^mine")
    assert own.get("queues", "/", queue).status == 200, "looking takes the vhost only"
    assert own.put("queues", "/", queue + "x").status == 401
    assert own.delete("queues", "/", queue).status == 401
    assert own.delete("queues", "/", queue, "contents").status == 401
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert own.post("queues", "/", queue, "get", **get).status == 401
    assert own.put("vhosts", "mine").status == 401


# ---- policies, parameters, limits ---------------------------------------------------------------


def test_policies_take_effect(api: Api, queue: str, unique: Unique) -> None:
    name = unique("policy")
    policy = {"pattern": f"^{queue}$", "definition": {"max-length": 3}, "priority": 2}
    assert api.put("policies", "/", name, **policy, **{"apply-to": "queues"}).status == 201
    row = api.rows("policies", "/", name)
    assert row == {"vhost": "/", "name": name, "apply-to": "queues", **policy}
    assert row in api.rows("policies")
    shown = wait_until(
        lambda: api.rows("queues", "/", queue).get("effective_policy_definition"),
        "the policy to take effect",
        STATS_SECONDS_MAX,
    )
    assert shown == {"max-length": 3}
    assert api.put("policies", "/", name, pattern="(", definition={"max-length": 1}).status == 400
    assert api.put("policies", "/", name, pattern="x", definition={"no-such": 1}).status == 400
    assert api.put("policies", "/", name, pattern="x").status == 400
    assert api.delete("policies", "/", name).status == 204
    assert api.get("policies", "/", name).status == 404


def test_operator_policies_are_their_own(api: Api, unique: Unique) -> None:
    name = unique("operator")
    policy = {"pattern": "^none$", "definition": {"max-length": 3}, "priority": 0}
    put = api.put("operator-policies", "/", name, **policy, **{"apply-to": "queues"})
    assert put.status == 201
    assert api.rows("operator-policies", "/", name)["definition"] == {"max-length": 3}
    assert name not in [row["name"] for row in api.rows("policies")]
    assert api.delete("operator-policies", "/", name).status == 204


def test_global_parameters(api: Api, unique: Unique) -> None:
    name = unique("global")
    assert api.put("global-parameters", name, value={"a": [1]}).status == 201
    assert api.rows("global-parameters", name) == {"name": name, "value": {"a": [1]}}
    assert api.delete("global-parameters", name).status == 204
    assert api.get("global-parameters", name).status == 404


def test_limits_of_vhosts_and_users(api: Api, vhost: str, user: str) -> None:
    assert api.put("vhost-limits", vhost, "max-queues", value=3).status == 204
    assert api.rows("vhost-limits", vhost) == [{"vhost": vhost, "value": {"max-queues": 3}}]
    assert api.delete("vhost-limits", vhost, "max-queues").status == 204
    assert api.put("user-limits", user, "max-connections", value=7).status == 204
    assert api.rows("user-limits", user) == [{"user": user, "value": {"max-connections": 7}}]
    assert api.delete("user-limits", user, "max-connections").status == 204


# ---- definitions --------------------------------------------------------------------------------


@differences.CLASSIC_NAMED
def test_what_is_exported_can_be_imported(api: Api, vhost: str) -> None:
    api.put("queues", vhost, "q", durable=True, arguments={"x-max-length": 9})
    api.put("exchanges", vhost, "x", type="topic", durable=True)
    api.post("bindings", vhost, "e", "x", "q", "q", routing_key="k")
    api.post("bindings", vhost, "e", "x", "q", "q", routing_key="a.#")
    api.post("bindings", vhost, "e", "x", "q", "q")
    api.put("policies", vhost, "p", pattern="^q", definition={"message-ttl": 1000})
    exported = api.rows("definitions", vhost)
    assert [row["name"] for row in exported["queues"]] == ["q"]
    assert "vhost" not in exported["queues"][0]
    whole = api.rows("definitions")
    assert vhost in [row["name"] for row in whole["vhosts"]]
    assert all({"name", "password_hash", "tags"} <= set(row) for row in whole["users"])
    api.delete("vhosts", vhost)
    api.put("vhosts", vhost)
    assert api.ask("POST", f"/api/definitions/{vhost}", exported).status == 204
    assert api.rows("queues", vhost, "q")["arguments"] == {"x-max-length": 9}
    assert len(api.rows("exchanges", vhost, "x", "bindings", "source")) == len(exported["bindings"])
    assert api.rows("policies", vhost, "p")["definition"] == {"message-ttl": 1000}


@differences.BROKEN_DEFINITIONS
def test_a_definitions_file_adds_to_what_is_there(api: Api, vhost: str, unique: Unique) -> None:
    name = unique("u")
    document = {
        "users": [
            {
                "name": name,
                "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "management",
            }
        ],
        "permissions": [{"user": name, "vhost": vhost, "configure": "", "write": "", "read": ".*"}],
        "queues": [
            {"name": "q", "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
        ],
    }
    assert api.ask("POST", "/api/definitions", document).status == 204
    assert Api(api.broker, name, "test12").get("queues", vhost, "q").status == 200
    assert api.ask("POST", "/api/definitions", {"queues": [{"name": "q"}]}).status == 400
    api.delete("users", name)


def test_the_name_of_the_cluster_can_be_set(api: Api, connect: Connect, unique: Unique) -> None:
    before = api.rows("cluster-name")["name"]
    name = unique("cluster")
    assert api.put("cluster-name", name=name).status == 204
    wait_until(lambda: api.rows("cluster-name") == {"name": name}, "the name")
    wait_until(lambda: api.rows("overview")["cluster_name"] == name, "the overview")
    assert connect().start.server_properties["cluster_name"] == name
    assert api.rows("global-parameters", "cluster_name")["value"] == name
    assert error(api.put("cluster-name"))[0] == 400
    assert api.put("global-parameters", "cluster_name", value=before).status == 204
    wait_until(lambda: api.rows("cluster-name") == {"name": before}, "the name of before")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"uri": "nonsense"},
        {"uri": "amqp://", "expires": "soon"},
        {"uri": "amqp://", "ack-mode": "never"},
        {"uri": "amqp://", "unknown": 1},
    ],
    ids=["no-uri", "nonsense", "no-number", "no-mode", "unknown"],
)
def test_a_wrong_federation_upstream_is_refused(api: Api, unique: Unique, value: object) -> None:
    name = unique("upstream")
    answer = api.put("parameters", "federation-upstream", "/", name, value=value)
    assert error(answer) == (400, "bad_request")
    assert answer.json["reason"].startswith("Validation failed\n\n")
    assert api.get("parameters", "federation-upstream", "/", name).status == 404


def test_federation_upstreams_and_sets_of_them_are_kept(api: Api, unique: Unique) -> None:
    name = unique("upstream")
    value = {"uri": ["amqp://h1", "amqps://h2"], "max-hops": 2, "trust-user-id": True}
    assert api.put("parameters", "federation-upstream", "/", name, value=value).status == 201
    some = [{"upstream": name}]
    assert api.put("parameters", "federation-upstream-set", "/", name, value=some).status == 201
    wrong = [{"uri": "amqp://"}]
    assert api.put("parameters", "federation-upstream-set", "/", name, value=wrong).status == 400
    for component in ("federation-upstream-set", "federation-upstream"):
        assert api.delete("parameters", component, "/", name).status == 204


# ---- connections --------------------------------------------------------------------------------


def test_connections_channels_and_consumers_are_listed(
    api: Api, connect: Connect, queue: str
) -> None:
    connection = connect()
    channel = connection.channel()
    channel.consume(queue, "the-tag")

    def find() -> Any:
        rows = api.rows("consumers", "/")
        rows = [row for row in rows if row["queue"]["name"] == queue]
        return [row for row in rows if row["channel_details"]]

    (consumer,) = wait_until(find, "the consumer", STATS_SECONDS_MAX)
    assert consumer["consumer_tag"] == "the-tag"
    assert consumer["ack_required"] is True
    name = consumer["channel_details"]["connection_name"]
    rows = wait_until(
        lambda: [row for row in api.rows("connections") if row["name"] == name],
        "the connection",
        STATS_SECONDS_MAX,
    )
    assert (rows[0]["vhost"], rows[0]["state"], rows[0]["type"]) == ("/", "running", "network")
    assert rows[0]["protocol"] == "AMQP 0-9-1"
    assert name == "{peer_host}:{peer_port} -> {host}:{port}".format(**rows[0])
    assert api.rows("connections", name)["name"] == name
    channels = api.rows("connections", name, "channels")
    assert [row["number"] for row in channels] == [1]
    counted = partial(api.rows, "channels", channels[0]["name"])
    wait_until(lambda: counted()["consumer_count"] == 1, "the count", STATS_SECONDS_MAX)
    assert name in [row["name"] for row in api.rows("vhosts", "/", "connections")]
    details = wait_until(
        lambda: api.rows("queues", "/", queue)["consumer_details"], "details", STATS_SECONDS_MAX
    )
    assert details[0]["channel_details"]["connection_name"] == name


def test_a_connection_is_closed_with_a_reason(api: Api, connect: Connect, queue: str) -> None:
    channel = connect().channel()
    channel.consume(queue, "t")

    def find() -> Any:
        rows = [row for row in api.rows("consumers", "/") if row["queue"]["name"] == queue]
        return [row for row in rows if row["channel_details"]]

    (consumer,) = wait_until(find, "the consumer", STATS_SECONDS_MAX)
    name = consumer["channel_details"]["connection_name"]
    wait_until(
        lambda: api.get("connections", name).status == 200, "the connection", STATS_SECONDS_MAX
    )
    assert api.delete("connections", name, reason="enough").status == 204
    closed = channel.connection.closed_by_broker()
    assert closed.code == 320
    assert "enough" in closed.text
    wait_until(
        lambda: api.get("connections", name).status == 404, "it to be gone", STATS_SECONDS_MAX
    )


def test_all_connections_of_a_user_are_closed(
    api: Api, connect: Connect, broker: Broker, user: str
) -> None:
    api.put("permissions", "/", user, configure="", write="", read="")
    connection = connect(user=user, password="secret")
    wait_until(
        lambda: api.rows("connections", "username", user), "the connection", STATS_SECONDS_MAX
    )
    assert api.delete("connections", "username", user).status == 204
    assert connection.closed_by_broker().code == 320
