"""A message that its home can't read comes from a copy; if nobody has it the queue goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.amqp.methods import ConfirmSelect, ConfirmSelectOk
from rhizome.cluster.state.cluster_commands import WHOLE
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, Member, make_cluster
from tests.unit.cluster.node.small_cluster import (
    EVERYWHERE,
    PERSISTENT,
    confirmed,
    group_of,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)

BODIES = [b"body of message %03d" % number for number in range(10)]
PATIENCE_MS = 60_000


@pytest.fixture
def cluster() -> CoreCluster:
    made = make_cluster(3, 1)
    for member in made.members.values():
        # Everything lives on disk, and is read from there.
        member.broker.pager.budget_bytes = 0
    return made


def flip(member: Member, body: bytes) -> None:
    """Change a bit of a body at rest, in every record of it."""
    changed = 0
    for content in member.files.contents.values():
        at = content.find(body)
        while at >= 0:
            content[at] ^= 1
            changed += 1
            at = content.find(body, at + 1)
    assert changed > 0, f"{body!r} is not on the disk of {member.name}"


def backlog(cluster: CoreCluster) -> tuple[CoreClient, str, str]:
    """A queue at b1 with ten messages; its standby."""
    client = cluster["s1"].connect()
    queue = queue_at(client, "work", "b1", durable=True)
    wait_for_copy(cluster, queue)
    client.call(ConfirmSelect(), ConfirmSelectOk)
    client.send_bytes(b"".join(client.published("", queue, body, PERSISTENT) for body in BODIES))
    until(cluster, lambda: cluster["b1"].queue(queue).ready == len(BODIES))
    assert confirmed(client) == len(BODIES)
    return client, queue, group_of(cluster, queue).in_sync[0].broker


def know_nothing_of_fetches(home: Member) -> None:
    """As if the other brokers were of an earlier release."""
    for each in home.node.roles.homes.values():
        for name in EVERYWHERE:
            each.copies.fetches.link_down(name)


def until(cluster: CoreCluster, condition: Callable[[], bool]) -> None:
    waited_ms = 0
    while not condition():
        assert waited_ms < PATIENCE_MS
        cluster.advance(100)
        waited_ms += 100


def bodies(contents: list[Content]) -> list[bytes]:
    return [each.body for each in contents]


def consume(cluster: CoreCluster, queue: str, count: int, at: str = "s1") -> list[bytes]:
    client = cluster[at].connect()
    client.consume(queue, no_ack=True)
    found: list[bytes] = []
    waited_ms = 0
    while len(found) < count and waited_ms < PATIENCE_MS:
        found += client.bodies()
        cluster.advance(100)
        waited_ms += 100
    cluster.advance(1_000)
    found += client.bodies()
    client.close_socket()
    return found


def test_a_message_that_the_home_cannot_read_comes_from_its_standby_in_order(
    cluster: CoreCluster,
) -> None:
    _, queue, _ = backlog(cluster)
    flip(cluster["b1"], BODIES[4])
    assert consume(cluster, queue, len(BODIES)) == BODIES
    damage = cluster["b1"].broker.damage
    assert (damage.repaired, damage.count()) == (1, 0)


def test_a_pull_waits_for_the_standby_and_gets_the_message(cluster: CoreCluster) -> None:
    _, queue, _ = backlog(cluster)
    flip(cluster["b1"], BODIES[0])
    client = cluster["b1"].connect()
    found = client.get(queue)
    assert found is not None
    assert found.body == BODIES[0]


def test_a_message_that_nobody_can_read_is_set_aside(cluster: CoreCluster) -> None:
    _, queue, standby = backlog(cluster)
    flip(cluster["b1"], BODIES[4])
    flip(cluster[standby], BODIES[4])
    rest = BODIES[:4] + BODIES[5:]
    assert consume(cluster, queue, len(rest)) == rest
    (damaged,) = cluster["b1"].broker.damage.everything()
    found = cluster[standby].broker.damage.in_copies
    assert list(found) == [(damaged.queue.id, damaged.index)], "its copy tells of the damage, too"
    assert cluster["b1"].queue(queue).ready == 0


def test_a_standby_whose_copy_is_damaged_goes_on_and_gets_it_from_the_old_home(
    cluster: CoreCluster,
) -> None:
    _, queue, standby = backlog(cluster)
    flip(cluster[standby], BODIES[4])
    cluster["b1"].kill()
    wait_for_new_home(cluster, queue, "b1")
    rest = BODIES[:4] + BODIES[5:]
    assert consume(cluster, queue, len(rest)) == rest
    home = cluster[group_of(cluster, queue).home]
    assert home.broker.damage.count() == 1
    cluster["b1"].start()
    cluster.advance_until_ready()
    until(cluster, lambda: home.broker.damage.repaired == 1)
    assert consume(cluster, queue, 1) == [BODIES[4]]
    assert home.broker.damage.count() == 0


def test_a_copy_that_has_it_whole_serves_what_its_home_had_set_aside(cluster: CoreCluster) -> None:
    """Nothing in the log says that it is gone."""
    _, queue, standby = backlog(cluster)
    home = cluster["b1"]
    flip(home, BODIES[0])
    know_nothing_of_fetches(home)
    client = home.connect()
    found = client.get(queue)
    assert found is not None
    assert found.body == BODIES[1]
    assert home.broker.damage.count() == 1
    home.kill()
    wait_for_new_home(cluster, queue, "b1")
    assert consume(cluster, queue, 9) == [BODIES[0], *BODIES[2:]]
    assert cluster[standby].broker.damage.count() == 0


def test_a_standby_catches_up_though_its_home_has_damage(cluster: CoreCluster) -> None:
    """The home reads what the standby lacks; what can't be read must not end the turn."""
    _, queue, standby = backlog(cluster)
    cluster[standby].kill()
    until(cluster, lambda: standby not in [m.broker for m in group_of(cluster, queue).in_sync])
    flip(cluster["b1"], BODIES[4])
    cluster[standby].files.contents.clear()
    cluster[standby].files.named.clear()
    cluster[standby].start()
    cluster.advance_until_ready()
    wait_for_copy(cluster, queue)
    assert [m.copy for m in group_of(cluster, queue).in_sync] == [WHOLE]
    rest = BODIES[:4] + BODIES[5:]
    assert consume(cluster, queue, len(rest)) == rest


