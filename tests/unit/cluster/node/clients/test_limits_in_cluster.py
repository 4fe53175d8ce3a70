"""Limits of vhosts and users are those of the cluster, whichever brokers a client goes to."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    ChannelClose,
    ChannelOpen,
    ConnectionClose,
    ConnectionOpenOk,
    QueueDeclare,
)
from rhizome.broker.cluster_port import Waiter
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import (
    SCOPE_USER,
    SCOPE_VHOST,
    DeclareQueue,
    PutLimit,
    PutUser,
    PutVhost,
)
from rhizome.cluster.gossip import GOSSIP_EVERY_MS
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster

NEWS_MS = 2 * GOSSIP_EVERY_MS + 200
"""What a secondary uses is told to the root, and by it to the others."""


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2)


def limit(cluster: CoreCluster, scope: str, name: str, what: str, value: int) -> None:
    root = cluster[cluster.root()].node
    root.propose(PutUser("guest", "hash"), None)
    root.propose(PutLimit(scope, name, what, value), None)
    cluster.advance_until(
        lambda: all(each.broker.state.limit(scope, name, what) >= 0 for each in cluster.running())
    )


def refusal(cluster: CoreCluster, at: str) -> str:
    """What a client that connects is told; "" if it is let in."""
    client = cluster[at].connect(opens=False)
    answer = client.take(0)[0]
    if isinstance(answer, ConnectionOpenOk):
        return ""
    assert isinstance(answer, ConnectionClose)
    return f"{answer.reply_code} {answer.reply_text}"


@pytest.mark.parametrize("at", ["b1", "b2", "s2"])
@pytest.mark.parametrize(("scope", "name"), [(SCOPE_USER, "guest"), (SCOPE_VHOST, "/")])
def test_connections_are_counted_in_the_whole_cluster(
    cluster: CoreCluster, at: str, scope: str, name: str
) -> None:
    limit(cluster, scope, name, "max-connections", 3)
    clients = [cluster["b3"].connect(), cluster["s1"].connect()]
    cluster.advance(NEWS_MS)
    assert refusal(cluster, at) == ""
    cluster.advance(NEWS_MS)
    text = refusal(cluster, at)
    assert text.startswith("530 NOT_ALLOWED")
    assert "limit (3) is reached" in text
    clients[1].close_socket()
    cluster.advance(NEWS_MS)
    assert refusal(cluster, at) == ""


def test_connections_of_a_broker_that_is_gone_count_no_more(cluster: CoreCluster) -> None:
    limit(cluster, SCOPE_USER, "guest", "max-connections", 1)
    cluster["b3"].connect()
    cluster.advance(NEWS_MS)
    assert refusal(cluster, "b1") != ""
    cluster["b3"].kill()
    cluster.advance(NEWS_MS)
    assert refusal(cluster, "b1") == ""


def test_channels_of_a_user_are_counted_in_the_whole_cluster(cluster: CoreCluster) -> None:
    limit(cluster, SCOPE_USER, "guest", "max-channels", 4)
    for name in ("b2", "s1"):
        cluster[name].connect().open_channel(2)
    client = CoreClient(cluster["b1"], opens=False)
    cluster.advance(NEWS_MS)
    client.take(0)
    client.send(ChannelOpen(), channel=1)
    (close,) = client.take(0)
    assert isinstance(close, ConnectionClose)
    assert "user limit of (4)" in close.reply_text


def test_what_has_no_limit_is_not_told(cluster: CoreCluster) -> None:
    cluster["b1"].connect()
    used = cluster["b1"].broker.limits.used()
    assert [names for names in used.values() if names] == []


# --- private queues


def declare_private(cluster: CoreCluster, at: str, names: list[str]) -> list[CoreClient]:
    """Clients that each ask for a private queue and have not been answered."""
    clients = [cluster[at].connect() for _ in names]
    for client, name in zip(clients, names, strict=True):
        client.send(QueueDeclare(name, exclusive=True))
    return clients


def answers(clients: list[CoreClient]) -> list[str]:
    """What they were told: "" for a queue."""
    told = []
    for client in clients:
        (answer,) = client.take()
        told.append(answer.reply_text if isinstance(answer, ChannelClose) else "")
    return told


def private_queues(cluster: CoreCluster) -> int:
    queues = [
        queue
        for each in cluster.running()
        for queue in each.broker.state.vhosts["/"].queues.values()
    ]
    return sum(queue.is_private() for queue in queues)


@pytest.mark.parametrize(("scope", "name"), [(SCOPE_USER, "guest"), (SCOPE_VHOST, "/")])
@pytest.mark.parametrize("given", ["", "q"])
def test_private_queues_are_counted_in_the_whole_cluster(
    cluster: CoreCluster, scope: str, name: str, given: str
) -> None:
    limit(cluster, scope, name, "max-queues", 3)
    kept = []
    for number, at in enumerate(("b3", "s1", "b1")):
        kept += declare_private(cluster, at, [given and f"{given}{number}"])
        cluster.advance(50)
    assert answers(kept) == ["", "", ""]
    for at in ("b2", "s2", "b3"):
        (client,) = declare_private(cluster, at, [given and "more"])
        cluster.advance(50)
        assert f"{name}' (3) is reached" in answers([client])[0]
    kept[1].close_socket()
    cluster.advance(NEWS_MS)
    (client,) = declare_private(cluster, "s2", [given and "more"])
    cluster.advance(50)
    assert answers([client]) == [""]


@pytest.mark.parametrize("given", ["", "q"])
@pytest.mark.parametrize("brokers", [["b1", "b2", "b3"], ["s1", "s2"], ["b3", "s1", "b1", "s2"]])
def test_no_burst_over_several_brokers_makes_more_private_queues_than_the_limit(
    cluster: CoreCluster, brokers: list[str], given: str
) -> None:
    limit(cluster, SCOPE_VHOST, "/", "max-queues", 5)
    clients = []
    for at in brokers:
        names = [given and f"{given}-{at}-{number}" for number in range(4)]
        clients += declare_private(cluster, at, names)
    cluster.advance(500)
    told = answers(clients)
    assert 1 <= told.count("") <= 5
    assert all("limit in vhost '/' (5) is reached" in each for each in told if each)
    assert private_queues(cluster) == told.count("")
    if "s1" not in brokers:
        assert told.count("") == 5, "who comes first by name keeps its queues"


# --- bytes of the state


class Answer(Waiter):
    def __init__(self) -> None:
        super().__init__()
        self.outcome: Outcome | None = None

    def resolved(self, outcome: Outcome) -> None:
        self.outcome = outcome


def declare_until_refused(cluster: CoreCluster, client: CoreClient) -> tuple[int, str]:
    """How many queues of 10 KB a client gets, and what it is told then."""
    count = 0
    while True:
        method = QueueDeclare(f"q{count}", arguments={"x": "y" * 10_000})
        client.send(method)
        found = client.take()
        while not found:
            cluster.advance(50)
            found = client.take()
        if isinstance(found[0], ChannelClose):
            return count, found[0].reply_text
        count += 1


def test_a_vhost_that_is_full_at_every_broker_leaves_room_for_others() -> None:
    cluster = make_cluster(3, 1, state_size_max_bytes=1 << 20)
    for command in (PutVhost("other"), PutUser("guest", "hash")):
        cluster[cluster.root()].node.propose(command, None)
    cluster.advance_until(
        lambda: all("other" in each.broker.state.vhosts for each in cluster.running())
    )
    count, text = declare_until_refused(cluster, cluster["b1"].connect())
    assert 40 < count <= 52
    assert "vhost '/' has" in text
    client = cluster["s1"].connect()
    client.send(QueueDeclare("more", arguments={"x": "y" * 10_000}))
    assert "vhost '/' has" in client.expect(ChannelClose).reply_text
    for at in ("b1", "b2", "s1"):
        answer = Answer()
        command = DeclareQueue("other", f"from {at}", arguments={"x": "y" * 10_000})
        cluster[at].node.propose(command, answer)
        cluster.advance_until(lambda answer=answer: answer.outcome is not None)  # type: ignore[misc]
        assert answer.outcome is not None
        assert answer.outcome.error is None, at
    cluster.settle()
    sizes = [each.broker.state.sizes for each in cluster.running()]
    assert len({(each.of("/"), each.of("other"), each.total) for each in sizes}) == 1
    assert len({each.node.state.snapshot() for each in cluster.running()}) == 1
