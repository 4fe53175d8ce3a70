"""Links: who is linked with whom, who is refused, and when somebody is dialled again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from rhizome.broker.connection.connection import Connection
from rhizome.broker.observer import Observer
from rhizome.cluster.link.broker_hello import SECONDARY, WITNESS
from rhizome.cluster.link.peers import LinkSettings, jittered_delay_ms
from rhizome.cluster.protocol.catalogue import HELLO
from tests.unit.cluster.link.linked_brokers import SETTINGS, Broker, Log, World, make_hello


def pair(world: World, **fields: object) -> list[Broker]:
    """b1, and b2 with other ``fields``, which know each other."""
    brokers = [world.start(make_hello("b1")), world.start(make_hello("b2", **fields))]
    for broker in brokers:
        broker.knows(*brokers)
    return brokers


def linked_pair(world: World) -> list[Broker]:
    brokers = pair(world)
    world.dial_all()
    assert [broker.linked() for broker in brokers] == [["b2"], ["b1"]]
    return brokers


# --- linking


def test_three_primaries_are_linked_pair_by_pair() -> None:
    world = World()
    brokers = world.trio()
    world.dial_all()
    assert [broker.linked() for broker in brokers] == [["b2", "b3"], ["b1", "b3"], ["b1", "b2"]]
    assert [broker.log.problems for broker in brokers] == [[], [], []]


def test_one_that_knows_an_address_is_enough() -> None:
    for knower in (0, 1):
        world = World()
        brokers = [world.start(make_hello("b1")), world.start(make_hello("b2"))]
        brokers[knower].knows(*brokers)
        world.dial_all()
        assert [broker.linked() for broker in brokers] == [["b2"], ["b1"]]
        assert [broker.log.up[0].dialled for broker in brokers] == [knower == 0, knower == 1]


def test_both_ends_know_the_peers_hello_and_the_version() -> None:
    world = World()
    one, two = pair(world, versions=(1, 7))
    world.dial_all()
    assert one.log.up[0].peer == two.links.me
    assert two.log.up[0].peer == one.links.me
    assert [one.log.up[0].version, two.log.up[0].version] == [1, 1]


def test_a_link_is_no_connection_of_the_broker() -> None:
    world = World()
    brokers = linked_pair(world)
    assert [len(broker.core.connections) for broker in brokers] == [0, 0]


def test_secondaries_are_linked_with_primaries_and_witnesses_and_never_with_each_other() -> None:
    world = World()
    roles = {"b1": "primary", "b2": WITNESS, "b3": SECONDARY, "b4": SECONDARY}
    brokers = [world.start(make_hello(name, role=role)) for name, role in roles.items()]
    for broker in brokers:
        broker.knows(*brokers)
    world.pass_time(2_000)
    assert [broker.linked() for broker in brokers] == [
        ["b2", "b3", "b4"],
        ["b1", "b3", "b4"],
        ["b1", "b2"],
        ["b1", "b2"],
    ]
    assert [broker.log.problems for broker in brokers] == [[], [], [], []]


def test_a_secondary_that_was_taken_for_a_primary_is_refused_by_a_secondary() -> None:
    world = World()
    one, two = world.start(make_hello("b1", role=SECONDARY)), world.start(make_hello("b2"))
    one.knows(two)
    two.links.me = replace(two.links.me, role=SECONDARY)
    world.dial_all()
    assert one.linked() == []
    assert "both secondaries" in one.log.problems[0]


def test_frames_go_both_ways_in_order() -> None:
    world = World()
    one, two = linked_pair(world)
    one.log.up[0].send(16, b"a")
    one.log.up[0].send_of(17, b"b", b"c" * 10_000)
    two.log.up[0].send(18, b"d")
    one.turn()
    two.turn()
    world.settle()
    assert two.log.received == [("b1", 16, b"a"), ("b1", 17, b"b" + b"c" * 10_000)]
    assert one.log.received == [("b2", 18, b"d")]


def test_statistics_count_by_method() -> None:
    world = World()
    one, two = linked_pair(world)
    for _ in range(3):
        one.log.up[0].send(16, b"abc")
    one.log.up[0].send_urgent(40_000, b"")
    one.turn()
    world.settle()
    sent, received = one.links.statistics()[0], two.links.statistics()[0]
    assert (sent.name, received.name) == ("b2", "b1")
    assert sent.sent_by_method == received.received_by_method == {16: 3, 255: 1}
    assert sent.sent_frames == received.received_frames == 4
    assert received.sent_by_method == {}


# --- refusals


class Refusals(Observer):
    """Keeps why logins were refused."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def login_refused(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)


