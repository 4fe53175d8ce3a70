"""A broker's place in the cluster, in terms that a person can act on."""

from __future__ import annotations

from rhizome.cluster.consensus.desk import Desk
from rhizome.cluster.consensus.machine import Machine
from rhizome.cluster.consensus.ready import LeaseStatus, MemberStatus, Quorum, Status


def describe(machine: Machine) -> Status:
    desk = machine.desk
    ledger = desk.ledger
    return Status(
        name=desk.me.name,
        role=_role(machine),
        term=desk.term,
        root=machine.root,
        cluster_uuid=desk.registry.cluster_uuid,
        parent_uuid=desk.registry.parent_uuid,
        commit_index=ledger.commit,
        applied_index=desk.applied,
        settled_index=machine.settled_index,
        last_index=ledger.log.last_index,
        synced_index=ledger.synced_index,
        snapshot_index=ledger.snapshot.index if ledger.snapshot else 0,
        quorum=_quorum(machine),
        joint=len(desk.electorate.memberships) > 1,
        members=_members(desk),
        view=desk.registry.brokers,
        has_lease=machine.lease_until_ms() > desk.now_ms,
        lease_left_ms=max(0, machine.lease_until_ms() - desk.now_ms),
        leases=_leases(machine),
        waits_for=_waits_for(machine),
    )


def _role(machine: Machine) -> str:
    if machine.office is not None:
        return "root"
    if machine.root:
        return "following"
    return "candidate" if machine.candidacy is not None else "searching"


def _quorum(machine: Machine) -> Quorum:
    """Of the newest membership; E without a root, C with one (R1)."""
    desk = machine.desk
    newest = desk.electorate.newest
    active = 0
    for voter in newest.voting():
        here = voter.name == desk.me.name or desk.is_up(voter.name)
        active += here and desk.counts(newest, voter)
    needed = newest.committing(desk.rules) if machine.root else newest.electing(desk.rules)
    return Quorum(len(newest.voting()), active, needed)


def _members(desk: Desk) -> tuple[MemberStatus, ...]:
    newest = desk.electorate.newest
    return tuple(
        MemberStatus(
            name=voter.name,
            bound=bool(voter.uuid),
            votes=voter.votes,
            rests=voter.name in newest.resting(),
            linked=voter.name == desk.me.name or desk.is_up(voter.name),
            counts=desk.counts(newest, voter),
        )
        for voter in newest.voters
    )


def _leases(machine: Machine) -> tuple[LeaseStatus, ...]:
    if machine.office is None:
        return ()
    now_ms = machine.desk.now_ms
    return tuple(
        LeaseStatus(
            name=name,
            incarnation=given.incarnation,
            left_ms=max(0, given.until_ms - now_ms),
            applied=given.applied,
            presumed=not given.renews,
        )
        for name, given in machine.office.given.leases.items()
    )


def _waits_for(machine: Machine) -> str:
    desk = machine.desk
    if machine.office is not None:
        if not machine.office.is_ready:
            return "its first entry to be committed by enough primaries"
        return f"{machine.office.heir} to catch up, to hand over" if machine.office.heir else ""
    if machine.candidacy is not None:
        return machine.candidacy.waits_for()
    if machine.root:
        return (
            ""
            if machine.lease_until_ms() > desk.now_ms
            else f"a lease from the root {machine.root}"
        )
    if desk.starting:
        return "its own start to finish"
    if machine.judge.honours():
        left_ms = machine.judge.honours_ms - desk.now_ms
        return f"the lease of the root it last heard, {left_ms} ms more"
    if machine.is_joining():
        return "the root of the cluster that it sees, to join it"
    if not desk.i_stand():
        return "; ".join(["a root: it can't be one itself", *desk.uncounted()])
    return "an election"
