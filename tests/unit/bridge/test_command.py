"""What is wrong with a command line is told before anything is connected."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rhizome.bridge import InvalidBridge
from rhizome.cli.commands.messages.bridge_command import app
from rhizome.cli.errors import CliError

ENDS = ("--from", "amqp://127.0.0.1:1/", "--to", "amqp://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ([*ENDS], CliError, "give --queue or --exchange"),
        (["--queue", "q"], InvalidBridge, "cluster to bridge from"),
        ([*ENDS, "--queue", "q", "--exchange", "e"], InvalidBridge, "either a queue or"),
        ([*ENDS, "--queue", "q", "--key", "k"], InvalidBridge, "keys bind to an exchange"),
        ([*ENDS, "--exchange", "e", "--argument", "x"], CliError, "KEY=VALUE"),
        ([*ENDS, "--config", "f"], CliError, "--config excludes"),
        (["--config", "/nonexistent"], FileNotFoundError, "/nonexistent"),
        (["--parameters", *ENDS], CliError, "--parameters excludes --from"),
        (["--parameters", "--queue", "q"], CliError, "--parameters excludes --from"),
        (["--parameters", "--config", "f"], CliError, "--parameters excludes --config"),
        (["--parameters", "--own", "amqp://b1"], CliError, "amqp://user:password@"),
        (["--parameters", "--own", "u:s3cret@b1"], CliError, "amqp://user:password@"),
    ],
)
def test_a_wrong_command_line_is_told(
    arguments: list[str], kind: type[Exception], said: str
) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, kind)
    assert said in str(result.exception)
    assert "s3cret" not in str(result.exception)


def test_a_wrong_word_for_what_is_refused_names_the_right_ones() -> None:
    result = CliRunner().invoke(app, [*ENDS, "--queue", "q", "--refused", "burn"])
    assert result.exit_code == 2
    assert "dead-letter" in result.output
