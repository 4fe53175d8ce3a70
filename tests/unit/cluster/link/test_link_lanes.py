"""What waits for a link: order, urgency, marks and maxima."""

from __future__ import annotations

from dataclasses import replace

from rhizome.cluster.link.frame_codec import FRAME_BYTES
from rhizome.cluster.link.link import BATCH_BYTES, Link
from rhizome.cluster.link.mac_records import RECORD_HEAD_BYTES
from tests.unit.cluster.link.linked_brokers import SETTINGS, Broker, End, World, make_hello

SMALL = replace(SETTINGS, buffer_bytes=100_000, frame_bytes_max=1 << 20)


def linked() -> tuple[World, Broker, Broker, Link]:
    world = World()
    one = world.start(make_hello("b1"), settings=SMALL)
    two = world.start(make_hello("b2"))
    one.knows(two)
    world.dial_all()
    return world, one, two, one.log.up[0]


def test_urgent_frames_overtake_what_waits_for_the_socket() -> None:
    world, one, two, link = linked()
    link.set_writable(False)
    for number in range(20):
        link.send(16, bytes([number]) * 20_000)
    link.send_urgent(17, b"lease")
    link.send_urgent(18, b"vote")
    one.turn()
    world.settle()
    assert two.log.received == []
    link.set_writable(True)
    one.turn()
    world.settle()
    methods = [method for _, method, _ in two.log.received]
    assert methods == [17, 18] + [16] * 20
    assert [payload[0] for _, _, payload in two.log.received[2:]] == list(range(20))


def test_urgent_frames_go_between_batches_and_never_into_a_frame() -> None:
    world, one, two, link = linked()
    for number in range(10):
        link.send_of(16, bytes([number]), b"x" * (BATCH_BYTES // 2))
    first = link.next_output()
    second = link.next_output()
    assert sum(map(len, first)) < 2 * BATCH_BYTES
    link.send_urgent(17, b"now")
    urgent = link.next_output()
    assert sum(map(len, urgent)) == RECORD_HEAD_BYTES + FRAME_BYTES + 3
    end = link.port
    assert isinstance(end, End)
    end.sent.extend(b"".join(chunks) for chunks in (first, second, urgent))
    one.turn()
    world.settle()
    methods = [method for _, method, _ in two.log.received]
    assert sorted(methods) == [16] * 10 + [17]
    assert methods.index(17) < 10
    assert [payload[0] for _, method, payload in two.log.received if method == 16] == list(
        range(10)
    )


def test_a_backlog_is_told_once_when_it_grows_and_once_when_it_shrinks() -> None:
    _, one, _, link = linked()
    link.set_writable(False)
    link.send(16, b"x" * 90_000)
    one.turn()
    assert not link.is_full()
    link.send(16, b"x" * 20_000)
    assert link.is_full()
    assert one.log.events == ["up b2"]
    one.turn()
    link.send(16, b"x" * 1_000)
    one.turn()
    assert one.log.events == ["up b2", "congested b2"]
    assert link.backlog() == 111_000 + 3 * FRAME_BYTES
    link.set_writable(True)
    one.turn()
    assert one.log.events == ["up b2", "congested b2", "free b2"]
    assert not link.is_full()
    assert link.backlog() == 0


def test_much_in_one_turn_is_no_congestion_if_the_socket_takes_it() -> None:
    world, one, two, link = linked()
    for _ in range(20):
        link.send(16, b"x" * 50_000)
    one.turn()
    assert one.log.events == ["up b2"]
    world.settle()
    assert len(two.log.received) == 20


def test_a_peer_that_takes_nothing_is_parted_from() -> None:
    _, one, _, link = linked()
    link.set_writable(False)
    for _ in range(150):
        link.send(16, b"x" * 10_000)
    one.turn()
    assert one.linked() == []
    assert "1501800 bytes wait for b2" in link.reason
    assert link.backlog() < 1_000


def test_what_is_sent_on_a_closed_link_is_lost() -> None:
    link = linked()[3]
    link.close("enough")
    sent = link.sent_frames
    link.send(16, b"x")
    link.send_of(16, b"x", b"y")
    link.send_urgent(16, b"x")
    assert link.sent_frames == sent


def test_frames_above_the_maximum_are_refused() -> None:
    world, one, two, link = linked()
    two.log.up[0].send(16, b"x" * (SMALL.frame_bytes_max + 1))
    two.turn()
    world.settle()
    assert one.linked() == []
    assert "maximum" in link.reason
