"""What applications see when brokers and links fail: pauses, and no errors (A1 to A3, R9, R10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    ChannelClose,
    ConnectionBlocked,
    ConnectionUnblocked,
    ExchangeDeclare,
    ExchangeDeclareOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from rhizome.cluster.edge.channel_session import WINDOW_BYTES
from rhizome.cluster.edge.forward_queue import PENDING_BYTES_MAX, ForwardQueue
from rhizome.cluster.protocol.catalogue import ANSWER
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.held_standby import leads_to
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    drain,
    private_queue,
    queue_at,
    refused,
)

EDGES = ("b2", "s1")


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2, copies=1)


def restart(cluster: CoreCluster, name: str, down_ms: int = 1_000) -> None:
    cluster[name].kill()
    cluster.advance(down_ms)
    cluster[name].start()
    cluster.advance_until_ready()


def number_bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def publish_all(client: CoreClient, queue: str, bodies: list[bytes]) -> None:
    parts = [client.published("", queue, body, PERSISTENT) for body in bodies]
    client.send_bytes(b"".join(parts))


def way_of(cluster: CoreCluster, edge: str, queue: str) -> ForwardQueue:
    """The way of a queue's group, at an edge."""
    away = cluster[edge].queue(queue).away
    assert away is not None
    way = away.forward()
    assert isinstance(way, ForwardQueue)
    return way


def is_quiet(client: CoreClient) -> bool:
    """No error has come on the client's channel or connection."""
    events = client.events[1] + client.events[0]
    return not client.closed and not any(
        isinstance(event, (ChannelClose, BasicCancel)) for event in events
    )


# --- the home


@pytest.mark.parametrize("at", EDGES)
def test_home_that_restarts_costs_a_pause(cluster: CoreCluster, at: str) -> None:
    publisher, consumer = cluster[at].connect(), cluster[at].connect()
    queue_at(publisher, "q", "b1", durable=True)
    publisher.confirm()
    consumer.prefetch(2)
    consumer.consume("q")
    publish_all(publisher, "q", number_bodies(5))
    held = consumer.deliveries()
    assert [each.body for each in held] == [b"0", b"1"]
    cluster["b1"].kill()
    for body in (b"5", b"6"):
        publisher.publish("", "q", body, PERSISTENT)
    assert confirmed(publisher) == 5
    cluster.advance(1_000)
    cluster["b1"].start()
    cluster.advance_until_ready()
    assert confirmed(publisher) == 7
    # What was held is held still: nothing comes again, and acks of it count.
    assert consumer.deliveries() == []
    assert cluster["b1"].queue("q").unacked == 2
    consumer.send(BasicAck(held[1].tag, multiple=True))
    seen: list[bytes] = []
    while deliveries := consumer.deliveries():
        assert not any(each.redelivered for each in deliveries)
        seen.extend([each.body for each in deliveries])
        consumer.send(BasicAck(deliveries[-1].tag, multiple=True))
    assert seen == number_bodies(7)[2:]
    assert is_quiet(consumer)
    assert is_quiet(publisher)
    assert cluster["b1"].queue("q").ready == 0


@pytest.mark.parametrize("at", EDGES)
def test_acks_of_void_deliveries_are_swallowed_one_by_one(cluster: CoreCluster, at: str) -> None:
    consumer = cluster[at].connect()
    queue_at(consumer, "q", "b1", durable=True)
    for body in number_bodies(3):
        consumer.publish("", "q", body)
    consumer.consume("q")
    held = consumer.deliveries()
    restart(cluster, "b1")
    # They were transient, and are gone with their home's memory.
    for delivery in held:
        consumer.send(BasicAck(delivery.tag))
    assert consumer.deliveries() == []
    consumer.publish("", "q", b"after")
    [again] = consumer.deliveries()
    assert (again.body, again.redelivered) == (b"after", False)
    consumer.send(BasicAck(again.tag))
    assert is_quiet(consumer)
    assert cluster["b1"].queue("q").unacked == 0


@pytest.mark.parametrize("at", EDGES)
def test_calls_wait_for_a_home_that_comes_back(cluster: CoreCluster, at: str) -> None:
    clients = [cluster[at].connect() for _ in range(3)]
    for name in ("pulled", "consumed"):
        queue_at(clients[0], name, "b1", durable=True)
        publish_all(clients[0], name, number_bodies(3))
    cluster["b1"].kill()
    clients[0].send(BasicGet("pulled", True))
    clients[1].send(QueueDeclare("pulled", passive=True))
    clients[2].send(BasicConsume("consumed", "late"))
    assert [client.take() for client in clients] == [[], [], []]
    cluster["b1"].start()
    cluster.advance_until_ready()
    [pulled] = clients[0].take()
    assert isinstance(pulled, Content)
    assert pulled.body == b"0"
    clients[1].expect(QueueDeclareOk)
    assert clients[2].expect(BasicConsumeOk).consumer_tag == "late"
    assert clients[2].bodies() == number_bodies(3)


