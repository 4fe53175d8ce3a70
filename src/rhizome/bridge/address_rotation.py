"""The addresses of one side, tried in an order that moves on when one of them disappoints."""

from __future__ import annotations

from typing import Final

from rhizome.client import parse_uris

# A broker that vanishes without closing its sockets is missed after twice this.
HEARTBEAT_S: Final = 10


class Addresses:
    """One URI per broker of a side.

    `connect` tries them in order and takes the first that answers. A broker that answers, but is
    of no use (cut off from its cluster, say), would be the first every time; so after each session
    that ended badly, `move_on` puts the next one in front.
    """

    def __init__(self, uri: str) -> None:
        self.vhost = parse_uris(uri)[0].vhost
        self.labels = [address.label for address in parse_uris(uri)]
        self._uris = _one_by_one(_with_heartbeat(uri))

    @property
    def uris(self) -> list[str]:
        """What to hand to `connect`."""
        return list(self._uris)

    def move_on(self, label: str) -> None:
        """Try the broker after the one with this label (host:port) first, from now on."""
        if label in self.labels:
            at = self.labels.index(label) + 1
            self.labels = self.labels[at:] + self.labels[:at]
            self._uris = self._uris[at:] + self._uris[:at]


def _with_heartbeat(uri: str) -> str:
    address, _, query = uri.partition("?")
    if "heartbeat=" in query:
        return uri
    return f"{address}?{query}{'&' if query else ''}heartbeat={HEARTBEAT_S}"


def _one_by_one(uri: str) -> list[str]:
    scheme, _, rest = uri.partition("://")
    rest, question, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    return [
        f"{scheme}://{userinfo}{at}{host}{slash}{path}{question}{query}"
        for host in hosts.split(",")
    ]
