"""What a queue has accepted: watermarks of producers and windows of message ids (L5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.journal.dedup_state import (
    PRODUCERS_FORGOTTEN,
    PRODUCERS_MAX,
    SEQUENCE_WINDOW,
    DedupIdentity,
    DedupState,
    given_name,
    identity_at,
    is_users,
    unpack_dedup_state,
    user_prefix,
)
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.record_replay import Replay
from rhizome.journal.records import drop_queue_record, enqueue_record, watermark_record


def taken(sequences: list[int]) -> DedupState:
    seen = DedupState()
    for index, sequence in enumerate(sequences, 1):
        seen.take(index, True, DedupIdentity(b"p", sequence, b""), 0)
    return seen


def with_id(message_id: bytes, window: int) -> DedupIdentity:
    identity = DedupIdentity(b"", 0, message_id)
    identity.window = window
    return identity


@given(
    st.lists(
        st.one_of(st.integers(0, 40), st.integers(0, 3 * SEQUENCE_WINDOW)), min_size=1, max_size=60
    )
)
def test_within_the_window_exactly_what_was_accepted_is_a_duplicate(sequences: list[int]) -> None:
    seen = DedupState()
    accepted: set[int] = set()
    for index, sequence in enumerate(sequences, 1):
        if not seen.has_sequence(b"p", sequence):
            assert sequence not in accepted
            seen.take(index, True, DedupIdentity(b"p", sequence, b""), 0)
            accepted.add(sequence)
    seen = unpack_dedup_state(seen.packed(), 0)
    for sequence in range(max(accepted) - SEQUENCE_WINDOW + 1, max(accepted) + 3):
        assert seen.has_sequence(b"p", sequence) == (sequence in accepted)


def test_what_was_left_out_is_acceptable_until_it_is_too_old() -> None:
    seen = taken([1, 2, 4])
    assert not seen.has_sequence(b"p", 3)
    seen.take(10, True, DedupIdentity(b"p", 3 + SEQUENCE_WINDOW + 2, b""), 0)
    assert seen.has_sequence(b"p", 3)


def test_a_long_run_without_gaps_does_not_age_the_gap_before_it() -> None:
    seen = taken([1, *range(3, 3 * SEQUENCE_WINDOW)])
    assert not seen.has_sequence(b"p", 2)
    assert seen.has_sequence(b"p", 1)


def test_producers_do_not_know_each_other() -> None:
    seen = taken([1, 2, 3])
    assert seen.has_sequence(b"p", 3)
    assert not seen.has_sequence(b"q", 3)


def test_records_that_were_counted_are_passed_over() -> None:
    seen = taken([1, 2, 3])
    seen.take(2, True, DedupIdentity(b"q", 9, b""), 0)
    assert not seen.has_sequence(b"q", 9)
    seen.truncate(2)
    seen.take(2, False, DedupIdentity(b"q", 9, b""), 0)
    assert seen.has_sequence(b"q", 9)
    assert (seen.index, seen.index_on_disk) == (2, 1)


def test_producers_that_were_silent_for_longest_are_forgotten() -> None:
    seen = DedupState()
    for number in range(PRODUCERS_MAX):
        seen.take(number + 1, True, DedupIdentity(b"%d" % number, 1, b""), 0)
    seen.take(PRODUCERS_MAX + 1, True, DedupIdentity(b"0", 2, b""), 0)
    seen.take(PRODUCERS_MAX + 2, True, DedupIdentity(b"new", 1, b""), 0)
    assert len(seen.producers) == PRODUCERS_MAX + 1 - PRODUCERS_FORGOTTEN
    assert b"0" in seen.producers
    assert b"new" in seen.producers
    assert b"1" not in seen.producers


def of(user: str, name: bytes) -> bytes:
    return user_prefix(user) + name


def test_a_producer_belongs_to_its_user() -> None:
    seen = DedupState()
    seen.take(1, True, DedupIdentity(of("mallory", b"p"), 1 << 62, b""), 0)
    assert seen.has_sequence(of("mallory", b"p"), 5)
    assert not seen.has_sequence(of("alice", b"p"), 5)


@pytest.mark.parametrize(
    ("user", "name"),
    [("ab", b"c"), ("", b"abc"), ("abc", b"x"), ("a\0", b"bc"), ("a" * 300, b"bc")],
)
def test_no_other_user_has_a_producer_of_the_same_name(user: str, name: bytes) -> None:
    assert of(user, name) != of("a", b"bc")
    assert of(user, name) != of("a" * 301, b"bc")
    assert given_name(of(user, name)) == name


def test_no_user_has_a_producer_of_a_groups_name() -> None:
    letter = b"\0" + (1).to_bytes(2, "big") + (7).to_bytes(8, "big")
    assert not is_users(letter)
    assert not is_users(b"\0kept" + b"b1")
    assert is_users(of("", letter))


def test_what_an_older_release_accepted_counts_for_whoever_sends_it_again() -> None:
    seen = taken([1, 2, 3])
    assert seen.has_sequence(of("alice", b"p"), 3)
    assert not seen.has_sequence(of("alice", b"p"), 4)
    seen.take(4, True, DedupIdentity(of("alice", b"p"), 4, b""), 0)
    assert seen.has_sequence(of("alice", b"p"), 3)
    assert not seen.has_sequence(of("alice", b"q"), 3)


def test_a_high_sequence_under_the_name_alone_makes_no_users_too_old() -> None:
    seen = taken([1, 2, 3, 1 << 62])
    assert seen.has_sequence(b"p", 100)
    assert not seen.has_sequence(of("alice", b"p"), 100)
    assert seen.has_sequence(of("alice", b"p"), 1 << 62)
    seen = DedupState()
    seen.take(1, True, DedupIdentity(of("mallory", b"p"), 1 << 62, b""), 0)
    assert not seen.has_sequence(b"p", 100)


def test_a_broker_of_an_older_release_is_told_what_came_through_a_newer_one() -> None:
    seen = DedupState()
    seen.take(1, True, DedupIdentity(of("alice", b"p"), 7, b""), 0)
    assert seen.has_sequence(b"p", 7)
    assert not seen.has_sequence(b"p", 8)
    assert not seen.has_sequence(b"q", 7)


def test_a_user_with_many_producers_makes_a_queue_forget_own_ones() -> None:
    seen = DedupState()
    seen.take(1, True, DedupIdentity(of("alice", b"p"), 1, b""), 0)
    for number in range(3 * PRODUCERS_MAX):
        seen.take(number + 2, True, DedupIdentity(of("mallory", b"%d" % number), 1, b""), 0)
    assert len(seen.producers) <= PRODUCERS_MAX
    assert seen.has_sequence(of("alice", b"p"), 1)


def test_a_window_of_ids_forgets_the_oldest() -> None:
    seen = DedupState()
    for index in range(1, 5):
        seen.take(index, True, with_id(b"%d" % index, 3), 100 * index)
    assert [n for n in range(1, 5) if seen.has_id(b"%d" % n, 0)] == [2, 3, 4]
    assert not seen.has_id(b"2", 201)


def test_ids_are_kept_in_the_order_of_acceptance() -> None:
    seen = DedupState()
    for index, name in enumerate((b"a", b"b", b"a"), 1):
        seen.take(index, False, with_id(name, 2), index)
    seen = unpack_dedup_state(b"before" + seen.packed(), 6)
    seen.take(9, False, with_id(b"c", 2), 9)
    assert list(seen.ids) == [b"a", b"c"]


def test_ids_are_not_kept_where_nobody_looks_at_them() -> None:
    seen = DedupState()
    seen.take(1, True, DedupIdentity(b"p", 1, b"some id"), 5)
    assert seen.ids == {}


def test_an_identity_comes_back_as_it_was() -> None:
    identity = DedupIdentity("é".encode(), 1 << 60, b"id")
    identity.window = 77
    found = identity_at(b"xx" + identity.packed(), 2)
    assert (found.producer, found.sequence) == ("é".encode(), 1 << 60)
    assert (found.message_id, found.window) == (b"id", 77)


def test_watermarks_of_an_unknown_version_are_refused() -> None:
    with pytest.raises(CorruptRecord, match="version 9"):
        unpack_dedup_state(b"\x09" + DedupState().packed()[1:], 0)


def applied(*records: bytes) -> Replay:
    replay = Replay()
    for record in records:
        replay.apply(record, 0, len(record), 1 << 32 | 64)
    return replay


def identified(index: int, sequence: int, origin: int = 0) -> bytes:
    packed = DedupIdentity(b"p", sequence, b"").packed()
    return enqueue_record(
        4, 1, index, [1, 2], b"\0\0", 5, -1, 0, 1, b"body", origin, 8 if origin else 0, packed
    )


def test_a_replay_accepts_what_records_carry_with_and_without_an_origin() -> None:
    replay = applied(identified(1, 5), identified(2, 6, origin=0xAB))
    for queue_id in (1, 2):
        seen = replay.queues[queue_id].seen
        assert seen is not None
        assert [n for n in range(4, 9) if seen.has_sequence(b"p", n)] == [5, 6]
        assert (seen.index, seen.index_on_disk) == (2, 2)
    assert replay.groups[4].origins == {0xAB: 8}


def test_a_watermark_record_replaces_what_was_known() -> None:
    known = DedupState()
    known.take(1, True, DedupIdentity(b"p", 5, b""), 0)
    replay = applied(
        identified(1, 5), identified(2, 6), watermark_record(4, 1, 3, 1, known.packed())
    )
    seen = replay.queues[1].seen
    assert seen is not None
    assert [n for n in range(4, 9) if seen.has_sequence(b"p", n)] == [5]


def test_dropping_a_queue_forgets_what_it_accepted() -> None:
    replay = applied(identified(1, 5), drop_queue_record(4, 1, 2, 1))
    assert list(replay.queues) == [2]