def test_call_to_a_home_that_stays_away_fails_with_its_name(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "q", "b3")
    cluster["b3"].kill()
    client.send(BasicGet("q", True))
    cluster.advance(6_000)
    close = client.expect(ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 70)
    assert "home broker 'b3' of queue 'q'" in close.reply_text


def test_queue_of_a_dead_home_can_be_deleted_and_releases_its_publishers(
    cluster: CoreCluster,
) -> None:
    client, other = cluster["b2"].connect(), cluster["s1"].connect()
    queue_at(client, "q", "b3", durable=True)
    client.confirm()
    way = way_of(cluster, "b2", "q")
    cluster["b3"].kill()
    publish_all(client, "q", number_bodies(3))
    assert confirmed(client) == 0
    cluster.advance(500)
    other.send(QueueDelete("q"))
    cluster.advance_until(lambda: other.events[1] != [], 10_000)
    other.expect(QueueDeleteOk)
    assert confirmed(client) == 3
    assert way.pending_bytes == 0


# --- the edge


@pytest.mark.parametrize("at", EDGES)
def test_home_takes_back_what_a_dead_edge_held(cluster: CoreCluster, at: str) -> None:
    consumer, other = cluster[at].connect(), cluster["b3"].connect()
    queue_at(consumer, "q", "b1")
    publish_all(consumer, "q", number_bodies(3))
    consumer.prefetch(2)
    consumer.consume("q")
    assert len(consumer.deliveries()) == 2
    cluster[at].kill()
    cluster.advance_until(lambda: cluster["b1"].queue("q").ready == 3)
    other.consume("q")
    again = other.deliveries()
    assert [(each.body, each.redelivered) for each in again] == [
        (b"0", True),
        (b"1", True),
        (b"2", False),
    ]


# --- the link


def test_link_that_breaks_loses_and_doubles_nothing_published(cluster: CoreCluster) -> None:
    publisher = cluster["b2"].connect()
    queue_at(publisher, "q", "b3", durable=True)
    publisher.confirm()
    sent = 0
    for _ in range(5):
        publish_all(publisher, "q", [b"%d" % number for number in range(sent, sent + 10)])
        sent += 10
        cluster.cut("b2", "b3")
        publish_all(publisher, "q", [b"%d" % number for number in range(sent, sent + 10)])
        sent += 10
        cluster.heal()
        cluster.advance_until_ready()
    assert confirmed(publisher) == sent
    assert drain(cluster["b3"].connect(), "q") == number_bodies(sent)


def test_consumer_goes_on_over_a_new_link(cluster: CoreCluster) -> None:
    consumer, publisher = cluster["b2"].connect(), cluster["b3"].connect()
    queue_at(publisher, "q", "b3")
    consumer.consume("q", "same")
    cluster.cut("b2", "b3")
    publisher.publish("", "q", b"meanwhile")
    assert cluster["b3"].queue("q").consumer_count == 0
    cluster.heal()
    cluster.advance_until_ready()
    publisher.publish("", "q", b"after")
    assert consumer.bodies() == [b"meanwhile", b"after"]
    assert is_quiet(consumer)


def test_auto_delete_queue_outlives_a_broken_link(cluster: CoreCluster) -> None:
    consumer, publisher = cluster["b2"].connect(), cluster["b3"].connect()
    method = QueueDeclare("q", auto_delete=True, arguments={"x-group": "b3"})
    consumer.call(method, QueueDeclareOk)
    consumer.consume("q")
    cluster.cut("b2", "b3")
    cluster.advance(500)
    cluster.heal()
    cluster.advance_until_ready()
    publisher.publish("", "q", b"m")
    assert consumer.bodies() == [b"m"]
    assert is_quiet(consumer)
    consumer.close_socket()
    assert not cluster["b1"].has_queue("q")


def test_auto_delete_queue_goes_with_the_broker_of_its_last_consumer(
    cluster: CoreCluster,
) -> None:
    consumer = cluster["s1"].connect()
    method = QueueDeclare("q", auto_delete=True, arguments={"x-group": "b3"})
    consumer.call(method, QueueDeclareOk)
    consumer.consume("q")
    cluster["s1"].kill()
    cluster.advance_until(lambda: not cluster["b1"].has_queue("q"), 60_000)


