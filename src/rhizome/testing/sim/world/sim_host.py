"""Programs on hosts: what they see of the world, and what the world does to them.

A program is driven as the server drives a broker: it wakes up shortly after input has arrived, gets
all that has arrived by then, gets `tick` if its deadline is over, and `turn` once at the end. It
reads its own clock, which drifts.

A program that is killed loses its memory and its connections. A power cut also loses what its disk
had not synced, and the other ends learn nothing of it. A paused program continues later where it
was.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from rhizome.testing.sim.world.event_scheduler import World
from rhizome.testing.sim.world.sim_disk import Done, SimDisk
from rhizome.testing.sim.world.sim_network import Connection, Network

WAKE_US_MIN: Final = 20
WAKE_US_SPREAD: Final = 180
LOCAL_START_MS_MAX: Final = 1_000_000
WALL_SKEW_MS_MAX: Final = 2_000
"""How much the time of day differs at most from machine to machine."""
CLOCK_PARTS: Final = 1_000_000
NEVER: Final = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class Program:
    """What runs on a host. Every method but `turn` is an input; `turn` acts on all of them.

    Invariant: a program does nothing outside of these methods, and knows of the world only what
    its host tells it.
    """

    def woken(self) -> None:
        """A wake-up begins: inputs follow, all of this one instant."""

    def started(self) -> None:
        """The program begins; its disk may hold what an earlier one left."""

    def accepted(self, connection: Connection) -> None:
        """Another host has dialled this one."""

    def connected(self, connection: Connection) -> None:
        """A connection that this program dialled is open."""

    def received(self, connection: Connection, data: bytes) -> None:
        """Bytes have come."""

    def writable(self, connection: Connection) -> None:
        """What was sent has left; more is welcome."""

    def disconnected(self, connection: Connection, reason: str) -> None:
        """A connection is over, or could not be opened."""

    def tick(self, now_ms: int) -> None:
        """The deadline that the program gave is over."""

    def turn(self) -> None:
        """All inputs of this wake-up were handed over."""

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due, by this host's clock."""
        return None

    def gone(self) -> None:
        """The program was killed, which it can't know: this is for reports to the checkers."""


