"""Run the long tests, in parts that each take less than an hour on two quiet cores; `spark-service`
alone takes longer: it is an hour of misfortunes (`RHIZOME_SERVICE_SECONDS`).

    python tools/run_soak.py [--list] [PART ...]

Without a name all parts run, one after the other. The runs of a part go side by side. Outputs are
in build/test; each part adds a line to build/test/soak.jsonl: commit, part, seconds, what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Final

from run_suites import OUTPUT, ROOT, Chore, Run, carry_out

RESULTS: Final = OUTPUT / "soak.jsonl"
FUZZ_SECONDS: Final = os.environ.get("FUZZ_SECONDS", "600")
SCENARIOS: Final = "tests/simulation/scenarios"
LONG: Final = ("--timeout", "3600", "-o", "faulthandler_timeout=3700")


def soak(name: str, *paths: str, only: str = "", without: tuple[str, ...] = ()) -> Run:
    chosen = ("-k", only) if only else ()
    ignored = tuple(f"--ignore={path}" for path in without)
    return Run(
        f"soak-{name}",
        paths,
        environment={"HYPOTHESIS_PROFILE": "soak"},
        options=(*LONG, *chosen, *ignored),
        marker="soak",
    )


def cluster_of_two(suite: str) -> Run:
    """A suite for one broker, on a cluster with a random broker per connection."""
    return Run(
        f"soak-cluster-{suite}", (f"tests/{suite}",), environment={"RHIZOME_TEST_CLUSTER": "2"}
    )


CONSENSUS: Final = f"{SCENARIOS}/test_consensus_scenario.py"
MESSAGES: Final = f"{SCENARIOS}/test_messages_scenario.py"
SERVICE: Final = "tests/spark/cluster/test_service_under_misfortunes.py"
PARTS: Final[dict[str, tuple[Run | Chore, ...]]] = {
    "walks": (soak("walks", "tests/unit", "tests/interaction"),),
    "messages": (soak("messages", MESSAGES, only="ten_thousand"),),
    "messages-more": (soak("messages-more", MESSAGES, only="not ten_thousand"),),
    "simulation": (
        soak("consensus", CONSENSUS),
        soak("simulation", "tests/simulation", without=(CONSENSUS, MESSAGES)),
    ),
    "power-cuts": (soak("power-cuts", "tests/process/durability"),),
    "clusters": (soak("clusters", "tests/process/cluster"),),
    "operations": (
        soak("operations", "tests/process/applications", "tests/process/operations"),
        soak("worst-input", "tests/process/security"),
    ),
    "spark-cluster": (soak("spark-cluster", "tests/spark/cluster", without=(SERVICE,)),),
    "spark-service": (soak("spark-service", SERVICE),),
    "spark": (soak("spark", "tests/spark", without=("tests/spark/cluster",)),),
    "clustered-suites": (cluster_of_two("conformance"), cluster_of_two("interop")),
    "fuzz": (Chore("fuzz", (sys.executable, "tools/fuzz.py", "--seconds", FUZZ_SECONDS)),),
}


def record(part: str, took_s: float, failed: list[str]) -> None:
    commit = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    line = {"commit": commit, "part": part, "seconds": round(took_s), "failed": failed}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def run_part(part: str) -> list[str]:
    print(f"part {part}", flush=True)
    began = time.monotonic()
    runs = PARTS[part]
    failed = carry_out(runs, len(runs))
    record(part, time.monotonic() - began, failed)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="only the names of the parts")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    options = parser.parse_args()
    if options.list:
        print("\n".join(PARTS))
        return 0
    failed = [name for part in options.parts or PARTS for name in run_part(part)]
    results = RESULTS.relative_to(ROOT)
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed", f"({results})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
