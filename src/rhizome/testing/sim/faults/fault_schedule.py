"""What goes wrong, and when: drawn from the seed, overlapping, and over in time.

Each seed draws which kinds of fault it has, how often they come and how long they last. So one seed
is all power cuts, another all partitions, a third a little of everything.
Faults of all kinds overlap. At the end of the stormy part every fault is undone, every host is
started and every clock is true again: from then on nothing may be stuck.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.checkers.fault_timeline import lease, pair
from rhizome.testing.sim.events.application_events import Disturbed, Struck, Undisturbed
from rhizome.testing.sim.faults.event_triggered_faults import Ambushes
from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World
from rhizome.testing.sim.world.sim_host import CLOCK_PARTS, Process
from rhizome.testing.sim.world.sim_network import Connection, Network, Way

CLOCK_DRIFT_PPM_MAX: Final = 20_000
"""Two clocks differ by 2 x 2 % at most, less than the drift that leases allow for (5 %)."""
KIND_CHANCE: Final = 0.5
GAP_US_MIN: Final = 1 * SECOND
GAP_US_MAX: Final = 20 * SECOND
STORM_BREAKS_MAX: Final = 8
RESTARTS_MAX: Final = 6
SLOW_DISK_FACTOR_MAX: Final = 200

Undo = Callable[[], None]
Fault = Callable[[random.Random], None]


class UnknownFault(ValueError):
    """No fault has this name; the text lists those that there are."""


@dataclass
class FaultPlan:
    """When faults happen, and which: those of `kinds`, or a choice of the seed if it is empty."""

    start_us: int
    end_us: int
    kinds: Sequence[str] = ()
    pace: float = 1.0
    may_lose_disk: Callable[[str], bool] = lambda name: False
    """Whether this host's store may be damaged or wiped now without more being lost than the
    cluster promises to survive."""
    extra: dict[str, Fault] = field(default_factory=dict)
    """Faults of the scenario's own, such as changes of membership."""
    more: Callable[[Faults], dict[str, Fault]] = lambda faults: {}
    """More faults of the scenario, which use methods of `Faults`."""
    rare: dict[str, float] = field(default_factory=dict)
    """How often a seed has a kind of fault, where that is not `KIND_CHANCE`."""


