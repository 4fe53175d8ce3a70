"""A home was forced: what only others had is saved before their copies follow it (G8)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rhizome.amqp.frames import body_of
from rhizome.amqp.properties import Properties
from rhizome.cluster.state.cluster_commands import WHOLE, ForceHome
from rhizome.cluster.state.groups_and_placement import Group, unavailable
from rhizome.journal.files import DiskFiles, Files
from rhizome.journal.salvaged_messages import SalvageManifest
from rhizome.journal.store_inspection import inspect, records
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, Member, make_cluster

PERSISTENT = Properties(delivery_mode=2)


def group_of(cluster: CoreCluster, queue: str = "q") -> Group:
    member = cluster.running()[0]
    found = member.node.state.group_of(member.queue(queue).definition)
    assert found is not None
    return found


def serves(cluster: CoreCluster, copies: int = 0) -> bool:
    group = group_of(cluster)
    running = {each.name: each for each in cluster.running()}
    home = running.get(group.home)
    if home is None or home.node.me.incarnation != group.incarnation:
        return False
    found = home.node.roles.homes.get(group.id)
    whole = [each for each in group.in_sync if each.copy == WHOLE and each.broker in running]
    return found is not None and not found.log.silent and len(whole) >= copies


def publish(client: CoreClient, first: int, end: int) -> None:
    for number in range(first, end):
        client.send_bytes(client.published("", "q", b"%d" % number, PERSISTENT))
    client.core.cluster.settle()  # type: ignore[attr-defined]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def saved(member: Member) -> dict[str, list[bytes]]:
    """What was saved by name, and the bodies of the messages."""
    salvage = member.store.salvage
    return {each.name: bodies(salvage.journal(each.name)) for each in salvage.entries()}


def bodies(files: Files) -> list[bytes]:
    found = [row["content"] for row in records(files, kinds={"enqueue"})]
    return [body_of(each) for each in found if isinstance(each, bytes)]


def force(cluster: CoreCluster, broker: str, parent: int) -> None:
    group = group_of(cluster)
    registry = cluster[broker].node.state.registry
    assert unavailable(group, registry)
    incarnation = registry.get(broker).incarnation
    command = ForceHome(group.id, broker, incarnation, group.epoch, group.version, parent)
    cluster[cluster.root()].node.propose(command, None)
    cluster.advance_until(lambda: group_of(cluster).home == broker and serves(cluster))


def apart() -> CoreCluster:
    """b1 was home, alone at last, and is gone; b3 has what there was before that."""
    cluster = make_cluster(3)
    client = cluster["b1"].connect()
    client.declare("q", durable=True, x_group="b1")
    cluster.advance_until(lambda: serves(cluster, 1))
    assert group_of(cluster).in_sync[0].broker == "b3"
    client.confirm()
    publish(client, 0, 5)
    cluster["b3"].kill()
    publish(client, 5, 9)
    cluster.advance_until(lambda: group_of(cluster).in_sync == ())
    log = cluster["b1"].queue("q").log
    cluster.advance_until(lambda: log.committed_disk == log.next_index - 1)
    cluster["b1"].kill()
    cluster["b3"].start()
    cluster.advance_until_ready()
    return cluster


def come_back(cluster: CoreCluster) -> None:
    """b1 is back, and has been compared with the home."""
    cluster["b1"].start()
    cluster.advance_until_ready()
    group = group_of(cluster)
    cluster.advance_until(lambda: not cluster["b1"].node.roles.has_unseen(group), 60_000)
    cluster.advance_until(lambda: serves(cluster, 1), 60_000)


def test_what_the_forced_home_lacks_is_saved_where_it_was() -> None:
    cluster = apart()
    force(cluster, "b3", 1)
    assert cluster["b3"].queue("q").ready == 5
    come_back(cluster)
    assert saved(cluster["b1"]) == {"group-1-epoch-1": numbers(5, 9)}
    assert saved(cluster["b3"]) == {}
    (about,) = cluster["b1"].store.salvage.entries()
    assert (about.group, about.epoch, about.home, about.home_epoch) == (1, 1, "b3", 2)
    assert [(each.vhost, each.name, each.messages) for each in about.queues] == [("/", "q", 4)]
    assert about.messages == 4
    assert about.first == about.last - 3


def test_a_home_that_had_nothing_makes_others_save_everything() -> None:
    cluster = apart()
    force(cluster, "b2", 0)
    cluster["b3"].kill()
    come_back(cluster)
    assert saved(cluster["b1"]) == {"group-1-epoch-1": numbers(0, 9)}


def test_a_restart_finds_what_was_saved_and_saves_it_once() -> None:
    cluster = apart()
    force(cluster, "b3", 1)
    come_back(cluster)
    for _ in range(2):
        cluster["b1"].kill()
        come_back(cluster)
    assert saved(cluster["b1"]) == {"group-1-epoch-1": numbers(5, 9)}


def test_a_copy_that_nobody_has_compared_is_not_dropped() -> None:
    """Others are whole, so it isn't needed; what it has of its own nobody knows."""
    cluster = apart()
    force(cluster, "b3", 1)
    cluster.advance_until(lambda: serves(cluster, 1), 120_000)
    cluster["b1"].start()
    cluster.advance_until_ready()
    roles = cluster["b1"].node.roles
    cluster.advance(3_000)
    assert roles.has_unseen(group_of(cluster))
    assert roles.copies[1].count() == 9
    # The group goes back where it came from; that is when they are compared.
    cluster.advance_until(lambda: group_of(cluster).home == "b1", 120_000)
    assert saved(cluster["b1"]) == {"group-1-epoch-1": numbers(5, 9)}
    assert not roles.has_unseen(group_of(cluster))
    assert cluster["b1"].queue("q").ready == 5


