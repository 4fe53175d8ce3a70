"""A Spark session for this process, on any cluster, and quiet.

Spark talks a lot while it starts, partly before any of its settings count. Everything that it and
its workers have to say goes to a log file, so that a terminal shows progress and results only.

Whose settings count: first those that are given here (`--conf`), then what Spark's own files and
PYSPARK_SUBMIT_ARGS say, then ours. Two things are added to whatever is there rather than replaced:
what must not be shown (redaction), and options of the driver's JVM.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rhizome.spark import jvm_class_archive, python_workers, spark_master, worker_launcher
from rhizome.spark.spark_master import SessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOG_NAME", "SessionError", "SessionOptions", "local_session", "start_session"]

LOG_NAME: Final = "spark.log"
LOG_BYTES_MAX: Final = 20 << 20
LOG_FILES_MAX: Final = 3
"""Older logs beside the one that is written, each of so many bytes."""
EXECUTOR_SECONDS_DEFAULT: Final = 60.0
EXECUTOR_PYTHON: Final = "python3"
WORKER_ANSWER_MAX: Final = "120s"
"""So long Python workers wait for the JVM's first answer; Spark's 15 s are short where many start
at once."""
SOURCE_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
LISTS_OF_FILES: Final = ("spark.archives", "spark.files", "spark.jars", "spark.submit.pyFiles")
OF_USERS: Final = {"SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS"}
"""In the environment: whoever set them meant them."""
_LOG4J: Final = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {bytes_max}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {files_max}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""
# Spark gives the Python of a streaming source ten seconds to connect: see worker_launcher.py.
_LAUNCHER: Final = """\
#!/bin/sh
{path}case "$2" in
{source}) exec {python} -P {program} "$@" ;;
esac
exec {python} "$@"
"""
# Halves the time to start at the price of a third of the speed: for tests and short commands.
_QUICK_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
LITTLE_DATA_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Compiling a query takes longer than interpreting it on a few thousand rows."""
_USUAL_JVM: Final = "-XX:+UseSerialGC"
# Two collectors in one command line are an error: whoever chose one keeps it.
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_CLASS_ARCHIVE: Final = re.compile(r"-XX:(SharedArchiveFile|ArchiveClassesAtExit)=|-Xshare:")
# Without these the JVM checks the bounds of each value that it reads of a batch, and once more that
# it is not null: a third of its work. Batches come from Arrow itself, which made sure of them, and
# Spark asks for nulls first.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# Spark puts an archive of its own, pyspark.zip, before everything else on the path of its workers.
# Python can't keep compiled modules in there, so each process that Spark starts would compile all
# of pyspark again, for longer than most steps of a job take.
_WITHOUT_ARCHIVE: Final = """\
set -f
IFS=:
kept=
for each in $PYTHONPATH; do
    case $each in
        */python/lib/pyspark.zip|*/python/lib/py4j-*-src.zip) ;;
        *) kept=${kept:+$kept:}$each ;;
    esac
done
export PYTHONPATH="$kept"
unset IFS
"""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_JAVA: Final = "spark.driver.extraJavaOptions"
_EXECUTOR_JAVA: Final = "spark.executor.extraJavaOptions"
# Addresses of brokers carry passwords; so do options called so.
_REDACTED: Final = {
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|uri",
    "spark.sql.redaction.options.regex": "(?i)ur[il]|password",
}


@dataclass(frozen=True)
class SessionOptions:
    """Where a session runs (what --master names), and how.

    `directory` holds its log and scratch files. `conf` are settings of Spark that win over all
    others. `driver_host` is what executors are told to connect to; empty: found out. `ship`: send
    executors on other hosts what they need of this package.
    """

    where: str = "local[*]"
    directory: Path | None = None
    quick: bool = False
    ui: bool = False
    event_log: str = ""
    driver_host: str = ""
    executor_timeout_s: float = EXECUTOR_SECONDS_DEFAULT
    ship: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)


