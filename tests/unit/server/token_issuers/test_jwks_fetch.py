"""Keys over the network: what is taken from an issuer, and what is not."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from rhizome.security.jwks_cache import FetchTimes, IssuerKeys, KeyLocation
from rhizome.security.token_keys import PublishedKeys, TokenKey
from rhizome.server.token_issuers.https_json_document import (
    DOCUMENT_BYTES_MAX,
    FetchError,
    fetch_document,
)
from rhizome.server.token_issuers.jwks_fetch import IssuerKeyFetcher, fetch_keys
from rhizome.testing.broker_process import wait_until
from tests.unit.security.issuer_server import DISCOVERY, KEYS, IssuerServer, send, send_bytes
from tests.unit.security.token_issuer import Issuer

SHORT_S = 0.3
"""Long enough for loopback, for tests that wait until it is over."""


@pytest.fixture(scope="module")
def keys() -> Issuer:
    return Issuer()


@pytest.fixture
def server(tmp_path: Path, keys: Issuer) -> Iterator[IssuerServer]:
    with IssuerServer(tmp_path) as made:
        made.keys = [keys.public_key("rsa"), keys.public_key("ec")]
        yield made


def location(server: IssuerServer, **changes: str) -> KeyLocation:
    return KeyLocation(**{"issuer": server.issuer, "ca": server.ca, **changes})


def refusal(where: KeyLocation) -> str:
    with pytest.raises(FetchError) as refused:
        fetch_keys(where)
    return str(refused.value)


def names(published: PublishedKeys) -> list[str]:
    return [key.name for key in published.keys]


# ---- what is taken


def test_keys_are_found_through_the_discovery_document(server: IssuerServer) -> None:
    assert names(fetch_keys(location(server))) == ["rsa", "ec"]
    assert server.requests == [DISCOVERY, KEYS]


def test_a_url_of_keys_needs_no_discovery(server: IssuerServer) -> None:
    assert names(fetch_keys(location(server, jwks_url=server.jwks_url))) == ["rsa", "ec"]
    assert server.requests == [KEYS]


def test_an_issuer_with_a_slash_at_its_end_is_found(server: IssuerServer) -> None:
    issuer = server.issuer + "/"
    server.discovered["issuer"] = issuer
    assert names(fetch_keys(location(server, issuer=issuer))) == ["rsa", "ec"]
    assert server.requests[0] == DISCOVERY


def test_chunks_and_lengths_that_are_not_told_are_read(server: IssuerServer) -> None:
    def chunked(request: BaseHTTPRequestHandler) -> None:
        request.protocol_version = "HTTP/1.1"
        request.send_response(200)
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        request.wfile.write(b'5\r\n{"a":\r\n3\r\n 1}\r\n0\r\n\r\n')

    def until_the_end(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b'{"a": 1}')

    server.answers = {"/chunked": chunked, "/end": until_the_end}
    for path in server.answers:
        assert fetch_document(server.url + path, server.ca) == {"a": 1}


def test_plain_http_is_for_loopback(tmp_path: Path, keys: Issuer) -> None:
    with IssuerServer(tmp_path, tls=False) as server:
        server.keys = [keys.public_key("ec")]
        assert names(fetch_keys(location(server))) == ["ec"]
    assert "plain HTTP" in refusal(KeyLocation("http://login.example.org"))


def test_localhost_that_is_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write to the table of hosts could lead plain HTTP elsewhere."""
    from rhizome.server.token_issuers import https_json_document

    monkeypatch.setattr(https_json_document, "is_loopback", lambda host: False)
    with IssuerServer(tmp_path, tls=False) as server:
        assert "another machine over plain HTTP" in refusal(location(server))
        assert server.requests == []


# ---- lies


def test_the_document_of_another_issuer_is_refused(server: IssuerServer) -> None:
    for told in ("https://evil.example", server.issuer + "/", None, 5, [server.issuer]):
        server.discovered["issuer"] = told
        assert "the document of another issuer" in refusal(location(server))
    assert KEYS not in server.requests, "its keys are not even asked for"


