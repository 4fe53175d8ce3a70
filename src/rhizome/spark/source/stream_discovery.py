"""Subscription: which streams a source reads, by names or by a pattern, as they come and go.

A name is that of a stream, or the one name of a partitioned stream. Streams that appear later, and
partitions that are added, are found without a restart: every `DISCOVERY_SECONDS` a broker is asked
which streams there are.
"""

from __future__ import annotations

import time
from typing import Final

from rhizome.errors import NotFound
from rhizome.regex import Pattern, PatternError, check_pattern, pattern_of
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.source.stream_client import StreamClient

DISCOVERY_SECONDS: Final = 5.0


def whole_pattern(text: str) -> Pattern:
    """The pattern that matches whole names, as Kafka's `subscribePattern` does."""
    return pattern_of(f"^(?:{text})$")


def check_subscription(options: Options) -> None:
    """Make sure that either names or a pattern are given."""
    if options.has("subscribe") and options.has("subscribePattern"):
        raise OptionError("give the source either 'subscribe' or 'subscribePattern'")
    if not options.has("subscribePattern"):
        options.required("subscribe", "events or orders,payments")
        return
    try:
        check_pattern(f"^(?:{options.text('subscribePattern')})$")
    except PatternError as error:
        raise options.wrong(
            "subscribePattern", f"a pattern for names of streams: {error}"
        ) from None


class Subscription:
    """Invariant: `streams` has the streams of each name, in the order in which they were found;
    what was found once stays, until it is gone from the broker and `forget` is called."""

    def __init__(self, client: StreamClient, names: tuple[str, ...], pattern: str) -> None:
        self.client = client
        self.names = names
        self.pattern = pattern
        self.streams: dict[str, list[str]] = {}
        self._grows = bool(pattern)
        self._looked_s = time.monotonic()
        if pattern:
            self._match()
        else:
            self._find()

    def _find(self) -> None:
        for name in self.names:
            try:
                found = self.client.streams_of(name)
            except NotFound as error:
                raise OptionError(error.text) from None
            self.streams[name] = found
            self._grows |= found != [name]
        every = self.all()
        if len(set(every)) < len(every):
            raise OptionError(f"'subscribe' names a stream twice: {', '.join(every)}")

    def _match(self) -> None:
        listed = self.client.directory()
        if listed is None:
            raise OptionError(
                "'subscribePattern' needs brokers that tell which streams there are, and these are "
                "too old: name the streams with 'subscribe'"
            )
        pattern = whole_pattern(self.pattern)
        for name in sorted(listed):
            if name not in self.streams and pattern.search(name):
                self.streams[name] = [name]

    def all(self) -> list[str]:
        """The streams, in the order of their numbers."""
        return [stream for found in self.streams.values() for stream in found]

    def is_growing(self) -> bool:
        """Whether streams may come to it."""
        return self._grows

    def discover(self) -> None:
        """Look for streams that have appeared, if that was not done for a while."""
        now = time.monotonic()
        if not self._grows or now - self._looked_s < DISCOVERY_SECONDS:
            return
        self._looked_s = now
        if self.pattern:
            self._match()
            return
        listed = self.client.directory()
        if listed is None:
            self._grows = False
            return
        known = set(listed)
        for name, found in self.streams.items():
            while found != [name] and f"{name}-{len(found)}" in known:
                found.append(f"{name}-{len(found)}")

    def forget(self, stream: str) -> None:
        """A stream is gone."""
        for name, found in list(self.streams.items()):
            if stream in found:
                found.remove(stream)
            if not found:
                del self.streams[name]
