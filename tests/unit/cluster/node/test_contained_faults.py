"""A fault in one group, standby or entry: the rest of the turn is done, nothing is confirmed that
may be lost, and the fault is told."""

from __future__ import annotations

import pytest
from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table
from rhizome.amqp.methods import ConfirmSelect, ConfirmSelectOk, QueueDeclare
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.home.home_group import HomeGroup
from rhizome.cluster.link.link import CLOSED
from rhizome.cluster.node_observer import NodeObserver
from rhizome.cluster.protocol.catalogue import INVITE, PROPOSE, RECORDS, REPLICATED
from rhizome.cluster.replication.catch_up_sender import LiveQueue
from rhizome.cluster.replication.queue_standby import QueueStandby, QueueStandbyPort
from rhizome.cluster.replication.replicator_port import ReplicatorPort
from rhizome.cluster.state.cluster_commands import Envelope, PutSettings, encode
from rhizome.cluster.state.cluster_commands import Member as CopyMember
from rhizome.cluster.state.cluster_state import Applied, StateFailed
from rhizome.cluster.state.failover_map import UnknownPolicyError
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, Member, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    group_of,
    queue_at,
    wait_for_copy,
)


class Odd(Exception):
    """Something that nobody expected."""


@pytest.fixture
def cluster() -> CoreCluster:
    made = make_cluster(3, 1)
    for member in made.members.values():
        # Faults are part of these tests: they are read from the fault log.
        member.observer.bugs = Forgetful()
    return made


class Forgetful(list[BaseException]):
    def append(self, error: BaseException) -> None:
        assert isinstance(error, (Odd, StateFailed)), error


class FaultyPort(ReplicatorPort):
    """A home's port that fails in one of the things that it does."""

    def __init__(self, home: HomeGroup, method: int = 0, proposes: bool = True) -> None:
        super().__init__()
        self.port = home.copies.port
        self.method = method
        self.proposes = proposes

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        if method == self.method:
            raise Odd(f"frame {method}")
        return self.port.send(broker, method, parts)

    def propose(self, members: list[CopyMember], version: i64) -> None:
        if not self.proposes:
            raise Odd("propose")
        self.port.propose(members, version)

    def applied(self) -> i64:
        return self.port.applied()

    def read(self, queue_id: i64, first: i64, end: i64, bytes_max: i64, found: list[bytes]) -> i64:
        return self.port.read(queue_id, first, end, bytes_max, found)

    def queue_ids(self) -> list[int]:
        return self.port.queue_ids()

    def live(self, queue_id: i64) -> LiveQueue | None:
        return self.port.live(queue_id)

    def damaged(self) -> list[tuple[int, int]]:
        return self.port.damaged()

    def failed(self, name: str, error: Exception) -> None:
        self.port.failed(name, error)


class MuteStandby(QueueStandbyPort):
    """Fails when it answers its home."""

    def __init__(self, port: QueueStandbyPort) -> None:
        super().__init__()
        self.port = port

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        if method == REPLICATED:
            raise Odd("an answer")
        return self.port.send(broker, method, parts)

    def applied(self) -> i64:
        return self.port.applied()


class FaultyObserver(NodeObserver):
    def applied(self, entry: Entry) -> None:
        raise Odd("applied")


def two_queues(cluster: CoreCluster) -> tuple[CoreClient, str, str]:
    """A publisher at s1 of two queues with copies, in groups whose homes are b1 and b2."""
    client = cluster["s1"].connect()
    first = queue_at(client, "first", "b1", durable=True)
    second = queue_at(client, "second", "b2", durable=True)
    wait_for_copy(cluster, first)
    wait_for_copy(cluster, second)
    client.call(ConfirmSelect(), ConfirmSelectOk)
    return client, first, second


def home_of(cluster: CoreCluster, queue: str) -> tuple[Member, HomeGroup]:
    group = group_of(cluster, queue)
    member = cluster[group.home]
    return member, member.node.roles.homes[group.id]


