"""JsonDecoder: the JSON of a request's body, decoded a little at a time and checked value by value.

`json.loads` of some megabytes holds the interpreter for tenths of a second, even in a thread, and
accepts what can't be kept: numbers without end, halves of surrogate pairs, two values of one name.
This decoder refuses what no broker could store, or no other program could read again, and names its
place:

- numbers beyond 64 bits, and those that are infinite as a float;
- strings that are not Unicode: half a surrogate pair. U+DC80 to U+DCFF alone stand for single bytes
  of names that are not UTF-8, and are written by the API itself;
- an object with one name twice;
- nesting deeper than DEPTH_MAX, and more than a maximum of values.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterator
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from math import isinf
from typing import Any, Final, NoReturn

from rhizome.management.errors import BadRequest
from rhizome.management.http.cooperative_yield import Pace

DEPTH_MAX: Final = 160
"""The most objects and arrays inside each other; tables of AMQP may have 128."""

VALUES_MAX: Final = 1_000_000
"""How many values a definitions file may have besides those that a cluster state can hold."""

ENTRY_VALUES_MAX: Final = 20_000
"""How many values any other body may have, and one entry of a definitions file: of a queue, a
policy, a parameter. Such an entry is encoded and applied as a whole."""

ENTRY_FIELDS_MAX: Final = 100
"""What an entry of a definitions file has besides such a body: its kind, vhost and name."""

ENTRY_CHARS_MAX: Final = 1 << 20
WINDOW_CHARS: Final = 2 * ENTRY_CHARS_MAX
"""How much text a decoder keeps ahead while more is to come, so that no value of the allowed length
is cut by its end."""

FEED_CHARS: Final = 64 * 1024

BOM_BYTES_MAX: Final = 4
UTF8_BYTES_MAX: Final = 4
TOKENS_AT_ONCE: Final = 16
ENTRIES_AT_ONCE: Final = 1000
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


async def decoded_stream(pieces: AsyncIterator[bytes], values_max: int) -> Any:
    """The value in a body that comes in pieces, none of which is kept; None if the body is blank.
    Raises BadRequest. The next piece is asked for when the one before is decoded."""
    decoder = JsonDecoder("", values_max, is_whole=False)
    try:
        return await _decode_stream(decoder, pieces)
    except BadRequest:
        await dispose(decoder.unfinished())
        raise


async def dispose(value: object) -> None:
    """Empty an object of long lists in steps. Freeing its memory at once takes a tenth of a second
    for a million values."""
    pace = Pace()
    for entries in value.values() if isinstance(value, dict) else ():
        while isinstance(entries, list) and entries:
            del entries[-ENTRIES_AT_ONCE:]
            if pace.is_due():
                await pace.rest()


async def _decode_stream(decoder: JsonDecoder, pieces: AsyncIterator[bytes]) -> Any:
    pace = Pace()
    text = TextDecoder()
    async for piece in pieces:
        for at in range(0, len(piece), FEED_CHARS):
            decoder.feed(text.decode(piece[at : at + FEED_CHARS]))
            while not decoder.is_hungry and not decoder.advance(TOKENS_AT_ONCE):
                if pace.is_due():
                    await pace.rest()
    decoder.end(text.decode(b"", True))
    if decoder.is_blank():
        return None
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


class TextDecoder:
    """Decodes bytes that come in pieces, in the encoding that the first of them show."""

    def __init__(self) -> None:
        self._held = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._at = 0

    def decode(self, piece: bytes, is_last: bool = False) -> str:
        """The text of a piece, without a character that is cut by its end."""
        data = self._held + piece
        end = len(data) if is_last else _whole_chars(data)
        if self._decoder is None:
            if len(data) < BOM_BYTES_MAX and not is_last:
                end = 0
            else:
                kind = codecs.getincrementaldecoder(json.detect_encoding(data))
                self._decoder = kind("surrogatepass")
        self._held = data[end:]
        if self._decoder is None:
            return ""
        try:
            found = self._decoder.decode(data[:end], is_last)
        except UnicodeDecodeError as error:
            raise BadRequest(f"not_json: no UTF-8 at byte {self._at + error.start}") from None
        self._at += end
        return found


def _whole_chars(data: bytes) -> int:
    """Where the last character of UTF-8 begins, if it has more than one byte. The library's decoder
    would hold it back as well, but treats half a surrogate as an error."""
    at = len(data)
    while at > 0 and len(data) - at < UTF8_BYTES_MAX and data[at - 1] & 0xC0 == 0x80:
        at -= 1
    return at - 1 if at > 0 and data[at - 1] >= 0xC0 else len(data)


class JsonDecoder:
    """Decodes one text, which may come in pieces. Invariants: ``_open`` has the unfinished objects
    and arrays, outermost first, and ``_names`` the name for the next value of each (None for an
    array). ``value`` is valid once `advance` has said that it is done. While the text is not whole,
    nothing is taken from its last WINDOW_CHARS, so that no value is cut."""

    def __init__(self, text: str, values_max: int, is_whole: bool = True) -> None:
        self.value: Any = None
        self.is_hungry = not is_whole
        """More text is needed before `advance` can go on."""
        self._text = text
        self._is_whole = is_whole
        self._ahead: list[str] = []
        self._ahead_chars = 0
        self._lines = 0
        self._column = 0
        self._values_max = values_max
        self._at = 0
        self._next = _VALUE
        self._open: list[Any] = []
        self._names: list[str | None] = []
        self._count = 0
        self._entry_count = 0
        self._entry_at = 0
        self._is_simple = text.isascii() and "\\u" not in text

    def feed(self, text: str) -> None:
        """Add text. It is joined with what is left when there is enough of it, so that no character
        is copied more than a few times."""
        self._ahead.append(text)
        self._ahead_chars += len(text)
        if self._ahead_chars > WINDOW_CHARS:
            self._join()

    def end(self, text: str) -> None:
        """The text is complete."""
        self._ahead.append(text)
        self._is_whole = True
        self._join()

    def unfinished(self) -> object:
        """The unfinished value."""
        return self._open[0] if self._open else self.value

    def is_blank(self) -> bool:
        """Whether there was nothing but space; asked at the end."""
        self._skip_space()
        return self._next == _VALUE and not self._open and self._at == len(self._text)

    def _join(self) -> None:
        """Drop what is decoded, and continue with what has come."""
        done = self._text[: self._at]
        lines = done.count("\n")
        self._lines += lines
        self._column = len(done) - done.rfind("\n") - 1 + (0 if lines else self._column)
        self._entry_at -= self._at
        self._text = "".join([self._text[self._at :], *self._ahead])
        self._at = 0
        self._ahead, self._ahead_chars = [], 0
        self._is_simple = self._text.isascii() and "\\u" not in self._text
        self.is_hungry = False

    def advance(self, tokens: int) -> bool:
        """Decode some more; True at the end of the text."""
        for _ in range(tokens):
            self._skip_space()
            if not self._is_whole and len(self._text) - self._at < WINDOW_CHARS:
                self.is_hungry = True
                return False
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
        """Most entries are short and plain, and the standard library reads those faster. An entry
        that it refuses is read again here, to say where the fault is."""
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
        if self._count - self._entry_count > ENTRY_VALUES_MAX + ENTRY_FIELDS_MAX:
            self._refuse(f"is one of more than {ENTRY_VALUES_MAX} values that belong together")
        if self._at - self._entry_at > ENTRY_CHARS_MAX and len(self._open) > 2:
            self._refuse_length()
        if len(self._open) <= 2:
            self._entry_count, self._entry_at = self._count, self._at

    def _string(self, has: str = "has") -> str:
        begun = self._at
        try:
            found, self._at = scanstring(self._text, self._at + 1, True)
        except JSONDecodeError as error:
            if not self._is_whole and error.msg.startswith("Unterminated"):
                self._refuse_length()
            self._at = error.pos
            raise BadRequest(f"not_json: {error.msg}: {self._line()}") from None
        if not self._is_whole and self._at - begun > ENTRY_CHARS_MAX:
            self._refuse_length()
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

    def _refuse_length(self) -> NoReturn:
        self._refuse(f"is part of an entry of more than {ENTRY_CHARS_MAX} characters")

    def _refuse_text(self, wanted: str) -> NoReturn:
        raise BadRequest(f"not_json: {wanted} at {self._line()}")

    def _line(self) -> str:
        lines = self._text.count("\n", 0, self._at)
        column = self._at - self._text.rfind("\n", 0, self._at) + (0 if lines else self._column)
        return f"line {self._lines + lines + 1} column {column}"

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
