"""Exchanges, queues, bindings, vhosts, users, policies, limits and parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.broker.cluster_port import Away
from rhizome.server.config.config_sections import PASSWORD_COST_MIN
from tests.unit.management.conftest import Api, Core


def test_a_queue_is_declared_shown_and_deleted(api: Api) -> None:
    arguments = {"x-message-ttl": 60000, "x-max-priority": 3}
    assert api.put("queues", "/", "q", durable=True, arguments=arguments).status == 201
    assert api.put("queues", "/", "q", durable=True, arguments=arguments).status == 204
    row = api.get("queues", "/", "q").json
    assert row["name"] == "q"
    assert row["durable"] is True
    assert row["arguments"] == arguments
    assert row["messages"] == row["messages_ready"] == row["consumers"] == 0
    assert row["consumer_details"] == []
    assert api.delete("queues", "/", "q").status == 204
    assert api.delete("queues", "/", "q").status == 404


def test_flags_come_as_strings_too(api: Api) -> None:
    api.put("queues", "/", "q", durable="true", auto_delete="false")
    row = api.get("queues", "/", "q").json
    assert (row["durable"], row["auto_delete"]) == (True, False)


def test_declaring_a_queue_in_another_way_tells_the_amqp_error(api: Api) -> None:
    api.put("queues", "/", "q", durable=True)
    answer = api.put("queues", "/", "q", durable=False)
    assert answer.status == 400
    assert answer.reason == (
        "inequivalent arg 'durable' for queue 'q' in vhost '/':"
        " received 'false' but current is 'true'"
    )


def test_reserved_names_are_refused(api: Api) -> None:
    assert api.put("queues", "/", "amq.mine").status == 401
    assert api.put("exchanges", "/", "amq.mine", type="direct").status == 401
    assert api.delete("exchanges", "/", "amq.topic").status == 401
    assert api.put("exchanges", "/", "amq.default", type="direct").status == 401


def test_deleting_a_queue_minds_its_conditions(api: Api) -> None:
    api.put("queues", "/", "q", durable=True)
    api.publish("q", "one")
    refused = api.delete("queues", "/", "q", query="if-empty=true")
    assert refused.status == 400
    assert "not empty" in refused.reason
    assert api.delete("queues", "/", "q", query="if-unused=true").status == 204


def test_purging_empties_a_queue(api: Api, core: Core) -> None:
    api.put("queues", "/", "q")
    api.publish("q", "one")
    assert api.delete("queues", "/", "q", "contents").status == 204
    assert core.queue("q").ready == 0


def test_exchanges_are_declared_shown_and_deleted(api: Api) -> None:
    assert api.put("exchanges", "/", "e", type="fanout", durable=True).status == 201
    row = api.get("exchanges", "/", "e").json
    assert (row["type"], row["durable"], row["internal"]) == ("fanout", True, False)
    names = {row["name"] for row in api.get("exchanges", "/").json}
    assert {"", "amq.direct", "amq.topic", "e"} <= names
    assert api.get("exchanges", "/", "amq.default").json["name"] == ""
    assert api.put("exchanges", "/", "x", type="nonsense").status == 400
    assert api.delete("exchanges", "/", "e").status == 204


def test_an_exchange_with_bindings_is_in_use(api: Api) -> None:
    api.put("exchanges", "/", "e", type="fanout")
    api.put("queues", "/", "q")
    api.post("bindings", "/", "e", "e", "q", "q")
    assert api.delete("exchanges", "/", "e", query="if-unused=true").status == 400
    assert api.delete("exchanges", "/", "e").status == 204


def test_bindings_are_made_found_and_removed_by_their_key(api: Api) -> None:
    api.put("queues", "/", "q")
    between = ("bindings", "/", "e", "amq.topic", "q", "q")
    keys = ["", "a.b", "a/b c", "~"]
    for key in keys:
        assert api.post(*between, routing_key=key).status == 201
    api.post(*between, routing_key="a.b", arguments={"x": 1})
    rows = api.get(*between).json
    assert [row["routing_key"] for row in rows] == [*keys, "a.b"]
    assert len({row["properties_key"] for row in rows}) == 5
    for row in rows:
        assert api.get(*between, row["properties_key"]).json == row
        assert api.delete(*between, row["properties_key"]).status == 204
    assert api.get(*between).json == []
    assert api.delete(*between, "a.b").status == 404


def test_bindings_are_listed_from_every_side(api: Api) -> None:
    api.put("queues", "/", "q")
    api.put("exchanges", "/", "e", type="fanout")
    api.post("bindings", "/", "e", "amq.topic", "q", "q", routing_key="k")
    api.post("bindings", "/", "e", "amq.topic", "e", "e", routing_key="k")
    of_queue = api.get("queues", "/", "q", "bindings").json
    assert [row["source"] for row in of_queue] == ["", "amq.topic"]
    source = api.get("exchanges", "/", "amq.topic", "bindings", "source").json
    assert {row["destination_type"] for row in source} == {"queue", "exchange"}
    destination = api.get("exchanges", "/", "e", "bindings", "destination").json
    assert [row["source"] for row in destination] == ["amq.topic"]
    assert len(api.get("bindings").json) == len(api.get("bindings", "/").json) == 3
    default = api.get("exchanges", "/", "amq.default", "bindings", "source").json
    assert [row["destination"] for row in default] == ["q"]


def test_a_new_vhost_belongs_to_its_maker(api: Api) -> None:
    assert api.put("vhosts", "test/1", description="for tests", tags="a,b").status == 201
    assert api.put("vhosts", "test/1").status == 204
    row = api.get("vhosts", "test/1").json
    assert (row["description"], row["tags"]) == ("for tests", ["a", "b"])
    assert api.get("permissions", "test/1", "guest").json["configure"] == ".*"
    assert api.put("queues", "test/1", "q").status == 201
    assert api.delete("vhosts", "test/1").status == 204
    assert api.get("vhosts", "test/1").status == 404


def test_a_new_user_can_log_in_and_a_deleted_one_cannot(api: Api, core: Core) -> None:
    assert api.put("users", "alice", password="alice", tags="monitoring").status == 201
    alice = Api(core, "alice")
    assert alice.get("whoami").json["tags"] == ["monitoring"]
    row = api.get("users", "alice").json
    assert row["tags"] == ["monitoring"]
    assert "alice" not in row["password_hash"]
    assert f"$ln={PASSWORD_COST_MIN}," in row["password_hash"]
    assert api.put("users", "alice", password="other", tags=["monitoring"]).status == 204
    assert alice.get("whoami").status == 401
    assert api.delete("users", "alice").status == 204
    assert api.get("users", "alice").status == 404


def test_a_hash_of_rabbitmq_is_taken_and_given_back(api: Api, core: Core) -> None:
    # rabbitmqctl hash_password test12 (RabbitMQ's documentation)
    salted = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    algorithm = "rabbit_password_hashing_sha256"
    answer = api.put(
        "users", "bob", password_hash=salted, hashing_algorithm=algorithm, tags="management"
    )
    assert answer.status == 201
    assert Api(core, "bob").ask("GET", "/api/whoami", password="test12").status == 200
    row = api.get("users", "bob").json
    assert (row["password_hash"], row["hashing_algorithm"]) == (salted, algorithm)


def test_users_that_make_no_sense_are_refused(api: Api) -> None:
    assert api.put("users", "u", password="p").status == 400, "tags are mandatory"
    assert api.put("users", "u", password="p", password_hash="x", tags="").status == 400
    assert api.put("users", "u", password_hash="no base64!", tags="").status == 400
    assert api.put("users", "u", password="p", tags="", type="robot").status == 400
    assert api.get("users", "u").status == 404


def test_permissions_are_set_listed_and_removed(api: Api) -> None:
    rule = {"configure": "^a", "write": "", "read": ".*"}
    assert api.put("permissions", "/", "stranger", **rule).status == 201
    assert api.put("permissions", "/", "stranger", **rule).status == 204
    wanted = {"user": "stranger", "vhost": "/", **rule}
    assert api.get("users", "stranger", "permissions").json == [wanted]
    assert wanted in api.get("permissions").json
    assert wanted in api.get("vhosts", "/", "permissions").json
    assert api.delete("permissions", "/", "stranger").status == 204
    assert api.delete("permissions", "/", "stranger").status == 404


def test_patterns_are_checked_before_they_are_stored(api: Api) -> None:
    setting = {"max-length": 1}
    for bad in ("[", "(a)\\1", "(?<!a)b", "(?:x{1000}){1000}"):
        rights = {"configure": bad, "write": "", "read": ""}
        rule = {"exchange": "amq.topic", "write": "", "read": bad}
        refused = api.put("permissions", "/", "stranger", **rights)
        assert (refused.status, bad[0] in refused.reason) == (400, True)
        assert api.put("topic-permissions", "/", "stranger", **rule).status == 400
        for kind in ("policies", "operator-policies"):
            assert api.put(kind, "/", "p", pattern=bad, definition=setting).status == 400
        imported = {"name": "p", "vhost": "/", "pattern": bad, "definition": setting}
        assert api.post("definitions", policies=[imported]).status == 400
    assert api.put("permissions", "/", "ghost", configure="", write="", read="").status == 400
    assert api.get("policies").json == []


def test_look_aheads_of_definitions_files_are_taken(api: Api) -> None:
    patterns = ["^(?!amq\\.).*", "^(?!amq\\.|test\\.)(orders|x)\\..*", "^(?=.*eu)(?!.*tmp)"]
    policies = [
        {"name": pattern, "vhost": "/", "pattern": pattern, "definition": {"max-length": 1}}
        for pattern in patterns
    ]
    assert api.post("definitions", policies=policies).status == 204
    assert sorted(row["pattern"] for row in api.get("policies").json) == sorted(patterns)


def test_topic_permissions_are_set_listed_and_removed(api: Api) -> None:
    rule = {"exchange": "amq.topic", "write": "^a", "read": "^b"}
    assert api.put("topic-permissions", "/", "manager", **rule).status == 201
    wanted = {"user": "manager", "vhost": "/", **rule}
    assert api.get("topic-permissions").json == [wanted]
    assert api.get("topic-permissions", "/", "manager").json == [wanted]
    assert api.get("users", "manager", "topic-permissions").json == [wanted]
    assert api.delete("topic-permissions", "/", "manager").status == 204
    assert api.get("topic-permissions", "/", "manager").status == 404


def test_policies_apply_to_queues_and_go_again(api: Api) -> None:
    api.put("queues", "/", "work.1")
    policy = {"pattern": "^work", "definition": {"max-length": 5}, "priority": 3}
    assert api.put("policies", "/", "short", **policy, **{"apply-to": "queues"}).status == 201
    row = api.get("policies", "/", "short").json
    assert row == {"vhost": "/", "name": "short", **policy, "apply-to": "queues"}
    queue = api.get("queues", "/", "work.1").json
    assert queue["policy"] == "short"
    assert queue["effective_policy_definition"] == {"max-length": 5}
    operator = {"pattern": "^work", "definition": {"max-length": 2}}
    assert api.put("operator-policies", "/", "cap", **operator).status == 201
    queue = api.get("queues", "/", "work.1").json
    assert queue["operator_policy"] == "cap"
    assert queue["effective_policy_definition"] == {"max-length": 2}
    assert api.delete("policies", "/", "short").status == 204
    assert api.delete("operator-policies", "/", "cap").status == 204
    assert api.get("queues", "/", "work.1").json["policy"] is None


def test_a_policy_that_makes_no_sense_is_refused(api: Api) -> None:
    assert api.put("policies", "/", "p", pattern=".", definition={}).status == 400
    assert api.put("policies", "/", "p", pattern=".", definition={"max-length": -1}).status == 400
    assert api.put("policies", "/", "p", definition={"max-length": 1}).status == 400


def test_limits_of_other_users_are_for_those_who_monitor(
    api: Api, as_user: Callable[[str], Api]
) -> None:
    for name in ("manager", "monitor"):
        assert api.put("user-limits", name, "max-channels", value=3).status == 204
    own = {"user": "manager", "value": {"max-channels": 3}}
    other = {"user": "monitor", "value": {"max-channels": 3}}
    assert as_user("monitor").get("user-limits").json == [own, other]
    assert as_user("monitor").get("user-limits", "ghost").status == 404
    assert as_user("manager").get("user-limits").json == [own]
    assert as_user("manager").get("user-limits", "manager").json == [own]
    assert as_user("manager").get("user-limits", "monitor").json == []
    assert as_user("manager").get("user-limits", "ghost").json == []


def test_limits_hold_and_are_lifted(api: Api) -> None:
    assert api.put("vhost-limits", "/", "max-queues", value=1).status == 204
    assert api.get("vhost-limits").json == [{"vhost": "/", "value": {"max-queues": 1}}]
    assert api.put("queues", "/", "one").status == 201
    refused = api.put("queues", "/", "two")
    assert (refused.status, "queue limit" in refused.reason) == (400, True)
    assert api.delete("vhost-limits", "/", "max-queues").status == 204
    assert api.put("queues", "/", "two").status == 201
    assert api.put("user-limits", "manager", "max-channels", value=3).status == 204
    assert api.get("user-limits", "manager").json == [
        {"user": "manager", "value": {"max-channels": 3}}
    ]
    assert api.put("user-limits", "ghost", "max-channels", value=3).status == 404
    for limit in ("max-nonsense", "max-channels"):
        refused = api.put("vhost-limits", "/", limit, value=3)
        assert refused.status == 400
        assert "it must be max-connections or max-queues" in refused.reason


@pytest.mark.parametrize("component", ["vhost-limits", "operator_policy", "policy"])
def test_what_is_set_elsewhere_is_no_parameter(api: Api, component: str) -> None:
    """An import of definitions would take it for what only administrators may set, or fail."""
    refused = api.put("parameters", component, "/", "limits", value={"max-queues": 1})
    assert refused.status == 400
    assert f"'{component}' is no component of parameters" in refused.json["reason"]
    assert api.get("parameters").json == []


def test_parameters_are_kept(api: Api) -> None:
    value = {"uri": "amqp://", "depth": [1, {"a": None}]}
    assert api.put("parameters", "bridge", "/", "b1", value=value).status == 201
    row = {"component": "bridge", "vhost": "/", "name": "b1", "value": value}
    assert api.get("parameters", "bridge", "/", "b1").json == row
    assert api.get("parameters").json == api.get("parameters", "bridge").json == [row]
    assert api.delete("parameters", "bridge", "/", "b1").status == 204
    assert api.put("global-parameters", "motd", value="hello").status == 201
    assert {"name": "motd", "value": "hello"} in api.get("global-parameters").json
    assert api.put("global-parameters", "cluster_name", value=5).status == 400


def test_a_shovel_that_no_bridge_could_follow_is_refused(api: Api) -> None:
    value: dict[str, object] = {"src-uri": "amqp://", "src-queue": "a", "dest-queue": "b"}
    value["dest-uri"] = ["amqp://u:s3cret@h1", "amqp://u:s3cret@h2"]
    assert api.put("parameters", "shovel", "/", "s", value=value).status == 201
    refused = api.put("parameters", "shovel", "/", "t", value={**value, "src-qeue": "a"})
    assert refused.status == 400
    assert refused.reason == (
        "shovel 't' in vhost '/': unknown key 'src-qeue', did you mean 'src-queue'?"
    )
    refused = api.put("parameters", "shovel", "/", "t", value={**value, "src-exchange": 5})
    assert (refused.status, "s3cret" in refused.reason) == (400, False)
    assert [row["name"] for row in api.get("parameters", "shovel").json] == ["s"]


def test_a_shovel_means_its_own_vhost_or_has_a_login(
    api: Api, as_user: Callable[[str], Api]
) -> None:
    """A bridge would read the queues of all vhosts for whoever may set parameters in one."""
    api.put("vhosts", "secret")
    value = {"src-queue": "salaries", "dest-queue": "b", "dest-uri": "amqp://"}
    refused = as_user("maker").put(
        "parameters", "shovel", "/", "s", value={**value, "src-uri": "amqp:///secret"}
    )
    assert (refused.status, "means another vhost of this cluster" in refused.reason) == (400, True)
    assert api.get("parameters", "shovel").json == []


def shovel(**given: str) -> dict[str, str]:
    ends = {"src-uri": "amqp://", "src-queue": "a", "dest-queue": "b"}
    return {**ends, "dest-uri": "amqp://app:s3cret@h/v", **given}


def test_passwords_in_parameters_are_shown_to_administrators_and_bridges_alone(
    api: Api, as_user: Callable[[str], Api]
) -> None:
    api.put("parameters", "shovel", "/", "s", value=shovel())
    api.put("global-parameters", "upstream", value={"uri": ["amqp://app:s3cret@h"]})
    for user, tags, shown in (("maker", "policymaker", "***"), ("manager", "bridge", "s3cret")):
        api.put("users", user, password=user, tags=tags)
        found = as_user(user)
        [row] = found.get("parameters").json
        assert row["value"]["dest-uri"] == f"amqp://app:{shown}@h/v"
        assert found.get("parameters", "shovel", "/", "s").json == row
        assert found.get("parameters", "shovel").json == [row]
    one = as_user("maker").get("global-parameters", "upstream").json
    assert one["value"] == {"uri": ["amqp://app:***@h"]}
    assert one in as_user("maker").get("global-parameters").json
    assert api.get("parameters").json[0]["value"] == shovel()
    assert api.get("definitions").json["parameters"][0]["value"] == shovel()


def test_a_bridge_looks_at_parameters_and_sets_none(
    api: Api, as_user: Callable[[str], Api]
) -> None:
    api.put("users", "manager", password="manager", tags="bridge")
    bridge = as_user("manager")
    assert bridge.get("parameters").status == 200
    assert bridge.get("rhizome", "cluster").status == 200
    assert bridge.put("parameters", "shovel", "/", "s", value=shovel()).status == 401
    assert bridge.get("users").status == 401
    assert bridge.get("definitions").status == 401
    assert as_user("monitor").get("parameters").status == 401


def test_a_parameter_that_is_sent_back_as_it_was_shown_keeps_its_password(
    api: Api, as_user: Callable[[str], Api]
) -> None:
    api.put("parameters", "shovel", "/", "s", value=shovel())
    maker = as_user("maker")
    edited = {**maker.get("parameters", "shovel", "/", "s").json["value"], "src-queue": "other"}
    assert maker.put("parameters", "shovel", "/", "s", value=edited).status == 204
    stored = api.get("parameters", "shovel", "/", "s").json["value"]
    assert stored == shovel(**{"src-queue": "other"})
    for uri in ("amqp://app:***@evil/v", "amqp://app:***@h/other"):
        refused = maker.put("parameters", "shovel", "/", "s", value={**edited, "dest-uri": uri})
        assert (refused.status, "give the password" in refused.reason) == (400, True)
    refused = maker.put("parameters", "shovel", "/", "new", value=edited)
    assert (refused.status, "give the password" in refused.reason) == (400, True)
    assert api.get("parameters", "shovel", "/", "s").json["value"] == stored


def test_an_export_goes_in_again_with_its_passwords(api: Api) -> None:
    api.put("parameters", "shovel", "/", "s", value=shovel())
    whole = api.get("definitions").json
    api.delete("parameters", "shovel", "/", "s")
    assert api.post("definitions", **whole).status == 204
    assert api.get("parameters", "shovel", "/", "s").json["value"] == shovel()
    whole["parameters"][0]["value"]["dest-uri"] = "amqp://app:***@h/v"
    assert api.post("definitions", **whole).status == 204
    assert api.get("parameters", "shovel", "/", "s").json["value"] == shovel()


def test_parameters_fill_no_more_than_the_share_of_their_vhost(
    api: Api, core: Core, as_user: Callable[[str], Api]
) -> None:
    """A policymaker kept as many megabytes as there was memory, on every broker."""
    api.put("vhosts", "other")
    maker = as_user("maker")
    refused = maker.put("parameters", "any", "/", "large", value="x" * 70_000)
    assert (refused.status, "at most 65536 are possible" in refused.reason) == (400, True)
    core.broker.state.sizes.bytes_max = 1 << 20
    statuses = [
        maker.put("parameters", "any", "/", f"p{number}", value="x" * 60_000).status
        for number in range(20)
    ]
    assert statuses == [201] * 8 + [400] * 12
    assert api.put("queues", "/", "q").status == 201
    for each in ("queues", "exchanges"):
        made = {"arguments": {"x": "y" * 17_000}, "type": "fanout"}
        assert api.put(each, "/", "large", **made).status == 400
    assert api.put("queues", "other", "q", arguments={"x": "y" * 10_000}).status == 201
    [own, other] = api.get(
        "vhosts", query="sort=name&columns=name,state_bytes,state_bytes_max"
    ).json
    assert own["state_bytes"] <= own["state_bytes_max"] < 1 << 19
    assert 10_000 < other["state_bytes"] < other["state_bytes_max"]
    assert maker.delete("parameters", "any", "/", "p0").status == 204
    assert maker.put("parameters", "any", "/", "p9", value="x" * 60_000).status == 201


def test_lists_have_columns_order_and_pages(api: Api) -> None:
    for name in ("b", "c", "a"):
        api.put("queues", "/", name)
    api.publish("b", "one")
    assert [row["name"] for row in api.get("queues").json] == ["a", "b", "c"]
    sort = "sort=messages&sort_reverse=true&columns=name,message_stats.publish"
    rows = api.get("queues", query=sort).json
    assert rows[0] == {"name": "b", "message_stats": {"publish": 1}}
    page = api.get("queues", query="page=2&page_size=2&columns=name").json
    assert page["items"] == [{"name": "c"}]
    assert (page["page"], page["page_count"], page["total_count"]) == (2, 2, 3)
    beyond = api.get("queues", query="page=9&page_size=2")
    assert (beyond.status, beyond.json["error"]) == (400, "page_out_of_range")
    assert [row["name"] for row in api.get("queues", query="name=B").json] == ["b"]
    found = api.get("queues", query="name=^[bc]&use_regex=true").json
    assert [row["name"] for row in found] == ["b", "c"]


def test_the_overview_counts_what_is_there(api: Api) -> None:
    api.put("queues", "/", "q")
    api.publish("q", "one")
    row = api.get("overview").json
    assert row["rabbitmq_version"] == "4.3.6"
    assert row["product_name"] == "Rhizome"
    assert row["object_totals"]["queues"] == 1
    assert row["object_totals"]["exchanges"] == 8
    numbers = {name: value for name, value in row["queue_totals"].items() if type(value) is int}
    assert numbers == {"messages": 1, "messages_ready": 1, "messages_unacknowledged": 0}
    assert row["message_stats"]["publish"] == 1
    assert "direct" in [kind["name"] for kind in row["exchange_types"]]
    assert row["node"] == api.get("nodes").json[0]["name"]
    assert api.get("nodes", row["node"]).json["running"] is True


def test_totals_do_not_fall_when_a_queue_goes(api: Api, core: Core) -> None:
    api.put("queues", "/", "q")
    api.publish("q", "one")
    api.post("queues", "/", "q", "get", ackmode="ack_requeue_false", count=1)
    core.run(core.context.rates.sample())
    api.delete("queues", "/", "q")
    for _ in range(3):
        stats = api.get("overview").json["message_stats"]
        assert (stats["publish"], stats["deliver_get"], stats["ack"]) == (1, 1, 1)
        core.run(core.context.rates.sample())


def counted_and_rates(api: Api) -> tuple[set[int], set[float]]:
    """Messages that were delivered and acknowledged, and per second: in total and of the queue."""
    both = [api.get("overview").json["message_stats"]]
    both += [row["message_stats"] for row in api.get("queues").json if "message_stats" in row]
    counted = {stats[name] for stats in both for name in ("deliver_get", "ack")}
    return counted, {stats["deliver_get_details"]["rate"] for stats in both}


def test_a_queue_that_comes_back_is_counted_once(api: Api, core: Core) -> None:
    api.put("queues", "/", "q")
    for _ in range(3):
        api.publish("q", "one")
    api.post("queues", "/", "q", "get", ackmode="ack_requeue_false", count=3)
    queue, rates = core.queue("q"), core.context.rates
    for _ in range(2):
        core.run(rates.sample())
    assert counted_and_rates(api) == ({3}, {0})
    for away in (Away(), Away(), None, None, None):
        queue.away = away
        assert counted_and_rates(api) == ({3}, {0})
        core.run(rates.sample())
    assert rates.left == {}


def test_a_queue_that_is_deleted_elsewhere_stays_counted(api: Api, core: Core) -> None:
    api.put("queues", "/", "q")
    api.publish("q", "one")
    api.post("queues", "/", "q", "get", ackmode="ack_requeue_false", count=1)
    rates = core.context.rates
    core.run(rates.sample())
    core.queue("q").away = Away()
    core.run(rates.sample())
    core.queue("q").away = None
    api.delete("queues", "/", "q")
    core.run(rates.sample())
    assert rates.left == {}
    assert counted_and_rates(api)[0] == {1}


def test_health_checks_tell_of_alarms(api: Api, core: Core) -> None:
    checks = ("alarms", "local-alarms", "virtual-hosts", "ready", "node-is-quorum-critical")
    for check in checks:
        assert api.get("health", "checks", check).json == {"status": "ok"}
    assert api.get("healthchecks", "node").status == 200
    assert api.get("health", "checks", "port-listener", "15672").status == 200
    assert api.get("health", "checks", "port-listener", "1").status == 503
    assert api.get("health", "checks", "protocol-listener", "amqp").status == 200
    core.shell.alarm = "low on memory: 1 MiB used"
    answer = api.get("health", "checks", "alarms")
    assert (answer.status, answer.json["status"]) == (503, "failed")
    assert api.get("nodes").json[0]["mem_alarm"] is True


def test_aliveness_goes_round_once(api: Api, core: Core) -> None:
    for _ in range(2):
        assert api.get("aliveness-test", "/").json == {"status": "ok"}
    assert core.queue("aliveness-test").ready == 0


def test_status_has_the_shape_of_a_cluster_of_one(api: Api) -> None:
    api.put("queues", "/", "q", durable=True)
    status = api.get("rhizome", "status").json
    name = status["broker"]["name"]
    assert status["broker"]["queues"] == 1
    assert status["broker"]["alarms"] == []
    assert status["broker"]["store"]["kind"] == "memory"
    assert status["cluster"]["root"] == name
    assert status["cluster"]["quorum"] == {"defined": 1, "active": 1, "needed": 1}
    assert [(b["name"], b["role"], b["seniority"]) for b in status["brokers"]] == [
        (name, "primary", 1)
    ]
    assert status["groups"][0]["home"] == name
    assert status["failover_map"] == {}


def test_a_vhost_has_a_default_type_of_queues(api: Api, core: Core) -> None:
    assert api.get("vhosts", "/").json["default_queue_type"] == "undefined"
    assert api.put("vhosts", "/", default_queue_type="quorum").status == 204
    row = api.get("vhosts", "/").json
    assert row["default_queue_type"] == row["metadata"]["default_queue_type"] == "quorum"
    api.put("queues", "/", "q", durable=True)
    assert api.get("queues", "/", "q").json["type"] == "quorum"
    assert api.put("queues", "/", "q", durable=True).status == 204
    api.put("queues", "/", "short", durable=False)
    assert api.get("queues", "/", "short").json["type"] == "classic"
    assert api.put("vhosts", "/", description="said again").status == 204
    assert api.get("vhosts", "/").json["default_queue_type"] == "quorum"
    refused = api.put("vhosts", "/", default_queue_type="nonsense")
    assert (refused.status, refused.reason) == (400, "nonsense is not a valid queue type")


def test_the_default_type_of_queues_is_exported_and_imported(api: Api) -> None:
    api.put("vhosts", "v", default_queue_type="stream")
    exported = api.get("definitions").json
    (row,) = [each for each in exported["vhosts"] if each["name"] == "v"]
    assert row["default_queue_type"] == row["metadata"]["default_queue_type"] == "stream"
    assert not [each for each in exported["parameters"] if each["component"] == "vhost-defaults"]
    api.delete("vhosts", "v")
    in_metadata = {"name": "v", "metadata": {"default_queue_type": "quorum"}}
    assert api.post("definitions", vhosts=[in_metadata]).status in (200, 204)
    assert api.get("vhosts", "v").json["default_queue_type"] == "quorum"
    assert api.post("definitions", vhosts=[row]).status in (200, 204)
    assert api.get("vhosts", "v").json["default_queue_type"] == "stream"
