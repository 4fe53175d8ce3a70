"""The cluster state: a deterministic machine that commands are applied to.

Brokers that apply the same commands in the same order hold equal states. There is no clock, no
randomness and no input here; tables are walked in the order in which they were filled.

Private queues (those with an exclusive owner) live in the same vhosts, so that routing and policies
treat all queues alike. They belong to this broker only: they have numbers of their own, from
``PRIVATE_QUEUE_IDS`` on, no snapshot contains them, and they never change the outcome of a command
about shared objects.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from rhizome.broker.metadata import metadata_snapshot, vhost_metadata_byte_quota
from rhizome.broker.metadata.metadata_changes import (
    Fact,
    LimitChanged,
    Outcome,
    ParameterChanged,
    QueueDeleted,
    VhostCreated,
    VhostDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    SCOPE_USER,
    SCOPE_VHOST,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteLimit,
    DeleteParameter,
    DeletePermission,
    DeletePolicy,
    DeleteQueue,
    DeleteTopicPermission,
    DeleteUser,
    DeleteVhost,
    PutLimit,
    PutParameter,
    PutPermission,
    PutPolicy,
    PutTopicPermission,
    PutUser,
    PutVhost,
    Unbind,
)
from rhizome.broker.metadata.policy_resolution import Effective
from rhizome.broker.metadata.queue_policy_user_records import (
    OPERATOR_POLICY,
    PERMISSION,
    POLICY,
    TOPIC_PERMISSION,
    FaultyPattern,
    Permission,
    QueueDefinition,
    TopicPermission,
    User,
)
from rhizome.broker.metadata.resource_names import check_declarable_name, check_length, no_vhost
from rhizome.broker.metadata.users_and_permissions import Accounts
from rhizome.broker.metadata.vhost import Placement, QueueFactory, VHost
from rhizome.broker.routing.bindings_and_destinations import Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import AmqpError, NotFound, PreconditionFailed

__all__ = [
    "LIMITS",
    "PRIVATE_QUEUE_IDS",
    "Outcome",
    "QueueDefinition",
    "State",
    "VHost",
    "check_declarable_name",
]

PRIVATE_QUEUE_IDS: Final = 1 << 31
WHOLE: Final = 1 << 60
"""More work than there is."""
LONE_GROUP: Final = 1
LIMITS: Final = ("max-connections", "max-channels", "max-queues")


def plain_destination(definition: QueueDefinition) -> Destination:
    """The destination of a queue that is not run here."""
    return Destination(definition.vhost, definition.name)


def lone_placement(definition: QueueDefinition) -> int:
    """The only group of a broker without a cluster, whatever is asked for."""
    return LONE_GROUP


def _count(vhost: VHost, private: bool, user: str) -> int:
    """How many queues of a user ("" for anybody's) count against a limit."""
    return sum(
        definition.user == user or user == ""
        for definition in vhost.queues.values()
        if private or not definition.is_private()
    )


class State:
    """Everything that a cluster agrees on. Only ``apply``, or ``begin`` and ``go_on``, change it.

    ``make_queue`` makes the destination of a new queue's bindings. It is called while a command is
    applied, and what it makes appears in ``VHost.destinations`` and in the facts. ``place`` chooses
    the group of a new shared queue; like everything here it must depend only on what was applied
    before.
    """

    vhosts: dict[str, VHost]
    accounts: Accounts
    users: dict[str, User]
    permissions: dict[tuple[str, str], Permission]
    topic_permissions: dict[tuple[str, str, str], TopicPermission]
    parameters: dict[tuple[str, str, str], object]
    sizes: vhost_metadata_byte_quota.StateBytes
    next_queue_id: int
    next_exchange_id: int
    place: Placement
    stepped: int
    _walking: deque[VHost]
    _next_private_id: int
    _make_queue: QueueFactory

    def __init__(self, make_queue: QueueFactory = plain_destination) -> None:
        self.vhosts = {}
        self._walking = deque()
        self.stepped = 0
        self.accounts = Accounts()
        self.users = self.accounts.users
        self.permissions = self.accounts.permissions
        self.topic_permissions = self.accounts.topic_permissions
        self.parameters = {}
        self.sizes = vhost_metadata_byte_quota.StateBytes()
        self.next_queue_id = 1
        self.next_exchange_id = 1
        self.place = lone_placement
        self._next_private_id = PRIVATE_QUEUE_IDS
        self._make_queue = make_queue

    # --- lookups

    def vhost(self, name: str) -> VHost:
        """The vhost of that name; raises NotFound."""
        found = self.vhosts.get(name)
        if found is None:
            raise no_vhost(name)
        return found

    def policy_for_queue(self, definition: QueueDefinition) -> Effective:
        """The policies in force for a queue."""
        return self.vhost(definition.vhost).policy_for_queue(definition)

    def policy_for_exchange(self, exchange: Exchange) -> Effective:
        """The policies in force for an exchange."""
        return self.vhost(exchange.vhost).policy_for_exchange(exchange)

    def limit(self, scope: str, name: str, limit: str) -> int:
        """The value of a limit of a vhost or a user; -1 if there is none."""
        value = self._limits(scope, name).get(limit, -1)
        return max(value, -1)

    def _limits(self, scope: str, name: str) -> dict[str, int]:
        if scope == SCOPE_VHOST:
            return self.vhosts[name].limits if name in self.vhosts else {}
        return self.accounts.limits.get(name, {})

    def faulty_patterns(self) -> list[FaultyPattern]:
        """The patterns that match nothing because they are faulty."""
        found: list[FaultyPattern] = []
        for vhost in self.vhosts.values():
            for policy in [*vhost.policies.values(), *vhost.operator_policies.values()]:
                if policy.expression.fault:
                    kind = OPERATOR_POLICY if policy.operator else POLICY
                    fault = policy.expression.fault
                    found.append(FaultyPattern(kind, vhost.name, policy.name, "", fault))
        for right in self.permissions.values():
            for fault in right.faults:
                found.append(FaultyPattern(PERMISSION, right.vhost, right.user, "", fault))
        for rule in self.topic_permissions.values():
            for fault in rule.faults:
                found.append(
                    FaultyPattern(TOPIC_PERMISSION, rule.vhost, rule.user, rule.exchange, fault)
                )
        return found

    # --- changes

    def apply(self, command: Command) -> Outcome:
        """Apply a command as a whole. A refusal is an outcome too, the same one on every broker."""
        outcome = self.begin(command)
        while self.is_unfinished():
            outcome.facts += self.go_on(WHOLE)
        return outcome

    def begin(self, command: Command) -> Outcome:
        """Apply a command, but for what `go_on` does in steps: a policy is set, and in force for no
        name yet."""
        outcome = Outcome()
        try:
            self._apply(command, outcome)
        except AmqpError as error:
            return Outcome(error=error)
        if outcome.facts:
            outcome.changed = True
            if not isinstance(command, DeleteVhost):
                self.sizes.observe(outcome.facts)
        return outcome

    def is_unfinished(self) -> bool:
        """Whether there is something for `go_on`."""
        return len(self._walking) > 0

    def go_on(self, work_max: int) -> list[Fact]:
        """Put changes of policies in force for more names; the facts. ``self.stepped`` is what it
        took, in units of a turn's work."""
        facts: list[Fact] = []
        self.stepped = 0
        while self._walking and self.stepped < work_max:
            vhost = self._walking[0]
            self.stepped += vhost.walk_on(facts, work_max - self.stepped)
            if not vhost.walks:
                self._walking.popleft()
        return facts

    def _apply(self, command: Command, outcome: Outcome) -> None:
        if isinstance(command, DeclareQueue):
            outcome.queue = self._declare_queue(command, outcome.facts)
        elif not (
            self._apply_topology(command, outcome.facts)
            or self._apply_access(command, outcome.facts)
            or self._apply_settings(command, outcome)
        ):
            raise TypeError(f"the state knows no command {type(command).__name__}")

    def _apply_topology(self, command: Command, facts: list[Fact]) -> bool:
        """Apply a command about exchanges, queues or bindings; False if it is about others."""
        if isinstance(command, DeleteQueue):
            self.vhost(command.vhost).delete_queue(command.name, command.queue_id, facts)
        elif isinstance(command, Bind):
            self.vhost(command.vhost).bind(command, facts)
        elif isinstance(command, Unbind):
            self.vhost(command.vhost).unbind(command, facts)
        elif isinstance(command, DeclareExchange):
            self._declare_exchange(command, facts)
        elif isinstance(command, DeleteExchange):
            self.vhost(command.vhost).delete_exchange(command, facts)
        else:
            return False
        return True

    def _apply_access(self, command: Command, facts: list[Fact]) -> bool:
        """Apply a command about users and permissions; False if it is about others."""
        accounts = self.accounts
        if isinstance(command, PutUser):
            accounts.put_user(command, facts)
        elif isinstance(command, DeleteUser):
            accounts.delete_user(command.name, facts)
        elif isinstance(command, PutPermission):
            self.vhost(command.vhost)
            accounts.put_permission(command, facts)
        elif isinstance(command, DeletePermission):
            accounts.delete_permission(command.user, command.vhost, facts)
        elif isinstance(command, PutTopicPermission):
            self.vhost(command.vhost)
            accounts.put_topic_permission(command, facts)
        elif isinstance(command, DeleteTopicPermission):
            accounts.delete_topic_permission(command.user, command.vhost, command.exchange, facts)
        else:
            return False
        return True

    def _apply_settings(self, command: Command, outcome: Outcome) -> bool:
        """Apply a command about vhosts, policies, limits or parameters; False if it is not."""
        facts = outcome.facts
        if isinstance(command, PutVhost):
            outcome.changed = self._put_vhost(command, facts)
        elif isinstance(command, DeleteVhost):
            self._delete_vhost(command.name, facts)
        elif isinstance(command, (PutPolicy, DeletePolicy)):
            outcome.changed = self._change_policy(command)
        elif isinstance(command, PutLimit):
            self._put_limit(command, facts)
        elif isinstance(command, DeleteLimit):
            self._delete_limit(command, facts)
        elif isinstance(command, PutParameter):
            self._put_parameter(command, facts)
        elif isinstance(command, DeleteParameter):
            self._delete_parameter((command.component, command.vhost, command.name), facts)
        else:
            return False
        return True

    # --- vhosts

    def _put_vhost(self, command: PutVhost, facts: list[Fact]) -> bool:
        if command.name == "":
            raise PreconditionFailed("a vhost must have a name")
        check_length("vhost name", command.name)
        vhost = self.vhosts.get(command.name)
        if vhost is None:
            vhost = VHost(command.name, self._make_queue)
            self.vhosts[command.name] = vhost
            facts.append(VhostCreated(command.name))
        elif (vhost.description, vhost.tags) == (command.description, command.tags):
            return False
        vhost.description = command.description
        vhost.tags = command.tags
        return True

    def _delete_vhost(self, name: str, facts: list[Fact]) -> None:
        vhost = self.vhosts.pop(name, None)
        if vhost is None:
            return
        for queue, definition in vhost.queues.items():
            facts.append(QueueDeleted(definition, vhost.destinations[queue]))
        self.accounts.forget_vhost(name, facts)
        for key in [key for key in self.parameters if key[1] == name]:
            del self.parameters[key]
            facts.append(ParameterChanged(*key))
        self.sizes.forget(name)
        vhost.walks.clear()
        facts.append(VhostDeleted(name))

    # --- exchanges and queues

    def _declare_exchange(self, command: DeclareExchange, facts: list[Fact]) -> None:
        exchange_id = command.exchange_id or self.next_exchange_id
        exchange = self.vhost(command.vhost).declare_exchange(command, exchange_id, facts)
        self.next_exchange_id = max(self.next_exchange_id, exchange.id + 1)

    def _declare_queue(self, command: DeclareQueue, facts: list[Fact]) -> QueueDefinition:
        vhost = self.vhost(command.vhost)
        existing = vhost.queues.get(command.name)
        displaces = existing is not None and existing.is_private() and not command.exclusive_owner
        if existing is not None and not displaces:
            vhost.check_declared_alike(existing, command)
            return existing
        self._check_queue_limits(vhost, command)
        if command.queue_id != 0:
            queue_id = command.queue_id
        elif command.exclusive_owner:
            queue_id = self._next_private_id
        else:
            queue_id = self.next_queue_id
        definition = vhost.declare_queue(command, queue_id, self.place, facts)
        if definition.is_private():
            self._next_private_id = max(self._next_private_id, queue_id + 1)
        else:
            self.next_queue_id = max(self.next_queue_id, queue_id + 1)
        return definition

    def _check_queue_limits(self, vhost: VHost, command: DeclareQueue) -> None:
        """Raise PreconditionFailed if one more queue is too many.

        Private queues count only when another private one is declared: whether a shared queue is
        accepted must not depend on what lives on one broker alone.
        """
        private = command.exclusive_owner != ""
        most = self.limit(SCOPE_VHOST, vhost.name, "max-queues")
        if most >= 0 and _count(vhost, private, "") >= most:
            raise PreconditionFailed(
                f"cannot declare queue '{command.name}': "
                f"queue limit in vhost '{vhost.name}' ({most}) is reached"
            )
        most = self.limit(SCOPE_USER, command.user, "max-queues")
        if most >= 0 and self._queues_of(command.user, private) >= most:
            raise PreconditionFailed(
                f"cannot declare queue '{command.name}': "
                f"queue limit for user '{command.user}' ({most}) is reached"
            )

    def _queues_of(self, user: str, private: bool) -> int:
        return sum(_count(vhost, private, user) for vhost in self.vhosts.values())

    # --- limits and parameters

    def _put_limit(self, command: PutLimit, facts: list[Fact]) -> None:
        if command.limit not in LIMITS:
            raise PreconditionFailed(
                f"unknown limit '{command.limit}'; it must be one of {', '.join(LIMITS)}"
            )
        if command.scope == SCOPE_VHOST:
            limits = self.vhost(command.name).limits
        elif command.scope == SCOPE_USER:
            self.accounts.check_user(command.name)
            limits = self.accounts.limits.setdefault(command.name, {})
        else:
            raise NotFound(f"limits are those of a vhost or a user, not of a '{command.scope}'")
        if limits.get(command.limit) != command.value:
            limits[command.limit] = command.value
            facts.append(LimitChanged(command.scope, command.name))

    def _delete_limit(self, command: DeleteLimit, facts: list[Fact]) -> None:
        limits = self._limits(command.scope, command.name)
        if limits.pop(command.limit, None) is None:
            return
        if command.scope == SCOPE_USER and not limits:
            # An empty table would keep the user's place in the order, which no snapshot contains.
            del self.accounts.limits[command.name]
        facts.append(LimitChanged(command.scope, command.name))

    def _put_parameter(self, command: PutParameter, facts: list[Fact]) -> None:
        if command.vhost:
            self.vhost(command.vhost)
        key = (command.component, command.vhost, command.name)
        if key not in self.parameters or self.parameters[key] != command.value:
            old = vhost_metadata_byte_quota.parameter_bytes(self, key)
            self.parameters[key] = command.value
            self.sizes.replaced(
                command.vhost, old, vhost_metadata_byte_quota.parameter_bytes(self, key)
            )
            facts.append(ParameterChanged(*key))

    def _delete_parameter(self, key: tuple[str, str, str], facts: list[Fact]) -> None:
        if key in self.parameters:
            self.sizes.replaced(key[1], vhost_metadata_byte_quota.parameter_bytes(self, key), 0)
            del self.parameters[key]
            facts.append(ParameterChanged(*key))

    def _change_policy(self, command: PutPolicy | DeletePolicy) -> bool:
        """Set or delete a policy; False if nothing changes."""
        vhost = self.vhost(command.vhost)
        policies = vhost.operator_policies if command.operator else vhost.policies
        old = policies.get(command.name)
        if isinstance(command, PutPolicy):
            changed = vhost.put_policy(command)
        else:
            changed = vhost.delete_policy(command)
        if changed:
            new = vhost_metadata_byte_quota.policy_bytes(policies.get(command.name))
            self.sizes.replaced(vhost.name, vhost_metadata_byte_quota.policy_bytes(old), new)
            self._walking.append(vhost)
        return changed

    # --- snapshots

    def snapshot(self, transient: bool = False) -> bytes:
        """All durable shared objects; with ``transient`` those that end with the cluster too."""
        return metadata_snapshot.write(self, transient)

    @classmethod
    def restore(cls, data: bytes, make_queue: QueueFactory = plain_destination) -> State:
        """The state in a snapshot; raises DamagedCommandError if it can't be read whole."""
        state = cls(make_queue)
        snapshot = metadata_snapshot.read(data)
        for command in snapshot.commands:
            error = state.apply(command).error
            if error is not None:
                raise metadata_snapshot.damaged(f"{command} is refused: {error.text}")
        state.next_queue_id = max(state.next_queue_id, snapshot.next_queue_id)
        state.next_exchange_id = max(state.next_exchange_id, snapshot.next_exchange_id)
        return state
