"""Membership: who votes, and how many votes are enough (R1, R4, R7, R13).

A ``Membership`` names the primaries. One without a UUID hasn't come yet: it counts in N, but nobody
can vote or store in its name until a later membership entry binds it (R7). Of the brokers with one
machine id at most one votes (R13): the others are listed, but don't count. Nor does one that
*rests*: it was away for so long that the electorate shrank (last man standing).

An ``Electorate`` is what a broker must satisfy now: one membership, or two while the newer one
isn't known to be committed (R4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from rhizome.cluster.consensus.rule_switches import Rules


@dataclass(frozen=True, slots=True)
class Voter:
    """A primary or witness. ``uuid`` is empty until the broker has come."""

    name: str
    uuid: str = ""
    machine: str = ""
    votes: bool = True


@dataclass(frozen=True, slots=True)
class Membership:
    """The primaries, in the order in which they were configured or added.

    ``founding``: no entry yet, only a configured list; any empty store of a listed name counts.
    """

    voters: tuple[Voter, ...]
    founding: bool = False

    def get(self, name: str) -> Voter | None:
        return next((voter for voter in self.voters if voter.name == name), None)

    def names(self) -> tuple[str, ...]:
        return tuple(voter.name for voter in self.voters)

    def voting(self) -> tuple[Voter, ...]:
        return tuple(voter for voter in self.voters if voter.votes)

    def resting(self) -> tuple[str, ...]:
        """Voters that don't vote because they were away, not because another one votes for their
        machine."""
        voting = [voter.machine for voter in self.voting() if voter.machine]
        return tuple(v.name for v in self.voters if not v.votes and v.machine not in voting)

    def electing(self, rules: Rules) -> int:
        """E: floor(N/2) + 1 (R1)."""
        n = self._defined(rules)
        return n // 2 + 1 if rules.election_quorum_majority else max(1, n // 2)

    def committing(self, rules: Rules) -> int:
        """C: ceil(N/2), root included (R1)."""
        return (self._defined(rules) + 1) // 2 if rules.commit_quorum else 1

    def _defined(self, rules: Rules) -> int:
        """N (R1)."""
        return 1 if self.founding and not rules.founding_quorum else len(self.voting())

    def with_voter(self, voter: Voter) -> Membership:
        """With this voter in place of the one of its name, or at the end."""
        if self.get(voter.name) is None:
            return replace(self, voters=(*self.voters, voter))
        voters = tuple(voter if old.name == voter.name else old for old in self.voters)
        return replace(self, voters=voters)

    def without(self, name: str) -> Membership:
        return replace(self, voters=tuple(v for v in self.voters if v.name != name))


def one_vote_per_machine(
    voters: Iterable[Voter], root: str, rules: Rules, resting: Collection[str] = ()
) -> tuple[Voter, ...]:
    """The voters, of which one of each machine votes: the root, or else the first (R13) that
    doesn't rest."""
    listed = list(voters)
    chosen: dict[str, str] = {v.machine: v.name for v in listed if v.name == root}
    for voter in listed:
        if voter.name not in resting:
            chosen.setdefault(voter.machine, voter.name)
    return tuple(
        replace(
            voter,
            votes=voter.name not in resting
            and (
                not voter.machine
                or chosen[voter.machine] == voter.name
                or not rules.one_vote_per_machine
            ),
        )
        for voter in listed
    )


Counts: TypeAlias = Callable[[Membership, Voter], bool]
"""Whether the broker now known under a voter's name is the one that the membership means (R7)."""


@dataclass(frozen=True, slots=True)
class Electorate:
    """The memberships whose quorums are all needed, the older one first."""

    memberships: tuple[Membership, ...]

    @property
    def newest(self) -> Membership:
        return self.memberships[-1]

    def names(self) -> list[str]:
        """Everybody who may be asked for a vote, each once."""
        found: dict[str, None] = {}
        for membership in self.memberships:
            for voter in membership.voting():
                found[voter.name] = None
        return list(found)

    def elected(self, yes: dict[str, bool], counts: Counts, rules: Rules) -> bool:
        """Whether the names in ``yes`` are E of each membership."""
        for membership in self.memberships:
            found = 0
            for voter in membership.voting():
                if yes.get(voter.name, False) and counts(membership, voter):
                    found += 1
            if found < membership.electing(rules):
                return False
        return True

    def reached(self, values: dict[str, int], counts: Counts, rules: Rules) -> int:
        """The highest value that C of each membership have reached; -1 if there is none.

        For log indexes it is what may be committed; for times, since when the root is heard.
        """
        lowest: int | None = None
        for membership in self.memberships:
            reached = sorted(
                (
                    values[voter.name]
                    for voter in membership.voting()
                    if voter.name in values and counts(membership, voter)
                ),
                reverse=True,
            )
            needed = membership.committing(rules)
            if len(reached) < needed:
                return -1
            value = reached[needed - 1]
            lowest = value if lowest is None else min(lowest, value)
        return -1 if lowest is None else lowest
