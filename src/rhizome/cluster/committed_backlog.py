"""CommittedBacklog: what the brokers have agreed on and this one has not applied yet.

Invariants: ``entries`` are in the order of the log, right behind what is applied, or behind
``begun``, the entry that is applied in steps. ``events`` came with them or after them: who acts on
an event relies on the state that the entries before it made, so events wait while there are
entries. While there are some, the backlog is a chore of the turn, so that another turn follows; the
node applies them at the end of each (`node.py`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rhizome.broker.turn import Chore

if TYPE_CHECKING:
    from rhizome.broker.turn import Turn
    from rhizome.cluster.consensus.consensus_events import Event
    from rhizome.cluster.consensus.consensus_output import Ready
    from rhizome.cluster.consensus.log.cluster_store import Entry
    from rhizome.cluster.state.cluster_state import Applied


class CommittedBacklog(Chore):
    entries: deque[Entry]
    begun: tuple[Entry, Applied] | None
    events: list[Event]
    _is_chore: bool
    _pauses: bool

    def __init__(self) -> None:
        super().__init__()
        self.entries = deque()
        self.begun = None
        self.events = []
        self._is_chore = False
        self._pauses = False

    def take(self, ready: Ready) -> None:
        """Add what comes next. The entries that a snapshot contains are not needed any more."""
        if ready.snapshot is not None:
            self.entries.clear()
            self.begun = None
        self.entries.extend(ready.committed)
        self.events += ready.events

    def is_empty(self) -> bool:
        """Whether all that was agreed on is applied."""
        return self.begun is None and not self.entries

    def take_events(self) -> list[Event]:
        """The events that nothing is applied before."""
        events, self.events = self.events, []
        return events

    def takes_turn(self) -> bool:
        """Whether entries are applied in this turn. The turn after one that they filled is for what
        has come meanwhile: who answers others late is taken for silent."""
        self._pauses = self._is_chore and not self._pauses
        return not self._pauses

    def rest(self, turn: Turn) -> None:
        """The turn ends here: go on in the next one, if something is left."""
        if not self.is_empty() and not self._is_chore:
            self._is_chore = True
            turn.chores.append(self)

    def run(self) -> bool:
        """Whether nothing is left; the node applies entries when the broker's own turn is over."""
        self._is_chore = not self.is_empty()
        return not self._is_chore
