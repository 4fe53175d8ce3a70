"""What every benchmark of a cluster does with its figures."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def verdict(what: str, value: float, met: bool, target: float) -> None:
    print(f"{'pass' if met else 'FAIL'}  {what} {value:.3g} (target {target:.3g})")


def remember(figures: dict[str, Any]) -> None:
    """Add a line to history.jsonl."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE,
    ).stdout.strip()
    line = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, **figures}
    with (HERE / "history.jsonl").open("a") as history:
        history.write(json.dumps(line) + "\n")
