"""Scopes: what an access token permits, written as RabbitMQ's OAuth 2 backend does.

    <prefix>read:<vhost>/<name>[/<routing key>]     also write and configure
    <prefix>tag:<tag>                               such as tag:administrator

The prefix is the resource server's name and a dot. In the parts `*` stands for any characters and
everything else for itself, percent-encoded if need be: `%2F` is the default vhost. Scopes with
another prefix, of another shape or with other words are somebody else's, and permit nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from rhizome.broker.access.auth_interface import CONFIGURE, READ, WRITE

TAG: Final = "tag"
ANYTHING: Final = "*"
SCOPES_MAX: Final = 1000
"""More in one token are not looked at."""
PATTERNS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Scope:
    operation: str
    vhost: str
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Scopes:
    """Invariant: `scopes` are of the three operations."""

    scopes: tuple[Scope, ...]
    tags: tuple[str, ...]

    def allow(self, operation: str, vhost: str, name: str) -> bool:
        return any(
            each.operation == operation and matches(each.vhost, vhost) and matches(each.name, name)
            for each in self.scopes
        )

    def allow_key(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        return any(
            each.operation == operation
            and matches(each.vhost, vhost)
            and matches(each.name, exchange)
            and matches(each.key, key)
            for each in self.scopes
        )

    def enter(self, vhost: str) -> bool:
        return any(matches(each.vhost, vhost) for each in self.scopes)

    def has_keys(self) -> bool:
        """Whether routing keys matter at all."""
        return any(each.key != ANYTHING for each in self.scopes)


def parse_scopes(words: list[str], prefix: str) -> Scopes:
    scopes: list[Scope] = []
    tags: list[str] = []
    for word in words[:SCOPES_MAX]:
        if not word.startswith(prefix):
            continue
        what, colon, rest = word.removeprefix(prefix).partition(":")
        parts = rest.split("/")
        if what == TAG and rest:
            tags.append(rest)
        elif what in (CONFIGURE, WRITE, READ) and colon and len(parts) in (2, 3):
            vhost, name, key = [*parts, ANYTHING][:3]
            scopes.append(Scope(what, vhost, name, key))
    return Scopes(tuple(scopes), tuple(sorted(set(tags))))


def matches(pattern: str, text: str) -> bool:
    """Without going back, whatever the pattern: each piece is taken where it is found first."""
    first, *middle = _pieces(pattern)
    if not middle:
        return first == text
    last = middle.pop()
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


@lru_cache(maxsize=PATTERNS_MAX)
def _pieces(pattern: str) -> tuple[str, ...]:
    """What is between the stars."""
    pieces = pattern.split(ANYTHING)
    return tuple(unquote(piece, errors="surrogateescape") for piece in pieces)
