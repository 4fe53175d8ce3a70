"""The syntax of patterns: from the text of a regular expression to its syntax tree.

The dialect is PCRE's, which is what RabbitMQ's users write, without the constructs that an
automaton can't follow: back references, look-behind, atomic groups, possessive repetitions,
recursion and conditions. Each of these is refused with a text that says what to write instead.

``\\w``, ``\\d``, ``\\s``, ``\\b`` and case-insensitivity know ASCII only. So the meaning of a
pattern depends on nothing but its text: not on a locale, nor on the Unicode tables of a Python
release.
"""

from __future__ import annotations

from typing import Final

from rhizome.errors import RhizomeError

PIECES_MAX: Final = 5000
"""Characters, classes, alternatives and groups in the text of a pattern."""

GROUP_DEPTH_MAX: Final = 100
REPETITION_DIGITS_MAX: Final = 6
SHOWN_CHARACTERS_MAX: Final = 80
CODE_MAX: Final = 0x10FFFF
UNBOUNDED: Final = -1

# What must hold at a place for it to be passed. Numbers from LOOK on are those of look-aheads: two
# for each, that it is there and that it is not.
ALWAYS: Final = 0
TEXT_BEGIN: Final = 1
LINE_BEGIN: Final = 2
TEXT_END: Final = 3
LAST_LINE_END: Final = 4
LINE_END: Final = 5
WORD_EDGE: Final = 6
NO_WORD_EDGE: Final = 7
LOOK: Final = 8

Ranges = tuple[tuple[int, int], ...]

NEWLINE_CODE: Final = 10
_NEWLINE: Final[Ranges] = ((NEWLINE_CODE, NEWLINE_CODE),)
_EVERYTHING: Final[Ranges] = ((0, CODE_MAX),)
_DIGITS: Final[Ranges] = ((48, 57),)
_SPACES: Final[Ranges] = ((9, 13), (32, 32))
WORDS: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
_POSIX_CLASSES: Final[dict[str, Ranges]] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGITS,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": _SPACES,
    "upper": ((65, 90),),
    "word": WORDS,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_CONTROLS: Final[dict[str, int]] = {"a": 7, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9}
_ASSERTIONS: Final[dict[str, int]] = {
    "A": TEXT_BEGIN,
    "B": NO_WORD_EDGE,
    "Z": LAST_LINE_END,
    "b": WORD_EDGE,
    "z": TEXT_END,
}
_HEX: Final = "0123456789abcdefABCDEF"
_OCTAL: Final = "01234567"
_DECIMAL: Final = "0123456789"
_VERBOSE_SPACES: Final = " \t\n\r\f\v"


class PatternError(RhizomeError):
    """A pattern that is refused when it is set; the text says why, and what to write instead."""


class Node:
    """A part of a pattern."""


class Chars(Node):
    """One character out of ``ranges``, which are sorted and apart."""

    ranges: Ranges

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges

    def is_literal(self) -> bool:
        """Whether it is one character and no other."""
        return len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]


class Sequence(Node):
    """Its parts, one after the other."""

    parts: list[Node]

    def __init__(self, parts: list[Node]) -> None:
        self.parts = parts


class Choice(Node):
    """One of its arms."""

    arms: list[Node]

    def __init__(self, arms: list[Node]) -> None:
        self.arms = arms


class Repeat(Node):
    """``body``, from ``low`` to ``high`` times; ``high`` may be UNBOUNDED."""

    body: Node
    low: int
    high: int

    def __init__(self, body: Node, low: int, high: int) -> None:
        self.body = body
        self.low = low
        self.high = high


class Assertion(Node):
    """A place where ``condition`` holds. For a look-ahead that is one number from LOOK on."""

    condition: int

    def __init__(self, condition: int) -> None:
        self.condition = condition


class Syntax:
    """A parsed pattern. ``looks`` are the bodies of its look-aheads: number k is asked for by the
    conditions LOOK + 2k (it is there) and LOOK + 2k + 1 (it isn't), and refers only to smaller
    numbers."""

    root: Node
    looks: list[Node]

    def __init__(self, root: Node, looks: list[Node]) -> None:
        self.root = root
        self.looks = looks


def parse(text: str, ignore_case: bool = False) -> Syntax:
    """The syntax tree of a pattern; raises PatternError."""
    parser = _Parser(text, ignore_case)
    root = parser.choice(0)
    if parser.at < len(text):
        raise parser.refusal("has a ) that closes nothing; write \\) to mean the character")
    return Syntax(root, parser.looks)


