"""`rhizome store best`: which store has most after a total crash (H10)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from rhizome.amqp.frames import content_frames
from rhizome.amqp.properties import Properties, encode_header
from rhizome.broker.metadata.metadata_commands import Command, DeclareQueue, PutVhost
from rhizome.cluster.consensus.log.cluster_store import Batch, Entry
from rhizome.cluster.consensus.log.log_entry_payloads import (
    APPLICATION,
    REGISTRATION,
    Registration,
    payload,
)
from rhizome.cluster.state.cluster_commands import WHOLE, Envelope, Member, SetInSync, encode
from rhizome.journal.store import JournalStore, StoreOptions
from rhizome.server.clustered_broker.sqlite_cluster_store import SqliteClusterStore
from rhizome.server.offline_stores import read_store

Rhizome = Callable[..., Result]

SMALL = StoreOptions(segment_bytes_max=8192, spill_segment_bytes_max=8192)
NAMES = ("b1", "b2", "b3")


class Ignored:
    def durable(self, token: int) -> None:
        pass

    def alarm(self, text: str) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        raise error


def uuid_of(name: str) -> str:
    return name.encode().hex().zfill(32)


def registration(name: str) -> bytes:
    said = Registration(name, uuid_of(name), f"{name}.1", "primary", (f"{name}:5672",), name)
    return payload(said)


def state_log() -> list[tuple[int, bytes]]:
    """Group 1 has its home at b1 and b2 as standby; one queue."""
    commands: list[Command] = [
        PutVhost("/"),
        DeclareQueue("/", "orders", durable=True, arguments={"x-group": "b1"}),
        SetInSync(1, (Member("b2", "b2.1", WHOLE),), 1, 1),
    ]
    entries = [(REGISTRATION, registration(name)) for name in NAMES]
    return entries + [(APPLICATION, encode(Envelope(command))) for command in commands]


def make_store(directory: Path, name: str, epoch: int, messages: int, entries: int) -> Path:
    """A store with so many messages of group 1 and entries of the state log."""
    opened = JournalStore(directory, uuid_of(name).encode()[:16], Ignored(), _call, SMALL)
    opened.journal.epoch(1, epoch, 1)
    body = content_frames(1, encode_header(2, Properties()), b"hi", 0)
    for index in range(1, messages + 1):
        opened.journal.enqueue(1, epoch, index, [1], b"\x00\x06orders", 1000, -1, 0, 0, body)
    opened.submit()
    opened.close(None)
    written = threading.Event()
    cluster = SqliteClusterStore(
        directory / "cluster", lambda token: written.set(), _raise, lambda: uuid_of(name)
    )
    cluster.load()
    log = [
        Entry(index, 3, kind, data)
        for index, (kind, data) in enumerate(state_log()[:entries], start=1)
    ]
    batch = Batch(term=3, entries=tuple(log), commit=len(log), cluster_uuid="c" * 32)
    cluster.submit(batch, 1)
    assert written.wait(10)
    cluster.close()
    return directory


def _call(work: Callable[[], None]) -> None:
    pass


def _raise(error: Exception) -> None:
    raise error


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    return [
        str(make_store(tmp_path / "b1", "b1", 2, 5, 6)),
        str(make_store(tmp_path / "b2", "b2", 2, 7, 5)),
        str(make_store(tmp_path / "b3", "b3", 1, 9, 4)),
    ]


def test_best_stores_are_found(rhizome: Rhizome, stores: list[str]) -> None:
    result = rhizome("store", "best", *stores, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["state"] == {"store": stores[0], "broker": "b1"}
    (group,) = found["groups"]
    assert (group["group"], group["queues"], group["best"]) == (1, 1, stores[1])
    assert [
        (each["broker"], each["epoch"], each["index"], each["messages"], each["was"])
        for each in group["copies"]
    ] == [
        ("b2", 2, 7, 7, "in sync, whole"),
        ("b1", 2, 5, 5, "home"),
        ("b3", 1, 9, 9, "-"),
    ]


def test_best_stores_are_marked_for_people(rhizome: Rhizome, stores: list[str]) -> None:
    lines = rhizome("store", "best", *stores).stdout.splitlines()
    assert [line.endswith("<- best cluster state") for line in lines[1:4]] == [True, False, False]
    assert lines[6].split()[1:] == [
        stores[1],
        "b2",
        "2",
        "7",
        "7",
        "in",
        "sync,",
        "whole",
        "<-",
        "best",
    ]


def test_reading_writes_nothing(stores: list[str]) -> None:
    def files() -> dict[str, int]:
        return {
            str(each): each.stat().st_mtime_ns
            for each in Path(stores[0]).rglob("*")
            if each.is_file() and not each.name.endswith(("-shm", "-wal"))
        }

    before = files()
    read_store(Path(stores[0]))
    assert files() == before


def test_store_without_a_cluster_or_with_a_damaged_one_is_told(
    rhizome: Rhizome, stores: list[str]
) -> None:
    database = next(Path(stores[1]).glob("cluster/*.db"))
    database.write_bytes(b"not a database" * 100)
    result = rhizome("store", "best", *stores[:2])
    assert result.exit_code == 1
    assert f"WARNING: {stores[1]}" in result.stdout


def test_directory_that_is_no_store_is_refused(rhizome: Rhizome, tmp_path: Path) -> None:
    result = rhizome("store", "best", str(tmp_path))
    assert result.exit_code == 1
    assert "is no broker's store" in result.stderr
