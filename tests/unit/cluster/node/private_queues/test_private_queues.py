"""Private queues across brokers: meta-bindings, names, replies, locks (A3, O30 to O34)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ExchangeDelete,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import (
    DeleteUser,
    DeleteVhost,
    PutPolicy,
    PutUser,
    PutVhost,
)
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    EVERYWHERE,
    bind,
    confirmed,
    drain,
    exchange,
    nacked,
    private_queue,
    queue_at,
    refused,
    sent_on,
    unbind,
)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2)


def subscriber(cluster: CoreCluster, at: str, source: str, key: str = "") -> CoreClient:
    client = cluster[at].connect()
    queue = private_queue(client)
    bind(client, queue, source, key)
    client.consume(queue, no_ack=True)
    return client


def interests_of(cluster: CoreCluster, at: str, peer: str) -> int:
    """How many interests of a peer a broker knows."""
    return len(cluster[at].node.meta_bindings.told[peer].wanted)


# --- meta-bindings


@pytest.mark.parametrize("at", EVERYWHERE)
def test_one_copy_per_link_and_none_twice(cluster: CoreCluster, at: str) -> None:
    """Whatever number of queues and bindings match on a broker (O33)."""
    subscribers = []
    for name in EVERYWHERE:
        for key in ("a.*", "*.b", "#"):
            subscribers.append(subscriber(cluster, name, "amq.topic", key))
    publisher = cluster[at].connect()
    for name in ("b1", "b3"):
        bind(publisher, queue_at(publisher, f"at-{name}", name), "amq.topic", "a.b")
    frames = {name: sent_on(cluster, name) for name in EVERYWHERE}
    for number in range(10):
        publisher.publish("amq.topic", "a.b", b"%d" % number)
    expected = [b"%d" % number for number in range(10)]
    assert [each.bodies() for each in subscribers] == [expected] * 15
    assert [drain(publisher, f"at-{name}") for name in ("b1", "b3")] == [expected] * 2
    for name in EVERYWHERE:
        now = sent_on(cluster, name)
        more = {peer: now[peer] - frames[name].get(peer, 0) for peer in now}
        more = {peer: count for peer, count in more.items() if count}
        if name == at:
            others = [peer for peer in EVERYWHERE if peer != at]
            if at.startswith("s"):
                others = [peer for peer in others if peer.startswith("b")]
            assert more == dict.fromkeys(others, 10)
        elif name == cluster.root() and at.startswith("s"):
            assert more == {"s2" if at == "s1" else "s1": 10}
        else:
            assert more == {}


def test_only_brokers_with_matching_subscribers_get_copies(cluster: CoreCluster) -> None:
    listener = subscriber(cluster, "b3", "amq.direct", "wanted")
    publisher = cluster["b2"].connect()
    before = sent_on(cluster, "b2")
    publisher.publish("amq.direct", "unwanted", b"no")
    assert sent_on(cluster, "b2") == before
    publisher.publish("amq.direct", "wanted", b"yes")
    assert listener.bodies() == [b"yes"]
    assert sent_on(cluster, "b2").get("b3", 0) == before.get("b3", 0) + 1
    assert sent_on(cluster, "b2").get("b1", 0) == before.get("b1", 0)


@pytest.mark.parametrize("owner", EVERYWHERE)
def test_what_follows_bind_ok_anywhere_is_seen(cluster: CoreCluster, owner: str) -> None:
    client = cluster[owner].connect()
    queue = private_queue(client)
    client.consume(queue, no_ack=True)
    publishers = [cluster[name].connect() for name in EVERYWHERE]
    for number in range(5):
        bind(client, queue, "amq.direct", f"k{number}")
        for publisher in publishers:
            publisher.publish("amq.direct", f"k{number}", b"%d" % number)
        assert client.bodies() == [b"%d" % number] * 5


@pytest.mark.parametrize("owner", ["b2", "s1"])
def test_interest_is_withdrawn_with_its_last_binding(cluster: CoreCluster, owner: str) -> None:
    first, second = (subscriber(cluster, owner, "amq.fanout") for _ in range(2))
    others = [name for name in ("b1", "b3", "b2") if name != owner]
    assert [interests_of(cluster, name, owner) for name in others] == [1] * len(others)
    first.close_socket()
    assert [interests_of(cluster, name, owner) for name in others] == [1] * len(others)
    second.close_socket()
    assert [interests_of(cluster, name, owner) for name in others] == [0] * len(others)
    publisher = cluster["b1"].connect()
    before = sent_on(cluster, "b1")
    publisher.publish("amq.fanout", "", b"for nobody")
    assert sent_on(cluster, "b1") == before


def test_secondary_learns_from_the_root_what_others_want(cluster: CoreCluster) -> None:
    root = cluster.root()
    listener = subscriber(cluster, "s1", "amq.fanout")
    assert interests_of(cluster, "s2", root) == 1
    listener.close_socket()
    assert interests_of(cluster, "s2", root) == 0


def test_link_that_comes_back_brings_all_interests_again(cluster: CoreCluster) -> None:
    listeners = [subscriber(cluster, "b3", "amq.topic", f"k.{n}") for n in range(5)]
    publisher = cluster["b2"].connect()
    cluster.cut("b2", "b3")
    publisher.publish("amq.topic", "k.1", b"into the void")
    listeners[0].close_socket()
    late = cluster["b3"].connect()
    queue = private_queue(late)
    late.send(QueueBind(queue, "amq.topic", "late"))
    cluster.heal()
    cluster.advance_until_ready()
    late.expect(QueueBindOk)
    late.consume(queue, no_ack=True)
    assert interests_of(cluster, "b2", "b3") == 5
    for key in ("k.0", "k.1", "k.4", "late"):
        publisher.publish("amq.topic", key, key.encode())
    assert [each.bodies() for each in listeners[1:]] == [[b"k.1"], [], [], [b"k.4"]]
    assert late.bodies() == [b"late"]


def test_secondaries_hear_each_other_again_under_a_new_root(cluster: CoreCluster) -> None:
    listener = subscriber(cluster, "s1", "amq.fanout")
    publisher = cluster["s2"].connect()
    publisher.publish("amq.fanout", "", b"before")
    old = cluster.root()
    cluster[old].kill()
    cluster.advance_until(lambda: cluster.root() not in ("", old))
    new = cluster.root()
    cluster.advance_until(lambda: interests_of(cluster, "s2", new) == 1)
    cluster.advance(1_000)
    publisher.publish("amq.fanout", "", b"after")
    cluster[old].start()
    cluster.advance_until_ready()
    publisher.publish("amq.fanout", "", b"at last")
    assert listener.bodies() == [b"before", b"after", b"at last"]


def test_what_a_secondary_publishes_without_a_root_waits_for_one(cluster: CoreCluster) -> None:
    """Only the root knows what other secondaries want: without it nothing is confirmed that might
    be for them (A3)."""
    listener = subscriber(cluster, "s1", "amq.fanout")
    publisher = cluster["s2"].connect()
    newcomer = cluster["s2"].connect()
    for client in (publisher, newcomer):
        client.call(ConfirmSelect(), ConfirmSelectOk)
    publisher.publish("amq.fanout", "", b"before")
    assert confirmed(publisher) == 1
    old = cluster.root()
    cluster[old].kill()
    cluster.settle()
    publisher.publish("amq.fanout", "", b"meanwhile")
    newcomer.publish("amq.fanout", "", b"its first")
    assert (confirmed(publisher), confirmed(newcomer)) == (0, 0)
    cluster.advance_until(lambda: cluster.root() not in ("", old))
    cluster.advance(1_000)
    assert (confirmed(publisher), confirmed(newcomer)) == (2, 1)
    assert sorted(listener.bodies()) == [b"before", b"its first", b"meanwhile"]


def test_a_relay_is_confirmed_when_it_has_arrived_and_refused_if_the_root_dies_before(
    cluster: CoreCluster,
) -> None:
    """At most once (A3), and not silently: the publisher hears that it may be lost."""
    subscriber(cluster, "s1", "amq.fanout")
    publisher = cluster["s2"].connect()
    publisher.call(ConfirmSelect(), ConfirmSelectOk)
    cluster["s1"].broker.block("confirms nothing")
    publisher.publish("amq.fanout", "", b"arrives")
    assert confirmed(publisher) == 0
    cluster["s1"].broker.unblock()
    cluster["s1"].settle()
    assert confirmed(publisher) == 1
    cluster["s1"].broker.block("confirms nothing")
    publisher.publish("amq.fanout", "", b"who knows")
    old = cluster.root()
    cluster[old].kill()
    cluster.advance_until(lambda: cluster.root() not in ("", old))
    cluster.advance(1_000)
    assert nacked(publisher) == [2]
    assert confirmed(publisher) == 0


def test_who_is_no_longer_root_refuses_to_relay(cluster: CoreCluster) -> None:
    subscriber(cluster, "s1", "amq.fanout")
    publisher = cluster["s2"].connect()
    publisher.call(ConfirmSelect(), ConfirmSelectOk)
    root = cluster[cluster.root()]
    root.node.meta_bindings.is_root = False
    publisher.publish("amq.fanout", "", b"too late")
    assert nacked(publisher) == [1]
    root.node.meta_bindings.is_root = True
    publisher.publish("amq.fanout", "", b"in time")
    assert confirmed(publisher) == 2


def test_a_root_without_a_lease_refuses_to_relay(cluster: CoreCluster) -> None:
    """It has slept, perhaps, and what waits for it is old; others hear the next root by now."""
    listener = subscriber(cluster, "s1", "amq.fanout")
    publisher = cluster["s2"].connect()
    publisher.call(ConfirmSelect(), ConfirmSelectOk)
    node = cluster[cluster.root()].node
    node._set_isolated(True)
    publisher.publish("amq.fanout", "", b"old")
    cluster.settle()
    node._set_isolated(False)
    cluster.advance(100)
    assert nacked(publisher) == [1]
    assert listener.deliveries() == []


def test_many_bindings_cost_in_proportion(cluster: CoreCluster) -> None:
    """Frames are counted: one to each primary for a binding, and one back."""
    client = cluster["b2"].connect()
    queue = private_queue(client)
    links = [cluster["b2"].links.link_to(name) for name in ("b1", "b3", "s1", "s2")]
    assert all(links)
    told = cluster["b2"].node.meta_bindings.told
    before = {name: each.sent for name, each in told.items()}
    for number in range(300):
        bind(client, queue, "amq.direct", f"k{number}")
    assert {name: each.sent - before[name] for name, each in told.items()} == dict.fromkeys(
        told, 300
    )
    assert all(not each.awaiting and not each.withheld for each in told.values())


@pytest.mark.parametrize("at", ["b2", "s1"])
def test_bindings_that_come_and_go_leave_nothing_and_no_entry(
    cluster: CoreCluster, at: str
) -> None:
    """Soft state of links, never the cluster's log (A3); `bench/fanout.py` has it in large."""
    before = {name: footprint(cluster, name) for name in EVERYWHERE}
    committed = {name: cluster[name].node.consensus.commit_index for name in EVERYWHERE}
    for _ in range(2):
        clients = [cluster[at].connect() for _ in range(4)]
        for place, client in enumerate(clients):
            queue = private_queue(client, f"named-{place}")
            for number in range(50):
                bind(client, queue, "amq.topic", f"{place}.{number}")
                bind(client, queue, "amq.headers", "", x_match="all", kind=f"{place}.{number}")
        grown = {name: footprint(cluster, name)[0] for name in EVERYWHERE if name != at}
        assert all(kinds - before[name][0] >= 400 for name, kinds in grown.items())
        for client in clients:
            client.close_socket()
        assert {name: footprint(cluster, name) for name in EVERYWHERE} == before
    after = {name: cluster[name].node.consensus.commit_index for name in EVERYWHERE}
    assert after == committed


