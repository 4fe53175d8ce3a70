"""Executors on other hosts: they come and get what they need, or the command says what to check."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import rhizome
from tests.spark.streams import declare_stream, fill, numbered

from .kit import DRIVER, NEEDS_NETWORK, SparkCluster, archived_rows

pytestmark = [NEEDS_NETWORK, pytest.mark.timeout(900)]

NUMBERS = 9000
"""Enough for two partitions of a batch."""


def test_driver_that_workers_cant_reach_is_told_what_to_check(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    """What every command on a cluster once did, for ever: announce 127.0.0.1."""
    arguments = ["events", "--to", str(tmp_path / "archive"), "--uri", cluster.uri]
    wrong = ["--driver-host", "127.0.0.1", "--executor-timeout", "6"]
    said = cluster.pipeline("archive", *arguments, *wrong).finish(code=1)
    assert "no executor has registered within 6 s" in said
    assert f"The cluster is {cluster.master}" in said
    assert "announced itself as 127.0.0.1:" in said
    for advice in ("free cores and memory", "firewall", "--driver-host"):
        assert advice in said
    assert "Traceback" not in said


@pytest.mark.soak
def test_workers_without_room_are_told(cluster: SparkCluster, tmp_path: Path) -> None:
    arguments = ["events", "--to", str(tmp_path / "archive"), "--uri", cluster.uri]
    large = {"spark.executor.memory": "100g"}
    job = cluster.pipeline("archive", *arguments, "--executor-timeout", "10", conf=large)
    said = job.finish(code=1)
    assert "no executor has registered within 10 s" in said
    assert f"announced itself as {cluster.network.address(DRIVER)}:" in said


@pytest.mark.soak
def test_master_without_workers_is_told(cluster: SparkCluster, tmp_path: Path) -> None:
    for worker in cluster.workers.values():
        worker.kill()
    cluster.wait_for_workers(0)
    arguments = ["events", "--to", str(tmp_path / "archive"), "--uri", cluster.uri]
    said = cluster.pipeline("archive", *arguments, "--executor-timeout", "10").finish(code=1)
    assert "no executor has registered within 10 s" in said


@pytest.mark.soak
def test_plain_script_ships_what_executors_need_and_uses_all_of_them(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    """`register(spark, ship=True)` in a session that is not ours."""
    declare_stream(cluster.uri, "of-a-script")
    fill(cluster.uri, "of-a-script", numbered(NUMBERS))
    script = """
import sys, threading
from pyspark.sql import SparkSession
from rhizome.spark import register
master, uri, host = sys.argv[1:]
spark = (SparkSession.builder.master(master).config("spark.driver.host", host)
    .config("spark.ui.enabled", "false").config("spark.executor.memory", "512m").getOrCreate())
while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3:
    threading.Event().wait(0.2)  # executors start one after the other
register(spark, ship=True)
frame = spark.read.format("rhizome").option("uri", uri).option("subscribe", "of-a-script").load()
print("partitions", frame.rdd.getNumPartitions(), "rows", frame.count())
spark.stop()
"""
    python = cluster.python_of_workers()
    job = cluster.script(
        script,
        cluster.master,
        cluster.uri,
        cluster.network.address(DRIVER),
        environment={"PYSPARK_PYTHON": python},
    )
    assert f"partitions 2 rows {NUMBERS}" in job.finish()


@pytest.mark.soak
def test_installed_package_of_another_version_fails_the_job_and_names_both(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    package = tmp_path / "installed" / "rhizome"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.1.9"\n')
    declare_stream(cluster.uri, "versions")
    fill(cluster.uri, "versions", numbered(10))
    job = cluster.pipeline(
        "archive", "versions", "--to", str(tmp_path / "archive"), "--uri", cluster.uri,
        conf={"spark.executorEnv.PYTHONPATH": str(package.parent)},
    )  # fmt: skip
    said = job.finish(code=1)
    assert f"the driver has rhizome {rhizome.__version__}, and host" in said
    assert "has rhizome 0.1.9 installed" in said


@pytest.mark.soak
def test_installed_package_is_used_and_nothing_shipped(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    declare_stream(cluster.uri, "installed")
    fill(cluster.uri, "installed", numbered(NUMBERS))
    source = Path(rhizome.__file__).parents[1]
    import crc32c
    import librt
    import mypy_extensions

    places = {str(source)}
    for package in (crc32c, librt, mypy_extensions):
        where = package.__file__ or next(iter(package.__path__))
        places.add(str(Path(where).parents[0 if where.endswith("extensions.py") else 1]))
    conf = {"spark.executorEnv.PYTHONPATH": ":".join(sorted(places))}
    arguments = ["installed", "--to", str(tmp_path / "archive"), "--uri", cluster.uri]
    cluster.pipeline("archive", *arguments, "--no-ship", conf=conf).finish()
    assert len(archived_rows(tmp_path / "archive")) == NUMBERS


@pytest.mark.soak
def test_packed_environment_is_unpacked_and_used(cluster: SparkCluster, tmp_path: Path) -> None:
    """`spark.archives`, as venv-pack makes them; Python is a relative path that the driver's host
    doesn't have."""
    packed = tmp_path / "environment.tar.gz"
    environment = Path(cluster.python_of_workers()).parents[1]
    subprocess.run(["tar", "-C", str(environment), "-czf", str(packed), "."], check=True)
    declare_stream(cluster.uri, "packed")
    fill(cluster.uri, "packed", numbered(NUMBERS))
    conf = {"spark.archives": f"{packed}#environment"}
    job = cluster.pipeline(
        "archive", "packed", "--to", str(tmp_path / "archive"), "--uri", cluster.uri,
        conf=conf, environment={"PYSPARK_PYTHON": "./environment/bin/python"},
    )  # fmt: skip
    job.finish()
    assert len(archived_rows(tmp_path / "archive")) == NUMBERS


@pytest.mark.soak
def test_credentials_are_in_no_log(cluster: SparkCluster, tmp_path: Path) -> None:
    """Spark's own log, the event log, and what executors print."""
    declare_stream(cluster.uri, "secrets")
    fill(cluster.uri, "secrets", numbered(10))
    secret = "guest:guest@"
    assert secret in cluster.uri
    events, log = tmp_path / "events", tmp_path / "log"
    job = cluster.pipeline(
        "archive", "secrets", "--to", str(tmp_path / "archive"), "--uri", cluster.uri,
        "--event-log", str(events), "--spark-log", str(log), "--ui",
        conf={"spark.eventLog.compress": "false"},
    )  # fmt: skip
    assert secret not in job.finish()
    written = [path for path in events.rglob("*") if path.is_file()]
    assert b"SparkListenerJobStart" in b"".join(path.read_bytes() for path in written)
    printed = (cluster.directory / "work").rglob("std*")
    for path in [*written, log / "spark.log", *printed]:
        assert secret.encode() not in path.read_bytes(), path
