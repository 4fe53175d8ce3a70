"""How a cluster is, in one sentence: the first line of `rhizome status`.

The verdict comes from the same document as the tables below it, so that the two never disagree.
What to do about a problem is `rhizome doctor`'s to say: it asks every broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rhizome.cli.output.printer import OK, PROBLEM, WARNING

Row = dict[str, Any]

NAMED_MAX: Final = 3
"""So many groups or brokers are named in the sentence; the rest are counted."""
HEALTHY: Final = ("active", "ready")


@dataclass(frozen=True)
class Verdict:
    """``level`` is one of the printer's."""

    level: str
    text: str


def verdict_of(document: Row) -> Verdict:
    """The verdict on the document of /api/rhizome/status or /api/rhizome/cluster."""
    problems = [*_no_quorum(document), *_unavailable(document)]
    warnings = [*_lacking_copies(document), *_brokers(document), *_alarms(document)]
    if problems:
        return Verdict(PROBLEM, f"impaired: {'; '.join([*problems, *warnings])}")
    if warnings:
        return Verdict(WARNING, f"degraded: {'; '.join(warnings)}")
    return Verdict(OK, f"healthy: {_summary(document)}")


def _no_quorum(document: Row) -> list[str]:
    cluster = document.get("cluster") or {}
    quorum = cluster.get("quorum") or {}
    active, needed = quorum.get("active", 0), quorum.get("needed", 0)
    if active < needed:
        count = f"{active} of {quorum.get('defined')} primaries active, {needed} needed"
        return [f"no quorum ({count}), changes are refused"]
    return [] if cluster.get("root") else ["no root is elected"]


def _unavailable(document: Row) -> list[str]:
    found = [each for each in _groups(document) if each.get("unavailable")]
    if not found:
        return []
    return [f"{_named(found)} {_is(found)} unavailable ({found[0]['unavailable']})"]


def _lacking_copies(document: Row) -> list[str]:
    lacking = [each for each in _groups(document) if not each.get("unavailable") and _lacks(each)]
    if not lacking:
        return []
    if len(lacking) == 1:
        group = lacking[0]
        return [f"{_named(lacking)} has {copies_in_sync(group)} of {group['copies']} copies"]
    return [f"{_named(lacking)} lack copies"]


def _lacks(group: Row) -> bool:
    return not group.get("local") and copies_in_sync(group) < int(group.get("copies") or 1)


def copies_in_sync(group: Row) -> int:
    """The home's own copy and those in sync with it."""
    return 1 + len(group.get("in_sync") or ())


def _brokers(document: Row) -> list[str]:
    by_state: dict[str, list[str]] = {}
    for broker in document.get("brokers") or ():
        state = str(broker.get("status"))
        if state not in HEALTHY:
            by_state.setdefault(state, []).append(str(broker.get("name")))
    return [
        f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {state}"
        for state, names in sorted(by_state.items())
    ]


def _alarms(document: Row) -> list[str]:
    broker = document.get("broker") or {}
    alarms = broker.get("alarms") or ()
    return [f"{broker.get('name')} has an alarm ({_listed(map(str, alarms))})"] if alarms else []


def _summary(document: Row) -> str:
    brokers, groups = document.get("brokers") or (), _groups(document)
    streams = sum(bool(each.get("stream")) for each in groups)
    parts = [_counted(len(brokers), "broker"), _counted(len(groups) - streams, "group")]
    parts += [_counted(streams, "stream")] if streams else []
    return f"{', '.join(parts)}; all copies in sync"


def _groups(document: Row) -> list[Row]:
    return [each for each in document.get("groups") or () if isinstance(each, dict)]


def _named(groups: list[Row]) -> str:
    kinds = {"stream" if each.get("stream") else "group" for each in groups}
    noun = kinds.pop() if len(kinds) == 1 else "group"
    numbers = _listed(str(each.get("id")) for each in groups)
    return f"{noun}{'' if len(groups) == 1 else 's'} {numbers}"


def _is(rows: list[Row]) -> str:
    return "is" if len(rows) == 1 else "are"


def _listed(names: Any) -> str:
    every = list(names)
    shown = ", ".join(every[:NAMED_MAX])
    return shown if len(every) <= NAMED_MAX else f"{shown} and {len(every) - NAMED_MAX} more"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
