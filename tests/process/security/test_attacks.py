"""Attacks on a running broker: refused, logged, and nothing of them stays.

Certificates that are expired or of another host are in tests/unit/security/test_tls.py, markup in
names and payloads in tests/console, passwords that are guessed in tests/unit/security.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http.client
import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

import pytest

from rhizome.amqp import methods
from rhizome.amqp.methods import decode_method
from rhizome.broker.access.application_cluster_token import application_token
from rhizome.broker.connection.outbox import Outbox
from rhizome.client import connect
from rhizome.cluster.link.broker_hello import Hello
from rhizome.cluster.link.cluster_key_proof import MECHANISM, Dialler, LinkKeys
from rhizome.cluster.link.frame_codec import put_frame
from rhizome.cluster.protocol.catalogue import HTTP_REQUEST
from rhizome.errors import NotAllowed
from rhizome.management.peers.peer_requests import PeerRequest
from rhizome.server.clustered_broker.peer_rpc import encode_question
from rhizome.testing.broker_process import BrokerProcess, wait_until
from tests.process.helpers import PROTOCOL_HEADER, RawClient, resident_bytes, run

pytestmark = [pytest.mark.rhizome_only, pytest.mark.timeout(180)]

KEY: Final = "the-key-of-this-cluster-and-of-no-other"
SLOW: Final = 60
"""Connections of an attacker who is slow on purpose."""
DEEP: Final = 20_000
WARMING: Final = 4
REPEATED: Final = 8
GROWTH_BYTES_MAX: Final = 200_000
"""Of memory per round, which sends two megabytes; 45 KB are normal."""

OPEN_OK: Final = bytes((0, 10, 0, 41))
"""The beginning of connection.open-ok."""

Stream = asyncio.StreamReader

CONFIGURATION: Final = """
[broker]
name = "b1"
[cluster]
key = "{key}"
primaries = ["b1=127.0.0.1:{port}"]
link_macs = "always"
[limits]
handshake_timeout = "5s"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("attacked")
    file = directory / "rhizome.toml"
    process = BrokerProcess(directory, arguments=["--config", str(file)])
    file.write_text(CONFIGURATION.format(key=KEY, port=process.port))
    with process:
        yield process
        assert process.is_running(), process.printed()


