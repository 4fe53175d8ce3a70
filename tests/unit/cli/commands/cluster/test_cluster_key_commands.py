"""`rhizome cluster app-token` and `rotate-key`, as far as they need no broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rhizome.broker.access.application_cluster_token import application_token
from rhizome.cli.commands.cluster.doctor_checks import check_links
from rhizome.cluster.link import cluster_key_proof
from rhizome.server.config.cluster_section import KEYS_MAX, keys_text, read_key_file

Rhizome = Callable[..., Result]
KEY = b"a key that all brokers of it share"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "cluster.key"
    found.write_bytes(KEY + b"\n")
    found.chmod(0o640)
    return found


def test_the_token_is_printed_and_the_key_is_not(rhizome: Rhizome, file: Path) -> None:
    said = rhizome("cluster", "app-token", str(file)).stdout
    assert said == application_token(KEY) + "\n"
    as_json = rhizome("cluster", "app-token", str(file), "--json").stdout
    assert json.loads(as_json) == {"cluster_token": application_token(KEY)}
    assert KEY.decode() not in said + as_json


def test_a_key_is_added_promoted_and_dropped(rhizome: Rhizome, file: Path) -> None:
    assert rhizome("cluster", "rotate-key", "add", str(file)).exit_code == 0
    old, new = read_key_file(file)
    assert old == KEY
    assert new != KEY
    assert rhizome("cluster", "rotate-key", "promote", str(file), "--unchecked").exit_code == 0
    assert read_key_file(file) == (new, old)
    done = rhizome("cluster", "rotate-key", "drop", str(file), "--unchecked", "--json")
    assert json.loads(done.stdout)["keys"] == [cluster_key_proof.LinkKey(new).fingerprint]
    assert read_key_file(file) == (new,)
    assert file.read_bytes() == new + b"\n", "as releases read it that know one key"
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("promote", "two keys"),
        ("drop", "two keys"),
        ("turn", "is no step"),
        ("add", "give the key"),
    ],
)
def test_steps_that_make_no_sense_change_nothing(
    rhizome: Rhizome, file: Path, step: str, said: str
) -> None:
    more = () if "give" in said else (str(file), "--unchecked")
    refused = rhizome("cluster", "rotate-key", step, *more)
    assert refused.exit_code == 1
    assert said in refused.stderr
    assert read_key_file(file) == (KEY,)


def test_a_rotation_is_finished_before_the_next_one_begins(rhizome: Rhizome, file: Path) -> None:
    rhizome("cluster", "rotate-key", "add", str(file))
    before = file.read_bytes()
    refused = rhizome("cluster", "rotate-key", "add", str(file))
    assert refused.exit_code == 1
    assert "finish that rotation" in refused.stderr
    assert file.read_bytes() == before


def test_keys_are_not_quoted_where_a_file_is_refused(rhizome: Rhizome, file: Path) -> None:
    file.write_bytes(b"short")
    refused = rhizome("cluster", "app-token", str(file))
    assert refused.exit_code == 1
    assert "a key of 5 bytes" in refused.stderr
    assert "short" not in refused.stderr


def test_links_take_as_many_keys_as_a_file_may_have() -> None:
    assert KEYS_MAX == cluster_key_proof.KEYS_MAX
    assert len(keys_text([KEY] * 3).splitlines()) == 4


def test_the_doctor_names_links_without_protection_and_rotations_under_way() -> None:
    facts = {
        "b1": {"exposed_links": ["b2"], "cluster_keys": 2},
        "b2": {},
        "b3": {"exposed_links": [], "cluster_keys": 1},
    }
    found = list(check_links({"facts": facts}))
    assert [(each.level, each.broker) for each in found] == [("problem", "b1"), ("warning", "b1")]
    assert "insecure_links" in found[0].remedy
    assert "rotate-key" in found[1].remedy
