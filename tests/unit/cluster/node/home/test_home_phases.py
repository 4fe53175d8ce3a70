"""The phase of a home says what it does: every transition that its state machine has."""

from __future__ import annotations

import pytest

from rhizome.cluster.home.home_group import HomeGroup
from rhizome.cluster.state.cluster_commands import AppointHome
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    group_of,
    hand_over_in_vain,
    queue_at,
    wait_for_copy,
)

HOME = "b3"


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def declare(cluster: CoreCluster, name: str = "q", **options: object) -> HomeGroup:
    client = cluster[HOME].connect()
    queue_at(client, name, HOME, durable=True, **options)
    wait_for_copy(cluster, name)
    client.publish("", name, b"0", PERSISTENT)
    cluster.settle()
    group = group_of(cluster, name)
    return cluster[group.home].node.roles.homes[group.id]


def limits(home: HomeGroup) -> tuple[str, bool, bool]:
    return home.phase_name(), home.log.still, home.log.silent


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_a_takeover_ends_one_home_and_has_the_next_recover_first(
    cluster: CoreCluster, kind: str
) -> None:
    before = declare(cluster, x_queue_type=kind)
    assert limits(before) == ("serving", False, False)
    assert before.sessions.phase is before.phase
    group = group_of(cluster, "q")
    standby = group.in_sync[0].broker
    # An edge that can't attach is waited for.
    cluster.cut(standby, "s1")
    member = cluster[standby].node
    order = AppointHome(group.id, standby, member.me.incarnation, group.epoch, group.version)
    cluster[cluster.root()].node.propose(order, None)
    cluster.advance_until(lambda: group.id in member.roles.homes)
    home = member.roles.homes[group.id]
    assert limits(home) == ("recovering", True, True)
    cluster.advance_until(lambda: before.phase_name() == "ended")
    cluster.heal()
    cluster.advance_until(lambda: limits(home) == ("serving", False, False))


def test_a_transfer_that_is_not_answered_is_given_up(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(cluster)
    home = hand_over_in_vain(cluster, "q", monkeypatch)
    assert limits(home) == ("handing over", True, False)
    cluster.advance_until(lambda: not home.is_handing_over)
    assert limits(home) == ("serving", False, False)


def test_a_fault_while_a_home_hands_over_is_no_reason_to_serve_again(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(cluster)
    client = cluster[HOME].connect()
    client.confirm()
    home = hand_over_in_vain(cluster, "q", monkeypatch)
    home.fail()
    home.transfer.give_up()
    assert limits(home) == ("failed", True, True)
    client.send_bytes(client.published("", "q", b"1", PERSISTENT))
    cluster.advance_until(lambda: home.phase_name() == "ended", 60_000)
    cluster.advance_until(lambda: confirmed(client) == 1, 60_000)
    assert group_of(cluster, "q").home != HOME
