"""House rules that no linter knows. Exceptions are listed, and the list only shrinks."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG_MODULES = ROOT / "tests" / "unit" / "long_modules.txt"
MODULE_LINES_MAX = 600
SKIPPED_PARTS = {".git", ".venv", ".cache", "build", "data", "node_modules", "__pycache__", "dist"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".c", ".sh", ".yml", ".js", ".mjs", ".html", ".css"}
CORES = ("amqp", "journal", "broker", "cluster")
# What differs from process to process. A class may hash its own values.
UNREPEATABLE = re.compile(r"(?<![\w.])(id|(?<!return )hash)\(|\burandom\b|\buuid[14]\b|\bweakref\b")
# In pieces, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
NOT_OF_THE_PROJECT = re.compile(
    "|".join(
        (r"(?<![\w.])/wo" + r"rk/", r"\bsha" + r"red/", r"/tmp/" + r"x/", r"\.lib" + r"rary\b")
    )
)


def files(*roots: str) -> list[Path]:
    found = (p for root in roots for p in (ROOT / root).rglob("*"))
    return sorted(p for p in found if p.is_file() and not SKIPPED_PARTS & set(p.parts))


def python_files(*roots: str) -> list[Path]:
    return [p for p in files(*roots) if p.suffix == ".py"]


def text_files() -> list[Path]:
    tops = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT_SUFFIXES]
    below = files("src", "tests", "tools", "bench", "docs", "requirements", ".ci")
    return tops + [ROOT / "Makefile"] + [p for p in below if p.suffix in TEXT_SUFFIXES]


def matches(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def allowed_lengths() -> dict[str, int]:
    """Module -> the number of lines that it may have, for those that are still too long."""
    lines = (line.partition("#")[0].split() for line in LONG_MODULES.read_text().splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if fields}


def module_lengths() -> dict[str, int]:
    """Of the modules that people write; generated ones say so in their first lines."""
    texts = {p: p.read_text() for p in python_files("src", "tools", "bench")}
    return {
        str(p.relative_to(ROOT)): len(text.splitlines())
        for p, text in texts.items()
        if "\nWritten by tools/" not in text[:400]
    }


def test_modules_are_short_enough_to_read() -> None:
    allowed = allowed_lengths()
    too_long = {
        name: lines
        for name, lines in module_lengths().items()
        if lines > max(MODULE_LINES_MAX, allowed.get(name, 0))
    }
    assert not too_long, f"split these, a concept is missing: {too_long}"


def test_list_of_long_modules_only_shrinks() -> None:
    lengths = module_lengths()
    for name, allowed in allowed_lengths().items():
        assert name in lengths, f"{name} is gone: remove it from {LONG_MODULES.name}"
        assert lengths[name] > MODULE_LINES_MAX, f"{name} is short now: remove it from the list"
        assert lengths[name] > allowed - 50, f"{name} shrank to {lengths[name]}: lower its number"


def test_nothing_is_left_for_later() -> None:
    assert not matches(UNFINISHED, python_files("src", "tests", "tools", "bench"))


def test_source_never_sleeps_for_a_condition() -> None:
    # One place polls: another process's output and ports tell nobody when they change.
    polling = ROOT / "src" / "rhizome" / "testing" / "processes.py"
    others = [p for p in python_files("src") if p != polling]
    assert not matches(re.compile(r"\btime\.sleep\("), others)


def test_cores_ask_for_nothing_that_a_simulation_could_not_repeat() -> None:
    assert not matches(UNREPEATABLE, python_files(*(f"src/rhizome/{core}" for core in CORES)))


def test_generated_names_and_paths_of_a_workplace_stay_out() -> None:
    assert not matches(NOT_OF_THE_PROJECT, text_files())


@pytest.mark.parametrize("word", ["master", "slave"])
def test_source_uses_the_words_of_the_glossary(word: str) -> None:
    # Options and methods of others are called what they are called: Spark's `.master(...)`.
    ours = re.compile(rf"(?<![-.])\b{word}s?\b(?!-)", re.IGNORECASE)
    assert not matches(ours, python_files("src"))


def test_what_an_event_loop_finds_open_when_it_is_closed_is_no_error() -> None:
    """Raised from within uvloop's close(), it would keep that from ever returning."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.warn("unclosed resource <TCPTransport>", ResourceWarning, stacklevel=1)
    assert len(heard) == 1
