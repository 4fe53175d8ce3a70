"""Measure a cluster of three: copies against RabbitMQ's quorum queues, and the price of an edge.

    .venv/bin/python bench/cluster.py [--runs N] [--seconds S] [--skip-rabbitmq]

Prints a line per scenario, and adds one to history.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from clusters import RabbitMQCluster, RhizomeCluster
from history import remember, verdict
from measure import MeasurementError, Result, build_amqpload, throughput
from rabbitmq import SUITES, VERSION

DURABLE = ("--body", "128", "--persistent", "--durable", "--confirm", "1000", "--ack", "1000")
TRANSIENT = ("--body", "128", "--confirm", "1000", "--ack", "1000")
AUTO = ("--body", "128")

RATE_TARGET = 10.0
CPU_TARGET = 0.1
EDGE_TARGET = 0.5


def measured(cluster: RhizomeCluster, flags: tuple[str, ...], home: bool, seconds: float) -> Result:
    at = cluster.home_of_next_queue()
    names = [name for name in ("b1", "b2", "b3") if (name == at) == home]
    cluster.talk_to(names[0])
    return throughput(cluster, flags, seconds)


def medians(lines: list[Result]) -> Result:
    return {key: median(line[key] for line in lines) for key in lines[0]}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--skip-rabbitmq", action="store_true")
    parser.add_argument("--rabbitmq", metavar="VERSION", choices=SUITES, default=VERSION)
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    build_amqpload()
    numbers: dict[str, dict[str, Result]] = {}
    with tempfile.TemporaryDirectory() as directory:
        ours = RhizomeCluster(Path(directory) / "rhizome")
        theirs = None
        if not options.skip_rabbitmq:
            theirs = RabbitMQCluster(options.rabbitmq)
        try:
            ours.start()
            if theirs is not None:
                theirs.start()
            found: dict[str, dict[str, list[Result]]] = {}
            for _ in range(options.runs):
                for name, flags in (("copies", DURABLE), ("transient", TRANSIENT), ("auto", AUTO)):
                    lines = found.setdefault(name, {})
                    lines.setdefault("home", []).append(
                        measured(ours, flags, True, options.seconds)
                    )
                    lines.setdefault("edge", []).append(
                        measured(ours, flags, False, options.seconds)
                    )
                if theirs is not None:
                    quorum = (*DURABLE, "--queue-type", "quorum")
                    line = throughput(theirs, quorum, options.seconds)
                    found["copies"].setdefault("rabbitmq", []).append(line)
        except MeasurementError as error:
            print(error, ours.last_words(), file=sys.stderr)
            return 1
        finally:
            ours.kill()
            if theirs is not None:
                theirs.close()
    for name, by_kind in found.items():
        numbers[name] = {kind: medians(lines) for kind, lines in by_kind.items()}
        for kind, each in numbers[name].items():
            cpu = each["cpu_per_million"]
            print(f"{name:10} {kind:9} {each['rate']:>12,.0f} /s  {cpu:8.2f} CPU s per million")
    report(numbers)
    remember({"cluster": numbers})
    return 0


def report(numbers: dict[str, dict[str, Result]]) -> None:
    copies = numbers["copies"]
    if "rabbitmq" in copies:
        rate = copies["home"]["rate"] / copies["rabbitmq"]["rate"]
        cpu = copies["home"]["cpu_per_million"] / copies["rabbitmq"]["cpu_per_million"]
        verdict("copies: times RabbitMQ's rate", rate, rate >= RATE_TARGET, RATE_TARGET)
        verdict("copies: of RabbitMQ's CPU", cpu, cpu <= CPU_TARGET, CPU_TARGET)
    for name, each in numbers.items():
        share = each["edge"]["rate"] / each["home"]["rate"]
        verdict(f"{name}: of the home's rate, at an edge", share, share >= EDGE_TARGET, EDGE_TARGET)


if __name__ == "__main__":
    sys.exit(main())
