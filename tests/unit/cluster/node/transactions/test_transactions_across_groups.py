"""Transactions over several groups: all of it or nothing, whoever dies (L4)."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicAck,
    ChannelClose,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.cluster.transactions.transaction_status import doubts
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import TICK_MS, CoreCluster, make_cluster
from tests.unit.cluster.node.interleaved_cluster import Loose
from tests.unit.cluster.node.small_cluster import PERSISTENT, drain, private_queue, queue_at
from tests.unit.cluster.node.test_dead_letters_between_groups import (
    home_of,
    is_worked_off,
    standby_of,
)

QUEUES = {"a": "b1", "b": "b2", "c": "b3"}


@pytest.fixture
def cluster() -> CoreCluster:
    # Links are cut for long here, and homes have to stay where they are.
    return make_cluster(3, 1, unlinked_patience_ms=0)


def begin(client: CoreClient, homes: dict[str, str] = QUEUES) -> None:
    """Queues with these homes, a message of the last held by a client in a transaction."""
    for queue, home in homes.items():
        queue_at(client, queue, home, durable=True)
    client.publish("", "c", b"held", PERSISTENT)
    client.call(TxSelect(), TxSelectOk)
    client.consume("c")


def fill(client: CoreClient) -> bytes:
    """What a transaction does: a message to each of two queues, and an ack in the third."""
    [delivery] = client.deliveries()
    assert delivery.body == b"held"
    data = client.published("", "a", b"x", PERSISTENT) + client.published("", "b", b"x", PERSISTENT)
    return data + method_frame(1, BasicAck(delivery.tag))


def is_settled(cluster: CoreCluster) -> bool:
    return is_worked_off(cluster) and not any(
        prepared_txs.settling or prepared_txs.prepared or prepared_txs.decided
        for member in cluster.running()
        for prepared_txs in member.node.roles.tx_transport.all_prepared_txs()
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
    assert cluster["b1"].node.roles.tx_transport._last == 0
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
    found = [each for m in cluster.running() for each in doubts(m.node.roles.tx_transport)]
    assert [(each.state, each.edge, each.edge_is_gone) for each in found] == [
        ("prepared", "s1", False),
        ("prepared", "s1", False),
    ]
    assert [each.set_aside for each in found if each.broker == "b3"] == [1]
    assert [each.waits_for for each in found] == [["the decision of group 1 at b1"]] * 2
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

    def __init__(self, seed: int, homes: dict[str, str] = QUEUES) -> None:
        self.cluster = make_cluster(3, 2)
        self.loose = Loose(self.cluster, seed)
        self.at = self.loose.random.choice(["b1", "b2", "b3", "s1"])
        self.client = self.cluster[self.at].connect()
        begin(self.client, homes)
        for queue in QUEUES:
            standby_of(self.cluster, queue)

    def _begin(self) -> str:
        """Have it committed, up to some step; answers who is to be struck."""
        random = self.loose.random
        victim = random.choice(["b1", "b2", "b3", self.at])
        self.client.connection.receive(fill(self.client) + method_frame(1, TxCommit()))
        self.cluster[self.at].busy = True
        self.loose.steps(random.randrange(60))
        return victim

    def run(self) -> tuple[bool, list[list[bytes]]]:
        """Whether the client was told that it is committed; what is in the queues at last."""
        random = self.loose.random
        victim = self._begin()
        self.loose.kill(victim)
        self.loose.steps(random.randrange(60))
        told = [each for each in self.client.take() if isinstance(each, TxCommitOk)]
        for queue in QUEUES:
            self.loose.until(lambda queue=queue: home_of(self.cluster, queue) != victim)  # type: ignore[misc]
        if random.random() < 0.5 or victim == self.at:
            self.cluster[victim].start()
        return self._end(bool(told), victim)

    def run_apart(self) -> tuple[bool, list[list[bytes]]]:
        """The same, but nobody dies: somebody is cut off, from one broker, then from all."""
        random = self.loose.random
        victim = self._begin()
        others = [each for each in self.cluster.members if each != victim]
        random.shuffle(others)
        self.loose.cut(victim, others[:1])
        self.loose.steps(random.randrange(30))
        self.loose.cut(victim, others)
        ticks = random.choice([500, 3_000, 14_000]) // TICK_MS
        for _ in range(ticks):
            self.loose.steps(random.randrange(4, 24))
            self.loose.pass_time()
        self.cluster.heal()
        return self._end(False, "")

    def _end(self, told: bool, dead: str) -> tuple[bool, list[list[bytes]]]:
        self.cluster.settle()
        for _ in range(1_600):
            if self._is_over():
                break
            self.cluster.advance(TICK_MS)
        assert self._is_over()
        told = told or any(isinstance(each, TxCommitOk) for each in self.client.take())
        if self.at != dead:
            self.client.close_socket()
        self.cluster.advance(11_000)
        reader = self.cluster["s2"].connect()
        return told, [drain(reader, queue) for queue in QUEUES]

    def _is_over(self) -> bool:
        edge_connection = all(
            not self.cluster[home_of(self.cluster, queue)].queue(queue).log.still
            for queue in QUEUES
        )
        waits = any(member.broker.commits for member in self.cluster.running())
        return edge_connection and not waits and is_settled(self.cluster)


DONE = [[b"x"], [b"x"], []]
NOTHING = [[], [], [b"held"]]


def is_whole(told: bool, found: list[list[bytes]]) -> bool:
    return found == DONE or (found == NOTHING and not told)


@pytest.mark.parametrize("seed", range(16))
def test_all_or_nothing_whoever_dies(seed: int) -> None:
    assert is_whole(*Walk(seed).run())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(16, 400))
def test_all_or_nothing_in_many_walks(seed: int) -> None:
    assert is_whole(*Walk(seed).run())


@pytest.mark.parametrize("seed", [*range(8), 35])
def test_all_or_nothing_whoever_is_cut_off(seed: int) -> None:
    """In the last one a home that is replaced has done its part, and nobody else knows."""
    assert is_whole(*Walk(seed).run_apart())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(36, 400))
def test_all_or_nothing_in_many_walks_with_cuts(seed: int) -> None:
    assert is_whole(*Walk(seed).run_apart())
