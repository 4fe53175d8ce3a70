"""Proxies in front of the brokers of a cluster on one machine, through which their links go.

A partition of real brokers without rights over the network: each broker's link address is that of
a proxy, and the proxy finds out which broker a connection comes from, as the owner of its socket
(/proc). Between two brokers that are parted nothing passes, in either direction, and nobody is
told: what was sent waits, as it does in TCP, and goes on when the network is healed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 16
"""What is held back of one direction of one connection at most, beside the sockets' own buffers."""
CALL_SECONDS_MAX: Final = 60.0
STRANGER: Final = ""
"""Whoever is no broker: applications reach all brokers always."""

Pair = frozenset[str]


class LinkProxies:
    """One proxy for each broker that was opened; all run in one thread.

    ``pids`` tells the processes of brokers that run. Invariant: a pair of brokers has a gate in
    ``_gates`` while it is parted, which is set when it is healed.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids
        self._gates: dict[Pair, asyncio.Event] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def open(self, name: str, host: str, port: int) -> int:
        """A proxy for a broker; its port on loopback."""
        return self._call(self._open(name, host, port))

    def part(self, one: Iterable[str], other: Iterable[str]) -> None:
        """Let nothing pass between these and those."""
        others = list(other)
        pairs = [frozenset((a, b)) for a in one for b in others if a != b]
        self._call(self._part(pairs))

    def heal(self) -> None:
        """Let everything pass; what waited goes first."""
        self._call(self._heal())

    def parted(self) -> set[Pair]:
        return set(self._gates)

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS_MAX)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(CALL_SECONDS_MAX)

    # --- in the thread

    async def _open(self, name: str, host: str, port: int) -> int:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(name, host, port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _part(self, pairs: list[Pair]) -> None:
        for pair in pairs:
            self._gates.setdefault(pair, asyncio.Event())

    async def _heal(self) -> None:
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.set()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _passable(self, pair: Pair) -> None:
        while (gate := self._gates.get(pair)) is not None:
            await gate.wait()

    async def _serve(
        self,
        name: str,
        host: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        pair = frozenset((name, self._source(writer)))
        onward: asyncio.StreamWriter | None = None
        try:
            await self._passable(pair)
            back, onward = await asyncio.open_connection(host, port)
            ways = [self._pump(reader, onward, pair), self._pump(back, writer, pair)]
            tasks = [asyncio.ensure_future(each) for each in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass  # the broker is down: the caller's connection ends
        finally:
            for each in (writer, onward):
                if each is not None:
                    each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: Pair
    ) -> None:
        while True:
            data = await reader.read(CHUNK_BYTES)
            await self._passable(pair)  # an end of the connection waits, too
            if not data:
                return
            writer.write(data)
            await writer.drain()

    def _source(self, writer: asyncio.StreamWriter) -> str:
        """The broker that a connection comes from."""
        sock: socket.socket = writer.get_extra_info("socket")
        inode = _inode_of(writer.get_extra_info("peername"), sock.getsockname())
        for name, pid in self._pids().items():
            if inode and _owns(pid, inode):
                return name
        return STRANGER


def _inode_of(local: tuple[str, int], remote: tuple[str, int]) -> str:
    """The socket with these ends, as /proc/net/tcp knows it; empty if it isn't there."""
    ends = f"{_kernel_form(local)} {_kernel_form(remote)}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        fields = line.split()
        if f"{fields[1]} {fields[2]}" == ends:
            return fields[9]
    return ""


def _kernel_form(end: tuple[str, int]) -> str:
    address = int.from_bytes(socket.inet_aton(end[0]), "little")
    return f"{address:08X}:{end[1]:04X}"


def _owns(pid: int, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    if os.readlink(entry.path) == wanted:
                        return True
                except OSError:
                    continue  # closed meanwhile
    except OSError:
        pass  # the process has ended
    return False
