"""`make bench`: Rhizome and RabbitMQ measured by the same generator, in turn, on this machine.

Writes bench/results/DATE.json and a line of bench/history.jsonl; a complete run, or one with
--write, also writes the table bench/RESULTS.md and the chart bench/results.svg, from the newest
results of every scenario. Exit status 1 means that a target was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import measure
import report
from brokers import BrokerUnderTest, RabbitMQ, Rhizome, version_of
from measure import MeasurementError, Result
from rabbitmq import SUITES, VERSION, RabbitMQUnavailable
from scenarios import (
    BACKLOGS,
    IDLE_CONNECTIONS,
    IDLE_NAME,
    LATENCY_NAME,
    RESTART_MESSAGES,
    RESTART_NAME,
    THROUGHPUT,
    all_names,
)

from rhizome import build_info

HERE = Path(__file__).resolve().parent
OPEN_FILES = 12_000
QUICK_MESSAGES = 100_000
QUICK_CONNECTIONS = 1_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs per scenario and broker")
    parser.add_argument("--seconds", type=float, default=4.0, help="steady window of a run")
    parser.add_argument("--only", action="append", metavar="NAME", help="only these scenarios")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--skip-rabbitmq", action="store_true")
    parser.add_argument(
        "--rabbitmq",
        metavar="VERSION",
        choices=SUITES,
        default=VERSION,
        help="which RabbitMQ to compare with: %(choices)s; default %(default)s",
    )
    parser.add_argument("--skip-rhizome", action="store_true", help="the baseline alone")
    parser.add_argument("--quick", action="store_true", help="one short run each, small backlogs")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md in any case")
    parser.add_argument("--note", default="", help="what a reader of the results must know")
    options = parser.parse_args()
    names = [name for value in options.only or [] for name in value.split(",")]
    unknown = set(names) - set(all_names())
    if unknown:
        parser.error(
            f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(all_names())}"
        )
    options.names = names or all_names()
    options.complete = not (names or options.quick or options.skip_rabbitmq or options.skip_rhizome)
    if options.quick:
        options.runs, options.seconds = 1, min(options.seconds, 2.0)
    return options


def brokers_under_test(options: argparse.Namespace, directory: Path) -> list[BrokerUnderTest]:
    chosen: list[BrokerUnderTest] = []
    if not options.skip_rabbitmq:
        try:
            chosen.append(RabbitMQ(options.rabbitmq))
        except RabbitMQUnavailable as error:
            print(f"RabbitMQ {options.rabbitmq} can't be had, Rhizome alone: {error}")
    if not options.skip_rhizome:
        chosen.append(Rhizome(directory / "rhizome"))
    return chosen


def in_turn(
    name: str,
    brokers: list[BrokerUnderTest],
    runs: int,
    one: Callable[[BrokerUnderTest], Result],
) -> dict[str, Any]:
    """`runs` measurements of each broker, alternating, and their medians key by key."""
    results: dict[str, list[Result]] = {broker.name: [] for broker in brokers}
    failures: dict[str, str] = {}
    for _ in range(runs):
        for broker in brokers:
            if broker.name in failures:
                continue
            try:
                results[broker.name].append(one(broker))
            except (MeasurementError, subprocess.TimeoutExpired, OSError, RuntimeError) as error:
                failures[broker.name] = str(error)
                print(f"{name}: {error}\n{broker.last_words()}", file=sys.stderr)
                broker.restart_empty()  # what is left of a failed run must not slow the next
    medians = {who: medians_of(lines) for who, lines in results.items() if lines}
    print(f"{name:20} " + "   ".join(report.in_short(who, m) for who, m in medians.items()))
    return {"medians": medians, "runs": results, "failures": failures}


def medians_of(lines: list[Result]) -> Result:
    return {key: median(line[key] for line in lines) for key in lines[0]}


def measure_all(options: argparse.Namespace, brokers: list[BrokerUnderTest]) -> dict[str, Any]:
    """All chosen scenarios in order: quick ones first, those that restart the brokers last."""
    plan: list[tuple[str, int, list[BrokerUnderTest], Callable[[BrokerUnderTest], Result]]] = []
    for load in THROUGHPUT:
        one = partial(measure.throughput, flags=load.flags, seconds=options.seconds)
        plan.append((load.name, options.runs, brokers, one))
    plan.append(
        (LATENCY_NAME, options.runs, brokers, partial(measure.latency, seconds=options.seconds))
    )
    for wait in BACKLOGS:
        messages = min(wait.messages, QUICK_MESSAGES) if options.quick else wait.messages
        who = [b for b in brokers if wait.with_rabbitmq or b.name == Rhizome.name]
        one = partial(measure.backlog, scenario=wait, messages=messages, seconds=options.seconds)
        plan.append((wait.name, 1, who, one))
    kept = QUICK_MESSAGES if options.quick else RESTART_MESSAGES
    idle = QUICK_CONNECTIONS if options.quick else IDLE_CONNECTIONS
    plan.append((RESTART_NAME, 1, brokers, partial(measure.restart, messages=kept)))
    plan.append((IDLE_NAME, 1, brokers, partial(measure.idle_connections, connections=idle)))
    return {
        name: in_turn(name, who, runs, one)
        for name, runs, who, one in plan
        if name in options.names and who
    }


def circumstances(brokers: list[BrokerUnderTest], options: argparse.Namespace) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    versions = {b.name: version_of(b.port) for b in brokers}
    if Rhizome.name in versions:
        versions[Rhizome.name] = build_info.describe()
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip() or "none",
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
        "runs": options.runs,
        "seconds": options.seconds,
        "quick": options.quick,
        "note": options.note,
    }


def write(run: dict[str, Any], complete: bool) -> None:
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    stamp = run["date"].replace(":", "").replace("-", "")
    (results / f"{stamp}.json").write_text(json.dumps(run, indent=1) + "\n")
    with (HERE / "history.jsonl").open("a") as history:
        history.write(json.dumps(report.history_line(run)) + "\n")
    if complete:
        stored = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
        newest = report.merged(stored)
        (HERE / "RESULTS.md").write_text(report.markdown(newest))
        (HERE / "results.svg").write_text(report.chart(newest))


def main() -> int:
    options = parse_arguments()
    if options.list:
        print("\n".join(all_names()))
        return 0
    measure.build_amqpload()
    measure.allow_open_files(OPEN_FILES)  # inherited by the brokers
    with tempfile.TemporaryDirectory(prefix="rhizome-bench-") as directory:
        brokers = brokers_under_test(options, Path(directory))
        try:
            for broker in brokers:
                broker.start()
            run = {**circumstances(brokers, options), "scenarios": {}}
            run["scenarios"] = measure_all(options, brokers)
        finally:
            for broker in brokers:
                broker.close()
    write(run, options.complete or options.write)
    checks = report.checks(run)
    print("\n" + report.checks_as_text(checks))
    return 0 if all(check.ok for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
