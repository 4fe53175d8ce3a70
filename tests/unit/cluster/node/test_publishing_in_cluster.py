"""Publishing through any broker, to queues with whatever home: routing, confirms, returns."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.held_standby import Standby
from tests.unit.cluster.node.small_cluster import (
    AWAY,
    EVERYWHERE,
    PERSISTENT,
    bind,
    bind_exchange,
    confirmed,
    drain,
    exchange,
    nacked,
    private_queue,
    queue_at,
    returned,
    sent_on,
    wait_for_copy,
)

HOMES = ("b1", "b2", "b3")


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2)


@pytest.mark.parametrize("at", AWAY)
@pytest.mark.parametrize("durable", [False, True])
def test_publish_is_confirmed_once_its_home_has_it(
    cluster: CoreCluster, at: str, durable: bool
) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1", durable=durable)
    client.confirm()
    client.publish("", "q", b"one", PERSISTENT if durable else None)
    assert confirmed(client) == 1
    assert cluster["b1"].queue("q").ready == 1
    assert drain(client, "q") == [b"one"]


@pytest.mark.parametrize("at", AWAY)
def test_a_copy_that_lags_holds_up_its_own_group_and_no_other(
    cluster: CoreCluster, at: str
) -> None:
    """Though both are published to over one connection, and consumed over one."""
    client, consumer = cluster[at].connect(), cluster["s2"].connect()
    client.open_channel(2)
    for queue, home in (("slow", "b1"), ("quick", "b2")):
        queue_at(client, queue, home, durable=True)
        wait_for_copy(cluster, queue)
        consumer.consume(queue, no_ack=True)
    client.confirm(1)
    client.confirm(2)
    standby = Standby(cluster, "slow", "b3")
    standby.hold()
    for number in range(10):
        client.publish("", "slow", b"slow %d" % number, PERSISTENT, channel=1)
        client.publish("", "quick", b"quick %d" % number, PERSISTENT, channel=2)
        assert client.pick(BasicAck, 2).delivery_tag == number + 1
    assert confirmed(client) == 0
    assert consumer.bodies() == [b"quick %d" % number for number in range(10)]
    standby.let_go()
    assert confirmed(client) == 10
    assert consumer.bodies() == [b"slow %d" % number for number in range(10)]


@pytest.mark.parametrize("at", AWAY)
def test_message_for_queues_of_several_homes_is_confirmed_by_all(
    cluster: CoreCluster, at: str
) -> None:
    client = cluster[at].connect()
    for home in HOMES:
        bind(client, queue_at(client, f"at-{home}", home), "amq.fanout")
        bind(client, queue_at(client, f"too-at-{home}", home), "amq.fanout")
    client.confirm()
    client.publish("amq.fanout", "", b"m")
    assert confirmed(client) == 1
    for home in HOMES:
        assert cluster[home].queue(f"at-{home}").ready == 1
        assert cluster[home].queue(f"too-at-{home}").ready == 1
    assert all(count == 1 for count in sent_on(cluster, at).values())


def test_confirm_waits_for_the_home_that_is_down(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    for home in HOMES:
        bind(client, queue_at(client, f"at-{home}", home, durable=True), "amq.fanout")
    client.confirm()
    cluster.cut("b2", "b3")
    client.publish("amq.fanout", "", b"m", PERSISTENT)
    assert confirmed(client) == 0
    cluster.heal()
    cluster.advance_until(lambda: confirmed(client) == 1)
    assert cluster["b3"].queue("at-b3").ready == 1
    assert cluster["b1"].queue("at-b1").ready == 1


@pytest.mark.parametrize("at", AWAY)
def test_full_queue_refuses_and_the_publisher_is_told_which(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1", x_max_length=2, x_overflow="reject-publish")
    client.confirm()
    client.send_bytes(b"".join([client.published("", "q", b"%d" % n) for n in range(4)]))
    assert nacked(client) == [3, 4]
    assert drain(client, "q") == [b"0", b"1"]


@pytest.mark.parametrize("at", AWAY)
def test_mandatory_message_without_queue_is_returned(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    client.confirm()
    client.publish("", "nobody", b"m", mandatory=True)
    client.publish("amq.direct", "nobody", b"n", mandatory=True)
    assert returned(client) == [b"m", b"n"]
    assert confirmed(client) == 2


@pytest.mark.parametrize("at", EVERYWHERE)
@pytest.mark.parametrize("owner", EVERYWHERE)
def test_mandatory_message_for_a_private_queue_anywhere_is_not_returned(
    cluster: CoreCluster, at: str, owner: str
) -> None:
    subscriber, client = cluster[owner].connect(), cluster[at].connect()
    queue = private_queue(subscriber)
    bind(subscriber, queue, "amq.topic", "a.*")
    subscriber.consume(queue, no_ack=True)
    client.confirm()
    client.publish("amq.topic", "a.b", b"m", mandatory=True)
    client.publish("", queue, b"n", mandatory=True)
    assert returned(client) == []
    assert confirmed(client) == 2
    assert subscriber.bodies() == [b"m", b"n"]


@pytest.mark.parametrize("at", EVERYWHERE)
@pytest.mark.parametrize("owner", HOMES)
def test_mandatory_message_for_a_private_queue_that_is_gone_is_returned(
    cluster: CoreCluster, at: str, owner: str
) -> None:
    subscriber, client = cluster[owner].connect(), cluster[at].connect()
    queue = private_queue(subscriber)
    subscriber.close_socket()
    client.confirm()
    client.publish("", queue, b"m", mandatory=True)
    assert returned(client) == [b"m"]
    assert confirmed(client) == 1


@pytest.mark.parametrize("at", AWAY)
@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_go_to_queues_of_other_homes_and_private_ones(
    cluster: CoreCluster, at: str, header: str
) -> None:
    client, other = cluster[at].connect(), cluster["s2"].connect()
    for home in HOMES:
        bind(client, queue_at(client, f"at-{home}", home), "amq.direct", home)
    mine = private_queue(other)
    bind(other, mine, "amq.direct", "private")
    other.consume(mine, no_ack=True)
    keys: list[object] = ["b2", "b3", "private", "nobody"]
    client.publish("amq.direct", "b1", b"m", Properties(headers={header: keys}))
    assert [drain(client, f"at-{home}") for home in HOMES] == [[b"m"]] * 3
    [delivery] = other.deliveries()
    assert delivery.body == b"m"
    assert ("BCC" in delivery.headers, "CC" in delivery.headers) == (False, header == "CC")


@pytest.mark.parametrize("at", AWAY)
def test_headers_decide_wherever_the_queue_is(cluster: CoreCluster, at: str) -> None:
    client, other = cluster[at].connect(), cluster["s2"].connect()
    bind(client, queue_at(client, "q1", "b1"), "amq.headers", colour="red")
    bind(client, queue_at(client, "q3", "b3"), "amq.headers", colour="red", size="big")
    mine = private_queue(other)
    bind(other, mine, "amq.headers", size="big", x_match="any")
    other.consume(mine, no_ack=True)
    client.publish("amq.headers", "", b"1", Properties(headers={"colour": "red"}))
    client.publish("amq.headers", "", b"2", Properties(headers={"colour": "red", "size": "big"}))
    assert drain(client, "q1") == [b"1", b"2"]
    assert drain(client, "q3") == [b"2"]
    assert other.bodies() == [b"2"]


@pytest.mark.parametrize("at", AWAY)
def test_exchanges_lead_on_to_others_and_to_alternates(cluster: CoreCluster, at: str) -> None:
    client, other = cluster[at].connect(), cluster["s2"].connect()
    exchange(client, "lost", "fanout")
    exchange(client, "first", "direct", alternate_exchange="lost")
    exchange(client, "second", "topic")
    bind_exchange(client, "second", "first", "a.b")
    bind(client, queue_at(client, "q3", "b3"), "second", "a.#")
    bind(client, queue_at(client, "stray", "b1"), "lost")
    mine = private_queue(other)
    bind(other, mine, "second", "*.b")
    also = private_queue(other)
    bind(other, also, "lost")
    for queue in (mine, also):
        other.consume(queue, no_ack=True)
    client.publish("first", "a.b", b"led on")
    client.publish("first", "nowhere", b"stray")
    assert drain(client, "q3") == [b"led on"]
    assert drain(client, "stray") == [b"stray"]
    assert other.bodies() == [b"led on", b"stray"]


@pytest.mark.parametrize("at", EVERYWHERE)
def test_hashed_message_goes_to_one_queue_of_all_brokers(cluster: CoreCluster, at: str) -> None:
    declarer = cluster["b1"].connect()
    exchange(declarer, "ring", "x-consistent-hash")
    for home in HOMES:
        bind(declarer, queue_at(declarer, f"at-{home}", home), "ring", "1")
    owners = [cluster[name].connect() for name in ("b1", "b3", "s1", "s2", "s2")]
    for owner in owners:
        queue = private_queue(owner)
        bind(owner, queue, "ring", "1")
        owner.consume(queue, no_ack=True)
    client = cluster[at].connect()
    bodies = [b"%d" % number for number in range(200)]
    for body in bodies:
        client.publish("ring", body.decode(), body)
    found = [drain(declarer, f"at-{home}") for home in HOMES]
    found += [owner.bodies() for owner in owners]
    assert sorted([body for each in found for body in each]) == sorted(bodies)
    assert all(found)


@pytest.mark.parametrize("at", AWAY)
def test_transaction_reaches_all_homes_when_it_is_committed(cluster: CoreCluster, at: str) -> None:
    client, other = cluster[at].connect(), cluster["b3"].connect()
    for home in HOMES:
        queue_at(client, f"at-{home}", home, durable=True)
    client.call(TxSelect(), TxSelectOk)
    for home in HOMES:
        client.publish("", f"at-{home}", b"undone", PERSISTENT)
    client.call(TxRollback(), TxRollbackOk)
    for home in HOMES:
        client.publish("", f"at-{home}", b"done", PERSISTENT)
        assert cluster[home].queue(f"at-{home}").ready == 0
    client.call(TxCommit(), TxCommitOk)
    assert [drain(other, f"at-{home}") for home in HOMES] == [[b"done"]] * 3


def test_commit_waits_for_the_home_that_is_away(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "q", "b3", durable=True)
    client.call(TxSelect(), TxSelectOk)
    client.publish("", "q", b"m", PERSISTENT)
    cluster.cut("b2", "b3")
    client.send(TxCommit())
    assert client.take() == []
    cluster.heal()
    cluster.advance_until(lambda: client.events[1] != [])
    client.expect(TxCommitOk)
    assert cluster["b3"].queue("q").ready == 1


@pytest.mark.parametrize("at", AWAY)
def test_settlements_of_a_transaction_count_at_the_home(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1")
    for body in (b"a", b"b"):
        client.publish("", "q", body)
    client.call(TxSelect(), TxSelectOk)
    client.consume("q")
    tags = [delivery.tag for delivery in client.deliveries()]
    home = cluster["b1"].queue("q")
    client.send(BasicAck(tags[-1], multiple=True))
    assert home.unacked == 2
    client.call(TxRollback(), TxRollbackOk)
    client.send(BasicAck(tags[-1], multiple=True))
    client.call(TxCommit(), TxCommitOk)
    assert (home.unacked, home.ready) == (0, 0)


def test_commit_of_settlements_waits_until_their_home_has_them_on_disk() -> None:
    cluster = make_cluster(3, 2, copies=1)
    client = cluster["b2"].connect()
    queue_at(client, "q", "b1", durable=True)
    for body in (b"a", b"b"):
        client.publish("", "q", body, PERSISTENT)
    client.call(TxSelect(), TxSelectOk)
    client.consume("q")
    [first, _] = client.deliveries()
    client.send(BasicAck(first.tag))
    client.connection.receive(method_frame(1, TxCommit()))
    edge = cluster["b2"]
    edge.busy = True
    while edge.turn():
        pass
    assert client.take() == []
    cluster.settle()
    client.expect(TxCommitOk)
    cluster["b1"].kill()
    cluster["b1"].start()
    cluster.advance_until_ready()
    assert cluster["b1"].queue("q").unacked == 1
    client.close_socket()
    assert drain(cluster["b1"].connect(), "q") == [b"b"]


@pytest.mark.parametrize("at", AWAY)
@pytest.mark.parametrize("durable", [False, True])
def test_delayed_message_waits_at_a_home_and_comes_in_time(
    cluster: CoreCluster, at: str, durable: bool
) -> None:
    client = cluster[at].connect()
    exchange(client, "later", "x-delayed-message", x_delayed_type="direct")
    bind(client, queue_at(client, "q", "b2", durable=durable), "later", "k")
    client.confirm()
    properties = Properties(headers={"x-delay": 500}, delivery_mode=2 if durable else 1)
    client.publish("later", "k", b"m", properties)
    assert confirmed(client) == 1
    cluster.advance(450)
    assert drain(client, "q") == []
    cluster.advance(100)
    assert drain(client, "q") == [b"m"]


def test_delayed_message_outlives_its_home(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    exchange(client, "later", "x-delayed-message", x_delayed_type="direct")
    bind(client, queue_at(client, "q", "b2", durable=True), "later", "k")
    client.confirm()
    client.publish("later", "k", b"m", Properties(headers={"x-delay": 8_000}, delivery_mode=2))
    assert confirmed(client) == 1
    [home] = [name for name in HOMES if cluster[name].queue("amq.delayed").away is None]
    cluster[home].kill()
    cluster.advance(500)
    cluster[home].start()
    cluster.advance_until_ready()
    assert drain(client, "q") == []
    cluster.advance(9_000)
    assert drain(client, "q") == [b"m"]
