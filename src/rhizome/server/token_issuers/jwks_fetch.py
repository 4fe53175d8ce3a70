"""JWKS fetch: gets the keys of issuers in threads, so that no turn and no login waits.

Each fetch has a thread of its own, since one issuer may hang while another one answers. It hands
over to the event loop, where logins read the keys. Threads are daemons: a broker that stops waits
for none. Each broker of a cluster fetches for itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from rhizome.security.issuer_urls import IssuerUrlError, parse_url
from rhizome.security.jwks_cache import IssuerKeys, KeyLocation
from rhizome.security.rate_limited_log import RateLimitedLog
from rhizome.security.token_keys import PublishedKeys, TokenKeyError, published_keys
from rhizome.server.token_issuers.https_json_document import FetchError, fetch_document

logger = logging.getLogger("rhizome.security")

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
FAILURES_BURST: Final = 3
FAILURES_EVERY_MS: Final = 600_000
"""How many failures of one issuer are logged at once; then one per interval."""

ISSUER_SHOWN_CHARS_MAX: Final = 200

KEYS_KEPT: Final = "those that were fetched before count until oauth.keys_expire has passed"
NO_KEYS_YET: Final = "no token of it is accepted until they are"

HandOver = Callable[[Callable[[], None]], object]
"""Runs a function in the event loop; called in a thread."""


def fetch_keys(location: KeyLocation) -> PublishedKeys:
    """The keys that an issuer publishes. Blocks; raises FetchError or TokenKeyError."""
    url = location.jwks_url or _discover(location)
    document = fetch_document(url, location.ca)
    try:
        return published_keys(document)
    except TokenKeyError as error:
        raise FetchError(f"{url}: {error}") from None


def discovery_url(issuer: str) -> str:
    return issuer.removesuffix("/") + DISCOVERY_PATH


def _discover(location: KeyLocation) -> str:
    """Where an issuer says that its keys are (OpenID Connect Discovery 1.0, section 4)."""
    url = discovery_url(location.issuer)
    document = fetch_document(url, location.ca)
    if document.get("issuer") != location.issuer:
        told = str(document.get("issuer"))[:ISSUER_SHOWN_CHARS_MAX]
        raise FetchError(
            f"{url} is the document of another issuer, '{told}'; the configured one is"
            f" '{location.issuer}', and every character counts"
        )
    found = document.get("jwks_uri")
    if not isinstance(found, str):
        raise FetchError(f"{url} says no jwks_uri; set jwks_url")
    try:
        is_plain = parse_url(found).scheme == "http"
    except IssuerUrlError as error:
        raise FetchError(f"{url} says a jwks_uri that is not fetched: {error}") from None
    if is_plain and parse_url(location.issuer).scheme == "https":
        raise FetchError(f"{url} says a jwks_uri over plain HTTP, which is not fetched")
    return found


class IssuerKeyFetcher:
    """Starts fetches that are due. All but `_fetch` runs in the event loop."""

    def __init__(
        self,
        hand_over: HandOver,
        now_ms: Callable[[], int],
        fetch: Callable[[KeyLocation], PublishedKeys] = fetch_keys,
    ) -> None:
        self._hand_over = hand_over
        self._now_ms = now_ms
        self._get = fetch
        self._seldom = RateLimitedLog(FAILURES_BURST, FAILURES_EVERY_MS)

    def start_due(self, issuers: Iterable[IssuerKeys]) -> None:
        for keys in issuers:
            if keys.wants_fetch():
                threading.Thread(
                    target=self._fetch, args=(keys,), name=f"keys of {keys.name}", daemon=True
                ).start()
                keys.begun()  # after it: a thread that can't be started has begun nothing

    def _fetch(self, keys: IssuerKeys) -> None:
        """In a thread: get the keys, and hand over what came of it."""
        try:
            done = partial(self._fetched, keys, self._get(keys.location))
        except FetchError as error:
            done = partial(self._failed, keys, str(error))
        except Exception as error:  # whatever it is, there must be a next fetch
            logger.exception("the keys of issuer %r can't be fetched", keys.name)
            done = partial(self._failed, keys, f"{type(error).__name__}, see the log")
        with contextlib.suppress(RuntimeError):  # the broker has stopped meanwhile
            self._hand_over(done)

    def _fetched(self, keys: IssuerKeys, published: PublishedKeys) -> None:
        before, had_failed = keys.published, bool(keys.error)
        is_first = keys.age_ms is None
        keys.fetched(published)
        names = _names(published)
        if is_first or had_failed or names != _names(before):
            logger.info(
                "issuer %r: %d keys from %s: %s",
                keys.name,
                len(published.keys),
                keys.url,
                ", ".join(names) or "none",
            )
        if published.left_out != before.left_out:
            for reason in published.left_out:
                logger.warning("issuer %r: left out: %s", keys.name, reason)

    def _failed(self, keys: IssuerKeys, reason: str) -> None:
        keys.failed(reason)
        held_back = self._seldom.held_back(keys.name, self._now_ms())
        if held_back >= 0:
            logger.warning(
                "issuer %r: its keys can't be fetched (failure %d): %s; %s",
                keys.name,
                keys.failures,
                keys.error,
                NO_KEYS_YET if keys.age_ms is None else KEYS_KEPT,
            )


def _names(published: PublishedKeys) -> list[str]:
    return sorted(f"{key.name or '(no kid)'} {key.algorithm}" for key in published.keys)
