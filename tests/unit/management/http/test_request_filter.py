"""What every request passes: hosts, headers, and bodies that nobody wants."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rhizome.cli.commands.resources.definitions_command import import_definitions
from rhizome.cli.errors import CliError
from rhizome.management.http.request_filter import DRAIN_BYTES_MAX
from rhizome.management.http_service import HttpService
from rhizome.management.peers.peer_request_handler import respond
from rhizome.management.peers.peer_requests import PeerRequest
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import HttpSection, ListenSection
from rhizome.server.config.units import Address
from tests.unit.management.conftest import Answer, Api, Core, call, make_scope

EVERY_PATH = [
    "/",
    "/console/main.js",
    "/metrics",
    "/api/whoami",
    "/api/rhizome/session",
    "/nowhere",
]


def called(core: Core, host: str, path: str = "/api/auth", scheme: str = "http") -> Answer:
    """Ask with this Host header."""
    scope = make_scope("GET", path, {"host": host} if host else {}, "127.0.0.1")
    return core.run(call(core.application, {**scope, "scheme": scheme}, b""))


def configured(core: Core, **sections: object) -> Config:
    config = core.context.config
    assert isinstance(config, Config)
    changed = replace(config, **sections)  # type: ignore[arg-type]
    core.context.config = changed
    return changed


# ---- the length of a body


def test_a_request_whose_end_is_in_doubt_is_the_last_of_its_connection(api: Api) -> None:
    headers = {"content-length": "5", "transfer-encoding": "chunked"}
    refused = api.ask("PUT", "/api/vhosts/v", b"{}", headers)
    assert refused.status == 400
    assert "not both" in refused.reason
    assert refused.headers["connection"] == "close"
    assert api.get("vhosts", "v").status == 404


# ---- hosts


@pytest.mark.parametrize("path", EVERY_PATH)
def test_a_page_of_a_foreign_site_reaches_nothing(core: Core, path: str) -> None:
    answer = called(core, "evil.example:15672", path)
    assert answer.status == 421
    assert answer.json["error"] == "misdirected_request"
    assert "http.allowed_hosts" in answer.reason
    assert "evil.example" in answer.reason


def test_a_foreign_name_is_refused_though_the_password_is_right(core: Core, api: Api) -> None:
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    refused = api.ask("PUT", "/api/queues/%2F/q", b"{}", headers)
    assert refused.status == 421
    assert "q" not in core.broker.state.vhosts["/"].destinations


@pytest.mark.parametrize("host", ["localhost:15672", "127.0.0.1", "[::1]:15672", "rhizome", ""])
def test_own_names_and_addresses_are_served(core: Core, host: str) -> None:
    assert called(core, host).status == 200


def test_names_of_the_machine_and_of_the_configuration_are_served(core: Core) -> None:
    assert called(core, "m1.example.org").status == 421
    core.context.machine = "m1.example.org"
    assert called(core, "m1.example.org").status == 200
    configured(core, listen=ListenSection(http=(Address("b1.example.org", 15672),)))
    assert called(core, "B1.example.org:15672").status == 200


def test_hosts_can_be_allowed(core: Core) -> None:
    configured(core, http=HttpSection(allowed_hosts=("queues.example.org", "*.svc.cluster.local")))
    assert called(core, "queues.example.org").status == 200
    assert called(core, "rhizome.prod.svc.cluster.local:15672").status == 200
    assert called(core, "evil.example").status == 421
    configured(core, http=HttpSection(allowed_hosts=("*",)))
    assert called(core, "evil.example").status == 200


def test_over_tls_the_certificate_is_what_counts(core: Core) -> None:
    assert called(core, "broker.elsewhere.example", scheme="https").status == 200


def test_other_brokers_ask_without_a_host(core: Core) -> None:
    reply = core.run(respond(core.application, PeerRequest("GET", "/api/whoami", "guest")))
    assert reply.status == 200


# ---- headers


@pytest.mark.parametrize("path", EVERY_PATH)
def test_no_answer_is_shown_or_kept_elsewhere(core: Core, path: str) -> None:
    headers = called(core, "localhost", path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    console = path == "/" or path.startswith("/console")
    assert headers["cache-control"] == ("no-cache" if console else "no-store")
    assert "access-control-allow-origin" not in headers


def test_browsers_keep_to_tls_once_they_have_it(core: Core) -> None:
    header = "strict-transport-security"
    assert called(core, "localhost", scheme="https").headers[header] == "max-age=31536000"
    assert header not in called(core, "localhost").headers
    configured(core, http=HttpSection(hsts_ms=0))
    assert header not in called(core, "localhost", scheme="https").headers


# ---- bodies that nobody wants


def test_a_body_is_not_read_before_the_caller_is_known(core: Core) -> None:
    scope = make_scope("POST", "/api/definitions", {"content-length": "9999"}, "127.0.0.1")
    read: list[int] = []
    answer = core.run(call_counting(core, scope, read))
    assert answer.status == 401
    assert answer.headers["connection"] == "close"
    assert sum(read) <= DRAIN_BYTES_MAX + 65_536


async def call_counting(core: Core, scope: dict[str, object], read: list[int]) -> Answer:
    """Ask with a body without end, and note how much of it is taken before the answer."""
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        read.append(65_536)
        return {"type": "http.request", "body": bytes(65_536), "more_body": True}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await core.application(scope, receive, send)  # type: ignore[arg-type]
    pairs: list[tuple[bytes, bytes]] = sent[0]["headers"]  # type: ignore[assignment]
    headers = {name.decode(): text.decode("latin-1") for name, text in pairs}
    status = sent[0]["status"]
    assert isinstance(status, int)
    return Answer(status, headers, b"")


def test_a_client_that_waits_to_be_asked_for_its_body_is_not(core: Core) -> None:
    headers = {"content-length": "9999", "expect": "100-continue"}
    read: list[int] = []
    scope = make_scope("POST", "/api/definitions", headers, "127.0.0.1")
    answer = core.run(call_counting(core, scope, read))
    assert answer.status == 401
    assert read == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/queues/%2F/q"),
        ("PUT", "/api/exchanges/%2F/e"),
        ("POST", "/api/exchanges/%2F/amq.direct/publish"),
        ("POST", "/api/exchanges/%2F/amq.default/publish"),
        ("POST", "/api/bindings/%2F/e/amq.direct/q/mine"),
        ("POST", "/api/bindings/%2F/e/amq.direct/e/amq.topic"),
        ("POST", "/api/queues/%2F/mine/get"),
        ("PUT", "/api/rhizome/streams/%2F/s"),
        ("PUT", "/api/policies/%2F/p"),
        ("PUT", "/api/parameters/c/%2F/p"),
        ("PUT", "/api/users/u"),
        ("POST", "/api/definitions"),
    ],
)
def test_permission_is_asked_before_the_body_is_read(
    core: Core, api: Api, as_user: Callable[[str], Api], method: str, path: str
) -> None:
    api.put("queues", "/", "mine")
    api.put("permissions", "/", "stranger", configure="^$", write="^$", read="^$")
    stranger = as_user("stranger")
    answer = stranger.ask(method, path, b"{not json", {"content-length": "9"})
    assert answer.status == 401, answer.body


# ---- over a socket


async def served(core: Core) -> tuple[HttpService, int]:
    config = configured(core, listen=ListenSection(http=(Address("127.0.0.1", 0),)))
    service = HttpService(config, core.broker, core.shell, core.context.login, core.store)
    urls = await service.start()
    return service, int(urls[0].rpartition(":")[2])


def test_a_refusal_reaches_a_client_that_is_still_sending(core: Core) -> None:
    body = bytes(DRAIN_BYTES_MAX // 2)

    async def scenario() -> bytes:
        service, port = await served(core)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /api/definitions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read(4096)
        writer.close()
        await service.stop()
        return answer

    assert core.run(scenario()).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("method", "target", "size"),
    [
        ("POST", "/api/definitions", 30 << 20),
        ("PUT", "/api/queues/%2F/q", 30 << 20),
        ("PUT", "/api/queues/%2F/q", 3 << 20),
        ("PUT", "/api/queues/%2F/q", 200_000),
        ("POST", "/api/exchanges/%2F/amq.direct/publish", 30 << 20),
    ],
)
def test_a_body_beyond_the_limit_is_answered_though_all_of_it_is_sent_first(
    core: Core, method: str, target: str, size: int, chunked: bool
) -> None:
    core.broker.state.sizes.bytes_max = 1 << 20
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        while sent < size:
            sent += 65_536
            yield b" " * 65_536

    def ask(port: int) -> tuple[int, str]:
        headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
        if not chunked:
            headers["Content-Length"] = str(-(-size // 65_536) * 65_536)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request(method, target, pieces(), headers, encode_chunked=chunked)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    async def scenario() -> tuple[int, str]:
        service, port = await served(core)
        try:
            return await asyncio.to_thread(ask, port)
        finally:
            await service.stop()

    status, text = core.run(scenario())
    assert status == 413
    assert "bytes that this request may have" in text
    assert sent >= size


def test_the_import_command_shows_the_limit(core: Core, tmp_path: Path) -> None:
    core.broker.state.sizes.bytes_max = 1 << 20
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": [{"name": "x" * 30_000_000}]}))

    async def scenario() -> None:
        service, port = await served(core)
        try:
            await asyncio.to_thread(import_definitions, file=file, http=f"127.0.0.1:{port}")
        finally:
            await service.stop()

    with pytest.raises(CliError, match=r"413 .*cluster\.state_size_max"):
        core.run(scenario())
