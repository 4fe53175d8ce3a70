"""pytest-rhizome, as a project uses it that has rhizomemq installed: its own pytest runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rhizome.testing.pytest_plugin import environment_of
from tests.document_blocks import ROOT, blocks

SECONDS_MAX = 400.0

pytestmark = pytest.mark.timeout(SECONDS_MAX + 60)


def run_pytest(directory: Path, text: str, *options: str, passes: bool = True) -> str:
    """Run a test file in a directory of its own; what pytest printed."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    printed = done.stdout + done.stderr
    assert (done.returncode == 0) is passes, printed
    return printed


BROKER = """
import pika
import pytest

seen = []

def say(url, queue):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    count = channel.queue_declare(queue, durable=True).method.message_count
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"hello")
    connection.close()
    return count

@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_a_vhost_of_its_own(rhizome_broker, rhizome_vhost, number):
    assert say(rhizome_vhost.url, "orders") == 0
    assert [each["name"] for each in rhizome_vhost.request("GET", "queues")] == ["orders"]
    seen.append((rhizome_broker.pid, rhizome_vhost.name))

def test_the_broker_is_the_same_and_the_vhosts_are_gone(rhizome_broker, rhizome_vhost):
    pids = {pid for pid, _ in seen} | {rhizome_broker.pid}
    assert len(pids) == 1
    from rhizome.testing.pytest_plugin import ask
    names = {each["name"] for each in ask(rhizome_broker, "GET", "vhosts")}
    assert names == {"/", rhizome_vhost.name}

def test_that_kills_the_broker(rhizome_broker):
    rhizome_broker.kill()

def test_after_it_has_a_new_one(rhizome_vhost):
    assert say(rhizome_vhost.url, "orders") == 0

def test_settings_are_those_of_conftest(rhizome_broker):
    with pytest.raises(Exception, match="530|NOT_ALLOWED|limit"):
        connections = [
            pika.BlockingConnection(pika.URLParameters(rhizome_broker.url)) for _ in range(4)
        ]
"""


def test_broker_and_vhosts(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture(scope='session')\ndef rhizome_settings():\n"
        "    return {'limits.connections_max': 3}\n"
    )
    printed = run_pytest(tmp_path, BROKER)
    assert "6 passed" in printed


def test_settings_become_the_variables_that_a_broker_reads() -> None:
    given = {"broker.memory": True, "listen.amqp": [":1", ":2"], "limits.queues_max": 3}
    assert environment_of(given) == {
        "RHIZOME_BROKER_MEMORY": "true",
        "RHIZOME_LISTEN_AMQP": ":1,:2",
        "RHIZOME_LIMITS_QUEUES_MAX": "3",
    }


def test_a_setting_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture(scope='session')\ndef rhizome_settings():\n"
        "    return {'connections': 3}\n"
    )
    printed = run_pytest(tmp_path, "def test_it(rhizome_broker): pass\n", passes=False)
    assert "is no setting" in printed


CLUSTER = """
from rhizome.client.blocking import Connection
from rhizome.errors import NotFound
from rhizome.testing.broker_process import wait_until

def publish(cluster, at, body):
    with Connection(cluster.brokers[at].url) as connection:
        channel = connection.channel(confirms=True)
        channel.declare_queue("orders", durable=True, arguments={"x-group": "b1"})
        cluster.wait_for_copies()
        channel.publish(body, routing_key="orders", mandatory=True)

def take(cluster, at):
    with Connection(cluster.brokers[at].url) as connection:
        try:
            message = connection.channel().get("orders", no_ack=True)
        except NotFound:  # while its home is down and nobody has taken over
            return None
    return bytes(message.body)

def test_a_killed_home_loses_nothing(rhizome_cluster):
    publish(rhizome_cluster, "b1", b"one")
    rhizome_cluster.kill_broker("b1")
    assert wait_until(lambda: take(rhizome_cluster, "b2"), "a takeover") == b"one"

def test_the_cluster_is_whole_again(rhizome_cluster):
    assert rhizome_cluster.names() == ["b1", "b2", "b3"]
    root = rhizome_cluster.wait_for_root()
    rest = [each for each in rhizome_cluster.names() if each != root]
    rhizome_cluster.cut_off(root)
    assert rhizome_cluster.wait_for_root_among(rest, but=root)[0] in rest
    rhizome_cluster.wait_for_status(root, "isolated")
    rhizome_cluster.heal()
    rhizome_cluster.wait_until_whole()

def test_a_paused_broker_is_missed(rhizome_cluster):
    root = rhizome_cluster.wait_for_root()
    rhizome_cluster.pause(root)
    assert rhizome_cluster.wait_for_root(but=root) != root

def test_a_broker_that_is_none(rhizome_cluster):
    import pytest
    with pytest.raises(ValueError, match="there are b1, b2, b3"):
        rhizome_cluster.cut_off("b9")
"""


def test_cluster_with_faults(tmp_path: Path) -> None:
    assert "4 passed" in run_pytest(tmp_path, CLUSTER)


PAGE = ROOT / "docs" / "testing-your-code.md"
BLOCKS = [block.text for block in blocks(PAGE) if block.language == "python"]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_page_runs_as_written(tmp_path: Path, number: int) -> None:
    printed = run_pytest(tmp_path, BLOCKS[number])
    assert f"{BLOCKS[number].count('def test_')} passed" in printed


def test_without_its_fixtures_it_costs_nothing(tmp_path: Path) -> None:
    """pytest loads the plugin in every project: it must not load a broker there."""
    text = (
        "import sys\n\n\ndef test_it():\n"
        "    assert 'rhizome.testing.pytest_plugin' in sys.modules\n"
        "    for name in ('rhizome.server', 'rhizome.broker', 'asyncio', 'uvloop'):\n"
        "        assert name not in sys.modules, name\n"
    )
    options = ["-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:schemathesis"]
    run_pytest(tmp_path, text, *options)


def test_a_broker_starts_quickly(tmp_path: Path) -> None:
    """Printed, not asserted: how fast depends on the machine."""
    text = "def test_it(rhizome_broker): pass\n"
    began = time.monotonic()
    printed = run_pytest(tmp_path, text, "--durations=3", "-vv")
    shown = [line for line in printed.splitlines() if "setup" in line or "teardown" in line]
    print(f"\n{time.monotonic() - began:.2f} s in all", *shown, sep="\n")
