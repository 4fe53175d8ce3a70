"""Connections of the simulator behave as those of TCP do, for better and for worse."""

from __future__ import annotations

import pytest

from rhizome.testing.sim.world.event_scheduler import SECOND, World
from rhizome.testing.sim.world.sim_host import Host, Process, Program
from rhizome.testing.sim.world.sim_network import WINDOW_BYTES_MAX, Connection, Network


class Listener(Program):
    """Keeps what it hears."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.open: list[Connection] = []
        self.got: dict[int, bytes] = {}
        self.pieces = 0
        self.ended: list[str] = []
        self.writable_again = 0

    def accepted(self, connection: Connection) -> None:
        self.open.append(connection)

    connected = accepted

    def received(self, connection: Connection, data: bytes) -> None:
        self.pieces += 1
        self.got[connection.number] = self.got.get(connection.number, b"") + data

    def writable(self, connection: Connection) -> None:
        self.writable_again += 1

    def disconnected(self, connection: Connection, reason: str) -> None:
        self.ended.append(reason)


class Pair:
    """Two hosts, a and b."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.a = Process(self.world, self.network, "a", Listener)
        self.b = Process(self.world, self.network, "b", Listener)
        self.a.start()
        self.b.start()
        self.wait(0.1)

    def wait(self, seconds: float) -> None:
        self.world.run_until(self.world.now_us + int(seconds * SECOND))

    def listener(self, process: Process) -> Listener:
        assert isinstance(process.program, Listener)
        return process.program

    def link(self) -> tuple[Connection, Connection]:
        near = self.a.dial("b")
        self.wait(0.1)
        return near, self.listener(self.b).open[-1]

    def partition(self) -> None:
        self.network.block(("a", "b"))
        self.network.block(("b", "a"))

    def heal(self) -> None:
        self.network.unblock(("a", "b"))
        self.network.unblock(("b", "a"))


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_and_in_other_pieces(seed: int) -> None:
    pair = Pair(seed)
    near, far = pair.link()
    sent = [bytes([number % 251]) * (1 + number % 37) for number in range(400)]
    for piece in sent:
        near.send(piece)
    pair.wait(2)
    listener = pair.listener(pair.b)
    assert listener.got[far.number] == b"".join(sent)
    assert listener.pieces != len(sent)


def test_a_dial_to_nobody_is_refused_and_to_a_dark_host_unanswered() -> None:
    pair = Pair()
    pair.b.kill()
    pair.a.dial("b")
    pair.wait(0.5)
    assert pair.listener(pair.a).ended == ["refused"]
    pair.b.power_cut()
    pair.a.dial("b")
    pair.wait(0.5)
    assert pair.listener(pair.a).ended == ["refused"]
    pair.wait(4)
    assert pair.listener(pair.a).ended == ["refused", "no answer"]


def test_a_partition_holds_bytes_back_and_loses_none() -> None:
    pair = Pair()
    near, far = pair.link()
    pair.partition()
    near.send(b"one")
    pair.wait(2)
    near.send(b"two")
    pair.wait(2)
    assert pair.listener(pair.b).got == {}
    pair.heal()
    pair.wait(2)
    assert pair.listener(pair.b).got[far.number] == b"onetwo"


def test_one_way_blocked_leaves_the_other_open() -> None:
    pair = Pair()
    near, far = pair.link()
    pair.network.block(("a", "b"))
    near.send(b"lost for now")
    far.send(b"heard")
    pair.wait(1)
    assert pair.listener(pair.b).got == {}
    assert pair.listener(pair.a).got[near.number] == b"heard"


def test_ways_blocked_twice_open_when_both_faults_are_over() -> None:
    pair = Pair()
    near, _ = pair.link()
    pair.partition()
    pair.partition()
    near.send(b"x")
    pair.heal()
    pair.wait(3)
    assert pair.listener(pair.b).got == {}
    pair.heal()
    pair.wait(3)
    assert pair.listener(pair.b).got


def test_a_long_silence_is_given_up_by_the_sender_alone() -> None:
    pair = Pair()
    near, far = pair.link()
    pair.partition()
    near.send(b"x")
    pair.wait(30)
    assert pair.listener(pair.a).ended == ["timed out"]
    assert pair.listener(pair.b).ended == []
    pair.heal()
    far.send(b"anybody there?")
    pair.wait(3)
    assert pair.listener(pair.b).ended == ["reset by peer"]


def test_what_was_sent_before_a_close_arrives_before_it() -> None:
    pair = Pair()
    near, far = pair.link()
    near.send(b"last words")
    near.close()
    pair.wait(1)
    assert pair.listener(pair.b).got[far.number] == b"last words"
    assert pair.listener(pair.b).ended == ["closed by peer"]
    assert pair.listener(pair.a).ended == []


@pytest.mark.parametrize("seed", range(8))
def test_a_broken_connection_ends_on_both_sides_sooner_or_later(seed: int) -> None:
    pair = Pair(seed)
    near, far = pair.link()
    near.send(b"under way")
    pair.network.reset(near)
    pair.wait(0.5)
    near.send(b"more")
    far.send(b"more")
    pair.wait(1)
    assert len(pair.listener(pair.a).ended) == 1
    assert len(pair.listener(pair.b).ended) == 1
    assert pair.listener(pair.b).got == {}


def test_peers_of_a_killed_program_learn_of_it() -> None:
    pair = Pair()
    pair.link()
    pair.b.kill()
    pair.wait(1)
    assert len(pair.listener(pair.a).ended) == 1


def test_nobody_learns_of_a_power_cut_until_the_host_is_back() -> None:
    pair = Pair()
    near, _ = pair.link()
    pair.b.power_cut()
    near.send(b"hello?")
    pair.wait(5)
    assert pair.listener(pair.a).ended == []
    pair.b.start()
    pair.wait(3)
    assert pair.listener(pair.a).ended == ["reset by peer"]


def test_a_sender_is_told_to_wait_and_to_go_on() -> None:
    pair = Pair()
    near, far = pair.link()
    pair.b.pause()
    assert near.send(bytes(WINDOW_BYTES_MAX))
    assert not near.send(b"one too many")
    pair.wait(5)
    assert not near.writable
    pair.b.resume()
    pair.wait(5)
    assert near.writable
    assert pair.listener(pair.a).writable_again == 1
    assert len(pair.listener(pair.b).got[far.number]) == WINDOW_BYTES_MAX + len(b"one too many")


def test_a_program_hears_nothing_of_a_connection_that_it_has_closed() -> None:
    pair = Pair()
    near, far = pair.link()
    far.send(b"too late")
    near.close()
    pair.wait(2)
    assert pair.listener(pair.a).got == {}
    assert pair.listener(pair.a).ended == []