def footprint(cluster: CoreCluster, name: str) -> tuple[int, ...]:
    """How much a broker keeps of meta-bindings, its own and others'."""
    meta_bindings = cluster[name].node.meta_bindings
    told = meta_bindings.told.values()
    kept = (meta_bindings.own, meta_bindings.arguments, meta_bindings.wanters)
    made = (meta_bindings.metas, meta_bindings.queues, meta_bindings.named)
    bindings = sum(
        len(exchange.bindings())
        for vhost in cluster[name].broker.state.vhosts.values()
        for exchange in vhost.router.exchanges.values()
    )
    return (
        sum(len(each.wanted) for each in told),
        sum(len(each.relayed) + len(each.awaiting) + len(each.withheld) for each in told),
        *(len(each) for each in (*kept, *made)),
        bindings,
    )


# --- names


@pytest.mark.parametrize("owner", EVERYWHERE)
@pytest.mark.parametrize("name", ["", "mine"])
def test_private_queue_is_reached_by_its_name_from_everywhere(
    cluster: CoreCluster, owner: str, name: str
) -> None:
    client = cluster[owner].connect()
    queue = private_queue(client, name)
    client.consume(queue, no_ack=True)
    for at in EVERYWHERE:
        cluster[at].connect().publish("", queue, at.encode())
    assert sorted(client.bodies()) == sorted([at.encode() for at in EVERYWHERE])


