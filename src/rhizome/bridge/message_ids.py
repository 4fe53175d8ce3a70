"""Message ids by which a destination recognises a repeat."""

from __future__ import annotations

import itertools
from hashlib import blake2b
from typing import Final

from rhizome.amqp.properties import Properties, encode_header
from rhizome.client import Message
from rhizome.errors import SyntaxErrorFault

DIGEST_BYTES: Final = 16
# Counted up by brokers at each delivery: the same message would not look the same the second time.
COUNTING_HEADER: Final = "x-delivery-count"


def fingerprint(message: Message) -> bytes:
    """What two deliveries of one message have in common, and different messages have not.

    Messages that are equal in exchange, key, properties and body have equal ones.
    """
    digest = blake2b(digest_size=DIGEST_BYTES)
    try:
        header = encode_header(len(message.body), _lasting(message.properties))
    except SyntaxErrorFault:
        header = message.header
    for part in (_octets(message.exchange), _octets(message.routing_key), header):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    digest.update(message.body)
    return digest.digest()


def has_id(message: Message) -> bool:
    """Whether the publisher gave the message an id."""
    try:
        return bool(message.properties.message_id)
    except SyntaxErrorFault:
        return False


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lasting(properties: Properties) -> Properties:
    if properties.headers is None or COUNTING_HEADER not in properties.headers:
        return properties
    headers = {name: each for name, each in properties.headers.items() if name != COUNTING_HEADER}
    return rewritten(properties, headers, properties.message_id, properties.user_id)


def rewritten(
    properties: Properties,
    headers: dict[str, object],
    message_id: str | None,
    user_id: str | None,
) -> Properties:
    """The same properties but for these three; no headers are left out altogether."""
    found = properties.with_headers(headers or None)
    found.message_id = message_id
    found.user_id = user_id
    return found


class MessageIds:
    """Makes ids for messages that their publishers gave none.

    By number: unique, and the same for all resends by this run of the bridge. By content
    (`from_contents`): the same for ever, but equal messages can't be told apart; only for queues
    in which no two messages are meant to be equal.
    """

    def __init__(self, bridge: str, incarnation: str, from_contents: bool) -> None:
        self._prefix = f"{bridge}.{incarnation}"
        self._bridge = bridge
        self._from_contents = from_contents
        self._numbers = itertools.count(1)

    def new(self, message: Message) -> str:
        """The id of a message that has none."""
        if self._from_contents:
            return f"{self._bridge}.{fingerprint(message).hex()}"
        return f"{self._prefix}.{next(self._numbers)}"
