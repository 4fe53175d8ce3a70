"""x-recent-history: a fanout exchange that gives what is bound to it the last messages.

What is published goes to all destinations, whatever the keys are, and into a queue of its own, the
history (``amq.recent-history.EXCHANGE``): a shared queue with a maximum length, so that the last
messages are replicated, paged and recovered like those of any other. `recent_history.py` makes it
and gives a new destination its messages.
"""

from __future__ import annotations

import hashlib
from typing import Final, final

from rhizome.broker.routing.bindings_and_destinations import Binding, CountedDestinations, Walk
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import PreconditionFailed

RECENT_HISTORY_KIND: Final = "x-recent-history"
HISTORY_PREFIX: Final = "amq.recent-history."
LENGTH_ARGUMENT: Final = "x-recent-history-length"
NO_STORE_HEADER: Final = "x-recent-history-no-store"
HISTORY_LENGTH: Final = 20
HISTORY_LENGTH_MAX: Final = 1000
"""A new destination gets all of them in one turn."""

_NAME_BYTES_MAX: Final = 255


def check_history_arguments(arguments: dict[str, object]) -> None:
    length = arguments.get(LENGTH_ARGUMENT, HISTORY_LENGTH)
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise PreconditionFailed(
            f"Invalid argument, '{LENGTH_ARGUMENT}' must be a positive integer"
        )
    if length > HISTORY_LENGTH_MAX:
        raise PreconditionFailed(
            f"Invalid argument, '{LENGTH_ARGUMENT}' must be at most {HISTORY_LENGTH_MAX}"
        )


def history_name(exchange: str) -> str:
    """The name of the queue that has the history of an exchange."""
    name = HISTORY_PREFIX + exchange
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= _NAME_BYTES_MAX:
        return name
    return HISTORY_PREFIX + hashlib.sha256(encoded).hexdigest()


@final
class RecentHistoryExchange(Exchange):
    """All destinations, whatever the key. ``length``: how many messages its history has."""

    length: int
    _fan: CountedDestinations

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = RECENT_HISTORY_KIND,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self.reads_key = False
        # Each message may say that it isn't kept.
        self.reads_headers = True
        self.history = history_name(name)
        length = self.arguments.get(LENGTH_ARGUMENT, HISTORY_LENGTH)
        self.length = length if isinstance(length, int) else HISTORY_LENGTH
        self._fan = CountedDestinations()

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        return self._fan.collect(walk)

    def _added(self, binding: Binding) -> None:
        self._fan.add(binding.destination)

    def _removed(self, binding: Binding) -> None:
        self._fan.remove(binding.destination)
