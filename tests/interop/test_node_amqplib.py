"""amqplib under node: the tests are in node/."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rhizome.testing.broker_process import Broker
from tests.nodejs import INSTALL_SECONDS_MAX, WHY_NOT, node_modules

HERE = Path(__file__).parent / "node"
RUN_SECONDS_MAX = 120

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.timeout(INSTALL_SECONDS_MAX + RUN_SECONDS_MAX + 10),
]


@pytest.fixture(scope="module")
def modules() -> Path:
    try:
        return node_modules()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"npm could not install amqplib: {error.stderr.decode()[-300:]}")


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
