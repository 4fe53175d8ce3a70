"""What the journal source makes of records, without a Spark session."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.field_table import Timestamp
from rhizome.amqp.frames import body_of, header_payload_of
from rhizome.amqp.properties import Properties
from rhizome.journal.dedup_state import DedupIdentity, user_prefix
from rhizome.journal.files import DiskFiles
from rhizome.journal.records import (
    FLAG_DURABLE,
    install_record,
    leases_record,
    number_record,
    shown_record,
)
from rhizome.journal.recovery import is_torn_tail
from rhizome.journal.store_inspection import records
from rhizome.spark import schema
from rhizome.spark.columns.vectorized_bytes import MalformedError
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.journal.journal_rows import EVENTS
from rhizome.spark.journal.journal_source import (
    NAME,
    OPTIONS,
    JournalDamagedError,
    JournalReader,
    JournalSource,
)
from rhizome.spark.schema import UnknownColumnError
from tests.spark.journals import START_MS, JournalFiles, content

SOME_CONTENT = content(b"moved", Properties())
KINDS = {
    "enqueue": "enqueued",
    "moved": "moved",
    "dequeue": "dequeued",
    "requeue": "requeued",
    "purge": "purged",
    "drop-queue": "queue-dropped",
    "tx": "transaction",
    "state": "state",
    "epoch": "epoch",
    "watermark": "watermark",
    "number": "number",
    "install": "installing",
    "shown": "delivered",
    "leases": "leased",
}


def rows(path: Path, **options: str) -> list[dict[str, Any]]:
    reader = JournalReader(schema.journal(), Options({"path": str(path), **options}, OPTIONS, NAME))
    found = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found.extend(batch.to_pylist())
    return found


def expected_rows(path: Path) -> list[dict[str, Any]]:
    """What `rhizome journal inspect` says, as rows: another reader of the same format."""
    found = []
    for row in records(DiskFiles(path / "journal", read_only=True)):
        kind = str(row["kind"])
        if kind in ("synced", "end"):
            continue
        common = {
            "event": KINDS[kind],
            **{name: row[name] for name in ("segment", "offset", "group", "epoch")},
            "record": row["index"],
        }
        queues: Any = row.get("queues", [])
        if kind in ("enqueue", "moved"):
            found += [{**common, "queue_id": queue, "index": row["index"]} for queue in queues]
        elif kind == "dequeue":
            ranges: Any = row["ranges"]
            for first, count in ranges:
                for index in range(first, first + count):
                    found.append({**common, "queue_id": queues[0], "index": index})
        else:
            message = row.get("message", row.get("up_to"))
            queue = queues[0] if queues else None
            found.append({**common, "queue_id": queue, "index": message})
    return found


def write_some_of_everything(store: JournalFiles, seed: int) -> None:
    chance = random.Random(seed)
    journal = store.journal
    journal.epoch(3, 1, 1)
    journal.state(1, b"")
    for turn in range(60):
        for _ in range(chance.randrange(6)):
            store.message(
                chance.sample(range(1, 9), chance.choice([1, 1, 1, 2, 5])),
                chance.randbytes(chance.choice([0, 1, 200, 5000])),
                origin=chance.choice([0, 0xABCDEF]),
                number=turn,
                flags=chance.choice([0, FLAG_DURABLE]),
                identity=chance.choice([b"", DedupIdentity(b"p", turn, b"").packed()]),
            )
        settled = chance.sample(range(1, store.index + 2), min(store.index, 5))
        journal.dequeue(0, 1, chance.randrange(1, 9), settled)
        if turn % 7 == 0:
            journal.requeue(0, 1, 2, turn, 3)
            journal.purge(0, 1, 3, turn)
            journal.drop_queue(0, 1, 4)
            journal.append_raw(number_record(3, 1, turn, 0xABC, 9), 0)
            journal.append_raw(install_record(3, 1, turn, True), 0)
            journal.append_raw(shown_record(3, 1, turn, 5, 0, turn), 0)
            journal.append_raw(leases_record(3, 1, turn, 6, b"held"), 0)
        if turn % 9 == 0:
            journal.begin_tx(0, 1, store.index + 1)
            journal.dequeue(0, 1, 5, [turn, turn + 3])
            journal.moved(0, 1, 2, [5], b"\0\0", START_MS, -1, 0, 0, SOME_CONTENT)
            journal.end_tx()
        if chance.random() < 0.3:
            journal.synced(int(journal.end_position()))
            store.flush()
    store.flush()


@pytest.mark.parametrize("seed", range(5))
def test_every_record_makes_the_rows_that_it_should(tmp_path: Path, seed: int) -> None:
    store = JournalFiles(tmp_path)
    write_some_of_everything(store, seed)
    got = rows(tmp_path)
    wanted = expected_rows(tmp_path)
    assert len(wanted) > 200
    assert set(KINDS.values()) == set(EVENTS.values())
    assert [{name: row[name] for name in wanted[0]} for row in got] == wanted


def test_message_is_decoded_whole(tmp_path: Path) -> None:
    headers: dict[str, object] = {
        "text": "zwölf",
        "number": 12,
        "large": 1 << 40,
        "negative": -5,
        "yes": True,
        "no": False,
        "void": None,
        "bytes": b"\x00\xff",
        "float": 1.5,
        "when": Timestamp(1_700_000_000),
        "decimal": Decimal("1.25"),
        "list": [1, "two", {"three": 3}],
        "table": {"a": {"b": "c"}},
        "": "no name",
    }
    properties = Properties(
        content_type="text/plain",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="1000",
        message_id="m",
        timestamp=1_700_000_001,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="k",
    )
    store = JournalFiles(tmp_path)
    store.message([1])
    store.message([1], b"hello", properties, b"ex", b"a.b", expiration_ms=START_MS + 5000)
    store.message([1], b"", Properties(), key=b"\xff\xfe")
    store.message([1], b"0123456789", Properties(headers={}), body_frames=4)
    store.flush()
    first, whole, empty, split = (row["message"] for row in rows(tmp_path))
    assert first["value"] == b"body"
    assert first["headers"] is None
    assert first["delivery_mode"] == 2
    assert whole["value"] == b"hello"
    assert (whole["exchange"], whole["key"]) == ("ex", "a.b")
    assert dict(whole["headers"]) == {
        "text": "zwölf",
        "number": "12",
        "large": str(1 << 40),
        "negative": "-5",
        "yes": "true",
        "no": "false",
        "void": None,
        "bytes": "AP8=",
        "float": "1.5",
        "when": "1700000000",
        "decimal": "1.25",
        "list": '[1, "two", {"three": 3}]',
        "table": '{"a": {"b": "c"}}',
        "": "no name",
    }
    for name in ("content_type", "correlation_id", "priority", "expiration", "cluster_id", "type"):
        assert whole[name] == getattr(properties, name)
    assert whole["message_timestamp"] == 1_700_000_001
    assert (empty["value"], empty["key"]) == (b"", "��")
    assert split["value"] == b"0123456789"
    assert split["headers"] == []


def test_raw_properties_are_those_of_the_publisher(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    store.message([1], b"x", Properties(headers={"a": 1}, message_id="m"))
    store.flush()
    (row,) = records(DiskFiles(tmp_path / "journal", read_only=True))
    raw: Any = row["content"]
    (got,) = rows(tmp_path)
    assert got["message"]["raw_properties"] == header_payload_of(raw)[12:]
    assert got["message"]["value"] == body_of(raw)


def test_origin_and_identity_follow_the_content(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    identity = DedupIdentity(b"query-7", 42, b"id")
    only_id = DedupIdentity(b"", 0, b"id")
    only_id.window = 10
    store.message([1], identity=identity.packed(), origin=0xABC, number=5, flags=FLAG_DURABLE)
    store.message([1], identity=identity.packed())
    store.message([1], identity=only_id.packed())
    store.message([1])
    store.flush()
    got = rows(tmp_path)
    assert [row["producer"] for row in got] == ["query-7", "query-7", None, None]
    assert [row["sequence"] for row in got] == [42, 42, None, None]
    assert [row["origin"] for row in got] == ["000000000abc", None, None, None]
    assert [row["number"] for row in got] == [5, None, None, None]
    assert [row["level"] for row in got] == ["reliable persistent"] + ["persistent"] * 3


def test_a_users_producer_is_shown_with_its_user(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    names = [user_prefix("guest") + b"p", b"p", b"\0\0\1letters", user_prefix("") + b"q", b"\0"]
    for name in names:
        store.message([1], identity=DedupIdentity(name, 1, b"").packed())
    store.flush()
    shown = ["guest/p", "p", "\0\0\1letters", "/q", "\0"]
    assert [row["producer"] for row in rows(tmp_path)] == shown


def test_records_without_a_time_have_that_of_the_message_before(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    store.journal.dequeue(0, 1, 1, [9])
    store.message([1])
    store.message([1])
    store.journal.dequeue(0, 1, 1, [1])
    store.message([1])
    store.flush()
    times = [int(row["time"].timestamp() * 1000) - START_MS for row in rows(tmp_path)]
    assert times == [1, 1, 2, 2, 3]


def test_settlements_have_the_time_of_their_batch(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    store.message([1])
    store.message([1])
    store.flush(START_MS + 10)
    store.journal.dequeue(0, 1, 1, [1])
    store.flush(START_MS + 5000)
    store.journal.dequeue(0, 1, 1, [2])
    store.message([1])
    store.flush(START_MS + 9000)
    store.journal.requeue(0, 1, 1, 3, 1)
    store.flush()
    times = [int(row["time"].timestamp() * 1000) - START_MS for row in rows(tmp_path)]
    assert times == [1, 2, 5000, 9000, 3, 9000]


def test_marks_of_time_work_across_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = JournalFiles(tmp_path)
    for batch in range(1, 30):
        for index in range(7):
            store.journal.dequeue(0, 1, 1, [batch * 10 + index])
        store.flush(START_MS + batch)
    monkeypatch.setattr("rhizome.spark.journal.journal_source.WINDOW_BYTES", 1000)
    found = rows(tmp_path)
    assert len(found) == 29 * 7
    for row in found:
        assert int(row["time"].timestamp() * 1000) - START_MS == row["index"] // 10


@pytest.mark.parametrize("cut", [False, True])
def test_torn_tail_ends_the_journal(tmp_path: Path, cut: bool) -> None:
    store = JournalFiles(tmp_path)
    for _ in range(10):
        store.message([1], b"x" * 100)
    store.flush()
    end = int(store.journal.end_position()) & 0xFFFFFFFF
    with store.segment(1).open("r+b") as file:
        if cut:
            file.truncate(end - 1)
        else:
            file.seek(end - 50)
            file.write(bytes(50))
    assert [row["index"] for row in rows(tmp_path)] == list(range(1, 10))


def test_what_comes_while_the_tail_is_looked_at_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running broker writes on between the reading of a tail and the look behind it."""
    store = JournalFiles(tmp_path)
    for _ in range(5):
        store.message([1])
    store.flush()
    looks = []

    def look_late(files: DiskFiles, segment: int, offset: int) -> bool:
        looks.append(offset)
        if len(looks) < 3:
            store.message([1])
            store.message([1])
            store.flush()
        return is_torn_tail(files, segment, offset)

    monkeypatch.setattr("rhizome.spark.journal.journal_source.is_torn_tail", look_late)
    assert [row["index"] for row in rows(tmp_path)] == list(range(1, 10))
    assert len(looks) == 3


