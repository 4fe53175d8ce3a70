"""What becomes of RabbitMQ's definitions, found out before anything is changed.

A cluster state of this process gets what the target has, and then what the source has, object by
object, by the commands that an import makes of it. So what is refused here is what the target would
refuse, in its words; and what it takes and doesn't obey is known by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from rhizome.adopt.mirror_policies import ask_for_copies, mirrored_policies
from rhizome.broker.metadata.metadata_commands import Command, DeclareExchange, DeclareQueue
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.new_queue_arguments import check_proposed_queue
from rhizome.errors import AmqpError, RhizomeError
from rhizome.management.http.json_body import Document
from rhizome.management.rabbitmq_api.definitions_file import commands_of
from rhizome.security.password_hashes import ScryptCost
from rhizome.shovel_parameters import COMPONENT as SHOVEL

Row = Mapping[str, Any]
Definitions = dict[str, Any]

KINDS: Final = (
    *("vhosts", "users", "permissions", "topic_permissions", "global_parameters"),
    *("parameters", "policies", "exchanges", "queues", "bindings"),
)
"""The sections of a definitions file, in the order in which they are imported."""
ALL: Final = ".*"
POLICY_SETTINGS: Final = {
    "ha-": "queues have copies instead of mirrors",
    "queue-master-locator": "homes are chosen by the cluster",
    "queue-leader-locator": "homes are chosen by the cluster",
    "queue-version": "there is one implementation of queues",
    "federation-": "federation doesn't exist; `rhizome bridge` joins clusters",
    "max-in-memory-": "the resident budget decides what is in memory",
    "dead-letter-strategy": "dead letters are always at least once",
}
"""Settings of policies that are taken and not obeyed, by how they begin, and what holds instead."""
COUNTED: Final = ("ha-mode", "ha-params")
"""They say how many copies there are: see `mirror_policies`."""
QUEUE_ARGUMENTS: Final = {
    "x-queue-master-locator": "homes are chosen by the cluster",
    "x-queue-leader-locator": "homes are chosen by the cluster",
    "x-queue-version": "there is one implementation of queues",
}
COMPONENTS: Final = {
    SHOVEL: "kept; nothing follows it until `rhizome bridge --parameters` runs",
    "federation-upstream": "kept; federation doesn't exist, `rhizome bridge` joins clusters",
    "federation-upstream-set": "kept; federation doesn't exist, `rhizome bridge` joins clusters",
}


class Outcome(Enum):
    """What becomes of an object that doesn't simply come over."""

    REFUSED = "refused"
    IGNORED = "ignored"
    CHANGED = "changed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Finding:
    """One object, what becomes of it, and why."""

    outcome: Outcome
    kind: str
    vhost: str
    name: str
    why: str


@dataclass(slots=True)
class Rehearsal:
    """What was found, and the definitions that the target takes: all but what is refused."""

    definitions: Definitions = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def refused(self) -> list[Finding]:
        return [each for each in self.findings if each.outcome is Outcome.REFUSED]

    def counts(self) -> dict[str, int]:
        """How many objects of each kind come over."""
        return {kind: len(self.definitions.get(kind, [])) for kind in KINDS}


async def rehearse(source: Row, target: Row, target_user: str, brokers: int) -> Rehearsal:
    """Find out what an import of the source's definitions would do at the target.

    `target_user` is the login of the adoption: it stays who it is there, and may enter all vhosts.
    """
    state = State()
    for kind, row in _rows(target):
        await _attempt(state, kind, row)
    found = Rehearsal()
    document: Definitions = {kind: deepcopy(_list(source, kind)) for kind in KINDS}
    mirrored = mirrored_policies(document)
    for row, why in zip(mirrored, ask_for_copies(mirrored, brokers), strict=True):
        where, name = _vhost("policies", row), _name("policies", row)
        found.findings.append(Finding(Outcome.CHANGED, "policies", where, name, why))
    _spare_login(document, target_user, found)
    document["permissions"] += _own_permissions(document, target, target_user)
    for kind, row in _rows(document):
        refusal, is_there = await _attempt(state, kind, row)
        vhost, name = _vhost(kind, row), _name(kind, row)
        if refusal and not is_there:
            found.findings.append(Finding(Outcome.REFUSED, kind, vhost, name, refusal))
            continue
        found.definitions.setdefault(kind, []).append(row)
        if refusal:
            found.findings.append(Finding(Outcome.KEPT, kind, vhost, name, refusal))
        for why in _without_effect(kind, row):
            found.findings.append(Finding(Outcome.IGNORED, kind, vhost, name, why))
    return found


