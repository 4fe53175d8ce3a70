"""What is durable, and how far: log, ledger, and a store that forgets at a crash (R2, R3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.cluster.consensus import ALL_RULES
from rhizome.cluster.consensus.log.cluster_store import Entry, Image, MemoryClusterStore, Snapshot
from rhizome.cluster.consensus.log.log_entry_payloads import APPLICATION, MEMBERSHIP, payload
from rhizome.cluster.consensus.log.persistent_state import PersistentState
from rhizome.cluster.consensus.membership import Membership, Voter

NOBODY = Membership(())
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "term", "cut", "commit", "take", "sync", "snapshot", "crash"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


class Pair:
    """A ledger and its store, driven as a broker would."""

    def __init__(self) -> None:
        self.store = MemoryClusterStore(Image(uuid="u"))
        self.persistent = self.open()

    def open(self) -> PersistentState:
        return PersistentState(self.store.load(), NOBODY, 0, ALL_RULES)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.persistent.append(APPLICATION, b"%d" % self.persistent.term)

    def term(self, step: int) -> None:
        self.persistent.enter_term(self.persistent.term + 1 + step, f"b{step}")

    def cut(self, back: int) -> None:
        persistent = self.persistent
        first = max(persistent.commit, persistent.log.last_index - back) + 1
        if first <= persistent.log.last_index:
            persistent.enter_term(persistent.term + 1)
            persistent.cut(first)
            persistent.accept(Entry(first, persistent.term, APPLICATION, b"other"))

    def commit(self, step: int) -> None:
        persistent = self.persistent
        index = min(persistent.commit + step, persistent.synced_index)
        persistent.advance_commit(max(index, persistent.commit), remember=False)

    def take(self, _: int) -> None:
        taken = self.persistent.take(now_ms=7)
        if taken is not None:
            self.store.submit(taken[1], taken[0])

    def sync(self, _: int) -> None:
        token = self.store.sync()
        if token:
            self.persistent.written(token)

    def snapshot(self, back: int) -> None:
        persistent = self.persistent
        index = persistent.commit
        if index > (persistent.snapshot.index if persistent.snapshot else 0):
            start = max(persistent.log.start.index, index - back)
            persistent.keep_snapshot(Snapshot(index, persistent.log.term_at(index), b"s"), start)

    def crash(self, _: int) -> None:
        self.store.crash()
        before = self.persistent
        vouched = before.log.between(before.log.start.index + 1, before.synced_index)
        durable_term = before.durable_term
        self.persistent = self.open()
        assert self.persistent.term >= durable_term
        log = self.persistent.log
        for entry in vouched:
            if entry.index > log.start.index:
                assert log.entry(entry.index) == entry


@given(STEPS)
def test_what_was_synced_survives_a_crash_and_the_log_stays_whole(
    steps: list[tuple[str, int]],
) -> None:
    pair = Pair()
    for name, number in steps:
        getattr(pair, name)(number)
        persistent = pair.persistent
        assert persistent.synced_index <= persistent.log.last_index
        assert persistent.commit <= persistent.log.last_index
        assert persistent.durable_term <= persistent.term
    pair.take(0)
    pair.sync(0)
    assert pair.persistent.synced_index == pair.persistent.log.last_index
    assert pair.persistent.durable_term == pair.persistent.term
    assert pair.persistent.token_to_wait_for() == 0
    reopened = pair.open()
    log, again = pair.persistent.log, reopened.log
    assert again.between(1, again.last_index) == log.between(1, log.last_index)
    assert (reopened.term, reopened.vote) == (pair.persistent.term, pair.persistent.vote)


def test_a_second_vote_in_a_term_is_a_fault_of_our_own() -> None:
    persistent = Pair().persistent
    persistent.enter_term(3, "b1")
    with pytest.raises(AssertionError, match="one vote per term"):
        persistent.enter_term(3, "b2")
    with pytest.raises(AssertionError, match="terms never fall"):
        persistent.enter_term(2)


def test_an_entry_that_was_cut_is_not_synced_when_its_batch_is() -> None:
    pair = Pair()
    pair.persistent.enter_term(1)
    pair.append(5)
    pair.take(0)
    pair.persistent.enter_term(2)
    pair.persistent.cut(3)
    pair.sync(0)
    assert pair.persistent.synced_index == 2


def test_entries_in_place_of_synced_ones_are_not_synced_yet() -> None:
    pair = Pair()
    pair.persistent.enter_term(1)
    pair.append(5)
    pair.take(0)
    pair.sync(0)
    pair.persistent.enter_term(2)
    pair.persistent.cut(3)
    pair.append(4)
    assert pair.persistent.synced_index == 2


def test_both_memberships_count_until_the_newer_is_known_to_be_committed() -> None:
    persistent = Pair().persistent
    persistent.enter_term(1)
    one, two = (Membership(tuple(Voter(f"b{n}") for n in range(count))) for count in (1, 2))
    persistent.append(MEMBERSHIP, payload(one))
    persistent.advance_commit(1, remember=True)
    assert persistent.electorate().memberships == (one,)
    persistent.append(MEMBERSHIP, payload(two))
    assert persistent.electorate().memberships == (one, two)
    persistent.cut(2)
    assert persistent.electorate().memberships == (one,)
    persistent.append(MEMBERSHIP, payload(two))
    persistent.advance_commit(2, remember=True)
    assert persistent.electorate().memberships == (two,)
    persistent.keep_snapshot(Snapshot(2, 1, b""), 2)
    assert persistent.electorate().memberships == (two,)


def test_a_disk_that_keeps_a_batch_waiting_is_stuck() -> None:
    pair = Pair()
    pair.persistent.touch()
    pair.take(0)
    assert not pair.persistent.is_stuck(now_ms=400, patience_ms=400)
    assert pair.persistent.is_stuck(now_ms=408, patience_ms=400)
    pair.sync(0)
    assert not pair.persistent.is_stuck(now_ms=9000, patience_ms=400)
