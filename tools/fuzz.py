"""Attack a broker core for a while, guided by coverage.

    python tools/fuzz.py --seconds 600

runs the sessions of tests/fuzz from inputs that atheris (the extra `fuzz`) makes out of
those that reached new code. Without atheris, inputs are mutations of earlier ones that reached new
lines. Inputs worth keeping are in --corpus, one file each; the first input that breaks a rule is
written next to it as `failure-...`, its error printed, and the exit code is 1. Pass such a file to
run it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Coverage is measured in the interpreted form; compiled modules have no lines to see.
os.environ["RHIZOME_PURE"] = "1"
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

INPUT_BYTES_MAX = 4096
FIRST_INPUTS = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="how long to look")
    parser.add_argument("--corpus", type=Path, default=ROOT / ".cache" / "fuzz")
    parser.add_argument("--seed", type=int, default=0, help="0: another one in every run")
    parser.add_argument("--no-atheris", action="store_true", help="use the mutator of this script")
    parser.add_argument("inputs", nargs="*", type=Path, help="run just these files")
    return parser.parse_args()


def first_inputs(corpus: Path, chance: random.Random) -> list[bytes]:
    """What earlier runs kept, and random bytes to begin with."""
    kept = [path.read_bytes() for path in sorted(corpus.glob("*")) if path.is_file()]
    fresh = [chance.randbytes(chance.randrange(200, INPUT_BYTES_MAX)) for _ in range(FIRST_INPUTS)]
    return kept + (fresh if len(kept) < FIRST_INPUTS else [])


def keep(corpus: Path, data: bytes, word: str = "") -> Path:
    path = corpus / (word + hashlib.sha256(data).hexdigest()[:16])
    path.write_bytes(data)
    return path


# --- the mutator of this script


class Coverage:
    """The lines of the broker that have been run; `grew` tells whether there are new ones."""

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        self._count = 0
        self._prefix = str(ROOT / "src")

    def run(self, attack: Callable[[bytes], object], data: bytes) -> bool:
        """Attack; True if that reached new lines."""
        sys.settrace(self._call)
        try:
            attack(data)
        finally:
            sys.settrace(None)
        grew = len(self.lines) > self._count
        self._count = len(self.lines)
        return grew

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._prefix) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.lines.add((frame.f_code, frame.f_lineno))
        return self._line


def mutated(chance: random.Random, corpus: list[bytes]) -> bytes:
    """A child of one or two earlier inputs."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        how = chance.randrange(4)
        if how == 0 and data:
            data[at % len(data)] = chance.randrange(256)
        elif how == 1:
            data[at:at] = chance.randbytes(chance.randrange(1, 16))
        elif how == 2:
            del data[at : at + chance.randrange(1, 16)]
        else:
            other = chance.choice(corpus)
            data[at:] = other[chance.randrange(len(other) + 1) :]
    return bytes(data[:INPUT_BYTES_MAX]) or b"\0"


def run_mutator(attack: Callable[[bytes], object], arguments: argparse.Namespace) -> int:
    chance = random.Random(arguments.seed or None)
    coverage = Coverage()
    corpus: list[bytes] = []
    waiting = first_inputs(arguments.corpus, chance)
    end = time.monotonic() + arguments.seconds
    runs = 0
    while time.monotonic() < end:
        data = waiting.pop() if waiting else mutated(chance, corpus)
        runs += 1
        try:
            grew = coverage.run(attack, data)
        except Exception:
            return report(arguments.corpus, data)
        if grew or not corpus:
            corpus.append(data)
            keep(arguments.corpus, data)
    print(f"{runs} attacks, {len(coverage.lines)} lines reached, {len(corpus)} inputs kept")
    return 0


def report(corpus: Path, data: bytes) -> int:
    traceback.print_exc()
    print(f"written to {keep(corpus, data, 'failure-')}; run it again with tools/fuzz.py FILE")
    return 1


# --- atheris


def run_atheris(arguments: argparse.Namespace) -> int:
    """Atheris ends the process itself, with another code than 0 if it found something."""
    atheris = importlib.import_module("atheris")
    # First, so that its finder of sources stands behind the one of atheris.
    importlib.import_module("rhizome")
    with atheris.instrument_imports(include=["rhizome"]):
        from tests.fuzz.session import run_session

    for data in first_inputs(arguments.corpus, random.Random(arguments.seed or None)):
        keep(arguments.corpus, data)
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={arguments.corpus}/failure-",
        "-timeout=60",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    if arguments.seed:
        options.append(f"-seed={arguments.seed}")
    atheris.Setup([sys.argv[0], *options, str(arguments.corpus)], run_session)
    atheris.Fuzz()
    return 0


def main() -> int:
    arguments = parse_arguments()
    if not arguments.inputs:
        arguments.corpus.mkdir(parents=True, exist_ok=True)
        if importlib.util.find_spec("atheris") is not None and not arguments.no_atheris:
            return run_atheris(arguments)
    from tests.fuzz.session import run_session

    if not arguments.inputs:
        return run_mutator(run_session, arguments)
    for path in arguments.inputs:
        print(path)
        run_session(path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