def open_files_of(broker: BrokerProcess) -> int:
    """All descriptors: sockets, pipes, files."""
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def still_serves(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel() as channel:
            await channel.declare_queue(exclusive=True)

    run(scenario())
    assert ask(broker, "GET", "/api/whoami").status == 200


def ask(
    broker: BrokerProcess, method: str, target: str, body: Any = None, **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
    sent = {"Authorization": "Basic " + b64encode(b"guest:guest").decode(), **headers}
    sent = {name.replace("_", "-"): value for name, value in sent.items() if value}
    connection.request(method, target, body, sent)
    answer = connection.getresponse()
    answer.content = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def raw_http(broker: BrokerProcess, request: bytes) -> bytes:
    """What a request that no client library would send is answered with."""
    answer = b""
    address = (broker.host, broker.http_port)
    stream = socket.create_connection(address, timeout=30)
    with stream, contextlib.suppress(ConnectionError):
        stream.sendall(request)
        while data := stream.recv(65_536):
            answer += data
    return answer


# ---- slow on purpose


@pytest.mark.parametrize("http_port", [False, True], ids=["amqp", "http"])
def test_clients_that_are_slow_on_purpose_are_closed(
    broker: BrokerProcess, http_port: bool
) -> None:
    before = open_files_of(broker)
    port = broker.http_port if http_port else broker.port
    begun = b"GET /api/overview HTTP/1.1\r\nhost: x\r\nx-slow: " if http_port else b"AMQP\0"
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(socket.create_connection((broker.host, port), timeout=30))
            for _ in range(SLOW)
        ]
        for at, stream in enumerate(streams):
            with contextlib.suppress(OSError):
                stream.sendall(begun[: 1 + at % len(begun)])
        still_serves(broker)
        for stream in streams:
            # A byte now and then buys no time.
            with contextlib.suppress(OSError):
                stream.sendall(b"a")
            with contextlib.suppress(ConnectionError):
                while stream.recv(4096):
                    pass
    wait_until(lambda: open_files_of(broker) <= before, "their descriptors to be freed")
    if http_port:
        broker.wait_until_printed("its request has not come in time")


# ---- too much


def test_headers_that_are_too_large_are_refused(broker: BrokerProcess) -> None:
    huge = b"GET /api/whoami HTTP/1.1\r\nhost: x\r\nx-huge: " + b"a" * 200_000 + b"\r\n\r\n"
    assert b" 200 " not in raw_http(broker, huge)[:20]
    many = b"".join(b"x-%d: y\r\n" % number for number in range(20_000))
    answer = raw_http(broker, b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n" + many + b"\r\n")
    assert b" 200 " not in answer[:20]
    still_serves(broker)


def test_a_frame_that_is_too_large_is_refused_unread(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await RawClient.connected(broker)
        client.write(PROTOCOL_HEADER)
        await client.read_frame()
        client.write(b"\x01\x00\x00" + (1 << 31).to_bytes(4, "big") + b"x" * 1000)
        await client.read_to_end()
        await client.close()

    run(scenario())
    still_serves(broker)


def nested(kind: bytes) -> bytes:
    """A table in a table in a table: what makes decoders that call themselves overflow."""
    value = b"\x00\x00\x00\x00"
    for _ in range(DEEP):
        inside = (b"\x01a" if kind == b"F" else b"") + kind + value
        value = len(inside).to_bytes(4, "big") + inside
        if len(value) > 120_000:
            break
    return value if kind == b"F" else (len(value) + 3).to_bytes(4, "big") + b"\x01aA" + value


@pytest.mark.parametrize("kind", [b"F", b"A"], ids=["tables", "arrays"])
def test_tables_that_are_nested_without_end_are_refused(broker: BrokerProcess, kind: bytes) -> None:
    async def scenario() -> None:
        client = await RawClient.connected(broker)
        client.write(PROTOCOL_HEADER)
        await client.read_frame()
        payload = b"\x00\x0a\x00\x0b" + nested(kind) + b"\x05PLAIN\x00\x00\x00\x00\x05en_US"
        client.write(b"\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload + b"\xce")
        with contextlib.suppress(asyncio.IncompleteReadError):
            answer = decode_method(await client.read_frame())
            assert isinstance(answer, methods.ConnectionClose), answer
        await client.close()

    run(scenario())
    still_serves(broker)


@pytest.mark.parametrize("body", ["[" * 500_000, '{"a":' * 200_000], ids=["lists", "objects"])
def test_json_that_is_nested_without_end_is_refused(broker: BrokerProcess, body: str) -> None:
    assert ask(broker, "PUT", "/api/vhosts/deep", body).status in (400, 413)
    still_serves(broker)


def test_compressed_bodies_are_not_unpacked(broker: BrokerProcess) -> None:
    bomb = b"\x1f\x8b\x08\x00" + b"\x00" * 1000
    answer = ask(broker, "PUT", "/api/vhosts/bomb", bomb, Content_Encoding="gzip")
    assert answer.status == 400


# ---- other ways in


@pytest.mark.parametrize(
    "path",
    [
        "/console/../../../../etc/passwd",
        "/console/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/console/%2e%2e/%2e%2e/etc/passwd",
        "/console//etc/passwd",
        "/console/%00/etc/passwd",
        "/console/__init__.py",
        "/../../../etc/passwd",
        "//etc/passwd",
        "/api/../../etc/passwd",
    ],
)
def test_paths_lead_nowhere_but_to_the_console(broker: BrokerProcess, path: str) -> None:
    answer = raw_http(
        broker, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    )
    assert answer.split(b" ")[1] in (b"404", b"400", b"401"), answer[:100]
    assert b"root:" not in answer
    assert b"import" not in answer


def test_other_sites_change_nothing(broker: BrokerProcess) -> None:
    login = json.dumps({"user": "guest", "password": "guest"})
    session = "/api/rhizome/session"
    form = "application/x-www-form-urlencoded"
    for content_type in (form, "text/plain"):
        refused = ask(broker, "POST", session, login, Authorization="", Content_Type=content_type)
        assert refused.status == 400
    json_type = "application/json"
    answer = ask(broker, "POST", session, login, Authorization="", Content_Type=json_type)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    mine = {"Authorization": "", "Cookie": cookie.partition(";")[0]}
    assert ask(broker, "GET", "/api/whoami", **mine).status == 200
    for more in ({}, {"x_rhizome_console": "guessed"}):
        assert ask(broker, "PUT", "/api/vhosts/csrf", "{}", **mine, **more).status == 403
    # The password that a browser remembers for a site is sent along, whoever makes it ask.
    for more in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert ask(broker, "PUT", "/api/vhosts/csrf", "{}", **more).status == 403
    assert ask(broker, "GET", "/api/vhosts/csrf").status == 404


# ---- links


def hello() -> Hello:
    return Hello(
        name="b2",
        uuid=uuid4().hex,
        incarnation=uuid4().hex,
        role="secondary",
        addresses=("127.0.0.1:1",),
        machine="elsewhere",
        cluster_uuid="",
        primaries_hash="",
    )


async def challenged(broker: BrokerProcess, first: bytes) -> tuple[RawClient, methods.Method]:
    """A client that wants to be a broker, and what it is answered."""
    client = await RawClient.connected(broker)
    client.write(PROTOCOL_HEADER)
    await client.read_frame()
    capabilities: dict[str, object] = {"capabilities": {"authentication_failure_close": True}}
    client.send(0, methods.ConnectionStartOk(capabilities, MECHANISM, first, "en_US"))
    return client, decode_method(await client.read_frame())


async def refused(client: RawClient, answer: bytes) -> None:
    client.send(0, methods.ConnectionSecureOk(answer))
    closed = decode_method(await client.read_frame())
    assert isinstance(closed, methods.ConnectionClose), closed
    assert closed.reply_code == 403
    await client.close()


def test_a_broker_with_another_key_is_refused(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        dialler = Dialler(LinkKeys(b"the-key-of-another-cluster-entirely"), hello(), Random(1))
        client, answer = await challenged(broker, dialler.first())
        assert isinstance(answer, methods.ConnectionSecure)
        await refused(client, dialler.prove(answer.challenge))

    run(scenario())
    broker.wait_until_printed("login refused")


def test_a_recorded_proof_is_good_for_nothing(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        dialler = Dialler(LinkKeys(KEY.encode()), hello(), Random(2))
        client, answer = await challenged(broker, dialler.first())
        assert isinstance(answer, methods.ConnectionSecure)
        proof = dialler.prove(answer.challenge)
        client.send(0, methods.ConnectionSecureOk(proof))
        accepted = decode_method(await client.read_frame())
        assert isinstance(accepted, methods.ConnectionSecure), "it was good the first time"
        await client.close()
        again, asked = await challenged(broker, dialler.first())
        assert isinstance(asked, methods.ConnectionSecure)
        assert asked.challenge != answer.challenge
        await refused(again, proof)

    run(scenario())


def test_an_application_is_no_broker_and_a_broker_no_application(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client, answer = await challenged(broker, b"\0guest\0guest")
        assert isinstance(answer, methods.ConnectionClose)
        assert answer.reply_code == 403
        await client.close()
        for login in (f"\0b2\0{KEY}", f"\0cluster\0{KEY}", f"\0b1\0{KEY}"):
            client = await RawClient.connected(broker)
            client.write(PROTOCOL_HEADER)
            await client.read_frame()
            start = methods.ConnectionStartOk({}, "PLAIN", login.encode(), "en_US")
            client.send(0, start)
            assert await client.read_to_end() == b"", "closed without a word"
            await client.close()

    run(scenario())
    still_serves(broker)


# ---- between two brokers


class Relay:
    """Somebody on the path between two brokers: passes everything on, and then more."""

    def __init__(self, to_port: int, injected: bytes) -> None:
        self.to_port = to_port
        self.injected = injected
        self.port = 0
        self.is_done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, near: Stream, near_out: asyncio.StreamWriter) -> None:
        far, far_out = await asyncio.open_connection("127.0.0.1", self.to_port)
        for there, out, is_back in ((near, far_out, False), (far, near_out, True)):
            task = asyncio.create_task(self._pass_on(there, out, far_out, is_back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, came: Stream, out: asyncio.StreamWriter, victim: asyncio.StreamWriter, is_back: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await came.read(65_536):
                out.write(data)
                if is_back and OPEN_OK in data and not self.is_done.is_set():
                    # The link is open: from here on the acceptor takes frames of its peer.
                    victim.write(self.injected)
                    self.is_done.set()
        out.close()


def make_user_frame(name: str) -> bytes:
    """What one broker asks another on behalf of `guest`."""
    body = json.dumps({"password": "x", "tags": "administrator"}).encode()
    question = PeerRequest("PUT", f"/api/users/{name}", "guest", body)
    outbox = Outbox()
    put_frame(outbox, HTTP_REQUEST, encode_question(1, "b1", question))
    return b"".join(outbox.take())


def test_somebody_between_two_brokers_can_not_speak_for_one(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    other = BrokerProcess(
        tmp_path,
        environment={"RHIZOME_CLUSTER_LINK_MACS": "always"},
        arguments=["--name", "s1", "--role", "secondary"],
    )

    async def scenario() -> None:
        async with Relay(broker.port, make_user_frame("mitm")) as relay:
            key = tmp_path / "cluster.key"
            key.write_text(KEY)
            key.chmod(0o600)
            primary = f"b1=127.0.0.1:{relay.port}"
            other.add_arguments(["--cluster-key-file", str(key), "--primary", primary])
            other.launch()
            await relay.is_done.wait()
            while "the link with s1 is down" not in broker.printed():
                assert ask(broker, "GET", "/api/users/mitm").status == 404
                await asyncio.sleep(0.05)

    try:
        run(scenario(), 120.0)
        broker.wait_until_printed("somebody between the two brokers has changed it")
        assert ask(broker, "GET", "/api/users/mitm").status == 404
        wait_until(lambda: "linked with s1" in broker.printed().split("is down")[-1], "a new link")
    finally:
        other.kill()
    still_serves(broker)


# ---- applications of a cluster that demands its token


@pytest.fixture
def demanding(tmp_path: Path) -> Iterator[BrokerProcess]:
    file = tmp_path / "rhizome.toml"
    process = BrokerProcess(tmp_path, arguments=["--config", str(file)])
    text = CONFIGURATION.format(key=KEY, port=process.port)
    file.write_text(text.replace("[limits]", "demand_key = true\n[limits]"))
    with process:
        yield process


def test_the_cluster_key_is_no_business_of_applications(demanding: BrokerProcess) -> None:
    """Who monitors connections could read it there, and pose as a broker."""
    broker = demanding
    token = b64encode(hmac.digest(KEY.encode(), b"rhizome application token 1", "sha256"), b"-_")
    shown = token.rstrip(b"=").decode()
    spy = {"password": "spy", "tags": "monitoring"}
    assert ask(broker, "PUT", "/api/users/spy", json.dumps(spy)).status == 201
    as_spy = {"Authorization": "Basic " + b64encode(b"spy:spy").decode()}

    async def seen_while_connected(**properties: object) -> str:
        async with connect(broker.url, client_properties=properties):
            listed = ask(broker, "GET", "/api/connections", **as_spy)
            return listed.content.decode()  # type: ignore[attr-defined,no-any-return]

    seen = ""
    try:
        seen = run(seen_while_connected(cluster_key=KEY))
    except NotAllowed as refused:
        assert "app-token" in str(refused)  # noqa: PT017 - both outcomes are judged
    assert KEY not in seen
    broker.wait_until_printed("has sent the cluster key itself")
    broker.wait_until_printed("rotate the key")
    seen = run(seen_while_connected(cluster_token=shown))
    assert '"cluster_token"' in seen
    assert shown not in seen
    for proof in (KEY, shown):
        assert proof not in broker.printed()
        assert proof not in (Path(broker.data) / "audit.log").read_text()
    in_uri = f"{broker.url}?cluster_token={shown}"
    run(opened(in_uri))
    with pytest.raises(NotAllowed, match="demands its token"):
        run(opened(broker.url))


async def opened(uri: str) -> None:
    async with connect(uri):
        pass


def test_the_token_of_applications_opens_no_link(demanding: BrokerProcess) -> None:
    async def scenario() -> None:
        dialler = Dialler(LinkKeys(application_token(KEY.encode()).encode()), hello(), Random(3))
        client, answer = await challenged(demanding, dialler.first())
        assert isinstance(answer, methods.ConnectionSecure)
        await refused(client, dialler.prove(answer.challenge))

    run(scenario())


# ---- again and again


def attack_all(broker: BrokerProcess) -> None:
    """What an attacker can repeat without being made to wait, as one who guesses passwords is."""
    test_headers_that_are_too_large_are_refused(broker)
    test_a_frame_that_is_too_large_is_refused_unread(broker)
    for kind in (b"F", b"A"):
        test_tables_that_are_nested_without_end_are_refused(broker, kind)
    for body in ("[" * 500_000, '{"a":' * 200_000):
        test_json_that_is_nested_without_end_is_refused(broker, body)
    test_compressed_bodies_are_not_unpacked(broker)
    test_paths_lead_nowhere_but_to_the_console(broker, "/console/..%2f..%2fetc%2fpasswd")
    test_other_sites_change_nothing(broker)
    test_a_broker_with_another_key_is_refused(broker)
    test_a_recorded_proof_is_good_for_nothing(broker)


def test_attacks_that_are_repeated_leave_nothing_behind(broker: BrokerProcess) -> None:
    """What grows is garbage of connections, some kilobytes each, which is collected after some
    thousands of them; the megabytes that were sent are gone."""
    for _ in range(WARMING):
        attack_all(broker)
    files, memory = open_files_of(broker), resident_bytes(broker.pid)
    for _ in range(REPEATED):
        attack_all(broker)
    grown = resident_bytes(broker.pid) - memory
    print(f"{REPEATED} rounds: {grown / 1024:.0f} KiB")
    assert grown < REPEATED * GROWTH_BYTES_MAX, f"{grown / 1024:.0f} KiB"
    wait_until(lambda: open_files_of(broker) <= files, "their descriptors to be freed")
