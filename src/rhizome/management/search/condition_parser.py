"""Condition parser: the language that messages are searched by.

    condition   = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | "(" condition ")" | field test
    test        = ("=" | "!=" | "<>" | "<" | "<=" | ">" | ">=") value
                | ["not"] "like" string | ["not"] "in" "(" value { "," value } ")"
                | "is" ["not"] "null"
    field       = name | "headers." name | "headers." quoted name
    value       = 'string' | number | true | false

Words of the language are taken in any case. A quote within a string is written twice. Every
refusal says at which character of the text it stands.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NoReturn

from rhizome.management.search.message_condition import (
    FIELDS,
    HEADERS,
    Comparison,
    Condition,
    Everything,
    IsNull,
    Joined,
    Like,
    Not,
    OneOf,
    Value,
)

CHARACTERS_MAX: Final = 4096
TERMS_MAX: Final = 100
"""Of one condition; each value of a list counts."""

DEPTH_MAX: Final = 32
"""Parentheses and negations within each other."""

DIGITS_MAX: Final = 40

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<string>'(?:[^']|'')*')
      | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_.-]*(?:"[^"]+")?)
      | (?P<sign><=|>=|<>|!=|[=<>(),])
    )""",
    re.VERBOSE,
)
_OPERATORS: Final = frozenset({"=", "!=", "<>", "<", "<=", ">", ">="})
_RESERVED: Final = frozenset({"and", "or", "not", "like", "in", "is", "null", "true", "false"})
_BLANK: Final = re.compile(r"\s*")


class ConditionError(ValueError):
    """The text is no condition; says what is wrong with it, and where."""


class Token(NamedTuple):
    kind: str
    text: str
    at: int

    def word(self) -> str:
        """The word of the language that it may be."""
        return self.text.lower() if self.kind in ("word", "sign") else ""


def parse_condition(text: str) -> Condition:
    """The condition that a text means; an empty one is met by every message."""
    if len(text) > CHARACTERS_MAX:
        raise ConditionError(
            f"the condition has {len(text)} characters; it may have {CHARACTERS_MAX}"
        )
    if not text.strip():
        return Everything()
    return _Parser(_tokens(text)).whole()


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while True:
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # matches nothing, too
        if at == len(text):
            tokens.append(Token("end", "", at))
            return tokens
        found = None if text.startswith("==", at) else _TOKEN.match(text, at)
        if found is None:
            raise ConditionError(f"character {at + 1} of the condition: {_surprise(text, at)}")
        tokens.append(Token(str(found.lastgroup), found.group(found.lastgroup or 0), at))
        at = found.end()


def _surprise(text: str, at: int) -> str:
    """What is wrong with a text where no token begins, and what to write instead."""
    if text.startswith("==", at):
        return "unexpected '=='; equal is ="
    if text[at] == "'":
        return "unexpected a string that doesn't end"
    if text[at] == '"':
        return "unexpected '\"'; a text is in single quotes"
    return f"unexpected {text[at]!r}"


class _Parser:
    """Reads tokens from left to right. Invariant: ``_at`` is the next one; the last is the end."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._terms = 0
        self._depth = 0

    def whole(self) -> Condition:
        found = self._condition()
        if self._next().kind != "end":
            self._refuse("'and', 'or' or the end")
        return found

    def _condition(self) -> Condition:
        parts = [self._conjunction()]
        while self._takes("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Joined(parts, decisive=True)

    def _conjunction(self) -> Condition:
        parts = [self._negation()]
        while self._takes("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Joined(parts, decisive=False)

    def _negation(self) -> Condition:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"more than {DEPTH_MAX} parentheses and negations within each other")
        found = self._inner()
        self._depth -= 1
        return found

    def _inner(self) -> Condition:
        if self._takes("not"):
            return Not(self._negation())
        if self._takes("("):
            found = self._condition()
            self._demand(")")
            return found
        return self._test(self._field())

    def _test(self, field: str) -> Condition:
        token = self._next()
        if token.kind == "sign" and token.text in _OPERATORS:
            self._at += 1
            operator = "!=" if token.text == "<>" else token.text
            return Comparison(field, operator, self._value())
        if self._takes("is"):
            negated = self._takes("not")
            self._demand("null")
            self._count()
            return Not(IsNull(field)) if negated else IsNull(field)
        negated = self._takes("not")
        if self._takes("like"):
            if self._next().kind != "string":
                self._refuse("a string")
            found: Condition = Like(field, str(self._value()))
        elif self._takes("in"):
            found = OneOf(field, self._values())
        else:
            self._refuse("a comparison, 'like', 'in' or 'is'")
        return Not(found) if negated else found

    def _values(self) -> list[Value]:
        self._demand("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._demand(")")
        return values

    def _field(self) -> str:
        token = self._next()
        if token.kind != "word" or token.word() in _RESERVED:
            self._refuse("a field")
        name, _, quoted = token.text.partition('"')
        if quoted and name.lower() == HEADERS:
            name += quoted[:-1]
        elif quoted or (name not in FIELDS and not _is_header(name)):
            raise self._error(
                f"no field {token.text[:60]!r}; a header is headers.NAME, and there are"
                f" {', '.join(sorted(FIELDS))}"
            )
        self._at += 1
        return HEADERS + name[len(HEADERS) :] if name.lower().startswith(HEADERS) else name

    def _value(self) -> Value:
        self._count()
        token = self._next()
        self._at += 1
        if token.kind == "string":
            return token.text[1:-1].replace("''", "'")
        if token.kind == "number" and len(token.text) <= DIGITS_MAX:
            return float(token.text) if set(token.text) & set(".eE") else int(token.text)
        if token.word() in ("true", "false"):
            return token.word() == "true"
        self._at -= 1
        if token.kind == "number":
            raise self._error(f"a number of more than {DIGITS_MAX} characters")
        return self._refuse("a 'string', a number, true or false")

    # ---- tokens ---------------------------------------------------------------------------------

    def _next(self) -> Token:
        return self._tokens[self._at]

    def _takes(self, word: str) -> bool:
        if self._next().word() != word:
            return False
        self._at += 1
        return True

    def _demand(self, word: str) -> None:
        if not self._takes(word):
            self._refuse(f"{word!r}")

    def _count(self) -> None:
        self._terms += 1
        if self._terms > TERMS_MAX:
            raise self._error(f"more than {TERMS_MAX} terms")

    def _refuse(self, wanted: str) -> NoReturn:
        token = self._next()
        found = f"{token.text[:60]!r}" if token.kind != "end" else "the end"
        raise self._error(f"{wanted} is expected, not {found}")

    def _error(self, text: str) -> ConditionError:
        return ConditionError(f"character {self._next().at + 1} of the condition: {text}")


def _is_header(name: str) -> bool:
    return name.lower().startswith(HEADERS) and len(name) > len(HEADERS)
