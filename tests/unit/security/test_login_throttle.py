"""Guessing gets slower; knowing does not."""

from __future__ import annotations

from rhizome.broker.access.auth_interface import Peer
from rhizome.security.login_throttle import LoginThrottle, ThrottleSettings

SETTINGS = ThrottleSettings(free_failures=2, delay_ms=100, delay_ms_max=1000, forget_ms=60_000)
HOME = Peer("10.0.0.1", 1)
STRANGER = Peer("10.6.6.6", 1)
LOCAL = Peer("127.0.0.1", 1, loopback=True)


def fail(throttle: LoginThrottle, user: str, peer: Peer, times: int, now_ms: int = 0) -> None:
    for _ in range(times):
        throttle.started(user, peer, now_ms)
        throttle.failed(user, peer, now_ms)


def test_first_failures_are_free() -> None:
    throttle = LoginThrottle(SETTINGS)
    fail(throttle, "app", HOME, 2)
    assert throttle.wait_ms("app", HOME, 0) == 0


def test_wait_doubles_up_to_the_maximum() -> None:
    throttle = LoginThrottle(SETTINGS)
    fail(throttle, "app", HOME, 2)
    waits = []
    for _ in range(6):
        fail(throttle, "app", HOME, 1)
        waits.append(throttle.wait_ms("app", HOME, 0))
    assert waits == [100, 200, 400, 800, 1000, 1000]


def test_wait_passes_with_time_and_failures_are_forgotten_in_the_end() -> None:
    throttle = LoginThrottle(SETTINGS)
    fail(throttle, "app", HOME, 3)
    assert throttle.wait_ms("app", HOME, 60) == 40
    assert throttle.wait_ms("app", HOME, 100) == 0
    fail(throttle, "app", HOME, 2, now_ms=70_000)
    assert throttle.wait_ms("app", HOME, 70_000) == 0


def test_many_users_from_one_address_slow_down_that_address() -> None:
    throttle = LoginThrottle(SETTINGS)
    for number in range(3):
        fail(throttle, f"user{number}", STRANGER, 1)
    assert throttle.wait_ms("new", STRANGER, 0) == 100
    assert throttle.wait_ms("new", HOME, 0) == 0


def test_one_user_from_many_addresses_is_slowed_down() -> None:
    throttle = LoginThrottle(SETTINGS)
    for number in range(3):
        fail(throttle, "app", Peer(f"10.0.1.{number}", 1), 1)
    assert throttle.wait_ms("app", STRANGER, 0) == 100


def test_stranger_cannot_lock_out_a_user_where_it_is_known() -> None:
    throttle = LoginThrottle(SETTINGS)
    throttle.succeeded("app", HOME)
    fail(throttle, "app", STRANGER, 20)
    assert throttle.wait_ms("app", STRANGER, 0) > 0
    assert throttle.wait_ms("app", HOME, 0) == 0
    fail(throttle, "app", HOME, 3)
    assert throttle.wait_ms("app", HOME, 0) == 100, "but guesses from there count too"


def test_success_clears_the_users_count() -> None:
    throttle = LoginThrottle(SETTINGS)
    fail(throttle, "app", LOCAL, 3)
    throttle.succeeded("app", LOCAL)
    fail(throttle, "app", LOCAL, 2)
    assert throttle.wait_ms("app", LOCAL, 0) == 0


def test_loopback_is_shared_so_only_users_count_there() -> None:
    throttle = LoginThrottle(SETTINGS)
    for number in range(10):
        fail(throttle, f"user{number}", LOCAL, 1)
    assert throttle.wait_ms("new", LOCAL, 0) == 0


def test_attempts_under_way_count_before_they_fail() -> None:
    throttle = LoginThrottle(SETTINGS)
    for _ in range(3):
        throttle.started("app", HOME, 0)
    assert throttle.wait_ms("app", HOME, 0) == 100


def test_tables_stay_bounded() -> None:
    throttle = LoginThrottle(SETTINGS, entries_max=10)
    for number in range(100):
        fail(throttle, f"user{number}", Peer(f"10.0.0.{number}", 1), 1)
        throttle.succeeded(f"friend{number}", HOME)
    assert len(throttle) == 10
    assert len(throttle.known) == 100, "which has limits of its own"
