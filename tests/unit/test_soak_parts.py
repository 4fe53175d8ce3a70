"""The long tests are run in parts (`make soak`), and no part forgets one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from run_soak import PARTS
from run_suites import ROOT, Run

SOAKS = [run for runs in PARTS.values() for run in runs if isinstance(run, Run)]


def _is_below(path: str, folders: list[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in folders)


def _takes(run: Run, path: str) -> bool:
    ignored = [each.removeprefix("--ignore=") for each in run.options if "--ignore=" in each]
    return run.marker == "soak" and _is_below(path, [*run.paths]) and not _is_below(path, ignored)


def test_each_file_with_long_tests_is_in_a_part() -> None:
    files = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.soak" in path.read_text()
    ]
    assert len(files) > 30
    assert [path for path in files if not any(_takes(run, path) for run in SOAKS)] == []


def test_paths_of_parts_are_there() -> None:
    assert [path for run in SOAKS for path in run.paths if not (ROOT / path).exists()] == []


def test_no_two_runs_share_an_output() -> None:
    names = [run.name for runs in PARTS.values() for run in runs]
    assert len(names) == len(set(names))
