"""Simple links between simulated brokers, for programs that test a core without the real ones.

Frames are a length and bytes. Of two hosts the one with the lower name dials, and dials again after
a while; a secondary dials every primary. The first frame of each side is its hello. Empty frames
are sent when there is nothing else to send, so that a link that is dead on one side only is
noticed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final, Protocol

from rhizome.cluster.link.broker_hello import Hello, decode_hello
from rhizome.testing.sim.world.sim_host import Host
from rhizome.testing.sim.world.sim_network import Connection

CHECK_MS: Final = 1_000
PING_MS: Final = 2_000
SILENCE_MS: Final = 7_000
REDIAL_MS_MIN: Final = 50
REDIAL_MS_MAX: Final = 1_000
LENGTH_BYTES: Final = 4


class LinkUser(Protocol):
    """The program that the links are for."""

    def hello(self) -> Hello: ...
    def link_up(self, hello: Hello) -> None: ...
    def link_down(self, name: str) -> None: ...
    def frame(self, name: str, data: bytes) -> None: ...


class _Link:
    def __init__(self, connection: Connection, now_ms: int) -> None:
        self.connection = connection
        self.buffer = b""
        self.hello: Hello | None = None
        self.heard_ms = now_ms
        self.sent_ms = now_ms
        self.outbox: list[bytes] = []


class Links:
    """One broker's links.

    Invariant: at most one link per peer is up; a newer one takes the place of an older.
    """

    def __init__(self, host: Host, user: LinkUser, dials: Iterable[str]) -> None:
        self._host = host
        self._user = user
        self._chance: random.Random = host.chance("links")
        self._links: dict[tuple[int, bool], _Link] = {}
        self._up: dict[str, _Link] = {}
        self._check_ms = host.now_ms() + CHECK_MS
        self._dial_ms: dict[str, int] = dict.fromkeys(dials, host.now_ms())

    # --- what the program hands on

    def opened(self, connection: Connection) -> None:
        link = _Link(connection, self._host.now_ms())
        self._links[_key(connection)] = link
        self._put(link, self._user.hello().encode())

    def disconnected(self, connection: Connection) -> None:
        link = self._links.pop(_key(connection), None)
        if link is not None:
            self._went_down(link)
        if connection.dialled:
            self._redial(connection.remote)

    def received(self, connection: Connection, data: bytes) -> None:
        link = self._links.get(_key(connection))
        if link is None:
            return
        link.heard_ms = self._host.now_ms()
        link.buffer += data
        while len(link.buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(link.buffer[:LENGTH_BYTES], "big")
            if len(link.buffer) < end:
                break
            frame, link.buffer = link.buffer[LENGTH_BYTES:end], link.buffer[end:]
            self._frame(link, frame)
            if _key(connection) not in self._links:
                break

    def tick(self, now_ms: int) -> None:
        for name, due_ms in list(self._dial_ms.items()):
            if due_ms <= now_ms:
                del self._dial_ms[name]
                self._host.dial(name)
        if now_ms >= self._check_ms:
            self._check_ms = now_ms + CHECK_MS
            self._check(now_ms)

    def _check(self, now_ms: int) -> None:
        for link in list(self._links.values()):
            if now_ms - link.heard_ms >= SILENCE_MS:
                self._close(link)
            elif now_ms - link.sent_ms >= PING_MS:
                self._put(link, b"")

    def next_deadline_ms(self) -> int:
        if self._dial_ms:
            return min(self._check_ms, *self._dial_ms.values())
        return self._check_ms

    # --- for the user

    def send(self, name: str, data: bytes) -> None:
        """Send a frame at the end of the turn; to a broker without a link it is lost."""
        link = self._up.get(name)
        if link is not None:
            self._put(link, data)

    def flush(self) -> None:
        """One write per link and turn."""
        for link in self._links.values():
            if link.outbox:
                link.connection.send(b"".join(link.outbox))
                link.outbox.clear()

    def close(self, name: str) -> None:
        link = self._up.get(name)
        if link is not None:
            self._close(link)

    def close_all(self) -> None:
        for link in list(self._links.values()):
            self._close(link)

    # --- inside

    def _put(self, link: _Link, data: bytes) -> None:
        link.sent_ms = self._host.now_ms()
        link.outbox.append(len(data).to_bytes(LENGTH_BYTES, "big"))
        link.outbox.append(data)

    def _frame(self, link: _Link, data: bytes) -> None:
        if not data:
            return
        if link.hello is not None:
            if self._up.get(link.hello.name) is link:
                self._user.frame(link.hello.name, data)
            return
        link.hello = decode_hello(data)
        older = self._up.pop(link.hello.name, None)
        if older is not None:
            self._user.link_down(link.hello.name)
            self._close(older)
        self._up[link.hello.name] = link
        self._user.link_up(link.hello)

    def _close(self, link: _Link) -> None:
        if link.outbox and link.connection.writable:
            link.connection.send(b"".join(link.outbox))
        link.connection.close()
        self.disconnected(link.connection)

    def _went_down(self, link: _Link) -> None:
        if link.hello is not None and self._up.get(link.hello.name) is link:
            del self._up[link.hello.name]
            self._user.link_down(link.hello.name)

    def _redial(self, name: str) -> None:
        connections = [link.connection for link in self._links.values()]
        if any(each.dialled and each.remote == name for each in connections):
            return
        wait_ms = REDIAL_MS_MIN + int(self._chance.random() ** 2 * REDIAL_MS_MAX)
        self._dial_ms[name] = self._host.now_ms() + wait_ms


def _key(connection: Connection) -> tuple[int, bool]:
    return connection.number, connection.dialled
