"""Text from outside, made safe to print: in a log, on a terminal, in the text of an error.

Names, addresses and reasons come from people and programs that may mean harm. What they send is
shown, never obeyed: a character that moves a cursor, ends a line or turns the direction of writing
is written as its escape, and nothing is left out for being odd. Passwords are the exception: a URI
is shown without the one that it holds.

Examples:
    >>> print(escaped("orders" + chr(10) + "INFO all is well"))
    orders\\nINFO all is well
    >>> shown_uri("amqp://app:secret@b1:5672/orders")
    'amqp://app:***@b1:5672/orders'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "***"
_TOKEN: Final = re.compile(r"(?<=cluster_token=)[^&\s'\"]+")

SHOWN_OPTIONS: Final = (
    "heartbeat",
    "connection_timeout",
    "channel_max",
    "frame_max",
    "auth_mechanism",
    "name",
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
)
"""Options of a URI whose values are shown; another one may be called `password`."""


def escaped(text: str) -> str:
    r"""The text on one line, without a character that isn't printable.

    Control characters (C0 and C1), line and paragraph separators, characters that turn the
    direction of writing or have no width, and lone surrogates (bytes that are no UTF-8) become
    \n, \xNN, \uNNNN or \UNNNNNNNN. A backslash stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def escaped_lines(text: str) -> str:
    """The same for a text of several lines, which stay."""
    return "\n".join(escaped(line) for line in text.split("\n"))


_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, chars_max: int) -> str:
    """The beginning of the text, with how much is left out."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}... (and {len(text) - chars_max} more characters)"


def printable_json(document: Any, indent: int | None = None) -> str:
    r"""The document as JSON in which everything that isn't printable is written as \uNNNN.

    It reads back as the same document, lone surrogates included.
    """
    text = json.dumps(document, indent=indent, sort_keys=True, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(
        char if char == "\n" or char.isprintable() else _json_escape(char) for char in text
    )


def json_line(fields: Mapping[str, object]) -> str:
    """An object as one line of ASCII, for logs.

    A lone surrogate is written out as text: many readers refuse a line that has one as a character,
    so whoever sends bytes that are no UTF-8 would not be seen.
    """
    text = json.dumps({name: _whole(value) for name, value in fields.items()}, default=str)
    return text.replace("\x7f", "\\u007f")


def _whole(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _json_escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


# ---- secrets ------------------------------------------------------------------------------------


def shown_uri(uri: str) -> str:
    """A URI, right or wrong, without its password.

    A wrong one is often wrong because of the password: a '/', '?' or '@' in it that should have
    been escaped. So everything from the first colon of the login to the last '@' counts as the
    password, and without an '@' whatever stands where a port should.
    """
    scheme, separator, rest = uri.partition("://")
    if not scheme.isalnum():  # the "://" may be the password's
        scheme, separator, rest = "", "", uri
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    hidden = f"{user}:{HIDDEN}" if colon else user
    place, mark, query = place.partition("?")
    if not at:
        authority, slash, path = place.partition("/")
        place = ",".join(_shown_host(host) for host in authority.split(",")) + slash + path
    return f"{scheme}{separator}{hidden}{at}{place}{mark}{_shown_query(query)}"


def _shown_host(host: str) -> str:
    """HOST:PORT, unless it is a login whose '@' was forgotten."""
    name, colon, port = host.rpartition(":")
    if not colon or not port or host.endswith("]") or (port.isascii() and port.isdigit()):
        return host
    return f"{name}:{HIDDEN}"


def _shown_query(query: str) -> str:
    return "&".join(_shown_option(option) for option in query.split("&"))


def _shown_option(option: str) -> str:
    key, equals, _ = option.partition("=")
    return option if not equals or key in SHOWN_OPTIONS else f"{key}={HIDDEN}"


def without_passwords(text: str) -> str:
    """A text with the password taken out of every URI in it, and the cluster's token."""
    if "cluster_token=" in text:
        text = _TOKEN.sub(HIDDEN, text)
    if "://" not in text or "@" not in text:
        return text
    return " ".join(_without_password(word) for word in text.split(" "))


def _without_password(word: str) -> str:
    scheme, separator, rest = word.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if not separator or not at or not colon:
        return word
    return f"{scheme}{separator}{user}:{HIDDEN}@{place}"
