"""Frames with MACs: what somebody between two brokers can do to a link is end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.access.auth_interface import Peer
from rhizome.broker.connection.outbox import Outbox
from rhizome.cluster.link.cluster_key_proof import Acceptor, Dialler, LinkKeys, ProofError, Wish
from rhizome.cluster.link.frame_codec import FrameSink, LinkReader, put_frame
from rhizome.cluster.link.link import OPEN, Link
from rhizome.cluster.link.mac_records import (
    RECORD_BYTES_MAX,
    RECORD_HEAD_BYTES,
    MacReader,
    MacWriter,
)
from rhizome.errors import FrameError, NotAllowed
from tests.unit.cluster.link.linked_brokers import KEY, SETTINGS, Broker, End, World, make_hello

OLDER = replace(SETTINGS, has_macs=False)
EVIL = b"evil"


class Frames(FrameSink):
    def __init__(self) -> None:
        super().__init__()
        self.got: list[bytes] = []

    def frame(self, method: int, data: bytes, start: int, end: int) -> None:
        self.got.append(data[start:end])


def reader(sink: FrameSink) -> MacReader:
    return MacReader(LinkReader(sink, 1 << 30), b"k" * 32)


def frame(payload: bytes) -> bytes:
    outbox = Outbox()
    put_frame(outbox, 40, payload)
    return b"".join(outbox.take())


def linked() -> tuple[World, Broker, Broker]:
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    world.dial_all()
    return world, one, two


def link_of(broker: Broker) -> Link:
    return broker.links.open_links()[0]


def near(world: World) -> End:
    return world.wires[0].near


def sent_by(broker: Broker, *payloads: bytes) -> None:
    for payload in payloads:
        link_of(broker).send(40, payload)
        broker.turn()


def stays_outside(broker: Broker, bad: bytes = EVIL) -> None:
    assert all(bad not in payload for _, _, payload in broker.log.received)
    assert broker.linked() == []


# ---- records


@pytest.mark.parametrize("cut", [1, 3, 19, 20, 21, 1000, 1 << 22])
def test_records_are_read_however_they_are_cut(cut: int) -> None:
    payloads = [b"", b"a", b"b" * 5_000, b"c" * (3 * RECORD_BYTES_MAX + 7 if cut > 500 else 999)]
    writer, sink = MacWriter(b"k" * 32), Frames()
    records = [writer.records([frame(payload)[:9], frame(payload)[9:]]) for payload in payloads]
    data = b"".join(b"".join(chunks) for chunks in records)
    taker = reader(sink)
    for at in range(0, len(data), cut):
        taker.receive(data[at : at + cut])
    assert sink.got == payloads


def test_large_frames_are_several_records_and_a_peer_that_sends_is_heard() -> None:
    writer, taker = MacWriter(b"k" * 32), reader(Frames())
    chunks = writer.records([b"\x01" * 5, frame(b"x" * (2 * RECORD_BYTES_MAX))])
    heads = [chunk for chunk in chunks if len(chunk) == RECORD_HEAD_BYTES]
    sizes = [int.from_bytes(head[:4], "big") for head in heads]
    assert sizes[:2] == [RECORD_BYTES_MAX, RECORD_BYTES_MAX]
    assert sum(sizes) == len(b"".join(chunks)) - RECORD_HEAD_BYTES * len(sizes)
    whole = b"".join(MacWriter(b"k" * 32).records([frame(b"y" * (2 * RECORD_BYTES_MAX))]))
    assert not taker.receive(whole[:RECORD_BYTES_MAX]), "it might be anybody's"
    assert taker.receive(whole[RECORD_BYTES_MAX : RECORD_BYTES_MAX + RECORD_HEAD_BYTES])


def test_nothing_of_a_record_is_handed_on_before_its_tag_was_right() -> None:
    data = bytearray(b"".join(MacWriter(b"k" * 32).records([frame(b"one") + frame(b"two")])))
    data[-2] ^= 1
    sink = Frames()
    with pytest.raises(NotAllowed, match="somebody between the two brokers"):
        reader(sink).receive(bytes(data))
    assert sink.got == []


@pytest.mark.parametrize("size", [0, RECORD_BYTES_MAX + 1, 0xFFFFFFFF])
def test_sizes_that_no_record_has_are_refused_at_once(size: int) -> None:
    with pytest.raises(FrameError, match="record"):
        reader(Frames()).receive(size.to_bytes(4, "big") + bytes(16))


# ---- somebody on the path


def inject(records: list[bytes]) -> list[bytes]:
    return [records[0], frame(EVIL), *records[1:]]


def change(records: list[bytes]) -> list[bytes]:
    return [records[0], records[1].replace(b"second", EVIL + b"!!"), records[2]]


def leave_out(records: list[bytes]) -> list[bytes]:
    return [records[0], records[2]]


def repeat(records: list[bytes]) -> list[bytes]:
    return [records[0], records[0], *records[1:]]


def swap(records: list[bytes]) -> list[bytes]:
    return [records[0], records[2], records[1]]


def merge(records: list[bytes]) -> list[bytes]:
    """Two records as one, with the tag of the second."""
    one, two = records[1], records[2]
    size = len(one) + len(two) - 2 * RECORD_HEAD_BYTES
    head = size.to_bytes(4, "big") + two[4:RECORD_HEAD_BYTES]
    return [records[0], head + one[RECORD_HEAD_BYTES:] + two[RECORD_HEAD_BYTES:]]


@pytest.mark.parametrize("meddle", [inject, change, leave_out, repeat, swap, merge])
def test_whoever_is_on_the_path_can_only_end_the_link(
    meddle: Callable[[list[bytes]], list[bytes]],
) -> None:
    world, one, two = linked()
    sent_by(one, b"first", b"second", b"third")
    end = near(world)
    end.sent[:] = meddle([data for data in end.sent if data is not None])
    world.settle()
    stays_outside(two)
    assert [payload for _, _, payload in two.log.received][:1] == [b"first"]
    assert b"third" not in [payload for _, _, payload in two.log.received]
    assert one.linked() == [], "the other end was told"
    assert two.log.bugs == one.log.bugs == []


@pytest.mark.parametrize("cut", [1, 7])
def test_links_with_macs_open_however_the_bytes_come(cut: int) -> None:
    """Open-ok has no MAC, and what may come in the same read has."""
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    one.dial()
    while ends := world.ready():
        data = ends[0].sent[0]
        if data is not None and len(data) > cut:
            ends[0].sent[0:1] = [data[:cut], data[cut:]]
        ends[0].deliver()
    sent_by(one, b"there")
    sent_by(two, b"back")
    world.settle()
    assert [payload for _, _, payload in two.log.received] == [b"there"]
    assert [payload for _, _, payload in one.log.received] == [b"back"]
    assert link_of(one).guard.writer is not None


def test_what_comes_with_open_ok_is_read_with_its_mac() -> None:
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    one.dial()
    while not two.linked():
        world.ready()[0].deliver()
    sent_by(two, b"at once")
    end = near(world).other
    end.sent[:] = [b"".join(data for data in end.sent if data is not None)]
    world.settle()
    assert [payload for _, _, payload in one.log.received] == [b"at once"]


def test_what_a_broker_sent_is_not_taken_back_from_it() -> None:
    world, one, _ = linked()
    sent_by(one, EVIL)
    end = near(world)
    end.other.sent += end.sent
    end.sent.clear()
    world.settle()
    stays_outside(one)


def test_records_of_another_link_are_worth_nothing() -> None:
    world, one, two = linked()
    sent_by(one, EVIL)
    (record,) = (data for data in near(world).sent if data is not None)
    world.wires[0].cut()
    world.pass_time(500)
    assert one.linked() == ["b2"]
    near(world).sent.append(record)
    world.settle()
    stays_outside(two)


def test_bytes_without_a_mac_do_not_keep_a_link_alive() -> None:
    world, _, two = linked()
    link = link_of(two)
    link.receive((1_000_000).to_bytes(4, "big"))
    for _ in range(SETTINGS.timeout_ms // 500):
        world.now_ms += 500
        two.links.tick(world.now_ms)
        link.receive(b"x")
    assert link.stage != OPEN
    assert "nothing came from b1" in link.reason


@pytest.mark.parametrize("dials_first", ["b1", "b2"])
def test_whoever_gives_up_one_of_two_links_is_understood(dials_first: str) -> None:
    """The close of a link that nobody needs goes through the MACs of the other end, too."""
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    two.knows(one)
    for broker in (one, two) if dials_first == "b1" else (two, one):
        broker.dial()
    chance = Random(dials_first)
    while ends := world.ready():
        chance.choice(ends).deliver()
    assert one.linked() == ["b2"]
    assert two.linked() == ["b1"]
    heard = [*one.log.events, *two.log.events, *one.log.problems, *two.log.problems]
    assert not any("record" in each or "changed it" in each for each in heard)


# ---- who agrees on MACs


def introductions(
    dialler_mac: bool | None, acceptor_mac: bool | None
) -> tuple[Dialler, Acceptor, bytes]:
    return introduced(Wish(dialler_mac), Wish(acceptor_mac))


def introduced(near: Wish, far: Wish) -> tuple[Dialler, Acceptor, bytes]:
    dialler = Dialler(LinkKeys(KEY), make_hello("b1"), Random(1))
    acceptor = Acceptor(LinkKeys(KEY), make_hello("b2"), Random(2), far)
    return dialler, acceptor, acceptor.introduce(dialler.first(near))


@pytest.mark.parametrize("dialler_mac", [None, False, True])
@pytest.mark.parametrize("acceptor_mac", [None, False, True])
def test_there_are_macs_if_both_know_them_and_one_wants_them(
    dialler_mac: bool | None, acceptor_mac: bool | None
) -> None:
    dialler, acceptor, second = introductions(dialler_mac, acceptor_mac)
    acceptor.verify(dialler.prove(second))
    dialler.verify(acceptor.prove())
    near, far = dialler.protection, acceptor.protection
    wanted = True in (dialler_mac, acceptor_mac)
    known = None not in (dialler_mac, acceptor_mac)
    assert (near.mac_keys is not None) == (wanted and known)
    assert near.is_lacking == far.is_lacking == (wanted and not known)
    assert near.fingerprint == far.fingerprint
    if near.mac_keys is not None and far.mac_keys is not None:
        assert near.mac_keys == far.mac_keys[::-1]
        assert near.mac_keys[0] != near.mac_keys[1]


@pytest.mark.parametrize(
    ("near", "far", "has_macs"),
    [
        ("this", "this", False),
        ("this", "that", True),
        ("this", "", True),
        ("", "this", True),
        ("", "", True),
    ],
)
def test_only_links_within_one_machine_do_without(near: str, far: str, has_macs: bool) -> None:
    """A tunnel has loopback addresses at both ends, and hosts that differ."""
    dialler, acceptor, second = introduced(Wish(True, near), Wish(True, far))
    acceptor.verify(dialler.prove(second))
    dialler.verify(acceptor.prove())
    assert (dialler.protection.mac_keys is not None) == has_macs
    assert (acceptor.protection.mac_keys is not None) == has_macs
    assert not dialler.protection.is_lacking


def test_a_host_is_told_on_loopback_addresses_only() -> None:
    links = World().start(make_hello("b1"), settings=replace(SETTINGS, host="h")).links
    assert links.wish_for(protected=False, is_local=True) == Wish(True, "h")
    assert links.wish_for(protected=False, is_local=False) == Wish(True)
    assert links.wish_for(protected=True, is_local=False) == Wish(False)
    links.settings = OLDER
    assert links.wish_for(protected=False, is_local=True) == Wish()


def without_wish(introduction: bytes) -> bytes:
    table, _ = read_table(introduction, 0)
    del table["mac"]
    return encode_table(table)


@pytest.mark.parametrize("stripped", ["first", "second", "both"])
def test_nobody_on_the_path_can_take_the_macs_away(stripped: str) -> None:
    dialler = Dialler(LinkKeys(KEY), make_hello("b1"), Random(1))
    acceptor = Acceptor(LinkKeys(KEY), make_hello("b2"), Random(2), Wish(True))
    first = dialler.first(Wish(True))
    second = acceptor.introduce(first if stripped == "second" else without_wish(first))
    with pytest.raises(ProofError, match="doesn't know the cluster key"):
        acceptor.verify(dialler.prove(second if stripped == "first" else without_wish(second)))


def test_macs_are_no_part_of_what_the_simulator_says() -> None:
    """Links of a simulated network say what they always said, byte for byte."""
    table, _ = read_table(Dialler(LinkKeys(KEY), make_hello("b1"), Random(1)).first(), 0)
    assert list(table) == ["name", "uuid", "nonce"]


# ---- brokers of a release without MACs


def far_away(broker: Broker) -> None:
    """What this broker accepts comes from other machines, and so does what it dials."""

    def accept(end: End) -> None:
        end.connection = broker.core.connect("link", Peer("10.0.0.1", 1))
        end.connection.port = end

    broker.accept = accept  # type: ignore[method-assign]


def mixed(
    dialler_is_new: bool, insecure: bool, is_far: bool, trusts_loopback: bool = True
) -> tuple[World, Broker, Broker]:
    world = World()
    settings = replace(SETTINGS, insecure=insecure, trusts_loopback=trusts_loopback)
    new = world.start(make_hello("b1"), settings=settings)
    old = world.start(make_hello("b2"), settings=OLDER)
    if is_far:
        far_away(new)
    dialler, acceptor = (new, old) if dialler_is_new else (old, new)
    dialler.knows(acceptor)
    for link in dialler.links.wants_dial():
        link.guard.is_local = not is_far
        world.connect(dialler, link)
    dialler.turn()
    world.settle()
    return world, new, old


@pytest.mark.parametrize("dialler_is_new", [True, False])
def test_an_older_broker_elsewhere_is_refused_and_told_why(dialler_is_new: bool) -> None:
    _, new, old = mixed(dialler_is_new, insecure=False, is_far=True)
    assert new.linked() == old.linked() == []
    told = " ".join([*new.log.problems, *old.log.problems])
    assert "cluster.insecure_links" in told
    assert "upgrade it" in told


@pytest.mark.parametrize("dialler_is_new", [True, False])
def test_an_older_broker_is_refused_where_loopback_leads_elsewhere(dialler_is_new: bool) -> None:
    """With cluster.link_macs = "always" a loopback port may be another machine's."""
    _, new, old = mixed(dialler_is_new, insecure=False, is_far=False, trusts_loopback=False)
    assert new.linked() == old.linked() == []