def local_session(
    name: str,
    where: str = "local[*]",
    directory: Path | None = None,
    quick: bool = False,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A session on the cluster `where`, with its log in `directory`/spark.log; the caller stops
    it.
    """
    return start_session(name, SessionOptions(where, directory, quick, conf=settings or {}))


def start_session(name: str, options: SessionOptions) -> SparkSession:
    """A session with executors, if there are any; the caller stops it.

    Raises SessionError if the cluster manager can't be reached, or if no executor comes.
    """
    directory = options.directory or Path(tempfile.mkdtemp(prefix="rhizome-spark-"))
    directory.mkdir(parents=True, exist_ok=True)
    if spark_master.is_connect(options.where):
        return _connect(name, options)
    found = user_settings()
    address = spark_master.driver_address(
        options.where, {**found, **options.conf}, options.driver_host, dict(os.environ)
    )
    spark_master.check_reachable(options.where)
    settings = session_settings(name, options, directory, found, address)
    with launch_environment(options, directory, {**found, **settings}, address):
        session = _start(settings, directory / LOG_NAME)
    try:
        if not spark_master.is_local(options.where):
            _await_executors(session, options, address)
            if options.ship:
                from rhizome.spark.shipment import ship

                ship(session)
    except BaseException:
        session.stop()
        raise
    return session


def _connect(name: str, options: SessionOptions) -> SparkSession:
    """A session at a server of Spark Connect, which has the driver: what is decided when a driver
    starts is decided there.
    """
    if find_spec("grpc") is None or find_spec("grpc_status") is None:
        raise SessionError(
            f"{spark_master.shown(options.where)} is a server of Spark Connect, for which "
            "packages are missing; install them with: pip install 'rhizomemq[connect]'"
        )
    given = {"--driver-host": options.driver_host, "--event-log": options.event_log}
    for option in [each for each, value in given.items() if value] + ["--ui"] * options.ui:
        raise SessionError(
            f"{option} is for a driver that is started here; the one of "
            f"{spark_master.shown(options.where)} has been started with its server"
        )
    spark_master.check_reachable(options.where)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    session = None
    try:
        session = SparkSession.builder.remote(options.where).getOrCreate()
        for key, value in {"spark.sql.session.timeZone": "UTC", **options.conf}.items():
            session.conf.set(key, value)
        if options.ship:
            from rhizome.spark.shipment import ship

            ship(session)
    except PySparkException as error:
        if session is not None:
            session.stop()
        first = str(error).splitlines()[0]
        raise SessionError(
            f"{spark_master.shown(options.where)} has refused the session: {first}"
        ) from None
    return session


# --- settings


def session_settings(
    name: str,
    options: SessionOptions,
    directory: Path,
    found: Mapping[str, str],
    address: spark_master.DriverAddress,
) -> dict[str, str]:
    """What Spark is started with; `found` is what its own files say."""
    settings = {
        "spark.app.name": f"rhizome {name}",
        "spark.master": options.where,
        "spark.ui.enabled": "true" if options.ui else "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "true",
        # Else each column of a query costs a look at the stack, for errors that quote the program.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.authenticate.socketTimeout": WORKER_ANSWER_MAX,
        "spark.sql.warehouse.dir": str(directory.absolute() / "warehouse"),
        **({"spark.local.dir": str(directory)} if spark_master.is_local(options.where) else {}),
        **address.settings(),
        **(LITTLE_DATA_SETTINGS if options.quick else {}),
    }
    for key in found:
        settings.pop(key, None)
    settings["spark.master"] = options.where
    if options.ui:
        settings["spark.ui.enabled"] = "true"
    if options.driver_host:
        settings.update(address.settings())
    if options.event_log:
        settings |= {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": _event_log_uri(options.event_log),
        }
    settings |= {key: _absolute_paths(key, value) for key, value in options.conf.items()}
    return settings | _added(options, directory, {**found, **options.conf})


def _absolute_paths(key: str, value: str) -> str:
    """A setting that lists files, with paths that mean the same wherever the JVM is started."""
    if key not in LISTS_OF_FILES:
        return value
    parts = [part.strip() for part in value.split(",")]
    return ",".join(part if _SCHEME.match(part) else str(Path(part).absolute()) for part in parts)


def _added(options: SessionOptions, directory: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Settings that are joined to what is given, never lost to it nor replacing it."""
    added = {}
    for key, pattern in _REDACTED.items():
        added[key] = f"{given[key]}|{pattern}" if given.get(key) else pattern
    java = given.get(_JAVA, "")
    ours = f"{_log_options(directory)} {_ARROW}"
    if not _COLLECTOR.search(java):
        ours = f"{ours} {_QUICK_JVM if options.quick else _USUAL_JVM}"
    if not _CLASS_ARCHIVE.search(java):
        ours = f"{ours} {jvm_class_archive.java_options()}".strip()
    added[_JAVA] = f"{ours} {java}".strip()
    if not spark_master.is_local(options.where):
        added[_EXECUTOR_JAVA] = f"{_ARROW} {given.get(_EXECUTOR_JAVA, '')}".strip()
    return added


def _log_options(directory: Path) -> str:
    configuration = directory / "log4j2.properties"
    log = (directory / LOG_NAME).resolve()
    limits = {"bytes_max": LOG_BYTES_MAX, "files_max": LOG_FILES_MAX}
    configuration.write_text(_LOG4J.format(level="warn", file=log, **limits))
    return f"-Dlog4j2.configurationFile={configuration.resolve().as_uri()}"


def _event_log_uri(given: str) -> str:
    """Spark wants the directory to be there, and takes a path without a scheme for a distributed
    one where that is the default.
    """
    if "://" in given or given.startswith("file:"):
        return given
    path = Path(given).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path.as_uri()


def user_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the user's own files and PYSPARK_SUBMIT_ARGS set."""
    env = os.environ if environment is None else environment
    arguments = shlex.split(env.get("PYSPARK_SUBMIT_ARGS", ""))
    file = _defaults_file(env)
    on_line: dict[str, str] = {}
    for option, value in pairwise(arguments):
        if option in ("--conf", "-c"):
            key, _, text = value.partition("=")
            on_line[key] = text
        elif option == "--master":
            on_line["spark.master"] = value
        elif option == "--properties-file":
            file = Path(value)
    text = file.read_text() if file is not None and file.is_file() else ""
    return {**properties(text), **on_line}


def _defaults_file(env: Mapping[str, str]) -> Path | None:
    if env.get("SPARK_CONF_DIR"):
        return Path(env["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    home = env.get("SPARK_HOME")
    if not home:
        spec = find_spec("pyspark")
        home = str(Path(spec.origin).parent) if spec is not None and spec.origin else None
    return Path(home) / "conf" / "spark-defaults.conf" if home else None


def properties(text: str) -> dict[str, str]:
    """Settings of a file like spark-defaults.conf: key and value, a blank or = between them."""
    found = {}
    for line in text.replace("\\\n", "").splitlines():
        line = line.strip()
        match = re.fullmatch(r"([^\s=:#!][^\s=:]*)\s*[\s=:]?\s*(.*)", line)
        if match is not None:
            found[match[1]] = match[2].strip()
    return found


# --- start


@contextmanager
def launch_environment(
    options: SessionOptions,
    directory: Path,
    settings: Mapping[str, str],
    address: spark_master.DriverAddress,
) -> Iterator[None]:
    """What the JVM and its Python workers find around them when they start.

    Spark runs the same name of a Python on the driver and on executors. On this host that is always
    the Python that runs this: else its workers find neither this package nor its formats.
    """
    changes: dict[str, str] = {}
    if address.bind not in ("", spark_master.ANY):
        changes["SPARK_LOCAL_IP"] = address.bind
    if not spark_master.is_local(options.where):
        # The setting spark.local.dir would count on executors too.
        changes["SPARK_LOCAL_DIRS"] = str(directory.absolute())
    python = os.environ.get("PYSPARK_PYTHON") or settings.get("spark.pyspark.python", "")
    with contextlib.ExitStack() as stack:
        if not spark_master.is_local(options.where):
            python = python or EXECUTOR_PYTHON
            stack.enter_context(_python_here(python, directory, changes))
        elif python in ("", sys.executable):
            python = _local_python(directory)
        for name in OF_USERS & changes.keys() & os.environ.keys():
            del changes[name]
        changes["PYSPARK_PYTHON"] = python
        changes["PYSPARK_DRIVER_PYTHON"] = sys.executable
        stack.enter_context(_environment(changes))
        yield


def _has_pyspark() -> bool:
    """Whether the pyspark that is installed is the one that Spark itself is of."""
    found = [find_spec(name) for name in ("pyspark", "py4j")]
    installed = all(each is not None and Path(each.origin or "").is_file() for each in found)
    return installed and "SPARK_HOME" not in os.environ


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """With these in the environment, and afterwards as it was."""
    kept = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _local_python(directory: Path) -> str:
    """The Python of this process, by way of the launcher where files of `directory` may be run."""
    script = directory.absolute() / "bin" / EXECUTOR_PYTHON
    _write_launcher(script)
    if not os.access(script, os.X_OK):
        return sys.executable
    python_workers.arranged.add(str(script))
    return str(script)


def _write_launcher(script: Path) -> None:
    """Make a program that is the Python of this process to Spark."""
    script.parent.mkdir(parents=True, exist_ok=True)
    python, program = (shlex.quote(each) for each in (sys.executable, worker_launcher.__file__))
    path = _WITHOUT_ARCHIVE if _has_pyspark() else ""
    script.write_text(
        _LAUNCHER.format(path=path, source=SOURCE_RUNNER, python=python, program=program)
    )
    script.chmod(0o755)


@contextmanager
def _python_here(python: str, directory: Path, changes: dict[str, str]) -> Iterator[None]:
    """Have the name that executors know a Python by mean this one on this host."""
    if Path(python).is_absolute():
        if not os.access(python, os.X_OK):
            raise SessionError(
                f"PYSPARK_PYTHON is {python}, which is not on this host: Spark runs the same path "
                "on the driver and on executors. Make a link to a Python with rhizome there, or "
                "give a name (python3) that is on the PATH of both"
            )
        yield
        return
    if ".." in Path(python).parts:
        raise SessionError(f"PYSPARK_PYTHON is {python}; a relative path must not lead upwards")
    python_workers.arranged.add(python)
    # A name is looked up on the PATH, a relative path in the directory that the JVM starts in.
    script = directory.absolute() / ("bin" if "/" not in python else ".") / python
    _write_launcher(script)
    if "/" in python:
        with contextlib.chdir(directory):
            yield
    else:
        changes["PATH"] = f"{script.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        yield


def _start(settings: Mapping[str, str], log: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _stderr_into(log):
        return builder.getOrCreate()


def _await_executors(
    session: Any, options: SessionOptions, address: spark_master.DriverAddress
) -> None:
    port = session.sparkContext.getConf().get("spark.driver.port", "?")
    spark_master.await_executors(session, options.where, options.executor_timeout_s, address, port)


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
