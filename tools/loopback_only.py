"""Commands that see no network but loopback.

Other people's programs may dial any address that they like, and a test must not. `LoopbackOnly`
runs them in a network namespace of their own (`unshare` and `nsenter` of util-linux), in which
nothing exists but a loopback interface. That interface is not ours: so the namespace has listeners
on the ports of the brokers here, and what connects to one is relayed to the same port outside.

    with LoopbackOnly([5672]) as inside:
        subprocess.run([*inside.prefix, "curl", "http://example.org"])  # fails at once
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Final

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 64 * 1024
BACKLOG: Final = 1024
START_SECONDS_MAX: Final = 20.0

# Runs inside: switches loopback on, hands out listeners, and stays until nobody wants it.
_HOLDER: Final = """
import fcntl, socket, struct, sys
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
with socket.socket() as some:
    answer = fcntl.ioctl(some, GET_FLAGS, struct.pack("16sh", b"lo", 0))
    name, flags = struct.unpack("16sh", answer)
    fcntl.ioctl(some, SET_FLAGS, struct.pack("16sh", name, flags | UP))
outside = socket.socket(fileno=int(sys.argv[1]))
for port in sys.argv[2:]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    socket.send_fds(outside, [b"+"], [listener.fileno()])
    listener.close()
outside.recv(1)
"""


class NoNamespace(Exception):
    """The system doesn't let us have a network namespace; the text says what it said."""


def unshare_command() -> list[str]:
    """What begins a command in a new network namespace; without root in a user namespace too."""
    said = ""
    for options in (["--net"], ["--map-root-user", "--net"]):
        command = ["unshare", *options, "--"]
        try:
            done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise NoNamespace("unshare is not installed (util-linux)") from None
        if done.returncode == 0:
            return command
        said = done.stderr.strip()
    raise NoNamespace(said)


class LoopbackOnly:
    """A network namespace with loopback and the relayed ports, as long as the context lasts."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = sorted(set(ports))
        self._relay = _Relay()
        self._holder: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self.prefix: list[str] = []

    def __enter__(self) -> LoopbackOnly:
        command = unshare_command()
        self._line, theirs = socket.socketpair()
        with theirs:
            python = [sys.executable, "-I", "-S", "-c", _HOLDER, str(theirs.fileno())]
            self._holder = subprocess.Popen(
                [*command, *python, *map(str, self._ports)], pass_fds=[theirs.fileno()]
            )
        try:
            for port in self._ports:
                self._relay.serve(self._listener(), port)
        except BaseException:
            self._end()
            raise
        self.prefix = self._entering(self._holder.pid, "--map-root-user" in command)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _listener(self) -> socket.socket:
        assert self._line is not None
        self._line.settimeout(START_SECONDS_MAX)
        _, descriptors, _, _ = socket.recv_fds(self._line, 1, 1)
        if not descriptors:
            raise NoNamespace("the namespace could not be furnished; see above")
        return socket.socket(fileno=descriptors[0])

    @staticmethod
    def _entering(pid: int, has_users: bool) -> list[str]:
        users = [f"--user=/proc/{pid}/ns/user", "--preserve-credentials"] if has_users else []
        return ["nsenter", f"--net=/proc/{pid}/ns/net", *users, "--"]

    def _end(self) -> None:
        self._relay.close()
        if self._line is not None:
            self._line.close()
        if self._holder is not None:
            self._holder.wait()


class _Relay:
    """Hands connections of listeners on to ports of this machine, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any] | None] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()

    def serve(self, listener: socket.socket, port: int) -> None:
        async def start() -> None:
            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                self._tasks.add(task)  # a loop has only weak references
                # Cancelled by `close` alone; Python 3.11 would report it as an error.
                with contextlib.suppress(asyncio.CancelledError):
                    await _relay(reader, writer, port)
                self._tasks.discard(task)

            server = await asyncio.start_server(connected, sock=listener, backlog=BACKLOG)
            self._servers.append(server)

        self._call(start())

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS_MAX)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Both ways until both have ended; if one breaks, both do."""
    try:
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
    except OSError:
        writer.transport.abort()
        return
    try:
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        for each in (writer, far_writer):
            each.close()
    finally:
        for each in (writer, far_writer):
            if not each.is_closing():
                each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        return
    writer.transport.abort()
