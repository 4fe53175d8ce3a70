"""The home of a group is another broker, and applications anywhere go on (A1, A2)."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.cluster.home.detached_sessions import PARK_MS
from rhizome.cluster.home.home_group import HomeSettings
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.held_standby import Standby
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    drain,
    hand_over_in_vain,
    nacked,
    queue_at,
    wait_for_copy,
)

HOME, NEXT = "b3", "b2"
EVERYWHERE = ("b1", "b2", "b3", "s1")
"""The root, the new home, the old home, a secondary."""


@pytest.fixture
def cluster() -> CoreCluster:
    # Links are cut for long here, and homes have to stay where they are.
    return make_cluster(3, 2, unlinked_patience_ms=0)


def bodies_of(deliveries: list[Content]) -> list[bytes]:
    return [each.body for each in deliveries]


def number_bodies(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def publish(client: CoreClient, first: int, end: int) -> None:
    parts = [client.published("", "q", body, PERSISTENT) for body in number_bodies(first, end)]
    client.send_bytes(b"".join(parts))


def is_quiet(client: CoreClient) -> bool:
    events = client.events[1] + client.events[0]
    return not client.closed and not any(
        isinstance(event, (ChannelClose, BasicCancel)) for event in events
    )


def followed(cluster: CoreCluster, **options: object) -> Standby:
    """A queue at b3 that b2 has a copy of."""
    queue_at(cluster["b1"].connect(), "q", HOME, durable=True, **options)
    return Standby(cluster, "q", NEXT)


def counts(cluster: CoreCluster, at: str = NEXT) -> tuple[int, int]:
    """Ready and unacked, where the queue is active."""
    queue = cluster[at].queue("q")
    assert queue.away is None
    return int(queue.ready), int(queue.unacked)


# --- consumers


@pytest.mark.parametrize("at", EVERYWHERE)
def test_consumer_keeps_what_it_holds_and_gets_the_rest(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.prefetch(3)
    client.consume("q", "tag")
    publish(client, 0, 6)
    held = client.deliveries()
    assert bodies_of(held) == number_bodies(0, 3)
    standby.take_over()
    assert client.deliveries() == []
    assert counts(cluster) == (3, 3)
    client.send(BasicAck(held[1].tag, multiple=True))
    more = client.deliveries()
    assert [(each.body, each.redelivered) for each in more] == [(b"3", False), (b"4", False)]
    client.send(BasicAck(held[2].tag))
    assert bodies_of(client.deliveries()) == [b"5"]
    client.send(BasicAck(0, multiple=True))
    assert counts(cluster) == (0, 0)
    assert is_quiet(client)


@pytest.mark.parametrize("at", EVERYWHERE)
@pytest.mark.parametrize("copied", [False, True])
def test_ack_counts_whether_the_new_home_has_heard_of_it_or_not(
    cluster: CoreCluster, at: str, copied: bool
) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.consume("q")
    publish(client, 0, 3)
    held = client.deliveries()
    if not copied:
        standby.hold()
    client.send(BasicAck(held[0].tag))
    assert counts(cluster, HOME) == (0, 2)
    standby.take_over()
    assert counts(cluster) == (0, 2)
    assert client.deliveries() == []
    client.send(BasicAck(held[2].tag, multiple=True))
    assert counts(cluster) == (0, 0)


@pytest.mark.parametrize("at", ["b1", "b2", "s1"])
def test_ack_that_the_old_home_never_got_counts(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.consume("q")
    publish(client, 0, 2)
    held = client.deliveries()
    client.connection.receive(method_frame(1, BasicAck(held[0].tag)))
    edge = cluster[at]
    edge.busy = True
    while edge.turn():
        pass
    for end in cluster[HOME].ends:
        if end.other is not None and end.other.owner is edge:
            end.incoming.clear()
    standby.take_over()
    assert counts(cluster) == (0, 1)
    assert client.deliveries() == []


@pytest.mark.parametrize("at", EVERYWHERE)
def test_pull_and_cancelled_consumer_keep_what_they_hold(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.prefetch(1)
    client.consume("q", "tag")
    publish(client, 0, 3)
    [held] = client.deliveries()
    client.send(BasicCancel("tag", no_wait=True))
    pulled = client.get("q", no_ack=False)
    assert pulled is not None
    standby.take_over()
    assert counts(cluster) == (1, 2)
    client.send(BasicAck(pulled.tag), BasicNack(held.tag, False, True))
    assert counts(cluster) == (2, 0)
    assert drain(client, "q") == [b"0", b"2"]


@pytest.mark.parametrize("at", EVERYWHERE)
def test_consumer_without_acks_sees_each_message_once(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.consume("q", no_ack=True)
    publish(client, 0, 3)
    assert client.bodies() == number_bodies(0, 3)
    standby.take_over()
    publish(client, 3, 6)
    assert client.bodies() == number_bodies(3, 6)
    assert counts(cluster) == (0, 0)


def test_home_comes_and_goes_and_nobody_notices(cluster: CoreCluster) -> None:
    standby = followed(cluster)
    clients = {at: cluster[at].connect() for at in EVERYWHERE}
    for client in clients.values():
        client.prefetch(2)
        client.consume("q")
    publisher = cluster["b1"].connect()
    publisher.confirm()
    publish(publisher, 0, 8)
    held = {at: client.deliveries() for at, client in clients.items()}
    assert sorted([each.body for some in held.values() for each in some]) == number_bodies(0, 8)
    standby.take_over()
    publish(publisher, 8, 10)
    back = Standby(cluster, "q", HOME)
    publish(publisher, 10, 12)
    back.take_over()
    assert counts(cluster, HOME) == (4, 8)
    for at, client in clients.items():
        for each in held[at]:
            client.send(BasicAck(each.tag))
    more = [delivery for client in clients.values() for delivery in client.deliveries()]
    assert sorted([int(each.body) for each in more]) == [8, 9, 10, 11]
    assert not any(each.redelivered for each in more)
    for client in clients.values():
        client.send(BasicAck(0, multiple=True))
    assert counts(cluster, HOME) == (0, 0)
    assert confirmed(publisher) == 12
    assert all(is_quiet(client) for client in clients.values())


@pytest.mark.parametrize("active", EVERYWHERE)
def test_active_consumer_stays_the_active_one(cluster: CoreCluster, active: str) -> None:
    standby = followed(cluster, x_single_active_consumer=True)
    clients = {at: cluster[at].connect() for at in (active, *EVERYWHERE)}
    for client in clients.values():
        client.prefetch(2)
        client.consume("q")
    publish(clients[active], 0, 4)
    held = clients[active].deliveries()
    assert bodies_of(held) == number_bodies(0, 2)
    standby.take_over()
    assert not any(client.deliveries() for client in clients.values())
    clients[active].send(BasicAck(held[1].tag, multiple=True))
    assert bodies_of(clients[active].deliveries()) == number_bodies(2, 4)
    clients[active].close_socket()
    [(_, again)] = [(at, got) for at, each in clients.items() if (got := each.deliveries())]
    assert bodies_of(again) == number_bodies(2, 4)


@pytest.mark.parametrize("at", EVERYWHERE)
def test_what_is_held_is_beyond_no_limit_of_the_queue(cluster: CoreCluster, at: str) -> None:
    """Before the new home has heard who holds what, everything is ready, and would be too much."""
    standby = followed(cluster, x_max_length=2, x_message_ttl=500, x_expires=1_500)
    client = cluster[at].connect()
    client.prefetch(3)
    client.consume("q")
    for number in range(5):
        publish(client, number, number + 1)
    held = client.deliveries()
    assert bodies_of(held) == number_bodies(0, 3)
    cluster.advance(450)
    standby.appoint()
    cluster.advance(100)
    cluster.advance_until(lambda: not standby.log.silent)
    cluster.settle()
    assert counts(cluster) == (0, 3)
    client.send(BasicAck(held[2].tag, multiple=True))
    assert counts(cluster) == (0, 0)
    publish(client, 5, 6)
    assert bodies_of(client.deliveries()) == [b"5"]
    cluster.advance(1_000)
    assert cluster["b1"].has_queue("q")


# --- publishers


@pytest.mark.parametrize("at", EVERYWHERE)
def test_publish_that_was_not_confirmed_is_taken_once(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.confirm()
    publish(client, 0, 4)
    assert confirmed(client) == 4
    standby.hold()
    # The old home has these, the new one hasn't.
    publish(client, 4, 6)
    assert confirmed(client) == 0
    if at != HOME:
        cluster.cut(at, HOME)
    publish(client, 6, 8)
    standby.take_over()
    assert confirmed(client) == 8
    assert drain(client, "q") == number_bodies(0, 8)


@pytest.mark.parametrize("at", EVERYWHERE)
def test_publish_that_the_new_home_has_already_is_not_taken_again(
    cluster: CoreCluster, at: str
) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.confirm()
    publish(client, 0, 2)
    standby.hold_answers()
    publish(client, 2, 4)
    standby.hold()
    publish(client, 4, 6)
    assert confirmed(client) == 2
    standby.take_over()
    cluster.advance(100)
    assert confirmed(client) == 6
    assert drain(client, "q") == number_bodies(0, 6)


@pytest.mark.parametrize("at", EVERYWHERE)
def test_publishes_keep_their_order_over_a_takeover(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    client.confirm()
    publish(client, 0, 10)
    standby.hold()
    for first in range(10, 30, 5):
        publish(client, first, first + 5)
    standby.appoint()
    publish(client, 30, 40)
    cluster.advance_until(lambda: not standby.log.silent)
    publish(client, 40, 50)
    assert confirmed(client) == 50
    assert drain(client, "q") == number_bodies(0, 50)


@pytest.mark.parametrize("copied", [0, 2, 4])
def test_what_a_home_had_of_its_own_is_taken_once_after_two_takeovers(copied: int) -> None:
    """The next home has some of it, and is replaced by one that has none."""
    cluster = make_cluster(4, 0, copies=3, unlinked_patience_ms=0)
    root = cluster.root()
    groups = cluster[root].node.state.groups.groups.values()
    [home] = [each for each in groups if root not in (each.home, *each.failover)]
    second, third = home.failover
    client = cluster[home.home].connect()
    queue_at(client, "q", home.home, durable=True)
    next_one, last_one = Standby(cluster, "q", second), Standby(cluster, "q", third)
    client.confirm()
    last_one.hold()
    last_one.hold(second)
    publish(client, 0, copied)
    next_one.hold()
    publish(client, copied, 4)
    next_one.appoint()
    cluster.settle()
    assert confirmed(client) == 0
    last_one.take_over()
    publish(client, 4, 6)
    cluster.advance(100)
    assert confirmed(client) == 6
    assert drain(cluster[root].connect(), "q") == number_bodies(0, 6)


@pytest.mark.parametrize("at", EVERYWHERE)
def test_commit_that_waited_for_the_old_home_is_answered_by_the_new_one(
    cluster: CoreCluster, at: str
) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    publish(client, 0, 1)
    client.consume("q")
    [held] = client.deliveries()
    client.call(TxSelect(), TxSelectOk)
    standby.hold()
    publish(client, 1, 4)
    client.send(BasicAck(held.tag))
    client.send(TxCommit())
    assert client.take() == []
    client.send(BasicCancel("tag", no_wait=True))
    standby.take_over()
    client.pick(TxCommitOk)
    client.close_socket()
    assert drain(cluster["s1"].connect(), "q") == number_bodies(1, 4)


@pytest.mark.parametrize("at", EVERYWHERE)
def test_transaction_that_was_begun_under_the_old_home_is_committed_under_the_new(
    cluster: CoreCluster, at: str
) -> None:
    standby = followed(cluster)
    client = cluster[at].connect()
    publish(client, 0, 2)
    client.consume("q")
    held = client.deliveries()
    client.call(TxSelect(), TxSelectOk)
    publish(client, 2, 4)
    client.send(BasicAck(held[0].tag))
    standby.take_over()
    assert counts(cluster) == (0, 2)
    client.send(BasicAck(held[1].tag), TxCommit())
    client.pick(TxCommitOk)
    assert client.bodies() == number_bodies(2, 4)
    client.close_socket()
    assert drain(cluster["s1"].connect(), "q") == number_bodies(2, 4)


def test_refused_publish_is_not_sent_to_the_next_home(cluster: CoreCluster) -> None:
    standby = followed(cluster, x_max_length=1, x_overflow="reject-publish")
    client, other = cluster["b1"].connect(), cluster["s1"].connect()
    publish(other, 0, 1)
    client.confirm()
    standby.hold()
    publish(client, 1, 2)
    assert nacked(client) == [1]
    assert drain(other, "q") == [b"0"]
    standby.take_over()
    publish(client, 2, 3)
    assert drain(other, "q") == [b"2"]
    assert confirmed(client) == 2


def test_home_that_is_killed_is_followed_without_loss_or_double(cluster: CoreCluster) -> None:
    standby = followed(cluster)
    publisher, consumer = cluster["b1"].connect(), cluster["s1"].connect()
    publisher.confirm()
    consumer.prefetch(2)
    consumer.consume("q")
    publish(publisher, 0, 4)
    held = consumer.deliveries()
    assert bodies_of(held) == number_bodies(0, 2)
    standby.hold()
    publish(publisher, 4, 6)
    cluster[HOME].kill()
    publish(publisher, 6, 8)
    consumer.send(BasicAck(held[0].tag))
    cluster.advance_until(lambda: standby.group.home == NEXT and not standby.log.silent)
    seen = bodies_of(held)
    while deliveries := consumer.deliveries():
        assert not any(each.redelivered for each in deliveries)
        seen += bodies_of(deliveries)
        consumer.send(BasicAck(deliveries[-1].tag, multiple=True))
    assert seen == number_bodies(0, 8)
    assert confirmed(publisher) == 8
    assert is_quiet(publisher)
    assert is_quiet(consumer)


# --- what edges say of the same message


def two_claims(cluster: CoreCluster) -> tuple[Standby, CoreClient, CoreClient, int, int]:
    """Two applications were shown the only message: the first one's broker was away for too long,
    so that it became the second one's. With their tags of it."""
    standby = followed(cluster)
    first, second = cluster["s1"].connect(), cluster["s2"].connect()
    first.consume("q")
    publish(first, 0, 1)
    [one] = first.deliveries()
    second.consume("q")
    cluster.cut("s1", HOME)
    cluster.advance(PARK_MS + 100)
    [other] = second.deliveries()
    assert other.redelivered
    standby.hold()
    return standby, first, second, one.tag, other.tag


