"""One group with its standbys, in random worlds."""

from __future__ import annotations

import random

import pytest

from tests.unit.cluster.replication.group_world import World
from tests.unit.cluster.replication.log_model import check

SEEDS = 60


def walk(seed: int, steps: int, kind: type[World] = World) -> World:
    chance = random.Random(seed)
    world = kind(wanted=chance.choice([1, 2, 2]), members=chance.choice(["", "b", "bc", "bc"]))
    names = list(world.brokers)
    for _ in range(steps):
        what = chance.random()
        name, other = chance.sample(names, 2)
        broker = world.brokers[name]
        if what < 0.30:
            home = next((each.home for each in world.brokers.values() if each.home), None)
            if home is not None and home.end() < 1 << 40:
                for _ in range(chance.randint(1, 4)):
                    home.step(*(chance.randint(0, 20) for _ in range(3)))
                home.broker.end_turn()
        elif what < 0.62:
            pairs = [pair for pair, waiting in world.links.items() if waiting]
            if pairs:
                for _ in range(chance.randint(1, 3)):
                    world.deliver(*chance.choice(pairs))
        elif what < 0.72:
            if broker.up:
                broker.sync(chance.choice([1, 2, 100]))
        elif what < 0.78:
            world.tick(chance.choice([50, 300, 1000]))
        elif what < 0.83:
            world.decide()
        elif what < 0.88:
            if broker.up:
                broker.learn()
        elif what < 0.90:
            world.cut(name, other)
        elif what < 0.94:
            world.connect(name, other)
        elif what < 0.955:
            if broker.up:
                world.crash(name)
        elif what < 0.975:
            if not broker.up:
                world.start(name)
        elif what < 0.988:
            world.registers(name)
        elif what < 0.991:
            for each in names:
                world.crash(each)
            for each in names:
                world.start(each)
                world.registers(each)
        else:
            world.take_over(whole_only=chance.random() < 0.5)
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_confirmed_is_lost_and_copies_are_true(seed: int) -> None:
    world = walk(seed, 400)
    world.heal()
    home = world.home()
    for member in world.register.members:
        broker = world.brokers[member.broker]
        check(broker.copy(), broker.place, home.truth)
