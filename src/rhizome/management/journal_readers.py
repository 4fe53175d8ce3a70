"""JournalReaders: those who read the journal of this broker through the HTTP API, and their limits.

Readers never hold up messages: files are linked, read and checked in threads of their own, and all
readers together get a limited number of bytes per second (`journal.read_rate`). Pins keep what they
read. A pin ends when nobody reads it, when it is old, when it holds too much of the disk, and when
the disk is nearly full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from secrets import token_hex
from time import monotonic
from typing import Final, Protocol, TypeVar

from rhizome.journal.pinned_files import Part, Pin
from rhizome.journal.records import crc32c
from rhizome.journal.store import Store
from rhizome.management.errors import ObjectNotFound, Unavailable

logger = logging.getLogger("rhizome.management")

RANGE_BYTES_MAX: Final = 4 << 20
"""The most bytes of one answer."""
PIECE_BYTES: Final = 64 * 1024
THREADS: Final = 2
WAITING_MAX: Final = 64
"""How many ranges are read at the same time."""
WAIT_SECONDS_MAX: Final = 20.0
"""How long a range waits for its turn under `journal.read_rate`."""
LISTINGS_MAX: Final = 20
SWEEP_SECONDS: Final = 5.0

T = TypeVar("T")


class ReaderSettings(Protocol):
    """The configuration's settings for readers."""

    @property
    def read_rate_bytes(self) -> int: ...
    @property
    def pins_max(self) -> int: ...
    @property
    def pin_idle_ms(self) -> int: ...
    @property
    def pin_lifetime_ms(self) -> int: ...
    @property
    def pinned_bytes_max(self) -> int: ...


class ReadRate:
    """Spreads reads over time. Invariant: reads until ``_free_at`` have not exceeded the rate since
    the line was last empty."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._free_at = 0.0

    def wait_seconds(self, size: int, bytes_per_second: int) -> float:
        """How long to wait before this much may be read; raises Unavailable if that is too long."""
        now = self._clock()
        begins = max(now, self._free_at)
        if begins - now > WAIT_SECONDS_MAX:
            raise Unavailable(
                f"readers of the journal have the {bytes_per_second} bytes per second of"
                " journal.read_rate in use; try again"
            )
        self._free_at = begins + size / bytes_per_second
        return begins - now


class JournalReaders:
    """The readers of one broker. Invariant: every pin of the store is in ``store.pins.lent``, or is
    being made and counted by ``_making``."""

    def __init__(self, store: Store, clock: Callable[[], float] = monotonic) -> None:
        self.store = store
        self.clock = clock
        self.rate = ReadRate(clock)
        self.bytes_read = 0
        self._making = 0
        self._waiting = 0
        self._threads = ThreadPoolExecutor(THREADS, "journal-reader")

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    # ---- pins -----------------------------------------------------------------------------------

    def pins(self) -> list[Pin]:
        return list(self.store.pins.lent.values())

    def pin(self, number: str) -> Pin:
        """The pin of this id, which counts as used now; raises ObjectNotFound."""
        found = self.store.pins.lent.get(number)
        if found is None:
            raise ObjectNotFound(
                "there is no such pin: it was not read for journal.pin_idle, is older than"
                " journal.pin_lifetime, held more than journal.pinned_bytes_max, was ended by"
                " somebody, or the broker has been restarted or is short of disk space; make"
                " another one"
            )
        found.used_ms = self.now_ms()
        return found

    async def make(self, user: str, settings: ReaderSettings) -> Pin:
        """Pin what is committed now; raises Unavailable."""
        if len(self.store.pins.lent) + self._making >= settings.pins_max:
            raise Unavailable(
                f"there are {settings.pins_max} pins of the journal (journal.pins_max); end those"
                " that nobody needs, or wait until they end by themselves (journal.pin_idle)"
            )
        self._making += 1
        try:
            for _ in range(LISTINGS_MAX):
                pin = await self._try(user)
                if pin is not None:
                    self.store.pins.add(pin)
                    return pin
        finally:
            self._making -= 1
        raise Unavailable("the files of the store change each time they are listed; try again")

    async def _try(self, user: str) -> Pin | None:
        """A pin, unless files have come or gone while it was made."""
        pins = self.store.pins
        draft = await self._aside(lambda: pins.draft(token_hex(8), user, self.now_ms()))
        is_complete = False
        try:
            await self._aside(draft.link_checkpoints)
            committed = self.store.committed()
            is_complete = await self._aside(lambda: draft.link_parts(committed))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Unavailable(
                f"the files of the store can't be linked ({error.strerror or error}): journal,"
                " streams and pins must be on one file system that has hard links, with space left"
            ) from error
        finally:
            if not is_complete:
                self._remove(draft.pin)
        return draft.pin if is_complete else None

    def end(self, pin: Pin) -> None:
        """Make a pin unknown and remove its files."""
        self.store.pins.end(pin)
        self._remove(pin)

    def _remove(self, pin: Pin) -> None:
        """Without waiting, because the request that made it may be cancelled."""
        self._threads.submit(self.store.pins.remove, pin)

    # ---- ranges ---------------------------------------------------------------------------------

    async def read(
        self, pin: Pin, part: Part, offset: int, length: int, settings: ReaderSettings
    ) -> tuple[list[bytes], str]:
        """A range of a part in pieces, and the CRC-32C of it; raises Unavailable."""
        if self._waiting >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} ranges of the journal are being read; try again")
        length = max(0, min(length, RANGE_BYTES_MAX, part.size - offset))
        self._waiting += 1
        try:
            await asyncio.sleep(self.rate.wait_seconds(length, settings.read_rate_bytes))
            pieces, checksum = await self._aside(lambda: _read(pin, part, offset, length))
        finally:
            self._waiting -= 1
        self.bytes_read += length
        if sum(map(len, pieces)) < length:
            self.pin(pin.id)  # it may have ended meanwhile
            raise Unavailable(
                f"{part.name} has become shorter than {part.size} bytes since it was pinned; look"
                " at the store with `rhizome journal inspect`"
            )
        return pieces, checksum

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # ---- all the time ---------------------------------------------------------------------------

    async def run(
        self, settings: Callable[[], ReaderSettings], free_min: Callable[[], int]
    ) -> None:
        """End pins until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep(settings(), free_min())

    async def sweep(self, settings: ReaderSettings, free_min_bytes: int) -> None:
        """End the pins that are due."""
        now_ms = self.now_ms()
        for pin in self.pins():
            if now_ms - pin.used_ms > settings.pin_idle_ms:
                self._end_for(pin, "it was not read for journal.pin_idle")
            elif now_ms - pin.made_ms > settings.pin_lifetime_ms:
                self._end_for(pin, "it is older than journal.pin_lifetime")
        held = 0
        for pin in reversed(self.pins()):
            held += await self._aside(partial(self.store.pins.held_bytes, pin))
            if held > settings.pinned_bytes_max:
                self._end_for(pin, "pins hold more than journal.pinned_bytes_max")
        if self.pins() and self.store.free_bytes() < free_min_bytes:
            for pin in self.pins():
                self._end_for(pin, "the disk has less free than disk.free_min")

    def _end_for(self, pin: Pin, reason: str) -> None:
        logger.info("pin %s of the journal, made by '%s', is ended: %s", pin.id, pin.user, reason)
        self.end(pin)

    def close(self) -> None:
        """The service stops; the store removes what is left of the pins."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _read(pin: Pin, part: Part, offset: int, length: int) -> tuple[list[bytes], str]:
    data = pin.read(part, offset, length)
    checksum = f"{crc32c(data):08x}"
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)], checksum
