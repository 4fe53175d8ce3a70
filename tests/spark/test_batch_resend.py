"""`rhizome pipeline resend`: batches that were set aside are delivered, once, when the cause is
mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhizome.client.blocking import Connection
from rhizome.spark.service import flow_file
from rhizome.spark.service.batch_resend import KeptBatch, obstacle
from rhizome.spark.service.flow_file import FlowSettings, SinkSettings, SourceSettings, load
from rhizome.spark.service.set_aside_batches import RESENT, PendingBatch, SetAside
from rhizome.spark.service.state_files import StateFiles
from rhizome.spark.source.query_offsets import Range
from rhizome.testing.broker_process import Broker
from tests.spark.cli import command
from tests.spark.service.test_pipeline_service import drained, size
from tests.spark.streams import declare_stream, fill, numbered
from tests.spark.tables import readers

Unique = Callable[[str], str]
BATCH = "q1-4"
SOURCE = SourceSettings(flow_file.STREAMS, ("s",), "amqp://x")


class Flows:
    """A file of flows whose batch of the offsets 20 to 29 is set aside, for each flow."""

    def __init__(self, directory: Path, uri: str, stream: str) -> None:
        self.path = directory / "flows.toml"
        self.aside = directory / "state" / "set_aside"
        self._uri = uri
        self._stream = stream
        self._sinks: dict[str, str] = {}
        self.sql = "cast(cast(value AS STRING) AS INT)"

    def add(self, name: str, sink: str, query: str, stage: str = "transform") -> None:
        self._sinks[name] = sink
        self.write()
        settings = {each.name: each for each in load(self.path).flows}[name]
        batch = PendingBatch(query, 4, (Range(self._stream, 0, 20, 30),), "")
        reason = {"time": f"2026-11-18T00:00:0{len(self._sinks)}", "stage": stage, "error": "bad"}
        SetAside(StateFiles(str(self.aside)), name).add(batch, settings.source, reason)

    def write(self) -> None:
        head = f'name = "tests"\nstate = "state"\nuri = "{self._uri}"\n'
        flows = [
            f'[flows.{name}]\nsource = {{ streams = ["{self._stream}"] }}\nsink = {{ {sink} }}\n'
            f'sql = "SELECT cast({self.sql} AS STRING) AS value FROM messages"\n'
            for name, sink in self._sinks.items()
        ]
        self.path.write_text(head + "".join(flows))
        self.path.chmod(0o600)

    def resend(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = command("pipeline", "resend", str(self.path), *arguments, "--json")
        return code, json.loads(capsys.readouterr().out)["batches"]


@pytest.fixture
def flows(broker: Broker, unique: Unique, tmp_path: Path) -> Flows:
    stream = unique("events")
    declare_stream(broker.url, stream)
    bodies = numbered(40)
    bodies[25] = b"poison"
    fill(broker.url, stream, bodies)
    return Flows(tmp_path, broker.url, stream)


def test_what_was_set_aside_is_delivered_once_when_its_flow_can_take_it(
    spark: Any, flows: Flows, broker: Broker, unique: Unique, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    queue = unique("numbers")
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(queue, durable=True)
    flows.add("table", 'table = "lake"', "q1")
    flows.add("queue", f'queue = "{queue}"', "q2")

    code, batches = flows.resend(capsys)
    assert code == 1
    assert [each["resent"] for each in batches] == [False, False]
    assert all("poison" in each["trouble"] for each in batches)
    assert size(broker, queue) == 0  # nothing of a batch goes before all of it can

    flows.sql = "coalesce(try_cast(cast(value AS STRING) AS INT), 25)"
    flows.write()
    code, batches = flows.resend(capsys)
    assert code == 0, batches
    assert [(each["flow"], each["rows"]) for each in batches] == [("table", 10), ("queue", 10)]
    assert flows.resend(capsys) == (0, [])

    # It was killed before it could note that it was done, and is repeated.
    for path in flows.aside.glob(f"*/*/{RESENT}"):
        path.unlink()
    assert [each["resent"] for each in flows.resend(capsys)[1]] == [True, True]
    assert drained(broker, queue) == list(range(20, 30))
    lake = readers("delta")["delta-rs"](str(tmp_path / "lake"), "SELECT value::INT FROM messages")
    assert sorted(row[0] for row in lake) == list(range(20, 30))


def test_list_names_what_is_set_aside_and_starts_no_spark(
    flows: Flows, capsys: pytest.CaptureFixture[str]
) -> None:
    flows.add("second", 'queue = "b"', "q2")
    flows.add("first", 'queue = "a"', "q1")
    _, batches = flows.resend(capsys, "--dry-run")
    assert [(each["flow"], each["batch"]) for each in batches] == [
        ("second", "q2-4"), ("first", "q1-4"),
    ]  # fmt: skip
    assert batches[0]["messages"] == 10
    assert [each["flow"] for each in flows.resend(capsys, "first", "--dry-run")[1]] == ["first"]
    assert len(flows.resend(capsys, "--batch", BATCH, "--dry-run")[1]) == 1
    assert command("pipeline", "resend", str(flows.path), "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "set aside at" in shown
    assert "q2-4" in shown


def test_what_is_not_there_is_told_with_what_is(
    flows: Flows, capsys: pytest.CaptureFixture[str]
) -> None:
    flows.add("work", 'queue = "a"', "q1")
    for arguments, told in (
        (["walk"], "there is no flow 'walk'; there are work"),
        (["--batch", "q1-5"], "no batch 'q1-5' is set aside; those that are: q1-4"),
    ):
        assert command("pipeline", "resend", str(flows.path), *arguments) == 1
        assert told in capsys.readouterr().err


def test_batch_that_would_be_counted_twice_or_not_at_all_stays_where_it_is(
    flows: Flows, capsys: pytest.CaptureFixture[str]
) -> None:
    flows.add("files", 'table = "files", format = "parquet"', "q1")
    flows.add("partly", 'queue = "a"', "q2", stage="sink")
    code, batches = flows.resend(capsys)
    assert code == 1
    assert "query has written (_spark_metadata)" in batches[0]["trouble"]
    assert "--allow-duplicates sends all of it" in batches[1]["trouble"]
    assert command("pipeline", "resend", str(flows.path)) == 1
    assert "10 messages stay set aside" in capsys.readouterr().err
    assert len(flows.resend(capsys, "--dry-run")[1]) == 2


@pytest.mark.parametrize(
    ("kind", "sink", "stage", "duplicates", "told"),
    [
        (flow_file.TABLE, {"format": "delta"}, "sink", False, ""),
        (flow_file.TABLE, {"format": "iceberg"}, "transform", False, ""),
        (flow_file.TABLE, {"format": "delta", "mode": "complete"}, "sink", False, "mode is compl"),
        (flow_file.QUEUE, {}, "transform", False, ""),
        (flow_file.EXCHANGE, {}, "sink", False, "may have taken a part"),
        (flow_file.EXCHANGE, {}, "sink", True, ""),
        (flow_file.FORMAT, {}, "transform", False, ""),
        (flow_file.FORMAT, {}, "sink", False, "may have taken a part"),
    ],
)
def test_sink_and_stage_decide_whether_a_batch_can_be_delivered(
    kind: str, sink: dict[str, str], stage: str, duplicates: bool, told: str
) -> None:
    settings = FlowSettings("f", SOURCE, SinkSettings(kind, "x", **sink))
    found = obstacle(KeptBatch(settings, BATCH, {"stage": stage}), duplicates)
    assert told in found
    assert bool(told) == bool(found)


def test_files_of_spark_take_no_batch_of_others() -> None:
    settings = FlowSettings("f", SOURCE, SinkSettings(flow_file.FORMAT, "JSON"))
    assert "_spark_metadata" in obstacle(KeptBatch(settings, BATCH, {}))
