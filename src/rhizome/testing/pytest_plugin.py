"""pytest-rhizome: fixtures for tests of applications. pytest finds it by itself (entry point).

    rhizome_broker      a broker process with its store in memory, once per session
    rhizome_vhost       a vhost of that broker for one test, deleted after it
    rhizome_cluster     three brokers with switches for faults; whole again before each test
    rhizome_settings    override it to configure them: "section.key" -> value

It imports nothing of a broker until a test asks for one: pytest loads it in every project that has
rhizomemq installed.
"""

from __future__ import annotations

import itertools
import json
import os
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from rhizome.testing.broker_process import Broker, BrokerProcess
    from rhizome.testing.faulty_cluster import FaultyCluster

HTTP_SECONDS_MAX: Final = 30.0
PRIMARIES: Final = 3

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Vhost:
    """A vhost of a broker, and where applications find it."""

    name: str
    broker: Broker

    @property
    def url(self) -> str:
        """AMQP address of this vhost."""
        return f"{self.broker.url}{quote(self.name, safe='')}"

    @property
    def http_url(self) -> str:
        """Root of the HTTP API, without a slash at the end."""
        return self.broker.http_url

    def request(self, method: str, path: str, document: object = None) -> object:
        """Ask the HTTP API, such as `vhost.request("GET", "queues")` for those of this vhost.

        ``path`` is below /api; after queues, exchanges and bindings stands this vhost's name.
        Raises urllib.error.HTTPError.
        """
        kind, _, rest = path.partition("/")
        place = "/".join([kind, quote(self.name, safe=""), *([rest] if rest else [])])
        return ask(self.broker, method, place, document)


def ask(broker: Broker, method: str, path: str, document: object = None) -> object:
    """One request to a broker's HTTP API; what it answers, None if that is empty."""
    data = None if document is None else json.dumps(document).encode()
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{broker.http_url}/api/{path}", data=data, headers=headers, method=method
    )
    with urllib.request.urlopen(request, timeout=HTTP_SECONDS_MAX) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def environment_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as the environment variables that a broker reads."""
    found = {}
    for key, value in settings.items():
        section, dot, name = key.partition(".")
        if not dot or not section or not name:
            raise pytest.UsageError(f'rhizome_settings: {key!r} is no setting; write "section.key"')
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, list | tuple):
            text = ",".join(map(str, value))
        found[f"RHIZOME_{section}_{name}".upper()] = text
    return found


@pytest.fixture(scope="session")
def rhizome_settings() -> Mapping[str, object]:
    """What the brokers are configured with; override it in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def rhizome_broker(
    tmp_path_factory: pytest.TempPathFactory, rhizome_settings: Mapping[str, object]
) -> Iterator[BrokerProcess]:
    """A broker on free ports of 127.0.0.1, for all tests of the session. It keeps nothing on disk:
    `restart` and `kill` followed by `start` lose all."""
    from rhizome.testing.broker_process import BrokerProcess

    broker = BrokerProcess(
        tmp_path_factory.mktemp("rhizome"),
        arguments=["--memory"],
        environment=environment_of(rhizome_settings),
    )
    with broker:
        yield broker


@pytest.fixture
def rhizome_vhost(rhizome_broker: BrokerProcess) -> Iterator[Vhost]:
    """A vhost that no other test has, with all permissions for the broker's user."""
    if not rhizome_broker.is_running():  # the test before may have killed it
        rhizome_broker.start()
    vhost = Vhost(f"test-{os.getpid()}-{next(_numbers)}", rhizome_broker)
    name = quote(vhost.name, safe="")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    ask(rhizome_broker, "PUT", f"vhosts/{name}")
    ask(rhizome_broker, "PUT", f"permissions/{name}/{rhizome_broker.user}", everything)
    yield vhost
    if rhizome_broker.is_running():
        ask(rhizome_broker, "DELETE", f"vhosts/{name}")


@pytest.fixture(scope="session")
def _rhizome_cluster(
    tmp_path_factory: pytest.TempPathFactory, rhizome_settings: Mapping[str, object]
) -> Iterator[FaultyCluster]:
    from rhizome.testing.faulty_cluster import FaultyCluster

    directory = tmp_path_factory.mktemp("rhizome-cluster")
    environment = environment_of(rhizome_settings)
    with FaultyCluster(directory, PRIMARIES, environment=environment) as cluster:
        yield cluster


@pytest.fixture
def rhizome_cluster(_rhizome_cluster: FaultyCluster) -> FaultyCluster:
    """Brokers b1, b2 and b3 with their stores on disk, linked and without faults. What tests
    declare stays: use names of your own, or a vhost."""
    if not _rhizome_cluster.is_whole():
        _rhizome_cluster.make_whole()
    return _rhizome_cluster
