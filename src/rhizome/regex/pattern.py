"""Pattern: a compiled regular expression for names.

Most patterns that people write are a prefix, a whole name, or everything but some prefixes. Those
are answered by comparing strings; only the others need an automaton.
"""

from __future__ import annotations

import re
import warnings
from typing import Final

from rhizome.regex.automaton import Automaton
from rhizome.regex.syntax import (
    LAST_LINE_END,
    LOOK,
    TEXT_BEGIN,
    UNBOUNDED,
    Assertion,
    Chars,
    Choice,
    Node,
    PatternError,
    Repeat,
    Sequence,
    Syntax,
    complement,
    parse,
    refusal,
)

PATTERN_CHARACTERS_MAX: Final = 4096
COMPILED_CELLS_MAX: Final = 4_000_000
"""Of the patterns that ``pattern_of`` keeps for the next who asks; some 10 MB."""

_CELLS_LEAST: Final = 500
_POSIX_CLASS: Final = re.compile(r"\[[:.=]\^?\w+[:.=]\]")
_NOT_NEWLINE: Final = complement(((10, 10),))

# How a pattern is matched.
_NEVER: Final = 0
_AUTOMATON: Final = 1
_BEGINS: Final = 2  # ^literal or ^literal.*
_LINE: Final = 3  # ^literal.*$
_EQUALS: Final = 4  # ^literal$
_HAS: Final = 5  # literal
_ENDS: Final = 6  # literal$


