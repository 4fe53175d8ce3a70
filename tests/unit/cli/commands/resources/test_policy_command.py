"""`rhizome policy delete --offline`: in the store of a broker that doesn't run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import Result

from rhizome.broker.metadata.metadata_commands import (
    Command,
    DeclareQueue,
    PutPolicy,
    PutVhost,
    decode,
    encode,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.journal.store import JournalStore

Rhizome = Callable[..., Result]

COMMANDS: tuple[Command, ...] = (
    PutVhost("/"),
    PutVhost("v"),
    DeclareQueue("/", "orders", durable=True),
    PutPolicy("/", "slow", "^(a|a)*!", {"max-length": 1}),
    PutPolicy("/", "slow", "^o", {"max-length": 2}, operator=True),
    PutPolicy("v", "slow", "^(a|a)*!", {"max-length": 3}),
)


class Ignored:
    def durable(self, token: int) -> None:
        pass

    def alarm(self, text: str) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        raise error


@contextmanager
def opened(directory: Path) -> Iterator[JournalStore]:
    store = JournalStore(directory, b"u" * 16, Ignored(), lambda work: None)
    try:
        yield store
    finally:
        store.close()


def policies(directory: Path) -> list[tuple[str, str]]:
    """Kind and vhost of the policies that a broker would find."""
    state = State()
    with opened(directory) as store:
        indexes = [index for index, _ in store.recovered.commands]
        for _, data in store.recovered.commands:
            assert state.apply(decode(data)).error is None
    assert indexes == list(range(1, len(indexes) + 1))
    return [
        (kind, vhost.name)
        for vhost in state.vhosts.values()
        for kind, found in (("", vhost.policies), ("operator", vhost.operator_policies))
        if "slow" in found
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with opened(tmp_path) as store:
        for index, command in enumerate(COMMANDS, start=1):
            store.journal.state(index, encode(command))
    return tmp_path


def test_policy_is_deleted_in_a_store(rhizome: Rhizome, directory: Path) -> None:
    assert policies(directory) == [("", "/"), ("operator", "/"), ("", "v")]
    result = rhizome("policy", "delete", "--offline", str(directory), "slow")
    assert result.exit_code == 0, result.output
    assert policies(directory) == [("operator", "/"), ("", "v")]
    rhizome("policy", "delete", "slow", "--offline", str(directory), "--operator")
    rhizome("policy", "delete", "slow", "--offline", str(directory), "--vhost", "v")
    assert policies(directory) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["other"], "no policy 'other' in vhost '/'"),
        (["other", "--operator"], "no operator policy 'other'"),
        (["slow", "--vhost", "w"], "no vhost 'w'"),
    ],
)
def test_policy_that_is_not_there_is_an_error(
    rhizome: Rhizome, directory: Path, arguments: list[str], told: str
) -> None:
    result = rhizome("policy", "delete", "--offline", str(directory), *arguments)
    assert result.exit_code == 1
    assert told in " ".join(result.output.split())
    assert len(policies(directory)) == 3


def test_store_of_a_running_broker_is_left_alone(rhizome: Rhizome, directory: Path) -> None:
    with opened(directory):
        result = rhizome("policy", "delete", "--offline", str(directory), "slow")
    assert result.exit_code == 1
    assert "is in use by process" in " ".join(result.output.split())
    assert len(policies(directory)) == 3


def test_store_of_a_cluster_is_left_alone(rhizome: Rhizome, directory: Path) -> None:
    (directory / "cluster").mkdir()
    result = rhizome("policy", "delete", "--offline", str(directory), "slow")
    assert result.exit_code == 1
    assert "all brokers must have alike" in " ".join(result.output.split())
    assert len(policies(directory)) == 3


def test_directory_without_a_store_is_refused(rhizome: Rhizome, tmp_path: Path) -> None:
    result = rhizome("policy", "delete", "--offline", str(tmp_path), "slow")
    assert result.exit_code == 1
    assert "is no broker's store" in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []
