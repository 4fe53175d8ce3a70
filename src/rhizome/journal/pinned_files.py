"""Pins: the committed parts of a store at one moment, kept readable for those who read them slowly.

    DIR/pins/ID/NNNNNNNNNN.seg   the parts of one pin, numbered; links to files of the store

A part is a segment of the journal, a checkpoint, a retired segment or a segment of a stream. A pin
is a link to the file of each: a checkpoint or retention may remove the file from the store, and it
stays readable through the pin. So file removal knows nothing of pins, and a pin costs disk
space only for what the store has removed since. After a crash the next start removes all pins.

Invariant: of each part only the bytes below ``size`` are read. They were durable when the pin was
made, and never change. Of the segment that was being written then, that is its beginning.

Two threads take turns at making a pin: one lists and links files without blocking the loop, and the
loop's thread says in between what is committed (see `PinDraft`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rhizome.journal.checkpoint import checkpoint_names
from rhizome.journal.files import Files

PINS: Final = "pins"
HISTORY: Final = "history"

SEGMENT: Final = "segment"
CHECKPOINT: Final = "checkpoint"
RETIRED: Final = "retired"
STREAM: Final = "stream"

PARTS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a store. ``number`` is that of the segment, ``stream`` the id of its stream.

    ``size`` bytes of it can be read. ``committed`` is how many the broker has made durable: if that
    is more, the file was shortened behind its back. A ``sealed`` part gets no more.
    """

    name: str
    kind: str
    number: int
    stream: int
    size: int
    committed: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """How far a store is durable: a position of the journal (segment << 32 | offset), and segment
    and offset of each stream that is open. Of other streams, all that is on disk is."""

    position: int
    streams: dict[int, tuple[int, int]] = field(default_factory=dict)


class Pin:
    """The parts of a store at one moment. ``used_ms`` is when it was last read."""

    def __init__(self, number: str, user: str, now_ms: int, files: Files) -> None:
        self.id = number
        self.user = user
        self.made_ms = now_ms
        self.used_ms = now_ms
        self.parts: dict[str, Part] = {}
        self._files = files
        self._places: dict[str, int] = {}

    def read(self, part: Part, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes of what can be read of a part. Any thread."""
        length = min(length, part.size - offset)
        return self._files.read(self._places[part.name], offset, length) if length > 0 else b""

    def place(self) -> int:
        """The number of the next part in the pin's directory."""
        return len(self._places) + 1

    def add(self, part: Part, place: int) -> None:
        self.parts[part.name] = part
        self._places[part.name] = place

    def file_size(self, place: int) -> int:
        return self._files.size(place)

    def close(self) -> None:
        self._files.close()


class PinDraft:
    """A pin that is being made. In this order: `link_checkpoints`, the store's `committed` in the
    loop's thread, `link_parts`.

    A segment is removed only after a checkpoint that does not need it, and a checkpoint is written
    only when the journal is durable up to it. So if the checkpoints are the same before and after,
    every segment that they name is there, as far as they need it.
    """

    def __init__(self, store: PinnedStore, pin: Pin, files: Files) -> None:
        self.pin = pin
        self._store = store
        self._files = files
        self._checkpoints: list[str] = []

    def link_checkpoints(self) -> None:
        journal = self._store.journal
        self._checkpoints = checkpoint_names(journal)
        for name in self._checkpoints:
            place = self.pin.place()
            journal.lend_named(name, self._files, place)
            size = self.pin.file_size(place)
            number = int(name.rpartition("-")[2])
            self.pin.add(Part(name, CHECKPOINT, number, 0, size, size, sealed=True), place)

    def link_parts(self, committed: Committed) -> bool:
        """Link the other parts; return whether the pin is complete. If not, it is removed and
        another one is made."""
        store = self._store
        if HISTORY in store.root.directories():
            self._link(store.root.opened(HISTORY), RETIRED, 0, None)
        limit = (committed.position >> 32, committed.position & 0xFFFFFFFF)
        self._link(store.journal, SEGMENT, 0, limit)
        for name in store.streams.directories():
            if name.isdecimal():
                stream = int(name)
                limit_of = committed.streams.get(stream)
                self._link(store.streams.opened(name), STREAM, stream, limit_of)
        return checkpoint_names(store.journal) == self._checkpoints

    def _link(self, files: Files, kind: str, stream: int, limit: tuple[int, int] | None) -> None:
        """Link the segments of a directory, up to a segment and an offset in it."""
        numbers = files.segments()
        for number in numbers:
            if limit is not None and (number > limit[0] or (number, 0) == limit):
                break
            if len(self.pin.parts) >= PARTS_MAX:
                raise OSError(f"the store has more than {PARTS_MAX} files")
            place = self.pin.place()
            files.lend(number, self._files, place)
            size = committed = self.pin.file_size(place)
            sealed = kind == RETIRED or number < (numbers[-1] if limit is None else limit[0])
            if limit is not None and not sealed:
                committed = limit[1]
                size = min(size, committed)
            name = f"{kind}-{stream}-{number}" if kind == STREAM else f"{kind}-{number}"
            self.pin.add(Part(name, kind, number, stream, size, committed, sealed), place)


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """The directories of a store that have parts in them."""

    root: Files
    journal: Files
    streams: Files


class Pins:
    """The pins of a store. ``lent`` maps their ids to them, the oldest first. Except for ``draft``
    and ``remove``, which may block, all methods belong to the loop's thread."""

    def __init__(self, store: PinnedStore) -> None:
        store.root.remove_directory(PINS)
        self.lent: dict[str, Pin] = {}
        self._store = store

    def draft(self, number: str, user: str, now_ms: int) -> PinDraft:
        """Begin a pin. Any thread."""
        files = self._store.root.inside(PINS).inside(number)
        return PinDraft(self._store, Pin(number, user, now_ms, files), files)

    def add(self, pin: Pin) -> None:
        self.lent[pin.id] = pin

    def end(self, pin: Pin) -> None:
        """Make the pin unknown; `remove` then gives back its space."""
        self.lent.pop(pin.id, None)

    def remove(self, pin: Pin) -> None:
        """Remove the links of a pin. Any thread."""
        pin.close()
        self._store.root.inside(PINS).remove_directory(pin.id)

    def held_bytes(self, pin: Pin) -> int:
        """The disk space that the pin alone holds: parts that the store has removed since. Any
        thread."""
        there: dict[tuple[str, int], set[int]] = {}
        held = 0
        checkpoints = set(self._store.journal.names())
        for part in list(pin.parts.values()):
            if part.kind == CHECKPOINT:
                held += 0 if part.name in checkpoints else part.size
                continue
            key = (part.kind, part.stream)
            if key not in there:
                there[key] = set(self._segments(part))
            held += 0 if part.number in there[key] else part.size
        return held

    def _segments(self, part: Part) -> list[int]:
        store = self._store
        if part.kind == SEGMENT:
            return store.journal.segments()
        holder, name = (
            (store.root, HISTORY) if part.kind == RETIRED else (store.streams, str(part.stream))
        )
        return holder.opened(name).segments() if name in holder.directories() else []

    def clear(self) -> None:
        """The store is closed."""
        for pin in list(self.lent.values()):
            pin.close()
        self.lent.clear()
        self._store.root.remove_directory(PINS)
