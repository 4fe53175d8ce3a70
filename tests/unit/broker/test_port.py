"""The port between the broker and whatever surrounds it, and what never passes through it."""

from __future__ import annotations

import ast
from pathlib import Path

import rhizome.broker
from rhizome.amqp.methods import (
    BasicAck,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.cluster_port import Cluster, Waiter
from rhizome.broker.metadata.metadata_commands import Command
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)


class SlowCluster(Cluster):
    """Commits a proposal when it is told to."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core
        self.proposed: list[tuple[Command, Waiter | None]] = []

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        self.proposed.append((command, waiter))

    def commit(self) -> None:
        command, waiter = self.proposed.pop(0)
        outcome = self.core.broker.apply(command)
        if waiter is not None:
            waiter.resolved(outcome)
        self.core.settle()


def drained(client: CoreClient, queue: str) -> list[bytes]:
    bodies = []
    while (message := client.get(queue)) is not None:
        bodies.append(message.body)
    return bodies


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_the_broker_core_knows_no_cluster_but_its_port() -> None:
    sources = list(Path(rhizome.broker.__path__[0]).rglob("*.py"))
    assert len(sources) > 30
    for source in sources:
        for module in imported_modules(source):
            assert not module.startswith(("rhizome.cluster", "rhizome.server")), (source, module)


def test_a_declare_is_answered_when_the_cluster_has_committed_it() -> None:
    core = make_core()
    client = core.connect()
    cluster = SlowCluster(core)
    core.broker.cluster = cluster
    client.send(ExchangeDeclare("e"), QueueDeclare("q"))
    assert client.take() == []
    cluster.commit()
    client.expect(ExchangeDeclareOk)
    assert client.take() == []
    cluster.commit()
    assert client.expect(QueueDeclareOk).queue == "q"


def test_a_private_queue_never_reaches_the_cluster_or_the_disk() -> None:
    core = make_core()
    client = core.connect()
    cluster = SlowCluster(core)
    core.broker.cluster = cluster
    declare = QueueDeclare("mine", durable=True, exclusive=True)
    client.call(declare, QueueDeclareOk)
    written = core.store.journal.records_appended
    client.publish("", "mine", b"here and nowhere else", PERSISTENT)
    assert core.queue("mine").ready == 1
    assert cluster.proposed == []
    assert core.store.journal.records_appended == written


def test_time_is_stamped_once_and_means_the_same_after_a_restart() -> None:
    core = make_core()
    client = core.connect()
    queue = client.declare("q", durable=True, x_message_ttl=1000)
    client.confirm()
    client.publish("", queue, b"old", PERSISTENT)
    core.advance(700)
    client.publish("", queue, b"young", PERSISTENT)
    client.take()
    again = core.restarted()
    again.advance(500)
    assert drained(again.connect(), queue) == [b"young"]


def test_a_transaction_may_mix_persistent_and_transient_durable_and_temporary() -> None:
    core = make_core()
    client = core.connect()
    durable = client.declare("durable", durable=True)
    temporary = client.declare("temporary")
    client.publish("", durable, b"settled", PERSISTENT)
    held = client.get(durable, no_ack=False)
    assert held is not None
    client.call(TxSelect(), TxSelectOk)
    for queue in (durable, temporary):
        client.publish("", queue, b"persistent", PERSISTENT)
        client.publish("", queue, b"transient")
    client.send(BasicAck(held.tag))
    client.call(TxCommit(), TxCommitOk)
    again = core.restarted()
    assert drained(client, durable) == drained(client, temporary) == [b"persistent", b"transient"]
    assert drained(again.connect(), durable) == [b"persistent"]
    assert not again.has_queue(temporary)
