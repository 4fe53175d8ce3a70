"""What publishers are told of levels is true, whether copies are there or not."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import ConfirmLevel
from rhizome.amqp.properties import Properties
from rhizome.cluster.state.cluster_commands import WHOLE
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import PERSISTENT, bind, queue_at

ASKS: dict[str, object] = {"capabilities": {"confirm.level": True, "basic.nack": True}}
TRANSIENT = Properties(delivery_mode=1)
FULLY_TRANSIENT, RELIABLE_TRANSIENT, PERSISTENT_ALONE, RELIABLE_PERSISTENT = range(4)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def levels(client: CoreClient) -> list[tuple[int, int]]:
    events = client.take()
    return [(int(e.delivery_tag), int(e.level)) for e in events if isinstance(e, ConfirmLevel)]


def publish(client: CoreClient, properties: Properties, *keys: str, exchange: str = "") -> None:
    client.send_bytes(b"".join(client.published(exchange, key, b"x", properties) for key in keys))
    client.core.cluster.settle()  # type: ignore[attr-defined]


def wait_for_copies(cluster: CoreCluster, queue: str, wanted: int = 1) -> None:
    """Until the home of a queue serves, and so many standbys are whole in its own eyes."""

    def is_so() -> bool:
        member = cluster.running()[0]
        group = member.node.state.group_of(member.queue(queue).definition)
        assert group is not None
        if group.home not in [each.name for each in cluster.running()]:
            return False
        log = cluster[group.home].queue(queue).log
        return not log.silent and [each.copy for each in group.in_sync] == [WHOLE] * wanted

    cluster.advance_until(is_so)


def standby_of(cluster: CoreCluster, queue: str) -> str:
    group = cluster["b1"].node.state.group_of(cluster["b1"].queue(queue).definition)
    assert group is not None
    return group.in_sync[0].broker


@pytest.mark.parametrize("at", ["b1", "b2", "s1"])
def test_with_a_standby_without_and_with_it_again(cluster: CoreCluster, at: str) -> None:
    """The same publishes to the same queue; what they reach depends on who is there."""
    client = cluster[at].connect(properties=ASKS)
    queue_at(client, "q", "b1", durable=True)
    wait_for_copies(cluster, "q")
    client.confirm()
    publish(client, PERSISTENT, "q")
    publish(client, TRANSIENT, "q")
    assert levels(client) == [(1, RELIABLE_PERSISTENT), (2, RELIABLE_TRANSIENT)]
    assert standby_of(cluster, "q") == "b3"
    cluster["b3"].kill()
    publish(client, PERSISTENT, "q")
    publish(client, TRANSIENT, "q")
    assert levels(client) == []
    # Confirmed once the set without the standby is committed (G5).
    found: list[tuple[int, int]] = []
    cluster.advance_until(lambda: bool(found.extend(levels(client)) or len(found) > 1))
    assert found == [(3, PERSISTENT_ALONE), (4, FULLY_TRANSIENT)]
    cluster["b3"].start()
    wait_for_copies(cluster, "q")
    publish(client, PERSISTENT, "q")
    publish(client, TRANSIENT, "q")
    assert levels(client) == [(5, RELIABLE_PERSISTENT), (6, RELIABLE_TRANSIENT)]


def test_what_waited_for_a_home_that_is_now_here_has_the_level_of_this_home(
    cluster: CoreCluster,
) -> None:
    """The standby at which it was published takes over, and has no standby itself yet."""
    queue_at(cluster["b2"].connect(), "q", "b1", durable=True)
    wait_for_copies(cluster, "q")
    standby = standby_of(cluster, "q")
    client = cluster[standby].connect(properties=ASKS)
    client.confirm()
    cluster["b1"].kill()
    publish(client, TRANSIENT, "q")
    cluster.advance_until(lambda: len(client.events[1]) > 0)
    assert levels(client) == [(1, FULLY_TRANSIENT)]


@pytest.mark.parametrize("at", ["b1", "b2", "s1"])
def test_levels_of_one_turn_are_told_apart(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect(properties=ASKS)
    queue_at(client, "q", "b1", durable=True)
    queue_at(client, "alone", "b1", durable=True, x_replicate="none")
    queue_at(client, "passing", "b1")
    wait_for_copies(cluster, "q")
    client.confirm()
    publish(client, PERSISTENT, "q", "q", "alone", "passing", "nowhere", "q")
    assert levels(client) == [
        (2, RELIABLE_PERSISTENT),
        (3, PERSISTENT_ALONE),
        (4, RELIABLE_TRANSIENT),
        (5, FULLY_TRANSIENT),
        (6, RELIABLE_PERSISTENT),
    ]


@pytest.mark.parametrize("at", ["b1", "b2", "b3", "s1"])
def test_queues_of_several_homes_have_in_common_what_is_told(cluster: CoreCluster, at: str) -> None:
    """Persistent alone and reliable transient have nothing in common."""
    client = cluster[at].connect(properties=ASKS)
    queue_at(client, "q", "b1", durable=True)
    queue_at(client, "far", "b2", durable=True)
    queue_at(client, "alone", "b3", durable=True, x_replicate="none")
    queue_at(client, "passing", "b2")
    for key, names in {"two": ("q", "far"), "three": ("q", "far", "alone")}.items():
        for name in names:
            bind(client, name, "amq.direct", key)
    bind(client, "alone", "amq.direct", "nothing")
    bind(client, "passing", "amq.direct", "nothing")
    for name in ("q", "far"):
        wait_for_copies(cluster, name)
    client.confirm()
    for key in ("two", "three", "nothing", "two"):
        publish(client, PERSISTENT, key, exchange="amq.direct")
    assert [level for _, level in levels(client)] == [3, 2, 0, 3]
    publish(client, PERSISTENT, "two", "three", "nothing", "two", exchange="amq.direct")
    assert levels(client) == [(5, 3), (6, 2), (7, 0), (8, 3)]


def test_a_stream_is_told_with_its_copies(cluster: CoreCluster) -> None:
    client = cluster["b3"].connect(properties=ASKS)
    queue_at(client, "s", "b1", durable=True, x_queue_type="stream")
    wait_for_copies(cluster, "s")
    client.confirm()
    publish(client, TRANSIENT, "s")
    assert levels(client) == [(1, RELIABLE_PERSISTENT)]


def test_a_duplicate_has_the_level_of_its_original(cluster: CoreCluster) -> None:
    client = cluster["b1"].connect(properties=ASKS)
    queue_at(client, "q", "b1", durable=True)
    wait_for_copies(cluster, "q")
    client.confirm()
    numbered = Properties(delivery_mode=2, headers={"x-producer": "p", "x-sequence": 1})
    publish(client, numbered, "q")
    publish(client, numbered, "q")
    assert levels(client) == [(1, RELIABLE_PERSISTENT), (2, RELIABLE_PERSISTENT)]
    assert cluster["b1"].queue("q").ready == 1


def test_a_home_that_boasts_is_seen(cluster: CoreCluster) -> None:
    """Prove by breaking: without the rule the story above ends otherwise."""
    client = cluster["b2"].connect(properties=ASKS)
    queue_at(client, "q", "b1", durable=True)
    wait_for_copies(cluster, "q")
    client.confirm()
    log = cluster["b1"].queue("q").log
    log.reliable_memory = log.reliable_disk = 1 << 40
    cluster["b3"].kill()
    publish(client, PERSISTENT, "q")
    found: list[tuple[int, int]] = []
    cluster.advance_until(lambda: bool(found.extend(levels(client)) or found))
    assert found == [(1, RELIABLE_PERSISTENT)]


def test_an_unreplicated_queue_is_never_said_to_have_copies(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect(properties=ASKS)
    queue_at(client, "q", "b1", durable=True, x_replicate="none")
    cluster.settle()
    client.confirm()
    publish(client, PERSISTENT, "q")
    publish(client, TRANSIENT, "q")
    assert levels(client) == [(1, PERSISTENT_ALONE), (2, FULLY_TRANSIENT)]
