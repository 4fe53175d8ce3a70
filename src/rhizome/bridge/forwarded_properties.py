"""What a message gets on its way through a bridge, and how it is seen to go in a circle.

The header `x-bridged` lists the places that a message has been taken from, oldest first. A place is
a cluster and a vhost of it, like `berlin:/`. A message isn't sent to a place where it has been, so
two bridges in opposite directions, or a ring of them, don't turn it round for ever; nor through
more bridges than the maximum, should the places not be recognised. Within one place there is no
circle to see: a bridge from a queue to another of the same vhost leaves the header as it is.
"""

from __future__ import annotations

from typing import Final

from rhizome.amqp.properties import Properties
from rhizome.bridge.errors import MessageRefused
from rhizome.bridge.in_flight_window import Entry
from rhizome.bridge.message_ids import MessageIds, rewritten
from rhizome.bridge.settings import BridgeSettings
from rhizome.errors import SyntaxErrorFault

PATH_HEADER: Final = "x-bridged"
# What RabbitMQ's shovels add if they are told to, the last one first.
FORWARDED_HEADER: Final = "x-shovelled"
# Publishers name further queues in these; a bridge to one queue must not send copies elsewhere.
COPY_HEADERS: Final = ("CC", "BCC")


class ForwardingLoop(MessageRefused):
    """The message has been where the bridge would send it, or passed too many bridges."""


class ForwardedProperties:
    """Makes the properties that messages are published with at the destination."""

    def __init__(self, settings: BridgeSettings, ids: MessageIds, user: str) -> None:
        self._settings = settings
        self._ids = ids
        self._user = user
        self.source_place = ""
        self.destination_place = ""

    def properties(self, entry: Entry) -> Properties:
        """The properties to publish with. Raises MessageRefused if it can't be sent on."""
        try:
            old = entry.message.properties
        except SyntaxErrorFault as error:
            raise MessageRefused(f"the properties of a message can't be read: {error}") from None
        headers = dict(old.headers) if old.headers is not None else {}
        if self.source_place != self.destination_place:
            headers[PATH_HEADER] = self._path(headers.get(PATH_HEADER))
        if self._settings.forwarded:
            before = headers.get(FORWARDED_HEADER)
            earlier = before if isinstance(before, list) else []
            headers[FORWARDED_HEADER] = [self._settings.forwarded, *earlier]
        if self._settings.target_queue:
            for name in COPY_HEADERS:
                headers.pop(name, None)
        # The destination refuses user-ids other than that of the connection, with a close.
        user_id = old.user_id if old.user_id == self._user else None
        return rewritten(old, headers, self._message_id(entry, old), user_id)

    def routing_key(self, entry: Entry) -> str:
        """The key to publish with."""
        settings = self._settings
        if settings.target_queue:
            return settings.target_queue
        return entry.message.routing_key if settings.to_key is None else settings.to_key

    def _message_id(self, entry: Entry, old: Properties) -> str | None:
        if old.message_id or not self._settings.dedup:
            return old.message_id
        if entry.message_id is None:
            entry.message_id = self._ids.new(entry.message)
        return entry.message_id

    def _path(self, header: object) -> list[object]:
        path: list[object] = list(header) if isinstance(header, list) else []
        if self.destination_place in path:
            raise ForwardingLoop(
                f"a message has been at {self.destination_place} already and would go in a circle;"
                " bridge exchanges rather than one queue both ways"
            )
        if len(path) >= self._settings.hops_max:
            raise ForwardingLoop(
                f"a message has passed {len(path)} bridges ({', '.join(map(str, path))});"
                " raise max-hops if the way is meant to be that long"
            )
        return [*path, self.source_place]


def place(name: str, vhost: str) -> str:
    """A cluster and a vhost of it in one word."""
    return f"{name}:{vhost}"
