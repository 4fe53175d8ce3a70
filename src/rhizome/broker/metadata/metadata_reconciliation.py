"""Reconciliation: the commands that lead from one state to another.

A broker that was away may get a snapshot instead of the commands that it missed. It must not start
over: queues that still exist keep their messages and consumers, and only what was deleted meanwhile
is deleted (H13). So the snapshot is compared with the broker's state, and the difference is
applied, command by command, like anything else.

The result equals the state of the snapshot to the byte, including the order of its tables: the next
commands must find the same state on every broker. If the snapshot is from later in the same
history, everything it has in common with the state stays untouched. Private queues are no part of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rhizome.broker.metadata import metadata_snapshot
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
    encode,
)
from rhizome.broker.metadata.metadata_state import State

# The commands that make one table of a state, in its order.
Listing = Callable[[State], Iterable[Command]]


@dataclass(frozen=True)
class Reconciliation:
    """``commands`` to be applied in order, and the numbers to go on with after that."""

    commands: list[Command]
    next_queue_id: int
    next_exchange_id: int


def reconcile(state: State, data: bytes) -> Reconciliation:
    """What makes ``state`` the one in the snapshot; raises DamagedCommandError if it is damaged."""
    target = State.restore(data)
    here = State()
    for command in metadata_snapshot.commands_of(state, True):
        here.apply(command)
    commands = _Reconciler(here, target).run()
    return Reconciliation(commands, target.next_queue_id, target.next_exchange_id)


class _Reconciler:
    """Tries every command on a copy of the state, and so sees what it changes besides.

    Invariant: ``here`` is the state after ``commands``.
    """

    here: State
    target: State
    commands: list[Command]

    def __init__(self, here: State, target: State) -> None:
        self.here = here
        self.target = target
        self.commands = []

    def run(self) -> list[Command]:
        """Run in the order of a snapshot: everything exists before it is needed."""
        self._lift_limits()
        self._bring(_vhosts, in_place=True)
        for name in self.target.vhosts:
            self._bring_vhost(name)
        self._bring(metadata_snapshot.user_commands, in_place=True)
        self._bring(metadata_snapshot.permission_commands, in_place=True)
        self._bring(metadata_snapshot.topic_permission_commands, in_place=True)
        self._bring_user_limits()
        self._bring(metadata_snapshot.parameter_commands, in_place=True)
        return self.commands

    def _bring_vhost(self, name: str) -> None:
        self._bring(
            lambda s: metadata_snapshot.policy_commands(s.vhosts[name].policies), in_place=True
        )
        self._bring(
            lambda s: metadata_snapshot.policy_commands(s.vhosts[name].operator_policies),
            in_place=True,
        )
        self._bring(lambda s: metadata_snapshot.exchange_commands(s.vhosts[name], True))
        self._bring(lambda s: metadata_snapshot.queue_commands(s.vhosts[name], True))
        for source in self.target.vhosts[name].router.exchanges:
            self._bring_bindings(name, source)
        self._bring(
            lambda s: metadata_snapshot.limit_commands(SCOPE_VHOST, name, s.vhosts[name].limits),
            in_place=True,
        )

    def _bring_bindings(self, name: str, source: str) -> None:
        self._bring(
            lambda s: metadata_snapshot.bind_commands(
                s.vhosts[name], s.vhosts[name].router.exchanges[source], True
            )
        )

    def _bring_user_limits(self) -> None:
        """Limits are tables in a table: the users in order, and for each the limits in order."""
        want = list(self.target.accounts.limits)
        kept = 0
        for user in list(self.here.accounts.limits):
            if kept < len(want) and user == want[kept]:
                kept += 1
            else:
                for limit in list(self.here.accounts.limits[user]):
                    self._do(DeleteLimit(SCOPE_USER, user, limit))
        for user in want:
            self._bring_limits_of(user)

    def _bring_limits_of(self, user: str) -> None:
        self._bring(
            lambda s: metadata_snapshot.limit_commands(
                SCOPE_USER, user, s.accounts.limits.get(user, {})
            ),
            in_place=True,
        )

    def _lift_limits(self) -> None:
        """Remove limits that could refuse a command; the target's are set at the end."""
        limits = [
            command
            for command in metadata_snapshot.commands_of(self.here, True)
            if isinstance(command, PutLimit) and command.limit == "max-queues"
        ]
        there = {encode(queue) for queue in _queues(self.here)} if limits else set()
        if any(encode(queue) not in there for queue in _queues(self.target)):
            for command in limits:
                self._do(_undo(command))

    def _bring(self, listing: Listing, in_place: bool = False) -> None:
        """Bring one table to what the target has.

        Entries in the right place stay. The rest is made in the target's order, and entries in the
        wrong place are removed first. Entries that the target lacks are removed last, so that an
        exchange is never without bindings while they are changed.
        """
        want = _table(listing(self.target))
        have = _table(listing(self.here))
        if in_place:
            changed = [want[key] for key in have if key in want]
            changed = [entry for entry in changed if entry.encoded != have[entry.key].encoded]
            for entry in changed:
                self._do(entry.command)
            if changed:
                have = _table(listing(self.here))
        wanted = list(want.items())
        kept = 0
        for key, entry in list(have.items()):
            if kept < len(wanted) and entry.encoded == wanted[kept][1].encoded:
                kept += 1
                del have[key]
        for key, entry in wanted[kept:]:
            if key in have:
                self._do(have.pop(key).undo)
            self._do(entry.command)
        for entry in have.values():
            self._do(entry.undo)

    def _do(self, command: Command) -> None:
        error = self.here.apply(command).error
        assert error is None, (command, error)
        self.commands.append(command)


