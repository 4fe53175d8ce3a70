"""Links over real sockets: between event loops and between processes, over TLS and Unix sockets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rhizome.client import connect
from rhizome.server.config.config_sections import TlsSection
from tests.process.cluster.link_broker import ECHO, ECHOED, FAST, LinkBroker, hello_of
from tests.process.security.test_tls import Certificates

pytestmark = pytest.mark.rhizome_only

SECONDS_MAX = 90
ROOT = Path(__file__).resolve().parents[3]


def scenario(
    function: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Run a test in an event loop of the kind that brokers use."""

    async def limited(*arguments: Any) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await function(*arguments)

    def test(tmp_path: Path) -> None:
        takes = function.__code__.co_argcount
        uvloop.run(limited(*(tmp_path,)[:takes]))

    test.__name__ = function.__name__
    return test


@asynccontextmanager
async def running(*brokers: LinkBroker) -> AsyncIterator[None]:
    """Brokers that listen; they know nobody yet."""
    for broker in brokers:
        await broker.start()
    try:
        yield
    finally:
        for broker in brokers:
            await broker.stop()


def pair(**fields: Any) -> tuple[LinkBroker, LinkBroker]:
    return LinkBroker(hello_of("b1", 1)), LinkBroker(hello_of("b2", 2, **fields))


@scenario
async def test_three_brokers_that_dial_each_other_have_one_link_per_pair() -> None:
    brokers = [LinkBroker(hello_of(f"b{number}", number)) for number in (1, 2, 3)]
    async with running(*brokers):
        for broker in brokers:
            broker.knows(*brokers)
        await brokers[0].until_linked("b2", "b3")
        await brokers[1].until_linked("b1", "b3")
        await brokers[2].until_linked("b1", "b2")
        # The handshakes that were given up leave nothing behind.
        while any(len(broker.driver.protocols) > 2 for broker in brokers):
            await asyncio.sleep(0.01)
        assert [len(broker.core.connections) for broker in brokers] == [0, 0, 0]
        assert all(
            not heard.startswith(("down", "problem")) for b in brokers for heard in b.events.heard
        )


@scenario
async def test_large_and_many_frames_go_through_both_ways_in_order() -> None:
    one, two = pair()
    async with running(one, two):
        one.knows(two)
        await one.until_linked("b2")
        sent = [bytes([number % 251]) * (number * 977 % 300_000) for number in range(100)]
        sent.append(b"x" * (16 << 20))
        link = one.links.open_links()[0]
        one.driver.shell.begin_turn()
        for payload in sent:
            link.send_of(ECHO, payload[:5], payload[5:])
        await one.until(lambda: len(one.events.received) == len(sent))
        assert one.events.received == [(ECHOED, payload) for payload in sent]


@scenario
async def test_a_backlog_is_congestion_until_the_peer_reads_again() -> None:
    one, two = pair()
    async with running(one, two):
        one.knows(two)
        await one.until_linked("b2")
        await two.until_linked("b1")
        (protocol,) = two.driver.protocols
        protocol.transport.pause_reading()
        link = one.links.open_links()[0]
        while not link.congested:
            one.driver.shell.begin_turn()
            for _ in range(10):
                link.send(40, b"x" * 100_000)
            await asyncio.sleep(0)
        sent = int(link.sent_frames)
        protocol.transport.resume_reading()
        await one.until_heard("free b2")
        await two.until(lambda: len(two.events.received) == sent)
        assert one.linked() == ["b2"]


@scenario
async def test_applications_and_links_share_the_listener() -> None:
    one, two = pair()
    async with running(one, two):
        one.knows(two)
        await one.until_linked("b2")
        where = f"amqp://guest:guest@{two.address}/"
        async with connect(where) as connection, connection.channel(confirms=True) as channel:
            queue = (await channel.declare_queue(exclusive=True)).name
            await channel.publish(b"hello", routing_key=queue)
            message = await channel.get(queue, no_ack=True)
            assert message is not None
            assert message.body == b"hello"
        assert one.linked() == ["b2"]


@scenario
async def test_another_key_another_cluster_and_another_version_are_refused() -> None:
    one = LinkBroker(hello_of("b1", 1, cluster_uuid="c" * 32))
    others = [
        LinkBroker(hello_of("b2", 2, cluster_uuid="c" * 32), key=b"some other key, also long"),
        LinkBroker(hello_of("b3", 3, cluster_uuid="d" * 32)),
        LinkBroker(hello_of("b4", 4, versions=(8, 9))),
    ]
    async with running(one, *others):
        one.knows(*others)
        await one.until_heard("problem b2: refused by b2 at")
        await one.until_heard(f"'b1' belongs to cluster {'c' * 32} and broker 'b3' to cluster")
        await one.until_heard(
            "'b1' speaks version 1 of the link protocol and broker 'b4' versions 8"
        )
        for other in others:
            other.knows(one)
            await other.until_heard("problem b1")
        assert one.linked() == []


@scenario
async def test_a_unix_socket_carries_a_link(tmp_path: Path) -> None:
    one, two = pair()
    await one.start()
    await two.start(path=str(tmp_path / "b2"))
    one.knows(two)
    await one.until_linked("b2")
    await two.until_linked("b1")
    await one.stop()
    await two.until_heard("broker 'b1' stops")
    await two.stop()


