"""Python workers of Spark: which Python they run, and what a session tells them.

Spark starts Python processes for sources, on the driver and on executors, by one name that it takes
from PYSPARK_PYTHON when the session starts: without it `python3` of the PATH, which in a virtual
environment may be another one than runs the program, without this package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from rhizome.errors import RhizomeError
from rhizome.spark import spark_master
from rhizome.spark.data_source_options import PARTITIONS

CHECK_SECONDS_MAX: Final = 60.0
arranged: Final[set[str]] = set()
"""Names that mean the Python of this process to Spark on this host, whatever the PATH says: whoever
started the session has seen to it."""
_checked: Final[set[tuple[str, ...]]] = set()
"""Pythons that were tried, each with what it was sent."""


class WorkerPythonError(RhizomeError):
    """Workers would run a Python that can't work for us; the text says which, and what to set."""


def prepare_workers(spark: Any, shipped: Path | None = None) -> None:
    """See to it that workers of this session find this package and know how many they are.

    Spark Connect has its workers at the server, where this process can't look.
    """
    if spark_master.has_remote_driver(spark):
        return
    context = spark.sparkContext
    _choose_python(context, shipped)
    context.environment[PARTITIONS] = str(context.defaultParallelism)


def _choose_python(context: Any, shipped: Path | None) -> None:
    python = context.pythonExec
    found = shutil.which(python)
    if python in arranged or (found is not None and _is_this(found)):
        return
    if spark_master.is_local(context.master) and "PYSPARK_PYTHON" not in os.environ:
        # Nobody has chosen one. All workers are on this host, so it may be this one.
        context.pythonExec = sys.executable
        return
    sent = [str(shipped)] if shipped else _sent(context)
    if (python, *sent) not in _checked:
        _check_python(python, found, context.master, sent)
        _checked.add((python, *sent))


def _sent(context: Any) -> list[str]:
    """What jobs of this session take along for Python."""
    names = context._python_includes or ()
    if not names:
        return []
    from pyspark import SparkFiles

    return [SparkFiles.get(name) for name in names]


def _is_this(python: str) -> bool:
    """Whether a path leads to the Python that runs this, in the same virtual environment."""
    return Path(python).absolute() == Path(sys.executable).absolute()


def _check_python(python: str, found: str | None, where: str, sent: list[str]) -> None:
    """Run it once, as Spark would on the driver."""
    advice = (
        "Set PYSPARK_PYTHON before the session starts, to a Python with pyspark, pyarrow and "
        f"rhizome; on this host {sys.executable} is one"
    )
    if not spark_master.is_local(where):
        advice += ". It is the same path on executors"
    if found is None:
        raise WorkerPythonError(f"Spark would run '{python}', which is not on this host. {advice}")
    paths = [*sent, *_spark_paths(), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [found, "-c", "import pyspark, pyarrow, rhizome.spark.data_source"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=CHECK_SECONDS_MAX,
    )
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["it fails"])[-1]
        raise WorkerPythonError(f"Spark would run {found}, which can't do it ({why}). {advice}")


def _spark_paths() -> list[str]:
    """What Spark puts on the path of its workers itself."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return [str(path) for path in (home / "python" / "lib").glob("*.zip")]
