"""Previews of cluster changes: what a change would do, in words, before it is made (R1, R4, R12,
R13)."""

from __future__ import annotations

from collections.abc import Iterable

from rhizome.cluster.consensus.consensus_output import Status
from rhizome.cluster.link.broker_hello import SECONDARY
from rhizome.management.cluster_view import ADD_PRIMARY, FORCE_ROOT, REMOVE_PRIMARY, Change, Preview
from rhizome.server.operator_views.cluster_info import ClusterKnowledge


def preview_of(change: Change, known: ClusterKnowledge) -> Preview:
    if change.kind == FORCE_ROOT:
        return _force_root(known)
    if change.kind == ADD_PRIMARY:
        return _add(known, change.broker)
    assert change.kind == REMOVE_PRIMARY, change.kind
    return _remove(known, change.broker)


def basis_of(change: Change, status: Status) -> str:
    """The facts that must still hold when the change is made.

    For a forced root these include which brokers are there: a broker that comes back may make the
    change unnecessary, or wrong.
    """
    forced = change.kind == FORCE_ROOT
    members = " ".join(
        member.name
        + ("" if member.votes else "/no-vote")
        + ("+" if forced and member.linked else "")
        for member in status.members
    )
    return f"cluster {status.cluster_uuid} term {status.term} root {status.root} of {members}"


# ---- the primaries ------------------------------------------------------------------------------


def _add(known: ClusterKnowledge, name: str) -> Preview:
    status = known.status
    hello = known.hellos.get(name)
    refusal = _not_changeable(status)
    if not refusal and name in _names(status):
        refusal = f"{name} is a primary of this cluster already"
    if not refusal and hello is None:
        refusal = f"{name} has no link to {status.name}; start it with role primary first"
    if not refusal and hello is not None and hello.role == SECONDARY:
        refusal = f'{name} is a secondary; start it with role = "primary" or "witness" first'
    if refusal or hello is None:
        return Preview((), refusal=refusal)
    change = Change(ADD_PRIMARY, name)
    shared = [other for other in _names(status) if _machine(known, other) == hello.machine != ""]
    warnings = []
    votes = _voting(status)
    if shared:
        warnings.append(
            f"{name} has the machine id of {_list(shared)}, {hello.machine}, and gets no vote; set"
            " cluster.machine if they are on different machines"
        )
    else:
        votes += 1
        if _spare(votes) <= _spare(votes - 1):
            warnings.append(
                f"{votes} primaries survive the loss of {_spare(votes)} of them, like {votes - 1}"
            )
    return Preview(
        (
            f"{name}, a {hello.role} on machine {hello.machine or 'unknown'}, becomes a primary"
            f" beside {_list(_names(status))}",
            _votes_step(_voting(status), votes),
        ),
        tuple(warnings),
        basis=basis_of(change, status),
    )


def _remove(known: ClusterKnowledge, name: str) -> Preview:
    status = known.status
    refusal = _not_changeable(status)
    if not refusal and name not in _names(status):
        refusal = f"{name} is no primary of this cluster, which has {_list(_names(status))}"
    if not refusal and name == status.root:
        refusal = (
            f"{name} is the root, which never removes itself; stop it, so that another is elected,"
            " and ask that one"
        )
    if refusal:
        return Preview((), refusal=refusal)
    removed = next(member for member in status.members if member.name == name)
    votes = _voting(status) - removed.votes
    rest = [other for other in _names(status) if other != name]
    steps = [
        f"{name} is no longer a primary; {_list(rest)} remain",
        _votes_step(_voting(status), votes),
    ]
    warnings = []
    if removed.linked:
        warnings.append(f"{name} is there and linked; stop it when this is done")
    duties = known.duties.get(name)
    if duties is not None and duties.homes:
        warnings.append(
            f"{name} is the home of {_count(duties.homes, 'group')}; `rhizome broker drain {name}`"
            " moves them first"
        )
    if votes == 2:
        warnings.append("of two primaries only the root may go on alone; a witness makes three")
    if votes == 1:
        warnings.append(f"{_list(rest)} alone: its loss is the loss of the cluster")
    change = Change(REMOVE_PRIMARY, name)
    return Preview(tuple(steps), tuple(warnings), basis=basis_of(change, status))


def _not_changeable(status: Status) -> str:
    if not status.root:
        waits = f" ({status.name} waits for {status.waits_for})" if status.waits_for else ""
        return f"there is no root now, and only a root changes the primaries{waits}"
    if status.root != status.name:
        return f"{status.name} is not the root; ask {status.root}, with its address as --http"
    if status.joint:
        return "another change of the primaries is under way; try again in a moment"
    return ""


# ---- the forced root ----------------------------------------------------------------------------


def _force_root(known: ClusterKnowledge) -> Preview:
    status = known.status
    name = status.name
    refusal = ""
    if known.me.role == SECONDARY:
        refusal = f"{name} is a secondary, which has no vote and can't be root; ask a primary"
    elif not status.cluster_uuid:
        refusal = f"{name} belongs to no cluster yet; there is nothing to force"
    elif status.root:
        refusal = f"the cluster has a root, {status.root}; there is nothing to force"
    if refusal:
        return Preview((), refusal=refusal)
    others = [member for member in status.members if member.name != name]
    gone = [member.name for member in others if not member.linked]
    here = [member.name for member in others if member.linked]
    steps = [
        f"{name} leaves cluster {status.cluster_uuid} with the state that it has, which ends at"
        f" entry {status.last_index}",
        f"{name} begins a new cluster under a new UUID, as its root and only primary",
        f"{_list(name for name in _names(status) if name != status.name) or 'nobody'} may join it"
        " with an empty store: `rhizome broker rejoin --set-aside`, then `rhizome cluster"
        " add-primary`",
    ]
    warnings = []
    if status.quorum.active >= status.quorum.needed:
        warnings.append(
            f"{status.quorum.active} of {status.quorum.defined} primaries are here, enough to elect"
            f" a root without force; {name} waits for {status.waits_for or 'an election'}"
        )
    if gone:
        warnings.append(
            f"make sure that {_list(gone)} {'is' if len(gone) == 1 else 'are'} stopped: together"
            " they may still be a cluster, and both would serve the same queues"
        )
        warnings.append(f"changes that only {_list(gone)} had are lost")
    if here:
        warnings.append(f"{_list(here)} will be cut off; stop and rejoin afterwards")
    return Preview(tuple(steps), tuple(warnings), basis=basis_of(Change(FORCE_ROOT), status))


# ---- words --------------------------------------------------------------------------------------


def _names(status: Status) -> list[str]:
    return [member.name for member in status.members]


def _voting(status: Status) -> int:
    return sum(member.votes for member in status.members)


def _electing(votes: int) -> int:
    return votes // 2 + 1


def _spare(votes: int) -> int:
    """How many may be lost while a root can still be elected (R1)."""
    return votes - _electing(votes)


def _votes_step(before: int, after: int) -> str:
    if before == after:
        return f"the votes stay as they are: {_electing(after)} of {after} elect a root"
    return (
        f"{_electing(after)} of {after} votes elect a root (now {_electing(before)} of {before}),"
        f" and a root goes on with {(after + 1) // 2} (now {(before + 1) // 2})"
    )


def _machine(known: ClusterKnowledge, name: str) -> str:
    hello = known.hellos.get(name)
    if hello is not None:
        return hello.machine
    found = [
        each.registration.machine for each in known.status.view if each.registration.name == name
    ]
    return found[0] if found else ""


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
