"""DedupState: what a queue has accepted, so that it accepts nothing twice (L5). Compiled.

A publisher may number its messages (headers `x-producer` and `x-sequence`), and a queue may look at
message ids within a window (`x-dedup`). The identity of an accepted message is part of its ENQUEUE
record, so message and watermark are one: no crash can leave one without the other. A replay of the
records, a passive copy and the queue at its home hold the same `DedupState`; checkpoints and
catch-up carry it packed.

A producer belongs to a user: the same name of another user is another producer. Its name is

    u8 0, u16 0, u16 length, user, name that the user gave it

so a user whose name has any length or content can't claim that of another's, nor of a group, whose
names begin with u8 0 and the group's number (`broker/dead_letters/group_outbox.py`). Releases
before 0.2 wrote the name alone, without the user, and so does a broker while it has a link with one
of them; what was accepted under a name alone counts for every user's producer of it, and the other
way round.

    identity  u16 length, producer | u64 sequence | u16 length, message id | u32 ids that the window
              holds; an empty producer or id is none
    packed    u8 version | u64 index | u64 index on disk
              | u32 n | n * (u16 length, producer | u64 first | u64 last | u64 index
                             | u16 length, bits)
              | u32 n | n * (u16 length, message id | u64 ms)
"""

from __future__ import annotations

import hashlib
from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import put_u16, put_u32, u16_at, u32_at

SEEN_VERSION: Final = 1
SEQUENCE_WINDOW: Final = 4096
"""How far below a producer's last run without a gap a sequence that was refused, or never came, is
still accepted; a lower one counts as a duplicate.
"""
PRODUCERS_MAX: Final = 10_000
"""The most producers that a queue remembers. Beyond it those silent for longest are forgotten."""
PRODUCERS_FORGOTTEN: Final = 1_000
IDS_DEFAULT: Final = 100_000
USER_MARK: Final = b"\0\0\0"
"""The prefix of the name of every producer of a user: no group has the number 0."""
USER_BYTES_MAX: Final = 255
"""Longer user names are replaced by their digest."""

_WINDOW_BITS: Final = (1 << SEQUENCE_WINDOW) - 1


@final
class DedupIdentity:
    """The identity of a message: `sequence` of `producer`, if that is not empty, and the message
    id. `window`: how many ids the queues with a window remember; 0 if there are none."""

    producer: bytes
    sequence: i64
    message_id: bytes
    window: i64

    def __init__(self, producer: bytes, sequence: i64, message_id: bytes) -> None:
        self.producer = producer
        self.sequence = sequence
        self.message_id = message_id
        self.window = 0

    def is_kept(self) -> bool:
        """Whether a queue that accepts the message has to remember it."""
        return len(self.producer) > 0 or (self.window > 0 and len(self.message_id) > 0)

    def packed(self) -> bytes:
        writer = BytesWriter()
        self.put(writer)
        return writer.getvalue()

    def put(self, writer: BytesWriter) -> None:
        """Write it as it is packed."""
        put_u16(writer, len(self.producer))
        writer.write(self.producer)
        write_i64_be(writer, self.sequence)
        put_u16(writer, len(self.message_id))
        writer.write(self.message_id)
        put_u32(writer, self.window)


def identity_at(data: bytes, at: i64) -> DedupIdentity:
    """The packed identity at an offset."""
    producer_end: i64 = at + 2 + u16_at(data, at)
    id_at: i64 = producer_end + 10
    id_end: i64 = id_at + u16_at(data, id_at - 2)
    identity = DedupIdentity(
        data[at + 2 : producer_end], read_i64_be(data, producer_end), data[id_at:id_end]
    )
    identity.window = u32_at(data, id_end)
    return identity


def user_prefix(user: str) -> bytes:
    """The prefix of the names of a user's producers."""
    name = user.encode("utf-8", "surrogateescape")
    if len(name) > USER_BYTES_MAX:
        name = b"\0" + hashlib.sha256(name).digest()
    return USER_MARK + len(name).to_bytes(2, "big") + name


def is_users(producer: bytes) -> bool:
    """Whether a producer is a user's, under a name that says whose."""
    return producer.startswith(USER_MARK)


