"""Build, check and run the test suites, two more at a time than there are cores: many tests wait.

    python tools/run_suites.py [--jobs N] [NAME ...]

Suites of compiled code wait for the build. Each output goes to build/test/NAME.txt, and to the
terminal when it is over: its last line if all went well, else all of it. Ends with 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
OUTPUT: Final = ROOT / "build" / "test"
FORM: Final = ROOT / "build" / "form"
# Unit tests of what is interpreted anyway, of the tree, whole clusters, and of much work in one go,
# which takes three times as long interpreted: no second run.
COMPILED_ONLY: Final = (
    "adopt",
    "bridge",
    "cli",
    "client",
    "management",
    "security",
    "cluster/state",
    "cluster/node",
    "broker/test_long_work.py",
    "test_document_blocks.py",
    "test_house.py",
    "test_packaging.py",
    "test_printable_text.py",
    "test_requirements.py",
    "test_suite_results.py",
    "test_system_packages.py",
)
# Tests of real clusters, which wait most: as long as all the others of tests/process.
CLUSTERS: Final = ("tests/process/cluster",)
# Of the other processes those of clients, tools and documents: half of the rest.
APPLICATIONS: Final = ("tests/process/applications",)
# Half of the tests with Spark: the suite that takes longest, and waits for Spark most of the time.
SPARK_JOBS: Final = ("tests/spark/jobs", "tests/spark/lakehouse")
SLOWEST_SHOWN: Final = 15


@dataclass(frozen=True)
class Run:
    """One pytest, of the tests with a marker. Compiled hot modules unless ``pure``."""

    name: str
    paths: tuple[str, ...]
    pure: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    marker: str = "not soak"

    def command(self) -> list[str]:
        arguments = ["-q", "-m", self.marker, f"--durations={SLOWEST_SHOWN}", *self.options]
        # Caches of runs at the same time must not meet.
        arguments += ["-o", f"cache_dir=.cache/pytest-{self.name}"]
        return [sys.executable, "-m", "pytest", *arguments, *self.paths]

    def variables(self) -> dict[str, str]:
        form = "interpreted" if self.pure else FORM.read_text().strip()
        pure = {"RHIZOME_PURE": "1"} if self.pure else {}
        return {**os.environ, "RHIZOME_EXPECT": form, **pure, **self.environment}


@dataclass(frozen=True)
class Chore:
    """What the suites need, or is checked beside them."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        return list(self.arguments)

    def variables(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


BUILD: Final = Chore("build", (sys.executable, "tools/build_hot.py"))
# Tests start dozens of JVMs, each with half the work if there is an archive of Spark's classes.
SPARK_CACHE: Final = {"XDG_CACHE_HOME": str(ROOT / ".cache" / "user")}
CLASSES: Final = Chore(
    "spark-classes",
    (sys.executable, "-m", "rhizome", "pipeline", "prepare", "--quiet"),
    environment={**SPARK_CACHE, "RHIZOME_PURE": "1"},
)
CHECK: Final = Chore("check", ("make", "--no-print-directory", "check"))

# The interpreted ones don't need the build. Then the longest first, so that the last are short; the
# simulation is all work, and goes well with those that wait.
RUNS: Final = (
    Run(
        "interpreted",
        ("tests/unit",),
        pure=True,
        # The compiled run tries as many examples as ever; this one looks for differences.
        environment={"HYPOTHESIS_PROFILE": "brief"},
        options=tuple(f"--ignore=tests/unit/{each}" for each in COMPILED_ONLY),
    ),
    Run("spark-jobs", SPARK_JOBS, environment=SPARK_CACHE),
    Run(
        "spark",
        ("tests/spark",),
        environment=SPARK_CACHE,
        options=tuple(f"--ignore={each}" for each in SPARK_JOBS),
    ),
    Run("simulation", ("tests/simulation",)),
    Run("clusters", CLUSTERS),
    Run(
        "process",
        ("tests/process",),
        options=tuple(f"--ignore={each}" for each in (*CLUSTERS, *APPLICATIONS)),
    ),
    Run("applications", APPLICATIONS),
    # Brokers of the other suites are compiled; those of tests/unit/testing are interpreted ones.
    Run("unit", ("tests/unit", "tests/interaction"), options=("--ignore=tests/unit/testing",)),
    Run("conformance", ("tests/conformance",)),
    Run("cluster-interop", ("tests/interop",), environment={"RHIZOME_TEST_CLUSTER": "1"}),
    Run("interop", ("tests/interop",)),
    Run("console", ("tests/console",)),
)


def needs(run: Run | Chore) -> list[str]:
    """The chores that must be over before a suite begins."""
    if isinstance(run, Chore):
        return []
    chores = [] if run.pure else [BUILD.name]
    return [*chores, CLASSES.name] if run.environment == SPARK_CACHE else chores


class Runner:
    """`over` has an event for each chore that suites wait for: it is set when the chore is over,
    however it went."""

    def __init__(self, chosen: Sequence[Run | Chore]) -> None:
        self._printing = Lock()
        self.over = {chore.name: Event() for chore in (BUILD, CLASSES) if chore in chosen}
        self.failed: list[str] = []

    def carry_out(self, run: Run | Chore) -> None:
        try:
            for name in needs(run):
                if name in self.over:
                    self.over[name].wait()
            if BUILD.name not in self.failed:
                self._carry_out(run)
        finally:
            if run.name in self.over:
                self.over[run.name].set()

    def _carry_out(self, run: Run | Chore) -> None:
        output = OUTPUT / f"{run.name}.txt"
        self._say(f"{run.name}: begins")
        began = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(
                run.command(),
                env=run.variables(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        lines = output.read_text(errors="replace").splitlines()
        worked_s = usage.ru_utime + usage.ru_stime
        took = f"{time.monotonic() - began:.0f} s, {worked_s:.0f} s of a core"
        if process.returncode == 0:
            self._say(f"{run.name}: {lines[-1] if lines else 'passed'} ({took})")
            return
        self.failed.append(run.name)
        heading = f"{run.name}: FAILED, exit {process.returncode} ({took})"
        self._say("\n".join([heading, *lines, heading]))

    def _say(self, text: str) -> None:
        with self._printing:
            print(text, flush=True)


def left_out() -> list[str]:
    """Directories with tests that no run names."""
    named = {path for run in RUNS for path in run.paths}
    tests = (ROOT / "tests").glob("*/**/test_*.py")
    found = {"/".join(each.relative_to(ROOT).parts[:2]) for each in tests}
    return sorted(found - named)


def carry_out(chosen: Sequence[Run | Chore], jobs: int) -> list[str]:
    """Carry out all of ``chosen``, ``jobs`` at a time; the names of those that failed."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    runner = Runner(chosen)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(runner.carry_out, chosen))
    return runner.failed


def main() -> int:
    java = [CLASSES] if shutil.which("java") else []
    everything: list[Run | Chore] = [BUILD, *java, RUNS[0], CHECK, *RUNS[1:]]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 2)
    parser.add_argument("names", nargs="*", choices=[[], *(run.name for run in everything)])
    options = parser.parse_args()
    if left_out():
        print(f"no run has the tests in {', '.join(left_out())}", file=sys.stderr)
        return 1
    failed = carry_out(
        [run for run in everything if not options.names or run.name in options.names], options.jobs
    )
    if failed:
        print(f"failed: {', '.join(failed)}; the output is in {OUTPUT.relative_to(ROOT)}")
        return 1
    print("all suites passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
