"""Cluster states to test with, and entries to feed them."""

from __future__ import annotations

from rhizome.broker.metadata.metadata_changes import Fact, Outcome
from rhizome.broker.metadata.metadata_commands import Command, PutVhost
from rhizome.broker.metadata.metadata_state import State
from rhizome.cluster.state.cluster_commands import Envelope, RegisterBroker, encode
from rhizome.cluster.state.cluster_state import Applied, ClusterState


class PlainHost:
    """A broker without queues of its own: the state is all that changes."""

    def __init__(self) -> None:
        self._state = State()

    @property
    def state(self) -> State:
        return self._state

    def apply(self, command: Command) -> Outcome:
        return self._state.apply(command)

    def go_on(self) -> list[Fact]:
        return []


class Machine:
    """A cluster state with its host, fed entry by entry."""

    def __init__(self) -> None:
        self.host = PlainHost()
        self.state = ClusterState(self.host)

    def feed(
        self, command: Command, incarnation: str = "", number: int = 0, answered: int = 0
    ) -> Applied:
        payload = encode(Envelope(command, incarnation, number, answered))
        return self.state.apply(self.state.index + 1, payload)

    def done(self, *commands: Command) -> Applied:
        """Apply commands that must succeed; what the last one did."""
        assert commands
        for command in commands:
            applied = self.feed(command)
            assert applied.outcome.error is None, (command, applied.outcome.error)
        return applied

    def refused(self, command: Command) -> str:
        """Apply a command that must be refused, and change nothing; the text of the refusal."""
        before = self.state.snapshot()
        applied = self.feed(command)
        assert applied.outcome.error is not None, command
        assert applied.facts == []
        assert not applied.outcome.changed
        assert self.state.snapshot() == before
        return applied.outcome.error.text

    def declared_group(self, command: Command) -> int:
        queue = self.done(command).outcome.queue
        assert queue is not None
        return queue.group


def register(
    name: str, incarnation: str = "", role: str = "primary", machine: str = ""
) -> RegisterBroker:
    """A broker called b1 has the UUID u-b1 and, unless told, the incarnation b1.1."""
    addresses = (f"{name}:5672",)
    started = incarnation or f"{name}.1"
    return RegisterBroker(name, f"u-{name}", started, role, addresses, machine or f"m-{name}")


def make_machine(*brokers: str) -> Machine:
    """A cluster of primaries, with the vhost /."""
    machine = Machine()
    machine.done(PutVhost("/"))
    for name in brokers:
        machine.done(register(name))
    return machine
