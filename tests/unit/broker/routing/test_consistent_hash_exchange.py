"""x-consistent-hash exchanges: one destination each, in proportion, with little movement."""

from __future__ import annotations

from collections import Counter

import pytest

from rhizome.broker.routing import (
    HASHABLE_PROPERTIES,
    PROPERTY_PREFIX,
    Destination,
    Exchange,
    Router,
    make_exchange,
)
from rhizome.errors import PreconditionFailed

KEYS = [f"order-{number}" for number in range(20_000)]
GOLDEN = "abbcadccadabbbbadbcadbdddbaacbcc"


def hashed(weights: dict[str, str], **arguments: object) -> tuple[Router, Exchange]:
    router = Router("/")
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    exchange = make_exchange("/", "x", "x-consistent-hash", arguments=given)
    router.add_exchange(exchange)
    for name, weight in weights.items():
        queue = Destination("/", name)
        router.add_queue(queue)
        router.bind(exchange, queue, weight, {})
    return router, exchange


def choices(router: Router, exchange: Exchange) -> dict[str, str]:
    chosen = {}
    for key in KEYS:
        (queue,) = router.route(exchange, key, None)
        chosen[key] = queue.name
    return chosen


def test_every_message_goes_to_one_queue_in_proportion_to_the_weights() -> None:
    counts = Counter(choices(*hashed({"a": "1", "b": "1", "c": "2", "d": "6"})).values())
    for name, weight in (("a", 1), ("b", 1), ("c", 2), ("d", 6)):
        share = counts[name] / len(KEYS)
        assert share == pytest.approx(weight / 10, abs=0.015), name


def test_new_queue_takes_its_share_and_moves_nothing_else() -> None:
    router, exchange = hashed(dict.fromkeys("abcd", "1"))
    before = choices(router, exchange)
    queue = Destination("/", "e")
    router.add_queue(queue)
    router.bind(exchange, queue, "1", {})
    after = choices(router, exchange)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert all(after[key] == "e" for key in moved)
    assert len(moved) / len(KEYS) == pytest.approx(0.2, abs=0.015)


def test_departed_queue_gives_up_its_share_and_moves_nothing_else() -> None:
    router, exchange = hashed(dict.fromkeys("abcd", "1"))
    before = choices(router, exchange)
    router.remove_queue(router.queues["b"])
    after = choices(router, exchange)
    assert all(before[key] == "b" for key in KEYS if before[key] != after[key])
    assert set(after.values()) == {"a", "c", "d"}


def test_order_of_binding_does_not_matter() -> None:
    weights = {"a": "3", "b": "1", "c": "2"}
    backwards = dict(reversed(weights.items()))
    assert choices(*hashed(weights)) == choices(*hashed(backwards))


def test_choice_is_the_same_on_every_broker_and_in_every_version() -> None:
    """Brokers of a cluster must agree, and an upgrade must not move messages elsewhere."""
    router, exchange = hashed(dict.fromkeys("abcd", "1"))
    chosen = choices(router, exchange)
    assert "".join(chosen[f"order-{number}"] for number in range(32)) == GOLDEN


def test_bindings_of_one_queue_add_up() -> None:
    router, exchange = hashed({"a": "1", "b": "1"})
    router.bind(exchange, router.queues["a"], "2", {})
    counts = Counter(choices(router, exchange).values())
    assert counts["a"] / len(KEYS) == pytest.approx(0.75, abs=0.015)
    router.unbind(exchange, router.queues["a"], "1", {})
    router.unbind(exchange, router.queues["a"], "2", {})
    assert set(choices(router, exchange).values()) == {"b"}


def test_hash_can_be_taken_of_a_header() -> None:
    router, exchange = hashed(dict.fromkeys("abcd", "1"), hash_header="customer")
    for customer in ("eve", 17, None, [1, 2]):
        reached = {router.route(exchange, key, {"customer": customer})[0].name for key in KEYS[:50]}
        assert len(reached) == 1
    spread = {router.route(exchange, "k", {"customer": key})[0].name for key in KEYS[:50]}
    assert spread == set("abcd")
    assert len(router.route(exchange, "k", None)) == 1
    assert router.route(exchange, "k", None) == router.route(exchange, "k", {})


def test_hash_can_be_taken_of_a_property() -> None:
    for name in HASHABLE_PROPERTIES:
        router, exchange = hashed(dict.fromkeys("abcd", "1"), hash_property=name)
        spread = {
            router.route(exchange, "k", {PROPERTY_PREFIX + name: key})[0].name for key in KEYS[:50]
        }
        assert spread == set("abcd")


def test_without_bindings_nothing_matches() -> None:
    router, exchange = hashed({})
    assert router.route(exchange, "k", None) == []


@pytest.mark.parametrize("key", ["", "heavy", "1.5", "0", "-1", "1_000", "٣", "4294967296"])
def test_binding_key_must_be_a_weight(key: str) -> None:
    with pytest.raises(PreconditionFailed, match="The binding key must be"):
        hashed({"a": key})


def test_declaration_that_hashes_two_things_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="mutually exclusive"):
        hashed({}, hash_header="a", hash_property="message_id")
    with pytest.raises(PreconditionFailed, match="Unsupported property: app_id"):
        hashed({}, hash_property="app_id")
