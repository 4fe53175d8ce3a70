"""What is shipped beside the code: example configurations, the systemd unit, the container file."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rhizome.cli.main import app

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
EXAMPLES = sorted((PACKAGING / "examples").glob("*.toml"))
KEY_FILE = "/etc/rhizome/cluster.key"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    path.write_text("k" * 32)
    path.chmod(0o600)
    return path


def check(text: str, directory: Path) -> tuple[int, str]:
    file = directory / "rhizome.toml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["config", "check", str(file)])
    return result.exit_code, result.output


def test_there_is_an_example_of_every_kind() -> None:
    assert {each.stem for each in EXAMPLES} >= {
        "single",
        "three-brokers",
        "two-and-witness",
        "secondary",
        "tls",
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.stem)
def test_examples_pass_the_check(example: Path, key: Path, tmp_path: Path) -> None:
    text = example.read_text().replace(KEY_FILE, str(key))
    code, output = check(text, tmp_path)
    assert code == 0, output


def test_the_witness_of_the_example_passes_too(key: Path, tmp_path: Path) -> None:
    text = (PACKAGING / "examples" / "two-and-witness.toml").read_text().replace(KEY_FILE, str(key))
    witness = text.replace('name = "b1"', 'name = "w"').replace('"primary"', '"witness"')
    assert witness != text
    code, output = check(witness, tmp_path)
    assert code == 0, output


def test_a_wrong_example_would_be_noticed(key: Path, tmp_path: Path) -> None:
    text = EXAMPLES[0].read_text() + "\n[nonsense]\nkey = 1\n"
    assert check(text, tmp_path)[0] == 1


def test_the_unit_starts_what_it_checks_and_can_be_reloaded() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((PACKAGING / "rhizome.service").read_text())
    service = unit["Service"]
    assert service["ExecStart"].endswith("serve --config /etc/rhizome/rhizome.toml")
    assert service["ExecStartPre"].endswith("config check /etc/rhizome/rhizome.toml")
    assert "HUP" in service["ExecReload"]
    assert int(service["LimitNOFILE"]) > 100_000
    assert service["User"] != "root"


def test_the_container_file_copies_what_exists() -> None:
    root = PACKAGING.parent
    for line in (PACKAGING / "Containerfile").read_text().splitlines():
        if line.startswith("COPY packaging"):
            assert (root / line.split()[1]).is_file(), line
