"""Printing: aligned tables for people, JSON for programs.

Every command prints through this module, and nothing unprintable reaches a terminal from here:
names and reasons that others chose must not move the cursor, hide text or change its look.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rhizome.printable_text import escaped, printable_json, without_passwords

Row = dict[str, Any]
Column = str | tuple[str, str | Callable[[Row], object]]
"""A field that is its own heading, or a heading with a field or with a function for the cell."""


OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
"""How a thing is; on a terminal each has its colour."""
COLOURS: Final = {OK: "32", WARNING: "33", PROBLEM: "31;1"}


def say(
    text: object = "", *, level: str = "", to_errors: bool = False, flush: bool = False
) -> None:
    """Print one line, in the colour of its level; to standard error with `to_errors`."""
    shown = escaped(without_passwords(str(text)))
    file = sys.stderr if to_errors else sys.stdout
    if level and _has_colours(file.isatty()):
        shown = f"\x1b[{COLOURS[level]}m{shown}\x1b[0m"
    print(shown, file=file, flush=flush)


def _has_colours(is_terminal: bool) -> bool:
    """As no-color.org and most commands have it."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(document: Any) -> None:
    """Print one JSON document, readable and stable."""
    print(printable_json(document, indent=2))


def print_json_line(document: Any) -> None:
    """Print one JSON document on one line."""
    print(printable_json(document))


def print_done(text: str, as_json: bool) -> None:
    """Say what was done."""
    if as_json:
        print_json({"done": text})
    else:
        say(text)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print columns, numbers to the right; `empty` is said instead if there are no rows."""
    body = [list(row) for row in rows]
    if not body:
        say(empty)
        return
    for line in format_table(headings, body):
        say(line)


def print_rows(
    found: Iterable[Row], columns: Sequence[Column], empty: str, by: Sequence[str] = ()
) -> None:
    """Print a line for each object, sorted by these fields; without any, as they are."""
    rows = sorted(found, key=lambda row: [str(row.get(field)) for field in by])
    print_table(_headings(columns), [cells_of(row, columns) for row in rows], empty)


def _headings(columns: Sequence[Column]) -> list[str]:
    return [each if isinstance(each, str) else each[0] for each in columns]


def cells_of(row: Row, columns: Sequence[Column]) -> list[object]:
    cells = [each if isinstance(each, str) else each[1] for each in columns]
    return [row.get(cell) if isinstance(cell, str) else cell(row) for cell in cells]


def format_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table; a column of nothing but numbers is aligned to the right."""
    cells = [[cell_text(value) for value in row] for row in rows]
    lines = [list(headings), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    numeric = [
        all(isinstance(row[column], (int, float)) or row[column] is None for row in rows)
        and not all(isinstance(row[column], bool) for row in rows)
        for column in range(len(headings))
    ]
    return [_line(line, widths, numeric) for line in lines]


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    aligned = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return "  ".join(aligned).rstrip()


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print `name  value` lines, the values below each other."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        say(f"{name.ljust(width)}  {cell_text(value)}".rstrip())


def print_row(row: Row, columns: Sequence[Column]) -> None:
    """Print one object, a line for each column."""
    print_fields(list(zip(_headings(columns), cells_of(row, columns), strict=True)))


def cell_text(value: object) -> str:
    """A value as one line of text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return without_passwords(printable_json(value)) if value else "-"
    return escaped(without_passwords(str(value)))


def bytes_of(field: str) -> Callable[[Row], str]:
    """Cells of a column of sizes."""
    return lambda row: bytes_text(row.get(field))


def duration_text(milliseconds: int) -> str:
    """93784000 as 1 d 2 h: the two largest units."""
    seconds = milliseconds // 1000
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    parts = []
    for unit, length in units:
        count, seconds = divmod(seconds, length)
        parts.append((count, unit))
    first = next((i for i, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])


def bytes_text(count: object) -> str:
    """1536 as 1.5 KiB."""
    if not isinstance(count, (int, float)):
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
