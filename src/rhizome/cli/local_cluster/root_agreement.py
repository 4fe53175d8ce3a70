"""Whether the brokers of a local cluster agree on a root: asks each for its cluster info."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_addresses import Address
from rhizome.cli.http_api.api_client import Api, Endpoint, Row, path
from rhizome.cli.local_cluster.directory_layout import HOST, LocalBroker
from rhizome.server.config.cluster_section import SECONDARY

SERVING: Final = ("ready", "active")
ASK_SECONDS_MAX: Final = 5.0
POLL_SECONDS: Final = 0.2
# A broker that knows no users yet refuses every login, and slows down repeated ones.
POLL_REFUSED_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Root:
    """The root that all brokers name."""

    name: str
    term: int


class NotYet(Exception):
    """The brokers don't agree yet; the text says which of them about what."""


def ask(place: LocalBroker) -> Row:
    """The cluster as one broker sees it; raises CliError."""
    where = Endpoint((Address(HOST, place.http_port),), "guest", "guest")
    return Api(where, ASK_SECONDS_MAX).row(path("rhizome", "cluster"))


def own_root(place: LocalBroker, seen: Row, running: Mapping[str, LocalBroker]) -> Root:
    """The root that one broker names, once it sees all others that run; raises NotYet."""
    cluster = seen.get("cluster") or {}
    root = cluster.get("root")
    notes = "; ".join(map(str, cluster.get("notes") or ()))
    if not root:
        raise NotYet(f"{place.name} knows no root" + (f" ({notes})" if notes else ""))
    if root not in running:
        raise NotYet(f"{place.name} takes {root} for the root, which doesn't run")
    brokers = {each.get("name"): each for each in seen.get("brokers") or ()}
    for other in running.values():
        row = brokers.get(other.name)
        if row is None:
            raise NotYet(f"{place.name} doesn't know {other.name}")
        if place.role == other.role == SECONDARY and place is not other:
            continue
        if row.get("status") not in SERVING:
            raise NotYet(f"{place.name} sees {other.name} {row.get('status')}")
        if not row.get("linked"):
            raise NotYet(f"{place.name} has no link to {other.name}")
    return Root(str(root), int(cluster.get("term") or 0))


def common_root(roots: Mapping[str, Root]) -> Root:
    """The one root of all; raises NotYet."""
    (first, root), *others = roots.items()
    for name, other in others:
        if other != root:
            raise NotYet(
                f"{first} says that {root.name} is the root in term {root.term},"
                f" {name} says {other.name} in term {other.term}"
            )
    return root


async def agreed_root(
    running: Callable[[], Mapping[str, LocalBroker]],
    seconds_max: float,
    said: Callable[[str], None] = lambda _: None,
) -> Root:
    """Wait until all running brokers see each other and name one root.

    ``said`` is told what is still missing, whenever that changes. Raises CliError with the last of
    it when the time is over.
    """
    last = ""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while True:
        try:
            return await _ask_all(running())
        except NotYet as error:
            missing, pause_s = str(error), POLL_SECONDS
        except CliError as error:
            missing, pause_s = str(error), POLL_REFUSED_SECONDS
        if missing != last:
            last = missing
            said(missing)
        if loop.time() + pause_s > deadline:
            raise CliError(f"no agreement after {seconds_max:g} s: {last}")
        await asyncio.sleep(pause_s)


async def _ask_all(running: Mapping[str, LocalBroker]) -> Root:
    """Ask one broker after the other; the first that sees no common root ends the round."""
    if not running:
        raise NotYet("no broker runs")
    roots = {
        place.name: own_root(place, await asyncio.to_thread(ask, place), running)
        for place in _voters_first(running.values())
    }
    return common_root(roots)


def _voters_first(places: Iterable[LocalBroker]) -> list[LocalBroker]:
    return sorted(places, key=lambda place: place.role == SECONDARY)
