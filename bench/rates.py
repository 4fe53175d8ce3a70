"""What a broker costs at moderate rates: CPU and latency against the rate.

    .venv/bin/python bench/rates.py [--against TREE] [--skip-rabbitmq] [--rounds 3] [--write]

Rhizome, RabbitMQ and, with `--against`, another checkout of Rhizome with its hot modules compiled
are measured in turn, so that what the machine does meanwhile hits all of them alike. The rates are
far below what any of them can do, so a broker that polls or syncs without need shows. CPU is that
of all processes of the broker, from /proc, in cores. Latency is from when a message was due until
it came. It has the generator's wake-ups in it, and on a shared machine those of everybody.
`--write` makes RATES.md; every run adds a line to history.jsonl.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import measure
from brokers import BrokerUnderTest, RabbitMQ, Rhizome
from clusters import RabbitMQCluster, RhizomeCluster
from history import HERE, remember
from measure import MeasurementError, Result
from rabbitmq import SUITES, VERSION

RATES = (100, 1_000, 5_000, 20_000)
KINDS = {
    "transient": (),
    "durable": ("--durable", "--persistent", "--confirm", "1000", "--ack", "1000"),
}
COPIES_RATE = 1_000
QUORUM = (*KINDS["durable"], "--queue-type", "quorum")
CPU_RATIO_MAX = 0.25
"""Of RabbitMQ's CPU."""
COPIES_CORES_MAX = 0.15
"""Of three brokers together, at COPIES_RATE durable messages per second."""
LATENCY_GROWTH_MAX = 1.2
"""Of the other checkout's p50 and p99."""

