"""One vhost of the cluster state: its exchanges, queues, bindings, policies and limits.

Every method that changes something first checks everything that can be refused, so that an error
leaves the vhost as it was. Then it appends the changes to ``facts``.

Shared objects are the same on every broker of a cluster; private queues and their bindings exist on
one broker only. So the outcome of a command about shared objects depends on shared objects only: a
private queue is replaced by a shared one of its name, a shared bind ignores it, and an exchange
that is bound to private queues alone counts as unused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from rhizome.broker.erlang_term_text import exchange_resource
from rhizome.broker.message import Route
from rhizome.broker.metadata.declare_and_consume_arguments import (
    check_exchange_arguments,
    check_queue_arguments,
)
from rhizome.broker.metadata.metadata_changes import (
    BindingAdded,
    BindingRemoved,
    ExchangeChanged,
    ExchangeCreated,
    ExchangeDeleted,
    ExchangeUnused,
    Fact,
    QueueChanged,
    QueueCreated,
    QueueDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    EXCHANGE,
    PRIVATE,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeletePolicy,
    PutPolicy,
    Unbind,
)
from rhizome.broker.metadata.policy_index import PolicyIndex, PolicyWalk, Ranked
from rhizome.broker.metadata.policy_resolution import (
    Effective,
    alternate_for,
    combine,
    make_policy,
    policy_for_exchange,
    policy_for_queue,
)
from rhizome.broker.metadata.queue_policy_user_records import Policy, QueueDefinition
from rhizome.broker.metadata.redeclare_equivalence import (
    ExchangeTraits,
    QueueTraits,
    check_exchange_equivalent,
    check_queue_equivalent,
    queue_locked,
)
from rhizome.broker.metadata.resource_names import (
    EVENT_EXCHANGE,
    check_deletable_exchange,
    check_length,
    check_not_default_exchange,
    no_exchange,
    no_queue,
)
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.exchange_types import make_exchange, routing_kind
from rhizome.broker.routing.router import Router
from rhizome.errors import PreconditionFailed

# name -> (kind, internal)
PREDECLARED_EXCHANGES: Final[dict[str, tuple[str, bool]]] = {
    "amq.direct": ("direct", False),
    "amq.fanout": ("fanout", False),
    "amq.topic": ("topic", False),
    "amq.headers": ("headers", False),
    "amq.match": ("headers", False),
    "amq.rabbitmq.trace": ("topic", True),
    EVENT_EXCHANGE: ("topic", True),
}

REFRESH_WORK: Final = 10
"""Units of a turn's work for a queue or exchange whose policies are combined anew."""

QueueFactory = Callable[[QueueDefinition], Destination]
# The group of a new shared queue; raises PreconditionFailed if it can't be where it asks to be.
Placement = Callable[[QueueDefinition], int]


