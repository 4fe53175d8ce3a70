"""The code blocks of the documents, and the marks that say what tests do with them.

A block is fenced and names its language, or it is indented and holds commands of a shell. Marks are
comments above a block, which readers don't see, and hold for that block only:

    <!-- not run: needs systemd -->                     no command of it; all are parsed
    <!-- not run "broker drain b2": stops a broker -->  no command that contains these words
    <!-- until Ctrl-C "rhizome consume": it waits -->   run, and stopped by that
    <!-- first: rhizome queue declare orders -->        run before it; several lines may be
    <!-- page not run: needs Spark -->                  no command of the whole page

tests/unit/test_documents.py says what is checked of all blocks, and
tests/process/applications/test_documents.py what is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SHELL: Final = "sh"
SESSION: Final = "console"
"""Commands behind `$ `, and what they print."""

_PIECE = re.compile(
    r"^(?P<comment><!--.*?-->)"
    r"|^ *```(?P<language>\S*)\n(?P<fenced>.*?)^ *```$"
    r"|(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n|\n+(?= {4}))+)",
    re.DOTALL | re.MULTILINE,
)
_MARK = re.compile(
    r'<!-- (page not run|not run|until Ctrl-C|first)(?: "([^"]*)")?:\s(.*?)\s*-->', re.DOTALL
)
_FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
_HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?")
_OPTIONAL = re.compile(r" \[(.*?)\]")
_ENDS = frozenset({"|", "||", "&&", ";", "&", "(", ")", ">", ">>", "<", "<<"})
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_CALL = "(a call)"


@dataclass(frozen=True)
class Mark:
    """``words`` limits a mark to commands that contain them."""

    kind: str
    words: str
    text: str
    is_of_page: bool


@dataclass(frozen=True)
class Block:
    """``line`` is that of its first line in the page."""

    page: Path
    line: int
    language: str
    text: str
    marks: tuple[Mark, ...]

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        """The name of the file that it is, if its first line says so: `# hello.py`."""
        match = _FILE.match(self.text)
        return match[1] if match else ""

    @property
    def first(self) -> list[str]:
        return [line for mark in self._of("first") for line in mark.text.splitlines()]

    def is_run(self, command: str = "") -> bool:
        return not any(mark.words in command for mark in self._of("not run"))

    def is_stopped(self, command: str) -> bool:
        return any(mark.words in command for mark in self._of("until Ctrl-C"))

    def commands(self) -> list[str]:
        """The commands of a shell in it, each with all its lines."""
        if self.language == SESSION:
            return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return list(_commands(self.text)) if self.language == SHELL else []

    def _of(self, kind: str) -> Iterator[Mark]:
        return (mark for mark in self.marks if mark.kind == kind)


def pages() -> list[Path]:
    tops = (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))
    below = (page for name in ("docs", "packaging") for page in (ROOT / name).rglob("*.md"))
    return [*tops, *sorted(below)]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    return blocks_of(page.read_text(), page)


def blocks_of(text: str, page: Path) -> list[Block]:
    found: list[Block] = []
    of_page: list[Mark] = []
    marks: list[Mark] = []
    for piece in _PIECE.finditer(text):
        if piece["comment"]:
            for kind, words, said in _MARK.findall(piece["comment"]):
                mark = Mark(kind.removeprefix("page "), words, said, kind.startswith("page "))
                (of_page if mark.is_of_page else marks).append(mark)
            continue
        kind = "indented" if piece["indented"] else "fenced"
        language = piece["language"] if kind == "fenced" else SHELL
        line = text.count("\n", 0, piece.start(kind)) + 1
        found.append(Block(page, line, language, dedent(piece[kind]), (*of_page, *marks)))
        marks = []
    return found


def _commands(text: str) -> Iterator[str]:
    """Lines, joined where a quotation, a backslash or a here-document goes on."""
    open_lines: list[str] = []
    for line in text.splitlines():
        open_lines.append(line)
        command = "\n".join(open_lines)
        if _is_whole(command):
            open_lines = []
            if words(command):
                yield command
    assert not open_lines, f"a command doesn't end: {open_lines}"


def _is_whole(command: str) -> bool:
    here = _HERE_DOCUMENT.search(command)
    if here:
        return command.endswith(f"\n{here[1]}")
    if command.endswith("\\"):
        return False
    try:
        words(command)
    except ValueError:  # no closing quotation
        return False
    return True


def words(command: str) -> list[str]:
    """The words and operators of a shell command, without comments."""
    reader = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    return list(reader)


def whole(command: str) -> str:
    """A command with what its brackets say may be added: `queue list [--vhost V]`."""
    return _OPTIONAL.sub(r" \1", command)


def bare(command: str) -> str:
    """A command without what its brackets say may be added."""
    return _OPTIONAL.sub("", command)


def calls(command: str) -> list[list[str]]:
    """The arguments of each `rhizome` in a command: where a program stands, or in a container as in
    `exec rhizome-0 -- rhizome status` and `exec rhizome rhizome status`."""
    found: list[list[str]] = []
    before = ""
    for word in words(command):
        if word in _ENDS:
            before = ""
        elif before == _CALL:
            found[-1].append(word)
        elif _is_program(word, before):
            found.append([])
            before = _CALL
        elif before or not _ASSIGNMENT.match(word):
            before = word
    if found == [["pipeline", "script"]]:  # each line of its input is a job
        found += [["pipeline", *words(line)] for line in command.splitlines()[1:-1]]
    return found


def _is_program(word: str, before: str) -> bool:
    if before:
        return word == "rhizome" and before in ("--", "rhizome")
    return word.rpartition("/")[2] == "rhizome"
