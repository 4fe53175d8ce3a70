"""JsonDecoder: the JSON of a request's body, decoded a little at a time and checked value by value.

`json.loads` of some megabytes holds the interpreter for tenths of a second, in a thread as well,
and takes what can't be kept: numbers without end, halves of surrogate pairs, two values of one
name. Here what no broker could store, or no other program could read again, is refused with its
place:

- numbers beyond 64 bits, and those that are infinite as a float;
- strings that are no Unicode: half a surrogate pair. U+DC80 to U+DCFF alone stand for single bytes
  of names that are not UTF-8, and are written by the API itself;
- an object with one name twice;
- nesting deeper than DEPTH_MAX, and more than a maximum of values.
"""

from __future__ import annotations

import json
import re
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from math import isinf
from typing import Any, Final, NoReturn

from rhizome.management.errors import BadRequest
from rhizome.management.pace import Pace

DEPTH_MAX: Final = 160
"""Objects and arrays inside each other; tables of AMQP may have 128."""

VALUES_MAX: Final = 1_000_000
"""Values of a definitions file; each takes a hundred bytes of memory or so."""

ENTRY_VALUES_MAX: Final = 20_000
"""Values of any other body, and of one entry of a definitions file: of a queue, a policy, a
parameter. Such a one is encoded and applied as a whole."""

ENTRY_CHARS_MAX: Final = 1 << 20

TOKENS_AT_ONCE: Final = 16
TRIED_CHARS: Final = 4096
TRIED_DEPTH_MAX: Final = 100
PLACE_CHARS_MAX: Final = 200
I64_MIN: Final = -(1 << 63)
U64_MAX: Final = (1 << 64) - 1
DIGITS_MAX: Final = 20

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"(-?(?:0|[1-9][0-9]*))((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_WORDS: Final[dict[str, tuple[str, object]]] = {
    "t": ("true", True),
    "f": ("false", False),
    "n": ("null", None),
}

# What comes next.
_VALUE: Final = 0
_VALUE_OR_END: Final = 1
_NAME: Final = 2
_NAME_OR_END: Final = 3
_COMMA_OR_END: Final = 4
_NOTHING: Final = 5


async def decoded(body: bytes, values_max: int = ENTRY_VALUES_MAX) -> Any:
    """The value in a body; raises BadRequest. Other work goes on meanwhile."""
    pace = Pace()
    text = text_of(body)
    if len(text) > TRIED_CHARS:
        await pace.rest()
    decoder = JsonDecoder(text, values_max)
    while not decoder.advance(TOKENS_AT_ONCE):
        if pace.is_due():
            await pace.rest()
    return decoder.value


def decoded_at_once(body: bytes) -> Any:
    """The same for a body that is short."""
    decoder = JsonDecoder(text_of(body), ENTRY_VALUES_MAX)
    while not decoder.advance(TOKENS_AT_ONCE):
        pass
    return decoder.value