def given_name(producer: bytes) -> bytes:
    """The name that a user gave a producer."""
    return producer[5 + u16_at(producer, 3) :]


def user_of(producer: bytes) -> bytes:
    """The user whose producer this is."""
    return producer[5 : 5 + u16_at(producer, 3)]


def owner_of(producer: bytes) -> bytes:
    """The prefix of the names of all producers of the same user; the same for all others."""
    return producer[: 5 + u16_at(producer, 3)] if is_users(producer) else b""


@final
class Watermark:
    """The sequences that a queue accepted from one producer.

    Invariant: all from `first` to `last` were accepted; bit n of `bits` says whether
    `first` - 1 - n was. `index` is that of the latest message.
    """

    first: i64
    last: i64
    index: i64
    bits: int

    def __init__(self, first: i64, last: i64, index: i64, bits: int) -> None:
        self.first = first
        self.last = last
        self.index = index
        self.bits = bits

    def has(self, sequence: i64) -> bool:
        """Whether a sequence was accepted, or is too old to be told."""
        if sequence > self.last:
            return False
        if sequence >= self.first:
            return True
        age: i64 = self.first - 1 - sequence
        return age >= SEQUENCE_WINDOW or self.bits >> int(age) & 1 == 1

    def knows(self, sequence: i64) -> bool:
        """Whether a sequence was certainly accepted. This is used between names that may belong to
        different users: a high sequence under one name must not make another's too old."""
        age: i64 = self.first - 1 - sequence
        return self.has(sequence) and age < SEQUENCE_WINDOW

    def add(self, sequence: i64, index: i64) -> None:
        """A sequence was accepted that `has` doesn't know."""
        self.index = index
        if sequence == self.last + 1:
            self.last = sequence
        elif sequence > self.last:
            self._begin_run(sequence)
        else:
            self.bits |= 1 << int(self.first - 1 - sequence)

    def _begin_run(self, sequence: i64) -> None:
        """Some were left out: what came before them moves into the bits."""
        run: i64 = self.last - self.first + 1
        if run > SEQUENCE_WINDOW:
            run = SEQUENCE_WINDOW
        gap: i64 = sequence - 1 - self.last
        if gap >= SEQUENCE_WINDOW:
            self.bits = 0
        else:
            before = self.bits << int(run) | (1 << int(run)) - 1
            self.bits = before << int(gap) & _WINDOW_BITS
        self.first = sequence
        self.last = sequence


