"""Membership changes, by the root (R4, R7, R13).

They happen one at a time, and only after an entry of the root's own term is committed. A new voter
has caught up as a learner before: it is linked, and holds all that is committed. The root never
removes itself.

A root that was elected though a change in its log removes it completes that change, and then hands
over the role of root.

The root makes two changes by itself. A primary that was absent at the founding is bound to its UUID
when it comes. A primary that comes back with another UUID, because its store was empty or damaged,
is admitted in two steps: its old identity is removed, then the new one is bound.

It makes two more if the settings want a last man standing (`rest_ms`). A voter that was away for
that long *rests*: it stays a primary, but doesn't count, so that the others are a quorum among
themselves and may go on losing brokers, one after the other, down to one. When it is back and has
caught up it counts again. Each is a change like any other: one at a time, and both quorums are
needed for it.
"""

from __future__ import annotations

from collections.abc import Collection

from rhizome.cluster.consensus.consensus_events import VoterRests, VoterWakes
from rhizome.cluster.consensus.log.log_entry_payloads import MEMBERSHIP, payload
from rhizome.cluster.consensus.membership import Membership, Voter, one_vote_per_machine
from rhizome.cluster.consensus.node_state import NodeState
from rhizome.cluster.consensus.root_role import RootRole
from rhizome.errors import RhizomeError


class ChangeRefused(RhizomeError):
    """The membership can't be changed like this, or not now; the text says why and what to do."""


def add_voter(root_role: RootRole, name: str) -> int:
    """Admit a linked primary that has caught up; returns the index of the entry."""
    return _propose(root_role, with_added(root_role, name))


def with_added(root_role: RootRole, name: str) -> Membership:
    """The membership with another primary. Raises ChangeRefused."""
    state = root_role.state
    membership = _changeable(root_role)
    hello = state.hello_of(name)
    if membership.get(name) is not None:
        raise ChangeRefused(f"{name} is a primary of this cluster already")
    if hello is None or not state.is_up(name):
        raise ChangeRefused(f"{name} isn't linked to the root {state.me.name}: start it first")
    if not hello.votes():
        raise ChangeRefused(f"{name} is a secondary: give it the role primary or witness first")
    if not root_role.progress[name].is_current():
        raise ChangeRefused(f"{name} hasn't caught up with the cluster state yet: try again")
    return membership.with_voter(Voter(name, hello.uuid, hello.machine))


def remove_voter(root_role: RootRole, name: str) -> int:
    """Remove a primary, present or not; returns the index of the entry."""
    return _propose(root_role, without_removed(root_role, name))


def without_removed(root_role: RootRole, name: str) -> Membership:
    """The membership without a primary. Raises ChangeRefused."""
    membership = _changeable(root_role)
    if name == root_role.state.me.name:
        raise ChangeRefused(f"{name} is the root: have it hand over its office first")
    if membership.get(name) is None:
        raise ChangeRefused(f"{name} is no primary of this cluster")
    remaining = membership.without(name)
    if not _electable(root_role.state, remaining):
        here = _present(root_role.state, remaining)
        needed = remaining.electing(root_role.state.rules)
        raise ChangeRefused(
            f"without {name} electing a root would need {needed} primaries and only {here} are "
            "here: bring the others back first, or remove them first"
        )
    return remaining


def _present(state: NodeState, membership: Membership) -> int:
    """How many voters are linked now and are the ones that are meant, this one included."""
    return sum(
        state.counts(membership, voter)
        for voter in membership.voting()
        if voter.name == state.me.name or state.is_up(voter.name)
    )


def _electable(state: NodeState, membership: Membership) -> bool:
    """Whether the brokers that are present could elect a root in it."""
    return _present(state, membership) >= membership.electing(state.rules)


def run(root_role: RootRole) -> None:
    """Bind and admit voters that have come, and let those rest that stay away, if nothing prevents
    it."""
    if _obstacle(root_role):
        return
    state = root_role.state
    membership = state.electorate.newest
    if not state.i_vote():
        heirs = [name for name in state.linked_voters() if membership.get(name) is not None]
        if heirs:
            root_role.begin_hand_over(heirs[0])
        return
    for voter in membership.voters:
        if voter.name == state.me.name:
            continue
        changed = _arrived(root_role, voter)
        if changed is not None:
            _propose(root_role, membership.with_voter(changed))
            return
    if not _wake(root_role, membership):
        _rest(root_role, membership)


def _wake(root_role: RootRole, membership: Membership) -> bool:
    """Make a voter count again that is back."""
    state = root_role.state
    resting = membership.resting()
    for name in resting:
        voter = membership.get(name)
        if voter is None or not state.is_up(name) or not state.counts(membership, voter):
            continue
        if root_role.progress[name].is_current():
            _propose(root_role, membership, [each for each in resting if each != name])
            state.emit(VoterWakes(name, len(membership.voting()) + 1))
            return True
    return False


def _rest(root_role: RootRole, membership: Membership) -> None:
    """Let the voter rest that has been away for longest, if that is long enough and the others can
    do without it."""
    state = root_role.state
    if state.settings.rest_ms <= 0:
        return
    away = [(root_role.away_ms(each.name), each) for each in membership.voting()]
    gone = [each for each in away if each[0] >= state.settings.rest_ms]
    for _, voter in sorted(gone, key=lambda each: -each[0]):
        if voter.name in root_role.given.leases:
            continue
        resting = [*membership.resting(), voter.name]
        voters = one_vote_per_machine(membership.voters, state.me.name, state.rules, resting)
        left = Membership(voters)
        if _electable(state, left):
            _propose(root_role, membership, resting)
            state.emit(VoterRests(voter.name, len(left.voting())))
            return


def _arrived(root_role: RootRole, voter: Voter) -> Voter | None:
    """What a voter becomes, now that the broker of its name is here; None if nothing changes."""
    state = root_role.state
    peer = state.peers.get(voter.name)
    if peer is None or not peer.up or not peer.hello.votes():
        return None
    if peer.hello.uuid == voter.uuid or not root_role.progress[voter.name].is_current():
        return None
    if voter.uuid:
        return Voter(voter.name)
    return Voter(voter.name, peer.hello.uuid, peer.hello.machine)


def _obstacle(root_role: RootRole) -> str:
    """Why the membership can't be changed now; empty if it can."""
    state = root_role.state
    if not root_role.is_ready:
        return "the root has only just been elected: try again"
    pending = state.persistent.log.memberships[-1][0] > state.persistent.commit
    if pending and state.rules.one_change_at_a_time:
        return "another change of the membership is under way: try again when it is committed"
    if root_role.heir:
        return f"the root is handing over to {root_role.heir}: ask that one"
    return ""


def _changeable(root_role: RootRole) -> Membership:
    obstacle = _obstacle(root_role)
    if obstacle:
        raise ChangeRefused(obstacle)
    return root_role.state.electorate.newest


def _propose(
    root_role: RootRole, membership: Membership, resting: Collection[str] | None = None
) -> int:
    """Propose a membership in which these rest; None: those that rest now."""
    state = root_role.state
    if resting is None:
        resting = state.electorate.newest.resting()
    voters = one_vote_per_machine(membership.voters, state.me.name, state.rules, resting)
    return root_role.append(MEMBERSHIP, payload(Membership(voters))).index
