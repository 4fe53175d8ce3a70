"""State log: the log in memory, and the memberships in it.

Invariant: entries are consecutive and begin after ``start``; ``memberships`` holds those of the
entries in the log, preceded by the one in force at ``start``.
"""

from __future__ import annotations

from rhizome.cluster.consensus.dataclass_codec import decode
from rhizome.cluster.consensus.log.cluster_store import Entry, Position
from rhizome.cluster.consensus.log.log_entry_payloads import FOUNDING, Founding, membership_of
from rhizome.cluster.consensus.membership import Electorate, Membership
from rhizome.cluster.consensus.rule_switches import Rules

ENTRY_OVERHEAD_BYTES = 32
"""What an entry costs beyond its payload, for limits that count bytes."""


def size_of(entry: Entry) -> int:
    return len(entry.payload) + ENTRY_OVERHEAD_BYTES


class StateLog:
    def __init__(self, start: Position, base: Membership, base_index: int) -> None:
        self.start = start
        self.bytes = 0
        self._base = (base_index, base)
        self.memberships: list[tuple[int, Membership]] = [self._base]
        self.founding_uuid = ""
        """The cluster UUID in the newest founding entry here, committed or not."""
        self._entries: list[Entry] = []

    @property
    def last_index(self) -> int:
        return self._entries[-1].index if self._entries else self.start.index

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.start.term

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, index: int) -> Entry:
        return self._entries[index - self.start.index - 1]

    def term_at(self, index: int) -> int:
        """The term of an entry; -1 if the log doesn't hold it."""
        if index == self.start.index:
            return self.start.term
        if self.start.index < index <= self.last_index:
            return self.entry(index).term
        return -1

    def between(self, first: int, last: int) -> list[Entry]:
        """The entries from ``first`` to ``last``, both included."""
        return self._entries[first - self.start.index - 1 : last - self.start.index]

    def some_from(self, first: int, count_max: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from ``first`` on: at least one, if there is one, and no more than fit."""
        taken: list[Entry] = []
        size = 0
        for index in range(first, min(self.last_index, first + count_max - 1) + 1):
            entry = self.entry(index)
            size += size_of(entry)
            if taken and size > bytes_max:
                break
            taken.append(entry)
        return tuple(taken)

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, "entries are consecutive"
        assert entry.term >= self.last_term, "terms never fall along the log"
        self._entries.append(entry)
        self.bytes += size_of(entry)
        self._note_membership(entry)

    def cut(self, first: int) -> None:
        """Forget the entries from ``first`` on."""
        kept = self._entries[: first - self.start.index - 1]
        self._rebuild(kept)

    def compact(self, upto: Position) -> None:
        """Forget the entries up to ``upto``."""
        if upto.index <= self.start.index:
            return
        assert self.term_at(upto.index) == upto.term
        kept = self._entries[upto.index - self.start.index :]
        self._base = [pair for pair in self.memberships if pair[0] <= upto.index][-1]
        self.start = upto
        self._rebuild(kept)

    def reset(self, start: Position, base: Membership, base_index: int) -> None:
        """Forget everything: a snapshot takes its place (R8)."""
        self.start = start
        self._base = (base_index, base)
        self._rebuild([])

    def electorate(self, commit: int, rules: Rules) -> Electorate:
        """Both memberships while the newer one isn't known to be committed (R4)."""
        index, newest = self.memberships[-1]
        if index <= commit or len(self.memberships) == 1 or not rules.joint_membership:
            return Electorate((newest,))
        return Electorate((self.memberships[-2][1], newest))

    def agreement_below(self, index: int, term: int) -> int:
        """The highest index at which a log that has ``term`` at ``index`` may agree with this one.

        It skips whole terms: if a term conflicts at ``index``, nothing of it before need be tried.
        """
        at = min(index, self.last_index)
        while at > self.start.index and self.term_at(at) > term:
            at -= 1
        return at

    def _rebuild(self, entries: list[Entry]) -> None:
        self._entries = entries
        self.bytes = sum(map(size_of, entries))
        self.memberships = [self._base]
        self.founding_uuid = ""
        for entry in entries:
            self._note_membership(entry)

    def _note_membership(self, entry: Entry) -> None:
        membership = membership_of(entry)
        if membership is None:
            return
        if entry.kind == FOUNDING:
            founding = decode(Founding, entry.payload)
            self.founding_uuid = founding.cluster_uuid
            if founding.parent_uuid:
                # A forced root asks no broker of the cluster that it leaves (R12).
                self.memberships.clear()
        self.memberships.append((entry.index, membership))
