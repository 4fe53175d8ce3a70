"""Bridges from parameters: RabbitMQ's shovels as they are kept in a cluster. No input or output.

What a shovel leaves open (what becomes of refused messages, say) comes from a template: the options
of the program. A URI without a host means the cluster that has the parameter. Its addresses are
what its brokers tell; the login is the operator's for the vhost that has the parameter, and else
stands in the URI (`shovel_parameters.py`), since whoever may set a parameter would else use one
that was meant for something else.

For the same reason a URI names no file of the program's machine, but those below a directory that
the operator has given for it; and the operator's login goes over TLS, checked as the operator says,
if it was given with `amqps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os.path import isabs, join, normpath
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from rhizome.bridge.errors import InvalidBridge
from rhizome.bridge.settings import BridgeSettings
from rhizome.client import InvalidUri, parse_uris
from rhizome.client.connection_uri import FILE_OPTIONS, TLS_OPTIONS
from rhizome.shovel_parameters import (
    TOKEN_OPTION,
    InvalidShovel,
    Shovel,
    UriParts,
    is_hidden,
    parse_shovel,
    split_uri,
)

OWN_OPTION: Final = "--own amqp://user:password@"
FILES_OPTION: Final = "--tls-files DIRECTORY"
LOGIN_OPTIONS: Final = ("auth_mechanism", TOKEN_OPTION)
"""Options of a URI that belong to its login."""
WILDCARDS: Final = ("", "0.0.0.0", "[::]", "::")
NO_MESSAGES: Final = "witness"
PRIMARY: Final = "primary"
ENCRYPTED: Final = "amqps"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the cluster keeps it."""

    vhost: str
    name: str
    value: object = field(repr=False)

    @property
    def id(self) -> str:
        """Of its bridge; different for different parameters: slashes in names are written %2F."""
        name = _without_slash(self.name)
        return name if self.vhost == "/" else f"{_without_slash(self.vhost)}/{name}"


