"""tools/rabbitmq.py as far as it needs neither root nor RabbitMQ."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tools"))

import rabbitmq
from generate_compatibility_docs import Difference, row


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RHIZOME_RABBITMQ_DIR", str(tmp_path))
    return tmp_path


def test_files_are_in_the_cache_of_the_user_unless_said_otherwise(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    assert rabbitmq.cache_directory() == cache
    monkeypatch.delenv("RHIZOME_RABBITMQ_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert rabbitmq.cache_directory() == Path("/somewhere/rhizome/rabbitmq")


def test_a_version_is_ready_when_debootstrap_has_finished(cache: Path) -> None:
    script = cache / "4.3" / rabbitmq.SCRIPT
    script.parent.mkdir(parents=True)
    script.touch()
    (cache / "4.3" / "debootstrap").mkdir()
    assert not rabbitmq.is_prepared("4.3")
    (cache / "4.3" / "debootstrap").rmdir()
    assert rabbitmq.is_prepared("4.3")
    assert rabbitmq.prepare("4.3") == cache / "4.3"


def test_an_unknown_version_names_those_that_there_are() -> None:
    with pytest.raises(rabbitmq.RabbitMQUnavailable, match=r"there are 4\.3, 4\.0, 3\.10"):
        rabbitmq.prepare("2.0")


def test_without_root_nothing_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(rabbitmq.RabbitMQUnavailable, match="need root"):
        rabbitmq.prepare("3.10")


def test_a_process_that_is_another_is_not_taken_for_a_node() -> None:
    rabbitmq.state_file("4.3").write_text(json.dumps({"pid": os.getppid(), "amqp": "", "http": ""}))
    assert rabbitmq.running("4.3") == {}
    rabbitmq.state_file("4.3").write_text("no json")
    assert rabbitmq.running("4.3") == {}


def test_a_row_of_the_differences_says_who_does_what() -> None:
    found = Difference("a|b", "because", {"4.3": "c"}, {"test_it": None})
    assert row(found) == "| as Rhizome | c | a\\|b | because | `test_it` |\n"
