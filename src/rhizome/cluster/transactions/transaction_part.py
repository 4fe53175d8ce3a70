"""Transaction part: what a transaction over several groups does in one group, as bytes (L4).

A part is a message in the group's queue of prepared transactions (`prepared_transactions.py`), so
it is recorded, copied and taken over like any other message:

    PREPARED   what a transaction does in this group, once it is decided
    DECIDE     the same for the first group, with the request to commit; if there is no other
               group it is never queued, but done at once
    DECISION   what was decided, until everybody has settled it

    body  u8 kind | u8 committed | u64 edge | u64 number | u16 decider | u16 n | n * u16 group
          | u64 ms | u32 n | n * publish | u32 n | n * settle
    publish  u16 length, tail | u16 n, n * u64 queue id | u8 persistent | i64 expiration
             | u8 priority | u16 length, identity | u32 largest frame | u32 length, content
    settle   u64 queue id | u8 kind | u32 n, n * u64 index
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from rhizome.amqp.frames import frame, frame_end
from rhizome.amqp.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEADER_SIZE
from rhizome.broker.message import Message, content_channel
from rhizome.broker.queue.pager import Pager
from rhizome.journal.dedup_state import identity_at

PREPARED: Final = 1
DECIDE: Final = 2
DECISION: Final = 3

TxId = tuple[int, int]
"""The incarnation of the edge whose client commits, and the transaction's number there."""

_HEAD: Final = struct.Struct(">BBQQHH")
_PUBLISH: Final = struct.Struct(">BqBH")
_SETTLE: Final = struct.Struct(">QBI")
_CLASS_BASIC: Final = 60


@dataclass
class Settle:
    """Messages of one queue that a transaction settles in one way."""

    queue_id: int
    kind: int
    indexes: list[int]


@dataclass
class TransactionPart:
    """What a transaction does in one group.

    Invariant: ``groups`` has all that take part, the decider among them.
    """

    kind: int
    tx: TxId
    decider: int
    groups: list[int]
    made_ms: int
    committed: bool = False
    publishes: list[tuple[Message, list[int]]] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)

    def encoded(self) -> bytes:
        parts = [_HEAD.pack(self.kind, self.committed, *self.tx, self.decider, len(self.groups))]
        parts.append(struct.pack(f">{len(self.groups)}H", *self.groups))
        parts.append(struct.pack(">QI", self.made_ms, len(self.publishes)))
        for message, ids in self.publishes:
            parts.extend(_publish(message, ids))
        parts.append(struct.pack(">I", len(self.settles)))
        for settle in self.settles:
            count = len(settle.indexes)
            parts.append(_SETTLE.pack(settle.queue_id, settle.kind, count))
            parts.append(struct.pack(f">{count}Q", *settle.indexes))
        return b"".join(parts)


def _publish(message: Message, ids: list[int]) -> list[bytes]:
    tail, content = message.route.tail, message.content
    identity = b"" if message.identity is None else message.identity.packed()
    return [
        struct.pack(">H", len(tail)),
        tail,
        struct.pack(f">H{len(ids)}Q", len(ids), *ids),
        _PUBLISH.pack(message.persistent, message.expiration_ms, message.priority, len(identity)),
        identity,
        struct.pack(">II", message.frame_bytes_max, len(content)),
        content,
    ]


def message_of(tx_part: TransactionPart, pager: Pager) -> Message:
    """A transaction part as a message for the queue of prepared transactions."""
    body = tx_part.encoded()
    header = struct.pack(">HHQH", _CLASS_BASIC, 0, len(body), 0)
    content = frame(FRAME_HEADER, 0, header) + frame(FRAME_BODY, 0, body)
    message = Message(pager.route(b"\0\0"), content, 0, len(body) + FRAME_HEADER_SIZE + 1)
    message.persistent = True
    return message


def is_sole(tx_part: TransactionPart) -> bool:
    """Whether this part is the whole transaction: no other group has a part or needs the
    outcome."""
    return tx_part.kind == DECIDE and len(tx_part.groups) == 1


def kind_of(message: Message) -> int:
    content = message.content
    return content[frame_end(content, 0) + FRAME_HEADER_SIZE]


def tx_part_of(message: Message, pager: Pager) -> TransactionPart:
    """The transaction part in a message of the queue of prepared transactions."""
    content = message.content
    return _Reader(content, frame_end(content, 0) + FRAME_HEADER_SIZE, pager).tx_part()


class _Reader:
    def __init__(self, data: bytes, at: int, pager: Pager) -> None:
        self.data = data
        self.at = at
        self.pager = pager

    def tx_part(self) -> TransactionPart:
        kind, committed, edge, number, decider, count = self._take(_HEAD)
        groups = list(self._take(struct.Struct(f">{count}H")))
        made_ms, publishes = self._take(struct.Struct(">QI"))
        tx_part = TransactionPart(kind, (edge, number), decider, groups, made_ms, committed == 1)
        tx_part.publishes = [self._publish() for _ in range(publishes)]
        [settles] = self._take(struct.Struct(">I"))
        for _ in range(settles):
            queue_id, how, count = self._take(_SETTLE)
            indexes = list(self._take(struct.Struct(f">{count}Q")))
            tx_part.settles.append(Settle(queue_id, how, indexes))
        return tx_part

    def _publish(self) -> tuple[Message, list[int]]:
        tail = self._bytes(">H")
        [count] = self._take(struct.Struct(">H"))
        ids = list(self._take(struct.Struct(f">{count}Q")))
        persistent, expiration_ms, priority, identity = self._take(_PUBLISH)
        named = identity_at(self.data, self.at) if identity else None
        self.at += identity
        [largest] = self._take(struct.Struct(">I"))
        content = self._bytes(">I")
        message = Message(self.pager.route(tail), content, content_channel(content), largest)
        message.persistent = persistent == 1
        message.expiration_ms = expiration_ms
        message.priority = priority
        message.identity = named
        return message, ids

    def _bytes(self, length: str) -> bytes:
        [size] = self._take(struct.Struct(length))
        self.at += size
        return self.data[self.at - size : self.at]

    def _take(self, layout: struct.Struct) -> tuple[int, ...]:
        found = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return found
