"""HTTPS documents: one small JSON object from one URL, within limits of time and size.

Who sends it may be slow, large, elsewhere or somebody else. So: FETCH_SECONDS_MAX for all of it,
name resolution apart; DOCUMENT_BYTES_MAX; no redirect is followed, no proxy asked; the certificate
is verified. Blocks: for a thread of its own.
"""

from __future__ import annotations

import io
import json
import socket
import ssl
import time
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import SplitResult

from rhizome import __version__
from rhizome.errors import RhizomeError
from rhizome.listen_sockets import is_loopback
from rhizome.security.issuer_urls import IssuerUrlError, parse_url

FETCH_SECONDS_MAX: Final = 10.0
DOCUMENT_BYTES_MAX: Final = 256 * 1024
HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443


class FetchError(RhizomeError):
    """A document that could not be had; the text says from where and why."""


class DeadlineSocket:
    """A socket for reading, of which all reads together have until a deadline."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._deadline_s = deadline_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._deadline_s))


class _DeadlineReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        super().__init__()
        self._sock = sock
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_remaining_s(self._deadline_s))
        return self._sock.recv_into(buffer)


def fetch_document(
    url: str, ca: str = "", seconds_max: float = FETCH_SECONDS_MAX
) -> dict[str, Any]:
    """The JSON object at a URL; raises FetchError.

    `ca`: a file with the authorities that count instead of the system's.
    """
    deadline_s = time.monotonic() + seconds_max
    try:
        parts = parse_url(url)
        with _connect(parts, ca, deadline_s) as sock:
            body = _get(sock, parts, deadline_s)
        return _parsed(body)
    except TimeoutError:
        raise FetchError(f"{url} has not answered within {seconds_max:g} s") from None
    except ssl.SSLCertVerificationError as error:
        authorities = ca or "the authorities of this system"
        raise FetchError(
            f"{url} has a certificate that {authorities} can't verify: {error.verify_message}. Set"
            " the ca of its provider to the file of its authority"
        ) from None
    except (OSError, HTTPException) as error:
        raise FetchError(f"{url} can't be reached: {_reason(error)}") from None
    except IssuerUrlError as error:
        raise FetchError(str(error)) from None
    except (ValueError, RecursionError):
        raise FetchError(f"{url} answers with something that is no JSON object") from None
    except _RefusedError as refused:
        raise FetchError(f"{url} {refused}") from None


class _RefusedError(Exception):
    """An answer that is not taken; the text goes on after its URL."""


def issuer_context(ca: str) -> ssl.SSLContext:
    """The TLS context that issuers are dialled with; raises FetchError."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise FetchError(f"the authorities in {ca} can't be read: {_reason(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _connect(parts: SplitResult, ca: str, deadline_s: float) -> socket.socket:
    host = parts.hostname or ""
    is_plain = parts.scheme == "http"
    port = parts.port or (HTTP_PORT if is_plain else HTTPS_PORT)
    sock = socket.create_connection((host, port), _remaining_s(deadline_s))
    try:
        if is_plain and not is_loopback(sock.getpeername()[0]):
            raise _RefusedError("leads to another machine over plain HTTP; use https")
        if is_plain:
            return sock
        sock.settimeout(_remaining_s(deadline_s))
        return issuer_context(ca).wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _get(sock: socket.socket, parts: SplitResult, deadline_s: float) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc
    sock.settimeout(_remaining_s(deadline_s))
    sock.sendall(
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Rhizome/{__version__}\r\n"
        "Accept: application/json\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
        "".encode("ascii")
    )
    response = HTTPResponse(DeadlineSocket(sock, deadline_s))  # type: ignore[arg-type]
    response.begin()
    if 300 <= response.status < 400:
        raise _RefusedError(
            f"redirects (status {response.status}), which is not followed: whoever could redirect"
            " could name other keys. Configure the URL that it leads to"
        )
    if response.status != HTTPStatus.OK:
        raise _RefusedError(f"answers with status {response.status}")
    body = response.read(DOCUMENT_BYTES_MAX + 1)
    if len(body) > DOCUMENT_BYTES_MAX:
        raise _RefusedError(f"answers with more than {DOCUMENT_BYTES_MAX} bytes")
    return body


def _parsed(body: bytes) -> dict[str, Any]:
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document


def _remaining_s(deadline_s: float) -> float:
    """The time that is left; raises TimeoutError if there is none."""
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