class Faults:
    """Injects the faults of a plan, and undoes them."""

    def __init__(
        self,
        world: World,
        network: Network,
        processes: Sequence[Process],
        plan: FaultPlan,
        watch: Watch,
    ) -> None:
        self.counts: dict[str, int] = {}
        self._world = world
        self._network = network
        self._processes = list(processes)
        self._names = [process.name for process in processes]
        self._by_name = {process.name: process for process in processes}
        self._plan = plan
        self.watch = watch
        self._chance = world.chance("faults")
        self._undone = 0
        self._undo: dict[int, Undo] = {}
        self._ambushes = Ambushes(world, watch, self)
        every = self._table()
        self._kinds = self._mood(every)
        self._gap_us = _log_uniform(self._chance, GAP_US_MIN, GAP_US_MAX) / plan.pace
        self._length_us_max = _log_uniform(self._chance, SECOND, 40 * SECOND)

    def _table(self) -> dict[str, Fault]:
        return {
            "partition": self.partition,
            "isolate": self.isolate,
            "pair": self.pair,
            "one-way": self.one_way,
            "disconnect": self.disconnect,
            "storm": self.storm,
            "slow": self.slow,
            "kill": self.kill,
            "power-cut": self.power_cut,
            "blackout": self.blackout,
            "pause": self.pause,
            "stall": self.stall,
            "drift": self.drift,
            "flip": self.flip,
            "wipe": self.wipe,
            "full": self.full,
            "slow-disk": self.slow_disk,
            "restarts": self.restarts,
            **self._ambushes.kinds(),
            **self._plan.extra,
            **self._plan.more(self),
        }

    def _mood(self, every: dict[str, Fault]) -> list[tuple[str, Fault]]:
        unknown = [kind for kind in self._plan.kinds if kind not in every]
        if unknown:
            raise UnknownFault(f"no fault '{unknown[0]}'; there are: {', '.join(every)}")
        if self._plan.kinds:
            return [(kind, every[kind]) for kind in self._plan.kinds]
        rare = self._plan.rare
        chosen = [
            (kind, fault)
            for kind, fault in every.items()
            if self._chance.random() < rare.get(kind, KIND_CHANCE)
        ]
        return chosen or list(every.items())

    def schedule(self) -> None:
        """Let the stormy part begin at its time."""
        self._world.at(self._plan.start_us, self._next)

    def _next(self) -> None:
        if self.is_over():
            self.heal()
            return
        kind, fault = self._kinds[int(self._chance.random() * len(self._kinds))]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._world.note(f"fault {kind}")
        fault(self._chance)
        gap_us = 1 + int(-math.log(1 - self._chance.random()) * self._gap_us)
        self._world.at(min(self._world.now_us + gap_us, self._plan.end_us), self._next)

    def is_over(self) -> bool:
        """Whether all faults have been undone: nothing may go wrong any more."""
        return self._world.now_us >= self._plan.end_us

    def heal(self) -> None:
        """Undo everything, and start what is down."""
        self._world.note("all faults end")
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()
        for process in self._processes:
            process.resume()
            self._set_rate(process, CLOCK_PARTS)
            if not process.is_running():
                process.start()

    # --- helpers

    def _some(self) -> Process:
        return self._processes[int(self._chance.random() * len(self._processes))]

    def _length_us(self) -> int:
        return _log_uniform(self._chance, 50 * MS, self._length_us_max)

    def for_a_while(self, undo: Undo, places: Iterable[str] = ()) -> None:
        """Undo a fault after a while, or when all faults end; meanwhile `places` are disturbed."""
        self._undone += 1
        key = f"fault {self._undone}"
        disturbed = " ".join(dict.fromkeys(places))
        if disturbed:
            self.watch.see(Disturbed(key, disturbed))

        def undo_and_tell() -> None:
            undo()
            if disturbed:
                self.watch.see(Undisturbed(key))

        self._undo_later(self._undone, undo_and_tell)

    def on_ways_for_a_while(self, undo: Undo, ways: Iterable[Way], least_us: int = 0) -> None:
        """Undo a fault of the network after a while, or when all faults end. What lies between two
        hosts counts as disturbed until all that was sent on these paths by then has arrived: what
        follows on a connection comes after it, however fast the paths are again."""
        self._undone += 1
        key = f"fault {self._undone}"
        between: dict[str, list[Way]] = {}
        for way in ways:
            between.setdefault(pair(*way), []).append(way)
        for place in between:
            self.watch.see(Disturbed(f"{key} {place}", place))

        def undo_and_tell() -> None:
            undo()
            for place, disturbed in between.items():
                end_us = max(self._network.arrived_us(way) for way in disturbed)
                self._world.at(end_us, self.watch.see, Undisturbed(f"{key} {place}"))

        self._undo_later(self._undone, undo_and_tell, least_us)

    def _undo_later(self, number: int, undo: Undo, least_us: int = 0) -> None:
        self._undo[number] = undo
        self._world.after(max(self._length_us(), least_us), self._end, number)

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    def _block(self, ways: list[Way], least_us: int = 0) -> None:
        self._world.note("blocked " + " ".join(f"{a}>{b}" for a, b in ways))
        for way in ways:
            self._network.block(way)

        def unblock() -> None:
            self._world.note("unblocked " + " ".join(f"{a}>{b}" for a, b in ways))
            for way in ways:
                self._network.unblock(way)

        self.on_ways_for_a_while(unblock, ways, least_us)

    # --- the network

    def partition(self, chance: random.Random) -> None:
        """Two sides that cannot talk, with perhaps one host that both can talk to."""
        names = chance.sample(self._names, len(self._names))
        cut = 1 + int(chance.random() * (len(names) - 1)) if len(names) > 1 else 1
        bridge = 1 if chance.random() < 0.2 and len(names) > 2 else 0
        left, right = names[:cut], names[cut + bridge :]
        self._block([way for a in left for b in right for way in ((a, b), (b, a))])

    def split_off(self, name: str) -> None:
        """Two sides that cannot talk, with this host and a few others on the smaller one."""
        others = self._chance.sample(self._names, len(self._names))
        left = [name, *[other for other in others if other != name][: (len(others) - 1) // 2]]
        right = [other for other in others if other not in left]
        self._block([way for a in left for b in right for way in ((a, b), (b, a))])

    def isolate(self, chance: random.Random) -> None:
        """One host cut off."""
        self.isolate_host(self._some().name)

    def isolate_host(self, name: str) -> None:
        """Cut a host off, in both directions or in one."""
        others = [other for other in self._names if other != name]
        out = [(name, other) for other in others]
        back = [(other, name) for other in others]
        choice = self._chance.random()
        self._block(out + back if choice < 0.4 else out if choice < 0.7 else back)

    def pair(self, chance: random.Random) -> None:
        """Two hosts that cannot talk to each other, but to all others."""
        if len(self._names) > 1:
            one, other = chance.sample(self._names, 2)
            self.part(one, other)

    def part(self, one: str, other: str, least_us: int = 0) -> None:
        """Two hosts cannot talk to each other for a while, at least for the given time."""
        self._block([(one, other), (other, one)], least_us)

    def one_way(self, chance: random.Random) -> None:
        """Some paths are blocked, each in one direction."""
        ways = [(a, b) for a in self._names for b in self._names if a != b]
        share = chance.random() * 0.5
        self._block([way for way in ways if chance.random() < share])

    def disconnect(self, chance: random.Random) -> None:
        """A connection breaks."""
        connections = list(self._network.connections.values())
        if connections:
            self.break_connection(connections[int(chance.random() * len(connections))])

    def storm(self, chance: random.Random) -> None:
        """All connections break, again and again."""
        when_us = 0
        for _ in range(1 + int(chance.random() * STORM_BREAKS_MAX)):
            self._world.after(when_us, self._break_all)
            when_us += _log_uniform(chance, 10 * MS, 2 * SECOND)

    def _break_all(self) -> None:
        for connection in list(self._network.connections.values()):
            self.break_connection(connection)

    def break_connection(self, connection: Connection) -> None:
        self.watch.see(Struck("break", pair(connection.local, connection.remote)))
        self._network.reset(connection)

    def slow(self, chance: random.Random) -> None:
        """Delays grow on some paths."""
        extra_us = _log_uniform(chance, 5 * MS, 2 * SECOND)
        share = chance.random()
        ways = [(a, b) for a in self._names for b in self._names if a != b]
        ways = [way for way in ways if chance.random() < share]
        for way in ways:
            self._network.slow(way, extra_us)

        def unslow() -> None:
            for way in ways:
                self._network.unslow(way, extra_us)

        self.on_ways_for_a_while(unslow, ways)

    # --- hosts

    def kill(self, chance: random.Random) -> None:
        """A program is killed and started again after a while."""
        self.kill_host(self._some().name)

    def kill_host(self, name: str) -> None:
        self._by_name[name].kill()
        self.restart_later(self._by_name[name])

    def power_cut(self, chance: random.Random) -> None:
        """A machine loses power for a while."""
        self.cut_power_of(self._some().name)

    def cut_power_of(self, name: str) -> None:
        self._by_name[name].power_cut()
        self.restart_later(self._by_name[name])

    def blackout(self, chance: random.Random) -> None:
        """All machines lose power at once; they come back one by one."""
        self.cut_power_of_all("")

    def cut_power_of_all(self, name: str) -> None:
        for process in self._processes:
            process.power_cut()
            self.restart_later(process)

    def restart_later(self, process: Process) -> None:
        def restart() -> None:
            if not process.is_running():
                process.start()

        self.for_a_while(restart)

    def restarts(self, chance: random.Random) -> None:
        """A program is killed again and again, sometimes before it is ready."""
        process = self._some()
        when_us = 0
        for _ in range(2 + int(chance.random() * (RESTARTS_MAX - 1))):
            self._world.after(when_us, self._restart, process)
            when_us += _log_uniform(chance, 20 * MS, 4 * SECOND)

    def _restart(self, process: Process) -> None:
        if not self.is_over():
            process.kill()
            process.start()

    def pause(self, chance: random.Random) -> None:
        """A program stands still for a while, and does not know it."""
        self.pause_host(self._some().name)

    def pause_host(self, name: str) -> None:
        process = self._by_name[name]
        process.pause()
        self.for_a_while(process.resume, [process.name, lease(process.name)])

    def drift(self, chance: random.Random) -> None:
        """A clock runs too fast or too slow."""
        process = self._some()
        self._set_rate(process, CLOCK_PARTS + int((chance.random() * 2 - 1) * CLOCK_DRIFT_PPM_MAX))
        self.for_a_while(lambda: self._set_rate(process, CLOCK_PARTS))

    def _set_rate(self, process: Process, parts_per_million: int) -> None:
        process.clock.set_rate(parts_per_million)
        process.clock_changed()

    # --- disks

    def stall(self, chance: random.Random) -> None:
        """A disk completes no sync for a while, or several disks that share something don't."""
        share = chance.random() if chance.random() < 0.3 else 0.0
        stalled = [each for each in self._processes if chance.random() < share] or [self._some()]
        self._stall(stalled)

    def stall_host(self, name: str) -> None:
        self._stall([self._by_name[name]])

    def _stall(self, stalled: list[Process]) -> None:
        for process in stalled:
            self._world.note(f"{process.name} disk stalls")
            process.disk.stall()

        def unstall() -> None:
            for process in stalled:
                process.disk.unstall()

        self.for_a_while(unstall, [each.name for each in stalled])

    def full(self, chance: random.Random) -> None:
        """A disk is full for a while: writes fail."""
        process = self._some()
        self._world.note(f"{process.name} disk is full")
        process.disk.fill()
        self.for_a_while(process.disk.unfill, [process.name])

    def slow_disk(self, chance: random.Random) -> None:
        """Every sync of a disk takes much longer."""
        process = self._some()
        factor = _log_uniform(chance, 5, SLOW_DISK_FACTOR_MAX)
        self._world.note(f"{process.name} disk is {factor} times slower")
        process.disk.slow(factor)
        self.for_a_while(lambda: process.disk.slow(1), [process.name])

    def flip(self, chance: random.Random) -> None:
        """A bit has flipped while a program was down."""
        process = self._some()
        if not self._plan.may_lose_disk(process.name):
            return
        process.kill()
        self._world.note(f"{process.name} flipped {process.disk.flip_bit()}")
        self.restart_later(process)

    def wipe(self, chance: random.Random) -> None:
        """A program comes back with an empty disk."""
        process = self._some()
        if not self._plan.may_lose_disk(process.name):
            return
        process.kill()
        process.disk.wipe()
        self._world.note(f"{process.name} wiped")
        self.restart_later(process)


def _log_uniform(chance: random.Random, low: int, high: int) -> int:
    """Between the two, each order of magnitude as likely as the others."""
    return int(low * (high / low) ** chance.random())
