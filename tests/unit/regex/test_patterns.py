"""What patterns mean, which are refused and why, and what the worst of them costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.regex import (
    PATTERN_CHARACTERS_MAX,
    Pattern,
    PatternError,
    check_pattern,
    compile_pattern,
    escape,
    pattern_of,
)
from rhizome.regex.automaton import TABLE_CELLS_MAX, WORK_MAX
from rhizome.regex.pattern import COMPILED_CELLS_MAX

COMPILING_WORK_MAX = 100_000
"""As WORK_MAX, so that nobody raises it without thought: what it takes holds the event loop."""


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
        ("(?:x{1000}){1000}", "too large", "x*"),
        ("x{1000000000}", "too large", "x*"),
        ("(?:(?:(?:){65535}){65535}){65535}", "too large", "x*"),
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
        "^x{1000}",
        "^[a-z]{1,255}\\.[a-z]{1,255}$",
        "a.{0,200}b",
        "[a-z]{1,63}-[0-9]{1,5}",
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
    ("!(?:(?=.*a)(?!.*c).)*$", "a" * 255),
    ("(?:x{30}){30}!", "x" * 255),
    ("!(.{1,20}){1,5}", "a" * 255),
    (f"({'|'.join('a' * count for count in range(1, 60))})$", "a" * 254 + "b"),
]


class CountedName(str):
    """A name that counts how many of its characters were read."""

    __slots__ = ("read",)

    def __init__(self, name: str) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        for char in str.__iter__(self):
            self.read += 1
            yield char

    def __reversed__(self) -> Iterator[str]:
        for char in str(self)[::-1]:
            self.read += 1
            yield char


@pytest.mark.parametrize(("pattern", "name"), EVIL, ids=[pattern[:20] for pattern, _ in EVIL])
def test_evil_pattern_reads_each_character_once(pattern: str, name: str) -> None:
    counted = CountedName(name)
    assert not compile_pattern(pattern).search(counted)
    assert counted.read <= len(name)


# Each would need exponentially many states, or simply too many.
TOO_LARGE = [
    "c[ab]{20}a[ab]*$",
    "(?:x{1000}){1000}",
    "((((a{30}){30}){30}){30}){30}",
    "!(a|b|ab|ba|.){1000}",
    "!(?:(?=.*a)(?!.*c).){800}",
    "(" + "|".join(["." * 255] * 15) + ")!",
    "|".join(f"(?=.*{char}{char}).{{9}}{char}" for char in "abcdefgh"),
    "^(?:" + "".join(f"(?!.*{char}.*{char})" for char in "abcdefghijklmnopqrst") + ").*$",
]


@pytest.mark.parametrize("pattern", TOO_LARGE, ids=[pattern[:20] for pattern in TOO_LARGE])
def test_pattern_with_too_many_states_is_refused_before_it_is_made(pattern: str) -> None:
    found = Pattern(pattern)
    assert "too large" in found.fault
    assert not found.search("a" * 255)


def test_what_compiling_costs_is_bounded() -> None:
    assert WORK_MAX == COMPILING_WORK_MAX


@given(st.text(alphabet="ab.*+?()|^$[]-{}1,2\\!=:<", max_size=20), st.text("ab1-", max_size=40))
def test_any_text_is_refused_or_has_a_table_within_bounds(pattern: str, name: str) -> None:
    found = Pattern(pattern)
    assert found.cells <= 2 * TABLE_CELLS_MAX
    found.search(name)


def test_longest_alternation_of_names_is_taken() -> None:
    names = [f"queue-{number:04}" for number in range(340)]
    pattern = f"^({'|'.join(names)})$"
    assert 3700 < len(pattern) <= PATTERN_CHARACTERS_MAX
    found = compile_pattern(pattern)
    assert all(found.search(name) for name in names)
    assert not found.search("queue-0340")
    compile_pattern("a" * PATTERN_CHARACTERS_MAX)


def test_compiled_patterns_that_are_kept_are_bounded() -> None:
    first = pattern_of("^first")
    assert pattern_of("^first") is first
    for number in range(COMPILED_CELLS_MAX // first.cells):
        pattern_of(f"^{number}")
    assert pattern_of("^first") is not first


@given(st.text(max_size=20), st.text(max_size=20))
def test_escaped_text_fits_itself_and_nothing_else(text: str, other: str) -> None:
    found = compile_pattern(f"\\A{escape(text)}\\z")
    assert found.search(text)
    assert found.search(other) is (text == other)
