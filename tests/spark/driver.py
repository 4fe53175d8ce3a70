"""A driver as a process of its own, to be killed: three queries in one session.

    stream -> Parquet       the job `archive`, in small batches
    work queue -> Parquet   the source on work queues, which leases what it reads
    Parquet -> queue        the sink, a pair of files per batch

All go on as input comes, and end once there is a file `enough` and all input is done. Run as
`python -m tests.spark.driver SETTINGS`, with `DriverSettings` as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rhizome.spark.jobs.watching import WORKER_LATE
from rhizome.testing.processes import wait_until

ROOT = Path(__file__).parents[2]
SCHEMA = "value STRING"
LOOK_SECONDS = 0.2
INITIALIZING = "Initializing"
PAUSE = threading.Event()  # never set


@dataclass(frozen=True)
class DriverSettings:
    """What the queries read and write; `directory` is this driver's, over all its lives."""

    uri: str
    stream: str
    queue: str
    work: str
    directory: str
    rows_per_batch: int
    rows_per_second: int
    deduplicate: str = "sequence"

    @property
    def archive(self) -> str:
        return f"{self.directory}/archive"

    @property
    def files(self) -> str:
        return f"{self.directory}/files"

    @property
    def leased(self) -> str:
        return f"{self.directory}/leased"

    @property
    def enough(self) -> Path:
        return Path(self.directory) / "enough"


def die_with_the_test() -> None:
    """Whoever started this process holds the other end of its stdin."""
    sys.stdin.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


class Kept:
    """A query that is started again if Spark could not start its worker. It gives that ten seconds,
    which nothing can change and a busy machine does not keep; nothing has happened by then. Workers
    that are started side by side would take them from each other: one is waited for before the
    next.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query: Any = None
        self.look()

    def look(self) -> None:
        """Start it if it does not run; raises what else it failed with."""
        while self._query is None or self._query.exception() is not None:
            if self._query is not None and WORKER_LATE not in str(self._query.exception()):
                raise self._query.exception()
            self._patiently(self._begin)

    def finish(self) -> None:
        """Have it do all that there is."""
        self._through("processAllAvailable")
        self._query.stop()

    def wait(self) -> None:
        """Wait for the end of one that has an end."""
        self._through("awaitTermination")

    def _through(self, call: str) -> None:
        self._patiently(getattr(self._query, call))
        while self._query.exception() is not None:
            self.look()
            self._patiently(getattr(self._query, call))

    def _begin(self) -> None:
        self._query = self._start()
        while self._query.isActive and self._query.status["message"].startswith(INITIALIZING):
            PAUSE.wait(LOOK_SECONDS)

    def _patiently(self, do: Callable[[], None]) -> None:
        from pyspark.errors import PySparkException

        try:
            do()
        except PySparkException as error:
            if WORKER_LATE not in str(error):
                raise


def main(settings: DriverSettings) -> None:
    threading.Thread(target=die_with_the_test, daemon=True).start()
    from rhizome.spark import register
    from rhizome.spark.jobs import archive
    from rhizome.spark.session import local_session

    spark = local_session("driver", "local[2]", Path(settings.directory) / "spark", quick=True)
    register(spark)
    options = archive.ArchiveOptions(
        settings.uri,
        (settings.stream,),
        settings.archive,
        follow=True,
        interval_s=LOOK_SECONDS,
        rows_per_batch=settings.rows_per_batch,
    )
    starts: list[Callable[[], Any]] = [
        lambda: archive.start(spark, options),
        lambda: (
            spark.readStream.format("rhizome")
            .option("uri", settings.uri)
            .option("subscribe", settings.work)
            .option("maxOffsetsPerTrigger", settings.rows_per_batch)
            .load()
            .select("value")
            .writeStream.format("parquet")
            .option("path", settings.leased)
            .option("checkpointLocation", f"{settings.directory}/leases")
            .trigger(processingTime=f"{LOOK_SECONDS} seconds")
            .start()
        ),
        lambda: (
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 2)
            .parquet(settings.files)
            .writeStream.format("rhizome")
            .option("uri", settings.uri)
            .option("queue", settings.queue)
            .option("deduplicate", settings.deduplicate)
            .option("maxRowsPerSecond", settings.rows_per_second)
            .option("checkpointLocation", f"{settings.directory}/checkpoint")
            .trigger(processingTime=f"{LOOK_SECONDS} seconds")
            .start()
        ),
    ]
    queries = [Kept(start) for start in starts]
    while not settings.enough.exists():
        for query in queries:
            query.look()
        PAUSE.wait(LOOK_SECONDS)
    for query in queries:
        query.finish()
    spark.stop()


class Driver:
    """The process. Invariant: at most one runs, and none is left behind after `kill`."""

    def __init__(self, settings: DriverSettings) -> None:
        self.settings = settings
        self.output = Path(settings.directory) / "driver.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", json.dumps(asdict(self.settings))],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                process_group=0,
            )

    def kill(self) -> None:
        """kill -9 for Python and for the JVM. Spark's workers see that and end on their own, a
        moment later: what they still send meanwhile must do no harm."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def finish(self, seconds: float) -> int:
        """Let it end when it has done all; its exit code."""
        self.settings.enough.touch()
        wait_until(self.has_ended, "the driver to end", seconds)
        process, self._process = self._process, None
        assert process is not None
        process.communicate()
        return int(process.returncode)

    def said(self) -> str:
        return self.output.read_text()[-4000:]


if __name__ == "__main__":
    main(DriverSettings(**json.loads(sys.argv[1])))
