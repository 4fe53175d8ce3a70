"""Hundreds of streams, each a group of its own, when the broker dies that is home of most."""

from __future__ import annotations

from rhizome.cluster.state.cluster_commands import WHOLE
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import confirmed

STREAMS = 200
"""More than any recursion over groups would survive."""


def names() -> list[str]:
    return [f"s{number}" for number in range(STREAMS)]


def stream_groups(cluster: CoreCluster, at: str) -> list[tuple[str, list[str]]]:
    """The home of each stream, and who has a whole copy, as a broker knows it."""
    groups = cluster[at].node.state.groups.groups.values()
    return [
        (group.home, [each.broker for each in group.in_sync if each.copy == WHOLE])
        for group in groups
        if group.stream
    ]


def test_all_streams_of_a_dead_root_find_new_homes() -> None:
    cluster = make_cluster(3)
    client = cluster["b1"].connect()
    for name in names():
        client.declare(name, durable=True, x_queue_type="stream", x_group="b1")
    cluster.advance_until(lambda: all(whole for _, whole in stream_groups(cluster, "b1")))
    root = cluster.root()
    cluster[root].kill()
    left = next(each for each in ("b2", "b3") if each != root)
    cluster.advance_until(
        lambda: all(home not in ("", root) for home, _ in stream_groups(cluster, left)), 60_000
    )
    assert len(stream_groups(cluster, left)) == STREAMS
    publisher = cluster[left].connect()
    publisher.confirm()
    for name in names():
        publisher.publish("", name, b"goes on")
    cluster.advance(2_000)
    for name in names():
        home = next(home for home in ("b1", "b2", "b3") if is_home(cluster, home, name))
        assert cluster[home].queue(name).ready == 1


def test_streams_to_which_nothing_happens_take_no_part_in_turns() -> None:
    cluster = make_cluster(3)
    client = cluster["b1"].connect()
    client.confirm()
    for number in range(10):
        client.declare(f"s{number}", durable=True, x_queue_type="stream", x_group="b1")
    cluster.advance_until(lambda: all(whole for _, whole in stream_groups(cluster, "b1")))
    for name in ("s3", "s7"):
        client.publish("", name, b"something happens")
    cluster.settle()
    for member in cluster.running():
        groups = member.node.state.groups.groups
        awake = [each for each in member.node.roles._awake if groups[each].stream]
        assert awake == [], member.name
    assert confirmed(client) == 2


def is_home(cluster: CoreCluster, at: str, name: str) -> bool:
    member = cluster[at]
    return member.running and member.queue(name).away is None
