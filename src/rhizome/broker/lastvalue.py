"""Last-value queues: of the ready messages with one key, only the newest counts.

Older ones stay where they are in their lane and are skipped when they surface.
"""

from __future__ import annotations

from typing import final

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.message import Message


@final
class LastValues:
    """Invariant: ``current`` maps each key to its one ready message that counts."""

    header: str
    current: dict[str, Message]

    def __init__(self, header: str) -> None:
        self.header = header
        self.current = {}

    def put(self, message: Message) -> Message | None:
        """A message arrives; answers the ready message that it supersedes."""
        key = self._key(message)
        if key is None:
            return None
        older = self.current.get(key)
        self.current[key] = message
        return older

    def take(self, message: Message) -> bool:
        """A message surfaces: True if it still counts (then it leaves), False if superseded."""
        key = self._key(message)
        if key is None:
            return True
        current = self.current.get(key)
        if current is None or current.index != message.index:
            return False
        del self.current[key]
        return True

    def put_back(self, message: Message) -> bool:
        """A message is requeued: False if a newer one with its key is ready."""
        key = self._key(message)
        if key is None:
            return True
        if key in self.current:
            return False
        self.current[key] = message
        return True

    def is_stale(self, message: Message) -> bool:
        key = self._key(message)
        if key is None:
            return False
        current = self.current.get(key)
        return current is None or current.index != message.index

    def clear(self) -> None:
        self.current = {}

    def _key(self, message: Message) -> str | None:
        properties = decode_properties(header_payload_of(message.content))
        headers = properties.headers
        if headers is None or self.header not in headers:
            return None
        value = headers[self.header]
        return f"{type(value).__name__}:{value}"
