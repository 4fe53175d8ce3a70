"""The example of a declarative pipeline in the docs, run twice, as it is but for where it keeps
checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pyspark
import pytest

from rhizome.client.blocking import Connection
from rhizome.spark.jobs.job_progress import WORKER_LATE
from rhizome.testing.broker_process import BrokerProcess
from tests.spark.streams import declare_stream, fill

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/pipeline/declarative"
STARTS_MAX = 5
CATALOGUE = "spark.sql.catalogImplementation=hive"
STORAGE = "file:///tmp/rhizome-orders"
SPARK_HOME = Path(pyspark.__file__).parent


def orders(first: int, end: int) -> list[bytes]:
    return [
        json.dumps(
            {"id": each, "country": "PT" if each % 2 else "CH", "amount": each * 10}
        ).encode()
        for each in range(first, end)
    ]


def run(directory: Path, uri: str) -> str:
    dropped = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    environment = {
        **kept,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": sys.executable,
        "RHIZOME_URI": uri,
    }
    command = [str(SPARK_HOME / "bin/spark-pipelines"), "run", "--conf", CATALOGUE]
    for _ in range(STARTS_MAX):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=directory, env=environment
        )
        said = f"{done.stdout}\n{done.stderr}"
        # A busy machine is slow to start Spark's workers; the next run goes on.
        if done.returncode == 0 or WORKER_LATE not in said:
            break
    assert done.returncode == 0, said[-6000:]
    return said


def table(directory: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table of the pipeline, read without Spark."""
    found: list[dict[str, Any]] = (
        dataset.dataset(directory / "spark-warehouse" / name, format="parquet").to_table()
    ).to_pylist()
    return found


def ids(broker: BrokerProcess, queue: str) -> list[int]:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        size = channel.declare_queue(queue, passive=True).message_count
        consumer = channel.consume(queue, timeout_s=30)
        return [json.loads(next(consumer).body)["id"] for _ in range(size)]


@pytest.mark.soak
def test_example_has_each_order_once_in_its_table_and_its_queue(tmp_path: Path) -> None:
    directory = tmp_path / "example"
    shutil.copytree(EXAMPLE, directory)
    spec = directory / "spark-pipeline.yml"
    assert STORAGE in spec.read_text()
    spec.write_text(spec.read_text().replace(STORAGE, (tmp_path / "storage").as_uri()))
    with BrokerProcess(tmp_path / "broker") as broker:
        declare_stream(broker.url, "orders")
        with Connection(broker.url) as connection:
            connection.channel().declare_queue("large-orders", durable=True)
        for first, end in ((0, 150), (150, 200)):
            fill(broker.url, "orders", orders(first, end))
            said = run(directory, broker.url)
            assert f":{broker.password}@" not in said
            assert sorted(row["id"] for row in table(directory, "orders")) == list(range(end))
            revenue = {row["country"]: row["orders"] for row in table(directory, "revenue")}
            assert revenue == {"PT": end // 2, "CH": end // 2}
            assert sorted(ids(broker, "large-orders")) == list(range(100, end))
