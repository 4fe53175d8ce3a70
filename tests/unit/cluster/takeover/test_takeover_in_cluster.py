"""What the root decides, in clusters of whole brokers: who is home afterwards, and with what."""

from __future__ import annotations

import pytest

from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import PutPolicy
from rhizome.cluster.state.cluster_commands import WHOLE, ClusterCommand, ForceHome, SetDraining
from rhizome.cluster.state.groups_and_placement import Group, unavailable
from rhizome.cluster.takeover.takeover_driver import TakeoverDriver
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster

PERSISTENT = Properties(delivery_mode=2)


def group_of(cluster: CoreCluster, queue: str) -> Group:
    member = cluster.running()[0]
    found = member.node.state.group_of(member.queue(queue).definition)
    assert found is not None
    return found


def serves(cluster: CoreCluster, queue: str) -> bool:
    """Whether the home of a queue's group runs and has recovered."""
    group = group_of(cluster, queue)
    running = {each.name: each for each in cluster.running()}
    home = running.get(group.home)
    if home is None or home.node.me.incarnation != group.incarnation:
        return False
    found = home.node.roles.homes.get(group.id)
    return found is not None and not found.log.silent


def whole_members(cluster: CoreCluster, queue: str) -> list[str]:
    return [each.broker for each in group_of(cluster, queue).in_sync if each.copy == WHOLE]


def settled(cluster: CoreCluster, queue: str, copies: int = 1) -> None:
    """Wait until a queue is served and so many standbys are whole."""
    cluster.advance_until(
        lambda: serves(cluster, queue) and len(whole_members(cluster, queue)) >= copies, 60_000
    )


def propose(cluster: CoreCluster, command: ClusterCommand) -> None:
    cluster[cluster.root()].node.propose(command, None)
    cluster.settle()


def publish(client: CoreClient, queue: str, first: int, end: int) -> None:
    for number in range(first, end):
        client.send_bytes(client.published("", queue, b"%d" % number, PERSISTENT))


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def consumed(cluster: CoreCluster, at: str, queue: str) -> list[bytes]:
    client = cluster[at].connect()
    client.consume(queue, no_ack=True)
    cluster.settle()
    return client.bodies()


def restart(cluster: CoreCluster, *names: str) -> None:
    for name in names:
        cluster[name].start()
    cluster.advance_until_ready()


# --- the home follows the root (R14)


def test_new_root_is_the_home_of_the_only_group() -> None:
    cluster = make_cluster(3, placement="root", copies=3)
    client = cluster[cluster.root()].connect()
    client.declare("q", durable=True)
    settled(cluster, "q", 2)
    first = cluster.root()
    assert group_of(cluster, "q").home == first
    publish(client, "q", 0, 10)
    cluster.settle()
    cluster[first].kill()
    cluster.advance_until(lambda: cluster.root() not in ("", first) and serves(cluster, "q"))
    cluster.advance(1_000)
    assert group_of(cluster, "q").home == cluster.root()
    assert consumed(cluster, cluster.root(), "q") == numbers(0, 10)


