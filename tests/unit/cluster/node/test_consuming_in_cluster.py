"""Consuming through any broker: prefetch over several homes, cancels, deletions, dead letters."""

from __future__ import annotations

import pytest
from mypy_extensions import i64

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverOk,
    ChannelClose,
    ChannelCloseOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.cluster.link.frame_codec import FrameSink, LinkReader
from rhizome.cluster.protocol.catalogue import DELIVER
from rhizome.testing.in_memory_broker import Content, CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.held_standby import Standby, leads_to
from tests.unit.cluster.node.small_cluster import (
    AWAY,
    PERSISTENT,
    bind,
    drain,
    exchange,
    queue_at,
    refusal_of_consume,
    refused,
)

HOMES = ("b1", "b2", "b3")
FRAME_BYTES_MAX = 1 << 20


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2)


def three_queues(client: CoreClient, count: int) -> None:
    for home in HOMES:
        queue_at(client, home, home)
        for number in range(count):
            client.publish("", home, b"%s %d" % (home.encode(), number))


@pytest.mark.parametrize("at", AWAY)
@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_prefetch_of_a_channel_holds_over_all_homes(
    cluster: CoreCluster, at: str, prefetch: int
) -> None:
    client = cluster[at].connect()
    three_queues(client, 10)
    client.prefetch(prefetch, whole_channel=True)
    for home in HOMES:
        client.consume(home)
    seen: list[bytes] = []
    while deliveries := client.deliveries():
        held = int(client.connection.channels[1].unacked.count)
        assert held == min(prefetch, 30 - len(seen))
        seen.extend([delivery.body for delivery in deliveries])
        assert not any(delivery.redelivered for delivery in deliveries)
        client.send(BasicAck(deliveries[0].tag))
        for delivery in deliveries[1:]:
            client.send(BasicAck(delivery.tag))
    assert len(seen) == 30
    for home in HOMES:
        expected = [b"%s %d" % (home.encode(), number) for number in range(10)]
        assert [body for body in seen if body.startswith(home.encode())] == expected


def test_what_a_full_channel_cannot_take_goes_to_others(cluster: CoreCluster) -> None:
    full, free = cluster["b2"].connect(), cluster["s1"].connect()
    queue_at(full, "q1", "b1")
    queue_at(full, "q3", "b3")
    full.prefetch(1, whole_channel=True)
    full.consume("q1")
    full.publish("", "q1", b"held")
    full.consume("q3")
    free.consume("q3")
    for number in range(4):
        full.publish("", "q3", b"%d" % number)
    assert full.bodies() == [b"held"]
    free_got = free.deliveries()
    assert sorted([delivery.body for delivery in free_got]) == [b"0", b"1", b"2", b"3"]
    assert not any(delivery.redelivered for delivery in free_got)


