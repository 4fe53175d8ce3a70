"""Root port: what the root's decisions about groups need of the broker that is root."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from rhizome.cluster.state.cluster_commands import ClusterCommand
from rhizome.cluster.state.cluster_state import ClusterState

UNKNOWN: int = -1


class RootPort(Protocol):
    """Implemented by the part of the broker that has the links and the consensus core."""

    def propose(self, command: ClusterCommand) -> int:
        """Append a command to the log, with the reserve for what must not be refused (R11). Returns
        its index, 0 if there is no room now or this broker isn't root."""
        ...

    def ask_copy_progress(self, broker: str, groups: list[int]) -> None:
        """Ask a broker, this one included, how far its copies are; see ``copy_progress.py``."""
        ...

    def hears(self, broker: str) -> bool:
        """Whether a broker answers the root at this time."""
        ...

    def hand_over(self, broker: str) -> None:
        """Hand the role of root to another primary."""
        ...

    def records_of(self, group: int) -> int:
        """The last index of a group's log, as its home told lately; `UNKNOWN` if it didn't."""
        ...

    def links_of(self, broker: str) -> Collection[str] | None:
        """The brokers with which a broker has links, as it told lately; None if it didn't."""
        ...

    def has_full_disk(self, broker: str) -> bool:
        """Whether a broker told lately that its disk is short of space."""
        ...

    def failed_homes(self) -> Mapping[int, int]:
        """Groups whose homes told lately that a fault keeps them from serving, each with the epoch
        in which that is so."""
        ...

    def report(self, text: str) -> None:
        """Have the log say why the root does something."""
        ...


class RootProposals:
    """Proposals of the root whose outcome it doesn't know: one per subject (G5).

    Every proposal here is conditional, so one that comes too late is refused.
    """

    state: ClusterState
    port: RootPort
    _open: dict[str, int]

    def __init__(self, state: ClusterState, port: RootPort) -> None:
        self.state = state
        self.port = port
        self._open = {}

    def clear(self) -> None:
        self._open = {}

    def is_open(self, about: str) -> bool:
        """Whether something about that subject is proposed and not applied yet."""
        return self._open.get(about, 0) > self.state.index

    def propose(self, about: str, command: ClusterCommand) -> bool:
        """Propose a command, unless another about the same subject is under way."""
        if self.is_open(about):
            return False
        index = self.port.propose(command)
        if index == 0:
            return False
        self._open[about] = index
        return True


def about_group(group: int) -> str:
    return f"group {group}"


def about_broker(broker: str) -> str:
    return f"broker {broker}"
