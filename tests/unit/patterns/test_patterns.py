"""What patterns mean, which are refused and why, and what the worst of them costs."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.patterns import (
    PATTERN_CHARACTERS_MAX,
    WEIGHT_MAX,
    Pattern,
    PatternError,
    check_pattern,
    compile_pattern,
    escape,
    pattern_of,
)
from rhizome.patterns.automaton import MEMORY, REMEMBERED_CELLS_MAX
from rhizome.patterns.pattern import COMPILED_WEIGHT_MAX

POINTS_PER_WEIGHT_MAX = 6
"""Forwards and backwards, three each: a place to begin at, its character, and to leave it out."""


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("", ["", "anything"], []),
        ("^$", ["", "\n"], ["a"]),
        (".*", ["", "a", "\n"], []),
        ("^.*$", ["", "a", "a\n"], ["a\nb"]),
        ("^orders\\..*$", ["orders.", "orders.eu"], ["orders", "old.orders.", "orders.a\nb"]),
        ("^orders$", ["orders", "orders\n"], ["orders2", "orders\n\n"]),
        ("orders", ["orders", "old-orders-2"], ["order"]),
        ("\\.dlq$", ["a.dlq", ".dlq\n"], ["a.dlq2", "adlq"]),
        ("^(orders|payments)\\.", ["orders.x", "payments."], ["x.orders.", "ordersx"]),
        # Look-aheads at the start: what RabbitMQ's users write most.
        ("^(?!amq\\.).*", ["orders", "amqp", ""], ["amq.gen-1", "amq."]),
        ("^(?!amq\\.|test\\.)(orders|x)\\..*", ["orders.", "x.1"], ["test.orders.", "y.1"]),
        ("^(?!amq\\.)(?!tmp-).+$", ["orders"], ["amq.x", "tmp-1", ""]),
        ("^(?!.*-old$).*", ["orders", "old-1"], ["orders-old"]),
        ("^(?=.*eu)(?=.*prod)", ["prod-eu", "eu.prod.1"], ["prod-us", "eu"]),
        ("^(?i)(?!AMQ\\.)", ["orders"], ["amq.x", "AmQ.x"]),
        # Elsewhere: what holds at each place that a match goes through.
        ("(?!amq\\.)", ["amq.x", ""], []),
        ("a(?!b)", ["ac", "abac", "a"], ["ab", "b"]),
        ("^(?:a(?=b)|b(?!b))+$", ["ab", "abab", "b"], ["aab", "bb", "a"]),
        ("^(?:(?!amq\\.)a.*|b)$", ["ab", "b"], ["amq.b", "c"]),
        ("^(?!(?!a))", ["ab"], ["b", ""]),
        # Flags, groups, repetitions.
        ("(?i)^ORDERS", ["orders", "OrDers"], ["x"]),
        ("^a(?i)b|c", ["ab", "aB", "C"], ["Ab"]),
        ("^(?i:a)b$", ["Ab", "ab"], ["AB"]),
        ("(?s)^a.b$", ["a\nb"], ["ab"]),
        ("(?m)^b$", ["a\nb\nc"], ["ab"]),
        ("(?x) ^ a  b # comment\n $", ["ab"], ["a b"]),
        ("^(?<year>\\d{4})-(?P<month>\\d\\d)$", ["2026-11"], ["26-11"]),
        ("^a+?b*?$", ["a", "aabb"], ["b"]),
        ("^x{2,3}$", ["xx", "xxx"], ["x", "xxxx"]),
        ("^x{,2}$", ["", "xx"], ["xxx"]),
        ("^{username}-.*", ["{username}-1"], ["app-1"]),
        ("^x{1000}$", ["x" * 1000], ["x" * 999]),
        ("^[a-z]{1,255}\\.[a-z]{1,255}$", ["a.b"], ["a."]),
        ("a(?#what follows)b", ["ab"], ["a"]),
        # Places.
        ("\\Aa\\z", ["a"], ["a\n", "ba"]),
        ("\\Aa\\Z", ["a", "a\n"], ["ab"]),
        ("\\bor\\b", ["or", "x-or.y"], ["order", "for"]),
        # Classes and escapes.
        ("^[[:alpha:]_]+[[:^digit:]]$", ["ab_", "a-"], ["a1"]),
        ("^[\\w-.]+$", ["a-b.c"], ["a/b"]),
        ("^[]^-]+$", ["]^-"], ["a"]),
        ("^[^]]$", ["a"], ["]"]),
        ("^\\Qa.b*\\E+$", ["a.b*", "a.b**"], ["axb", "a.b"]),
        ("^\\x2e\\x{1F600}\\u00e4\\056$", [".\U0001f600ä."], ["a"]),
        ("^[^[:]+$", ["ab"], ["a:"]),
        # Only ASCII has words, digits and cases.
        ("^\\w+$", ["groesse"], ["größe", "٣"]),
        ("(?i)^Ä$", ["Ä"], ["ä"]),
    ],
)
def test_pattern_fits(pattern: str, fitting: list[str], others: list[str]) -> None:
    found = compile_pattern(pattern)
    assert [name for name in fitting if not found.search(name)] == []
    assert [name for name in others if found.search(name)] == []


@pytest.mark.parametrize(
    ("pattern", "construct", "instead"),
    [
        ("(a)\\1", "\\1", "alternatives"),
        ("(?P<x>a)(?P=x)", "(?P=", "alternatives"),
        ("(?<x>a)\\k<x>", "\\k", "alternatives"),
        ("(?<!amq)x", "(?<!", "look ahead from the start"),
        ("(?<=amq)x", "(?<=", "look ahead from the start"),
        ("(?>a*)b", "(?>", "(?:...)"),
        ("a*+b", "x*+", "write x*"),
        ("(?(1)a|b)", "(?(", "(a|b)"),
        ("a(?R)?b", "(?R", "write the part out"),
        ("(a)(?1)", "(?1", "write the part out"),
        ("(*UTF8)a", "(*", "leave it out"),
        ("\\p{Lu}", "\\p", "isn't known"),
        ("[[:letter:]]", "[:letter:]", "alpha"),
        ("(?a)x", "(?a", "i, m, s and x"),
        ("(", "(", "\\("),
        (")", ")", "\\)"),
        ("[a", "[", "\\["),
        ("*", "repeats nothing", "\\*"),
        ("a**", "repetition", "group"),
        ("a{2,1}", "2 to 1", "minimum"),
        ("[b-a]", "range", "turn it round"),
        ("a\\", "backslash", "\\\\"),
        ("\\xq", "\\x", "\\x2e"),
        ("(" * 101 + ")" * 101, "groups", "fewer"),
        ("(?:x{1000}){1000}", "too large", "repeat less often"),
        ("x{1000000000}", "too large", "repeat less often"),
        ("(?:(?:(?:){65535}){65535}){65535}", "too large", "repeat less often"),
        ("a" * (PATTERN_CHARACTERS_MAX + 1), "4097", "4096"),
    ],
)
def test_pattern_is_refused_with_what_to_write_instead(
    pattern: str, construct: str, instead: str
) -> None:
    with pytest.raises(PatternError) as refused:
        check_pattern(pattern)
    assert construct in str(refused.value)
    assert instead in str(refused.value)


@pytest.mark.parametrize(
    "pattern", ["a\\z", "\\Qa.b\\E", "[[:alpha:]]", "(?<n>a)", "[\\w-.]", "a(?i)b", "\\x{2e}"]
)
def test_pattern_that_the_release_before_cannot_read_is_matched_and_not_stored(
    pattern: str,
) -> None:
    compile_pattern(pattern)
    with pytest.raises(PatternError, match=r"release 0\.1"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?!amq\\.).*",
        "^(?!amq\\.|test\\.)(orders|x)\\..*",
        "(?i)^orders",
        "^([a-z]+)+$",
        "^orders(\\.[a-z]+)*$",
        "\\(a+\\)+",
        "^[^[:]+$",
        "{username}-.*",
        "(?P<n>a)",
        "a\\Z",
        "x{1000}",
    ],
)
def test_pattern_that_people_write_may_be_stored(pattern: str) -> None:
    check_pattern(pattern)


def test_pattern_that_is_no_good_fits_nothing() -> None:
    for pattern in ("(", "(a)\\1", "(?:x{1000}){1000}", "(?<!b)a"):
        assert pattern_of(pattern).fault
        assert not pattern_of(pattern).search("a(x")


# Each takes a backtracking matcher longer than anybody waits, on the name beside it.
EVIL = [
    ("^(a|a)*!", "a" * 255),
    ("^(.|.)*!", "a" * 255),
    ("(a|aa)+$", "a" * 254 + "b"),
    ("(a*)*b", "a" * 255),
    ("^(a+)+$", "a" * 254 + "b"),
    ("(.*a){25}", "b" + "a" * 20 + "b" * 234),
    ("(.*.*)*x", "a" * 255),
    (".*.*.*.*.*.*.*.*!", "a" * 255),
    ("(x+x+)+y", "x" * 255),
    ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 255),
    ("(?:a?){100}a{100}$", "a" * 99 + "b"),
    ("^(?!(a|a)*!)(?=(a|aa)+b)", "a" * 255),
    ("^(?:(?=.*a)(?!.*c).)*$", "a" * 255),
    ("(?:x{30}){30}!", "x" * 255),
    ("(.{1,50}){1,10}!", "a" * 255),
    ("!(.{1,50}){1,10}", "a" * 255),
    ("!(a|b|ab|ba|.){100}", "ab" * 127),
    ("!(?:(?=.*a)(?!.*c).){100}", "ab" * 127),
    ("(|a|b){900}!", "ab" * 127),
    ("|".join("a" * count for count in range(1, 80)) + "$", "a" * 254 + "b"),
]


@pytest.mark.parametrize(("pattern", "name"), EVIL, ids=[pattern[:20] for pattern, _ in EVIL])
def test_evil_pattern_visits_each_point_once_a_character(pattern: str, name: str) -> None:
    found = compile_pattern(pattern)
    found.search(name)
    assert found.visits() <= found.points() * (len(name) + 1)


@given(st.text(alphabet="ab.*+?()|^$[]-{}1,2\\!=:<", max_size=20), st.text("ab1-", max_size=40))
def test_no_text_costs_more_than_its_size_allows(pattern: str, name: str) -> None:
    found = Pattern(pattern)
    found.search(name)
    assert found.points() <= POINTS_PER_WEIGHT_MAX * WEIGHT_MAX
    assert found.visits() <= found.points() * (len(name) + 2)


def test_longest_alternation_of_names_is_taken() -> None:
    names = [f"queue-{number:04}" for number in range(340)]
    pattern = f"^({'|'.join(names)})$"
    assert 3700 < len(pattern) <= PATTERN_CHARACTERS_MAX
    found = compile_pattern(pattern)
    assert all(found.search(name) for name in names)
    assert not found.search("queue-0340")
    compile_pattern("a" * PATTERN_CHARACTERS_MAX)


def test_what_all_automata_remember_is_bounded() -> None:
    random = Random(17)
    text = "c[ab]{14}a[ab]*$"
    patterns = [compile_pattern(text) for _ in range(10)]
    most = 0
    for _ in range(30):
        name = "".join(random.choices("ab", k=100))
        expected = re.search(text, name) is not None
        for pattern in patterns:
            assert pattern.search(name) is expected
            most = max(most, MEMORY.cells)
    assert REMEMBERED_CELLS_MAX / 2 < most <= REMEMBERED_CELLS_MAX


def test_compiled_patterns_that_are_kept_are_bounded() -> None:
    heavy = "a|b" * 1000
    first = pattern_of(heavy)
    assert pattern_of(heavy) is first
    for number in range(COMPILED_WEIGHT_MAX // WEIGHT_MAX):
        pattern_of(f"{heavy}{number}")
    assert pattern_of(heavy) is not first


@given(st.text(max_size=20), st.text(max_size=20))
def test_escaped_text_fits_itself_and_nothing_else(text: str, other: str) -> None:
    found = compile_pattern(f"\\A{escape(text)}\\z")
    assert found.search(text)
    assert found.search(other) is (text == other)
