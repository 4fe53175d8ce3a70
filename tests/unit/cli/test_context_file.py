"""Contexts: what is remembered, where, and that nobody else can read it."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Rhizome = Callable[..., Result]


def file() -> Path:
    return Path(os.environ["RHIZOME_CONTEXTS"])


def logins(api: Any) -> list[str]:
    found = [each.headers["Authorization"].removeprefix("Basic ") for each in api.requests]
    return [base64.b64decode(each).decode() for each in found]


@pytest.fixture
def lists(api: Any) -> Any:
    api.answer("GET /api/queues", [])
    return api


def add(rhizome: Rhizome, name: str, address: str, user: str = "ops") -> None:
    result = rhizome("context", "add", name, "--http", address, "--user", user, input="s3 cret\n")
    assert result.exit_code == 0, result.output


def test_commands_talk_to_the_current_context_as_its_user(rhizome: Rhizome, lists: Any) -> None:
    add(rhizome, "prod", lists.address)
    assert rhizome("queue", "list").exit_code == 0
    assert logins(lists) == ["ops:s3 cret"]


def test_a_named_context_counts_more_than_the_current_one_and_variables(
    rhizome: Rhizome, lists: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(rhizome, "gone", "127.0.0.1:1")
    add(rhizome, "prod", lists.address)
    monkeypatch.setenv("RHIZOME_HTTP", "127.0.0.1:1")
    assert rhizome("--context", "prod", "queue", "list").exit_code == 0
    assert logins(lists) == ["ops:s3 cret"]


def test_variables_count_more_than_the_current_context(
    rhizome: Rhizome, lists: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(rhizome, "gone", "127.0.0.1:1")
    monkeypatch.setenv("RHIZOME_HTTP", lists.address)
    assert rhizome("queue", "list").exit_code == 0


def test_the_password_of_a_context_is_not_sent_to_other_addresses(
    rhizome: Rhizome, lists: Any
) -> None:
    result = rhizome(
        *("context", "add", "prod", "--http", "127.0.0.1:1", "--uri", "amqp://ops:secret@b1/v"),
    )
    assert result.exit_code == 0, result.output
    assert rhizome("queue", "list", "--http", lists.address).exit_code == 0
    assert logins(lists) == ["guest:guest"]


def test_only_the_owner_can_read_the_file(rhizome: Rhizome) -> None:
    add(rhizome, "prod", "b1:15672")
    assert stat.S_IMODE(file().stat().st_mode) == 0o600
    assert stat.S_IMODE(file().parent.stat().st_mode) & 0o077 == 0
    file().chmod(0o644)
    result = rhizome("queue", "list")
    assert result.exit_code == 1
    assert "chmod 600" in result.stderr


def test_lists_show_no_passwords(rhizome: Rhizome) -> None:
    add(rhizome, "prod", "b1:15672")
    rhizome("context", "add", "test", "--http", "http://me:hidden@b2:15672")
    shown = rhizome("context", "list").stdout + rhizome("context", "list", "--json").stdout
    assert "s3 cret" not in shown
    assert "hidden" not in shown
    rows = json.loads(rhizome("context", "list", "--json").stdout)
    assert [(row["name"], row["current"], row["user"]) for row in rows] == [
        ("prod", True, "ops"),
        ("test", False, "me"),
    ]


def test_lists_show_no_token_of_a_cluster(rhizome: Rhizome) -> None:
    uri = "amqp://b1:5672/?heartbeat=5&cluster_token=s3cret&name=me"
    assert rhizome("context", "add", "prod", "--http", "b1:1", "--uri", uri).exit_code == 0
    for more in ((), ("--json",)):
        said = rhizome("context", "list", *more).stdout
        assert "s3cret" not in said
    assert "cluster_token=***&name=me" in said
    assert "s3cret" in file().read_text(), "commands use it"


def test_use_and_remove(rhizome: Rhizome, lists: Any) -> None:
    add(rhizome, "gone", "127.0.0.1:1")
    add(rhizome, "prod", lists.address)
    assert rhizome("queue", "list").exit_code == 1
    os.environ.pop("RHIZOME_HTTP")
    assert rhizome("context", "use", "prod").exit_code == 0
    assert rhizome("queue", "list").exit_code == 0
    os.environ.pop("RHIZOME_HTTP")
    assert rhizome("context", "remove", "prod").exit_code == 0
    result = rhizome("--context", "prod", "queue", "list")
    assert result.exit_code == 1
    assert "there is no context 'prod' (known: gone)" in result.stderr


def test_a_file_that_is_damaged_is_told(rhizome: Rhizome) -> None:
    add(rhizome, "prod", "b1:15672")
    file().write_text("{")
    result = rhizome("context", "list")
    assert result.exit_code == 1
    assert "move it away" in result.stderr


@pytest.mark.parametrize("line", ["rhizome context use pro", "rhizome --context pro"])
def test_names_of_contexts_are_completed(rhizome: Rhizome, line: str) -> None:
    add(rhizome, "production", "b1:15672")
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    shown = rhizome(env={**words, "_RHIZOME_COMPLETE": "complete_bash"}).stdout
    assert shown.split() == ["production"]


def test_commands_are_completed(rhizome: Rhizome) -> None:
    words = {"COMP_WORDS": "rhizome queue de", "COMP_CWORD": "2"}
    shown = rhizome(env={**words, "_RHIZOME_COMPLETE": "complete_bash"}).stdout
    assert set(shown.split()) == {"declare", "delete"}