@pytest.mark.parametrize("broken", [True, False])
def test_root_that_has_no_copy_hands_its_office_to_the_home(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they stay apart, and who asks for the root gets a broker that serves nothing."""
    if broken:
        monkeypatch.setattr(TakeoverDriver, "hand_over", lambda self, broker: None)
    cluster = make_cluster(3, placement="root", copies=2)
    client = cluster[cluster.root()].connect()
    client.declare("q", durable=True)
    settled(cluster, "q")
    home = group_of(cluster, "q").home
    bare = next(
        name
        for name in ("b1", "b2", "b3")
        if name != home and name not in whole_members(cluster, "q")
    )
    root = cluster[cluster.root()].node
    term = root.consensus.term
    root.consensus.transfer_root(bare, root.now_ms)
    cluster.advance_until(lambda: root.consensus.term > term)
    if broken:
        cluster.advance(20_000)
        assert (cluster.root(), group_of(cluster, "q").home) == (bare, home)
        return
    cluster.advance_until(lambda: cluster.root() == home)
    assert root.consensus.term >= term + 2, "there and back"
    assert group_of(cluster, "q").epoch == 1


def test_drained_root_takes_the_group_along() -> None:
    cluster = make_cluster(3, placement="root", copies=2)
    first = cluster.root()
    client = cluster[first].connect()
    client.declare("q", durable=True)
    settled(cluster, "q")
    publish(client, "q", 0, 10)
    cluster.settle()
    propose(cluster, SetDraining(first, True))
    cluster.advance_until(lambda: cluster.root() not in ("", first))
    cluster.advance_until(lambda: group_of(cluster, "q").home == cluster.root(), 60_000)
    settled(cluster, "q")
    assert first not in [each.broker for each in group_of(cluster, "q").in_sync]
    assert consumed(cluster, cluster.root(), "q") == numbers(0, 10)


# --- fail-back


def test_group_goes_back_to_the_broker_that_it_came_from() -> None:
    cluster = make_cluster(3)
    client = cluster["b3"].connect()
    client.declare("q", durable=True, x_group="b1")
    settled(cluster, "q")
    publish(client, "q", 0, 10)
    cluster.settle()
    cluster["b1"].kill()
    cluster.advance_until(lambda: group_of(cluster, "q").home != "b1" and serves(cluster, "q"))
    publish(client, "q", 10, 20)
    restart(cluster, "b1")
    cluster.advance_until(lambda: group_of(cluster, "q").home == "b1", 60_000)
    settled(cluster, "q")
    assert consumed(cluster, "b1", "q") == numbers(0, 20)
    assert len(group_of(cluster, "q").in_sync) == 1


def test_group_stays_where_it_is_without_rebalancing() -> None:
    cluster = make_cluster(3, rebalance="off")
    client = cluster["b3"].connect()
    client.declare("q", durable=True, x_group="b1")
    settled(cluster, "q")
    cluster["b1"].kill()
    cluster.advance_until(lambda: group_of(cluster, "q").home != "b1" and serves(cluster, "q"))
    restart(cluster, "b1")
    cluster.advance(30_000)
    assert group_of(cluster, "q").home != "b1"


# --- queues that are not replicated


def test_local_queue_waits_for_its_broker_with_its_messages() -> None:
    cluster = make_cluster(3)
    client = cluster["b2"].connect()
    client.declare("q", durable=True, x_replicate="none", x_group="b1")
    publish(client, "q", 0, 10)
    cluster.settle()
    cluster["b1"].kill()
    cluster.advance(10_000)
    group = group_of(cluster, "q")
    assert (group.home, group.local) == ("b1", True)
    registry = cluster["b2"].node.state.registry
    assert unavailable(group, registry).endswith("its queues are not replicated: start b1")
    restart(cluster, "b1")
    assert consumed(cluster, "b2", "q") == numbers(0, 10)


def test_new_queues_go_to_brokers_that_are_there() -> None:
    cluster = make_cluster(3)
    client = cluster["b2"].connect()
    cluster["b1"].kill()
    cluster.advance(5_000)
    for number in range(6):
        client.declare(f"q{number}", x_replicate="none" if number % 2 else "messages")
    homes = [group_of(cluster, f"q{number}").home for number in range(6)]
    assert "b1" not in homes


# --- copies


def test_policy_gives_a_group_more_copies() -> None:
    cluster = make_cluster(4)
    client = cluster["b1"].connect()
    client.declare("q", durable=True, x_group="b1")
    settled(cluster, "q", 1)
    policy = PutPolicy("/", "p", "^q", {"copies": 3})
    cluster[cluster.root()].node.propose(policy, None)
    settled(cluster, "q", 2)
    cluster.advance(5_000)
    assert len(group_of(cluster, "q").in_sync) == 2


# --- force


def test_forced_home_begins_with_what_it_has_and_others_follow() -> None:
    """The home and its only standby are lost at once; the others have nothing."""
    cluster = make_cluster(5, rebalance="off")
    client = cluster["b1"].connect()
    client.declare("q", durable=True, x_group="b1")
    settled(cluster, "q")
    publish(client, "q", 0, 10)
    cluster.settle()
    (standby,) = whole_members(cluster, "q")
    other = next(name for name in ("b2", "b3") if name != standby)
    cluster["b1"].kill()
    cluster[standby].kill()
    cluster.advance(10_000)
    group = group_of(cluster, "q")
    assert (group.home, group.epoch) == ("b1", 1), "nobody takes it over by himself"
    registry = cluster[other].node.state.registry
    assert unavailable(group, registry) == (
        f"its home b1 is down, and so are its copies: start {standby} (whole) or b1"
    )
    incarnation = registry.get(other).incarnation
    propose(cluster, ForceHome(group.id, other, incarnation, group.epoch, group.version, 0))
    cluster.advance_until(lambda: group_of(cluster, "q").home == other and serves(cluster, "q"))
    publish(cluster[other].connect(), "q", 100, 105)
    cluster.settle()
    restart(cluster, "b1", standby)
    settled(cluster, "q")
    cluster.advance(5_000)
    assert consumed(cluster, "b1", "q") == numbers(100, 105)


def test_power_cut_heals_without_the_old_home() -> None:
    """Everybody restarts but the home: its standby has everything persistent (G3)."""
    cluster = make_cluster(3)
    client = cluster["b1"].connect()
    client.declare("q", durable=True, x_group="b1")
    settled(cluster, "q")
    publish(client, "q", 0, 10)
    cluster.settle()
    for name in ("b1", "b2", "b3"):
        cluster[name].kill()
    restart(cluster, "b2", "b3")
    cluster.advance_until(lambda: serves(cluster, "q"), 60_000)
    assert group_of(cluster, "q").home != "b1"
    assert consumed(cluster, "b2", "q") == numbers(0, 10)


def test_standby_that_restarted_takes_over_with_what_is_on_disk() -> None:
    """Its home dies before it has caught up; nobody else has a copy, so patience ends."""
    cluster = make_cluster(3, whole_patience_ms=2_000)
    root = cluster.root()
    groups = cluster[root].node.state.groups.groups.values()
    home, standby = next(
        (each.home, each.failover[0])
        for each in groups
        if root not in (each.home, each.failover[0])
    )
    client = cluster[root].connect()
    client.declare("q", durable=True, x_group=home)
    settled(cluster, "q")
    publish(client, "q", 0, 10)
    cluster.settle()
    cluster.cut(home, standby)
    cluster[standby].kill()
    cluster[standby].start()
    cluster.advance_until(lambda: [m.copy for m in group_of(cluster, "q").in_sync] == ["disk"], 450)
    cluster[home].kill()
    cluster.heal()
    cluster.advance_until(lambda: serves(cluster, "q"))
    assert group_of(cluster, "q").home == standby
    assert consumed(cluster, root, "q") == numbers(0, 10)