def test_a_fault_of_one_follower_has_it_begin_anew(cluster: CoreCluster) -> None:
    client, first, _ = two_queues(cluster)
    member, home = home_of(cluster, first)
    port = home.copies.port
    home.copies.port = FaultyPort(home, RECORDS)
    client.send_bytes(client.published("", first, b"x", PERSISTENT))
    cluster.settle()
    assert member.broker.faults.count("standby") >= 1
    assert confirmed(client) == 0, "the standby counts, and doesn't have it"
    home.copies.port = port
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)
    assert not home.failed


def test_a_home_that_fails_confirms_nothing_and_the_others_go_on(cluster: CoreCluster) -> None:
    client, first, second = two_queues(cluster)
    member, home = home_of(cluster, first)
    (standby,) = group_of(cluster, first).in_sync
    cluster[standby.broker].kill()
    cluster.advance_until(lambda: not group_of_at(cluster, "b1", first).in_sync, 60_000)
    # It fails when a standby is to be taken in.
    home.copies.in_sync.port = FaultyPort(home, proposes=False)
    cluster[standby.broker].start()
    cluster[standby.broker].observer.bugs = Forgetful()
    cluster.advance_until(lambda: home.failed, 60_000)
    assert member.broker.faults.count("group") >= 1
    assert member.broker.disabled == ""
    client.send_bytes(client.published("", first, b"x", PERSISTENT))
    cluster.advance(5_000)
    assert confirmed(client) == 0
    assert "must be started again" in home.stall()
    other = cluster["s1"].connect()
    other.call(ConfirmSelect(), ConfirmSelectOk)
    other.send_bytes(other.published("", second, b"x", PERSISTENT))
    cluster.advance_until(lambda: confirmed(other) == 1, 60_000)


def test_a_standby_that_fails_begins_anew(cluster: CoreCluster) -> None:
    client, first, _ = two_queues(cluster)
    group = group_of(cluster, first)
    (kept,) = group.in_sync
    member = cluster[kept.broker]
    standby = member.node.roles.standbys[group.id]
    assert isinstance(standby, QueueStandby)
    link = standby.link
    standby.link = MuteStandby(standby.port)
    client.send_bytes(client.published("", first, b"x", PERSISTENT))
    cluster.settle()
    assert member.broker.faults.count("standby") >= 1
    standby.link = link
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)


def test_a_timer_of_one_home_keeps_no_other_from_its_turn(cluster: CoreCluster) -> None:
    client, first, second = two_queues(cluster)
    member, home = home_of(cluster, first)
    home.copies.port = FaultyPort(home, INVITE)
    for follower in home.copies.followers.values():
        follower.leave()
    cluster.advance(5_000)
    assert member.broker.faults.count("group") >= 1
    assert not home.failed
    client.send_bytes(client.published("", second, b"x", PERSISTENT))
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)


def test_a_broker_that_fails_in_what_was_agreed_on_serves_nobody_and_others_take_over(
    cluster: CoreCluster,
) -> None:
    client, first, _ = two_queues(cluster)
    broken, _ = home_of(cluster, first)
    broken.node.observer = FaultyObserver()
    cluster["s1"].connect().send(QueueDeclare("more", durable=True))
    cluster.advance_until(lambda: bool(broken.broker.disabled), 60_000)
    assert not broken.broker.may_deliver
    cluster.advance_until(lambda: group_of_at(cluster, "b3", first).home != "b1", 60_000)
    client.send_bytes(client.published("", first, b"x", PERSISTENT))
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)