# ---- one object ---------------------------------------------------------------------------------


async def _attempt(state: State, kind: str, row: Row) -> tuple[str, bool]:
    """Take one object as an import does: why it is refused, and whether it is there already, in
    which case it stays as it is."""
    refusal, is_there = "", False
    try:
        async for command in commands_of(Document({kind: [row]}), ScryptCost(), {}):
            is_there = is_there or _is_there(state, command)
            if isinstance(command, DeclareQueue) and not is_there:
                check_proposed_queue(command.vhost, command.name, command.arguments)
            error = state.apply(command).error
            refusal = refusal or ("" if error is None else _text(error))
    except RhizomeError as error:
        refusal = refusal or _text(error)
    return refusal, is_there


def _is_there(state: State, command: Command) -> bool:
    vhost = state.vhosts.get(getattr(command, "vhost", ""))
    if vhost is None:
        return False
    if isinstance(command, DeclareQueue):
        return command.name in vhost.queues
    return isinstance(command, DeclareExchange) and command.name in vhost.router.exchanges


def _text(error: RhizomeError) -> str:
    text = error.text if isinstance(error, AmqpError) else str(error)
    return " ".join(text.split())


def _without_effect(kind: str, row: Row) -> Iterator[str]:
    """What of an object is taken and not obeyed."""
    if kind == "policies":
        for key in _table(row, "definition"):
            for start, instead in POLICY_SETTINGS.items():
                if key.startswith(start) and key not in COUNTED:
                    yield f"{key}: {instead}"
    elif kind == "queues":
        for key, instead in QUEUE_ARGUMENTS.items():
            if key in _table(row, "arguments"):
                yield f"{key}: {instead}"
    elif kind == "parameters":
        why = COMPONENTS.get(str(row.get("component")))
        if why is not None:
            yield why


# ---- the login ----------------------------------------------------------------------------------


def _spare_login(document: Definitions, user: str, found: Rehearsal) -> None:
    """Leave the adoption's own login at the target as it is, with the permissions it has."""
    users = document["users"]
    document["users"] = [each for each in users if each.get("name") != user]
    if len(document["users"]) < len(users):
        why = "the adoption logs in with it; the target's password and tags stay"
        found.findings.append(Finding(Outcome.KEPT, "users", "", user, why))
    permissions = document["permissions"]
    document["permissions"] = [each for each in permissions if each.get("user") != user]


def _own_permissions(document: Definitions, target: Row, user: str) -> list[dict[str, Any]]:
    """Those that the login needs in the vhosts that come over, unless it has some there."""
    there = {each.get("vhost") for each in _list(target, "permissions") if each.get("user") == user}
    return [
        {"user": user, "vhost": each.get("name"), "configure": ALL, "write": ALL, "read": ALL}
        for each in document["vhosts"]
        if each.get("name") not in there
    ]


# ---- reading ------------------------------------------------------------------------------------


def _rows(document: Row) -> Iterable[tuple[str, dict[str, Any]]]:
    return [(kind, row) for kind in KINDS for row in _list(document, kind)]


def _list(document: Row, kind: str) -> list[dict[str, Any]]:
    found = document.get(kind)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _table(row: Row, name: str) -> Mapping[str, Any]:
    found = row.get(name)
    return found if isinstance(found, Mapping) else {}


def _vhost(kind: str, row: Row) -> str:
    return str(row.get("vhost", "")) if kind not in ("vhosts", "users") else ""


def _name(kind: str, row: Row) -> str:
    if kind == "bindings":
        return f"{row.get('source')} -> {row.get('destination')} ({row.get('routing_key', '')})"
    if kind in ("permissions", "topic_permissions"):
        return str(row.get("user"))
    return str(row.get("name"))
