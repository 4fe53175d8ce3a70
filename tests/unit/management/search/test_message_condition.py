"""Conditions on messages: what they mean, what they refuse and where, what they cost."""

from __future__ import annotations

import time

import pytest

from rhizome.amqp.frames import content_frames
from rhizome.amqp.properties import Properties, encode_header
from rhizome.management.search.condition_parser import ConditionError, parse_condition
from rhizome.management.search.message_condition import BODY_BYTES_MAX, SearchedMessage

DEATH = {"queue": "orders", "reason": "rejected", "count": 2, "routing-keys": ["new"]}
HEADERS: dict[str, object] = {"tenant": "a", "x-n": 5, "ok": True, "rate": 1.5, "x-death": [DEATH]}


def message(body: bytes = b"order_7 failed", frame_max: int = 64) -> SearchedMessage:
    properties = Properties(headers=HEADERS, message_id="m1", priority=3)
    content = content_frames(1, encode_header(len(body), properties), body, frame_max)
    return SearchedMessage(content, {"exchange": "in", "routing_key": "a.b", "redelivered": False})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("headers.tenant = 'a'", True),
        ("headers.tenant != 'a'", False),
        ("headers.tenant <> 'b'", True),
        ("headers.missing = 'a'", None),
        ("not headers.missing = 'a'", None),
        ("headers.missing is null and headers.tenant is not null", True),
        ("headers.x-n > 4 and headers.x-n <= 5 and headers.rate < 2", True),
        ("headers.x-n = '5'", False),
        ("headers.x-n != '5'", True),
        ("headers.x-n < 'a'", None),
        ("headers.ok = true and not redelivered = true", True),
        ("headers.ok = 1", False),
        ("priority in (1, 3) and message_id in ('m1')", True),
        ("correlation_id in ('m1')", None),
        ("priority not in (1, 2)", True),
        ("body like '%order_7%'", True),
        ("body like '%orderx7%'", False),
        ("body like 'order%failed'", True),
        ("body like 'order%order_7 failed'", False),
        ("body = 'order_7 failed'", True),
        ("body not like '%50\\%%'", True),
        ("exchange = 'in' or headers.missing = 1", True),
        ("exchange = 'out' or headers.missing = 1", None),
        ("exchange = 'out' and headers.missing = 1", False),
        ("NOT (exchange = 'out' OR routing_key LIKE 'b%')", True),
        ("death.reason = 'rejected' and death.queue = 'orders' and death.count >= 2", True),
        ("death.routing_key = 'new'", True),
        ("headers.\"tenant\" = 'a'", True),
        ("headers.x-death = 'a'", False),
        ("headers.tenant = 'it''s'", False),
        ("  ", True),
    ],
)
def test_a_condition_holds_as_in_sql(text: str, wanted: bool | None) -> None:
    assert parse_condition(text).holds(message()) is wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenant = 'a'", "character 1 of the condition: no field 'tenant'"),
        ("exchange = ", "character 12 of the condition: a 'string', a number, true or false"),
        ("exchange 'a'", "character 10 of the condition: a comparison"),
        ("(exchange = 'a'", "character 16 of the condition: ')' is expected, not the end"),
        ("exchange = 'a' exchange = 'b'", "character 16 of the condition: 'and', 'or' or the end"),
        ("exchange = 'a", "character 12 of the condition: unexpected a string that doesn't end"),
        ("exchange == 'a'", "character 10 of the condition: unexpected '=='; equal is ="),
        ('exchange = "a"', "unexpected '\"'; a text is in single quotes"),
        ("exchange = 'a' ; drop", "character 16 of the condition: unexpected ';'"),
        ("exchange like 5", "character 15 of the condition: a string is expected, not '5'"),
        ("and", "character 1 of the condition: a field is expected"),
        ("priority = " + "9" * 41, "more than 40 characters"),
        ("not " * 33 + "priority = 1", "more than 32 parentheses"),
        ("priority in (" + "1," * 100 + "1)", "more than 100 terms"),
        ("x" * 4097, "the condition has 4097 characters"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConditionError, match=r".") as refused:
        parse_condition(text)
    assert said in str(refused.value)


def test_only_the_beginning_of_a_body_is_looked_at() -> None:
    body = b"x" * BODY_BYTES_MAX + b"needle"
    assert parse_condition("body like '%needle%'").holds(message(body, 4096)) is False
    assert parse_condition("body like '%needle%'").holds(message(body[6:], 4096)) is True


def test_a_body_that_is_no_text_has_conditions_too() -> None:
    assert parse_condition("body like '%ab%'").holds(message(b"\xff\xfeab\x00")) is True


def test_patterns_with_many_pieces_take_time_in_proportion_to_the_text() -> None:
    """A pattern that backtracks would take a million times as long for thirty pieces."""
    pattern = "%".join(["a"] * 30) + "%b"
    condition = parse_condition(f"body like '{pattern}'")

    def seconds(size: int) -> float:
        looked_at = message(b"a" * size, 131072)
        looked_at.value("body")
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            assert condition.holds(looked_at) is False
            times.append(time.perf_counter() - begun)
        return min(times)

    assert seconds(60_000) < 200 * max(seconds(600), 1e-6)