class Pattern:
    """A pattern. One with a ``fault`` matches nothing: it was stored by a release that took it."""

    text: str
    fault: str
    cells: int
    _form: int
    _literal: str
    _heads: str | tuple[str, ...]
    _never_first: tuple[str, ...]
    _automaton: Automaton | None

    def __init__(self, text: str, ignore_case: bool = False) -> None:
        self.text = text
        self.fault = ""
        self.cells = _CELLS_LEAST
        self._form = _NEVER
        self._literal = ""
        self._heads = ""
        self._never_first = ()
        self._automaton = None
        try:
            self._compile(parse(text, ignore_case))
        except PatternError as error:
            self.fault = str(error)

    def search(self, name: str) -> bool:
        """Whether there is a match anywhere in ``name``."""
        if not name.startswith(self._heads):
            return False
        if self._never_first and name.startswith(self._never_first):
            return False
        form = self._form
        literal = self._literal
        if form == _BEGINS:
            return True
        if form == _AUTOMATON:
            assert self._automaton is not None
            return self._automaton.search(name)
        if form == _LINE:
            return name.find("\n", len(literal), len(name) - 1) < 0
        if form == _EQUALS:
            return name == literal or name == literal + "\n"
        if form == _HAS:
            return literal in name
        return form == _ENDS and name.endswith((literal, literal + "\n"))

    def reads_all(self) -> bool:
        """Whether a search takes a step for each character of a name; others compare strings."""
        return self._form == _AUTOMATON

    def _compile(self, parsed: Syntax) -> None:
        # A match may be anywhere, so what it may do without at its ends makes no difference.
        syntax = Syntax(_trimmed(_trimmed(parsed.root, 0), -1), parsed.looks)
        parts = _flattened(syntax.root)
        anchored = bool(parts) and _asserts(parts[0], TEXT_BEGIN)
        rest = parts[1:] if anchored else parts
        if anchored:
            rest = self._compile_look_aheads(rest, syntax)
        # A look-ahead takes no character, so it doesn't change what a name has to begin with.
        others = [each for each in rest if not _is_look(each)]
        literal = _leading_literal(others)
        form = _AUTOMATON
        if len(others) == len(rest):
            form = _form_of(rest[len(literal) :], anchored)
        if form == _AUTOMATON:
            # What begins with .* and its like is better read from its end.
            loops = isinstance(rest[0], Repeat) and rest[0].high == UNBOUNDED
            if anchored and not loops and len(syntax.looks) == len(parts) - len(rest) - 1:
                alone = Syntax(Sequence([parts[0], *rest]), [])
                self._automaton = Automaton(alone, self.text, forward=True)
            else:
                self._automaton = Automaton(syntax, self.text)
            self.cells += self._automaton.cells()
        if anchored:
            self._heads = _heads_of(others, literal)
        self._literal = literal
        self._form = form

    def _compile_look_aheads(self, parts: list[Node], syntax: Syntax) -> list[Node]:
        """Take note of leading look-aheads such as (?!amq\\.|test\\.); the other parts."""
        refused: list[str] = []
        while parts:
            first = parts[0]
            if not isinstance(first, Assertion) or first.condition < LOOK:
                break
            body = syntax.looks[(first.condition - LOOK) // 2]
            words = _literals_of(body)
            if first.condition % 2 == 0 or not words:
                break
            refused += words
            parts = parts[1:]
        self._never_first = tuple(refused)
        return parts


def _form_of(rest: list[Node], anchored: bool) -> int:
    """How a pattern is matched that is a literal and then ``rest``."""
    if not rest:
        return _BEGINS if anchored else _HAS
    if len(rest) == 1 and _asserts(rest[0], LAST_LINE_END):
        return _EQUALS if anchored else _ENDS
    if anchored and _is_anything(rest[0]):
        if len(rest) == 1:
            return _BEGINS
        if len(rest) == 2 and _asserts(rest[1], LAST_LINE_END):
            return _LINE
    return _AUTOMATON


def _flattened(node: Node) -> list[Node]:
    """The parts of a sequence, and of sequences in it."""
    if not isinstance(node, Sequence):
        return [node]
    found: list[Node] = []
    for part in node.parts:
        found += _flattened(part)
    return found


def _trimmed(node: Node, end: int) -> Node:
    """A node without what may be left out at one of its ends, such as the .* of a.*; ``end`` is 0
    for the beginning and -1 for the end."""
    if isinstance(node, Choice):
        return Choice([_trimmed(arm, end) for arm in node.arms])
    if isinstance(node, Repeat) and node.low == 0:
        return Sequence([])
    if isinstance(node, Sequence):
        parts = list(node.parts)
        while parts:
            last = parts[end]
            if not isinstance(last, Repeat) or last.low > 0:
                parts[end] = _trimmed(last, end)
                break
            parts.pop(end)
        return Sequence(parts)
    return node


def _asserts(node: Node, condition: int) -> bool:
    return isinstance(node, Assertion) and node.condition == condition


def _is_look(node: Node) -> bool:
    return isinstance(node, Assertion) and node.condition >= LOOK


def _is_anything(node: Node) -> bool:
    """Whether it is .* without the flag s."""
    return (
        isinstance(node, Repeat)
        and node.low == 0
        and node.high == UNBOUNDED
        and isinstance(node.body, Chars)
        and node.body.ranges == _NOT_NEWLINE
    )


def _leading_literal(parts: list[Node]) -> str:
    """What the parts begin with, as far as that is one character each."""
    found: list[str] = []
    for part in parts:
        if not isinstance(part, Chars) or not part.is_literal():
            break
        found.append(chr(part.ranges[0][0]))
    return "".join(found)


def _heads_of(parts: list[Node], literal: str) -> str | tuple[str, ...]:
    """What every name begins with that fits ``parts``, which begin with ``literal``: a string, or
    one of several."""
    following = parts[len(literal) : len(literal) + 1]
    if following and isinstance(following[0], Choice):
        return tuple([literal + _leading_literal(_flattened(arm)) for arm in following[0].arms])
    return literal


def _literals_of(node: Node) -> list[str]:
    """The strings that a node stands for; none if it is more than a choice of literals."""
    found: list[str] = []
    for arm in node.arms if isinstance(node, Choice) else [node]:
        parts = _flattened(arm)
        literal = _leading_literal(parts)
        if len(literal) != len(parts) or not literal:
            return []
        found.append(literal)
    return found


_compiled: dict[str, Pattern] = {}
_compiled_cells = 0


def pattern_of(text: str) -> Pattern:
    """The pattern of a text; one that is no good has a fault and matches nothing.

    The same one for the same text, as long as there is room for it.
    """
    global _compiled_cells
    found = _compiled.get(text)
    if found is None:
        found = Pattern(text)
        _compiled_cells += found.cells
        if _compiled_cells > COMPILED_CELLS_MAX:
            _compiled.clear()
            _compiled_cells = found.cells
        _compiled[text] = found
    return found


def check_pattern(text: str) -> None:
    """Raise PatternError if ``text`` may not be stored as a pattern."""
    check_length_of(text)
    fault = pattern_of(text).fault
    if fault:
        raise PatternError(fault)
    _check_for_release_before(text)


def _check_for_release_before(text: str) -> None:
    """Raise PatternError for a pattern that release 0.1 can't read.

    It compiles patterns with `re`, doesn't open a store with one that `re` refuses, and takes POSIX
    classes for something else; so these are written a release later (ADR 15).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
        reason = "it has a POSIX class" if _POSIX_CLASS.search(text) else ""
    except (re.error, RecursionError, OverflowError) as error:
        reason = str(error)
    if reason:
        raise refusal(
            text,
            "can't be read by brokers of release 0.1, which may share the cluster or the store"
            f" ({reason}); write it without \\Q, \\z, \\x{{...}}, (?<name>...), POSIX classes and"
            " hyphens after a class, with flags at the start only",
        )


def compile_pattern(text: str, ignore_case: bool = False) -> Pattern:
    """The pattern of a text that is used once; raises PatternError if it is no good."""
    check_length_of(text)
    found = Pattern(text, ignore_case)
    if found.fault:
        raise PatternError(found.fault)
    return found


def check_length_of(text: str) -> None:
    """Raise PatternError if a pattern is too long."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise refusal(text, f"has {len(text)} characters; the maximum is {PATTERN_CHARACTERS_MAX}")


def escape(text: str) -> str:
    """The pattern that matches ``text`` and nothing else."""
    return "".join(
        char if not char.isascii() or char.isalnum() or char == "_" else "\\" + char
        for char in text
    )
