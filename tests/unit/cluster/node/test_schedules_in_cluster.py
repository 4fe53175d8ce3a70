"""Schedules in a cluster: taken back through any broker, before and after a takeover."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import QUEUE, Bind
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    bind,
    drain,
    exchange,
    group_of,
    queue_at,
    refused,
    wait_for_copy,
)

HELD = "amq.delayed"


@pytest.fixture
def cluster() -> CoreCluster:
    made = make_cluster(3, 1)
    client = made["b1"].connect()
    exchange(client, "later", "x-delayed-message", x_delayed_type="direct")
    queue_at(client, "q", "b2", durable=True)
    bind(client, "q", "later", "q")
    made.advance(500)
    wait_for_copy(made, HELD)
    wait_for_copy(made, "q")
    return made


def schedule(client: CoreClient, name: str, delay_ms: int) -> None:
    headers: dict[str, object] = {"x-delay": delay_ms, "x-schedule-id": name}
    client.publish("later", "q", name.encode(), Properties(headers=headers, delivery_mode=2))


def cancel(client: CoreClient, name: str) -> None:
    headers: dict[str, object] = {"x-schedule-cancel": name}
    client.publish("later", "q", b"", Properties(headers=headers, delivery_mode=2))


def survivor(cluster: CoreCluster) -> CoreClient:
    return cluster.running()[0].connect()


def kill_home(cluster: CoreCluster) -> None:
    home = group_of(cluster, HELD).home
    cluster[home].kill()
    cluster.advance_until(lambda: group_of(cluster, HELD).home not in ("", home))
    cluster.advance_until(lambda: cluster[group_of(cluster, HELD).home].broker.may_deliver)
    cluster.advance(3_000)


def test_each_broker_takes_back_what_came_through_another(cluster: CoreCluster) -> None:
    clients = [cluster[name].connect() for name in ("b1", "b2", "b3", "s1")]
    for number, client in enumerate(clients):
        schedule(client, f"{number}", 5_000)
        schedule(client, f"kept-{number}", 5_000)
    cluster.settle()
    for number, client in enumerate(clients):
        cancel(client, f"{(number + 1) % 4}")
    cluster.advance(8_000)
    assert sorted(drain(survivor(cluster), "q")) == [b"kept-%d" % number for number in range(4)]


def test_a_takeover_forgets_neither_schedules_nor_what_was_taken_back(
    cluster: CoreCluster,
) -> None:
    client = cluster["s1"].connect()
    for number in range(20):
        schedule(client, f"{number:02}", 60_000)
    for number in range(0, 20, 2):
        cancel(client, f"{number:02}")
    cluster.advance(1_000)
    kill_home(cluster)
    client = cluster["s1"].connect()
    cancel(client, "01")
    schedule(client, "03", 90_000)
    cluster.advance(70_000)
    expected = [b"%02d" % number for number in range(5, 20, 2)]
    assert sorted(drain(client, "q")) == expected
    cluster.advance(40_000)
    assert drain(client, "q") == [b"03"]


def test_a_transaction_takes_back_at_another_home(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    schedule(client, "a", 5_000)
    client.call(TxSelect(), TxSelectOk)
    cancel(client, "a")
    schedule(client, "b", 5_000)
    client.publish("", "q", b"now", Properties(delivery_mode=2))
    client.send(TxCommit())
    cluster.advance(500)
    client.pick(TxCommitOk)
    assert drain(client, "q") == [b"now"]
    cluster.advance(8_000)
    assert drain(client, "q") == [b"b"]


def test_nobody_takes_back_in_the_name_of_another(cluster: CoreCluster) -> None:
    """A dead letter keeps all headers, so one that reached the held messages would be believed."""
    victim, attacker = cluster["b1"].connect(), cluster["s1"].connect()
    schedule(victim, "a", 3_000)
    cluster.settle()
    assert refused(attacker, QueueBind(HELD, "later", "forged"))[0] == 403
    # As in a store of a broker that has not refused it.
    attacker.connection.broker.cluster.propose(Bind("/", "later", HELD, QUEUE, "forged", {}), None)
    cluster.advance(500)
    arguments = {"x-dead-letter-exchange": "later", "x-dead-letter-routing-key": "forged"}
    attacker.call(QueueDeclare("dying", arguments={**arguments}), QueueDeclareOk)
    headers: dict[str, object] = {"x-schedule-cancel": "a", "x-schedule-by": "guest"}
    attacker.publish("", "dying", b"", Properties(headers=headers, expiration="1"))
    cluster.advance(6_000)
    assert drain(survivor(cluster), "q") == [b"a"]
