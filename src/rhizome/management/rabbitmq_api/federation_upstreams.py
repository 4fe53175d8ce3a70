"""The parameters federation-upstream and federation-upstream-set, checked as in RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rhizome.management.errors import BadRequest

UPSTREAM: Final = "federation-upstream"
UPSTREAM_SET: Final = "federation-upstream-set"
_SCHEMES: Final = ("amqp://", "amqps://")


def _text(value: object) -> str:
    return "" if isinstance(value, str) else "should be a string"


def _number(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number else "should be a number"


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else "should be true or false"


def _uris(value: object) -> str:
    uris = value if isinstance(value, list) else [value]
    if uris and all(isinstance(uri, str) and uri.startswith(_SCHEMES) for uri in uris):
        return ""
    return "is not a valid URI, or a list of them: begin with amqp:// or amqps://"


def _one_of(*words: str) -> Callable[[object], str]:
    return lambda value: "" if value in words else f"should be one of {', '.join(words)}"


_KEYS: Final[Mapping[str, Callable[[object], str]]] = {
    "uri": _uris,
    "exchange": _text,
    "queue": _text,
    "consumer-tag": _text,
    "prefetch-count": _number,
    "reconnect-delay": _number,
    "max-hops": _number,
    "expires": _number,
    "message-ttl": _number,
    "trust-user-id": _flag,
    "ack-mode": _one_of("no-ack", "on-publish", "on-confirm"),
    "resource-cleanup-mode": _one_of("default", "never"),
    "bind-nowait": _flag,
    "channel-use-mode": _one_of("single", "multiple"),
    "queue-type": _one_of("classic", "quorum"),
    "ha-policy": _text,
}


def check_federation(component: str, name: str, value: object) -> None:
    """Raise BadRequest with everything that is wrong with a parameter of these components."""
    if component == UPSTREAM:
        problems = _problems(name, value, "uri", _KEYS)
    elif component == UPSTREAM_SET:
        keys = {"upstream": _text, **_KEYS}
        entries = value if isinstance(value, list) else []
        problems = [text for each in entries for text in _problems(name, each, "upstream", keys)]
        if not isinstance(value, list) and value != {}:
            problems = [f"{name} should be a list"]
    else:
        return
    if problems:
        raise BadRequest("\n".join(["Validation failed\n", *problems, ""]))


def _problems(
    name: str, value: object, needed: str, keys: Mapping[str, Callable[[object], str]]
) -> list[str]:
    if not isinstance(value, dict):
        return [f"{name} should be an object"]
    unknown = [key for key in value if key not in keys]
    found = [f"Unrecognised terms {', '.join(unknown)} in {name}"] if unknown else []
    if needed not in value:
        found.append(f'Key "{needed}" not found in {name}')
    for key, check in keys.items():
        problem = check(value[key]) if key in value else ""
        if problem:
            # Not the value itself: URIs have passwords in them.
            found.append(f"{key} {problem}")
    return found
