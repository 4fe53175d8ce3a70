"""`rhizome salvage`: what was saved from a forced home is listed, read and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rhizome.amqp.frames import content_frames
from rhizome.amqp.properties import Properties, encode_header
from rhizome.client.connection_uri import with_vhost
from rhizome.journal.files import DiskFiles
from rhizome.journal.records import FLAG_DURABLE, enqueue_record
from rhizome.journal.salvaged_messages import Salvage, SalvageManifest, SavedQueue
from rhizome.journal.store_identity import StoreIdentity, save_identity

Rhizome = Callable[..., Result]
UUID = bytes(range(16))
NAME = "group-2-epoch-7"


def saved(directory: Path, bodies: list[bytes], finished: bool = True) -> Salvage:
    """A broker's data directory in which messages of the queue `orders` (number 5) were saved."""
    root = DiskFiles(directory)
    save_identity(root, StoreIdentity(UUID))
    salvage = Salvage(root, UUID)
    name, saving = salvage.begin(NAME)
    for index, body in enumerate(bodies, start=11):
        content = content_frames(1, encode_header(len(body), Properties()), body, 0)
        route = b"\x00\x06orders"
        saving.add(enqueue_record(2, 7, index, [5], route, 1000, -1, 0, FLAG_DURABLE, content))
    if finished:
        queues = [SavedQueue(5, "/", "orders", len(bodies))]
        saving.finish(
            SalvageManifest(2, 7, "b3", 8, 11, 10 + len(bodies), 1_700_000_000_000, queues, name)
        )
    return salvage


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    saved(tmp_path, [b"one", b"two"])
    return tmp_path


def test_what_was_saved_is_listed(rhizome: Rhizome, directory: Path) -> None:
    shown = rhizome("salvage", "list", str(directory))
    assert shown.exit_code == 0, shown.stderr
    assert NAME in shown.stdout
    assert "orders" in shown.stdout
    (row,) = json.loads(rhizome("salvage", "list", str(directory), "--json").stdout)
    assert (row["name"], row["group"], row["home"], row["messages"]) == (NAME, 2, "b3", 2)
    assert row["queues"] == [{"id": 5, "vhost": "/", "name": "orders", "messages": 2}]


def test_it_is_a_store_that_journal_inspect_reads(rhizome: Rhizome, directory: Path) -> None:
    shown = rhizome("journal", "inspect", str(directory / "salvage" / NAME), "--json")
    assert shown.exit_code == 0, shown.stderr
    (queue,) = json.loads(shown.stdout)["queues"]
    assert (queue["name"], queue["messages"]) == ("orders", 2)
    shown = rhizome("journal", "inspect", str(directory / "salvage" / NAME), "--records")
    assert "body=one" in shown.stdout
    assert "orders" in shown.stdout


def test_it_is_deleted_when_somebody_says_so(rhizome: Rhizome, directory: Path) -> None:
    refused = rhizome("salvage", "delete", str(directory), NAME)
    assert refused.exit_code == 1
    assert Salvage(DiskFiles(directory), UUID).entries()
    done = rhizome("salvage", "delete", str(directory), NAME, "--yes")
    assert done.exit_code == 0, done.stderr
    assert Salvage(DiskFiles(directory), UUID).entries() == []
    again = rhizome("salvage", "delete", str(directory), NAME, "--yes")
    assert again.exit_code == 1
    assert "nothing was saved under the name" in again.stderr


def test_a_torso_is_not_shown_and_is_replaced(rhizome: Rhizome, tmp_path: Path) -> None:
    """Saved in part, and then the power went: the copy is as it was, and saves it again."""
    salvage = saved(tmp_path, [b"half"], finished=False)
    assert salvage.entries() == []
    assert "nothing was saved" in rhizome("salvage", "list", str(tmp_path)).stdout
    salvage = saved(tmp_path, [b"one", b"two"])
    assert [(each.name, each.messages) for each in salvage.entries()] == [(NAME, 2)]
    assert len(salvage.journal(NAME).segments()) == 1


def test_the_same_name_is_never_used_twice(tmp_path: Path) -> None:
    saved(tmp_path, [b"one"])
    salvage = saved(tmp_path, [b"two"])
    assert [each.name for each in salvage.entries()] == [NAME, f"{NAME}-2"]


def test_what_is_large_goes_into_several_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rhizome.journal.salvaged_messages.SEGMENT_BYTES", 4096)
    monkeypatch.setattr("rhizome.journal.salvaged_messages.PIECE_BYTES", 1024)
    salvage = saved(tmp_path, [b"x" * 700] * 20)
    assert len(salvage.journal(NAME).segments()) > 3


def test_a_directory_that_is_no_store_is_refused(rhizome: Rhizome, tmp_path: Path) -> None:
    refused = rhizome("salvage", "list", str(tmp_path))
    assert refused.exit_code == 1
    assert "is no broker's store" in refused.stderr


@pytest.mark.parametrize(
    ("uri", "vhost", "made"),
    [
        ("amqp://b1,b2/", "/", "amqp://b1,b2/%2F"),
        ("amqp://a:b@b1:5671/x?heartbeat=5", "y z", "amqp://a:b@b1:5671/y%20z?heartbeat=5"),
        ("amqp://b1", "v", "amqp://b1/v"),
    ],
)
def test_a_uri_for_another_vhost(uri: str, vhost: str, made: str) -> None:
    assert with_vhost(uri, vhost) == made
