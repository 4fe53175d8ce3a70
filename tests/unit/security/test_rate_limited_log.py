"""Lines that are held back."""

from __future__ import annotations

from rhizome.security.rate_limited_log import KEYS_MAX, RateLimitedLog


def test_a_burst_goes_through_and_then_one_per_interval() -> None:
    seldom = RateLimitedLog(burst=3, interval_ms=1000)
    assert [seldom.held_back("a", 0) for _ in range(5)] == [0, 0, 0, -1, -1]
    assert seldom.held_back("a", 999) == -1
    assert seldom.held_back("a", 1000) == 3, "and says how many it stands for"
    assert seldom.held_back("a", 1001) == -1


def test_one_key_does_not_hold_back_another() -> None:
    seldom = RateLimitedLog(burst=1, interval_ms=1000)
    assert [seldom.held_back(key, 0) for key in ("a", "b", "a")] == [0, 0, -1]


def test_a_quiet_key_has_its_burst_again() -> None:
    seldom = RateLimitedLog(burst=2, interval_ms=10)
    for _ in range(9):
        seldom.held_back("a", 0)
    assert [seldom.held_back("a", 1000) for _ in range(3)] == [7, 0, -1]


def test_keys_are_bounded() -> None:
    seldom = RateLimitedLog(burst=1, interval_ms=1000)
    for number in range(KEYS_MAX + 10):
        seldom.held_back(str(number), 0)
    assert len(seldom._keys) == KEYS_MAX
    assert seldom.held_back("0", 0) == 0, "forgotten"