@pytest.mark.parametrize(
    ("jwks_uri", "reason"),
    [
        (None, "says no jwks_uri"),
        (["https://a.example"], "says no jwks_uri"),
        ("", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("http://login.example.org/keys", "plain HTTP"),
        ("http://127.0.0.1:1/keys", "plain HTTP"),
        ("https://user:password@login.example.org/keys", "no user and no password"),
        ("https://a.example/\r\nX-Evil: 1", "printable ASCII"),
    ],
)
def test_where_keys_are_must_be_a_safe_url(
    server: IssuerServer, jwks_uri: Any, reason: str
) -> None:
    server.discovered["jwks_uri"] = jwks_uri
    assert reason in refusal(location(server))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 300, 304])
@pytest.mark.parametrize("path", [DISCOVERY, KEYS])
def test_redirects_are_not_followed(
    server: IssuerServer, tmp_path: Path, keys: Issuer, status: int, path: str
) -> None:
    with IssuerServer(tmp_path / "other") as other:
        other.keys = [keys.public_key("ec")]
        for target in (other.jwks_url, server.url + "/elsewhere"):
            server.answers[path] = lambda request, to=target: send(  # type: ignore[misc]
                request, {}, status, location=to
            )
            assert "redirects" in refusal(location(server))
        assert other.requests == []
        assert "/elsewhere" not in server.requests


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b"[]",
        b'"keys"',
        b'{"keys": [}',
        b'{"keys": {}}',
        b"{}",
        b"[" * 100_000,
        b'{"keys": [' + b"9" * 50_000 + b"]",
        b"\xff\xfe{",
        b'{"keys": [' + b",".join([b"{}"] * 101) + b"]}",
    ],
    ids=range(11),
)
def test_what_is_no_set_of_keys_is_refused(server: IssuerServer, body: bytes) -> None:
    server.answers[KEYS] = lambda request: send_bytes(request, body)
    assert server.jwks_url in refusal(location(server))


@pytest.mark.parametrize("status", [201, 204, 401, 404, 429, 500, 503])
def test_only_ok_is_an_answer(server: IssuerServer, status: int) -> None:
    server.answers[KEYS] = lambda request: send(request, {"keys": []}, status)
    assert f"status {status}" in refusal(location(server))


def test_a_huge_answer_is_cut_off(server: IssuerServer) -> None:
    sent: list[int] = []

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while True:
                request.wfile.write(b" " * 65_536)
                sent.append(65_536)
        except OSError:
            sent.append(-1)

    server.answers[KEYS] = endless
    assert f"more than {DOCUMENT_BYTES_MAX} bytes" in refusal(location(server))
    wait_until(lambda: sent[-1:] == [-1], "the end of the connection")


def test_an_answer_of_the_largest_size_is_taken(server: IssuerServer) -> None:
    body = b'{"a": 1}'
    whole = body + b" " * (DOCUMENT_BYTES_MAX - len(body))
    server.answers["/large"] = lambda request: send_bytes(request, whole)
    assert fetch_document(server.url + "/large", server.ca) == {"a": 1}
    server.answers["/large"] = lambda request: send_bytes(request, whole + b" ")
    with pytest.raises(FetchError, match="more than"):
        fetch_document(server.url + "/large", server.ca)


# ---- slowness


STATUS = b"HTTP/1.1 200 OK\r\n"
HEADERS = b"a: " + b"b" * 60 + b"\r\n\r\n"
BODY = b"{" + b" " * 60 + b"}"


@pytest.mark.parametrize("at_once", [b"", STATUS, STATUS + HEADERS], ids=["all", "head", "body"])
def test_an_answer_that_comes_drop_by_drop_is_given_up(
    server: IssuerServer, at_once: bytes
) -> None:
    """No single read waits for long, and the answer would be good if somebody waited for it."""
    never = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(at_once)
        with contextlib.suppress(OSError):
            for byte in (STATUS + HEADERS + BODY)[len(at_once) :]:
                never.wait(SHORT_S / 20)
                request.wfile.write(bytes([byte]))

    server.answers["/drip"] = drip
    with pytest.raises(FetchError, match="not answered within"):
        fetch_document(server.url + "/drip", server.ca, SHORT_S)


def test_one_that_never_answers_is_given_up(server: IssuerServer) -> None:
    server.hangs.set()
    with pytest.raises(FetchError, match="not answered within"):
        fetch_document(server.jwks_url, server.ca, SHORT_S)


def test_one_that_never_shakes_hands_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/keys"
        with pytest.raises(FetchError, match="not answered within"):
            fetch_document(url, "", SHORT_S)


# ---- TLS


