"""amqplib under node: the tests are in node/, pinned and installed once into .cache/."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rhizome.testing.processes import Broker

HERE = Path(__file__).parent / "node"
CACHE = Path(__file__).parents[2] / ".cache" / "interop-node"
INSTALL_SECONDS_MAX = 120
RUN_SECONDS_MAX = 60

pytestmark = [
    pytest.mark.skipif(shutil.which("npm") is None, reason="node and npm are not installed"),
    pytest.mark.timeout(INSTALL_SECONDS_MAX + RUN_SECONDS_MAX + 10),
]


@pytest.fixture(scope="module")
def modules() -> Path:
    """node_modules with the pinned amqplib; installed when the pins have changed."""
    wanted = (HERE / "package.json").read_text()
    installed = CACHE / "package.json"
    done = CACHE / "node_modules" / ".done"
    if not (done.exists() and installed.read_text() == wanted):
        CACHE.mkdir(parents=True, exist_ok=True)
        installed.write_text(wanted)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        result = subprocess.run(
            command, cwd=CACHE, capture_output=True, timeout=INSTALL_SECONDS_MAX, check=False
        )
        if result.returncode != 0:
            pytest.skip(f"npm could not install amqplib: {result.stderr.decode()[-300:]}")
        done.touch()
    return CACHE / "node_modules"


def test_amqplib_publishes_consumes_confirms_and_reports_errors(
    broker: Broker, modules: Path
) -> None:
    environment = {**os.environ, "NODE_PATH": str(modules), "AMQP_URL": broker.url.rstrip("/")}
    result = subprocess.run(
        ["node", "--test", "--test-reporter=tap", str(HERE / "amqplib.test.js")],
        env=environment,
        capture_output=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    report = result.stdout.decode() + result.stderr.decode()
    assert result.returncode == 0, report
    assert "\n# pass 13\n" in report, report
