"""Cache of the last header: messages whose headers differ from the last one's in the sequence
alone.

A producer that numbers what it sends (L5) repeats its properties with each message: its name, the
delivery mode, whatever else it says. Once such properties have been read, a content that has the
same bytes around its sequence asks for the same, so nothing of it is read again but the number.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import u32_at
from rhizome.amqp.properties import (
    FLAG_EXPIRATION,
    FLAG_HEADERS,
    FLAG_MESSAGE_ID,
    FLAG_PRIORITY,
    FLAG_REPLY_TO,
    FLAG_USER_ID,
    FLAGS_OFFSET,
)
from rhizome.amqp.spec import FRAME_HEADER_SIZE, FRAME_OVERHEAD
from rhizome.journal.dedup_state import DedupIdentity

_OPTIONS: Final = FLAG_PRIORITY | FLAG_REPLY_TO | FLAG_EXPIRATION | FLAG_MESSAGE_ID | FLAG_USER_ID
"""Properties that ask for something, each message for something else."""
_FRAME_SIZE_AT: Final = 3
_FLAGS_AT: Final = FRAME_HEADER_SIZE + FLAGS_OFFSET


@final
class NumberedHeader:
    """The content header of a numbered message, found well-formed.

    Invariant: a header frame of ``frame_bytes`` that has ``before`` from its flags up to
    ``sequence_at`` and ``after`` from behind the eight bytes of the sequence, and a sequence of at
    least 0, is well-formed and means the same: ``persistent``, of the ``producer``, if its
    publisher's producers have the prefix ``owner``.
    """

    frame_bytes: i64
    before: bytes
    after: bytes
    sequence_at: i64
    persistent: bool
    owner: bytes
    producer: bytes

    def __init__(
        self, content: bytes, sequence_at: i64, persistent: bool, owner: bytes, producer: bytes
    ) -> None:
        self.frame_bytes = u32_at(content, _FRAME_SIZE_AT) + FRAME_OVERHEAD
        self.before = content[_FLAGS_AT:sequence_at]
        self.after = content[sequence_at + 8 : self.frame_bytes]
        self.sequence_at = sequence_at
        self.persistent = persistent
        self.owner = owner
        self.producer = producer

    def identity_of(self, content: bytes, owner: bytes) -> DedupIdentity | None:
        """The identity of a message whose header says the same but for the sequence."""
        at = self.sequence_at
        if (
            u32_at(content, _FRAME_SIZE_AT) + FRAME_OVERHEAD != self.frame_bytes
            or content[_FLAGS_AT:at] != self.before
            or content[at + 8 : self.frame_bytes] != self.after
            or owner != self.owner
        ):
            return None
        sequence: i64 = read_i64_be(content, at)
        return DedupIdentity(self.producer, sequence, b"") if sequence >= 0 else None


def is_repeatable(flags: i64) -> bool:
    """Whether a message with these properties, and no header that is an option but producer and
    sequence, asks for nothing else."""
    return flags & FLAG_HEADERS != 0 and flags & _OPTIONS == 0 and flags & 1 == 0
