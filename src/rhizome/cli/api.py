"""A small client of the HTTP API: RabbitMQ's paths, and Rhizome's own below /api/rhizome."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from getpass import getpass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from rhizome.cli import interrupts
from rhizome.cli.contexts import APPLIED_VARIABLE
from rhizome.cli.errors import CliError, one_line

TIMEOUT_S: Final = 30.0
PORT_DEFAULT: Final = 15672

Row = dict[str, Any]

_KINDS: Final = {
    "queues": ("queue", True),
    "streams": ("stream", True),
    "exchanges": ("exchange", True),
    "policies": ("policy", True),
    "permissions": ("user", True),
    "vhosts": ("vhost", False),
    "users": ("user", False),
    "connections": ("connection", False),
    "groups": ("group", False),
}
"""First part of a path: what it names, and whether the vhost comes before the name."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the HTTP API is, and who asks."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: bool = False

    @property
    def label(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def endpoint(address: str, user: str = "", password: str = "") -> Endpoint:
    """Read --http, --user and --password.

    Who asks comes from the options, else from the address, else from RHIZOME_URI, else guest. The
    password of another user is asked for at a terminal: command lines can be seen by others.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port or PORT_DEFAULT
    except ValueError:
        raise CliError(f"--http {address}: the port must be a number from 1 to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CliError(f"--http {address}: give it as HOST:PORT, like 127.0.0.1:15672")
    known_user, known_password = _credentials(parts.netloc) or _credentials_of_uri()
    if user and user != known_user:
        known_password = "" if password else _asked_password(user)
    return Endpoint(
        host=parts.hostname,
        port=port,
        user=user or known_user,
        password=password or known_password,
        tls=parts.scheme == "https",
    )


def _asked_password(user: str) -> str:
    if not sys.stdin.isatty():
        return ""
    with interrupts.raised():  # the prompt must give the terminal its echo back
        return getpass(f"Password of '{user}': ")


def _credentials(netloc: str) -> tuple[str, str] | None:
    userinfo, at, _ = netloc.rpartition("@")
    if not at:
        return None
    user, _, password = userinfo.partition(":")
    return unquote(user), unquote(password)


def _credentials_of_uri() -> tuple[str, str]:
    """The user of the AMQP connection, so that one RHIZOME_URI serves all commands."""
    if APPLIED_VARIABLE in os.environ:
        return "guest", "guest"  # a context says who asks together with the address
    _, _, rest = os.environ.get("RHIZOME_URI", "").partition("://")
    return _credentials(rest.partition("/")[0]) or ("guest", "guest")


def path(*parts: str) -> str:
    """An API path; each part is quoted, slashes too: `path("queues", "/", "q")`."""
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


class Api:
    """One broker's HTTP API. Every call raises CliError in words that say what to do."""

    def __init__(self, where: Endpoint, timeout_s: float = TIMEOUT_S) -> None:
        self._where = where
        self._timeout_s = timeout_s

    def get(self, target: str, query: Mapping[str, str | int] | None = None) -> Any:
        """The JSON document at `target`."""
        return self._request("GET", target + ("?" + urlencode(query) if query else ""), None)

    def rows(self, target: str) -> list[Row]:
        """The JSON list of objects at `target`."""
        listed = self.get(target)
        if isinstance(listed, dict) and isinstance(listed.get("items"), list):
            listed = listed["items"]
        if not isinstance(listed, list):
            raise CliError(f"{self._where.label}{target} gave no list; is --http the right port?")
        return [row for row in listed if isinstance(row, dict)]

    def row(self, target: str) -> Row:
        """The JSON object at `target`."""
        found = self.get(target)
        if not isinstance(found, dict):
            raise CliError(f"{self._where.label}{target} gave no object; is --http the right port?")
        return found

    def put(self, target: str, document: Row) -> None:
        """Create or change what `target` names."""
        self.send("PUT", target, document)

    def send(self, verb: str, target: str, document: Row) -> None:
        """Have `target` take a document; what it answers doesn't matter."""
        self._request(verb, target, document)

    def post(self, target: str, document: Row) -> Row:
        """Have `target` do something; the JSON object that it answers."""
        answer = self._request("POST", target, document)
        if not isinstance(answer, dict):
            raise CliError(f"{self._where.label}{target} gave no object; is --http the right port?")
        return answer

    def delete(
        self,
        target: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Delete what `target` names."""
        whole = target + ("?" + urlencode(query) if query else "")
        self._request("DELETE", whole, None, headers)

    def _request(
        self,
        verb: str,
        target: str,
        document: Row | None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        try:
            status, reason, text = self._exchange(verb, target, document, headers or {})
        except ConnectionRefusedError:
            raise CliError(
                f"no HTTP API at {self._where.label}; start a broker or give --http HOST:PORT"
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise CliError(
                f"the certificate of {self._where.label} is not trusted ({error.verify_message});"
                " SSL_CERT_FILE=FILE names the authority that signed it"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            what = _why_not_http(error)
            raise CliError(
                f"HTTP API at {self._where.label} failed ({what}); check --http HOST:PORT"
            ) from None
        if status >= 300:
            raise CliError(self._refusal(verb, target, status, reason, text))
        return _parsed(text, self._where.label + target)

    def _exchange(
        self, verb: str, target: str, document: Row | None, headers: Mapping[str, str]
    ) -> tuple[int, str, str]:
        connection = self._connection()
        try:
            body = None if document is None else json.dumps(document)
            connection.request(verb, target, body, {**self._headers(), **headers})
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._where.host, self._where.port
        if self._where.tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _headers(self) -> dict[str, str]:
        login = f"{self._where.user}:{self._where.password}".encode()
        return {
            "Authorization": "Basic " + base64.b64encode(login).decode(),
            "Content-Type": "application/json",
            "Accept": "*/*",
        }

    def _refusal(self, verb: str, target: str, status: int, reason: str, text: str) -> str:
        what = _reason_in(text) or reason
        if status == 401:
            return (
                f"{self._where.label} refused user '{self._where.user}' ({what});"
                " give --user and --password"
            )
        if status == 404:
            return describe_missing(verb, target) + ("" if what == "Not Found" else f" ({what})")
        return f"{verb} {unquote(target)} was refused: {status} {what}"


def _why_not_http(error: Exception) -> str:
    what = str(error) or type(error).__name__
    return "it speaks AMQP, not HTTP" if what.startswith("AMQP") else what


def describe_missing(verb: str, target: str) -> str:
    """What a 404 says isn't there, and where to look."""
    kind, *names = [unquote(part) for part in target.partition("?")[0].split("/")[2:]]
    if kind == "rhizome" and names:
        kind, *names = names
    if kind not in _KINDS:
        return f"not found: {'/'.join([kind, *names])}"
    word, in_vhost = _KINDS[kind]
    vhost = names.pop(0) if in_vhost and names else ""
    if vhost and (not names or verb == "PUT"):
        return f"there is no vhost '{vhost}'; see `rhizome vhost list`"
    where = f" in vhost '{vhost}'" if vhost else ""
    return f"there is no {word} '{''.join(names[:1])}'{where}; see `rhizome {word} list`"


def _reason_in(text: str) -> str:
    """RabbitMQ answers {"error": ..., "reason": ...}; anything else is shown as it is."""
    try:
        document = json.loads(text)
    except ValueError:
        return one_line(text)[:200]
    if isinstance(document, dict):
        said = document.get("reason") or document.get("error") or ""
        return one_line(said if isinstance(said, str) else json.dumps(said))
    return ""


def _parsed(text: str, where: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise CliError(f"{where} gave no JSON; is --http the port of a broker's API?") from None
