"""Taking the log from a root: entries (R2) and snapshots (R8)."""

from __future__ import annotations

from rhizome.cluster.consensus.desk import Desk
from rhizome.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    SnapshotAnswer,
    SnapshotChunk,
)
from rhizome.cluster.consensus.registry import SnapshotBody, decode_snapshot
from rhizome.cluster.consensus.rules import ALL_RULES
from rhizome.cluster.storage import Snapshot


class Following:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._arriving = (0, 0)
        self._arrived = bytearray()

    def append(self, root: str, message: Append) -> int:
        """Take entries of the present root; up to where they are known to be committed.

        Answered when they are synced: only then do they count (R2).
        """
        log, term = self.desk.ledger.log, self.desk.term
        last = message.prev_index + len(message.entries)
        begins = max(message.prev_index, log.start.index)
        agrees = message.prev_index < log.start.index or (
            log.term_at(message.prev_index) == message.prev_term
        )
        if not agrees:
            at = log.agreement_below(message.prev_index - 1, message.prev_term)
            self.desk.send(root, AppendAnswer(term, False, at, log.term_at(at)))
            return 0
        self._take(message, begins)
        # What the log no longer holds was committed, so it is as the root has it.
        held = max(last, log.start.index) if message.prev_index < log.start.index else last
        answer = AppendAnswer(term, True, held, 0)
        if self.desk.rules.synced_before_counted:
            self.desk.send_durable(root, answer)
        else:
            self.desk.send(root, answer)
        return min(message.commit, held)

    def _take(self, message: Append, begins: int) -> None:
        """Append what is new; where an entry conflicts, the root is right from there on."""
        ledger = self.desk.ledger
        for entry in message.entries:
            if entry.index <= begins or ledger.log.term_at(entry.index) == entry.term:
                continue
            if entry.index <= ledger.log.last_index:
                safe = entry.index > ledger.commit or self.desk.rules != ALL_RULES
                assert safe, f"entry {entry.index} is committed and can't be replaced"
                ledger.cut(entry.index)
            ledger.accept(entry)

    def chunk(self, root: str, message: SnapshotChunk) -> tuple[Snapshot, SnapshotBody] | None:
        """Take a piece of a snapshot; the snapshot, when it was the last and isn't too late."""
        desk = self.desk
        if self._is_late(message):
            self._forget()
            desk.send_durable(root, SnapshotAnswer(desk.term, message.index, 0, True))
            return None
        if self._arriving != (message.index, message.index_term):
            self._forget()
            self._arriving = (message.index, message.index_term)
        if message.offset == len(self._arrived):
            self._arrived += message.data
        if len(self._arrived) < message.size:
            wanted = SnapshotAnswer(desk.term, message.index, len(self._arrived), False)
            desk.send(root, wanted)
            return None
        snapshot = Snapshot(message.index, message.index_term, bytes(self._arrived))
        self._forget()
        body = decode_snapshot(snapshot.data)
        registry = body.registry
        desk.ledger.install_snapshot(snapshot, registry.membership, registry.membership_index)
        desk.send_durable(root, SnapshotAnswer(desk.term, message.index, 0, True))
        return snapshot, body

    def _is_late(self, message: SnapshotChunk) -> bool:
        """It would undo entries that this broker has already been counted for (R8)."""
        ledger = self.desk.ledger
        if not self.desk.rules.late_snapshot_ignored:
            return False
        if ledger.log.term_at(message.index) == message.index_term:
            return True
        return message.index <= ledger.commit

    def _forget(self) -> None:
        self._arriving = (0, 0)
        self._arrived = bytearray()
