"""Keyed queues in a cluster: consumers at other brokers hold keys, and a new home learns them."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from rhizome.amqp.methods import BasicAck, BasicNack
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    group_of,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)

KEYS = "abcdefg"


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 0)


def keyed(cluster: CoreCluster, **arguments: object) -> CoreClient:
    """A client of b2, and a keyed queue at home on b1 that has a copy."""
    client = cluster["b2"].connect()
    given: dict[str, object] = {"x_group_key": "customer", **arguments}
    queue_at(client, "q", "b1", durable=True, **given)
    wait_for_copy(cluster, "q")
    return client


def publish(cluster: CoreCluster, client: CoreClient, *bodies: str) -> None:
    """Each body begins with its key."""
    for body in bodies:
        properties = Properties(delivery_mode=2, headers={"customer": body[0]})
        client.publish("", "q", body.encode(), properties)
    cluster.settle()


def consumer(cluster: CoreCluster, at: str, prefetch: int) -> CoreClient:
    client = cluster[at].connect()
    client.prefetch(prefetch)
    client.consume("q")
    cluster.settle()
    return client


def bodies_of(deliveries: list[Content]) -> list[bytes]:
    return [each.body for each in deliveries]


def ack(
    cluster: CoreCluster, client: CoreClient, delivery: Content, multiple: bool = False
) -> None:
    client.send(BasicAck(delivery.tag, multiple))
    cluster.settle()


def test_consumers_at_other_brokers_each_hold_keys_of_their_own(cluster: CoreCluster) -> None:
    publisher = keyed(cluster)
    here = consumer(cluster, "b2", 1)
    there = consumer(cluster, "b3", 1)
    publish(cluster, publisher, "a0", "a1", "b0")
    held = [here.deliveries(), there.deliveries()]
    assert sorted(bodies_of(held[0]) + bodies_of(held[1])) == [b"a0", b"b0"]
    holder, other = (here, there) if bodies_of(held[0]) == [b"a0"] else (there, here)
    second = held[1] if holder is here else held[0]
    ack(cluster, other, second[0])
    assert other.bodies() == []
    holder.close_socket()
    cluster.settle()
    assert other.bodies() == [b"a0"]


@pytest.mark.parametrize("fair", [False, True])
def test_a_new_home_gives_held_keys_to_nobody_else(cluster: CoreCluster, fair: bool) -> None:
    publisher = keyed(cluster, x_group_fair=fair)
    first = consumer(cluster, "b2", 2)
    publish(cluster, publisher, "a0", "a1", "a2", "b0", "b1")
    cluster["b1"].kill()
    home = wait_for_new_home(cluster, "q", "b1")
    second = consumer(cluster, "b3" if home == "b2" else "b2", 9)
    cluster.settle()
    held = first.deliveries()
    got = second.deliveries()
    keys = {body[:1] for body in bodies_of(held)}
    assert keys.isdisjoint({body[:1] for body in bodies_of(got)})
    ack(cluster, first, held[-1], True)
    for each in got:
        ack(cluster, second, each)
    rest = first.deliveries() + second.deliveries()
    bodies = bodies_of(held) + bodies_of(got) + bodies_of(rest)
    for key in (b"a", b"b"):
        mine = [body for body in bodies if body[:1] == key]
        assert mine == sorted(set(mine))
    assert len(bodies) == 5


def test_what_a_dead_brokers_consumer_held_comes_first(cluster: CoreCluster) -> None:
    publisher = keyed(cluster)
    lost = cluster["b1"].connect()
    lost.prefetch(2)
    lost.consume("q")
    publish(cluster, publisher, "a0", "a1", "a2")
    other = consumer(cluster, "b2", 9)
    assert other.bodies() == []
    cluster["b1"].kill()
    wait_for_new_home(cluster, "q", "b1")
    cluster.settle()
    again = other.deliveries()
    assert bodies_of(again) == [b"a0", b"a1", b"a2"]
    assert [each.redelivered for each in again][:1] == [True]


class Watched:
    """Consumers, and what each key has seen: who holds what of it, and what was settled."""

    def __init__(self, cluster: CoreCluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = Random(seed)
        self.consumers: list[CoreClient] = []
        self.held: dict[CoreClient, list[Content]] = {}
        self.settled: dict[str, list[int]] = {key: [] for key in KEYS}
        self.sent: Counter[str] = Counter()

    def add(self, at: str) -> CoreClient:
        client = consumer(self.cluster, at, self.chance.choice((1, 2, 5)))
        self.consumers.append(client)
        self.held[client] = []
        return client

    def lose(self, client: CoreClient) -> None:
        """Its broker is dead: what it held comes back."""
        self.consumers.remove(client)
        del self.held[client]

    def publish(self, publisher: CoreClient, count: int) -> None:
        for _ in range(count):
            key = self.chance.choice(KEYS)
            publish(self.cluster, publisher, f"{key}{self.sent[key]}")
            self.sent[key] += 1

    def hear(self) -> None:
        """Take what has come. Of a key it goes on where that stands, and nobody else has any."""
        for client in self.consumers:
            for delivery in client.deliveries():
                key, number = delivery.body.decode()[0], int(delivery.body[1:])
                for other, held in self.held.items():
                    mine = [int(each.body[1:]) for each in held if each.body[:1].decode() == key]
                    assert other is client or not mine, f"two consumers hold {key}"
                    assert number not in mine
                assert number not in self.settled[key], f"{key}{number} came again"
                before = set(range(number)) - set(self.settled[key])
                assert before <= {
                    int(each.body[1:])
                    for each in self.held[client]
                    if each.body[:1].decode() == key
                }, f"{key}{number} came before {before}"
                self.held[client].append(delivery)

    def settle_some(self) -> None:
        """Acks from the first of a key on, or gives everything back that a consumer holds."""
        for client in self.consumers:
            held = self.held[client]
            if held and self.chance.random() < 0.1:
                client.send(BasicNack(0, True, True))
                self.held[client] = []
            elif held:
                done = held[: self.chance.randint(1, len(held))]
                for each in done:
                    self.settled[each.body.decode()[0]].append(int(each.body[1:]))
                    client.send(BasicAck(each.tag))
                self.held[client] = held[len(done) :]
            self.cluster.settle()
            self.hear()


@pytest.mark.parametrize(("fair", "kills"), [(False, 20), (True, 4)])
def test_keys_keep_their_order_through_kills_of_homes(fair: bool, kills: int) -> None:
    cluster = make_cluster(3, 1)
    publisher = cluster["s1"].connect()
    arguments = {"x_group_key": "customer", "x_group_fair": fair}
    queue_at(publisher, "q", "b1", durable=True, **arguments)
    watched = Watched(cluster, 7)
    for _ in range(3):
        watched.add("s1")
    for _ in range(kills):
        wait_for_copy(cluster, "q")
        home = group_of(cluster, "q").home
        lost = watched.add(home)
        watched.publish(publisher, 12)
        watched.hear()
        watched.settle_some()
        watched.lose(lost)
        cluster[home].kill()
        wait_for_new_home(cluster, "q", home)
        cluster.settle()
        watched.hear()
        watched.settle_some()
        cluster[home].start()
        cluster.advance_until_ready()
    for _ in range(1000):
        if sum(len(each) for each in watched.settled.values()) == 12 * kills:
            break
        watched.settle_some()
    assert {key: sorted(each) for key, each in watched.settled.items()} == {
        key: list(range(watched.sent[key])) for key in KEYS
    }