@pytest.mark.parametrize("dialler_is_new", [True, False])
@pytest.mark.parametrize(("insecure", "is_far"), [(True, True), (False, False)])
def test_older_brokers_are_linked_on_this_machine_or_if_that_is_allowed(
    dialler_is_new: bool, insecure: bool, is_far: bool
) -> None:
    _, new, old = mixed(dialler_is_new, insecure, is_far)
    assert new.linked() == ["b2"]
    assert old.linked() == ["b1"]
    assert link_of(new).guard.writer is None


def test_a_permission_that_is_taken_back_ends_the_links_that_rest_on_it() -> None:
    world, new, _ = mixed(True, insecure=True, is_far=True)
    new.links.settings = SETTINGS
    world.now_ms += 1_000
    new.links.tick(world.now_ms)
    assert new.linked() == []
    assert "insecure_links" in new.log.events[-1]


# ---- several keys

OLD, NEW, OTHER = (
    b"the old key of the cluster",
    b"the new key of the cluster",
    b"a key of others",
)


@pytest.mark.parametrize(
    ("dialler", "acceptor", "fits"),
    [
        ((OLD,), (OLD, NEW), OLD),
        ((OLD, NEW), (NEW, OLD), NEW),
        ((NEW, OLD), (OLD, NEW), OLD),
        ((OLD, NEW), (NEW,), NEW),
        ((NEW,), (OLD, NEW), NEW),
        ((OLD,), (NEW, OLD), OLD),
    ],
)
def test_brokers_that_share_any_key_are_linked(
    dialler: tuple[bytes, ...], acceptor: tuple[bytes, ...], fits: bytes
) -> None:
    near = Dialler(LinkKeys(*dialler), make_hello("b1"), Random(1))
    far = Acceptor(LinkKeys(*acceptor), make_hello("b2"), Random(2), Wish(True))
    far.verify(near.prove(far.introduce(near.first(Wish(True)))))
    near.verify(far.prove())
    assert near.protection.fingerprint == far.protection.fingerprint
    assert near.protection.fingerprint == LinkKeys(fits).fingerprints[0]


