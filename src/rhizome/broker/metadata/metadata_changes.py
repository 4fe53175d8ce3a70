"""The outcome of a command: an error, or facts that the broker around the state reacts to."""

from __future__ import annotations

from dataclasses import dataclass, field

from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition, User
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import AmqpError


@dataclass(frozen=True)
class Fact:
    """Something that changed. Facts are listed in the order in which they happened."""


@dataclass(frozen=True)
class VhostCreated(Fact):
    name: str


@dataclass(frozen=True)
class VhostDeleted(Fact):
    """After the `QueueDeleted` of all its queues."""

    name: str


@dataclass(frozen=True)
class QueueCreated(Fact):
    definition: QueueDefinition
    destination: Destination


@dataclass(frozen=True)
class QueueDeleted(Fact):
    """A queue is deleted: its runtime, messages and consumers must go."""

    definition: QueueDefinition
    destination: Destination


@dataclass(frozen=True)
class QueueChanged(Fact):
    """A policy has changed the queue's ``definition.options``."""

    definition: QueueDefinition
    destination: Destination


@dataclass(frozen=True)
class ExchangeCreated(Fact):
    exchange: Exchange


@dataclass(frozen=True)
class ExchangeDeleted(Fact):
    exchange: Exchange


@dataclass(frozen=True)
class ExchangeUnused(Fact):
    """An auto-delete exchange has lost the last binding that this broker knows of.

    It is not deleted at once, because other brokers have other private bindings. This broker
    proposes a DeleteExchange with ``if_unused`` and the exchange's number.
    """

    exchange: Exchange


@dataclass(frozen=True)
class ExchangeChanged(Fact):
    """A policy has changed the exchange's alternate."""

    exchange: Exchange


@dataclass(frozen=True)
class BindingAdded(Fact):
    """``shared``: to an exchange or a shared queue, so that every broker has it."""

    vhost: str
    binding: Binding
    shared: bool


@dataclass(frozen=True)
class BindingRemoved(Fact):
    """A binding was removed, on request or because its source or destination is gone."""

    vhost: str
    binding: Binding
    shared: bool


@dataclass(frozen=True)
class AccessChanged(Fact):
    """A user, or a permission of that user, has changed: cached answers about access are void, and
    the user's connections are checked again (`revocation.py`).

    ``deleted``: the user is gone. ``is_put``: the user was made or replaced; ``before`` is who it
    was.
    """

    user: str
    deleted: bool = False
    is_put: bool = field(default=False, compare=False)
    before: User | None = field(default=None, compare=False)


@dataclass(frozen=True)
class LimitChanged(Fact):
    scope: str
    name: str


@dataclass(frozen=True)
class ParameterChanged(Fact):
    component: str
    vhost: str
    name: str


@dataclass
class Outcome:
    """The result of applying one command.

    Invariant: with an ``error`` nothing has changed and ``facts`` is empty. ``changed`` is also
    False if the command changes nothing because everything is already so. ``queue`` is what a
    DeclareQueue declared or found.
    """

    changed: bool = False
    error: AmqpError | None = None
    facts: list[Fact] = field(default_factory=list)
    queue: QueueDefinition | None = None

    def check(self, class_id: int, method_id: int) -> None:
        """Raise the error, if there is one, as caused by that method."""
        if self.error is not None:
            self.error.class_id = class_id
            self.error.method_id = method_id
            raise self.error