def test_another_key_is_refused_and_both_logs_say_so() -> None:
    world = World()
    one = world.start(make_hello("b1"))
    two = world.start(make_hello("b2"), key=b"another key, long enough")
    one.knows(two)
    refusals = Refusals()
    two.core.observer = refusals
    world.dial_all()
    assert (one.linked(), two.linked()) == ([], [])
    assert "ACCESS_REFUSED" in one.log.problems[0]
    assert "doesn't know the cluster key" in refusals.reasons[0]


def test_a_store_of_another_cluster_is_refused_with_both_named() -> None:
    for dialler in (0, 1):
        world = World()
        one = world.start(make_hello("b1", cluster_uuid="c" * 32))
        two = world.start(make_hello("b2", cluster_uuid="d" * 32))
        [one, two][dialler].knows(one, two)
        world.dial_all()
        assert (one.linked(), two.linked()) == ([], [])
        problem = [one, two][dialler].log.problems[0]
        assert "c" * 32 in problem
        assert "d" * 32 in problem


def test_no_common_version_is_refused_with_both_named() -> None:
    world = World()
    one, two = pair(world, versions=(2, 2))
    world.dial_all()
    assert (one.linked(), two.linked()) == ([], [])
    for broker in (one, two):
        assert "version 1" in broker.log.problems[0]
        assert "version 2" in broker.log.problems[0]


def test_an_acceptor_that_sees_more_than_the_dialler_tells_it_why() -> None:
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    two.log.refuses["b1"] = "broker 'b1' was removed from the cluster"
    world.dial_all()
    assert one.linked() == []
    assert one.log.problems == [
        "refused by b2 at b2:5672: NOT_ALLOWED - broker 'b1' was removed from the cluster"
    ]
    assert two.log.problems == ["broker 'b1' was removed from the cluster"]


def test_a_broker_does_not_link_with_itself() -> None:
    world = World()
    one = world.start(make_hello("b1"))
    one.links.configure("b2", ("b1:5672",), "primary")
    world.dial_all()
    assert one.linked() == []
    assert one.log.problems == ["this is broker 'b1' itself"]


def test_another_broker_at_an_address_is_refused_by_name() -> None:
    world = World()
    one, _ = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.links.configure("b3", ("b2:5672",), "primary")
    world.dial_all()
    assert one.linked() == []
    assert "'b3' was expected at b2:5672, and 'b2' answers" in one.log.problems[0]


def test_a_second_broker_of_a_name_is_refused_while_the_first_is_linked() -> None:
    world = World()
    one, two = linked_pair(world)
    false = world.start(make_hello("b2", uuid=9), address="elsewhere:5672")
    false.knows(one)
    world.dial_all()
    assert false.linked() == []
    assert one.log.up[0].peer == two.links.me
    assert "two brokers are named 'b2'" in one.log.problems[0]
    for uuid in (two.links.me.uuid, false.links.me.uuid):
        assert uuid in one.log.problems[0]
        assert uuid in false.log.problems[0]


def test_a_name_that_comes_back_with_another_uuid_is_reported() -> None:
    world = World()
    one, two = linked_pair(world)
    world.wires[0].cut()
    wiped = world.start(make_hello("b2", uuid=9))
    wiped.knows(one)
    world.dial_all()
    assert one.linked() == ["b2"]
    assert one.log.up[0].peer == wiped.links.me
    assert two.links.me.uuid in one.log.problems[0]
    assert wiped.links.me.uuid in one.log.problems[0]


def test_a_problem_is_reported_once_per_reason() -> None:
    world = World()
    one = world.start(make_hello("b1"))
    one.links.configure("b2", ("b2:5672",), "primary")
    world.pass_time(30_000)
    assert one.log.problems == ["connection refused"]
    world.start(make_hello("b2", versions=(2, 2)))
    world.pass_time(30_000)
    assert len(one.log.problems) == 2


# --- certificates


def test_links_without_a_verified_certificate_are_refused_where_it_is_demanded() -> None:
    world = World()
    strict = replace(SETTINGS, needs_certificate=True)
    one = world.start(make_hello("b1"))
    two = world.start(make_hello("b2"), settings=strict)
    assert two.core.authenticator.mechanisms(False) == "AMQPLAIN PLAIN"
    assert "RHIZOME-CLUSTER" in two.core.authenticator.mechanisms(True)
    one.knows(two)
    world.dial_all()
    assert one.linked() == []
    assert "offers no RHIZOME-CLUSTER" in one.log.problems[0]


# --- links that end


def test_a_lost_link_is_told_and_dialled_again() -> None:
    world = World()
    brokers = linked_pair(world)
    world.wires[0].cut()
    assert [broker.linked() for broker in brokers] == [[], []]
    assert brokers[0].log.events == ["up b2", "down b2: connection reset"]
    world.pass_time(1_000)
    assert [broker.linked() for broker in brokers] == [["b2"], ["b1"]]