@final
class DedupState:
    """The deduplication state of a queue.

    Invariant: it has what was accepted up to `index` of the log; `index_on_disk` is the last index
    of a message that is in the journal. `ids` has the times of acceptance, the oldest first.
    Records at or below `index` are skipped: a message that is moved, or sent to a copy again, was
    counted before.
    """

    index: i64
    index_on_disk: i64
    producers: dict[bytes, Watermark]
    ids: dict[bytes, int]
    _asked: bytes
    _asked_name: bytes
    """The producer that was asked for last, and the name that its user gave it."""

    def __init__(self) -> None:
        self._asked = b""
        self._asked_name = b""
        self.index = 0
        self.index_on_disk = 0
        self.producers = {}
        self.ids = {}

    def has_sequence(self, producer: bytes, sequence: i64) -> bool:
        watermark = self.producers.get(producer)
        if watermark is not None and watermark.has(sequence):
            return True
        if is_users(producer):
            if producer is not self._asked:
                # One that sends a lot is asked for with the same object each time.
                self._asked = producer
                self._asked_name = given_name(producer)
            watermark = self.producers.get(self._asked_name)
            return watermark is not None and watermark.knows(sequence)
        return producer[0] != 0 and self._has_of_any_user(producer, sequence)

    def _has_of_any_user(self, name: bytes, sequence: i64) -> bool:
        """The lookup for a broker that doesn't name the user, because it is of an older release or
        linked to one: the message may have been accepted as its user's before."""
        for producer, watermark in self.producers.items():
            if is_users(producer) and given_name(producer) == name and watermark.knows(sequence):
                return True
        return False

    def has_id(self, message_id: bytes, since_ms: i64) -> bool:
        """Whether an id was accepted, and not before a time."""
        at_ms = self.ids.get(message_id)
        return at_ms is not None and i64(at_ms) >= since_ms

    def take(self, index: i64, on_disk: bool, identity: DedupIdentity, arrived_ms: i64) -> None:
        """A message was accepted under this index. Only acceptance changes this state."""
        if index <= self.index:
            return
        self.index = index
        if on_disk:
            self.index_on_disk = index
        if len(identity.producer) > 0:
            self._take_sequence(identity.producer, identity.sequence, index)
        if identity.window > 0 and len(identity.message_id) > 0:
            self.ids.pop(identity.message_id, 0)
            self.ids[identity.message_id] = int(arrived_ms)
            while len(self.ids) > identity.window:
                del self.ids[next(iter(self.ids))]

    def _take_sequence(self, producer: bytes, sequence: i64, index: i64) -> None:
        watermark = self.producers.get(producer)
        if watermark is None:
            self.producers[producer] = Watermark(sequence, sequence, index, 0)
            if len(self.producers) > PRODUCERS_MAX:
                self._forget_silent()
        elif not watermark.has(sequence):
            watermark.add(sequence, index)

    def _forget_silent(self) -> None:
        """Forget producers of the user who has most, so that no user can make a queue forget
        another's. They are chosen by index, so that all copies forget the same ones."""
        owners: dict[bytes, list[int]] = {}
        for name, watermark in self.producers.items():
            owners.setdefault(owner_of(name), []).append(int(watermark.index))
        most = b""
        indexes: list[int] = []
        for owner, held in owners.items():
            if (len(held), owner) > (len(indexes), most):
                most = owner
                indexes = held
        indexes.sort()
        limit: i64 = indexes[min(PRODUCERS_FORGOTTEN, len(indexes) - 1)]
        silent: list[bytes] = []
        for name, watermark in self.producers.items():
            if watermark.index < limit and owner_of(name) == most:
                silent.append(name)
        for name in silent:
            del self.producers[name]

    def truncate(self, index: i64) -> None:
        """The log now ends below an index: later records may use it again."""
        if self.index >= index:
            self.index = index - 1
        if self.index_on_disk >= index:
            self.index_on_disk = index - 1

    def is_empty(self) -> bool:
        return len(self.producers) == 0 and len(self.ids) == 0

    def packed(self) -> bytes:
        writer = BytesWriter()
        writer.append(SEEN_VERSION)
        write_i64_be(writer, self.index)
        write_i64_be(writer, self.index_on_disk)
        put_u32(writer, len(self.producers))
        for producer, mark in self.producers.items():
            bits = mark.bits.to_bytes((mark.bits.bit_length() + 7) // 8, "big")
            put_u16(writer, len(producer))
            writer.write(producer)
            write_i64_be(writer, mark.first)
            write_i64_be(writer, mark.last)
            write_i64_be(writer, mark.index)
            put_u16(writer, len(bits))
            writer.write(bits)
        put_u32(writer, len(self.ids))
        for message_id, at_ms in self.ids.items():
            put_u16(writer, len(message_id))
            writer.write(message_id)
            write_i64_be(writer, at_ms)
        return writer.getvalue()


def unpack_dedup_state(data: bytes, at: i64) -> DedupState:
    """The inverse of `DedupState.packed`."""
    if data[at] != SEEN_VERSION:
        raise CorruptRecord(f"watermarks of version {data[at]}", at)
    seen = DedupState()
    seen.index = read_i64_be(data, at + 1)
    seen.index_on_disk = read_i64_be(data, at + 9)
    count: i64 = u32_at(data, at + 17)
    at += 21
    while count > 0:
        end: i64 = at + 2 + u16_at(data, at)
        bits_at: i64 = end + 26
        bits_end: i64 = bits_at + u16_at(data, bits_at - 2)
        seen.producers[data[at + 2 : end]] = Watermark(
            read_i64_be(data, end),
            read_i64_be(data, end + 8),
            read_i64_be(data, end + 16),
            int.from_bytes(data[bits_at:bits_end], "big"),
        )
        at = bits_end
        count -= 1
    count = u32_at(data, at)
    at += 4
    while count > 0:
        id_end: i64 = at + 2 + u16_at(data, at)
        seen.ids[data[at + 2 : id_end]] = read_i64_be(data, id_end)
        at = id_end + 8
        count -= 1
    return seen
