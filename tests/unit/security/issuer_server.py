"""An identity provider on loopback, for tests: it publishes keys over HTTPS, and can misbehave."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DISCOVERY: Final = "/realm/.well-known/openid-configuration"
KEYS: Final = "/realm/keys"

Answer = Callable[[BaseHTTPRequestHandler], None]


class IssuerServer:
    """Publishes ``keys`` at `jwks_url` and says so in its discovery document.

    ``answers`` has other answers, by path. While ``hangs`` is set requests get none: ``held``
    counts those that have come, ``given_up`` those whose client has hung up.
    """

    def __init__(self, directory: Path, *, tls: bool = True, name: str = "127.0.0.1") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.keys: list[dict[str, Any]] = []
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.hangs = threading.Event()
        self.held = 0
        self.given_up = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.ca = ""
        if tls:
            self.ca = write_certificate(directory, name)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.ca, str(directory / "issuer.key.pem"))
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        port = self._server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        self.issuer = f"{self.url}/realm"
        self.jwks_url = self.url + KEYS
        self.discovered: dict[str, Any] = {"issuer": self.issuer, "jwks_uri": self.jwks_url}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> IssuerServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing."""

        return Handler

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(request.path)
        if self.hangs.is_set():
            self.held += 1
            with contextlib.suppress(OSError):
                request.connection.recv(1)
            self.given_up += 1
            return
        if request.path in self.answers:
            self.answers[request.path](request)
        elif request.path == DISCOVERY:
            send(request, self.discovered)
        elif request.path == KEYS:
            send(request, {"keys": self.keys})
        else:
            send(request, {}, status=404)


def send(
    request: BaseHTTPRequestHandler, document: object, status: int = 200, **headers: str
) -> None:
    send_bytes(request, json.dumps(document).encode(), status, **headers)


def send_bytes(
    request: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str
) -> None:
    request.send_response(status)
    for name, value in {"content-length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


def write_certificate(directory: Path, name: str) -> str:
    """A certificate for an address, which vouches for itself; its key lies beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (directory / "issuer.key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    path = directory / "issuer.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return str(path)
