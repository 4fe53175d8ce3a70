"""Ports for tests: each is given out once, also to test runs that run at the same time.

They lie below those that the system gives to connections: a broker that is down keeps its port,
and a client that tries to connect to a port of its own could even connect to itself.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
LAST: Final = 32_000


def free_port() -> int:
    """A loopback port that no program listens on now, and no other caller was given lately."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many ports in a row."""
    while True:
        first = _next(count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _next(count: int) -> int:
    """Counted in a file of this user that all test runs share."""
    path = Path(tempfile.gettempdir()) / f"rhizome-test-ports-{os.getuid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        first = int(os.pread(descriptor, 16, 0) or FIRST)
        if not FIRST <= first <= LAST - count:
            first = FIRST
        os.pwrite(descriptor, f"{first + count:<16}".encode(), 0)
        return first
    finally:
        os.close(descriptor)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
