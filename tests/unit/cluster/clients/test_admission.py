"""Which broker takes an application."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import ConnectionClose, ConnectionOpenOk, ConnectionRedirect
from rhizome.broker.access.application_cluster_token import application_token
from rhizome.testing.in_memory_broker import CAPABILITIES, CoreClient
from rhizome.testing.in_memory_cluster import KEY, CoreCluster, make_cluster

ABLE: dict[str, object] = {"capabilities": {**CAPABILITIES, "connection.redirect": True}}


def answer(client: CoreClient) -> object:
    return client.events[0].pop(0)


def others(cluster: CoreCluster, but: str) -> set[str]:
    return {str(cluster.address_of(name)) for name in cluster.members if name != but}


def test_open_ok_names_the_other_brokers() -> None:
    cluster = make_cluster(3, 1)
    opened = answer(cluster["b1"].connect(opens=False))
    assert isinstance(opened, ConnectionOpenOk)
    assert set(opened.known_hosts.split(",")) == others(cluster, "b1")


def test_who_wants_the_root_is_sent_there_once() -> None:
    cluster = make_cluster(3)
    other = next(name for name in cluster.members if name != cluster.root())
    wants: dict[str, object] = {**ABLE, "want": "root"}
    sent = answer(cluster[other].connect(properties=wants, opens=False))
    assert isinstance(sent, ConnectionRedirect)
    assert sent.host == str(cluster.address_of(cluster.root()))
    again: dict[str, object] = {**wants, "redirected": True}
    assert isinstance(
        answer(cluster[other].connect(properties=again, opens=False)), ConnectionOpenOk
    )
    at_root = cluster[cluster.root()].connect(properties=wants, opens=False)
    assert isinstance(answer(at_root), ConnectionOpenOk)


def test_clients_that_cannot_follow_are_served() -> None:
    cluster = make_cluster(2, connect_policy="redirect")
    for _ in range(8):
        assert isinstance(answer(cluster["b1"].connect(opens=False)), ConnectionOpenOk)


@pytest.mark.parametrize("secondaries", [0, 2])
def test_redirect_spreads_connections(secondaries: int) -> None:
    """Over primaries and secondaries alike."""
    cluster = make_cluster(3, secondaries, connect_policy="redirect")
    cluster.advance(2_000)
    served: dict[str, int] = dict.fromkeys(cluster.members, 0)
    for _ in range(10 * len(cluster.members)):
        at = cluster["b1"].connect(properties=ABLE, opens=False)
        told = answer(at)
        if isinstance(told, ConnectionRedirect):
            target = cluster.at(told.host)
            assert target is not None
            target.connect(properties={**ABLE, "redirected": True})
            served[target.name] += 1
        else:
            assert isinstance(told, ConnectionOpenOk)
            served["b1"] += 1
    assert max(served.values()) - min(served.values()) <= 4, served


def test_nobody_is_sent_to_the_edge_of_another_host() -> None:
    """Edges have the fewest connections, and no address for others."""
    cluster = make_cluster(3, 2, connect_policy="redirect", edge=True)
    cluster.advance(2_000)
    opened = answer(cluster["b1"].connect(opens=False))
    assert isinstance(opened, ConnectionOpenOk)
    assert set(opened.known_hosts.split(",")) == {str(cluster.address_of(n)) for n in ("b2", "b3")}
    sent = 0
    for _ in range(20):
        told = answer(cluster["b1"].connect(properties=ABLE, opens=False))
        if isinstance(told, ConnectionRedirect):
            target = cluster.at(told.host)
            assert target is not None
            assert target.name in ("b2", "b3")
            target.connect(properties={**ABLE, "redirected": True})
            sent += 1
    assert sent > 0


def test_passive_brokers_name_the_active_one() -> None:
    cluster = make_cluster(3, placement="root", connect_policy="active-only")
    homes = {group.home for group in cluster["b1"].node.state.groups.groups.values()}
    assert len(homes) == 1
    home = homes.pop()
    passive = next(name for name in cluster.members if name != home)
    refused = answer(cluster[passive].connect(opens=False))
    assert isinstance(refused, ConnectionClose)
    assert refused.reply_code == 320
    assert str(cluster.address_of(home)) in refused.reply_text
    sent = answer(cluster[passive].connect(properties=ABLE, opens=False))
    assert isinstance(sent, ConnectionRedirect)
    assert sent.host == str(cluster.address_of(home))
    assert isinstance(answer(cluster[home].connect(opens=False)), ConnectionOpenOk)


def test_applications_must_show_the_token_of_the_cluster() -> None:
    cluster = make_cluster(1, demand_key=True, name="production")
    wrong: list[dict[str, object]] = [{}, {"cluster_token": "of another"}, {"cluster_token": b""}]
    for shown in wrong:
        refused = answer(cluster["b1"].connect(properties=shown, opens=False))
        assert isinstance(refused, ConnectionClose)
        assert refused.reply_code == 530
        assert "production" in refused.reply_text
        assert "app-token" in refused.reply_text
    right: dict[str, object] = {"cluster_token": application_token(KEY)}
    assert isinstance(
        answer(cluster["b1"].connect(properties=right, opens=False)), ConnectionOpenOk
    )
