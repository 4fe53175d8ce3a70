"""`rhizome config`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rhizome.cli.commands.config_command import app

BAD = "[limits]\nheartbeat = 60\nfram_max = '1MiB'\n"


@pytest.fixture
def bad_file(tmp_path: Path) -> Path:
    file = tmp_path / "bad.toml"
    file.write_text(BAD)
    return file


def run(*arguments: str, **environ: str) -> tuple[int, str]:
    result = CliRunner(env=environ).invoke(app, list(arguments))
    return result.exit_code, result.output


def test_good_file_is_ok(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text("[broker]\nname = 'b1'\n")
    assert run("check", str(file)) == (0, f"{file}: ok\n")
    code, output = run("check", str(file), "--json")
    assert code == 0
    assert json.loads(output) == {"file": str(file), "ok": True, "problems": []}


def test_bad_file_exits_with_1_and_all_its_problems(bad_file: Path) -> None:
    code, output = run("check", str(bad_file))
    assert code == 1
    assert f"{bad_file}: limits.heartbeat: 60 has no unit" in output
    assert f"{bad_file}: limits.fram_max: unknown key" in output
    assert "2 problems" in output


def test_problems_come_as_json_on_request(bad_file: Path) -> None:
    code, output = run("check", str(bad_file), "--json")
    assert code == 1
    found = json.loads(output)
    assert found["ok"] is False
    assert {problem["key"] for problem in found["problems"]} == {
        "limits.heartbeat",
        "limits.fram_max",
    }


def test_show_prints_what_is_in_effect(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text("[broker]\nname = 'b1'\n")
    code, output = run("show", "--config", str(file), RHIZOME_LIMITS_CHANNEL_MAX="9")
    assert code == 0
    shown = tomllib.loads(output)
    assert shown["broker"]["name"] == "b1"
    assert shown["limits"]["channel_max"] == 9


def test_show_of_a_bad_file_exits_with_1(bad_file: Path) -> None:
    code, output = run("show", "--config", str(bad_file))
    assert code == 1
    assert "limits.heartbeat" in output


def test_show_default_prints_a_file_that_passes_the_check(tmp_path: Path) -> None:
    code, output = run("show", "--default")
    assert code == 0
    file = tmp_path / "example.toml"
    file.write_text(output)
    assert run("check", str(file))[0] == 0