class VHost:
    """A namespace of exchanges and queues.

    Invariant: ``queues`` and ``destinations`` have the same names in the same order, and
    ``destinations`` is the router's own table of queues. ``routes`` is a cache that belongs to
    publishing; nothing here reads it. ``_bereft`` has every auto-delete exchange that has lost its
    last binding, and perhaps some that were bound again since. Each policy is in force for each
    name, but for what ``walks`` have still to visit.
    """

    name: str
    description: str
    tags: tuple[str, ...]
    router: Router
    queues: dict[str, QueueDefinition]
    destinations: dict[str, Destination]
    policies: dict[str, Policy]
    operator_policies: dict[str, Policy]
    _policy_index: PolicyIndex
    _operator_index: PolicyIndex
    walks: deque[PolicyWalk]
    limits: dict[str, int]
    routes: dict[bytes, Route]
    _bereft: dict[Exchange, None]
    _make_queue: QueueFactory

    def __init__(self, name: str, make_queue: QueueFactory) -> None:
        self.name = name
        self.description = ""
        self.tags = ()
        self.router = Router(name)
        self.queues = {}
        self.destinations = self.router.queues
        self._policy_index = PolicyIndex()
        self._operator_index = PolicyIndex()
        self.policies = self._policy_index.policies
        self.operator_policies = self._operator_index.policies
        self.walks = deque()
        self.limits = {}
        self.routes = {}
        self._bereft = {}
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
        name = definition.name
        return _effective(self._policy_index.of(name), self._operator_index.of(name), definition)

    def policy_for_exchange(self, exchange: Exchange) -> Effective:
        """The policies in force for an exchange."""
        return combine(
            policy_for_exchange(self._policy_index.of(exchange.name), exchange),
            policy_for_exchange(self._operator_index.of(exchange.name), exchange),
        )

    def is_shared(self, destination: Destination) -> bool:
        """Whether every broker of a cluster has this destination of a binding."""
        if isinstance(destination, Exchange):
            return True
        definition = self.queues.get(destination.name)
        if definition is None or self.destinations[destination.name] is not destination:
            return False  # Any other destination stands for something on another broker.
        return not definition.is_private()

    def unused_exchanges(self) -> list[Exchange]:
        """The auto-delete exchanges that should be gone: `ExchangeUnused` was reported of each."""
        unused = [exchange for exchange in self._bereft if self._is_here_and_unused(exchange)]
        self._bereft = dict.fromkeys(unused)
        return unused

    def _is_here_and_unused(self, exchange: Exchange) -> bool:
        return self.router.exchanges.get(exchange.name) is exchange and exchange.is_unused()

    # --- exchanges

    def declare_exchange(
        self, command: DeclareExchange, exchange_id: int, facts: list[Fact]
    ) -> Exchange:
        """Create an exchange under ``exchange_id``, or find one with the same declaration."""
        check_not_default_exchange(command.name)
        check_length("exchange name", command.name)
        routing_kind(command.kind, command.arguments)
        check_exchange_arguments(self.name, command.name, command.arguments)
        existing = self.router.exchanges.get(command.name)
        if existing is not None:
            check_exchange_equivalent(
                self.name, command.name, _exchange_traits(existing), _exchange_traits(command)
            )
            return existing
        exchange = make_exchange(
            self.name,
            command.name,
            command.kind,
            command.durable,
            command.auto_delete,
            command.internal,
            command.arguments,
        )
        exchange.id = exchange_id
        self.router.add_exchange(exchange)
        self._remember_policies(exchange.name, *self._search_policies(exchange.name))
        self._refresh_exchange(exchange)
        facts.append(ExchangeCreated(exchange))
        return exchange

    def delete_exchange(self, command: DeleteExchange, facts: list[Fact]) -> None:
        check_deletable_exchange(self.name, command.name)
        exchange = self.router.exchanges.get(command.name)
        if exchange is None or command.exchange_id not in (0, exchange.id):
            return
        outgoing = exchange.bindings()
        if command.if_unused and any(self.is_shared(each.destination) for each in outgoing):
            raise PreconditionFailed(f"{exchange_resource(self.name, command.name)} in use")
        incoming = [each for each in exchange.incoming if each.source != exchange.name]
        self._removed(outgoing + incoming, facts)
        facts.append(ExchangeDeleted(exchange))
        self.note_unused(self.router.remove_exchange(exchange), facts)
        self._forget_name(command.name)

    def _forget_name(self, name: str) -> None:
        """A queue or an exchange is gone; there may still be one of the other kind."""
        if name not in self.queues and name not in self.router.exchanges:
            self._policy_index.forget(name)
            self._operator_index.forget(name)

    def _removed(self, bindings: Iterable[Binding], facts: list[Fact]) -> None:
        """Report bindings that are about to be removed with their source or destination."""
        for binding in bindings:
            facts.append(BindingRemoved(self.name, binding, self.is_shared(binding.destination)))

    def note_unused(self, bereft: Iterable[Exchange], facts: list[Fact]) -> None:
        """Report the auto-delete exchanges among those that have just lost a binding and are now
        unused."""
        for exchange in bereft:
            if exchange.auto_delete and self._is_here_and_unused(exchange):
                self._bereft[exchange] = None
                facts.append(ExchangeUnused(exchange))

    # --- queues

    def declare_queue(
        self, command: DeclareQueue, queue_id: int, place: Placement, facts: list[Fact]
    ) -> QueueDefinition:
        """Create a queue under ``queue_id``. The name is free, or taken by a private queue, which
        is then replaced."""
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
        fitting, operators = self._search_policies(command.name)
        _apply(_effective(fitting, operators, definition), definition)
        if not private:
            definition.group = command.group or place(definition)
        displaced = self.queues.get(command.name)
        if displaced is not None:
            self.delete_queue(displaced.name, displaced.id, facts)
        destination = self._make_queue(definition)
        self.queues[command.name] = definition
        self._remember_policies(command.name, fitting, operators)
        self.router.add_queue(destination)
        facts.append(QueueCreated(definition, destination))
        return definition

    def check_declared_alike(self, existing: QueueDefinition, command: DeclareQueue) -> None:
        """Raise ResourceLocked or PreconditionFailed if a queue is declared differently than it
        exists."""
        if existing.exclusive_owner != command.exclusive_owner:
            raise queue_locked(self.name, command.name, 50, 10)
        check_queue_equivalent(
            self.name, command.name, _queue_traits(existing), _queue_traits(command)
        )

    def delete_queue(self, name: str, queue_id: int, facts: list[Fact]) -> None:
        definition = self.queues.get(name)
        if definition is None or queue_id not in (0, definition.id):
            return
        if queue_id == 0 and definition.is_private():
            return
        destination = self.destinations[name]
        self._removed(destination.incoming, facts)
        del self.queues[name]
        sources = self.router.remove_queue(destination)
        facts.append(QueueDeleted(definition, destination))
        self.note_unused(sources, facts)
        self._forget_name(name)

    # --- bindings

    def bind(self, command: Bind, facts: list[Fact]) -> None:
        source, destination = self._ends(command)
        if source is None:
            raise no_exchange(self.name, command.source)
        if destination is None:
            missing = no_exchange if command.destination_kind == EXCHANGE else no_queue
            raise missing(self.name, command.destination)
        check_length("binding key", command.key)
        if self.router.bind(source, destination, command.key, command.arguments):
            binding = source.find(destination, command.key, command.arguments)
            assert binding is not None
            facts.append(BindingAdded(self.name, binding, self.is_shared(destination)))

    def has_binding(self, command: Bind) -> bool:
        """Whether a bind would change nothing."""
        source, destination = self._ends(command)
        if source is None or destination is None:
            return False
        return source.find(destination, command.key, command.arguments) is not None

    def bindings_to_destination(self, command: Bind) -> int:
        """How many bindings the destination of a bind has; one of many words counts as several."""
        _, destination = self._ends(command)
        return 0 if destination is None else int(destination.weight)

    def bindings_from_source(self, command: Bind) -> int:
        """How many bindings the source of a bind has."""
        source, _ = self._ends(command)
        return 0 if source is None else source.binding_count()

    def unbind(self, command: Unbind, facts: list[Fact]) -> None:
        """Remove a binding; as in RabbitMQ a missing binding, source or destination is no error."""
        source, destination = self._ends(command)
        if source is None or destination is None:
            return
        binding = source.find(destination, command.key, command.arguments)
        if binding is None:
            return
        self._removed([binding], facts)
        self.router.unbind(source, destination, command.key, command.arguments)
        self.note_unused([source], facts)

    def _ends(self, command: Bind | Unbind) -> tuple[Exchange | None, Destination | None]:
        check_not_default_exchange(command.source)
        source = self.router.exchanges.get(command.source)
        if command.destination_kind == EXCHANGE:
            check_not_default_exchange(command.destination)
            return source, self.router.exchanges.get(command.destination)
        definition = self.queues.get(command.destination)
        if definition is None or definition.is_private() != (command.destination_kind == PRIVATE):
            return source, None
        return source, self.destinations[command.destination]

    # --- policies

    def _search_policies(self, name: str) -> tuple[Ranked, Ranked]:
        """The policies and operator policies that fit the name of a new queue or exchange."""
        return self._policy_index.search(name), self._operator_index.search(name)

    def search_work(self, name: str) -> int:
        """What it took to find the policies of a new queue or exchange."""
        return self._policy_index.search_work(name) + self._operator_index.search_work(name)

    def _remember_policies(self, name: str, fitting: Ranked, operators: Ranked) -> None:
        self._policy_index.remember(name, fitting)
        self._operator_index.remember(name, operators)

    def put_policy(self, command: PutPolicy) -> bool:
        """Set a policy, which `walk_on` puts in force; False if the same one is there."""
        policy = make_policy(command)
        index = self._operator_index if command.operator else self._policy_index
        if index.policies.get(command.name) == policy:
            return False
        is_walking = any(
            (walk.index, walk.policy_name) == (index, policy.name) for walk in self.walks
        )
        others = [name for name in self.router.exchanges if name not in self.queues]
        self.walks.append(index.put(policy, (*self.queues, *others), is_walking))
        return True

    def delete_policy(self, command: DeletePolicy) -> bool:
        """Delete a policy, whose settings `walk_on` takes back; False if there is none."""
        index = self._operator_index if command.operator else self._policy_index
        if command.name not in index.policies:
            return False
        self.walks.append(index.delete(command.name))
        return True

    def walk_on(self, facts: list[Fact], work_max: int) -> int:
        """Put changes of policies in force, name by name; what it took, in units of a turn's work,
        which is little more than ``work_max``."""
        work = 0
        while self.walks and work < work_max:
            walk = self.walks[0]
            if not walk.names:
                self.walks.popleft()
                continue
            name = walk.names.popleft()
            work += walk.index.visit_work(walk, name)
            is_here = name in self.queues or name in self.router.exchanges
            if is_here and walk.index.visit(walk, name):
                work += REFRESH_WORK
                self._refresh(name, facts)
        return work

    def _refresh(self, name: str, facts: list[Fact]) -> None:
        """Bring the options and alternates of those with such a name up to date."""
        definition = self.queues.get(name)
        if definition is not None and _apply(self.policy_for_queue(definition), definition):
            facts.append(QueueChanged(definition, self.destinations[name]))
        exchange = self.router.exchanges.get(name)
        if exchange is not None and self._refresh_exchange(exchange):
            facts.append(ExchangeChanged(exchange))

    def _refresh_exchange(self, exchange: Exchange) -> bool:
        if exchange.name == EVENT_EXCHANGE:
            # By a tap or an alternate whoever sets policies would get what takes a tag to read.
            return False
        before = (exchange.alternate, exchange.tap)
        effective = self.policy_for_exchange(exchange)
        self.router.set_alternate(exchange, alternate_for(exchange, effective.definition))
        tap = effective.definition.get("tap")
        self.router.set_tap(exchange, tap if isinstance(tap, str) else "")
        return (exchange.alternate, exchange.tap) != before


def _effective(fitting: Ranked, operators: Ranked, definition: QueueDefinition) -> Effective:
    return combine(policy_for_queue(fitting, definition), policy_for_queue(operators, definition))


def _apply(effective: Effective, definition: QueueDefinition) -> bool:
    """Give a queue the settings of its policies; whether that changes any."""
    definition.policy = effective.policy
    definition.operator_policy = effective.operator_policy
    if definition.policy_definition == effective.definition:
        return False
    definition.policy_definition = effective.definition
    definition.options = definition.declared.merged(effective.definition)
    return True


def _exchange_traits(of: Exchange | DeclareExchange) -> ExchangeTraits:
    return ExchangeTraits(of.kind, of.durable, of.auto_delete, of.internal, of.arguments)


def _queue_traits(of: QueueDefinition | DeclareQueue) -> QueueTraits:
    return QueueTraits(of.durable, of.exclusive_owner != "", of.auto_delete, of.arguments)
