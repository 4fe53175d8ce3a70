"""Transactions over several groups: all of it or nothing, whoever dies (L4)."""

from __future__ import annotations

import pytest
from loose import Loose
from scene import PERSISTENT, drain, private_queue, queue_at
from test_letters_between_groups import home_of, is_worked_off, standby_of

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    ChannelClose,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.cluster.docket import TxRules
from rhizome.testing.cluster import TICK_MS, CoreCluster, make_cluster
from rhizome.testing.core import CoreClient

QUEUES = {"a": "b1", "b": "b2", "c": "b3"}


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def begin(client: CoreClient) -> None:
    """Queues in three groups, a message of the last held by a client in a transaction."""
    for queue, home in QUEUES.items():
        queue_at(client, queue, home, durable=True)
    client.publish("", "c", b"held", PERSISTENT)
    client.call(TxSelect(), TxSelectOk)
    client.consume("c")


def fill(client: CoreClient) -> bytes:
    """What a transaction does: a message to each of two groups, and an ack in the third."""
    [delivery] = client.deliveries()
    assert delivery.body == b"held"
    data = client.published("", "a", b"x", PERSISTENT) + client.published("", "b", b"x", PERSISTENT)
    return data + method_frame(1, BasicAck(delivery.tag))


def is_settled(cluster: CoreCluster) -> bool:
    return is_worked_off(cluster) and not any(
        docket.settling or docket.prepared or docket.decided
        for member in cluster.running()
        for docket in member.node.roles.txs.dockets()
    )


@pytest.mark.parametrize("at", ["b1", "b2", "b3", "s1"])
def test_a_commit_over_three_groups(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    begin(client)
    client.send_bytes(fill(client))
    other = cluster["s1"].connect()
    assert drain(other, "a") == []
    client.call(TxCommit(), TxCommitOk)
    assert [drain(other, queue) for queue in "abc"] == [[b"x"], [b"x"], []]
    cluster.advance(1_000)
    assert is_settled(cluster)
    for member in cluster.running():
        assert member.queue("c").unacked == 0
    client.close_socket()
    cluster.advance(1_000)
    assert drain(other, "c") == []


def test_one_group_needs_no_second_phase(cluster: CoreCluster) -> None:
    client = cluster["b1"].connect()
    begin(client)
    assert len(client.deliveries()) == 1
    client.send_bytes(client.published("", "a", b"x", PERSISTENT))
    client.call(TxCommit(), TxCommitOk)
    assert cluster["b1"].node.roles.txs._last == 0
    assert drain(cluster["s1"].connect(), "a") == [b"x"]


def test_private_queues_get_theirs_when_it_is_decided(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    private = private_queue(client)
    begin(client)
    client.send_bytes(fill(client) + client.published("", private, b"x", PERSISTENT))
    client.call(TxCommit(), TxCommitOk)
    assert drain(client, private) == [b"x"]
    assert drain(client, "b") == [b"x"]


def test_a_group_in_doubt_asks_and_the_first_one_decides_against(cluster: CoreCluster) -> None:
    """The edge is gone before it could ask for a decision."""
    client = cluster["s1"].connect()
    begin(client)
    for queue in QUEUES:
        standby_of(cluster, queue)
    data = fill(client) + method_frame(1, TxCommit())
    edge = cluster["s1"]
    client.connection.receive(data)
    edge.busy = True
    edge.turn()
    Loose(cluster, 1).kill("s1")
    cluster.settle()
    doubts = [each for m in cluster.running() for each in m.node.roles.txs.in_doubt()]
    assert [each["state"] for each in doubts] == ["prepared", "prepared"]
    cluster["s1"].start()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: is_settled(cluster))
    reader = cluster["b2"].connect()
    assert [drain(reader, queue) for queue in "abc"] == [[], [], [b"held"]]


def test_who_waits_too_long_is_told(cluster: CoreCluster) -> None:
    """A group has no home for long: the client learns that nothing was done."""
    client = cluster["s1"].connect()
    begin(client)
    cluster.cut("s1", "b2")
    client.send_bytes(fill(client))
    client.send(TxCommit())
    cluster.advance(15_000)
    close = client.pick(ChannelClose)
    assert close.reply_code == 406
    assert "rolled back" in close.reply_text
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: is_settled(cluster))
    reader = cluster["b2"].connect()
    assert [drain(reader, queue) for queue in "ab"] == [[], []]