def recover(cluster: CoreCluster, standby: Standby, order: tuple[str, str]) -> None:
    """Let the new home hear of its edges in this order, and only then go on."""
    for name in order:
        cluster.cut(name, NEXT)
    standby.appoint()
    home = cluster[NEXT].node.roles.homes[standby.number]
    home.settings = HomeSettings(attach_patience_ms=60_000)
    attached = standby.tenure.attached
    for name in order:
        cluster.heal()
        for other in order:
            if other not in attached() and other != name:
                cluster.cut(other, NEXT)
        cluster.advance_until(lambda name=name: name in attached())  # type: ignore[misc]
    cluster.advance_until(lambda: not standby.log.silent)
    cluster.settle()


ORDERS = [("s1", "s2"), ("s2", "s1")]


@pytest.mark.parametrize("order", ORDERS)
def test_ack_wins_over_held(cluster: CoreCluster, order: tuple[str, str]) -> None:
    standby, first, second, held, acked = two_claims(cluster)
    second.send(BasicAck(acked))
    recover(cluster, standby, order)
    assert counts(cluster) == (0, 0)
    first.send(BasicNack(held, False, True))
    assert counts(cluster) == (0, 0)
    assert first.deliveries() == second.deliveries() == []


@pytest.mark.parametrize("order", ORDERS)
def test_held_wins_over_given_back(cluster: CoreCluster, order: tuple[str, str]) -> None:
    standby, first, second, given_back, held = two_claims(cluster)
    first.send(BasicNack(given_back, False, True))
    recover(cluster, standby, order)
    assert counts(cluster) == (0, 1)
    assert first.deliveries() == second.deliveries() == []
    second.send(BasicAck(held))
    assert counts(cluster) == (0, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_ack_wins_over_given_back(cluster: CoreCluster, order: tuple[str, str]) -> None:
    standby, first, second, given_back, acked = two_claims(cluster)
    first.send(BasicNack(given_back, False, True))
    second.send(BasicAck(acked))
    recover(cluster, standby, order)
    assert counts(cluster) == (0, 0)
    assert first.deliveries() == second.deliveries() == []


@pytest.mark.parametrize("order", ORDERS)
def test_one_of_two_holders_keeps_it(cluster: CoreCluster, order: tuple[str, str]) -> None:
    standby, first, second, one, other = two_claims(cluster)
    recover(cluster, standby, order)
    assert counts(cluster) == (0, 1)
    first.send(BasicAck(one))
    second.send(BasicAck(other))
    assert counts(cluster) == (0, 0)
    assert is_quiet(first)
    assert is_quiet(second)


# --- calls


@pytest.mark.parametrize("at", ["b1", "b2", "s1"])
def test_calls_are_asked_again_where_the_home_is(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster)
    clients = [cluster[at].connect() for _ in range(3)]
    publish(clients[0], 0, 3)
    cluster.cut(at, HOME)
    clients[0].send(BasicGet("q", True))
    clients[1].send(QueueDeclare("q", passive=True))
    clients[2].send(BasicConsume("q", "late"))
    assert [client.take() for client in clients] == [[], [], []]
    standby.take_over()
    # Consumers that can take messages get theirs before a pull does.
    clients[0].expect(BasicGetEmpty)
    clients[1].expect(QueueDeclareOk)
    assert clients[2].expect(BasicConsumeOk).consumer_tag == "late"
    assert clients[2].bodies() == number_bodies(0, 3)


def test_what_was_acked_while_a_home_stood_aside_is_got_by_nobody(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes of the transfer: the home answers what was asked for meanwhile, after it has
    settled what was settled."""
    client = cluster[HOME].connect()
    queue_at(client, "q", HOME, durable=True)
    wait_for_copy(cluster, "q")
    publish(client, 0, 2)
    cluster.settle()
    first = client.get("q", no_ack=False)
    assert first is not None
    queue = cluster[HOME].queue("q")
    home = hand_over_in_vain(cluster, "q", monkeypatch)
    client.send(BasicAck(first.tag))
    client.send(BasicGet("q", True))
    cluster.settle()
    assert client.take() == []
    home.transfer.give_up()
    cluster.settle()
    assert [each.body for each in client.take() if isinstance(each, Content)] == [b"1"]
    assert (queue.ready, queue.unacked) == (0, 0)
