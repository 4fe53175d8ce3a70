"""A network of namespaces, one per broker, in which ways between brokers can be cut.

Each namespace has an interface on one bridge, which is in a namespace of its own, the hub; the test
lives there too while the network exists. A way is cut by giving the receiver a wrong hardware
address in the sender's table of neighbours: packets leave and nobody takes them, which is silence
and no error, and each direction is cut by itself. That needs root and `ip`, and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rhizome.testing.broker_process import BrokerProcess

CLONE_NEWNET: Final = 0x40000000
SUBNET: Final = "10.77.0"
HUB: Final = 254


def why_not() -> str:
    """Why namespaces can't be had here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the program ip (iproute2)"
    probe = f"rz{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.decode().strip()}"
    ip("netns", "del", probe)
    return ""


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.decode().strip()}"


def enter(path: str) -> None:
    """Put this thread, and those that it will start, into a namespace."""
    with open(path, "rb") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"can't enter {path}")


def hardware(number: int) -> str:
    return f"02:00:00:77:00:{number:02x}"


NOBODY: Final = hardware(0)


class Network:
    """Invariant: ``cut_ways`` are the (from, to) that are cut. ``environment`` is for brokers."""

    def __init__(self, names: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.names = list(names)
        self._environment = {"RHIZOME_SECURITY_LOOPBACK_USERS": "", **(environment or {})}
        self.cut_ways: set[tuple[str, str]] = set()
        self._prefix = f"rz{os.getpid()}"
        self._home = f"/proc/{os.getpid()}/task/{os.getpid()}/ns/net"
        self._outside = os.open(self._home, os.O_RDONLY)

    def space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def number(self, name: str) -> int:
        return self.names.index(name) + 1

    def address(self, name: str) -> str:
        return f"{SUBNET}.{self.number(name)}"

    def build(self) -> None:
        hub = self.space("hub")
        ip("netns", "add", hub)
        ip("-n", hub, "link", "set", "lo", "up")
        ip("-n", hub, "link", "add", "br0", "address", hardware(HUB), "type", "bridge")
        ip("-n", hub, "addr", "add", f"{SUBNET}.{HUB}/24", "dev", "br0")
        ip("-n", hub, "link", "set", "br0", "up")
        for name in self.names:
            self._attach(name, hub)
        for name in self.names:
            for other in self.names:
                if other != name:
                    self._set_way(name, other, hardware(self.number(other)))
        enter(f"/var/run/netns/{hub}")

    def _attach(self, name: str, hub: str) -> None:
        space, port = self.space(name), f"to-{name}"
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        peer = ("peer", "name", port, "netns", hub)
        mine = ("address", hardware(self.number(name)))
        ip("-n", space, "link", "add", "eth0", *mine, "type", "veth", *peer)
        ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        ip("-n", hub, "link", "set", port, "master", "br0", "up")

    def tear_down(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.setns(self._outside, CLONE_NEWNET)
        os.close(self._outside)
        for name in [*self.names, "hub"]:
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False)

    def broker(self, name: str, directory: Path) -> BrokerProcess:
        """A broker in its namespace, not started yet."""
        launcher = ("ip", "netns", "exec", self.space(name))
        return BrokerProcess(
            directory, environment=self._environment, host=self.address(name), launcher=launcher
        )

    # --- faults

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Nothing that these send reaches those."""
        to = list(receivers)
        for sender in senders:
            for receiver in to:
                if sender != receiver:
                    self._set_way(sender, receiver, NOBODY)
                    self.cut_ways.add((sender, receiver))

    def part(self, one: Sequence[str], other: Sequence[str]) -> None:
        """Cut both ways."""
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        for sender, receiver in self.cut_ways:
            self._set_way(sender, receiver, hardware(self.number(receiver)))
        self.cut_ways.clear()

    def _set_way(self, sender: str, receiver: str, lladdr: str) -> None:
        arguments = (self.address(receiver), "lladdr", lladdr, "dev", "eth0", "nud", "permanent")
        ip("-n", self.space(sender), "neigh", "replace", *arguments)