def test_a_broker_that_can_not_apply_an_entry_applies_nothing_more(cluster: CoreCluster) -> None:
    """Its state may be another than everybody's: what it would vote for and serve, too."""
    client, first, _ = two_queues(cluster)
    broken, _ = home_of(cluster, first)
    apply = broken.node.state.apply

    def failing(index: int, payload: bytes) -> Applied:
        if b"poison" in payload:
            raise Odd("half way")
        return apply(index, payload)

    broken.node.state.apply = failing  # type: ignore[method-assign]
    cluster["s1"].connect().send(QueueDeclare("poison", durable=True))
    cluster.advance_until(lambda: bool(broken.broker.disabled), 60_000)
    applied = broken.node.applied.index
    assert broken.broker.disabled.startswith("state-failed: entry ")
    assert "(Odd: half way)" in broken.broker.disabled
    assert not broken.broker.may_deliver
    cluster.advance_until(lambda: group_of_at(cluster, "b3", first).home != "b1", 60_000)
    client.send_bytes(client.published("", first, b"x", PERSISTENT))
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)
    assert "poison" in cluster["b3"].broker.state.vhosts["/"].queues
    assert broken.node.applied.index == applied, "nothing behind the entry is applied"
    assert cluster.root() != "b1"
    broken.kill()
    broken.start()
    cluster.advance_until(lambda: broken.node.ready, 60_000)
    assert broken.broker.disabled == ""
    cluster.advance_until(
        lambda: broken.node.state.snapshot() == cluster["b3"].node.state.snapshot(), 60_000
    )


FOREIGN_SETTINGS = encode(Envelope(PutSettings("spread", 2, "of a package", 1 << 20)))


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff" * 7, encode_table({"v": 2}), encode_table({"v": 1}), FOREIGN_SETTINGS],
    ids=["nothing", "noise", "later version", "no command", "unknown policy"],
)
def test_a_proposal_that_no_broker_could_apply_never_gets_into_the_log(
    cluster: CoreCluster, payload: bytes
) -> None:
    """In the log it would stop all brokers, and stop them again whenever they are started."""
    client, first, _ = two_queues(cluster)
    root = cluster[cluster.root()]
    link = root.node.links.link_to("s1")
    assert link is not None
    sender = cluster["s1"].node.links.link_to(root.name)
    assert sender is not None
    sender.send_urgent(PROPOSE, payload)
    cluster.advance_until(lambda: link.stage == CLOSED, 60_000)
    assert "proposes can't be applied" in link.reason
    client.send_bytes(client.published("", first, b"x", PERSISTENT))
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)
    assert queue_at(cluster["s1"].connect(), "later", "b1", durable=True) == "later"
    assert [member.broker.disabled for member in cluster.members.values()] == [""] * 4


def test_a_broker_of_a_new_cluster_does_not_start_with_a_failover_policy_that_it_lacks() -> None:
    """As the first root it would propose what no broker can apply."""
    with pytest.raises(UnknownPolicyError, match="'rnig' and this broker has ring"):
        make_cluster(3, failover_policy="rnig")


def test_a_home_that_fails_is_replaced_by_a_standby_that_is_in_sync(cluster: CoreCluster) -> None:
    client, first, second = two_queues(cluster)
    client.send_bytes(client.published("", first, b"before", PERSISTENT))
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)
    member, home = home_of(cluster, first)
    (standby,) = group_of(cluster, first).in_sync
    member.node.roles._fault(home.group.id, Odd("in the middle"))
    assert home.failed
    client.send_bytes(client.published("", first, b"after", PERSISTENT))
    cluster.advance_until(lambda: group_of(cluster, first).home == standby.broker, 60_000)
    assert group_of(cluster, second).home == "b2", "the others stay"
    assert member.broker.disabled == ""
    cluster.advance_until(lambda: confirmed(client) == 2, 60_000)
    consumer = cluster["s1"].connect()
    consumer.consume(first, "c")
    cluster.advance_until(lambda: cluster[standby.broker].queue(first).ready == 0, 60_000)
    cluster.settle()
    assert consumer.bodies() == [b"before", b"after"]
    wait_for_copy(cluster, first)


def group_of_at(cluster: CoreCluster, broker: str, queue: str) -> Group:
    """The group of a queue, as this broker knows it."""
    member = cluster[broker]
    found = member.node.state.group_of(member.queue(queue).definition)
    assert found is not None
    return found