def test_nothing_is_saved_where_nobody_was_forced() -> None:
    """A home dies with records that its standby never had: nobody was told that these are safe."""
    cluster = make_cluster(3)
    client = cluster["b1"].connect()
    client.declare("q", durable=True, x_group="b1")
    cluster.advance_until(lambda: serves(cluster, 1))
    cluster.cut("b1", "b3")
    publish(client, 0, 3)
    cluster["b1"].kill()
    cluster.heal()
    cluster.advance_until(lambda: group_of(cluster).home != "b1" and serves(cluster), 60_000)
    come_back(cluster)
    assert saved(cluster["b1"]) == {}


@pytest.mark.parametrize("rule", [True, False])
def test_without_the_rule_they_are_gone(rule: bool) -> None:
    """Prove by breaking: a standby that isn't told of the force takes it for a takeover."""
    cluster = apart()
    force(cluster, "b3", 1)
    cluster["b1"].start()
    cluster.advance_until_ready()
    groups = cluster["b1"].node.state.groups.groups
    if not rule:
        groups[1] = replace(groups[1], forced=0)
    cluster.advance_until(lambda: group_of(cluster).home == "b1", 60_000)
    assert saved(cluster["b1"]) == ({"group-1-epoch-1": numbers(5, 9)} if rule else {})


def test_while_it_cannot_be_saved_the_copy_stays_as_it_is() -> None:
    cluster = apart()
    force(cluster, "b3", 1)
    cluster["b1"].start()
    link = cluster["b1"].node.roles.link
    salvager = link.salvager
    assert salvager is not None
    full = [True]

    class Full:
        def save(self, *given: object) -> SalvageManifest:
            if full[0]:
                raise OSError(28, "No space left on device")
            return salvager.save(*given)  # type: ignore[arg-type]

    link.salvager = Full()  # type: ignore[assignment]
    cluster.advance_until_ready()
    cluster.advance(30_000)
    assert cluster["b1"].node.roles.copies[1].count() == 9
    assert group_of(cluster).home == "b3"
    full[0] = False
    cluster.advance_until(lambda: group_of(cluster).home == "b1", 60_000)
    assert saved(cluster["b1"]) == {"group-1-epoch-1": numbers(5, 9)}


def test_what_is_saved_is_a_store_that_can_be_inspected(tmp_path: Path) -> None:
    cluster = apart()
    force(cluster, "b3", 1)
    come_back(cluster)
    directory = tmp_path / "saved"
    _to_disk(cluster["b1"].files.inside("salvage").inside("group-1-epoch-1"), directory)
    report = inspect(directory)
    assert report.corruptions == []
    assert [(queue, count) for queue, (count, _) in report.live.items()] == [
        (int(cluster["b1"].queue("q").id), 4)
    ]


def _to_disk(files: Files, directory: Path) -> None:
    made = DiskFiles(directory)
    for name in files.names():
        made.store(name, [files.load(name)])
    for segment in files.segments():
        made.create(segment, 1)
        made.write(segment, 0, [files.read(segment, 0, files.size(segment))])
    for name in files.directories():
        _to_disk(files.inside(name), directory / name)
