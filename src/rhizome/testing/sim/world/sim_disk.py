"""The disk of a simulated host: files whose writes count only once they are synced.

The next reader sees what a program has written, a restarted program included: the operating system
has it. It is durable only when a sync that began afterwards has ended.

- A killed program loses what its writing thread had not written yet: some of its last writes that
  are not synced, and that it was not told to be written (`note_written`). The next start can read
  the rest, which is still not safe. Its outstanding syncs end without a report.
- A power cut keeps what was synced. Of the writes after that a beginning survives, and perhaps some
  sectors of later ones, in any order: disks write sectors whole, and between two syncs as they
  like. So a write may be torn anywhere between two sectors, or have a hole in it.
- A bit that flips at rest is flipped for good.
- A stalled disk takes writes and completes no sync until the stall is over. So does a full one,
  which says so (`is_full`); a program that asks before it writes has written nothing.

Files give raw bytes: a program that keeps records in them must find damage by itself.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import count
from typing import Final, final

from rhizome.testing.sim.world.event_scheduler import MS, World

SECTOR_BYTES: Final = 512
SYNC_US_MIN: Final = 200
SYNC_US_SPREAD: Final = 2 * MS
SLOW_SYNC_CHANCE: Final = 0.01
SLOW_SYNC_US_MAX: Final = 100 * MS
TORN_CHANCE: Final = 0.5
UNWRITTEN_CHANCE: Final = 0.5

_orders = count()
"""Numbers writes in the order in which programs ask for them."""

Done = Callable[[], None]
Deliver = Callable[[Done], None]
"""Runs a callable in the program that waits for it, as an input like any other."""


@final
class SimFile:
    """One file: what the system shows, what the disk has, and the writes in between.

    Invariant: `content` is `durable` with all of `_writes` done to it, in order; `_synced` counts
    the writes before those.
    """

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self._writes: list[tuple[int, bytes | None]] = []
        self._orders: list[int] = []
        """Of each of the writes."""
        self._written = 0
        """Writes with a smaller number than this are the operating system's: no kill loses them."""
        self._synced = 0

    def write(self, offset: int, data: bytes) -> None:
        """Write at an offset; a gap before it becomes zeros."""
        _write(self.content, offset, data)
        self._writes.append((offset, data))
        self._orders.append(next(_orders))

    def append(self, data: bytes) -> None:
        self.write(len(self.content), data)

    def cut(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        del self.content[size:]
        self._writes.append((size, None))
        self._orders.append(next(_orders))

    def written(self) -> int:
        """How many writes there were: a sync that begins now covers so many."""
        return self._synced + len(self._writes)

    def made_durable(self, written: int) -> None:
        """All writes up to this one are on the disk."""
        count = max(0, written - self._synced)
        for offset, data in self._writes[:count]:
            _apply(self.durable, offset, data)
        del self._writes[:count]
        del self._orders[:count]
        self._synced += count

    def unsynced(self) -> list[int]:
        """The numbers of the writes that no sync has covered yet."""
        return self._orders

    def note_written(self, order: int) -> None:
        """Writes with a smaller number have been made: only a power cut may undo them."""
        self._written = max(self._written, order)

    def unwritten(self) -> list[int]:
        """The numbers of the writes that a kill may lose."""
        if not self._written:
            return self._orders
        return [each for each in self._orders if each >= self._written]

    def lose_unwritten_from(self, order: int) -> None:
        """Writes of this number and later ones were never made, but for those that were."""
        self.lose_from(max(order, self._written))

    def lose_from(self, order: int) -> None:
        """Writes of this number and later ones were never made."""
        kept = sum(each < order for each in self._orders)
        if kept == len(self._orders):
            return
        del self._writes[kept:]
        del self._orders[kept:]
        self.content = bytearray(self.durable)
        for offset, data in self._writes:
            _apply(self.content, offset, data)

    def power_cut(self, chance: random.Random) -> None:
        """Keep what was synced, and as much of the rest as chance leaves."""
        writes, self._writes = self._writes, []
        self._orders = []
        self._synced += len(writes)
        kept = int(chance.random() * (len(writes) + 1))
        for offset, data in writes[:kept]:
            _apply(self.durable, offset, data)
        if all(data is not None for _, data in writes[kept:]):
            _write_sectors(self.durable, [(at, data) for at, data in writes[kept:] if data], chance)
        self.content = bytearray(self.durable)

    def flip(self, bit: int) -> None:
        """Flip one bit of what is on the disk."""
        if bit // 8 < len(self.durable):
            self.durable[bit // 8] ^= 1 << (bit % 8)
        if bit // 8 < len(self.content):
            self.content[bit // 8] ^= 1 << (bit % 8)


@final
class SimDisk:
    """The files of one host, and the queue of syncs that the disk works off one by one."""

    def __init__(self, world: World, host: str) -> None:
        self.world = world
        self.host = host
        self.files: dict[str, SimFile] = {}
        self.syncs = 0
        self.synced_us = 0
        """When the last sync ended."""
        self.cuts_us: list[int] = []
        """When the power was cut."""
        self.flips = 0
        """How many bits have flipped: a program may refuse to start with them."""
        self._chance = world.chance(f"disk/{host}")
        self._free_us = 0
        self._stalls = 0
        self._fillings = 0
        self._factor = 1
        self._waiting: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._on_space: list[Done] = []
        self._run = 0
        self._replacing: list[tuple[str, bytes]] = []

    # --- what programs do

    def open(self, name: str) -> SimFile:
        """The file of that name, made if it isn't there."""
        return self.files.setdefault(name, SimFile())

    def names(self) -> list[str]:
        return sorted(self.files)

    def sync(self, names: list[str], deliver: Deliver, done: Done) -> None:
        """Make what was written to the files durable, then run `done` by `deliver`."""
        files = [self.open(name) for name in names]
        if self.world.traced:
            sizes = " ".join(str(len(file.content)) for file in files)
            self.world.note(f"{self.host} syncs {' '.join(names)} {sizes}")
        covered = [(file, file.written()) for file in files]
        self._queue(self._synced, self._run, covered, deliver, done)

    def sync_now(self, name: str) -> None:
        """Sync a file before going on, as a store does when it is opened: what a killed program
        wrote is there to be read and may still be lost.
        """
        file = self.open(name)
        file.made_durable(file.written())

    def next_order(self) -> int:
        """A number above those of all writes so far."""
        return next(_orders)

    def replace(self, name: str, data: bytes, deliver: Deliver, done: Done) -> None:
        """Give a file new content as a whole: after a crash it has the old or the new."""
        self.world.note(f"{self.host} replaces {name} {len(data)} {zlib.crc32(data):08x}")
        self._replacing.append((name, data))
        self._queue(self._replaced, self._run, deliver, done)

    def _queue(self, action: Callable[..., None], *arguments: object) -> None:
        delay_us = SYNC_US_MIN + int(self._chance.random() * SYNC_US_SPREAD)
        delay_us *= self._factor
        if self._chance.random() < SLOW_SYNC_CHANCE:
            delay_us += int(self._chance.random() * SLOW_SYNC_US_MAX)
        self._free_us = max(self._free_us, self.world.now_us) + delay_us
        self.world.at(self._free_us, self._unless_stalled, action, *arguments)

    def _unless_stalled(self, action: Callable[..., None], *arguments: object) -> None:
        if self._stalls or self._fillings:
            self._waiting.append((action, arguments))
        else:
            action(*arguments)

    def _synced(
        self, run: int, covered: list[tuple[SimFile, int]], deliver: Deliver, done: Done
    ) -> None:
        if run != self._run:
            return
        self._note_sync()
        for file, written in covered:
            file.made_durable(written)
        deliver(done)

    def _replaced(self, run: int, deliver: Deliver, done: Done) -> None:
        if run != self._run:
            return
        self._note_sync()
        self._replace_oldest()
        deliver(done)

    def _note_sync(self) -> None:
        self.syncs += 1
        self.synced_us = self.world.now_us

    def _replace_oldest(self) -> None:
        name, data = self._replacing.pop(0)
        file = SimFile()
        file.append(data)
        file.made_durable(1)
        self.files[name] = file

    # --- what happens to it

    def stall(self) -> None:
        """End no sync until `unstall` was called as often."""
        self._stalls += 1

    def unstall(self) -> None:
        self._stalls -= 1
        self._go_on()

    def fill(self) -> None:
        """Have no room until `unfill` was called as often."""
        self._fillings += 1

    def unfill(self) -> None:
        self._fillings -= 1
        self._go_on()
        if not self._fillings:
            told, self._on_space = self._on_space, []
            for done in told:
                done()

    def _go_on(self) -> None:
        if not self._stalls and not self._fillings:
            waiting, self._waiting = self._waiting, []
            for action, arguments in waiting:
                # Events of one instant keep their order, so syncs do.
                self.world.after(0, action, *arguments)

    def is_full(self) -> bool:
        return self._fillings > 0

    def when_not_full(self, done: Done) -> None:
        """Call something as soon as there is room again, unless the program is gone by then."""
        self._on_space.append(done)

    def slow(self, factor: int) -> None:
        """Make syncs take this many times as long."""
        self._factor = factor

    def killed(self) -> None:
        """The program is gone: its syncs are reported to nobody."""
        self._run += 1
        self._on_space.clear()
        if self._replacing and self._chance.random() < 0.5:
            self._replace_oldest()
        self._replacing.clear()

    def lose_unwritten(self) -> None:
        """Drop the writes that the program's writing thread had not made when it was killed. That
        thread writes one batch and its sync after the other. Any file may be the first to lose
        writes, however much was written to others that are never synced."""
        behind = [orders for name in self.names() if (orders := self.files[name].unwritten())]
        if not behind or self._chance.random() >= UNWRITTEN_CHANCE:
            return
        orders = behind[int(self._chance.random() * len(behind))]
        first = orders[int(self._chance.random() * len(orders))]
        for file in self.files.values():
            file.lose_unwritten_from(first)

    def lose_unsynced(self) -> None:
        """Just before a power cut: lose all that no sync has covered, the worst that it can do."""
        for file in self.files.values():
            file.lose_from(0)

    def is_behind(self, under: str) -> bool:
        """Whether files of this beginning have writes that no sync has covered."""
        return any(file.unsynced() for name, file in self.files.items() if name.startswith(under))

    def power_cut(self) -> None:
        """Lose what was not synced."""
        self.cuts_us.append(self.world.now_us)
        self.killed()
        self._free_us = 0
        for name in self.names():
            self.files[name].power_cut(self._chance)

    def flip_bit(self, under: str = "") -> str:
        """Flip one bit somewhere; returns where, or nothing if there are no such files."""
        names = [name for name in self.names() if self.files[name].durable]
        names = [name for name in names if name.startswith(under)]
        if not names:
            return ""
        name = names[int(self._chance.random() * len(names))]
        bit = int(self._chance.random() * len(self.files[name].durable) * 8)
        self.files[name].flip(bit)
        self.flips += 1
        return f"{name}:{bit // 8}.{bit % 8}"

    def wipe(self) -> None:
        """A new, empty disk in place of this one."""
        self.killed()
        self._free_us = 0
        self.files.clear()


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
    else:
        _write(content, offset, data)


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _write_sectors(
    content: bytearray, writes: list[tuple[int, bytes]], chance: random.Random
) -> None:
    """Do some of the writes in part: each sector is as it was after one of them, or before all."""
    share = chance.random() ** 2 if chance.random() < TORN_CHANCE else 0.0
    after = bytearray(content)
    for offset, data in writes:
        _write(after, offset, data)
        for start in range(offset - offset % SECTOR_BYTES, offset + len(data), SECTOR_BYTES):
            if chance.random() < share:
                _write(content, start, bytes(after[start : start + SECTOR_BYTES]))
