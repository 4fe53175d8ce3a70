"""What applications hold and have settled survives a broken link (A2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicNack,
    BasicRecover,
    ChannelClose,
    ChannelCloseOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.broker.queue.queue import Queue
from rhizome.cluster.home.detached_sessions import PARK_MS, TURN_MS
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, Member, make_cluster
from tests.unit.cluster.node.held_standby import Standby
from tests.unit.cluster.node.small_cluster import PERSISTENT, bind, drain, exchange, queue_at

EDGES = ("b2", "s1")
HOME = "b1"


@pytest.fixture
def cluster() -> CoreCluster:
    # Links are cut for long here, and homes have to stay where they are.
    return make_cluster(3, 1, copies=1, unlinked_patience_ms=0)


def bodies_of(deliveries: list[Content]) -> list[bytes]:
    return [each.body for each in deliveries]


def home_queue(cluster: CoreCluster, name: str = "q") -> Queue:
    return cluster[HOME].queue(name)


def publish_all(client: CoreClient, count: int, name: str = "q", first: int = 0) -> None:
    for number in range(first, first + count):
        client.publish("", name, b"%d" % number, PERSISTENT)


def reconnect(cluster: CoreCluster) -> None:
    cluster.heal()
    cluster.advance_until_ready()


def consumer_of(cluster: CoreCluster, at: str, count: int, prefetch: int = 0) -> CoreClient:
    """A consumer that holds some messages."""
    client = cluster[at].connect()
    queue_at(client, "q", HOME, durable=True)
    publish_all(client, count)
    client.prefetch(prefetch)
    client.consume("q", "tag")
    return client


def run_alone(member: Member) -> None:
    """Let one broker work; what it sends stays under way."""
    member.busy = True
    while member.turn():
        pass


# --- what is held


@pytest.mark.parametrize("at", EDGES)
def test_what_is_held_when_the_link_breaks_is_held_when_it_is_back(
    cluster: CoreCluster, at: str
) -> None:
    client = consumer_of(cluster, at, 5, prefetch=3)
    held = client.deliveries()
    assert bodies_of(held) == [b"0", b"1", b"2"]
    cluster.cut(at, HOME)
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (3, 2)
    reconnect(cluster)
    assert client.deliveries() == []
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (3, 2)
    client.send(BasicAck(held[1].tag))
    [more] = client.deliveries()
    assert (more.body, more.redelivered) == (b"3", False)
    client.send(BasicAck(more.tag, multiple=True))
    assert bodies_of(client.deliveries()) == [b"4"]
    assert home_queue(cluster).unacked == 1


@pytest.mark.parametrize("at", EDGES)
def test_held_messages_are_nobody_elses_while_their_edge_is_away(
    cluster: CoreCluster, at: str
) -> None:
    client = consumer_of(cluster, at, 3)
    assert len(client.deliveries()) == 3
    cluster.cut(at, HOME)
    other = cluster[HOME].connect()
    other.consume("q")
    cluster.advance(PARK_MS // 2)
    assert other.deliveries() == []


def test_several_breaks_in_a_row_change_nothing(cluster: CoreCluster) -> None:
    client = consumer_of(cluster, "b2", 4)
    held = client.deliveries()
    for each in held:
        cluster.cut("b2", HOME)
        cluster.advance(200)
        reconnect(cluster)
        client.send(BasicAck(each.tag))
        assert client.deliveries() == []
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (0, 0)


def test_pulled_and_cancelled_hold_what_they_hold(cluster: CoreCluster) -> None:
    client = consumer_of(cluster, "b2", 2)
    held = client.deliveries()
    client.call(BasicCancel("tag"), BasicCancelOk)
    publish_all(client, 1, first=2)
    pulled = client.get("q", no_ack=False)
    assert pulled is not None
    cluster.cut("b2", HOME)
    reconnect(cluster)
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (3, 0)
    client.send(BasicAck(held[0].tag), BasicAck(pulled.tag))
    assert home_queue(cluster).unacked == 1
    client.send(BasicNack(held[1].tag, False, True))
    assert drain(client, "q") == [b"1"]


def test_delivery_that_was_lost_with_the_link_comes_as_if_for_the_first_time(
    cluster: CoreCluster,
) -> None:
    client = consumer_of(cluster, "b2", 0)
    publisher = cluster[HOME].connect()
    publisher.connection.receive(publisher.published("", "q", b"lost", PERSISTENT))
    run_alone(cluster[HOME])
    assert home_queue(cluster).unacked == 1
    for end in cluster["b2"].ends:
        end.incoming.clear()
    cluster.cut("b2", HOME)
    assert client.deliveries() == []
    reconnect(cluster)
    [delivery] = client.deliveries()
    assert (delivery.body, delivery.redelivered) == (b"lost", False)


def test_two_queues_of_a_group_that_share_messages_are_told_apart(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    for name in ("one", "two"):
        bind(client, queue_at(client, name, HOME, durable=True), "amq.fanout")
        client.consume(name, name)
    client.publish("amq.fanout", "", b"m", PERSISTENT)
    held = client.deliveries()
    assert len(held) == 2
    cluster.cut("b2", HOME)
    client.send(BasicAck(held[0].tag))
    reconnect(cluster)
    counts = {name: home_queue(cluster, name).unacked for name in ("one", "two")}
    assert isinstance(held[0].method, BasicDeliver)
    acked = held[0].method.consumer_tag
    assert counts == {name: int(name != acked) for name in ("one", "two")}
    client.send(BasicAck(held[1].tag))
    assert [home_queue(cluster, name).unacked for name in ("one", "two")] == [0, 0]
    assert client.deliveries() == []


@pytest.mark.parametrize("at", EDGES)
def test_reader_of_a_stream_goes_on_where_it_was(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", HOME, durable=True, x_queue_type="stream")
    publish_all(client, 5)
    client.prefetch(4)
    client.call(BasicConsume("q", "tag", arguments={"x-stream-offset": "first"}), BasicConsumeOk)
    held = client.deliveries()
    assert bodies_of(held) == [b"0", b"1", b"2", b"3"]
    client.send(BasicAck(held[0].tag))
    assert bodies_of(client.deliveries()) == [b"4"]
    cluster.cut(at, HOME)
    client.send(BasicAck(held[1].tag))
    publish_all(cluster["b3"].connect(), 3, first=5)
    reconnect(cluster)
    assert bodies_of(client.deliveries()) == [b"5"]
    client.send(BasicAck(0, multiple=True))
    assert bodies_of(client.deliveries()) == [b"6", b"7"]
    client.send(BasicAck(0, multiple=True))
    assert home_queue(cluster).unacked == 0


# --- what was settled


@pytest.mark.parametrize("at", EDGES)
def test_ack_given_while_the_link_is_down_counts(cluster: CoreCluster, at: str) -> None:
    client = consumer_of(cluster, at, 3)
    held = client.deliveries()
    cluster.cut(at, HOME)
    client.send(BasicAck(held[2].tag, multiple=True))
    reconnect(cluster)
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (0, 0)
    assert client.deliveries() == []


def test_ack_that_was_lost_with_the_link_counts(cluster: CoreCluster) -> None:
    client = consumer_of(cluster, "b2", 2)
    held = client.deliveries()
    client.connection.receive(method_frame(1, BasicAck(held[0].tag)))
    run_alone(cluster["b2"])
    for end in cluster[HOME].ends:
        end.incoming.clear()
    cluster.cut("b2", HOME)
    reconnect(cluster)
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (1, 0)
    assert client.deliveries() == []


def test_automatic_ack_that_was_lost_with_the_link_counts(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "q", HOME, durable=True)
    client.consume("q", no_ack=True)
    publisher = cluster[HOME].connect()
    publisher.connection.receive(publisher.published("", "q", b"m", PERSISTENT))
    run_alone(cluster[HOME])
    run_alone(cluster["b2"])
    assert client.bodies() == [b"m"]
    for end in cluster[HOME].ends:
        end.incoming.clear()
    cluster.cut("b2", HOME)
    reconnect(cluster)
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (0, 0)
    assert client.bodies() == []


def test_reject_and_requeue_while_the_link_is_down_are_carried_out(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    exchange(client, "dlx", "fanout")
    bind(client, queue_at(client, "dead", "b3"), "dlx")
    queue_at(client, "q", HOME, durable=True, x_dead_letter_exchange="dlx")
    publish_all(client, 3)
    client.prefetch(3)
    client.consume("q")
    held = client.deliveries()
    cluster.cut("b2", HOME)
    client.send(BasicNack(held[0].tag, False, False))
    client.send(BasicNack(held[1].tag, False, True))
    reconnect(cluster)
    [again] = client.deliveries()
    assert (again.body, again.redelivered) == (b"1", True)
    assert drain(client, "dead") == [b"0"]
    assert home_queue(cluster).unacked == 2


def test_channel_closed_while_the_link_is_down_gives_back_what_it_held(
    cluster: CoreCluster,
) -> None:
    client, other = consumer_of(cluster, "b2", 2), cluster["b3"].connect()
    held = client.deliveries()
    cluster.cut("b2", HOME)
    client.send(BasicAck(held[0].tag))
    client.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    reconnect(cluster)
    other.consume("q")
    [again] = other.deliveries()
    assert (again.body, again.redelivered) == (b"1", True)


def test_recover_while_the_link_is_down_brings_all_again(cluster: CoreCluster) -> None:
    client = consumer_of(cluster, "b2", 2)
    assert len(client.deliveries()) == 2
    cluster.cut("b2", HOME)
    client.send(BasicRecover(True))
    reconnect(cluster)
    again = client.deliveries()
    assert [(each.body, each.redelivered) for each in again] == [(b"0", True), (b"1", True)]


def test_commit_of_settlements_waits_for_the_link(cluster: CoreCluster) -> None:
    client = consumer_of(cluster, "b2", 2)
    held = client.deliveries()
    client.call(TxSelect(), TxSelectOk)
    client.send(BasicAck(held[0].tag))
    cluster.cut("b2", HOME)
    client.send(TxCommit())
    assert client.take() == []
    reconnect(cluster)
    client.expect(TxCommitOk)
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (1, 0)


def test_settlements_are_kept_until_the_home_has_them_safe_and_no_longer(
    cluster: CoreCluster,
) -> None:
    client = consumer_of(cluster, "b2", 3)
    held = client.deliveries()
    group = cluster["b2"].node.edge_group(cluster["b2"].queue("q").definition.group)
    client.connection.receive(method_frame(1, BasicAck(held[0].tag)))
    run_alone(cluster["b2"])
    assert len(group.kept) == 1
    run_alone(cluster[HOME])
    run_alone(cluster["b2"])
    assert group.kept == []
    cluster.settle()


@pytest.mark.parametrize("at", EDGES)
@pytest.mark.parametrize("late", ["way to the copy", "disk of the copy", "disk of the home"])
def test_an_ack_is_kept_until_it_is_safe_at_the_home_and_its_copies(late: str, at: str) -> None:
    cluster = make_cluster(3, 1)
    client = consumer_of(cluster, at, 3)
    standby = Standby(cluster, "q", "b3")
    held = client.deliveries()
    group = cluster[at].node.edge_group(standby.number)
    slow = cluster[HOME if late == "disk of the home" else standby.name]
    if late == "way to the copy":
        standby.hold()
    else:
        slow.hold_disk()
    client.send(BasicAck(held[0].tag))
    assert home_queue(cluster).unacked == 2, "the home has it"
    assert len(group.kept) == 1
    slow.let_disk_go()
    standby.let_go()
    assert group.kept == []


# --- incarnations


def test_numbers_of_an_incarnation_are_forgotten_when_another_follows(
    cluster: CoreCluster,
) -> None:
    client = consumer_of(cluster, "b2", 3)
    log = cluster[HOME].queue("q").log
    origin = int(cluster["b2"].broker.incarnation, 16)
    assert log.origins[origin] == 3
    client.deliveries()
    cluster["b2"].kill()
    cluster["b2"].start()
    cluster.advance_until_ready()
    assert origin not in log.origins
    again = cluster["b2"].connect()
    publish_all(again, 2, first=3)
    assert log.origins[int(cluster["b2"].broker.incarnation, 16)] == 2
    assert drain(again, "q") == [b"%d" % number for number in range(5)]


def test_retired_incarnation_is_not_attached(cluster: CoreCluster) -> None:
    queue_at(cluster["s1"].connect(), "q", HOME)
    group = cluster["s1"].queue("q").definition.group
    tenure = cluster[HOME].node.tenures.tenures[group]
    assert "s1" in tenure.attached()
    cluster.cut("s1", HOME)
    registry = cluster[HOME].node.state.registry
    registry.put(replace(registry.get("s1"), incarnation=""))
    cluster.heal()
    cluster.advance_until_ready()
    assert "s1" not in tenure.attached()


# --- what is given up


def test_edge_that_stays_away_loses_what_it_holds(cluster: CoreCluster) -> None:
    client, other = consumer_of(cluster, "b2", 2), cluster["b3"].connect()
    held = client.deliveries()
    other.consume("q")
    cluster.cut("b2", HOME)
    cluster.advance(PARK_MS + 100)
    again = other.deliveries()
    assert [(each.body, each.redelivered) for each in again] == [(b"0", True), (b"1", True)]
    reconnect(cluster)
    # They are somebody else's now, and acks of them mean nothing.
    client.send(BasicAck(held[1].tag, multiple=True))
    assert home_queue(cluster).unacked == 2
    other.send(BasicAck(again[1].tag, multiple=True))
    assert home_queue(cluster).unacked == 0


def test_late_ack_of_what_is_ready_again_counts(cluster: CoreCluster) -> None:
    client = consumer_of(cluster, "b2", 2)
    held = client.deliveries()
    cluster.cut("b2", HOME)
    cluster.advance(PARK_MS + 100)
    assert home_queue(cluster).ready == 2
    client.send(BasicAck(held[0].tag))
    reconnect(cluster)
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (1, 0)
    assert client.deliveries() == []


@pytest.mark.parametrize("at", EDGES)
def test_edge_that_restarts_gives_up_what_it_held_at_once(cluster: CoreCluster, at: str) -> None:
    client = consumer_of(cluster, at, 2)
    assert len(client.deliveries()) == 2
    cluster[at].kill()
    cluster.advance(500)
    assert home_queue(cluster).unacked == 2
    cluster[at].start()
    cluster.advance_until_ready()
    assert (home_queue(cluster).unacked, home_queue(cluster).ready) == (0, 2)


def test_held_message_of_a_deleted_queue_is_void(cluster: CoreCluster) -> None:
    client, other = consumer_of(cluster, "b2", 1), cluster[HOME].connect()
    [held] = client.deliveries()
    cluster.cut("b2", HOME)
    other.send(QueueDelete("q"))
    assert not cluster[HOME].has_queue("q")
    reconnect(cluster)
    other.expect(QueueDeleteOk)
    queue_at(other, "q", HOME, durable=True)
    publish_all(other, 1, first=7)
    client.send(BasicAck(held.tag))
    assert not client.closed
    assert drain(other, "q") == [b"7"]


def test_an_edge_without_a_lease_shows_nothing(cluster: CoreCluster) -> None:
    """A home that is new doesn't wait for it (A2), and it can't know of that one."""
    client = cluster["s1"].connect()
    queue_at(client, "q", "b1", durable=True)
    client.consume("q")
    puller = cluster["s1"].connect()
    queue_at(puller, "other", "b1", durable=True)
    cluster.settle()
    node = cluster["s1"].node
    node._set_isolated(True)
    publisher = cluster["b1"].connect()
    publisher.publish("", "q", b"x")
    publisher.publish("", "other", b"y")
    puller.send(BasicGet("other"))
    cluster.settle()
    assert client.deliveries() == []
    assert puller.take() == []
    node._set_isolated(False)
    cluster.advance(100)
    [shown] = client.deliveries()
    assert (shown.body, shown.redelivered) == (b"x", False)
    [pulled] = puller.take()
    assert isinstance(pulled, Content)
    assert pulled.body == b"y"


# --- whose turn it is


@pytest.fixture
def turns(cluster: CoreCluster) -> tuple[CoreClient, CoreClient]:
    """Two consumers of a queue that has one at a time; the first has got something."""
    active, waiting = cluster["s1"].connect(), cluster["b2"].connect()
    queue_at(active, "one", "b1", durable=True, x_single_active_consumer=True)
    active.consume("one")
    waiting.consume("one")
    active.publish("", "one", b"1")
    assert [each.body for each in active.deliveries()] == [b"1"]
    return active, waiting


def test_whose_turn_it_is_outlives_the_link(
    cluster: CoreCluster, turns: tuple[CoreClient, CoreClient]
) -> None:
    active, waiting = turns
    cluster.cut("s1", "b1")
    waiting.publish("", "one", b"2")
    assert waiting.deliveries() == []
    cluster.heal()
    cluster.advance_until_ready()
    assert [each.body for each in active.deliveries()] == [b"2"]
    assert waiting.deliveries() == []


def test_the_next_turn_begins_if_the_consumer_left_meanwhile(
    cluster: CoreCluster, turns: tuple[CoreClient, CoreClient]
) -> None:
    active, waiting = turns
    cluster.cut("s1", "b1")
    waiting.publish("", "one", b"2")
    active.close_socket()
    assert waiting.deliveries() == []
    cluster.heal()
    cluster.advance_until_ready()
    assert [each.body for each in waiting.deliveries()] == [b"1", b"2"]


def test_the_next_turn_begins_when_the_broker_stays_away(
    cluster: CoreCluster, turns: tuple[CoreClient, CoreClient]
) -> None:
    _, waiting = turns
    cluster["s1"].kill()
    waiting.publish("", "one", b"2")
    assert waiting.deliveries() == []
    cluster.advance(TURN_MS // 2)
    assert waiting.deliveries() == []
    cluster.advance(TURN_MS)
    assert bodies_of(waiting.deliveries()) == [b"2"]


@pytest.mark.parametrize("timeout_ms", [2_000, 2 * PARK_MS])
def test_a_queue_may_say_how_long_it_waits_for_absent_consumers(
    cluster: CoreCluster, timeout_ms: int
) -> None:
    publisher = cluster["b3"].connect()
    queue_at(publisher, "own", HOME, x_consumer_disconnected_timeout=timeout_ms)
    queue_at(publisher, "usual", HOME)
    away = cluster["b2"].connect()
    for queue in ("own", "usual"):
        away.consume(queue, queue)
        publisher.publish("", queue, queue.encode())
    cluster.settle()
    assert sorted(bodies_of(away.deliveries())) == [b"own", b"usual"]
    for queue in ("own", "usual"):
        publisher.consume(queue, queue)
    cluster.cut("b2", HOME)
    order = sorted([(timeout_ms, b"own"), (PARK_MS, b"usual")])
    waited = 0
    for until_ms, body in order:
        for _ in range((until_ms - 500 - waited) // 500):
            cluster.advance(500)
        assert publisher.deliveries() == []
        for _ in range(4):
            cluster.advance(500)
        (again,) = publisher.deliveries()
        assert (again.body, again.redelivered) == (body, True)
        waited = until_ms + 1_500
    reconnect(cluster)
    assert away.deliveries() == []