def test_flipped_bit_in_the_middle_fails_and_says_where(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    for _ in range(10):
        store.message([1], b"x" * 100)
    store.flush()
    offset = rows(tmp_path)[4]["offset"]
    with store.segment(1).open("r+b") as file:
        file.seek(offset + 60)
        file.write(b"\xaa")
    with pytest.raises(JournalDamagedError, match=f"segment 1 at {offset}"):
        rows(tmp_path)
    got = rows(tmp_path, damage="rows")
    assert [row["event"] for row in got] == ["enqueued"] * 4 + ["damaged"] + ["enqueued"] * 5
    assert (got[4]["offset"], got[4]["index"]) == (offset, None)


def test_segment_without_its_end_is_damage_unless_it_is_the_last(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path, segment_bytes=4096)
    for _ in range(100):
        store.message([1], b"x" * 100)
    store.flush()
    assert len(store.files.segments()) > 3
    with store.segment(2).open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(JournalDamagedError, match="segment 2"):
        rows(tmp_path)


def test_large_records_are_read_whole(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    bodies = [bytes([n]) * size for n, size in enumerate((10, 9 << 20, 10, 5 << 20, 10))]
    for body in bodies:
        store.message([1], body)
    store.flush()
    assert [row["message"]["value"] for row in rows(tmp_path)] == bodies


def test_events_and_queues_are_chosen_by_options(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    write_some_of_everything(store, 1)
    everything = rows(tmp_path)
    some = rows(tmp_path, events="dequeued, moved")
    assert some == [row for row in everything if row["event"] in ("dequeued", "moved")]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "/nowhere"}, "'/nowhere' is no directory"),
        ({}, "no path given|needs the option 'paths'"),
        ({"path": "{store}", "damge": "rows"}, "did you mean 'damage'"),
        ({"path": "{store}", "damage": "maybe"}, "must be one of fail, rows"),
        ({"path": "{store}", "events": "acked"}, "must be of enqueued, "),
        ({"path": "{store}", "queue": "none"}, "the name of a queue"),
        ({"path": "{store}", "minPartitions": "0"}, "a whole number, 1 or more"),
    ],
)
def test_wrong_options_are_told_on_the_driver(
    tmp_path: Path, options: dict[str, str], text: str
) -> None:
    JournalFiles(tmp_path).flush()
    given = {name: value.format(store=tmp_path) for name, value in options.items()}
    with pytest.raises((OptionError, Exception), match=text):
        JournalSource(given).reader(schema.journal())


def test_unknown_column_is_told_with_those_there_are(tmp_path: Path) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    JournalFiles(tmp_path).flush()
    asked = StructType([StructField("body", StringType())])
    with pytest.raises(UnknownColumnError, match="no column 'body'; it has store, segment"):
        JournalSource({"path": str(tmp_path)}).reader(asked)


def test_message_that_is_none_is_told_and_not_read(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    store.journal.enqueue(
        0, 1, 1, [1], b"\0\0", START_MS, -1, 0, 0, b"\x02\0\1\0\0\xff\xff" + bytes(20)
    )
    store.flush()
    with pytest.raises(MalformedError, match="a message in segment 1"):
        rows(tmp_path)
