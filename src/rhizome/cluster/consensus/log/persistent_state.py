"""Persistent state: what a broker must not forget, and how far its store has it.

Everything durable goes through here: term and vote (R3), the log (R2), the commit index (R4), the
snapshot (R8). Changes gather in one batch; ``take`` hands it out under a token, ``written`` says
that the store has synced it. A caller that must wait for that asks for ``token_to_wait_for``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rhizome.cluster.consensus.log.cluster_store import (
    NO_VOTE,
    Batch,
    Entry,
    Image,
    Position,
    Snapshot,
)
from rhizome.cluster.consensus.log.state_log import StateLog
from rhizome.cluster.consensus.membership import Electorate, Membership
from rhizome.cluster.consensus.rule_switches import Rules


@dataclass(slots=True)
class _Outstanding:
    token: int
    submitted_ms: int
    last_index: int
    term: int


class PersistentState:
    """What a broker must not forget.

    Invariant: ``synced_index`` entries of the log as it is now are durable here.
    """

    def __init__(self, image: Image, base: Membership, base_index: int, rules: Rules) -> None:
        assert not image.damage, image.damage
        self.rules = rules
        self.term = image.term
        self.vote = image.vote
        self.commit = image.commit
        self.snapshot = image.snapshot
        self.log = StateLog(image.log_start, base, base_index)
        for entry in image.entries:
            self.log.append(entry)
        self.synced_index = self.log.last_index
        self.durable_term = image.term
        self.disk_ms = -1
        """When the newest durable batch was submitted; -1 before the first."""
        self._batch = Batch()
        self._entries: list[Entry] = []
        self._commit_due = False
        self._tokens = 0
        self._outstanding: deque[_Outstanding] = deque()

    def electorate(self) -> Electorate:
        return self.log.electorate(self.commit, self.rules)

    def enter_term(self, term: int, vote: str = NO_VOTE) -> None:
        assert term >= self.term, "terms never fall"
        assert term > self.term or self.vote in (NO_VOTE, vote), "one vote per term (R3)"
        self.term = self._batch.term = term
        self.vote = self._batch.vote = vote

    def append(self, kind: int, payload: bytes) -> Entry:
        """Append an entry of the current term."""
        entry = Entry(self.log.last_index + 1, self.term, kind, payload)
        self.accept(entry)
        return entry

    def accept(self, entry: Entry) -> None:
        self.log.append(entry)
        self._entries.append(entry)
        if not self.rules.synced_before_counted:
            self.synced_index = self.log.last_index

    def cut(self, first: int) -> None:
        """Forget entries from ``first`` on: a root has others there."""
        self.log.cut(first)
        self._entries = [entry for entry in self._entries if entry.index < first]
        log_from = self._batch.log_from
        self._batch.log_from = first if log_from is None else min(first, log_from)
        self._lower_synced(first - 1)

    def advance_commit(self, index: int, remember: bool) -> None:
        """Raise the commit index. ``remember``: write it now, as for memberships (R4); else with
        the next batch."""
        assert index >= self.commit, "the commit index never falls"
        self.commit = index
        self._commit_due = self._commit_due or remember

    def name_cluster(self, cluster_uuid: str) -> None:
        """The cluster UUID enters a store when its entry is committed (R7)."""
        self._batch.cluster_uuid = cluster_uuid

    def touch(self) -> None:
        """Have something written, to see whether the disk takes it (R9)."""
        self._commit_due = True

    def keep_snapshot(self, snapshot: Snapshot, start: int) -> None:
        """Replace the log up to ``start`` by the state after ``snapshot.index``."""
        assert start <= snapshot.index, "the snapshot covers what the log forgets"
        self.snapshot = self._batch.snapshot = snapshot
        position = Position(start, self.log.term_at(start))
        self.log.compact(position)
        self._batch.log_start = position

    def install_snapshot(self, snapshot: Snapshot, base: Membership, base_index: int) -> None:
        """Replace the whole log. Term and vote stay (R8)."""
        position = Position(snapshot.index, snapshot.term)
        self.snapshot = self._batch.snapshot = snapshot
        self.log.reset(position, base, base_index)
        self._entries.clear()
        self._batch.log_from = 1
        self._batch.log_start = position
        self._lower_synced(0)
        if snapshot.index > self.commit or not self.rules.late_snapshot_ignored:
            self.commit = snapshot.index
        self._commit_due = True

    def take(self, now_ms: int) -> tuple[int, Batch] | None:
        """The batch to make durable, if there is one."""
        batch = self._batch
        batch.entries = tuple(self._entries)
        if batch.is_empty() and not self._commit_due:
            return None
        batch.commit = self.commit
        self._tokens += 1
        self._outstanding.append(_Outstanding(self._tokens, now_ms, self.log.last_index, self.term))
        self._batch = Batch()
        self._entries = []
        self._commit_due = False
        return self._tokens, batch

    def written(self, token: int) -> None:
        while self._outstanding and self._outstanding[0].token <= token:
            done = self._outstanding.popleft()
            self.synced_index = max(self.synced_index, done.last_index)
            self.durable_term = max(self.durable_term, done.term)
            self.disk_ms = max(self.disk_ms, done.submitted_ms)

    def token_to_wait_for(self) -> int:
        """The token after which everything up to now is durable; 0 if it is already."""
        if self._entries or not self._batch.is_empty():
            return self._tokens + 1
        return self._outstanding[-1].token if self._outstanding else 0

    def is_writing(self) -> bool:
        return bool(self._outstanding)

    def is_stuck(self, now_ms: int, patience_ms: int) -> bool:
        """Whether the disk has left a batch waiting for too long."""
        return self.is_writing() and now_ms - self._outstanding[0].submitted_ms > patience_ms

    def _lower_synced(self, index: int) -> None:
        self.synced_index = min(self.synced_index, index)
        for outstanding in self._outstanding:
            outstanding.last_index = min(outstanding.last_index, index)
