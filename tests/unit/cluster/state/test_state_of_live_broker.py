"""The cluster state around a broker that has messages, consumers and clients."""

from __future__ import annotations

from rhizome.amqp.methods import BasicCancel, QueueBind, QueueBindOk, QueueDeclare, QueueDeclareOk
from rhizome.broker.metadata.metadata_commands import DeclareQueue, DeleteQueue
from rhizome.cluster.state.cluster_commands import Envelope, encode
from rhizome.cluster.state.cluster_state import Applied, ClusterState
from rhizome.testing.in_memory_broker import Core, make_core
from tests.unit.cluster.state.state_machines import Machine, make_machine


class LiveMachine:
    """A broker in a cluster of two, fed by hand; ``other`` is the state on the second broker."""

    def __init__(self) -> None:
        self.other: Machine = make_machine("b1", "b2")
        self.core: Core = make_core()
        self.state = ClusterState(self.core.broker)
        self.take_snapshot()

    def take_snapshot(self) -> None:
        outcomes = self.state.restore(self.other.state.index, self.other.state.snapshot())
        for outcome in outcomes:
            self.core.broker.announce(outcome)
        self.core.settle()

    def feed(self, command: DeclareQueue | DeleteQueue) -> Applied:
        """An entry that both brokers apply."""
        self.other.feed(command)
        applied = self.state.apply(self.other.state.index, encode(Envelope(command)))
        self.core.broker.announce(applied.outcome)
        self.core.settle()
        return applied


def test_snapshot_leaves_a_queue_its_messages_and_consumers() -> None:
    live = LiveMachine()
    live.feed(DeclareQueue("/", "kept"))
    live.feed(DeclareQueue("/", "gone"))
    client = live.core.connect()
    client.publish("", "kept", b"before")
    client.consume("gone", tag="g")
    queue = live.core.queue("kept")
    live.other.done(DeleteQueue("/", "gone"), DeclareQueue("/", "new"))
    client.take()
    live.take_snapshot()
    assert live.core.queue("kept") is queue
    assert queue.ready == 1
    assert client.expect(BasicCancel).consumer_tag == "g"
    assert live.core.has_queue("new")
    assert live.state.snapshot() == live.other.state.snapshot()


def test_shared_queue_displaces_a_private_one_and_its_consumer_hears_of_it() -> None:
    live = LiveMachine()
    client = live.core.connect()
    client.call(QueueDeclare("q", exclusive=True), QueueDeclareOk)
    client.call(QueueBind("q", "amq.fanout"), QueueBindOk)
    client.consume("q", tag="mine")
    client.take()
    assert live.feed(DeclareQueue("/", "q")).outcome.error is None
    assert client.expect(BasicCancel).consumer_tag == "mine"
    assert not live.core.queue("q").definition.is_private()
    assert live.state.snapshot() == live.other.state.snapshot()
    client.close_socket()
    assert live.core.has_queue("q")