def refusal(text: str, reason: str) -> PatternError:
    """The error that names a pattern and what is wrong with it."""
    long = len(text) > SHOWN_CHARACTERS_MAX
    shown = text[: SHOWN_CHARACTERS_MAX - 3] + "..." if long else text
    return PatternError(f"pattern {shown!r} {reason}")


def too_large(text: str) -> PatternError:
    return refusal(
        text,
        "is too large to be matched in one step per character; anchor it with ^, repeat less often,"
        " or without a maximum: x* (names have at most 255 bytes)",
    )


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """The same characters in ranges that are sorted and apart."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """All characters that are not in ``ranges``."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= CODE_MAX:
        found.append((start, CODE_MAX))
    return tuple(found)


def both_cases(ranges: Ranges) -> Ranges:
    """``ranges`` with the other case of its ASCII letters."""
    found = list(ranges)
    for low, high in ranges:
        for first, last, shift in ((65, 90, 32), (97, 122, -32)):
            if low <= last and high >= first:
                found.append((max(low, first) + shift, min(high, last) + shift))
    return merged(found)


_CLASSES: Final[dict[str, Ranges]] = {
    "d": _DIGITS,
    "D": complement(_DIGITS),
    "s": _SPACES,
    "S": complement(_SPACES),
    "w": WORDS,
    "W": complement(WORDS),
}


