"""Clients hear of the failover map, and are asked to go elsewhere (J6, J14, J15)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    ConnectionClose,
    ConnectionOpenOk,
    ConnectionRedirect,
    SessionFailoverMap,
    SessionMove,
    TxSelect,
    TxSelectOk,
)
from rhizome.cluster.clients import failover_map_push
from rhizome.cluster.clients.client_relocation import ASKED_AGAIN_MS
from rhizome.cluster.state.cluster_commands import SetDraining, SetFailoverList
from rhizome.testing.in_memory_broker import CAPABILITIES, Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster


def able(*more: str) -> dict[str, object]:
    capabilities = {**CAPABILITIES, "connection.redirect": True, **dict.fromkeys(more, True)}
    return {"capabilities": capabilities}


LISTENS = able("failover.map")
MOVES = able("failover.map", "session.move")


def maps(client: CoreClient) -> list[SessionFailoverMap]:
    return [each for each in client.take(0) if isinstance(each, SessionFailoverMap)]


def moves(client: CoreClient) -> list[SessionMove]:
    return [each for each in client.take(0) if isinstance(each, SessionMove)]


def brokers(told: SessionFailoverMap) -> dict[str, dict[str, object]]:
    listed = told.entries["brokers"]
    assert isinstance(listed, list)
    return {each["name"]: each for each in listed}


def drain(cluster: CoreCluster, name: str, grace_ms: int) -> None:
    cluster["b1"].node.propose(SetDraining(name, True, grace_ms), None)
    cluster.advance_until(lambda: cluster[name].node.state.registry.brokers[name].draining)


def test_a_client_that_asks_gets_the_map_when_it_logs_in() -> None:
    cluster = make_cluster(3, 1)
    (told,) = maps(cluster["b2"].connect(properties=LISTENS))
    assert told.entries["broker"] == "b2"
    assert set(brokers(told)) == {"b1", "b2", "b3", "s1"}
    assert brokers(told)["b3"]["addresses"] == [str(cluster.address_of("b3"))]
    failover = told.entries["failover"]
    assert isinstance(failover, dict)
    known = cluster["b2"].node.state.failover_map
    assert failover == {name: [each.broker for each in infos] for name, infos in known.items()}
    assert maps(cluster["b2"].connect()) == []


def test_every_change_is_told_once() -> None:
    cluster = make_cluster(3)
    client = cluster["b3"].connect(properties=LISTENS)
    (before,) = maps(client)
    cluster["b1"].node.propose(SetFailoverList("b1", ("b3", "b2")), None)
    cluster.advance(500)
    (told,) = maps(client)
    assert told.version > before.version
    failover = told.entries["failover"]
    assert isinstance(failover, dict)
    assert failover["b1"] == ["b3", "b2"]
    client.declare("q")
    cluster.advance(500)
    assert maps(client) == []


def test_a_map_that_is_too_large_has_only_who_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster(3, 1)
    monkeypatch.setattr(failover_map_push, "FRAME_SLACK_BYTES", 4000)
    (told,) = maps(cluster["b1"].connect(properties=LISTENS, frame_max=4096))
    heir = cluster["b1"].node.state.failover_map["b1"][0].broker
    assert set(brokers(told)) == {"b1", heir}
    (told,) = maps(cluster["b1"].connect(properties=LISTENS))
    assert len(brokers(told)) == 4


def test_sessions_leave_a_broker_that_is_drained_over_the_grace_period() -> None:
    cluster = make_cluster(3, 1)
    clients = [cluster["s1"].connect(properties=MOVES) for _ in range(4)]
    drain(cluster, "s1", 4_000)
    cluster.advance(500)
    asked = sum(bool(moves(client)) for client in clients)
    assert asked < 3, "not all at once"
    cluster.advance(4_000)
    asked += sum(bool(moves(client)) for client in clients)
    assert asked == 4
    others = {str(cluster.address_of(name)) for name in ("b1", "b2", "b3")}
    late = cluster["s1"].connect(properties=MOVES, opens=False).events[0][0]
    assert isinstance(late, ConnectionRedirect)
    assert late.host in others


def test_a_client_that_cannot_move_is_closed_with_an_address() -> None:
    cluster = make_cluster(3, 1)
    client = cluster["s1"].connect()
    drain(cluster, "s1", 1_000)
    cluster.advance(2_000)
    (closed,) = [each for each in client.take(0) if isinstance(each, ConnectionClose)]
    assert closed.reply_code == 320
    assert "'s1' is being drained: connect to" in closed.reply_text
    late = cluster["s1"].connect(opens=False).events[0][0]
    assert isinstance(late, ConnectionClose)
    assert late.reply_code == 320


def test_who_holds_messages_may_finish_within_the_grace_period() -> None:
    cluster = make_cluster(3, 1)
    client = cluster["s1"].connect()
    queue = client.declare("q")
    client.publish("", queue, b"one")
    client.consume(queue, "c")
    cluster.advance(100)
    (held,) = [each for each in client.take() if isinstance(each, Content)]
    drain(cluster, "s1", 10_000)
    cluster.advance(6_000)
    assert not [each for each in client.take(0) if isinstance(each, ConnectionClose)]
    client.send(BasicAck(held.tag))
    cluster.advance(5_000)
    assert [each for each in client.take(0) if isinstance(each, ConnectionClose)]


def test_who_was_asked_and_stays_is_closed_in_the_end() -> None:
    cluster = make_cluster(3, 1)
    client = cluster["s1"].connect(properties=MOVES)
    drain(cluster, "s1", 0)
    cluster.advance(2_000)
    assert moves(client)
    cluster.advance(ASKED_AGAIN_MS)
    assert [each for each in client.take(0) if isinstance(each, ConnectionClose)]


def arrive(cluster: CoreCluster, name: str) -> tuple[CoreClient, str]:
    """A client that comes to a broker and goes on if that sends it away; and where it is then."""
    properties = able("session.move")
    client = cluster[name].connect(properties=properties, opens=False)
    told = client.events[0].pop(0)
    if not isinstance(told, ConnectionRedirect):
        return client, name
    target = cluster.at(told.host)
    assert target is not None
    return target.connect(properties={**properties, "redirected": True}), target.name


def redistribute(cluster: CoreCluster, clients: list[CoreClient]) -> list[str]:
    """Let time pass, and clients go where they are asked to; where they have gone, in order."""
    gone: list[str] = []
    for _ in range(60):
        cluster.advance(250)
        for at, client in enumerate(clients):
            for move in moves(client):
                target = cluster.at(move.host)
                assert target is not None
                client.close_socket()
                clients[at], name = arrive(cluster, target.name)
                gone.append(name)
    return gone


def hold(cluster: CoreCluster, queue: str, *more: str) -> tuple[CoreClient, Content]:
    """A client of b1 that moves if it is asked, and a message that it has not acked."""
    client = cluster["b1"].connect(properties=able("session.move", *more))
    client.prefetch(1)
    client.publish("", queue, b"held")
    client.consume(queue)
    [held] = client.deliveries()
    return client, held


def test_clients_are_spread_when_a_broker_comes_back() -> None:
    cluster = make_cluster(2, connect_policy="redirect", copies=1)
    cluster["b1"].connect().declare("q", x_group="b1")
    cluster["b2"].kill()
    cluster.advance(3_000)
    held, _ = hold(cluster, "q")
    clients = [cluster["b1"].connect(properties=able("session.move")) for _ in range(9)]
    cluster["b2"].start()
    cluster.advance_until_ready()
    gone = redistribute(cluster, clients)
    assert 3 <= len(gone) <= 5
    assert set(gone) == {"b2"}, "nobody is sent back"
    assert not moves(held), "it would get its message again"
    held.close_socket()


def test_who_holds_messages_is_sent_back_when_it_has_settled_them() -> None:
    cluster = make_cluster(2, connect_policy="redirect", copies=1)
    cluster["b1"].connect().declare("q", x_group="b1")
    cluster["b2"].kill()
    cluster.advance(3_000)
    holders = [hold(cluster, "q") for _ in range(3)]
    undecided = [cluster["b1"].connect(properties=able("session.move")) for _ in range(3)]
    for client in undecided:
        client.call(TxSelect(), TxSelectOk)
    resuming, _ = hold(cluster, "q", "session.resume")
    cluster["b2"].start()
    cluster.advance_until_ready()
    cluster.advance(5_000)
    assert moves(resuming), "it comes back with what it holds"
    assert not any(moves(client) for client, _ in holders)
    assert not any(moves(client) for client in undecided)
    for client, held in holders:
        client.send(BasicAck(held.tag))
    cluster.advance(5_000)
    assert any(moves(client) for client, _ in holders)
    assert not any(moves(client) for client in undecided)


def test_clients_are_spread_when_a_broker_is_added() -> None:
    cluster = make_cluster(2, connect_policy="redirect")
    clients = [cluster["b1"].connect(properties=able("session.move")) for _ in range(9)]
    clients += [cluster["b2"].connect(properties=able("session.move")) for _ in range(9)]
    cluster.advance(5_000)
    assert not any(moves(client) for client in clients), "they are even"
    cluster.add_secondary("s1")
    cluster.advance_until_ready()
    gone = redistribute(cluster, clients)
    # Two brokers send clients there, and each hears a second later what the other one has done.
    assert gone.count("s1") >= 4
    assert len(gone) - gone.count("s1") <= 2, gone
    counts = [len(each.broker.running_connections()) for each in cluster.running()]
    assert sum(counts) == 18
    assert max(counts) - min(counts) <= 3, counts
    assert redistribute(cluster, clients) == [], "it comes to rest"


def test_clients_that_all_come_to_a_secondary_end_up_everywhere() -> None:
    """It sends them to primaries, which are all that it hears of; these send them on."""
    cluster = make_cluster(3, 2, connect_policy="redirect")
    cluster.advance(2_000)
    clients = [arrive(cluster, "s1")[0] for _ in range(40)]
    assert "s2" in redistribute(cluster, clients)
    counts = [len(each.broker.running_connections()) for each in cluster.running()]
    assert sum(counts) == 40
    assert max(counts) - min(counts) <= 4, counts


def test_policy_serve_leaves_clients_where_they_are() -> None:
    cluster = make_cluster(2)
    clients = [cluster["b1"].connect(properties=able("session.move")) for _ in range(6)]
    cluster.advance(5_000)
    assert not any(moves(client) for client in clients)
    opened = cluster["b2"].connect(properties=MOVES, opens=False).events[0][0]
    assert isinstance(opened, ConnectionOpenOk)
