"""A broker's place in the cluster, in terms that a person can act on."""

from __future__ import annotations

from rhizome.cluster.consensus.consensus_output import LeaseStatus, MemberStatus, Quorum, Status
from rhizome.cluster.consensus.node_state import NodeState
from rhizome.cluster.consensus.role_machine import RoleMachine


def describe(machine: RoleMachine) -> Status:
    state = machine.state
    persistent = state.persistent
    return Status(
        name=state.me.name,
        role=_role(machine),
        term=state.term,
        root=machine.root,
        cluster_uuid=state.registry.cluster_uuid,
        parent_uuid=state.registry.parent_uuid,
        commit_index=persistent.commit,
        applied_index=state.applied,
        settled_index=machine.settled_index,
        last_index=persistent.log.last_index,
        synced_index=persistent.synced_index,
        snapshot_index=persistent.snapshot.index if persistent.snapshot else 0,
        quorum=_quorum(machine),
        joint=len(state.electorate.memberships) > 1,
        members=_members(state),
        view=state.registry.brokers,
        has_lease=machine.lease_until_ms() > state.now_ms,
        lease_left_ms=max(0, machine.lease_until_ms() - state.now_ms),
        leases=_leases(machine),
        waits_for=_waits_for(machine),
    )


def _role(machine: RoleMachine) -> str:
    if machine.root_role is not None:
        return "root"
    if machine.root:
        return "following"
    return "candidate" if machine.candidacy is not None else "searching"


def _quorum(machine: RoleMachine) -> Quorum:
    """The quorum of the newest membership; E without a root, C with one (R1)."""
    state = machine.state
    newest = state.electorate.newest
    active = 0
    for voter in newest.voting():
        here = voter.name == state.me.name or state.is_up(voter.name)
        active += here and state.counts(newest, voter)
    needed = newest.committing(state.rules) if machine.root else newest.electing(state.rules)
    return Quorum(len(newest.voting()), active, needed)


def _members(state: NodeState) -> tuple[MemberStatus, ...]:
    newest = state.electorate.newest
    return tuple(
        MemberStatus(
            name=voter.name,
            bound=bool(voter.uuid),
            votes=voter.votes,
            rests=voter.name in newest.resting(),
            linked=voter.name == state.me.name or state.is_up(voter.name),
            counts=state.counts(newest, voter),
        )
        for voter in newest.voters
    )


def _leases(machine: RoleMachine) -> tuple[LeaseStatus, ...]:
    if machine.root_role is None:
        return ()
    now_ms = machine.state.now_ms
    return tuple(
        LeaseStatus(
            name=name,
            incarnation=given.incarnation,
            left_ms=max(0, given.until_ms - now_ms),
            applied=given.applied,
            presumed=not given.renews,
        )
        for name, given in machine.root_role.given.leases.items()
    )


def _waits_for(machine: RoleMachine) -> str:
    state = machine.state
    if machine.root_role is not None:
        if not machine.root_role.is_ready:
            return "its first entry to be committed by enough primaries"
        return (
            f"{machine.root_role.heir} to catch up, to hand over" if machine.root_role.heir else ""
        )
    if machine.candidacy is not None:
        return machine.candidacy.waits_for()
    if machine.root:
        return (
            ""
            if machine.lease_until_ms() > state.now_ms
            else f"a lease from the root {machine.root}"
        )
    if state.starting:
        return "its own start to finish"
    if machine.vote_responder.honours():
        left_ms = machine.vote_responder.honours_ms - state.now_ms
        return f"the lease of the root it last heard, {left_ms} ms more"
    if machine.is_joining():
        return "the root of the cluster that it sees, to join it"
    if not state.i_stand():
        return "; ".join(["a root: it can't be one itself", *state.uncounted()])
    return "an election"
