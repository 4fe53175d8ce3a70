"""The size of the cluster state, and the limit to it (R11).

What counts is the encoded size of exchanges, shared queues and their bindings, which applications
make without end if they are let. The limit stops declares and binds only: deletes, users, policies,
membership, takeovers and set changes always pass, so that a full state can be mended.
"""

from __future__ import annotations

from collections.abc import Iterable

from rhizome.broker.commands import Bind, Command, DeclareExchange, DeclareQueue, encode
from rhizome.broker.outcome import (
    BindingAdded,
    BindingRemoved,
    ExchangeCreated,
    ExchangeDeleted,
    Fact,
    QueueCreated,
    QueueDeleted,
    VhostDeleted,
)
from rhizome.broker.snapshots import bind_command, commands_of, exchange_command, queue_command
from rhizome.broker.state import State
from rhizome.errors import PreconditionFailed


class StateSize:
    """Invariant: ``bytes_used`` is what ``recount`` would find."""

    bytes_used: int

    def __init__(self) -> None:
        self.bytes_used = 0

    def recount(self, state: State) -> None:
        self.bytes_used = sum(
            len(encode(command))
            for command in commands_of(state, True)
            if isinstance(command, (DeclareExchange, DeclareQueue, Bind))
        )

    def observe(self, facts: Iterable[Fact], state: State) -> None:
        """Follow what a command changed."""
        for fact in facts:
            if isinstance(fact, VhostDeleted):
                # Its exchanges and bindings went without a fact each.
                self.recount(state)
                return
            self.bytes_used += _change(fact)

    def check(self, command: Command, state: State, bytes_max: int) -> None:
        """Raise PreconditionFailed if a command would make too much of what is limited."""
        if not isinstance(command, (DeclareExchange, DeclareQueue, Bind)):
            return
        needed = self.bytes_used + len(encode(command))
        if needed > bytes_max and not _is_there(command, state):
            raise PreconditionFailed(
                f"the cluster state is full: {self.bytes_used} of {bytes_max} bytes are used; "
                "delete queues, exchanges or bindings that nobody needs, or raise "
                "cluster.state_size_max"
            )


def _change(fact: Fact) -> int:
    if isinstance(fact, ExchangeCreated):
        return len(encode(exchange_command(fact.exchange)))
    if isinstance(fact, ExchangeDeleted):
        return -len(encode(exchange_command(fact.exchange)))
    if isinstance(fact, (BindingAdded, BindingRemoved)):
        sign = 1 if isinstance(fact, BindingAdded) else -1
        return sign * len(encode(bind_command(fact.vhost, fact.binding))) if fact.shared else 0
    if isinstance(fact, (QueueCreated, QueueDeleted)) and not fact.definition.is_private():
        sign = 1 if isinstance(fact, QueueCreated) else -1
        return sign * len(encode(queue_command(fact.definition)))
    return 0


def _is_there(command: DeclareExchange | DeclareQueue | Bind, state: State) -> bool:
    """Whether the thing exists, so that the command makes nothing new."""
    vhost = state.vhosts.get(command.vhost)
    if vhost is None:
        return False
    if isinstance(command, DeclareExchange):
        return command.name in vhost.router.exchanges
    if isinstance(command, DeclareQueue):
        definition = vhost.queues.get(command.name)
        return definition is not None and not definition.is_private()
    return vhost.has_binding(command)
