"""Text from outside on screens and in logs: escaped, and without passwords."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.printable_text import (
    escaped,
    escaped_lines,
    printable_json,
    shortened,
    shown_uri,
    without_passwords,
)

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("grün", "grün"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J\x07\x7f", "\\x1b[2J\\x07\\x7f"),
        ("\x9b31m\x85", "\\x9b31m\\x85"),
        ("\u202egpj.exe\u2066", "\\u202egpj.exe\\u2066"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("stealth\udcff", "stealth\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_is_not_printable_becomes_its_escape(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(st.text())
def test_nothing_that_gives_orders_to_a_terminal_is_left(text: str) -> None:
    shown = escaped(text)
    assert shown.isprintable()
    shown.encode()
    bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.category(char) in bad for char in shown)


def test_lines_stay_lines_and_nothing_else_ends_one() -> None:
    assert escaped_lines("a\nb\rc\x85d") == "a\nb\\rc\\x85d"


def test_a_long_text_says_how_much_is_left_out() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 4) == "abcd... (and 3 more characters)"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(json_values)
def test_json_reads_back_as_what_it_was_and_is_printable(document: object) -> None:
    for indent in (None, 2):
        text = printable_json(document, indent)
        assert text.replace("\n", "").isprintable()
        assert json.loads(text) == document


def test_names_of_other_scripts_stay_readable_in_json() -> None:
    assert printable_json({"name": "grün \x9b\u202e"}) == '{"name": "grün \\u009b\\u202e"}'


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("amqp://app:s3cret@b1:5672/v", "amqp://app:***@b1:5672/v"),
        ("amqps://app:s3cret@b1,b2/v?heartbeat=5", "amqps://app:***@b1,b2/v?heartbeat=5"),
        ("amqp://app@b1", "amqp://app@b1"),
        ("amqp://b1:5672,[::1]:5672,[::1]", "amqp://b1:5672,[::1]:5672,[::1]"),
        ("http://u:s3cret@b1:15672", "http://u:***@b1:15672"),
        ("app:s3cret@b1", "app:***@b1"),
        ("amqp:/app:s3cret@b1", "amqp:***@b1"),
        ("amqp://app:s3/cret@b1/v", "amqp://app:***@b1/v"),
        ("amqp://app:s3?cret@b1/v", "amqp://app:***@b1/v"),
        ("amqp://app:s3@cret@b1/v", "amqp://app:***@b1/v"),
        ("amqp://app:s3cret", "amqp://app:***"),
        ("amqp://app:s3cret/v", "amqp://app:***/v"),
        ("amqps://b1?password=s3cret&verify=x", "amqps://b1?password=***&verify=x"),
        ("b1:5672", "b1:5672"),
        ("", ""),
    ],
)
def test_a_uri_is_shown_without_its_password(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown


@given(
    st.sampled_from(["amqp://", "amqps://", "http://", "amqp:/", ""]),
    st.text(alphabet="ab", max_size=3),
    st.text(alphabet="xy/?@:&=#,[] ", max_size=6),
    st.sampled_from(["@h", "@h:5672/v", "@h,g/v?heartbeat=1"]),
)
def test_no_password_however_odd_is_shown(scheme: str, user: str, odd: str, rest: str) -> None:
    uri = f"{scheme}{user}:{SECRET}{odd}{SECRET}{rest}"
    assert SECRET not in shown_uri(uri)


def test_passwords_are_taken_out_of_texts() -> None:
    text = f"no link: 'amqp://app:{SECRET}@b1' and http://u:{SECRET}@b2/x, see https://docs/ or a@b"
    shown = without_passwords(text)
    assert shown == "no link: 'amqp://app:***@b1' and http://u:***@b2/x, see https://docs/ or a@b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://u:p@h/?cluster_token=t0k&name=n", "amqp://u:***@h/?cluster_token=***&name=n"),
        ("'amqp:///v?cluster_token=t0k' is wrong", "'amqp:///v?cluster_token=***' is wrong"),
    ],
)
def test_the_token_of_the_cluster_is_taken_out_of_texts_too(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
