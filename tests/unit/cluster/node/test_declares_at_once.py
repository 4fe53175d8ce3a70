"""Declares of many connections in one turn share a round of consensus, with its syncs."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import QueueDeclare, QueueDeclareOk
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster

CLIENTS = 20


def rounds_of_declares(cluster: CoreCluster, at: str, clients: int) -> int:
    """How often brokers have to wake up until this many clients that declare a queue at once have
    their answers."""
    connected = [cluster[at].connect() for _ in range(clients)]
    for number, client in enumerate(connected):
        declare = QueueDeclare(f"{clients}-{number}", durable=True)
        client.connection.receive(method_frame(1, declare))
    cluster[at].busy = True
    rounds = 0
    while [member for member in cluster.running() if member.turn()]:
        rounds += 1
    for number, client in enumerate(connected):
        assert client.expect(QueueDeclareOk).queue == f"{clients}-{number}"
    return rounds


@pytest.mark.parametrize("at_root", [True, False])
def test_clients_that_declare_at_once_wait_as_long_as_one(at_root: bool) -> None:
    cluster = make_cluster(3)
    root = cluster.root()
    at = root if at_root else next(name for name in cluster.members if name != root)
    rounds_of_declares(cluster, at, 2)
    alone = rounds_of_declares(cluster, at, 1)
    assert rounds_of_declares(cluster, at, CLIENTS) <= alone + 1
