"""A cluster of one broker: a proposal is applied at once, and is safe when the journal has it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from rhizome.broker.access.application_cluster_token import ApplicationTokens
from rhizome.broker.cluster_port import Cluster, Waiter
from rhizome.broker.metadata.metadata_changes import (
    BindingAdded,
    BindingRemoved,
    ExchangeCreated,
    ExchangeDeleted,
    ExchangeUnused,
    Fact,
    Outcome,
    QueueCreated,
    QueueDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    encode,
)
from rhizome.broker.metadata.vhost_metadata_byte_quota import check_command
from rhizome.broker.publishing.recent_history import history_of
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.turn import Chore
from rhizome.errors import AmqpError

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.journal.journal import Journal


class PolicySteps(Chore):
    """Puts changes of policies in force, over as many turns as it takes."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self._is_chore = False

    def begin(self) -> None:
        """A command was applied."""
        if not self._is_chore and not self.run():
            self._is_chore = True
            self.broker.turn.chores.append(self)

    def run(self) -> bool:
        while self.broker.state.is_unfinished() and not self.broker.turn.is_full():
            self.broker.go_on()
        self._is_chore = self.broker.state.is_unfinished()
        return not self._is_chore


class SingleNodeCluster(Cluster):
    """Invariant: ``waiting`` is in the order of the journal; a waiter is told after its record is
    synced, so that what follows a declare-ok can rely on it even after a crash."""

    broker: Broker
    journal: Journal
    index: int
    waiting: deque[tuple[int, Waiter | None, Outcome, Command]]
    _ahead: deque[tuple[Command, bytes, Waiter | None]]
    _busy: bool
    _steps: PolicySteps
    _tokens: ApplicationTokens

    def __init__(self, broker: Broker, journal: Journal, index: int) -> None:
        super().__init__()
        self.broker = broker
        self.journal = journal
        self.index = index
        self.waiting = deque()
        self._ahead = deque()
        self._busy = False
        self._steps = PolicySteps(broker)
        self._tokens = ApplicationTokens()

    def demand(self, tokens: ApplicationTokens) -> None:
        self._tokens = tokens

    def application_tokens(self) -> ApplicationTokens:
        return self._tokens

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        """Apply a command, and then the commands proposed in consequence.

        They are applied one after the other, so that the journal has them in the order of
        application.
        """
        # A command that cannot be recorded (ValueError) must not be applied either.
        encoded = encode(command)
        try:
            takes_whole = waiter is not None and waiter.takes_whole_state()
            check_command(self.broker.state, command, takes_whole=takes_whole)
        except AmqpError as error:
            if waiter is not None:
                waiter.resolved(Outcome(error=error))
            return
        self._ahead.append((command, encoded, waiter))
        history = history_of(self.broker.state, command)
        if history is not None:
            self._ahead.append((history, encode(history), None))
        if self._busy:
            return
        self._busy = True
        try:
            while self._ahead:
                self._apply(*self._ahead.popleft())
        finally:
            self._busy = False

    def _apply(self, command: Command, encoded: bytes, waiter: Waiter | None) -> None:
        outcome = self.broker.apply(command)
        self._steps.begin()
        if not self._is_durable(command, outcome):
            self._resolve(waiter, outcome, command)
            return
        if isinstance(command, DeclareQueue) and outcome.queue is not None:
            # Unrecorded queues take numbers too, so the number is part of the record.
            queue = outcome.queue
            encoded = encode(replace(command, queue_id=queue.id, group=queue.group))
        elif isinstance(command, DeclareExchange):
            exchange = self.broker.state.vhosts[command.vhost].router.exchanges[command.name]
            encoded = encode(replace(command, exchange_id=exchange.id))
        self.index += 1
        position = self.journal.state(self.index, encoded)
        self.waiting.append((position, waiter, outcome, command))

    def exchange_unused(self, exchange: Exchange) -> None:
        self.propose(DeleteExchange(exchange.vhost, exchange.name, True, exchange.id), None)

    def synced(self, position: int) -> None:
        """Everything below ``position`` is on disk."""
        while self.waiting and self.waiting[0][0] < position:
            _, waiter, outcome, command = self.waiting.popleft()
            self._resolve(waiter, outcome, command)

    def _resolve(self, waiter: Waiter | None, outcome: Outcome, command: Command) -> None:
        if waiter is not None:
            waiter.resolved(outcome)
        self.broker.announce(outcome)
        self.broker.events.changed(command, outcome, waiter)

    def _is_durable(self, command: Command, outcome: Outcome) -> bool:
        """Whether anything changed that must survive a restart."""
        if outcome.error is not None or not outcome.changed:
            return False
        if not outcome.facts:
            return True
        if isinstance(command, (DeleteQueue, DeleteExchange)):
            # None of the bindings that go with it is more durable than the object itself.
            return any(
                self._is_durable_fact(fact)
                for fact in outcome.facts
                if isinstance(fact, (QueueDeleted, ExchangeDeleted))
            )
        return any(self._is_durable_fact(fact) for fact in outcome.facts)

    def _is_durable_fact(self, fact: Fact) -> bool:
        if isinstance(fact, (QueueCreated, QueueDeleted)):
            return fact.definition.durable and not fact.definition.is_private()
        if isinstance(fact, (ExchangeCreated, ExchangeDeleted)):
            return fact.exchange.durable
        if isinstance(fact, ExchangeUnused):
            return False
        if isinstance(fact, (BindingAdded, BindingRemoved)):
            return self._is_durable_binding(fact.vhost, fact.binding)
        return True

    def _is_durable_binding(self, vhost: str, binding: Binding) -> bool:
        source = self.broker.state.vhosts[vhost].router.exchanges.get(binding.source)
        if source is not None and not source.durable:
            return False
        return _is_durable_end(binding.destination)


def _is_durable_end(destination: Destination) -> bool:
    if isinstance(destination, Exchange):
        return destination.durable
    return isinstance(destination, Queue) and destination.durable