def test_a_certificate_of_an_unknown_authority_is_refused(
    server: IssuerServer, tmp_path: Path
) -> None:
    assert "the authorities of this system can't verify" in refusal(location(server, ca=""))
    with IssuerServer(tmp_path / "other") as other:
        assert f"{other.ca} can't verify" in refusal(location(server, ca=other.ca))
    assert server.requests == []


def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    with IssuerServer(tmp_path, name="127.0.0.9") as server:
        assert "can't verify" in refusal(location(server))
        assert server.requests == []


def test_a_missing_file_of_authorities_is_named(server: IssuerServer) -> None:
    assert "/nowhere/ca.pem can't be read" in refusal(location(server, ca="/nowhere/ca.pem"))


def test_nobody_there_is_said(server: IssuerServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "can't be reached" in refusal(location(server, jwks_url=f"https://127.0.0.1:{port}/k"))


def test_no_proxy_is_asked(server: IssuerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:1")
    assert names(fetch_keys(location(server))) == ["rsa", "ec"]


# ---- the threads


class Loop:
    """Runs what is handed over when the test says so."""

    def __init__(self) -> None:
        self._works: list[Callable[[], None]] = []

    def hand_over(self, work: Callable[[], None]) -> None:
        self._works.append(work)

    def run_next(self) -> None:
        wait_until(lambda: bool(self._works), "a fetch to end")
        self._works.pop(0)()


def issuer_keys(name: str = "one") -> IssuerKeys:
    where = KeyLocation(f"https://{name}.example")
    return IssuerKeys(name, where, FetchTimes(1000, 10_000), lambda: 0)


KEY = TokenKey("k", "RS256", lambda signed, signature: False)


def test_an_issuer_that_hangs_holds_no_other_one_up() -> None:
    loop, released = Loop(), threading.Event()

    def fetch(where: KeyLocation) -> PublishedKeys:
        if where.issuer == "https://slow.example":
            released.wait()
        return PublishedKeys((KEY,))

    fetcher = IssuerKeyFetcher(loop.hand_over, lambda: 0, fetch)
    slow, quick = issuer_keys("slow"), issuer_keys("quick")
    fetcher.start_due([slow, quick])
    fetcher.start_due([slow, quick])
    loop.run_next()
    (thread,) = [each for each in threading.enumerate() if each.name == "keys of slow"]
    seen = (quick.keys(), slow.keys(), slow.wants_fetch(), thread.daemon)
    released.set()
    assert seen == ((KEY,), (), False, True), "and a broker that stops waits for no thread"
    loop.run_next()
    assert slow.keys() == (KEY,)


def test_a_failure_is_said_seldom_and_the_end_of_failures_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    loop, keys, is_away = Loop(), issuer_keys(), [True]

    def fetch(where: KeyLocation) -> PublishedKeys:
        if is_away:
            raise FetchError("it is away")
        return PublishedKeys((KEY,), ("key 2 (without a kid): it is a shared secret",))

    fetcher = IssuerKeyFetcher(loop.hand_over, lambda: 0, fetch)
    for _ in range(20):
        keys.fetch_soon()
        fetcher.start_due([keys])
        loop.run_next()
    assert caplog.text.count("it is away") == 3
    assert keys.failures == 20
    is_away.clear()
    for _ in range(3):
        keys.fetch_soon()
        fetcher.start_due([keys])
        loop.run_next()
    assert caplog.text.count("1 keys from https://one.example: k RS256") == 1
    assert caplog.text.count("left out: key 2 (without a kid): it is a shared secret") == 1


def test_an_unexpected_fault_ends_no_fetching(caplog: pytest.LogCaptureFixture) -> None:
    loop, keys = Loop(), issuer_keys()

    def fetch(where: KeyLocation) -> PublishedKeys:
        raise AssertionError("nobody thought of this")

    IssuerKeyFetcher(loop.hand_over, lambda: 0, fetch).start_due([keys])
    loop.run_next()
    assert keys.trouble == "AssertionError, see the log"
    assert "nobody thought of this" in caplog.text
    keys.fetch_soon()
    assert keys.wants_fetch()


def test_a_fetch_that_ends_after_the_broker_is_forgotten() -> None:
    ended = threading.Event()

    def closed(work: Callable[[], None]) -> None:
        ended.set()
        raise RuntimeError("the loop is closed")

    keys = issuer_keys()
    IssuerKeyFetcher(closed, lambda: 0, lambda where: PublishedKeys(())).start_due([keys])
    assert ended.wait(30)
    assert keys.age_ms is None
