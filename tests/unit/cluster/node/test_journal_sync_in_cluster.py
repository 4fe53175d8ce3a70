"""Each broker syncs its journal as it is configured to, and a confirm waits accordingly (O8)."""

from __future__ import annotations

import pytest

from rhizome.journal.writer import ALWAYS, NEVER, every
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.held_standby import Standby
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    drain,
    group_of,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)

HOME, STANDBY = "b1", "b3"
FLUSHES = {"always": ALWAYS, "interval": every(100), "never": NEVER}


def cluster_with(home: str, standby: str) -> CoreCluster:
    cluster = make_cluster(3, 1)
    for name, flush in ((HOME, home), (STANDBY, standby)):
        cluster[name].flush_policy = FLUSHES[flush]
        cluster[name].kill()
        cluster[name].start()
        cluster.advance_until_ready()
    return cluster


def publisher(cluster: CoreCluster, at: str) -> CoreClient:
    """A client whose confirms wait for the home and its only standby."""
    client = cluster[at].connect()
    queue_at(client, "q", HOME, durable=True)
    wait_for_copy(cluster, "q")
    Standby(cluster, "q", STANDBY)
    assert group_of(cluster, "q").home == HOME
    client.confirm()
    return client


def publish(client: CoreClient, count: int) -> None:
    for number in range(count):
        client.publish("", "q", b"%d" % number, PERSISTENT)


@pytest.mark.parametrize("home", FLUSHES)
@pytest.mark.parametrize("standby", FLUSHES)
@pytest.mark.parametrize("held", [HOME, STANDBY])
def test_a_confirm_waits_for_the_disks_of_those_that_always_flush(
    home: str, standby: str, held: str
) -> None:
    """Of the others it is enough that they have written it."""
    cluster = cluster_with(home, standby)
    client = publisher(cluster, "s1")
    cluster[held].hold_disk()
    publish(client, 5)
    waits = (home if held == HOME else standby) == "always"
    assert confirmed(client) == (0 if waits else 5)
    cluster[held].let_disk_go()
    assert confirmed(client) == (5 if waits else 0)
    assert drain(client, "q") == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("flush", ["interval", "never"])
def test_a_standby_that_has_only_written_takes_over_with_all_that_was_confirmed(
    flush: str, crashes: bool
) -> None:
    """Though its own process crashes as well: what it has written the operating system has."""
    cluster = cluster_with("always", flush)
    client = publisher(cluster, "s1")
    cluster[STANDBY].hold_disk()
    publish(client, 20)
    assert confirmed(client) == 20
    cluster[HOME].kill()
    if crashes:
        cluster[STANDBY].kill()
        cluster[STANDBY].start()
    assert wait_for_new_home(cluster, "q", HOME) == STANDBY
    assert drain(cluster["b2"].connect(), "q") == [b"%d" % number for number in range(20)]


def home_without_standby() -> tuple[CoreCluster, CoreClient]:
    """A queue at a primary whose only standby is dead, and its consumer at another broker."""
    cluster = make_cluster(2, 1)
    client = cluster["s1"].connect()
    queue_at(client, "q", HOME, durable=True)
    cluster["b2"].kill()
    cluster.advance_until(lambda: not group_of(cluster, "q").in_sync)
    client.confirm()
    client.consume("q")
    return cluster, client


def test_a_home_without_a_standby_shows_what_is_persistent_when_its_disk_has_it() -> None:
    """Shown earlier it would be gone with its home, its edge would send it again, and a consumer
    whose broker and connection live on would get it twice (L1)."""
    cluster, client = home_without_standby()
    cluster[HOME].hold_disk()
    publish(client, 3)
    assert client.bodies() == []
    cluster[HOME].let_disk_go()
    assert client.bodies() == [b"0", b"1", b"2"]


def test_a_home_without_a_standby_shows_what_is_transient_at_once() -> None:
    """It is gone with its home, shown or not; behind something persistent it waits in its turn."""
    cluster, client = home_without_standby()
    cluster[HOME].hold_disk()
    client.publish("", "q", b"transient")
    assert client.bodies() == [b"transient"]
    publish(client, 1)
    client.publish("", "q", b"behind")
    assert client.bodies() == []
    cluster[HOME].let_disk_go()
    assert client.bodies() == [b"0", b"behind"]