def text_of(body: bytes) -> str:
    try:
        return body.decode(json.detect_encoding(body), "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadRequest(f"not_json: no UTF-8 at byte {error.start}") from None


class JsonDecoder:
    """Decodes one text. Invariants: ``_open`` has the objects and arrays that are not finished,
    outermost first, and ``_names`` for each the name under which its next value goes (of an array,
    None); ``value`` counts once `advance` has said that it is done."""

    def __init__(self, text: str, values_max: int) -> None:
        self.value: Any = None
        self._text = text
        self._values_max = values_max
        self._at = 0
        self._next = _VALUE
        self._open: list[Any] = []
        self._names: list[str | None] = []
        self._count = 0
        self._entry_count = 0
        self._entry_at = 0
        self._is_simple = text.isascii() and "\\u" not in text

    def advance(self, tokens: int) -> bool:
        """Decode some more; True at the end of the text."""
        for _ in range(tokens):
            self._skip_space()
            if self._next == _NOTHING:
                if self._at != len(self._text):
                    self._refuse_text("it should end")
                return True
            self._take(self._text[self._at : self._at + 1])
        return False

    # ---- tokens ---------------------------------------------------------------------------------

    def _take(self, mark: str) -> None:
        state = self._next
        if state == _COMMA_OR_END:
            self._take_comma(mark)
        elif state in (_NAME, _NAME_OR_END):
            if mark == "}" and state == _NAME_OR_END:
                self._close()
            elif mark == '"':
                self._take_name()
            else:
                self._refuse_text("a name in quotes should be")
        elif mark == "]" and state == _VALUE_OR_END:
            self._close()
        else:
            self._take_value(mark)

    def _take_comma(self, mark: str) -> None:
        inside = self._names[-1] is not None
        if mark == ",":
            self._at += 1
            self._next = _NAME if inside else _VALUE
        elif mark == ("}" if inside else "]"):
            self._close()
        else:
            self._refuse_text("a comma or the end should be")

    def _take_name(self) -> None:
        self._names[-1] = ""
        name = self._string("has a name with")
        self._names[-1] = name
        if name in self._open[-1]:
            self._refuse("is there twice")
        self._skip_space()
        if self._text[self._at : self._at + 1] != ":":
            self._refuse_text("a colon should be")
        self._at += 1
        self._next = _VALUE

    def _take_value(self, mark: str) -> None:
        if mark == "{":
            if not self._try_entry():
                self._begin({}, "", _NAME_OR_END)
        elif mark == "[":
            self._begin([], None, _VALUE_OR_END)
        elif mark == '"':
            self._put(self._string())
        elif mark in _WORDS:
            word, value = _WORDS[mark]
            if not self._text.startswith(word, self._at):
                self._refuse_text("a value should be")
            self._at += len(word)
            self._put(value)
        else:
            self._put(self._number())

    def _try_entry(self) -> bool:
        """Most entries are short and plain: the standard library reads those faster. Whatever it
        stumbles over is read again here, to say where that is."""
        if not self._is_simple or len(self._open) != 2:
            return False
        tried = self._text[self._at : self._at + TRIED_CHARS]
        try:
            value, end = _PLAIN.raw_decode(tried)
        except (ValueError, RecursionError):
            return False
        if tried.count("{", 0, end) + tried.count("[", 0, end) > TRIED_DEPTH_MAX:
            return False
        self._count += tried.count(",", 0, end)
        self._at += end
        self._put(value)
        return True

    # ---- values ---------------------------------------------------------------------------------

    def _begin(self, container: Any, name: str | None, following: int) -> None:
        if len(self._open) >= DEPTH_MAX:
            self._refuse(f"is nested deeper than {DEPTH_MAX} levels")
        self._at += 1
        self._open.append(container)
        self._names.append(name)
        self._next = following

    def _close(self) -> None:
        self._at += 1
        self._names.pop()
        self._put(self._open.pop())

    def _put(self, value: object) -> None:
        """Put a whole value where it belongs."""
        self._check_count()
        if not self._open:
            self.value = value
            self._next = _NOTHING
            return
        holder = self._open[-1]
        if isinstance(holder, list):
            holder.append(value)
        else:
            holder[self._names[-1]] = value
        self._next = _COMMA_OR_END

    def _check_count(self) -> None:
        self._count += 1
        if self._count > self._values_max:
            self._refuse(f"is beyond the {self._values_max} values that one body may have")
        if self._count - self._entry_count > ENTRY_VALUES_MAX:
            self._refuse(f"is one of more than {ENTRY_VALUES_MAX} values that belong together")
        if self._at - self._entry_at > ENTRY_CHARS_MAX and len(self._open) > 2:
            self._refuse(f"is part of an entry of more than {ENTRY_CHARS_MAX} characters")
        if len(self._open) <= 2:
            self._entry_count, self._entry_at = self._count, self._at

    def _string(self, has: str = "has") -> str:
        try:
            found, self._at = scanstring(self._text, self._at + 1, True)
        except JSONDecodeError as error:
            raise BadRequest(f"not_json: {error}") from None
        if not self._is_simple and not found.isascii():
            try:
                found.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                self._refuse(f"{has} half a surrogate pair, which is no Unicode")
        return str(found)

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._refuse_text("a value should be")
        self._at = match.end()
        whole, rest = match.groups()
        if not rest:
            return self._whole(whole)
        found = float(whole + rest)
        if isinf(found):
            self._refuse("is a number that no broker can keep: it is too large")
        return found

    def _whole(self, digits: str) -> int:
        found = int(digits) if len(digits) <= DIGITS_MAX else U64_MAX + 1
        if not I64_MIN <= found <= U64_MAX:
            self._refuse("is a number that no broker can keep: it takes more than 64 bits")
        return found

    # ---- what is wrong --------------------------------------------------------------------------

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _refuse(self, why: str) -> NoReturn:
        raise BadRequest(f"{self._place()} {why}")

    def _refuse_text(self, wanted: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        raise BadRequest(f"not_json: {wanted} at line {line} column {column}")

    def _place(self) -> str:
        """Where the value is, such as `queues[7].arguments.x`."""
        parts = []
        for holder, name in zip(self._open, self._names, strict=True):
            parts.append(f"[{len(holder)}]" if name is None else f".{name}")
            if sum(map(len, parts)) > PLACE_CHARS_MAX:
                break
        found = "".join(parts).strip(".")[:PLACE_CHARS_MAX]
        return found.encode("utf-8", "backslashreplace").decode() or "the body"


# ---- the standard library's decoder, with the same rules ----------------------------------------


def _plain_float(digits: str) -> float:
    found = float(digits)
    if isinf(found):
        raise ValueError
    return found


def _plain_int(digits: str) -> int:
    if len(digits) > DIGITS_MAX or not I64_MIN <= int(digits) <= U64_MAX:
        raise ValueError
    return int(digits)


def _plain_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


_PLAIN: Final = json.JSONDecoder(
    parse_float=_plain_float,
    parse_int=_plain_int,
    parse_constant=_no_constant,
    object_pairs_hook=_plain_object,
)
