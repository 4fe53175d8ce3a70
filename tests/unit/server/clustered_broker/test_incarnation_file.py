"""The incarnation file: only what has ended for certain is certified (R15)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rhizome.cluster.link.death_certificate import DeathCertificate
from rhizome.journal.errors import StoreInUse
from rhizome.journal.files import DirectoryLock
from rhizome.server.clustered_broker.incarnation_file import (
    FILE_NAME,
    ended_incarnation,
    remove_incarnation,
    write_incarnation,
)

OF_B2 = DeathCertificate("b2", "b" * 32, "00ab12", "a test")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store on which a broker has run, and ended without a farewell."""
    directory = tmp_path / "data"
    lock = DirectoryLock(directory)
    write_incarnation(directory, OF_B2.name, OF_B2.uuid, OF_B2.incarnation)
    lock.release()
    return directory


def change(store: Path, **fields: object) -> None:
    found = json.loads((store / FILE_NAME).read_text())
    (store / FILE_NAME).write_text(json.dumps({**found, **fields}))


def test_what_ran_last_is_certified_when_its_lock_is_free(store: Path) -> None:
    assert ended_incarnation(store, "a test") == OF_B2
    assert ended_incarnation(store, "a test") == OF_B2


def test_nothing_is_certain_while_a_process_has_the_lock(store: Path) -> None:
    lock = DirectoryLock(store)
    with pytest.raises(StoreInUse):
        ended_incarnation(store, "a test")
    lock.release()


def test_the_lock_is_free_again_after_the_look(store: Path) -> None:
    ended_incarnation(store, "a test")
    DirectoryLock(store).release()


def test_a_later_start_is_certified_in_place_of_the_one_before(store: Path) -> None:
    lock = DirectoryLock(store)
    write_incarnation(store, "b2", "b" * 32, "00ab13")
    lock.release()
    found = ended_incarnation(store, "a test")
    assert found is not None
    assert found.incarnation == "00ab13"


def test_one_that_has_said_farewell_is_not_reported(store: Path) -> None:
    remove_incarnation(store)
    remove_incarnation(store)
    assert ended_incarnation(store, "a test") is None


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert ended_incarnation(tmp_path / "nothing", "a test") is None
    assert not (tmp_path / "nothing").exists()


def test_a_copy_of_a_store_is_no_certainty(store: Path, tmp_path: Path) -> None:
    """Its lock is another one, and free though the broker of the original lives."""
    lock = DirectoryLock(store)
    shutil.copytree(store, tmp_path / "copy")
    assert ended_incarnation(tmp_path / "copy", "a test") is None
    lock.release()


def test_another_boot_or_machine_is_no_certainty(store: Path) -> None:
    where = json.loads((store / FILE_NAME).read_text())["where"]
    change(store, where=["another boot", *where[1:]])
    assert ended_incarnation(store, "a test") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 99}'])
def test_a_damaged_file_certifies_nothing(store: Path, text: str) -> None:
    (store / FILE_NAME).write_text(text)
    assert ended_incarnation(store, "a test") is None
