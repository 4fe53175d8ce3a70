"""Where amqplib for node is: pinned in interop/node, installed once into .cache/."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

PINS: Final = Path(__file__).parent / "interop" / "node" / "package.json"
CACHE: Final = Path(__file__).parents[1] / ".cache" / "interop-node"
INSTALL_SECONDS_MAX: Final = 120
WHY_NOT: Final = "" if shutil.which("npm") else "node and npm are not installed"


def node_modules() -> Path:
    """node_modules with the pinned amqplib; installed when the pins have changed. Not from within a
    namespace, where there is no way out."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Suites that run at the same time want the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed()


def _installed() -> Path:
    wanted = PINS.read_text()
    installed = CACHE / "package.json"
    done = CACHE / "node_modules" / ".done"
    if not (done.exists() and installed.read_text() == wanted):
        installed.write_text(wanted)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(
            command, cwd=CACHE, capture_output=True, timeout=INSTALL_SECONDS_MAX, check=True
        )
        done.touch()
    return CACHE / "node_modules"
