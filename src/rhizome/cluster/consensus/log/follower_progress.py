"""Follower progress: how far each broker is with the log, as its root sees it.

probing    -> streaming   the broker has said where the logs agree
streaming  -> probing     it refused entries, or its link came back
any        -> snapshot    what it needs is no longer in the log
snapshot   -> probing     it holds the snapshot
"""

from __future__ import annotations

from typing import Final

from rhizome.cluster.consensus.consensus_messages import (
    NO_STAMP,
    Append,
    AppendAnswer,
    Heartbeat,
    SnapshotAnswer,
    SnapshotChunk,
)
from rhizome.cluster.consensus.log.cluster_store import Snapshot
from rhizome.cluster.consensus.node_state import NodeState

PROBING: Final = "probing"
STREAMING: Final = "streaming"
SNAPSHOT: Final = "snapshot"


class FollowerProgress:
    """One broker's progress. Invariant: everything up to ``match`` is synced there as the root has
    it."""

    def __init__(self, state: NodeState, name: str) -> None:
        self.state = state
        self.name = name
        hello = state.peers[name].hello
        self.bearer = (hello.uuid, hello.incarnation)
        """The identity whose progress it is: a restarted or replaced broker has to show anew what
        it holds."""
        self.match = 0
        self.mode = PROBING
        self.next = state.persistent.log.last_index + 1
        self.in_flight = 0
        self.commit_told = 0
        self.settled_told = 0
        self.granted_ms = NO_STAMP
        self.tell_now = True
        self._snapshot: Snapshot | None = None

    def relinked(self) -> None:
        """The link came back: what was under way on the old one is lost."""
        self.mode = PROBING
        self.next = self.state.persistent.log.last_index + 1
        self.in_flight = 0
        self.granted_ms = NO_STAMP
        self.tell_now = True
        self._snapshot = None

    def is_current(self) -> bool:
        """Whether it has all that is committed: as much as a new voter must have (R4)."""
        return self.mode == STREAMING and self.match >= self.state.persistent.commit

    def replicate(self) -> None:
        """Send what there is, as far as the window allows."""
        settings, log = self.state.settings, self.state.persistent.log
        window = settings.appends_in_flight_max if self.mode == STREAMING else 1
        while self.mode != SNAPSHOT and self.in_flight < window:
            if self.mode == STREAMING and self.next > log.last_index:
                return
            if self.next <= log.start.index:
                self._begin_snapshot()
                return
            entries = log.some_from(
                self.next, settings.append_entries_max, settings.append_bytes_max
            )
            prev = self.next - 1
            self.in_flight += 1
            if self.mode == STREAMING:
                self.next += len(entries)
            self.state.send(
                self.name,
                Append(
                    term=self.state.term,
                    prev_index=prev,
                    prev_term=log.term_at(prev),
                    commit=self.state.persistent.commit,
                    entries=entries,
                ),
            )

    def answered(self, answer: AppendAnswer) -> None:
        self.in_flight = max(0, self.in_flight - 1)
        if answer.ok:
            self.match = max(self.match, answer.index)
            if self.mode == PROBING:
                self.mode = STREAMING
                self.next = self.match + 1
            self.next = max(self.next, self.match + 1)
        elif self.mode != SNAPSHOT:
            agreed = self.state.persistent.log.agreement_below(answer.index, answer.index_term)
            self.mode = PROBING
            self.in_flight = 0
            self.next = max(self.match, agreed) + 1

    def heartbeat(self, stamp_ms: int, settled: int) -> None:
        """Send a heartbeat; with NO_STAMP for ``stamp_ms`` it is news that needs no answer."""
        state = self.state
        self.commit_told = min(state.persistent.commit, self.match)
        self.settled_told = settled
        state.send(
            self.name,
            Heartbeat(
                term=state.term,
                stamp_ms=stamp_ms,
                commit=self.commit_told,
                settled=settled,
                granted_ms=self.granted_ms,
                home_lease_ms=state.settings.home_lease_ms,
                root_lease_ms=state.settings.root_lease_ms,
            ),
        )
        self.granted_ms = NO_STAMP
        self.tell_now = False

    def tell(self, settled: int) -> None:
        """Tell at once what the broker, or a client of it, waits for (R10)."""
        news = min(self.state.persistent.commit, self.match) > self.commit_told
        if self.tell_now:
            self.heartbeat(self.state.now_ms, settled)
        elif news or settled > self.settled_told:
            self.heartbeat(NO_STAMP, settled)

    def _begin_snapshot(self) -> None:
        assert self.state.persistent.snapshot is not None, (
            "a log without its beginning has a snapshot"
        )
        self.mode = SNAPSHOT
        self._snapshot = self.state.persistent.snapshot
        self._send_chunk(0)

    def _send_chunk(self, offset: int) -> None:
        snapshot = self._snapshot
        assert snapshot is not None
        end = offset + self.state.settings.snapshot_chunk_bytes
        self.state.send(
            self.name,
            SnapshotChunk(
                term=self.state.term,
                index=snapshot.index,
                index_term=snapshot.term,
                offset=offset,
                size=len(snapshot.data),
                data=snapshot.data[offset:end],
            ),
        )

    def snapshot_answered(self, answer: SnapshotAnswer) -> None:
        if self.mode != SNAPSHOT or self._snapshot is None:
            return
        if answer.done:
            self.mode = PROBING
            self.in_flight = 0
            self.match = max(self.match, answer.index)
            self.next = answer.index + 1
            self._snapshot = None
        elif answer.index == self._snapshot.index and answer.offset < len(self._snapshot.data):
            self._send_chunk(answer.offset)
