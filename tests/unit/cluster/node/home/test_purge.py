"""What a home says of a whole queue (purged, empty, unused) is so, or it says nothing (R9)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    ChannelClose,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.broker.metadata.metadata_commands import DeleteQueue
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    drain,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def isolate(cluster: CoreCluster, name: str, but: tuple[str, ...] = ()) -> None:
    """Cut a broker off from the others, until it has no lease; ``but`` are in its part."""
    for each in cluster.members:
        for one in (name, *but):
            if each not in (name, *but):
                cluster.cut(one, each)
    cluster.advance_until(lambda: cluster[name].node.isolated)


def others(cluster: CoreCluster, name: str) -> list[str]:
    return [each for each in ("b1", "b2", "b3") if each != name]


def has_home(cluster: CoreCluster, names: list[str], queue: str) -> bool:
    homes = [
        cluster[each].queue(queue) for each in names if cluster[each].queue(queue).away is None
    ]
    return len(homes) == 1 and not homes[0].log.still


def filled(cluster: CoreCluster, client: CoreClient, home: str) -> None:
    queue_at(client, "q", home, durable=True)
    wait_for_copy(cluster, "q")
    for body in (b"0", b"1", b"2"):
        client.publish("", "q", body, PERSISTENT)
    cluster.settle()


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("taken_over", [True, False])
def test_a_home_without_a_lease_answers_no_purge(
    cluster: CoreCluster, taken_over: bool, edge: bool
) -> None:
    """Another home may be serving what it would say to be gone."""
    old = cluster.root()
    rest = others(cluster, old)
    client = cluster["s1" if edge else old].connect()
    filled(cluster, client, old)
    isolate(cluster, old, ("s1",) if edge else ())
    client.take()
    client.send(QueuePurge("q"))
    cluster.advance(200)
    assert client.take() == []
    if taken_over:
        cluster.advance_until(lambda: has_home(cluster, rest, "q"))
        elsewhere = cluster[rest[0]].connect()
        message = elsewhere.get("q")
        assert message is not None
        assert message.body == b"0"
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: len(client.events[1]) > 0)
    assert client.expect(QueuePurgeOk).message_count == (2 if taken_over else 3)
    assert drain(client, "q") == []


@pytest.mark.parametrize("edge", [False, True])
def test_purge_ok_waits_for_the_copies(cluster: CoreCluster, edge: bool) -> None:
    """A takeover must not bring back what was said to be gone."""
    home = others(cluster, cluster.root())[0]
    client = cluster["s1" if edge else home].connect()
    filled(cluster, client, home)
    for other in others(cluster, home):
        cluster.cut(home, other)
    client.send(QueuePurge("q"))
    assert not cluster[home].node.isolated
    assert client.take() == []
    cluster[home].kill()
    successor = wait_for_new_home(cluster, "q", home)
    if edge:
        cluster.advance_until(lambda: len(client.events[1]) > 0)
        assert client.expect(QueuePurgeOk).message_count == 3
    else:
        assert cluster[successor].queue("q").ready == 3


def test_a_replaced_home_has_its_purge_done_by_the_next(cluster: CoreCluster) -> None:
    """Also of what was published just before, which it brings to the next home itself (A1)."""
    home = others(cluster, cluster.root())[0]
    client = cluster[home].connect()
    client.confirm()
    filled(cluster, client, home)
    assert confirmed(client) == 3
    for other in others(cluster, home):
        cluster.cut(home, other)
    client.publish("", "q", b"3", PERSISTENT)
    client.send(QueuePurge("q"))
    cluster.advance_until(lambda: has_home(cluster, others(cluster, home), "q"))
    assert client.take() == []
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: len(client.events[1]) > 1)
    assert client.pick(QueuePurgeOk).message_count == 3
    assert confirmed(client) == 4
    assert drain(client, "q") == []


def test_a_purge_spares_what_is_held_at_brokers_that_have_not_attached(
    cluster: CoreCluster,
) -> None:
    """A2: until then a new home takes it for ready."""
    home = others(cluster, cluster.root())[0]
    holder = cluster["s1"].connect()
    filled(cluster, holder, home)
    holder.prefetch(1)
    holder.consume("q")
    [held] = holder.deliveries()
    askers = [cluster[each].connect() for each in others(cluster, home)]
    cluster[home].kill()
    for asker in askers:
        asker.send(QueuePurge("q"))
    wait_for_new_home(cluster, "q", home)
    cluster.advance_until(lambda: all(len(asker.events[1]) > 0 for asker in askers))
    assert sum(asker.expect(QueuePurgeOk).message_count for asker in askers) == 2
    holder.send(BasicNack(held.method.delivery_tag, False, True))  # type: ignore[attr-defined]
    cluster.settle()
    assert holder.bodies() == [b"0"]


@pytest.mark.parametrize("edge", [False, True])
def test_a_home_without_a_lease_doesnt_say_that_a_queue_is_empty(
    cluster: CoreCluster, edge: bool
) -> None:
    """The next home has got something since: it would be deleted with the queue."""
    old = cluster.root()
    rest = others(cluster, old)
    client = cluster["s1" if edge else old].connect()
    getter = cluster["s1" if edge else old].connect()
    queue_at(client, "q", old, durable=True)
    wait_for_copy(cluster, "q")
    isolate(cluster, old, ("s1",) if edge else ())
    client.take()
    client.send(QueueDelete("q", if_empty=True))
    getter.send(BasicGet("q", True))
    cluster.advance(200)
    assert client.take() == []
    assert getter.take() == []
    cluster.advance_until(lambda: has_home(cluster, rest, "q"))
    publisher = cluster[rest[0]].connect()
    for body in (b"0", b"1"):
        publisher.publish("", "q", body, PERSISTENT)
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: len(client.events[1]) > 0 and len(getter.events[1]) > 0)
    close = client.expect(ChannelClose)
    assert (close.reply_code, "not empty" in close.reply_text) == (406, True)
    assert [event.body for event in getter.take()] == [b"0"]  # type: ignore[union-attr]


def test_an_unconditional_delete_waits_for_no_lease(cluster: CoreCluster) -> None:
    """It is the cluster that deletes; a queue whose home is gone must be deletable."""
    home = others(cluster, cluster.root())[0]
    client = cluster[home].connect()
    filled(cluster, client, home)
    cluster[home].node._set_isolated(True)
    assert client.call(QueueDelete("q"), QueueDeleteOk).message_count == 3


def test_a_pull_whose_queue_is_deleted_while_it_waits_is_refused(cluster: CoreCluster) -> None:
    home = others(cluster, cluster.root())[0]
    client, other = cluster[home].connect(), cluster[home].connect()
    filled(cluster, client, home)
    queue_at(client, "other", home, durable=True)
    cluster.settle()
    node = cluster[home].node
    node._set_isolated(True)
    client.send(BasicGet("q", True))
    other.send(BasicGet("other", True))
    queue = cluster[home].queue("q")
    cluster["b1"].node.propose(DeleteQueue("/", "q", queue.definition.id), None)
    cluster["b1"].busy = True
    cluster.settle()
    node._set_isolated(False)
    cluster.advance(100)
    assert client.expect(ChannelClose).reply_code == 404
    other.expect(BasicGetEmpty)


def test_nothing_is_got_for_a_client_that_is_gone(cluster: CoreCluster) -> None:
    """Its call waited at the home; a message that were got for it then would stay with nobody."""
    home = others(cluster, cluster.root())[0]
    publisher = cluster[home].connect()
    queue_at(publisher, "q", home, durable=True)
    wait_for_copy(cluster, "q")
    client = cluster["s1"].connect()
    for other in others(cluster, home):
        cluster.cut(home, other)
    publisher.publish("", "q", b"0", PERSISTENT)
    client.send(BasicGet("q"))
    client.close_socket()
    cluster.settle()
    cluster.heal()
    cluster.advance(500)
    queue = cluster[home].queue("q")
    assert queue.away is None
    assert (queue.ready, queue.unacked) == (1, 0)
