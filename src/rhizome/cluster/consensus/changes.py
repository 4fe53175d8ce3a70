"""Changes of the membership, by the root (R4, R7, R13).

One at a time, and only after an entry of the root's own term is committed. A new voter has caught
up as a learner before: it is linked, and holds all that is committed. The root never removes
itself.

A root that was elected though a change in its log removes it completes that change, and then hands
its office over.

Two changes the root makes by itself. A primary that was absent at the founding is bound to its UUID
when it comes. A primary that comes back with another UUID, because its store was empty or damaged,
is admitted in two steps: its old identity is removed, then the new one is bound.

Two more if the settings want a last man standing (`rest_ms`). A voter that was away for that long
*rests*: it stays a primary, but doesn't count, so that the others are a quorum among themselves and
may go on losing brokers, one after the other, down to one. When it is back and has caught up it
counts again. Each is a change like any other: one at a time, and both quorums are needed for it.
"""

from __future__ import annotations

from collections.abc import Collection

from rhizome.cluster.consensus.desk import Desk
from rhizome.cluster.consensus.entries import MEMBERSHIP, payload
from rhizome.cluster.consensus.events import VoterRests, VoterWakes
from rhizome.cluster.consensus.membership import Membership, Voter, one_vote_per_machine
from rhizome.cluster.consensus.office import Office
from rhizome.errors import RhizomeError


class ChangeRefused(RhizomeError):
    """The membership can't be changed like this, or not now; the text says why and what to do."""


def add_voter(office: Office, name: str) -> int:
    """Admit a linked primary that has caught up; the index of the entry."""
    desk = office.desk
    membership = _changeable(office)
    hello = desk.hello_of(name)
    if membership.get(name) is not None:
        raise ChangeRefused(f"{name} is a primary of this cluster already")
    if hello is None or not desk.is_up(name):
        raise ChangeRefused(f"{name} isn't linked to the root {desk.me.name}: start it first")
    if not hello.votes():
        raise ChangeRefused(f"{name} is a secondary: give it the role primary or witness first")
    if not office.progress[name].is_current():
        raise ChangeRefused(f"{name} hasn't caught up with the cluster state yet: try again")
    return _propose(office, membership.with_voter(Voter(name, hello.uuid, hello.machine)))


def remove_voter(office: Office, name: str) -> int:
    """Remove a primary, there or not; the index of the entry."""
    membership = _changeable(office)
    if name == office.desk.me.name:
        raise ChangeRefused(f"{name} is the root: have it hand over its office first")
    if membership.get(name) is None:
        raise ChangeRefused(f"{name} is no primary of this cluster")
    remaining = membership.without(name)
    if not _electable(office.desk, remaining):
        here = _present(office.desk, remaining)
        needed = remaining.electing(office.desk.rules)
        raise ChangeRefused(
            f"without {name} electing a root would need {needed} primaries and only {here} are "
            "here: bring the others back first, or remove them first"
        )
    return _propose(office, remaining)


def _present(desk: Desk, membership: Membership) -> int:
    """How many voters are linked now and are the ones that are meant, this one included."""
    return sum(
        desk.counts(membership, voter)
        for voter in membership.voting()
        if voter.name == desk.me.name or desk.is_up(voter.name)
    )


def _electable(desk: Desk, membership: Membership) -> bool:
    """Whether those who are here could elect a root in it."""
    return _present(desk, membership) >= membership.electing(desk.rules)


def tend(office: Office) -> None:
    """Bind and admit those who have come, and let those rest who stay away, if nothing stands
    against it."""
    if _obstacle(office):
        return
    desk = office.desk
    membership = desk.electorate.newest
    if not desk.i_vote():
        heirs = [name for name in desk.linked_voters() if membership.get(name) is not None]
        if heirs:
            office.begin_hand_over(heirs[0])
        return
    for voter in membership.voters:
        if voter.name == desk.me.name:
            continue
        changed = _arrived(office, voter)
        if changed is not None:
            _propose(office, membership.with_voter(changed))
            return
    if not _wake(office, membership):
        _rest(office, membership)


def _wake(office: Office, membership: Membership) -> bool:
    """Have one count again that is back."""
    desk = office.desk
    resting = membership.resting()
    for name in resting:
        voter = membership.get(name)
        if voter is None or not desk.is_up(name) or not desk.counts(membership, voter):
            continue
        if office.progress[name].is_current():
            _propose(office, membership, [each for each in resting if each != name])
            desk.emit(VoterWakes(name, len(membership.voting()) + 1))
            return True
    return False


def _rest(office: Office, membership: Membership) -> None:
    """Let the one rest that has been away for longest, if that is long enough and the others can
    do without it."""
    desk = office.desk
    if desk.settings.rest_ms <= 0:
        return
    away = [(office.away_ms(each.name), each) for each in membership.voting()]
    gone = [each for each in away if each[0] >= desk.settings.rest_ms]
    for _, voter in sorted(gone, key=lambda each: -each[0]):
        if voter.name in office.given.leases:
            continue
        resting = [*membership.resting(), voter.name]
        voters = one_vote_per_machine(membership.voters, desk.me.name, desk.rules, resting)
        left = Membership(voters)
        if _electable(desk, left):
            _propose(office, membership, resting)
            desk.emit(VoterRests(voter.name, len(left.voting())))
            return


def _arrived(office: Office, voter: Voter) -> Voter | None:
    """What a voter becomes, now that the broker of its name is here; None if nothing changes."""
    desk = office.desk
    peer = desk.peers.get(voter.name)
    if peer is None or not peer.up or not peer.hello.votes():
        return None
    if peer.hello.uuid == voter.uuid or not office.progress[voter.name].is_current():
        return None
    if voter.uuid:
        return Voter(voter.name)
    return Voter(voter.name, peer.hello.uuid, peer.hello.machine)


def _obstacle(office: Office) -> str:
    """Why the membership can't be changed now; empty if it can."""
    desk = office.desk
    if not office.is_ready:
        return "the root has only just been elected: try again"
    pending = desk.ledger.log.memberships[-1][0] > desk.ledger.commit
    if pending and desk.rules.one_change_at_a_time:
        return "another change of the membership is under way: try again when it is committed"
    if office.heir:
        return f"the root is handing over to {office.heir}: ask that one"
    return ""


def _changeable(office: Office) -> Membership:
    obstacle = _obstacle(office)
    if obstacle:
        raise ChangeRefused(obstacle)
    return office.desk.electorate.newest


def _propose(office: Office, membership: Membership, resting: Collection[str] | None = None) -> int:
    """Propose a membership in which these rest; None: those who do now."""
    desk = office.desk
    if resting is None:
        resting = desk.electorate.newest.resting()
    voters = one_vote_per_machine(membership.voters, desk.me.name, desk.rules, resting)
    return office.append(MEMBERSHIP, payload(Membership(voters))).index
