"""A Spark session inside this process: local unless told otherwise, and quiet.

Spark talks a lot while it starts, partly before any of its settings count. Everything that it and
its workers have to say goes to a log file, so that a terminal shows progress and results only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_NAME: Final = "spark.log"
_LOG4J: Final = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""
# Halves the time to start at the price of a third of the speed: for tests and short commands.
_QUICK_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# Compiling a query takes longer than running it on a few thousand rows.
_QUICK_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_USUAL_JVM: Final = "-XX:+UseSerialGC"
# Without these the JVM checks the bounds of each value that it reads of a batch, and once more that
# it is not null: a third of its work. Batches come from Arrow itself, which made sure of them, and
# Spark asks for nulls first.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


def local_session(
    name: str,
    where: str = "local[*]",
    directory: Path | None = None,
    quick: bool = False,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A session on the Spark cluster `where`, with its log in `directory`/spark.log; the caller
    stops it.
    """
    directory = directory or Path(tempfile.mkdtemp(prefix="rhizome-spark-"))
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / LOG_NAME
    configuration = directory / "log4j2.properties"
    configuration.write_text(_LOG4J.format(level="warn", file=log.resolve()))
    # Else workers of another Python find neither this package nor its formats.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    java = f"-Dlog4j2.configurationFile={configuration.resolve().as_uri()} {_ARROW}"
    builder = (
        SparkSession.builder.appName(f"rhizome {name}")
        .master(where)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(directory))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"{java} {_QUICK_JVM if quick else _USUAL_JVM}")
        # Addresses of brokers carry passwords; so do options called so.
        .config("spark.redaction.regex", "(?i)secret|password|token|access[.]key|uri")
        .config("spark.sql.redaction.options.regex", "(?i)ur[il]|password")
    )
    for key, value in {**(_QUICK_SETTINGS if quick else {}), **(settings or {})}.items():
        builder = builder.config(key, value)
    with _stderr_into(log):
        return builder.getOrCreate()


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Send what this process and those that it starts write to stderr into a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    try:
        os.dup2(file, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)