@pytest.mark.parametrize("at", EVERYWHERE)
@pytest.mark.parametrize("name", ["", "mine"])
def test_private_queue_of_another_broker_is_locked(
    cluster: CoreCluster, at: str, name: str
) -> None:
    owner, client = cluster["b2"].connect(), cluster[at].connect()
    queue = private_queue(owner, name)
    methods = [
        QueueDeclare(queue, passive=True),
        BasicConsume(queue),
        BasicGet(queue),
        QueuePurge(queue),
        QueueDelete(queue),
        QueueBind(queue, "amq.fanout", ""),
    ]
    if name:
        methods += [QueueDeclare(queue), QueueDeclare(queue, exclusive=True)]
    for method in methods:
        code, text = refused(client, method)
        assert code == 405, method
        assert text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue")
    assert cluster["b2"].has_queue(queue)


def test_name_of_a_private_queue_is_free_again_when_it_is_gone(cluster: CoreCluster) -> None:
    owner = cluster["s1"].connect()
    private_queue(owner, "mine")
    owner.close_socket()
    client = cluster["b3"].connect()
    assert refused(client, QueueDeclare("mine", passive=True))[0] == 404
    assert client.declare("mine") == "mine"


# --- replies


@pytest.mark.parametrize("asker", EVERYWHERE)
@pytest.mark.parametrize("server", EVERYWHERE)
def test_replies_find_their_way_between_any_two_brokers(
    cluster: CoreCluster, asker: str, server: str
) -> None:
    asking, edge_connection = cluster[asker].connect(), cluster[server].connect()
    queue_at(edge_connection, "requests", "b2")
    edge_connection.consume("requests", no_ack=True)
    asking.call(BasicConsume("amq.rabbitmq.reply-to", no_ack=True), BasicConsumeOk)
    for number in range(3):
        asking.publish(
            "", "requests", b"%d?" % number, Properties(reply_to="amq.rabbitmq.reply-to")
        )
        [request] = edge_connection.deliveries()
        assert request.properties.reply_to is not None
        edge_connection.call(
            QueueDeclare(request.properties.reply_to, passive=True), QueueDeclareOk
        )
        edge_connection.publish("", request.properties.reply_to, b"%d!" % number)
    assert asking.bodies() == [b"0!", b"1!", b"2!"]