@scenario
async def test_an_address_that_nobody_answers_is_tried_until_somebody_does() -> None:
    one, two = pair()
    await two.start()
    address = two.address
    await two.stop()
    await one.start()
    one.links.configure("b2", (address, "unix:/nowhere", "no address"), "primary")
    await one.until_heard("can't be connected to")
    again = LinkBroker(hello_of("b2", 2))
    await again.start(port=int(address.rpartition(":")[2]))
    await one.until_linked("b2")
    for broker in (one, again):
        await broker.stop()


def test_a_handshake_that_is_under_way_ends_with_its_broker() -> None:
    async def test(client: socket.socket) -> None:
        one = LinkBroker(hello_of("b1", 1))
        async with asyncio.timeout(SECONDS_MAX), running(one):
            host, _, port = one.address.rpartition(":")
            client.connect((host, int(port)))
            while not one.core.connections:
                await asyncio.sleep(0.01)

    with socket.socket() as client, warnings.catch_warnings(record=True) as left_open:
        uvloop.run(test(client))
    assert [str(each.message) for each in left_open] == []


# --- processes


class Child:
    """A link_broker in a process of its own. None outlives `Child.running`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @staticmethod
    @asynccontextmanager
    async def running(name: str, number: int, peers: dict[str, str]) -> AsyncIterator[Child]:
        options = json.dumps({"name": name, "number": number, "peers": peers})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.process.cluster.link_broker",
            options,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        child = Child(process)
        try:
            await child.until("ready ")
            yield child
        finally:
            # Also when the time of the test is up.
            if process.returncode is None:
                await child.kill()

    @property
    def address(self) -> str:
        return self.lines[0].removeprefix("ready ")

    async def until(self, text: str) -> str:
        """The next line with this text."""
        assert self.process.stdout is not None
        while True:
            line = (await self.process.stdout.readline()).decode().rstrip()
            assert line, f"the process ended before it said {text!r}: {self.lines}"
            self.lines.append(line)
            if text in line:
                return line

    async def end(self) -> None:
        """Let it stop by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await self.process.wait() == 0

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@scenario
async def test_a_process_that_is_killed_is_missed_at_once_and_linked_when_it_returns() -> None:
    one, _ = pair()
    async with running(one):
        async with Child.running("b2", 2, {"b1": one.address}) as child:
            await one.until_linked("b2")
            await child.until("up b1")
            await child.kill()
            await one.until_linked()
            assert "b2" in one.events.heard[-1]
        async with Child.running("b2", 2, {"b1": one.address}) as child:
            await one.until_linked("b2")
            await child.end()
            await one.until_heard("broker 'b2' stops")


@scenario
async def test_a_process_that_hangs_is_given_up_by_its_silence() -> None:
    one, _ = pair()
    async with running(one), Child.running("b2", 2, {"b1": one.address}) as child:
        await one.until_linked("b2")
        child.signal(signal.SIGSTOP)
        await one.until_heard("nothing came from b2 for 1")
        assert one.linked() == []
        child.signal(signal.SIGCONT)
        await one.until_linked("b2")
        await child.end()


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    for authority in ("ours", "theirs"):
        made.make_authority(authority)
    for name in ("b1", "b2"):
        made.make(name, "ours", f"/CN={name}", "subjectAltName=IP:127.0.0.1\n")
    made.make("stranger", "theirs", "/CN=b2", "subjectAltName=IP:127.0.0.1\n")
    return made


def tls(certificates: Certificates, name: str, verify: str = "optional") -> TlsSection:
    return TlsSection(
        certificate=certificates.path(name),
        key=certificates.path(f"{name}.key"),
        ca=certificates.path("ours"),
        verify_client=verify,
    )


def tls_broker(certificates: Certificates, name: str, certificate: str) -> LinkBroker:
    return LinkBroker(
        hello_of(name, int(name[1:])),
        settings=replace(FAST, needs_certificate=True),
        tls=tls(certificates, certificate),
    )


def test_links_go_over_tls_when_both_show_a_certificate(certificates: Certificates) -> None:
    async def test() -> None:
        one = tls_broker(certificates, "b1", "b1")
        two = tls_broker(certificates, "b2", "b2")
        async with asyncio.timeout(SECONDS_MAX), running(one, two):
            one.knows(two)
            two.knows(one)
            await one.until_linked("b2")
            await two.until_linked("b1")
            one.driver.shell.begin_turn()
            payload = bytes(range(256)) * 20_000
            one.links.open_links()[0].send(ECHO, payload)
            await one.until(lambda: one.events.received == [(ECHOED, payload)])

    uvloop.run(test())


def test_a_certificate_of_another_authority_is_refused_both_ways(
    certificates: Certificates,
) -> None:
    async def test() -> None:
        one = tls_broker(certificates, "b1", "b1")
        stranger = tls_broker(certificates, "b2", "stranger")
        async with asyncio.timeout(SECONDS_MAX), running(one, stranger):
            one.knows(stranger)
            await one.until_heard("certificate")
            stranger.knows(one)
            await stranger.until_heard("problem b1")
            assert one.linked() == []

    uvloop.run(test())


def test_a_link_without_a_certificate_is_refused_though_the_key_is_right(
    certificates: Certificates,
) -> None:
    async def test() -> None:
        one = tls_broker(certificates, "b1", "b1")
        two = tls_broker(certificates, "b2", "b2")
        assert two.driver.tls is not None
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.load_verify_locations(certificates.path("ours"))
        two.driver.tls = bare
        async with asyncio.timeout(SECONDS_MAX), running(one, two):
            two.knows(one)
            await two.until_heard("problem b1: refused by b1")
            assert one.linked() == []

    uvloop.run(test())
