"""Topic exchanges: the trie against a plain regular expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.broker.routing import Destination, Exchange, Router, make_exchange
from rhizome.broker.routing.topic_exchange import TopicExchange, pattern_words


def topic() -> tuple[Router, Exchange]:
    router = Router("/")
    exchange = make_exchange("/", "x", "topic")
    router.add_exchange(exchange)
    return router, exchange


def bind(router: Router, exchange: Exchange, queue: str, pattern: str) -> bool:
    if queue not in router.queues:
        router.add_queue(Destination("/", queue))
    return router.bind(exchange, router.queues[queue], pattern, {})


def matching(patterns: list[str], key: str) -> list[str]:
    """The patterns that match, according to the trie."""
    router, exchange = topic()
    for pattern in patterns:
        bind(router, exchange, pattern, pattern)
    return sorted(found.name for found in router.route(exchange, key, None))


def naive_match(pattern: str, key: str) -> bool:
    """The definition: words as a list, `*` one of them, `#` any number."""
    words = key.split(".") if key else []
    text = "".join(f"{word}." for word in words)
    parts = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    tokens = pattern.split(".") if pattern else []
    expression = "".join(parts.get(token, re.escape(token) + r"\.") for token in tokens)
    return re.fullmatch(expression, text) is not None


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*", "a.", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#", "", True),
        ("#", "a.b", True),
        ("*", "", False),
        ("", "", True),
        ("", "a", False),
        ("#.b", "b", True),
        ("#.b", "a.a.b", True),
        ("#.b", "a.b.a", False),
        ("#.a.#", "b.a.b", True),
        ("#.*", "", False),
        ("#.*", "a", True),
        ("*.#.*", "a", False),
        ("*.#.*", "a.b", True),
        ("#.#", "", True),
        ("..", "..", True),
        ("a.#.#.b", "a.b", True),
        ("a*", "a*", True),
        ("a*", "ab", False),
    ],
)
def test_pattern_matches_as_specified(pattern: str, key: str, expected: bool) -> None:
    assert matching([pattern], key) == ([pattern] if expected else [])
    assert naive_match(pattern, key) is expected


PATTERNS = st.lists(
    st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join),
    max_size=12,
    unique=True,
)
KEYS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=7).map(".".join)


@given(PATTERNS, KEYS)
def test_trie_agrees_with_the_definition(patterns: list[str], key: str) -> None:
    assert matching(patterns, key) == sorted(p for p in patterns if naive_match(p, key))


@given(PATTERNS, PATTERNS, KEYS)
def test_unbound_patterns_leave_no_trace(kept: list[str], gone: list[str], key: str) -> None:
    router, exchange = topic()
    for pattern in gone + kept:
        bind(router, exchange, f"{pattern} bound", pattern)
    for pattern in gone:
        if pattern not in kept:
            assert router.unbind(exchange, router.queues[f"{pattern} bound"], pattern, {})
    found = sorted(queue.name for queue in router.route(exchange, key, None))
    assert found == sorted(f"{p} bound" for p in kept if naive_match(p, key))
    for pattern in kept:
        router.unbind(exchange, router.queues[f"{pattern} bound"], pattern, {})
    assert exchange.is_unused()
    assert router.route(exchange, key, None) == []
    assert isinstance(exchange, TopicExchange)
    assert exchange._root.is_empty()


def test_the_words_of_a_pattern_have_no_tables_of_their_own() -> None:
    """A pattern has up to 128 words, and a queue up to 20,000 patterns: a table and a set of
    destinations for each word would take a gigabyte, and as long to remove."""
    router, exchange = topic()
    assert isinstance(exchange, TopicExchange)
    bind(router, exchange, "q", "a.b.c")
    node = exchange._root
    for word in ("a", "b"):
        assert (node.literal, node.fan, node.word) == (None, None, word)
        child = node.only
        assert child is not None
        node = child
    bind(router, exchange, "other", "a.b.d")
    assert node.only is None
    assert sorted(node.literal or {}) == ["c", "d"]
    router.unbind(exchange, router.queues["other"], "a.b.d", {})
    router.unbind(exchange, router.queues["q"], "a.b.c", {})
    assert exchange._root.is_empty()


def test_queue_bound_by_several_matching_patterns_is_reached_once() -> None:
    router, exchange = topic()
    for pattern in ("a.b", "a.*", "#", "*.b", "a.#", "#.b.#"):
        bind(router, exchange, "q", pattern)
    assert [found.name for found in router.route(exchange, "a.b", None)] == ["q"]


def test_patterns_that_mean_the_same_are_still_two_bindings() -> None:
    router, exchange = topic()
    bind(router, exchange, "q", "#")
    bind(router, exchange, "q", "#.#")
    assert len(exchange.bindings()) == 2
    router.unbind(exchange, router.queues["q"], "#", {})
    assert len(router.route(exchange, "a", None)) == 1


def test_runs_of_wildcards_have_one_normal_form() -> None:
    assert pattern_words("#.*.#.*.a.#.#.b.*") == ["*", "*", "#", "a", "#", "b", "*"]


def test_many_rest_wildcards_do_not_blow_up() -> None:
    """Backtracking would try billions of splits of this key."""
    router, exchange = topic()
    bind(router, exchange, "q", ".".join(["#", "a"] * 30 + ["b"]))
    assert router.route(exchange, ".".join(["a"] * 120), None) == []
    assert len(router.route(exchange, ".".join(["a"] * 120 + ["b"]), None)) == 1


def test_order_of_destinations_depends_on_the_bindings_only() -> None:
    def routed(detours: bool) -> list[str]:
        router, exchange = topic()
        if detours:
            bind(router, exchange, "z", "a.c")
            bind(router, exchange, "z", "#")
            router.remove_queue(router.queues["z"])
        for queue, pattern in (("3", "#"), ("2", "a.b"), ("1", "a.b"), ("4", "*.b")):
            bind(router, exchange, queue, pattern)
        return [found.name for found in router.route(exchange, "a.b", None)]

    assert routed(detours=False) == routed(detours=True)
