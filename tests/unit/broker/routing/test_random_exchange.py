"""Exchanges that choose: x-random, x-local-random, x-modulus-hash."""

from __future__ import annotations

from collections import Counter

import pytest

from rhizome.broker.routing.bindings_and_destinations import Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.exchange_types import make_exchange
from rhizome.broker.routing.random_exchange import CHOOSING_KINDS
from rhizome.broker.routing.router import Router

EVERYWHERE = ("x-random", "x-modulus-hash")
"""Those that don't care where a queue is; x-local-random is in tests/unit/cluster/node."""


def place(name: str) -> Destination:
    return Destination("/", name)


def bound(kind: str, *places: Destination) -> tuple[Router, Exchange]:
    router = Router("/")
    exchange = make_exchange("/", "x", kind)
    router.add_exchange(exchange)
    for each in places:
        router.add_queue(each)
        router.bind(exchange, each, "", {})
    return router, exchange


def routed(router: Router, exchange: Exchange, keys: list[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for key in keys:
        found = router.route(exchange, key, None)
        assert len(found) <= 1
        counts.update(each.name for each in found)
    return counts


KEYS = [f"key-{number}" for number in range(3_000)]


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_each_destination_gets_about_its_share(kind: str) -> None:
    router, exchange = bound(kind, place("a"), place("b"), place("c"))
    counts = routed(router, exchange, KEYS)
    assert counts.keys() == {"a", "b", "c"}
    assert all(850 < count < 1_150 for count in counts.values()), counts


@pytest.mark.parametrize("kind", CHOOSING_KINDS)
def test_without_bindings_a_message_is_not_routed(kind: str) -> None:
    router, exchange = bound(kind)
    assert router.route(exchange, "k", None) == []


def test_one_key_goes_everywhere_if_it_is_drawn() -> None:
    router, exchange = bound("x-random", place("a"), place("b"))
    assert router.needs_headers(exchange)
    assert routed(router, exchange, ["k"] * 100).keys() == {"a", "b"}


def test_one_key_goes_to_one_place_by_modulus_whatever_was_bound_first() -> None:
    one_router, one = bound("x-modulus-hash", place("a"), place("b"), place("c"))
    other_router, other = bound("x-modulus-hash", place("c"), place("a"), place("b"))
    assert not one_router.needs_headers(one)
    for key in KEYS[:200]:
        names = [each.name for each in one_router.route(one, key, None)]
        assert [each.name for each in other_router.route(other, key, None)] == names


def test_what_is_elsewhere_is_not_drawn_locally() -> None:
    router, exchange = bound("x-local-random", place("a"))
    assert router.route(exchange, "k", None) == []


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_bindings_of_one_destination_count_once_and_go_one_by_one(kind: str) -> None:
    first, other = place("a"), place("b")
    router, exchange = bound(kind, first, other)
    router.bind(exchange, first, "again", {})
    assert 400 < routed(router, exchange, KEYS[:1_000])["a"] < 600
    router.unbind(exchange, first, "", {})
    assert routed(router, exchange, KEYS[:100]).keys() == {"a", "b"}
    router.unbind(exchange, first, "again", {})
    assert routed(router, exchange, KEYS[:100]) == {"b": 100}
