"""The service as a process: killed -9 amid batches, started again, stopped by SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.client.blocking import Connection
from rhizome.testing.broker_process import Broker, wait_until
from tests.spark.driver import ROOT
from tests.spark.service.test_pipeline_service import drained, rows_of, size
from tests.spark.streams import declare_stream, fill, numbered
from tests.spark.tables import readers

Unique = Callable[[str], str]
SECONDS_MAX = 600.0
BATCH = 200


class ServiceProcess:
    """`rhizome pipeline run` in a process group of its own."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.output = file.with_suffix(".out")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        conf = ("--conf", "spark.sql.shuffle.partitions=2", "--master", "local[2]")
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rhizome", "pipeline", "run", str(self.file), *conf],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "RHIZOME_PURE": "1"},
                process_group=0,
            )

    def kill(self) -> None:
        """kill -9, the JVM and its workers included."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal.SIGTERM)
        return process.wait(SECONDS_MAX)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            return condition()

        wait_until(is_so, f"{what}\n{self.said()}", SECONDS_MAX)

    def said(self) -> str:
        return self.output.read_text()[-4000:] if self.output.exists() else ""


@pytest.fixture
def service(broker: Broker, unique: Unique, tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path / "flows.toml")
    yield process
    process.kill()


def status(service: ServiceProcess) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `rhizome pipeline status`."""
    done = subprocess.run(
        [sys.executable, "-m", "rhizome", "pipeline", "status", str(service.file), "--json"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "RHIZOME_PURE": "1"},
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(2400)
@pytest.mark.soak
def test_nothing_is_lost_or_doubled_when_the_service_is_killed_amid_batches(
    service: ServiceProcess, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    stream, work, queue = unique("events"), unique("work"), unique("results")
    declare_stream(broker.url, stream)
    with Connection(broker.url) as connection:
        for name in (work, queue):
            connection.channel().declare_queue(name, durable=True)
    service.file.write_text(f"""
name = "killed"
state = "state"
uri = "{broker.url}"
[retry]
pause = "200ms"
[flows.table]
interval = "100ms"
source = {{ streams = ["{stream}"], rows_per_batch = {BATCH} }}
sink = {{ table = "lake" }}
[flows.queue]
interval = "100ms"
source = {{ queues = ["{work}"], rows_per_batch = {BATCH} }}
sql = "SELECT cast(cast(cast(value AS STRING) AS INT) AS STRING) AS value FROM messages"
sink = {{ queue = "{queue}", options = {{ maxRowsPerSecond = 400 }} }}
""")
    service.file.chmod(0o600)
    table, published = tmp_path / "lake", 0
    for _ in range(2):
        for name in (stream, work):
            fill(broker.url, name, numbered(2000, published))
        published += 2000
        rows, sent = len(rows_of(table)), size(broker, queue)
        service.start()
        service.wait(
            lambda rows=rows: len(rows_of(table)) > rows,  # type: ignore[misc]
            "the table",
        )
        # Not at the end of a batch: amid one.
        service.wait(
            lambda sent=sent: size(broker, queue) > sent + BATCH,  # type: ignore[misc]
            "the queue",
        )
        service.kill()
        code, document = status(service)
        assert (code, document["state"]) == (3, "silent")
    service.start()
    service.wait(lambda: len(rows_of(table)) >= published, "all of the table")
    service.wait(lambda: size(broker, queue) >= published, "all of the queue")
    code, document = status(service)
    assert (code, document["state"]) == (0, "running")
    assert service.stop() == 0, service.said()
    code, document = status(service)
    assert (code, document["state"]) == (3, "stopped")
    assert rows_of(table) == list(range(published))
    question = 'SELECT count(DISTINCT "offset") FROM messages'
    offsets = readers("delta")["delta-rs"](str(table), question)
    assert offsets == [(published,)]
    assert drained(broker, queue) == list(range(published))
    assert size(broker, work) == 0
    assert not list((tmp_path / "state" / "set_aside").glob("*/*"))