@pytest.mark.parametrize(("dialler", "acceptor"), [((OLD, OTHER), (NEW,)), ((NEW,), (OLD, OTHER))])
def test_brokers_that_share_no_key_are_not(
    dialler: tuple[bytes, ...], acceptor: tuple[bytes, ...]
) -> None:
    near = Dialler(LinkKeys(*dialler), make_hello("b1"), Random(1))
    far = Acceptor(LinkKeys(*acceptor), make_hello("b2"), Random(2))
    with pytest.raises(ProofError):
        far.verify(near.prove(far.introduce(near.first())))


def test_links_of_a_dropped_key_are_made_anew_one_after_the_other() -> None:
    world = World()
    brokers = world.trio()
    world.dial_all()
    for broker in brokers:
        broker.links.keys = LinkKeys(NEW, KEY)
    world.pass_time(3_000)
    assert all(not each.startswith("down") for broker in brokers for each in broker.log.events)
    one = brokers[0]
    one.links.keys = LinkKeys(NEW)
    world.now_ms += 1_000
    one.links.tick(world.now_ms)
    assert len(one.linked()) == 1, "not both at once"
    for broker in brokers:
        broker.links.keys = LinkKeys(NEW)
    world.pass_time(10_000)
    for broker in brokers:
        assert len(broker.linked()) == 2
        fingerprints = {link.guard.fingerprint for link in broker.links.open_links()}
        assert fingerprints == set(LinkKeys(NEW).fingerprints)
        ends = [each for each in broker.log.events if each.startswith("down")]
        assert ends, "an intruder with the old key would have been thrown out"
    world.start(make_hello("b4"), KEY).knows(one)
    world.pass_time(1_000)
    assert "b4" not in one.linked()


def test_fingerprints_tell_keys_apart_and_nothing_else() -> None:
    old, new = LinkKeys(OLD, NEW).fingerprints
    assert old != new
    assert LinkKeys(OLD).fingerprints == (old,)
    assert len(old) == 12
