"""Log follower: takes entries (R2) and snapshots (R8) from a root."""

from __future__ import annotations

from rhizome.cluster.consensus.consensus_messages import (
    Append,
    AppendAnswer,
    SnapshotAnswer,
    SnapshotChunk,
)
from rhizome.cluster.consensus.consensus_registry import SnapshotBody, decode_snapshot
from rhizome.cluster.consensus.log.cluster_store import Snapshot
from rhizome.cluster.consensus.node_state import NodeState
from rhizome.cluster.consensus.rule_switches import ALL_RULES


class LogFollower:
    def __init__(self, state: NodeState) -> None:
        self.state = state
        self._arriving = (0, 0)
        self._arrived = bytearray()

    def append(self, root: str, message: Append) -> int:
        """Take entries of the present root; returns up to where they are known to be committed.

        They are answered when they are synced: only then do they count (R2).
        """
        log, term = self.state.persistent.log, self.state.term
        last = message.prev_index + len(message.entries)
        begins = max(message.prev_index, log.start.index)
        agrees = message.prev_index < log.start.index or (
            log.term_at(message.prev_index) == message.prev_term
        )
        if not agrees:
            at = log.agreement_below(message.prev_index - 1, message.prev_term)
            self.state.send(root, AppendAnswer(term, False, at, log.term_at(at)))
            return 0
        self._take(message, begins)
        # Entries that the log no longer holds were committed, so they are as the root has them.
        held = max(last, log.start.index) if message.prev_index < log.start.index else last
        answer = AppendAnswer(term, True, held, 0)
        if self.state.rules.synced_before_counted:
            self.state.send_durable(root, answer)
        else:
            self.state.send(root, answer)
        return min(message.commit, held)

    def _take(self, message: Append, begins: int) -> None:
        """Append what is new; where an entry conflicts, the root is right from there on."""
        persistent = self.state.persistent
        for entry in message.entries:
            if entry.index <= begins or persistent.log.term_at(entry.index) == entry.term:
                continue
            if entry.index <= persistent.log.last_index:
                safe = entry.index > persistent.commit or self.state.rules != ALL_RULES
                assert safe, f"entry {entry.index} is committed and can't be replaced"
                persistent.cut(entry.index)
            persistent.accept(entry)

    def chunk(self, root: str, message: SnapshotChunk) -> tuple[Snapshot, SnapshotBody] | None:
        """Take a piece of a snapshot; returns the snapshot, when it was the last piece and isn't
        too late."""
        state = self.state
        if self._is_late(message):
            self._forget()
            state.send_durable(root, SnapshotAnswer(state.term, message.index, 0, True))
            return None
        if self._arriving != (message.index, message.index_term):
            self._forget()
            self._arriving = (message.index, message.index_term)
        if message.offset == len(self._arrived):
            self._arrived += message.data
        if len(self._arrived) < message.size:
            wanted = SnapshotAnswer(state.term, message.index, len(self._arrived), False)
            state.send(root, wanted)
            return None
        snapshot = Snapshot(message.index, message.index_term, bytes(self._arrived))
        self._forget()
        body = decode_snapshot(snapshot.data)
        registry = body.registry
        state.persistent.install_snapshot(snapshot, registry.membership, registry.membership_index)
        state.send_durable(root, SnapshotAnswer(state.term, message.index, 0, True))
        return snapshot, body

    def _is_late(self, message: SnapshotChunk) -> bool:
        """Whether the snapshot would undo entries that this broker has already been counted for
        (R8)."""
        persistent = self.state.persistent
        if not self.state.rules.late_snapshot_ignored:
            return False
        if persistent.log.term_at(message.index) == message.index_term:
            return True
        return message.index <= persistent.commit

    def _forget(self) -> None:
        self._arriving = (0, 0)
        self._arrived = bytearray()
