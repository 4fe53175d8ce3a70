"""Firehose: what clients publish and get, copied to amq.rabbitmq.trace with RabbitMQ's headers."""

from __future__ import annotations

from typing import Any

import pytest

from rhizome.amqp.field_table import TABLE_DEPTH_MAX, Timestamp
from rhizome.amqp.methods import (
    BasicAck,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties, encode_header
from rhizome.amqp.spec import FRAME_OVERHEAD
from rhizome.management import firehose
from rhizome.management.firehose import Firehose, switch
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core
from tests.unit.management.conftest import Api


@pytest.fixture
def traced_core() -> Core:
    """A core with queue `q`, and queue `traces` for what is traced of vhost /, which is off."""
    core = make_core()
    client = core.connect()
    client.declare("q")
    client.declare("traces")
    client.call(QueueBind("traces", "amq.rabbitmq.trace", "#"), QueueBindOk)
    return core


def turn_on(core: Core, is_on: bool = True) -> None:
    switch(core.broker, "node", core.broker.state.vhosts["/"].router, is_on)


def traces(client: CoreClient) -> list[Content]:
    found = []
    while (each := client.get("traces")) is not None:
        found.append(each)
    return found


def keys(found: list[Content]) -> list[str]:
    return [each.method.routing_key for each in found]  # type: ignore[attr-defined]


def test_nothing_is_traced_unless_it_is_switched_on(traced_core: Core) -> None:
    client = traced_core.connect()
    client.publish("", "q", b"m")
    assert traces(client) == []
    assert traced_core.broker.tracer is None


def test_publishes_and_deliveries_are_traced_with_what_they_are_about(traced_core: Core) -> None:
    turn_on(traced_core)
    client = traced_core.connect()
    headers: dict[str, object] = {"CC": ["elsewhere"], "n": 1}
    properties = Properties(headers=headers, message_id="m1", timestamp=5, delivery_mode=2)
    client.publish("", "q", b"body", properties)
    assert client.get("q") is not None
    published, delivered = traces(client)
    assert keys([published, delivered]) == ["publish.", "deliver.q"]
    assert (published.body, delivered.body) == (b"body", b"body")
    found: dict[str, Any] = published.headers
    connection = client.connection
    assert found == {
        "exchange_name": "",
        "routing_keys": ["q", "elsewhere"],
        "node": "node",
        "vhost": "/",
        "connection": connection.name,
        "channel": 1,
        "user": connection.identity.user,
        "routed_queues": ["q"],
        "properties": {
            "headers": headers,
            "message_id": "m1",
            "timestamp": Timestamp(5),
            "delivery_mode": 2,
        },
    }
    assert delivered.headers["redelivered"] == 0
    assert "routed_queues" not in delivered.headers


def test_consumers_that_were_there_before_are_traced_and_no_more_afterwards(
    traced_core: Core,
) -> None:
    client, reader = traced_core.connect(), traced_core.connect()
    reader.consume("q", no_ack=True)
    client.publish("", "q", b"0")
    turn_on(traced_core)
    client.publish("", "q", b"1")
    traced_core.settle()
    assert keys(traces(client)) == ["publish.", "deliver.q"]
    turn_on(traced_core, False)
    client.publish("", "q", b"2")
    assert reader.bodies() == [b"0", b"1", b"2"]
    assert traces(client) == []
    assert traced_core.broker.tracer is None


def test_traces_themselves_are_not_traced(traced_core: Core) -> None:
    reader = traced_core.connect()
    reader.consume("traces", no_ack=True)
    turn_on(traced_core)
    traced_core.connect().publish("", "q", b"m")
    traced_core.settle()
    assert reader.bodies() == [b"m"]


def test_messages_that_reach_no_queue_are_traced_too(traced_core: Core) -> None:
    turn_on(traced_core)
    client = traced_core.connect()
    client.call(ExchangeDeclare("orders", "fanout"), ExchangeDeclareOk)
    client.publish("orders", "key", b"m")
    [found] = traces(client)
    assert (keys([found]), found.headers["routed_queues"]) == (["publish.orders"], [])
    assert found.headers["routing_keys"] == ["key"]


def test_a_publish_in_a_transaction_is_traced_once(traced_core: Core) -> None:
    turn_on(traced_core)
    client = traced_core.connect()
    client.call(TxSelect(), TxSelectOk)
    client.publish("", "q", b"m")
    client.call(TxCommit(), TxCommitOk)
    other = traced_core.connect()
    assert keys(traces(other)) == ["publish."]


def test_confirms_and_the_messages_themselves_are_as_without_tracing(traced_core: Core) -> None:
    turn_on(traced_core)
    client = traced_core.connect()
    client.confirm()
    client.publish("", "q", b"m", Properties(priority=1))
    traced_core.settle()
    assert client.pick(BasicAck).delivery_tag == 1
    assert client.get("q") is not None
    assert client.get("q") is None


def test_names_that_are_too_long_for_a_routing_key_are_cut(traced_core: Core) -> None:
    name = "q" * 255
    client = traced_core.connect()
    client.declare(name)
    turn_on(traced_core)
    client.publish("", name, b"m")
    client.get(name)
    found = traces(client)
    assert keys(found)[1] == "deliver." + "q" * 247


def test_headers_that_fill_a_frame_are_left_out(traced_core: Core) -> None:
    """A header frame can't be split: with the trace's own headers it would be too long."""
    turn_on(traced_core)
    client = traced_core.connect()
    room = client.frame_max - 60
    client.publish("", "q", b"m", Properties(headers={"long": "x" * room}, type="t"))
    [found] = traces(client)
    assert found.headers["properties"] == {"type": "t"}


def nested(levels: int) -> dict[str, object]:
    table: dict[str, object] = {"a": 1}
    for _ in range(levels - 1):
        table = {"x": table}
    return table


@pytest.mark.parametrize("levels", [TABLE_DEPTH_MAX - 1, TABLE_DEPTH_MAX])
def test_headers_nested_as_deep_as_may_be_hide_no_trace(traced_core: Core, levels: int) -> None:
    turn_on(traced_core)
    attacker, other = traced_core.connect(), traced_core.connect()
    deep = Properties(headers=nested(levels), message_id="deep")
    attacker.send_bytes(attacker.published("", "q", b"deep", deep))
    other.send_bytes(other.published("", "q", b"other"))
    traced_core.settle()
    found = traces(other)
    assert [each.body for each in found] == [b"deep", b"other"]
    properties: Any = found[0].headers["properties"]
    assert properties == {"message_id": "deep"}, "the headers alone are left out"


def test_a_trace_of_a_message_for_many_queues_fits_into_a_frame(traced_core: Core) -> None:
    client = traced_core.connect()
    client.call(ExchangeDeclare("all", "fanout"), ExchangeDeclareOk)
    frame_max = traced_core.broker.limits.frame_max
    count = int(2 * frame_max // 200)
    for number in range(count):
        name = f"{number}-".ljust(200, "n")
        client.declare(name)
        client.call(QueueBind(name, "all"), QueueBindOk)
    turn_on(traced_core)
    client.publish("all", "", b"m")
    [found] = traces(client)
    assert len(encode_header(1, found.properties)) + FRAME_OVERHEAD <= frame_max
    named: Any = found.headers["routed_queues"]
    assert 0 < len(named) < count
    assert len(named) + int(str(found.headers["routed_queues_more"])) == count


def test_what_is_too_much_for_one_turn_is_left_out_and_counted(
    traced_core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firehose, "NOTES_MAX", 2)
    turn_on(traced_core)
    client = traced_core.connect()
    client.send_bytes(b"".join(client.published("", "q", b"m") for _ in range(5)))
    tracer = traced_core.broker.tracer
    assert isinstance(tracer, Firehose)
    assert tracer.left_out["too many"] == 3
    assert traced_core.queue("q").ready == 5
    assert len(traces(client)) == 2


def test_nothing_is_traced_while_publishers_are_blocked(traced_core: Core) -> None:
    turn_on(traced_core)
    client = traced_core.connect()
    client.publish("", "q", b"m")
    traced_core.broker.blocking = True
    assert client.get("q") is not None
    traced_core.broker.blocking = False
    tracer = traced_core.broker.tracer
    assert isinstance(tracer, Firehose)
    assert tracer.left_out["blocked"] == 1
    assert keys(traces(client)) == ["publish."]


def test_the_http_api_switches_tracing_and_tells_of_it(api: Api) -> None:
    api.put("queues", "/", "q")
    api.put("queues", "/", "traces")
    bound = {"routing_key": "#", "arguments": {}}
    api.post("bindings", "/", "e", "amq.rabbitmq.trace", "q", "traces", **bound)
    assert api.get("vhosts", "/").json["tracing"] is False
    assert api.put("vhosts", "/", tracing=True).status == 204
    assert api.get("vhosts", "/").json["tracing"] is True
    api.put("vhosts", "/", description="kept on")
    api.publish("q", "m")
    assert [each["routing_key"] for each in api.browse("traces")] == ["publish."]
    assert api.put("vhosts", "/", tracing=False).status == 204
    api.publish("q", "m")
    assert len(api.browse("traces")) == 1
    assert api.put("vhosts", "/", tracing="maybe").status == 400
