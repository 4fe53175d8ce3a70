"""How fast a home sends what copies lack."""

from __future__ import annotations

from rhizome.cluster.replication.catch_up_throttle import (
    BUSY_BYTES,
    BUSY_RECORDS,
    PERIOD_MS,
    CatchUpThrottle,
)

MIB = 1024 * 1024
RATE = 8 * MIB


def sent_in(
    pace: CatchUpThrottle, start_ms: int, milliseconds: int, records: int, size: int
) -> int:
    """Bytes of frames of 1 MiB that go in that time, while that much is recorded every 10 ms."""
    sent = 0
    for now_ms in range(start_ms, start_ms + milliseconds, 10):
        pace.recorded(records, size)
        if pace.allows(now_ms):
            pace.sent(MIB, now_ms)
            sent += MIB
    return sent


def test_group_in_use_is_slowed_down_by_no_more_than_the_rate() -> None:
    pace = CatchUpThrottle(RATE, 0)
    sent_in(pace, 0, PERIOD_MS, 1, BUSY_BYTES)
    assert RATE - MIB <= sent_in(pace, PERIOD_MS, 1000, 1, BUSY_BYTES) <= RATE + MIB


def test_small_messages_make_a_group_busy_too() -> None:
    pace = CatchUpThrottle(RATE, 0)
    sent_in(pace, 0, PERIOD_MS, BUSY_RECORDS, 1)
    assert sent_in(pace, PERIOD_MS, 1000, BUSY_RECORDS, 1) <= RATE + MIB


def test_group_that_rests_is_not_held_back() -> None:
    pace = CatchUpThrottle(RATE, 0)
    assert sent_in(pace, 0, 1000, 0, 0) == 100 * MIB


def test_group_that_comes_to_rest_is_held_back_no_longer_than_a_period() -> None:
    pace = CatchUpThrottle(RATE, 0)
    sent_in(pace, 0, 1000, 1, BUSY_BYTES)
    sent_in(pace, 1000, 2 * PERIOD_MS, 0, 0)
    assert sent_in(pace, 1000 + 2 * PERIOD_MS, 1000, 0, 0) == 100 * MIB


def test_time_at_rest_is_not_saved_up() -> None:
    pace = CatchUpThrottle(RATE, 0)
    sent_in(pace, 100_000, PERIOD_MS, 1, BUSY_BYTES)
    assert sent_in(pace, 100_000 + PERIOD_MS, 1000, 1, BUSY_BYTES) <= RATE + 2 * MIB
