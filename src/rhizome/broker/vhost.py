"""One vhost of the cluster state: its exchanges, queues, bindings, policies and limits.

Every method that changes something first checks everything that can be refused, so that an error
leaves the vhost as it was, and then appends to ``facts`` what came about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rhizome.broker.arguments import check_exchange_arguments, check_queue_arguments
from rhizome.broker.commands import (
    QUEUE,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeletePolicy,
    PutPolicy,
    Unbind,
)
from rhizome.broker.definitions import Policy, QueueDefinition
from rhizome.broker.equivalence import (
    ExchangeTraits,
    QueueTraits,
    check_exchange_equivalent,
    check_queue_equivalent,
    queue_locked,
)
from rhizome.broker.message import Route
from rhizome.broker.names import (
    check_deletable_exchange,
    check_length,
    check_not_default_exchange,
    no_exchange,
    no_queue,
)
from rhizome.broker.outcome import (
    BindingAdded,
    BindingRemoved,
    ExchangeChanged,
    ExchangeCreated,
    ExchangeDeleted,
    Fact,
    QueueChanged,
    QueueCreated,
    QueueDeleted,
)
from rhizome.broker.policies import (
    Effective,
    alternate_for,
    combine,
    make_policy,
    policy_for_exchange,
    policy_for_queue,
)
from rhizome.broker.routing.destination import Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.kinds import make_exchange, routing_kind
from rhizome.broker.routing.router import Router
from rhizome.broker.words import exchange_resource
from rhizome.errors import PreconditionFailed

# name -> (kind, internal)
PREDECLARED_EXCHANGES: Final[dict[str, tuple[str, bool]]] = {
    "amq.direct": ("direct", False),
    "amq.fanout": ("fanout", False),
    "amq.topic": ("topic", False),
    "amq.headers": ("headers", False),
    "amq.match": ("headers", False),
    "amq.rabbitmq.trace": ("topic", True),
}

QueueFactory = Callable[[QueueDefinition], Destination]
# The group of a new shared queue; raises PreconditionFailed if it can't be where it asks to be.
Placement = Callable[[QueueDefinition], int]


class VHost:
    """A namespace of exchanges and queues.

    Invariant: ``queues`` and ``destinations`` have the same names in the same order, and
    ``destinations`` is the router's own table of queues. ``routes`` is a cache that belongs to the
    publishing side; nothing here reads it.
    """

    name: str
    description: str
    tags: tuple[str, ...]
    router: Router
    queues: dict[str, QueueDefinition]
    destinations: dict[str, Destination]
    policies: dict[str, Policy]
    operator_policies: dict[str, Policy]
    limits: dict[str, int]
    routes: dict[bytes, Route]
    _make_queue: QueueFactory

    def __init__(self, name: str, make_queue: QueueFactory) -> None:
        self.name = name
        self.description = ""
        self.tags = ()
        self.router = Router(name)
        self.queues = {}
        self.destinations = self.router.queues
        self.policies = {}
        self.operator_policies = {}
        self.limits = {}
        self.routes = {}
        self._make_queue = make_queue
        for exchange, (kind, internal) in PREDECLARED_EXCHANGES.items():
            self.router.add_exchange(make_exchange(name, exchange, kind, True, False, internal))

    # --- lookups

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name; raises NotFound."""
        found = self.router.exchanges.get(name)
        if found is None:
            raise no_exchange(self.name, name)
        return found

    def queue(self, name: str) -> QueueDefinition:
        """The queue of that name; raises NotFound."""
        found = self.queues.get(name)
        if found is None:
            raise no_queue(self.name, name)
        return found

    def policy_for_queue(self, definition: QueueDefinition) -> Effective:
        """The policies in force for a queue."""
        return combine(
            policy_for_queue(self.policies.values(), definition),
            policy_for_queue(self.operator_policies.values(), definition),
        )

    def policy_for_exchange(self, exchange: Exchange) -> Effective:
        """The policies in force for an exchange."""
        return combine(
            policy_for_exchange(self.policies.values(), exchange),
            policy_for_exchange(self.operator_policies.values(), exchange),
        )

    # --- exchanges

    def declare_exchange(self, command: DeclareExchange, facts: list[Fact]) -> None:
        check_not_default_exchange(command.name)
        check_length("exchange name", command.name)
        routing_kind(command.kind, command.arguments)
        check_exchange_arguments(self.name, command.name, command.arguments)
        existing = self.router.exchanges.get(command.name)
        if existing is not None:
            check_exchange_equivalent(
                self.name, command.name, _exchange_traits(existing), _exchange_traits(command)
            )
            return
        exchange = make_exchange(
            self.name,
            command.name,
            command.kind,
            command.durable,
            command.auto_delete,
            command.internal,
            command.arguments,
        )
        self.router.add_exchange(exchange)
        self._refresh_alternate(exchange)
        facts.append(ExchangeCreated(exchange))

    def delete_exchange(self, name: str, if_unused: bool, facts: list[Fact]) -> None:
        check_deletable_exchange(self.name, name)
        exchange = self.router.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and not exchange.is_unused():
            raise PreconditionFailed(f"{exchange_resource(self.name, name)} in use")
        self._remove_unused(self._remove_exchange(exchange, False, facts), facts)

    def _remove_exchange(
        self, exchange: Exchange, automatic: bool, facts: list[Fact]
    ) -> list[Exchange]:
        """Remove an exchange with its bindings; returns the exchanges that lost one to it."""
        for binding in exchange.bindings():
            facts.append(BindingRemoved(self.name, binding))
        for binding in exchange.incoming:
            if binding.source != exchange.name:
                facts.append(BindingRemoved(self.name, binding))
        facts.append(ExchangeDeleted(exchange, automatic))
        return self.router.remove_exchange(exchange)

    def _remove_unused(self, bereft: list[Exchange], facts: list[Fact]) -> None:
        """Delete the exchanges, of those that have just lost a binding, that wanted that.

        Each of them may leave others without a binding. No recursion: chains of auto-delete
        exchanges are as long as clients make them.
        """
        ahead = deque(bereft)
        while ahead:
            exchange = ahead.popleft()
            present = self.router.exchanges.get(exchange.name) is exchange
            if present and exchange.auto_delete and exchange.is_unused():
                ahead.extend(self._remove_exchange(exchange, True, facts))

    # --- queues

    def declare_queue(
        self, command: DeclareQueue, queue_id: int, place: Placement, facts: list[Fact]
    ) -> QueueDefinition:
        """Create a queue under ``queue_id``; there is none of that name."""
        assert command.name not in self.queues, command.name
        check_length("queue name", command.name)
        private = command.exclusive_owner != ""
        declared = check_queue_arguments(
            self.name,
            command.name,
            command.arguments,
            command.durable,
            private,
            command.auto_delete,
        )
        definition = QueueDefinition(
            queue_id,
            self.name,
            command.name,
            command.durable,
            command.auto_delete,
            command.exclusive_owner,
            command.arguments,
            declared,
            declared,
            command.user,
        )
        self._refresh_options(definition)
        if not private:
            definition.group = command.group or place(definition)
        destination = self._make_queue(definition)
        self.queues[command.name] = definition
        self.router.add_queue(destination)
        facts.append(QueueCreated(definition, destination))
        return definition

    def check_declared_alike(self, existing: QueueDefinition, command: DeclareQueue) -> None:
        """Raise ResourceLocked or PreconditionFailed if a queue is declared in another way."""
        if existing.exclusive_owner != command.exclusive_owner:
            raise queue_locked(self.name, command.name, 50, 10)
        check_queue_equivalent(
            self.name, command.name, _queue_traits(existing), _queue_traits(command)
        )

    def delete_queue(self, name: str, queue_id: int, facts: list[Fact]) -> None:
        definition = self.queues.get(name)
        if definition is None or queue_id not in (0, definition.id):
            return
        destination = self.destinations[name]
        for binding in destination.incoming:
            facts.append(BindingRemoved(self.name, binding))
        del self.queues[name]
        sources = self.router.remove_queue(destination)
        facts.append(QueueDeleted(definition, destination))
        self._remove_unused(sources, facts)

    # --- bindings

    def bind(self, command: Bind, facts: list[Fact]) -> None:
        source, destination = self._ends(command)
        if source is None:
            raise no_exchange(self.name, command.source)
        if destination is None:
            missing = no_queue if command.destination_kind == QUEUE else no_exchange
            raise missing(self.name, command.destination)
        check_length("binding key", command.key)
        if self.router.bind(source, destination, command.key, command.arguments):
            binding = source.find(destination, command.key, command.arguments)
            assert binding is not None
            facts.append(BindingAdded(self.name, binding))

    def unbind(self, command: Unbind, facts: list[Fact]) -> None:
        """Remove a binding; as in RabbitMQ it is no error if it or one of its ends is missing."""
        source, destination = self._ends(command)
        if source is None or destination is None:
            return
        binding = source.find(destination, command.key, command.arguments)
        if binding is None:
            return
        self.router.unbind(source, destination, command.key, command.arguments)
        facts.append(BindingRemoved(self.name, binding))
        self._remove_unused([source], facts)

    def _ends(self, command: Bind | Unbind) -> tuple[Exchange | None, Destination | None]:
        check_not_default_exchange(command.source)
        source = self.router.exchanges.get(command.source)
        if command.destination_kind == QUEUE:
            return source, self.destinations.get(command.destination)
        check_not_default_exchange(command.destination)
        return source, self.router.exchanges.get(command.destination)

    # --- policies

    def put_policy(self, command: PutPolicy, facts: list[Fact]) -> bool:
        """Set a policy; False if the same one is there."""
        policy = make_policy(command)
        policies = self.operator_policies if command.operator else self.policies
        if policies.get(command.name) == policy:
            return False
        policies[command.name] = policy
        self._refresh(facts)
        return True

    def delete_policy(self, command: DeletePolicy, facts: list[Fact]) -> bool:
        """Delete a policy; False if there is none."""
        policies = self.operator_policies if command.operator else self.policies
        if policies.pop(command.name, None) is None:
            return False
        self._refresh(facts)
        return True

    def _refresh(self, facts: list[Fact]) -> None:
        """Bring options and alternates up to date with the policies."""
        for name, definition in self.queues.items():
            if self._refresh_options(definition):
                facts.append(QueueChanged(definition, self.destinations[name]))
        for exchange in self.router.exchanges.values():
            if self._refresh_alternate(exchange):
                facts.append(ExchangeChanged(exchange))

    def _refresh_options(self, definition: QueueDefinition) -> bool:
        effective = self.policy_for_queue(definition)
        definition.policy = effective.policy
        definition.operator_policy = effective.operator_policy
        if definition.policy_definition == effective.definition:
            return False
        definition.policy_definition = effective.definition
        definition.options = definition.declared.merged(effective.definition)
        return True

    def _refresh_alternate(self, exchange: Exchange) -> bool:
        before = exchange.alternate
        effective = self.policy_for_exchange(exchange)
        self.router.set_alternate(exchange, alternate_for(exchange, effective.definition))
        return exchange.alternate != before


def _exchange_traits(of: Exchange | DeclareExchange) -> ExchangeTraits:
    return ExchangeTraits(of.kind, of.durable, of.auto_delete, of.internal, of.arguments)


def _queue_traits(of: QueueDefinition | DeclareQueue) -> QueueTraits:
    return QueueTraits(of.durable, of.exclusive_owner != "", of.auto_delete, of.arguments)
