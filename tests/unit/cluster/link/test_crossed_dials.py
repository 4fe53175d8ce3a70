"""R13 under every order of events: of two links both ends keep the same one.

Two brokers dial each other. Each step of a handshake is a chunk of bytes under way; at any time any
chunk that is the oldest of its direction may arrive. All orders are tried, from the point on at
which both have proved themselves: what comes before doesn't look at other links.
"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cluster.link.linked_brokers import Broker, World, make_hello

PROVED_STEPS = 6
"""Deliveries after which the acceptor's proof is the next thing that the dialler hears."""


def crossing() -> tuple[World, list[Broker]]:
    """Two brokers that have dialled each other; both dials are at the acceptor's proof."""
    world = World()
    brokers = [world.start(make_hello(name)) for name in ("b1", "b2")]
    for broker in brokers:
        broker.knows(*brokers)
        broker.dial()
    for wire in list(world.wires):
        for step in range(PROVED_STEPS - 1):
            wire.ends()[step % 2].deliver()
    assert len(world.ready()) == 2
    assert [broker.linked() for broker in brokers] == [[], []]
    return world, brokers


def run(choices: list[int]) -> tuple[World, list[Broker], list[int]]:
    """Follow the choices, then always the first; answers how many there were at each step."""
    world, brokers = crossing()
    counts = []
    while ends := world.ready():
        step = len(counts)
        counts.append(len(ends))
        ends[choices[step] if step < len(choices) else 0].deliver()
        check_in_between(brokers)
    return world, brokers, counts


def check_in_between(brokers: list[Broker]) -> None:
    for broker in brokers:
        assert len(broker.log.up) <= 1
        assert len(broker.links.open_links()) == len(broker.log.up)


def check_one_path(brokers: list[Broker]) -> None:
    """Both have one link, and it is the same connection."""
    one, two = brokers
    assert len(one.log.up) == len(two.log.up) == 1
    ends = [broker.log.up[0].port for broker in (one, two)]
    assert ends[0].other is ends[1]  # type: ignore[attr-defined]
    assert one.log.up[0].dialled != two.log.up[0].dialled


def next_choices(choices: list[int], counts: list[int]) -> list[int] | None:
    """The next path in the tree of choices, depth first."""
    path = choices + [0] * (len(counts) - len(choices))
    while path:
        if path[-1] + 1 < counts[len(path) - 1]:
            path[-1] += 1
            return path
        path.pop()
    return None


def test_crossing_dials_open_one_link_whatever_arrives_first() -> None:
    choices: list[int] | None = []
    orders = both_asked = 0
    while choices is not None:
        world, brokers, counts = run(choices)
        check_one_path(brokers)
        assert [len(broker.log.events) for broker in brokers] == [1, 1], "a link went down"
        orders += 1
        if all(dial.peer.name for dial in world.dials):
            both_asked += 1
            assert brokers[0].log.up[0].dialled, "not the link dialled by the lower UUID is kept"
        choices = next_choices(choices, counts)
    assert orders > 100
    assert 0 < both_asked < orders


def test_an_answer_that_comes_late_gives_way_to_the_link_of_the_lower_uuid() -> None:
    world, (one, two) = crossing()
    first, second = world.wires
    while not two.log.up:  # b1's link is opened by b2, whose own dial asks at the same time
        for end in (*second.ends()[1:], *first.ends()):
            if end.sent:
                end.deliver()
    assert second.near.link is not None
    assert second.near.link.peer.name
    # b1 loses its link, and b2 doesn't hear of that: b1 has room for what b2 asks for.
    assert first.near.link is not None
    first.near.closed = True
    first.near.link.lost("connection reset")
    first.far.sent = []
    while second.ends()[0].sent or second.ends()[1].sent:
        for end in second.ends():
            if end.sent:
                end.deliver()
    assert two.log.up[0].port is first.far, "b2 knows of two links, and b1 dialled this one"
    assert one.linked() == []
    world.pass_time(1_000)
    check_one_path([one, two])


@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_links_settle_after_any_history_of_cuts_and_restarts(chance: Random, cuts: int) -> None:
    world = World(chance.randrange(1 << 30))
    brokers = world.trio()
    for broker in brokers:
        broker.dial()
    for _ in range(chance.randrange(10, 120)):
        ends = world.ready()
        if not ends:
            break
        chance.choice(ends).deliver()
        for broker in brokers:
            assert len(broker.links.open_links()) == len(broker.log.up)
        if cuts and world.wires and chance.random() < 0.05:
            cuts -= 1
            chance.choice(world.wires).cut()
    world.pass_time(20_000)
    assert [broker.linked() for broker in brokers] == [["b2", "b3"], ["b1", "b3"], ["b1", "b2"]]
    assert len(world.wires) == 3, "a connection that is no link was left open"


def test_the_same_seed_gives_the_same_bytes() -> None:
    def history() -> list[bytes | None]:
        world = World(5)
        world.trio()
        for broker in world.brokers.values():
            broker.dial()
        sent: list[bytes | None] = []
        while ends := world.ready():
            sent.append(ends[-1].sent[0])
            ends[-1].deliver()
        return sent

    assert history() == history()
