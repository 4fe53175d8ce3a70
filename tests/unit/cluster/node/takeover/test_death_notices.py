"""Certificates of death in whole brokers (R15): groups are taken over at once, lies do no harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.broker.access.auth_interface import AuthDone, ChallengeAnswer, Identity, Peer
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.cluster.link.death_certificate import DEATH_MECHANISM, DeathCertificate, certify
from rhizome.cluster.protocol.catalogue import DEATH
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import KEY, CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    drain,
    group_of,
    queue_at,
    wait_for_copy,
)

AT_ONCE_MS = 150
LEASE_MS = 1_600


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def certificate_of(cluster: CoreCluster, name: str) -> DeathCertificate:
    me = cluster[name].node.me
    return DeathCertificate(me.name, me.uuid, me.incarnation, "a test")


class Answer(AuthDone):
    """What a broker answers to a certificate."""

    def __init__(self) -> None:
        self.was_taken = False

    def challenge(self, challenge: bytes, answer: ChallengeAnswer) -> None:
        self.was_taken = True

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        assert identity is None, "a certificate opens no connection"


def bring(cluster: CoreCluster, certificate: DeathCertificate, at: str, key: bytes = KEY) -> bool:
    """Show a certificate to a broker, as one does who has seen the end; whether it was taken."""
    answer = Answer()
    payload = certify(LinkKeys(key), certificate)
    peer = Peer("127.0.0.1", 1, loopback=True)
    cluster[at].broker.authenticator.begin(DEATH_MECHANISM, payload, peer, answer)
    cluster[at].settle()
    return answer.was_taken


def replicated(cluster: CoreCluster, home: str) -> CoreClient:
    """A client of s1 with a replicated queue that is at home there, and a message in it."""
    client = cluster["s1"].connect()
    queue_at(client, "q", home)
    wait_for_copy(cluster, "q")
    client.confirm()
    client.publish("", "q", b"before", PERSISTENT)
    cluster.advance_until(lambda: confirmed(client) == 1)
    return client


def other_than(cluster: CoreCluster, *names: str) -> str:
    return next(each for each in ("b1", "b2", "b3") if each not in names)


def took_over_ms(cluster: CoreCluster, client: CoreClient) -> int:
    """How long the next publish took to be confirmed."""
    began_ms = cluster.elapsed_ms
    client.publish("", "q", b"after", PERSISTENT)
    cluster.advance_until(lambda: confirmed(client) == 2)
    return cluster.elapsed_ms - began_ms


def test_a_home_that_died_for_certain_is_replaced_at_once(cluster: CoreCluster) -> None:
    home = other_than(cluster, cluster.root())
    client = replicated(cluster, home)
    told = certificate_of(cluster, home)
    cluster[home].kill()
    assert bring(cluster, told, "s1")  # which is no primary, and passes it on
    assert took_over_ms(cluster, client) <= AT_ONCE_MS
    assert drain(client, "q") == [b"before", b"after"]


def test_without_a_certificate_its_lease_is_waited_for(cluster: CoreCluster) -> None:
    home = other_than(cluster, cluster.root())
    client = replicated(cluster, home)
    cluster[home].kill()
    assert took_over_ms(cluster, client) >= LEASE_MS / 2


def test_a_root_and_home_that_died_for_certain_is_replaced_at_once(cluster: CoreCluster) -> None:
    root = cluster.root()
    client = replicated(cluster, root)
    told = certificate_of(cluster, root)
    cluster[root].kill()
    bring(cluster, told, other_than(cluster, root))
    assert took_over_ms(cluster, client) <= 2 * AT_ONCE_MS
    assert drain(client, "q") == [b"before", b"after"]


def test_what_a_dead_edge_held_goes_to_others_at_once(cluster: CoreCluster) -> None:
    client = replicated(cluster, "b1")
    other = cluster["b2"].connect()
    client.consume("q")
    cluster.settle()
    told = certificate_of(cluster, "s1")
    cluster["s1"].kill()
    bring(cluster, told, "b3")
    cluster.advance(AT_ONCE_MS)
    assert drain(other, "q") == [b"before"]


@pytest.mark.parametrize("key", [KEY, b"another key that nobody here has"])
def test_only_who_knows_the_cluster_key_is_believed(cluster: CoreCluster, key: bytes) -> None:
    told = certificate_of(cluster, "b2")
    assert bring(cluster, told, "b1", key) == (key == KEY)
    cluster.advance(LEASE_MS * 2)
    assert cluster["b2"].node.isolated == (key == KEY)


def test_a_certificate_of_another_store_or_another_start_changes_nothing(
    cluster: CoreCluster,
) -> None:
    told = certificate_of(cluster, "b2")
    bring(cluster, replace(told, uuid="0" * 32), "b1")
    bring(cluster, replace(told, incarnation="ab12"), "b1")
    cluster["b2"].kill()
    cluster["b2"].start()
    cluster.advance_until(lambda: cluster["b2"].node.ready)
    bring(cluster, told, "b1")
    cluster.advance(LEASE_MS * 2)
    assert not cluster["b2"].node.isolated


def test_a_living_home_hears_of_its_certificate_and_serves_no_more(cluster: CoreCluster) -> None:
    """Whoever has lied, nothing confirmed is lost and nothing comes twice: the accused is fenced
    before another broker takes over."""
    home = other_than(cluster, cluster.root())
    client = replicated(cluster, home)
    bring(cluster, certificate_of(cluster, home), "s1")
    assert cluster[home].node.isolated
    assert cluster[home].node.consensus.retired
    assert took_over_ms(cluster, client) <= AT_ONCE_MS
    assert drain(client, "q") == [b"before", b"after"]


def test_a_broker_that_died_counts_as_away_until_it_is_back() -> None:
    cluster = make_cluster(3, 1, replace_patience_ms=5_000)
    root = cluster.root()
    home = other_than(cluster, root)
    replicated(cluster, home)
    told = certificate_of(cluster, home)
    cluster[home].kill()
    bring(cluster, told, root)
    cluster.advance(500)
    record = cluster[root].node.state.registry.get(home)
    assert record.away
    assert record.incarnation == ""
    cluster.advance(5_500)
    assert cluster[root].node.state.registry.get(home).lost
    cluster[home].start()
    cluster.advance_until(lambda: cluster[home].node.ready)
    cluster.advance(500)
    back = cluster[root].node.state.registry.get(home)
    assert not back.away
    assert not back.lost
    assert group_of(cluster, "q").home != ""


def test_each_broker_passes_a_certificate_on_once(cluster: CoreCluster) -> None:
    told = certificate_of(cluster, "b2")
    cluster["b2"].kill()
    for at in ("b1", "b3", "s1", "b1"):
        bring(cluster, told, at)
    sent = [
        link.sent_by_method.get(DEATH, 0)
        for at in ("b1", "b3", "s1")
        for link in cluster[at].links.statistics()
    ]
    assert sent == [1] * len(sent)