@final
class Clock:
    """A host's clock: it starts at any value, and its pace may change. Its time of day, `wall_ms`,
    is wrong by `skew_ms` when the machine is switched on.

    Invariant: it never goes back.
    """

    def __init__(self, world: World, start_ms: int, skew_ms: int = 0) -> None:
        self._world = world
        self._base_us = world.now_us
        self._wall_offset_ms = world.now_us // 1_000 + skew_ms - start_ms
        self._local_us = start_ms * 1_000
        self._rate = CLOCK_PARTS

    def set_rate(self, parts_per_million: int) -> None:
        """Run faster or slower from now on; 1,000,000 is true."""
        self._local_us = self.now_us()
        self._base_us = self._world.now_us
        self._rate = parts_per_million

    def now_us(self) -> int:
        passed_us = self._world.now_us - self._base_us
        return self._local_us + passed_us * self._rate // CLOCK_PARTS

    def now_ms(self) -> int:
        passed_us = self._world.now_us - self._base_us
        return (self._local_us + passed_us * self._rate // CLOCK_PARTS) // 1_000

    def wall_ms(self) -> int:
        return self.now_ms() + self._wall_offset_ms

    def world_us(self, local_ms: int) -> int:
        """The world's time at which this clock shows `local_ms`, at its present pace."""
        wait_us = max(0, local_ms * 1_000 - self._local_us)
        return self._base_us + (wait_us * CLOCK_PARTS + self._rate - 1) // self._rate


@final
class Host:
    """What a program can do: one object per run, without effect once that run is over."""

    def __init__(self, process: Process, run: int) -> None:
        self.name = process.name
        self.run = run
        self.disk = process.disk
        self.traced = process.world.traced
        self._process = process

    def is_over(self) -> bool:
        """Whether the program that this was made for is gone."""
        return self._process.run != self.run

    def now_ms(self) -> int:
        return self._process.clock.now_ms()

    def wall_ms(self) -> int:
        """The time of day, from the beginning of the simulation on."""
        return self._process.clock.wall_ms()

    def chance(self, purpose: str) -> random.Random:
        """A random source of this host and run only."""
        return self._process.world.chance(f"program/{self.name}/{self.run}/{purpose}")

    def dial(self, name: str) -> Connection:
        """Begin a connection to another host."""
        return self._process.dial(name)

    def sync(self, names: list[str], done: Done) -> None:
        """Make files durable; `done` is called as an input of the program."""
        self.disk.sync(names, self.soon, done)

    def sync_aside(self, names: list[str], done: Done) -> None:
        """Make files durable from a thread of the program, which runs `done` at once: it may hand
        something over by `soon`. A paused program's threads stand still, too."""
        self.disk.sync(names, self._process.run_aside, done)

    def replace(self, name: str, data: bytes, done: Done) -> None:
        """Give a file new content as a whole."""
        self.disk.replace(name, data, self.soon, done)

    def soon(self, action: Callable[[], None]) -> None:
        """Call something at the next wake-up, as an input."""
        if not self.is_over():
            self._process.put(action)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self._process.world.note(f"{self.name} {text}")


class Process:
    """A host and the program on it.

    Invariant: inputs reach the program of the run for which they came, in the order in which they
    came; `run` counts the starts, and is raised at each end as well, so no two runs share a number.
    `_wake_us` is when it wakes up for its inputs, `_due_us` for its deadline; `_timer_us` is the
    earliest event that looks at the latter, and not later than it. Deadlines mostly move
    before they are due: the event of an older deadline checks where it is now.
    """

    def __init__(
        self, world: World, network: Network, name: str, factory: Callable[[Host], Program]
    ) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.disk = SimDisk(world, name)
        self.factory = factory
        self.program: Program | None = None
        self.run = 0
        self.starts = 0
        self.paused = False
        self._chance = world.chance(f"process/{name}")
        self.clock = self._new_clock()
        self._powered = True
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._wake_us = NEVER
        self._due_us = NEVER
        self._timer_us = NEVER
        self._deadline_ms: int | None = None
        self._connections: dict[Connection, None] = {}
        network.join(self)

    def is_running(self) -> bool:
        return self.program is not None

    def _new_clock(self) -> Clock:
        start_ms = int(self._chance.random() * LOCAL_START_MS_MAX)
        skew = self.world.chance(f"wall/{self.name}/{self.run}").random()
        skew_ms = int((skew * 2 - 1) * WALL_SKEW_MS_MAX)
        return Clock(self.world, start_ms, skew_ms)

    # --- life

    def start(self) -> None:
        """Switch on what is off and start the program."""
        assert self.program is None, f"{self.name} runs already"
        if not self._powered:
            self._powered = True
            self.clock = self._new_clock()
            self.network.powered_on(self.name)
        self.run += 1
        self.starts += 1
        self.world.note(f"{self.name} starts")
        program = self.factory(Host(self, self.run))
        self.program = program
        self.put(program.started)

    def kill(self) -> None:
        """End the program at once, as kill -9 does: the system closes its connections."""
        if self.program is None:
            return
        self.world.note(f"{self.name} is killed")
        for connection in self._end_run():
            if self._chance.random() < 0.5:
                self.network.close(connection)
            else:
                self.network.abort(connection)
        self.disk.killed()
        self.disk.lose_unwritten()

    def power_cut(self) -> None:
        """Lose the machine: memory, connections, and what the disk had not synced."""
        self.world.note(f"{self.name} loses power")
        for connection in self._end_run():
            self.network.vanish(connection)
        self._powered = False
        self.disk.power_cut()

    def pause(self) -> None:
        if self.program is None:
            return
        self.world.note(f"{self.name} is paused")
        self.paused = True

    def resume(self) -> None:
        if not self.paused:
            return
        self.world.note(f"{self.name} goes on")
        self.paused = False
        self._wake_us = self._due_us = self._timer_us = NEVER
        self._wake_after(WAKE_US_MIN)

    def _end_run(self) -> list[Connection]:
        connections = list(self._connections)
        self._connections.clear()
        self._inbox.clear()
        self._wake_us = self._due_us = self._timer_us = NEVER
        self._deadline_ms = None
        if self.program is not None:
            self.program.gone()
        self.program = None
        self.paused = False
        self.run += 1
        return connections

    # --- inputs

    def put(self, action: Callable[..., None], *arguments: Any) -> None:
        """Something has come for the program: it wakes up shortly."""
        self._inbox.append((action, arguments))
        if len(self._inbox) == 1:
            self._wake_after(WAKE_US_MIN + int(self._chance.random() * WAKE_US_SPREAD))

    def run_aside(self, action: Callable[[], None]) -> None:
        """Run something as a thread of the program does, which needs no wake-up."""
        if self.paused:
            self.put(action)
        else:
            action()

    def _wake_after(self, delay_us: int) -> None:
        when_us = self.world.now_us + delay_us
        if not self.paused and when_us < self._wake_us:
            self._wake_us = when_us
            self.world.at(when_us, self._wake_for_inputs, self.run, when_us)

    def _wake_for_inputs(self, run: int, when_us: int) -> None:
        """Wake up for inputs; later wake-ups that were planned are void."""
        if run == self.run and when_us == self._wake_us and not self.paused:
            self._wake()

    def _wake_for_deadline(self, run: int, when_us: int) -> None:
        if run != self.run or when_us != self._timer_us or self.paused:
            return
        self._timer_us = NEVER
        if self._due_us <= when_us:
            self._wake()
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._due_us < self._timer_us:
            self._timer_us = self._due_us
            self.world.at(self._due_us, self._wake_for_deadline, self.run, self._due_us)

    def _wake(self) -> None:
        """One wake-up."""
        program = self.program
        assert program is not None
        self._wake_us = NEVER
        program.woken()
        inputs, self._inbox = self._inbox, []
        for action, arguments in inputs:
            action(*arguments)
        if self._deadline_ms is not None:
            now_ms = self.clock.now_ms()
            if self._deadline_ms <= now_ms:
                program.tick(now_ms)
        program.turn()
        self._plan()

    def _plan(self) -> None:
        """Wake up for the program's deadline, at the latest."""
        if self.program is None or self.paused:
            return
        deadline_ms = self._deadline_ms = self.program.next_deadline_ms()
        self._due_us = NEVER
        if deadline_ms is not None:
            soon_us = self.world.now_us + WAKE_US_MIN
            self._due_us = max(soon_us, self.clock.world_us(deadline_ms))
            self._set_timer()

    def clock_changed(self) -> None:
        """The pace of the clock has changed: the next deadline comes at another time."""
        if self._due_us < NEVER:
            self._plan()

    # --- the network's side

    def is_powered(self) -> bool:
        return self._powered

    def is_listening(self) -> bool:
        return self.program is not None

    def dial(self, name: str) -> Connection:
        connection = self.network.dial(self.name, name)
        self._connections[connection] = None
        return connection

    def accept(self, connection: Connection) -> None:
        self._connections[connection] = None
        self.put(self._accepted, connection)

    def tell_connected(self, connection: Connection) -> None:
        self.put(self._connected, connection)

    def tell_received(self, connection: Connection, data: bytes) -> None:
        self.put(self._read, connection, data)

    def tell_writable(self, connection: Connection) -> None:
        self.put(self._writable, connection)

    def tell_disconnected(self, connection: Connection, reason: str) -> None:
        self.put(self._disconnected, connection, reason)

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    # A program hears nothing of a connection that it has closed itself.

    def _accepted(self, connection: Connection) -> None:
        if connection in self._connections and self.program is not None:
            self.program.accepted(connection)

    def _connected(self, connection: Connection) -> None:
        if connection in self._connections and self.program is not None:
            self.program.connected(connection)

    def _read(self, connection: Connection, data: bytes) -> None:
        if connection in self._connections and self.program is not None:
            self.network.was_read(connection, len(data))
            self.program.received(connection, data)

    def _writable(self, connection: Connection) -> None:
        if connection in self._connections and self.program is not None:
            self.program.writable(connection)

    def _disconnected(self, connection: Connection, reason: str) -> None:
        if connection in self._connections and self.program is not None:
            del self._connections[connection]
            self.program.disconnected(connection, reason)
