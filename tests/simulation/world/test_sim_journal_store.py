"""The journal on a simulated disk: what it reported as durable is there after a power cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.journal.store import StoreOptions
from rhizome.journal.writer import ALWAYS, NEVER, Flush, every
from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World
from rhizome.testing.sim.world.sim_host import Host, Process, Program
from rhizome.testing.sim.world.sim_journal_store import SimStore
from rhizome.testing.sim.world.sim_network import Network

STORE_UUID = bytes(range(16))
SMALL = StoreOptions(segment_bytes_max=4096)


class Recorder(Program):
    """Appends commands to a journal, and finds those of earlier runs."""

    def __init__(self, host: Host, flush: Flush = ALWAYS) -> None:
        self.host = host
        self.store = SimStore(host, STORE_UUID, self, replace(SMALL, flush=flush))
        self.found = [command for _, command in self.store.recovered.commands]
        self.written: dict[int, int] = {}
        self.alarms: list[str] = []
        self.safe = 0
        self.synced = 0
        self.count = 0

    def append(self, command: bytes) -> None:
        self.store.journal.state(1 + len(self.found) + self.count, command)
        self.count += 1
        self.written[self.store.submit()] = self.count

    def durable(self, token: int) -> None:
        self.safe = max(self.safe, self.written.get(token, 0))
        on_disk = [count for end, count in self.written.items() if end <= self.store.synced]
        self.synced = max([self.synced, *on_disk])

    def alarm(self, text: str) -> None:
        self.alarms.append(text)

    def failed(self, error: BaseException) -> None:
        raise error


def recorder(process: Process) -> Recorder:
    assert isinstance(process.program, Recorder)
    return process.program


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("end", ["power_cut", "kill"])
def test_what_was_durable_is_found_again_in_order(seed: int, end: str) -> None:
    world = World(seed)
    chance = world.chance("test")
    process = Process(world, Network(world), "b1", Recorder)
    process.start()
    known: list[bytes] = []
    for round_ in range(6):
        program = recorder(process)
        assert program.found[: len(known)] == known
        known = list(program.found)
        for number in range(chance.randrange(60)):
            command = f"{round_} {number} ".encode() * chance.randrange(1, 30)
            program.append(command)
            known.append(command)
            world.run_until(world.now_us + chance.randrange(2 * MS))
        kept = len(known) - program.count + program.safe
        getattr(process, end)()
        known = known[:kept]
        world.run_until(world.now_us + SECOND)
        process.start()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("flush", [every(20), NEVER], ids=["interval", "never"])
@pytest.mark.parametrize("end", ["power_cut", "kill"])
def test_a_journal_that_does_not_wait_keeps_what_its_policy_promises(
    seed: int, end: str, flush: Flush
) -> None:
    """A kill takes nothing that was reported; a power cut takes the end, back to a sync."""
    world = World(seed)
    chance = world.chance("test")
    process = Process(world, Network(world), "b1", lambda host: Recorder(host, flush))
    process.start()
    safe: list[bytes] = []
    known: list[bytes] = []
    for round_ in range(6):
        program = recorder(process)
        assert program.found[: len(safe)] == safe
        assert program.found == known[: len(program.found)], "there is no gap"
        known = list(program.found)
        for number in range(chance.randrange(60)):
            known.append(f"{round_} {number} ".encode() * chance.randrange(1, 30))
            program.append(known[-1])
            world.run_until(world.now_us + chance.randrange(2 * MS))
        kept = program.synced if end == "power_cut" else program.safe
        safe = known[: len(known) - program.count + kept]
        getattr(process, end)()
        world.run_until(world.now_us + SECOND)
        process.start()


def test_reported_is_not_synced_without_a_wait() -> None:
    """An interval syncs it later; without one nobody does."""
    counts: dict[int, tuple[int, int]] = {}
    for flush in (every(20), NEVER):
        world = World(1)
        process = Process(world, Network(world), "b1", lambda host, f=flush: Recorder(host, f))
        process.start()
        program = recorder(process)
        program.append(b"x")
        while not program.safe:
            world.run_until(world.now_us + MS)
        assert program.synced == 0
        world.run_until(world.now_us + SECOND)
        counts[flush.interval_ms] = (program.safe, program.synced)
    assert counts == {20: (1, 1), -1: (1, 0)}


def test_a_full_disk_is_waited_out_with_an_alarm() -> None:
    world = World(3)
    process = Process(world, Network(world), "b1", Recorder)
    process.start()
    program = recorder(process)
    process.disk.fill()
    for number in range(5):
        program.append(f"command {number} ".encode() * 200)
    world.run_until(SECOND)
    assert program.safe == 0
    assert program.alarms == ["the disk is full: free some space"]
    position = int(program.store.journal.end_position())
    held = program.store.read(position >> 32, 0, position & 0xFFFFFFFF)
    assert len(held) == position & 0xFFFFFFFF, "what waits for the disk can be read"
    process.disk.unfill()
    world.run_until(2 * SECOND)
    assert program.safe == 5
    assert program.alarms[1:] == [""]
    process.power_cut()
    process.start()
    assert len(recorder(process).found) == 5
