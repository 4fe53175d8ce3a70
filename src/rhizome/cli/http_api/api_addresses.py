"""Addresses of one cluster's HTTP API, as --http and contexts give them.

``[SCHEME://][USER:PASSWORD@]HOST[:PORT],HOST[:PORT],...``, like the several hosts of an AMQP URI:
scheme and login stand in front of the first address and count for all of them.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from rhizome.cli.errors import CliError, UsageError
from rhizome.printable_text import shown_uri

PORT_DEFAULT: Final = 15672
SCHEMES: Final = ("http", "https")
THIS_MACHINE: Final = "127.0.0.1"

Login = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Address:
    """Where one broker's HTTP API is."""

    host: str
    port: int
    tls: bool = False

    @property
    def label(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Failure:
    """An address that gave no answer, and why."""

    address: Address
    error: OSError | http.client.HTTPException

    @property
    def reason(self) -> str:
        if isinstance(self.error, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {self.error.verify_message}"
        if isinstance(self.error, ConnectionRefusedError):
            return "connection refused"
        what = str(self.error) or type(self.error).__name__
        return "it speaks AMQP, not HTTP" if what.startswith("AMQP") else what


# ---- reading them -------------------------------------------------------------------------------


def parse_addresses(text: str) -> tuple[tuple[Address, ...], Login | None]:
    """The addresses in ``text``, in order, and the user and password that stand before them."""
    scheme, separator, rest = text.partition("://")
    if not separator or "," in scheme:
        scheme, rest = "http", text
    login, at, hosts = rest.rpartition("@")
    if "/" in login or ("@" in login and "," in login):
        raise UsageError(
            "--http: give user and password once, before the first address; a password's own"
            " @ is written %40"
        )
    found = tuple(_address(scheme, each.strip()) for each in hosts.split(","))
    return found, split_login(login) if at else None


def split_login(text: str) -> Login:
    user, _, password = text.partition(":")
    return unquote(user), unquote(password)


def _address(scheme: str, text: str) -> Address:
    own, separator, rest = text.partition("://")
    if separator:
        scheme, text = own, rest
    shown = shown_uri(text if scheme == "http" else f"{scheme}://{text}")
    try:
        parts = urlsplit(f"{scheme}://{text}")
        host, port = parts.hostname, parts.port or PORT_DEFAULT
    except ValueError:
        raise UsageError(f"--http {shown}: the port must be a number from 1 to 65535") from None
    if scheme not in SCHEMES or not host:
        raise UsageError(f"--http {shown}: give it as HOST:PORT, like 127.0.0.1:15672")
    return Address(host, port, tls=scheme == "https")


# ---- saying why there is no answer --------------------------------------------------------------


def describe_silence(failures: Sequence[Failure]) -> str:
    """Why none of the addresses has answered, and what to do."""
    if len(failures) == 1:
        return _describe_one(failures[0])
    each = ", ".join(f"{failure.address.label} ({failure.reason})" for failure in failures)
    hint = ""
    if any(isinstance(failure.error, ssl.SSLCertVerificationError) for failure in failures):
        hint = "; SSL_CERT_FILE=FILE names the authority that signed a certificate"
    return (
        f"none of the brokers answers: {each}; start one of them, or give --http HOST:PORT of"
        f" another{hint}"
    )


def _describe_one(failure: Failure) -> str:
    label, error = failure.address.label, failure.error
    if isinstance(error, ConnectionRefusedError):
        hint = _local_hint() if failure.address.host == THIS_MACHINE else ""
        return f"no HTTP API at {label}; start a broker or give --http HOST:PORT{hint}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {label} is not trusted ({error.verify_message});"
            " SSL_CERT_FILE=FILE names the authority that signed it"
        )
    return f"HTTP API at {label} failed ({failure.reason}); check --http HOST:PORT"


def describe_doubt(failure: Failure) -> str:
    """The text for a change that was sent and whose outcome is unknown."""
    if not isinstance(failure.error, OSError):
        return _describe_one(failure)  # no HTTP API, so nothing was done
    return (
        f"HTTP API at {failure.address.label} failed ({failure.reason}) after the request was sent;"
        " it may have been done or not: look, and repeat it if it wasn't"
    )


def _local_hint() -> str:
    """The brokers of the cluster that `rhizome up` runs in its default directory, if it does."""
    from rhizome.cli.local_cluster.broker_processes import running_places
    from rhizome.cli.local_cluster.up_command import DATA_DEFAULT

    try:
        places = running_places(DATA_DEFAULT.resolve())
    except (CliError, OSError):
        return ""
    if not places:
        return ""
    addresses = ",".join(f"{THIS_MACHINE}:{place.http_port}" for place in places)
    return f", like --http {addresses} for the cluster in {DATA_DEFAULT}"
