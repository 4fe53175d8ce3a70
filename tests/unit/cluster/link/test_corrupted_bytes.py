"""Bytes that somebody has changed under way: no mistake of ours, no link with the wrong one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.broker.connection.connection import Connection
from rhizome.broker.observer import Observer
from rhizome.cluster.link.link import CLOSED, Link
from tests.unit.cluster.link.linked_brokers import World, make_hello


class Bugs(Observer):
    """Keeps what the core reports as its own mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.bugs: list[BaseException] = []

    def bug(self, error: BaseException, where: str) -> None:
        self.bugs.append(error)

    def login_refused(self, connection: Connection, reason: str) -> None:
        assert reason


@settings(max_examples=150)
@given(
    step=st.integers(0, 12),
    place=st.integers(0, 2_000),
    change=st.integers(1, 255),
    rest=st.binary(max_size=20),
)
def test_a_handshake_with_changed_bytes_links_the_right_two_or_nobody(
    step: int, place: int, change: int, rest: bytes
) -> None:
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    two.core.observer = bugs = Bugs()
    one.knows(two)
    one.dial()
    while ends := world.ready():
        if step == 0 and ends[0].sent[0]:
            data = bytearray(ends[0].sent[0])
            data[place % len(data)] ^= change
            ends[0].sent[0] = bytes(data) + rest
        step -= 1
        ends[0].deliver()
    assert one.log.bugs == two.log.bugs == bugs.bugs == []
    for broker, peer in ((one, two), (two, one)):
        assert [link.peer for link in broker.log.up] in ([], [peer.links.me])


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_garbage_on_a_link_is_a_fault_of_the_peer(pieces: list[bytes], is_open: bool) -> None:
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    one.dial()
    if is_open:
        world.settle()
    link = one.links.peers["b2"].link or one.links.peers["b2"].dial
    assert isinstance(link, Link)
    for piece in pieces:
        link.receive(piece)
    assert one.log.bugs == []
    assert link.stage != CLOSED or link.reason