def test_a_new_incarnation_takes_the_place_of_the_old() -> None:
    world = World()
    one, _ = linked_pair(world)
    old = one.log.up[0]
    again = world.start(make_hello("b2", incarnation="2"))
    again.knows(one)
    again.dial()
    world.settle()
    assert one.linked() == ["b2"]
    assert one.log.up[0] is not old
    assert one.log.up[0].peer.incarnation == "2"


def test_a_peer_that_lost_its_link_replaces_it_though_we_still_have_it() -> None:
    # Half open: only the dialler has noticed.
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    one.dial()
    world.settle()
    wire = world.wires[0]
    wire.near.closed = True
    assert wire.near.link is not None
    wire.near.link.lost("timed out")
    world.pass_time(500)
    assert (one.linked(), two.linked()) == (["b2"], ["b1"])
    assert [event[:4] for event in two.log.events] == ["up b", "down", "up b"]


def test_silence_ends_a_link_at_both_ends() -> None:
    world = World()
    brokers = linked_pair(world)
    world.unreachable = {"b1:5672", "b2:5672"}
    wires, world.wires = world.wires, []  # bytes go nowhere, and nobody learns that
    assert len(wires) == 1
    world.pass_time(SETTINGS.timeout_ms + 100)
    assert [broker.linked() for broker in brokers] == [[], []]
    assert "nothing came from b2 for 5000 ms" in brokers[0].log.events[-1]


def test_heartbeats_keep_an_idle_link_alive() -> None:
    world = World()
    brokers = linked_pair(world)
    world.pass_time(SETTINGS.timeout_ms * 5)
    assert [broker.log.events for broker in brokers] == [["up b2"], ["up b1"]]
    sent = brokers[0].links.statistics()[0].sent_bytes
    world.pass_time(SETTINGS.heartbeat_ms * 10)
    assert brokers[0].links.statistics()[0].sent_bytes == sent + 8 * 10


def test_a_broker_that_slept_does_not_blame_its_peers() -> None:
    world = World()
    one, two = linked_pair(world)
    later_ms = world.now_ms + SETTINGS.timeout_ms * 3
    one.links.tick(later_ms)
    assert one.linked() == ["b2"]
    one.links.tick(later_ms + SETTINGS.heartbeat_ms)
    assert one.linked() == ["b2"]
    assert two.linked() == ["b1"]


def test_a_dial_without_an_answer_is_given_up() -> None:
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    (link,) = one.links.wants_dial()
    assert one.links.wants_dial() == []
    one.links.tick(world.now_ms + SETTINGS.dial_timeout_ms)
    assert link.reason == "b2:5672 could not be connected to within 5000 ms"
    link.connected()
    link.receive(b"AMQP")
    assert link.reason == "b2:5672 could not be connected to within 5000 ms"


def test_a_removed_broker_is_parted_from_and_dialled_no_more() -> None:
    world = World()
    one, two = linked_pair(world)
    one.links.forget("b2")
    one.log.refuses["b2"] = "it was removed"
    one.turn()
    world.pass_time(10_000)
    assert (one.linked(), two.linked()) == ([], [])
    assert two.log.events[1] == (
        "down b1: closed by b1: CONNECTION_FORCED - broker 'b2' was removed from the cluster"
    )


def test_a_broker_that_stops_tells_its_peers_and_admits_nobody() -> None:
    world = World()
    one, two = linked_pair(world)
    one.links.close_all("broker 'b1' stops")
    one.turn()
    world.pass_time(5_000)
    assert (one.linked(), two.linked()) == ([], [])
    assert "broker 'b1' stops" in two.log.events[1]
    assert one.links.wants_dial() == []


def test_a_fault_in_what_the_peer_sends_ends_the_link_with_a_text() -> None:
    world = World()
    one, two = linked_pair(world)
    one.log.up[0].outbox.put(b"\x07garbage that is no frame")
    one.log.up[0].touch()
    one.turn()
    world.settle()
    assert two.log.events[1] == "down b1: a link's frame is of type 7; 1 and 8 are known"
    assert "FRAME_ERROR" in one.log.events[1]


class Failing(Log):
    """Makes a mistake with every frame."""

    def heard(self, link: object, number: int, payload: bytes) -> None:
        raise ZeroDivisionError


def test_a_mistake_in_a_handler_ends_the_link_and_is_reported() -> None:
    world = World()
    one, two = linked_pair(world)
    failing = Failing()
    failing.up = two.log.up
    two.links.handler = failing
    two.log.up[0].handlers = failing.frames.handlers
    one.log.up[0].send(16, b"x")
    one.turn()
    world.settle()
    assert [type(bug) for bug in failing.bugs] == [ZeroDivisionError]
    assert one.linked() == []


