"""The same inputs get the same bytes: what replays and simulations rest upon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhizome.broker.metadata.metadata_commands import PutUser
from rhizome.server.broker_bootstrap import first_definitions
from rhizome.server.config.broker_config import Config
from rhizome.server.config.config_sections import SecuritySection, UserDefinition
from tests.fuzz.footprint import footprint, session_of
from tests.fuzz.session import run_session

ROOT = Path(__file__).resolve().parents[3]
SEEDS = range(40)


def footprints(seeds: list[int], **environment: str) -> dict[str, str]:
    """Of a process of their own: seed -> digest."""
    command = [sys.executable, "-m", "tests.fuzz.footprint", *map(str, seeds)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.timeout(240)
def test_same_seed_same_bytes_in_any_process() -> None:
    """Whatever order sets of strings have there, compiled or not, and whatever ran before."""
    once = footprints([*SEEDS], PYTHONHASHSEED="1")
    again = footprints([*reversed(SEEDS)], PYTHONHASHSEED="2", RHIZOME_PURE="1")
    assert len(set(once.values())) == len(SEEDS)
    assert again == once


def test_same_seed_same_bytes_in_one_process() -> None:
    first, *_, last = (footprint(run_session(session_of(seed))) for seed in (7, 8, 9, 7))
    assert first == last


def test_salts_of_a_new_store_come_from_the_seed() -> None:
    config = Config(users={"ann": UserDefinition(password="secret")})
    commands = first_definitions(config, b"seed")
    assert first_definitions(config, b"seed") == commands
    assert first_definitions(config, b"other") != commands


def test_passwords_of_a_new_store_cost_what_is_configured() -> None:
    users = {"ann": UserDefinition(password="secret")}
    config = Config(users=users, security=SecuritySection(password_cost=11))
    hashes = [
        each.password_hash for each in first_definitions(config, b"") if type(each) is PutUser
    ]
    assert [each.split("$")[3] for each in hashes] == ["ln=11,r=8,p=5"]
