"""Sockets that a broker listens on, and who connects from its own machine."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from typing import Final

REMEDIES: Final = {
    errno.EADDRINUSE: "another program listens there: stop it, or choose another port",
    errno.EADDRNOTAVAIL: "choose an address that this machine has",
    errno.EACCES: "ports below 1024 need the capability CAP_NET_BIND_SERVICE",
}


def bind(host: str, port: int, what: str, shared: bool = False) -> list[socket.socket]:
    """Listening addresses of a host; of localhost one family may be missing on a machine.

    ``shared``: other processes of this user listen there too, and each gets its part of the
    connections (SO_REUSEPORT).
    """
    hosts: list[str | None] = ["127.0.0.1", "::1"] if host == "localhost" else [host or None]
    sockets: list[socket.socket] = []
    problems: list[OSError] = []
    for each in hosts:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            each, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            sock = socket.socket(family, kind, protocol)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind(where)
            except OSError as error:
                sock.close()
                problems.append(error)
                continue
            sockets.append(sock)
            # The other family gets the port that the first was given.
            port = sock.getsockname()[1]
    if not sockets:
        reason = problems[0].strerror if problems else "it has no address"
        remedy = REMEDIES.get(problems[0].errno or 0, "") if problems else ""
        failure = f"cannot listen for {what} on {host or '*'}:{port}: {reason}"
        raise OSError(f"{failure}; {remedy}" if remedy else failure)
    return sockets


def bind_unix(path: str) -> socket.socket:
    """A listening address in the file system, for this user alone whatever the umask: whoever may
    write to a Unix socket may connect. One that a broker has left behind gives way."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on unix:{path}: {error.strerror}") from None
    finally:
        os.umask(before)
    return sock


def is_wildcard(host: str) -> bool:
    """Whether a listener's host stands for every interface."""
    return host in ("", "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
