"""Spark 4.1 to 4.3: the same program on each. `make test` runs the installed one, a soak all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from rhizome.client.blocking import Connection
from rhizome.spark import data_source
from rhizome.spark import schema as schemas
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.source import stream_source
from rhizome.spark.source.stream_source import UnlimitedStreamReader
from rhizome.testing.broker_process import Broker, BrokerProcess
from tests.spark.streams import declare_stream, fill, numbered
from tests.spark.version_smoke import BATCH_QUEUE, STREAM, STREAMING_QUEUE

ROOT = Path(__file__).parents[2]
INSTALLED = pyspark.__version__
VERSIONS = ("4.1.4", "4.2.1", "4.3.0")
MESSAGES = 150


def spark_of(version: str) -> Path | None:
    """A directory with this version of pyspark, made once; None for the installed one. All other
    packages are those of the Python that runs the tests."""
    if version == INSTALLED:
        return None
    found = ROOT / ".cache" / "spark" / version
    if not (found / "pyspark").is_dir():
        found.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=found.parent) as scratch:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            made = Path(scratch) / version
            subprocess.run(
                [*command, "--target", str(made), f"pyspark=={version}"], check=True, timeout=800
            )
            made.rename(found)
    return found


def run(version: str, broker: BrokerProcess, directory: Path) -> dict[str, Any]:
    package = spark_of(version)
    paths = [*([str(package)] if package else []), str(ROOT / "src"), str(ROOT)]
    dropped = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    command = [sys.executable, "-m", "tests.spark.version_smoke", broker.url, str(broker.data)]
    done = subprocess.run(
        [*command, str(directory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**kept, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def counted(broker: BrokerProcess, queue: str) -> int:
    with Connection(broker.url) as connection:
        return int(connection.channel().declare_queue(queue, passive=True).message_count)


@pytest.mark.parametrize(
    "version",
    [pytest.param(each, marks=pytest.mark.soak) for each in dict.fromkeys((*VERSIONS, INSTALLED))],
)
def test_reads_and_writes_are_the_same_on_every_version(version: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        declare_stream(broker.url, STREAM)
        fill(broker.url, STREAM, numbered(MESSAGES))
        found = run(version, broker, tmp_path)
        assert found["version"] == version
        assert found["read"] == found["copied"] == list(range(MESSAGES))
        # Spark 4.1 has no limits for Python sources: one batch takes everything.
        assert found["limits"] == (not version.startswith("4.1."))
        expected = [60, 60, 30] if found["limits"] else [MESSAGES]
        assert found["batches"] == expected
        assert (counted(broker, BATCH_QUEUE), counted(broker, STREAMING_QUEUE)) == (20, MESSAGES)
        assert found["events"]["enqueued"] >= 20


def unlimited(uri: str, name: str) -> UnlimitedStreamReader:
    """The reader that Spark 4.1 gets."""
    given = {"uri": uri, "subscribe": name, "startingOffsets": "earliest"}
    options = Options({**given, "maxOffsetsPerTrigger": "3"}, stream_source.OPTIONS, "rhizome")
    settings = stream_source.source_settings(options, streaming=True)
    return UnlimitedStreamReader(settings, schemas.stream())


def test_reader_without_limits_takes_all_there_is_and_goes_on_from_a_checkpoint(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    name = unique("unlimited")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(10))
    reader = unlimited(broker.url, name)
    first = reader.initialOffset()
    end = reader.latestOffset()
    assert (first["next"], end["next"]) == ({name: 0}, {name: 10})
    assert [(part.start, part.end) for part in reader.partitions(first, end)] == [(0, 10)]
    assert reader.latestOffset() == end
    reader.stop()
    fill(broker.url, name, numbered(5, 10))
    restarted = unlimited(broker.url, name)
    further = restarted.latestOffset()
    assert [(part.start, part.end) for part in restarted.partitions(end, further)] == [(10, 15)]
    assert restarted.latestOffset() == further
    restarted.stop()


def test_work_queues_are_refused_without_limits(
    broker: Broker, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("work")
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(name, durable=True)
    monkeypatch.setattr(data_source, "HAS_LIMITS", False)
    found = data_source.RhizomeSource({"uri": broker.url, "subscribe": name})
    with pytest.raises(OptionError, match=r"with Spark 4\.2 or later"):
        found.streamReader(found.schema())
