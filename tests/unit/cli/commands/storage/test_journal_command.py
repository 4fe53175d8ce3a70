"""`rhizome journal inspect` on stores made for the purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rhizome.amqp.frames import content_frames
from rhizome.amqp.properties import Properties, encode_header
from rhizome.broker.metadata.metadata_commands import DeclareQueue, PutVhost, encode
from rhizome.broker.metadata.metadata_state import State
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.store import JournalStore, StoreOptions

Rhizome = Callable[..., Result]

UUID = bytes(range(16))
SMALL = StoreOptions(segment_bytes_max=8192, spill_segment_bytes_max=8192)
ROUTE = b"\x00\x06orders"


class Ignored:
    """A store's events, for a test that waits for the close alone."""

    def durable(self, token: int) -> None:
        pass

    def alarm(self, text: str) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        raise error


def content(body: bytes) -> bytes:
    return content_frames(1, encode_header(len(body), Properties()), body, 0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the durable queue `orders` (number 1) and three messages, one of them acked."""
    directory = tmp_path / "store"
    opened = JournalStore(directory, UUID, Ignored(), lambda call: None, SMALL)
    journal = opened.journal
    journal.state(1, encode(PutVhost("/")))
    journal.state(2, encode(DeclareQueue("/", "orders", durable=True)))
    for index, body in ((1, b"first"), (2, b"second" * 50), (3, b"\xff\xfe")):
        journal.enqueue(1, 1, index, [1], ROUTE, 1000, -1, 0, 0, content(body))
    journal.dequeue(1, 1, 1, [1])
    opened.submit()
    opened.close(None)
    return directory


def test_the_report_names_queues_and_counts_live_messages(rhizome: Rhizome, store: Path) -> None:
    result = rhizome("journal", "inspect", str(store), "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["store"] == UUID.hex()
    assert report["corruptions"] == []
    (queue,) = report["queues"]
    assert (queue["vhost"], queue["name"], queue["messages"]) == ("/", "orders", 2)
    assert report["segments"][0]["records"]["enqueue"] == 3
    text = rhizome("journal", "inspect", str(store)).stdout
    assert "enqueue=3" in text
    assert "orders" in text


def test_records_of_a_queue_are_readable(rhizome: Rhizome, store: Path) -> None:
    result = rhizome("journal", "inspect", str(store), "--queue", "orders", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["kind"] for row in rows] == ["enqueue", "enqueue", "enqueue", "dequeue"]
    assert [row.get("body") for row in rows[:3]] == [
        "first",
        ("second" * 50)[:64] + "...",
        "\\xff\\xfe",
    ]
    assert rows[0]["routing_key"] == "orders"
    assert rows[0]["queues"] == ["orders"]
    by_number = rhizome("journal", "inspect", str(store), "--queue", "1", "--json")
    assert by_number.stdout == result.stdout


def test_all_records_show_the_definitions_too(rhizome: Rhizome, store: Path) -> None:
    result = rhizome("journal", "inspect", str(store), "--records")
    assert "DeclareQueue" in result.stdout
    assert "name='orders'" in result.stdout


def test_an_unknown_queue_is_an_error(rhizome: Rhizome, store: Path) -> None:
    result = rhizome("journal", "inspect", str(store), "--queue", "nope")
    assert result.exit_code == 1
    assert "no durable queue 'nope'" in result.stderr


def test_a_directory_that_is_no_store_is_an_error(rhizome: Rhizome, tmp_path: Path) -> None:
    result = rhizome("journal", "inspect", str(tmp_path))
    assert result.exit_code == 1
    assert "not a store" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_damage_in_the_middle_is_shown_and_makes_it_fail(rhizome: Rhizome, store: Path) -> None:
    segment = max((store / "journal").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[data.index(b"first")] ^= 0xFF
    segment.write_bytes(data)
    result = rhizome("journal", "inspect", str(store), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["corruptions"]
    assert "damaged: " in rhizome("journal", "inspect", str(store)).stdout


def checkpointed(tmp_path: Path) -> Path:
    """A store that was closed cleanly: its checkpoint covers all of its two messages."""
    directory = tmp_path / "clean"
    opened = JournalStore(directory, UUID, Ignored(), lambda call: None, SMALL)
    journal = opened.journal
    live = PagedIndex()
    for index, body in ((1, b"first"), (2, b"second" * 50)):
        live.append(index, journal.enqueue(1, 1, index, [1], ROUTE, 1000, -1, 0, 0, content(body)))
    opened.submit()
    builder = opened.begin_checkpoint()
    builder.state(State().snapshot())
    builder.group(1, 1, 2, [(1, 1)], {}, {})
    builder.queue(1, 1, 400, {}, None, {}, b"")
    builder.entries(0, live)
    opened.close(builder)
    return directory


@pytest.mark.parametrize("options", [(), ("--records",), ("--json",)])
def test_damage_under_a_clean_checkpoint_makes_it_fail(
    rhizome: Rhizome, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A start doesn't look there, so it isn't among the corruptions that keep a broker down."""
    store = checkpointed(tmp_path)
    assert rhizome("journal", "inspect", str(store), *options).exit_code == 0
    segment = max((store / "journal").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[data.index(b"first")] ^= 1
    segment.write_bytes(data)
    assert rhizome("journal", "inspect", str(store), *options).exit_code == 1
