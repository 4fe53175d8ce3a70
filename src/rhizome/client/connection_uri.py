"""Connection URIs: `amqp[s]://user:password@host:port[,host:port...]/vhost?option=value`.

Examples:
    >>> [a.label for a in parse_uris("amqp://app:secret@b1:5672,b2/orders?heartbeat=10")]
    ['b1:5672', 'b2:5672']
    >>> parse_uris("amqps://b1/%2F")[0].port
    5671
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from rhizome.client.errors import InvalidUri
from rhizome.printable_text import shown_uri

PORT_DEFAULT: Final = {"amqp": 5672, "amqps": 5671}
HEARTBEAT_S_DEFAULT: Final = 60
CONNECT_TIMEOUT_MS_DEFAULT: Final = 15_000


@dataclass(frozen=True, slots=True)
class Tls:
    """How an amqps connection verifies the broker and identifies itself."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """What connections are made with; raises OSError if a file can't be used."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


@dataclass(frozen=True, slots=True)
class Address:
    """One broker to try, with everything that the URI said about how to talk to it."""

    host: str = "127.0.0.1"
    port: int = 5672
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    mechanism: str = "PLAIN"
    heartbeat_s: int = HEARTBEAT_S_DEFAULT
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS_DEFAULT
    channel_max: int = 2047
    frame_bytes_max: int = 131_072
    connection_name: str = ""
    cluster_token: str = field(default="", repr=False)
    """The application token, which a cluster with `demand_key` demands."""
    tls: Tls | None = None

    @property
    def label(self) -> str:
        """host:port, as error texts and `rhizome status` show it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def at(self, host: str) -> Address:
        """The same for another broker, at ``host`` or ``host:port``; raises InvalidUri."""
        return _with_host(self, host, host, self.port)


def parse_uris(uris: str | Sequence[str]) -> list[Address]:
    """All addresses of one URI or of a list of URIs, in the order in which to try them."""
    listed = [uris] if isinstance(uris, str) else list(uris)
    addresses = [address for uri in listed for address in parse_uri(uri)]
    if not addresses:
        raise InvalidUri("no URI given; give at least one like amqp://guest:guest@127.0.0.1:5672/")
    return addresses


def parse_uri(uri: str) -> list[Address]:
    """The addresses of one URI; the host part may list several, separated by commas."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in PORT_DEFAULT:
        raise _invalid(uri, "is no AMQP URI; it must begin with amqp:// or amqps://")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    base = Address(vhost=_vhost(uri, slash, path), tls=Tls() if scheme == "amqps" else None)
    base = _with_user(base, authority)
    base = _with_options(base, uri, query)
    hosts = authority.rpartition("@")[2]
    return [_with_host(base, uri, host, PORT_DEFAULT[scheme]) for host in hosts.split(",")]


def _invalid(uri: str, problem: str) -> InvalidUri:
    """What is wrong with a URI, which is shown without its password."""
    return InvalidUri(f"'{shown_uri(uri)}' {problem}")


def with_vhost(uri: str, vhost: str) -> str:
    """The same URI for another vhost."""
    rest, mark, query = uri.partition("?")
    scheme, separator, rest = rest.partition("://")
    return f"{scheme}{separator}{rest.partition('/')[0]}/{quote(vhost, safe='')}{mark}{query}"


def _vhost(uri: str, slash: str, path: str) -> str:
    """No path, and a bare slash, mean the default vhost; `%2F` spells it out."""
    if "/" in path:
        raise _invalid(uri, "has a '/' inside its vhost or its password; write it as %2F")
    return unquote(path) if slash and path else "/"


def _with_user(base: Address, authority: str) -> Address:
    userinfo, at, _ = authority.rpartition("@")
    if not at:
        return base
    user, colon, password = userinfo.partition(":")
    return replace(base, user=unquote(user), password=unquote(password) if colon else "")


def _with_host(base: Address, uri: str, host: str, port_default: int) -> Address:
    if host.startswith("["):
        name, closing, port = host[1:].partition("]")
        if not closing:
            raise _invalid(uri, "has '[' without ']'; write IPv6 addresses as [::1]:5672")
        port = port.removeprefix(":")
    else:
        name, _, port = host.partition(":")
    if not port:
        return replace(base, host=name or "127.0.0.1", port=port_default)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise _invalid(
            uri,
            "has a wrong port; a port is a number from 1 to 65535, and what a password has of"
            " ':', '/', '?' and '@' is written as %3A, %2F, %3F and %40",
        )
    return replace(base, host=name or "127.0.0.1", port=int(port))


def _with_options(base: Address, uri: str, query: str) -> Address:
    address = base
    for key, value in parse_qsl(query, keep_blank_values=True):
        address = _with_option(address, uri, key, value)
    return address


def _with_option(base: Address, uri: str, key: str, value: str) -> Address:
    """One query option. The names are those that RabbitMQ's clients use."""
    if key in _NUMBER_OPTIONS:
        return _with_number(base, uri, key, value)
    if key == "auth_mechanism":
        return replace(base, mechanism=value.upper())
    if key == "name":
        return replace(base, connection_name=value)
    if key == "cluster_token":
        return replace(base, cluster_token=value)
    if key not in TLS_OPTIONS:
        known = ", ".join(sorted([*_NUMBER_OPTIONS, *TLS_OPTIONS, *_TEXT_OPTIONS]))
        # After an '@' it is the end of a password with a '?' in it, and is not shown.
        called = f"the unknown option '{key}'" if "@" not in uri.partition("?")[2] else "a '?'"
        raise _invalid(uri, f"has {called}; known options are {known}")
    if base.tls is None:
        raise _invalid(uri, f"has the TLS option '{key}'; such options need amqps://")
    return replace(base, tls=_with_tls_option(base.tls, uri, key, value))


_NUMBER_OPTIONS: Final = ("heartbeat", "connection_timeout", "channel_max", "frame_max")
_TEXT_OPTIONS: Final = ("auth_mechanism", "name", "cluster_token")
FILE_OPTIONS: Final = ("cacertfile", "certfile", "keyfile")
"""Options of a URI that name a file of the machine which connects."""
TLS_OPTIONS: Final = (*FILE_OPTIONS, "verify", "server_name_indication")


def _with_number(base: Address, uri: str, key: str, value: str) -> Address:
    if not (value.isascii() and value.isdigit()):
        raise _invalid(uri, f"has a wrong {key}; it must be a whole number")
    number = int(value)
    if key == "heartbeat":
        return replace(base, heartbeat_s=min(number, 65_535))
    if key == "connection_timeout":
        return replace(base, connect_timeout_ms=number)
    if key == "channel_max":
        return replace(base, channel_max=min(number, 65_535))
    if 0 < number < 4096:
        raise _invalid(uri, f"has frame_max={value}; AMQP needs 4096 bytes or more")
    return replace(base, frame_bytes_max=number)


def _with_tls_option(tls: Tls, uri: str, key: str, value: str) -> Tls:
    if key == "cacertfile":
        return replace(tls, ca_file=value)
    if key == "certfile":
        return replace(tls, certificate_file=value)
    if key == "keyfile":
        return replace(tls, key_file=value)
    if key == "server_name_indication":
        return replace(tls, server_name=value)
    if value not in ("verify_peer", "verify_none"):
        raise _invalid(uri, "has a wrong verify; it must be verify_peer or verify_none")
    return replace(tls, verify=value == "verify_peer")
