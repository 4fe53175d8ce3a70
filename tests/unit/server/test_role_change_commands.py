"""Hooks: told once each, in order, within a time limit, and the last state wins."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rhizome.server.role_change_commands import HOME, ROOT, Hooks, Role, roles_of

SCRIPT = """
import sys, time, pathlib
with open(sys.argv[1], "a") as file:
    file.write(" ".join(sys.argv[2:]) + "\\n")
hold = pathlib.Path(sys.argv[1] + ".hold")
while hold.exists():
    time.sleep(0.01)
print("said")
sys.exit(pathlib.Path(sys.argv[1] + ".fail").exists())
"""


@dataclass
class Settings:
    promoted: str
    demoted: str
    timeout_ms: int = 60_000


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "told.txt"


@pytest.fixture
def hooks(tmp_path: Path, told: Path) -> Hooks:
    script = tmp_path / "hook script.py"
    script.write_text(SCRIPT)
    command = f"'{sys.executable}' '{script}' '{told}'"
    return Hooks(Settings(command, command), "b1")


def lines(told: Path) -> list[str]:
    return told.read_text().splitlines() if told.exists() else []


async def until(told: Path, count: int) -> None:
    async with asyncio.timeout(50):
        while len(lines(told)) < count:
            await asyncio.sleep(0.01)


def test_promotions_and_demotions_are_told(hooks: Hooks, told: Path) -> None:
    async def scenario() -> None:
        hooks.observe({Role(ROOT): 4})
        await until(told, 1)
        hooks.observe({Role(ROOT): 4})
        hooks.observe({Role(ROOT): 4, Role(HOME, "2"): 7})
        await until(told, 2)
        await hooks.close()

    asyncio.run(scenario())
    assert lines(told) == [
        "promoted root - 4 b1",
        "promoted home 2 7 b1",
        "demoted root - 4 b1",
        "demoted home 2 7 b1",
    ]


def test_a_role_that_comes_and_goes_meanwhile_is_told_in_its_last_state(
    hooks: Hooks, told: Path
) -> None:
    hold = Path(f"{told}.hold")

    async def scenario() -> None:
        hold.touch()
        hooks.observe({Role(ROOT): 1})
        await until(told, 1)
        hooks.observe({})
        hooks.observe({Role(ROOT): 3, Role(HOME, "1"): 1})
        hooks.observe({Role(ROOT): 3})
        hold.unlink()
        await until(told, 2)
        await hooks.close()

    asyncio.run(scenario())
    assert lines(told) == ["promoted root - 1 b1", "promoted root - 3 b1", "demoted root - 3 b1"]


def test_a_command_that_hangs_is_killed(
    hooks: Hooks, told: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(f"{told}.hold").touch()
    assert isinstance(hooks.settings, Settings)
    hooks.settings.timeout_ms = 300
    hooks.settings.demoted = ""

    async def scenario() -> None:
        hooks.observe({Role(ROOT): 1})
        await asyncio.sleep(0)  # the command is begun
        await hooks.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert "was killed: not done after 300 ms" in caplog.text


@pytest.mark.parametrize("command", ["/nonexistent/hook", ""])
def test_a_command_that_is_missing_does_no_harm(
    command: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks(Settings(command, command), "b1")

    async def scenario() -> None:
        hooks.observe({Role(ROOT): 1})
        await asyncio.sleep(0)  # the command is begun
        await hooks.close()

    asyncio.run(scenario())
    assert ("can't be run" in caplog.text) == bool(command)


def test_what_a_failing_command_says_is_logged(
    hooks: Hooks, told: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(f"{told}.fail").touch()

    async def scenario() -> None:
        hooks.observe({Role(ROOT): 1})
        await asyncio.sleep(0)  # the command is begun
        await hooks.close()

    asyncio.run(scenario())
    assert "failed with 1: said" in caplog.text


def test_a_lone_broker_is_root() -> None:
    assert roles_of(None) == {Role(ROOT): 1}