class _Parser:
    """Reads a pattern from left to right. A group's flags end with it."""

    text: str
    at: int
    looks: list[Node]
    pieces: int
    quoted: bool
    ignore_case: bool
    dot_all: bool
    multi_line: bool
    verbose: bool

    def __init__(self, text: str, ignore_case: bool) -> None:
        self.text = text
        self.at = 0
        self.looks = []
        self.pieces = 0
        self.quoted = False
        self.ignore_case = ignore_case
        self.dot_all = False
        self.multi_line = False
        self.verbose = False

    def refusal(self, reason: str) -> PatternError:
        return refusal(self.text, reason)

    def _peek(self, offset: int = 0) -> str:
        """The character there, or ""."""
        at = self.at + offset
        return self.text[at] if at < len(self.text) else ""

    def _takes(self, literal: str) -> bool:
        """Go past ``literal`` if it comes next."""
        if not self.text.startswith(literal, self.at):
            return False
        self.at += len(literal)
        return True

    def _count(self) -> None:
        self.pieces += 1
        if self.pieces > PIECES_MAX:
            raise too_large(self.text)

    # --- groups, alternatives, sequences

    def choice(self, depth: int) -> Node:
        """Alternatives up to the end of the group."""
        if depth > GROUP_DEPTH_MAX:
            raise self.refusal(
                f"has groups that are more than {GROUP_DEPTH_MAX} deep in each other; write fewer"
            )
        arms = [self._sequence(depth)]
        while self._takes("|"):
            self._count()
            arms.append(self._sequence(depth))
        return arms[0] if len(arms) == 1 else Choice(arms)

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while True:
            if self.verbose and not self.quoted:
                self._skip_spaces()
            if self.at >= len(self.text) or (not self.quoted and self._peek() in "|)"):
                break
            atom = self._quoted() if self.quoted else self._atom(depth)
            if atom is not None:
                parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else Sequence(parts)

    def _skip_spaces(self) -> None:
        """Go past what the flag x makes meaningless."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] not in _VERBOSE_SPACES:
                return
            else:
                self.at += 1

    def _quoted(self) -> Node | None:
        """A character between \\Q and \\E."""
        if self._takes("\\E"):
            self.quoted = False
            return None
        return self._literal(self._next())

    def _next(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _literal(self, char: str) -> Node:
        return self._chars(((ord(char), ord(char)),))

    def _chars(self, ranges: Ranges) -> Node:
        self._count()
        return Chars(both_cases(ranges) if self.ignore_case else ranges)

    def _atom(self, depth: int) -> Node | None:
        """What stands here, without its repetition; None for what matches nothing by itself."""
        char = self._next()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char == ".":
            self._count()
            return Chars(_EVERYTHING if self.dot_all else complement(_NEWLINE))
        if char == "^":
            return self._assertion(LINE_BEGIN if self.multi_line else TEXT_BEGIN)
        if char == "$":
            return self._assertion(LINE_END if self.multi_line else LAST_LINE_END)
        if char in "*+?" or (char == "{" and self._bounds(self.at) is not None):
            raise self.refusal(f"repeats nothing; write \\{char} to mean the character")
        return self._literal(char)

    def _assertion(self, condition: int) -> Node:
        self._count()
        return Assertion(condition)

    def _group(self, depth: int) -> Node | None:
        flags = (self.ignore_case, self.dot_all, self.multi_line, self.verbose)
        self._count()
        opened = self._opened()
        if opened == "":
            return None
        body = self.choice(depth + 1)
        if not self._takes(")"):
            raise self.refusal("has a ( that is never closed; write \\( to mean the character")
        self.ignore_case, self.dot_all, self.multi_line, self.verbose = flags
        if opened == "(":
            return body
        self.looks.append(body)
        return Assertion(LOOK + 2 * len(self.looks) - (2 if opened == "=" else 1))

    def _opened(self) -> str:
        """Read what follows a (, and say what it opens: a group "(", a look-ahead "=" or "!", or
        nothing, if it was a comment or flags up to the group's end."""
        if self._peek() == "*":
            raise self.refusal("has a verb (*...), which has no meaning here; leave it out")
        if not self._takes("?"):
            return "("
        if self._takes("#"):
            end = self.text.find(")", self.at)
            if end < 0:
                raise self.refusal("has a comment (?# that is never closed; add a )")
            self.at = end + 1
            return ""
        if self._takes(":") or self._takes("|"):
            return "("
        if self._takes("="):
            return "="
        if self._takes("!"):
            return "!"
        self._check_group()
        for start, end_mark in (("P<", ">"), ("<", ">"), ("'", "'")):
            if self._takes(start):
                self._group_name(end_mark)
                return "("
        return "(" if self._flags() else ""

    def _check_group(self) -> None:
        """Refuse groups that no automaton can follow."""
        rest = self.text[self.at : self.at + 2]
        if rest in ("<=", "<!"):
            raise self.refusal(
                f"looks behind with (?{rest}, which isn't supported; look ahead from the start"
                " instead: ^(?!.*-old$) are the names that don't end with -old"
            )
        if rest[:1] == ">":
            raise self.refusal(
                "has an atomic group (?>...); write (?:...), nothing here backtracks"
            )
        if rest == "P=":
            raise self._back_reference("(?P=")
        if rest[:1] == "(":
            raise self.refusal("has a condition (?(...)...); write the alternatives out: (a|b)")
        is_number = rest[:1].isdigit() or (rest[:1] in "+-" and rest[1:].isdigit())
        if rest[:1] in ("R", "&") or rest == "P>" or is_number:
            raise self.refusal(
                f"calls itself with (?{rest}, which no linear matcher can do; write the part out"
            )

    def _back_reference(self, what: str) -> PatternError:
        return self.refusal(
            f"refers back with {what} to what a group has matched, which can't be matched in linear"
            " time; write the alternatives out: (a-a|b-b)"
        )

    def _group_name(self, end_mark: str) -> None:
        end = self.text.find(end_mark, self.at)
        if end <= self.at:
            raise self.refusal("has a group whose name is not closed; write (?<name>...)")
        self.at = end + 1

    def _flags(self) -> bool:
        """Read flags such as i or i-s; True if they open a group, which they are for alone."""
        on = True
        while True:
            char = self._peek()
            self.at += 1
            if char == "-":
                on = False
            elif char == "i":
                self.ignore_case = on
            elif char == "s":
                self.dot_all = on
            elif char == "m":
                self.multi_line = on
            elif char == "x":
                self.verbose = on
            elif char == ")":
                return False
            elif char == ":":
                return True
            else:
                raise self.refusal(f"has (?{char}, which isn't known; the flags are i, m, s and x")

    # --- repetitions

    def _repeated(self, atom: Node) -> Node:
        """The atom with the repetition that follows it, if one does."""
        if self.quoted:
            if not self.text.startswith("\\E", self.at):
                return atom
            self.at += 2
            self.quoted = False
        bounds = self._repetition()
        if bounds is None:
            return atom
        if self._takes("+"):
            raise self.refusal(
                "has a possessive repetition such as x*+; write x*, nothing here backtracks"
            )
        self._takes("?")  # To take as little as possible makes no difference to whether it fits.
        if self._repetition() is not None:
            raise self.refusal("repeats a repetition; put the first into a group: (?:x{2})*")
        self._count()
        return Repeat(atom, bounds[0], bounds[1])

    def _repetition(self) -> tuple[int, int] | None:
        """Read a repetition; None if there is none here."""
        if self.verbose:
            self._skip_spaces()
        if self._takes("*"):
            return (0, UNBOUNDED)
        if self._takes("+"):
            return (1, UNBOUNDED)
        if self._takes("?"):
            return (0, 1)
        if self._peek() != "{":
            return None
        bounds = self._bounds(self.at + 1)
        if bounds is None:
            return None
        self.at = self.text.index("}", self.at) + 1
        if bounds[1] != UNBOUNDED and bounds[0] > bounds[1]:
            raise self.refusal(
                f"repeats from {bounds[0]} to {bounds[1]} times: the minimum is more"
            )
        return bounds

    def _bounds(self, start: int) -> tuple[int, int] | None:
        """What a { before ``start`` says; None if it is a plain character, as in {username}."""
        end = self.text.find("}", start)
        if end < 0:
            return None
        low, comma, high = self.text[start:end].partition(",")
        if not low and not high:
            return None
        for digits in (low, high):
            if digits.strip(_DECIMAL):
                return None
            if len(digits) > REPETITION_DIGITS_MAX:
                raise too_large(self.text)
        if not comma:
            return (int(low), int(low))
        return (int(low or "0"), int(high) if high else UNBOUNDED)

    # --- escapes and classes

    def _escape(self) -> Node | None:
        """What a backslash outside of a class means."""
        char = self._peek()
        if char == "Q":
            self.at += 1
            self.quoted = True
            return None
        if char == "E":
            self.at += 1
            return None
        if char in _ASSERTIONS:
            self.at += 1
            return self._assertion(_ASSERTIONS[char])
        if char and char in "123456789gk":
            raise self._back_reference(f"\\{char}")
        return self._chars(self._escaped())

    def _escaped(self) -> Ranges:
        """The characters that an escape means, outside of a class or in one."""
        if self.at >= len(self.text):
            raise self.refusal("ends with a backslash; write \\\\ to mean the character")
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            code = _CONTROLS[char]
        elif char == "0":
            code = self._number(_OCTAL, 0, 2, 8)
        elif char == "u":
            code = self._number(_HEX, 4, 4, 16)
        elif char == "x" and self._peek() == "{":
            self.at += 1
            code = self._number(_HEX, 1, 6, 16)
            if not self._takes("}") or code > CODE_MAX:
                raise self.refusal("has \\x{ without the number of a character and a }")
        elif char == "x":
            code = self._number(_HEX, 2, 2, 16)
        elif char.isascii() and char.isalnum():
            raise self.refusal(f"has \\{char}, which isn't known; write {char} for the character")
        else:
            code = ord(char)
        return ((code, code),)

    def _number(self, digits: str, least: int, most: int, base: int) -> int:
        start = self.at
        while self.at < start + most and self._peek() and self._peek() in digits:
            self.at += 1
        if self.at < start + least:
            raise self.refusal("has \\x or \\u without the number of a character, such as \\x2e")
        return int(self.text[start : self.at] or "0", base)

    def _class(self) -> Node:
        """A class [...], whose [ was read."""
        negated = self._takes("^")
        found: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            if self.at >= len(self.text):
                raise self.refusal("has a [ that is never closed; write \\[ to mean the character")
            first = False
            found += self._class_item()
        self.at += 1
        ranges = merged(found)
        if self.ignore_case:
            ranges = both_cases(ranges)
        self._count()
        return Chars(complement(ranges) if negated else ranges)

    def _class_item(self) -> Ranges:
        """A character, a range, or what an escape or POSIX class stands for."""
        self._count()
        posix = self._posix_class()
        if posix is not None:
            return posix
        low = self._class_char()
        # A hyphen is a character after something that is a set itself, and at the end.
        if self._peek() != "-" or self._peek(1) in ("]", "") or len(low) > 1:
            return low
        if low[0][0] != low[0][1]:
            return low
        before = self.at
        self.at += 1
        if self._posix_class() is not None:
            self.at = before
            return low
        high = self._class_char()
        if len(high) > 1 or high[0][0] != high[0][1]:
            self.at = before
            return low
        if high[0][0] < low[0][0]:
            raise self.refusal("has a range in [...] that ends before it begins; turn it round")
        return ((low[0][0], high[0][0]),)

    def _class_char(self) -> Ranges:
        char = self._next()
        if char != "\\":
            return ((ord(char), ord(char)),)
        if self._takes("b"):
            return ((8, 8),)
        return self._escaped()

    def _posix_class(self) -> Ranges | None:
        """A class such as [:alpha:], if one is here."""
        if self._peek() != "[" or self._peek(1) not in (":", ".", "=") or not self._peek(1):
            return None
        mark = self._peek(1)
        end = self.text.find(mark + "]", self.at + 2)
        name = self.text[self.at + 2 : end] if end > 0 else ""
        negated = name.startswith("^")
        name = name.removeprefix("^")
        if not name.isalpha():
            return None
        found = _POSIX_CLASSES.get(name)
        if found is None or mark != ":":
            raise self.refusal(
                f"has [{mark}{name}{mark}], which isn't known; there are"
                f" {', '.join(_POSIX_CLASSES)}, written [[:alpha:]]"
            )
        self.at = end + 2
        return complement(found) if negated else found
