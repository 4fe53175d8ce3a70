"""OrphanedQueues: private queues whose connection is gone, deleted over several turns.

A queue's bindings go with it, and a client may have made thousands. Everybody waits for the end of
a turn, so bindings are removed some at a time. Until all are gone the queues exist, and nobody can
use them, because their owner is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from rhizome.broker.metadata.metadata_commands import PRIVATE, Unbind
from rhizome.broker.turn import TURN_WORK_MAX, Chore, Turn

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.queue.queue import Queue

AT_ONCE_BINDINGS_MAX: Final = 1_000
"""The work of deleting a queue at once."""

AT_ONCE_TURNS: Final = 4
"""How many turns' worth of work one turn does before queues with few bindings have to wait, too."""

STEP_BINDINGS: Final = 100


def is_late(turn: Turn, queue: Queue) -> bool:
    """Whether a queue is too much for this turn."""
    if turn.work >= AT_ONCE_TURNS * TURN_WORK_MAX:
        return True
    return len(queue.incoming) > AT_ONCE_BINDINGS_MAX


@final
class OrphanedQueues(Chore):
    """Invariant: ``queues`` are those that are left to delete."""

    broker: BrokerContext
    queues: list[Queue]

    def __init__(self, broker: BrokerContext, queues: list[Queue]) -> None:
        super().__init__()
        self.broker = broker
        self.queues = queues

    def run(self) -> bool:
        turn = self.broker.turn
        while len(self.queues) > 0:
            if turn.is_full():
                return False
            queue = self.queues[len(self.queues) - 1]
            if not queue.deleted and len(queue.incoming) > STEP_BINDINGS:
                if self._unbind_some(queue):
                    continue
            self.queues.pop()
            if not queue.deleted:
                self.broker.delete_queue(queue)
        return True

    def _unbind_some(self, queue: Queue) -> bool:
        """Unbind some; return whether there was any progress."""
        broker = self.broker
        before = len(queue.incoming)
        for binding in list(queue.incoming)[:STEP_BINDINGS]:
            command = Unbind(
                queue.vhost, binding.source, queue.name, PRIVATE, binding.key, binding.arguments
            )
            broker.announce(broker.apply(command))
            if broker.turn.is_full():
                break
        return len(queue.incoming) < before
