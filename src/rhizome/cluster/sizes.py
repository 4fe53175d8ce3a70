"""The size of the cluster state, and the limit to it (R11).

What counts is the encoded size of exchanges, shared queues and their bindings, which applications
make without end if they are let. The limit stops declares and binds only: deletes, users, policies,
membership, takeovers and set changes always pass, so that a full state can be mended.

What one vhost may have of it is another question (`broker/quotas.py`), which is asked before a
change is proposed.
"""

from __future__ import annotations

from rhizome.broker.commands import Bind, Command, DeclareExchange, DeclareQueue, encode
from rhizome.broker.quotas import is_there
from rhizome.broker.snapshots import commands_of
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

    def follow(self, state: State) -> None:
        """A command was applied."""
        self.bytes_used = state.sizes.topology

    def check(self, command: Command, state: State, bytes_max: int) -> None:
        """Raise PreconditionFailed if a command would make too much of what is limited."""
        if not isinstance(command, (DeclareExchange, DeclareQueue, Bind)):
            return
        needed = self.bytes_used + len(encode(command))
        if needed > bytes_max and not is_there(command, state):
            raise PreconditionFailed(
                f"the cluster state is full: {self.bytes_used} of {bytes_max} bytes are used; "
                "delete queues, exchanges or bindings that nobody needs, or raise "
                "cluster.state_size_max"
            )
