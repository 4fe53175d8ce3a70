"""A Spark cluster and a cluster of brokers in network namespaces, for tests.

    b1 b2 b3    hosts of the brokers
    m           Spark's standalone master
    w1 w2       a worker each, with one core; their Python has pyspark and pyarrow and no more
    d           the driver

All hosts see the same files, as with a shared file system; each has its own network, so 127.0.0.1
is nobody else. A test that has a cluster lives in the hub of its network, from which all hosts are
reached; the session fixture `spark` can't be used there. The fixture `cluster` (conftest.py) is one
for all tests of this directory:

    def test_archive(cluster, tmp_path):
        declare_stream(cluster.uri, "events")
        to = str(tmp_path / "archive")
        job = cluster.pipeline("archive", "events", "--to", to, "--uri", cluster.uri)
        cluster.wait_for_executors(1)
        cluster.kill_executor()
        job.finish()                                # exit code 0, or AssertionError with its output
        rows = archived_rows(tmp_path / "archive")  # read without Spark

`cluster.pipeline(...)` is `rhizome pipeline ... --master`, `cluster.script(source)` a Python
program, `cluster.run(command)` any command, each on the driver's host; all return a `HostProcess`.
`cluster.cut("w2")`, `cluster.heal()`, `cluster.brokers`, `job.kill()` and
`cluster.workers["w1"].kill()` are the misfortunes. Tests need root: `pytestmark = NEEDS_NETWORK`.

Start-up takes 10 to 40 s and 700 MB, and each driver 10 s more: have few tests, and few drivers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest

from rhizome.testing.broker_process import wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.network_namespaces import Network, why_not
from tests.spark.quick_jvm import QUICK_JVM

from .bare_python import ROOT, bare_python

REFUSAL: Final = why_not()
NEEDS_NETWORK: Final = pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL)

BROKERS: Final = ("b1", "b2", "b3")
MASTER: Final = "m"
WORKERS: Final = ("w1", "w2")
DRIVER: Final = "d"
MASTER_PORT: Final = 7077
MASTER_HTTP_PORT: Final = 8080
WORKER_HTTP_PORT: Final = 8081
START_SECONDS_MAX: Final = 180.0
STOP_SECONDS_MAX: Final = 30.0
JOB_SECONDS_MAX: Final = 600.0
OUTPUT_CHARS_MAX: Final = 6000
EXECUTOR_CLASS: Final = b"CoarseGrainedExecutorBackend"
QUICK_CONF: Final = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For jobs of a few thousand rows on machines with two cores."""
# A killed test run can't end its processes: the guard of each does, when its input ends.
_GUARD: Final = """
import os, signal, sys
sys.stdin.read()
os.killpg(int(sys.argv[1]), signal.SIGKILL)
"""


