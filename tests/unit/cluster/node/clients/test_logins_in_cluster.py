"""What brokers tell each other of logins: where users are known, and better hashes of passwords."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rhizome.amqp.field_table import encode_table
from rhizome.broker.metadata.metadata_commands import Command, DeleteUser, PutUser
from rhizome.cluster.gossip import UPGRADES_TOLD_MAX
from rhizome.security.known_login_addresses import KNOWN_MAX, TOLD_AT_ONCE_MAX, KnownLogins
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster

EVERYWHERE = ("b1", "b2", "b3", "s1", "s2")


@pytest.fixture
def cluster() -> Iterator[CoreCluster]:
    cluster = make_cluster(primaries=3, secondaries=2)
    for name in EVERYWHERE:
        cluster[name].node.gossip.known_logins = KnownLogins()
    yield cluster
    cluster.settle()


def known_at(cluster: CoreCluster, name: str) -> KnownLogins:
    known = cluster[name].node.gossip.known_logins
    assert isinstance(known, KnownLogins)
    return known


def propose(cluster: CoreCluster, name: str, command: Command) -> None:
    cluster[name].node.propose(command, None)


def hashes(cluster: CoreCluster, user: str = "app") -> list[str]:
    found = [cluster[name].broker.state.users.get(user) for name in EVERYWHERE]
    return [each.password_hash if each is not None else "" for each in found]


@pytest.mark.parametrize("name", ["b2", "s1"])
def test_a_login_at_one_broker_is_known_at_all(cluster: CoreCluster, name: str) -> None:
    known_at(cluster, name).add("app", "10.0.0.1")
    cluster.advance_until(
        lambda: all(("app", "10.0.0.1") in known_at(cluster, each) for each in EVERYWHERE)
    )


def test_what_is_known_is_told_once(cluster: CoreCluster) -> None:
    known_at(cluster, "b1").add("app", "10.0.0.1")
    cluster.advance(5_000)
    assert all(known_at(cluster, name).take_untold() == [] for name in EVERYWHERE)


def test_a_broker_that_starts_anew_learns_all_of_it(cluster: CoreCluster) -> None:
    for number in range(3 * TOLD_AT_ONCE_MAX):
        known_at(cluster, "b1").add("app", f"10.0.{number // 256}.{number % 256}")
    cluster.advance(10_000)
    cluster["s2"].kill()
    cluster.advance(5_000)
    cluster["s2"].start()
    known = cluster["s2"].node.gossip.known_logins = KnownLogins()
    cluster.advance_until(lambda: len(known) == 3 * TOLD_AT_ONCE_MAX)


def test_what_makes_no_sense_is_ignored() -> None:
    known = KnownLogins()
    long = "x" * 300
    told = [["app"], [1, 2], "app", ["", "10.0.0.1"], [long, "10.0.0.1"], ["app", long], ["a", "b"]]
    for each in (told, "app", None, {"app": "10.0.0.1"}):
        known.hear(each)
    assert known.pairs() == [("a", "b")]


def test_a_user_with_many_addresses_drives_out_its_own_and_no_others() -> None:
    known = KnownLogins(known_max=100, per_user_max=40)
    for number in range(20):
        known.add(f"app{number}", "10.0.0.1")
    for user in ("eve", "mallory", "trudy"):
        for number in range(1000):
            known.add(user, f"10.6.{number // 256}.{number % 256}")
    assert len(known) == 100
    assert all((f"app{number}", "10.0.0.1") in known for number in range(20))
    assert ("trudy", "10.6.3.231") in known, "the newest"
    assert KNOWN_MAX == 10_000


@pytest.mark.parametrize("name", ["b1", "b3", "s2"])
def test_a_better_hash_is_put_in_place_whoever_made_it(cluster: CoreCluster, name: str) -> None:
    propose(cluster, "b1", PutUser("app", "old", tags=("management",)))
    cluster.advance_until(lambda: hashes(cluster) == ["old"] * 5)
    cluster[name].node.gossip.upgrade_password("app", "old", "new")
    cluster.advance_until(lambda: hashes(cluster) == ["new"] * 5)
    record = cluster["b2"].broker.state.users["app"]
    assert (record.kind, record.tags) == ("application", ("management",))
    index = cluster["b1"].node.applied.index
    cluster.advance(10_000)
    assert cluster["b1"].node.applied.index == index, "once"


@pytest.mark.parametrize("command", [PutUser("app", "changed"), DeleteUser("app")])
def test_a_better_hash_of_an_older_password_is_dropped(
    cluster: CoreCluster, command: Command
) -> None:
    propose(cluster, "b1", PutUser("app", "old"))
    cluster.advance_until(lambda: hashes(cluster) == ["old"] * 5)
    for name in EVERYWHERE:
        cluster[name].node.gossip.upgrade_password("app", "old", "new")
    propose(cluster, "s1", command)
    cluster.advance(10_000)
    late = encode_table({"upgrades": {"app": ["old", "new"]}})
    cluster[cluster.root()].node.gossip.received("s1", late)
    cluster.advance(10_000)
    assert hashes(cluster) == [getattr(command, "password_hash", "")] * 5


def test_a_better_hash_is_not_appended_behind_what_nobody_has_applied_yet(
    cluster: CoreCluster,
) -> None:
    propose(cluster, "b1", PutUser("app", "old"))
    cluster.advance_until(lambda: hashes(cluster) == ["old"] * 5)
    node = cluster[cluster.root()].node
    node.propose(PutUser("app", "changed"), None)
    assert node.broker.state.users["app"].password_hash == "old", "it is on its way"
    node.gossip.received("s1", encode_table({"upgrades": {"app": ["old", "new"]}}))
    cluster.advance(10_000)
    assert hashes(cluster) == ["changed"] * 5


def test_many_better_hashes_are_put_in_place_one_after_the_other(cluster: CoreCluster) -> None:
    users = [f"app{number}" for number in range(2 * UPGRADES_TOLD_MAX + 1)]
    for user in users:
        propose(cluster, "b1", PutUser(user, "old"))
    cluster.advance_until(lambda: hashes(cluster, users[-1]) == ["old"] * 5)
    for user in users:
        cluster["b2"].node.gossip.upgrade_password(user, "old", "new")
    cluster.advance_until(lambda: all(hashes(cluster, user) == ["new"] * 5 for user in users))
