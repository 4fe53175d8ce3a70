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
from urllib.parse import quote, urlencode

from rhizome.cli import interrupts
from rhizome.cli.context_file import APPLIED_VARIABLE
from rhizome.cli.errors import CliError, one_line
from rhizome.cli.http_api.api_addresses import (
    Address,
    Failure,
    describe_doubt,
    describe_silence,
    parse_addresses,
    split_login,
)
from rhizome.cli.http_api.not_found_messages import describe_missing

TIMEOUT_S: Final = 30.0
CONNECT_S: Final = 5.0
"""How long to wait for a connection before the next address is tried: a machine that is gone
refuses nothing."""

Row = dict[str, Any]

LOGIN_FAILED: Final = "Login failed"
RIGHT_MISSING: Final = ("Not ", "User not ")
"""How the reasons begin that are about the user, and not about the request."""


class NoAnswer(CliError):
    """None of the addresses answers; one of them may, later."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a cluster's HTTP API, and the login. Invariant: there is an address."""

    addresses: tuple[Address, ...]
    user: str
    password: str = field(repr=False)


def endpoint(address: str, user: str = "", password: str = "") -> Endpoint:
    """Read --http, --user and --password.

    The user comes from the options, else from the address, else from RHIZOME_URI, else guest. The
    password of another user is asked for at a terminal: command lines can be seen by others.
    """
    addresses, login = parse_addresses(address)
    known_user, known_password = login or _credentials_of_uri()
    if user and user != known_user:
        known_password = "" if password else _asked_password(user)
    return Endpoint(addresses, user or known_user, password or known_password)


def _asked_password(user: str) -> str:
    if not sys.stdin.isatty():
        return ""
    with interrupts.raised():  # the prompt must give the terminal its echo back
        return getpass(f"Password of '{user}': ")


def _credentials_of_uri() -> tuple[str, str]:
    """The user of the AMQP connection, so that one RHIZOME_URI serves all commands."""
    if APPLIED_VARIABLE in os.environ:
        return "guest", "guest"  # a context has the login together with the address
    _, _, rest = os.environ.get("RHIZOME_URI", "").partition("://")
    login, at, _ = rest.partition("/")[0].rpartition("@")
    return split_login(login) if at else ("guest", "guest")


def path(*parts: str) -> str:
    """An API path; each part is quoted, slashes too: `path("queues", "/", "q")`."""
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


class Api:
    """The HTTP API of a cluster. Every call raises CliError in words that say what to do.

    The addresses are tried in order, from the one that answered last. A request that only reads
    tries the next address when there is no answer. A change does so only if the connection could
    not be made, since a change that was sent may have been made. A refusal is an answer.
    """

    def __init__(self, where: Endpoint, timeout_s: float = TIMEOUT_S) -> None:
        self._where = where
        self._timeout_s = timeout_s
        self._answered = 0
        """The address that answered last."""

    def get(self, target: str, query: Mapping[str, str | int] | None = None) -> Any:
        """The JSON document at `target`."""
        return self._request("GET", target + ("?" + urlencode(query) if query else ""), None)

    def rows(self, target: str) -> list[Row]:
        """The JSON list of objects at `target`."""
        listed = self.get(target)
        if isinstance(listed, dict) and isinstance(listed.get("items"), list):
            listed = listed["items"]
        if not isinstance(listed, list):
            raise CliError(f"{self._label}{target} gave no list; is --http the right port?")
        return [row for row in listed if isinstance(row, dict)]

    def row(self, target: str) -> Row:
        """The JSON object at `target`."""
        found = self.get(target)
        if not isinstance(found, dict):
            raise CliError(f"{self._label}{target} gave no object; is --http the right port?")
        return found

    def put(self, target: str, document: Row) -> None:
        """Create or change what `target` names."""
        self.send("PUT", target, document)

    def send(self, verb: str, target: str, document: Row) -> None:
        """Send a document to `target`; the response doesn't matter."""
        self._request(verb, target, document)

    def post(self, target: str, document: Row) -> Row:
        """Send a POST to `target`; returns the JSON object of the response."""
        answer = self._request("POST", target, document)
        if not isinstance(answer, dict):
            raise CliError(f"{self._label}{target} gave no object; is --http the right port?")
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
        status, reason, text = self._answer(verb, target, document, headers or {})
        if status >= 300:
            raise CliError(self._refusal(verb, target, status, reason, text))
        return _parsed(text, self._label + target)

    @property
    def answered(self) -> Address:
        """The address that answered last."""
        return self._where.addresses[self._answered]

    @property
    def _label(self) -> str:
        return self.answered.label

    def _answer(
        self, verb: str, target: str, document: Row | None, headers: Mapping[str, str]
    ) -> tuple[int, str, str]:
        """Status, reason and text of the first answer."""
        body = None if document is None else json.dumps(document)
        failures: list[Failure] = []
        for number in self._turns():
            address = self._where.addresses[number]
            connection = self._connection(address)
            is_sent = False
            try:
                self._connect(connection)
                is_sent = True
                connection.request(verb, target, body, {**self._headers(), **headers})
                answer = connection.getresponse()
                text = answer.read().decode("utf-8", "replace")
            except (OSError, http.client.HTTPException) as error:
                failures.append(Failure(address, error))
                if is_sent and verb != "GET":
                    raise CliError(describe_doubt(failures[-1])) from None
            else:
                self._answered = number
                return answer.status, answer.reason, text
            finally:
                connection.close()
        raise NoAnswer(describe_silence(failures))

    def _turns(self) -> list[int]:
        """The numbers of the addresses, beginning with the one that answered last."""
        numbers = range(len(self._where.addresses))
        return [*numbers[self._answered :], *numbers[: self._answered]]

    def _connection(self, address: Address) -> http.client.HTTPConnection:
        is_alone = len(self._where.addresses) == 1
        timeout_s = self._timeout_s if is_alone else min(self._timeout_s, CONNECT_S)
        host, port = address.host, address.port
        if address.tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        connection.connect()
        connection.sock.settimeout(self._timeout_s)

    def _headers(self) -> dict[str, str]:
        login = f"{self._where.user}:{self._where.password}".encode()
        return {
            "Authorization": "Basic " + base64.b64encode(login).decode(),
            "Content-Type": "application/json",
            "Accept": "*/*",
        }

    def _refusal(self, verb: str, target: str, status: int, reason: str, text: str) -> str:
        what = _reason_in(text) or reason
        if status == 401 and what != LOGIN_FAILED:
            hint = "; give --user of one who may" if what.startswith(RIGHT_MISSING) else ""
            return f"user '{self._where.user}' may not do that: {what}{hint}"
        if status == 401:
            return (
                f"{self._label} refused user '{self._where.user}' ({what});"
                " give --user and --password"
            )
        if status == 404:
            return describe_missing(verb, target) + ("" if what == "Not Found" else f" ({what})")
        if status == 400 and what != reason:
            return what  # the reason names what is wrong
        return f"{verb} {target} was refused: {status} {what}"


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
