"""Patterns that are slow on purpose don't hold a broker up, and none that is stored keeps one from
starting."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest

from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareQueue,
    PutPolicy,
    PutVhost,
    encode,
)
from rhizome.client import connect
from rhizome.journal.store import JournalStore
from rhizome.testing.broker_process import BrokerProcess
from tests.process.helpers import run

pytestmark = [pytest.mark.rhizome_only, pytest.mark.timeout(180)]

KEY: Final = "the-key-of-this-cluster-and-of-no-other"
ANSWER_SECONDS_MAX: Final = 60
"""A matcher that backtracks needs hours for these patterns, so this only ends a test that fails."""
EVIL: Final = ("^(a|a)*!", "^(.|.)*!", "(a|aa)+$", "(a*)*b", "(.*a){25}", "(?:x{1000}){1000}")
CONFIGURATION: Final = """
[broker]
name = "b1"
[cluster]
key = "{key}"
primaries = ["b1=127.0.0.1:{port}"]
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Of a cluster: its log has a command before it is applied."""
    file = tmp_path / "rhizome.toml"
    process = BrokerProcess(tmp_path, arguments=["--config", str(file)])
    file.write_text(CONFIGURATION.format(key=KEY, port=process.port))
    with process:
        yield process
        assert process.is_running(), process.printed()


def status_of(broker: BrokerProcess, method: str, target: str, body: object = None) -> int:
    connection = HTTPConnection(broker.host, broker.http_port, timeout=ANSWER_SECONDS_MAX)
    login = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
    connection.request(method, target, None if body is None else json.dumps(body), login)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_policies_that_are_slow_on_purpose_are_set_and_survive_a_restart(
    broker: BrokerProcess,
) -> None:
    assert status_of(broker, "PUT", f"/api/queues/%2F/{'a' * 40}", {"durable": True}) == 201
    for number, pattern in enumerate(EVIL):
        body = {"pattern": pattern, "definition": {"max-length": 1}}
        # One is refused for its size; all are answered.
        status = status_of(broker, "PUT", f"/api/policies/%2F/slow{number}", body)
        assert status == (400 if "1000" in pattern else 201)
    broker.kill()
    broker.start()
    assert status_of(broker, "GET", "/api/policies/%2F/slow0") == 200
    assert status_of(broker, "PUT", f"/api/queues/%2F/{'a' * 255}", {"durable": True}) == 201


def test_lists_are_filtered_by_patterns_that_are_slow_on_purpose(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with connect(broker.url):
            for pattern in ("%5E(.%7C.)*!", "(a*)*b", "(.*%20){25}", "%5E(%5Cd%7C%5Cd)*!"):
                target = f"/api/connections?name={pattern}&use_regex=true"
                assert status_of(broker, "GET", target) == 200

    run(scenario(), 4 * ANSWER_SECONDS_MAX)
    assert status_of(broker, "GET", "/api/connections?name=(a)%5C1&use_regex=true") == 400


class Silence:
    def durable(self, token: int) -> None:
        pass

    def alarm(self, text: str) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        raise error


def store_with(directory: Path, commands: list[Command]) -> None:
    """A lone broker's store that has these commands, as an earlier release has taken them."""
    store = JournalStore(directory, bytes(16), Silence(), lambda work: None)
    for index, command in enumerate(commands, start=1):
        store.journal.state(index, encode(command))
    store.close()


def test_store_with_bad_patterns_starts_and_names_them(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path)
    setting: dict[str, object] = {"max-length": 1}
    store_with(
        process.data,
        [
            PutVhost("/"),
            DeclareQueue("/", "a" * 40, durable=True),
            PutPolicy("/", "slow", "^(a|a)*!", setting),
            PutPolicy("/", "twice", "^(a+)\\1!", setting),
        ],
    )
    with process:
        printed = process.printed()
    assert "policy 'twice' in vhost '/'" in printed
    assert "refers back" in printed
    assert "'slow'" not in printed
