"""The cluster store on a simulated disk keeps what it reported, and finds damage in it."""

from __future__ import annotations

import random

import pytest

from rhizome.cluster.consensus.log.cluster_store import (
    Batch,
    Entry,
    Image,
    Position,
    Snapshot,
    advance,
)
from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World
from rhizome.testing.sim.world.sim_cluster_store import LOG, SimClusterStore
from rhizome.testing.sim.world.sim_host import Host, Process, Program
from rhizome.testing.sim.world.sim_network import Network


class Keeper(Program):
    """Opens the store and notes what it reports."""

    def __init__(self, host: Host) -> None:
        self.reported = 0
        uuid = f"{host.chance('uuid').getrandbits(128):032x}"
        self.store = SimClusterStore(host, uuid, self.report)
        self.image = self.store.load()
        self.history = [self.image]

    def report(self, token: int) -> None:
        self.reported = token

    def submit(self, batch: Batch) -> None:
        self.history.append(advance(self.history[-1], batch))
        self.store.submit(batch, len(self.history) - 1)


def keeper(process: Process) -> Keeper:
    assert isinstance(process.program, Keeper)
    return process.program


def some_batch(image: Image, chance: random.Random) -> Batch:
    last = image.entries[-1].index if image.entries else image.log_start.index
    choice = chance.random()
    if choice < 0.2:
        return Batch(term=image.term + 1, vote=chance.choice(("", "b1", "b2")))
    if choice < 0.3 and image.entries:
        return Batch(log_from=chance.randint(image.log_start.index + 1, last), commit=image.commit)
    if choice < 0.4 and image.entries:
        at = chance.choice(image.entries)
        data = bytes(chance.randrange(2000))
        start = Position(at.index, at.term)
        return Batch(snapshot=Snapshot(at.index, at.term, data), log_start=start, commit=at.index)
    if choice < 0.45:
        return Batch(cluster_uuid=f"{chance.getrandbits(128):032x}")
    entries = tuple(
        Entry(last + 1 + number, image.term, 1, bytes(chance.randrange(300)))
        for number in range(chance.randrange(1, 5))
    )
    return Batch(entries=entries)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("end", ["power_cut", "kill"])
def test_what_was_reported_is_found_again(seed: int, end: str) -> None:
    world = World(seed)
    chance = world.chance("test")
    process = Process(world, Network(world), "b1", Keeper)
    process.start()
    for _ in range(5):
        program = keeper(process)
        for _ in range(chance.randrange(40)):
            program.submit(some_batch(program.history[-1], chance))
            world.run_until(world.now_us + chance.randrange(3 * MS))
        possible = program.history[program.reported :]
        getattr(process, end)()
        world.run_until(world.now_us + SECOND)
        process.start()
        assert not keeper(process).image.damage
        assert keeper(process).image in possible


def test_a_new_store_is_empty_and_keeps_its_uuid() -> None:
    world = World(1)
    process = Process(world, Network(world), "b1", Keeper)
    process.start()
    first = keeper(process).image
    assert first.is_empty()
    process.power_cut()
    process.start()
    assert keeper(process).image == first
    process.kill()
    process.disk.wipe()
    process.start()
    assert keeper(process).image.is_empty()
    assert keeper(process).image.uuid != first.uuid


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_is_found_or_does_not_matter(seed: int) -> None:
    world = World(seed)
    chance = world.chance("test")
    process = Process(world, Network(world), "b1", Keeper)
    process.start()
    program = keeper(process)
    for _ in range(10):
        program.submit(some_batch(program.history[-1], chance))
        world.run_until(world.now_us + 100 * MS)
    process.kill()
    where = process.disk.flip_bit()
    process.start()
    found = keeper(process).image
    if where.startswith(LOG):
        assert found.damage
        assert keeper(process).store.set_aside().is_empty()
    else:
        assert found == program.history[-1]
