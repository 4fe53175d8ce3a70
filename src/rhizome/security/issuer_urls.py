"""URLs of issuers: which ones keys may come from.

Keys decide who is let in, so they come over HTTPS. Plain HTTP is for loopback addresses, where
nobody is on the path.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from rhizome.listen_sockets import is_loopback

URL_CHARS_MAX: Final = 2048
LOCALHOST: Final = "localhost"

_PRINTABLE: Final = re.compile(r"[!-~]+")


class IssuerUrlError(ValueError):
    """A URL that no keys are fetched from; says why and what to do."""


def parse_url(url: str) -> SplitResult:
    """The parts of a URL that keys may be fetched from; raises IssuerUrlError."""
    if len(url) > URL_CHARS_MAX or _PRINTABLE.fullmatch(url) is None:
        raise IssuerUrlError(
            f"a URL has at most {URL_CHARS_MAX} characters, all of them printable ASCII"
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as error:
        raise IssuerUrlError(f'"{url}" is no URL: {error}') from None
    if parts.scheme not in ("https", "http") or not host:
        raise IssuerUrlError(f'"{url}" is no URL; write one such as "https://login.example.org"')
    if parts.username is not None or parts.password is not None:
        raise IssuerUrlError("a URL of keys has no user and no password in it: they are public")
    if parts.fragment:
        raise IssuerUrlError(f'"{url}": a fragment (#) is nothing that can be fetched')
    if parts.scheme == "http" and host != LOCALHOST and not is_loopback(host):
        raise IssuerUrlError(
            f'"{url}": whoever is on the path of plain HTTP could put keys of their own in, and log'
            " in as anybody. Use https; http is for loopback addresses only"
        )
    return parts


def check_issuer(issuer: str) -> None:
    """An issuer is a URL without a query (OpenID Connect Discovery 1.0, section 3)."""
    if parse_url(issuer).query:
        raise IssuerUrlError(f'"{issuer}": an issuer has no query (?)')
