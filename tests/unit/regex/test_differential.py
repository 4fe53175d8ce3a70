"""Our matcher and Python's say the same of every pattern that both know.

The differences, which the strategies below leave out: ``\\Z`` is PCRE's (before a last newline as
well; Python's is our ``\\z``), ``\\w`` and case-insensitivity know ASCII only (hence ``re.ASCII``),
``\\B`` doesn't fit the empty name in Python before 3.14, and there is what Python refuses: POSIX
classes, ``\\Q..\\E``, flags in the middle, a hyphen after a class.
"""

from __future__ import annotations

import re

from hypothesis import assume, example, given
from hypothesis import strategies as st

from rhizome.regex import Pattern, compile_pattern

NAMES = st.text(alphabet="abcA1_.-\n", min_size=1, max_size=7)
LITERALS = st.sampled_from(
    [
        "a",
        "b",
        "c",
        "A",
        "1",
        "_",
        "\\.",
        "-",
        "\\n",
        "\\x61",
        "amq",
        "aa",
        "bbb",
        "a{1,3}",
        "b{2,4}",
    ]
)
CLASSES = st.sampled_from(
    [
        ".",
        "\\w",
        "\\W",
        "\\d",
        "\\D",
        "\\s",
        "\\S",
        "[ab]",
        "[^a]",
        "[a-c]",
        "[^\\w]",
        "[]a]",
        "[a-]",
    ]
)
PLACES = st.sampled_from(["^", "$", "\\b", "\\B", "\\A", ""])
REPETITIONS = st.sampled_from(
    ["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,4}", "{2,}", "{0}", "*?", "+?"]
)


def _extended(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.sampled_from(["(", "(?:", "(?i:", "(?s:", "(?=", "(?!"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, inner).map("|".join),
        st.tuples(groups, inner).map(lambda pair: f"{pair[0]}{pair[1]})"),
        st.tuples(inner, REPETITIONS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


BODIES = st.recursive(st.one_of(LITERALS, CLASSES, PLACES), _extended, max_leaves=8)
LEADS = st.sampled_from(
    ["", "^", "(?i)", "(?m)", "(?s)^", "^(?!a)", "^(?!amq|b)", "^(?=a)(?!ab)", "(?i)^(?!A)"]
)
TAILS = st.sampled_from(["", "$", ".*", ".*$", "\\b"])
PATTERNS = st.tuples(LEADS, BODIES, TAILS).map("".join)


def compiled(pattern: str, ignore_case: bool = False) -> Pattern:
    """A pattern of those that both take: a few repeat so much that they are refused for it."""
    found = Pattern(pattern, ignore_case)
    assume("too large" not in found.fault)
    assert not found.fault
    return found


@given(PATTERNS, st.lists(NAMES, min_size=1, max_size=8))
@example("^a.*$", ["a\n", "a\nb", "ab\n\n"])
@example("(?m)^b$", ["a\nb\na"])
@example("(a*)*(?!b)c", ["aac", "aab"])
@example("(?:ac{1,4}|bccc)", ["bccc", "ac", "bcc"])
@example("a(?:c{1,4}b|cc)*$", ["acc", "acccb"])
def test_matcher_agrees_with_the_backtracking_one(pattern: str, names: list[str]) -> None:
    ours = compiled(pattern)
    theirs = re.compile(pattern, re.ASCII)
    for name in names:
        assert ours.search(name) is (theirs.search(name) is not None), (pattern, name)


@given(PATTERNS, NAMES)
def test_matcher_agrees_in_any_case(pattern: str, name: str) -> None:
    theirs = re.compile(pattern, re.ASCII | re.IGNORECASE)
    ours = compiled(pattern, ignore_case=True)
    assert ours.search(name) is (theirs.search(name) is not None)


@given(st.lists(NAMES, min_size=1, max_size=4), NAMES)
def test_choice_of_names_is_a_choice_of_names(names: list[str], name: str) -> None:
    pattern = "|".join(re.escape(each) for each in names)
    assert compile_pattern(f"^(?:{pattern})\\z").search(name) is (name in names)
    assert compile_pattern(f"^(?!{pattern})").search(name) is not name.startswith(tuple(names))
