"""The command itself: how it starts, and how it says that something is wrong."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import Result

from rhizome.build_info import describe
from rhizome.cli.errors import describe_failure
from rhizome.cli.main import COMMANDS, _load
from rhizome.client.errors import ConnectFailed

Rhizome = Callable[..., Result]

WITHOUT_JSON = {
    "edge": "runs until it is stopped",
    "pipeline run": "runs until it is stopped",
    "pipeline script": "its commands do",
    "serve": "runs until it is stopped",
    "up": "runs until it is stopped",
}


def test_version_is_that_of_the_build(rhizome: Rhizome) -> None:
    result = rhizome("--version")
    assert (result.exit_code, result.stdout) == (0, describe() + "\n")


def test_help_lists_every_command(rhizome: Rhizome) -> None:
    result = rhizome("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert command in result.stdout


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_a_help_of_its_own(rhizome: Rhizome, command: str) -> None:
    result = rhizome(command, "--help")
    assert result.exit_code == 0
    assert f"rhizome {command}" in result.stdout
    assert "--install-completion" not in result.stdout


def all_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inside = getattr(command, "commands", None)
    if inside is None:
        yield name, command
        return
    for each, sub in inside.items():
        yield from all_commands(sub, f"{name} {each}")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_speaks_json(name: str) -> None:
    for path, command in all_commands(_load(name), name):
        options = [option for parameter in command.params for option in parameter.opts]
        assert ("--json" in options) != (path in WITHOUT_JSON), path


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_what_an_option_is_by_default_may_be_given(name: str) -> None:
    for path, command in all_commands(_load(name), name):
        for parameter in command.params:
            least, default = getattr(parameter.type, "min", None), parameter.default
            if least is not None and isinstance(default, int | float):
                assert default >= least, (path, parameter.name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quueue"], "no such command 'quueue', did you mean 'queue'?"),
        (["drain", "b2"], "no such command 'drain', did you mean 'broker drain'?"),
        (["declare", "q"], "did you mean 'queue declare' or 'exchange declare'?"),
        (["list"], "no such command 'list'; see rhizome --help"),
        (["queue", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["tx", "show"], "No such command 'show'; there are list; see rhizome tx --help"),
        (["queue", "list", "--bogus"], "No such option: --bogus"),
        (["browse"], "Missing argument 'QUEUE'"),
        (["browse", "q", "--count", "0"], "--count"),
        (["consume", "q", "--format", "xml"], "--format"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    rhizome: Rhizome, arguments: list[str], said: str
) -> None:
    result = rhizome(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert "--help" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_family_without_a_command_shows_its_help(rhizome: Rhizome) -> None:
    result = rhizome("queue")
    assert result.exit_code == 2
    assert "purge" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish", "--uri", "amqp://127.0.0.1:1/", "--body", "x"], "127.0.0.1:1"),
        (["publish", "--file", "/nonexistent/file"], "/nonexistent/file: No such file"),
        (["consume", "q", "--uri", "amqp://127.0.0.1:1/"], "127.0.0.1:1"),
        (["status", "--http", "127.0.0.1:1"], "no HTTP API at 127.0.0.1:1; start a broker"),
        (["journal", "inspect", "/nonexistent"], "is no directory"),
        (["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["serve", "--log-level", "loud"], "log.level"),
    ],
)
def test_a_failure_is_one_line_and_exit_code_1(
    rhizome: Rhizome, arguments: list[str], said: str
) -> None:
    _fails_with(rhizome(*arguments), 1, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish", "--uri", "nonsense", "--body", "x"], "must begin with amqp://"),
        (["publish", "--body", "x", "--file", "y"], "exclude each other"),
        (["publish", "--body", "x", "--header", "novalue"], "KEY=VALUE"),
        (["publish", "--body", "x", "--header", "n:=[1"], "no JSON"),
        (["status", "--http", "host:port"], "the port must be a number"),
        (["status", "--http", "ftp://host"], "give it as HOST:PORT"),
        (["policy", "set", "p", "^a", "notjson"], "give a JSON object"),
        (["parameter", "set", "c", "n", "text"], "give JSON"),
        (["bench", "--publishers", "0", "--consumers", "0"], "nothing to do"),
        (["bench", "--size", "1XiB"], "--size 1XiB"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(
    rhizome: Rhizome, arguments: list[str], said: str
) -> None:
    _fails_with(rhizome(*arguments), 2, said)


def _fails_with(result: Result, code: int, said: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_starting_imports_neither_the_client_nor_the_display() -> None:
    script = (
        "import sys, rhizome.cli.main, rhizome.cli.commands.serve_command;"
        "heavy = {'rhizome.client', 'rhizome.server', 'rich', 'asyncio', 'http.client'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[]\n"


def test_a_lone_broker_loads_nothing_of_a_cluster_but_its_settings() -> None:
    script = (
        "import sys, rhizome.server.broker_server, rhizome.management.asgi_application;"
        "print([name for name in sys.modules if name.startswith('rhizome.cluster.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "['rhizome.cluster.takeover', 'rhizome.cluster.takeover.settings']\n"


def test_an_untrusted_certificate_is_told_as_such() -> None:
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed")
    told = describe_failure(ConnectFailed([("b1:5671", untrusted)]))
    assert told.endswith("like amqps://host/?cacertfile=ca.pem")
    assert "start a broker" not in told
    refused = ConnectionRefusedError(111, "connection refused")
    assert "start a broker" in describe_failure(ConnectFailed([("b1:5672", refused)]))