# ---- walks ---------------------------------------------------------------------------------------


class Walk:
    """A commit, and somebody dies at any step of it."""

    def __init__(self, seed: int, broken: str = "") -> None:
        self.cluster = make_cluster(3, 2)
        self.loose = Loose(self.cluster, seed)
        self.at = self.loose.random.choice(["b1", "b2", "b3", "s1"])
        self.client = self.cluster[self.at].connect()
        begin(self.client)
        for queue in QUEUES:
            standby_of(self.cluster, queue)
        if broken:
            for member in self.cluster.running():
                assert getattr(member.node.roles.txs.rules, broken) is True
                setattr(member.node.roles.txs.rules, broken, False)

    def run(self) -> tuple[bool, list[list[bytes]]]:
        """Whether the client was told that it is committed; what is in the queues at last."""
        random = self.loose.random
        victim = random.choice(["b1", "b2", "b3", self.at])
        self.client.connection.receive(fill(self.client) + method_frame(1, TxCommit()))
        self.cluster[self.at].busy = True
        self.loose.steps(random.randrange(60))
        self.loose.kill(victim)
        self.loose.steps(random.randrange(60))
        told = [each for each in self.client.take() if isinstance(each, TxCommitOk)]
        for queue in QUEUES:
            self.loose.until(lambda queue=queue: home_of(self.cluster, queue) != victim)  # type: ignore[misc]
        if random.random() < 0.5 or victim == self.at:
            self.cluster[victim].start()
        self.cluster.settle()
        for _ in range(1_200):
            if self._is_over():
                break
            self.cluster.advance(TICK_MS)
        assert self._is_over()
        told += [each for each in self.client.take() if isinstance(each, TxCommitOk)]
        if self.at != victim:
            self.client.close_socket()
        self.cluster.advance(11_000)
        reader = self.cluster["s2"].connect()
        return bool(told), [drain(reader, queue) for queue in QUEUES]

    def _is_over(self) -> bool:
        serving = all(
            not self.cluster[home_of(self.cluster, queue)].queue(queue).log.still
            for queue in QUEUES
        )
        waits = any(member.broker.commits for member in self.cluster.running())
        return serving and not waits and is_settled(self.cluster)


DONE = [[b"x"], [b"x"], []]
NOTHING = [[], [], [b"held"]]


def is_whole(walk: Walk) -> bool:
    told, found = walk.run()
    return found == DONE or (found == NOTHING and not told)


@pytest.mark.parametrize("seed", range(16))
def test_all_or_nothing_whoever_dies(seed: int) -> None:
    assert is_whole(Walk(seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(16, 400))
def test_all_or_nothing_in_many_walks(seed: int) -> None:
    assert is_whole(Walk(seed))


# ---- rules broken on purpose ---------------------------------------------------------------------

BROKEN = [True, False]


def prepared_to_break(cluster: CoreCluster, rule: str, broken: bool) -> CoreClient:
    """A client of s1; the group of queue "a", at home at b1, is the first one and decides."""
    client = cluster["s1"].connect()
    begin(client)
    for queue in QUEUES:
        standby_of(cluster, queue)
    for member in cluster.running():
        assert getattr(member.node.roles.txs.rules, rule) is True
        setattr(member.node.roles.txs.rules, rule, not broken)
    return client


def found(cluster: CoreCluster) -> list[list[bytes]]:
    cluster.advance_until(lambda: is_settled(cluster))
    cluster.advance(11_000)
    reader = cluster["b2"].connect()
    return [drain(reader, queue) for queue in QUEUES]


def test_there_is_a_story_for_each_rule() -> None:
    stories = "".join([name for name in globals() if name.startswith("test_")])
    rules = list(vars(TxRules()))
    assert rules
    assert [rule for rule in rules if rule not in stories] == []


@pytest.mark.parametrize("broken", BROKEN)
def test_prepared_first(cluster: CoreCluster, broken: bool) -> None:
    """What is decided before all have it is lost in part, with the edge."""
    client = prepared_to_break(cluster, "prepared_first", broken)
    cluster.cut("s1", "b2")
    client.send_bytes(fill(client))
    client.send(TxCommit())
    cluster["s1"].kill()
    cluster.heal()
    cluster.advance(11_000)
    cluster["s1"].start()
    cluster.advance_until_ready()
    assert found(cluster) == ([[b"x"], [], []] if broken else NOTHING)
