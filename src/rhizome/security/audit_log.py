"""The audit log: who has logged in or tried to, who was refused what, and who has changed what.

One JSON object a line, in files of its own that others than its owner and group can't read:

    {"time": "2026-11-16T07:23:06.120Z", "broker": "b1", "event": "login", "result": "ok",
     "user": "app", "address": "10.0.0.7:41822", "via": "amqp", "vhost": "/",
     "connection": "10.0.0.7:41822 -> 10.0.0.1:5672"}

`event` is one of

    login     somebody logged in, or was refused (`reason`)
    access    somebody who was logged in asked for what isn't permitted (`reason`)
    change    an administrative request over HTTP (`what`), with its status as `result`
    topology  an application has changed queues, exchanges or bindings over AMQP (`what`)
    reload    configuration or certificates were read again
    lost      lines that could not be written, for want of disk

`broker` is the one that writes the line: that of the application's connection. What another broker
of the cluster passes on (`via` is `broker`) has that broker as `origin`.

What is written is names, addresses, paths and reasons: never bodies, headers or credentials, so no
secret can be in it. What strangers can cause is held back if there is too much of it; the next line
then says how many lines it stands for (`held_back`), so that nobody can push a trace out of the
files by making noise.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from rhizome.broker.access.auth_interface import Peer
from rhizome.printable_text import json_line
from rhizome.security.rate_limited_log import RateLimitedLog

LOGIN: Final = "login"
ACCESS: Final = "access"
CHANGE: Final = "change"
TOPOLOGY: Final = "topology"
RELOAD: Final = "reload"

OK: Final = "ok"
REFUSED: Final = "refused"

REFUSALS: Final = 20
REFUSAL_INTERVAL_MS: Final = 1000
"""Of each address so many refusals are written at once, and then one per interval."""

REFUSALS_OF_ALL: Final = 200
REFUSAL_INTERVAL_OF_ALL_MS: Final = 100
"""The same of all addresses together: a stranger may have many."""

CHANGES: Final = 1000
CHANGE_INTERVAL_MS: Final = 100
"""Of each user at an address so many changes of the topology are written at once, and then one per
interval: an application in a loop must not push out what others did."""

TOPOLOGY_NONE: Final = "none"
TOPOLOGY_SHARED: Final = "shared"
TOPOLOGY_ALL: Final = "all"

KNOWN_MAX: Final = 10_000
KNOWN_MS: Final = 600_000
"""HTTP has no connections to log in to: a user at an address is written down once in this time."""

TEXT_MAX: Final = 1024

Write = Callable[[str], None]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def nowhere(line: str) -> None:
    """Where the lines of a broker without an audit log go."""


class Author(NamedTuple):
    """Who does something, from where."""

    via: str
    user: str
    peer: Peer
    vhost: str = ""
    connection: str = ""
    origin: str = ""
    address: str = ""
    """Where it comes from, if that is not the peer: as the broker has told that passed it on."""


class Audit:
    """Writes the lines. `topology` says which changes of the topology are written."""

    def __init__(
        self,
        broker: str = "",
        write: Write = nowhere,
        clock_ms: Callable[[], int] = wall_clock_ms,
        topology: str = TOPOLOGY_SHARED,
    ) -> None:
        self.write = write
        self.topology = topology
        self._broker = broker
        self._clock_ms = clock_ms
        self._refusals = RateLimitedLog(REFUSALS, REFUSAL_INTERVAL_MS)
        self._refusals_of_all = RateLimitedLog(REFUSALS_OF_ALL, REFUSAL_INTERVAL_OF_ALL_MS)
        self._refusals_untold = 0
        self._changes = RateLimitedLog(CHANGES, CHANGE_INTERVAL_MS)
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()

    def login(self, via: str, user: str, peer: Peer, vhost: str = "", connection: str = "") -> None:
        """Somebody has logged in."""
        self._line(LOGIN, OK, user, place_of(peer), via=via, vhost=vhost, connection=connection)

    def request(self, via: str, user: str, peer: Peer) -> None:
        """Somebody has logged in for one request; not written if they did so lately."""
        now_ms = self._clock_ms()
        key = (user, peer.address)
        written_ms = self._known.pop(key, -KNOWN_MS)
        is_new = now_ms - written_ms >= KNOWN_MS
        self._known[key] = now_ms if is_new else written_ms
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        if is_new:
            self.login(via, user, peer)

    def login_refused(
        self, via: str, user: str, peer: Peer, reason: str, connection: str = ""
    ) -> None:
        self._refusal(LOGIN, Author(via, user, peer, "", connection), reason)

    def access_refused(
        self, via: str, user: str, peer: Peer, vhost: str, reason: str, connection: str = ""
    ) -> None:
        self._refusal(ACCESS, Author(via, user, peer, vhost, connection), reason)

    def passed_on_refused(
        self, user: str, peer: Peer, address: str, origin: str, what: str
    ) -> None:
        """The same of a request that `origin`, another broker, has passed on for a connection from
        `address` to that one."""
        self._refusal(ACCESS, Author("broker", user, peer, "", "", origin, address), what)

    def change(
        self, user: str, address: str, via: str, what: str, status: int, origin: str = ""
    ) -> None:
        """An administrative request; `status` is what it was answered with, `origin` the broker
        that has passed it on."""
        self._line(CHANGE, status, user, address, via=via, what=what, origin=origin)

    def wants_topology(self, private: bool) -> bool:
        """Whether a change of a queue or exchange is written; `private`: of an exclusive queue."""
        if self.topology == TOPOLOGY_SHARED:
            return not private
        return self.topology == TOPOLOGY_ALL

    def topology_change(self, author: Author, what: dict[str, str | int], code: int) -> None:
        """An application has changed something, or (`code`, of AMQP) has been told that it can't be
        done; a change that no root has taken for a while may come about all the same."""
        key = f"{author.user}@{author.peer.address}"
        held_back = self._changes.held_back(key, self._clock_ms())
        if held_back >= 0:
            self._line(
                TOPOLOGY,
                code or OK,
                author.user,
                place_of(author.peer),
                via=author.via,
                vhost=author.vhost,
                connection=author.connection,
                **what,
                held_back=held_back,
            )

    def reload(self, what: str) -> None:
        self._line(RELOAD, OK, "", "", what=what)

    def _refusal(self, event: str, author: Author, reason: str) -> None:
        now_ms = self._clock_ms()
        host = author.address.rpartition(":")[0] or author.peer.address
        of_address = self._refusals.held_back(host, now_ms)
        if of_address < 0:
            return
        self._refusals_untold += of_address
        of_all = self._refusals_of_all.held_back("", now_ms)
        if of_all < 0:
            return
        held_back = self._refusals_untold + of_all
        self._refusals_untold = 0
        self._line(
            event,
            REFUSED,
            author.user,
            author.address or place_of(author.peer),
            via=author.via,
            vhost=author.vhost,
            connection=author.connection,
            origin=author.origin,
            reason=reason,
            held_back=held_back,
        )

    def _line(
        self, event: str, result: str | int, user: str, address: str, **more: str | int
    ) -> None:
        now_ms = self._clock_ms()
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1000))
        fields: dict[str, str | int] = {
            "time": f"{seconds}.{now_ms % 1000:03d}Z",
            "broker": self._broker,
            "event": event,
            "result": result,
            "user": user,
            "address": address,
            **more,
        }
        shown = {
            name: value[:TEXT_MAX] if isinstance(value, str) else value
            for name, value in fields.items()
            if value not in ("", 0)
        }
        self.write(json_line(shown))


def place_of(peer: Peer) -> str:
    """Address and port; empty without an address."""
    host = f"[{peer.address}]" if ":" in peer.address else peer.address
    return f"{host}:{peer.port}" if host else ""