class HostProcess:
    """A command on a host, with all that it starts; what it prints goes to `output`."""

    def __init__(
        self, launcher: Sequence[str], command: Sequence[str], output: Path, env: Mapping[str, str]
    ) -> None:
        self.output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(env),
                process_group=0,
            )
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(self.process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, process_group=0)

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        return self.output.read_text(errors="replace")[-OUTPUT_CHARS_MAX:]

    def finish(self, code: int = 0, seconds: float = JOB_SECONDS_MAX) -> str:
        """Wait for its end, insist on its exit code, and return what it has printed."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not done after {seconds:g} s\n{self.said()}") from None
        self.kill()
        assert self.process.returncode == code, f"exit {self.process.returncode}\n{self.said()}"
        return self.said()

    def interrupt(self) -> None:
        """Ctrl-C, for the program alone."""
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """kill -9 for it and what it has started; does no harm if it has ended."""
        if self._guard.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self._guard.kill()
            self._guard.communicate()
        self.process.wait(STOP_SECONDS_MAX)


class SparkCluster:
    """Brokers, master and workers. Invariant: `brokers`, `master` and `workers` run while it is
    entered, but for what a test has killed; `reset` starts that again.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        workers: int = 2,
        broker_environment: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        self.directory = directory
        names = [*BROKERS[:brokers], MASTER, *WORKERS[:workers], DRIVER]
        self.network = Network(names, broker_environment)
        self.worker_names = list(WORKERS[:workers])
        self._brokers = brokers
        self._python = python
        self.brokers: ClusterProcess | None = None
        self.workers: dict[str, HostProcess] = {}
        self._started: list[HostProcess] = []
        self._jobs = 0
        directory.mkdir(parents=True, exist_ok=True)

    # --- addresses

    @property
    def master(self) -> str:
        return f"spark://{self.network.address(MASTER)}:{MASTER_PORT}"

    @property
    def uri(self) -> str:
        """All brokers, for any client."""
        assert self.brokers is not None, "this cluster has no brokers"
        hosts = ",".join(f"{each.host}:{each.port}" for each in self.brokers.brokers.values())
        return f"amqp://guest:guest@{hosts}/"

    # --- life

    def __enter__(self) -> SparkCluster:
        try:
            self.network.build()
            self._python = self._python or bare_python()
            self._start_spark()
            if self._brokers:
                self._start_brokers()
            self.wait_for_workers(len(self.worker_names))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._started):
            process.kill()
        if self.brokers is not None:
            self.brokers.kill()
        self.network.tear_down()

    def reset(self) -> None:
        """Heal the network and start again whatever a test has killed."""
        self.network.heal()
        for name, worker in list(self.workers.items()):
            if not worker.is_running():
                self.start_worker(name)
        if self.brokers is not None:
            self.brokers.make_whole()
        self.wait_for_workers(len(self.worker_names))

    def _start_brokers(self) -> None:
        directory = self.directory / "brokers"
        self.brokers = ClusterProcess(directory, self._brokers, make=self.network.broker)
        self.brokers.start()

    def _start_spark(self) -> None:
        address = self.network.address(MASTER)
        ports = ["--port", str(MASTER_PORT), "--webui-port", str(MASTER_HTTP_PORT)]
        self._start_daemon(MASTER, "master.Master", ["--host", address, *ports])
        for name in self.worker_names:
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """A worker with one core; its executors run the Python that has nothing."""
        own = ["--host", self.network.address(name), "--cores", "1", "--memory", "1g"]
        own += ["--webui-port", str(WORKER_HTTP_PORT)]
        own += ["--work-dir", str(self.directory / "work" / name)]
        self.workers[name] = self._start_daemon(name, "worker.Worker", [*own, self.master])

    def _start_daemon(self, host: str, daemon: str, arguments: list[str]) -> HostProcess:
        import pyspark

        home = str(Path(pyspark.__file__).parent)
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{daemon}", *arguments]
        # Nothing of this process's environment: PYTHONPATH would lead executors to our sources.
        environment = {
            "PATH": f"{self._python}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": self.network.address(host),
            "SPARK_LOCAL_DIRS": str(self.directory / "scratch" / host),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }
        if "JAVA_HOME" in os.environ:
            environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        return self._start(host, command, self.directory / f"{host}.txt", environment)

    def _start(
        self, host: str, command: Sequence[str], output: Path, environment: Mapping[str, str]
    ) -> HostProcess:
        launcher = ("ip", "netns", "exec", self.network.space(host))
        process = HostProcess(launcher, command, output, environment)
        self._started.append(process)
        return process

    # --- drivers

    def launcher(self) -> tuple[str, ...]:
        """Goes before a command on the driver's host; nobody has chosen a Python for workers."""
        space = self.network.space(DRIVER)
        return ("ip", "netns", "exec", space, "env", "--unset", "PYSPARK_PYTHON")

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> HostProcess:
        """A command on the driver's host, as somebody there would start it."""
        self._jobs += 1
        output = self.directory / f"driver-{self._jobs}.txt"
        kept = {name: value for name, value in os.environ.items() if not _is_of_spark(name)}
        kept["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        return self._start(DRIVER, command, output, {**kept, **(environment or {})})

    def pipeline(
        self,
        *arguments: str,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> HostProcess:
        """`rhizome pipeline ARGUMENTS --master ...`; what it prints is its output."""
        command = [sys.executable, "-m", "rhizome", "pipeline", *arguments]
        if "--master" not in arguments:
            command += ["--master", self.master]
        for key, value in {**QUICK_CONF, **(conf or {})}.items():
            command += ["--conf", f"{key}={value}"]
        return self.run(command, environment)

    def script(
        self,
        source: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> HostProcess:
        """A Python program; `sys.argv[1:]` are the arguments."""
        path = self.directory / f"script-{self._jobs + 1}.py"
        path.write_text(source)
        return self.run([python, str(path), *arguments], environment)

    # --- misfortunes

    def executors(self) -> dict[int, str]:
        """Process numbers of executors, with the host of each."""
        parents = {worker.pid: name for name, worker in self.workers.items()}
        return {
            pid: parents[parent]
            for pid, parent, command in _processes()
            if parent in parents and EXECUTOR_CLASS in command
        }

    def wait_for_executors(self, count: int, seconds: float = START_SECONDS_MAX) -> dict[int, str]:
        """Wait until so many executors run at least."""

        def enough() -> dict[int, str]:
            found = self.executors()
            return found if len(found) >= count else {}

        return wait_until(enough, f"{count} executors\n{self._last_said()}", seconds)

    def kill_executor(self, host: str = "") -> str:
        """kill -9 for an executor, on this host or any; where it was."""
        pid, where = next(
            (pid, where) for pid, where in self.executors().items() if host in ("", where)
        )
        os.kill(pid, signal.SIGKILL)
        return where

    def cut(self, host: str) -> None:
        """Nothing gets to a host or away from it, and nobody is told; `heal` undoes it."""
        self.network.part([host], [name for name in self.network.names if name != host])

    def heal(self) -> None:
        self.network.heal()

    def python_of_workers(self) -> str:
        """The Python that executors run; it is on the driver's host too, and has no rhizome."""
        return str(self._python and self._python / "bin" / "python")

    def home_of(self, queue: str) -> str:
        """The broker that is home of a queue or stream."""
        from tests.process.helpers import call_api

        assert self.brokers is not None
        return str(call_api(self.brokers.running()[0], "GET", "queues", "/", queue)["node"])

    # --- what Spark says

    def state(self) -> dict[str, Any]:
        """What the master knows: `workers`, `activeapps`, `aliveworkers`...; nothing if it doesn't
        answer, or not with JSON, as while it starts."""
        url = f"http://{self.network.address(MASTER)}:{MASTER_HTTP_PORT}/json/"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, HTTPException, ValueError):
            return {}

    def wait_for_workers(self, count: int) -> None:
        wait_until(
            lambda: self.state().get("aliveworkers") == count,
            f"{count} workers\n{self._last_said()}",
            START_SECONDS_MAX,
        )

    def _last_said(self) -> str:
        return "\n".join(f"--- {each.output.name}\n{each.said()[-1500:]}" for each in self._started)


def _is_of_spark(name: str) -> bool:
    return name.startswith(("SPARK_", "PYSPARK_")) or name == "PYTHONPATH"


def _processes() -> Iterator[tuple[int, int, bytes]]:
    """Number, parent and command of all processes."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            yield int(path.name), int(parent), command


def archived_rows(path: Path, columns: Sequence[str] = ("offset", "value")) -> list[dict[str, Any]]:
    """The rows of an archive, read without Spark: of the files that its metadata counts."""
    import pyarrow.parquet as pq

    return [
        row
        for file in counted_files(path)
        for row in pq.ParquetFile(file).read(columns=list(columns)).to_pylist()
    ]


def counted_files(path: Path) -> list[Path]:
    """The files that count in a directory that a streaming query of Spark has written."""
    logs = sorted(
        (each for each in (path / "_spark_metadata").glob("[0-9]*")),
        key=lambda each: int(each.name.split(".")[0]),
    )
    compact = max((n for n, each in enumerate(logs) if each.suffix == ".compact"), default=0)
    lines = [line for log in logs[compact:] for line in log.read_text().splitlines()[1:]]
    return [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]