def test_prefetch_of_a_channel_can_be_raised_and_lifted(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    three_queues(client, 4)
    client.prefetch(2, whole_channel=True)
    for home in HOMES:
        client.consume(home)
    assert len(client.deliveries()) == 2
    client.send(BasicQos(0, 5, True))
    client.pick(BasicQosOk)
    assert len(client.deliveries()) == 3
    client.send(BasicQos(0, 0, True))
    client.pick(BasicQosOk)
    assert len(client.deliveries()) == 7


def test_consumer_without_acks_is_not_held_up_by_the_prefetch(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "slow", "b1")
    queue_at(client, "fast", "b1")
    client.prefetch(1, whole_channel=True)
    client.consume("slow")
    client.consume("fast", no_ack=True)
    client.publish("", "slow", b"held")
    for number in range(5):
        client.publish("", "fast", b"%d" % number)
    assert client.bodies() == [b"held", b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("at", AWAY)
def test_recover_brings_everything_back_in_order(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1")
    client.prefetch(3)
    client.consume("q")
    for number in range(5):
        client.publish("", "q", b"%d" % number)
    assert client.bodies() == [b"0", b"1", b"2"]
    client.send(BasicRecover(True))
    client.pick(BasicRecoverOk)
    again = client.deliveries()
    assert [(each.body, each.redelivered) for each in again] == [
        (b"0", True),
        (b"1", True),
        (b"2", True),
    ]


@pytest.mark.parametrize("at", AWAY)
def test_cancelled_consumer_keeps_what_it_holds(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1")
    tag = client.consume("q")
    client.publish("", "q", b"held")
    [held] = client.deliveries()
    client.call(BasicCancel(tag), BasicCancelOk)
    client.publish("", "q", b"left")
    assert client.deliveries() == []
    client.send(BasicAck(held.tag))
    assert cluster["b1"].queue("q").unacked == 0
    assert drain(client, "q") == [b"left"]


@pytest.mark.parametrize("at", AWAY)
@pytest.mark.parametrize("how", ["channel", "socket"])
def test_what_a_closed_channel_held_goes_back_in_order(
    cluster: CoreCluster, at: str, how: str
) -> None:
    client, other = cluster[at].connect(), cluster["b3"].connect()
    queue_at(client, "q", "b1")
    client.consume("q")
    for number in range(4):
        client.publish("", "q", b"%d" % number)
    tags = [delivery.tag for delivery in client.deliveries()]
    client.send(BasicAck(tags[1]))
    if how == "channel":
        client.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    else:
        client.close_socket()
    home = cluster["b1"].queue("q")
    assert (home.ready, home.unacked, home.consumer_count) == (3, 0, 0)
    other.consume("q")
    again = other.deliveries()
    assert [each.body for each in again] == [b"0", b"2", b"3"]
    assert all(each.redelivered for each in again)


@pytest.mark.parametrize("at", AWAY)
def test_counts_and_conditions_are_those_of_the_home(cluster: CoreCluster, at: str) -> None:
    client, other = cluster[at].connect(), cluster["b3"].connect()
    queue_at(client, "q", "b1")
    for _ in range(3):
        client.publish("", "q", b"m")
    passive = client.call(QueueDeclare("q", passive=True), QueueDeclareOk)
    assert (passive.message_count, passive.consumer_count) == (3, 0)
    code, text = refused(client, QueueDelete("q", if_empty=True))
    assert (code, text) == (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty")
    other.prefetch(1)
    other.consume("q")
    passive = client.call(QueueDeclare("q", passive=True), QueueDeclareOk)
    assert (passive.message_count, passive.consumer_count) == (2, 1)
    code, text = refused(client, QueueDelete("q", if_unused=True))
    assert (code, text) == (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use")
    assert client.call(QueuePurge("q"), QueuePurgeOk).message_count == 2
    client.publish("", "q", b"m")
    assert client.call(QueueDelete("q"), QueueDeleteOk).message_count == 1
    assert not any(member.has_queue("q") for member in cluster.running())


@pytest.mark.parametrize("at", AWAY)
def test_consumers_everywhere_learn_that_their_queue_is_deleted(
    cluster: CoreCluster, at: str
) -> None:
    client = cluster[at].connect()
    consumers = [cluster[name].connect() for name in ("b1", "b2", "b3", "s1", "s2")]
    queue_at(client, "q", "b1")
    for consumer in consumers:
        consumer.consume("q", "tag")
    client.call(QueueDelete("q"), QueueDeleteOk)
    for consumer in consumers:
        assert consumer.expect(BasicCancel).consumer_tag == "tag"
    queue_at(client, "q", "b1")
    assert consumers[1].consume("q", "tag") == "tag"
    client.publish("", "q", b"m")
    assert consumers[1].bodies() == [b"m"]


@pytest.mark.parametrize("at", AWAY)
def test_exclusive_consumer_has_the_queue_alone(cluster: CoreCluster, at: str) -> None:
    client, other = cluster[at].connect(), cluster["s2"].connect()
    queue_at(client, "q", "b1")
    tag = client.consume("q", exclusive=True)
    assert refusal_of_consume(other, "q") == 403
    client.call(BasicCancel(tag), BasicCancelOk)
    other.consume("q")
    assert refusal_of_consume(client, "q", exclusive=True) == 403


@pytest.mark.parametrize("at", AWAY)
def test_single_active_consumer_is_followed_by_the_next(cluster: CoreCluster, at: str) -> None:
    first, second = cluster[at].connect(), cluster["b3"].connect()
    queue_at(first, "q", "b1", x_single_active_consumer=True)
    first.consume("q")
    second.consume("q")
    for number in range(2):
        first.publish("", "q", b"%d" % number)
    assert (first.bodies(), second.bodies()) == ([b"0", b"1"], [])
    first.close_socket()
    again = second.deliveries()
    assert [(each.body, each.redelivered) for each in again] == [(b"0", True), (b"1", True)]


@pytest.mark.parametrize("at", AWAY)
def test_higher_priority_is_served_first_wherever_it_is(cluster: CoreCluster, at: str) -> None:
    low, high = cluster["b1"].connect(), cluster[at].connect()
    queue_at(low, "q", "b1")
    low.consume("q")
    high.prefetch(2)
    high.consume("q", priority=5)
    for number in range(3):
        low.publish("", "q", b"%d" % number)
    assert (high.bodies(), low.bodies()) == ([b"0", b"1"], [b"2"])


@pytest.mark.parametrize("at", AWAY)
@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_dead_letters_go_to_queues_of_other_homes(
    cluster: CoreCluster, at: str, reason: str
) -> None:
    client = cluster[at].connect()
    exchange(client, "dlx", "fanout")
    bind(client, queue_at(client, "dead", "b3"), "dlx")
    options: dict[str, object] = {"x_dead_letter_exchange": "dlx"}
    if reason == "expired":
        options["x_message_ttl"] = 50
    elif reason == "maxlen":
        options["x_max_length"] = 1
    elif reason == "delivery_limit":
        options["x_queue_type"] = "quorum"
        options["x_delivery_limit"] = 1
    queue_at(client, "q", "b1", durable=reason == "delivery_limit", **options)
    client.publish("", "q", b"m")
    if reason == "maxlen":
        client.publish("", "q", b"n")
    elif reason == "expired":
        cluster.advance(100)
    elif reason == "rejected":
        client.consume("q")
        client.send(BasicNack(client.deliveries()[0].tag, False, False))
    else:
        client.consume("q")
        for _ in range(2):
            client.send(BasicNack(client.deliveries()[0].tag, False, True))
    dead = client.get("dead")
    assert dead is not None
    assert dead.body == b"m"
    [death] = dead.headers["x-death"]  # type: ignore[misc]
    assert isinstance(death, dict)
    assert (death["queue"], death["reason"]) == ("q", reason)


def test_expiring_queue_lives_while_anybody_anywhere_uses_it(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    queue_at(client, "q", "b1", x_expires=300)
    tag = client.consume("q")
    cluster.advance(1_000)
    assert cluster["b3"].has_queue("q")
    client.call(BasicCancel(tag), BasicCancelOk)
    for _ in range(5):
        cluster.advance(200)
        client.get("q")
    assert cluster["b3"].has_queue("q")
    cluster.advance(400)
    assert not any(member.has_queue("q") for member in cluster.running())


@pytest.mark.parametrize("at", AWAY)
def test_auto_delete_queue_goes_with_its_last_consumer(cluster: CoreCluster, at: str) -> None:
    first, second = cluster[at].connect(), cluster["b3"].connect()
    method = QueueDeclare("q", auto_delete=True, arguments={"x-group": "b1"})
    first.call(method, QueueDeclareOk)
    first.consume("q")
    tag = second.consume("q")
    first.close_socket()
    assert cluster["b2"].has_queue("q")
    second.call(BasicCancel(tag), BasicCancelOk)
    assert not any(member.has_queue("q") for member in cluster.running())


@pytest.mark.parametrize("at", AWAY)
def test_consumer_tag_that_looks_like_a_number_is_its_own(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    for name in ("q1", "q2", "q3"):
        queue_at(client, name, "b1")
    for number, name in enumerate(["q1", "q2", "q3"]):
        client.consume(name, str(6 - number))
    client.call(QueueDelete("q2"), QueueDeleteOk)
    assert client.expect(BasicCancel).consumer_tag == "5"
    for name in ("q1", "q3"):
        client.publish("", name, name.encode())
    assert client.bodies() == [b"q1", b"q3"]


@pytest.mark.parametrize("at", AWAY)
def test_get_finds_what_was_given_back_in_the_same_turn(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    queue_at(client, "q", "b1")
    for body in (b"a", b"b"):
        client.publish("", "q", body)
    got = client.get("q", no_ack=False)
    assert got is not None
    client.send(BasicNack(got.tag, False, True), BasicGet("q", True))
    assert [content.body for content in contents(client)] == [b"a"]
    client.send(QueuePurge("q"))
    assert client.expect(QueuePurgeOk).message_count == 1


def contents(client: CoreClient) -> list[Content]:
    """What gets were answered with."""
    events = client.take()
    return [each for each in events if isinstance(each, Content)]


class Overheard(FrameSink):
    """The frames from one broker to another, by method."""

    def __init__(self, cluster: CoreCluster, sender: str, receiver: str) -> None:
        self.methods: list[int] = []
        self._reader = LinkReader(self, FRAME_BYTES_MAX)
        [end] = [each for each in cluster[sender].ends if leads_to(each, receiver)]
        self._write = end.write
        end.write = self._overhear  # type: ignore[method-assign]

    def _overhear(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._reader.receive(chunk)
        self._write(chunks)

    def frame(self, method: i64, data: bytes, start: i64, end: i64) -> None:
        self.methods.append(int(method))

    def other_frame(self, kind: i64, data: bytes, start: i64, end: i64) -> None:
        self.methods.append(0)


def backlog(cluster: CoreCluster, count: int) -> list[bytes]:
    """A durable queue at b1, with a copy at b3 and so many messages in it."""
    client = cluster["b1"].connect()
    queue_at(client, "q", "b1", durable=True)
    Standby(cluster, "q", "b3")
    bodies = [b"%d" % number for number in range(count)]
    client.send_bytes(b"".join([client.published("", "q", each, PERSISTENT) for each in bodies]))
    return bodies


def test_nobody_is_asked_before_a_message_goes_to_a_consumer(cluster: CoreCluster) -> None:
    """Which consumer gets which message the home decides alone: what passes between brokers is one
    frame per delivery to an edge, and a few for each time that a consumer settles what it holds."""
    bodies = backlog(cluster, 500)
    here, elsewhere = cluster["b1"].connect(), cluster["s1"].connect()
    overheard = {
        way: Overheard(cluster, *way) for way in [("b1", "b3"), ("b1", "s1"), ("s1", "b1")]
    }
    for client in (here, elsewhere):
        client.prefetch(100)
        client.consume("q")
    got: dict[CoreClient, list[Content]] = {here: [], elsewhere: []}
    while held := [(client, each) for client in got for each in client.deliveries()]:
        for client, delivery in held:
            got[client].append(delivery)
            # Each by itself; those of a turn arrive together.
            client.connection.receive(method_frame(1, BasicAck(delivery.tag)))
        cluster["b1"].busy = cluster["s1"].busy = True
        cluster.settle()
    assert sorted([each.body for each in got[here] + got[elsewhere]]) == sorted(bodies)
    assert min(len(got[here]), len(got[elsewhere])) >= 100
    assert overheard["b1", "s1"].methods.count(DELIVER) == len(got[elsewhere])
    rest = [each for each in overheard["b1", "s1"].methods if each != DELIVER]
    assert 0 < len(rest) <= 20, rest
    assert 0 < len(overheard["s1", "b1"].methods) <= 20
    assert 0 < len(overheard["b1", "b3"].methods) <= 20
