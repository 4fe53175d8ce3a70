"""Headers exchanges."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.amqp.field_table import Timestamp
from rhizome.broker.routing import Destination, Exchange, Router, make_exchange
from rhizome.errors import PreconditionFailed

Table = dict[str, object]


def bound(*bindings: Table) -> tuple[Router, Exchange]:
    router = Router("/")
    exchange = make_exchange("/", "x", "headers")
    router.add_exchange(exchange)
    for number, arguments in enumerate(bindings):
        queue = Destination("/", f"q{number}")
        router.add_queue(queue)
        router.bind(exchange, queue, "", arguments)
    return router, exchange


def matches(arguments: Table, headers: Table | None) -> bool:
    router, exchange = bound(arguments)
    return len(router.route(exchange, "", headers)) == 1


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, {"a": 2}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "y"}, False),
        ({}, {}, True),
        ({}, None, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": None}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": "b"}, {"a": b"b"}, False),
        ({"a": 1.5}, {"a": 1.5}, True),
        ({"a": [1, "b"]}, {"a": [1, "b"]}, True),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        ({"a": Timestamp(5)}, {"a": Timestamp(5)}, True),
        ({"a": Decimal("1.5")}, {"a": Decimal("1.5")}, True),
    ],
)
def test_binding_matches_as_rabbitmq_does(
    arguments: Table, headers: Table | None, expected: bool
) -> None:
    assert matches(arguments, headers) is expected


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
)
def test_all_and_any_are_what_they_say(wanted: dict[str, int], headers: dict[str, int]) -> None:
    fits = [headers.get(name) == value for name, value in wanted.items()]
    assert matches({**wanted, "x-match": "all"}, {**headers}) is all(fits)
    assert matches({**wanted, "x-match": "any"}, {**headers}) is any(fits)


def test_queue_with_several_matching_bindings_is_reached_once() -> None:
    router, exchange = bound({"a": 1}, {"b": 1})
    router.bind(exchange, router.queues["q0"], "", {"b": 1})
    found = router.route(exchange, "", {"a": 1, "b": 1})
    assert [queue.name for queue in found] == ["q0", "q1"]


def test_unbound_arguments_match_no_more() -> None:
    router, exchange = bound({"a": 1}, {"b": 1})
    assert router.unbind(exchange, router.queues["q0"], "", {"a": 1})
    assert router.route(exchange, "", {"a": 1}) == []
    assert len(router.route(exchange, "", {"b": 1})) == 1


def test_unknown_x_match_is_refused_in_the_words_of_rabbitmq() -> None:
    with pytest.raises(PreconditionFailed) as caught:
        bound({"x-match": "all or any I don't mind"})
    assert caught.value.text == (
        'Invalid x-match field value <<"all or any I don\'t mind">>; '
        "expected all, any, all-with-x, or any-with-x"
    )
    with pytest.raises(PreconditionFailed) as caught:
        bound({"x-match": 23})
    assert caught.value.text == "Invalid x-match field type signedint (value 23); expected longstr"
