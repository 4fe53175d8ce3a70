"""What faults of the network do is told to checkers for as long as it lasts, and no longer."""

from __future__ import annotations

from random import Random

import pytest

from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.checkers.fault_timeline import Timeline
from rhizome.testing.sim.faults.fault_schedule import FaultPlan, Faults
from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World
from rhizome.testing.sim.world.sim_host import Host, Process, Program
from rhizome.testing.sim.world.sim_network import Connection, Network


class Listener(Program):
    """Keeps what it hears."""

    def __init__(self, host: Host) -> None:
        self.heard = b""

    def received(self, connection: Connection, data: bytes) -> None:
        self.heard += data


class Slowest(Random):
    """Has the fault `slow` delay every way as long as it may."""

    def __init__(self) -> None:
        super().__init__()
        self._draws = [1.0, 1.0]

    def random(self) -> float:
        return self._draws.pop() if self._draws else 0.0


class Stage:
    """Hosts, a connection from the first to each of the others, and faults that end when told."""

    def __init__(self, seed: int, names: str) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.hosts = {name: Process(self.world, self.network, name, Listener) for name in names}
        for host in self.hosts.values():
            host.start()
        self.timeline = Timeline()
        watch = Watch(self.world, [self.timeline])
        plan = FaultPlan(start_us=0, end_us=60 * SECOND)
        self.faults = Faults(self.world, self.network, list(self.hosts.values()), plan, watch)
        self.wait(100 * MS)
        self.links = {name: self.hosts[names[0]].dial(name) for name in names[1:]}
        self.wait(100 * MS)
        self.begun_us = self.world.now_us

    def wait(self, for_us: int) -> None:
        self.world.run_until(self.world.now_us + for_us)

    def heard(self, name: str) -> bytes:
        program = self.hosts[name].program
        assert isinstance(program, Listener)
        return program.heard

    def heard_after_ms(self, name: str, text: bytes) -> int:
        """After how long a host has heard something."""
        while self.heard(name) != text:
            assert self.world.now_us < self.begun_us + 10 * SECOND
            self.wait(MS)
        return (self.world.now_us - self.begun_us) // MS

    def disturbed_ms(self, place: str) -> int:
        """How long a place is said to have been disturbed without a break, in the end."""
        self.wait(10 * SECOND)
        lasted_ms = 0
        while self.timeline.disturbed_for(
            [place], self.begun_us, self.world.now_us, (lasted_ms + 1) * MS
        ):
            lasted_ms += 1
        return lasted_ms


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_way_is_disturbed_until_what_was_sent_on_it_is_there(seed: int) -> None:
    stage = Stage(seed, "abc")
    stage.faults.slow(Slowest())
    stage.links["b"].send(b"slow")
    stage.faults.heal()
    stage.links["b"].send(b", and behind it")
    stage.links["c"].send(b"quick")
    assert stage.heard_after_ms("c", b"quick") < 50
    late_ms = stage.heard_after_ms("b", b"slow, and behind it")
    assert abs(stage.disturbed_ms("a~b") - late_ms) < 25
    assert stage.disturbed_ms("a~c") == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_blocked_way_is_disturbed_until_what_it_held_back_is_there(seed: int) -> None:
    stage = Stage(seed, "ab")
    stage.faults.split_off("a")
    stage.links["b"].send(b"held back")
    stage.world.after(1_400 * MS, stage.faults.heal)
    late_ms = stage.heard_after_ms("b", b"held back")
    assert abs(stage.disturbed_ms("a~b") - late_ms) < 3


def test_what_is_lost_with_its_connection_is_not_waited_for() -> None:
    stage = Stage(1, "ab")
    stage.faults.slow(Slowest())
    stage.links["b"].send(b"slow")
    stage.faults.break_connection(stage.links["b"])
    stage.faults.heal()
    assert stage.disturbed_ms("a~b") == 0
    assert stage.heard("b") == b""
