"""A client comes back with what it holds, at whichever broker, whoever is home (J12)."""

from __future__ import annotations

import struct

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicNack,
    SessionMessage,
    SessionResume,
    SessionResumed,
    SessionResumeOk,
    SessionSync,
    SessionSyncOk,
)
from rhizome.broker.connection.session_resume import KEEP_MS
from rhizome.cluster.clients.resumable_clients import CLIENTS_MAX, CONSUMERS_MAX, OTHERS
from rhizome.cluster.edge.edge_group import ATTACHED, ATTACHING, CALL_PATIENCE_MS
from rhizome.cluster.home.detached_sessions import PARK_MS
from rhizome.cluster.home.settings import RESUME_PATIENCE_MS
from rhizome.cluster.state.cluster_commands import SetDraining
from rhizome.testing.in_memory_broker import CAPABILITIES, Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    drain,
    group_of,
    hand_over_in_vain,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)
from tests.unit.cluster.node.test_dead_letters_between_groups import standby_of

Held = tuple[int, int, int]
HELD, ACKED, REQUEUED = 0, 1, 3
RESUMES: dict[str, object] = {
    "capabilities": {**CAPABILITIES, "session.resume": True},
    "session": "mine",
}
LATER_MS = max(KEEP_MS, PARK_MS) + 2_000


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2)


def consuming(cluster: CoreCluster, at: str, count: int = 4, prefetch: int = 3) -> CoreClient:
    """A client that consumes a queue whose home is b1."""
    publisher = cluster["b3"].connect()
    queue_at(publisher, "q", "b1", durable=True)
    for number in range(1, count + 1):
        publisher.publish("", "q", b"%d" % number, PERSISTENT)
    cluster.advance(500)
    client = cluster[at].connect(properties=RESUMES)
    client.prefetch(prefetch)
    client.consume("q", "c")
    cluster.advance(200)
    return client


def taken(client: CoreClient) -> list[Held]:
    events = client.take()
    assert [event.body for event in events if isinstance(event, Content)]
    told = [event for event in events if isinstance(event, SessionMessage)]
    return [(int(each.queue_id), int(each.epoch), int(each.index)) for each in told]


def entries(held: list[Held], kind: int = HELD) -> bytes:
    return b"".join(struct.pack(">QIQB", *each, kind) for each in held)


def back(cluster: CoreCluster, at: str, presented: bytes, visit: int = 0) -> tuple[CoreClient, int]:
    """The client connects again and presents what it has; the tag of the first."""
    client = cluster[at].connect(properties={**RESUMES, "session-visit": visit})
    first = int(client.call(SessionResume(presented), SessionResumeOk).first_tag)
    client.send(SessionResumed(), channel=0)
    return client, first


def left(cluster: CoreCluster, at: str = "b3") -> list[bytes]:
    """What others get, after everything that is kept for somebody is given up."""
    cluster.advance(LATER_MS)
    return drain(cluster[at].connect(), "q")


@pytest.mark.parametrize("before", ["b1", "b2", "s1"])
@pytest.mark.parametrize("after", ["b1", "b2", "s1"])
def test_the_connection_is_lost(cluster: CoreCluster, before: str, after: str) -> None:
    """Every broker lives; the client comes back to the same one or to another."""
    client = consuming(cluster, before)
    held = taken(client)
    client.close_socket()
    cluster.advance(100)
    client, first = back(cluster, after, entries(held))
    cluster.advance(500)
    for tag in range(first, first + 3):
        client.send(BasicAck(tag))
    cluster.advance(200)
    assert left(cluster) == [b"4"]


@pytest.mark.parametrize("after", ["b1", "b3", "s1"])
def test_the_broker_of_the_client_is_killed(cluster: CoreCluster, after: str) -> None:
    client = consuming(cluster, "b2")
    held = taken(client)
    cluster["b2"].kill()
    cluster.advance(100)
    client, first = back(cluster, after, entries(held[:1], ACKED) + entries(held[1:]))
    cluster.advance(3_000)
    client.send(BasicAck(first + 1))
    cluster.advance(200)
    other = cluster["b3"].connect()
    assert drain(other, "q") == [b"4"], "the third is held"
    client.send(BasicAck(first + 2))
    assert left(cluster) == []


