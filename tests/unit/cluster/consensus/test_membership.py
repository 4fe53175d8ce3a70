"""Quorums (R1), identities (R7), machines (R13)."""

from __future__ import annotations

from itertools import combinations

import pytest

from rhizome.cluster.consensus import ALL_RULES, ConsensusSettings, SettingsError
from rhizome.cluster.consensus.membership import (
    Electorate,
    Membership,
    Voter,
    one_vote_per_machine,
)


def of(count: int) -> Membership:
    return Membership(tuple(Voter(f"b{n}", f"u{n}") for n in range(count)))


def everybody(membership: Membership, voter: Voter) -> bool:
    return True


@pytest.mark.parametrize(
    ("n", "electing", "committing"),
    [(1, 1, 1), (2, 2, 1), (3, 2, 2), (4, 3, 2), (5, 3, 3), (6, 4, 3), (7, 4, 4)],
)
def test_more_than_half_elect_and_half_commit(n: int, electing: int, committing: int) -> None:
    membership = of(n)
    assert membership.electing(ALL_RULES) == electing
    assert membership.committing(ALL_RULES) == committing
    assert electing + committing > n


@pytest.mark.parametrize("n", range(1, 7))
def test_every_election_meets_every_commit(n: int) -> None:
    membership = of(n)
    names = membership.names()
    for voters in combinations(names, membership.electing(ALL_RULES)):
        for copies in combinations(names, membership.committing(ALL_RULES)):
            assert set(voters) & set(copies)


def test_both_memberships_are_asked_while_one_gives_way_to_the_other() -> None:
    electorate = Electorate((of(3), of(5)))
    yes = dict.fromkeys(["b2", "b3", "b4"], True)
    assert not electorate.elected(yes, everybody, ALL_RULES)
    assert electorate.elected({**yes, "b1": True}, everybody, ALL_RULES)
    assert Electorate((of(5),)).elected(yes, everybody, ALL_RULES)
    held = {"b0": 9, "b3": 9, "b4": 9, "b1": 5}
    assert Electorate((of(5),)).reached(held, everybody, ALL_RULES) == 9
    assert electorate.reached(held, everybody, ALL_RULES) == 5


def test_who_isnt_the_one_that_is_meant_counts_nowhere() -> None:
    electorate = Electorate((of(3),))

    def but_b1(membership: Membership, voter: Voter) -> bool:
        return voter.name != "b1"

    assert not electorate.elected({"b0": True, "b1": True}, but_b1, ALL_RULES)
    assert electorate.reached({"b0": 3, "b1": 3}, but_b1, ALL_RULES) == -1


def test_of_one_machine_the_first_votes() -> None:
    voters = [Voter("b1", "u", "m"), Voter("b2", "u", "m"), Voter("b3"), Voter("b4")]
    found = one_vote_per_machine(voters, "b4", ALL_RULES)
    assert [voter.votes for voter in found] == [True, False, True, True]
    assert len(Membership(found).voting()) == 3


def test_of_the_machine_of_the_root_the_root_votes() -> None:
    voters = [Voter("b1", "u", "m"), Voter("b2", "u", "m"), Voter("b3", "u", "n")]
    found = one_vote_per_machine(voters, "b2", ALL_RULES)
    assert [voter.votes for voter in found] == [False, True, True]


def test_settings_that_break_a_lease_are_refused() -> None:
    with pytest.raises(SettingsError, match="raise home_lease"):
        ConsensusSettings(home_lease_ms=1300)
    with pytest.raises(SettingsError, match="three heartbeats"):
        ConsensusSettings(heartbeat_ms=400)
    with pytest.raises(SettingsError, match="max_drift"):
        ConsensusSettings(max_drift=1.0)


def test_a_lease_is_honoured_for_longer_than_it_is_held() -> None:
    assert ConsensusSettings().honoured_ms(900) == 946
    assert ConsensusSettings(max_drift=0).honoured_ms(900) == 901
