"""Of brokers that are gone for good nothing is kept, and nobody dials them."""

from __future__ import annotations

import pytest

from rhizome.testing.in_memory_cluster import CoreCluster, Member, make_cluster
from tests.unit.cluster.node.small_cluster import PATIENCE_MS, private_queue


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2)


def knows(member: Member, name: str) -> list[str]:
    """Where a broker still has something of another."""
    node = member.node
    places = {
        "registry": node.state.registry.brokers,
        "peers": node.links.peers,
        "neighbours": node.peer_brokers,
        "down": node.down_since_ms,
        "told": node.meta_bindings.told,
        "news": node.gossip.heard,
        **{f"copies {n}": home.copies.followers for n, home in node.roles.homes.items()},
    }
    return [place for place, names in places.items() if name in names]


def test_a_secondary_that_is_gone_leaves_nothing_behind_and_may_come_back(
    cluster: CoreCluster,
) -> None:
    """Also at those that were never linked with it, as other secondaries."""
    client = cluster["s2"].connect()
    private_queue(client)
    client.declare("q")
    cluster["s2"].kill()
    others = [cluster[name] for name in ("b1", "b2", "b3", "s1")]
    assert all("peers" in knows(each, "s2") for each in others)
    cluster.advance_until(
        lambda: not any("registry" in knows(each, "s2") for each in others), PATIENCE_MS * 2
    )
    cluster.advance(200)
    assert [knows(each, "s2") for each in others] == [[], [], [], []]
    assert "peers" in knows(cluster["b1"], "s1")
    cluster["s2"].start()
    cluster.advance_until_ready()
    cluster["b1"].connect().publish("", "q", b"x")
    cluster.settle()
    message = cluster["s2"].connect().get("q")
    assert message is not None
    assert message.body == b"x"


def test_a_primary_that_is_down_is_not_forgotten(cluster: CoreCluster) -> None:
    cluster["b3"].kill()
    cluster.advance(20_000)
    assert {"registry", "peers", "neighbours", "down"} <= set(knows(cluster["b1"], "b3"))


def test_a_broker_that_was_removed_while_it_was_linked_is_forgotten_with_its_link(
    cluster: CoreCluster,
) -> None:
    b1 = cluster["b1"]
    b1.node.state.registry.retire("s2", "")
    cluster.advance(200)
    assert "neighbours" in knows(b1, "s2")
    cluster["s2"].kill()
    cluster.advance(200)
    assert knows(b1, "s2") == []
