"""A driver as a process of its own that archives a stream into a Delta and an Iceberg table, with
mishaps at chosen instants.

A mishap is a file `FORMAT.MISHAP` in the directory of mishaps, which the environment names:

    halt-before, halt-after   the commit stops there until the driver is killed
    fail-before, fail-after   the commit fails there, once
    kill-task                 a task that has written its files is killed -9, once

Run as `python -m tests.spark.table_driver SETTINGS`, with `TableDriverSettings` as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rhizome.spark.lakehouse.table_options import table_settings
from rhizome.spark.lakehouse.table_source import StreamTableWriter, TableSource, prepared
from tests.spark.driver import PAUSE, Driver, Kept, die_with_the_test
from tests.spark.tables import FORMATS

MISHAPS = "RHIZOME_TEST_MISHAPS"
ON_PURPOSE = "failed on purpose"


@dataclass(frozen=True)
class TableDriverSettings:
    """What is archived; `directory` is this driver's, over all its lives."""

    uri: str
    stream: str
    directory: str
    rows_per_batch: int

    def table(self, kind: str) -> str:
        return f"{self.directory}/{kind}"

    @property
    def enough(self) -> Path:
        return Path(self.directory) / "enough"

    @property
    def mishaps(self) -> Path:
        return Path(self.directory) / "mishaps"


def happens(kind: str, mishap: str) -> bool:
    return (Path(os.environ[MISHAPS]) / f"{kind}.{mishap}").exists()


def happens_once(kind: str, mishap: str) -> bool:
    try:
        (Path(os.environ[MISHAPS]) / f"{kind}.{mishap}").unlink()
    except FileNotFoundError:
        return False
    return True


class UnluckyWriter(StreamTableWriter):
    """The sink, with mishaps."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        written = super().write(iterator)
        if happens_once(self._settings.format, "kill-task"):
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._strike("before")
        super().commit(messages, batchId)
        self._strike("after")

    def _strike(self, when: str) -> None:
        kind = self._settings.format
        if happens_once(kind, f"fail-{when}"):
            raise RuntimeError(ON_PURPOSE)
        if happens(kind, f"halt-{when}"):
            (Path(os.environ[MISHAPS]) / f"{kind}.reached-{when}").touch()
            PAUSE.wait()


class UnluckyTable(TableSource):
    """The format `rhizome.table`, with mishaps."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        settings = table_settings(self.options)
        return UnluckyWriter(settings, prepared(settings, schema), overwrite)


class KeptOnPurpose(Kept):
    """A query that is also started again if it failed on purpose."""

    causes = (*Kept.causes, ON_PURPOSE)


def main(settings: TableDriverSettings) -> None:
    threading.Thread(target=die_with_the_test, daemon=True).start()
    from rhizome.spark import register
    from rhizome.spark.jobs import archive
    from rhizome.spark.session import local_session

    # By its real name, not that of a script: workers import it.
    from tests.spark.table_driver import UnluckyTable as Unlucky

    # A task has four attempts, as on a cluster.
    spark = local_session("tables", "local[2,4]", Path(settings.directory) / "spark", quick=True)
    register(spark)
    spark.dataSource.register(Unlucky)

    def start(kind: str) -> Any:
        options = archive.ArchiveOptions(
            settings.uri,
            (settings.stream,),
            settings.table(kind),
            rows_per_batch=settings.rows_per_batch,
            format=kind,
        )
        return archive.start(spark, options)

    queries = [KeptOnPurpose(lambda kind=kind: start(kind)) for kind in FORMATS]
    for query in queries:
        query.wait()
    spark.stop()


class TableDriver(Driver):
    """The process, and its mishaps."""

    module = "tests.spark.table_driver"

    def __init__(self, settings: TableDriverSettings) -> None:
        super().__init__(settings)
        settings.mishaps.mkdir(parents=True)
        os.environ[MISHAPS] = str(settings.mishaps)

    def plan(self, *mishaps: str) -> None:
        """From now on these happen to both tables, and no others."""
        for path in self.settings.mishaps.iterdir():
            path.unlink()
        for mishap in mishaps:
            for kind in FORMATS:
                (self.settings.mishaps / f"{kind}.{mishap}").touch()

    def has_reached(self, when: str) -> bool:
        assert not self.has_ended(), self.said()
        return all((self.settings.mishaps / f"{kind}.reached-{when}").exists() for kind in FORMATS)

    def is_left(self, mishap: str) -> bool:
        return any((self.settings.mishaps / f"{kind}.{mishap}").exists() for kind in FORMATS)


if __name__ == "__main__":
    main(TableDriverSettings(**json.loads(sys.argv[1])))