# --- exchanges that delete themselves


@pytest.mark.parametrize("owner", EVERYWHERE)
def test_auto_delete_exchange_stays_while_others_have_private_bindings(
    cluster: CoreCluster, owner: str
) -> None:
    client, other = cluster[owner].connect(), cluster["b3"].connect()
    exchange(client, "x", "direct", auto_delete=True)
    queue = private_queue(client)
    bind(client, queue, "x", "k")
    elsewhere = private_queue(other)
    bind(other, elsewhere, "x", "k")
    unbind(client, queue, "x", "k")
    assert all(
        "x" in member.broker.state.vhosts["/"].router.exchanges for member in cluster.running()
    )
    code, _ = refused(client, ExchangeDelete("x", if_unused=True))
    assert code == 406
    other.consume(elsewhere, no_ack=True)
    client.publish("x", "k", b"still")
    assert other.bodies() == [b"still"]
    other.close_socket()
    assert not any(
        "x" in member.broker.state.vhosts["/"].router.exchanges for member in cluster.running()
    )


def test_auto_delete_exchange_outlives_a_broken_link(cluster: CoreCluster) -> None:
    owner, client = cluster["b3"].connect(), cluster["b2"].connect()
    exchange(owner, "x", "direct", auto_delete=True)
    bind(owner, private_queue(owner), "x", "k")
    queue = private_queue(client)
    bind(client, queue, "x", "k")
    cluster.cut("b2", "b3")
    unbind(client, queue, "x", "k")
    cluster.advance(2_000)
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance(15_000)
    assert "x" in cluster["b1"].broker.state.vhosts["/"].router.exchanges
    owner.close_socket()
    assert "x" not in cluster["b1"].broker.state.vhosts["/"].router.exchanges


