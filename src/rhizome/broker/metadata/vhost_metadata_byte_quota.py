"""Vhost metadata quotas: how many bytes of the cluster state each vhost uses and may use.

Counted is the encoded size of what users other than administrators make in a vhost: its exchanges,
shared queues, bindings, policies and parameters. Users and permissions don't count.

The broker that is asked for a change refuses it before it is proposed. A proposed change is applied
by every broker, however large. Refusing it there would make brokers of two releases diverge, and
would lose what a log has from before there were quotas. So a vhost may exceed its quota, by what
several brokers propose at once or by what it had before. Then it can't grow, and everything else
goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rhizome.amqp.field_table import encode_table
from rhizome.broker.metadata.metadata_changes import (
    BindingAdded,
    BindingRemoved,
    ExchangeCreated,
    ExchangeDeleted,
    Fact,
    QueueCreated,
    QueueDeleted,
)
from rhizome.broker.metadata.metadata_commands import (
    EXCHANGE,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    PutParameter,
    PutPolicy,
    encode,
)
from rhizome.broker.metadata.metadata_snapshot import (
    bind_command,
    exchange_command,
    policy_commands,
    queue_command,
)
from rhizome.broker.metadata.resource_names import RESERVED_PREFIX
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.metadata.metadata_state import State
    from rhizome.broker.metadata.queue_policy_user_records import Policy
    from rhizome.broker.routing.bindings_and_destinations import Binding

ARGUMENTS_BYTES_MAX: Final = 16 * 1024
"""The largest arguments of one queue, exchange or binding."""
BINDINGS_MAX: Final = 20_000
"""The most bindings to one queue or exchange: all go with it in one turn, at every broker."""
SOURCE_BINDINGS_MAX: Final = 50_000
"""The most bindings from one exchange that can be deleted, for the same reason. Exchanges `amq.*`
can't be, and may have more."""
POLICY_BYTES_MAX: Final = 16 * 1024
POLICIES_MAX: Final = 256
"""How many policies a vhost may have: each is searched in the name of every new queue."""
PARAMETER_BYTES_MAX: Final = 64 * 1024
STATE_BYTES_MAX: Final = 64 << 20
"""What all vhosts together may use, unless settings say otherwise."""
GLOBAL_VHOST: Final = ""
"""Stands for the vhost of parameters that belong to none."""

Topology = DeclareExchange | DeclareQueue | Bind


class StateBytes:
    """Bytes of the state by vhost.

    Invariant: ``topology`` is what the exchanges, shared queues and bindings of all vhosts use,
    ``total`` everything that counts. Each follows from what a state holds, and not from its
    history. ``bytes_max`` is what all vhosts may use together.
    """

    bytes_max: int
    topology: int
    total: int
    _topology: dict[str, int]
    _rest: dict[str, int]

    def __init__(self) -> None:
        self.bytes_max = STATE_BYTES_MAX
        self.topology = 0
        self.total = 0
        self._topology = {}
        self._rest = {}

    def of(self, vhost: str) -> int:
        return self._topology.get(vhost, 0) + self._rest.get(vhost, 0)

    def observe(self, facts: Iterable[Fact]) -> None:
        """Follow what changed in vhosts that are still there."""
        for fact in facts:
            found = _change(fact)
            if found is not None:
                vhost, change = found
                self._topology[vhost] = self._topology.get(vhost, 0) + change
                self.topology += change
                self.total += change

    def replaced(self, vhost: str, old: int, new: int) -> None:
        """A policy or a parameter has another size now; 0 is that of none."""
        self._rest[vhost] = self._rest.get(vhost, 0) + new - old
        self.total += new - old

    def forget(self, vhost: str) -> None:
        """A vhost is gone with all that it had."""
        topology = self._topology.pop(vhost, 0)
        self.topology -= topology
        self.total -= topology + self._rest.pop(vhost, 0)


def _change(fact: Fact) -> tuple[str, int] | None:
    if isinstance(fact, (ExchangeCreated, ExchangeDeleted)):
        size = len(encode(exchange_command(fact.exchange)))
        return fact.exchange.vhost, size if isinstance(fact, ExchangeCreated) else -size
    if isinstance(fact, (BindingAdded, BindingRemoved)):
        if not fact.shared:
            return None
        size = _binding_bytes(fact.vhost, fact.binding)
        return fact.vhost, size if isinstance(fact, BindingAdded) else -size
    if isinstance(fact, (QueueCreated, QueueDeleted)) and not fact.definition.is_private():
        size = len(encode(queue_command(fact.definition)))
        return fact.definition.vhost, size if isinstance(fact, QueueCreated) else -size
    return None


def _binding_bytes(vhost: str, binding: Binding) -> int:
    if binding.state_bytes == 0:
        binding.state_bytes = len(encode(bind_command(vhost, binding)))
    return int(binding.state_bytes)


def policy_bytes(policy: Policy | None) -> int:
    if policy is None:
        return 0
    return sum(len(encode(command)) for command in policy_commands({policy.name: policy}))


def parameter_bytes(state: State, key: tuple[str, str, str]) -> int:
    if key not in state.parameters:
        return 0
    return len(encode(PutParameter(*key, state.parameters[key])))


# ---- what may be proposed -----------------------------------------------------------------------


def quota_of(state: State, vhost: str) -> int:
    """How many bytes a vhost may use: half of what the others leave, so that something is always
    left for another vhost; everything if there is no other."""
    left = state.sizes.bytes_max - (state.sizes.total - state.sizes.of(vhost))
    if len(state.vhosts) == 1 and vhost in state.vhosts:
        return left
    return max(left, 0) // 2