@pytest.mark.parametrize("after", ["b2", "b3", "s1"])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_home_is_killed_with_the_client_on_it(
    cluster: CoreCluster, after: str, at_once: bool
) -> None:
    """The client comes back before the takeover, or after it."""
    client = consuming(cluster, "b1")
    held = taken(client)
    cluster["b1"].kill()
    cluster.advance(50 if at_once else 4_000)
    client, first = back(cluster, after, entries(held[:1], ACKED) + entries(held[1:]))
    cluster.advance(5_000)
    other = cluster["b3"].connect()
    assert drain(other, "q") == [b"4"]
    for tag in (first + 1, first + 2):
        client.send(BasicAck(tag))
    assert left(cluster) == []


def test_the_broker_of_the_client_becomes_home_while_it_presents(cluster: CoreCluster) -> None:
    """The first part came before the takeover, the second when edges are still awaited: both are
    held, by nobody else."""
    client = consuming(cluster, "b1")
    held = taken(client)
    member = cluster[standby_of(cluster, "q").name]
    queue = member.queue("q")
    cluster["b1"].kill()
    cluster.cut("s2", member.name)
    client = member.connect(properties=RESUMES)
    first = int(client.call(SessionResume(entries(held[:2])), SessionResumeOk).first_tag)
    cluster.advance_until(lambda: queue.away is None)
    assert member.node.tenures.tenures[queue.definition.group].phase.is_recovering()
    client.call(SessionResume(entries(held[2:])), SessionResumeOk)
    client.send(SessionResumed(), channel=0)
    cluster.mend("s2", member.name)
    cluster.advance(5_000)
    assert drain(cluster["s1"].connect(), "q") == [b"4"]
    for tag in range(first, first + 3):
        client.send(BasicAck(tag))
    assert (queue.unacked, left(cluster, "s1")) == (0, [])


def visiting(cluster: CoreCluster, at: str, visit: int) -> CoreClient:
    """A client that has all of a queue whose home is b1, over a connection with a number."""
    publisher = cluster["b3"].connect()
    queue_at(publisher, "q", "b1", durable=True)
    for number in range(1, 4):
        publisher.publish("", "q", b"%d" % number, PERSISTENT)
    client = cluster[at].connect(properties={**RESUMES, "session-visit": visit})
    client.prefetch(3)
    client.send(SessionResumed(), channel=0)
    client.consume("q", "c")
    cluster.advance(200)
    return client


@pytest.mark.parametrize("after", ["b1", "s2"])
def test_a_broker_that_lost_the_client_and_its_link_comes_late(
    cluster: CoreCluster, after: str
) -> None:
    """It has not noticed that the client is gone, and presents what that held as if it were
    there."""
    client = visiting(cluster, "s1", 1)
    held = taken(client)
    cluster.cut("s1", "b1")
    client, first = back(cluster, after, entries(held), 2)
    cluster.mend("s1", "b1")
    cluster.advance(3_000)
    client.send(BasicAck(first))
    cluster.advance(200)
    assert cluster["b1"].queue("q").unacked == 2, "those that are held, and not settled"
    cluster.advance(LATER_MS)
    client.send(BasicAck(first + 2, True))
    assert left(cluster) == []


