"""Messages for a 404 of the HTTP API: what doesn't exist, and which command lists what does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

_PARTS: Final = {"leases": "lease", "offsets": "remembered offset of"}
"""What a queue or a stream has, by the part of a path after its name."""

_KINDS: Final = {
    "queues": ("queue", True),
    "streams": ("stream", True),
    "exchanges": ("exchange", True),
    "policies": ("policy", True),
    "operator-policies": ("operator policy", True),
    "global-parameters": ("global parameter", False),
    "permissions": ("user", True),
    "vhosts": ("vhost", False),
    "users": ("user", False),
    "user-limits": ("user", False),
    "vhost-limits": ("vhost", False),
    "connections": ("connection", False),
    "groups": ("group", False),
}
"""First part of a path: what it names, and whether the vhost comes before the name."""

_LISTS: Final = {
    "operator policy": "policy list --operator",
    "global parameter": "parameter list-global",
}
"""The command that lists a kind of thing, if its name differs."""


def describe_missing(verb: str, target: str) -> str:
    """Which of the things that a request names doesn't exist."""
    kind, *names = [unquote(part) for part in target.partition("?")[0].split("/")[2:]]
    if kind == "rhizome" and names:
        kind, *names = names
        if not names:
            return (
                f"this broker has no /api/rhizome/{kind}: it is RabbitMQ, or an older release;"
                " give --http of a Rhizome broker"
            )
    if kind in _OWN_WORDS and len(names) >= 2:
        return _OWN_WORDS[kind](verb, names)
    if kind in _KINDS:
        return _missing_of_kind(verb, kind, names)
    return f"not found: {'/'.join([kind, *names])}"


def _missing_of_kind(verb: str, kind: str, names: list[str]) -> str:
    word, in_vhost = _KINDS[kind]
    vhost = names.pop(0) if in_vhost and names else ""
    if vhost and (not names or verb == "PUT"):
        return _no_vhost(vhost)
    where = f" in vhost '{vhost}'" if vhost else ""
    see = f"see `rhizome {_LISTS.get(word, f'{word} list')}`"
    if len(names) == 3 and names[1] in _PARTS:
        part = f"there is no {_PARTS[names[1]]} '{names[2]}'"
        return f"{part} or no {word} '{names[0]}'{where}; {see}"
    return f"there is no {word} '{''.join(names[:1])}'{where}; {see}"


def _no_vhost(vhost: str) -> str:
    return f"there is no vhost '{vhost}'; see `rhizome vhost list`"


def _binding(verb: str, names: list[str]) -> str:
    if len(names) < 5:
        return f"not found: {'/'.join(['bindings', *names])}"
    vhost, _, source, letter, to = names[:5]
    word = "queue" if letter == "q" else "exchange"
    return (
        f"there is no exchange '{source}' or no {word} '{to}' in vhost '{vhost}';"
        f" see `rhizome exchange list` and `rhizome {word} list`"
    )


def _topic_permission(verb: str, names: list[str]) -> str:
    vhost, user, *exchange = names
    where = f" for exchange '{exchange[0]}'" if exchange else ""
    return (
        f"user '{user}' has no topic permissions{where} in vhost '{vhost}';"
        " see `rhizome user topic-permissions list`"
    )


def _parameter(verb: str, names: list[str]) -> str:
    component, vhost, *name = names
    if verb == "PUT" or not name:
        return _no_vhost(vhost)
    return (
        f"there is no parameter '{name[0]}' of {component} in vhost '{vhost}';"
        " see `rhizome parameter list`"
    )


def _schedule(verb: str, names: list[str]) -> str:
    vhost, exchange, *schedule = names
    if not schedule:
        return f"there is no exchange '{exchange}' in vhost '{vhost}'; see `rhizome exchange list`"
    return (
        f"no message '{schedule[0]}' of yours waits at exchange '{exchange}' in vhost '{vhost}';"
        f" see `rhizome schedule list --exchange {exchange}`, and --by for those of others"
    )


_OWN_WORDS: Final[dict[str, Callable[[str, list[str]], str]]] = {
    "bindings": _binding,
    "topic-permissions": _topic_permission,
    "parameters": _parameter,
    "schedules": _schedule,
}
"""By the first part of a path, what takes more than a kind and a name to tell."""