# --- hellos that change


def test_a_changed_hello_is_told_to_all_peers() -> None:
    world = World()
    one, two = linked_pair(world)
    changed = replace(one.links.me, cluster_uuid="c" * 32, addresses=("b1:5673",))
    one.links.set_me(changed)
    one.turn()
    world.settle()
    assert two.log.up[0].peer == changed
    assert two.log.events == ["up b1", "changed b1"]
    assert two.links.peers["b1"].addresses() == ["b1:5672", "b1:5673"]


def test_brokers_that_join_different_clusters_part() -> None:
    world = World()
    one, two = linked_pair(world)
    one.links.set_me(replace(one.links.me, cluster_uuid="c" * 32))
    two.links.set_me(replace(two.links.me, cluster_uuid="d" * 32))
    one.turn()
    two.turn()
    world.settle()
    assert (one.linked(), two.linked()) == ([], [])
    assert "d" * 32 in one.log.events[-1]


def test_a_hello_that_changed_during_the_handshake_is_told_when_the_link_opens() -> None:
    world = World()
    one, two = world.start(make_hello("b1")), world.start(make_hello("b2"))
    one.knows(two)
    one.dial()
    for _ in range(7):
        world.ready()[0].deliver()
    assert one.linked() == []
    one.links.set_me(replace(one.links.me, cluster_uuid="c" * 32))
    two.links.set_me(replace(two.links.me, machine="m"))
    world.settle()
    assert two.log.up[0].peer == one.links.me
    assert one.log.up[0].peer == two.links.me


def test_another_identity_on_an_open_link_is_refused() -> None:
    world = World()
    one, two = linked_pair(world)
    one.log.up[0].send_urgent(HELLO, make_hello("b3").encode())
    one.turn()
    world.settle()
    assert two.linked() == []
    assert "can't become 'b3'" in two.log.events[-1]


def test_methods_of_the_next_release_that_are_the_links_own_are_ignored() -> None:
    world = World()
    one, two = linked_pair(world)
    one.log.up[0].send_urgent(15, b"?")
    one.turn()
    world.settle()
    assert two.log.events == ["up b1"]
    assert two.log.received == []


# --- when to dial


def test_failures_make_the_delay_longer_up_to_a_maximum() -> None:
    settings = LinkSettings(delay_ms=100, delay_max_ms=1_000)
    for failures, longest_ms in [(0, 100), (1, 200), (3, 800), (4, 1_000), (500, 1_000)]:
        chance = Random(failures)
        delays = [jittered_delay_ms(failures, settings, chance) for _ in range(200)]
        assert longest_ms / 2 <= min(delays) <= max(delays) <= longest_ms
        assert len(set(delays)) > 20, "without jitter all brokers come back at once"


def test_all_addresses_are_tried_in_turn() -> None:
    world = World()
    one = world.start(make_hello("b1"))
    one.links.configure("b2", ("x:1",), "primary")
    one.links.learn("b2", ("y:1", "x:1", "z:1"), "primary")
    tried = []
    for _ in range(6):
        one.links.tick(one.links.next_deadline_ms())
        for link in one.links.wants_dial():
            tried.append(link.address)
            link.lost("no")
    assert tried == ["x:1", "y:1", "z:1", "x:1", "y:1", "z:1"]


def test_a_link_that_breaks_at_once_counts_as_a_failure() -> None:
    world = World()
    one, two = linked_pair(world)
    for _ in range(4):
        world.wires[0].cut()
        world.pass_time(4_000)
        assert one.linked() == ["b2"]
    assert max(one.links.peers["b2"].failures, two.links.peers["b1"].failures) >= 4
    world.pass_time(SETTINGS.stable_ms)
    world.wires[0].cut()
    assert one.links.peers["b2"].failures == 0


def test_deadlines_drive_links_without_other_ticks() -> None:
    world = World()
    brokers = world.trio()
    for _ in range(200):
        world.now_ms = min(broker.links.next_deadline_ms() for broker in brokers)
        for broker in brokers:
            broker.links.tick(world.now_ms)
            broker.turn()
        world.dial_all()
    assert world.now_ms > 20_000
    assert [broker.linked() for broker in brokers] == [["b2", "b3"], ["b1", "b3"], ["b1", "b2"]]
    assert all(len(broker.log.events) <= 4 for broker in brokers)


@pytest.mark.parametrize("knows_role", [True, False])
def test_secondaries_do_not_dial_what_they_know_to_be_secondary(knows_role: bool) -> None:
    world = World()
    one = world.start(make_hello("b1", role=SECONDARY))
    one.links.learn("b2", ("b2:5672",), SECONDARY if knows_role else "primary")
    assert len(one.links.wants_dial()) == (0 if knows_role else 1)
