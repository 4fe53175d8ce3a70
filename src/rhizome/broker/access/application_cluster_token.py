"""The application token, by which applications show which cluster they belong to (O11).

A cluster may demand a token of its applications, so that a test program pointed at production is
refused with a clear reason. The token is derived from the cluster key, and nobody can compute the
key from it: brokers prove the key to each other, applications never have it. It is no password,
because every application of the cluster has the same one.

Whatever a client shows is removed from its properties at once, so it appears in no list, log or
answer.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from typing import Final

from rhizome.errors import NotAllowed

TOKEN_PROPERTY: Final = "cluster_token"
KEY_PROPERTY: Final = "cluster_key"
"""The property in which applications had to show the cluster key itself, up to release 0.1."""

HIDDEN: Final = "(hidden)"

_LABEL: Final = b"rhizome application token 1"


def application_token(cluster_key: bytes) -> str:
    """The token of a cluster with this key, as the client property has it."""
    digest = hmac.digest(cluster_key, _LABEL, "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


class Shown:
    """What a client has shown: ``token`` and ``key``, each empty if it wasn't."""

    token: bytes
    key: bytes

    def __init__(self, token: bytes = b"", key: bytes = b"") -> None:
        self.token = token
        self.key = key


def take_shown(properties: dict[str, object]) -> Shown:
    """Remove token and key from a client's properties, which others can see."""
    return Shown(_take(properties, TOKEN_PROPERTY), _take(properties, KEY_PROPERTY))


def _take(properties: dict[str, object], name: str) -> bytes:
    value = properties.get(name)
    if value is None:
        return b""
    properties[name] = HIDDEN
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


class ApplicationTokens:
    """The tokens that are accepted from applications. While the cluster key is rotated, each of its
    keys has a token, and all of them are accepted."""

    is_demanded: bool
    keys: tuple[bytes, ...]
    tokens: tuple[bytes, ...]

    def __init__(self, is_demanded: bool = False, cluster_keys: tuple[bytes, ...] = ()) -> None:
        self.is_demanded = is_demanded
        self.keys = cluster_keys
        self.tokens = tuple([application_token(key).encode() for key in cluster_keys])

    def discloses_key(self, shown: Shown) -> bool:
        """Whether an application has shown the key itself, which is for brokers alone."""
        return _is_one_of(shown.key, self.keys) or _is_one_of(shown.token, self.keys)

    def check(self, name: str, shown: Shown) -> None:
        """Raises NotAllowed for an application that doesn't belong to the cluster of this name."""
        if not self.is_demanded or _is_one_of(shown.token, self.tokens):
            return
        if self.discloses_key(shown):
            raise NotAllowed(
                f"the key of cluster '{name}' is for its brokers alone: remove it from the client"
                f" properties and set {TOKEN_PROPERTY} to what `rhizome cluster app-token` prints",
                10,
                40,
            )
        what = "another one" if shown.token else "none"
        raise NotAllowed(
            f"cluster '{name}' demands its token, and this application shows {what}: set the client"
            f" property {TOKEN_PROPERTY} to what `rhizome cluster app-token` prints, or connect to"
            " the right cluster",
            10,
            40,
        )


def _is_one_of(shown: bytes, known: tuple[bytes, ...]) -> bool:
    found = False
    for each in known:
        # All are compared, so that the time taken doesn't tell which one matched.
        found = hmac.compare_digest(shown, each) or found
    return found
