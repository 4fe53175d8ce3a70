"""Two builds of Rhizome in one alternating run: what did a change cost?

    python bench/compare.py TREE [--rounds 5] [--seconds 3] [--only NAME,NAME]

TREE is another checkout with its hot modules compiled (`tools/build_hot.py` there). Both builds run
the scenarios of `make bench` in turn, first one and then the other first, so that what the machine
does meanwhile hits both alike. Rates on a shared machine say little; processor time per message
repeats. Exit status 1 means that a scenario costs more than `--limit` percent more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

import measure
from brokers import Rhizome
from scenarios import THROUGHPUT

HERE = Path(__file__).resolve().parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, help="the checkout to compare this one with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="steady window of a run")
    parser.add_argument("--only", default="", help="only these scenarios")
    parser.add_argument("--limit", type=float, default=3.0, help="percent of CPU per message")
    return parser.parse_args()


def start(directory: Path, tree: Path) -> Rhizome:
    broker = Rhizome(directory, {"PYTHONPATH": str(tree / "src"), "RHIZOME_PURE": ""})
    broker.start()
    return broker


def compare(
    old: Rhizome, new: Rhizome, flags: tuple[str, ...], options: argparse.Namespace
) -> tuple[float, float]:
    """The ratios, new to old, of CPU per message and of rates: medians over the rounds."""
    costs: list[float] = []
    rates: list[float] = []
    for number in range(options.rounds):
        order = (old, new) if number % 2 == 0 else (new, old)
        found = {each: measure.throughput(each, flags, options.seconds) for each in order}
        costs.append(found[new]["cpu_per_million"] / found[old]["cpu_per_million"])
        rates.append(found[new]["rate"] / found[old]["rate"])
    return median(costs), median(rates)


def main() -> int:
    options = parse_arguments()
    wanted = [name for name in options.only.split(",") if name]
    measure.build_amqpload()
    worse: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rhizome-compare-") as directory:
        old = start(Path(directory) / "old", options.tree.resolve())
        new = start(Path(directory) / "new", HERE.parent)
        try:
            print(f"this tree : {options.tree}")
            print(f"{'scenario':16} {'CPU per message':>16} {'rate':>8}")
            for scenario in THROUGHPUT:
                if not wanted or scenario.name in wanted:
                    cost, rate = compare(old, new, scenario.flags, options)
                    print(f"{scenario.name:16} {cost:16.3f} {rate:8.3f}", flush=True)
                    if cost > 1 + options.limit / 100:
                        worse.append(scenario.name)
        finally:
            old.stop()
            new.stop()
    if worse:
        print(f"more than {options.limit:g}% more CPU per message: {', '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
