"""A driver as a process of its own, to be killed: three queries in one session.

    stream -> archive       the job `archive`, in small batches; Parquet, or a table
    work queue -> Parquet   the source on work queues, which leases what it reads
    Parquet -> queue        the sink, a pair of files per batch

All go on as input comes, and end once there is a file `enough` and all input is done. Without a
name of a work queue there are two. Run as `python -m tests.spark.driver SETTINGS`, with
`DriverSettings` as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rhizome.spark.jobs.job_progress import WORKER_LATE
from rhizome.testing.broker_process import wait_until

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
    master: str = "local[2]"
    conf: dict[str, str] = field(default_factory=dict)
    archive_format: str = "parquet"

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
    which our own sessions get by with (worker_launcher.py) and a server of Spark Connect on a busy
    machine does not; nothing has happened by then. Workers that are started side by side would take
    them from each other: one is waited for before the next.
    """

    causes: tuple[str, ...] = (WORKER_LATE,)

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query: Any = None
        self.look()

    def look(self) -> None:
        """Start it if it does not run; raises what else it failed with."""
        while self._query is None or self._query.exception() is not None:
            if self._query is not None and not self._is_expected(self._query.exception()):
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
            if not self._is_expected(error):
                raise

    def _is_expected(self, error: object) -> bool:
        return any(cause in str(error) for cause in self.causes)


def main(settings: DriverSettings) -> None:
    threading.Thread(target=die_with_the_test, daemon=True).start()
    from rhizome.spark import register
    from rhizome.spark.jobs import archive
    from rhizome.spark.session import SessionOptions, start_session

    directory = Path(settings.directory) / "spark"
    started = SessionOptions(settings.master, directory, quick=True, ship=False, conf=settings.conf)
    spark = start_session("driver", started)
    register(spark, ship=not settings.master.startswith("local"))
    options = archive.ArchiveOptions(
        settings.uri,
        (settings.stream,),
        settings.archive,
        follow=True,
        interval_s=LOOK_SECONDS,
        rows_per_batch=settings.rows_per_batch,
        format=settings.archive_format,
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
    if not settings.work:
        del starts[1]
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

    module = "tests.spark.driver"

    def __init__(self, settings: Any, launcher: Sequence[str] = ()) -> None:
        self.settings = settings
        self._launcher = list(launcher)
        self.output = Path(settings.directory) / "driver.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._launcher, *self._command()],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                process_group=0,
            )

    def _command(self) -> list[str]:
        settings = json.dumps(asdict(self.settings))
        return [sys.executable, "-m", self.module, settings]

    def kill(self) -> None:
        """kill -9 for Python and for the JVM. Spark's workers see that and end on their own, a
        moment later: what they still send meanwhile must do no harm."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
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
