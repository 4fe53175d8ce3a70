"""State size: the size of the cluster state, and its limit (R11).

What counts is the encoded size of exchanges, shared queues and their bindings: applications could
make them without end. The limit stops declares and binds only: deletes, users, policies,
membership, takeovers and set changes always pass, so that a full state can be repaired.

The quota of one vhost is separate (`broker/metadata/vhost_metadata_byte_quota.py`), and is checked
before a change is proposed.
"""

from __future__ import annotations

from rhizome.broker.metadata.metadata_commands import (
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    encode,
)
from rhizome.broker.metadata.metadata_snapshot import commands_of
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.vhost_metadata_byte_quota import is_there
from rhizome.errors import PreconditionFailed


class StateSize:
    """The size of the cluster state. Invariant: ``bytes_used`` is what ``recount`` would find."""

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
        """Raise PreconditionFailed if a command would exceed a limit."""
        if not isinstance(command, (DeclareExchange, DeclareQueue, Bind)):
            return
        needed = self.bytes_used + len(encode(command))
        if needed > bytes_max and not is_there(command, state):
            raise PreconditionFailed(
                f"the cluster state is full: {self.bytes_used} of {bytes_max} bytes are used; "
                "delete queues, exchanges or bindings that nobody needs, or raise "
                "cluster.state_size_max"
            )
