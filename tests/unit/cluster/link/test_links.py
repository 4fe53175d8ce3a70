"""Links: who is linked with whom."""

from __future__ import annotations

from .kit import World


def test_three_primaries_are_linked_pair_by_pair() -> None:
    world = World()
    brokers = world.trio()
    world.dial_all()
    assert [broker.linked() for broker in brokers] == [["b2", "b3"], ["b1", "b3"], ["b1", "b2"]]
    assert [broker.log.problems for broker in brokers] == [[], [], []]
