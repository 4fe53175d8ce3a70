"""What people have a home do with messages stays exact when the home changes in the middle."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import QueueDeclare, QueueDeclareOk
from rhizome.broker.channel.channel import Channel
from rhizome.broker.queue.admin_consumer import AdminConsumer
from rhizome.cluster.state.cluster_commands import SetDraining
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    drain,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def leave(cluster: CoreCluster, home: str, cut: bool) -> str:
    """Let a home be another one, by drain or takeover; the broker that was goes on living."""
    if not cut:
        cluster["b1"].node.propose(SetDraining(home, True), None)
        return wait_for_new_home(cluster, "q", home)
    others = [name for name in cluster.members if name != home]
    for name in others:
        cluster.cut(home, name)
    cluster.advance_until(
        lambda: any(
            cluster[each].has_queue("q")
            and cluster[each].queue("q").away is None
            and not cluster[each].queue("q").log.still
            for each in others
        )
    )
    cluster.heal()
    cluster.advance_until_ready()
    return wait_for_new_home(cluster, "q", home)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("is_done", [False, True])
def test_what_an_errand_holds_is_settled_at_the_next_home(
    cluster: CoreCluster, cut: bool, is_done: bool
) -> None:
    home = next(name for name in ("b1", "b2", "b3") if name != cluster.root())
    client = cluster["s1"].connect()
    queue_at(client, "q", home, durable=True)
    wait_for_copy(cluster, "q")
    for body in (b"0", b"1", b"2"):
        client.publish("", "q", body, PERSISTENT)
    cluster.settle()
    broker = cluster[home].broker
    admin_consumer = AdminConsumer(broker, "moves messages")
    held = admin_consumer.take(cluster[home].queue("q"))
    assert held is not None
    successor = leave(cluster, home, cut)
    assert cluster[home].queue("q").away is not None
    if not cut:
        # A broker that was cut off may have its clients' messages given to others (A2).
        assert cluster[successor].queue("q").ready == 2
    if is_done:
        admin_consumer.done()
    admin_consumer.end()
    cluster[home].busy = True
    cluster.settle()
    assert drain(client, "q") == ([b"1", b"2"] if is_done else [b"0", b"1", b"2"])
    declared = client.call(QueueDeclare("q", passive=True), QueueDeclareOk)
    assert declared.message_count == 0
    assert cluster[successor].queue("q").unacked == 0
    assert not broker.admin_consumers


def test_what_an_errand_gives_back_is_as_it_was(cluster: CoreCluster) -> None:
    client = cluster["b1"].connect()
    queue_at(client, "q", "b1", durable=True)
    client.publish("", "q", b"0", PERSISTENT)
    cluster.settle()
    admin_consumer = AdminConsumer(cluster["b1"].broker, "moves messages")
    assert admin_consumer.take(cluster["b1"].queue("q")) is not None
    assert client.get("q") is None
    admin_consumer.end()
    cluster["b1"].settle()
    message = client.get("q")
    assert message is not None
    assert not message.method.redelivered  # type: ignore[attr-defined]


# --- moving


def begin_move(cluster: CoreCluster, home: str, to: str) -> tuple[AdminConsumer, Channel]:
    """The first message of queue `q` is on its way to another queue, for somebody at its home."""
    channel = Channel(cluster[home].connect().connection, 2)
    admin_consumer = AdminConsumer(cluster[home].broker, "moves messages")
    message = admin_consumer.take(cluster[home].queue("q"))
    assert message is not None
    assert admin_consumer.move(message, cluster[home].queue(to), channel)
    cluster[home].busy = True
    return admin_consumer, channel


def is_confirmed(channel: Channel) -> bool:
    return channel.confirms is not None and channel.confirms.sent == 1


@pytest.mark.parametrize("is_shipped", [False, True])
def test_a_move_within_a_group_is_there_whole_or_not_at_all_when_its_home_dies(
    cluster: CoreCluster, is_shipped: bool
) -> None:
    home = next(name for name in ("b1", "b2", "b3") if name != cluster.root())
    client = cluster["s1"].connect()
    for queue in ("q", "r"):
        queue_at(client, queue, home, durable=True)
    wait_for_copy(cluster, "q")
    client.publish("", "q", b"0", PERSISTENT)
    cluster.settle()
    assert cluster[home].queue("q").log is cluster[home].queue("r").log
    admin_consumer, channel = begin_move(cluster, home, "r")
    assert not admin_consumer.holds()
    if is_shipped:
        cluster.advance_until(lambda: is_confirmed(channel))
    cluster[home].kill()
    wait_for_new_home(cluster, "q", home)
    found = (drain(client, "q"), drain(client, "r"))
    assert found == (([], [b"0"]) if is_shipped else ([b"0"], []))


@pytest.mark.parametrize("cut", [False, True])
def test_a_message_is_moved_once_though_the_home_of_its_queue_changes_meanwhile(
    cluster: CoreCluster, cut: bool
) -> None:
    home, other = [name for name in ("b1", "b2", "b3") if name != cluster.root()]
    client = cluster["s1"].connect()
    queue_at(client, "q", home, durable=True)
    queue_at(client, "r", other, durable=True)
    wait_for_copy(cluster, "q")
    wait_for_copy(cluster, "r")
    for body in (b"0", b"1"):
        client.publish("", "q", body, PERSISTENT)
    cluster.settle()
    admin_consumer, channel = begin_move(cluster, home, "r")
    assert admin_consumer.holds()
    leave(cluster, home, cut)
    cluster.advance_until(lambda: is_confirmed(channel))
    admin_consumer.done()
    admin_consumer.end()
    cluster[home].busy = True
    cluster.settle()
    assert (drain(client, "q"), drain(client, "r")) == ([b"1"], [b"0"])


def test_a_message_is_moved_once_though_the_home_that_it_goes_to_dies(
    cluster: CoreCluster,
) -> None:
    home, other = [name for name in ("b1", "b2", "b3") if name != cluster.root()]
    client = cluster["s1"].connect()
    queue_at(client, "q", home, durable=True)
    queue_at(client, "r", other, durable=True)
    wait_for_copy(cluster, "q")
    wait_for_copy(cluster, "r")
    client.publish("", "q", b"0", PERSISTENT)
    cluster.settle()
    admin_consumer, channel = begin_move(cluster, home, "r")
    cluster[other].kill()
    wait_for_new_home(cluster, "r", other)
    cluster.advance_until(lambda: is_confirmed(channel))
    admin_consumer.done()
    admin_consumer.end()
    cluster[home].busy = True
    cluster.settle()
    assert (drain(client, "q"), drain(client, "r")) == ([], [b"0"])


# --- single messages, from the middle


@pytest.mark.parametrize("is_shipped", [False, True])
def test_a_dropped_message_is_gone_at_the_next_home_once_that_is_confirmed(
    cluster: CoreCluster, is_shipped: bool
) -> None:
    home = next(name for name in ("b1", "b2", "b3") if name != cluster.root())
    client = cluster["s1"].connect()
    queue_at(client, "q", home, durable=True)
    wait_for_copy(cluster, "q")
    for body in (b"0", b"1", b"2"):
        client.publish("", "q", body, PERSISTENT)
    cluster.settle()
    queue = cluster[home].queue("q")
    index = queue.lane.resident()[1].index
    channel = Channel(cluster[home].connect().connection, 2)
    admin_consumer = AdminConsumer(cluster[home].broker, "drops messages")
    assert admin_consumer.take_this(queue, index) is not None
    admin_consumer.drop(channel)
    cluster[home].busy = True
    if is_shipped:
        cluster.advance_until(lambda: is_confirmed(channel))
    cluster[home].kill()
    wait_for_new_home(cluster, "q", home)
    assert drain(client, "q") == ([b"0", b"2"] if is_shipped else [b"0", b"1", b"2"])


def test_a_message_from_the_middle_is_moved_once_though_its_home_changes_meanwhile(
    cluster: CoreCluster,
) -> None:
    home = next(name for name in ("b1", "b2", "b3") if name != cluster.root())
    other = next(name for name in ("b1", "b2", "b3") if name != home)
    client = cluster["s1"].connect()
    queue_at(client, "q", home, durable=True)
    queue_at(client, "r", other, durable=True)
    wait_for_copy(cluster, "q")
    for body in (b"0", b"1", b"2"):
        client.publish("", "q", body, PERSISTENT)
    cluster.settle()
    queue = cluster[home].queue("q")
    channel = Channel(cluster[home].connect().connection, 2)
    admin_consumer = AdminConsumer(cluster[home].broker, "moves messages")
    message = admin_consumer.take_this(queue, queue.lane.resident()[1].index)
    assert message is not None
    assert admin_consumer.move(message, cluster[home].queue("r"), channel)
    cluster[home].busy = True
    leave(cluster, home, cut=False)
    cluster.advance_until(lambda: is_confirmed(channel))
    admin_consumer.done()
    admin_consumer.end()
    cluster[home].busy = True
    cluster.settle()
    assert (sorted(drain(client, "q")), drain(client, "r")) == ([b"0", b"2"], [b"1"])
