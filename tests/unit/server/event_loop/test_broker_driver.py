"""The shell's protocol: what it makes of a transport."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from rhizome.server.broker_server import peer_of
from rhizome.server.event_loop.broker_driver import ClientProtocol, Shell
from rhizome.server.event_loop.busy_poll import BusyPoll
from rhizome.testing.in_memory_broker import make_core


class Transport:
    """A transport that has addresses and takes what is written."""

    def __init__(self, peer: Any, local: Any) -> None:
        self._info = {"peername": peer, "sockname": local}

    def get_extra_info(self, name: str) -> Any:
        return self._info[name]

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass


@pytest.mark.parametrize(
    ("peer", "local", "name"),
    [
        (("10.1.2.3", 40001), ("10.1.2.9", 5672), "10.1.2.3:40001 -> 10.1.2.9:5672"),
        (
            ("2001:db8::3", 40001, 0, 0),
            ("2001:db8::9", 5672, 0, 0),
            "[2001:db8::3]:40001 -> [2001:db8::9]:5672",
        ),
        ("", "/run/rhizome.sock", "unix:0 -> the listener"),
    ],
)
def test_a_connection_is_named_after_the_addresses_of_its_ends(
    peer: Any, local: Any, name: str
) -> None:
    """Not after its listener, which may be one on all addresses. RabbitMQ names them so."""
    core = make_core()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        never = BusyPoll(loop, 0, time.monotonic_ns, os.sched_yield)
        broker = core.broker
        shell = Shell(broker, broker.cluster, core.store, loop, lambda: core.now_ms, never)
        protocol = ClientProtocol(shell, "the listener", False, peer_of)
        protocol.connection_made(Transport(peer, local))
        assert [each.name for each in broker.connections.values()] == [name]
