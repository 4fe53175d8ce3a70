"""Workers of streaming sources connect before PySpark is imported, so that Spark's ten seconds
suffice on a starved machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rhizome.spark import register, worker_launcher
from rhizome.spark.jobs import archive
from rhizome.spark.session import SOURCE_RUNNER
from rhizome.testing.broker_process import Broker
from tests.spark.streams import declare_stream, fill, numbered

SECRET = "a secret of the session"
SECONDS_MAX = 300.0


def text(value: str) -> bytes:
    """As Spark writes it to its workers."""
    return len(value).to_bytes(4, "big") + value.encode()


@contextmanager
def launched(listener: socket.socket, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that is to connect to `listener`."""
    command = [sys.executable, "-P", worker_launcher.__file__, "-m", SOURCE_RUNNER]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHON_WORKER_FACTORY_PORT": str(listener.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": SECRET,
            **environment,
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where Spark waits for its worker."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS_MAX)
        yield server


def accepted(listener: socket.socket, answer: str) -> Any:
    """The worker's connection, once it has shown its secret, and what comes over it."""
    connection, _ = listener.accept()
    connection.settimeout(SECONDS_MAX)
    stream = connection.makefile("rwb")
    assert stream.read(len(text(SECRET))) == text(SECRET)
    stream.write(text(answer))
    stream.flush()
    return stream


FAKE = {
    "__init__.py": "import os\nopen(os.environ['GATE']).read()",
    "util.py": "def local_connect_and_auth(*_): raise AssertionError('a second connection')",
    "worker_util.py": "from pyspark.util import local_connect_and_auth",
    "sql/__init__.py": "",
    "sql/streaming/__init__.py": "",
    "sql/streaming/python_streaming_source_runner.py": (
        "from pyspark.worker_util import local_connect_and_auth\n"
        "file, socket = local_connect_and_auth(1, 'x')\n"
        "file.write(b'hello')\n"
        "file.flush()\n"
    ),
}
"""A PySpark that is imported when the gate opens."""


def test_worker_is_connected_before_pyspark_is_imported(
    listener: socket.socket, tmp_path: Path
) -> None:
    for name, source in FAKE.items():
        path = tmp_path / "pyspark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with launched(listener, PYTHONPATH=str(tmp_path), GATE=str(gate)) as worker:
        stream = accepted(listener, "ok")
        assert worker.poll() is None
        gate.write_text("go on")
        assert stream.read(5) == b"hello"
        assert worker.wait(SECONDS_MAX) == 0


def test_pyspark_takes_the_connection_that_is_there(listener: socket.socket) -> None:
    """The real one: the first that a worker tells is its number."""
    with launched(listener) as worker:
        stream = accepted(listener, "ok")
        assert int.from_bytes(stream.read(4), "big") == worker.pid


def test_worker_that_is_refused_ends_and_says_so(listener: socket.socket) -> None:
    with launched(listener) as worker:
        accepted(listener, "err")
        assert worker.wait(SECONDS_MAX) == 1
        assert worker.stderr is not None
        assert b"refused the secret" in worker.stderr.read()


SLOW = """\
import sys, time
if "{runner}" in sys.orig_argv:
    open({slept!r}, "w").close()
    time.sleep({seconds})
sys.path.remove({directory!r})
del sys.modules["pyarrow"]
import pyarrow
"""


@pytest.mark.soak
def test_query_runs_though_pyspark_takes_longer_to_import_than_spark_waits(
    spark: Any, broker: Broker, tmp_path: Path, unique: Any
) -> None:
    stream = unique("slow")
    declare_stream(broker.url, stream)
    fill(broker.url, stream, numbered(10))
    slow = tmp_path / "slow"
    slow.mkdir()
    slept = tmp_path / "slept"
    source = SLOW.format(runner=SOURCE_RUNNER, seconds=12, directory=str(slow), slept=str(slept))
    (slow / "pyarrow.py").write_text(source)
    environment = spark.sparkContext.environment
    environment["PYTHONPATH"] = str(slow)
    try:
        register(spark)  # a format's workers have the environment of its registration
        query = archive.start(
            spark, archive.ArchiveOptions(broker.url, (stream,), str(tmp_path / "archive"))
        )
        query.awaitTermination()
    finally:
        del environment["PYTHONPATH"]
        register(spark)
    assert slept.exists()
    assert query.lastProgress["numInputRows"] == 10
