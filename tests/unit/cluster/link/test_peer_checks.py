"""Who may link with whom; refusals name what both have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY, WITNESS, Hello
from rhizome.cluster.link.peer_checks import another_answers, refusal
from tests.unit.cluster.link.linked_brokers import make_hello

B1 = make_hello("b1", primaries_hash="1" * 64)
B2 = make_hello("b2", primaries_hash="1" * 64)


def test_two_that_fit_may_link() -> None:
    assert refusal(B1, B2) == ""


@pytest.mark.parametrize(
    ("me", "peer", "words"),
    [
        (B1, replace(B2, versions=(2, 3)), ["'b1' speaks version 1 ", "'b2' versions 2 to 3"]),
        (B1, B1, ["'b1' itself"]),
        (B1, replace(B1, incarnation="2"), ["'b1'", B1.uuid, "copy"]),
        (B1, replace(B2, uuid=B1.uuid, incarnation="2"), ["'b1'", "'b2'", B1.uuid, "copy"]),
        (B1, replace(B2, name="b1"), ["named 'b1'", B1.uuid, B2.uuid]),
        (
            replace(B1, cluster_uuid="c" * 32),
            replace(B2, cluster_uuid="d" * 32),
            ["c" * 32, "d" * 32],
        ),
        (B1, replace(B2, primaries_hash="2" * 64), ["1" * 16, "2" * 16]),
        (replace(B1, role=SECONDARY), replace(B2, role=SECONDARY), ["'b1'", "'b2'", "secondaries"]),
    ],
)
def test_a_refusal_names_both(me: Hello, peer: Hello, words: list[str]) -> None:
    for reason in (refusal(me, peer), refusal(peer, me)):
        assert reason
        assert len(reason.encode()) < 230, "it is cut when it is told to the peer"
    for word in words:
        assert word in refusal(me, peer)


def test_an_empty_store_may_link_with_any_cluster() -> None:
    assert refusal(replace(B1, cluster_uuid="c" * 32), B2) == ""
    assert refusal(B2, replace(B1, cluster_uuid="c" * 32)) == ""


def test_the_list_of_primaries_counts_only_before_there_is_a_cluster() -> None:
    other = replace(B2, primaries_hash="2" * 64)
    assert refusal(replace(B1, cluster_uuid="c" * 32), other) == ""
    assert refusal(B1, replace(other, role=SECONDARY)) == ""
    assert refusal(B1, replace(other, role=WITNESS)) != ""


@pytest.mark.parametrize("role", [PRIMARY, WITNESS])
def test_secondaries_link_with_those_that_vote(role: str) -> None:
    assert refusal(replace(B1, role=SECONDARY), replace(B2, role=role)) == ""


def test_a_broker_of_the_next_release_may_link() -> None:
    assert refusal(B1, replace(B2, versions=(1, 2))) == ""


def test_brokers_that_share_an_address_are_no_mistake_in_the_list() -> None:
    shared = replace(B2, addresses=("10.0.0.1:5672",))
    assert "share 10.0.0.1:5672" in another_answers("b3", "10.0.0.1:5672", False, shared)
    assert "correct the list" in another_answers("b3", "10.0.0.1:5672", True, shared)
    assert "correct the list" in another_answers("b3", "10.0.0.9:5672", False, shared)
