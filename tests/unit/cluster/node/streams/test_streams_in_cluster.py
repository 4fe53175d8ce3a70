"""Streams in a cluster: published to and read through any broker, each at a home of its own."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster

HOME = "b1"
EVERYWHERE = ("b1", "b2", "b3", "s1")


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def declare(client: CoreClient, name: str = "s", home: str = HOME, **arguments: object) -> None:
    given = {"x-queue-type": "stream", "x-group": home}
    given |= {key.replace("_", "-"): value for key, value in arguments.items()}  # type: ignore[misc]
    client.call(QueueDeclare(name, durable=True, arguments=dict(given)), QueueDeclareOk)


def consume(
    client: CoreClient, offset: object = "first", prefetch: int = 100, **others: object
) -> None:
    client.prefetch(prefetch)
    given: dict[str, object] = {"x-stream-offset": offset, **others}
    client.send(BasicConsume("s", "tag", arguments=given))
    client.pick(BasicConsumeOk)


def publish(client: CoreClient, *bodies: str) -> None:
    for body in bodies:
        client.publish("", "s", body.encode())


def offsets(deliveries: list[Content]) -> list[object]:
    return [each.headers["x-stream-offset"] for each in deliveries]


def bodies(deliveries: list[Content]) -> list[str]:
    return [each.body.decode() for each in deliveries]


def test_a_stream_is_read_through_any_broker(cluster: CoreCluster) -> None:
    declare(cluster["b2"].connect())
    for at in EVERYWHERE:
        publish(cluster[at].connect(), f"from {at}")
    readers = [cluster[at].connect() for at in EVERYWHERE]
    for reader in readers:
        consume(reader)
    for reader in readers:
        found = reader.deliveries()
        assert offsets(found) == [0, 1, 2, 3]
        assert bodies(found) == [f"from {at}" for at in EVERYWHERE]
    publish(cluster["s1"].connect(), "more")
    for reader in readers:
        assert bodies(reader.deliveries()) == ["more"]
    assert cluster[HOME].queue("s").ready == 5
    assert cluster["b2"].queue("s").stream is None


@pytest.mark.parametrize("at", EVERYWHERE)
def test_acks_are_credit_from_anywhere(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    declare(client)
    publish(client, *"abcdef")
    consume(client, prefetch=2)
    held = client.deliveries()
    assert bodies(held) == ["a", "b"]
    client.send(BasicAck(held[1].tag, multiple=True))
    assert bodies(client.deliveries()) == ["c", "d"]


def test_each_stream_has_a_group_that_goes_with_it(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    groups = cluster["b3"].node.state.groups
    before = list(groups.groups)
    for number in range(3):
        arguments: dict[str, object] = {"x-queue-type": "stream"}
        method = QueueDeclare(f"s{number}", durable=True, arguments=arguments)
        client.call(method, QueueDeclareOk)
    made = [group for number, group in groups.groups.items() if number not in before]
    assert sorted(group.home for group in made) == ["b1", "b2", "b3"]
    assert all(group.stream and not group.local for group in made)
    for number in range(3):
        client.call(QueueDelete(f"s{number}"), QueueDeleteOk)
    assert list(groups.groups) == before
    for name in ("b1", "b2", "b3"):
        cluster[name].busy = True
    cluster.settle()
    assert not any(member.files.inside("streams").directories() for member in cluster.running())


def test_a_message_for_a_queue_and_a_stream_is_in_both_once(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    declare(client)
    client.declare("q", durable=True, x_group=HOME)
    client.call(ExchangeDeclare("x", "fanout", durable=True), ExchangeDeclareOk)
    for name in ("q", "s"):
        client.call(QueueBind(name, "x", ""), QueueBindOk)
    client.confirm()
    client.publish("x", "", b"both", Properties(delivery_mode=2))
    client.pick(BasicAck)
    assert (cluster[HOME].queue("q").ready, cluster[HOME].queue("s").ready) == (1, 1)


@pytest.mark.parametrize("at", ["b2", "s1"])
def test_a_home_that_crashes_keeps_what_was_confirmed_and_gets_the_rest_once(
    cluster: CoreCluster, at: str
) -> None:
    client = cluster[at].connect()
    declare(client)
    client.confirm()
    reader = cluster["b3"].connect()
    consume(reader)
    publish(client, "a", "b")
    assert client.pick(BasicAck).delivery_tag in (1, 2)
    seen = bodies(reader.deliveries())
    assert seen == ["a", "b"]
    cluster[HOME].kill()
    publish(client, "c", "d")
    cluster.advance(500)
    publish(client, "e")
    cluster[HOME].start()
    cluster.advance_until_ready()
    cluster.advance(3_000)
    seen += bodies(reader.deliveries())
    assert seen == ["a", "b", "c", "d", "e"]
    other = cluster[HOME].connect()
    consume(other)
    assert bodies(other.deliveries()) == seen
    confirmed = [event.delivery_tag for event in client.take() if isinstance(event, BasicAck)]
    assert max(confirmed) == 5


def test_what_a_home_has_written_and_not_confirmed_is_not_taken_twice(
    cluster: CoreCluster,
) -> None:
    client = cluster["b2"].connect()
    declare(client)
    client.confirm()
    publish(client, "a")
    client.take()
    # The home writes, and its confirm never gets back.
    home = cluster[HOME]
    client.core.broker.turn.now_ms = client.core.now_ms
    client.connection.receive(client.published("", "s", b"b"))
    cluster["b2"].busy = True
    cluster["b2"].turn()
    home.busy = True
    while home.turn():
        pass
    home.kill()
    home.start()
    cluster.advance_until_ready()
    cluster.advance(3_000)
    client.pick(BasicAck)
    reader = cluster["b3"].connect()
    consume(reader)
    assert bodies(reader.deliveries()) == ["a", "b"]


def test_progress_is_remembered_for_readers_elsewhere(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client)
    publish(client, *"abcdef")
    consume(client, prefetch=4, **{"x-stream-consumer-name": "app"})
    held = client.deliveries()
    client.send(BasicAck(held[0].tag))
    client.send(BasicAck(held[2].tag))
    cluster.cut("b2", HOME)
    client.send(BasicAck(held[1].tag))
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance(2_500)
    stream = cluster[HOME].queue("s").stream
    assert stream is not None
    assert stream.log.offsets == {b"app": 2}
    client.close_socket()
    cluster.settle()
    other = cluster["s1"].connect()
    consume(other, **{"x-stream-consumer-name": "app"})
    assert bodies(other.deliveries()) == ["d", "e", "f"]


def test_deleting_a_stream_cancels_its_readers_everywhere(cluster: CoreCluster) -> None:
    client = cluster["b3"].connect()
    declare(client)
    reader = cluster["s1"].connect()
    consume(reader)
    client.call(QueueDelete("s"), QueueDeleteOk)
    cluster.settle()
    reader.pick(BasicCancel)


def test_counts_are_those_of_the_home(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    declare(client)
    publish(client, "a", "b", "c")
    consume(client, "next")
    answer = client.call(QueueDeclare("s", passive=True), QueueDeclareOk)
    assert (answer.message_count, answer.consumer_count) == (3, 1)
