"""Where in a TOML file each key stands. The parser of the standard library tells lines of broken
syntax only, and an error about a key should say which line to look at."""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str, ...]

_KEY: Final = re.compile(
    r"""\s*(?P<path>(?:"(?:\\.|[^"\\])*"|'[^']*'|[A-Za-z0-9_-]+)"""
    r"""(?:\s*\.\s*(?:"(?:\\.|[^"\\])*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*="""
)
_HEADER: Final = re.compile(r"\s*\[{1,2}(?P<path>[^\]]+)\]{1,2}")
_PART: Final = re.compile(r""""((?:\\.|[^"\\])*)"|'([^']*)'|([A-Za-z0-9_-]+)""")
_OPENERS: Final = "[{"
_CLOSERS: Final = "]}"


class KeyLines:
    """Lines of tables and keys. Keys of inline tables are known by the line of their table."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._scan(text)

    def of(self, *path: str) -> int:
        """The line of a key, or of the nearest table around it; 1 if there is none."""
        for length in range(len(path), 0, -1):
            found = self._lines.get(path[:length])
            if found is not None:
                return found
        return 1

    def _scan(self, text: str) -> None:
        table: Path = ()
        unfinished = _Value()
        for number, line in enumerate(text.splitlines(), 1):
            if unfinished.is_open():
                unfinished.take(line)
                continue
            header = _HEADER.match(line)
            if header is not None:
                table = _parts(header["path"])
                self._note(table, number)
                continue
            key = _KEY.match(line)
            if key is not None:
                self._note((*table, *_parts(key["path"])), number)
                unfinished.take(line[key.end() :])

    def _note(self, path: Path, number: int) -> None:
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], number)


class _Value:
    """A value that may go on over lines: a text in three quotes, a list."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0

    def is_open(self) -> bool:
        return self._quote != "" or self._depth > 0

    def take(self, line: str) -> None:
        at = 0
        while at < len(line):
            at = self._in_text(line, at) if self._quote else self._outside(line, at)
        if len(self._quote) == 1:  # such a text ends with its line
            self._quote = ""

    def _in_text(self, line: str, at: int) -> int:
        if line[at] == "\\" and self._quote[0] == '"':
            return at + 2
        if line.startswith(self._quote, at):
            length = len(self._quote)
            self._quote = ""
            return at + length
        return at + 1

    def _outside(self, line: str, at: int) -> int:
        char = line[at]
        if char == "#":
            return len(line)
        if char in "\"'":
            self._quote = char * 3 if line.startswith(char * 3, at) else char
            return at + len(self._quote)
        self._depth += (char in _OPENERS) - (char in _CLOSERS)
        return at + 1


def _parts(text: str) -> Path:
    return tuple(
        match[1] if match[1] is not None else match[2] if match[2] is not None else match[3]
        for match in _PART.finditer(text)
    )
