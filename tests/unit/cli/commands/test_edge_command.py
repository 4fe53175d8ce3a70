"""`rhizome edge`: what it makes of its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rhizome.cli.commands import edge_command
from rhizome.cli.main import app
from rhizome.server import broker_server
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import check_broker_name

CONFIG = """
[cluster]
key_file = "{key}"
primaries = ["b1=10.0.0.1:5672"]
"""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    path.write_text("the key of a cluster in a test")
    path.chmod(0o600)
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations of the brokers that would have been run."""
    found: list[Config] = []

    def run(config: Config, read_again: object) -> int:
        found.append(config)
        return 0

    monkeypatch.setattr(broker_server, "run", run)
    return found


def run_edge(*options: str) -> Result:
    return CliRunner().invoke(app, ["edge", *options])


def test_it_keeps_nothing_listens_at_home_and_has_no_http(key: Path, started: list[Config]) -> None:
    options = ["--cluster", "b1=10.0.0.1:5672,b2=10.0.0.2:5672", "--cluster-key-file", str(key)]
    assert run_edge(*options).exit_code == 0
    (config,) = started
    assert config.broker.memory
    assert [str(each) for each in config.listen.amqp] == ["127.0.0.1:5672"]
    assert (config.listen.http, config.listen.https, config.listen.tls) == ((), (), ())
    assert (config.cluster.role, config.cluster.edge) == ("secondary", True)
    assert config.cluster.primary_names == ("b1", "b2")


@pytest.mark.parametrize(
    ("primaries", "is_away"),
    [
        ("b1=10.0.0.1:5672", True),
        ("b1=b1.example:5672,b2=127.0.0.1:5673", True),
        ("b1=127.0.0.1:5672,b2=localhost:5673,b3=[::1]:5674", False),
    ],
)
def test_loopback_users_are_for_the_machine_of_the_brokers(
    key: Path, started: list[Config], primaries: str, is_away: bool
) -> None:
    options = ["--cluster", primaries, "--cluster-key-file", str(key)]
    assert run_edge(*options).exit_code == 0
    assert started[0].login_settings().is_away == is_away


def test_a_file_may_say_the_rest(key: Path, tmp_path: Path, started: list[Config]) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(CONFIG.format(key=key))
    assert (
        run_edge("--config", str(file), "--listen", "127.0.0.1:5680", "--name", "app-7").exit_code
        == 0
    )
    (config,) = started
    assert config.broker.name == "app-7"
    assert config.cluster.primary_names == ("b1",)


def test_without_addresses_or_a_key_it_says_what_is_missing(
    key: Path, started: list[Config]
) -> None:
    without = run_edge("--cluster-key-file", str(key))
    assert without.exit_code != 0
    assert "cluster.primaries" in without.output
    without = run_edge("--cluster", "b1=10.0.0.1:5672")
    assert without.exit_code != 0
    assert "key_file" in without.output
    assert run_edge("--cluster", "10.0.0.1", "--cluster-key-file", str(key)).exit_code != 0
    assert started == []


@pytest.mark.parametrize("host", ["web-1", "web_1.example.org", "a" * 80, "ünï"])
def test_names_are_names_of_brokers_and_differ_by_port(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_command.socket, "gethostname", lambda: host)
    one, other = (edge_command.default_name(f"127.0.0.1:{port}") for port in (5672, 5673))
    assert one != other
    for name in (one, other):
        check_broker_name(name)