# --- the root


@pytest.mark.parametrize("at", ["s1", "other"])
def test_proposals_in_flight_when_the_root_dies_are_answered_once(
    cluster: CoreCluster, at: str
) -> None:
    root = cluster.root()
    edge = "s1" if at == "s1" else next(n for n in ("b1", "b2", "b3") if n != root)
    clients = [cluster[edge].connect() for _ in range(5)]
    cluster[root].kill()
    for number, client in enumerate(clients):
        client.send(QueueDeclare(f"q{number}", durable=True))
    assert all(client.take() == [] for client in clients)
    cluster.advance_until(lambda: all(client.events[1] for client in clients), 10_000)
    cluster.advance(3_000)
    for number, client in enumerate(clients):
        [answer] = client.take()
        assert isinstance(answer, QueueDeclareOk)
        assert answer.queue == f"q{number}"
    cluster[root].start()
    cluster.advance_until_ready()
    for member in cluster.running():
        assert all(member.has_queue(f"q{number}") for number in range(5))


def test_what_is_declared_while_the_root_hands_over_in_vain_is_answered(
    cluster: CoreCluster,
) -> None:
    root = cluster.root()
    heir, other = (name for name in ("b1", "b2", "b3") if name != root)
    clients = {name: cluster[name].connect() for name in (root, other, "s1")}
    cluster[root].node.consensus.transfer_root(heir, cluster[root].node.now_ms)
    cluster.cut(root, heir)
    for name, client in clients.items():
        client.send(QueueDeclare(f"of {name}", durable=True))
    cluster.advance(500)
    assert all(client.take() == [] for client in clients.values())
    cluster.advance(3_500)
    assert cluster.root() == root
    for name, client in clients.items():
        assert client.expect(QueueDeclareOk).queue == f"of {name}"


def test_minority_refuses_changes_and_blocks_publishers_until_it_heals(
    cluster: CoreCluster,
) -> None:
    root = cluster.root()
    lonely = next(name for name in ("b1", "b2", "b3") if name != root)
    client, publisher = cluster[lonely].connect(), cluster[lonely].connect()
    queue_at(client, "q", lonely, durable=True)
    publisher.confirm()
    for name in ("b1", "b2", "b3", "s1", "s2"):
        if name != lonely:
            cluster.cut(lonely, name)
    cluster.advance_until(lambda: cluster[lonely].node.isolated)
    publisher.publish("", "q", b"waits", PERSISTENT)
    assert f"broker '{lonely}' is isolated" in publisher.expect(ConnectionBlocked, 0).reason
    assert confirmed(publisher) == 0
    client.send(QueueDeclare("new"))
    cluster.advance(6_000)
    close = client.expect(ChannelClose)
    assert close.reply_code == 406
    assert f"broker '{lonely}' is isolated" in close.reply_text
    cluster.heal()
    cluster.advance_until_ready()
    publisher.expect(ConnectionUnblocked, 0)
    assert confirmed(publisher) == 1
    assert drain(cluster["s1"].connect(), "q") == [b"waits"]


# --- declares that conflict


def declares_of_queue() -> list[Method]:
    return [QueueDeclare("d", arguments={"x-max-length": length}) for length in (1, 2)]


def declares_of_exchange() -> list[Method]:
    return [ExchangeDeclare("d", kind) for kind in ("topic", "fanout")]


@pytest.mark.parametrize("declares", [declares_of_queue, declares_of_exchange])
def test_of_two_declares_at_once_one_wins_and_one_is_refused(
    cluster: CoreCluster, declares: Callable[[], list[Method]]
) -> None:
    clients = [cluster["b2"].connect(), cluster["s1"].connect()]
    for client, method in zip(clients, declares(), strict=True):
        client.connection.receive(method_frame(1, method))
    cluster["b2"].busy = cluster["s1"].busy = True
    cluster.settle()
    answers = [client.take()[0] for client in clients]
    [refusal] = [answer for answer in answers if isinstance(answer, ChannelClose)]
    assert refusal.reply_code == 406
    [accepted] = [answer for answer in answers if answer is not refusal]
    assert isinstance(accepted, (QueueDeclareOk, ExchangeDeclareOk))
    known = {each.broker.state.snapshot(transient=True) for each in cluster.running()}
    assert len(known) == 1, "all have the winner's"
    # Who declares it again as the winner did is welcome, and the loser's is refused anywhere.
    winner = answers.index(accepted)
    for at in ("b1", "b3"):
        client = cluster[at].connect()
        client.call(declares()[winner], type(accepted))
        assert refused(client, declares()[1 - winner])[0] == 406


