"""Host names: by which names a request may call this broker.

A page of a foreign site can have its own name lead to an address of this network (DNS rebinding).
The browser then takes the broker for a part of that site, and lets the page read its answers. What
gives it away is the Host header: it has the name of the foreign site. So a name counts only if
nobody else can own it:

- an IP address, which isn't looked up;
- a name without a dot, which nobody can register, and `localhost` with all below it;
- a name of this broker, its machine or its cluster, and what the configuration allows.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

ANY: Final = "*"
_PATTERN: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?\.?", re.IGNORECASE)
_HEADER: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


def is_host_pattern(pattern: str) -> bool:
    """Whether it is a name, `*.` and a name, or `*`."""
    return pattern == ANY or _PATTERN.fullmatch(pattern) is not None


def host_of(header: str) -> str:
    """The name or address in a Host header, without its port; empty if there is none."""
    found = _HEADER.fullmatch(header.strip())
    return found[1].strip("[]").rstrip(".").lower() if found else ""


def is_allowed_host(host: str, own: Iterable[str], allowed: Iterable[str]) -> bool:
    """Whether this broker may be called ``host``, a result of `host_of`."""
    if not host:
        return ANY in allowed
    if "." not in host or host.endswith(".localhost") or _is_address(host):
        return True
    if any(host == each.rstrip(".").lower() for each in own):
        return True
    return any(_matches(host, each) for each in allowed)


def _matches(host: str, pattern: str) -> bool:
    known = pattern.rstrip(".").lower()
    if known.startswith("*."):
        return host.endswith(known[1:])
    return known in (ANY, host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
