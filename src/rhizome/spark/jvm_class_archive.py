"""An archive of Spark's classes as a JVM has them once they are loaded (application class data
sharing). A JVM that maps it, instead of loading and checking 15,000 classes, starts with half the
work.

Invariant: a JVM is told of an archive only if it is this user's alone and of this Spark and Java.
The JVM checks Java's build and each JAR itself, and goes on without an archive that doesn't fit.

`rhizome pipeline prepare` makes it. It isn't made on the side: that takes as long as a job, and
180 MB of disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rhizome.spark.private_cache import is_private, private_cache
from rhizome.spark.spark_master import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SUFFIX: Final = ".jsa"
KEPT_MAX: Final = 2
"""So many archives stay in the cache, the ones used last: of two Sparks, or two Javas."""
EXIT_SECONDS_MAX: Final = 600.0
"""So long a JVM may take to write the archive when it ends."""
FLAG: Final = "SharedArchiveFile"
# The JVM complains about an archive that doesn't fit, and about classes that can't be archived.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def java_options() -> str:
    """Options of a JVM that make it use the archive, or nothing if there is none."""
    path = archive_path()
    try:
        if path is None or not is_private(path):
            return ""
        os.utime(path)
    except OSError:
        return ""
    return f"-XX:{FLAG}={path} {_QUIET}"


def archive_path() -> Path | None:
    """Where the archive for this Spark and this Java is or would be; None if there is no Java, no
    directory for it, or a path that can't stand among options."""
    directory, java, spark = private_cache(), _java(), _spark_home()
    if directory is None or java is None or spark is None:
        return None
    facts = f"{java.resolve()}\0{java.resolve().stat().st_mtime_ns}\0{spark}\0{_version(spark)}"
    path = directory / f"classes-{hashlib.sha256(facts.encode()).hexdigest()[:16]}{SUFFIX}"
    return None if any(character.isspace() for character in str(path)) else path


def make_archive(start: Callable[[str], SparkSession], say: Callable[[str], None]) -> Path:
    """Make the archive with a session that `start` starts with these options of its JVM. The
    process has no other session, and none after it.

    Raises SessionError if there is no place for it, or if the JVM has made none.
    """
    path = archive_path()
    if path is None:
        raise SessionError(
            "there is no place for the archive: Java must be installed, and XDG_CACHE_HOME or "
            "~/.cache be a directory of yours, without blanks, that nobody else can write to"
        )
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(descriptor)
    scratch = Path(name)
    scratch.unlink()  # the JVM writes no archive over a file
    try:
        session = start(f"-XX:ArchiveClassesAtExit={scratch} {_QUIET}")
        say("using what jobs use")
        try:
            _use(session)
        finally:
            say("writing the archive")
            _end(session)
        if not scratch.is_file():
            raise SessionError("the JVM has made no archive; it needs Java 13 or newer")
        scratch.chmod(0o600)
        scratch.rename(path)
    finally:
        scratch.unlink(missing_ok=True)
    _prune(path.parent)
    return path


def _use(session: Any) -> None:
    """Load the classes of batches, Python workers, Parquet and streams, as jobs do."""
    with tempfile.TemporaryDirectory(prefix="rhizome-classes-") as directory:
        rows = session.range(100).selectExpr("id", "cast(id as string) as text", "id % 3 as kind")
        rows.write.partitionBy("kind").parquet(f"{directory}/rows")
        read = session.read.parquet(f"{directory}/rows").where("id > 3")
        read.mapInArrow(_unchanged, read.schema).groupBy("kind").count().orderBy("kind").collect()
        ticks = session.readStream.schema(read.schema).parquet(f"{directory}/rows")
        query = (
            ticks.writeStream.format("parquet")
            .option("path", f"{directory}/copy")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def _unchanged(batches: Any) -> Any:
    yield from batches


def _end(session: Any) -> None:
    """Stop the session and its JVM, and wait until the JVM is gone: it writes the archive last."""
    gateway = session.sparkContext._gateway
    session.stop()
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(EXIT_SECONDS_MAX)


def _java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "/nowhere")
    return found if found.is_file() else None


def _spark_home() -> Path | None:
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _version(spark: Path) -> str:
    """What tells one Spark from another at the same path: the time of its directory of JARs."""
    jars = spark / "jars"
    return str(jars.stat().st_mtime_ns) if jars.is_dir() else ""


def _prune(directory: Path) -> None:
    found = sorted(directory.glob(f"classes-*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    for path in found[:-KEPT_MAX]:
        path.unlink(missing_ok=True)
