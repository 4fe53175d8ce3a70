"""Which Python Spark's workers run, and how many tasks they are told of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rhizome.spark.data_source_options import PARTITIONS, Options, tasks_at_once
from rhizome.spark.python_workers import WorkerPythonError, prepare_workers
from rhizome.spark.shipment import packed
from rhizome.testing.broker_process import Broker
from tests.spark.cluster.bare_python import bare_python
from tests.spark.streams import declare_stream, fill, numbered

Unique = Callable[[str], str]
ROOT = Path(__file__).parents[2]


class FakeContext:
    """As much of a SparkContext as is asked."""

    def __init__(self, python: str, master: str = "local[3]", tasks: int = 3) -> None:
        self.pythonExec = python
        self.master = master
        self.defaultParallelism = tasks
        self.environment: dict[str, str] = {}
        self._python_includes: list[str] = []


class FakeSession:
    def __init__(self, context: FakeContext) -> None:
        self.sparkContext = context


def prepare(context: FakeContext, shipped: Path | None = None) -> FakeContext:
    prepare_workers(FakeSession(context), shipped)
    return context


def bare() -> str:
    return str(bare_python() / "bin/python")


def test_local_workers_run_this_python_unless_somebody_chose_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert prepare(FakeContext("no-such-python")).pythonExec == sys.executable
    assert prepare(FakeContext(sys.executable)).pythonExec == sys.executable


def test_chosen_python_without_the_package_is_refused_before_any_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", bare())
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(WorkerPythonError, match="No module named 'rhizome'") as error:
        prepare(FakeContext(bare()))
    assert f"Spark would run {bare()}" in str(error.value)
    assert "Set PYSPARK_PYTHON before the session starts" in str(error.value)
    assert sys.executable in str(error.value)
    with pytest.raises(WorkerPythonError, match="'no-such-python', which is not on this host"):
        prepare(FakeContext("no-such-python", "spark://elsewhere:7077"))


def test_chosen_python_without_the_package_will_do_if_it_is_shipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", bare())
    monkeypatch.delenv("PYTHONPATH", raising=False)
    context = FakeContext(bare(), "spark://elsewhere:7077", tasks=7)
    assert prepare(context, packed()).pythonExec == bare()
    assert context.environment == {PARTITIONS: "7"}


def test_partitions_are_those_of_the_cluster_and_not_of_this_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PARTITIONS, "24")
    assert tasks_at_once() == 24
    assert Options({}, ["minPartitions"], "test").partitions(per_task=2) == 48
    assert Options({"minPartitions": "5"}, ["minPartitions"], "test").partitions() == 5
    monkeypatch.delenv(PARTITIONS)
    assert tasks_at_once() == os.cpu_count()


SCRIPT = """
import sys
from pyspark.sql import SparkSession
from rhizome.spark import register
spark = (SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    .getOrCreate())
register(spark)
frame = spark.read.format("rhizome").options(uri=sys.argv[1], subscribe=sys.argv[2]).load()
print("partitions", frame.rdd.getNumPartitions(), "rows", frame.count())
"""


def test_plain_script_in_a_virtual_environment_reads_without_settings(
    broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    """`python3` of the PATH is another Python, as it is for whoever calls .venv/bin/python."""
    name = unique("script")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(13_000))
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK"))
    }
    environment |= {
        "PATH": f"{bare_python()}/bin:/usr/bin:/bin",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [sys.executable, str(file), broker.url, name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "partitions 3 rows 13000" in done.stdout


def test_what_a_worker_has_imported_is_frozen_once() -> None:
    """What later tasks make must not be: it would never be collected."""
    program = (
        "import gc\n"
        "from rhizome.spark.worker_heap import freeze_imports\n"
        "freeze_imports()\n"
        "first = gc.get_freeze_count()\n"
        "made = [[] for _ in range(1000)]\n"
        "freeze_imports()\n"
        "print(first > 1000, gc.get_freeze_count() - first < 100)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True"]