# --- flow


def test_slow_application_costs_its_edge_one_window(cluster: CoreCluster) -> None:
    slow, fast = cluster["b2"].connect(), cluster["b2"].connect()
    publisher = cluster["b1"].connect()
    queue_at(publisher, "slow", "b1")
    queue_at(publisher, "fast", "b1")
    slow.consume("slow", no_ack=True)
    fast.consume("fast", no_ack=True)
    slow.stop_reading()
    body = b"x" * 100_000
    for _ in range(60):
        publisher.publish("", "slow", body)
        publisher.publish("", "fast", body)
    cluster.advance(500)
    assert len(fast.bodies()) == 60
    home = cluster["b1"].queue("slow")
    taken = 60 - home.ready
    assert 1 <= taken <= WINDOW_BYTES // len(body) + 2
    slow.go_on_reading()
    cluster.advance(100)
    assert len(slow.bodies()) == 60


def test_publisher_is_held_up_and_told_why_while_a_home_is_down(cluster: CoreCluster) -> None:
    publisher, other = cluster["b2"].connect(), cluster["b2"].connect()
    queue_at(publisher, "q", "b3", durable=True)
    queue_at(other, "near", "b2")
    publisher.confirm()
    cluster["b3"].kill()
    body = b"x" * 100_000
    count = PENDING_BYTES_MAX // len(body) + 20
    for _ in range(count):
        publisher.publish("", "q", body, PERSISTENT)
    way = way_of(cluster, "b2", "q")
    assert PENDING_BYTES_MAX < way.pending_bytes < PENDING_BYTES_MAX + 2 * len(body)
    assert not publisher.connection.wants_input()
    cluster.advance(2_000)
    assert "broker 'b3'" in publisher.expect(ConnectionBlocked, 0).reason
    other.publish("", "near", b"unhindered")
    assert drain(other, "near") == [b"unhindered"]
    cluster["b3"].start()
    cluster.advance_until_ready()
    cluster.advance(500)
    publisher.expect(ConnectionUnblocked, 0)
    assert confirmed(publisher) == count
    assert cluster["b3"].queue("q").ready == count
    assert way.pending_bytes == 0


def test_private_queue_is_gone_with_its_broker_and_costs_nobody(cluster: CoreCluster) -> None:
    owner, publisher = cluster["b3"].connect(), cluster["b2"].connect()
    queue = private_queue(owner)
    publisher.confirm()
    cluster["b3"].kill()
    publisher.publish("", queue, b"m")
    assert confirmed(publisher) == 1


def test_what_was_lost_with_the_memory_of_a_home_is_not_confirmed(cluster: CoreCluster) -> None:
    """The home has taken both, under consecutive numbers, and its disk has the second."""
    client = cluster["s1"].connect()
    queue_at(client, "q", "b1", durable=True)
    client.confirm()
    [end] = [each for each in cluster["b1"].ends if leads_to(each, "s1")]
    end.write = [].extend  # type: ignore[method-assign]
    client.publish("", "q", b"in memory")
    client.publish("", "q", b"on disk", PERSISTENT)
    cluster.settle()
    assert client.take() == []
    restart(cluster, "b1")
    cluster.advance_until(lambda: len(client.events[1]) == 2)
    nack, ack = client.take()
    assert isinstance(nack, BasicNack)
    assert nack.delivery_tag == 1
    assert isinstance(ack, BasicAck)
    assert ack.delivery_tag == 2
    assert drain(client, "q") == [b"on disk"]


def test_a_frame_that_fails_after_it_was_held_ends_its_link_and_no_turn(
    cluster: CoreCluster,
) -> None:
    """Frames of a broker that is ahead wait (R10); what comes behind one that fails is no use."""
    b2 = cluster["b2"]
    peer_broker = b2.node.peer_brokers["b1"]
    before = b2.links.link_to("b1")
    assert before is not None
    peer_broker.held = [(ANSWER, b"no table"), (ANSWER, b"nor this")]
    peer_broker.caught_up()
    assert len(b2.observer.bugs) <= 1
    b2.observer.bugs.clear()
    assert peer_broker.held == []
    cluster.advance_until_ready()
    after = b2.links.link_to("b1")
    assert after is not None
    assert after is not before
    client = b2.connect()
    queue_at(client, "q", "b1", durable=True)
    client.publish("", "q", b"goes on", PERSISTENT)
    cluster.settle()
    assert drain(client, "q") == [b"goes on"]