def check_command(
    state: State, command: Command, under_way: int = 0, takes_whole: bool = False
) -> None:
    """Raise PreconditionFailed if a command makes an object that is too large, or more than its
    vhost may have. ``under_way``: what was proposed for the vhost and isn't applied yet.
    ``takes_whole``: the command may use all that the others leave. A vhost may have more than half
    of that if it was there first, so it must be possible to restore it in any order."""
    if isinstance(command, (DeclareExchange, DeclareQueue, Bind)):
        if is_there(command, state):
            return
        check_arguments(command)
        if isinstance(command, Bind):
            check_bindings(state, command)
        _check_growth(state, command.vhost, len(encode(command)), under_way, takes_whole)
    elif isinstance(command, PutPolicy):
        _check_policy(state, command, under_way, takes_whole)
    elif isinstance(command, PutParameter):
        old = parameter_bytes(state, (command.component, command.vhost, command.name))
        size = len(encode(command))
        if size > PARAMETER_BYTES_MAX and size > old:
            raise PreconditionFailed(
                f"parameter '{command.name}' of {command.component} has {size} bytes; at most"
                f" {PARAMETER_BYTES_MAX} are possible"
            )
        _check_growth(state, command.vhost, size - old, under_way, takes_whole)


def check_arguments(command: Topology) -> None:
    """Raise PreconditionFailed if the arguments of a queue, an exchange or a binding are too
    large."""
    size = len(encode_table(command.arguments)) if command.arguments else 0
    if size <= ARGUMENTS_BYTES_MAX:
        return
    if isinstance(command, Bind):
        what = f"a binding of {command.destination_kind} '{command.destination}'"
    else:
        kind = "queue" if isinstance(command, DeclareQueue) else "exchange"
        what = f"{kind} '{command.name}'"
    raise PreconditionFailed(
        f"the arguments of {what} in vhost '{command.vhost}' have {size} bytes; at most"
        f" {ARGUMENTS_BYTES_MAX} are possible"
    )


def check_bindings(state: State, command: Bind) -> None:
    """Raise PreconditionFailed if a new binding is one too many for its destination or source."""
    vhost = state.vhosts.get(command.vhost)
    if vhost is None:
        return
    to, source = vhost.bindings_to_destination(command), vhost.bindings_from_source(command)
    reserved = command.source.startswith(RESERVED_PREFIX)
    from_many = source >= SOURCE_BINDINGS_MAX and not reserved
    if (to < BINDINGS_MAX and not from_many) or vhost.has_binding(command):
        return
    if from_many:
        raise PreconditionFailed(
            f"exchange '{command.source}' in vhost '{command.vhost}' has {source} bindings from it;"
            f" at most {SOURCE_BINDINGS_MAX} are possible: use patterns, several exchanges, or one"
            " of amq.*"
        )
    kind = "exchange" if command.destination_kind == EXCHANGE else "queue"
    raise PreconditionFailed(
        f"{kind} '{command.destination}' in vhost '{command.vhost}' has {to} bindings; at most"
        f" {BINDINGS_MAX} are possible, and one with many words counts as several: use patterns, or"
        " several queues"
    )


def _check_policy(state: State, command: PutPolicy, under_way: int, takes_whole: bool) -> None:
    """Operator policies belong to administrators and always pass: they can repair what is full."""
    vhost = state.vhosts.get(command.vhost)
    if command.operator or vhost is None:
        return
    old = policy_bytes(vhost.policies.get(command.name))
    if not old and len(vhost.policies) >= POLICIES_MAX and not takes_whole:
        raise PreconditionFailed(
            f"vhost '{command.vhost}' has {len(vhost.policies)} policies; at most {POLICIES_MAX}"
            " are possible: let one pattern fit several queues, or give arguments at declare"
        )
    size = len(encode(command))
    if size > POLICY_BYTES_MAX and size > old:
        raise PreconditionFailed(
            f"policy '{command.name}' in vhost '{command.vhost}' has {size} bytes; at most"
            f" {POLICY_BYTES_MAX} are possible"
        )
    _check_growth(state, command.vhost, size - old, under_way, takes_whole)


def _check_growth(state: State, vhost: str, growth: int, under_way: int, takes_whole: bool) -> None:
    used = state.sizes.of(vhost) + under_way
    quota = quota_of(state, vhost)
    if growth <= 0 or used + growth <= quota:
        return
    if takes_whole and state.sizes.total + under_way + growth <= state.sizes.bytes_max:
        return
    whose = f"vhost '{vhost}' has" if vhost else "global parameters have"
    raise PreconditionFailed(
        f"{whose} {used} of the {max(quota, 0)} bytes of the cluster state that are possible now"
        f" (half of what others leave of {state.sizes.bytes_max}); delete queues, exchanges,"
        " bindings, policies or parameters that nobody needs, or raise cluster.state_size_max"
    )


def is_there(command: Topology, state: State) -> bool:
    """Whether the object exists, so that the command makes nothing new."""
    vhost = state.vhosts.get(command.vhost)
    if vhost is None:
        return False
    if isinstance(command, DeclareExchange):
        return command.name in vhost.router.exchanges
    if isinstance(command, DeclareQueue):
        definition = vhost.queues.get(command.name)
        return definition is not None and not definition.is_private()
    return vhost.has_binding(command)


def vhost_of(command: Command) -> str | None:
    """The vhost that a command makes grow; None if there is none."""
    if isinstance(command, (DeclareExchange, DeclareQueue, Bind, PutPolicy, PutParameter)):
        return command.vhost
    return None