Numbers = dict[str, dict[str, Result]]
"""By scenario and broker."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="TREE")
    parser.add_argument("--skip-rabbitmq", action="store_true")
    parser.add_argument("--skip-clusters", action="store_true")
    parser.add_argument("--rabbitmq", metavar="VERSION", choices=SUITES, default=VERSION)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def environment_of(tree: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(tree.resolve() / "src"), "RHIZOME_PURE": ""}


def one(broker: BrokerUnderTest, rate: int, flags: tuple[str, ...], seconds: float) -> Result:
    paced = ("--rate", str(rate), "--latency", "--seconds", str(seconds), "--warmup", "1")
    line = measure.amqpload(broker, *flags, *paced)
    return {
        "cores": line["cpu_s_per_1m_con"] * line["con_s"] / 1e6,
        "p50_us": line["lat_us"]["p50"],
        "p99_us": line["lat_us"]["p99"],
    }


def in_turn(
    brokers: dict[str, BrokerUnderTest],
    rate: int,
    flags: dict[str, tuple[str, ...]],
    options: argparse.Namespace,
) -> dict[str, Result]:
    """The medians over the rounds, each of which begins with another broker."""
    found: dict[str, list[Result]] = {name: [] for name in brokers}
    names = list(brokers)
    for number in range(options.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(one(brokers[name], rate, flags[name], options.seconds))
    return {
        name: {key: median(line[key] for line in lines) for key in lines[0]}
        for name, lines in found.items()
    }


def measure_lone(directory: Path, options: argparse.Namespace) -> Numbers:
    brokers: dict[str, BrokerUnderTest] = {
        "rhizome": Rhizome(directory / "rhizome", environment_of(HERE.parent))
    }
    if options.against:
        brokers["before"] = Rhizome(directory / "before", environment_of(options.against))
    if not options.skip_rabbitmq:
        brokers["rabbitmq"] = RabbitMQ(options.rabbitmq)
    numbers: Numbers = {}
    try:
        for broker in brokers.values():
            broker.start()
        for kind, flags in KINDS.items():
            for rate in RATES:
                lines = in_turn(brokers, rate, dict.fromkeys(brokers, flags), options)
                numbers[f"{kind} {rate}"] = lines
                print_line(f"{kind} {rate}", lines)
    finally:
        for broker in brokers.values():
            broker.close()
    return numbers


def measure_copies(directory: Path, options: argparse.Namespace) -> Numbers:
    """Three brokers with a copy of each message, at the home of the queue."""
    clusters: dict[str, BrokerUnderTest] = {
        "rhizome": RhizomeCluster(directory / "cluster", environment_of(HERE.parent))
    }
    flags = dict.fromkeys(("rhizome", "before"), KINDS["durable"])
    if options.against:
        clusters["before"] = RhizomeCluster(directory / "other", environment_of(options.against))
    if not options.skip_rabbitmq:
        clusters["rabbitmq"] = RabbitMQCluster(options.rabbitmq)
        flags["rabbitmq"] = QUORUM
    name = f"copies {COPIES_RATE}"
    try:
        for cluster in clusters.values():
            cluster.start()
            if isinstance(cluster, RhizomeCluster):
                cluster.talk_to(cluster.home_of_next_queue())
        lines = in_turn(clusters, COPIES_RATE, flags, options)
    finally:
        for cluster in clusters.values():
            cluster.close()
    print_line(name, lines)
    return {name: lines}


def print_line(scenario: str, lines: dict[str, Result]) -> None:
    for name, each in lines.items():
        latency = f"p50 {each['p50_us']:9,.0f} us  p99 {each['p99_us']:9,.0f} us"
        print(f"{scenario:16} {name:10} {each['cores']:7.3f} cores  {latency}", flush=True)


# ---- verdicts and the page ----------------------------------------------------------------------


def verdicts(numbers: Numbers) -> list[str]:
    """What is not met, in words; what could not be measured is not judged."""
    missed: list[str] = []
    for scenario, lines in numbers.items():
        ours = lines["rhizome"]
        theirs, before = lines.get("rabbitmq"), lines.get("before")
        if theirs and ours["cores"] > theirs["cores"] * CPU_RATIO_MAX:
            missed.append(f"{scenario}: {ours['cores'] / theirs['cores']:.2f} of RabbitMQ's CPU")
        if scenario.startswith("copies") and ours["cores"] > COPIES_CORES_MAX:
            missed.append(f"{scenario}: {ours['cores']:.2f} cores")
        for key in ("p50_us", "p99_us"):
            if before and ours[key] > before[key] * LATENCY_GROWTH_MAX:
                missed.append(f"{scenario}: {key[:3]} {ours[key] / before[key]:.2f} of before")
    return missed


def page(numbers: Numbers, options: argparse.Namespace, load: float) -> str:
    names = list(next(iter(numbers.values())))
    when = time.strftime("%Y-%m-%d", time.gmtime())
    lines = [
        "# CPU and latency against the rate",
        "",
        "Written by `bench/rates.py --write`, which says how it is measured. Cores are those of",
        "all processes of the broker; three brokers together in the row with copies.",
        "",
        f"Measured {when}: {options.rounds} rounds of {options.seconds:g} s in turn, medians, on",
        f"{os.cpu_count()} cores with a load of {load:.1f} at the start.",
        "",
    ]
    if "before" in names:
        lines += [f"`before` is another checkout, {options.against.name}.", ""]
    if "rabbitmq" not in names:
        lines += ["RabbitMQ was not measured in this run.", ""]
    heads = [f"{name}: cores | p50 us | p99 us" for name in names]
    lines += ["| messages per second | " + " | ".join(heads) + " |"]
    lines += ["|---|" + "---:|---:|---:|" * len(names)]
    for scenario, by_name in numbers.items():
        cells = [
            f"{each['cores']:.3f} | {each['p50_us']:,.0f} | {each['p99_us']:,.0f}"
            for each in by_name.values()
        ]
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    missed = verdicts(numbers)
    lines += ["", "Targets that this run missed:" if missed else "All targets were met.", ""]
    lines += [f"- {each}" for each in missed] + ([""] if missed else [])
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    options = parse_arguments()
    measure.build_amqpload()
    load = os.getloadavg()[0]
    numbers: Numbers = {}
    with tempfile.TemporaryDirectory(prefix="rhizome-rates-") as directory:
        try:
            numbers |= measure_lone(Path(directory), options)
            if not options.skip_clusters:
                numbers |= measure_copies(Path(directory), options)
        except MeasurementError as error:
            print(error, file=sys.stderr)
            return 1
    for each in verdicts(numbers):
        print(f"FAIL  {each}")
    remember({"rates": numbers})
    if options.write:
        (HERE / "RATES.md").write_text(page(numbers, options, load))
    return 0


if __name__ == "__main__":
    sys.exit(main())