def test_a_dropped_message_is_gone_from_every_copy(cluster: CoreCluster) -> None:
    _, queue, _ = backlog(cluster)
    home = cluster["b1"]
    flip(home, BODIES[0])
    know_nothing_of_fetches(home)
    client = home.connect()
    assert client.get(queue) is not None
    (damaged,) = home.broker.damage.everything()
    assert home.broker.damage.drop(damaged.queue, damaged.index)
    home.settle()
    cluster.advance(1_000)
    home.kill()
    wait_for_new_home(cluster, queue, "b1")
    assert consume(cluster, queue, 8) == BODIES[2:]


def test_a_standby_that_could_not_be_sent_a_message_gets_it_when_the_home_has_it_again() -> None:
    """Else the home would be the only one to have what it confirmed."""
    cluster = make_cluster(3, 1, copies=3)
    for member in cluster.members.values():
        member.broker.pager.budget_bytes = 0
    _, queue, _ = backlog(cluster)
    number = group_of(cluster, queue).id
    until(cluster, lambda: len(group_of(cluster, queue).in_sync) == 2)
    cluster["b2"].kill()
    until(cluster, lambda: len(group_of(cluster, queue).in_sync) == 1)
    cluster["b3"].kill()
    flip(cluster["b1"], BODIES[4])
    cluster["b2"].files.contents.clear()
    cluster["b2"].files.named.clear()
    cluster["b2"].start()
    until(cluster, lambda: [m.broker for m in group_of(cluster, queue).in_sync] == ["b2"])
    copy = cluster["b2"].node.roles.copies[number]
    assert copy.count() == len(BODIES) - 1
    cluster["b3"].start()
    until(cluster, lambda: cluster["b1"].broker.damage.repaired == 1)
    until(cluster, lambda: copy.count() == len(BODIES))
