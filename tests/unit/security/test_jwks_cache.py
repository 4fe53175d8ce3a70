"""When the keys of an issuer are fetched, and how long they count."""

from __future__ import annotations

from rhizome.security.jwks_cache import (
    RETRY_MS_MAX,
    STUCK_MS,
    UNKNOWN_KEY_MS,
    FetchTimes,
    IssuerKeys,
    KeyLocation,
)
from rhizome.security.token_keys import PublishedKeys, TokenKey

INTERVAL_MS = 600_000
KEPT_MS = 3_600_000


def key(name: str) -> TokenKey:
    return TokenKey(name, "RS256", lambda signed, signature: False)


OLD, NEW = PublishedKeys((key("old"),)), PublishedKeys((key("new"),))


class World:
    """An issuer that answers when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        times = FetchTimes(INTERVAL_MS, KEPT_MS)
        where = KeyLocation("https://a.example")
        self.keys = IssuerKeys("a", where, times, lambda: self.now_ms)

    def fetch(self, published: PublishedKeys | None) -> None:
        """A fetch that brings something at once, or fails."""
        self.keys.begun()
        if published is None:
            self.keys.failed("it is away")
        else:
            self.keys.fetched(published)

    def next_fetch_in_ms(self) -> int:
        """How long until it wants a fetch, to a tenth of a second; the clock is there then."""
        began_ms = self.now_ms
        while not self.keys.wants_fetch():
            self.now_ms += 100
        return self.now_ms - began_ms


def fetched() -> World:
    world = World()
    world.fetch(OLD)
    return world


def test_keys_are_fetched_at_once_and_then_on_a_schedule() -> None:
    world = World()
    assert world.keys.wants_fetch()
    assert world.keys.keys() == ()
    world.fetch(OLD)
    assert world.keys.keys() == OLD.keys
    assert world.next_fetch_in_ms() == INTERVAL_MS


def test_a_key_that_disappears_from_the_set_counts_no_more() -> None:
    world = fetched()
    world.fetch(NEW)
    assert world.keys.keys() == NEW.keys
    world.fetch(PublishedKeys(()))
    assert world.keys.keys() == ()


def test_an_unknown_key_has_them_fetched_soon() -> None:
    world = fetched()
    world.now_ms += UNKNOWN_KEY_MS
    assert not world.keys.wants_fetch()
    world.keys.missed()
    assert world.keys.wants_fetch()


def test_any_number_of_unknown_keys_cause_one_fetch_in_their_time() -> None:
    world = fetched()
    fetches = 0
    for _ in range(10 * UNKNOWN_KEY_MS // 100):
        world.now_ms += 100
        world.keys.missed()
        if world.keys.wants_fetch():
            fetches += 1
            world.fetch(OLD)
    assert fetches == 10


def test_an_unknown_key_that_comes_too_early_is_not_forgotten() -> None:
    world = fetched()
    world.now_ms += 1_000
    world.keys.missed()
    assert world.next_fetch_in_ms() == UNKNOWN_KEY_MS - 1_000
    world.fetch(NEW)
    assert world.next_fetch_in_ms() == INTERVAL_MS, "one is enough"


def test_an_unknown_key_during_a_fetch_may_be_newer_than_what_it_brings() -> None:
    world = fetched()
    world.keys.begun()
    world.keys.missed()
    assert not world.keys.wants_fetch(), "one fetch at a time"
    world.keys.fetched(OLD)
    assert world.next_fetch_in_ms() == UNKNOWN_KEY_MS


def test_failures_are_tried_again_and_less_and_less_often() -> None:
    world = fetched()
    waits: list[int] = []
    for _ in range(10):
        world.fetch(None)
        waits.append(world.next_fetch_in_ms())
    assert waits[:7] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, RETRY_MS_MAX]
    assert waits[-1] == RETRY_MS_MAX
    world.fetch(NEW)
    world.fetch(None)
    assert world.next_fetch_in_ms() == 1_000, "a success begins anew"


def test_unknown_keys_do_not_hurry_what_fails_already() -> None:
    world = fetched()
    for _ in range(10):
        world.fetch(None)
    world.keys.missed()
    assert world.next_fetch_in_ms() == UNKNOWN_KEY_MS


def test_old_keys_count_for_a_time_while_the_issuer_is_away() -> None:
    world = fetched()
    world.now_ms += KEPT_MS - 1
    world.fetch(None)
    assert world.keys.keys() == OLD.keys
    assert world.keys.trouble == "it is away"
    assert world.keys.age_ms == KEPT_MS - 1
    world.now_ms += 1
    assert world.keys.keys() == ()
    assert world.keys.keys_count == 0
    world.fetch(NEW)
    assert world.keys.keys() == NEW.keys
    assert world.keys.trouble == ""


def test_an_administrator_need_not_wait() -> None:
    world = fetched()
    world.keys.fetch_soon()
    assert world.keys.wants_fetch()
    world.keys.begun()
    world.keys.fetch_soon()
    assert not world.keys.wants_fetch(), "one fetch at a time"


def test_a_fetch_that_hangs_is_told() -> None:
    world = fetched()
    world.keys.begun()
    world.now_ms += STUCK_MS - 1
    assert world.keys.trouble == ""
    world.now_ms += 1
    assert "has not ended for 60 s" in world.keys.trouble


def test_a_reason_has_a_maximum() -> None:
    world = World()
    world.keys.begun()
    world.keys.failed("x" * 10_000)
    assert len(world.keys.error) == 500
