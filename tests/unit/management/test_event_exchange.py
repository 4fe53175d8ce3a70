"""Events on amq.rabbitmq.event: keys and headers of RabbitMQ, of one vhost, without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from rhizome.amqp.field_table import TABLE_DEPTH_MAX
from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    ChannelClose,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from rhizome.broker.access.auth_interface import OpenIdentity
from rhizome.broker.metadata.metadata_commands import (
    DeletePolicy,
    DeleteUser,
    PutParameter,
    PutPermission,
    PutPolicy,
    PutUser,
    PutVhost,
)
from rhizome.management.event_exchange import EVENTS_MAX, EventExchange
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core
from rhizome.testing.in_memory_cluster import make_cluster
from tests.unit.management.conftest import Api

EVENTS = "amq.rabbitmq.event"


@pytest.fixture
def lone() -> Core:
    made = make_core()
    made.broker.events = EventExchange(made.broker, "node")
    return made


@pytest.fixture
def watcher(lone: Core) -> CoreClient:
    """A client with queue `events` for all that happens in vhost /."""
    return watch(lone)


def watch(lone: Core, vhost: str = "/") -> CoreClient:
    client = lone.connect(vhost=vhost)
    client.declare("events")
    client.call(QueueBind("events", EVENTS, "#"), QueueBindOk)
    events(client)
    return client


def events(client: CoreClient) -> list[Content]:
    client.core.settle()
    found = []
    while (each := client.get("events")) is not None:
        found.append(each)
    return found


def told(client: CoreClient) -> dict[str, dict[str, Any]]:
    """The headers of what happened, by routing key."""
    return {each.method.routing_key: each.headers for each in events(client)}  # type: ignore[attr-defined]


def propose(lone: Core, command: Any) -> None:
    lone.broker.cluster.propose(command, None)
    lone.settle()


def test_nothing_is_noted_while_nothing_is_bound(lone: Core) -> None:
    client = lone.connect()
    client.declare("q")
    sink = lone.broker.events
    assert isinstance(sink, EventExchange)
    assert not sink.pending
    assert sink.left_out == dict.fromkeys(sink.left_out, 0)


def test_queues_exchanges_and_bindings_are_told_with_who_did_it(
    lone: Core, watcher: CoreClient
) -> None:
    client = lone.connect()
    events(watcher)
    client.call(QueueDeclare("q", durable=True, arguments={"x-max-length": 5}), QueueDeclareOk)
    client.call(ExchangeDeclare("x", "topic"), ExchangeDeclareOk)
    client.call(QueueBind("q", "x", "a.*"), QueueBindOk)
    client.call(QueueDelete("q"), QueueDeleteOk)
    found = told(watcher)
    assert list(found) == [
        "queue.created",
        "exchange.created",
        "binding.created",
        "binding.deleted",
        "queue.deleted",
    ]
    created = found["queue.created"]
    assert created["timestamp_in_ms"] == lone.now_ms
    assert {name: created[name] for name in ("name", "vhost", "durable", "exclusive", "type")} == {
        "name": "q",
        "vhost": "/",
        "durable": True,
        "exclusive": False,
        "type": "classic",
    }
    assert created["arguments"] == {"x-max-length": 5}
    assert created["user_who_performed_action"] == "guest"
    assert found["exchange.created"]["type"] == "topic"
    bound = found["binding.created"]
    assert (bound["source_name"], bound["destination_name"], bound["routing_key"]) == (
        "x",
        "q",
        "a.*",
    )
    assert (bound["source_kind"], bound["destination_kind"]) == ("exchange", "queue")


def test_an_exclusive_queue_is_told_once_and_so_is_its_end(lone: Core, watcher: CoreClient) -> None:
    client = lone.connect()
    client.call(QueueDeclare("mine", exclusive=True), QueueDeclareOk)
    client.close_socket()
    keys = [each.method.routing_key for each in events(watcher)]  # type: ignore[attr-defined]
    assert keys.count("queue.created") == 1
    assert keys.count("queue.deleted") == 1


def test_connections_channels_and_consumers_are_told(lone: Core, watcher: CoreClient) -> None:
    events(watcher)
    client = lone.connect(properties={"product": "p", "secret": "token-1"})
    client.declare("q")
    client.call(BasicConsume("q", "tag", no_ack=True), BasicConsumeOk)
    client.close_socket()
    found = told(watcher)
    assert {
        "user.authentication.success",
        "connection.created",
        "channel.created",
        "consumer.created",
        "consumer.deleted",
        "channel.closed",
        "connection.closed",
    } <= found.keys()
    assert found["connection.created"]["client_properties"] == {"product": "p"}
    assert "token-1" not in repr(found)
    consumer = found["consumer.created"]
    assert (consumer["consumer_tag"], consumer["queue"], consumer["ack_required"]) == (
        "tag",
        "q",
        False,
    )


def test_users_policies_and_parameters_are_told_without_secrets(
    lone: Core, watcher: CoreClient
) -> None:
    events(watcher)
    for command in (
        PutUser("eve", "hash-of-password-1", tags=("management",)),
        PutPermission("eve", "/", "a", "b", "c"),
        PutPolicy("/", "p", "^q", {"max-length": 1}),
        DeletePolicy("/", "p"),
        PutParameter("shovel", "/", "s", {"src-uri": "amqp://u:secret-2@h"}),
        PutUser("eve", "hash-of-password-2", tags=("management",)),
        PutVhost("other"),
        DeleteUser("eve"),
    ):
        propose(lone, command)
    found = told(watcher)
    assert list(found) == [
        "user.created",
        "user.tags.set",
        "permission.created",
        "policy.set",
        "policy.cleared",
        "parameter.set",
        "user.password.changed",
        "vhost.created",
        "user.deleted",
    ]
    assert found["policy.set"]["definition"] == {"max-length": 1}
    assert (found["permission.created"]["user"], found["permission.created"]["read"]) == (
        "eve",
        "c",
    )
    for secret in ("hash-of-password", "secret-2"):
        assert secret not in repr(found)


def test_alarms_are_told_even_while_they_block_publishers(lone: Core, watcher: CoreClient) -> None:
    events(watcher)
    lone.broker.block("memory is short")
    lone.broker.turn.now_ms += 1
    lone.broker.unblock()
    found = told(watcher)
    assert list(found) == ["alarm.set", "alarm.cleared"]
    assert found["alarm.set"]["reason"] == "memory is short"


def test_events_of_one_vhost_stay_there(lone: Core, watcher: CoreClient) -> None:
    propose(lone, PutVhost("other"))
    other = watch(lone, "other")
    events(watcher)
    events(other)
    here, there = lone.connect(), lone.connect(vhost="other")
    here.declare("here")
    there.declare("there")
    propose(lone, PutUser("eve", "h"))
    propose(lone, PutPolicy("other", "p", "^q", {"max-length": 1}))
    of_here, of_there = events(watcher), events(other)
    assert all(each.headers.get("vhost", "/") == "/" for each in of_here)
    assert {each.headers["vhost"] for each in of_there} == {"other"}
    assert "user.created" in {each.method.routing_key for each in of_here}  # type: ignore[attr-defined]


@pytest.mark.parametrize("tags", [(), ("management",), ("policymaker",)])
def test_who_has_no_tag_for_it_can_bind_nothing_to_events(
    lone: Core, tags: tuple[str, ...]
) -> None:
    client = lone.connect()
    client.declare("q")
    client.connection.identity = OpenIdentity("app", tags=tags)
    for method in (QueueBind("q", EVENTS, "#"), ExchangeBind("amq.fanout", EVENTS, "#")):
        client.send(method)
        close = client.pick(ChannelClose)
        assert close.reply_code == 403
        assert EVENTS in close.reply_text
        client = lone.connect()
        client.connection.identity = OpenIdentity("app", tags=tags)


def test_a_policy_cannot_lead_events_elsewhere(lone: Core, watcher: CoreClient) -> None:
    definition: dict[str, object] = {"alternate-exchange": "amq.fanout"}
    propose(lone, PutPolicy("/", "leak", "event", definition, "exchanges"))
    assert lone.broker.state.vhosts["/"].router.exchanges[EVENTS].alternate == ""


def test_no_client_can_publish_an_event(lone: Core, watcher: CoreClient) -> None:
    events(watcher)
    client = lone.connect()
    client.publish(EVENTS, "queue.created", b"forged")
    assert client.pick(ChannelClose).reply_code == 403
    assert "forged" not in repr([each.body for each in events(watcher)])


def test_too_many_events_of_a_turn_are_left_out(lone: Core, watcher: CoreClient) -> None:
    events(watcher)
    sink = lone.broker.events
    assert isinstance(sink, EventExchange)
    for _ in range(EVENTS_MAX + 5):
        sink.alarm("x")
    assert sink.left_out["too many"] == 5
    assert len(events(watcher)) == EVENTS_MAX


def test_events_with_many_arguments_take_several_turns(lone: Core, watcher: CoreClient) -> None:
    """A connection with a thousand consumers that ended held everybody up for 0.2 s."""
    client = lone.connect()
    client.declare("q")
    many: dict[str, object] = {f"{number:03x}": True for number in range(2_000)}
    tags = [f"{number}" for number in range(200)]
    for tag in tags:
        client.call(BasicConsume("q", tag, arguments=many), BasicConsumeOk)
    events(watcher)
    client.connection.lost()
    lone.one_turn()
    queue = lone.queue("events")
    assert 0 < queue.ready < len(tags) // 2
    told = [each.headers["consumer_tag"] for each in events(watcher) if "queue" in each.headers]
    assert told == tags
    sink = lone.broker.events
    assert isinstance(sink, EventExchange)
    assert not sink.pending
    assert not lone.broker.turn.pending()


def test_arguments_nested_as_deep_as_may_be_hide_no_event(lone: Core, watcher: CoreClient) -> None:
    attacker, other = lone.connect(), lone.connect()
    events(watcher)
    deep: dict[str, object] = {"a": 1}
    for _ in range(TABLE_DEPTH_MAX - 1):
        deep = {"x": deep}
    attacker.send_bytes(method_frame(1, QueueDeclare("deep", arguments=deep)))
    other.send_bytes(method_frame(1, QueueDeclare("other")))
    found = {str(each.headers["name"]): each.headers for each in events(watcher)}
    assert set(found) == {"deep", "other"}
    assert "arguments" not in found["deep"], "that alone is left out"
    assert found["other"]["arguments"] == {}


def test_the_http_api_asks_for_the_tag_too(api: Api) -> None:
    api.put("queues", "/", "q")
    bound = {"routing_key": "#", "arguments": {}}
    assert api.post("bindings", "/", "e", EVENTS, "q", "q", **bound).status == 201
    policymaker = Api(api.core, "maker")
    traced = policymaker.post("bindings", "/", "e", "amq.rabbitmq.trace", "q", "q", **bound)
    assert traced.status == 201
    bound["routing_key"] = "queue.*"
    answer = policymaker.post("bindings", "/", "e", EVENTS, "q", "q", **bound)
    assert answer.status in (401, 403), answer.body


def test_in_a_cluster_each_event_comes_once() -> None:
    cluster = make_cluster(3, 1)
    for member in cluster.running():
        member.broker.events = EventExchange(member.broker, member.name)
    client = cluster["b2"].connect()
    client.declare("events")
    client.call(QueueBind("events", EVENTS, "queue.*"), QueueBindOk)
    cluster.advance(500)
    for name in ("b1", "b3", "s1"):
        cluster[name].connect().declare(f"q-{name}")
        cluster.advance(500)
    found = []
    while (each := client.get("events")) is not None:
        found.append((each.headers["name"], each.headers["node"]))
    assert sorted(found) == [("q-b1", "b1"), ("q-b3", "b3"), ("q-s1", "s1")]
