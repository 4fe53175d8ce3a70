"""ReaderPositions: the positions of the named readers of a stream, and who falls behind. Compiled.

A reader is known by a name. Consumers with ``x-stream-consumer-name`` move their position with
their acks. Programs that track their own progress only report it (Spark's source, with
``x-stream-reader``). Kept positions are tracking entries in the stream's own log, so they are on
the disks of its copies, like its messages. They are written at most once a second per name.

A position that is reported without ``x-stream-reader-keep`` is for observers, not for the reader.
It lives in the memory of the stream's home, and is forgotten if it is not reported again for
``PASSING_MS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.streams.stream_arguments import (
    READER_ARGUMENT,
    READER_KEEP_ARGUMENT,
    READER_NEXT_ARGUMENT,
)
from rhizome.journal.streams.stream_log import NAMES_MAX
from rhizome.journal.streams.stream_lookup import NO_OFFSET

if TYPE_CHECKING:
    from rhizome.broker.streams.stream import Stream

PASSING_MS: Final = 5 * 60_000
EXPIRY_EVERY_MS: Final = 60_000
EXPIRY_GRACE_MS: Final = 60 * 60_000
"""No name expires before its stream has been active here for this long: its reader may have been
alive all the time, and its home hears of it only now."""
RISK_PERCENT: Final = 80
"""A stream that has reached this fraction of a retention limit is about to drop its oldest
segment."""
WARN_EVERY_MS: Final = 5 * 60_000
"""The least time between two reports of readers that retention leaves behind."""


@final
class ReaderPosition:
    """``next`` is the first offset that the reader has not read; ``kept``: the log has it, too."""

    name: bytes
    next: i64
    kept: bool
    connected: bool
    used_ms: i64

    def __init__(self, name: bytes, after: i64, kept: bool, connected: bool, used_ms: i64) -> None:
        self.name = name
        self.next = after
        self.kept = kept
        self.connected = connected
        self.used_ms = used_ms


@final
class _Told:
    """What a reader has reported and the log does not have yet."""

    next: i64
    keep: bool
    told_ms: i64

    def __init__(self, after: i64, keep: bool, told_ms: i64) -> None:
        self.next = after
        self.keep = keep
        self.told_ms = told_ms


@final
class ReaderPositions:
    """Invariant: a position is never ahead of what its reader has reported, nor of what is visible.
    ``told`` has what the log does not. ``at_risk`` counts, by reader, the unread messages that
    retention is about to drop; ``unread_dropped`` counts those that it has dropped, once per
    reader; ``expired`` the names that were forgotten because nobody used them."""

    stream: Stream
    told: dict[bytes, _Told]
    at_risk: dict[bytes, int]
    unread_dropped: i64
    expired: i64
    _opened_ms: i64
    _looked_ms: i64
    _warned_ms: i64
    _told_dropped_ms: i64

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.told = {}
        self.at_risk = {}
        self.unread_dropped = 0
        self.expired = 0
        # Set with the first tick: while a store is opened there is no time yet.
        self._opened_ms = 0
        self._looked_ms = 0
        self._warned_ms = 0
        self._told_dropped_ms = 0

    # ---- what readers say -----------------------------------------------------------------------

    def take(self, arguments: dict[str, object], now_ms: i64) -> None:
        """Note the position that the arguments of a consumer report, if they do."""
        name = arguments.get(READER_ARGUMENT)
        after = arguments.get(READER_NEXT_ARGUMENT)
        if isinstance(name, str) and isinstance(after, int):
            keep = arguments.get(READER_KEEP_ARGUMENT) is True
            key = name.encode("utf-8", "surrogateescape")
            self.tell(key, max(0, min(after, 1 << 62)), keep, now_ms)

    def tell(self, name: bytes, after: i64, keep: bool, now_ms: i64) -> None:
        """A reader has read everything before an offset."""
        log = self.stream.log
        if after > log.committed:
            after = log.committed
        if name in log.offsets and keep:
            log.used[name] = now_ms
            if log.offsets[name] == after - 1:
                self.told.pop(name, None)
                return
        if name not in self.told and name not in log.offsets and not self._has_room():
            self.stream.broker.streams.readers_refused += 1
            return
        self.told[name] = _Told(after, keep, now_ms)

    def _has_room(self) -> bool:
        """Whether one more name may be known, of this stream and in its vhost."""
        if len(self.told) + len(self.stream.log.offsets) < NAMES_MAX:
            return self.stream.broker.streams.has_room_for_reader(self.stream.queue.vhost)
        return False

    def forget(self, name: bytes) -> bool:
        """Forget what a reader has told; whether there was something."""
        self.at_risk.pop(name, 0)
        return self.told.pop(name, None) is not None

    # ---- looking --------------------------------------------------------------------------------

    def count(self) -> i64:
        """How many names are known, without consumers that have not acknowledged anything yet."""
        log = self.stream.log
        found: i64 = len(log.offsets)
        for name in self.told:
            if name not in log.offsets:
                found += 1
        return found

    def all(self) -> list[ReaderPosition]:
        """The position of each reader, including what its consumer has acknowledged since it was
        recorded."""
        log = self.stream.log
        found: dict[bytes, ReaderPosition] = {}
        for name, offset in log.offsets.items():
            found[name] = ReaderPosition(name, offset + 1, True, False, log.used.get(name, 0))
        for name, told in self.told.items():
            kept = told.keep or name in log.offsets
            found[name] = ReaderPosition(name, told.next, kept, False, told.told_ms)
        for reader in self.stream.readers.values():
            if len(reader.name) > 0:
                known = found.get(reader.name)
                after = reader.remembered() + 1
                if known is None or known.next < after:
                    known = ReaderPosition(reader.name, after, True, True, 0)
                    found[reader.name] = known
                known.connected = True
                known.used_ms = self.stream.broker.turn.now_ms
        return list(found.values())

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: i64) -> None:
        """Record what was reported since the last time, and forget readers that were not heard
        of."""
        if self._opened_ms == 0:
            self._opened_ms = now_ms
            self._looked_ms = now_ms
        for name, told in list(self.told.items()):
            if told.keep and told.next > 0:
                self.told.pop(name)
                self.stream.note_offset(name, told.next - 1)
            elif told.keep and name in self.stream.log.offsets:
                # The stream starts again with offset 0, so nothing of it is acknowledged.
                self.stream.note_offset(name, NO_OFFSET)
            elif now_ms - told.told_ms > PASSING_MS:
                self.told.pop(name)
        if now_ms - self._looked_ms >= EXPIRY_EVERY_MS:
            self._looked_ms = now_ms
            if len(self.stream.log.offsets) > 0:
                self._expire(now_ms)

    def _expire(self, now_ms: i64) -> None:
        log = self.stream.log
        for reader in self.stream.readers.values():
            if reader.name in log.offsets:
                log.used[reader.name] = now_ms
        limit: i64 = self.stream.broker.limits.stream_reader_expires_ms
        grace = limit if limit < EXPIRY_GRACE_MS else EXPIRY_GRACE_MS
        gone: list[bytes] = []
        for name in log.offsets:
            # A release that did not record times has kept this name: count from now on.
            used: i64 = log.used.setdefault(name, self._opened_ms)
            if limit > 0 and now_ms - used > limit and now_ms - self._opened_ms > grace:
                gone.append(name)
        for name in gone:
            self.expired += 1
            self.stream.note_offset(name, NO_OFFSET)
            self.stream.broker.observer.reader_expired(self.stream.queue, name)

    # ---- retention ------------------------------------------------------------------------------

    def warn(self, now_ms: i64) -> None:
        """Find readers that have not read what retention is about to drop, and report them."""
        self.at_risk = self._unread_between(self.stream.log.first, self._risk_end(now_ms))
        if len(self.at_risk) > 0:
            self._report(self.at_risk, False, now_ms)

    def _risk_end(self, now_ms: i64) -> i64:
        """The end of the segment that is dropped next, if that is near; else the beginning of the
        stream."""
        log = self.stream.log
        options = self.stream.queue.options
        if len(log.segments) < 2:
            return log.first
        oldest = log.segments[0]
        most = options.retained_bytes_max
        age_max_ms = options.age_max_ms
        is_large = most >= 0 and log.size > most // 100 * RISK_PERCENT
        age_ms = now_ms - oldest.last_ms
        is_old = age_max_ms >= 0 and age_ms > age_max_ms // 100 * RISK_PERCENT
        return oldest.next if is_large or is_old else log.first

    def _unread_between(self, first: i64, end: i64) -> dict[bytes, int]:
        """How many messages between two offsets each reader has not read."""
        found: dict[bytes, int] = {}
        if end <= first:
            return found
        # This runs once a second for each stream at its limit: no object per reader.
        for name, offset in self.stream.log.offsets.items():
            if offset + 1 < end:
                found[name] = end - max(offset + 1, first)
        if len(self.told) > 0 or len(self.stream.readers) > 0:
            for position in self.all():
                found.pop(position.name, 0)
                if position.next < end:
                    found[position.name] = end - max(position.next, first)
        return found

    def dropped(self, first: i64, now_ms: i64) -> None:
        """Retention has dropped the messages from an offset up to the stream's first."""
        unread = self._unread_between(first, self.stream.log.first)
        for count in unread.values():
            self.unread_dropped += count
        if len(unread) > 0:
            self._report(unread, True, now_ms)

    def _report(self, unread: dict[bytes, int], dropped: bool, now_ms: i64) -> None:
        last_ms = self._told_dropped_ms if dropped else self._warned_ms
        if now_ms - last_ms < WARN_EVERY_MS:
            return
        if dropped:
            self._told_dropped_ms = now_ms
        else:
            self._warned_ms = now_ms
        self.stream.broker.observer.readers_left_behind(self.stream.queue, unread, dropped)
