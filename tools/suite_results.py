"""What the suites of client libraries did, compared with what they did on RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
EXPECTED: Final = ROOT / "tests" / "interop" / "suites" / "expected.json"

# Fail now and then, on RabbitMQ too. They may, and are not counted.
UNSTEADY: Final = {
    # Two tasks of the client wait for the end of its writer. Where close-ok has come by then, the
    # one that knows no reason may be first, and the publish ends with a bare Exception. A client
    # that is kept waiting for a processor for 5 ms sees it in every sixth run on RabbitMQ 3.10.
    "aiormq": frozenset(
        f"tests.test_connection_futures.test_connection_close_during_publish_drain[{url}]"
        for url in ("amqp", "amqp-named")
    ),
}


@dataclass
class Outcome:
    """The names of the tests of one run, by what became of them."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Expectation:
    """What a suite did on RabbitMQ."""

    passed: int
    failed: tuple[str, ...]


def read_expected() -> dict[str, Expectation]:
    if not EXPECTED.exists():
        return {}
    found = json.loads(EXPECTED.read_text())
    return {
        name: Expectation(entry["passed"], tuple(entry["failed"]))
        for name, entry in found["suites"].items()
    }


def write_expected(expected: Mapping[str, Expectation]) -> None:
    suites = {
        name: {"passed": entry.passed, "failed": sorted(entry.failed)}
        for name, entry in sorted(expected.items())
    }
    EXPECTED.parent.mkdir(parents=True, exist_ok=True)
    document = {"broker": "RabbitMQ 3.10", "suites": suites}
    EXPECTED.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def judge(name: str, outcome: Outcome, expected: Expectation | None) -> bool:
    """Print what a suite did; False if it did worse than on RabbitMQ."""
    known = set(expected.failed) if expected else set()
    unlucky = sorted(outcome.failed & UNSTEADY.get(name, frozenset()))
    new = sorted(outcome.failed - known - set(unlucky))
    cured = sorted(known & outcome.passed)
    counts = f"{len(outcome.passed)} passed, {len(outcome.failed)} failed, {len(new)} of them new"
    print(f"{name}: {counts}", flush=True)
    for test in new:
        print(f"    fails here and not on RabbitMQ: {test}")
    for test in unlucky:
        print(f"    fails now and then on RabbitMQ too: {test}")
    for test in cured:
        print(f"    passes here and not on RabbitMQ: {test}")
    fewer = expected is not None and len(outcome.passed) + len(unlucky) < expected.passed
    if fewer and expected is not None and not new:
        print(f"    only {len(outcome.passed)} tests passed, {expected.passed} did on RabbitMQ")
    return not new and not fewer
