"""Last-value queues: only the newest ready message of each key is kept."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.amqp.frames import header_payload_of
from rhizome.amqp.properties import decode_properties


@final
class LastValues:
    """Invariant: ``current`` has the index of the ready message of each key."""

    header: str
    current: dict[str, int]

    def __init__(self, header: str) -> None:
        self.header = header
        self.current = {}

    def put(self, index: i64, content: bytes) -> i64:
        """A message arrives, or is recovered; return the index of the one that it supersedes, or
        -1."""
        key = self._key(content)
        if key is None:
            return -1
        older: i64 = self.current.get(key, -1)
        self.current[key] = index
        return older

    def take(self, index: i64, content: bytes) -> None:
        """A message is no longer ready."""
        key = self._key(content)
        if key is not None and self.current.get(key, -1) == index:
            del self.current[key]

    def put_back(self, index: i64, content: bytes) -> bool:
        """A message is requeued: False if a newer one with its key is ready."""
        key = self._key(content)
        if key is None:
            return True
        if key in self.current:
            return False
        self.current[key] = index
        return True

    def clear(self) -> None:
        self.current = {}

    def _key(self, content: bytes) -> str | None:
        properties = decode_properties(header_payload_of(content))
        headers = properties.headers
        if headers is None or self.header not in headers:
            return None
        value = headers[self.header]
        return f"{type(value).__name__}:{value}"
