"""Parameters of the component `shovel`, read and checked: what RabbitMQ's tools write.

A broker refuses a wrong one when it is set, `rhizome bridge --parameters` runs a bridge for each,
and both ask this module, so that they agree. It does no input or output and imports next to
nothing. Of a URI it sees the parts only; the client that connects reads the rest.

No text of an error quotes a URI, nor anything that may hold one: they have passwords in them. Who
may set parameters isn't shown those of others: `hide` masks them, and `unhide` takes what is masked
for the password that is stored.

A bridge has logins of its own, which whoever sets a parameter doesn't have. So a URI has a user and
a password, or means the cluster itself and the vhost that has the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, unquote_plus

from rhizome.errors import RhizomeError

COMPONENT: Final = "shovel"
PROTOCOL: Final = "amqp091"
SCHEMES: Final = ("amqp", "amqps")
ACK_MODES: Final = ("on-confirm", "on-publish", "no-ack")
NEVER: Final = "never"
FORWARD_KEYS: Final = ("dest-add-forward-headers", "add-forward-headers")
PREFETCH_DEFAULT: Final = 1000
PREFETCH_MAX: Final = 65_535
RECONNECT_S_MAX: Final = 86_400
SHOWN_CHARS_MAX: Final = 60
MASK: Final = "***"
"""Stands for a password that is not shown."""
TOKEN_OPTION: Final = "cluster_token"
"""The option of a URI that is as secret as its password."""
MECHANISMS: Final = ("PLAIN", "AMQPLAIN")


class InvalidShovel(RhizomeError):
    """A parameter that no bridge can follow; the text names it, the key and what to give."""


@dataclass(frozen=True, slots=True)
class Shovel:
    """What one parameter asks for.

    Invariants: of `queue` and `exchange` exactly one is set, of `to_queue` and `to_exchange` as
    well. `reconnect_s` 0 leaves the pause to the bridge.
    """

    source_uris: tuple[str, ...] = field(repr=False)
    destination_uris: tuple[str, ...] = field(repr=False)
    queue: str = ""
    exchange: str = ""
    key: str = ""
    to_queue: str = ""
    to_exchange: str = ""
    to_key: str | None = None
    prefetch: int = PREFETCH_DEFAULT
    reconnect_s: float = 0.0
    forward_headers: bool = False
    queue_arguments: Mapping[str, object] = field(default_factory=dict)
    to_queue_arguments: Mapping[str, object] = field(default_factory=dict)
    makes_queue: bool = True
    makes_to_queue: bool = True


class UriParts(NamedTuple):
    """A URI in pieces; `hosts` is empty if it names none, which means the cluster itself."""

    scheme: str
    login: str
    hosts: str
    path: str
    query: str

    @property
    def text(self) -> str:
        return self._text(f"{self.login}@" if self.login else "")

    @property
    def shown(self) -> str:
        """Without the login, for logs and headers."""
        return _without_token(self._text(""))

    def _text(self, login: str) -> str:
        slash, mark = "/" if self.path else "", "?" if self.query else ""
        return f"{self.scheme}://{login}{self.hosts}{slash}{self.path}{mark}{self.query}"


def split_uri(uri: str) -> UriParts:
    """The parts of a URI; whether they make sense is another question."""
    scheme, _, rest = uri.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")
    return UriParts(scheme, login, hosts, path, query)


def needs_cluster(value: object) -> bool:
    """Whether a parameter, right or wrong, says something about the cluster that has it: a URI
    without a host means it, and forward headers name it."""
    if not isinstance(value, dict):
        return False
    if any(value.get(key) for key in FORWARD_KEYS):
        return True
    uris = [value.get(key) for key in ("src-uri", "dest-uri")]
    flat = [each for uri in uris for each in (uri if isinstance(uri, list) else [uri])]
    return any(isinstance(uri, str) and not split_uri(uri).hosts for uri in flat)


def parse_shovel(vhost: str, name: str, value: object) -> Shovel:
    """What a parameter asks for. Raises InvalidShovel with the first thing that is wrong."""
    try:
        shovel = _shovel(value)
        for key, uris in (("src-uri", shovel.source_uris), ("dest-uri", shovel.destination_uris)):
            for uri in uris:
                _check_login(vhost, key, split_uri(uri))
        return shovel
    except InvalidShovel as error:
        raise InvalidShovel(f"shovel '{name}' in vhost '{vhost}': {error}") from None


def _shovel(value: object) -> Shovel:
    if not isinstance(value, dict):
        raise InvalidShovel(f"the value is {_shown(value)}; it must be an object like {EXAMPLE}")
    for side in ("src", "dest"):
        _protocol(f"{side}-protocol", value.get(f"{side}-protocol", PROTOCOL))
    read = {key: _read(key, each) for key, each in value.items()}
    for key in ("src-uri", "dest-uri"):
        if key not in read:
            raise InvalidShovel(f"'{key}' is missing; give a URI, or a list of them")
    return Shovel(
        source_uris=read["src-uri"],
        destination_uris=read["dest-uri"],
        prefetch=read.get("src-prefetch-count", read.get("prefetch-count", PREFETCH_DEFAULT)),
        reconnect_s=read.get("reconnect-delay", 0.0),
        forward_headers=any(read.get(key) for key in FORWARD_KEYS),
        queue_arguments=read.get("src-queue-args", {}),
        to_queue_arguments=read.get("dest-queue-args", {}),
        makes_queue=not read.get("src-predeclared", False),
        makes_to_queue=not read.get("dest-predeclared", False),
        **_source(read),
        **_destination(read),
    )


def _check_login(vhost: str, key: str, parts: UriParts) -> None:
    """Refuse a URI that a bridge could only follow with a login that isn't the parameter's own."""
    mechanism = dict(parse_qsl(parts.query)).get("auth_mechanism", MECHANISMS[0])
    if mechanism.upper() not in MECHANISMS:
        raise InvalidShovel(
            f"'{key}' asks for the mechanism {mechanism.upper()[:SHOWN_CHARS_MAX]}, which would"
            " show certificates of the machine that the bridge runs on; give a user and a password,"
            " or have the operator configure the bridge (rhizome bridge --config)"
        )
    user, colon, _ = parts.login.partition(":")
    if user and colon:
        return
    if parts.login or parts.hosts:
        raise InvalidShovel(
            f"'{key}' has no user and password; write {parts.scheme}://user:password@host/vhost"
        )
    if (unquote(parts.path) or "/") != vhost:
        own = f"{parts.scheme}:///{quote(vhost, safe='', errors='replace')}"
        raise InvalidShovel(
            f"'{key}' means another vhost of this cluster without a login; write {own} for this"
            f" one, or {parts.scheme}://user:password@/vhost"
        )


EXAMPLE: Final = (
    '{"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://user:password@host",'
    ' "dest-queue": "b"}'
)


# ---- passwords ----------------------------------------------------------------------------------


def hide(value: object) -> object:
    """The same value with the passwords and the cluster's token in its URIs masked."""
    if isinstance(value, str):
        before, _, after = _around_password(value)
        return _without_token(f"{before}{MASK}{after}" if before else value)
    if isinstance(value, dict):
        return {key: hide(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hide(each) for each in value]
    return value


def unhide(value: object, stored: object) -> object:
    """The same value with the stored password in the place of each that is masked: that of a URI
    which is otherwise the same, under the same key. Raises InvalidShovel if there is none."""
    if isinstance(value, dict):
        known = stored if isinstance(stored, dict) else {}
        return {key: unhide(each, known.get(key)) for key, each in value.items()}
    if isinstance(value, list):
        return [unhide(each, stored) for each in value]
    if not isinstance(value, str) or not is_hidden(value):
        return value
    for each in stored if isinstance(stored, list) else [stored]:
        if isinstance(each, str) and hide(each) == value:
            return each
    raise InvalidShovel(
        f"the password of a URI is given as {MASK}, which keeps the one that is stored, and none is"
        " stored for this URI; give the password"
    )


def is_hidden(uri: str) -> bool:
    return _around_password(uri)[1] == MASK or (TOKEN_OPTION, MASK) in _options(uri)


def _around_password(text: str) -> tuple[str, str, str]:
    """What is before a URI's password, the password, what is behind; all empty if it has none.

    In doubt it is too much: a password with a slash that should be encoded is one all the same.
    """
    scheme, separator, rest = text.partition("://")
    login, at, after = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if not (separator and at and colon):
        return "", "", ""
    return f"{scheme}://{user}:", password, f"@{after}"


def _options(uri: str) -> list[tuple[str, str]]:
    """The options of a URI. A '?' in a password that should be encoded begins none."""
    before, _, after = _around_password(uri)
    return parse_qsl((after if before else uri).partition("?")[2], keep_blank_values=True)


def _without_token(uri: str) -> str:
    """A URI whose password is masked, or that has none, with the cluster's token masked too."""
    if "://" not in uri or all(key != TOKEN_OPTION for key, _ in _options(uri)):
        return uri
    after = _around_password(uri)[2] or uri
    place, mark, query = after.partition("?")
    options = [each.partition("=") for each in query.split("&")]
    shown = [
        key + equals + (MASK if unquote_plus(key) == TOKEN_OPTION else value)
        for key, equals, value in options
    ]
    return uri.removesuffix(after) + place + mark + "&".join(shown)


# ---- where from, where to -----------------------------------------------------------------------


def _source(read: Mapping[str, Any]) -> dict[str, Any]:
    """An empty name is none, as some tools send it."""
    queue, exchange = read.get("src-queue", ""), read.get("src-exchange", "")
    if bool(queue) == bool(exchange):
        raise InvalidShovel("give either 'src-queue' or 'src-exchange'")
    if queue:
        return {"queue": queue}
    return {"exchange": exchange, "key": read.get("src-exchange-key", "")}


def _destination(read: Mapping[str, Any]) -> dict[str, Any]:
    queue, exchange = read.get("dest-queue", ""), read.get("dest-exchange", "")
    key = read.get("dest-exchange-key")
    if queue and exchange:
        raise InvalidShovel("give either 'dest-queue' or 'dest-exchange'")
    if queue:
        return {"to_queue": queue}
    if exchange:
        return {"to_exchange": exchange, "to_key": key}
    if "dest-exchange" in read and key:
        return {"to_queue": key}  # the default exchange takes a message to the queue of that name
    if read.get("src-queue"):
        raise InvalidShovel(
            "give 'dest-queue' or 'dest-exchange'; that each message goes to the exchange that it"
            " was published to at the source is not supported"
        )
    return {"to_exchange": read["src-exchange"], "to_key": key}


# ---- one key ------------------------------------------------------------------------------------


def _read(key: str, value: object) -> Any:
    reader = READERS.get(key)
    if reader is None:
        nearest = get_close_matches(key, READERS, n=1)
        hint = f", did you mean '{nearest[0]}'?" if nearest else f"; known are {', '.join(READERS)}"
        raise InvalidShovel(f"unknown key '{key}'{hint}")
    return reader(key, value)


def _wrong(key: str, value: object, wanted: str) -> InvalidShovel:
    return InvalidShovel(f"'{key}' is {_shown(value)}; it must be {wanted}")


def _shown(value: object) -> str:
    """A value for an error. A text may be a URI in the wrong place, a table may have one in it."""
    if isinstance(value, str):
        return "a URI" if "://" in value else f"'{value[:SHOWN_CHARS_MAX]}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return "null" if value is None else "a list" if isinstance(value, list) else "an object"


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(key, value, "a text")
    return value


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def _table(key: str, value: object) -> dict[str, object]:
    """An object; [] is an empty one of Erlang's."""
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def _seconds(key: str, value: object) -> float:
    wanted = f"a number of seconds from 0 to {RECONNECT_S_MAX}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(key, value, wanted)
    if not 0 <= value <= RECONNECT_S_MAX:
        raise _wrong(key, value, wanted)
    return float(value)


def _prefetch(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= PREFETCH_MAX:
        raise _wrong(key, value, f"a whole number from 1 to {PREFETCH_MAX}")
    return value


def _uris(key: str, value: object) -> tuple[str, ...]:
    uris = value if isinstance(value, list) else [value]
    for uri in uris:
        if not isinstance(uri, str) or uri.partition("://")[0] not in SCHEMES or "://" not in uri:
            raise InvalidShovel(
                f"'{key}' must be a URI that begins with amqp:// or amqps://, or a list of them"
            )
    if not uris:
        raise InvalidShovel(f"'{key}' is an empty list; give at least one URI")
    return tuple(uris)


def _ack_mode(key: str, value: object) -> str:
    if value not in ACK_MODES:
        raise _wrong(key, value, f"one of {', '.join(ACK_MODES)}")
    return str(value)


def _protocol(key: str, value: object) -> str:
    if value != PROTOCOL:
        raise InvalidShovel(f"'{key}' is {_shown(value)}; bridges speak {PROTOCOL} only")
    return PROTOCOL


def _delete_after(key: str, value: object) -> str:
    if value != NEVER:
        raise InvalidShovel(
            f"'{key}' is {_shown(value)}; bridges know '{NEVER}' only: they go on until the"
            " parameter is deleted. `rhizome queue move` moves what is in a queue now"
        )
    return NEVER


def _unsupported(key: str, value: object) -> None:
    """Known to RabbitMQ; what changes nothing is accepted."""
    if value not in ({}, [], False):
        raise InvalidShovel(f"'{key}' is not supported by bridges; leave it out")


READERS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "src-uri": _uris,
    "src-protocol": _protocol,
    "src-queue": _text,
    "src-queue-args": _table,
    "src-exchange": _text,
    "src-exchange-key": _text,
    "src-predeclared": _flag,
    "src-prefetch-count": _prefetch,
    "src-delete-after": _delete_after,
    "src-consumer-args": _unsupported,
    "dest-uri": _uris,
    "dest-protocol": _protocol,
    "dest-queue": _text,
    "dest-queue-args": _table,
    "dest-exchange": _text,
    "dest-exchange-key": _text,
    "dest-predeclared": _flag,
    "dest-add-forward-headers": _flag,
    "dest-add-timestamp-header": _unsupported,
    "dest-publish-properties": _unsupported,
    "ack-mode": _ack_mode,
    "reconnect-delay": _seconds,
    "prefetch-count": _prefetch,
    "delete-after": _delete_after,
    "add-forward-headers": _flag,
    "add-timestamp-header": _unsupported,
    "publish-properties": _unsupported,
}
