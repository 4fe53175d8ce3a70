"""The publisher's book of unconfirmed messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rhizome.client.unconfirmed_publishes import ConfirmLedger


def ledger_of(count: int) -> ConfirmLedger[str, str]:
    ledger: ConfirmLedger[str, str] = ConfirmLedger()
    for number in range(1, count + 1):
        assert ledger.record(f"m{number}") == number
    return ledger


def test_a_single_ack_settles_one_publish() -> None:
    ledger = ledger_of(3)
    assert ledger.settle(2, multiple=False) == [(2, "m2")]
    assert ledger.unconfirmed == 2


def test_a_multiple_ack_settles_all_up_to_its_number() -> None:
    ledger = ledger_of(4)
    ledger.settle(2, multiple=False)
    assert ledger.settle(3, multiple=True) == [(1, "m1"), (3, "m3")]
    assert ledger.unconfirmed == 1


def test_a_multiple_ack_of_zero_settles_everything() -> None:
    assert [number for number, _ in ledger_of(3).settle(0, multiple=True)] == [1, 2, 3]


def test_an_ack_of_something_settled_or_never_sent_is_passed_over() -> None:
    ledger = ledger_of(1)
    ledger.settle(1, multiple=False)
    assert ledger.settle(1, multiple=False) == []
    assert ledger.settle(99, multiple=False) == []


def test_a_returned_message_belongs_to_the_oldest_publish_like_it() -> None:
    ledger: ConfirmLedger[str, str] = ConfirmLedger()
    ledger.record("a", ("x", "k", b"other"))
    ledger.record("b", ("x", "k", b"body"))
    ledger.record("c", ("x", "k", b"body"))
    assert ledger.mark_returned(("x", "k", b"body"), "came back")
    assert [ledger.take_returned(number) for number in (1, 2, 3)] == [None, "came back", None]
    assert not ledger.mark_returned(("x", "k", b"body"), "too late")


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=20))
def test_every_publish_is_settled_at_most_once(acks: list[tuple[int, bool]]) -> None:
    ledger = ledger_of(20)
    settled: list[int] = []
    for number, multiple in acks:
        settled += [sequence for sequence, _ in ledger.settle(number, multiple)]
    assert len(settled) == len(set(settled))
    assert ledger.unconfirmed == 20 - len(settled)
    assert len(ledger.abandon()) == 20 - len(settled)