def _vhosts(state: State) -> Iterator[Command]:
    for vhost in state.vhosts.values():
        yield metadata_snapshot.vhost_command(vhost)


def _queues(state: State) -> Iterator[Command]:
    for vhost in state.vhosts.values():
        yield from metadata_snapshot.queue_commands(vhost, True)


class _Entry:
    """One entry of a table: the command that makes it, and the command that removes it, which also
    identifies it."""

    command: Command
    undo: Command
    key: bytes
    encoded: bytes

    def __init__(self, command: Command) -> None:
        self.command = command
        self.undo = _undo(command)
        self.key = encode(self.undo)
        self.encoded = encode(command)


def _table(commands: Iterable[Command]) -> dict[bytes, _Entry]:
    """The things that commands make, in their order."""
    entries = [_Entry(command) for command in commands]
    return {entry.key: entry for entry in entries}


def _undo(command: Command) -> Command:
    """The command that removes what a command of a snapshot makes."""
    if isinstance(command, Bind):
        given = command.arguments
        return Unbind(
            command.vhost,
            command.source,
            command.destination,
            command.destination_kind,
            command.key,
            {name: given[name] for name in sorted(given)},  # in any order they are the same binding
        )
    if isinstance(command, DeclareQueue):
        return DeleteQueue(command.vhost, command.name)
    if isinstance(command, DeclareExchange):
        return DeleteExchange(command.vhost, command.name)
    if isinstance(command, PutVhost):
        return DeleteVhost(command.name)
    if isinstance(command, PutPolicy):
        return DeletePolicy(command.vhost, command.name, command.operator)
    if isinstance(command, PutLimit):
        return DeleteLimit(command.scope, command.name, command.limit)
    return _undo_access(command)


def _undo_access(command: Command) -> Command:
    if isinstance(command, PutUser):
        return DeleteUser(command.name)
    if isinstance(command, PutPermission):
        return DeletePermission(command.user, command.vhost)
    if isinstance(command, PutTopicPermission):
        return DeleteTopicPermission(command.user, command.vhost, command.exchange)
    assert isinstance(command, PutParameter), command
    return DeleteParameter(command.component, command.vhost, command.name)