def test_an_earlier_broker_gives_nothing_back_that_is_kept_for_the_client(
    cluster: CoreCluster,
) -> None:
    """The client was at s1, then got something at s2, and is under way. s1, which knows nothing of
    that, says to the home that the client is back."""
    client = visiting(cluster, "s1", 1)
    held = taken(client)
    cluster.cut("s1", "b1")
    client, _ = back(cluster, "s2", entries(held), 2)
    client.consume("q", "c")
    cluster["b3"].connect().publish("", "q", b"4", PERSISTENT)
    cluster.advance(500)
    held += taken(client)
    client.close_socket()
    cluster.advance(50)
    other = cluster["b1"].connect()
    other.consume("q")
    cluster.mend("s1", "b1")
    cluster.advance(3_000)
    client, first = back(cluster, "b3", entries(held), 3)
    cluster.advance(500)
    client.send(BasicAck(first + 3, True))
    assert (other.deliveries(), left(cluster)) == ([], [])


def test_what_was_given_back_before_hides_nothing(cluster: CoreCluster) -> None:
    """What is kept for a broker that is gone was given back to the client, who has it elsewhere
    since, and moves on."""
    client = visiting(cluster, "s1", 1)
    cluster["s1"].kill()
    cluster.advance(50)
    client, _ = back(cluster, "s2", b"", 2)
    client.consume("q", "c")
    cluster.advance(500)
    held = taken(client)
    assert len(held) == 3
    client.close_socket()
    cluster.advance(100)
    client, first = back(cluster, "b1", entries(held), 3)
    cluster.advance(500)
    client.send(BasicAck(first + 2, True))
    assert left(cluster) == []


def test_what_a_client_had_asked_for_ends_with_its_connection(cluster: CoreCluster) -> None:
    """Its broker becomes home, and consumes nothing for somebody who is gone."""
    client = consuming(cluster, "b3")
    assert standby_of(cluster, "q").name == "b3"
    cluster["b1"].kill()
    client.send(BasicConsume("q", "d"))
    client.close_socket()
    queue = cluster["b3"].queue("q")
    cluster.advance_until(lambda: queue.away is None)
    cluster.advance(3_000)
    assert (queue.consumers(), queue.ready) == ([], 1)


def test_a_sync_is_answered_when_the_home_has_it(cluster: CoreCluster) -> None:
    client = consuming(cluster, "b2")
    taken(client)
    client.send(BasicAck(1))
    client.send(SessionSync())
    cluster.advance(200)
    assert [type(event) for event in client.take()][-1:] == [SessionSyncOk]


def test_messages_of_others_are_not_given_away(cluster: CoreCluster) -> None:
    client = consuming(cluster, "b2", prefetch=0)
    held = taken(client)
    thief = cluster["b3"].connect(properties={**RESUMES, "session": "another"})
    first = int(thief.call(SessionResume(entries(held)), SessionResumeOk).first_tag)
    cluster.advance(500)
    thief.send(BasicAck(first, True))
    cluster.advance(500)
    assert cluster["b1"].queue("q").unacked == 4
    client.send(BasicAck(0, True))
    cluster.advance(500)
    assert left(cluster) == []


@pytest.mark.parametrize("before", ["b1", "b2", "s1"])
@pytest.mark.parametrize("after", ["b1", "b2", "b3", "s1"])
def test_acks_that_did_not_arrive_are_presented(
    cluster: CoreCluster, before: str, after: str
) -> None:
    """The broker that the client was at goes on living, and keeps the messages for it."""
    client = consuming(cluster, before)
    held = taken(client)
    client.close_socket()
    cluster.advance(100)
    back(cluster, after, entries(held, ACKED))
    assert left(cluster) == [b"4"]


@pytest.mark.parametrize("after", ["b2", "b3", "s1"])
@pytest.mark.parametrize("settled", [False, True])
def test_the_home_dies_after_the_client_has_come_back(
    cluster: CoreCluster, after: str, settled: bool
) -> None:
    """Its old broker keeps the messages for it, too, and presents them to the new home."""
    client = consuming(cluster, "s2" if after == "s1" else "s1")
    held = taken(client)
    wait_for_copy(cluster, "q")
    client.close_socket()
    cluster.advance(100)
    client, first = back(cluster, after, entries(held))
    cluster.advance(100)
    cluster["b1"].kill()
    if settled:
        client.send(BasicAck(first + 2, True))
    wait_for_new_home(cluster, "q", "b1")
    cluster.advance(1_000)
    if not settled:
        client.send(BasicAck(first + 2, True))
    assert left(cluster) == [b"4"]