def test_auto_delete_exchange_goes_with_the_broker_that_was_bound(cluster: CoreCluster) -> None:
    owner = cluster["s2"].connect()
    exchange(owner, "x", "direct", auto_delete=True)
    bind(owner, private_queue(owner), "x", "k")
    cluster["s2"].kill()
    cluster.advance_until(
        lambda: "x" not in cluster["b1"].broker.state.vhosts["/"].router.exchanges, 60_000
    )


# --- what applies everywhere


def test_deleted_user_is_thrown_out_everywhere(cluster: CoreCluster) -> None:
    clients = [cluster[name].connect() for name in EVERYWHERE]
    cluster["b2"].node.propose(PutUser("guest", ""), None)
    cluster["b2"].settle()
    cluster["s1"].node.propose(DeleteUser("guest"), None)
    cluster["s1"].settle()
    for client in clients:
        assert client.expect(ConnectionClose, 0).reply_code == 320


def test_deleted_vhost_takes_its_interests_along(cluster: CoreCluster) -> None:
    listener = subscriber(cluster, "b2", "amq.fanout")
    cluster["b1"].node.propose(DeleteVhost("/"), None)
    cluster["b1"].settle()
    assert listener.expect(ConnectionClose, 0).reply_code == 320
    assert interests_of(cluster, "b1", "b2") == 0
    cluster["b1"].node.propose(PutVhost("/"), None)
    cluster["b1"].settle()
    again = subscriber(cluster, "b2", "amq.fanout")
    cluster["b3"].connect().publish("amq.fanout", "", b"m")
    assert again.bodies() == [b"m"]


def test_policy_counts_at_every_home(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    for home in ("b1", "b3"):
        queue_at(client, f"at-{home}", home)
        for number in range(5):
            client.publish("", f"at-{home}", b"%d" % number)
    cluster["b2"].node.propose(PutPolicy("/", "short", "^at-", {"max-length": 2}), None)
    cluster["b2"].settle()
    assert [drain(client, f"at-{home}") for home in ("b1", "b3")] == [[b"3", b"4"]] * 2
