"""Settings that every suite shares, and the broker of the suites that talk over a socket.

By default those start a Rhizome process. With --against 4.3 (or 3.10) they start that RabbitMQ
(tools/rabbitmq.py), which is how the same tests are shown to hold there; with
RHIZOME_TEST_AMQP=amqp://user:password@host:port/ they use the broker that is there (and its HTTP
API at RHIZOME_TEST_HTTP, port 15672 by default). Tests of what only Rhizome does carry the marker
`rhizome_only` and are left out then. Where a version of RabbitMQ does something else a test says so
with the marker `differs`, and must fail there; docs/compatibility.md is made of those. With
RHIZOME_TEST_CLUSTER=SEED they start a cluster of three primaries and a secondary, and each
connection goes to a broker by chance; tests with the marker `lone_only` are left out.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import engine

from rhizome.testing.broker_process import Broker, BrokerProcess
from rhizome.testing.cluster_process import ClusterProcess

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))

from rabbitmq import SUITES, rabbitmq_node  # noqa: E402

# No deadline: the machine is shared, and a slow example is not a wrong one.
_EXAMPLES = DirectoryBasedExampleDatabase(ROOT / ".cache" / "hypothesis")
settings.register_profile("default", deadline=None, database=_EXAMPLES)
settings.register_profile("brief", deadline=None, database=_EXAMPLES, max_examples=30)
settings.register_profile("soak", deadline=None, database=_EXAMPLES, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Whoever starts the tests in the background has them ignore Ctrl-C, and all that they start too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A failure that takes minutes to shrink would meet the end of its time and never be shown. It is
# in the database then, and shrinks further in the next run.
engine.MAX_SHRINKING_SECONDS = 60

EXTERNAL_AMQP = os.environ.get("RHIZOME_TEST_AMQP", "")
CLUSTER_SEED = os.environ.get("RHIZOME_TEST_CLUSTER", "")
EXTERNAL_HTTP = os.environ.get("RHIZOME_TEST_HTTP", "")
# The first test of a run waits for the brokers, and a busy machine is slow to start four.
TEST_SECONDS_MAX = 400 if CLUSTER_SEED else 120
LAST_RESORT_SECONDS = 100.0
PROPERTY_SECONDS_MAX = 240
SOCKET_SUITES = ("conformance", "interop")


# Tests of what clients see of a cluster in which nothing happens: a starved machine is no reason to
# elect somebody.
PATIENCE = {
    "RHIZOME_CLUSTER_ROOT_LEASE": "15s",
    "RHIZOME_CLUSTER_HOME_LEASE": "30s",
    "RHIZOME_CLUSTER_LINK_TIMEOUT": "30s",
}


def _patient(name: str, directory: Path) -> BrokerProcess:
    return BrokerProcess(directory, environment=PATIENCE)


class ExternalBroker:
    """A broker that somebody else started, and that tests may not stop."""

    def __init__(self, amqp: str, http: str) -> None:
        parts = urlsplit(amqp)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 5672
        self.user = unquote(parts.username or "guest")
        self.password = unquote(parts.password or "guest")
        self.http_port = urlsplit(http).port or 15672

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/"

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    def restart(self) -> None:
        pytest.skip("the broker is not ours to restart")

    def kill(self) -> None:
        pytest.skip("the broker is not ours to kill")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--against",
        choices=list(SUITES),
        default="",
        help="run tests/conformance and tests/interop against this version of RabbitMQ",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rhizome_only: says what Rhizome does and RabbitMQ does not")
    config.addinivalue_line(
        "markers",
        "differs(version, theirs, ours, why, sometimes=False): that version of RabbitMQ does"
        " something else, and the test must fail there; or may, if it only does so sometimes",
    )
    config.addinivalue_line("markers", "lone_only(reason): holds of one broker, not of a cluster")


class TookTooLong(BaseException):
    """Not a failure that hypothesis may catch: it takes the example that was just running for the
    culprit, runs it again, and reports "inconsistent data generation" when that ends well.
    """


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool | None:
    """The timer of pytest-timeout for properties; None leaves a test to pytest-timeout's own."""
    if item.get_closest_marker("hypothesis") is None or settings.method != "signal":
        return None

    def strike(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"not done after {settings.timeout:g} s")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel
    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The last resort (``faulthandler_timeout``) ends the whole run: it leaves a test the time that
    its marker gives it, whoever runs it and how."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0]) + LAST_RESORT_SECONDS if marker and marker.args else 0.0
    if seconds > float(item.config.getini("faulthandler_timeout") or "inf"):
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(seconds, file=stderr, exit=True)


@pytest.hookimpl(trylast=True)  # when hypothesis has marked what is its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    against = config.getoption("--against")
    for item in items:
        suite = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        is_property = item.get_closest_marker("hypothesis") is not None
        if item.get_closest_marker("timeout") is not None:
            pass
        elif is_property and config.getoption("timeout", None) is None:
            item.add_marker(pytest.mark.timeout(PROPERTY_SECONDS_MAX))
        elif suite in SOCKET_SUITES:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))
        if (EXTERNAL_AMQP or against) and item.get_closest_marker("rhizome_only") is not None:
            item.add_marker(pytest.mark.skip(reason="only Rhizome does this"))
        for marker in item.iter_markers("differs"):
            if marker.args[0] == against:
                strict = not marker.kwargs.get("sometimes", False)
                item.add_marker(pytest.mark.xfail(reason=marker.args[1], strict=strict))
        lone_only = item.get_closest_marker("lone_only")
        if CLUSTER_SEED and lone_only is not None:
            item.add_marker(pytest.mark.skip(reason=lone_only.args[0]))


@pytest.fixture(scope="session")
def broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Broker]:
    """The broker that all tests of a run share. Tests use names of their own in it."""
    against = request.config.getoption("--against")
    if EXTERNAL_AMQP:
        yield ExternalBroker(EXTERNAL_AMQP, EXTERNAL_HTTP)
        return
    if against:
        with rabbitmq_node(against) as node:
            yield ExternalBroker(node.url, node.http_url)
        return
    if CLUSTER_SEED:
        cluster = ClusterProcess(
            tmp_path_factory.mktemp("cluster"), 3, 1, int(CLUSTER_SEED), make=_patient
        )
        cluster.start()
        yield cluster
        assert len(cluster.running()) == 4, f"a broker died during the tests\n{cluster.printed()}"
        assert cluster.stop() == [0] * 4, cluster.printed()
        return
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    process.start()
    yield process
    assert process.is_running(), f"the broker died during the tests\n{process.printed()}"
    assert process.stop() == 0, process.printed()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A Rhizome process of this test's own, to kill and restart as it likes."""
    process = BrokerProcess(tmp_path / "own")
    process.start()
    yield process
    if process.is_running():
        assert process.stop() == 0, process.printed()
    process.close()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names that no other test of any run uses: `unique("orders")`."""
    numbers = itertools.count(1)
    stem = f"{request.function.__name__[:60]}.{os.getpid()}.{os.urandom(3).hex()}"

    def make(word: str) -> str:
        return f"{word}-{next(numbers)}.{stem}"

    return make