def _without_slash(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """The cluster that has the parameters: its name, and addresses like `amqp://b1:5672`."""

    name: str = ""
    addresses: tuple[str, ...] = ()

    def hosts(self, scheme: str) -> str:
        """host:port,... of the addresses of one scheme."""
        parts = [split_uri(address) for address in self.addresses]
        return ",".join(each.hosts for each in parts if each.scheme == scheme)


@dataclass(frozen=True, slots=True)
class ParameterContext:
    """What parameters are read against: the cluster that has them, what the operator gave for URIs
    without a host (with or without addresses), and what shovels leave open."""

    own: OwnCluster
    own_uri: str = field(repr=False)
    template: BridgeSettings
    tls_files: str = ""
    """The directory below which parameters may name files; empty: they may name none."""


def own_cluster_of(document: Mapping[str, object], asked_host: str) -> OwnCluster:
    """Read what `/api/rhizome/cluster` says. A broker that listens everywhere doesn't say where it
    is found: at the host of its HTTP API, then."""
    brokers = document.get("brokers")
    rows = [row for row in brokers if isinstance(row, dict)] if isinstance(brokers, list) else []
    rows = [row for row in rows if row.get("role") != NO_MESSAGES]
    primaries = [row for row in rows if row.get("role") == PRIMARY]
    told = [each for row in primaries or rows for each in _texts(row.get("addresses"))]
    cluster = document.get("cluster")
    name = cluster.get("name") if isinstance(cluster, dict) else None
    found = dict.fromkeys(_address(each, asked_host) for each in told)
    return OwnCluster(name if isinstance(name, str) else "", tuple(found))


def _texts(value: object) -> Iterable[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _address(told: str, asked_host: str) -> str:
    parts = split_uri(told if "://" in told else f"amqp://{told}")
    host, colon, port = parts.hosts.rpartition(":")
    if host in WILDCARDS:
        host = f"[{asked_host}]" if ":" in asked_host else asked_host
    return f"{parts.scheme}://{host}{colon}{port}"


# ---- settings -----------------------------------------------------------------------------------


def settings_of(parameter: Parameter, origin: ParameterContext) -> BridgeSettings:
    """The bridge that a parameter asks for, checked. Raises InvalidBridge, which names it."""
    try:
        shovel = parse_shovel(parameter.vhost, parameter.name, parameter.value)
    except InvalidShovel as error:
        raise InvalidBridge(str(error)) from None
    try:
        made = _settings(parameter, shovel, origin)
        made.check()
    except InvalidBridge as error:
        where = f"shovel '{parameter.name}' in vhost '{parameter.vhost}'"
        raise InvalidBridge(f"{where}: {error}") from None
    return made


def _settings(parameter: Parameter, shovel: Shovel, origin: ParameterContext) -> BridgeSettings:
    source = _one_uri("src-uri", shovel.source_uris, origin)
    destination = _one_uri("dest-uri", shovel.destination_uris, origin)
    return replace(
        origin.template,
        id=parameter.id,
        source_uri=source,
        destination_uri=destination,
        queue=shovel.queue,
        exchange=shovel.exchange,
        keys=(shovel.key,) if shovel.exchange else (),
        to_queue=shovel.to_queue,
        to_exchange=shovel.to_exchange,
        to_key=shovel.to_key,
        prefetch=shovel.prefetch,
        retry_s_max=shovel.reconnect_s or origin.template.retry_s_max,
        makes_queue=shovel.makes_queue,
        makes_to_queue=shovel.makes_to_queue,
        arguments=dict(shovel.queue_arguments) if shovel.queue else origin.template.arguments,
        to_arguments=dict(shovel.to_queue_arguments),
        forwarded=_forwarded(parameter, shovel, origin) if shovel.forward_headers else {},
    )


def _forwarded(parameter: Parameter, shovel: Shovel, origin: ParameterContext) -> dict[str, object]:
    """What RabbitMQ's shovels tell of a message's way, but for passwords."""
    told = {
        "shovelled-by": origin.own.name,
        "shovel-type": "dynamic",
        "shovel-name": parameter.name,
        "shovel-vhost": parameter.vhost,
        "src-uri": split_uri(shovel.source_uris[0]).shown,
        "dest-uri": split_uri(shovel.destination_uris[0]).shown,
        "src-queue": shovel.queue,
        "src-exchange": shovel.exchange,
        "src-exchange-key": shovel.key,
        "dest-queue": shovel.to_queue,
        "dest-exchange": shovel.to_exchange,
        "dest-exchange-key": shovel.to_key,
    }
    return {key: value for key, value in told.items() if value}


# ---- URIs ---------------------------------------------------------------------------------------


def _one_uri(key: str, uris: tuple[str, ...], origin: ParameterContext) -> str:
    """One URI with all hosts. A bridge goes from one of them to the next, so they must be alike."""
    if any(is_hidden(uri) for uri in uris):
        raise InvalidBridge(
            f"the password of '{key}' is hidden from the user of the HTTP API; give that user the"
            " tag bridge, or administrator"
        )
    found = [
        _resolved(key, _with_files(key, split_uri(uri), origin.tls_files), origin) for uri in uris
    ]
    for parts in found:
        _check(key, parts)
    if len({parts._replace(hosts="") for parts in found}) > 1:
        raise InvalidBridge(
            f"the URIs in '{key}' must be of one cluster: the same but for host and port"
        )
    return found[0]._replace(hosts=",".join(parts.hosts for parts in found)).text


def _check(key: str, parts: UriParts) -> None:
    try:
        parse_uris(parts.text)
    except InvalidUri as error:
        raise InvalidBridge(f"'{key}': {error}") from None


def _with_files(key: str, parts: UriParts, directory: str) -> UriParts:
    """The same with whole paths of the files that it names. Raises InvalidBridge if they are not
    the parameter's to name: a certificate of the operator would be shown to any host, and what is
    wrong with a file tells that it is there."""
    options = _options(parts)
    named = [name for name, _ in options if name in FILE_OPTIONS]
    if not named:
        return parts
    if not directory:
        raise InvalidBridge(
            f"'{key}' names a file of the machine that the bridge runs on ({named[0]}); its"
            f" operator may allow for files of one directory: {FILES_OPTION}"
        )
    whole = [
        (name, _file_in(directory, key, name, value) if name in FILE_OPTIONS else value)
        for name, value in options
    ]
    return parts._replace(query=_query(whole))


def _file_in(directory: str, key: str, name: str, given: str) -> str:
    allowed = normpath(directory)
    path = normpath(given if isabs(given) else join(allowed, given))
    if "\0" in path or not path.startswith(join(allowed, "")):
        raise InvalidBridge(
            f"'{key}' names a file with {name} that is not below the directory of {FILES_OPTION}"
        )
    return path


def _resolved(key: str, parts: UriParts, origin: ParameterContext) -> UriParts:
    """The same with hosts, and with a login if it had no host."""
    if parts.hosts:
        return parts
    given = split_uri(origin.own_uri) if origin.own_uri else UriParts("", "", "", "", "")
    login = parts.login or given.login
    if not login:
        raise InvalidBridge(
            f"'{key}' names no host, which means the cluster itself; give the program the login for"
            f" that: {OWN_OPTION} or RHIZOME_BRIDGE_OWN"
        )
    query = _joined_query(key, parts, given)
    if given.hosts:
        return UriParts(given.scheme, login, given.hosts, parts.path, query)
    scheme = given.scheme if given.scheme == ENCRYPTED else parts.scheme
    hosts = origin.own.hosts(scheme)
    if not hosts:
        raise InvalidBridge(
            f"'{key}' names no host, which means the cluster itself, and its brokers tell no"
            f" {scheme} address; name them: {OWN_OPTION}b1,b2"
        )
    return UriParts(scheme, login, hosts, parts.path, query)


def _joined_query(key: str, parts: UriParts, given: UriParts) -> str:
    """The options of a URI without a host: its own, and what it doesn't say of the operator's.

    How TLS checks the brokers is the operator's alone, and so is what belongs to a login, unless
    the URI has one.
    """
    asked, own = _options(parts), _options(given)
    if given.scheme == ENCRYPTED:
        for name, _ in asked:
            if name in TLS_OPTIONS:
                raise InvalidBridge(
                    f"'{key}' names no host, so that it goes the way of --own, and has the option"
                    f" {name}; give that to --own"
                )
    if parts.login:
        own = [each for each in own if each[0] not in LOGIN_OPTIONS]
    else:
        asked = [each for each in asked if each[0] not in LOGIN_OPTIONS]
    said = {name for name, _ in asked}
    return _query([*(each for each in own if each[0] not in said), *asked])


def _options(parts: UriParts) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)


def _query(options: list[tuple[str, str]]) -> str:
    return urlencode(options, safe="/:@", quote_via=quote)