@pytest.mark.parametrize("after", ["b2", "b3", "s1"])
def test_the_home_leaves_while_the_client_is_under_way(cluster: CoreCluster, after: str) -> None:
    """What is kept for it at the old home is presented to the new one."""
    client = consuming(cluster, "b1")
    held = taken(client)
    wait_for_copy(cluster, "q")
    client.close_socket()
    cluster[cluster.root()].node.propose(SetDraining("b1", True, 0), None)
    wait_for_new_home(cluster, "q", "b1")
    other = cluster["s1"].connect()
    assert drain(other, "q") == [b"4"], "the others are kept for the client"
    client, first = back(cluster, after, entries(held[:1], ACKED) + entries(held[1:]))
    cluster.advance(500)
    client.send(BasicAck(first + 2, True))
    assert left(cluster) == []


def test_a_home_that_hands_over_in_vain_takes_the_acks_of_a_client_that_came_to_it(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are still kept for the broker through which the client had them, and which does
    not know of the acks."""
    client = consuming(cluster, "s1")
    held = taken(client)
    wait_for_copy(cluster, "q")
    home = hand_over_in_vain(cluster, "q", monkeypatch)
    cluster.cut("b1", "s1")
    client.close_socket()
    cluster.advance(100)
    back(cluster, "b1", entries(held, ACKED))
    cluster.advance_until(home.phase.is_serving)
    assert left(cluster) == [b"4"]


@pytest.mark.parametrize("before", ["b1", "b2"])
def test_acks_that_wait_for_a_link_count_though_the_old_connection_is_not_known_to_be_dead(
    cluster: CoreCluster, before: str
) -> None:
    """They are presented when the edge attaches, without what they belong to."""
    old = visiting(cluster, before, 1)
    held = taken(old)
    cluster.cut("b1", "s1")
    client, _ = back(cluster, "s1", entries(held, ACKED), 2)
    cluster.heal()
    cluster.advance(500)
    client.consume("q", "c")
    cluster.advance(500)
    old.close_socket()
    assert left(cluster) == []
    assert client.take() == []


@pytest.mark.parametrize("before", ["b1", "b2"])
@pytest.mark.parametrize("after", ["b1", "b3", "s1"])
def test_nobody_has_noticed_that_the_old_connection_is_dead(
    cluster: CoreCluster, before: str, after: str
) -> None:
    old = consuming(cluster, before)
    held = taken(old)
    client, first = back(cluster, after, entries(held))
    cluster.advance(500)
    client.send(BasicAck(first + 2, True))
    cluster.advance(500)
    old.close_socket()
    assert left(cluster) == [b"4"]


def test_what_is_given_up_at_the_old_broker_is_not_taken_from_the_new_one(
    cluster: CoreCluster,
) -> None:
    """Both have lost their links to the home; what is held wins over what was given back (A2)."""
    client = consuming(cluster, "s1")
    held = taken(client)
    client.close_socket()
    cluster.advance(100)
    client, first = back(cluster, "s2", entries(held))
    cluster.advance(KEEP_MS - 500)
    cluster.cut("s1", "b1")
    cluster.cut("s2", "b1")
    cluster.advance(1_000)
    cluster.mend("s1", "b1")
    cluster.advance(2_000)
    assert drain(cluster["b3"].connect(), "q") == [b"4"]
    cluster.heal()
    cluster.advance(1_000)
    client.send(BasicAck(first + 2, True))
    assert left(cluster) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_broker_that_was_away_asks_the_home_of_the_epoch(
    cluster: CoreCluster, lost: bool
) -> None:
    """The client was given its messages in an epoch that the broker it comes to hasn't seen."""
    publisher = cluster["b2"].connect()
    queue_at(publisher, "q", "b1", durable=True)
    wait_for_copy(cluster, "q")
    client = cluster["s2"].connect(properties=RESUMES)
    for name in ("b1", "b2", "b3", "s1"):
        cluster.cut("s2", name)
    cluster["b1"].kill()
    wait_for_new_home(cluster, "q", "b1")
    for number in range(1, 5):
        publisher.publish("", "q", b"%d" % number, PERSISTENT)
    before = cluster["s1"].connect(properties=RESUMES)
    before.prefetch(3)
    before.consume("q", "c")
    cluster.advance(500)
    held = taken(before)
    before.close_socket()
    client.send(SessionResume(entries(held)))
    cluster.advance(2_000)
    assert client.take() == [], "it waits for the home"
    if lost:
        cluster.advance(CALL_PATIENCE_MS)
    cluster.heal()
    cluster.advance(2_000)
    [answer] = [each for each in client.take() if isinstance(each, SessionResumeOk)]
    client.send(SessionResumed(), channel=0)
    client.send(BasicAck(answer.first_tag + 2, True))
    assert left(cluster) == [b"1", b"2", b"3", b"4"][0 if lost else 3 :]


def test_the_broker_of_the_client_is_back_before_the_client(cluster: CoreCluster) -> None:
    """It has forgotten everything; the home hasn't."""
    client = consuming(cluster, "b2")
    held = taken(client)
    cluster["b2"].kill()
    cluster["b2"].start()
    cluster.advance(3_000)
    other = cluster["b3"].connect()
    assert drain(other, "q") == [b"4"]
    client, first = back(cluster, "s1", entries(held[:1], ACKED) + entries(held[1:]))
    cluster.advance(500)
    client.send(BasicAck(first + 2, True))
    assert left(cluster) == []


def test_only_the_answer_to_the_last_attach_counts(cluster: CoreCluster) -> None:
    """What a home delivers between two attaches, the second doesn't present (A2)."""
    client = consuming(cluster, "b2")
    taken(client)
    edge_group = cluster["b2"].node.edge.groups[group_of(cluster, "q").id]
    edge_group.detached()
    edge_group.attach()
    first = edge_group.attaches
    edge_group.detached()
    edge_group.attach()
    assert edge_group.link_channel is not None
    edge_group.attached_to(edge_group.link_channel, edge_group.epoch, 0, 0, 0, 0, [], first)
    assert edge_group.phase == ATTACHING
    cluster.advance(100)
    assert edge_group.phase == ATTACHED
    client.send(BasicAck(3, True))
    assert left(cluster) == []


@pytest.mark.parametrize("how", ["lost", "killed", "at the home"])
def test_what_the_client_does_not_have_comes_to_it_first(cluster: CoreCluster, how: str) -> None:
    """The broker had sent it; it isn't kept for ten seconds when the client is back."""
    client = consuming(cluster, "b1" if how == "at the home" else "b2", count=5)
    held = taken(client)
    if how == "killed":
        cluster["b2"].kill()
    else:
        client.close_socket()
    cluster.advance(100)
    client, _ = back(cluster, "b3", entries(held[:1]))
    client.consume("q", "c")
    cluster.advance(500)
    got = client.deliveries()
    assert [each.body for each in got] == [b"%d" % number for number in range(2, 6)]
    assert [each.redelivered for each in got] == [True, True, False, False]
    client.send(BasicAck(0, True))
    assert left(cluster) == []


def test_a_message_that_another_client_holds_is_not_kept_for_the_one_before(
    cluster: CoreCluster,
) -> None:
    """Given back elsewhere, it went to another client, through the broker that keeps it for the
    first one; that presents both."""
    one = consuming(cluster, "b2")
    held = taken(one)
    one.close_socket()
    cluster.advance(100)
    back(cluster, "b3", entries(held, REQUEUED))
    other = cluster["b2"].connect(properties={**RESUMES, "session": "another"})
    other.consume("q", "c")
    cluster.advance(500)
    got = other.deliveries()
    assert len(got) == 4
    cluster.cut("b1", "b2")
    cluster.heal()
    cluster.advance(3_000)
    other.send(BasicAck(got[-1].tag, True))
    assert left(cluster) == []


def home_dies(cluster: CoreCluster) -> tuple[list[Held], CoreClient]:
    """A client has three messages of a queue through its home, which is killed, and another
    consumer waits for more. What the client had, and the other consumer; a new home has begun."""
    client = consuming(cluster, "b1")
    held = taken(client)
    other = cluster["b3"].connect()
    other.prefetch(10)
    other.consume("q", "other")
    cluster.advance(200)
    assert bodies_of(other) == [b"4"]
    queue = cluster[standby_of(cluster, "q").name].queue("q")
    cluster["b1"].kill()
    cluster.advance_until(lambda: queue.away is None)
    return held, other


def bodies_of(client: CoreClient) -> list[bytes]:
    return [event.body for event in client.take() if isinstance(event, Content)]


@pytest.mark.parametrize("after", ["b2", "b3", "s1"])
def test_a_new_home_waits_for_clients_whose_broker_is_gone(
    cluster: CoreCluster, after: str
) -> None:
    """Nobody but the client knows what it holds, when its broker was the home."""
    held, other = home_dies(cluster)
    cluster.advance(RESUME_PATIENCE_MS - 700)
    client, first = back(cluster, after, entries(held[:1], ACKED) + entries(held[1:]))
    cluster.advance(5_000)
    assert bodies_of(other) == []
    for tag in (first + 1, first + 2):
        client.send(BasicAck(tag))
    cluster.advance(LATER_MS)
    assert bodies_of(other) == []


def test_a_new_home_serves_as_soon_as_all_of_them_are_back(cluster: CoreCluster) -> None:
    held, _ = home_dies(cluster)
    home = cluster[group_of(cluster, "q").home]
    phase = home.node.tenures.tenures[home.queue("q").definition.group].phase
    begun_ms = cluster.now_ms
    client, _ = back(cluster, "s1", entries(held))
    client.consume("q", "c")
    cluster.advance_until(phase.is_serving)
    assert cluster.now_ms - begun_ms < RESUME_PATIENCE_MS // 2


def test_clients_that_do_not_come_back_are_not_waited_for_any_longer(
    cluster: CoreCluster,
) -> None:
    _, other = home_dies(cluster)
    cluster.advance(RESUME_PATIENCE_MS // 2)
    assert bodies_of(other) == []
    cluster.advance(RESUME_PATIENCE_MS)
    assert bodies_of(other) == [b"1", b"2", b"3"]


def test_nobody_waits_where_no_client_can_resume(cluster: CoreCluster) -> None:
    consuming(cluster, "b2")
    others = cluster["b1"].connect()
    others.consume("q", "other")
    cluster.advance(200)
    member = cluster[standby_of(cluster, "q").name]
    cluster["b1"].kill()
    cluster.advance_until(lambda: member.queue("q").away is None)
    tenure = member.node.tenures.tenures[member.queue("q").definition.group]
    assert tenure.absent == {}, "the client that can is at a broker that lives"


def test_a_broker_names_so_many_clients_and_says_that_there_are_more(
    cluster: CoreCluster,
) -> None:
    queue_at(cluster["b3"].connect(), "q", "b1", durable=True)
    for number in range(CLIENTS_MAX + 1):
        client = cluster["b1"].connect(properties={**RESUMES, "session": f"{number}"})
        client.consume("q", "c")
    cluster.advance(500)
    heard = cluster["b2"].node.resumable_clients.heard["b1"]
    assert len(heard) == CLIENTS_MAX + 1
    assert OTHERS in heard
    cluster["b1"].kill()
    cluster.advance(100)
    group = cluster["b2"].queue("q").definition.group
    assert OTHERS in cluster["b2"].node.resumable_clients.absent(group)
    cluster.advance(KEEP_MS)
    assert cluster["b2"].node.resumable_clients.absent(group) == {}


def test_a_client_with_thousands_of_consumers_is_not_looked_through_each_time(
    cluster: CoreCluster,
) -> None:
    queue_at(cluster["b3"].connect(), "q", "b1", durable=True)
    client = cluster["b1"].connect(properties=RESUMES)
    consumes = [BasicConsume("q", f"c{number}", no_wait=True) for number in range(CONSUMERS_MAX)]
    for method in consumes:
        client.send(method)
    cluster.advance(500)
    heard = cluster["b2"].node.resumable_clients.heard["b1"]
    assert set(heard) == {"guest/mine", OTHERS}


def test_a_broker_that_is_only_out_of_reach_keeps_its_clients(cluster: CoreCluster) -> None:
    consuming(cluster, "b1")
    clients = cluster["b2"].node.resumable_clients
    group = cluster["b2"].queue("q").definition.group
    cluster.cut("b1", "b2")
    cluster.advance(200)
    assert list(clients.absent(group)) == ["guest/mine"]
    cluster.heal()
    cluster.advance_until(lambda: "b1" in clients.heard)
    assert clients.absent(group) == {}


def test_what_one_client_has_requeued_is_not_taken_from_one_that_holds_it_now(
    cluster: CoreCluster,
) -> None:
    """Both present it to a new home, the one that holds it now through a broker that only keeps it
    for the client."""
    one = consuming(cluster, "s1", count=3)
    held = taken(one)
    one.prefetch(0)
    one.send(BasicCancel("c"))
    one.send(BasicNack(0, True, True))
    cluster.advance(200)
    another: dict[str, object] = {**RESUMES, "session": "another"}
    other = cluster["b2"].connect(properties=another)
    other.consume("q", "c")
    cluster.advance(200)
    held_now = taken(other)
    other.close_socket()
    one.close_socket()
    home = cluster[standby_of(cluster, "q").name]
    cluster.cut("s1", home.name)
    cluster["b1"].kill()
    cluster.advance_until(lambda: home.queue("q").away is None)
    cluster.advance(500)
    assert home.node.tenures.tenures[home.queue("q").definition.group].phase.is_recovering()
    back(cluster, "s2", entries(held, REQUEUED))
    cluster.advance(3_000)
    cluster.heal()
    assert drain(cluster["b3"].connect(), "q") == []
    other = cluster["s1"].connect(properties=another)
    first = int(other.call(SessionResume(entries(held_now)), SessionResumeOk).first_tag)
    other.send(SessionResumed(), channel=0)
    other.send(BasicAck(first + 2, True))
    assert left(cluster) == []


@pytest.mark.parametrize("first", ["b2", "b3", "s2"])
@pytest.mark.parametrize("second", ["b2", "b3", "s2"])
def test_what_two_brokers_keep_for_a_client_belongs_to_its_later_visit(
    cluster: CoreCluster, first: str, second: str
) -> None:
    """The client was at both, one after the other, while a new home was recovering."""
    client = visiting(cluster, first, 1)
    held = taken(client)
    home = cluster[standby_of(cluster, "q").name]
    client.close_socket()
    cluster.cut("s1", home.name)
    cluster["b1"].kill()
    cluster.advance_until(lambda: home.queue("q").away is None)
    client, _ = back(cluster, second, entries(held), 2)
    cluster.advance(100)
    client.close_socket()
    cluster.advance(100)
    assert home.node.tenures.tenures[home.queue("q").definition.group].phase.is_recovering()
    cluster.heal()
    cluster.advance(3_000)
    assert drain(cluster["s1"].connect(), "q") == []
    client, tag = back(cluster, "s1", entries(held), 3)
    cluster.advance(500)
    client.send(BasicAck(tag + 2, True))
    assert left(cluster) == []
