"""What is durable, and how far: log, ledger, and a store that forgets at a crash (R2, R3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.cluster.consensus import ALL_RULES
from rhizome.cluster.consensus.entries import APPLICATION, MEMBERSHIP, payload
from rhizome.cluster.consensus.ledger import Ledger
from rhizome.cluster.consensus.membership import Membership, Voter
from rhizome.cluster.storage import Entry, Image, MemoryClusterStore, Snapshot

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
        self.ledger = self.open()

    def open(self) -> Ledger:
        return Ledger(self.store.load(), NOBODY, 0, ALL_RULES)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.ledger.append(APPLICATION, b"%d" % self.ledger.term)

    def term(self, step: int) -> None:
        self.ledger.enter_term(self.ledger.term + 1 + step, f"b{step}")

    def cut(self, back: int) -> None:
        ledger = self.ledger
        first = max(ledger.commit, ledger.log.last_index - back) + 1
        if first <= ledger.log.last_index:
            ledger.enter_term(ledger.term + 1)
            ledger.cut(first)
            ledger.accept(Entry(first, ledger.term, APPLICATION, b"other"))

    def commit(self, step: int) -> None:
        ledger = self.ledger
        index = min(ledger.commit + step, ledger.synced_index)
        ledger.advance_commit(max(index, ledger.commit), remember=False)

    def take(self, _: int) -> None:
        taken = self.ledger.take(now_ms=7)
        if taken is not None:
            self.store.submit(taken[1], taken[0])

    def sync(self, _: int) -> None:
        token = self.store.sync()
        if token:
            self.ledger.written(token)

    def snapshot(self, back: int) -> None:
        ledger = self.ledger
        index = ledger.commit
        if index > (ledger.snapshot.index if ledger.snapshot else 0):
            start = max(ledger.log.start.index, index - back)
            ledger.keep_snapshot(Snapshot(index, ledger.log.term_at(index), b"s"), start)

    def crash(self, _: int) -> None:
        self.store.crash()
        before = self.ledger
        vouched = before.log.between(before.log.start.index + 1, before.synced_index)
        durable_term = before.durable_term
        self.ledger = self.open()
        assert self.ledger.term >= durable_term
        log = self.ledger.log
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
        ledger = pair.ledger
        assert ledger.synced_index <= ledger.log.last_index
        assert ledger.commit <= ledger.log.last_index
        assert ledger.durable_term <= ledger.term
    pair.take(0)
    pair.sync(0)
    assert pair.ledger.synced_index == pair.ledger.log.last_index
    assert pair.ledger.durable_term == pair.ledger.term
    assert pair.ledger.token_to_wait_for() == 0
    reopened = pair.open()
    log, again = pair.ledger.log, reopened.log
    assert again.between(1, again.last_index) == log.between(1, log.last_index)
    assert (reopened.term, reopened.vote) == (pair.ledger.term, pair.ledger.vote)


def test_a_second_vote_in_a_term_is_a_fault_of_our_own() -> None:
    ledger = Pair().ledger
    ledger.enter_term(3, "b1")
    with pytest.raises(AssertionError, match="one vote per term"):
        ledger.enter_term(3, "b2")
    with pytest.raises(AssertionError, match="terms never fall"):
        ledger.enter_term(2)


def test_an_entry_that_was_cut_is_not_synced_when_its_batch_is() -> None:
    pair = Pair()
    pair.ledger.enter_term(1)
    pair.append(5)
    pair.take(0)
    pair.ledger.enter_term(2)
    pair.ledger.cut(3)
    pair.sync(0)
    assert pair.ledger.synced_index == 2


def test_entries_in_place_of_synced_ones_are_not_synced_yet() -> None:
    pair = Pair()
    pair.ledger.enter_term(1)
    pair.append(5)
    pair.take(0)
    pair.sync(0)
    pair.ledger.enter_term(2)
    pair.ledger.cut(3)
    pair.append(4)
    assert pair.ledger.synced_index == 2


def test_both_memberships_count_until_the_newer_is_known_to_be_committed() -> None:
    ledger = Pair().ledger
    ledger.enter_term(1)
    one, two = (Membership(tuple(Voter(f"b{n}") for n in range(count))) for count in (1, 2))
    ledger.append(MEMBERSHIP, payload(one))
    ledger.advance_commit(1, remember=True)
    assert ledger.electorate().memberships == (one,)
    ledger.append(MEMBERSHIP, payload(two))
    assert ledger.electorate().memberships == (one, two)
    ledger.cut(2)
    assert ledger.electorate().memberships == (one,)
    ledger.append(MEMBERSHIP, payload(two))
    ledger.advance_commit(2, remember=True)
    assert ledger.electorate().memberships == (two,)
    ledger.keep_snapshot(Snapshot(2, 1, b""), 2)
    assert ledger.electorate().memberships == (two,)


def test_a_disk_that_keeps_a_batch_waiting_is_stuck() -> None:
    pair = Pair()
    pair.ledger.touch()
    pair.take(0)
    assert not pair.ledger.is_stuck(now_ms=400, patience_ms=400)
    assert pair.ledger.is_stuck(now_ms=408, patience_ms=400)
    pair.sync(0)
    assert not pair.ledger.is_stuck(now_ms=9000, patience_ms=400)
