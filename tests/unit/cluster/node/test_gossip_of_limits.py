"""What a root relays between secondaries of what they use: only what is limited, and used."""

from __future__ import annotations

from rhizome.broker.metadata.metadata_commands import SCOPE_VHOST, PutLimit
from rhizome.testing.in_memory_cluster import make_cluster


def test_a_root_tells_secondaries_only_of_those_that_use_what_is_limited() -> None:
    cluster = make_cluster(3, 2)
    root = cluster[cluster.root()]
    cluster["s1"].connect()
    cluster.advance(3_000)
    assert root.node.gossip.news()["relayed"] == {}
    root.node.propose(PutLimit(SCOPE_VHOST, "/", "max-connections", 5), None)
    cluster.advance(3_000)
    relayed = root.node.gossip.news()["relayed"]
    assert isinstance(relayed, dict)
    assert list(relayed) == ["s1"]
    kinds = root.broker.limits.used()
    assert [cluster["s2"].node.gossip.used_elsewhere(kind, "/") for kind in kinds].count(1) == 1
